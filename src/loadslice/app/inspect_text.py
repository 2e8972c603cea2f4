"""What `inspect` adds about time on this machine and about recorded traffic, as lines for a person."""

from collections.abc import Iterator

from loadslice.graph.numbers import scaled
from loadslice.spec.inspection import Inspection, KernelGroup, Measured, SizeUse, TrafficSizes

GROUPS_SHOWN = 12
NODES_SHOWN = 3
OPS_SHOWN = 8
CHOICES_SHOWN = 8

NOISE = 0.95
"""A peak measured twice differs by this much on a quiet machine."""


def describe_extras(result: Inspection) -> Iterator[str]:
    """Traffic, then measured times."""
    if result.traffic is not None:
        yield ""
        yield from describe_traffic(result.traffic)
    if result.measured is not None:
        yield ""
        yield from describe_measured(result.measured)


def describe_traffic(sizes: TrafficSizes) -> Iterator[str]:
    """Each open dimension with its buckets, and what falls outside."""
    yield f"  recorded traffic: {sizes.requests:,} requests in {sizes.traffic}"
    for use in sizes.sizes:
        same = [one for one in sizes.sizes if one.symbol == use.symbol and use.symbol is not None] or [use]
        if use is same[0]:
            yield from _size_use(use, " ".join(f"{one.input}[{one.axis}]" for one in same))
    yield (
        f"    {sizes.shapes} static shapes; {sizes.outside_share:.2%} of the requests outside (buckets cover "
        f"{sizes.cover:.0%} of each dimension, * has at most {sizes.padding_max:.0%} padding or is the best allowed)"
    )
    if sizes.unread:
        yield f"    nothing recorded of {', '.join(sizes.unread)}"


def _size_use(use: SizeUse, places: str) -> Iterator[str]:
    symbol = f" ({use.symbol})" if use.symbol else ""
    yield (
        f"    {places}{symbol}, {use.source}: {use.min} to {use.max}, p50 {use.p50}, p99 {use.p99}, "
        f"{use.distinct:,} distinct"
    )
    for choice in use.choices:
        chosen = choice == use.chosen
        if chosen or len(choice.buckets) <= CHOICES_SHOWN:
            bounds = " ".join(map(str, choice.buckets))
            yield f"    {'*' if chosen else ' '} {bounds}: {choice.padding_share:.1%} padding"
    later = use.outside_share_later
    ahead = "" if later is None else f"; of the later half with the earlier half's buckets {later:.2%}"
    yield f"      outside {use.outside_share:.2%}{ahead}"


def describe_measured(measured: Measured) -> Iterator[str]:
    """The slowest groups of kernels, measured beside modelled."""
    how = "" if measured.optimised else ", unoptimised"
    yield (
        f"  measured on this machine: {measured.run_ms:.3f} ms a run, {measured.kernels_ms:.3f} ms in kernels "
        f"({measured.runtime}{how}, {measured.threads} threads, {measured.runs} runs of {measured.inputs})"
    )
    yield f"    {'measured':>10}{'roofline':>10}{'bound':>9}  kernels <- nodes of the file"
    for group in sorted(measured.groups, key=lambda each: -each.time_ms)[:GROUPS_SHOWN]:
        yield _group(group)
    more = len(measured.groups) - GROUPS_SHOWN
    if more > 0:
        yield f"    and {more} more (--json has all)"
    by_op = " ".join(f"{op} {ms:.3f}" for op, ms in list(measured.ops_ms.items())[:OPS_SHOWN])
    yield f"    by operator of the file, ms: {by_op}"
    yield from _faster(measured)
    for note in measured.roofline_notes:
        yield f"    roofline, {note}"
    if measured.unrecognised_ms:
        yield f"    {measured.unrecognised_ms:.3f} ms in kernels that no node of the file is recognised in"
    if measured.not_run:
        yield f"    {len(measured.not_run)} nodes have no kernel: the runtime removed them"
    yield f"    the run held {scaled(measured.arena_bytes, 'B')} of its own at the peak, weights and scratch aside"


FASTER = {
    "compute": "its peak was taken by one matrix product, seconds before, on a machine that was busier then",
    "memory": "their data stayed in the caches, which the roofline's copy of memory does not fit",
}


def _faster(measured: Measured) -> Iterator[str]:
    """Kernels that beat the roof, which no kernel can: why the roof is too low for them."""
    for bound, why in FASTER.items():
        found = [
            group
            for group in measured.groups
            if group.bound == bound and group.roofline_ms is not None and group.time_ms < NOISE * group.roofline_ms
        ]
        if found:
            are = "group" if len(found) == 1 else "groups"
            yield f"    {len(found)} {are} bound by {bound} ran faster than the roofline: {why}"


def _group(group: KernelGroup) -> str:
    roofline = f"{group.roofline_ms:.3f}" if group.roofline_ms is not None else "unknown"
    names = " ".join(group.nodes[:NODES_SHOWN]) or "unrecognised"
    more = f" and {len(group.nodes) - NODES_SHOWN} more" if len(group.nodes) > NODES_SHOWN else ""
    return (
        f"    {group.time_ms:>10.3f}{roofline:>10}{group.bound or '-':>9}  {'+'.join(group.kernels)} <- {names}{more}"
    )
