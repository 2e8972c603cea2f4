"""Reads `/metrics`: one scrape as numbers, and what happened between two."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Scrape:
    """All samples of one scrape."""

    at_s: float
    """On a clock of the reader's that never goes back; only differences mean something."""
    values: dict[tuple[str, Labels], float]

    def where(self, name: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        """Samples of a name that have these labels, each with all of its own."""
        wanted = labels.items()
        for (known, own), value in self.values.items():
            if known == name and wanted <= (found := dict(own)).items():
                yield found, value

    def total(self, name: str, **labels: str) -> float:
        """Their sum; 0 where there are none."""
        return math.fsum(value for _, value in self.where(name, **labels))

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Their sums by one label."""
        found: dict[str, float] = {}
        for own, value in self.where(name, **labels):
            if label in own:
                found[own[label]] = found.get(own[label], 0.0) + value
        return found


def read(text: str, at_s: float) -> Scrape:
    """Parse an exposition.

    Args:
        text: As the server gave it.
        at_s: See `Scrape`.

    Raises:
        ValueError: It is none.
    """
    return Scrape(
        at_s,
        {
            (sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        },
    )


def since(before: Scrape, after: Scrape) -> Scrape:
    """Growth of every counter and histogram; a gauge's growth is in it too and is nobody's to use.

    A server that has started anew counts from nothing: what it has by then is what it grew by.
    """
    began_anew = any(
        after.values.get(key, 0.0) < value
        for key, value in before.values.items()
        if key[0].endswith(("_total", "_count"))
    )
    base: Mapping[tuple[str, Labels], float] = {} if began_anew else before.values
    return Scrape(after.at_s, {key: value - base.get(key, 0.0) for key, value in after.values.items()})


def percentile_s(grown: Scrape, name: str, share: float, **labels: str) -> float | None:
    """A percentile of a histogram, straight inside its buckets; ``None``: nothing was observed.

    Args:
        grown: From `since`.
        name: Without ``_bucket``.
        share: 0 to 1.
        labels: Which of its series, added up.
    """
    counts: dict[float, float] = {}
    for own, value in grown.where(f"{name}_bucket", **labels):
        limit = float(own["le"])
        counts[limit] = counts.get(limit, 0.0) + value
    limits = sorted(counts)
    if not limits or counts[limits[-1]] <= 0:
        return None
    rank, low, below = share * counts[limits[-1]], 0.0, 0.0
    for limit in limits:
        if counts[limit] >= rank:
            if math.isinf(limit):
                return low
            within = (rank - below) / (counts[limit] - below) if counts[limit] > below else 1.0
            return low + (limit - low) * within
        low, below = limit, counts[limit]
    return low
