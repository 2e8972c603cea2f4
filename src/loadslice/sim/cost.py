"""What a run costs: engines are paid by the hour, busy or not."""

from loadslice.spec.pipeline import Pipeline
from loadslice.spec.simulation import Cost

_S_PER_HOUR = 3600


def cost_of(pipeline: Pipeline, span_s: float, completed: int) -> Cost | None:
    """Money for all engines over a run; ``None`` as soon as one engine states no price, or nobody the currency.

    Args:
        pipeline: States prices.
        span_s: Length of the run.
        completed: Requests that were answered well.
    """
    per_hour = 0.0
    for engine in pipeline.engines.values():
        if engine.cost_per_hour is None:
            return None
        per_hour += engine.cost_per_hour
    if pipeline.currency is None:
        return None
    total = per_hour * span_s / _S_PER_HOUR
    return Cost(total=total, per_1000=1000 * total / completed if completed else None, currency=pipeline.currency)


def missing(pipeline: Pipeline) -> str | None:
    """Why the cost of a run is unknown, in one line; ``None``: it is known."""
    for name, engine in pipeline.engines.items():
        if engine.cost_per_hour is None:
            return f"cost is unknown: engine '{name}' states no cost_per_hour."
    return None if pipeline.currency else "cost is unknown: the pipeline states no currency."
