"""What the fidelity benchmark predicts and serves: the OCR example's plans and the twins, each profiled apart."""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import polars as pl

from loadslice.app import study_folder
from loadslice.app.output import say
from loadslice.app.study_folder import Plan
from loadslice.app.study_rehearsal import Rehearsal
from loadslice.evaluate import fidelity, pace, payloads
from loadslice.evaluate.rehearsed import Rehearsed
from loadslice.spec import latency, pipeline
from loadslice.spec.errors import InputError
from loadslice.spec.fidelity import Noise
from loadslice.spec.journal import Journal
from loadslice.spec.latency import LatencyTable
from loadslice.workload import importing

ROOT = Path(__file__).parent.parent
EXAMPLE, TWINS = ROOT / "examples" / "ocr", Path(__file__).parent / "twins"
TRACE = EXAMPLE / "traffic.parquet"


class Lengths(NamedTuple):
    """How long things take."""

    profile_s: float
    """Of one session of one plan."""
    sessions: int
    stretch_s: float
    repeats: int


@dataclass(slots=True)
class Subject:
    """One plan on its way through the benchmark."""

    plan: Plan
    kind: Literal["real engines", "twins"]
    folder: Path
    inputs: payloads.Inputs
    frame: pl.DataFrame
    """The whole trace, inputs named."""
    sessions: list[LatencyTable] = field(default_factory=list)
    rehearsal: Rehearsal | None = None
    """The last."""
    profiled: LatencyTable | None = None
    learnt: list[Rehearsed] = field(default_factory=list)
    table: LatencyTable | None = None
    """Of the last prediction."""
    chosen: pace.Pace | None = None
    played: fidelity.Session | None = None
    predictions: list[fidelity.Prediction] = field(default_factory=list)
    """Of each live run."""
    live: list[fidelity.Seen] = field(default_factory=list)
    journals: list[Journal] = field(default_factory=list)
    noise: list[Noise] = field(default_factory=list)


def subjects(out: Path, only: tuple[str, ...]) -> list[Subject]:
    """The example's plans and the twins, or those named.

    Raises:
        InputError: A name that none of them has.
    """
    trace = importing.load(TRACE)
    found = []
    kinds = plans()
    names = [plan.name for plan, _ in kinds]
    for name in only:
        if name not in names:
            raise InputError(f"--only {name}: there is no such plan ({', '.join(names)}).")
    kinds = [(plan, kind) for plan, kind in kinds if not only or plan.name in only]
    for plan, kind in kinds:
        assert plan.pipeline.inputs is not None
        inputs = payloads.from_function(plan.pipeline.inputs, plan.path.parent)
        frame = payloads.name_inputs(trace.frame, inputs, str(TRACE))
        found.append(Subject(plan, kind, out / plan.name, inputs, frame))
    return found


def plans() -> list[tuple[Plan, Literal["real engines", "twins"]]]:
    """The example's plans, and the twins."""
    path = TWINS / "pipeline.yaml"
    twins = Plan("twins", "Twins", path, pipeline.load(path))
    return [*((plan, "real engines") for plan in study_folder.read(EXAMPLE).plans), (twins, "twins")]


def profile(found: list[Subject], lengths: Lengths) -> None:
    """Measure every plan, session by session, so that no plan has the machine's best minute for itself."""
    for number in range(lengths.sessions):
        for subject in found:
            folder = subject.folder / f"profile-{number + 1}"
            subject.sessions.append(_profile_apart(subject.plan, folder, lengths.profile_s))
            runs = sum(entry.n or 0 for entry in subject.sessions[-1].entries)
            say(f"profile {number + 1} {subject.plan.name}: {runs} runs")


def _profile_apart(plan: Plan, folder: Path, seconds: float) -> LatencyTable:
    """Profile in a process and a session of its own, as the server has.

    Linux shares the processor by sessions first (autogroup): beside other busy programs of this one, stages that only
    wait woke 3 ms late, and 0.15 ms late in the server.
    """
    command = [sys.executable, "-m", "loadslice", "profile", str(plan.path), "--seconds", f"{seconds:g}"]
    command += ["--out", str(folder)]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        _, said = process.communicate()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode != 0:
        last = (said.decode(errors="replace").strip().splitlines() or ["nothing was said"])[-1]
        raise InputError(f"plan '{plan.name}' could not be profiled: {last}")
    return latency.load(folder / "latency.json")
