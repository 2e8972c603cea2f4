"""Drills against a pipeline: which, how, and what came of each."""

import contextlib
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from loadslice.app import twins
from loadslice.app.admin_client import ADMIN_TOKEN
from loadslice.app.output import say
from loadslice.app.study_server import ServerError, serving
from loadslice.evaluate import payloads
from loadslice.evaluate import replay as replaying
from loadslice.evaluate.drills import live, simulated
from loadslice.evaluate.drills.desk import Desk
from loadslice.evaluate.drills.stage import Ground, NotApplicableError, ground
from loadslice.evaluate.layers.subject import Subject, letters_of
from loadslice.profiles.measure import measure as profile
from loadslice.spec import latency as latency_file
from loadslice.spec import pipeline as pipelines
from loadslice.spec.drill import BY_NAME, DRILLS, Drill, DrillReport, DrillResult
from loadslice.spec.errors import InputError
from loadslice.spec.latency import LatencyTable
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.twin import twins as emulated

PROFILE_S = 4.0
TIMEOUT_S = 20.0
"""An answer that takes longer never comes."""


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
    if drill.name in live.LIVE:
        with serving_desk(field) as desk:
            return live.LIVE[drill.name](desk)
    raise NotApplicableError("nothing of this kind can be broken on this server")


@contextlib.contextmanager
def serving_desk(field: Field) -> Iterator[Desk]:
    """A server of its own for each live drill, so that none finds what another has broken.

    Raises:
        NotApplicableError: The pipeline cannot be served here.
    """
    pipeline = twins.resolved(field.pipeline, field.path.parent, field.dilate)
    inputs = field.inputs()
    secret = secrets.token_urlsafe(24)
    with tempfile.TemporaryDirectory(prefix="drill-") as name:
        try:
            with serving(
                field.path, Path(name), None, journal=False, dilate=field.dilate, more=("--drills",),
                secrets={ADMIN_TOKEN: secret},
            ) as served:  # fmt: skip
                where = replaying.target(served.url, allow_remote=False)
                subject = Subject(
                    field.pipeline.pipeline,
                    replaying.endpoint(where, pipeline.pipeline, tensors=inputs.are_tensors).url,
                    letters_of(inputs), {}, None, inputs.are_tensors, TIMEOUT_S, field.dilate, pipeline,
                    memory_bytes=served.memory_bytes, alive=served.is_alive,
                )  # fmt: skip
                yield Desk(subject, pipeline, secret, bool(emulated(pipeline)))
        except ServerError as error:
            raise NotApplicableError(f"it cannot be served here: {error}") from error


def _held(drill: Drill, act: Callable[[], DrillResult]) -> DrillResult:
    """What cannot be run is no pass, and says why."""
    try:
        return act()
    except NotApplicableError as error:
        return DrillResult(
            name=drill.name, promise=drill.promise, figure=f"not applicable: {error}", held=None,
            basis="simulated" if drill.how == "simulated" else "measured",
        )  # fmt: skip
