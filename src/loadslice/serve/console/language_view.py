"""What the console shows of a language model's server, as one JSON document; see `pipeline_view`."""

import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadslice.policy.tokens import columns as c
from loadslice.serve.clock import Clock
from loadslice.serve.console import percentiles
from loadslice.serve.console.history import LONG, POINTS_MAX, SHORT
from loadslice.serve.console.language_watch import Kept, LanguageWatch
from loadslice.serve.console.recent import LISTED_MAX
from loadslice.serve.refusals import NS_PER_MS, NS_PER_S
from loadslice.spec.outcome import Outcome
from loadslice.spec.pipeline import CLASSES
from loadslice.spec.route import Route

if TYPE_CHECKING:
    from loadslice.serve.language.server import LanguageServer

ENDED = tuple(outcome for outcome in Outcome if outcome is not Outcome.NONE)
KINDS = ("", "first_", "gap_")
"""Times that are told: of whole requests, to the first token, between tokens; as keys begin."""

Point = dict[str, Any]


class Reading(NamedTuple):
    """All counters at one instant."""

    at_ns: int
    counters: NDArray[np.int64]
    engines: NDArray[np.int64]


class LanguageView:
    """Looks at one language model's server.

    Args:
        server: Started.
        clock: Its clock.
        watch: Told of its requests.
    """

    def __init__(self, server: "LanguageServer", clock: Clock, watch: LanguageWatch) -> None:
        self.number = 0
        """Of the last second."""
        self._server = server
        self._clock = clock
        self._watch = watch
        self._names = list(server.language.engines)
        self._points: deque[Point] = deque(maxlen=POINTS_MAX)
        self._readings: deque[Reading] = deque(maxlen=SHORT + 1)
        self._times: deque[list[percentiles.Counts]] = deque(maxlen=LONG)

    def turn(self) -> None:
        """Take in a second."""
        state = self._server.state
        reading = Reading(self._clock.now_ns(), state.counters.copy(), state.engines.copy())
        before = self._readings[-1] if self._readings else reading
        self._readings.append(reading)
        second = self._watch.turn()
        found = [percentiles.counts(times) for times in (second.whole_ns, second.first_ns, second.gaps_ns)]
        self._times.append(found)
        ended = reading.counters - before.counters
        completed = int(ended[c.C_OUTCOMES + Outcome.COMPLETED])
        point: Point = {
            "at_s": round(time.time(), 1),
            "span_s": round(max(1, reading.at_ns - before.at_ns) / NS_PER_S, 3),
            "arrived": int(ended[c.C_SUBMITTED]),
            "completed": completed,
            "not_completed": int(ended[c.C_OUTCOMES : c.C_OUTCOMES + len(Outcome)].sum()) - completed,
            "inside": int(reading.counters[c.C_IN_SYSTEM]),
            "queued": int(reading.engines[:, c.N_WAITING].sum()),
        }
        for kind, counts in zip(KINDS, found, strict=True):
            point |= _named(kind, percentiles.percentiles_ms(counts))
        self._points.append(point)
        self.number += 1

    def document(self, since: int) -> dict[str, Any]:
        """Everything that is shown, with the points after one."""
        count = min(max(0, self.number - since), len(self._points))
        points = list(self._points)[len(self._points) - count :]
        keys = self._points[-1] if self._points else {}
        engines = self._engines()
        return {
            "kind": "language",
            "name": self._server.language.language,
            "generation": 1,
            "version": None,
            "draining_generations": 0,
            "number": self.number,
            "at_s": round(time.time(), 1),
            "rates_over_s": SHORT,
            "times_over_s": LONG,
            "dilation": 1.0,
            "basis": "measured",
            "summary": self._summary(engines),
            "points": {key: [point[key] for point in points] for key in keys},
            "classes": list(CLASSES),
            "engines": engines,
            "routes": [
                {"name": route.name.lower(), "prompts": count}
                for route, count in zip(Route, self._watch.routes, strict=True)
                if count
            ],
        }

    def requests(self, name: str | None, *, notable: bool) -> dict[str, Any] | None:
        """Requests that were kept, by their numbers.

        Args:
            name: Number of one; ``None``: the last.
            notable: Only those that did not complete.
        """
        if name is not None:
            return next((self._told(one) for one in self._watch.kept if str(one.tag) == name), None)
        last = [one for one in reversed(self._watch.kept) if not notable or one.outcome is not Outcome.COMPLETED]
        return {"requests": [self._told(one) for one in last[:LISTED_MAX]]}

    def _told(self, one: Kept) -> dict[str, Any]:
        return {
            "tag": one.tag,
            "id": None,
            "outcome": one.outcome.name.lower(),
            "reason": one.reason.name.lower(),
            "class": CLASSES[one.priority],
            "tenant": None,
            "took_ms": (one.end_ns - one.arrival_ns) / NS_PER_MS,
            "first_token_ms": (one.first_ns - one.arrival_ns) / NS_PER_MS if one.first_ns else None,
            "prompt_tokens": one.prompt_tokens,
            "new_tokens": one.new_tokens,
            "tokens_found_in_cache": one.hit_tokens,
            "route": one.route.name.lower() if one.places else None,
            "computed_the_prompt": self._names[one.prefill] if one.prefill >= 0 else None,
            "continued_it": self._names[one.decode] if one.decode >= 0 else None,
            "placed_times": one.places,
            "moving_kv_ms": one.handover_ns / NS_PER_MS,
            "ended_at_s": round(time.time() - (self._clock.now_ns() - one.end_ns) / NS_PER_S, 3),
        }

    def _engines(self) -> dict[str, list[Any]]:
        tables, state = self._server.tables, self._server.state
        settings, counts = tables.engines, state.engines
        starts = self._server.starts
        used, blocks = counts[:, c.N_BLOCKS_USED].tolist(), settings[:, c.E_BLOCKS].tolist()
        rates = {
            key: self._rates(column)
            for key, column in (
                ("steps_per_s", c.N_STEPS),
                ("prefill_tokens_per_s", c.N_PREFILL_TOKENS),
                ("decode_tokens_per_s", c.N_DECODE_TOKENS),
            )
        }
        return {
            "name": self._names,
            "state": ["down" if down else "up" for down in counts[:, c.N_DOWN].tolist()],
            "roles": [", ".join(engine.roles) for engine in self._server.language.engines.values()],
            "kv_share": [part / whole if whole else None for part, whole in zip(used, blocks, strict=True)],
            "blocks_used": used,
            "blocks": blocks,
            "seats_used": counts[:, c.N_SEATS_USED].tolist(),
            "seats": settings[:, c.E_SEATS].tolist(),
            "waiting": counts[:, c.N_WAITING].tolist(),
            "queue_limit": settings[:, c.E_QUEUE].tolist(),
            "backlog_tokens": state.backlog[:, -1].tolist(),
            "pace": [scale / c.PPM for scale in counts[:, c.N_SCALE_PPM].tolist()],
            "preemptions": counts[:, c.N_PREEMPTIONS].tolist(),
            "restarts": [max(0, count - 1) for count in starts.values()],
        } | rates

    def _summary(self, engines: dict[str, list[Any]]) -> dict[str, Any]:
        first, last = self._readings[0], self._readings[-1]
        span_s = max(1, last.at_ns - first.at_ns) / NS_PER_S
        ended = last.counters - first.counters
        times = [sum(one, start=percentiles.counts([])) for one in zip(*self._times, strict=True)]
        told = [dict(zip(("p50", "p95", "p99"), percentiles.percentiles_ms(counts), strict=True)) for counts in times]
        return {
            "completed_per_s": round(int(ended[c.C_OUTCOMES + Outcome.COMPLETED]) / span_s, 3),
            "ended_per_s": {
                outcome.name.lower(): round(int(ended[c.C_OUTCOMES + outcome]) / span_s, 3) for outcome in ENDED
            },
            "latency_ms": told[0],
            "first_ms": told[1],
            "gap_ms": told[2],
            "inside": int(last.counters[c.C_IN_SYSTEM]),
            "requests_max": self._server.language.max_sequences,
            "engines_up": engines["state"].count("up"),
            "engines": len(self._names),
            "handovers": int(last.counters[c.C_HANDOVERS]),
            "handovers_failed": int(last.counters[c.C_HANDOVERS_FAILED]),
            "fallbacks": int(last.counters[c.C_FALLBACKS]),
        }

    def _rates(self, column: int) -> list[float]:
        first, last = self._readings[0], self._readings[-1]
        span_s = max(1, last.at_ns - first.at_ns) / NS_PER_S
        return [round(value / span_s, 2) for value in (last.engines[:, column] - first.engines[:, column]).tolist()]


def _named(kind: str, values: list[float | None]) -> dict[str, float | None]:
    return {f"{kind}p{percent}_ms": value for percent, value in zip(percentiles.PERCENTS, values, strict=True)}
