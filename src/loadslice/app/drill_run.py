"""Drills against a pipeline: which, how, and what came of each."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import psutil

from loadslice.app import drill_versions
from loadslice.app.drill_drift import drift
from loadslice.app.drill_field import Field, serving_desk
from loadslice.app.output import say
from loadslice.backends.base import EngineError
from loadslice.evaluate.drills import live, simulated
from loadslice.evaluate.drills.stage import NotApplicableError
from loadslice.spec import latency as latency_file
from loadslice.spec import pipeline as pipelines
from loadslice.spec.drill import BY_NAME, DRILLS, Drill, DrillBasis, DrillReport, DrillResult
from loadslice.spec.errors import InputError
from loadslice.spec.twin import twins


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


def open_field(path: Path, table: Path | None, seed: int, dilate: float, inputs: Path | None = None) -> Field:
    """Read a pipeline and its table.

    Args:
        path: The pipeline.
        table: Its times; ``None``: to be measured.
        seed: Of every draw.
        dilate: Of its emulated devices; a pipeline without any runs at the world's pace.
        inputs: Folder or Python file of examples; ``None``: the pipeline's own.

    Raises:
        InputError: Either is wrong.
    """
    pipeline = pipelines.load(path)
    known = None if table is None else latency_file.load(table)
    if known is not None and known.disturbed is not None:
        say(f"warning: {table}: {known.disturbed}")
    return Field(path, pipeline, known, seed, dilate if twins(pipeline) else 1.0, inputs)


def hold(fields: Sequence[Field], drills: Sequence[Drill]) -> DrillReport:
    """Hold drills one after the other, on one pipeline after the other."""
    results: list[DrillResult] = []
    started = time.monotonic()
    for field in fields:
        for drill in drills:
            say(f"{len(results) + 1} of {len(fields) * len(drills)}: {drill.name} on {field.name} ({drill.how})")
            began = time.monotonic()
            one = _held(drill, partial(_run, field, drill))
            look = drill.look if one.held is False else None
            took_s = time.monotonic() - began
            results.append(msgspec.structs.replace(one, pipeline=field.name, wall_s=took_s, look=look))
    return DrillReport(
        pipelines=[field.name for field in fields],
        drills=results,
        held=sum(one.held is True for one in results),
        broken=sum(one.held is False for one in results),
        not_applicable=sum(one.held is None for one in results),
        wall_s=time.monotonic() - started,
    )


def _run(field: Field, drill: Drill) -> DrillResult:
    if drill.name in simulated.SIMULATED:
        return simulated.SIMULATED[drill.name](field.ground())
    if drill.name in drill_versions.VERSIONED:
        return drill_versions.VERSIONED[drill.name](field)
    if drill.name == "drift":
        return drift(field)
    if drill.name in live.LIVE:
        with serving_desk(field) as desk:
            return live.LIVE[drill.name](desk)
    raise NotApplicableError("nothing of this kind can be broken on this server")


def _held(drill: Drill, act: Callable[[], DrillResult]) -> DrillResult:
    """What cannot be run is no pass, and says why; a server that is gone, or does not answer, has kept no promise."""
    try:
        return act()
    except NotApplicableError as error:
        held, figure = None, f"not applicable: {error}"
    except EngineError as error:
        held, figure = None, f"could not be held here: {error}"
    except (OSError, psutil.Error) as error:
        held, figure = False, f"broke off: {type(error).__name__}, {error}"
    basis: DrillBasis = "simulated" if drill.how == "simulated" else "measured"
    return DrillResult(name=drill.name, promise=drill.promise, figure=figure, held=held, basis=basis)
