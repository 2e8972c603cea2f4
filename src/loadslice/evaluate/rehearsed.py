"""A profile as a rehearsal found it: the same kinds of work, as long as they take in the server that is predicted.

A profile times one kind of work after the other in a process of its own. A server meets them after a pause or amid
others, beside a front that works too, and in another minute of a machine whose speed wanders. What that changes is
measured where it happens: a little traffic at the pace that is to be predicted goes through the server, and its journal
says when each passage held its slot, who else held one then (`loadslice.evaluate.company`) and how long it computed.

Of each engine that contention is taken which leaves the least of its passages' variation unexplained; what is then left
of a passage is its time alone. From those times each kind of work has its level (the profile's times, brought to the
same speed, count as much as the rehearsal's), each stage the shape of its distribution, and the run the spread of its
speed from one block of seconds to the next: what a prediction for the coming minutes cannot know.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from loadslice.evaluate.company import CONTENTIONS, Passages, passages
from loadslice.policy.estimate import typical_ms
from loadslice.sim.crowding import measured_crowding
from loadslice.sim.service import Service, lower_service
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds, Pooled
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.twin import twins

Float64s = npt.NDArray[np.float64]

STRAY_MAX = 0.5
"""Logarithms further off count as this much: a passage that was held up says little about contention."""
COMPANY_SPREAD_MIN = 0.05
"""Passages that were all in equal company cannot tell contention from slowness; the profile's is kept then."""
PASSAGES_MIN = 10
"""A stage with fewer on an engine takes level and shape from all of that engine's."""
BLOCK_S = 2.0
"""As long as the slow periods that were seen, and short enough for some blocks in a rehearsal."""
BLOCK_WORK_MIN = 0.2
"""A block with less work than this share of the fullest says nothing about speed."""
WAY_SHARE_MAX = 0.5
"""A way that is shorter than others takes at most so much off the work of a very short stage."""
SAMPLES = 64
"""Times kept per entry."""


class Passage(NamedTuple):
    """A batch of a model, against what is typical of its kind of work."""

    stage: str
    engine: str
    middle_s: float
    over_level: float
    """Time alone over its kind's mean."""


class Rehearsed(NamedTuple):
    """What rehearsals of a plan say about it."""

    table: LatencyTable
    ratios: dict[tuple[str, str], float]
    """(stage, engine) -> time alone in the server over the profile's."""
    contentions: dict[str, float]
    """Engine -> slow-down in full company."""
    blocks: list[Float64s]
    """Of each rehearsal, the logarithm of each block's time per unit of work; 0: as in all of them together
    (`loadslice.evaluate.differing` makes of them how far runs differ)."""
    passages: list[Passage]
    """Of the last rehearsal, by stage and engine."""
    beside: Sequence[Float64s] = ()
    """As ``blocks``, of the way to workers and back."""
    missed: Sequence[float] = ()
    """Of each rehearsal that was predicted afterwards, the mean square of how far it lay from that prediction
    (`loadslice.evaluate.missed`)."""


def as_rehearsed(
    table: LatencyTable, pipeline: Pipeline, rehearsals: Sequence[pl.DataFrame], rate_per_s: float
) -> Rehearsed:
    """Bring a profile to what rehearsals found.

    Args:
        table: From a profile of this pipeline, with ``overhead_cpu_ms`` of its server.
        pipeline: As it was served.
        rehearsals: ``stages`` of each one's journal, requests that warmed it up left out.
        rate_per_s: Mean rate of their requests.

    Returns:
        The profile with its times, contention and hand-over replaced; unchanged where the rehearsals say nothing, and
        for engines that are not here (twins), whose times are a sheet's.
    """
    service, _ = lower_service(pipeline, table, rate_per_s=rate_per_s)
    runs = [
        [own for own in passages(stages, pipeline, service) if own.engine not in twins(pipeline)]
        for stages in rehearsals
    ]
    levels = _Levels(table, pipeline, service, [own for run in runs for own in run])
    entries = [levels.entry(entry) for entry in table.entries]
    return Rehearsed(
        msgspec.structs.replace(table, entries=entries, handover_ms=levels.handover_ms() or table.handover_ms),
        levels.ratios,
        levels.contention,
        [levels.blocks(run) for run in runs],
        list(levels.passages(runs[-1])) if runs else [],
        [levels.ways(run) for run in runs],
    )


class _Kind(NamedTuple):
    """What a latency table tells apart, by stage."""

    stage: str
    engine: str
    rows: int
    shape: tuple[int, ...] | None


class _Curves:
    """Mean times by rows, joined by straight lines and beyond the last in proportion, as the simulator does.

    Args:
        means_ms: Of the kinds of work that are known.
    """

    def __init__(self, means_ms: Mapping[_Kind, float]) -> None:
        known: dict[tuple[str, str, tuple[int, ...] | None], list[tuple[int, float]]] = {}
        for kind, mean_ms in means_ms.items():
            known.setdefault((kind.stage, kind.engine, kind.shape), []).append((kind.rows, mean_ms))
        self._known = {key: np.array(sorted(points)).T for key, points in known.items()}

    def at(self, own: Passages) -> Float64s:
        """[n]; nan of a shape that is not known."""
        return np.array([self._one(own, rows, shape) for rows, shape in own.kinds])

    def _one(self, own: Passages, rows: int, shape: tuple[int, ...] | None) -> float:
        # Of stages without buckets the profile knows no shapes.
        points = self._known.get((own.stage, own.engine, shape), self._known.get((own.stage, own.engine, None)))
        if points is None:
            return math.nan
        return float(np.interp(rows, *points)) * max(1.0, rows / float(points[0, -1]))


class _Levels:
    """Times alone, by kind of work.

    Args:
        table: The profile.
        pipeline: As it was served.
        service: The profile lowered.
        found: Passages of all rehearsals.
    """

    def __init__(self, table: LatencyTable, pipeline: Pipeline, service: Service, found: Sequence[Passages]) -> None:
        self._pipeline = pipeline
        self._service = service
        self._stage_of = {stage.variant_id: stage.name for stage in pipeline.stages}
        self._profiled = {self._kind(entry): (_mean_ms(entry.latency_ms), entry.n or 1) for entry in table.entries}
        self._profile = _Curves({kind: mean_ms for kind, (mean_ms, _) in self._profiled.items()})
        self._found = found
        self.contention = {name: self._contention(name) for name in dict.fromkeys(own.engine for own in found)}
        """Engine -> slow-down in full company, one of `CONTENTIONS`."""
        pairs = dict.fromkeys((own.stage, own.engine) for own in found)
        self.ratios = {pair: ratio for pair in pairs if (ratio := self._ratio(*pair)) is not None}
        self._levels_ms, self._rehearsed = self._means()
        self._level = _Curves(self._levels_ms)
        overs = {pair: self._over(*pair) for pair in self.ratios}
        self._shapes = {pair: self._shape(over) for pair, over in overs.items()}
        self._spread_runs = {pair: len(over) for pair, over in overs.items()}
        ways_ms = {pair: self._ways_ms(*pair) for pair in pairs}
        self._ways = np.concatenate([np.zeros(0), *ways_ms.values()])
        self._longer_ms = {pair: float(own.mean() - self._ways.mean()) for pair, own in ways_ms.items() if len(own)}
        """How much longer the way to a stage is than ways are on average; the simulator knows one way for all."""

    def entry(self, entry: Entry) -> Entry:
        """The entry as the rehearsals found it."""
        kind = self._kind(entry)
        pair = (kind.stage, kind.engine)
        if pair not in self.ratios:
            return entry
        level_ms, longer_ms = self._levels_ms[kind], self._longer_ms.get(pair, 0.0)
        shorter = max(1 + min(longer_ms, 0.0) / level_ms, 1 - WAY_SHARE_MAX)
        times_ms = level_ms * self._shapes[pair] * shorter + max(longer_ms, 0.0)
        contended = None
        if entry.contended_ms is not None:
            crowding = measured_crowding(self._pipeline, kind.engine, self._service.cores)
            contended = _milliseconds(times_ms * self.contention[kind.engine] * crowding)
        pooled = Pooled(
            rehearsed=self._rehearsed[kind],
            spread_of="stage" if all(one.stage == kind.stage for one in self._telling(*pair)) else "engine",
            spread_runs=self._spread_runs[pair],
            contention=self.contention[kind.engine],
        )
        return msgspec.structs.replace(entry, latency_ms=_milliseconds(times_ms), contended_ms=contended, pooled=pooled)

    def handover_ms(self) -> Milliseconds | None:
        """The way to the worker and back on a machine of its own."""
        return _milliseconds(np.quantile(self._ways, _EVENLY)) if self._ways.size else None

    def blocks(self, run: Sequence[Passages]) -> Float64s:
        """Logarithm of the time per unit of work in each block of a run."""
        if not run:
            return np.zeros(0)
        began_s = min(float(own.middle_s.min()) for own in run)
        took_ms, work_ms = np.zeros((2, 1 + int((max(float(own.middle_s.max()) for own in run) - began_s) / BLOCK_S)))
        for own, alone_ms, levels_ms in self._known(run):
            block = ((own.middle_s - began_s) / BLOCK_S).astype(np.int64)
            known = ~np.isnan(levels_ms)
            np.add.at(took_ms, block[known], alone_ms[known])
            np.add.at(work_ms, block[known], levels_ms[known])
        busy = work_ms > BLOCK_WORK_MIN * work_ms.max()
        speeds: Float64s = np.log(took_ms[busy] / work_ms[busy])
        return speeds

    def ways(self, run: Sequence[Passages]) -> Float64s:
        """Logarithm of the usual way to workers and back in each block of a run, 0: as in all runs together.

        Medians, for a mean of so few varies by those that were held up, which every replica draws for itself.
        """
        usual_ms = float(np.median(self._ways)) if self._ways.size else 0.0
        if usual_ms == 0.0 or not run:
            return np.zeros(0)
        ways_ms = _joined(own.way_ms / own.slower(self.contention[own.engine]) for own in run)
        middle_s = _joined(own.middle_s for own in run)
        block = ((middle_s - middle_s.min()) / BLOCK_S).astype(np.int64)
        usual = [np.median(own) for one in range(block.max() + 1) if len(own := ways_ms[block == one]) >= PASSAGES_MIN]
        return np.log(np.maximum(usual, 1e-3 * usual_ms) / usual_ms)

    def passages(self, run: Sequence[Passages]) -> Iterator[Passage]:
        """Of models whose kind of work was profiled."""
        models = {stage.name for stage in self._pipeline.stages if stage.python is None}
        for own, alone_ms, levels_ms in self._known([own for own in run if own.stage in models]):
            for middle_s, over in zip(own.middle_s.tolist(), (alone_ms / levels_ms).tolist(), strict=True):
                if not math.isnan(over):
                    yield Passage(own.stage, own.engine, middle_s, over)

    def _kind(self, entry: Entry) -> _Kind:
        shape = None if entry.shape is None else tuple(entry.shape)
        return _Kind(self._stage_of.get(entry.variant, entry.variant), entry.engine, entry.batch, shape)

    def _known(self, found: Sequence[Passages]) -> Iterator[tuple[Passages, Float64s, Float64s]]:
        """Passages with their times alone and their kinds' levels, [n] each; nan of a shape that was not profiled."""
        for own in found:
            yield own, self._alone_ms(own), self._level.at(own)

    def _alone_ms(self, own: Passages) -> Float64s:
        alone_ms: Float64s = own.work_ms / own.slower(self.contention[own.engine])
        return alone_ms

    def _ways_ms(self, stage: str, engine: str) -> Float64s:
        own = [one for one in self._found if (one.stage, one.engine) == (stage, engine)]
        return np.concatenate([one.way_ms / one.slower(self.contention[engine]) for one in own])

    def _contention(self, engine: str) -> float:
        """The contention that explains most; the profile's where company hardly varied."""
        loss, spread = np.zeros(len(CONTENTIONS)), 0.0
        for own in self._found:
            profiled_ms = self._profile.at(own)
            known = ~np.isnan(profiled_ms) & (own.work_ms > 0)
            if own.engine != engine or known.sum() < 2:
                continue
            weight = profiled_ms[known]
            longer = np.log(own.work_ms[known] / weight)
            for at, contention in enumerate(CONTENTIONS):
                left = longer - np.log(own.slower(contention)[known])
                left -= np.average(left, weights=weight)
                loss[at] += (weight * np.clip(left, -STRAY_MAX, STRAY_MAX) ** 2).sum()
            most, least = own.slower(CONTENTIONS[-1])[known], own.slower(CONTENTIONS[0])[known]
            spread = max(spread, float(np.std(np.log(most / least))))
        if spread >= COMPANY_SPREAD_MIN:
            return float(CONTENTIONS[np.argmin(loss)])
        number = list(self._pipeline.engines).index(engine)
        own_stages = [n for n, stage in enumerate(self._pipeline.stages) if engine in stage.engine_names]
        profiled = float(np.median(self._service.contention[own_stages, number]))
        return float(CONTENTIONS[np.argmin(np.abs(CONTENTIONS - profiled))])

    def _ratio(self, stage: str, engine: str) -> float | None:
        """Time alone in the server over the profile's."""
        wanted = self._telling(stage, engine)
        alone_ms = np.concatenate([self._alone_ms(own) for own in wanted])
        profiled_ms = np.concatenate([self._profile.at(own) for own in wanted])
        known = ~np.isnan(profiled_ms)
        return float(alone_ms[known].sum() / profiled_ms[known].sum()) if known.sum() >= PASSAGES_MIN else None

    def _telling(self, stage: str, engine: str) -> list[Passages]:
        """Passages of a stage or, where too few are of shapes that were profiled, of all stages of its engine."""
        own = [one for one in self._found if (one.stage, one.engine) == (stage, engine)]
        known = sum(int(np.count_nonzero(~np.isnan(self._profile.at(one)))) for one in own)
        return own if known >= PASSAGES_MIN else [one for one in self._found if one.engine == engine]

    def _means(self) -> tuple[dict[_Kind, float], dict[_Kind, int]]:
        """Mean time alone of each kind: the profile's times at the rehearsals' speed, and theirs, count alike.

        Beside it, of how many passages of the rehearsals each mean is.
        """
        total_ms = {kind: mean_ms * n * self.ratios.get((kind.stage, kind.engine), 1.0)
                    for kind, (mean_ms, n) in self._profiled.items()}  # fmt: skip
        count = {kind: n for kind, (_, n) in self._profiled.items()}
        for own in self._found:
            for (rows, shape), alone_ms in zip(own.kinds, self._alone_ms(own).tolist(), strict=True):
                exact = _Kind(own.stage, own.engine, rows, shape)
                kind = exact if exact in total_ms else exact._replace(shape=None)
                if kind in total_ms:
                    total_ms[kind] += alone_ms
                    count[kind] += 1
        profiled = {kind: n for kind, (_, n) in self._profiled.items()}
        return {kind: total_ms[kind] / count[kind] for kind in total_ms}, {
            kind: count[kind] - profiled[kind] for kind in total_ms
        }

    def _over(self, stage: str, engine: str) -> Float64s:
        """Time over level of each passage that tells of a stage that has a ratio, [n]."""
        own = self._telling(stage, engine)
        over: Float64s = np.concatenate([alone_ms / levels_ms for _, alone_ms, levels_ms in self._known(own)])
        return over[~np.isnan(over)]

    @staticmethod
    def _shape(over: Float64s) -> Float64s:
        """[SAMPLES] quantiles of time over level, mean 1."""
        shape = np.quantile(over, _EVENLY)
        centred: Float64s = shape / shape.mean()
        return centred


def _joined(parts: Iterator[Float64s]) -> Float64s:
    return np.concatenate([np.zeros(0), *parts])


_EVENLY = (np.arange(SAMPLES) + 0.5) / SAMPLES


def _mean_ms(times: Milliseconds) -> float:
    return typical_ms(times) if times.samples is None else float(np.mean(times.samples))


def _milliseconds(times_ms: Float64s) -> Milliseconds:
    p50, p90, p99 = (round(float(value), 4) for value in np.quantile(times_ms, (0.5, 0.9, 0.99)))
    return Milliseconds(p50=p50, p90=p90, p99=p99, samples=[round(float(value), 4) for value in times_ms])
