"""What a request's headers say about how it wants to be treated."""

import hashlib
import re
from collections.abc import Mapping
from typing import NamedTuple

from loadslice.policy.columns import FOREVER
from loadslice.policy.tables import rule_sources, tenant_names
from loadslice.policy.versions import NO_KEY
from loadslice.serve.limits import Limits
from loadslice.serve.refusals import NS_PER_MS, RefusalError
from loadslice.spec.pipeline import CLASSES, DEADLINE_MS_MAX, PRECISIONS, Pipeline
from loadslice.spec.pipeline_shares import TENANT_LENGTH_MAX

DEFAULT_CLASS = CLASSES.index("critical")
ATTEMPT_MAX = 1000

# Python's own int() and float() take underscores, blanks and digits of every script.
_WHOLE = re.compile(r"[0-9]{1,4}")
_DECIMAL = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")
_TOKENS = re.compile(r"[0-9]{1,9}")


class Envelope(NamedTuple):
    """One request's wishes, as the core wants them."""

    id: str | None
    priority: int
    deadline_ns: int
    source: str | None
    source_index: int
    """Index into the sources that rules look at; -1: any other."""
    precision: int
    """Lowest precision that will do; 0: any."""
    attempt: int
    """Which attempt the client says this is, 1 the first."""
    input: str | None
    tenant: str | None
    tenant_index: int
    """1 + its place among the tenants with a guarantee; 0: none of them."""
    key: int
    """Requests of one key get one version while a canary grows; NO_KEY: the client gave none."""
    tokens: int
    """Prompt tokens; -1: the client did not say."""
    traceparent: str | None = None
    """The caller's span, as it said it."""

    def received_at(self, received_ns: int) -> "Envelope":
        """The same wishes, read as for a request received at 0, of one received at another time."""
        if self.deadline_ns == FOREVER:
            return self
        return self._replace(deadline_ns=self.deadline_ns + received_ns)


class EnvelopeReader:
    """Reads headers for one pipeline."""

    def __init__(self, pipeline: Pipeline, limits: Limits) -> None:
        self._text_max = limits.text_max
        self._sources = {source: index for index, source in enumerate(rule_sources(pipeline))}
        self._tenants = {tenant: 1 + index for index, tenant in enumerate(tenant_names(pipeline))}
        self._priorities: dict[str, int] = {name: index for index, name in enumerate(CLASSES)}
        self._priorities |= {str(index): index for index in range(len(CLASSES))}
        self._precisions = {name: index for index, name in enumerate(PRECISIONS)}
        default_ms = pipeline.deadline_ms
        stated = [pipeline.classes[name].deadline_ms if name in pipeline.classes else None for name in CLASSES]
        self._deadlines_ns = [
            None if deadline_ms is None else round(deadline_ms * NS_PER_MS)
            for deadline_ms in (own if own is not None else default_ms for own in stated)
        ]

    def read(self, headers: Mapping[str, str], received_ns: int) -> Envelope:
        """Read one request's headers.

        Args:
            headers: Case-insensitive.
            received_ns: When its head had arrived; deadlines count from there.

        Raises:
            RefusalError: 400, naming the header.
        """
        priority = DEFAULT_CLASS
        if (text := headers.get("x-loadslice-priority")) is not None:
            if text not in self._priorities:
                raise RefusalError(400, f"x-loadslice-priority must be one of {', '.join(CLASSES)} or 0 to 3")
            priority = self._priorities[text]
        precision = 0
        if (text := headers.get("x-loadslice-min-precision")) is not None:
            if text not in self._precisions:
                raise RefusalError(400, f"x-loadslice-min-precision must be one of {', '.join(PRECISIONS)}")
            precision = self._precisions[text]
        attempt = 1
        if (text := headers.get("x-loadslice-attempt")) is not None:
            if not (_WHOLE.fullmatch(text) and 1 <= int(text) <= ATTEMPT_MAX):
                raise RefusalError(400, f"x-loadslice-attempt must be a number from 1 to {ATTEMPT_MAX}")
            attempt = int(text)
        tokens = -1
        if (text := headers.get("x-loadslice-tokens")) is not None:
            if not _TOKENS.fullmatch(text):
                raise RefusalError(400, "x-loadslice-tokens must be a whole number of at most 9 digits")
            tokens = int(text)
        source = self._text(headers, "x-loadslice-source")
        tenant = self._tenant(headers)
        key = self._text(headers, "x-loadslice-key")
        traceparent = self._text(headers, "traceparent")
        identity = self._text(headers, "x-request-id") or traceparent
        return Envelope(
            id=identity,
            priority=priority,
            deadline_ns=self._deadline_ns(headers.get("x-loadslice-deadline-ms"), priority, received_ns),
            source=source,
            source_index=-1 if source is None else self._sources.get(source, -1),
            precision=precision,
            attempt=attempt,
            input=self._text(headers, "x-loadslice-input"),
            tenant=tenant,
            tenant_index=0 if tenant is None else self._tenants.get(tenant, 0),
            key=NO_KEY if key is None else key_of(key),
            tokens=tokens,
            traceparent=traceparent,
        )

    def _deadline_ns(self, text: str | None, priority: int, received_ns: int) -> int:
        if text is None:
            default_ns = self._deadlines_ns[priority]
            return FOREVER if default_ns is None else received_ns + default_ns
        if not (_DECIMAL.fullmatch(text) and 0 < float(text) <= DEADLINE_MS_MAX):
            raise RefusalError(
                400, f"x-loadslice-deadline-ms must be a decimal number above 0 and at most {DEADLINE_MS_MAX}"
            )
        return received_ns + round(float(text) * NS_PER_MS)

    def _tenant(self, headers: Mapping[str, str]) -> str | None:
        tenant = self._text(headers, "x-loadslice-tenant")
        if tenant is not None and not (len(tenant) <= TENANT_LENGTH_MAX and tenant.isprintable()):
            raise RefusalError(400, f"x-loadslice-tenant must be at most {TENANT_LENGTH_MAX} printable characters")
        return tenant

    def _text(self, headers: Mapping[str, str], name: str) -> str | None:
        text = headers.get(name)
        if not text:
            return None
        if len(text) > self._text_max:
            raise RefusalError(400, f"{name} is longer than {self._text_max} characters")
        try:
            text.encode()  # bytes that are not UTF-8 arrive as lone surrogates, which no file takes
        except UnicodeEncodeError as error:
            raise RefusalError(400, f"{name} is not UTF-8") from error
        return text


def key_of(text: str) -> int:
    """A user's key as a number of 63 bits, the same in every process: what the core splits versions by."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
