"""OpenAI's wire format for completions: what a body may say, and what an answer looks like.

Rules of this file: what the public interface refuses is refused here, in its form of error, fields that it does not
know among them; its fields that only hint (``user``, ``metadata``, ``store`` ...) are taken and ignored; fields that
would change the answer and that this server does not offer are refused by name, never silently dropped. What load
clients add to the interface is taken where it says nothing (``NEUTRAL``).
"""

from typing import Annotated, Any, Literal

import msgspec

from loadslice.backends.language.messages import Sampling
from loadslice.spec import validation

STOPS_MAX = 4
STOP_LENGTH_MAX = 256
LOGPROBS_MAX = 20
BIAS_MAX = 300
MESSAGES_MAX = 2048
CHOICES_MAX = 8
_FAR_APART = 0x9E3779B97F4A7C15
"""Between the seeds of two choices: the golden ratio of 64 bits."""
DEFAULT_NEW = 16
"""Tokens of a text completion that says nothing; the interface's own default."""


HINTS = frozenset(
    [
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
        "reasoning_effort",
        "verbosity",
        "prediction",
    ]
)
"""Of the public interface; they say how, or for whom, not what."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_k": (-1, 0),
    "min_p": (0,),
    "min_tokens": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "add_generation_prompt": (True,),
    "stop_token_ids": ([],),
}
"""Not of the public interface, but sent by clients of other servers: values that change nothing."""


class RequestError(Exception):
    """A body that the interface refuses.

    Attributes:
        text: One line.
        parameter: Field that is wrong, where one is.
        status: Of the reply.
        code: The interface's word.
    """

    def __init__(self, text: str, parameter: str | None = None, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(text)
        self.text, self.parameter, self.status, self.code = text, parameter, status, code


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None


class _Message(msgspec.Struct, frozen=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[_Part] | None = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False
    include_obfuscation: bool = False


Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    """What both kinds may say."""

    model: str
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=CHOICES_MAX)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool = False
    """Not of the public interface, but of every load client: go on to ``max_tokens``."""
    return_token_ids: bool = False
    """Not of the public interface, but as vLLM has it: say which tokens the text is made of. Relays need it."""
    user: str | None = None


class ChatBody(_Body, frozen=True, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[_Message], msgspec.Meta(min_length=1, max_length=MESSAGES_MAX)]
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=LOGPROBS_MAX)] | None = None
    response_format: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None


class TextBody(_Body, frozen=True, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[str | int | list[int]] = ""
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=LOGPROBS_MAX)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_chat = msgspec.json.Decoder(ChatBody)
_text = msgspec.json.Decoder(TextBody)


def read_chat(body: bytes | memoryview) -> ChatBody:
    """Decode and check a chat body.

    Raises:
        RequestError: It is refused.
    """
    asked = _decode(_chat, body)
    _refuse_unknown(body, ChatBody)
    assert isinstance(asked, ChatBody)
    _refuse_present(asked, ("tools", "functions", "audio"))
    for name in ("tool_choice", "function_call"):
        if getattr(asked, name) not in (None, "none", "auto"):  # the two leave an answer in words, which is what comes
            raise RequestError(f"'{name}' needs tools, which this server does not offer", name)
    if asked.response_format is not None and asked.response_format.get("type") != "text":
        raise RequestError("only the response format 'text' is offered", "response_format")
    if asked.modalities not in (None, ["text"]):
        raise RequestError("only the modality 'text' is offered", "modalities")
    if asked.top_logprobs and not asked.logprobs:
        raise RequestError("'top_logprobs' needs 'logprobs': true", "top_logprobs")
    _check(asked)
    return asked


def read_text(body: bytes | memoryview) -> TextBody:
    """Decode and check a completion body.

    Raises:
        RequestError: It is refused.
    """
    asked = _decode(_text, body)
    _refuse_unknown(body, TextBody)
    assert isinstance(asked, TextBody)
    _refuse_present(asked, ("suffix",))
    if asked.echo:
        raise RequestError("'echo' is not offered", "echo")
    if asked.best_of not in (None, 1, asked.n):
        raise RequestError("'best_of' is not offered", "best_of")
    _check(asked)
    return asked


def _decode(decoder: "msgspec.json.Decoder[Any]", body: bytes | memoryview) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        parameter = place.rstrip("`").lstrip(".") or None
        said = validation.told(text, None, dict[str, Any])
        if parameter is not None:
            said = f"'{parameter}': {said}"
        elif "missing required field" in text:
            parameter = text.rpartition("field ")[2].strip("`")
        raise RequestError(said[:200], parameter) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError("the body is not valid JSON") from error


def _refuse_unknown(body: bytes | memoryview, kind: type[_Body]) -> None:
    """Refuse fields that neither the interface nor its common extensions have, as the interface does."""
    known = kind.__struct_fields__
    for name, raw in _decode(_fields, body).items():
        if name in known or name in HINTS:
            continue
        if name not in NEUTRAL:
            raise RequestError(f"Unrecognized request argument supplied: {name[:64]}", name[:64])
        if bytes(raw) != b"null" and msgspec.json.decode(raw) not in NEUTRAL[name]:
            words = " or ".join(str(one) for one in NEUTRAL[name])
            raise RequestError(f"'{name}' is not offered, only {words}", name, code="unsupported_parameter")


def _refuse_present(body: Any, fields: tuple[str, ...], parameter: str | None = None) -> None:
    for name in fields:
        if getattr(body, name):
            text = f"'{name}' is not offered by this server"
            raise RequestError(text, parameter or name, code="unsupported_parameter")


def _check(body: _Body) -> None:
    stops = stops_of(body)
    if len(stops) > STOPS_MAX:
        raise RequestError(f"'stop' has {len(stops)} texts, {STOPS_MAX} are allowed", "stop")
    if any(not stop or len(stop) > STOP_LENGTH_MAX for stop in stops):
        raise RequestError(f"a stop text has 1 to {STOP_LENGTH_MAX} characters", "stop")
    if body.stream_options is not None and not body.stream:
        raise RequestError("'stream_options' needs 'stream': true", "stream_options")
    for token, value in (body.logit_bias or {}).items():
        if not token.isascii() or not token.isdigit() or not -100 <= value <= 100:
            raise RequestError("'logit_bias' is from token numbers to -100 .. 100", "logit_bias")
    if len(body.logit_bias or {}) > BIAS_MAX:
        raise RequestError(f"'logit_bias' has more than {BIAS_MAX} tokens", "logit_bias")


def stops_of(body: _Body) -> tuple[str, ...]:
    """Texts that end the answer."""
    if body.stop is None:
        return ()
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)


def content_of(message: _Message) -> dict[str, str]:
    """A message with its content as one text.

    Raises:
        RequestError: It has parts that are not text, or says what would be left out.
    """
    _refuse_present(message, ("tool_calls", "function_call", "audio"), "messages")
    if isinstance(message.content, list):
        if any(part.type != "text" or part.text is None for part in message.content):
            raise RequestError("only parts of type 'text' are offered", "messages")
        content = "".join(part.text or "" for part in message.content)
    else:
        content = message.content or ""
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": content}


def sampling_of(body: _Body, *, choice: int, seed: int, logprobs: int, vocabulary: int, end: int) -> Sampling:
    """How one choice's tokens are drawn.

    Args:
        body: What was asked for.
        choice: Number among those of its prompt: equal requests with equal seeds have equal answers, and no choice of
            one seed has the answer of another seed's.
        seed: Where the body names none.
        logprobs: See `Sampling`.
        vocabulary: Tokens that there are.
        end: The token that ends an answer.

    Raises:
        RequestError: A bias for a token that there is not.
    """
    bias = tuple((int(token), value) for token, value in (body.logit_bias or {}).items())
    if any(token >= vocabulary for token, _ in bias):
        raise RequestError(f"'logit_bias' names a token beyond the vocabulary of {vocabulary}", "logit_bias")
    return Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=((seed if body.seed is None else body.seed) + choice * _FAR_APART) % 2**64,
        logprobs=logprobs,
        stop_tokens=() if body.ignore_eos else (end,),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        bias=bias,
    )


def error_body(error: RequestError) -> dict[str, Any]:
    """An error in the interface's form."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    if error.status == 429:
        kind = "rate_limit_error"
    return {"error": {"message": error.text, "type": kind, "param": error.parameter, "code": error.code}}
