"""Layer 3: more and more clients, each with one request open, until more of them bring no more answers.

The rule of the knee (Kleinrock 1979, the saturation point): with ``R`` the latency at one client and ``X`` the rate of
the plateau, the two asymptotes ``N / R`` and ``X`` meet at ``N = X * R`` clients. The plateau is the mean rate of the
last two steps; the ramp doubles its clients and ends once doubling them brought less than `GAIN` more, or refusals
begin. The step with most power (rate over latency) is told beside it.

The simulator predicts the whole ramp from the profile of single requests before the first client starts.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadslice.evaluate.closed_loop import Flow, drive, flow, predict
from loadslice.evaluate.layers.subject import Subject
from loadslice.evaluate.wire import Heard
from loadslice.spec.evaluation_report import Knee

GAIN = 0.05
REFUSED_MAX = 0.01
SEEDS = 4
REQUESTS_SIMULATED = (60, 400)
KNEE_WITHIN = 0.05

_BUSY = re.compile(r'^loadslice_engine_busy_seconds_total\{engine="([^"]*)"\} ([0-9.eE+-]+)$', re.MULTILINE)


@dataclass(slots=True)
class Ramp:
    """One placement's ramp."""

    predicted: list[Flow] = field(default_factory=list)
    knee_predicted: Knee | None = None
    measured: list[Flow] = field(default_factory=list)
    knee: Knee | None = None
    heards: list[Heard] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=dict)
    """Engine -> share of its slots' time that was spent on batches in the last step."""
    cpu_ms_per_answer: float | None = None
    """Processor time of the server in the last step; ``None``: it was not started here."""
    ended: str = ""
    unpredicted: str | None = None
    """Why there is no prediction."""

    @property
    def knee_error(self) -> float | None:
        """Of the plateau's rate, predicted over measured, minus 1."""
        if self.knee is None or self.knee_predicted is None:
            return None
        return self.knee_predicted.throughput_per_s / self.knee.throughput_per_s - 1


def knee_of(flows: Sequence[Flow]) -> Knee | None:
    """The rule; ``None`` for fewer than two steps that answered."""
    known = [one for one in flows if one.throughput_per_s is not None and one.mean_ms]
    if len(known) < 2:
        return None
    plateau = float(np.mean([one.throughput_per_s for one in known[-2:]]))
    power = [(one.throughput_per_s or 0.0) / (one.mean_ms or np.inf) for one in known]
    return Knee(
        clients=plateau * (known[0].mean_ms or 0.0) / 1000,
        throughput_per_s=plateau,
        clients_most_power=known[int(np.argmax(power))].clients,
    )


def _is_over(flows: Sequence[Flow]) -> str | None:
    """Why the ramp ends here."""
    last = flows[-1]
    total = last.answers + last.refused + last.failed
    if last.failed and last.failed >= 0.5 * total:
        return "half of the requests of a step got no answer"
    if last.refused > REFUSED_MAX * total:
        return "the server began to refuse"
    if len(flows) < 3 or last.throughput_per_s is None or flows[-2].throughput_per_s is None:
        return None
    if last.throughput_per_s < (1 + GAIN) * flows[-2].throughput_per_s:
        return f"twice the clients brought less than {GAIN:.0%} more"
    return None


def forecast(subject: Subject, *, clients_max: int, seed: int) -> tuple[list[Flow], str | None]:
    """The ramp in virtual time; mean over seeds at each step.

    Returns:
        Steps, and why there are none.
    """
    if subject.pipeline is None or subject.table is None:
        return [], "the placement has no profile: it was not started here"
    names = [letter.input for letter in subject.letters]
    steps: list[Flow] = []
    clients = 1
    while clients <= clients_max:
        requests = int(np.clip(12 * clients, *REQUESTS_SIMULATED))
        runs = [
            predict(subject.pipeline, subject.table, names, clients, requests, seed=seed + number)
            for number in range(SEEDS)
        ]
        steps.append(_mean(runs))
        if _is_over(steps):
            break
        clients *= 2
    return steps, None


def _mean(runs: Sequence[Flow]) -> Flow:
    def of(name: str) -> float | None:
        values = [getattr(run, name) for run in runs]
        return float(np.mean(values)) if None not in values else None

    return Flow(
        clients=runs[0].clients,
        throughput_per_s=of("throughput_per_s"),
        mean_ms=of("mean_ms"),
        p95_ms=of("p95_ms"),
        answers=sum(run.answers for run in runs),
        refused=sum(run.refused for run in runs),
        failed=sum(run.failed for run in runs),
    )


def measure(subject: Subject, *, step_s: float, clients_max: int, seed: int) -> Ramp:
    """Predict, then climb."""
    found = Ramp()
    found.predicted, found.unpredicted = forecast(subject, clients_max=clients_max, seed=seed)
    found.knee_predicted = knee_of(found.predicted)
    clients = 1
    while True:
        before, cpu_s, began = _busy_s(subject), _cpu_s(subject), time.perf_counter()
        heards = drive(subject.line, subject.letters, clients, for_s=step_s, requests_min=6 * clients)
        passed_s = (time.perf_counter() - began) / subject.dilate
        found.busy = {
            engine: min(1.0, (at_s - before.get(engine, 0.0)) / passed_s / slots(subject, engine))
            for engine, at_s in _busy_s(subject).items()
        }
        used_s, done = _cpu_s(subject), sum(heard.completed for heard in heards)
        if cpu_s is not None and used_s is not None and done:
            found.cpu_ms_per_answer = 1000 * (used_s - cpu_s) / done
        found.heards += heards
        found.measured.append(flow(clients, heards))
        ended = _is_over(found.measured)
        if ended is None and 2 * clients > clients_max:
            ended = f"{clients} clients are the most that were asked for"
        if ended is None and not subject.alive():
            ended = "the server is gone"
        if ended is not None:
            found.ended = ended
            break
        clients *= 2
    found.knee = knee_of(found.measured)
    return found


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
        "knee_predicted": _knee(found.knee_predicted),
        "knee_error_pct": None if found.knee_error is None else 100 * found.knee_error,
        "unpredicted": found.unpredicted,
        "ended": found.ended,
        "engine_busy": found.busy,
        "cpu_ms_per_answer": found.cpu_ms_per_answer,
        "steps": steps,
    }


def _knee(knee: Knee | None) -> dict[str, float] | None:
    if knee is None:
        return None
    return {
        "clients": knee.clients,
        "throughput_per_s": knee.throughput_per_s,
        "clients_most_power": knee.clients_most_power,
    }
