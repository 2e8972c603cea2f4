import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from loadslice.graph.inspect import inspect
from loadslice.graph.load import graphs, load
from loadslice.spec.errors import InputError
from loadslice.spec.files import encode_json


def conv_model() -> onnx.ModelProto:
    weights = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    target = numpy_helper.from_array(np.array([1, -1], np.int64), "target")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Reshape", ["r", "target"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "h", "w_"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, None])
    graph = helper.make_graph(nodes, "g", [x], [y], [weights, target])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def external_model(folder: Path, **entries: str) -> Path:
    """A model whose weights are 432 bytes in `w.bin`, or wherever the entries say."""
    model = conv_model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in ({"location": "w.bin"} | entries).items():
        tensor.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def one_line(error: pytest.ExceptionInfo[InputError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty (0 bytes)"),
        (b"hello, I am a text file\n" * 10, "not an ONNX model"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "not an ONNX model"),
        (conv_model().SerializeToString()[:-100], "truncated"),
        (b"\x08\x07", "not an ONNX model"),
    ],
)
def test_what_is_not_a_model_is_refused_in_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        load(path)
    assert words in one_line(error)


def test_a_folder_and_an_absent_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "none.onnx")


def test_a_graph_that_breaks_the_standard_is_refused(tmp_path: Path) -> None:
    model = conv_model()
    model.graph.node[1].input[0] = "nobody"
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match="not a valid ONNX model"):
        load(path)


def wrapped(field: int, content: bytes) -> bytes:
    """One length-delimited protobuf field."""
    size, length = len(content), b""
    while size > 127:
        size, length = size >> 7, length + bytes([size & 127 | 128])
    return bytes([field << 3 | 2]) + length + bytes([size]) + content


@pytest.mark.parametrize("levels", [10, 40, 5000])
def test_control_flow_nested_too_deeply_is_refused(tmp_path: Path, levels: int) -> None:
    graph = b""
    for _ in range(levels):  # GraphProto.node = 1, NodeProto.attribute = 5, AttributeProto.g = 6
        graph = wrapped(1, wrapped(4, b"If") + wrapped(5, wrapped(6, graph)))
    path = tmp_path / "deep.onnx"
    path.write_bytes(b"\x08\x08" + wrapped(7, graph) + wrapped(8, b"\x10\x0d"))
    with pytest.raises(InputError) as error:
        load(path)
    one_line(error)


def test_external_weights_beside_the_model_are_found(tmp_path: Path) -> None:
    path = external_model(tmp_path, offset="16", length="432")
    (tmp_path / "w.bin").write_bytes(bytes(16) + np.ones(108, np.float32).tobytes())
    model = load(path, weights=True)
    assert numpy_helper.to_array(model.graph.initializer[0]).sum() == 108
    assert inspect(path, {"x": [1, 3, 8, 8]}, []).parameters == 4 * 27 + 2


def test_external_weights_of_a_negative_side_are_refused(tmp_path: Path) -> None:
    """The checker judges stored tensors; the external ones are shown to it as empty."""
    path = external_model(tmp_path)
    (tmp_path / "w.bin").write_bytes(bytes(432))
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].dims[0] = -4
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match="negative dimension"):
        load(path)


def test_large_external_weights_are_not_read_to_inspect(tmp_path: Path) -> None:
    model = conv_model()
    big = model.graph.initializer[0]
    big.dims[:] = [1000, 3, 30, 30]
    big.ClearField("raw_data")
    big.data_location = TensorProto.EXTERNAL
    big.external_data.add(key="location", value="w.bin")
    with (tmp_path / "w.bin").open("wb") as stream:
        stream.truncate(1000 * 3 * 900 * 4)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert not load(path).graph.initializer[0].raw_data
    assert inspect(path, None, []).weight_bytes == 1000 * 3 * 900 * 4 + 16


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({}, "is missing"),
        ({"location": "../w.bin"}, "points outside"),
        ({"location": "a/../../w.bin"}, "points outside"),
        ({"location": "/etc/hostname"}, "points outside"),
        ({"location": "C:\\w.bin"}, "points outside"),
        ({"location": "..\\w.bin"}, "points outside"),
        ({"location": ""}, "without a location"),
        ({"location": "w\0.bin"}, "without a location"),
        ({"offset": "-4"}, "not a size in bytes"),
        ({"length": "1e3"}, "not a size in bytes"),
        ({"offset": "9" * 30}, "not a size in bytes"),
    ],
)
def test_external_data_that_cannot_be_is_refused(tmp_path: Path, entries: dict[str, str], words: str) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(432))
    with pytest.raises(InputError) as error:
        load(external_model(folder, **entries))
    assert words in one_line(error)


@pytest.mark.parametrize("entries", [{"offset": "400"}, {"length": "500"}, {"length": "100"}, {"offset": "9" * 17}])
def test_external_data_that_does_not_fill_the_tensor_is_refused(tmp_path: Path, entries: dict[str, str]) -> None:
    path = external_model(tmp_path, **entries)
    (tmp_path / "w.bin").write_bytes(bytes(432))
    with pytest.raises(InputError, match=r"w\.bin"):
        load(path)


def test_a_link_that_leaves_the_folder_is_refused_before_it_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(432))
    (folder / "w.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="is a link that leaves"):
        load(external_model(folder))


def test_a_second_name_of_a_file_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(432))
    (folder / "w.bin").hardlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="is hard-linked"):
        load(external_model(folder))


def test_a_device_file_or_pipe_as_external_data_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "w.bin")
    with pytest.raises(InputError, match="is missing"):
        load(external_model(tmp_path))


def test_a_local_function_that_calls_itself_is_refused(tmp_path: Path) -> None:
    loop = helper.make_function(
        "own", "Again", ["a"], ["b"], [helper.make_node("Again", ["a"], ["b"], domain="own")],
        [helper.make_opsetid("", 13), helper.make_opsetid("own", 1)],
    )  # fmt: skip
    model = conv_model()
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node[1].CopyFrom(helper.make_node("Again", ["c"], ["r"], domain="own"))
    model.functions.append(loop)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputError):
        load(path)


def test_local_functions_are_counted_where_they_are_called(tmp_path: Path) -> None:
    twice = helper.make_function(
        "own", "Twice", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["m"]), helper.make_node("Relu", ["m"], ["b"])],
        [helper.make_opsetid("", 13)],
    )  # fmt: skip
    model = conv_model()
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node[1].CopyFrom(helper.make_node("Twice", ["c"], ["r"], domain="own"))
    model.functions.append(twice)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert [node.op_type for graph, _ in graphs(load(path).graph) for node in graph.node].count("Relu") == 2


VALID = conv_model().SerializeToString()


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(VALID)))
def test_bytes_flipped_and_cut_give_a_result_or_one_line(
    tmp_path: Path, flips: list[tuple[int, int]], length: int
) -> None:
    raw = bytearray(VALID)
    for place, value in flips:
        raw[place] = value
    path = tmp_path / "fuzzed.onnx"
    path.write_bytes(bytes(raw) if length % 2 else bytes(raw[:length]))
    try:
        result = inspect(path, {"x": [1, 3, 16, 16]} if length % 3 else None, [])
    except InputError as error:
        lines = str(error).splitlines()
    else:
        encode_json(result)
        lines = [] if result.flops is None or result.flops >= 0 else ["negative work", "is no result"]
    assert len(lines) <= 1


def test_a_runtimes_operator_in_the_default_domain_is_no_fault(tmp_path: Path) -> None:
    """ONNX Runtime's optimiser writes SimplifiedLayerNormalization there, and so do exporters of language models."""
    node = helper.make_node("SimplifiedLayerNormalization", ["x", "scale"], ["y"])
    scale = numpy_helper.from_array(np.ones(8, np.float32), "scale")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 8])
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [y], [scale]), opset_imports=[helper.make_opsetid("", 11)], ir_version=8
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    read = load(path)
    assert [node.domain for node in read.graph.node] == [""]
    assert [entry.domain for entry in read.opset_import] == [""]


def test_an_operator_set_of_the_future_is_refused(tmp_path: Path) -> None:
    known = onnx.defs.onnx_opset_version()
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [info], [made])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", known + 1)], ir_version=8)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=f"opset {known + 1} is newer than the {known} that onnx"):
        load(tmp_path / "m.onnx")
