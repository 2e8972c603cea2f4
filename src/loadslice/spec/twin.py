"""A twin: an engine that stands for a device that is not here. What it may run, how long that takes, what it uses.

Runtimes may not look into models, and a twin has to know what is in one before it may refuse it. So whoever opens a
pipeline (`loadslice.app.twins`) puts a sheet together for each model a twin is to run, from the operator tables, the
device catalogue and a latency table or a roofline, and the engine carries its sheets to the backend.
"""

from dataclasses import dataclass

import msgspec

from loadslice.spec.inspection import Unsupported
from loadslice.spec.latency import Basis
from loadslice.spec.pipeline import Engine, Pipeline, Precision

TWIN = "twin"
"""The backend of engines that are emulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinTime:
    """How long one batch takes on the device."""

    rows: int
    shape: tuple[int, ...] | None
    """Of the first input, without rows; ``None``: any."""
    ms: float
    energy_j: float | None
    """``None``: nobody states the device's power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinSheet:
    """One model on one emulated device."""

    device: str
    """Name in the catalogue."""
    precision: Precision
    """What the device computes this model at."""
    static_shapes: bool
    """It takes the batches of ``times`` and no others."""
    unsupported: list[Unsupported]
    """Nodes that the device cannot run, each with who says so."""
    operators: str
    """Source of ``unsupported``, or why operators are not checked."""
    needs_bytes: int | None
    """Weights and largest live activations at ``precision``; ``None``: unknown."""
    memory_bytes: int | None
    """The device's own; ``None``: unknown, or it uses the host's."""
    compile_ms: float
    """How long the vendor's compiler is modelled to take."""
    times: list[TwinTime]
    times_basis: Basis
    times_source: str


class TwinEngine(Engine, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An engine of the pipeline file with the sheets of the models that it is to run."""

    sheets: dict[str, TwinSheet] = msgspec.field(default_factory=dict)
    """By the path of the model."""
    dilate: float = 1.0
    """Seconds here for one second on the device."""
    keeps_time: bool = True
    """Answers come when the device would give them; where only the numbers are wanted, as soon as they are there."""


def plain(pipeline: Pipeline) -> Pipeline:
    """The pipeline as its file has it, to be written down."""
    fields = Engine.__struct_fields__
    engines = {
        name: Engine(**{field: getattr(engine, field) for field in fields}) if type(engine) is not Engine else engine
        for name, engine in pipeline.engines.items()
    }
    return msgspec.structs.replace(pipeline, engines=engines)


def twins(pipeline: Pipeline) -> list[str]:
    """Names of the engines that are emulated."""
    return [name for name, engine in pipeline.engines.items() if engine.backend == TWIN]


def label(dilate: float) -> str:
    """How a figure that a twin had a part in is marked."""
    return "emulated" if dilate == 1 else f"emulated, dilated {dilate:g}x"


def dilation(pipeline: Pipeline) -> float:
    """Seconds here for one second on the pipeline's emulated devices; 1 where nothing is dilated."""
    return max((engine.dilate for engine in pipeline.engines.values() if isinstance(engine, TwinEngine)), default=1.0)
