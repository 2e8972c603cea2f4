"""The workbench: what every step of a squeeze shares, and how an artefact is proved.

An artefact is proved on the runtime that will serve it, never on another: a file that one runtime computes rightly and
another wrongly has been seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from loadslice.backends import probe
from loadslice.backends.base import EngineError, Session, open_backend
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine
from loadslice.spec.variant import CpuOffer, Scheme, Target
from loadslice.spec.work import StageInputError
from loadslice.variants.exam import Exam, Marks
from loadslice.variants.metrics import Outputs
from loadslice.variants.prepare import Prepared
from loadslice.variants.recorded import Feeds, Recorded
from loadslice.variants.timing import Contender

PANEL_QUANTILES = (0.1, 0.5, 0.9)
"""Which of the judged inputs, by size and as often as each comes, stand for the traffic when times are taken."""

ONNX_RUNTIME_ONLY = ("int8-percentile", "int8-all-operators", "fp32-transformer")
"""OpenVINO has NNCF's scheme instead, which was faster or better on every model measured; proving costs minutes. And it
fuses what a transformer is made of itself."""

UNTUNED = Engine(backend="onnxruntime", threads=0, options={"session.intra_op.allow_spinning": "1"})
"""ONNX Runtime as it comes: it chooses the threads (0), they spin, every graph optimisation is on."""


@dataclass(frozen=True)
class Artefact:
    """One file that a tool made (or the prepared source itself)."""

    name: str
    target: Target
    path: Path
    scheme: Scheme
    kept: tuple[str, ...] = ()

    @property
    def files(self) -> list[Path]:
        """The file, and the weights that OpenVINO's format keeps beside it."""
        weights = self.path.with_suffix(".bin")
        return [self.path, weights] if self.path.suffix == ".xml" and weights.exists() else [self.path]


@dataclass
class Proof:
    """An artefact on the runtime that serves it."""

    artefact: Artefact
    engine: Engine
    computed: str
    """Precision that the runtime says it computes in."""
    chosen: Marks
    """On the inputs that candidates are chosen by."""
    judged: Marks
    """On the inputs that judge what was chosen."""

    @property
    def name(self) -> str:
        """Scheme and runtime; two proofs of one artefact differ in it."""
        fallback = self.engine.options.get("INFERENCE_PRECISION_HINT")
        return f"{self.artefact.name}-{self.engine.backend}" + (f"-{fallback}" if fallback == "f32" else "")


@dataclass(frozen=True)
class Failure:
    """What could not be built or run, and why."""

    name: str
    target: Target
    scheme: Scheme
    why: str


@dataclass
class Workbench:
    """One squeeze in progress."""

    source: Path
    prepared: Prepared
    folder: Path
    pool: Recorded
    """May be calibrated on."""
    choosing: Exam
    """Chooses calibration sets, layers and candidates."""
    judging: Exam
    """Judges what was chosen, and chooses nothing."""
    cpu: CpuOffer
    tell: Callable[[str], None]
    notes: list[str]
    failures: list[Failure] = field(default_factory=list)

    @property
    def cores(self) -> int:
        """Logical processors this process may use."""
        return probe.usable_cores()

    def panel(self) -> list[Feeds]:
        """Inputs that times are taken on: small, middling and large ones of the traffic, fewer when all are alike."""
        inputs = self.judging.inputs
        sizes = [sum(tensor.size for tensor in one.values()) for one in inputs.feeds]
        order = np.argsort(sizes, kind="stable")
        below = np.cumsum(inputs.counts[order]) / inputs.counts.sum()
        places = np.searchsorted(below, np.array(PANEL_QUANTILES) - 1e-9)
        chosen = [inputs.feeds[order[place]] for place in places]
        shapes = [tuple(tensor.shape for tensor in one.values()) for one in chosen]
        return [one for index, one in enumerate(chosen) if shapes[index] not in shapes[:index]]

    def cpu_engines(self, artefact: Artefact) -> list[Engine]:
        """Where an artefact of a CPU target is tried.

        OpenVINO computes what is not quantised in the precision it is told: bf16 where the processor has it, else fp32.
        """
        bits = artefact.scheme.weight_bits
        precision = {4: "int4", 8: "int8"}.get(bits, "bf16" if artefact.target == "cpu-bf16" else "fp32")
        onnxruntime = Engine(backend="onnxruntime", threads=self.cores, precision=precision)  # type: ignore[arg-type]
        openvino = Engine(
            backend="openvino",
            threads=self.cores,
            precision=precision,  # type: ignore[arg-type]
            options={"INFERENCE_PRECISION_HINT": "bf16" if self.cpu.bf16 else "f32"} if bits < 16 else {},
        )
        if artefact.target == "cpu-bf16" or artefact.path.suffix == ".xml":
            return [openvino]
        if artefact.scheme.activation_scales == "dynamic" or artefact.scheme.group_size is not None:
            # Operators of ONNX Runtime's own.
            return [onnxruntime]
        if artefact.name in ONNX_RUNTIME_ONLY:
            return [onnxruntime]
        return [onnxruntime, openvino]

    def attempt(self, name: str, target: Target, scheme: Scheme, make: Callable[[Path], Path], suffix: str = ".onnx",
                kept: Sequence[str] = ()) -> Artefact | None:  # fmt: skip
        """Make an artefact; a tool that cannot is written down and does not stop the others."""
        self.tell(f"building {name}")
        try:
            return Artefact(name, target, make(self.folder / f"{name}{suffix}"), scheme, tuple(kept))
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - quantisers raise anything; the reason is shown beside the variant
            self.failures.append(Failure(name, target, scheme, f"cannot be built: {first_line(error)}"))
            return None

    def prove(self, artefact: Artefact, engine: Engine) -> Proof | None:
        """Run an artefact on the inputs of both exams; one that its runtime refuses is written down."""
        name = f"{artefact.name}-{engine.backend}"
        try:
            session = open_backend(engine.backend).load(artefact.path, engine)
        except InputError as error:
            self.failures.append(Failure(name, artefact.target, artefact.scheme, str(error)))
            return None
        try:
            chosen, judged = (_marks(exam, session) for exam in (self.choosing, self.judging))
            computed = str(session.describe()["precision"])
        except (EngineError, StageInputError) as error:
            self.failures.append(Failure(name, artefact.target, artefact.scheme, str(error)))
            return None
        finally:
            # A session that has met many shapes keeps memory for each of them; times are taken on a fresh one.
            session.close()
        return Proof(artefact, engine, computed, chosen, judged)

    def contender(self, proof: Proof) -> Contender:
        """A proof's artefact, loaded anew to be timed."""
        session = open_backend(proof.engine.backend).load(proof.artefact.path, proof.engine)
        return Contender(proof.name, session, self.panel())


def _marks(exam: Exam, session: Session) -> Marks:
    answers: list[Outputs] = [session.run(feeds) for feeds in exam.inputs.feeds]
    return exam.marks(answers)


def first_line(error: BaseException) -> str:
    """What a tool said, one line, not more than fits a table."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
