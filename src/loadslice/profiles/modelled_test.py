import math
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from loadslice.graph.inspect import inspect
from loadslice.graph.op_class import Demand, demand
from loadslice.profiles.calibration import Calibration, Errors, Fit, Kindly, shipped
from loadslice.profiles.modelled import entries, entry, error, missing, time_parts, with_modelled
from loadslice.spec.device import BUSY, Device, Figure, Kind, Peak
from loadslice.spec.errors import InputError
from loadslice.spec.files import stamp
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds


def figure(value: float) -> Figure:
    return Figure(value=value, source="a test", basis="stated")


def device(**fields: object) -> Device:
    peaks = {"fp32": Peak(value=1e12, source="a test", basis="stated", dense=True)}
    base = {"peak_ops_per_s": peaks, "bandwidth_bytes_per_s": figure(1e11), "memory_bytes": figure(16e9)}
    return Device(name="d", title="d", kind="gpu", **(base | fields))  # type: ignore[arg-type]


def known(*, devices: tuple[str, ...] = (), device_sd: float | None = 0.2) -> Calibration:
    fitted = Fit(
        slowness={"matmul": 2.0, "elementwise": 0.5},
        launch_ms=0.01,
        fixed_ms=0.1,
        otherwise=3.0,
        between_kinds_sd=0.7,
    )
    found = Errors(model_sd=0.3, families=5, device_sd=device_sd, devices=4)
    kind = Kindly(
        fit=fitted,
        errors=found,
        precision="fp32",
        precision_sd=0.4,
        cv=0.05,
        devices=list(devices),
        what="tests",
    )
    return Calibration(stamp=stamp("calibration/1"), command="none", kinds={"gpu": kind}, observations=[])


def product(folder: Path, rows: str | int = "rows", *, op: str | None = "Relu") -> Path:
    """A product with 1000 x 1000 weights, and perhaps something behind it."""
    weights = helper.make_tensor(
        "w", TensorProto.FLOAT, [1000, 1000], np.zeros((1000, 1000), np.float32).tobytes(), raw=True
    )
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], name="product")]
    nodes += [helper.make_node(op, ["h"], ["y"], name="after")] if op else []
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 1000])],
        [helper.make_tensor_value_info("y" if op else "h", TensorProto.FLOAT, [rows, 1000])],
        [weights],
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def modelled(path: Path, on: Device, calibration: Calibration, *batches: int) -> list[Entry]:
    return list(
        entries(path, on, calibration, variant="m", engine="e", shapes={"x": [1, 1000]}, batches=list(batches) or [1])
    )


def test_a_time_by_hand(tmp_path: Path) -> None:
    (one,) = modelled(product(tmp_path), device(host_link_bytes_per_s=figure(1e9)), known())
    # Weights 4e6 B and 8000 B in and out at 1e11 B/s: 0.04008 ms, twice as slow; 8000 B of Relu: 0.00008, halved.
    # Two launches 0.02; inputs and outputs 8000 B at 1e9 B/s: 0.008; the fixed part 0.1.
    assert one.latency_ms.mean == pytest.approx(2 * 0.04008 + 0.5 * 0.00008 + 0.02 + 0.008 + 0.1, rel=1e-3)
    assert (one.latency_ms.family, one.latency_ms.cv, one.basis) == ("lognormal", 0.05, "modelled")


def test_a_devices_own_launch_and_synchronisation_win_over_fitted_ones(tmp_path: Path) -> None:
    on = device(launch_s=figure(50e-6), sync_s=figure(2e-3))
    result = inspect(product(tmp_path), {"x": [1, 1000]}, [on])
    asked = demand(on, result.precision, result.nodes_cost)
    parts = time_parts(asked, on, known().kinds["gpu"], transfer_bytes=0)
    assert (parts["launch"], parts["fixed"]) == (pytest.approx(0.1), pytest.approx(2.0))


def test_energy_is_power_at_full_load_times_time_and_unknown_without_idle_power(tmp_path: Path) -> None:
    path = product(tmp_path)
    (one,) = modelled(path, device(idle_w=figure(10.0), active_w=figure(60.0)), known())
    assert one.latency_ms.mean is not None
    assert one.energy_j == pytest.approx(60.0 * one.latency_ms.mean / 1e3)
    (bare,) = modelled(path, device(tdp_w=figure(70.0)), known())
    assert bare.energy_j is None
    assert bare.source is not None
    assert "no power curve" in bare.source


@pytest.mark.parametrize(
    ("field", "slow", "fast"),
    [("bandwidth_bytes_per_s", 1e10, 1e12), ("host_link_bytes_per_s", 1e9, 6e10)],
)
def test_more_bandwidth_is_never_slower(tmp_path: Path, field: str, slow: float, fast: float) -> None:
    path = product(tmp_path)
    for batch in (1, 64, 1024):
        times = [
            modelled(path, device(**{field: figure(each)}), known(), batch)[0].latency_ms.mean for each in (slow, fast)
        ]
        assert times[1] is not None
        assert times[0] is not None
        assert times[1] < times[0]


def test_more_rows_never_take_less_time(tmp_path: Path) -> None:
    found = modelled(product(tmp_path), device(), known(), 1, 2, 8, 64, 512)
    means = [each.latency_ms.mean or 0.0 for each in found]
    assert means == sorted(means)
    assert means[-1] < 512 * means[0]


def test_a_device_that_was_measured_has_the_models_error_only(tmp_path: Path) -> None:
    path = product(tmp_path)
    seen = modelled(path, device(), known(devices=("d",)))[0].error
    other = modelled(path, device(), known())[0].error
    assert seen is not None
    assert other is not None
    assert (seen.device_sd, seen.model_sd, seen.freedom) == (0.0, 0.3, 4)
    assert other.device_sd == 0.2
    assert "this one was not measured" in other.why


@pytest.mark.parametrize("kind", ["gpu", "npu"])
def test_a_roof_that_was_measured_on_a_busy_machine_widens_the_interval_and_is_said(kind: Kind) -> None:
    quiet = msgspec.structs.replace(device(), kind=kind)
    note = f"bytes read plus bytes written; {BUSY}: others took 74% of its processors"
    roof = msgspec.structs.replace(figure(1e11), note=note)
    busy = msgspec.structs.replace(quiet, bandwidth_bytes_per_s=roof)
    before, found = (error(Demand({"matmul": 1.0}), one, known().kinds.get(kind), None) for one in (quiet, busy))
    assert found.device_sd == pytest.approx(math.hypot(before.device_sd, 0.7), abs=1e-4)
    assert "not to be relied on" not in before.why
    assert found.why.startswith(before.why)
    assert f"not to be relied on, bandwidth: {note}" in found.why


def test_a_class_of_devices_known_by_one_is_as_unsure_again_about_others(tmp_path: Path) -> None:
    found = modelled(product(tmp_path), device(), known(device_sd=None))[0].error
    assert found is not None
    assert found.device_sd == 0.3
    assert "only one such device was measured" in found.why


def test_operators_never_measured_there_widen_the_error_by_their_share(tmp_path: Path) -> None:
    result = inspect(product(tmp_path, op="Softmax"), {"x": [4000, 1000]}, [device()])
    asked = demand(device(), result.precision, result.nodes_cost)
    found = error(asked, device(), known().kinds["gpu"], None)
    share = 3 * asked.roofline_ms["reduce"] / (3 * asked.roofline_ms["reduce"] + 2 * asked.roofline_ms["matmul"])
    assert found.model_sd == pytest.approx(math.hypot(0.3, 0.7 * share), abs=1e-4)
    assert "operators (reduce)" in found.why


def test_a_precision_it_was_not_fitted_at_widens_the_error(tmp_path: Path) -> None:
    int8 = Peak(value=4e12, source="a test", basis="stated", dense=True)
    on = device(peak_ops_per_s={"int8": int8})
    found = modelled(product(tmp_path), on, known())[0]
    assert found.error is not None
    assert found.error.model_sd == pytest.approx(0.5)
    assert "fitted at fp32, and another precision is off by 0.40" in found.error.why


def test_a_kind_without_calibration_is_the_bare_roofline_and_says_so(tmp_path: Path) -> None:
    npu = msgspec.structs.replace(device(), kind="npu")
    found = modelled(product(tmp_path), npu, known())[0]
    assert found.error is not None
    assert found.error.freedom == 1
    assert "no npu was measured" in found.error.why


def test_what_is_missing_is_named_before_anything_is_modelled(tmp_path: Path) -> None:
    assert missing(device()) == []
    assert missing(device(bandwidth_bytes_per_s=None)) == ["bandwidth"]
    on_chip = msgspec.structs.replace(
        device(bandwidth_bytes_per_s=None, memory_bytes=None, host_link_bytes_per_s=figure(1e9)), kind="npu"
    )
    assert missing(on_chip) == []
    with pytest.raises(InputError, match="states no peak and no bandwidth: times on it cannot be modelled"):
        modelled(product(tmp_path), device(peak_ops_per_s={}, bandwidth_bytes_per_s=None), known())


def test_what_does_not_fit_or_is_open_is_refused(tmp_path: Path) -> None:
    path = product(tmp_path)
    with pytest.raises(InputError, match="do not fit the memory of 'd'"):
        modelled(path, device(memory_bytes=figure(1e6)), known())
    with pytest.raises(InputError, match="the shape of x is open"):
        list(entries(path, device(), known(), variant="m", engine="e", shapes={}, batches=[1]))
    with pytest.raises(InputError, match="states no peak at int8; it has fp32"):
        list(entries(path, device(), known(), variant="m", engine="e", shapes={}, batches=[1], to="int8"))


def test_measured_beats_modelled_and_fresh_beats_old(tmp_path: Path) -> None:
    def one(engine: str, basis: str, ms: float) -> Entry:
        times = Milliseconds(mean=ms, family="constant")
        return Entry(variant="m", engine=engine, batch=1, latency_ms=times, basis=basis)  # type: ignore[arg-type]

    before = LatencyTable(entries=[one("cpu0", "measured", 5.0), one("gpu0", "modelled", 6.0)], pipeline="p")
    fresh = [one("cpu0", "modelled", 1.0), one("gpu0", "modelled", 2.0), one("npu0", "modelled", 3.0)]
    merged = with_modelled(before, fresh)
    assert [(each.engine, each.basis, each.latency_ms.mean) for each in merged.entries] == [
        ("cpu0", "measured", 5.0),
        ("gpu0", "modelled", 2.0),
        ("npu0", "modelled", 3.0),
    ]
    assert merged.pipeline == "p"


def test_the_shipped_calibration_models_a_model(tmp_path: Path) -> None:
    result = inspect(product(tmp_path), {"x": [1, 1000]}, [device()])
    found = entry(result, device(), shipped(), variant="m", engine="e", batch=1)
    assert found.latency_ms.mean is not None
    assert 0.04 < found.latency_ms.mean < 1.0
    assert found.error is not None
    assert 0 < found.error.model_sd < 1.5
