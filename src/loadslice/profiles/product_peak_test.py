import pytest

from loadslice.profiles.product_peak import SIDE, local_device, product, product_flop_per_s


def test_the_product_is_timed_as_the_runtime_runs_it() -> None:
    pytest.importorskip("onnxruntime")
    flop_per_s, runtime = product_flop_per_s(1)
    # From an embedded core to beyond any; a slip of a unit would be outside.
    assert 1e8 < flop_per_s < 1e14
    assert runtime.startswith("onnxruntime ")


def test_it_is_one_product_of_the_stated_size() -> None:
    model, feeds = product()
    assert [node.op_type for node in model.graph.node] == ["MatMul"]
    assert feeds["left"].shape == (SIDE, SIDE)


def test_this_machine_has_cores_to_share_and_the_better_peak() -> None:
    pytest.importorskip("onnxruntime")
    found = local_device()
    assert found.name == "local"
    assert found.cores is not None
    assert found.cores.value >= 1
    assert found.peak_ops_per_s["fp32"].basis == "measured"
