"""Many candidate fleets judged on one trace: in parallel, resumed where it was interrupted, none simulated in vain.

Four ways to settle a candidate without simulating it whole, each counted and said:

- bounded: its engines have less time than the work takes in some bucket, so that it falls behind there whatever the
  schedule. That a percentile over the whole trace may forgive one such bucket is not taken into account.
- dominated, smaller: it is inside a fleet that failed. Presumes that an engine more never breaks a promise.
- dominated, dearer: a fleet that holds costs no more, and is within `WORTH` of the least P99 and the least energy that
  the candidate can have. Its least P99 is that of a simulated fleet which contains it (same presumption); its least
  energy is idle power plus the work on whichever of its engines uses least.
- estimated: on long traffic every candidate is first simulated on a sample of it, all on the same. What it did there,
  times the least ratio of whole over sample among fleets of like P99 that hold and were simulated both ways, is taken
  for the least it can do on the whole; a fleet that holds, costs no more and is within `WORTH` of that settles it. The
  ratio falls as more is simulated; what it then no longer settles is simulated too. The cheapest fleet that holds is
  never found by a sample: whatever is cheaper was simulated whole, or settled by one of the first two.

Simulations run in threads: the kernels release the interpreter's lock, and one copy of the traffic serves them all.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from loadslice.plan.fleet import mix as mixes
from loadslice.plan.fleet.candidate import Policy
from loadslice.plan.fleet.judge import Verdict
from loadslice.plan.fleet.problem import Float64s, Int64s, Problem, allowed, fixed_per_hour
from loadslice.spec.errors import InputError
from loadslice.spec.files import NOT_JSON
from loadslice.spec.simulation import LatencyMs

WORTH = 0.05
"""A candidate that can be better by no more than this share is not worth a simulation."""

ERROR_LEAST, KNOWN_LEAST = 0.005, 4
"""What is taken off the least ratio of whole over sample, which is known from so many fleets on."""

NEAR_LOG = 0.3
"""Fleets whose P99 on the sample differ by less, a third either way, are alike in how samples err."""

Judging = Callable[[Int64s, Int64s], Verdict | None]
Job = tuple[int, Int64s, Int64s]
"""Number of a candidate, engines, machines."""
Runner = Callable[[Iterator[Job]], Iterator[tuple[int, Verdict | None]]]
"""Judges jobs as they are asked for and gives verdicts as they come."""


def local(judge: Judging, jobs: int) -> Runner:
    """Judge on this machine, so many at a time."""

    def run(wanted: Iterator[Job]) -> Iterator[tuple[int, Verdict | None]]:
        with ThreadPoolExecutor(jobs) as pool:
            running: dict[Future[Verdict | None], int] = {}
            try:
                while True:
                    for number, counts, boxes in islice(wanted, jobs - len(running)):
                        running[pool.submit(judge, counts, boxes)] = number
                    if not running:
                        return
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield running.pop(future), future.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    return run


_Standing = tuple[tuple[int, ...], tuple[int, ...]]  # engines, machines


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a ledger."""

    key: str
    counts: list[int]
    boxes: list[int]
    policy: Policy
    holds: bool
    whole: bool
    latency_ms: LatencyMs
    error_rate: float
    throughput_per_s: float
    goodput_per_s: float
    energy_j: float | None
    utilisation: dict[str, float]
    requests: int
    misses: float


class Ledger:
    """Verdicts in a file, so that an interrupted search goes on where it stopped.

    A line is written whole after each simulation; a torn last line, which a crash may leave, is dropped. Lines belong
    to the inputs whose key they carry: other inputs, other verdicts.

    Args:
        path: File of lines; ``None``: nothing is kept.
        key: Stands for everything that a verdict depends on beside the fleet.
    """

    def __init__(self, path: Path | None, key: str) -> None:
        """Read what is there."""
        self._path, self._key = path, key
        self._known: dict[_Standing, Verdict] = {}
        self.found = 0
        if path is not None and path.is_file():
            self._read(path)

    def _read(self, path: Path) -> None:
        decoder = msgspec.json.Decoder(_Kept)
        for line in path.read_bytes().splitlines():
            try:
                kept = decoder.decode(line)
            except NOT_JSON:
                continue
            if kept.key == self._key:
                self._known[tuple(kept.counts), tuple(kept.boxes)] = _verdict(kept)

    def known(self, counts: Int64s, boxes: Int64s) -> Verdict | None:
        """What the file says of a fleet in these machines: their cores and their watts are in its figures."""
        verdict = self._known.get((tuple(counts.tolist()), tuple(boxes.tolist())))
        self.found += verdict is not None
        return verdict

    def keep(self, verdict: Verdict | None) -> None:
        """Write a line; ``None`` leaves none."""
        if verdict is not None and self._path is not None:
            self._write(verdict)

    def judging(self, judge: Judging) -> Judging:
        """The same judge, which asks the file first and writes into it."""

        def remembered(counts: Int64s, boxes: Int64s) -> Verdict | None:
            verdict = self.known(counts, boxes)
            if verdict is None:
                verdict = judge(counts, boxes)
                self.keep(verdict)
            return verdict

        return remembered

    def _write(self, verdict: Verdict) -> None:
        assert self._path is not None
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fields = {name: getattr(verdict, name) for name in _Kept.__struct_fields__ if name != "key"}
        fields |= {"counts": verdict.counts.tolist(), "boxes": verdict.boxes.tolist()}
        line = msgspec.json.encode(_Kept(key=self._key, **fields)) + b"\n"
        try:
            with self._path.open("ab") as stream:
                stream.write(line)
        except OSError as error:
            raise InputError(f"{self._path}: cannot be written. Choose another folder with --out.") from error


def _verdict(kept: _Kept) -> Verdict:
    fields = {name: getattr(kept, name) for name in _Kept.__struct_fields__ if name != "key"}
    return Verdict(**(fields | {"counts": np.array(kept.counts, np.int64), "boxes": np.array(kept.boxes, np.int64)}))


@dataclass(slots=True)
class Swept:
    """What became of the candidates."""

    cost_per_hour: Float64s
    """[N] what is paid whether anything is busy or not; inf: there are no machines, racks or money for it"""
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    """Number of each candidate that was simulated -> what the simulation said."""
    bounded: int = 0
    smaller: int = 0
    dearer: int = 0
    estimated: int = 0
    """Settled by their sample."""
    sampled: int = 0
    """Candidates that were simulated on the sample."""
    sample_error: float | None = None
    """How far below the middle the least ratio of whole over sample was, P99 or energy, whichever is more; ``None``:
    nothing was estimated."""
    requests: int = 0

    @property
    def cheapest(self) -> int | None:
        """The candidate that costs least of those that hold."""
        holding = [number for number, verdict in self.verdicts.items() if verdict.holds]
        return min(holding, key=lambda number: self.cost_per_hour[number], default=None)


def sweep(
    problem: Problem,
    candidates: Sequence[Int64s],
    run: Runner,
    *,
    front: bool = True,
    sample: Runner | None = None,
    tell: Callable[[int, int, int], None] = lambda *_: None,
) -> Swept:
    """Judge every candidate, by simulation or by what makes one superfluous.

    Args:
        problem: Prices, machines and demand.
        candidates: Engines of each type.
        run: From `local`, or from `sweep_ray.cluster`.
        front: What is best in P99 and energy is wanted too; otherwise the cheapest that holds settles all dearer ones.
        sample: Judges on a sample of the traffic (`Judge.sample`), for the front; ``None``: the traffic is short.
        tell: Called with how many are settled, of how many, and how many of those were simulated whole.
    """
    course = _Course(problem, np.array(candidates, np.int64), front=front)
    if front and sample is not None:
        for number, verdict in sample(course.able()):
            course.learn_sample(number, verdict)
    while True:
        before = len(course.swept.verdicts)
        for number, verdict in run(course.wanted()):
            course.learn(number, verdict)
            tell(int(np.count_nonzero(course.settled)), len(candidates), len(course.swept.verdicts))
        # What samples err by may have grown since a candidate was passed over.
        if len(course.swept.verdicts) == before:
            break
    course.close()
    tell(len(candidates), len(candidates), len(course.swept.verdicts))
    return course.swept


class _Course:
    """A sweep under way."""

    def __init__(self, problem: Problem, counts: Int64s, *, front: bool) -> None:
        self._problem, self._counts, self._front = problem, counts, front
        standing = [allowed(problem, fleet) for fleet in counts]
        self._boxes = [None if found is None else found.machines for found in standing]
        cost = np.array(
            [
                np.inf if boxes is None else fixed_per_hour(problem, fleet, boxes)
                for fleet, boxes in zip(counts, self._boxes, strict=True)
            ]
        )
        self.swept = Swept(cost)
        self.settled = ~np.isfinite(cost)
        self.swept.bounded = int(np.count_nonzero(self.settled))
        self._running: set[int] = set()
        self._least_j = self._least_energy_j()
        self._least_p99 = np.zeros(len(counts))
        self._by_cost = np.argsort(cost, kind="stable")
        self._rough = np.full((len(counts), 2), np.nan)
        """[N, 2] P99 and energy on the sample"""

    def _least_energy_j(self) -> Float64s:
        """[N] joules that no schedule on a fleet undercuts."""
        problem = self._problem
        span_s = float(problem.seconds.sum())
        idle_w = self._counts @ problem.watts[:, 0]
        idle_w += np.array([0.0 if boxes is None else float(boxes @ problem.box_watts) for boxes in self._boxes])
        busy_w = (problem.watts[:, 1] - problem.watts[:, 0]) / problem.slots
        able = np.isfinite(problem.work_s).all(axis=0)
        per_kind = np.where(
            able, np.where(np.isfinite(problem.work_s), problem.work_s, 0.0).sum(axis=0) * busy_w, np.inf
        )
        there = self._counts > 0
        work_j = np.array([per_kind[:, fleet].min(axis=1).sum() if fleet.any() else np.inf for fleet in there])
        least: Float64s = idle_w * span_s + work_j
        return least

    def able(self) -> Iterator[Job]:
        """Candidates whose time suffices."""
        for number in np.argsort(-self._counts.sum(axis=1), kind="stable"):
            if self.settled[number]:
                continue
            if mixes.flow(self._problem, self._counts[number]) is None:
                self._bound(int(number))
                continue
            boxes = self._boxes[number]
            assert boxes is not None
            yield int(number), self._counts[number], boxes

    def learn_sample(self, number: int, verdict: Verdict | None) -> None:
        """A candidate was simulated on the sample."""
        if verdict is None or verdict.latency_ms.p99 is None:
            return
        self.swept.sampled += 1
        self.swept.requests += verdict.requests
        self._rough[number] = _pair(verdict)

    def wanted(self) -> Iterator[Job]:
        """Candidates to simulate, the ones that settle most first; asked for while others run."""
        for number in self._order():
            if self.settled[number] or number in self._running or self._is_estimated(number):
                continue
            if np.isnan(self._rough[number, 0]) and mixes.flow(self._problem, self._counts[number]) is None:
                self._bound(number)
                continue
            if self.settled[number]:
                continue
            boxes = self._boxes[number]
            assert boxes is not None
            self._running.add(number)
            yield number, self._counts[number], boxes

    def _order(self) -> Iterable[int]:
        """The largest fleet of each set of types, which says how good its like can be; then by cost."""
        if self.swept.sampled:
            yield from (int(number) for number in self._by_cost)
            return
        size = self._counts.sum(axis=1)
        _, alike = np.unique(self._counts > 0, axis=0, return_inverse=True)
        for group in range(int(alike.max()) + 1 if self._front else 0):
            members = np.flatnonzero(alike == group)
            yield int(members[np.argmax(size[members])])
        yield from (int(number) for number in self._by_cost)

    def _bound(self, number: int) -> None:
        """It cannot carry the load, and so none inside it can."""
        inside = (self._counts <= self._counts[number]).all(axis=1) & ~self.settled
        inside[list(self._running)] = False
        self.settled |= inside
        self.swept.bounded += int(np.count_nonzero(inside))

    def learn(self, number: int, verdict: Verdict | None) -> None:
        """A candidate was simulated: what else does that settle?"""
        self._running.discard(number)
        self.settled[number] = True
        if verdict is None:
            self.swept.bounded += 1
            return
        self.swept.verdicts[number] = verdict
        self.swept.requests += verdict.requests
        inside = (self._counts <= self._counts[number]).all(axis=1)
        if verdict.whole and verdict.latency_ms.p99 is not None:
            self._least_p99[inside] = np.maximum(self._least_p99[inside], verdict.latency_ms.p99)
        if not verdict.holds:
            self.swept.smaller += self._settle(inside)
        self.swept.dearer += self._settle(self._dearer())

    def _is_estimated(self, number: int) -> bool:
        """A fleet that was simulated whole and holds is as good on the sample, and costs no more."""
        holding = self._holding()
        if np.isnan(self._rough[number, 0]) or len(holding) < KNOWN_LEAST:
            return False
        no_dearer = self.swept.cost_per_hour[holding] <= self.swept.cost_per_hour[number] + 1e-12
        # Crowded fleets have noisy samples: what they err by says nothing of fleets that hardly queue.
        apart = np.abs(np.log(self._rough[holding, 0] / self._rough[number, 0]))
        near = apart <= max(NEAR_LOG, float(np.sort(apart)[KNOWN_LEAST - 1]))
        least = self._rough[number] * self._ratios(holding)[near].min(axis=0) * (1 - ERROR_LEAST)
        return bool((no_dearer & (least >= self._figures(holding) * (1 - WORTH)).all(axis=1)).any())

    def _holding(self) -> list[int]:
        """Fleets that hold, simulated whole and on the sample."""
        return [
            number
            for number, verdict in self.swept.verdicts.items()
            if verdict.holds and verdict.latency_ms.p99 is not None and not np.isnan(self._rough[number, 0])
        ]

    def _figures(self, numbers: list[int]) -> Float64s:
        """[n, 2] P99 and energy of fleets that were simulated whole."""
        return np.array([_pair(self.swept.verdicts[number]) for number in numbers], np.float64)

    def _ratios(self, holding: list[int]) -> Float64s:
        """[n, 2] whole over sample."""
        ratios: Float64s = self._figures(holding) / self._rough[holding]
        return ratios

    def close(self) -> None:
        """Nothing is left to simulate."""
        self.swept.estimated = self._settle(np.ones(len(self._counts), bool))
        holding = self._holding()
        if self.swept.estimated and holding:
            ratios = self._ratios(holding)
            self.swept.sample_error = float((1 - ratios.min(axis=0) / np.median(ratios, axis=0)).max())

    def _settle(self, which: np.ndarray) -> int:
        new = which & ~self.settled
        new[list(self._running)] = False
        self.settled |= new
        return int(np.count_nonzero(new))

    def _dearer(self) -> np.ndarray:
        worse = np.zeros(len(self._counts), bool)
        for number, verdict in self.swept.verdicts.items():
            if not verdict.holds or verdict.latency_ms.p99 is None:
                continue
            dearer = self.swept.cost_per_hour >= self.swept.cost_per_hour[number] - 1e-12
            if not self._front:
                worse |= dearer
                continue
            slower = self._least_p99 >= verdict.latency_ms.p99 * (1 - WORTH)
            joules = verdict.energy_j if verdict.energy_j is not None else -np.inf
            worse |= dearer & slower & (self._least_j >= joules * (1 - WORTH))
        return worse


def _pair(verdict: Verdict) -> tuple[float, float]:
    """P99 and energy; where power is unknown, all use alike."""
    assert verdict.latency_ms.p99 is not None
    return verdict.latency_ms.p99, 1.0 if verdict.energy_j is None else verdict.energy_j
