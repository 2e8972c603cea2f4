"""The last sentence of a squeeze: what to serve."""

from collections.abc import Sequence

from loadslice.spec.variant import Variant


def conclude(variants: Sequence[Variant], floor: str) -> str:
    """What to do about what was tried.

    Args:
        variants: All of them, as they were judged.
        floor: As it was applied.
    """
    shipped = [one for one in variants if one.shipped]
    if shipped:
        best = max(shipped, key=lambda one: one.speedup_vs_untuned or 0.0)
        return f"Serve {best.name}: {best.speedup_vs_untuned:.2f}x as fast as the model as it is, and it meets {floor}."
    timed = [one for one in variants if one.speedup_vs_untuned is not None]
    if not timed:
        return "Keep the model as it is: nothing that was built can be timed on this machine."
    met = [one for one in timed if one.meets_floor]
    if met:
        best = max(met, key=lambda one: one.speedup_vs_untuned or 0.0)
        if (best.speedup_vs_untuned or 0.0) > 1.0:
            return (
                f"Keep the model as it is: what was chosen misses {floor} on the inputs that judge. {best.name} meets "
                f"it ({best.speedup_vs_untuned:.2f}x) and was not chosen: give more inputs and try again."
            )
        return (
            f"Keep the model as it is: what meets {floor} is not faster here (the best, {best.name}, "
            f"{best.speedup_vs_untuned:.2f}x)."
        )
    marks = [one.metric.variant for one in timed if one.metric.variant is not None]
    reached = f" (the best reaches {max(marks):.4f})" if marks else ""
    return f"Keep the model as it is: nothing meets {floor}{reached}."
