"""The HTTP front of a language model: OpenAI's completions, health, metrics."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST

from loadslice.serve.access import Access, Caller
from loadslice.serve.body import Bodies
from loadslice.serve.connection import Connection
from loadslice.serve.head import Head
from loadslice.serve.language.answer import Answer
from loadslice.serve.language.completions import Completions
from loadslice.serve.language.metrics import LanguageMetrics
from loadslice.serve.language.openai import (
    RequestError,
    error_body,
    read_chat,
    read_text,
)
from loadslice.serve.language.shell import LanguageShell
from loadslice.serve.limits import Limits
from loadslice.serve.refusals import NS_PER_S, RefusalError
from loadslice.serve.reply import Reply, json_reply, refuse
from loadslice.spec.language import Language

CHAT, TEXT, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/models"
HEALTH = "/health"
"""Where load clients of this interface look whether a server is ready, as vLLM and llama-server have it."""
RESERVED_PATHS = ("/v2/health/live", "/v2/health/ready", HEALTH, "/metrics")


@dataclass(frozen=True, slots=True)
class LanguageService:
    """What answers once the engines are ready."""

    shell: LanguageShell
    completions: Completions
    metrics: LanguageMetrics
    is_ready: Callable[[], bool]


class LanguageFront:
    """Handles every request of one language server.

    Args:
        language: Checked.
        limits: What clients may ask.
        access: Who may ask.
        starting: Says what is being done while there is no service yet.
    """

    def __init__(
        self,
        language: Language,
        limits: Limits,
        access: Access | None = None,
        starting: Callable[[], str] = lambda: "starting",
    ) -> None:
        self.service: LanguageService | None = None
        self._starting = starting
        self.access = access or Access(None)
        self.bodies = Bodies(limits)
        self._language = language
        self._started_s = int(time.time())
        self.looks: dict[str, Callable[[Head], Reply]] = {}
        """Further paths that GET takes, and who answers; added before the server starts."""
        self._routes: dict[str, dict[str, Callable[[], Reply]]] = {
            MODELS: {"GET": self._models},
            f"{MODELS}/{language.language}": {"GET": lambda: json_reply(self._model())},
            "/v2/health/live": {"GET": lambda: json_reply({"live": True})},
            "/v2/health/ready": {"GET": self._ready},
            HEALTH: {"GET": self._ready},
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
                service.completions.chat(head, read_chat(body), caller, connection)
            else:
                service.completions.text(head, read_text(body), caller, connection)
        except RequestError as error:
            connection.reply(json_reply(error_body(error), error.status))

    def refused(self, refusal: RefusalError) -> Reply:
        """See `connection.Handler.refused`."""
        code = "invalid_api_key" if refusal.status == 401 else None
        return refuse(refusal, lambda text: error_body(RequestError(text, None, status=refusal.status, code=code)))

    def copied(self, connection: Connection) -> None:
        """See `connection.Handler.copied`."""

    def sent(self, connection: Connection) -> None:
        """See `connection.Handler.sent`."""

    def gone(self, connection: Connection) -> None:
        """See `connection.Handler.gone`."""
        job, connection.job = connection.job, None
        if isinstance(job, Answer):
            job.connection = None
            if self.service is not None:
                self.service.completions.cancel(job)

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
        why = self._why_not_ready()
        return json_reply({"ready": True}, 200) if why is None else json_reply({"ready": False, "reason": why}, 503)

    def _why_not_ready(self) -> str | None:
        if self.service is None:
            return self._starting()
        if self.service.shell.draining:
            return "stopping: what is inside is finished, nothing is admitted"
        return (
            None if self.service.is_ready() else "no engine that decodes is up, with one that computes prompts for it"
        )

    def _metrics(self) -> Reply:
        text = b"" if self.service is None else self.service.metrics.render()
        return Reply(200, text, CONTENT_TYPE_LATEST)
