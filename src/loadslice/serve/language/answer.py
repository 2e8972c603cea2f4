"""One HTTP request for completions: its choices while they grow, and the bytes that its client gets.

Whole or streamed, chat or text: what differs is collected here, so that nobody else need know. A stream's head goes out
with its first token, so a request that is refused still gets its own status.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from loadslice.backends.language.messages import Drawn
from loadslice.backends.language.words import TextStream, Words
from loadslice.serve import streamed
from loadslice.serve.connection import Connection
from loadslice.serve.language.openai import RequestError, error_body
from loadslice.serve.language.request import LanguageRequest
from loadslice.serve.refusals import retry_headers
from loadslice.serve.reply import OK, json_reply
from loadslice.spec.outcome import REASONS, Outcome, Reason
from loadslice.spec.route import Route

encode = msgspec.json.encode

STATUS = {
    Outcome.REJECTED: (429, "rate_limit_exceeded"),
    Outcome.SHED: (503, "overloaded"),
    Outcome.EXPIRED: (504, "deadline_exceeded"),
    Outcome.FAILED: (502, "engine_failed"),
}
"""Status and code of what was not completed."""

BY_REASON = {
    Reason.INELIGIBLE: (503, "no_engine"),  # that is up: what none could ever take is refused before
    Reason.DRAINING: (503, "stopping"),
    Reason.CLIENT_GONE: (503, "stopping"),  # whoever is there to read this has not gone: the server ends what is inside
}
"""Where the reason says more."""


class Choice:
    """One answer that grows.

    Args:
        index: Among the choices of its request.
        words: The model's tokenizer.
        stops: Texts that end it.
        end_tokens: Tokens that end it.
        likeliest: Tokens told beside each, where their probabilities are told.
    """

    def __init__(
        self, index: int, words: Words, stops: tuple[str, ...], end_tokens: tuple[int, ...], likeliest: int = 0
    ) -> None:
        self.index = index
        self.text: list[str] = []
        self.fresh: list[str] = []
        """Text that the client has not been sent yet."""
        self.tokens: list[int] = []
        """Of the answer; without one that ended it."""
        self.fresh_tokens: list[int] = []
        self.drawn: list[Drawn] = []
        self.fresh_drawn: list[Drawn] = []
        self.request: LanguageRequest | None = None
        self.is_done = False
        self._words = words
        self._stream = TextStream(words, stops)
        self._stops = stops
        self._end_tokens = end_tokens
        self._likeliest = likeliest
        self._unread: list[int] = []
        self._offsets: list[int] = []
        """Of each token's text in the answer's, in characters."""
        self.is_owed = False
        """Whether a token has come that the client has not heard of; one without text of its own is heard of too."""
        self._ended_by_token = False

    def take(self, drawn: Drawn) -> bool:
        """A token has come; says whether it is the last."""
        if drawn.token in self._end_tokens:
            self._ended_by_token = True
            return True
        if drawn.logprob is not None:
            self.drawn.append(drawn)
            self.fresh_drawn.append(drawn)
        self._unread.append(drawn.token)
        self.tokens.append(drawn.token)
        self.fresh_tokens.append(drawn.token)
        self.is_owed = True
        if self._stops:
            self.read()
        return self._stream.has_stopped

    def read(self) -> None:
        """Turn tokens into text; apart, because it can wait until the engine computes again."""
        for token in self._unread:
            self._offsets.append(self._stream.characters)
            self._add(self._stream.add(token))
        self._unread.clear()

    def finish(self) -> None:
        """No more tokens come."""
        self.read()
        self._add(self._stream.finish())
        self.is_done = True

    def _add(self, text: str) -> None:
        if text:
            self.text.append(text)
            self.fresh.append(text)

    @property
    def reason(self) -> str:
        """Why it ended, in the interface's words."""
        return "stop" if self._ended_by_token or self._stream.has_stopped else "length"

    def logprobs(self, drawn: list[Drawn], *, chat: bool) -> dict[str, Any] | None:
        """Logarithms of probabilities of the last tokens that have been read, in the interface's form."""
        if not drawn:
            return None
        piece = self._words.pieces
        tops = [one.top[: self._likeliest] for one in drawn]
        if not chat:
            return {
                "tokens": [_readable(piece[one.token]) for one in drawn],
                "token_logprobs": [one.logprob for one in drawn],
                # The token that was drawn is among them, be it likely or not.
                "top_logprobs": [
                    {_readable(piece[token]): value for token, value in (*top, (one.token, one.logprob))}
                    for one, top in zip(drawn, tops, strict=True)
                ],
                "text_offset": self._offsets[-len(drawn) :],
            }
        return {
            "content": [
                {
                    **_told(piece[one.token], one.logprob),
                    "top_logprobs": [_told(piece[token], value) for token, value in top],
                }
                for one, top in zip(drawn, tops, strict=True)
            ],
            "refusal": None,
        }


def _readable(piece: bytes) -> str:
    """A token as text; of part of a character its bytes, as the interface has it: two such are not one."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _told(piece: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": _readable(piece), "logprob": logprob, "bytes": list(piece)}


class Answer:
    """What one HTTP request is answered.

    Args:
        connection: Where it came from.
        identity: ``id`` of the answer.
        model: As the client called it.
        created_s: Unix time.
        choices: Growing; those of one prompt after those of the one before.
        choices_each: So many of each prompt.
        chat: Chat or text.
        stream: Whether bit by bit.
        usage: Whether a stream ends with its token counts.
        token_ids: Whether tokens are told beside text.
        engine_names: For the header.
        done: Called once, when nothing more is sent.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        identity: str,
        model: str,
        created_s: int,
        choices: list[Choice],
        choices_each: int,
        chat: bool,
        stream: bool,
        usage: bool,
        token_ids: bool,
        engine_names: list[str],
        done: Callable[["Answer"], None],
    ) -> None:
        self.connection: Connection | None = connection
        self.choices = choices
        self._choices_each = choices_each
        self._chat, self._stream, self._usage, self._token_ids = chat, stream, usage, token_ids
        self._engine_names = engine_names
        self._done = done
        self._common = {"id": identity, "created": created_s, "model": model}
        self._object = "chat.completion" if chat else "text_completion"
        self._has_begun = False
        chunk = "chat.completion.chunk" if chat else "text_completion"
        start = encode({**self._common, "object": chunk})[:-1]
        self._prefix = b"data: " + start + b',"choices":[{"index":'

    def told(self, choice: Choice) -> None:
        """Tokens have come, and the engine computes again."""
        choice.read()
        if self._stream and not choice.is_done:
            self._send_fresh(choice)

    def ended(self, choice: Choice) -> None:
        """One choice has its outcome."""
        request = choice.request
        assert request is not None
        choice.finish()
        if request.outcome is not Outcome.COMPLETED:
            self._fail(request)
            return
        if self._stream:
            self._send_fresh(choice)
            self._send(choice.index, b"{}" if self._chat else None, b'""', b"null", encode(choice.reason))
        if all(one.is_done for one in self.choices):
            self._finish()

    def fail(self, error: RequestError, headers: list[tuple[str, str]] | None = None) -> None:
        """Answer with an error, in whichever form there still is."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        document = error_body(error)
        if self._has_begun:
            streamed.add(connection, b"data: " + encode(document) + b"\n\n")
            streamed.end(connection)
        else:
            connection.reply(json_reply(document, error.status, headers or ()))
        self._done(self)

    def _fail(self, request: LanguageRequest) -> None:
        status, code = BY_REASON.get(request.reason) or STATUS[request.outcome]
        reason = REASONS[request.reason].replace("_", " ")
        words = f"{request.outcome.name.lower()}: {reason}"
        if code == "stopping":
            words = "the server is stopping"
        if request.outcome is Outcome.FAILED and request.failure:
            words += f" ({request.failure})"
        error = RequestError(words, None, status=status, code=code)
        self.fail(error, list(retry_headers(request.hint_ns).items()) if status in (429, 503) else [])

    def _headers(self) -> list[tuple[str, str]]:
        request = self.choices[0].request
        assert request is not None
        names = [self._engine_names[request.prefill]]
        if request.decode != request.prefill:
            names.append(self._engine_names[request.decode])
        return [("x-loadslice-engine", ",".join(names)), ("x-loadslice-route", Route(request.route).name.lower())]

    def _send_fresh(self, choice: Choice) -> None:
        if not choice.is_owed and not choice.fresh and not choice.fresh_drawn:
            return
        choice.is_owed = False
        text = encode("".join(choice.fresh))
        logprobs = encode(choice.logprobs(choice.fresh_drawn, chat=self._chat))
        if self._token_ids:
            logprobs += b',"token_ids":' + encode(choice.fresh_tokens)
        choice.fresh.clear()
        choice.fresh_drawn.clear()
        choice.fresh_tokens.clear()
        self._send(choice.index, b'{"content":' + text + b"}" if self._chat else None, text, logprobs, b"null")

    def _send(self, index: int, delta: bytes | None, text: bytes, logprobs: bytes, reason: bytes) -> None:
        """One chunk of a stream, from its template."""
        connection = self.connection
        if connection is None:
            return
        if not self._has_begun:
            self._begin(connection)
        body = b'"delta":' + delta if delta is not None else b'"text":' + text
        streamed.add(
            connection,
            b"".join(
                (
                    self._prefix,
                    b"%d," % index,
                    body,
                    b',"logprobs":',
                    logprobs,
                    b',"finish_reason":',
                    reason,
                    b'}],"usage":null}\n\n' if self._usage else b"}]}\n\n",
                )
            ),
        )

    def _begin(self, connection: Connection) -> None:
        self._has_begun = True
        lines = "".join(f"{name}: {value}\r\n" for name, value in self._headers())
        streamed.begin(
            connection,
            OK
            + b"Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
            + lines.encode("latin-1"),
        )
        if self._chat:
            for choice in self.choices:
                self._send(choice.index, b'{"role":"assistant","content":""}', b'""', b"null", b"null")

    def _finish(self) -> None:
        connection, self.connection = self.connection, None
        if connection is None:
            return
        if self._stream:
            if self._usage:
                kind = "chat.completion.chunk" if self._chat else "text_completion"
                last = {**self._common, "object": kind, "choices": [], "usage": self._usage_counts()}
                streamed.add(connection, b"data: " + encode(last) + b"\n\n")
            streamed.add(connection, b"data: [DONE]\n\n")
            streamed.end(connection)
        else:
            document = {
                **self._common,
                "object": self._object,
                "choices": [self._choice(choice) for choice in self.choices],
                "usage": self._usage_counts(),
            }
            connection.reply(json_reply(document, 200, self._headers()))
        self._done(self)

    def _choice(self, choice: Choice) -> dict[str, Any]:
        text = "".join(choice.text)
        said: dict[str, Any] = {
            "index": choice.index,
            "finish_reason": choice.reason,
            "logprobs": choice.logprobs(choice.drawn, chat=self._chat),
        }
        if self._token_ids:
            said["token_ids"] = choice.tokens
        if self._chat:
            said["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            said["text"] = text
        return said

    def _usage_counts(self) -> dict[str, Any]:
        requests = [choice.request for choice in self.choices if choice.request is not None]
        of_prompts = requests[:: self._choices_each]
        prompt = sum(len(request.prompt) for request in of_prompts)
        produced = sum(len(request.produced) for request in requests)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": produced,
            "total_tokens": prompt + produced,
            "prompt_tokens_details": {"cached_tokens": sum(request.hit for request in of_prompts)},
        }
