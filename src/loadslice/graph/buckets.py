"""Buckets for open dimensions: the few static sizes that recorded traffic justifies.

A device that wants static shapes runs a request at the smallest bucket that holds it and pads the rest. For a given
number of buckets the least padding is found exactly, by dynamic programming over the distinct sizes: the largest bucket
is the size that covers the wanted share of requests, the others are sizes that occur.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadslice.spec.inspection import BucketChoice, DynamicInput, SizeUse, TrafficSizes

Sizes = npt.NDArray[np.int64]

DISTINCT_MAX = 8192
"""Distinct sizes the search takes; more are rounded up to a common step first (half a second on one core)."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the buckets are held to."""

    count_max: int = 8
    cover: float = 0.99
    padding_max: float = 0.1


@dataclass(frozen=True, slots=True)
class Recorded:
    """One open dimension's size in every recorded request."""

    input: str
    axis: int
    symbol: str | None
    source: str
    sizes: Sizes


def choices(sizes: Sizes, wanted: Wanted) -> list[BucketChoice]:
    """The best buckets for each number of them, up to as many as help.

    Args:
        sizes: One per request, each >= 1; at least one.
        wanted: Its ``cover`` sets the largest bucket, its ``count_max`` the most buckets.
    """
    ordered = np.sort(sizes)
    largest = int(ordered[_rank(len(ordered), wanted.cover)])
    distinct, counts = np.unique(ordered[ordered <= largest], return_counts=True)
    asked = int((distinct * counts).sum())
    distinct, counts = _thinned(distinct, counts)
    before = np.concatenate([[0], np.cumsum(counts)])
    # Work of the first j distinct sizes in k buckets; the last of them is the upper bound of the last bucket.
    work = distinct * before[1:]
    cuts: list[Sizes] = []
    found = [BucketChoice(buckets=[largest], padding_share=(int(work[-1]) - asked) / asked)]
    while len(found) < min(wanted.count_max, len(distinct)) and found[-1].padding_share > 0:
        following = np.empty_like(work)
        cut = np.zeros(len(work), np.int64)
        for last in range(len(work)):
            totals = work[:last] + distinct[last] * (before[last + 1] - before[1 : last + 1])
            cut[last] = int(totals.argmin()) if last else -1
            following[last] = min(int(totals[cut[last]]), int(work[last])) if last else work[0]
            if last and following[last] == work[last]:
                cut[last] = -1
        cuts.append(cut)
        work = np.minimum(work, following)
        found.append(BucketChoice(buckets=_bounds(distinct, cuts), padding_share=(int(work[-1]) - asked) / asked))
    return found


def _rank(count: int, share: float) -> int:
    """Index of the smallest of ``count`` ordered values that covers a share of them."""
    return min(max(int(np.ceil(share * count - 1e-9)) - 1, 0), count - 1)


def _thinned(distinct: Sizes, counts: Sizes) -> tuple[Sizes, Sizes]:
    """At most `DISTINCT_MAX` sizes: where there are more, each is rounded up, and the largest stays."""
    if len(distinct) <= DISTINCT_MAX:
        return distinct, counts
    step = -(-int(distinct[-1]) // DISTINCT_MAX)
    rounded = np.minimum(-(-distinct // step) * step, distinct[-1])
    kept, places = np.unique(rounded, return_inverse=True)
    return kept, np.bincount(places, counts).astype(np.int64)


def _bounds(distinct: Sizes, cuts: Sequence[Sizes]) -> list[int]:
    """Upper bounds, read back from the last."""
    bounds, last = [int(distinct[-1])], len(distinct) - 1
    for cut in reversed(cuts):
        if cut[last] >= 0:
            last = int(cut[last])
            bounds.insert(0, int(distinct[last]))
    return bounds


def chosen(found: Sequence[BucketChoice], wanted: Wanted) -> BucketChoice:
    """The fewest buckets with no more padding than allowed, or the last."""
    return next((one for one in found if one.padding_share <= wanted.padding_max), found[-1])


def use(recorded: Recorded, wanted: Wanted) -> SizeUse:
    """What one dimension's recorded sizes justify; its arguments as in `traffic`."""
    sizes = recorded.sizes
    ordered = np.sort(sizes)
    found = choices(sizes, wanted)
    best = chosen(found, wanted)
    half = len(sizes) // 2
    later = None
    if half and half * (1 - wanted.cover) >= (1 if wanted.cover < 1 else 0):
        earlier = chosen(choices(sizes[:half], wanted), wanted)
        later = float((sizes[half:] > earlier.buckets[-1]).mean())
    return SizeUse(
        input=recorded.input,
        axis=recorded.axis,
        symbol=recorded.symbol,
        source=recorded.source,
        requests=len(sizes),
        min=int(ordered[0]),
        p50=int(ordered[_rank(len(ordered), 0.5)]),
        p99=int(ordered[_rank(len(ordered), 0.99)]),
        max=int(ordered[-1]),
        distinct=len(np.unique(ordered)),
        chosen=best,
        outside_share=float((sizes > best.buckets[-1]).mean()),
        outside_share_later=later,
        choices=found,
    )


def traffic(path: str, recorded: Sequence[Recorded], dynamic: Sequence[DynamicInput], wanted: Wanted) -> TrafficSizes:
    """Buckets for every open dimension that the traffic has sizes for.

    Args:
        path: Of the traffic.
        recorded: Dimensions with the sizes of the same requests, in their order; at least one, of at least one request.
        dynamic: The model's open inputs.
        wanted: What the buckets are held to.
    """
    uses = [use(one, wanted) for one in recorded]
    outside = np.zeros(len(recorded[0].sizes), bool)
    for one, used in zip(recorded, uses, strict=True):
        outside |= one.sizes > used.chosen.buckets[-1]
    axes = {used.symbol or f"{used.input}[{used.axis}]": len(used.chosen.buckets) for used in uses}
    read = {(one.input, one.axis) for one in recorded}
    return TrafficSizes(
        traffic=path,
        requests=len(outside),
        cover=wanted.cover,
        padding_max=wanted.padding_max,
        sizes=uses,
        shapes=int(np.prod(list(axes.values()))),
        outside_share=float(outside.mean()),
        unread=[f"{name}[{axis}]" for name, axis, _ in open_dimensions(dynamic) if (name, axis) not in read],
    )


def open_dimensions(dynamic: Sequence[DynamicInput]) -> list[tuple[str, int, str | None]]:
    """Input, axis and symbol of every dimension that the file leaves open."""
    return [
        (entry.name, axis, dim if isinstance(dim, str) else None)
        for entry in dynamic
        for axis, dim in enumerate(entry.shape or [])
        if not isinstance(dim, int)
    ]
