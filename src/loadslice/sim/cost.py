"""What a run costs: engines are paid by the hour, busy or not."""

from loadslice.spec.pipeline import Engine, Pipeline
from loadslice.spec.simulation import Cost

_S_PER_HOUR = 3600


def cost_of(pipeline: Pipeline, span_s: float, completed: int) -> Cost | None:
    """Money for all engines over a run; ``None`` as soon as one engine states no price, or nobody the currency.

    Args:
        pipeline: States prices.
        span_s: Length of the run.
        completed: Requests that were answered well.
    """
    per_hour = [_per_hour(engine) for engine in pipeline.engines.values()]
    currency = getattr(pipeline, "currency", None)
    if currency is None or any(price is None for price in per_hour):
        return None
    total = sum(price for price in per_hour if price is not None) * span_s / _S_PER_HOUR
    return Cost(total=total, per_1000=1000 * total / completed if completed else None, currency=currency)


def missing(pipeline: Pipeline) -> str | None:
    """Why the cost of a run is unknown, in one line; ``None``: it is known."""
    for name, engine in pipeline.engines.items():
        if _per_hour(engine) is None:
            return f"cost is unknown: engine '{name}' states no cost_per_hour."
    return None if getattr(pipeline, "currency", None) else "cost is unknown: the pipeline names no currency."


def _per_hour(engine: Engine) -> float | None:
    price: float | None = getattr(engine, "cost_per_hour", None)
    return price
