"""What is said beside kernels that ran faster than a roof that nothing can beat."""

import pytest

from loadslice.app.inspect_text import describe_measured
from loadslice.spec.device import BUSY
from loadslice.spec.inspection import Bound, KernelGroup, Measured


def measured(bound: Bound, time_ms: float, notes: list[str]) -> Measured:
    group = KernelGroup(
        kernels=["Conv"], nodes=["n"], time_ms=time_ms, roofline_ms=0.049, bound=bound, flops=1, bytes=1
    )
    return Measured(
        runtime="onnxruntime",
        optimised=True,
        threads=1,
        runs=20,
        warmup=3,
        run_ms=0.1,
        kernels_ms=0.1,
        unrecognised_ms=0.0,
        groups=[group],
        ops_ms={},
        not_run=[],
        arena_bytes=None,
        roofline="local",
        roofline_notes=notes,
        inputs="drawn numbers",
    )


@pytest.mark.parametrize(("bound", "why"), [("compute", "busier then"), ("memory", "stayed in the caches")])
def test_a_kernel_above_the_roof_is_explained(bound: Bound, why: str) -> None:
    above = "\n".join(describe_measured(measured(bound, 0.026, [])))
    assert f"1 group bound by {bound} ran faster than the roofline: " in above
    assert why in above
    assert "faster than the roofline" not in "\n".join(describe_measured(measured(bound, 0.06, [])))


def test_a_roof_that_was_measured_on_a_busy_machine_says_so() -> None:
    note = f"peak fp32: {BUSY}: others took 45% of its processors"
    assert f"    roofline, {note}" in list(describe_measured(measured("compute", 0.06, [note])))
