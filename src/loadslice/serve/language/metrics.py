"""What is counted about a language model, for Prometheus. Label sets are bounded by the language file."""

from collections.abc import Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens.layout import State
from loadslice.serve.language.request import LanguageRequest
from loadslice.spec.outcome import OUTCOMES, REASONS, Outcome
from loadslice.spec.route import ROUTES

_FIRST_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_GAP_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.4, 0.8, 1.6, 5)


class Keep(Protocol):
    """Keeps what happens for a journal."""

    def event(self, kind: str, now_ns: int, arguments: tuple[int, ...]) -> None:
        """A call into the desk that is about to be made."""

    def ended(self, request: LanguageRequest) -> None:
        """A request has its outcome."""


class LanguageMetrics:
    """Counts for one server; the shell's observer.

    Args:
        state: Gauges are read from it when somebody scrapes.
        engine_names: In the order of the tables.
        keep: Takes what happens for a journal; ``None``: none is kept.
    """

    def __init__(self, state: State, engine_names: list[str], keep: Keep | None = None) -> None:
        self._state = state
        self._names = engine_names
        self._keep = keep
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "loadslice_lm_requests", "Requests by how they ended.", ("outcome", "reason"), registry=registry
        )
        self._routes = Counter(
            "loadslice_lm_routes", "Prompts by why they were computed where they were.", ("route",), registry=registry
        )
        self._first = Histogram(
            "loadslice_lm_first_token_seconds", "Arrival to first token.", buckets=_FIRST_S, registry=registry
        )
        self._gap = Histogram(
            "loadslice_lm_between_tokens_seconds",
            "Between two tokens of one answer, every gap.",
            buckets=_GAP_S,
            registry=registry,
        )
        self._whole = Histogram(
            "loadslice_lm_request_seconds", "Arrival to last token.", buckets=_FIRST_S, registry=registry
        )
        self._compute = Counter(
            "loadslice_lm_compute_seconds", "Time of an engine in its runtime.", ("engine",), registry=registry
        )
        self._sample = Counter(
            "loadslice_lm_sample_seconds", "Time of an engine drawing tokens.", ("engine",), registry=registry
        )
        self._tokens = Counter("loadslice_lm_tokens", "Tokens.", ("kind",), registry=registry)
        self._handovers = Counter("loadslice_lm_handovers", "KV moved between engines.", registry=registry)
        self._failures = Counter(
            "loadslice_lm_handover_failures", "KV that could not be moved.", ("reason",), registry=registry
        )
        self._moved = Counter("loadslice_lm_handover_bytes", "KV moved, bytes.", registry=registry)
        self._export = Counter("loadslice_lm_export_seconds", "Time to write KV to a slot.", registry=registry)
        self._import = Counter("loadslice_lm_import_seconds", "Time to read it.", registry=registry)
        self._preemptions = Counter(
            "loadslice_lm_preemptions", "Sequences that lost their place.", ("engine",), registry=registry
        )
        self._starts = Gauge(
            "loadslice_lm_engine_starts", "Starts of an engine's process.", ("engine",), registry=registry
        )
        self._gauges = {
            name: Gauge(f"loadslice_lm_{name}", text, ("engine",), registry=registry)
            for name, text in (
                ("seats_used", "Sequences that hold KV."),
                ("blocks_used", "KV blocks held."),
                ("waiting", "Sequences that wait."),
                ("backlog_tokens", "Prompt tokens that wait or are being computed."),
                ("steps", "Steps so far."),
                ("down", "1: the engine is lost."),
                ("pace", "Step times as seen, in parts of what was measured at start."),
            )
        }
        self._fallbacks = Gauge("loadslice_lm_fallbacks", "Prompts computed again elsewhere.", registry=registry)
        self._leases = Gauge("loadslice_lm_leases_expired", "Hand-overs that took too long.", registry=registry)

    def event(self, kind: str, now_ns: int, arguments: tuple[int, ...]) -> None:
        """See `observer.Observer`."""
        if self._keep is not None:
            self._keep.event(kind, now_ns, arguments)

    def stepped(self, engine: int, compute_ns: int, sample_ns: int, gaps_ns: Sequence[int]) -> None:
        """See `observer.Observer`."""
        self._compute.labels(self._names[engine]).inc(compute_ns / 1e9)
        self._sample.labels(self._names[engine]).inc(sample_ns / 1e9)
        for gap_ns in gaps_ns:
            self._gap.observe(gap_ns / 1e9)

    def handed_over(self, tokens: int, payload_bytes: int, export_ns: int, import_ns: int) -> None:
        """See `observer.Observer`."""
        self._handovers.inc()
        self._tokens.labels("handed_over").inc(tokens)
        self._moved.inc(payload_bytes)
        self._export.inc(export_ns / 1e9)
        self._import.inc(import_ns / 1e9)

    def handover_failed(self, reason: str) -> None:
        """See `observer.Observer`."""
        known = reason if reason == "no slot is free" else "engine"
        self._failures.labels(known.replace(" ", "_")).inc()

    def preempted(self, engine: int) -> None:
        """See `observer.Observer`."""
        self._preemptions.labels(self._names[engine]).inc()

    def ended(self, request: LanguageRequest) -> None:
        """See `observer.Observer`."""
        if self._keep is not None:
            self._keep.ended(request)
        self._requests.labels(OUTCOMES[request.outcome - 1], REASONS[request.reason]).inc()
        if request.places:
            self._routes.labels(ROUTES[request.route]).inc()
            self._tokens.labels("prompt").inc(len(request.prompt))
            self._tokens.labels("prefix_hit").inc(request.hit)
            self._tokens.labels("produced").inc(len(request.produced))
        if request.outcome is Outcome.COMPLETED:
            self._first.observe((request.first_ns - request.arrival_ns) / 1e9)
            self._whole.observe((request.end_ns - request.arrival_ns) / 1e9)

    def started(self, engine: int, starts: int) -> None:
        """An engine's process has started."""
        self._starts.labels(self._names[engine]).set(starts)

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        columns = {
            "seats_used": c.N_SEATS_USED,
            "blocks_used": c.N_BLOCKS_USED,
            "waiting": c.N_WAITING,
            "steps": c.N_STEPS,
            "down": c.N_DOWN,
        }
        for engine, name in enumerate(self._names):
            counts = self._state.engines[engine]
            for gauge, column in columns.items():
                self._gauges[gauge].labels(name).set(int(counts[column]))
            self._gauges["backlog_tokens"].labels(name).set(int(self._state.backlog[engine, -1]))
            self._gauges["pace"].labels(name).set(int(counts[c.N_SCALE_PPM]) / c.PPM)
        self._fallbacks.set(int(self._state.counters[c.C_FALLBACKS]))
        self._leases.set(int(self._state.counters[c.C_LEASES_EXPIRED]))
        return generate_latest(self.registry)
