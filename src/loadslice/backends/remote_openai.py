"""Engines elsewhere: any server with OpenAI's chat or completions interface, text in and text out.

Each row is one call; rows of a batch follow one another, so a server that batches by itself is given slots
(``max_inflight``) rather than batches. Replies are whole: a stage of a pipeline hands on what is finished.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loadslice.backends.base import EngineError, TensorInfo, check_feeds
from loadslice.backends.remote_http import NO_REPLY, Known, Remote, refusal
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine
from loadslice.spec.work import StageInputError, Tensor

KIND = "remote-openai"

MODELS_NAMED = 5
TOKENS_MAX = 2**63 - 1

OPTIONS: Known = {
    "endpoint": str,
    "system": str,
    "max_tokens": int,
    "temperature": (int, float),
    "seed": int,
}


class RemoteOpenAiBackend:
    """Finds models on servers with OpenAI's interface."""

    def load(self, model: Path, engine: Engine) -> "RemoteOpenAiSession":
        """See `loadslice.backends.base.Backend.load`; ``options.model`` is its name there, else the stage's."""
        remote = Remote(engine, KIND, OPTIONS)
        if engine.options.get("endpoint", "chat") not in ("chat", "completions"):
            raise InputError(
                f"{KIND}: options.endpoint: '{engine.options['endpoint']}' is neither chat nor completions."
            )
        name = str(engine.options.get("model", model.name))
        try:
            return RemoteOpenAiSession(remote, name, engine)
        except BaseException:
            remote.close()
            raise


class RemoteOpenAiSession:
    """One language model of one server; a slot is a connection."""

    def __init__(self, remote: Remote, name: str, engine: Engine) -> None:
        self.inputs = [TensorInfo("prompt", np.dtype(np.object_), (None,))]
        self.outputs = [
            TensorInfo("text", np.dtype(np.object_), (None,)),
            TensorInfo("tokens_in", np.dtype(np.int64), (None,)),
            TensorInfo("tokens_out", np.dtype(np.int64), (None,)),
        ]
        self.remote = remote
        self._name = name
        self._engine = engine
        self._is_chat = engine.options.get("endpoint", "chat") == "chat"
        # A url that ends in /v1, as clients of this interface take it, and one that does not, both do.
        self._base = "" if remote.url.path.rstrip("/").endswith("/v1") else "/v1"
        self._check_model()

    def run(self, feeds: Mapping[str, Tensor], slot: int = 0) -> dict[str, Tensor]:
        """See `loadslice.backends.base.Session.run`; tokens are -1 where the server does not count them."""
        check_feeds(self.inputs, feeds)
        answers = [self._ask(_text(prompt), slot) for prompt in feeds["prompt"].tolist()]
        text = np.empty(len(answers), np.object_)
        text[:] = [answer for answer, _, _ in answers]
        counts = np.array([counted for _, *counted in answers], np.int64).reshape(-1, 2)
        return {"text": text, "tokens_in": counts[:, 0].copy(), "tokens_out": counts[:, 1].copy()}

    def describe(self) -> dict[str, str | int]:
        """See `loadslice.backends.base.Session.describe`."""
        return {
            "runtime": KIND,
            "version": "unknown",
            "device": self.remote.host,
            "threads": self._engine.threads,
            "precision": self._engine.precision,
            "model": self._name,
        }

    def close(self) -> None:
        """Close the connections."""
        self.remote.close()

    def _ask(self, prompt: str, slot: int) -> tuple[str, int, int]:
        asked: dict[str, Any] = {"model": self._name, "stream": False}
        asked |= {key: self._engine.options[key] for key in ("max_tokens", "temperature", "seed") if self._has(key)}
        if self._is_chat:
            system = [{"role": "system", "content": self._engine.options["system"]}] if self._has("system") else []
            asked["messages"] = [*system, {"role": "user", "content": prompt}]
        else:
            asked["prompt"] = prompt
        path = f"{self._base}/{'chat/completions' if self._is_chat else 'completions'}"
        body = json.dumps(asked).encode()
        reply = self.remote.post(slot, path, {"Content-Type": "application/json"}, body)
        try:
            document = json.loads(reply.body)
            choice = document["choices"][0]
            text = choice["message"]["content"] if self._is_chat else choice["text"]
            usage = document.get("usage") or {}
            return str(text or ""), _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
        except NO_REPLY as error:
            raise EngineError(f"{KIND}: {self.remote.host} gave what is no reply: {type(error).__name__}.") from error

    def _has(self, option: str) -> bool:
        return option in self._engine.options

    def _check_model(self) -> None:
        try:
            reply = self.remote.get(f"{self._base}/models")
        except EngineError as error:
            raise refusal(self.remote, f"model '{self._name}'", error) from error
        if reply.status != 200:
            raise refusal(self.remote, f"model '{self._name}'", reply)
        try:
            there = [str(one["id"]) for one in json.loads(reply.body)["data"]]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(f"{KIND}: {self.remote.host} does not list models as OpenAI's interface does.") from error
        if self._name not in there:
            listed = ", ".join(there[:MODELS_NAMED]) or "none"
            raise InputError(f"{KIND}: {self.remote.host} has no model '{self._name}' ({listed}). Set options.model.")


BACKEND = RemoteOpenAiBackend()


def _count(said: Any) -> int:
    """Tokens; -1 where the server says no number of them."""
    return said if type(said) is int and 0 <= said <= TOKENS_MAX else -1


def _text(prompt: Any) -> str:
    if isinstance(prompt, bytes):
        try:
            return prompt.decode()
        except UnicodeDecodeError as error:
            raise StageInputError("input 'prompt' is not UTF-8.") from error
    return str(prompt)
