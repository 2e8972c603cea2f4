"""What the service runs out of first, from utilisation and stages; unknown without evidence.

Rules, in order; a resource counts by its 95th percentile, so that idle nights do not hide busy hours:

1. memory (of the machine or the accelerator) at 90 % or more: memory size. Swapping and eviction come next.
2. memory bandwidth at 70 % or more where it was sampled: memory bandwidth.
3. input/output at 60 % or more, and above every processor: I/O.
4. a processor at 70 % or more: compute, unless the model does fewer than 10 FLOP per byte moved: then its arithmetic
   waits for memory (a processor counts as busy while it waits), which is memory bandwidth. 10 is near the ridge of
   current server CPUs; accelerators have theirs higher, which makes the rule cautious.
5. no utilisation, but half of the time goes to stages named for reading, fetching or sending: I/O.
"""

import re

from loadslice.spec.portrait import Bound, Utilisation

MEMORY_FULL_PCT = 90.0
BANDWIDTH_BUSY_PCT = 70.0
IO_BUSY_PCT = 60.0
PROCESSOR_BUSY_PCT = 70.0
INTENSITY_LOW_FLOP_PER_BYTE = 10.0
IO_STAGE_SHARE = 0.5
_IO_STAGE = re.compile(
    r"(^|[^a-z])(io|read|fetch|download|load|upload|write|store|disk|network|s3|send)", re.IGNORECASE
)


def find(
    utilisation: Utilisation | None, stage_share: dict[str, float] | None, intensity_flop_per_byte: float | None
) -> Bound:
    """Apply the rules of this module.

    Args:
        utilisation: Sampled resources.
        stage_share: Share of time per stage.
        intensity_flop_per_byte: Of the inspected model.
    """
    if utilisation is not None:
        return _from_utilisation(utilisation, intensity_flop_per_byte)
    moving = {name: share for name, share in (stage_share or {}).items() if _IO_STAGE.search(name)}
    if sum(moving.values()) >= IO_STAGE_SHARE:
        return Bound(class_="io", evidence=f"stages {', '.join(moving)} take {sum(moving.values()):.0%} of the time")
    return Bound(class_="unknown", evidence="no utilisation was given; sample it and pass --utilisation")


def _from_utilisation(utilisation: Utilisation, intensity: float | None) -> Bound:
    p95 = {name: series.p95 for name, series in utilisation.series.items() if name.endswith("_pct")}

    def busiest(*names: str) -> tuple[str, float]:
        return max(((name, p95.get(name, 0.0)) for name in names), key=lambda pair: pair[1])

    memory, full = busiest("mem_pct", "gpu_mem_pct")
    processor, busy = busiest("cpu_pct", "gpu_pct")
    moving = p95.get("io_pct", 0.0)
    bandwidth = p95.get("mem_bandwidth_pct", 0.0)
    if full >= MEMORY_FULL_PCT:
        return Bound(class_="memory_size", evidence=f"{memory} p95 is {full:.0f} (full from {MEMORY_FULL_PCT:.0f})")
    if bandwidth >= BANDWIDTH_BUSY_PCT:
        return Bound(class_="memory_bandwidth", evidence=f"mem_bandwidth_pct p95 is {bandwidth:.0f}")
    if moving >= IO_BUSY_PCT and moving > busy:
        return Bound(class_="io", evidence=f"io_pct p95 is {moving:.0f}, above {processor} at {busy:.0f}")
    if busy >= PROCESSOR_BUSY_PCT:
        seen = f"{processor} p95 is {busy:.0f}"
        if intensity is not None and intensity < INTENSITY_LOW_FLOP_PER_BYTE:
            return Bound(class_="memory_bandwidth", evidence=f"{seen} and the model does {intensity:.3g} FLOP per byte")
        known = "" if intensity is not None else "; whether it waits for memory is known with --model"
        return Bound(class_="compute", evidence=f"{seen}{known}")
    shown = ", ".join(f"{name} {value:.0f}" for name, value in p95.items())
    return Bound(class_="unknown", evidence=f"nothing is saturated (p95: {shown})")
