"""The contract every backend passes: one function per promise of `loadslice.backends.base`.

Each takes an open backend and raises AssertionError with the promise that was broken. They need no test framework, so
that a backend of somebody else's can be checked with ``run_all(backend, folder)``.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from loadslice.backends.base import Backend, Session, TensorInfo
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine
from loadslice.spec.work import StageInputError, Tensor

SLOTS = 3
"""Concurrent callers the checks use."""


def write_model(path: Path) -> Path:
    """A small model with dynamic rows and width: ``y = relu(x * 2 + 1)``, ``s = sum of a row``."""
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["twice"]),
        helper.make_node("Add", ["twice", "one"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
        helper.make_node("ReduceSum", ["y", "axes"], ["s"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "checks",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 3, "width"])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 3, "width"]),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, ["rows"]),
        ],
        [
            numpy_helper.from_array(np.float32(2.0).reshape(1), "two"),
            numpy_helper.from_array(np.float32(1.0).reshape(1), "one"),
            numpy_helper.from_array(np.array([1, 2], np.int64), "axes"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def expected(x: Tensor) -> dict[str, Tensor]:
    """The naive twin of the model that `write_model` writes."""
    y = np.maximum(x * 2 + 1, 0)
    return {"y": y, "s": y.sum(axis=(1, 2))}


def run_all(backend: Backend, folder: Path) -> None:
    """Check every promise.

    Args:
        backend: What is checked.
        folder: An empty folder for a model.

    Raises:
        AssertionError: The first promise that does not hold.
    """
    model = write_model(folder / "checks.onnx")
    session = backend.load(model, Engine(backend="checked", max_inflight=SLOTS))
    try:
        for check in SESSION_CHECKS:
            check(session)
    finally:
        session.close()
    refuses_what_is_no_model(backend, folder)


def describes_the_model(session: Session) -> None:
    """Names, types and dynamic dimensions are the model's own."""
    (x,) = session.inputs
    assert x == TensorInfo("x", np.dtype(np.float32), (None, 3, None)), x
    assert [info.name for info in session.outputs] == ["y", "s"], session.outputs
    said = session.describe()
    for key in ("runtime", "version", "device", "threads", "precision"):
        assert said.get(key), f"describe() must say {key}: {said}"


def computes_right_at_any_shape(session: Session) -> None:
    """Rows and width may change from run to run."""
    for rows, width in ((1, 4), (5, 9), (2, 4)):
        x = _rows(rows, width)
        _same(session.run({"x": x}), expected(x))


def leaves_feeds_alone(session: Session) -> None:
    """A feed is read, never written."""
    x = _rows(2, 5)
    before = x.copy()
    session.run({"x": x})
    assert np.array_equal(x, before), "the run changed its feed"


def reads_views_right(session: Session) -> None:
    """A feed that is a view with strides is read as NumPy reads it."""
    x = _rows(4, 10)[::2, :, ::2]
    _same(session.run({"x": x}), expected(x))


def repeats_itself(session: Session) -> None:
    """Equal feeds give equal outputs, bit for bit."""
    x = _rows(3, 7)
    first, second = session.run({"x": x}), session.run({"x": x})
    for name in first:
        assert np.array_equal(first[name], second[name]), f"output '{name}' differs between two runs on equal feeds"


def gives_outputs_away(session: Session) -> None:
    """A later run in the same slot does not write over an earlier one's outputs."""
    x = _rows(2, 6)
    outputs = session.run({"x": x})
    kept = {name: tensor.copy() for name, tensor in outputs.items()}
    session.run({"x": x + 1})
    x[:] = 0
    for name, tensor in outputs.items():
        assert np.array_equal(tensor, kept[name]), f"output '{name}' changed after it was handed over"
        assert tensor.flags.writeable, f"output '{name}' is not the caller's to change"


def slots_do_not_mix(session: Session) -> None:
    """Concurrent callers, a slot each, get what lone callers get."""
    feeds = [_rows(1 + index % 4, 3 + index % 7, seed=index) for index in range(SLOTS * 20)]

    def serve(slot: int) -> None:
        for x in feeds[slot::SLOTS]:
            _same(session.run({"x": x}, slot), expected(x))

    with ThreadPoolExecutor(SLOTS) as pool:
        for done in [pool.submit(serve, slot) for slot in range(SLOTS)]:
            done.result()


def refuses_wrong_feeds_by_name(session: Session) -> None:
    """A wrong name, type or shape is refused, and the message names the input."""
    good = _rows(1, 4)
    wrong: list[dict[str, Tensor]] = [
        {"z": good},
        {},
        {"x": good, "z": good},
        {"x": good.astype(np.float64)},
        {"x": good[0]},
        {"x": np.zeros((1, 4, 4), np.float32)},
    ]
    for feeds in wrong:
        message = _refusal(partial(session.run, feeds), StageInputError)
        named = "'z'" if "z" in feeds else "'x'"
        assert named in message, f"'{message}' does not name the input {named}"
    _same(session.run({"x": good}), expected(good))


def refuses_what_is_no_model(backend: Backend, folder: Path) -> None:
    """A truncated file, text and an unknown device are each refused in one line that names the file or device."""
    whole = write_model(folder / "whole.onnx")
    for name, data in (("half.onnx", whole.read_bytes()[:100]), ("text.onnx", b"not a model\n")):
        path = folder / name
        path.write_bytes(data)
        _refuses_to_load(backend, path, Engine(backend="checked"), name)
    _refuses_to_load(backend, whole, Engine(backend="checked", device="npu9"), "npu9")


SESSION_CHECKS: tuple[Callable[[Session], None], ...] = (
    describes_the_model,
    computes_right_at_any_shape,
    leaves_feeds_alone,
    reads_views_right,
    repeats_itself,
    gives_outputs_away,
    slots_do_not_mix,
    refuses_wrong_feeds_by_name,
)


def _refuses_to_load(backend: Backend, model: Path, engine: Engine, named: str) -> None:
    message = _refusal(lambda: backend.load(model, engine), InputError)
    assert named in message.lower(), f"'{message}' does not name {named}"
    assert "\n" not in message, "a refusal is one line"


def _refusal(call: Callable[[], object], kind: type[Exception]) -> str:
    """The message ``call`` is refused with."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"wrong input was taken where {kind.__name__} was due")


def _rows(rows: int, width: int, seed: int = 0) -> Tensor:
    return np.random.default_rng(seed).standard_normal((rows, 3, width), dtype=np.float32)


def _same(outputs: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert list(outputs) == list(wanted), f"outputs {list(outputs)}, wanted {list(wanted)}"
    for name, tensor in wanted.items():
        assert outputs[name].shape == tensor.shape, f"output '{name}': {outputs[name].shape}, wanted {tensor.shape}"
        # Row sums may be added in another order.
        np.testing.assert_allclose(outputs[name], tensor, rtol=1e-5, atol=1e-5, err_msg=f"output '{name}'")
