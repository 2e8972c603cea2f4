"""What a search may claim, and what that presumes."""

import math
from collections.abc import Sequence

from loadslice.plan.fleet.search import SPARE, TIMES_FLUID, Fleet, Search
from loadslice.plan.sweep import WORTH, Swept
from loadslice.spec.plan import Proof

ASSUMES = (
    "an engine more never breaks a promise that holds without it",
    "no fleet is wanted that falls behind in a stretch, though a percentile over all of the trace may forgive it",
    f"of no type more than {TIMES_FLUID} times the engines that the load alone needs, and {SPARE}",
    "work is routed by stage, shape and size",
    "a fleet keeps the promise if it does under one of the policies tried",
    "traffic as recorded; growth is met by more of the same when it comes, or by what is cheapest for a later month",
)


def proof(
    searches: Sequence[Search],
    beside: Sequence[Search],
    swept: Swept,
    chosen: Fleet | None,
    *,
    sought: bool,
    priced: bool,
    seconds: float,
) -> Proof:
    """How far everything went.

    Args:
        searches: Of the reference plans; together they look at every mix.
        beside: Others, which only add to what was simulated.
        swept: Fleets around those that hold.
        chosen: The best; ``None``: none holds.
        sought: The cheapest was what was looked for, and its price is known.
        priced: Prices are money.
        seconds: That all took.
    """
    every = [*searches, *beside]
    proven = bool(searches) and all(result.proven for result in searches)
    bounds = [result.bound_per_hour for result in searches if math.isfinite(result.bound_per_hour)]
    return Proof(
        cheapest_proven=proven and sought,
        searched_out=proven,
        cost_per_hour=chosen.mix.cost_per_hour if chosen is not None and priced else None,
        lower_bound_per_hour=min(bounds) if bounds and sought else None,
        solved=sum(result.solved for result in every),
        solve_s=sum(result.solve_s for result in every),
        simulated=sum(result.simulated for result in every) + len(swept.verdicts),
        bounded=swept.bounded,
        dominated=swept.smaller + swept.dearer,
        requests_simulated=sum(result.requests for result in every) + swept.requests,
        seconds=seconds,
        assumes=list(ASSUMES),
        estimated=swept.estimated,
        front_tolerance=WORTH if len(swept.cost_per_hour) else None,
        sample_error=swept.sample_error,
    )
