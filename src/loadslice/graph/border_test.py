"""Segments and what crosses their border, on small graphs of known answers and on random ones."""

import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from loadslice.graph.border import border, segments
from loadslice.graph.rewrites.links import Links
from loadslice.graph.shapes import infer


def chain(reads: list[list[int]]) -> onnx.ModelProto:
    """One node per entry, reading the nodes it names (the model's input where it names none); 40 bytes a tensor."""
    nodes = [
        helper.make_node("Sum", [f"t{source}" for source in sources] or ["x"], [f"t{place}"], f"n{place}")
        for place, sources in enumerate(reads)
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [10])]
    outputs = [helper.make_tensor_value_info(f"t{len(reads) - 1}", TensorProto.FLOAT, [10])]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def crossings(reads: list[list[int]], places: str) -> tuple[list[int | None], list[tuple[str, str, int]]]:
    model = chain(reads)
    body = infer(model, {})
    links = Links(model.graph)
    where = ["device" if place == "d" else "host" for place in places]
    parts = segments(links, where)
    found = border(body, links, parts, [False] * len(places))
    assert all(transfer.bytes == 40 for transfer in found)
    return parts, [(transfer.tensor, transfer.direction, transfer.segment) for transfer in found]


def test_a_host_node_in_the_middle_makes_two_parts_and_two_copies() -> None:
    parts, copies = crossings([[], [0], [1], [2]], "ddhd")
    assert parts == [0, 0, None, 1]
    assert copies == [("t1", "to_host", 0), ("t2", "to_device", 1)]


def test_a_tensor_that_skips_the_host_node_still_goes_by_way_of_the_host() -> None:
    """t0 is read again after the break: out of the first part once, into the second once."""
    _, copies = crossings([[], [0], [1], [2, 0]], "ddhd")
    assert copies == [
        ("t0", "to_host", 0),
        ("t0", "to_device", 1),
        ("t1", "to_host", 0),
        ("t2", "to_device", 1),
    ]


def test_a_host_node_beside_the_device_does_not_break_it() -> None:
    parts, copies = crossings([[], [], [0], [2, 1]], "dhdd")
    assert parts == [0, None, 0, 0]
    assert copies == [("t1", "to_device", 0)]


def test_everything_on_the_host_crosses_nothing() -> None:
    assert crossings([[], [0], [1]], "hhh") == ([None, None, None], [])


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_no_part_waits_for_itself(data: st.DataObject) -> None:
    """Parts, each taken as one node, and host nodes have an order to run in; what is done at load waits for nothing."""
    count = data.draw(st.integers(1, 14))
    reads = [
        data.draw(st.lists(st.integers(0, place - 1), max_size=3, unique=True)) if place else []
        for place in range(count)
    ]
    places = [data.draw(st.sampled_from(["device", "host", "load"])) for _ in range(count)]
    parts = segments(Links(chain(reads).graph), places)
    assert [part is not None for part in parts] == [place == "device" for place in places]
    unit = [f"part {part}" if part is not None else f"node {place}" for place, part in enumerate(parts)]
    waits = [place != "load" for place in places]
    before = {
        name: {unit[s] for p, sources in enumerate(reads) for s in sources if unit[p] == name and waits[p]} - {name}
        for name in unit
    }
    while before:
        ready = [name for name, waiting in before.items() if not waiting & set(before)]
        assert ready, "a cycle"
        before = {name: waiting for name, waiting in before.items() if name not in ready}
