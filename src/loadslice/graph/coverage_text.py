"""Coverage as lines for a person."""

from collections import Counter
from collections.abc import Iterator

from loadslice.graph.numbers import scaled
from loadslice.spec.inspection import DeviceFit

SHOWN = 8


def describe_coverage(fit: DeviceFit) -> Iterator[str]:
    """What runs on the device, by whom that is said, what falls back and what would change it."""
    if fit.source is None:
        yield "    operator support: unknown (no operator table, no compiler asked)"
        yield from (f"    note: {note}" for note in fit.coverage_notes)
        return
    at_least = "at least " if fit.unknown_nodes else ""
    yield (
        f"    runs {at_least}{_percent(fit.supported_nodes_share)} of the nodes, "
        f"{at_least}{_percent(fit.supported_flops_share)} of the work there"
    )
    yield f"    by {fit.basis}: {fit.source}"
    if fit.segments is not None:
        parts = "1 part" if fit.segments == 1 else f"{fit.segments} parts"
        yield f"    in {parts}, {fit.cuts} tensors cross the border, {scaled(fit.transfer_bytes, 'B')} a run"
    if fit.unknown_nodes:
        unknown = Counter(node.op for node in fit.placement if node.on == "unknown")
        plural = "s" if fit.unknown_nodes > 1 else ""
        yield f"    {fit.unknown_nodes} node{plural} of unknown support: {_counted(unknown)}"
    reasons = Counter((entry.op, entry.reason) for entry in fit.unsupported or [])
    for (op, reason), count in reasons.most_common(SHOWN):
        yield f"    falls back: {count} x {op}: {reason}"
    if len(reasons) > SHOWN:
        yield f"    and {len(reasons) - SHOWN} more reasons (--json has every node)"
    if fit.by_table is not None:
        yield (
            f"    the table would have said {_percent(fit.by_table.supported_nodes_share)} of the nodes "
            f"({len(fit.disagreements)} placed otherwise): {fit.by_table.source}"
        )
        for op, count in Counter(entry.op for entry in fit.disagreements).most_common(SHOWN):
            yield f"      the compiler places {count} x {op} otherwise"
    for remedy in fit.remedies:
        saved = remedy.saves_transfer_bytes
        moved = f", {scaled(saved, 'B')} a run less to copy" if saved else ""
        yield (
            f"    `loadslice rewrite --pass {remedy.rewrite}` takes {len(remedy.removes)} of the fallbacks away"
            f"{moved}: {_percent(remedy.supported_nodes_share)} of the nodes"
        )
    yield from (f"    note: {note}" for note in fit.coverage_notes)


def _percent(share: float | None) -> str:
    return "an unknown share" if share is None else f"{100 * share:.4g} %"


def _counted(ops: Counter[str]) -> str:
    shown = [f"{count} {op}" for op, count in ops.most_common(SHOWN)]
    return ", ".join(shown) + (" ..." if len(ops) > SHOWN else "")
