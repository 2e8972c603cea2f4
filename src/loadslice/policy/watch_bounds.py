"""What `Watch` cannot know exactly it holds between bounds: overflow, the lead that a floor gives, and despair.

Which engine was preferred, what a wait was expected to be and what a breaker admitted do not show in what was said.
Queue lengths do, and so does how long batches took. From these: how much overflow there was at least and at most,
what a class with a floor is owed at most, and what a request could have been expected to take at most.
"""

from dataclasses import dataclass, field

import numpy as np

from loadslice.policy import columns as c
from loadslice.policy.layout import Int64s, Tables
from loadslice.spec.pipeline import CLASSES, Batch, Pipeline

NS_PER_MS = 1_000_000


@dataclass(slots=True)
class Diffused:
    """Overflow of one stage that its backup could take, and what of it went there, (13)."""

    share_ppm: int
    at_least: int = 0
    at_most: int = 0
    sent: int = 0
    unseen: int = 0
    """Refused before it was said where they were to go."""

    def check(self) -> None:
        """Of n pieces of overflow, the whole part of share * n is sent; n lies between the two bounds."""
        assert self.sent <= self.at_most * self.share_ppm // c.PPM, "(13) no more than its share of overflow is sent"
        least = self.at_least * self.share_ppm // c.PPM
        assert self.sent + self.unseen >= least, "(13) no less than its share of overflow is sent"


@dataclass(slots=True)
class Leads:
    """Credit of each class towards its floor on one engine, in ppm of a dispatch, as it is at most, (6)."""

    floors_ppm: list[int]
    credit_ppm: list[int] = field(default_factory=lambda: [0] * len(CLASSES))

    def start(self, served: int, waiting: set[int], *, inverted: bool) -> None:
        """A batch starts.

        Args:
            served: Class of its first.
            waiting: Classes that somebody waits in, or may have waited in until a moment ago.
            inverted: Whether somebody of a higher class was ready.
        """
        for priority, floor_ppm in enumerate(self.floors_ppm):
            self.credit_ppm[priority] = self.credit_ppm[priority] + floor_ppm if priority in waiting else 0
        assert not inverted or self.credit_ppm[served] >= c.PPM, "(6) a class overtakes a higher one only for its floor"
        self.credit_ppm[served] = max(0, self.credit_ppm[served] - c.PPM)


class Despair:
    """What a request can be expected to take at most, (24): estimates come from the table and from batches alone."""

    def __init__(self, pipeline: Pipeline, tables: Tables) -> None:
        """Know the table; nothing has been seen.

        Args:
            pipeline: As it is run.
            tables: Of this pipeline; read for what the latency table says.
        """
        self._pipeline = pipeline
        self._names = list(pipeline.engines)
        self._base_ns: Int64s = tables.base_ns
        self._row_ns: Int64s = tables.row_ns
        self._slowest_ppm = c.PPM
        self._longest_ns = 0
        self._rows = max(
            [1, *(batch.size for stage in pipeline.stages for batch in stage.batch.values())],
        )
        self._load_ns = max(round((stage.load_ms or 0.0) * NS_PER_MS) for stage in pipeline.stages)

    def asked(self, rows: int) -> None:
        """A request asks a stage for so many rows."""
        self._rows = max(self._rows, rows)

    def took(self, stage: int, engine: int, bucket: int, rows: int, took_ns: int) -> None:
        """A batch has ended well."""
        batch = self._pipeline.stages[stage].batch.get(self._names[engine], Batch())
        padded = next((pad for pad in batch.pad_to if pad >= rows), rows)
        expected_ns = int(self._base_ns[stage, engine, bucket] + padded * self._row_ns[stage, engine, bucket])
        self._longest_ns = max(self._longest_ns, took_ns)
        if expected_ns > 0:
            self._slowest_ppm = max(self._slowest_ppm, took_ns * c.PPM // expected_ns)

    def at_most_ns(self, stage: int, ahead: int) -> int:
        """What is expected of a request from a stage on, with ``ahead`` requests and batches before it at each."""
        table_ns = int(np.max(self._base_ns + self._rows * self._row_ns))
        each_ns = max(self._longest_ns, table_ns * self._slowest_ppm // c.PPM + 1) + self._load_ns
        return (len(self._pipeline.stages) - stage) * (1 + ahead) * each_ns
