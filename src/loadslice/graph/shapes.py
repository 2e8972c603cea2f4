"""Shapes of every tensor, from the inputs' shapes, without running the model.

One walk in execution order. Each node asks its ONNX schema for the output types, given the contents of the small
inputs that are already known (`values.evaluate` computes those: the target of a Reshape, the bounds of a Slice, ...).
Where the schema cannot tell, the shape the file declares for the tensor is taken, its symbols bound to the given sizes.
Subgraphs are walked in place (`control`), so that weights and work inside If, Loop and Scan are seen.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, defs, helper

from loadslice.graph import contrib, control
from loadslice.graph.load import stored_bytes
from loadslice.graph.steps import Body, Env, Step, attribute_values
from loadslice.graph.values import Shape, Value, evaluate, stored_value, tensor_type
from loadslice.spec.errors import InputError

_STANDARD = {"", "ai.onnx"}
_CONTRIB = {"com.microsoft", "com.microsoft.nchwc", "", "ai.onnx"}
_SYMBOL = re.compile(r"[A-Za-z_][\w.]*$")
_NO_SYMBOL = {"None", "unk"}
"""Written by exporters for "not known"; the same word at two places binds nothing."""

INITIALIZERS_ARE_INPUTS_BEFORE = 4
"""IR version since which a stored tensor need not be listed among the inputs; one that is, is a default since then."""

RANK_MAX = 1000
"""Far above the dimensions of any tensor."""

MASKS_ARE_BOOLEAN_SINCE = 10

_RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}

_EIGHT_BITS = {TensorProto.INT8, TensorProto.UINT8}

_SCHEMA_ERRORS = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError, KeyError)


def model_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Inputs a caller must give: old files list their initializers among the inputs too."""
    stored = {tensor.name for tensor in graph.initializer} | {s.values.name for s in graph.sparse_initializer}
    return [info for info in graph.input if info.name not in stored]


def infer(
    model: onnx.ModelProto,
    shapes: Mapping[str, list[int]],
    contents: Mapping[str, npt.NDArray[np.generic]] | None = None,
) -> Body:
    """Walk a checked model.

    Args:
        model: From `load`.
        shapes: Input name to shape, checked by `inputs.check_shapes`.
        contents: Of inputs that hold a single number, such as a sampling rate that decides a branch; others are left.

    Raises:
        InputError: The given shapes cannot run through the model.
    """
    symbols: dict[str, int] = {}
    env: Env = {}
    for info in model_inputs(model.graph):
        given = shapes.get(info.name)
        if given is not None:
            _bind(info.type, given, symbols)
    for info in model_inputs(model.graph):
        given = shapes.get(info.name)
        elem = info.type.tensor_type.elem_type
        kind = tensor_type(elem, tuple(given)) if given is not None else _bound(_without_zeros(info.type), symbols)
        content = (contents or {}).get(info.name)
        env[info.name] = Value(kind, content if content is not None and content.size == 1 else None)
    return _Walk(model, symbols, given=bool(shapes)).graph(model.graph, env, "")


def _without_zeros(declared: onnx.TypeProto) -> onnx.TypeProto:
    """An input's type with sides of 0 open: exporters write them for "not known", and a request has none."""
    if not any(dim.HasField("dim_value") and dim.dim_value == 0 for dim in declared.tensor_type.shape.dim):
        return declared
    opened = onnx.TypeProto()
    opened.CopyFrom(declared)
    for dim in opened.tensor_type.shape.dim:
        if dim.dim_value == 0:
            dim.ClearField("dim_value")
    return opened


def _bind(declared: onnx.TypeProto, given: list[int], symbols: dict[str, int]) -> None:
    for dim, size in zip(declared.tensor_type.shape.dim, given, strict=False):
        name = dim.dim_param
        if name and _SYMBOL.match(name) and name not in _NO_SYMBOL:
            symbols.setdefault(name, size)


def _bound(declared: onnx.TypeProto, symbols: Mapping[str, int]) -> onnx.TypeProto:
    """A declared type with its symbols replaced by the sizes they stand for."""
    if not any(dim.dim_param in symbols for dim in declared.tensor_type.shape.dim):
        return declared
    bound = onnx.TypeProto()
    bound.CopyFrom(declared)
    for dim in bound.tensor_type.shape.dim:
        if dim.dim_param in symbols:
            dim.dim_value = symbols[dim.dim_param]
    return bound


class _Walk:
    """One walk over a model: the version of each operator set, the symbols, and the schemas met so far."""

    def __init__(self, model: onnx.ModelProto, symbols: Mapping[str, int], *, given: bool) -> None:
        self.opsets = {"" if entry.domain in _STANDARD else entry.domain: entry.version for entry in model.opset_import}
        self.ir_version = model.ir_version
        every_stored_is_listed = model.ir_version < INITIALIZERS_ARE_INPUTS_BEFORE
        self.defaults = set() if every_stored_is_listed else {info.name for info in model.graph.input}
        self.symbols = symbols
        self.given = given
        self.depth = -1
        self.imports = [helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]
        self.schemas: dict[tuple[str, str], defs.OpSchema | None] = {}

    def graph(self, graph: onnx.GraphProto, env: Env, scope: str) -> Body:
        """Walk one graph; ``env`` holds what it may read and gains what it makes."""
        for tensor in graph.initializer:
            value = stored_value(tensor, stored_bytes(tensor))
            env[tensor.name] = replace(value, overridable=True) if tensor.name in self.defaults else value
        for sparse in graph.sparse_initializer:
            dense = tensor_type(sparse.values.data_type, tuple(sparse.dims))
            size = stored_bytes(sparse.values) + stored_bytes(sparse.indices)
            env[sparse.values.name] = Value(dense, constant=True, stored_bytes=size)
        declared = {info.name: info.type for info in [*graph.value_info, *graph.output]}
        steps = []
        self.depth += 1
        for index, node in enumerate(graph.node):
            step = self.step(node, env, declared, f"{scope}{node.name or f'{node.op_type}_{index}'}")
            step.scope = scope.rstrip("/")
            steps.append(step)
            env.update((name, value) for name, value in zip(node.output, step.outputs, strict=True) if name)
        self.depth -= 1
        return Body(graph, steps, env)

    def step(self, node: onnx.NodeProto, env: Env, declared: Mapping[str, onnx.TypeProto], path: str) -> Step:
        """Infer one node."""
        domain = "" if node.domain in _STANDARD else node.domain
        inputs = [env.get(name) if name else None for name in node.input]
        opset = self.opsets.get(domain, 1)
        step = Step(node, "", opset, inputs, [])
        if domain == "" and node.op_type == "Constant":
            step.outputs = [_constant(node)]
            return step
        types: list[onnx.TypeProto | None]
        if domain == "" and node.op_type in control.OPERATORS:
            types, step.bodies = control.walk(node, inputs, env, self.graph, path, opset=opset)
        else:
            types, step.trouble = self.types(node, domain, inputs, env)
        types = [*types, *[None] * len(node.output)][: len(node.output)]
        if domain == "" and node.op_type == "Dropout" and len(types) > 1 and Value(types[1]).shape is None:
            types[1] = _mask(inputs[0], opset)
        # Nothing outside is read by a subgraph that only uses constants, but that is rare enough to count as work.
        constant = (
            not step.bodies
            and node.op_type not in _RANDOM
            and all(
                value is not None and value.constant and not value.overridable
                for name, value in zip(node.input, inputs, strict=True)
                if name
            )
        )
        overridable = any(value is not None and value.overridable for value in inputs)
        stored = sum(value.stored_bytes for value in inputs if value is not None) if constant else 0
        outputs = []
        for name, kind in zip(node.output, types, strict=True):
            kind = _refined(kind, _bound(declared[name], self.symbols) if name in declared else None)
            outputs.append(Value(kind, None, constant, self._stored(node, kind, stored), overridable))
        step.outputs = evaluate(node, opset, inputs, outputs) if domain == "" and not step.bodies else outputs
        return step

    @staticmethod
    def _stored(node: onnx.NodeProto, kind: onnx.TypeProto | None, stored: int) -> int:
        """Bytes a folded weight is read as: a dequantised one stays integers until it is used."""
        if node.op_type == "DequantizeLinear":
            return stored
        return (Value(kind).nbytes or stored) if stored else 0

    def types(
        self, node: onnx.NodeProto, domain: str, inputs: list[Value | None], env: Env
    ) -> tuple[list[onnx.TypeProto | None], str | None]:
        """Output types by the node's schema, or by our own rules where it has none."""
        schema = self._schema(node.op_type, domain)
        if schema is not None:
            types, trouble = self._by_schema(schema, node, env)
        else:
            types, trouble = [], f"no schema for operator {node.domain or 'ai.onnx'}::{node.op_type}"
            twin = contrib.standard_node(node) if domain in _CONTRIB else None
            twin_schema = self._schema(twin.op_type, "") if twin is not None else None
            if twin is not None and twin_schema is not None:
                types, trouble = self._as_standard(twin_schema, twin, env)
        if not types or types[0] is None or not types[0].tensor_type.HasField("shape"):
            own = contrib.infer(node, inputs, attribute_values(node)) if domain in _CONTRIB else None
            if own is not None:
                return [*own, *types[len(own) :]], None
        return types, trouble

    def _as_standard(
        self, schema: defs.OpSchema, twin: onnx.NodeProto, env: Env
    ) -> tuple[list[onnx.TypeProto | None], str | None]:
        """Output types by a standard twin, whose schema may know no 8-bit types and not all attributes."""
        extra = {attribute.name: attribute for attribute in twin.attribute if attribute.name not in schema.attributes}
        if "channels_last" in extra and extra["channels_last"].i:
            return [None] * len(
                twin.output
            ), "its tensors have their channels last, which the standard operator has not"
        for attribute in extra.values():
            twin.attribute.remove(attribute)
        eight = [name for name in twin.input if name in env and env[name].elem_type in _EIGHT_BITS]
        floats = {name: Value(tensor_type(TensorProto.FLOAT, env[name].shape)) for name in eight}
        types, trouble = self._by_schema(schema, twin, {**env, **floats})
        if not eight:
            return types, trouble
        kind = env[eight[0]].elem_type
        return [None if found is None else tensor_type(kind, Value(found).shape) for found in types], trouble

    def _schema(self, op: str, domain: str) -> defs.OpSchema | None:
        if (op, domain) not in self.schemas:
            try:
                self.schemas[op, domain] = defs.get_schema(op, self.opsets.get(domain, 1), domain)
            except defs.SchemaError:
                self.schemas[op, domain] = None
        return self.schemas[op, domain]

    def _by_schema(
        self, schema: defs.OpSchema, node: onnx.NodeProto, env: Env
    ) -> tuple[list[onnx.TypeProto | None], str | None]:
        wrong = _wrong_number(node)
        if wrong is not None:
            return [None] * len(node.output), wrong
        types, data = {}, {}
        for name in node.input:
            value = env.get(name)
            if not name:
                continue
            if value is None or value.type is None:
                return [None] * len(node.output), f"the type of its input '{name}' is unknown"
            types[name] = value.type
            if value.data is not None:
                data[name] = onnx.numpy_helper.from_array(value.data)
        try:
            found = onnx.shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=self.imports, ir_version=self.ir_version
            )
        except _SCHEMA_ERRORS as error:
            text = " ".join(str(error).split()).removeprefix("[ShapeInferenceError] ")
            # A branch that these shapes cannot run may be the one that is not taken: only the top decides.
            if self.given and not self.depth and "ncompatible dimensions" in text:
                raise InputError(
                    f"the given shapes cannot run through node '{node.name or node.output[0]}' ({node.op_type}): "
                    f"{text}. Give --shape sizes the model was built for."
                ) from error
            return [None] * len(node.output), text
        return [found.get(name) for name in node.output], None


def _wrong_number(node: onnx.NodeProto) -> str | None:
    """An attribute that counts dimensions or outputs and cannot: onnx's own rules read past their memory by some."""
    outputs, sides = len(node.output), (-RANK_MAX, RANK_MAX)
    ranges = {"axis": sides, "axes": sides, "batch_dims": (0, RANK_MAX), "num_outputs": (outputs, outputs)}
    for attribute in node.attribute:
        numbers = list(attribute.ints) if attribute.type == onnx.AttributeProto.INTS else [attribute.i]
        least, most = ranges.get(attribute.name, (-math.inf, math.inf))
        if not all(least <= number <= most for number in numbers):
            return f"its attribute '{attribute.name}' cannot be {', '.join(map(str, numbers))}"
    return None


def _mask(dropped: Value | None, opset: int) -> onnx.TypeProto | None:
    """Type of a Dropout's second output, which old schemas do not infer and old exporters write though nobody reads it.

    As large as the first input; of its type below opset 10, of booleans since.
    """
    if dropped is None or dropped.type is None:
        return None
    return dropped.type if opset < MASKS_ARE_BOOLEAN_SINCE else tensor_type(TensorProto.BOOL, dropped.shape)


def _refined(inferred: onnx.TypeProto | None, declared: onnx.TypeProto | None) -> onnx.TypeProto | None:
    """The inferred type; dimensions it leaves open come from the declared one."""
    if declared is None or (inferred is not None and not inferred.HasField("tensor_type")):
        return inferred
    if inferred is None or not inferred.tensor_type.HasField("shape"):
        return declared
    ours, theirs = Value(inferred).shape, Value(declared).shape
    if ours is None or theirs is None or len(ours) != len(theirs) or None not in ours:
        return inferred
    merged: Shape = tuple(a if a is not None else b for a, b in zip(ours, theirs, strict=True))
    return tensor_type(inferred.tensor_type.elem_type, merged)


def _constant(node: onnx.NodeProto) -> Value:
    """The value of a Constant node, whichever of its attributes holds it."""
    for attribute in node.attribute:
        if attribute.HasField("t"):
            return stored_value(attribute.t, stored_bytes(attribute.t))
        if attribute.HasField("sparse_tensor"):
            sparse = attribute.sparse_tensor
            size = stored_bytes(sparse.values) + stored_bytes(sparse.indices)
            return Value(tensor_type(sparse.values.data_type, tuple(sparse.dims)), constant=True, stored_bytes=size)
    tensor = constant_attribute_tensor(node)
    return stored_value(tensor, stored_bytes(tensor)) if tensor is not None else Value(None, constant=True)


def constant_attribute_tensor(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """A Constant written as plain numbers (`value_int`, `value_floats`, ...) as a tensor."""
    kinds = {"value_int": TensorProto.INT64, "value_ints": TensorProto.INT64}
    kinds |= {"value_float": TensorProto.FLOAT, "value_floats": TensorProto.FLOAT}
    kinds |= {"value_string": TensorProto.STRING, "value_strings": TensorProto.STRING}
    for attribute in node.attribute:
        if attribute.name in kinds:
            value = helper.get_attribute_value(attribute)
            many = attribute.name.endswith("s")
            return helper.make_tensor(
                node.output[0], kinds[attribute.name], [len(value)] if many else [], value if many else [value]
            )
    return None
