"""ONNX Runtime with a row of fixed length per sequence: one buffer per layer is past and present at once.

A row's length is an input of the graph, so sequences join, leave and are handed over without anything being packed
anew. Rows that decode are computed together, from the first row of the buffers to the last that decodes; prompts, and
pieces of them, one by one. Pages of rows that nobody has used take no memory.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from loadslice.backends.language.base import Float32s, KvLayout, NoRoomError, StepRow
from loadslice.backends.language.onnx_decoder import built
from loadslice.backends.language.room import check_room
from loadslice.spec.errors import InputError

OPTIONS = ("allow_spinning",)
"""What a language file may say under ``options``."""


class SlotSession:
    """One session with its rows.

    Args:
        model: GGUF file.
        threads: Of one step.
        rows: Sequences at once.
        context: Tokens of the longest sequence.
        block: Tokens that raw copies are rounded up to.
        options: ``allow_spinning: true`` lets threads wait busily.

    Raises:
        InputError: The model cannot be built or loaded, an option is not known, or there is no memory for so much KV.
    """

    def __init__(
        self, model: Path, *, threads: int, rows: int, context: int, block: int, options: dict[str, Any] | None = None
    ) -> None:
        given = dict(options or {})
        spins = bool(given.pop("allow_spinning", False))
        if given:
            raise InputError(f"options: '{next(iter(given))}' is not one of {', '.join(OPTIONS)}.")
        settings = ort.SessionOptions()
        settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
        settings.log_severity_level = 3
        settings.add_session_config_entry("session.intra_op.allow_spinning", "1" if spins else "0")
        path = built(model)
        try:
            self._session = ort.InferenceSession(os.fspath(path), settings, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime's own classes have no common base
            raise InputError(f"{path}: does not load: {str(error).splitlines()[0][:200]}") from error
        said = self._session.get_modelmeta().custom_metadata_map
        layers, heads, head_dim = (int(said[key]) for key in ("layers", "kv_heads", "head_dim"))
        # One block more than the context: a row that is full is still written beside, when others decode.
        self._room = (-(-context // block) + 1) * block
        need = 2 * layers * rows * heads * self._room * head_dim * 4
        check_room(need, f"KV of {rows} rows of {self._room} tokens", "Lower `seats` or `context`.")
        self._kv = np.zeros((2 * layers, rows, heads, self._room, head_dim), np.float32)
        self._pasts = [f"past.{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
        self._presents = [name.replace("past", "present") for name in self._pasts]
        self._row_of: dict[int, int] = {}
        self._lengths = [0] * rows
        self._free = list(range(rows))
        self._bindings: dict[tuple[int, int], Any] = {}
        self.layout = KvLayout(
            layers=layers,
            kv_heads=heads,
            head_dim=head_dim,
            block=block,
            raw=f"onnxruntime rows float32 {layers} {heads} {head_dim} {block}",
            raw_bytes_per_block=2 * layers * heads * block * head_dim * 4,
            has_neutral=True,
            sequences=rows,
            kv_bytes=need,
        )
        self.vocabulary = int(self._session.get_outputs()[0].shape[1])

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds; a sequence holds a whole row of them."""
        return len(self._free) * (self._room // self.layout.block - 1)

    def step(self, rows: Sequence[StepRow]) -> Float32s:
        """See `base.LanguageSession.step`."""
        begun = sum(row.sequence not in self._row_of for row in rows)
        if begun > len(self._free):
            raise NoRoomError(f"{begun} rows are needed and {len(self._free)} are free")
        logits = np.zeros((sum(row.samples for row in rows), self.vocabulary), np.float32)
        places = np.cumsum([row.samples for row in rows]) - 1
        single: list[tuple[int, int, int]] = []
        """(row of the buffers, token, row of the logits or -1)"""
        for row, place in zip(rows, places.tolist(), strict=True):
            at = self._take(row.sequence)
            if len(row.tokens) == 1:
                single.append((at, row.tokens[0], place if row.samples else -1))
                continue
            before = self._lengths[at]
            after = before + len(row.tokens)
            last = len(row.tokens) - 1
            got = self._run(at, np.asarray([row.tokens], np.int64), np.array([after - 1], np.int32), after, [last])
            if row.samples:
                logits[place] = got[0]
            self._lengths[at] = after
        if single:
            self._step_single(single, logits)
        return logits

    def _step_single(self, single: list[tuple[int, int, int]], logits: Float32s) -> None:
        """Compute one token of each of these rows, together."""
        first = min(at for at, _, _ in single)
        count = max(at for at, _, _ in single) - first + 1
        tokens = np.zeros((count, 1), np.int64)
        # Rows that take no part compute too: what they write beyond their end is written anew when they go on.
        last = np.asarray(self._lengths[first : first + count], np.int32)
        for at, token, _ in single:
            tokens[at - first] = token
        wanted = [(at - first, place) for at, _, place in single if place >= 0]
        sampled = [at for at, _ in wanted] or [0]
        got = self._run(first, tokens, last, int(last.max()) + 1, sampled)
        for number, (_, place) in enumerate(wanted):
            logits[place] = got[number]
        for at, _, _ in single:
            self._lengths[at] += 1

    def _run(
        self, first: int, tokens: NDArray[np.int64], last: NDArray[np.int32], longest: int, sampled: list[int]
    ) -> Float32s:
        binding = self._binding(first, len(tokens))
        binding.bind_cpu_input("input_ids", tokens)
        binding.bind_cpu_input("last", last)
        binding.bind_cpu_input("longest", np.array(longest, np.int32))
        binding.bind_cpu_input("sampled", np.asarray(sampled, np.int64))
        binding.bind_output("logits", "cpu")
        self._session.run_with_iobinding(binding)
        # Outputs come in the order in which they were first bound, logits last.
        logits: Float32s = binding.get_outputs()[-1].numpy()
        return logits

    def _binding(self, first: int, count: int) -> Any:
        """Buffers of these rows, bound once as past and as present."""
        found = self._bindings.get((first, count))
        if found is None:
            found = self._session.io_binding()
            shape = (count, *self._kv.shape[2:])
            for index, (past, present) in enumerate(zip(self._pasts, self._presents, strict=True)):
                pointer = self._kv[index, first : first + count].ctypes.data
                found.bind_input(past, "cpu", 0, np.float32, shape, pointer)
                found.bind_output(present, "cpu", 0, np.float32, shape, pointer)
            self._bindings[first, count] = found
        return found

    def _take(self, sequence: int) -> int:
        row = self._row_of.get(sequence)
        if row is None:
            if not self._free:
                raise NoRoomError("no row is free")
            row = min(self._free)  # the lower the rows in use, the fewer are computed beside them
            self._free.remove(row)
            self._row_of[sequence] = row
            self._lengths[row] = 0
        return row

    def length(self, sequence: int) -> int:
        """See `base.LanguageSession.length`."""
        row = self._row_of.get(sequence)
        return 0 if row is None else self._lengths[row]

    def export_raw(self, sequence: int, into: NDArray[np.uint8]) -> int:
        """See `base.LanguageSession.export_raw`."""
        row = self._row_of[sequence]
        tokens = -(-self._lengths[row] // self.layout.block) * self.layout.block
        part = self._kv[:, row, :, :tokens]
        into[: part.nbytes].view(np.float32).reshape(part.shape)[...] = part
        return part.nbytes

    def import_raw(self, sequence: int, tokens: int, source: NDArray[np.uint8]) -> None:
        """See `base.LanguageSession.import_raw`."""
        row = self._take(sequence)
        part = self._kv[:, row, :, : -(-tokens // self.layout.block) * self.layout.block]
        part[...] = source[: part.nbytes].view(np.float32).reshape(part.shape)
        self._lengths[row] = tokens

    def export_neutral(self, sequence: int, into: Float32s) -> None:
        """See `base.LanguageSession.export_neutral`."""
        row = self._row_of[sequence]
        into.reshape(-1, *into.shape[2:])[...] = self._kv[:, row, :, : self._lengths[row]]

    def import_neutral(self, sequence: int, source: Float32s) -> None:
        """See `base.LanguageSession.import_neutral`."""
        row, tokens = self._take(sequence), source.shape[3]
        self._kv[:, row, :, :tokens] = source.reshape(-1, *source.shape[2:])
        self._lengths[row] = tokens

    def release(self, sequence: int) -> None:
        """See `base.LanguageSession.release`."""
        row = self._row_of.pop(sequence, None)
        if row is not None:
            self._lengths[row] = 0
            self._free.append(row)

    def close(self) -> None:
        """See `base.LanguageSession.close`."""
        self._bindings.clear()
