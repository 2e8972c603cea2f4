"""Layer 3: more and more clients, each with one request open, until more of them bring no more answers.

What the knee is, and how it is predicted before the first client starts, is in `knee`. The ramp climbs once and then
goes back: the steps that the knee is read from (one client, the last two doublings) and those around the predicted
knee are asked again by turns, up and down, so that each round gives a knee of its own and what the machine did between
two rounds is seen as the spread of theirs.
"""

import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from loadslice.evaluate.closed_loop import Flow, drive, flow
from loadslice.evaluate.layers.knee import Forecast, doublings, forecast, knee_of, mean_of, over, requests_of
from loadslice.evaluate.layers.subject import Subject
from loadslice.evaluate.wire import Heard
from loadslice.spec.evaluation_report import Knee
from loadslice.spec.report import Interval

KNEE_WITHIN = 0.05
SLOWEST = 4.0
"""How many times as long as foreseen a step may take, at most."""
SHORTER = 0.5
"""Length of a step that is asked again over one of the climb."""

_BUSY = re.compile(r'^loadslice_engine_busy_seconds_total\{engine="([^"]*)"\} ([0-9.eE+-]+)$', re.MULTILINE)


@dataclass(slots=True)
class Ramp:
    """One placement's ramp."""

    predicted: list[Flow] = field(default_factory=list)
    knee_predicted: Knee | None = None
    """Read from the predicted steps alone, by the rule; the ramp may have ended at another step."""
    knee_foretold: Knee | None = None
    """Read from the predicted steps at those where the ramp was read; what the error is of."""
    measured: list[Flow] = field(default_factory=list)
    """Mean over climb and rounds of each step."""
    knee: Knee | None = None
    """Median over rounds."""
    rounds: list[Knee] = field(default_factory=list)
    lone_ms: list[float] = field(default_factory=list)
    """Mean latency at one client, of each round."""
    heards: list[Heard] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=dict)
    """Engine -> share of its slots' time that was spent on batches in the climb's last step."""
    cpu_ms_per_answer: float | None = None
    """Processor time of the server in the climb's last step; ``None``: it was not started here."""
    ended: str = ""
    unpredicted: str | None = None
    """Why there is no prediction."""

    @property
    def knee_error(self) -> float | None:
        """Of the plateau's rate, predicted over measured, minus 1."""
        if self.knee is None or self.knee_foretold is None:
            return None
        return self.knee_foretold.throughput_per_s / self.knee.throughput_per_s - 1

    @property
    def clients_error(self) -> float | None:
        """Of the knee's clients; a machine that has become slower as a whole does not move it."""
        if self.knee is None or self.knee_foretold is None:
            return None
        return self.knee_foretold.clients / self.knee.clients - 1

    @property
    def drift(self) -> float | None:
        """How much longer one client's requests took during the ramp than lone requests before it had led to expect."""
        alone = next((one.mean_ms for one in self.predicted if one.clients == 1), None)
        return statistics.median(self.lone_ms) / alone - 1 if alone and self.lone_ms else None


def measure(subject: Subject, *, step_s: float, clients_max: int, rounds: int, seed: int) -> Ramp:
    """Predict, climb, and ask again.

    Args:
        subject: Whom to ask.
        step_s: Seconds of the world of a step of the climb, about.
        clients_max: At most.
        rounds: How often the steps that matter are asked again, at least 1.
        seed: Of the prediction.
    """
    told = forecast(subject, step_s=SHORTER * step_s, clients_max=clients_max, seed=seed)
    found = Ramp(predicted=list(told.flows.values()), unpredicted=told.unpredicted)
    found.knee_predicted = knee_of(found.predicted)
    steps: dict[int, list[Flow]] = {}
    for clients in told.steps(clients_max):
        steps[clients] = [_climb(subject, told, found, clients, step_s)]
        doubled = [runs[0] for asked, runs in steps.items() if asked in doublings(clients_max)]
        found.ended = _why_ended(subject, doubled, clients, clients_max)
        if found.ended:
            break
    last = max(clients for clients in steps if clients in doublings(clients_max))
    again = sorted({1, max(1, last // 2), last, *_around(found.knee_predicted, steps)})
    for number in range(rounds):
        asked = [
            _asked(subject, told, found, clients, SHORTER * step_s)
            for clients in (again if number % 2 else again[::-1])
            if subject.alive()
        ]
        for one in asked:
            steps[one.clients].append(one)
        if (knee := knee_of(sorted(asked, key=lambda one: one.clients), last)) is not None:
            found.rounds.append(knee)
            found.lone_ms += [one.mean_ms for one in asked if one.clients == 1 and one.mean_ms is not None]
    found.measured = [mean_of(runs) for _, runs in sorted(steps.items())]
    found.knee = _settled(found, last)
    found.knee_foretold = knee_of(found.predicted, last)
    return found


def _around(knee: Knee | None, steps: dict[int, list[Flow]]) -> list[int]:
    """Steps that were taken next to the predicted knee, one on each side."""
    if knee is None:
        return []
    below = [clients for clients in steps if clients <= knee.clients]
    above = [clients for clients in steps if clients >= knee.clients]
    return [*below[-1:], *above[:1]]


def _settled(found: Ramp, last: int) -> Knee | None:
    """The median of the rounds, with their least and most; of one climb alone where there was no round."""
    whole = knee_of(found.measured, last)
    if whole is None or not found.rounds:
        return whole
    rates = [one.throughput_per_s for one in found.rounds]
    clients = [one.clients for one in found.rounds]
    return Knee(
        clients=statistics.median(clients),
        throughput_per_s=statistics.median(rates),
        clients_most_power=whole.clients_most_power,
        throughput_range=Interval(low=min(rates), high=max(rates)),
        clients_range=Interval(low=min(clients), high=max(clients)),
        rounds=len(rates),
    )


def _why_ended(subject: Subject, doubled: Sequence[Flow], clients: int, clients_max: int) -> str:
    """Empty: the climb goes on."""
    if not subject.alive():
        return "the server is gone"
    if clients != doubled[-1].clients:
        return ""
    ended = over(doubled)
    if ended is None and 2 * clients > clients_max:
        ended = f"{clients} clients are the most that were asked for"
    return ended or ""


def _climb(subject: Subject, told: Forecast, found: Ramp, clients: int, step_s: float) -> Flow:
    """One step of the climb, with what engines and processor did meanwhile."""
    before, cpu_s, began, known = _busy_s(subject), _cpu_s(subject), time.perf_counter(), len(found.heards)
    step = _asked(subject, told, found, clients, step_s)
    passed_s = (time.perf_counter() - began) / subject.dilate
    found.busy = {
        engine: min(1.0, (at_s - before.get(engine, 0.0)) / passed_s / slots(subject, engine))
        for engine, at_s in _busy_s(subject).items()
    }
    used_s, done = _cpu_s(subject), sum(heard.completed for heard in found.heards[known:])
    if cpu_s is not None and used_s is not None and done:
        found.cpu_ms_per_answer = 1000 * (used_s - cpu_s) / done
    return step


def _asked(subject: Subject, told: Forecast, found: Ramp, clients: int, step_s: float) -> Flow:
    """One step: as many requests as the prediction says that it takes ``step_s`` for; unpredicted, for that long."""
    rate_per_s = told.flows[clients].throughput_per_s if clients in told.flows else None
    if rate_per_s is None:
        heards = drive(subject.line, told.letters, clients, for_s=step_s, requests_min=6 * clients)
    else:
        requests = requests_of(clients, len(told.letters), rate_per_s * step_s / subject.dilate)
        heards = drive(subject.line, told.letters, clients, for_s=SLOWEST * step_s, requests_max=requests)
    found.heards += heards
    return flow(clients, heards)


def slots(subject: Subject, engine: str) -> int:
    """How many batches an engine runs at once; 1 where nobody says."""
    known = subject.pipeline.engines.get(engine) if subject.pipeline is not None else None
    return known.max_inflight if known is not None else 1


def _busy_s(subject: Subject) -> dict[str, float]:
    """Slot time per engine so far, in the server's time."""
    with subject.line() as line:
        page = line.get("/metrics").body.decode("utf-8", "replace")
    return {name: float(value) for name, value in _BUSY.findall(page)}


def _cpu_s(subject: Subject) -> float | None:
    return subject.cpu_s() if subject.cpu_s is not None and subject.alive() else None


def figures(found: Ramp) -> dict[str, Any]:
    """For the document."""
    foretold = {one.clients: one for one in found.predicted}
    steps = []
    for one in found.measured:
        guess = foretold.get(one.clients)
        steps.append(
            {
                "clients": one.clients,
                "throughput_per_s": one.throughput_per_s,
                "throughput_per_s_predicted": guess.throughput_per_s if guess else None,
                "latency_ms_mean": one.mean_ms,
                "latency_ms_mean_predicted": guess.mean_ms if guess else None,
                "latency_ms_p95": one.p95_ms,
                "answers": one.answers,
                "refused": one.refused,
                "failed": one.failed,
            }
        )
    return {
        "rule": "saturation point: plateau rate times the latency of one client",
        "knee": _knee(found.knee),
        "knee_predicted": _knee(found.knee_foretold or found.knee_predicted),
        "knee_error_pct": _pct(found.knee_error),
        "knee_clients_error_pct": _pct(found.clients_error),
        "one_client_slower_than_predicted_pct": _pct(found.drift),
        "unpredicted": found.unpredicted,
        "ended": found.ended,
        "engine_busy": found.busy,
        "cpu_ms_per_answer": found.cpu_ms_per_answer,
        "steps": steps,
    }


def _pct(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _knee(knee: Knee | None) -> dict[str, Any] | None:
    if knee is None:
        return None
    told: dict[str, Any] = {
        "clients": knee.clients,
        "throughput_per_s": knee.throughput_per_s,
        "clients_most_power": knee.clients_most_power,
    }
    if knee.throughput_range is not None and knee.clients_range is not None:
        told["rounds"] = knee.rounds
        told["throughput_per_s_range"] = [knee.throughput_range.low, knee.throughput_range.high]
        told["clients_range"] = [knee.clients_range.low, knee.clients_range.high]
    return told
