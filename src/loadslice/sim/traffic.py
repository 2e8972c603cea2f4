"""Turns a trace into the arrays the loop reads."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loadslice.policy import columns as c
from loadslice.policy.tables import Int64s, rule_sources, tenant_names
from loadslice.policy.versions import NO_KEY
from loadslice.sim import record as r
from loadslice.sim.arrivals import ARRIVAL_S_MAX, Arrivals, since_begin
from loadslice.sim.inputs import draw_inputs, have_sizes
from loadslice.sim.record import Traffic
from loadslice.sim.room import Room
from loadslice.spec.classes import are_known
from loadslice.spec.errors import InputError
from loadslice.spec.latency import InputWork, LatencyTable
from loadslice.spec.pipeline import CLASSES, DEADLINE_MS_MAX, Pipeline, Stage

_NS_PER_S, _NS_PER_MS = 1_000_000_000, 1_000_000
_DEFAULT_CLASS = CLASSES.index("critical")

_CLASS_OF_LENGTH = np.zeros(max(map(len, CLASSES)) + 1, np.uint8)
"""Each class by the length of its name."""
_CLASS_OF_LENGTH[[len(name) for name in CLASSES]] = range(len(CLASSES))
_SIZES_COUNTED_MAX = 1 << 16
"""Sizes below this are told apart by counting, larger ones by sorting, which takes ten times as long."""


def bucket_index(stage: Stage, shape: list[int] | None) -> int:
    """The first bucket of a stage that holds a shape; ``len(stage.buckets)`` when none does."""
    if shape is not None:
        for index, bucket in enumerate(stage.buckets):
            if len(bucket) == len(shape) and all(side <= most for side, most in zip(shape, bucket, strict=True)):
                return index
    return len(stage.buckets) if stage.buckets and shape is not None else 0


def lower_traffic(
    trace: pl.DataFrame, pipeline: Pipeline, latency: LatencyTable, *, seed: int
) -> tuple[Traffic, list[str]]:
    """Lower a whole trace for one pipeline.

    Args:
        trace: Columns as `spec.trace.SCHEMA`; ``arrival_s`` not falling.
        pipeline: Stages in execution order.
        latency: Its ``inputs`` say what each named input asks of each stage.
        seed: Start of the draw that gives inputs to rows that name none.

    Returns:
        The arrays, and a warning for each thing that had to be assumed.

    Raises:
        InputError: No rows, a time that is none or falls, or a class or an input that does not exist.
    """
    intake = Intake(pipeline, latency, seed=seed)
    return intake.lower(trace), intake.warnings


class Intake:
    """Lowers a trace part by part, to the same rows as if it came whole.

    What parts have in common is kept between them: when the run began, the kinds of work that were met, the draws.

    Attributes:
        warnings: One for each thing that had to be assumed.
    """

    def __init__(self, pipeline: Pipeline, latency: LatencyTable, *, seed: int) -> None:
        """Lower what an input of the profile asks of each stage; arguments as `lower_traffic`."""
        self.warnings: list[str] = []
        self._pipeline = pipeline
        self._inputs = tuple(known.input for known in latency.inputs)
        self._draws = np.random.default_rng(seed)
        self._sizes: dict[int, int] = {}
        self._input_sizes = np.array([known.size for known in latency.inputs], np.int64)
        self._items, self._bucket = _work_of_inputs(pipeline, latency.inputs)
        self._are_rows = bool((self._items == 1).all() and (self._bucket == 0).all())
        """Whether inputs, if there are any, are one row each and alike: a request of many items is many rows then."""
        self._rows_measured = _rows_measured(latency)
        self._rows = 0
        self._first_ns = 0
        self._latest_ns = 0

    def lower(self, part: pl.DataFrame, room: Room | None = None) -> Traffic:
        """Lower the next part.

        Args:
            part: Rows as `lower_traffic`.
            room: To lower it into, and the next part over it; ``None``: into memory of its own.

        Raises:
            InputError: As `lower_traffic`.
        """
        if part.height == 0:
            raise InputError("the trace is empty. Import one with `loadslice trace import`.")
        room = Room(0) if room is None else room
        arrival_ns = room.arrival_ns(part.height)
        self._arrive(part, arrival_ns[room.front :])
        priority = _priority(part)
        columns = {
            r.Q_PRIORITY: priority,
            r.Q_DEADLINE_NS: _deadline_ns(part, self._pipeline, priority),
            r.Q_TOKENS: _integers(part, "tokens_in", -1),
            r.Q_SOURCE: _codes(part, "source", rule_sources(self._pipeline), unknown=-1),
            r.Q_PRECISION: 0,
            r.Q_WORK: self._work(part),
            r.Q_TENANT: _codes(part, "tenant", ("", *tenant_names(self._pipeline)), unknown=0),
            r.Q_KEY: NO_KEY,  # a trace knows of none
        }
        differing = {column: values for column, values in columns.items() if not isinstance(values, int)}
        alike, place = np.zeros(r.REQUEST_COLUMNS, np.int64), np.full(r.REQUEST_COLUMNS, -1, np.int64)
        for column in columns.keys() - differing.keys():
            alike[column] = columns[column]
        values = room.values(len(differing), part.height)
        for row, column in enumerate(differing):
            place[column] = row
            values[row, room.front :] = differing[column]
        first_tag = self._rows
        self._rows += part.height
        return Traffic(
            carried=np.zeros(0, np.int64),
            first_tag=first_tag,
            more=0,
            arrival_ns=arrival_ns,
            alike=alike,
            place=place,
            differing=np.array(list(differing), np.int64),
            values=values,
            first=0,
            items=self._items,
            bucket=self._bucket,
        )

    def _arrive(self, part: pl.DataFrame, arrival_ns: Int64s) -> None:
        """Fill in times since the run began; not falling, across parts neither."""
        stated_s = part["arrival_s"].cast(pl.Float64).to_numpy()
        if self._rows == 0 and abs(stated_s[0]) < ARRIVAL_S_MAX:
            self._first_ns = self._latest_ns = round(stated_s[0] * _NS_PER_S)
        arrivals = Arrivals(np.ascontiguousarray(stated_s), arrival_ns)
        row = since_begin(self._first_ns, self._latest_ns, arrivals)
        if row < part.height:
            place = f"trace row {self._rows + row + 1}: arrival_s"
            if abs(stated_s[row]) < ARRIVAL_S_MAX:
                raise InputError(f"{place} falls. Sort the trace with `loadslice trace import`.")
            raise InputError(f"{place} {stated_s[row]:g} is not a time. Check it with `loadslice trace info`.")
        self._latest_ns = self._first_ns + int(arrival_ns[-1])

    def _work(self, part: pl.DataFrame) -> Int64s | int:
        """Which row of work each request is."""
        if self._inputs and "input" not in part.columns:
            return self._drawn(part)
        if self._inputs:
            work = _codes(part, "input", self._inputs, unknown=-1)
            if np.min(work) < 0:
                unknown = part["input"][int(np.argmin(work))]
                raise InputError(
                    f"trace column 'input': '{unknown}' is not an input of the profile ({self._inputs[0]}, ...)."
                )
            return work
        if "items" not in part.columns:
            self._warn("neither the trace nor the profile says how large requests are: taken as one item each.")
        return self._work_of_items(part)

    def _work_of_items(self, part: pl.DataFrame) -> Int64s | int:
        sizes = _integers(part, "items", 1)
        one = isinstance(sizes, int)
        work = self._work_of_sizes(np.array([sizes]) if one else np.maximum(1, sizes))
        return int(work[0]) if one else work

    def _drawn(self, part: pl.DataFrame) -> Int64s:
        """An input of the profile for each row: one of its size, where the trace has sizes and the profile knows any.

        A profile of pages of 1 to 30 lines has sizes from 1 to 30; one whose inputs are one row each has none, and
        there a request of many items is many rows.
        """
        if "items" in part.columns and self._are_rows:
            self._warn(
                "the trace names no inputs, and the profile's are one row each: each request was taken as `items` "
                f"rows. Times were measured up to {self._rows_measured} rows and grow in proportion beyond."
            )
            if not self._sizes:
                self._items, self._bucket = self._items[:0], self._bucket[:0]
            return np.broadcast_to(self._work_of_items(part), part.height)
        if not have_sizes(part, self._input_sizes):
            self._warn("the trace names no inputs: each request was given one of the profile's, drawn evenly.")
            if "items" in part.columns:
                size = self._input_sizes[0]
                self._warn(
                    f"the trace's column 'items' was not used: every input of the profile has {size} "
                    f"item{'' if size == 1 else 's'}. Profile samples of several sizes, or name each request's "
                    "in the column 'input'."
                )
        else:
            self._warn(
                "the trace names no inputs: each request was given one of the profile's of its size, drawn evenly."
            )
            known = np.unique(self._input_sizes).tolist()
            if not part["items"].drop_nulls().is_in(known).all():
                shown = ", ".join(map(str, known[:8])) + (", ..." if len(known) > 8 else "")
                self._warn(f"the profile's inputs have {shown} items: other sizes were taken as the nearest of these.")
        return draw_inputs(part, self._input_sizes, self._draws)

    def _work_of_sizes(self, sizes: Int64s) -> Int64s:
        """One row of work per size, in the order in which sizes were first met; the same at every stage."""
        most = int(sizes.max())
        if most < _SIZES_COUNTED_MAX:
            distinct = np.flatnonzero(np.bincount(sizes, minlength=most + 1))
            position = np.zeros(most + 1, np.int64)
            position[distinct] = np.arange(len(distinct))
            inverse = position[sizes]
        else:
            distinct, inverse = np.unique(sizes, return_inverse=True)
        rows = np.array([self._sizes.setdefault(size, len(self._sizes)) for size in distinct.tolist()], np.int64)
        if len(self._sizes) > len(self._items):
            known = np.array(list(self._sizes), np.int64)
            self._items = np.repeat(known[:, None], len(self._pipeline.stages), axis=1)
            self._bucket = np.zeros_like(self._items)
        work: Int64s = rows[inverse]
        return work

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


def _rows_measured(latency: LatencyTable) -> int:
    """Most rows of a batch that were timed for every variant on each of its engines."""
    most: dict[tuple[str, str], int] = {}
    for entry in latency.entries:
        place = (entry.variant, entry.engine)
        most[place] = max(most.get(place, 0), entry.batch)
    return min(most.values(), default=0)


def _integers(trace: pl.DataFrame, column: str, unknown: int) -> Int64s | int:
    """A column's values, or what stands for all of them."""
    if column not in trace.columns:
        return unknown
    values: Int64s = trace[column].cast(pl.Int64).fill_null(unknown).to_numpy()
    return values


def _codes(trace: pl.DataFrame, column: str, names: tuple[str, ...], *, unknown: int) -> Int64s | int:
    """Index of each row's text among ``names``; ``unknown`` for any other, and where there is none."""
    if column not in trace.columns or not names:
        return unknown
    places = trace[column].cast(pl.String).cast(pl.Enum(names), strict=False).to_physical()
    codes: Int64s = places.cast(pl.Int64).fill_null(unknown).to_numpy()
    return codes


def _priority(trace: pl.DataFrame) -> NDArray[np.uint8] | int:
    if "class" not in trace.columns:
        return _DEFAULT_CLASS
    stated = trace["class"].cast(pl.String)
    if not are_known(stated):
        wrong = stated.filter(~stated.is_in(CLASSES))[0]
        raise InputError(f"trace column 'class': '{wrong}' is not one of {', '.join(CLASSES)}.")
    lengths = stated.str.len_bytes().fill_null(len(CLASSES[_DEFAULT_CLASS]))
    # No length is beyond the table; told to cut it off, NumPy need not look whether it is, and takes half as long.
    priority: NDArray[np.uint8] = _CLASS_OF_LENGTH.take(lengths.to_numpy(), mode="clip")
    return priority


def _deadline_ns(trace: pl.DataFrame, pipeline: Pipeline, priority: NDArray[np.uint8] | int) -> Int64s | int:
    """A row's own deadline, else its class's, else the pipeline's, else none."""
    by_class = []
    for name in CLASSES:
        limits = pipeline.classes.get(name)
        stated = limits.deadline_ms if limits is not None and limits.deadline_ms is not None else pipeline.deadline_ms
        by_class.append(c.FOREVER if stated is None else round(stated * _NS_PER_MS))
    if "deadline_ms" not in trace.columns and (len(set(by_class)) == 1 or isinstance(priority, int)):
        return by_class[priority if isinstance(priority, int) else 0]
    deadline_ns: Int64s = np.array(by_class, np.int64)[np.broadcast_to(priority, trace.height)]
    if "deadline_ms" in trace.columns:
        own = trace["deadline_ms"].to_numpy()
        known = np.isfinite(own.astype(np.float64))
        outside = known & ~((own >= 0) & (own <= DEADLINE_MS_MAX))
        if outside.any():
            row = int(np.flatnonzero(outside)[0])
            raise InputError(f"trace row {row}: deadline_ms {own[row]:g} is not between 0 and {DEADLINE_MS_MAX:g}.")
        deadline_ns[known] = np.round(own[known] * _NS_PER_MS).astype(np.int64)
    return deadline_ns


def _work_of_inputs(pipeline: Pipeline, inputs: list[InputWork]) -> tuple[Int64s, Int64s]:
    """[inputs, S] rows and buckets that each input of a profile asks of each stage."""
    items = np.ones((len(inputs), len(pipeline.stages)), np.int64)
    bucket = np.zeros_like(items)
    for row, known in enumerate(inputs):
        asked = {work.stage: work for work in known.stages}
        for s, stage in enumerate(pipeline.stages):
            if stage.name not in asked:
                raise InputError(
                    f"profile input '{known.input}' says nothing of stage '{stage.name}'. Run `loadslice profile`."
                )
            items[row, s] = max(1, asked[stage.name].items)
            bucket[row, s] = bucket_index(stage, asked[stage.name].shape)
    return items, bucket
