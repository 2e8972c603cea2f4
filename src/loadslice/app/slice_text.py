"""A slice plan as lines for a person."""

from collections.abc import Iterator

from loadslice.graph.numbers import scaled
from loadslice.spec.slices import Assignment, BankPoint, SlicePlan, StitchCheck

SLICES_SHOWN = 24
SPLITS_SHOWN = 8
FALLBACKS_SHOWN = 6


def describe_plan(plan: SlicePlan) -> Iterator[str]:
    """The comparison, then the chosen slices, then what is assumed."""
    yield plan.model
    shapes = " ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in plan.shapes.items())
    yield f"  {plan.ops} operators, {plan.legal_cuts} legal cuts, at {shapes}"
    for name, device in plan.devices.items():
        link = device.link
        moved = (
            "the host" if link.bytes_per_s is None else f"link {scaled(link.bytes_per_s, 'B/s')} + {link.sync_us:g} us"
        )
        yield f"  {name:<10}{device.basis}: {device.source}; {moved}" + (
            "" if link.basis == "host" else f" ({link.basis})"
        )
        if device.times_95 is not None and device.error is not None:
            low, high = device.times_95
            yield f"    may take x {low:.2g} to {high:.2g} of that, 95 times of 100: {device.error.why}"
    yield from _coverage(plan)
    yield ""
    yield (
        f"  {'assignment':<22}{'latency':>10}{'pace':>10}{'compute':>10}{'copies':>9}{'sync':>9}"
        f"{'slices':>8}{'cuts':>6}{'moves':>7}{'moved':>10}  (ms)"
    )
    for row in plan.assignments:
        yield _row(row, chosen=row.name == plan.chosen)
    yield ""
    yield from _verdict(plan)
    yield ""
    yield from _slices(plan)
    for split in plan.splits[:SPLITS_SHOWN]:
        yield (
            f"  shared {split.node} ({split.op}): {split.first_units} of {split.units} by {split.by} on "
            f"{split.devices[0]}, the rest on {split.devices[1]}; {_ms(split.split_ms)} ms, alone {_ms(split.alone_ms)}"
            f" ({split.basis})"
        )
        for point in split.curve:
            yield _point(point)
    if len(plan.splits) > SPLITS_SHOWN:
        yield f"  and {len(plan.splits) - SPLITS_SHOWN} more that two devices share (--json has all)"
    for what, found in (("stitched", plan.stitched), ("shared", plan.shared)):
        if found is not None:
            yield f"  {what}: outputs {_nearness(found)} the whole model's, {found.runs} drawn inputs, {found.runtime}"
    for note in plan.notes:
        yield f"  note: {note}"


def _coverage(plan: SlicePlan) -> Iterator[str]:
    for name, found in plan.coverage.items():
        if not found.fallback_ops:
            yield f"  {name} runs every operator, by {found.basis}: {found.source}"
            continue
        yield (
            f"  {name} leaves {found.fallback_ops} of {plan.ops} operators to others, {_ms(found.fallback_ms)} ms "
            f"there before copies, by {found.basis}: {found.source}"
        )
        for one in found.fallbacks[:FALLBACKS_SHOWN]:
            yield f"    {one.count} {one.op}, {_ms(one.ms)} ms: {one.reason}"
        if len(found.fallbacks) > FALLBACKS_SHOWN:
            yield f"    and {len(found.fallbacks) - FALLBACKS_SHOWN} more kinds (--json has all)"


def _row(row: Assignment, *, chosen: bool) -> str:
    name = f"{'*' if chosen else ' '} {row.name}"
    if row.reason is not None:
        return f"{name:<24}  {row.reason}"
    return (
        f"{name:<24}{_ms(row.latency_ms):>10}{_ms(row.bottleneck_ms):>10}{_ms(row.compute_ms):>10}"
        f"{_ms(row.copy_ms):>9}{_ms(row.sync_ms):>9}{row.slices:>8}{row.cuts:>6}{row.transfers:>7}"
        f"{scaled(row.transfer_bytes, 'B'):>10}"
    )


def _verdict(plan: SlicePlan) -> Iterator[str]:
    chosen = next(row for row in plan.assignments if row.name == plan.chosen)
    proofs = [row for row in plan.assignments if row.gap_pct is not None]
    yield f"  chosen for {plan.objective}: {chosen.name} ({chosen.how})"
    for row in proofs:
        assert row.gap_pct is not None
        goal = {"legal cuts": "latency among assignments at legal cuts", "pipeline": "pace"}.get(row.name, "latency")
        state = "proven optimal" if row.gap_pct == 0 else f"at most {row.gap_pct:.3g} % above the best, proven,"
        yield f"  {row.name}: {state} for {goal}"
    if plan.fragmentation_ms is None or plan.greedy_excess_pct is None:
        return
    rule = next(row for row in plan.assignments if row.name == "priority")
    yield (
        f"  fragmentation: the runtimes' rule makes {rule.slices} slices and spends {_ms(plan.fragmentation_ms)} of "
        f"{_ms(rule.latency_ms)} ms on copies and synchronisation; it is {plan.greedy_excess_pct:+.1f} % off the chosen"
    )


def _slices(plan: SlicePlan) -> Iterator[str]:
    for part in plan.slices[:SLICES_SHOWN]:
        file = f"  {part.model}" if part.model else ""
        yield (
            f"  slice {part.index} on {part.engine}: {part.ops} operators, {part.first} to {part.last}; "
            f"compute {_ms(part.compute_ms)}, in {_ms(part.transfer_in_ms)}, out {_ms(part.transfer_out_ms)} ms{file}"
        )
        yield f"    from {_names(part.from_)} to {_names(part.to)}"
    if len(plan.slices) > SLICES_SHOWN:
        yield f"  and {len(plan.slices) - SLICES_SHOWN} more (--json has all)"


def _point(point: BankPoint) -> str:
    if point.first_ms is None or point.second_ms is None:
        return f"    {point.first_units:>6} units first: {_ms(point.together_ms)} ms, whole"
    return (
        f"    {point.first_units:>6} units first: {_ms(point.together_ms)} ms; halves alone {_ms(point.first_ms)} and "
        f"{_ms(point.second_ms)}, x{point.slower_by:.2f} beside each other, waiting {_ms(point.sync_ms)}, joining "
        f"{_ms(point.join_ms)}"
    )


def _nearness(found: StitchCheck) -> str:
    if found.bit_equal:
        return "bit for bit equal to"
    if found.max_abs_diff is None or found.max_rel_diff is None:
        return "of another shape or kind than"
    return f"up to {found.max_abs_diff:.3g} ({found.max_rel_diff:.2g} of the largest) off"


def _names(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if value < 100 else f"{value:.1f}"
