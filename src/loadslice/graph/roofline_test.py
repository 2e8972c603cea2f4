import pytest

from loadslice.graph.roofline import fit
from loadslice.spec.device import Device, Figure, Peak
from loadslice.spec.inspection import DeviceFit, NodeCost


def figure(value: float) -> Figure:
    return Figure(value=value, source="a test", basis="stated")


def device(**fields: object) -> Device:
    peaks = {"fp32": Peak(value=1e12, source="a test", basis="stated", dense=True)}
    base = {"peak_ops_per_s": peaks, "bandwidth_bytes_per_s": figure(1e11)}
    return Device(name="d", title="d", kind="gpu", **(base | fields))  # type: ignore[arg-type]


def node(flops: int | None, moved: int | None) -> NodeCost:
    return NodeCost(
        name="n", op="MatMul", times=1, macs=None, flops=flops, bytes=moved, weight_bytes=0, output_shapes=[]
    )  # fmt: skip


def on(
    on_device: Device,
    *,
    flops: int | None = 10**9,
    moved: int | None = 10**7,
    activations: int | None = 10**6,
    precision: str = "fp32",
) -> DeviceFit:
    return fit(
        on_device,
        precision=precision,
        flops=flops,
        bytes_moved=moved,
        compulsory_bytes=10**6,
        weight_bytes={"float": 4 * 10**6},
        peak_activation_bytes=activations,
        nodes=[node(flops, moved)],
    )


def test_below_the_ridge_memory_binds_and_above_it_compute() -> None:
    low, high = on(device(), moved=10**9), on(device(), moved=10**7)
    assert low.ridge_flop_per_byte == 10
    assert (low.bound, high.bound) == ("memory", "compute")
    assert (low.attainable_flop_per_s, high.attainable_flop_per_s) == (1e11, 1e12)
    assert low.bound_if_fused == "compute"


def test_modelled_time_is_the_slower_of_compute_and_memory() -> None:
    assert on(device(), moved=10**9).time_ms_modelled == pytest.approx(10)
    assert on(device(), moved=10**7).time_ms_modelled == pytest.approx(1)
    assert on(device(), moved=10**9).time_ms_modelled_if_fused == pytest.approx(1)


def test_what_a_device_or_a_model_does_not_say_stays_unknown() -> None:
    for result in (on(device(bandwidth_bytes_per_s=None)), on(device(peak_ops_per_s={})), on(device(), flops=None)):
        assert (result.bound, result.time_ms_modelled) == (None, None)
    assert on(device()).fits is None
    assert on(device(memory_bytes=figure(1e9)), activations=None).fits is None
    assert on(device()).supported_nodes_share is None
    assert on(device()).source is None


def test_a_model_fits_on_the_chip_on_the_device_or_not_at_all() -> None:
    assert on(device(memory_bytes=figure(1e9), onchip_bytes=figure(5e6))).fits == "onchip"
    assert on(device(memory_bytes=figure(1e9), onchip_bytes=figure(4.9e6))).fits == "device"
    assert on(device(memory_bytes=figure(4e6))).fits == "no"


def test_a_device_without_the_models_precision_takes_its_highest_and_says_so() -> None:
    peaks = {name: Peak(value=1e12, source="a test", basis="stated", dense=True) for name in ("int8", "fp16")}
    result = on(device(peak_ops_per_s=peaks, onchip_bytes=figure(2.5e6)))
    assert (result.precision, result.needs_conversion) == ("fp16", True)
    assert result.fits == "onchip"
    assert on(device(peak_ops_per_s=peaks), precision="int8").needs_conversion is False


def test_every_figure_used_names_its_source() -> None:
    assert on(device()).figures["peak_ops_per_s.fp32"] == "stated: a test"
