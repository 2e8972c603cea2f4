"""OpenVINO with paged attention: we own the pools of KV blocks, so prompts and decoding sequences mix in one step.

`paged_attention_transformation` is a private function of the package; `load` fails with one line when a version no
longer has it. The output layer is a fifth of a small model's work, so it is computed only for rows that sample: a
Gather before it takes them out, as the vendor's own pipeline does.
"""

import math
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadslice.backends.language.base import Float32s, KvLayout, StepRow
from loadslice.backends.language.blocks import BlockTable
from loadslice.backends.language.room import check_room
from loadslice.spec.errors import InputError

SAMPLED = "sampled_rows"
"""Name of the input that says which tokens' logits are wanted."""


class PagedSession:
    """One compiled model with its pools.

    Args:
        model: IR (``.xml``) of a stateful language model.
        device: OpenVINO's name.
        threads: Of one step.
        blocks: KV blocks of the pool.
        kv_precision: ``f32``, ``bf16``, ``f16`` or ``u8``.
        options: Passed to the plug-in as they are.

    Raises:
        InputError: No such device, not a language model, or no memory for so much KV.
    """

    def __init__(
        self,
        model: Path,
        *,
        device: str = "CPU",
        threads: int = 1,
        blocks: int = 512,
        kv_precision: str = "f32",
        options: dict[str, Any] | None = None,
    ) -> None:
        os.environ.setdefault("OPENVINO_TELEMETRY", "0")
        import openvino as ov

        from loadslice.backends.openvino import core

        self._ov = ov
        graph = _paged(ov, model)
        config = {
            "KV_CACHE_PRECISION": kv_precision,
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "ENABLE_CPU_PINNING": "NO",
            **(options or {}),
        }
        try:
            compiled = core().compile_model(graph, device, config)
        except RuntimeError as error:
            raise InputError(
                f"{model}: does not compile for {device}: {str(error).strip().splitlines()[-1][:200]}"
            ) from error
        self._request = compiled.create_infer_request()
        self._inputs: dict[str, NDArray[Any]] = {}
        """Numbers of the step before, where the runtime reads them."""
        self._pools: list[Any] = []
        shapes = []
        ports = sorted(
            (port for port in compiled.inputs if "_cache." in port.any_name), key=lambda port: _order(port.any_name)
        )
        sides = [[blocks, *(side.get_length() for side in list(port.partial_shape)[1:])] for port in ports]
        need = sum(math.prod(shape) * port.element_type.size for port, shape in zip(ports, sides, strict=True))
        check_room(need, f"KV of {blocks} blocks", "Lower `kv_tokens` or `prefix_tokens`.")
        for port, shape in zip(ports, sides, strict=True):
            pool = _pool(ov, port.element_type, shape)
            self._request.set_tensor(port.any_name, pool)
            self._pools.append(pool)
            shapes.append((str(port.element_type.to_dtype()), tuple(shape[1:])))
        keys, values = self._pools[0].data, self._pools[1].data
        # Quantised blocks hold their scales in further rows (keys) or columns (values).
        heads, block, head_dim = int(keys.shape[1]), int(values.shape[2]), int(keys.shape[3])
        is_neutral = keys.dtype == values.dtype == np.float32 and keys.shape == values.shape
        self._table = BlockTable(blocks, block)
        self._per_block = [int(pool.data[0].nbytes) for pool in self._pools]
        self.layout = KvLayout(
            layers=len(self._pools) // 2,
            kv_heads=heads,
            head_dim=head_dim,
            block=block,
            raw=f"openvino {ov.__version__} {device} {kv_precision} {shapes[0]} {shapes[1]} x{len(shapes)}",
            raw_bytes_per_block=sum(self._per_block),
            has_neutral=is_neutral,
            kv_bytes=need,
        )
        self.vocabulary = int(compiled.outputs[0].partial_shape[-1].get_length())

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return self._table.free

    def step(self, rows: Sequence[StepRow]) -> Float32s:
        """See `base.LanguageSession.step`."""
        table = self._table
        before = [table.length(row.sequence) for row in rows]
        need = sum(table.missing(row.sequence, at + len(row.tokens)) for row, at in zip(rows, before, strict=True))
        if need > table.free:
            table.extend(-1, (table.free + need) * table.size)  # raises, having changed nothing
        tokens: list[int] = []
        positions: list[int] = []
        begins, indices, index_begins, sampled = [0], [], [0], []
        longest = 0
        for row, at in zip(rows, before, strict=True):
            after = at + len(row.tokens)
            indices += table.extend(row.sequence, after)
            tokens += row.tokens
            positions += range(at, after)
            begins.append(len(tokens))
            index_begins.append(len(indices))
            longest = max(longest, after)
            if row.samples:
                sampled.append(len(tokens) - 1)
        self._set("input_ids", tokens, np.int64)
        self._set("position_ids", positions, np.int64)
        self._set("past_lens", before, np.int32)
        self._set("subsequence_begins", begins, np.int32)
        self._set("block_indices", indices, np.int32)
        self._set("block_indices_begins", index_begins, np.int32)
        self._set("max_context_len", longest, np.int32)
        self._set(SAMPLED, sampled or [len(tokens) - 1], np.int64)
        # What it returns are copies unless they are shared: of sixteen rows 3 MB in every step, for nobody.
        self._request.infer(share_outputs=True)
        logits: Float32s = self._request.get_output_tensor(0).data
        return logits.reshape(-1, logits.shape[-1])[: len(sampled)]

    def _set(self, name: str, values: list[int] | int, dtype: type) -> None:
        """Give an input its numbers: in place while there are as many as in the step before."""
        numbers: NDArray[Any] = np.asarray(values, dtype)
        kept = self._inputs.get(name)
        if kept is not None and kept.shape == numbers.shape:
            kept[...] = numbers
            return
        tensor = self._ov.Tensor(numbers)
        self._request.set_tensor(name, tensor)
        self._inputs[name] = tensor.data

    def length(self, sequence: int) -> int:
        """See `base.LanguageSession.length`."""
        return self._table.length(sequence)

    def adopt(self, sequence: int, blocks: Sequence[int], tokens: int) -> None:
        """See `base.LanguageSession.adopt`."""
        self._table.adopt(sequence, blocks, tokens)

    def blocks(self, sequence: int) -> list[int]:
        """See `base.LanguageSession.blocks`."""
        return list(self._table.of(sequence))

    def hold(self, block: int) -> None:
        """See `base.LanguageSession.hold`."""
        self._table.hold(block)

    def let_go(self, block: int) -> None:
        """See `base.LanguageSession.let_go`."""
        self._table.let_go(block)

    def export_raw(self, sequence: int, into: NDArray[np.uint8]) -> int:
        """See `base.LanguageSession.export_raw`."""
        own = self._table.of(sequence)
        at = 0
        for pool, per_block in zip(self._pools, self._per_block, strict=True):
            size = per_block * len(own)
            view = into[at : at + size].view(pool.data.dtype).reshape(len(own), *pool.data.shape[1:])
            np.take(pool.data, own, axis=0, out=view)
            at += size
        return at

    def import_raw(self, sequence: int, tokens: int, source: NDArray[np.uint8]) -> None:
        """See `base.LanguageSession.import_raw`."""
        own = self._table.extend(sequence, tokens)
        at = 0
        for pool, per_block in zip(self._pools, self._per_block, strict=True):
            size = per_block * len(own)
            pool.data[own] = source[at : at + size].view(pool.data.dtype).reshape(len(own), *pool.data.shape[1:])
            at += size

    def export_neutral(self, sequence: int, into: Float32s) -> None:
        """See `base.LanguageSession.export_neutral`."""
        own, tokens = self._table.of(sequence), self._table.length(sequence)
        for index, pool in enumerate(self._pools):
            blocks = pool.data[own]  # [blocks, heads, block, dim]
            dense = blocks.transpose(1, 0, 2, 3).reshape(blocks.shape[1], -1, blocks.shape[3])
            into[index // 2, index % 2] = dense[:, :tokens]

    def import_neutral(self, sequence: int, source: Float32s) -> None:
        """See `base.LanguageSession.import_neutral`."""
        _, _, heads, tokens, head_dim = source.shape
        own = self._table.extend(sequence, tokens)
        dense = np.zeros((heads, len(own) * self.layout.block, head_dim), np.float32)
        for index, pool in enumerate(self._pools):
            dense[:, :tokens] = source[index // 2, index % 2]
            pool.data[own] = dense.reshape(heads, len(own), self.layout.block, head_dim).transpose(1, 0, 2, 3)

    def release(self, sequence: int) -> None:
        """See `base.LanguageSession.release`."""
        self._table.release(sequence)

    def close(self) -> None:
        """See `base.LanguageSession.close`."""
        self._pools.clear()
        self._inputs.clear()
        self._request = None


def _pool(ov: Any, kind: Any, shape: list[int]) -> Any:
    """Blocks whose pages are the system's zeros until they are written: memory that nobody uses is not taken."""
    pages = np.frombuffer(mmap.mmap(-1, math.prod(shape) * kind.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    return ov.Tensor(pages, ov.Shape(shape), kind)


def _order(name: str) -> tuple[int, int]:
    kind, _, layer = name.partition("_cache.")
    return int(layer), 0 if kind == "key" else 1


def _paged(ov: Any, path: Path) -> Any:
    """Read a stateful model, turn its attention to paged, and have it give logits of chosen tokens only."""
    try:
        from openvino._offline_transformations import paged_attention_transformation
    except ImportError as error:
        raise InputError(f"openvino {ov.__version__} has no paged attention; 2025.3 to 2026.4 have.") from error
    from loadslice.backends.openvino import core

    try:
        graph = core().read_model(path)
        paged_attention_transformation(graph, False, False, False, False)
    except RuntimeError as error:
        raise InputError(f"{path}: is not a stateful language model in OpenVINO's format.") from error
    result = graph.get_results()[0]
    product = result.input_value(0).get_node()
    while product.get_type_name() == "Convert":
        product = product.input_value(0).get_node()
    if product.get_type_name() != "MatMul":
        raise InputError(f"{path}: its last operator is {product.get_type_name()}, not a matrix product over words.")
    from openvino import opset13

    wanted = opset13.parameter([-1], ov.Type.i64, name=SAMPLED)
    wanted.output(0).set_names({SAMPLED})
    rows = opset13.gather(product.input_value(0), wanted, opset13.constant(0, ov.Type.i64))
    product.input(0).replace_source_output(rows.output(0))
    graph.add_parameters([wanted])
    graph.validate_nodes_and_infer_types()
    return graph
