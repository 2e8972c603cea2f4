"""Operators that a device does not run: parts of the model fall back to the host, and every border is a copy."""

from collections import Counter
from collections.abc import Iterable

from loadslice.evaluate.diagnose.evidence import Evidence, NotSeenError
from loadslice.evaluate.diagnose.rule import Rule
from loadslice.spec.diagnosis import Finding
from loadslice.spec.inspection import DeviceFit, Inspection

NAMED = 5


def _look(evidence: Evidence) -> Iterable[Finding]:
    known = [
        (place, model, name, fit)
        for place, model in evidence.inspections
        for name, fit in model.devices.items()
        if fit.supported_nodes_share is not None
    ]
    if not known:
        raise NotSeenError("no inspection says which operators a device runs")
    for place, model, name, fit in known:
        if fit.supported_nodes_share is not None and fit.supported_nodes_share < 1 and fit.unsupported:
            yield _finding(place, model, name, fit)


def _finding(place: str, model: Inspection, name: str, fit: DeviceFit) -> Finding:
    assert fit.unsupported is not None
    counts = Counter(one.op for one in fit.unsupported)
    which = ", ".join(f"{op} x{count}" for op, count in counts.most_common(NAMED))
    first = fit.unsupported[0]
    flops = "" if fit.supported_flops_share is None else f" and {1 - fit.supported_flops_share:.1%} of the FLOPs"
    crossings = "" if fit.cuts is None else f"; {fit.segments} segments, {fit.cuts} tensors cross"
    moved = "" if not fit.transfer_bytes else f", {fit.transfer_bytes / 1e6:.3g} MB a run"
    best = max(fit.remedies, key=lambda one: len(one.removes), default=None)
    remedy = (
        f"`loadslice rewrite {model.model} --pass {best.rewrite}` takes {len(best.removes)} of them away"
        if best is not None
        else f"leave them on the host in one piece: `loadslice slice {model.model} --device {name}` finds the "
        "cheapest cut"
    )
    return Finding(
        rule=RULE.name,
        symptom=f"not all of {model.model} runs on {name}",
        evidence=f"{place}: {1 - (fit.supported_nodes_share or 0):.1%} of the nodes{flops} have no operator there: "
        f"{which}{crossings}{moved} ({fit.source or first.source})",
        cause=f"{first.op} ({first.node}): {first.reason}",
        remedy=remedy,
        confidence="high" if fit.basis == "compiler" else "medium",
        basis="measured" if fit.basis == "compiler" else "modelled",
        figures={
            "supported_nodes_share": fit.supported_nodes_share,
            "supported_flops_share": fit.supported_flops_share,
            "cuts": fit.cuts,
            "transfer_bytes": fit.transfer_bytes,
            "device": name,
        },
    )


RULE = Rule(
    name="unsupported-operator",
    formula="supported_nodes_share < 1 on a device that the model is meant for",
    reason="one node in the middle that a device lacks costs two crossings of the border in every run",
    needs="an inspection (`loadslice inspect M --device D --out RUN`), or --pipeline with devices on its engines",
    look=_look,
)
