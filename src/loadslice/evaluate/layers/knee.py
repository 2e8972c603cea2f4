"""Where a ramp bends: the rule, the steps that are tried, and what the simulator says of them before the first client.

The rule (Kleinrock 1979, the saturation point): with ``R`` the latency at one client and ``X`` the rate of the plateau,
the two asymptotes ``N / R`` and ``X`` meet at ``N = X * R`` clients. The plateau is the mean rate of the last two
doublings. A machine that is slower by a tenth has a lower ``X`` and a longer ``R``: the rate then misses its
prediction by that tenth, the clients do not.

So that a prediction can be held to a few per cent, both sides send the same requests: each step's number of requests
and the inputs they take in turn are settled before the ramp, and both knees are read at the same steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadslice.evaluate.closed_loop import Flow, predict
from loadslice.evaluate.layers.subject import Subject
from loadslice.evaluate.wire import Letter
from loadslice.spec.evaluation_report import Knee

GAIN = 0.05
"""The ramp ends once twice the clients brought less than this share more."""
REFUSED_MAX = 0.01
SEEDS = 4
SIMULATED_MIN = 200
"""Requests of a simulated step, in whole turns of the inputs."""
KEPT_MIN = 24
"""Requests of a measured step that count."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The ramp in virtual time, settled before the first client starts."""

    letters: list[Letter]
    """What both sides send in turn: all inputs, or as many, evenly spread, as one client gets through in a step."""
    flows: dict[int, Flow]
    """Clients -> mean over seeds, at every step the ramp may take."""
    unpredicted: str | None = None
    """Why there is none."""

    def steps(self, clients_max: int) -> list[int]:
        """Clients of each step: doublings, and the whole numbers around the predicted knee and half-way to the next."""
        doubled = doublings(clients_max)
        knee = knee_of(list(self.flows.values())) if self.flows else None
        if knee is None:
            return doubled
        fine = {math.floor(knee.clients), math.ceil(knee.clients), round(1.5 * knee.clients)}
        return sorted({*doubled, *(one for one in fine if 1 <= one <= clients_max)})


def doublings(clients_max: int) -> list[int]:
    """1, 2, 4, ... up to ``clients_max``."""
    return [1 << power for power in range(clients_max.bit_length()) if 1 << power <= clients_max]


def knee_of(flows: Sequence[Flow], last: int | None = None) -> Knee | None:
    """The rule.

    Args:
        flows: Steps, in order of their clients.
        last: Clients of the last doubling that counts; default: where the flows themselves end by the rule, or the
            last of them.

    Returns:
        ``None`` for fewer than two doublings that answered.
    """
    known = [one for one in flows if one.throughput_per_s is not None and one.mean_ms]
    last = last if last is not None else end_of(flows)
    doubled = [one for one in known if one.clients & (one.clients - 1) == 0 and (last is None or one.clients <= last)]
    if len(doubled) < 2 or doubled[0].clients != 1:
        return None
    plateau = float(np.mean([one.throughput_per_s for one in doubled[-2:]]))
    power = [(one.throughput_per_s or 0.0) / (one.mean_ms or np.inf) for one in known]
    return Knee(
        clients=plateau * (doubled[0].mean_ms or 0.0) / 1000,
        throughput_per_s=plateau,
        clients_most_power=known[int(np.argmax(power))].clients,
    )


def end_of(flows: Sequence[Flow]) -> int | None:
    """Clients of the first doubling at which the ramp is over; ``None``: it goes on."""
    doubled = [one for one in flows if one.clients & (one.clients - 1) == 0]
    for count in range(1, len(doubled) + 1):
        if over(doubled[:count]) is not None:
            return doubled[count - 1].clients
    return None


def over(doubled: Sequence[Flow]) -> str | None:
    """Why the ramp ends with the last of these doublings; ``None``: it goes on."""
    last = doubled[-1]
    total = last.answers + last.refused + last.failed
    if last.failed and last.failed >= 0.5 * total:
        return "half of the requests of a step got no answer"
    if last.refused > REFUSED_MAX * total:
        return "the server began to refuse"
    if len(doubled) < 3 or last.throughput_per_s is None or doubled[-2].throughput_per_s is None:
        return None
    if last.throughput_per_s < (1 + GAIN) * doubled[-2].throughput_per_s:
        return f"twice the clients brought less than {GAIN:.0%} more"
    return None


def forecast(subject: Subject, *, step_s: float, clients_max: int, seed: int) -> Forecast:
    """Play every step the ramp may take, before it is taken.

    Args:
        subject: Its table is what single requests just found.
        step_s: Seconds of the world of the shortest step.
        clients_max: Of the ramp.
        seed: First of `SEEDS`.
    """
    if subject.pipeline is None or subject.table is None:
        return Forecast(subject.letters, {}, "the placement has no profile: it was not started here")
    alone = _step(subject, subject.letters, 1, seed)
    letters = in_a_step(subject.letters, alone.throughput_per_s, step_s / subject.dilate)
    flows = {1: alone if len(letters) == len(subject.letters) else _step(subject, letters, 1, seed)}
    for clients in doublings(clients_max)[1:]:
        flows[clients] = _step(subject, letters, clients, seed)
    for clients in Forecast(letters, flows).steps(clients_max):
        if clients not in flows:
            flows[clients] = _step(subject, letters, clients, seed)
    return Forecast(letters, dict(sorted(flows.items())))


def in_a_step(letters: Sequence[Letter], lone_per_s: float | None, step_s: float) -> list[Letter]:
    """Inputs that one client gets through in a step, evenly spread over all."""
    fit = max(KEPT_MIN, int((lone_per_s or 0.0) * step_s))
    if len(letters) <= fit:
        return list(letters)
    return [letters[number * len(letters) // fit] for number in range(fit)]


def requests_of(clients: int, inputs: int, wanted: float) -> int:
    """Requests of a step of which whole turns of the inputs count.

    Args:
        clients: The first answer of each and the last ones, when clients have begun to leave, do not count.
        inputs: How many are taken in turn.
        wanted: How many should count.
    """
    return max(1, round(max(wanted, 4 * clients) / inputs)) * inputs + 2 * clients


def _step(subject: Subject, letters: Sequence[Letter], clients: int, seed: int) -> Flow:
    """One step in virtual time, mean over seeds."""
    assert subject.pipeline is not None
    assert subject.table is not None
    names = [letter.input for letter in letters]
    requests = requests_of(clients, len(names), SIMULATED_MIN)
    runs = [
        predict(subject.pipeline, subject.table, names, clients, requests, seed=seed + number)
        for number in range(SEEDS)
    ]
    return mean_of(runs)


def mean_of(runs: Sequence[Flow]) -> Flow:
    """Mean rate and latency of several runs of one step; counts are summed up."""

    def of(name: str) -> float | None:
        values = [value for run in runs if (value := getattr(run, name)) is not None]
        return float(np.mean(values)) if values else None

    return Flow(
        clients=runs[0].clients,
        throughput_per_s=of("throughput_per_s"),
        mean_ms=of("mean_ms"),
        p95_ms=of("p95_ms"),
        answers=sum(run.answers for run in runs),
        refused=sum(run.refused for run in runs),
        failed=sum(run.failed for run in runs),
    )
