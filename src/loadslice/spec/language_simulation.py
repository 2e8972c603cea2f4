"""What a simulation of a language model says."""

import msgspec


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of one time, milliseconds; null when there is none."""

    p50: float | None
    p95: float | None
    p99: float | None
    mean: float | None


class LanguageEngineFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine did."""

    utilisation: float
    """Time in steps over the span, 0 to 1."""
    steps: int
    prompt_tokens: int
    decoded_tokens: int
    rows_per_step: float | None
    preemptions: int


class LanguageSimulation(msgspec.Struct, frozen=True, kw_only=True):
    """Result of simulating a trace on a language file."""

    requests: int
    outcomes: dict[str, int]
    routes: dict[str, int]
    """Requests by why their prompt was computed where it was; those refused at the door not counted."""
    first_token_ms: Tail
    """Arrival to first token, of completed requests."""
    between_tokens_ms: Tail
    """Between two tokens of one answer, every gap counted."""
    whole_ms: Tail
    tokens_per_s: float
    completed_per_s: float
    handovers: int
    handovers_failed: int
    leases_expired: int
    fallbacks: int
    prefix_hit_share: float | None
    """Prompt tokens found in a prefix cache; null: the trace has no blocks."""
    engines: dict[str, LanguageEngineFigures]
    span_s: float
    journal_sha256: str
    """Of every decision, in order."""
    basis: str
    warnings: list[str]
