"""One run under way: what lasts from its first request to its last."""

from typing import NamedTuple

import numpy as np

from loadslice.policy import columns as c
from loadslice.policy import events
from loadslice.policy.tables import Int64s, Tables, fresh
from loadslice.sim import energy, loop
from loadslice.sim import record as r
from loadslice.sim.clients import Behaviour, empty_diary
from loadslice.sim.clockwork import idle_clockwork
from loadslice.sim.record import Record, Traffic
from loadslice.sim.room import RecordRoom
from loadslice.sim.scene import Scene
from loadslice.sim.service import GRID, Service, quantile_function
from loadslice.spec import simulation as spec
from loadslice.spec.latency import Milliseconds
from loadslice.spec.pipeline import Pipeline


class Prepared(NamedTuple):
    """Everything lowered once; several seeds or speeds may be run from it."""

    pipeline: Pipeline
    tables: Tables
    service: Service
    energy: energy.Energy
    traffic: Traffic
    overhead: Milliseconds | None
    late: Milliseconds | None
    """How much later than the quickest a request reaches the core, in runs that differ"""
    faults: Int64s
    behaviour: Behaviour
    warnings: list[str]
    basis: spec.Basis


class Course:
    """One run under way.

    Attributes:
        prepared: What is run.
        seed: Start of every draw.
        state: Of the policy core.
    """

    def __init__(self, prepared: Prepared, seed: int, log_rows: int) -> None:
        """Begin.

        Args:
            prepared: What is run.
            seed: Start of every draw.
            log_rows: Room for so many events and effects; 0: none is kept.
        """
        self.prepared = prepared
        self.seed = seed
        self.state = fresh(prepared.tables, prepared.pipeline.max_requests)
        self._clockwork = idle_clockwork(self.state)
        self._draws = np.random.default_rng(seed + 1)
        engines = len(prepared.tables.engines)
        self._lasting = Record(
            attempts=np.zeros((0, r.ATTEMPT_COLUMNS), np.int64),
            ended=np.zeros(0, np.int64),
            timeline=np.zeros((0, len(prepared.tables.stages), r.TIMELINE_COLUMNS), np.int64),
            queue_seen=np.zeros((engines, r.QUEUE_SEEN), np.int64),
            batches_j=np.zeros(engines),
            events=np.zeros((log_rows, events.EVENT_COLUMNS), np.int64),
            effects=np.zeros((log_rows + len(self.state.effects) if log_rows else 0, c.EFFECT_COLUMNS), np.int64),
            counts=np.zeros(r.N_COUNTS, np.int64),
        )

    @property
    def places(self) -> int:
        """Most requests that can be inside at once."""
        return len(self.state.requests)

    @property
    def inside(self) -> int:
        """Requests that have arrived and not ended."""
        return int(self.state.counters[c.C_IN_SYSTEM])

    def record(self, attempts: int, *, timed: bool, room: RecordRoom | None = None) -> Record:
        """Where to write what becomes of attempts, with or without times at each stage; no room: memory of its own."""
        # Of clients that may come back, most do not: those attempts keep what is written here.
        some_stay_away = self.prepared.behaviour.attempts > 1
        room = RecordRoom() if room is None or some_stay_away else room
        record = self._lasting._replace(
            attempts=room.attempts(attempts, overhead=self.prepared.overhead is not None),
            ended=room.ended(attempts),
            timeline=room.timeline(attempts if timed else 0, len(self.prepared.tables.stages)),
        )
        if some_stay_away:
            record.attempts[:, r.A_START_NS] = -1
            record.timeline[...] = -1
        self.begin(record, 0)
        return record

    def begin(self, record: Record, carried: int) -> None:
        """Write what is known of attempts beforehand, but for the first ``carried``, which have begun before."""
        if self.prepared.overhead is not None:
            record.attempts[carried:, r.A_OVERHEAD_NS] = np.interp(
                self._draws.random(len(record.attempts) - carried),
                np.linspace(0.0, 1.0, GRID),
                quantile_function(self.prepared.overhead),
            )
        record.counts[r.N_ENDED] = 0

    def advance(self, traffic: Traffic, record: Record) -> int:
        """Simulate to the end of a part; the answer of `loop.run`."""
        prepared, behaviour = self.prepared, self.prepared.behaviour
        scene = Scene(
            tables=prepared.tables,
            state=self.state,
            service=prepared.service,
            energy=prepared.energy,
            traffic=traffic,
            faults=prepared.faults,
            behaviour=behaviour,
            diary=empty_diary(len(traffic.arrival_ns), behaviour),
            clockwork=self._clockwork,
            record=record,
        )
        return loop.run(self.seed, scene)
