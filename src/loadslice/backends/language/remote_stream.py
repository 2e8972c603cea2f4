"""One sequence that a server elsewhere continues: asked over OpenAI's interface, read as its tokens come.

Prompts are sent as tokens. Answers are read as tokens where the server tells them (``return_token_ids``, as vLLM and
our own do); else its text is encoded again, piece by piece, which gives the same text and, rarely, other pieces of it.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from loadslice.backends.language import messages as m
from loadslice.backends.language.words import Words
from loadslice.backends.remote_http import CLIENT_FAULTS, CONNECT_S, ERROR_BYTES_MAX, Endpoint
from loadslice.spec.errors import InputError

RETRY_AFTER_S_MAX = 10.0
"""Of what a server that has too much to do asks for; who has no time for it is told so by its deadline."""

LIST_BYTES_MAX = 4 * 1024 * 1024

_NO_ANSWER = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
"""What reading JSON of another shape than is meant, a number beyond all numbers, or brackets without end, raises."""


class RefusedError(Exception):
    """The server refuses this request itself: asking again would not help."""


class TroubleError(Exception):
    """The server cannot now, or gave what is no answer.

    Attributes:
        after_s: It asks to be left alone for so long.
        busy: It is well and has too much to do (429): no sign that it is broken, however often it says so.
    """

    def __init__(self, text: str, after_s: float = 0.0, *, busy: bool = False) -> None:
        super().__init__(text)
        self.after_s = after_s
        self.busy = busy


class MismatchError(Exception):
    """The server's tokens are not ours."""


@dataclass(slots=True, eq=False)
class Stream:
    """A sequence and what has come of it."""

    row: int
    number: int
    tokens: list[int]
    """Its prompt, and all that was produced, read or not."""
    prompt: int
    sampling: m.Sampling
    new_max: int
    until_s: float | None
    """On the loop's clock."""
    unread: deque[int] = field(default_factory=deque)
    """Tokens that its owner has not been told of."""
    failure: str = ""
    has_begun: bool = False
    """Whether its owner has been told of a token."""
    task: "asyncio.Task[None] | None" = None

    @property
    def left(self) -> int:
        """Tokens that it may still produce."""
        return self.new_max - (len(self.tokens) - self.prompt)

    def is_overdue(self, now_s: float) -> bool:
        """Whether its time is over; its owner ends it then, and nobody is to blame."""
        return self.until_s is not None and now_s >= self.until_s

    @property
    def has_news(self) -> bool:
        """Whether there is a token, or a failure, to tell."""
        return bool(self.unread or self.failure)

    def add(self, token: int) -> None:
        """A token has come."""
        self.tokens.append(token)
        self.unread.append(token)


class RemoteModel:
    """One model of one server. Made on an event loop, used there only.

    Args:
        endpoint: Where.
        name: Of the model there.
        words: The model's tokenizer.
    """

    def __init__(self, endpoint: Endpoint, name: str, words: Words) -> None:
        self.endpoint, self.name, self.words = endpoint, name, words
        self.tells_tokens = True
        # A url that ends in /v1, as clients of this interface take it, and one that does not, both do.
        base = endpoint.url.geturl().rstrip("/")
        self._base = base if base.endswith("/v1") else f"{base}/v1"
        # No proxy of the environment: prompts go where the file says and nowhere else.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=endpoint.context or True), trust_env=False
        )

    async def check(self, context: int) -> None:
        """Ask whether the model is there, and take one token from it.

        Raises:
            InputError: It is not, its context is shorter than ours, or it takes no prompts as tokens.
        """
        where = f"{self.endpoint.kind}: {self.endpoint.host}"
        try:
            async with self._session.get(f"{self._base}/models", **self._how(CONNECT_S)) as reply:
                if reply.status != 200:
                    raise InputError(f"{where} answers {reply.status} when asked for its models. Check options.url.")
                listed = {str(one["id"]): one for one in json.loads(await _whole(reply))["data"]}
        except _NO_ANSWER as error:
            raise InputError(f"{where} does not list models as OpenAI's interface does.") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise InputError(f"{where} cannot be reached, {_words(error)}. Check options.url.") from error
        if self.name not in listed:
            names = ", ".join(list(listed)[:5]) or "none"
            raise InputError(f"{where} has no model '{self.name}' ({names}). Set options.model.")
        theirs = listed[self.name].get("max_model_len")
        if isinstance(theirs, int) and theirs < context:
            raise InputError(f"{where}: its context is {theirs} tokens, ours {context}. Say `context: {theirs}`.")
        await self._probe(where)

    async def _probe(self, where: str) -> None:
        """Take a token, with and else without being told which token it is.

        Raises:
            InputError: There is none to be had.
        """
        try:
            try:
                found = [tokens async for tokens in self.read(self._trial())]
            except RefusedError:
                self.tells_tokens = False
                found = [tokens async for tokens in self.read(self._trial())]
        except MismatchError as error:
            raise InputError(f"{where}, model '{self.name}': {error}. Give both sides the same model.") from error
        except (RefusedError, TroubleError) as error:
            raise InputError(
                f"{where} continues no prompt that is given as tokens over /v1/completions: {error}"
            ) from error
        if not found:
            self.tells_tokens = False

    def _trial(self) -> Stream:
        return Stream(-1, -1, self.words.encode("1, 2, 3,"), 0, m.Sampling(), 10**6, None)

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def read(self, stream: Stream) -> AsyncIterator[list[int]]:
        """Ask once, and read until the answer ends.

        Yields:
            Tokens as they come, perhaps none; the last are followed by a token that ends the sequence, if the server
            says that it has ended by itself.

        Raises:
            RefusedError: The request is refused.
            TroubleError: Anything else that is no whole answer.
        """
        is_trial = stream.row < 0
        left_s = None if stream.until_s is None else stream.until_s - asyncio.get_running_loop().time()
        if left_s is not None and left_s <= 0:
            raise TroubleError("no time was left")
        body = self._body(stream, 1 if is_trial else stream.left)
        try:
            async with self._session.post(f"{self._base}/completions", json=body, **self._how(left_s)) as reply:
                if reply.status != 200:
                    raise await _refusal(reply)
                reason, room = None, self.endpoint.reply_bytes_max
                async for line in reply.content:
                    room -= len(line)
                    if room < 0:
                        raise TroubleError("the answer is longer than is taken (options.reply_mb_max)")
                    data = line.strip()
                    if not data.startswith(b"data:") or data == b"data: [DONE]":
                        continue
                    choice = _choice(data[5:])
                    if choice is None:
                        continue
                    reason = choice.get("finish_reason") or reason
                    tokens = self._tokens(choice)
                    if is_trial and len(tokens) == 1:
                        self._compare(tokens[0], choice.get("text"))
                    yield tokens
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TroubleError(_words(error)) from error
        except _NO_ANSWER as error:
            raise TroubleError("what came is no answer of this interface") from error
        if reason is None:
            raise TroubleError("the answer broke off")
        ends = stream.sampling.stop_tokens
        if reason == "stop" and ends and (len(stream.tokens) == stream.prompt or stream.tokens[-1] not in ends):
            yield [ends[0]]

    def _tokens(self, choice: dict[str, Any]) -> list[int]:
        if choice.get("index", 0) != 0:
            raise ValueError("a choice that was not asked for")
        said = choice.get("token_ids")
        if said is not None and self.tells_tokens:
            tokens: list[int] = list(said)
            if any(type(token) is not int or not 0 <= token < len(self.words.pieces) for token in tokens):
                raise ValueError("what is no token of the vocabulary")
            return tokens
        text = choice.get("text") or ""
        if not isinstance(text, str):
            raise TypeError("text that is none")
        return self.words.encode(text)

    def _compare(self, token: int, text: object) -> None:
        """Refuse a server whose tokens are other pieces of text than ours: its answers would be wrong in silence.

        Raises:
            MismatchError: It is one.
        """
        mine = self.words.pieces[token].decode(errors="replace").strip()
        if isinstance(text, str) and text.strip() and token not in self.words.specials and text.strip() != mine:
            raise MismatchError(f"its token {token} is {text.strip()[:40]!r}, ours {mine[:40]!r}: not one tokenizer")

    def _body(self, stream: Stream, tokens: int) -> dict[str, Any]:
        sampling = stream.sampling
        body: dict[str, Any] = {
            "model": self.name,
            "prompt": stream.tokens,
            "max_tokens": tokens,
            "stream": True,
            "temperature": sampling.temperature,
        }
        if sampling.temperature > 0:
            # A seed of its own for what follows: else an answer that is taken up again would draw its beginning twice.
            body |= {"top_p": sampling.top_p, "seed": (sampling.seed + len(stream.tokens) - stream.prompt) % 2**31}
        for name in ("presence_penalty", "frequency_penalty"):
            if getattr(sampling, name):
                body[name] = getattr(sampling, name)
        if not sampling.stop_tokens and stream.row >= 0:
            body["ignore_eos"] = True
        if self.tells_tokens:
            body["return_token_ids"] = True
        return body

    def _how(self, left_s: float | None) -> dict[str, Any]:
        headers = self.endpoint.authorization
        if left_s is not None:
            headers = headers | {"x-loadslice-deadline-ms": str(max(1, round(left_s * 1e3)))}
        timeout = aiohttp.ClientTimeout(total=left_s, sock_connect=CONNECT_S, sock_read=self.endpoint.call_s)
        return {"headers": headers, "timeout": timeout, "allow_redirects": False}


async def _whole(reply: aiohttp.ClientResponse) -> bytes:
    raw = bytearray()
    async for part in reply.content.iter_any():
        raw += part
        if len(raw) > LIST_BYTES_MAX:
            raise ValueError("longer than a list of models is")
    return bytes(raw)


def _choice(data: bytes) -> dict[str, Any] | None:
    """The choice of a chunk; ``None``: it has none, as the last with its counts."""
    document = json.loads(data)
    if "error" in document:
        raise TroubleError("the answer ended with an error")
    choices = document["choices"]
    if not choices:
        return None
    choice: dict[str, Any] = choices[0]
    return choice


async def _refusal(reply: aiohttp.ClientResponse) -> Exception:
    said = " ".join((await reply.content.read(ERROR_BYTES_MAX)).decode(errors="replace").split())[:200]
    if reply.status in CLIENT_FAULTS:
        return RefusedError(f"it answers {reply.status}: {said}")
    try:
        after_s = min(RETRY_AFTER_S_MAX, max(0.0, float(reply.headers.get("retry-after", "0"))))
    except ValueError:
        after_s = 0.0
    return TroubleError(f"it answers {reply.status}", after_s, busy=reply.status == 429)


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "no connection"
    return "the connection broke"
