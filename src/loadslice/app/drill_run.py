"""Drills against a pipeline: which, how, and what came of each."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from loadslice.app import twins
from loadslice.app.output import say
from loadslice.evaluate import payloads
from loadslice.evaluate.drills import simulated
from loadslice.evaluate.drills.stage import Ground, NotApplicableError, ground
from loadslice.profiles.measure import measure as profile
from loadslice.spec import latency as latency_file
from loadslice.spec import pipeline as pipelines
from loadslice.spec.drill import BY_NAME, DRILLS, Drill, DrillReport, DrillResult
from loadslice.spec.errors import InputError
from loadslice.spec.latency import LatencyTable
from loadslice.spec.pipeline import Pipeline

PROFILE_S = 4.0


@dataclass(slots=True)
class Field:
    """Where drills are held."""

    path: Path
    pipeline: Pipeline
    table: LatencyTable | None
    """``None``: to be measured when the first drill needs it."""
    seed: int
    dilate: float = 1.0
    _ground: Ground | None = None

    def ground(self) -> Ground:
        """The pipeline in virtual time, its capacity known."""
        if self._ground is None:
            if self.table is None:
                say(f"profiling {self.path} for {PROFILE_S:g} s; give --profile to use a table")
                samples = list(self.inputs().samples.values())
                quiet = twins.resolved(self.pipeline, self.path.parent, keeps_time=False)
                self.table = profile(quiet, self.path.parent, samples, seconds=PROFILE_S, source=self.path)
            self._ground = ground(self.pipeline, self.table, self.seed)
        return self._ground

    def inputs(self) -> payloads.Inputs:
        """Of the pipeline.

        Raises:
            InputError: It names none.
        """
        if self.pipeline.inputs is None:
            raise InputError(f"{self.path}: names no example inputs. Add `inputs: module:function`, or give --profile.")
        return payloads.from_function(self.pipeline.inputs, self.path.parent)


def chosen(names: Sequence[str]) -> list[Drill]:
    """Drills by name or number; none named: all.

    Raises:
        InputError: A name that is none.
    """
    if not names:
        return list(DRILLS)
    by_number = {str(drill.number): drill for drill in DRILLS}
    found = []
    for name in names:
        drill = BY_NAME.get(name) or by_number.get(name)
        if drill is None:
            raise InputError(f"drill '{name}': not one of {', '.join(BY_NAME)}.")
        found.append(drill)
    return found


def open_field(path: Path, table: Path | None, seed: int, dilate: float) -> Field:
    """Read a pipeline and its table.

    Raises:
        InputError: Either is wrong.
    """
    pipeline = pipelines.load(path)
    return Field(path, pipeline, None if table is None else latency_file.load(table), seed, dilate)


def hold(field: Field, drills: Sequence[Drill]) -> DrillReport:
    """Hold drills one after the other."""
    results = []
    for drill in drills:
        say(f"{drill.number:>2} {drill.name} ({drill.how})")
        began = time.monotonic()
        one = _held(drill, partial(_run, field, drill))
        results.append(msgspec.structs.replace(one, wall_s=time.monotonic() - began))
    return DrillReport(
        pipeline=field.pipeline.pipeline,
        drills=results,
        held=sum(one.held is True for one in results),
        broken=sum(one.held is False for one in results),
        not_applicable=sum(one.held is None for one in results),
    )


def _run(field: Field, drill: Drill) -> DrillResult:
    if drill.name in simulated.SIMULATED:
        return simulated.SIMULATED[drill.name](field.ground())
    raise NotApplicableError("this drill is not there yet")


def _held(drill: Drill, act: Callable[[], DrillResult]) -> DrillResult:
    """What cannot be run is no pass, and says why."""
    try:
        return act()
    except NotApplicableError as error:
        return DrillResult(
            name=drill.name, promise=drill.promise, figure=f"not applicable: {error}", held=None,
            basis="simulated" if drill.how == "simulated" else "measured",
        )  # fmt: skip
