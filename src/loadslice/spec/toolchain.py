"""Vendors' compilers: what each is, whether it is installed, and what it says about a model.

A toolchain never runs inside this process: they crash, hang, and pin versions that exclude each other. Each has an
environment of its own and is asked through one script of ours, JSON in a file, JSON on standard output.
"""

from typing import Literal

import msgspec


class Toolchain(msgspec.Struct, frozen=True, kw_only=True):
    """A vendor's compiler that we know how to ask."""

    name: str
    title: str
    requires: list[str]
    """Pinned distributions, as pip takes them; installed only by `loadslice toolchain install`."""
    provides: str
    """The distribution whose version is the toolchain's."""
    module: str
    """Its Python module, imported to see whether an environment can be used."""
    python_min: tuple[int, int]
    python_max: tuple[int, int]
    licence: str
    """What the user accepts by installing it, in plain words."""
    targets: list[str]
    input: Literal["onnx", "tflite"]
    download_mb: int
    """Measured, with its dependencies."""
    installed_mb: int
    own_python: bool = False
    """Not installed by us: the user names an interpreter that has it."""


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """Where a toolchain lives on this machine; the file `toolchain.json` of its folder."""

    name: str
    python: str
    """The interpreter that has it."""
    versions: dict[str, str]
    """Distributions that shape its answers."""
    ours: bool
    """We made the environment; otherwise the user named it."""


class ToolchainState(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `loadslice toolchain list`."""

    name: str
    title: str
    targets: list[str]
    input: str
    licence: str
    installed: Installed | None
    reason: str | None = None
    """Why it cannot be used, when it is there and broken."""


class CompiledNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node as the compiler placed it; names are those of the model it was given."""

    name: str
    on: Literal["device", "host"]
    op: str | None = None
    reason: str | None = None
    segment: int | None = None
    into: str | None = None
    """The device's operator, or the fusion, that it became."""


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer of the compiled network, as the compiler reports it."""

    name: str
    op: str
    on: Literal["device", "host"]
    reason: str | None = None
    cycles: int | None = None
    """The compiler's own figure; ``None`` where it models none, as for every layer left to the CPU."""
    macs: int | None = None
    read_write_bytes: int | None = None
    host_operations: int | None = None
    """Scalar operations of a layer left to the CPU, counted by us: 2 per multiply-accumulate, 1 per output element."""


class Artefact(msgspec.Struct, frozen=True, kw_only=True):
    """A file the compiler wrote."""

    name: str
    bytes: int


class Numerics(msgspec.Struct, frozen=True, kw_only=True):
    """One output of the vendor's simulator against ONNX Runtime's CPU on the same model and input."""

    output: str
    cosine: float | None
    """``None`` where either side is all zeros."""
    max_abs_diff: float
    sqnr_db: float | None
    reference_min: float
    reference_max: float


class CompilerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The document a toolchain's script hands back, and `loadslice toolchain compile` prints."""

    toolchain: str
    version: str
    target: str
    options: dict[str, str]
    seconds: float
    """Of compiling, on this machine; nothing about the device."""
    nodes: list[CompiledNode] = []
    layers: list[Layer] = []
    artefacts: list[Artefact] = []
    figures: dict[str, float | int | None] = {}
    """Unit last in the key."""
    figures_basis: str | None = None
    numerics: list[Numerics] = []
    numerics_basis: str | None = None
    notes: list[str] = []

    @property
    def source(self) -> str:
        """Its name, version and the options asked for, as printed beside every fact of it."""
        asked = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.toolchain} {self.version}" + (f" ({asked})" if asked else "")
