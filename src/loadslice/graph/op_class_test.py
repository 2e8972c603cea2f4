import msgspec
import pytest

from loadslice.graph.op_class import OpClass, demand, op_class
from loadslice.spec.device import Device, Figure, Peak
from loadslice.spec.inspection import NodeCost


def node(op: str, *, macs: int = 0, flops: int = 0, moved: int = 0, weights: int = 0, outputs: int = 1) -> NodeCost:
    return NodeCost(
        name="n",
        op=op,
        times=1,
        macs=macs,
        flops=flops,
        bytes=moved,
        weight_bytes=weights,
        output_shapes=[[1, outputs]],
    )


def device(*, bandwidth: float | None = 1e11, kind: str = "gpu", onchip: float | None = None) -> Device:
    def figure(value: float | None) -> Figure | None:
        return None if value is None else Figure(value=value, source="a test", basis="stated")

    return Device(
        name="d",
        title="d",
        kind=kind,  # type: ignore[arg-type]
        peak_ops_per_s={
            "fp32": Peak(value=1e12, source="a test", basis="stated", dense=True),
            "int8": Peak(value=4e12, source="a test", basis="stated", dense=True),
        },
        bandwidth_bytes_per_s=figure(bandwidth),
        onchip_bytes=figure(onchip),
    )


@pytest.mark.parametrize(
    ("one", "kind"),
    [
        (node("Conv", macs=1152 * 100, outputs=100), "conv"),
        (node("Conv", macs=9 * 100, outputs=100), "conv_thin"),
        (node("QLinearConv", macs=9 * 100, outputs=100), "conv_thin"),
        (node("MatMul", macs=1000), "matmul"),
        (node("MatMulIntegerToFloat", macs=1000), "matmul"),
        (node("LSTM", macs=1000), "recurrent"),
        (node("Softmax"), "reduce"),
        (node("MaxPool"), "reduce"),
        (node("Relu"), "elementwise"),
        (node("Transpose"), "move"),
        (node("NonMaxSuppression"), "other"),
    ],
)
def test_operators_that_use_hardware_alike_are_of_one_kind(one: NodeCost, kind: OpClass) -> None:
    assert op_class(one) == kind


def test_each_kind_has_the_slower_of_its_arithmetic_and_its_bytes() -> None:
    # 1e9 FLOP at 1e12/s is 1 ms and 5e7 B at 1e11/s is 0.5; 2e8 B are 2 ms.
    found = demand(
        device(),
        "fp32",
        [node("MatMul", macs=10**9 // 2, flops=10**9, moved=5 * 10**7), node("Relu", flops=10, moved=2 * 10**8)],
    )
    assert found.roofline_ms == {"matmul": pytest.approx(1.0), "elementwise": pytest.approx(2.0)}
    assert found.launches == 2


def test_a_narrower_precision_moves_fewer_bytes_against_its_own_peak() -> None:
    nodes = [node("MatMul", macs=1, flops=4 * 10**9, moved=10**8)]
    assert demand(device(), "int8", nodes).roofline_ms["matmul"] == pytest.approx(1.0)
    assert demand(device(), "fp16", nodes).roofline_ms["matmul"] == pytest.approx(4.0)


def test_views_and_branches_not_taken_launch_nothing() -> None:
    idle = NodeCost(name="b", op="Relu", times=0, macs=0, flops=0, bytes=0, weight_bytes=0, output_shapes=[])
    assert demand(device(), "fp32", [node("Reshape", moved=100), idle]).launches == 0


def test_an_npu_is_asked_for_a_models_products_and_their_weights_as_a_whole() -> None:
    nodes = [
        node("Conv", macs=10**9, flops=2 * 10**9, moved=10**9, weights=10**7),
        node("MatMul", macs=10**9, flops=2 * 10**9, moved=10**9, weights=10**7),
        node("Relu", flops=10**9, moved=10**9),
    ]
    found = demand(device(kind="npu"), "fp32", nodes)
    # 4e9 FLOP at 1e12/s; 2e7 bytes of weights at 1e11/s would be 0.2 ms.
    assert (found.roofline_ms, found.launches) == ({"conv": pytest.approx(4.0)}, 0)
    fetched = demand(device(kind="npu", bandwidth=1e9), "fp32", nodes)
    assert fetched.roofline_ms == {"conv": pytest.approx(20.0)}


@pytest.mark.parametrize("faster", [1.5, 10.0, 1e4])
def test_more_bandwidth_is_never_slower(faster: float) -> None:
    nodes = [node("MatMul", macs=1, flops=10**9, moved=m) for m in (10**5, 10**7, 10**9)]
    slow, fast = (sum(demand(device(bandwidth=b), "fp32", nodes).roofline_ms.values()) for b in (1e10, 1e10 * faster))
    assert fast <= slow


def test_weights_that_the_chip_does_not_hold_come_over_the_link_for_every_run() -> None:
    link = Figure(value=1e9, source="a test", basis="stated")
    npu = msgspec.structs.replace(device(kind="npu", onchip=2e6, bandwidth=None), host_link_bytes_per_s=link)
    # 5e6 bytes of weights, 3e6 beyond the chip, at 1e9 B/s.
    nodes = [node("Conv", macs=10**6, flops=2 * 10**6, moved=10**7, weights=5 * 10**6)]
    assert demand(npu, "fp32", nodes).roofline_ms["stream"] == pytest.approx(3.0)
    held = [node("Conv", macs=10**6, flops=2 * 10**6, moved=10**7, weights=10**6)]
    assert "stream" not in demand(npu, "fp32", held).roofline_ms
