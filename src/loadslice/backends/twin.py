"""Twins: devices that are not here. Real numerics on this processor, in the device's time and inside its limits.

What holds: a model that the device could not run is refused when it is loaded, with who says so; a batch of a shape it
was not built for is refused; an answer is never given before the device would have given it. A processor that needs
longer than the device cannot keep that promise the other way: such runs are counted and said, and dilation
(`loadslice serve --dilate`) gives the processor the time. Nothing here is measured on the device.
"""

import logging
import math
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx

from loadslice import __version__
from loadslice.backends.base import Session, check_feeds, open_backend
from loadslice.backends.twin_numerics import halved, rounded
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine
from loadslice.spec.twin import TwinEngine, TwinSheet, TwinTime
from loadslice.spec.work import StageInputError, Tensor

log = logging.getLogger(__name__)

NUMERICS = "onnxruntime"

NODES_NAMED = 3
"""Nodes that a refusal names; the others are counted."""

Shape = tuple[int, ...]


class TwinBackend:
    """Loads models onto emulated devices."""

    def load(self, model: Path, engine: Engine) -> "TwinSession":
        """See `loadslice.backends.base.Backend.load`.

        Raises:
            InputError: Nothing is known of the model on this device, or the device could not run it: an operator, its
                memory, open shapes.
        """
        if not isinstance(engine, TwinEngine):
            raise InputError(
                f"{model}: backend 'twin' runs inside a pipeline only; device '{engine.device}' is not here."
            )
        sheet = engine.sheets.get(str(model))
        if sheet is None or (engine.device or sheet.device) != sheet.device:
            raise InputError(
                f"{model}: nothing is known of it on device '{engine.device}'. Load it by a pipeline file."
            )
        _check(model, sheet)
        began_ns = time.perf_counter_ns()
        session, numerics = _numerics(model, sheet, engine)
        if engine.keeps_time:
            _wait_until(began_ns + round(sheet.compile_ms * 1e6))
        return TwinSession(session, numerics, sheet, engine)


class TwinSession:
    """One model on one emulated device."""

    def __init__(self, session: Session, numerics: str, sheet: TwinSheet, engine: TwinEngine) -> None:
        self.sheet = sheet
        self.inputs = session.inputs
        self.outputs = session.outputs
        self.late_runs = 0
        """Runs that took longer on this processor than on the device, warming up included."""
        self._session = session
        self._numerics = numerics
        self._engine = engine
        self._round = halved(sheet.precision) if sheet.precision in ("fp16", "bf16") else None
        self._lock = threading.Lock()

    def run(self, feeds: Mapping[str, Tensor], slot: int = 0) -> dict[str, Tensor]:
        """See `loadslice.backends.base.Session.run`; comes back when the device would, or later and counted."""
        began_ns = time.perf_counter_ns()
        check_feeds(self.inputs, feeds)
        shape = feeds[self.inputs[0].name].shape
        takes = self.time_of(shape)
        if self._round is not None:
            feeds = {name: self._round(tensor) for name, tensor in feeds.items()}
        outputs = self._session.run(feeds, slot)
        if self._round is not None:
            outputs = {name: self._round(tensor) for name, tensor in outputs.items()}
        if not self._engine.keeps_time:
            return outputs
        due_ns = began_ns + round(takes.ms * 1e6 * self._engine.dilate)
        if time.perf_counter_ns() > due_ns:
            self._late(takes, time.perf_counter_ns() - began_ns)
        _wait_until(due_ns)
        return outputs

    def time_of(self, shape: Shape) -> TwinTime:
        """What a batch takes on the device.

        Args:
            shape: Of the first input, rows first.

        Raises:
            StageInputError: The device was not built for this shape.
        """
        rows, alike = shape[0] if shape else 1, self._known(shape[1:])
        exact = next((known for known in alike if known.rows == rows), None)
        if exact is not None:
            return exact
        if not alike or self.sheet.static_shapes:
            built = ", ".join(_text(known) for known in self.sheet.times)
            raise StageInputError(
                f"input '{self.inputs[0].name}' has shape {'x'.join(map(str, shape))}; the emulated "
                f"{self.sheet.device} was built for {built}. Pad to it: `batch: {{ENGINE: {{pad_to: [ROWS]}}}}`."
            )
        return _between(alike, rows, shape[1:])

    def describe(self) -> dict[str, str | int]:
        """See `loadslice.backends.base.Session.describe`."""
        return {
            "runtime": "twin",
            "version": __version__,
            "device": self.sheet.device,
            "threads": self._engine.threads,
            "precision": self._numerics,
            "basis": "emulated",
            "times": f"{self.sheet.times_basis}: {self.sheet.times_source}",
            "operators": self.sheet.operators,
            "late_runs": self.late_runs,
        }

    def close(self) -> None:
        """Free the model."""
        if self.late_runs:
            log.warning(
                "twin '%s': %d runs took longer on this processor than on the device; their times are the processor's",
                self.sheet.device,
                self.late_runs,
            )
            self.late_runs = 0
        self._session.close()

    def _known(self, row: Shape) -> list[TwinTime]:
        exact = [known for known in self.sheet.times if known.shape == row]
        return exact or [known for known in self.sheet.times if known.shape is None]

    def _late(self, takes: TwinTime, took_ns: int) -> None:
        with self._lock:
            self.late_runs += 1
            first = self.late_runs == 1
        if first:
            needed = math.ceil(took_ns / max(1.0, takes.ms * 1e6))
            log.warning(
                "twin '%s': a batch took %.1f ms on this processor and would take %.1f ms on the device; "
                "`--dilate %d` would hide that",
                self.sheet.device,
                took_ns / 1e6,
                takes.ms * self._engine.dilate,
                needed,
            )


BACKEND = TwinBackend()


def _check(model: Path, sheet: TwinSheet) -> None:
    if sheet.unsupported:
        named = ", ".join(f"'{node.node}' ({node.op}: {node.reason})" for node in sheet.unsupported[:NODES_NAMED])
        more = f" and {len(sheet.unsupported) - NODES_NAMED} more" if len(sheet.unsupported) > NODES_NAMED else ""
        raise InputError(
            f"{model}: device '{sheet.device}' does not run {named}{more}, by {sheet.unsupported[0].source}. "
            f"`loadslice inspect {model.name} --device {sheet.device}` shows rewrites and cuts."
        )
    if sheet.needs_bytes is not None and sheet.memory_bytes is not None and sheet.needs_bytes > sheet.memory_bytes:
        raise InputError(
            f"{model}: needs {sheet.needs_bytes / 1e6:.1f} MB at {sheet.precision}, device '{sheet.device}' has "
            f"{sheet.memory_bytes / 1e6:.1f} MB. Slice it (`loadslice slice`), or lower the batch or the precision."
        )
    if sheet.static_shapes and any(known.shape is None for known in sheet.times):
        raise InputError(
            f"{model}: device '{sheet.device}' takes fixed shapes only and this model's are open. "
            "Give stages.*.accept.ENGINE.shape, rows first."
        )


def _numerics(model: Path, sheet: TwinSheet, engine: TwinEngine) -> tuple[Session, str]:
    """The model on this processor at the device's precision, and that in words."""
    changed, words = rounded(model, sheet.precision)
    here = Engine(backend=NUMERICS, threads=engine.threads, max_inflight=engine.max_inflight)
    backend = open_backend(NUMERICS)
    if changed is None:
        return backend.load(model, here), words
    with tempfile.TemporaryDirectory(prefix="loadslice-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / model.name
        onnx.save(changed, str(path))
        return backend.load(path, here), words


def _between(known: list[TwinTime], rows: int, row: Shape) -> TwinTime:
    """Rows that no time is known for: on the line between their neighbours, beyond the last in proportion."""
    below = max((one for one in known if one.rows < rows), key=lambda one: one.rows, default=None)
    above = min((one for one in known if one.rows > rows), key=lambda one: one.rows, default=None)
    if below is None:
        assert above is not None
        return replace(above, rows=rows, shape=row)
    if above is None:
        grown = rows / below.rows
        energy_j = None if below.energy_j is None else below.energy_j * grown
        return TwinTime(rows=rows, shape=row, ms=below.ms * grown, energy_j=energy_j)
    share = (rows - below.rows) / (above.rows - below.rows)
    energies = (below.energy_j, above.energy_j)
    energy_j = None if energies[0] is None or energies[1] is None else energies[0] + share * (energies[1] - energies[0])
    return TwinTime(rows=rows, shape=row, ms=below.ms + share * (above.ms - below.ms), energy_j=energy_j)


def _text(known: TwinTime) -> str:
    return "x".join(map(str, (known.rows, *(known.shape or ()))))


def _wait_until(due_ns: int) -> None:
    left_ns = due_ns - time.perf_counter_ns()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)
