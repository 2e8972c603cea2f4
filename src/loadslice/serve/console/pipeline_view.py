"""What the console shows of a pipeline's server, as one JSON document.

Numbers carry their units in their keys, columns of tables are lists of one length, unknown is null. Rates and shares
are over the last `history.SHORT` seconds, times over the last `history.LONG`.
"""

import time
from collections.abc import Sequence
from typing import Any

from loadslice.policy import columns as c
from loadslice.serve.clock import Clock
from loadslice.serve.console.history import LONG, SHORT, History, Reading, read
from loadslice.serve.console.recent import Recent, told
from loadslice.serve.generation import Generation
from loadslice.serve.operated import Operated
from loadslice.serve.refusals import NS_PER_MS, NS_PER_S
from loadslice.spec.outcome import Outcome
from loadslice.spec.pipeline import CLASSES
from loadslice.spec.twin import dilation, twins

SELDOM_S = 5.0
"""How old what is dear to find out (memory, a rollout's analysis) may be."""

BREAKERS = ("closed", "open", "half-open")
ENDED = tuple(outcome for outcome in Outcome if outcome is not Outcome.NONE)


class PipelineView:
    """Looks at one server.

    Args:
        server: Is asked.
        clock: Its clock.
        recent: Is told of its requests.
    """

    def __init__(self, server: Operated, clock: Clock, recent: Recent) -> None:
        self._server = server
        self._clock = clock
        self._recent = recent
        self._generation = server.generation
        self._history = History(_slots(self._generation))
        self._seldom_s = float("-inf")
        self._memory_bytes: dict[str, int | None] = {}
        self._isolation: dict[str, str] = {}
        self._rollout: dict[str, Any] | None = None

    @property
    def number(self) -> int:
        """Of the last second."""
        return self._history.seconds

    def turn(self) -> None:
        """Take in a second."""
        generation = self._server.generation
        if generation is not self._generation:
            self._generation = generation
            self._history.restart(_slots(generation))
            self._seldom_s = float("-inf")
        reading = read(generation.state, generation.metrics, self._clock.now_ns())
        self._history.add(reading, self._recent.turn(), time.time())
        p99_ms = self._history.latency_ms()["p99"]
        if p99_ms is not None:
            self._recent.slow_ns = round(p99_ms * NS_PER_MS)

    def document(self, since: int) -> dict[str, Any]:
        """Everything that is shown.

        Args:
            since: Points that the viewer has are not sent again.
        """
        generation = self._generation
        pipeline = generation.pipeline
        self._look_seldom()
        engines = self._engines()
        pairs, stages = self._pairs(), self._stages()
        return {
            "kind": "pipeline",
            "name": pipeline.pipeline,
            "generation": generation.number,
            "version": generation.serving.version,
            "draining_generations": int(self._server.is_retiring),
            "number": self._history.seconds,
            "at_s": round(time.time(), 1),
            "rates_over_s": SHORT,
            "times_over_s": LONG,
            "dilation": dilation(pipeline),
            "basis": "emulated" if twins(pipeline) else "measured",
            "summary": self._summary(engines, pairs, stages),
            "points": self._history.since(since),
            "classes": list(CLASSES),
            "engines": engines,
            "stages": stages,
            "pairs": pairs,
            "waterline": self._waterline(),
            "tenants": self._tenants(),
            "rollout": self._rollout,
        }

    def requests(self, name: str | None, *, notable: bool) -> dict[str, Any] | None:
        """Requests that were kept.

        Args:
            name: Id or number of one; ``None``: the last.
            notable: Only those that did not complete, or took long.

        Returns:
            ``None``: the one is not among them.
        """
        if name is not None:
            kept = self._recent.find(name)
            return None if kept is None else told(kept) | {"ended_at_s": self._wall_s(kept.end_ns)}
        last = self._recent.last(notable=notable)
        return {
            "requests": [
                {
                    "tag": one.tag,
                    "id": one.id,
                    "outcome": one.outcome.name.lower(),
                    "reason": one.reason.name.lower(),
                    "class": CLASSES[one.priority],
                    "tenant": one.tenant,
                    "took_ms": None if one.end_ns is None else (one.end_ns - one.received_ns) / NS_PER_MS,
                    "ended_at_s": self._wall_s(one.end_ns),
                }
                for one in last
            ]
        }

    def _wall_s(self, at_ns: int | None) -> float | None:
        if at_ns is None:
            return None
        slow = dilation(self._generation.pipeline)
        return round(time.time() - (self._clock.now_ns() - at_ns) * slow / NS_PER_S, 3)

    def _look_seldom(self) -> None:
        now_s = time.monotonic()
        if now_s - self._seldom_s < SELDOM_S:
            return
        self._seldom_s = now_s
        rollout = self._server.rollout
        self._rollout = None if rollout is None else rollout.status()
        running = self._generation.engines
        if running is not None:
            told_of = running.describe()
            self._memory_bytes = {one["name"]: one["memory_bytes"] for one in told_of}
            self._isolation = {one["name"]: one["isolation"] for one in told_of}

    def _engines(self) -> dict[str, list[Any]]:
        """Columns of the engines' table."""
        generation = self._generation
        state, tables, running = generation.state, generation.tables, generation.engines
        names = list(generation.pipeline.engines)
        emulated = frozenset(twins(generation.pipeline))
        processes = {} if running is None else running.processes
        inflight = state.engines[:, c.N_INFLIGHT].tolist()
        window = self._history.window(SHORT)
        return {
            "name": names,
            "backend": [engine.backend for engine in generation.pipeline.engines.values()],
            "basis": ["emulated" if name in emulated else "measured" for name in names],
            "state": [
                _state(is_up=up == 1, is_there=index not in processes or processes[index].ready.is_set())
                for index, up in enumerate(state.engines[:, c.N_UP].tolist())
            ],
            "isolation": [self._isolation.get(name) for name in names],
            "restarts": [processes[i].starts - 1 if i in processes else 0 for i in range(len(names))],
            "last_end": [processes[i].last_end if i in processes else None for i in range(len(names))],
            "memory_bytes": [self._memory_bytes.get(name) for name in names],
            "utilisation": self._history.utilisation(),
            "running": inflight,
            "slots": tables.engines[:, c.E_MAX_INFLIGHT].tolist(),
            "queued": state.engines[:, c.N_QUEUED].tolist(),
            "queue_limit": tables.engines[:, c.E_QUEUE_LIMIT].tolist(),
            "waiting": state.engines[:, c.N_WAITING : c.N_WAITING + len(CLASSES)].tolist(),
            "backlog_ms": [round(ns / NS_PER_MS, 2) for ns in state.backlog_ns[-1].tolist()],
            "batches_per_s": _rates(window, c.N_BATCHES, len(names)),
            "requests_per_s": _rates(window, c.N_DISPATCHED, len(names)),
            "failover_in_per_s": _rates(window, c.N_FAILOVER_IN, len(names)),
            "failed_batches": list(generation.metrics.failed_batches),
        }

    def _stages(self) -> dict[str, list[Any]]:
        """Columns of the stages' table: what arrives, and what of the overflow goes to the backup."""
        pipeline = self._generation.pipeline
        window = self._history.window(SHORT)
        count = len(pipeline.stages)
        placed: list[float | None] = [None] * count
        overflow: list[float | None] = [None] * count
        shares: list[float | None] = [None] * count
        if window is not None:
            first, last, span_s = window
            placed = [round(sum(row) / span_s, 2) for row in (last.placed - first.placed).tolist()]
            changed = (last.stages - first.stages).tolist()
            overflow = [round(row[c.G_OVERFLOWS] / span_s, 2) for row in changed]
            shares = [row[c.G_SENT] / row[c.G_OVERFLOWS] if row[c.G_OVERFLOWS] else None for row in changed]
        return {
            "name": [stage.name for stage in pipeline.stages],
            "placed_per_s": placed,
            "overflow_per_s": overflow,
            "failover_share": shares,
            "failover_to": [None if stage.failover is None else stage.failover.to for stage in pipeline.stages],
            "failover_share_set": [
                None if stage.failover is None else stage.failover.share for stage in pipeline.stages
            ],
        }

    def _pairs(self) -> dict[str, list[Any]]:
        """Columns of the table of stages on engines: times, and breakers."""
        generation = self._generation
        state, tables = generation.state, generation.tables
        pairs = [passed[:2] for passed in generation.metrics.passages()]
        long, short = self._history.window(LONG), self._history.window(SHORT)
        times: list[list[float | None]] = [[None] * 3 for _ in pairs]
        placed: list[float | None] = [None] * len(pairs)
        if long is not None:
            for row, (count, *parts_ns) in enumerate((long[1].passages - long[0].passages).tolist()):
                if count:
                    times[row] = [round(ns / count / NS_PER_MS, 4) for ns in parts_ns]
        if short is not None:
            moved = short[1].placed - short[0].placed
            placed = [round(int(moved[stage, engine]) / short[2], 2) for stage, engine in pairs]
        has_breaker = (tables.breakers[:, c.K_WINDOW] > 0).tolist()
        breakers = [state.breakers[pair].tolist() for pair in pairs]
        return {
            "stage": [stage for stage, _ in pairs],
            "engine": [engine for _, engine in pairs],
            "placed_per_s": placed,
            "queue_ms": [row[0] for row in times],
            "copy_ms": [row[1] for row in times],
            "compute_ms": [row[2] for row in times],
            "breaker": [
                BREAKERS[row[c.X_STATE]] if has_breaker[stage] else None
                for (stage, _), row in zip(pairs, breakers, strict=True)
            ],
            "breaker_failures": [row[c.X_FAILURES] for row in breakers],
            "breaker_calls": [row[c.X_CALLS] for row in breakers],
            "breaker_transitions": [row[c.X_TRANSITIONS] for row in breakers],
            "admits": [int(state.admission[pair]) == 0 for pair in pairs],
        }

    def _summary(
        self, engines: dict[str, list[Any]], pairs: dict[str, list[Any]], stages: dict[str, list[Any]]
    ) -> dict[str, Any]:
        generation = self._generation
        window = self._history.window(SHORT)
        found: dict[str, Any] = {
            "completed_per_s": None,
            "refused_at_front_per_s": None,
            "failover_share": None,
            "ended_per_s": {outcome.name.lower(): None for outcome in ENDED},
        }
        if window is not None:
            first, last, span_s = window
            ended = [now - then for now, then in zip(last.outcomes, first.outcomes, strict=True)]
            found["completed_per_s"] = round(ended[Outcome.COMPLETED] / span_s, 2)
            found["refused_at_front_per_s"] = round((last.refused - first.refused) / span_s, 2)
            found["ended_per_s"] = {outcome.name.lower(): round(ended[outcome] / span_s, 2) for outcome in ENDED}
            overflows, sent = ((last.stages - first.stages)[:, [c.G_OVERFLOWS, c.G_SENT]]).sum(axis=0).tolist()
            found["failover_share"] = sent / overflows if overflows else None
        return found | {
            "latency_ms": self._history.latency_ms(),
            "inside": generation.inside,
            "requests_max": generation.requests_max,
            "engines_up": engines["state"].count("up"),
            "engines": len(engines["name"]),
            "breakers_open": sum(one in ("open", "half-open") for one in pairs["breaker"]),
            "breakers": sum(one is not None for one in pairs["breaker"]),
            "has_failover": any(to is not None for to in stages["failover_to"]),
        }

    def _waterline(self) -> dict[str, Any]:
        """What is asked for, against what the engines could do at the present split."""
        window = self._history.window(SHORT)
        capacity_per_s, busiest, spread_per_s = self._history.capacity_per_s()
        offered = None
        if window is not None:
            first, last, span_s = window
            offered = round((last.submitted - first.submitted) / span_s, 2)
        return {
            "offered_per_s": offered,
            "capacity_per_s": capacity_per_s,
            "limited_by": None if busiest is None else list(self._generation.pipeline.engines)[busiest],
            "capacity_if_spread_per_s": spread_per_s,
        }

    def _tenants(self) -> list[dict[str, Any]]:
        window = self._history.window(SHORT)
        if window is None or len(window[1].tenants) < 2:
            return []
        first, last, span_s = window
        return [
            {"name": name}
            | {
                f"{outcome.name.lower()}_per_s": round((counts[outcome] - first.tenants[name][outcome]) / span_s, 2)
                for outcome in ENDED
            }
            for name, counts in last.tenants.items()
        ]


def _slots(generation: Generation) -> list[int]:
    slots: list[int] = generation.tables.engines[:, c.E_MAX_INFLIGHT].tolist()
    return slots


def _state(*, is_up: bool, is_there: bool) -> str:
    if not is_there:
        return "starting"
    return "up" if is_up else "down"


def _rates(window: tuple[Reading, Reading, float] | None, column: int, count: int) -> Sequence[float | None]:
    """How fast one of the engines' counters grows."""
    if window is None:
        return [None] * count
    first, last, span_s = window
    return [round(value / span_s, 2) for value in (last.engines[:, column] - first.engines[:, column]).tolist()]
