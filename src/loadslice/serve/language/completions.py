"""From a body that asks for completions to requests of the token desk, and back: one answer per body."""

import json
import secrets
import time
from collections.abc import Iterable

from loadslice.backends.language.messages import Sampling
from loadslice.backends.language.words import Words
from loadslice.policy.tokens.columns import FOREVER
from loadslice.serve.access import ANYBODY, Caller
from loadslice.serve.clock import Clock
from loadslice.serve.connection import Connection
from loadslice.serve.head import Head
from loadslice.serve.language.answer import Answer, Choice
from loadslice.serve.language.openai import (
    DEFAULT_NEW,
    ChatBody,
    RequestError,
    TextBody,
    content_of,
    sampling_of,
    stops_of,
)
from loadslice.serve.language.request import LanguageRequest
from loadslice.serve.language.shell import LanguageShell
from loadslice.serve.refusals import NS_PER_MS
from loadslice.spec.language import WHOLE_BACKENDS, Language
from loadslice.spec.pipeline import CLASSES, DEADLINE_MS_MAX, ClassName

DEFAULT_CLASS: ClassName = "critical"
PROMPTS_MAX = 16


class Completions:
    """Asks for completions on behalf of clients.

    Args:
        language: Checked.
        shell: Owner of the token desk.
        words: The model's tokenizer.
        clock: The server's.
    """

    def __init__(self, language: Language, shell: LanguageShell, words: Words, clock: Clock) -> None:
        self._language = language
        self._shell = shell
        self._words = words
        self._clock = clock
        self._engine_names = list(language.engines)
        self._draws_itself = any(engine.backend in WHOLE_BACKENDS for engine in language.engines.values())

    def chat(self, head: Head, asked: ChatBody, caller: Caller, connection: Connection) -> None:
        """Answer a chat body.

        Raises:
            RequestError: It is refused.
        """
        self._check_model(asked.model)
        messages = [content_of(message) for message in asked.messages]
        self._check_length(message["content"] for message in messages)
        try:
            prompt = self._words.chat(messages)
        except ValueError as error:
            raise RequestError(str(error), "messages") from error
        wanted = asked.max_completion_tokens or asked.max_tokens
        logprobs = asked.top_logprobs or 0 if asked.logprobs else None
        self._submit(head, asked, caller, connection, [prompt], wanted, logprobs, chat=True)

    def text(self, head: Head, asked: TextBody, caller: Caller, connection: Connection) -> None:
        """Answer a text body.

        Raises:
            RequestError: It is refused.
        """
        self._check_model(asked.model)
        parts = _prompts(asked.prompt)
        for part in parts:
            self._check_length([part] if isinstance(part, str) else [])
        prompts = [self._words.encode(one) if isinstance(one, str) else list(one) for one in parts]
        wanted = asked.max_tokens or DEFAULT_NEW
        self._submit(head, asked, caller, connection, prompts, wanted, asked.logprobs, chat=False)

    def _submit(
        self,
        head: Head,
        asked: ChatBody | TextBody,
        caller: Caller,
        connection: Connection,
        prompts: list[list[int]],
        wanted: int | None,
        logprobs: int | None,
        *,
        chat: bool,
    ) -> None:
        language, words = self._language, self._words
        for prompt in prompts:
            self._check_prompt(prompt, len(words.pieces))
        headers = caller.headers(head.headers) if caller is not ANYBODY else head.headers
        priority, first_by_ns, deadline_ns = self._promises(headers)
        choices: list[Choice] = []
        requests: list[LanguageRequest] = []
        for prompt in prompts:
            seed = secrets.randbits(48)
            room = language.context - len(prompt)
            if wanted is not None and wanted > room:
                raise RequestError(
                    f"this model's context is {language.context} tokens; the prompt has {len(prompt)} and {wanted} "
                    "are asked for",
                    "max_tokens",
                    code="context_length_exceeded",
                )
            for number in range(asked.n or 1):
                sampling = sampling_of(
                    asked,
                    choice=number,
                    seed=seed,
                    logprobs=0 if logprobs is None else max(1, logprobs),
                    vocabulary=len(words.pieces),
                    end=words.end_token,
                )
                self._check_sampling(sampling)
                choice = Choice(len(choices), words, stops_of(asked), sampling.stop_tokens, logprobs or 0)
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
            choices_each=asked.n or 1,
            chat=chat,
            stream=bool(asked.stream),
            usage=asked.stream_options is not None and asked.stream_options.include_usage,
            token_ids=asked.return_token_ids,
            engine_names=self._engine_names,
            done=self.cancel,
        )
        connection.job = answer
        for choice, request in zip(choices, requests, strict=True):
            request.told = lambda choice=choice: answer.told(choice)  # type: ignore[misc]
            request.ended = lambda _request, choice=choice: answer.ended(choice)  # type: ignore[misc]
        for request in requests:
            if answer.connection is not None:  # else one before it was refused, and all with it
                self._shell.submit(request)

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

    def _check_model(self, name: str) -> None:
        if name != self._language.language:
            text = f"the model '{name[:64]}' does not exist; '{self._language.language}' is here"
            raise RequestError(text, "model", status=404, code="model_not_found")

    def _check_length(self, texts: Iterable[str]) -> None:
        """Refuse what cannot fit before it is encoded: a megabyte of text would keep everybody waiting."""
        least = sum(map(self._words.least_tokens, texts))
        if least >= self._language.context:
            raise self._too_long(f"at least {least}")

    def _too_long(self, tokens: str) -> RequestError:
        text = f"this model's context is {self._language.context} tokens; the prompt alone has {tokens}"
        return RequestError(text, "prompt", code="context_length_exceeded")

    def _check_prompt(self, prompt: list[int], vocabulary: int) -> None:
        if not prompt:
            raise RequestError("the prompt is empty", "prompt")
        if len(prompt) >= self._language.context:
            raise self._too_long(str(len(prompt)))
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

    def cancel(self, answer: Answer) -> None:
        """Nothing more is sent: whatever of it still runs has nobody who would read it."""
        for choice in answer.choices:
            if choice.request is not None:
                self._shell.cancel(choice.request)


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
    if len(prompt) > PROMPTS_MAX:
        raise RequestError(f"a request has at most {PROMPTS_MAX} prompts", "prompt")
    return [*texts, *lists]


def _milliseconds(text: str) -> float:
    try:
        value = float(json.loads(text))
    except (ValueError, TypeError) as error:
        raise RequestError(f"x-loadslice-deadline-ms: '{text[:32]}' is not a number of milliseconds") from error
    if not 0 < value <= DEADLINE_MS_MAX:
        raise RequestError(f"x-loadslice-deadline-ms: {value:g} is not between 0 and {DEADLINE_MS_MAX}")
    return value
