"""Writes the ONNX file of a decoder from a GGUF file, without any training framework.

One graph serves prompts and decoding: its KV stands in buffers of fixed length that are given as past and present at
once, each row's length is an input, and only the rows that are asked for meet the output layer. Operators are ONNX
Runtime's own (GroupQueryAttention with its rotation, MatMulNBits): any execution provider that has them can run it.
Weights stay in the groups that the file has them in. Decoders of the family of Llama only.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from loadslice.backends.language.gguf import cache_folder
from loadslice.backends.language.weights import GROUP, GgufWeights, Grouped
from loadslice.spec.errors import InputError
from loadslice.spec.files import sha256_file

MODEL_FILE, DATA_FILE = "decoder.onnx", "decoder.data"
VERSION = 1
"""Of what is written; another one is another file in the cache."""
MICROSOFT = "com.microsoft"
OPSET = 21
IR_VERSION = 10


class Shape(NamedTuple):
    """Sizes of a decoder."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int
    context: int
    theta: float
    epsilon: float


def shape_of(weights: GgufWeights) -> Shape:
    """Read the sizes from a file.

    Raises:
        InputError: Not a decoder of the family of Llama, or one that scales or cuts its rotation.
    """
    family = weights.says.get("general.architecture")
    if family != "llama":
        raise InputError(f"{weights.path}: architecture '{family}' is not 'llama', the one that can be built.")
    odd = [key for key in weights.says if ".rope.scaling" in key and weights.says[key] not in ("none", 1, 1.0)]
    heads, hidden = int(weights.number("llama.attention.head_count")), int(weights.number("llama.embedding_length"))
    head_dim = int(weights.says.get("llama.attention.key_length", hidden // heads))
    if odd or "rope_freqs.weight" in weights.names or weights.says.get("llama.rope.dimension_count") != head_dim:
        raise InputError(
            f"{weights.path}: rotates in a way that cannot be built ({odd[0] if odd else 'part of heads'})."
        )
    if any(name.endswith(".bias") for name in weights.names) or "blk.0.ffn_gate_inp.weight" in weights.names:
        raise InputError(f"{weights.path}: has biases or experts, which cannot be built.")
    return Shape(
        layers=int(weights.number("llama.block_count")),
        heads=heads,
        kv_heads=int(weights.number("llama.attention.head_count_kv")),
        head_dim=head_dim,
        hidden=hidden,
        vocabulary=weights.matrix("token_embd.weight").whole.shape[0],
        context=int(weights.number("llama.context_length")),
        theta=float(weights.says.get("llama.rope.freq_base", 10_000.0)),
        epsilon=float(weights.number("llama.attention.layer_norm_rms_epsilon")),
    )


def built(path: Path) -> Path:
    """The ONNX file of a GGUF file: written once, kept in the user's cache by the file's hash.

    Raises:
        InputError: It cannot be built.
    """
    folder = cache_folder() / f"{sha256_file(path)}-onnx-{VERSION}"
    if (folder / MODEL_FILE).is_file():
        return folder / MODEL_FILE
    weights = GgufWeights(path)
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
    try:
        _Writer(weights, shape_of(weights)).save(scratch)
        try:
            scratch.rename(folder)
        except OSError:
            if not (folder / MODEL_FILE).is_file():  # another process was first: its copy is as good
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder / MODEL_FILE


class _Writer:
    """Nodes and weights of one graph, in order."""

    def __init__(self, weights: GgufWeights, shape: Shape) -> None:
        self._weights, self._shape = weights, shape
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def save(self, folder: Path) -> None:
        """Write the graph and its weights."""
        shape, helper = self._shape, onnx.helper
        pasts = [f"past.{layer}.{part}" for layer in range(shape.layers) for part in ("key", "value")]
        presents = [name.replace("past", "present") for name in pasts]
        kv: list[str | int | None] = ["rows", shape.kv_heads, "room", shape.head_dim]
        integers, float32 = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
        self._body(pasts, presents)
        graph = helper.make_graph(
            self._nodes,
            "decoder",
            [
                helper.make_tensor_value_info("input_ids", integers, ["rows", "tokens"]),
                helper.make_tensor_value_info("last", onnx.TensorProto.INT32, ["rows"]),
                helper.make_tensor_value_info("longest", onnx.TensorProto.INT32, []),
                helper.make_tensor_value_info("sampled", integers, ["sampled"]),
                *(helper.make_tensor_value_info(name, float32, kv) for name in pasts),
            ],
            [
                helper.make_tensor_value_info("logits", float32, ["sampled", shape.vocabulary]),
                *(helper.make_tensor_value_info(name, float32, kv) for name in presents),
            ],
            self._constants,
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="loadslice")
        for key, value in (("kv_heads", shape.kv_heads), ("head_dim", shape.head_dim), ("layers", shape.layers)):
            model.metadata_props.add(key=key, value=str(value))
        onnx.save_model(
            model,
            os.fspath(folder / MODEL_FILE),
            save_as_external_data=True,
            location=DATA_FILE,
            size_threshold=1024,
        )

    def _body(self, pasts: list[str], presents: list[str]) -> None:
        shape, weights = self._shape, self._weights
        self._rotation()
        words = weights.matrix("token_embd.weight")
        self._constant("words", words.dense())
        self._node("Gather", ["words", "input_ids"], ["hidden.0"])
        total = "hidden.0"
        for layer in range(shape.layers):
            name = f"blk.{layer}"
            normed = f"{name}.in"
            self._norm(f"{name}.attn_norm.weight", total, normed)
            self._attention(name, normed, pasts[2 * layer : 2 * layer + 2], presents[2 * layer : 2 * layer + 2])
            self._node("Add", [total, f"{name}.attended"], [f"{name}.total"])
            self._norm(f"{name}.ffn_norm.weight", f"{name}.total", f"{name}.mid")
            self._feed_forward(name)
            total = f"hidden.{layer + 1}"
            self._node("Add", [f"{name}.total", f"{name}.fed"], [total])
        self._constant("flat", np.array([-1, shape.hidden], np.int64))
        self._node("Reshape", [total, "flat"], ["hidden.flat"])
        self._node("Gather", ["hidden.flat", "sampled"], ["hidden.sampled"])
        self._norm("output_norm.weight", "hidden.sampled", "hidden.last")
        output = "words"
        if "output.weight" in weights.names:
            output = "output"
            self._constant(output, weights.matrix("output.weight").dense())
        self._node("Gemm", ["hidden.last", output], ["logits"], transB=1)

    def _rotation(self) -> None:
        shape = self._shape
        steps = shape.theta ** (-np.arange(0, shape.head_dim, 2, dtype=np.float64) / shape.head_dim)
        angles = np.arange(shape.context)[:, None] * steps[None]
        self._constant("cos", np.cos(angles).astype(np.float32))
        self._constant("sin", np.sin(angles).astype(np.float32))

    def _attention(self, name: str, source: str, past: list[str], present: list[str]) -> None:
        shape, weights = self._shape, self._weights
        query = weights.matrix(f"{name}.attn_q.weight").rows(_halves(shape.heads, shape.head_dim))
        key = weights.matrix(f"{name}.attn_k.weight").rows(_halves(shape.kv_heads, shape.head_dim))
        self._product(f"{name}.qkv", source, [query, key, weights.matrix(f"{name}.attn_v.weight")])
        self._node(
            "GroupQueryAttention",
            [f"{name}.qkv", "", "", *past, "last", "longest", "cos", "sin"],
            [f"{name}.heads", *present],
            domain=MICROSOFT,
            num_heads=shape.heads,
            kv_num_heads=shape.kv_heads,
            do_rotary=1,
            rotary_interleaved=0,
        )
        self._product(f"{name}.attended", f"{name}.heads", [weights.matrix(f"{name}.attn_output.weight")])

    def _feed_forward(self, name: str) -> None:
        weights = self._weights
        for part in ("gate", "up"):
            self._product(f"{name}.{part}", f"{name}.mid", [weights.matrix(f"{name}.ffn_{part}.weight")])
        self._node("Sigmoid", [f"{name}.gate"], [f"{name}.open"])
        self._node("Mul", [f"{name}.gate", f"{name}.open"], [f"{name}.gated"])
        self._node("Mul", [f"{name}.gated", f"{name}.up"], [f"{name}.inner"])
        self._product(f"{name}.fed", f"{name}.inner", [weights.matrix(f"{name}.ffn_down.weight")])

    def _norm(self, weight: str, source: str, into: str) -> None:
        self._constant(weight, self._weights.vector(weight))
        # ONNX Runtime knows this operator in the default domain.
        self._node("SimplifiedLayerNormalization", [source, weight], [into], axis=-1, epsilon=self._shape.epsilon)

    def _product(self, name: str, source: str, parts: list[Grouped]) -> None:
        """``source`` times parts of equal bits, one under the other; parts of other bits are made float32."""
        columns = parts[0].whole.shape[1] * GROUP
        rows = sum(part.whole.shape[0] for part in parts)
        if any(part.bits != 4 for part in parts):
            self._constant(f"{name}.weight", np.concatenate([part.dense() for part in parts]).T.copy())
            self._node("MatMul", [source, f"{name}.weight"], [name])
            return
        whole = np.concatenate([part.whole for part in parts])
        zero = np.concatenate([part.zero for part in parts])
        if zero.shape[1] % 2:
            zero = np.pad(zero, ((0, 0), (0, 1)))
        self._constant(f"{name}.whole", whole[..., ::2] | whole[..., 1::2] << 4)
        self._constant(f"{name}.scale", np.concatenate([part.scale for part in parts]).reshape(-1))
        self._constant(f"{name}.zero", (zero[:, ::2] | zero[:, 1::2] << 4).reshape(-1))
        self._node(
            "MatMulNBits",
            [source, f"{name}.whole", f"{name}.scale", f"{name}.zero"],
            [name],
            domain=MICROSOFT,
            K=columns,
            N=rows,
            bits=4,
            block_size=GROUP,
        )

    def _node(self, kind: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes: Any) -> None:
        name = f"{outputs[0]}.{kind}"
        self._nodes.append(onnx.helper.make_node(kind, inputs, outputs, name=name, domain=domain, **attributes))

    def _constant(self, name: str, value: NDArray[Any]) -> None:
        self._constants.append(onnx.numpy_helper.from_array(np.ascontiguousarray(value), name))


def _halves(heads: int, head_dim: int) -> NDArray[np.int64]:
    """Rows of a projection whose rotation pairs neighbours, in the order in which it pairs the halves of a head."""
    order = np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2).swapaxes(1, 2)
    return order.reshape(-1).astype(np.int64)
