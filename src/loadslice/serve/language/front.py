"""The HTTP front of a language model: OpenAI's completions, health, metrics."""

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST

from loadslice.backends.language.messages import Sampling
from loadslice.backends.language.words import Words
from loadslice.policy.tokens.columns import FOREVER
from loadslice.serve.access import ANYBODY, Access, Caller
from loadslice.serve.body import Bodies
from loadslice.serve.clock import Clock
from loadslice.serve.connection import Connection
from loadslice.serve.head import Head
from loadslice.serve.language.answer import Answer, Choice
from loadslice.serve.language.metrics import LanguageMetrics
from loadslice.serve.language.openai import (
    DEFAULT_NEW,
    ChatBody,
    RequestError,
    TextBody,
    content_of,
    error_body,
    read_chat,
    read_text,
    sampling_of,
    stops_of,
)
from loadslice.serve.language.request import LanguageRequest
from loadslice.serve.language.shell import LanguageShell
from loadslice.serve.limits import Limits
from loadslice.serve.refusals import NS_PER_MS, NS_PER_S, RefusalError
from loadslice.serve.reply import Reply, json_reply
from loadslice.spec.language import WHOLE_BACKENDS, Language
from loadslice.spec.pipeline import CLASSES, ClassName

CHAT, TEXT, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/models"
RESERVED_PATHS = ("/v2/health/live", "/v2/health/ready", "/metrics")
DEFAULT_CLASS: ClassName = "critical"
DEADLINE_MS_MAX = 86_400_000


@dataclass(frozen=True, slots=True)
class LanguageService:
    """What answers once the engines are ready."""

    shell: LanguageShell
    words: Words
    metrics: LanguageMetrics
    is_ready: Callable[[], bool]


class LanguageFront:
    """Handles every request of one language server.

    Args:
        language: Checked.
        limits: What clients may ask.
        clock: The server's.
        access: Who may ask.
    """

    def __init__(self, language: Language, limits: Limits, clock: Clock, access: Access | None = None) -> None:
        self.service: LanguageService | None = None
        self.access = access or Access(None)
        self.bodies = Bodies(limits)
        self._language = language
        self._clock = clock
        self._engine_names = list(language.engines)
        self._draws_itself = any(engine.backend in WHOLE_BACKENDS for engine in language.engines.values())
        self._started_s = int(time.time())
        self.looks: dict[str, Callable[[Head], Reply]] = {}
        """Further paths that GET takes, and who answers; added before the server starts."""
        self._routes: dict[str, dict[str, Callable[[], Reply]]] = {
            MODELS: {"GET": self._models},
            f"{MODELS}/{language.language}": {"GET": lambda: json_reply(self._model())},
            "/v2/health/live": {"GET": lambda: json_reply({"live": True})},
            "/v2/health/ready": {"GET": self._ready},
            "/metrics": {"GET": self._metrics},
        }

    # What a connection calls.

    def begin(self, head: Head, connection: Connection) -> bool:
        """See `connection.Handler.begin`."""
        connection.job = self.access.caller(head.headers, head.path)
        if connection.is_reserved and head.path not in RESERVED_PATHS:
            raise RefusalError(503, "too many connections", retry_after_ns=NS_PER_S, close=True)
        if head.path in (CHAT, TEXT):
            if head.method != "POST":
                raise RefusalError(405, f"{head.path} takes POST", allow=("POST",))
            return True
        methods = ("GET",) if head.path in self.looks else self._routes.get(head.path)
        if methods is None:
            raise RefusalError(404, f"no such path; {CHAT}, {TEXT} and {MODELS} are here")
        if head.method not in methods and head.method != "HEAD":
            raise RefusalError(405, "only GET is taken here", allow=tuple(methods))
        return False

    def handle(self, head: Head, body: bytes | memoryview, connection: Connection) -> None:
        """See `connection.Handler.handle`."""
        caller, connection.job = connection.job, None
        look = self.looks.get(head.path)
        if look is not None:
            connection.reply(look(head))
            return
        if head.path not in (CHAT, TEXT):
            connection.reply(self._routes[head.path]["GET"]())
            return
        assert isinstance(caller, Caller)
        service = self.service
        try:
            if service is None:
                raise RequestError("the model is being loaded", status=503, code="loading")
            if head.path == CHAT:
                self._chat(service, head, read_chat(body), caller, connection)
            else:
                self._text(service, head, read_text(body), caller, connection)
        except RequestError as error:
            connection.reply(json_reply(error_body(error), error.status))

    def refused(self, refusal: RefusalError) -> None:
        """See `connection.Handler.refused`."""

    def sent(self, connection: Connection) -> None:
        """See `connection.Handler.sent`."""

    def gone(self, connection: Connection) -> None:
        """See `connection.Handler.gone`."""
        job, connection.job = connection.job, None
        if isinstance(job, Answer):
            job.connection = None
            self._cancel(job)

    # Completions.

    def _chat(
        self, service: LanguageService, head: Head, asked: ChatBody, caller: Caller, connection: Connection
    ) -> None:
        messages = [content_of(message) for message in asked.messages]
        try:
            prompt = service.words.chat(messages)
        except ValueError as error:
            raise RequestError(str(error), "messages") from error
        wanted = asked.max_completion_tokens or asked.max_tokens
        logprobs = max(1, asked.top_logprobs or 0) if asked.logprobs else 0
        self._submit(service, head, asked, caller, connection, [prompt], wanted, logprobs, chat=True)

    def _text(
        self, service: LanguageService, head: Head, asked: TextBody, caller: Caller, connection: Connection
    ) -> None:
        prompts = [service.words.encode(one) if isinstance(one, str) else list(one) for one in _prompts(asked.prompt)]
        wanted = asked.max_tokens or DEFAULT_NEW
        logprobs = 0 if asked.logprobs is None else max(1, asked.logprobs)
        self._submit(service, head, asked, caller, connection, prompts, wanted, logprobs, chat=False)

    def _submit(
        self,
        service: LanguageService,
        head: Head,
        asked: ChatBody | TextBody,
        caller: Caller,
        connection: Connection,
        prompts: list[list[int]],
        wanted: int | None,
        logprobs: int,
        *,
        chat: bool,
    ) -> None:
        language, words = self._language, service.words
        if asked.model != language.language:
            text = f"the model '{asked.model[:64]}' does not exist; '{language.language}' is here"
            raise RequestError(text, "model", status=404, code="model_not_found")
        for prompt in prompts:
            self._check_prompt(prompt, len(words.pieces))
        headers = caller.headers(head.headers) if caller is not ANYBODY else head.headers
        priority, first_by_ns, deadline_ns = self._promises(headers)
        choices: list[Choice] = []
        requests: list[LanguageRequest] = []
        seed = secrets.randbits(48)
        for prompt in prompts:
            room = language.context - len(prompt)
            if wanted is not None and wanted > room:
                raise RequestError(
                    f"this model's context is {language.context} tokens; the prompt has {len(prompt)} and {wanted} "
                    "are asked for",
                    "max_tokens",
                    code="context_length_exceeded",
                )
            for _ in range(asked.n or 1):
                sampling = sampling_of(
                    asked,
                    choice=len(choices),
                    seed=seed,
                    logprobs=logprobs,
                    vocabulary=len(words.pieces),
                    end=words.end_token,
                )
                self._check_sampling(sampling)
                choice = Choice(len(choices), words, stops_of(asked), sampling.stop_tokens)
                choices.append(choice)
                requests.append(
                    self._request(choice, prompt, wanted or room, sampling, priority, first_by_ns, deadline_ns)
                )
        answer = Answer(
            connection,
            identity=f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}",
            model=language.language,
            created_s=int(time.time()),
            choices=choices,
            chat=chat,
            stream=bool(asked.stream),
            usage=asked.stream_options is not None and asked.stream_options.include_usage,
            engine_names=self._engine_names,
            done=self._cancel,
        )
        connection.job = answer
        for choice, request in zip(choices, requests, strict=True):
            request.told = lambda choice=choice: answer.told(choice)  # type: ignore[misc]
            request.ended = lambda _request, choice=choice: answer.ended(choice)  # type: ignore[misc]
        for request in requests:
            if answer.connection is not None:  # else one before it was refused, and all with it
                service.shell.submit(request)

    def _request(
        self,
        choice: Choice,
        prompt: list[int],
        new_max: int,
        sampling: Sampling,
        priority: int,
        first_by_ns: int,
        deadline_ns: int,
    ) -> LanguageRequest:
        request = LanguageRequest(
            prompt=prompt,
            new_max=new_max,
            sampling=sampling,
            take=choice.take,
            told=lambda: None,
            ended=lambda _: None,
            priority=priority,
            first_by_ns=first_by_ns,
            deadline_ns=deadline_ns,
        )
        choice.request = request
        return request

    def _check_sampling(self, sampling: Sampling) -> None:
        """Refuse what an engine that draws tokens itself does not tell, or do."""
        if self._draws_itself and (sampling.logprobs or sampling.bias):
            name = "logprobs" if sampling.logprobs else "logit_bias"
            raise RequestError(f"'{name}' is not offered by these engines", name, code="unsupported_parameter")

    def _check_prompt(self, prompt: list[int], vocabulary: int) -> None:
        if not prompt:
            raise RequestError("the prompt is empty", "prompt")
        if len(prompt) >= self._language.context:
            raise RequestError(
                f"this model's context is {self._language.context} tokens; the prompt alone has {len(prompt)}",
                "prompt",
                code="context_length_exceeded",
            )
        if any(not 0 <= token < vocabulary for token in prompt):
            raise RequestError(f"a token is not between 0 and {vocabulary - 1}", "prompt")

    def _promises(self, headers: "dict[str, str] | object") -> tuple[int, int, int]:
        """Class, time of the first token and of the last, from headers and the language file."""
        assert isinstance(headers, dict)
        name = headers.get("x-loadslice-priority", DEFAULT_CLASS)
        if name not in CLASSES:
            raise RequestError(f"x-loadslice-priority: '{name[:64]}' is not one of {', '.join(CLASSES)}")
        limits = self._language.classes.get(name)
        now_ns = self._clock.now_ns()
        first_ms = limits.first_token_ms if limits is not None else None
        deadline_ms = limits.deadline_ms if limits is not None else None
        stated = headers.get("x-loadslice-deadline-ms")
        if stated is not None:
            deadline_ms = _milliseconds(stated)
        first_by_ns = FOREVER if first_ms is None else now_ns + round(first_ms * NS_PER_MS)
        deadline_ns = FOREVER if deadline_ms is None else now_ns + round(deadline_ms * NS_PER_MS)
        return CLASSES.index(name), first_by_ns, deadline_ns

    def _cancel(self, answer: Answer) -> None:
        """Nothing more is sent: whatever of it still runs has nobody who would read it."""
        if self.service is not None:
            for choice in answer.choices:
                if choice.request is not None:
                    self.service.shell.cancel(choice.request)

    # The other routes.

    def _model(self) -> dict[str, object]:
        return {
            "id": self._language.language,
            "object": "model",
            "created": self._started_s,
            "owned_by": "loadslice",
            "max_model_len": self._language.context,
        }

    def _models(self) -> Reply:
        return json_reply({"object": "list", "data": [self._model()]})

    def _ready(self) -> Reply:
        ready = self.service is not None and self.service.is_ready() and not self.service.shell.draining
        return json_reply({"ready": ready}, 200 if ready else 503)

    def _metrics(self) -> Reply:
        text = b"" if self.service is None else self.service.metrics.render()
        return Reply(200, text, CONTENT_TYPE_LATEST)


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """Each prompt of a body apart."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("the prompt is empty", "prompt")
    texts = [one for one in prompt if isinstance(one, str)]
    numbers = [one for one in prompt if isinstance(one, int)]
    lists = [one for one in prompt if isinstance(one, list)]
    if len(numbers) == len(prompt):
        return [numbers]
    if len(texts) != len(prompt) and len(lists) != len(prompt):
        raise RequestError("prompts are all text, or all lists of tokens", "prompt")
    if len(prompt) > 16:
        raise RequestError("a request has at most 16 prompts", "prompt")
    return [*texts, *lists]


def _milliseconds(text: str) -> float:
    try:
        value = float(json.loads(text))
    except (ValueError, TypeError) as error:
        raise RequestError(f"x-loadslice-deadline-ms: '{text[:32]}' is not a number of milliseconds") from error
    if not 0 < value <= DEADLINE_MS_MAX:
        raise RequestError(f"x-loadslice-deadline-ms: {value:g} is not between 0 and {DEADLINE_MS_MAX}")
    return value
