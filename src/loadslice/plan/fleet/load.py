"""The traffic of a plan by time: buckets in their order, which valleys are read from."""

import numpy as np

from loadslice.plan.fleet.demand import Demand
from loadslice.sim.record import Traffic
from loadslice.spec.plan import HourLoad, Load

DAY_H = 24


def load_of(traffic: Traffic, asked: Demand) -> Load:
    """Rates of the whole and by bucket.

    Args:
        traffic: Sorted by arrival, from 0.
        asked: Its demand, whose buckets are in order up to a day and grouped by likeness beyond.
    """
    seconds = float(asked.seconds.sum())
    in_order = zip(asked.seconds, asked.requests, strict=True)
    return Load(
        requests=int(asked.requests.sum()),
        span_s=seconds,
        rate_per_s=float(asked.requests.sum()) / seconds,
        peak_rate_per_s=float((asked.requests / asked.seconds).max()),
        buckets=_mean_day(traffic)
        if asked.grouped
        else [
            HourLoad(hour=number, seconds=float(length), requests=int(count))
            for number, (length, count) in enumerate(in_order)
        ],
    )


def _mean_day(traffic: Traffic) -> list[HourLoad]:
    """Hour by hour from the trace's first on, each the mean of the days that have it."""
    hour = traffic.arrival_ns / 3.6e12
    whole, rest = divmod(float(hour[-1]), DAY_H)
    # The last day's hours are there as far as the trace goes.
    times_there = whole + np.clip(rest - np.arange(DAY_H), 0.0, 1.0)
    requests = np.bincount(hour.astype(np.int64) % DAY_H, minlength=DAY_H)
    return [
        HourLoad(hour=number, seconds=3600.0, requests=round(count / there))
        for number, (count, there) in enumerate(zip(requests, times_there, strict=True))
    ]
