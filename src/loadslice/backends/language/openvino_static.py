"""OpenVINO with fixed shapes: prompts only, one at a time, padded to one of a few lengths. The form that NPUs take.

Each length is a graph of its own, without a past. Padding stands after the prompt, where attention that looks back
never sees it, so the KV of what is real is what any other engine computes. A prompt that comes in pieces is computed
whole when its last piece comes. `stateful_to_stateless_transformation` is a private function of the package; where a
version has it no longer, loading fails with one line.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadslice.backends.language.base import Float32s, KvLayout, NoRoomError, StepRow
from loadslice.spec.errors import InputError

SAMPLED = "sampled_row"
"""Name of the input that says which token's logits are wanted."""


class StaticSession:
    """One graph per length.

    Args:
        model: IR (``.xml``) of a stateful language model.
        device: OpenVINO's name; NPU is what this is for, and CPU stands in for it.
        threads: Of one step, on a CPU.
        buckets: Lengths in tokens, growing.
        rows: Prompts whose KV is kept at once.
        block: Tokens that raw copies are rounded up to.
        options: Passed to the plug-in as they are.

    Raises:
        InputError: No such device, or not a language model.
    """

    def __init__(
        self,
        model: Path,
        *,
        device: str,
        threads: int,
        buckets: Sequence[int],
        rows: int,
        block: int,
        options: dict[str, Any] | None = None,
    ) -> None:
        os.environ.setdefault("OPENVINO_TELEMETRY", "0")
        import openvino as ov

        from loadslice.backends.openvino import core

        self._ov = ov
        config: dict[str, Any] = {}
        if device == "CPU":
            config = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": "NO"}
        self._requests: dict[int, Any] = {}
        for bucket in buckets:
            graph, self._places = _fixed(ov, model, bucket)
            try:
                compiled = core().compile_model(graph, device, {**config, **(options or {})})
            except RuntimeError as error:
                raise InputError(
                    f"{model}: does not compile for {device}: {str(error).strip().splitlines()[-1][:200]}"
                ) from error
            self._requests[bucket] = compiled.create_infer_request()
        shape = compiled.outputs[self._places[0]].shape
        layers = len(self._places) // 2
        self._tokens: dict[int, list[int]] = {}
        self._kv: dict[int, Float32s] = {}
        self.layout = KvLayout(
            layers=layers,
            kv_heads=int(shape[1]),
            head_dim=int(shape[3]),
            block=block,
            raw=f"fixed shapes float32 {layers} {shape[1]} {shape[3]} {block}",
            raw_bytes_per_block=2 * layers * int(shape[1]) * block * int(shape[3]) * 4,
            has_neutral=True,
            sequences=rows,
            decodes=False,
        )
        self.vocabulary = int(compiled.outputs[0].shape[-1])

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds; a prompt holds as many as the longest could need."""
        assert self.layout.sequences is not None
        most = -(-max(self._requests) // self.layout.block)
        return (self.layout.sequences - len(self._tokens)) * most

    def step(self, rows: Sequence[StepRow]) -> Float32s:
        """See `base.LanguageSession.step`."""
        assert self.layout.sequences is not None
        begun = sum(row.sequence not in self._tokens for row in rows)
        if len(self._tokens) + begun > self.layout.sequences:
            raise NoRoomError(f"{self.layout.sequences} prompts are kept at once")
        longest = max(len(self._tokens.get(row.sequence, ())) + len(row.tokens) for row in rows)
        if longest > max(self._requests):
            raise NoRoomError(f"a prompt of {longest} tokens is longer than the longest bucket, {max(self._requests)}")
        logits = []
        for row in rows:
            tokens = self._tokens.setdefault(row.sequence, [])
            tokens.extend(row.tokens)
            if row.samples:
                logits.append(self._compute(row.sequence, tokens))
        return np.stack(logits) if logits else np.zeros((0, self.vocabulary), np.float32)

    def _compute(self, sequence: int, tokens: list[int]) -> Float32s:
        bucket = min(one for one in self._requests if one >= len(tokens))
        request = self._requests[bucket]
        ids = np.zeros((1, bucket), np.int64)
        ids[0, : len(tokens)] = tokens
        request.infer(
            {
                "input_ids": ids,
                "attention_mask": np.ones((1, bucket), np.int64),
                "position_ids": np.arange(bucket)[None],
                SAMPLED: np.array([len(tokens) - 1], np.int64),
            },
            share_outputs=True,
        )
        kv = np.empty((len(self._places), *self._shape(len(tokens))), np.float32)
        for index, place in enumerate(self._places):
            kv[index] = request.get_output_tensor(place).data[0, :, : len(tokens)]
        self._kv[sequence] = kv
        logits: Float32s = request.get_output_tensor(0).data.reshape(-1).copy()
        return logits

    def _kv_of(self, sequence: int) -> Float32s:
        """KV of what a sequence has; computed now, if nothing was sampled yet."""
        kv = self._kv.get(sequence)
        if kv is None or kv.shape[2] != len(self._tokens[sequence]):
            self._compute(sequence, self._tokens[sequence])
        return self._kv[sequence]

    def _shape(self, tokens: int) -> tuple[int, int, int]:
        return self.layout.kv_heads, tokens, self.layout.head_dim

    def length(self, sequence: int) -> int:
        """See `base.LanguageSession.length`."""
        return len(self._tokens.get(sequence, ()))

    def export_raw(self, sequence: int, into: NDArray[np.uint8]) -> int:
        """See `base.LanguageSession.export_raw`."""
        kv = self._kv_of(sequence)
        tokens = -(-kv.shape[2] // self.layout.block) * self.layout.block
        size = len(kv) * int(np.prod(self._shape(tokens))) * 4
        into[:size].view(np.float32).reshape(len(kv), *self._shape(tokens))[:, :, : kv.shape[2]] = kv
        return size

    def import_raw(self, sequence: int, tokens: int, source: NDArray[np.uint8]) -> None:
        """Refused: there is no past to put it in.

        Raises:
            NoRoomError: Always.
        """
        raise NoRoomError("this engine computes prompts only")

    def export_neutral(self, sequence: int, into: Float32s) -> None:
        """See `base.LanguageSession.export_neutral`."""
        into.reshape(-1, *into.shape[2:])[...] = self._kv_of(sequence)

    def import_neutral(self, sequence: int, source: Float32s) -> None:
        """Refused: there is no past to put it in.

        Raises:
            NoRoomError: Always.
        """
        raise NoRoomError("this engine computes prompts only")

    def release(self, sequence: int) -> None:
        """See `base.LanguageSession.release`."""
        self._tokens.pop(sequence, None)
        self._kv.pop(sequence, None)

    def close(self) -> None:
        """See `base.LanguageSession.close`."""
        self._requests.clear()


def _fixed(ov: Any, path: Path, bucket: int) -> tuple[Any, list[int]]:
    """Read a stateful model and give it one shape: a prompt of ``bucket`` tokens, and no past.

    Returns:
        The graph, and which of its outputs are keys and values, layer by layer.
    """
    try:
        from openvino._offline_transformations import stateful_to_stateless_transformation
    except ImportError as error:
        raise InputError(f"openvino {ov.__version__} cannot take the state out of a model; 2026.4 can.") from error
    from openvino import opset13

    from loadslice.backends.openvino import core

    try:
        graph = core().read_model(path)
        stateful_to_stateless_transformation(graph)
    except RuntimeError as error:
        raise InputError(f"{path}: is not a stateful language model in OpenVINO's format.") from error
    pasts = [port for port in graph.inputs if port.any_name.startswith("past_key_values.")]
    places = []
    for port in sorted(pasts, key=lambda port: _order(port.any_name)):
        places.append(_without_past(opset13, graph, port))
        graph.remove_parameter(port.get_node())
    for node in graph.get_ops():
        if node.get_type_name() == "Broadcast":
            _spell_out(opset13, node)
    product = graph.outputs[0].get_node().input_value(0).get_node()
    if product.get_type_name() != "MatMul":
        raise InputError(f"{path}: its last operator is {product.get_type_name()}, not a matrix product over words.")
    wanted = opset13.parameter([1], ov.Type.i64, name=SAMPLED)
    wanted.output(0).set_names({SAMPLED})
    row = opset13.gather(product.input_value(0), wanted, opset13.constant(1, ov.Type.i64))
    product.input(0).replace_source_output(row.output(0))
    graph.add_parameters([wanted])
    shapes = {port: [1, bucket] for port in graph.inputs if port.any_name not in (SAMPLED, "beam_idx")}
    shapes |= {port: [1] for port in graph.inputs if port.any_name in (SAMPLED, "beam_idx")}
    graph.reshape(shapes)
    return graph, places


def _order(name: str) -> tuple[int, int]:
    _, layer, part = name.split(".")
    return int(layer), 0 if part == "key" else 1


def _without_past(opset: Any, graph: Any, port: Any) -> int:
    """Have whoever joins a past to the present take the present alone; returns which output that is."""
    shape = port.partial_shape
    result = -1
    sides = [1, shape[1].get_length(), 0, shape[3].get_length()]
    for target in list(port.get_target_inputs()):
        node = target.get_node()
        if node.get_type_name() == "Concat":
            result = int(graph.get_result_index(node.output(0)))
            node.output(0).replace(node.input_value(1))
        else:
            assert node.get_type_name() == "ShapeOf", node
            node.output(0).replace(opset.constant(np.array(sides, np.int64)).output(0))
    return result


def _spell_out(opset: Any, node: Any) -> None:
    """A broadcast's target may say 0 for "as it is", which graphs of fixed shape do not take; 1 says the same."""
    target = node.input_value(1).get_node()
    if target.get_type_name() != "Concat" or node.get_attributes().get("mode") != "bidirectional":
        return
    for place in range(target.get_input_size()):
        source = target.input_value(place).get_node()
        if source.get_type_name() == "Constant" and source.data.size == 1 and int(source.data.reshape(-1)[0]) == 0:
            target.input(place).replace_source_output(opset.constant(np.array([1], np.int64)).output(0))
