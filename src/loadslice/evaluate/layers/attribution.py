"""Layer 6: where does the time of a lone request go?

    latency = compute + copy + queueing + scheduling + front + transport + unexplained

compute, copy: inside engines, as the server states. queueing: from entering a queue to dispatch. scheduling: from
dispatch to the worker's start, from the worker's end to the next stage, and the core. front: reading, parsing and
writing. transport: client, socket and an answer without work, measured by round trips that ask for nothing.
unexplained: what is left. Without the server's journal queueing holds the way to the worker and the front cannot be
told apart from what is left.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from loadslice.evaluate.layers.lone import Lone
from loadslice.evaluate.wire import Heard
from loadslice.spec.journal import Journal

PARTS = ("compute", "copy", "queueing", "scheduling", "front", "transport")
CLOSED_WITHIN = 0.02


@dataclass(slots=True)
class Attribution:
    """Means over lone requests, milliseconds."""

    requests: int
    latency_ms: float
    parts_ms: dict[str, float | None]
    unexplained_ms: float
    by_stage: dict[str, dict[str, float]]
    payload_bytes_per_s: float | None
    """Bytes in and out over the time in front and transport."""
    from_journal: bool

    @property
    def unexplained_share(self) -> float:
        """Of the measured latency; below 0 when parts were counted twice."""
        return self.unexplained_ms / self.latency_ms if self.latency_ms else 0.0


def attribute(lone: Lone, journal: Journal | None) -> Attribution | None:
    """Take lone requests apart; ``None`` when none says its stages.

    Args:
        lone: Requests, each with an id.
        journal: The server's, where it is at hand.
    """
    heards = [heard for heard in lone.heards if heard.completed and heard.stages]
    if not heards:
        return None
    inside = _inside(journal, heards) if journal is not None else {}
    kept = [heard for heard in heards if heard.id in inside] if inside else heards
    rows = [_parts(heard, inside.get(heard.id or ""), lone.transport_ms or 0.0) for heard in kept]
    latency_ms = float(np.mean([heard.whole_ms for heard in kept]))
    parts = {name: _mean([row[name] for row in rows]) for name in PARTS}
    return Attribution(
        requests=len(kept),
        latency_ms=latency_ms,
        parts_ms=parts,
        unexplained_ms=latency_ms - sum(value for value in parts.values() if value is not None),
        by_stage=_by_stage(kept),
        payload_bytes_per_s=_payload(kept, parts),
        from_journal=bool(inside),
    )


def _parts(heard: Heard, inside: dict[str, float] | None, transport_ms: float) -> dict[str, float | None]:
    compute = sum(stage.compute_ms for stage in heard.stages)
    copy = sum(stage.copy_ms for stage in heard.stages)
    if inside is None:
        queueing = sum(stage.queue_ms for stage in heard.stages)
        return {
            "compute": compute, "copy": copy, "queueing": queueing,
            "scheduling": None, "front": None, "transport": transport_ms,
        }  # fmt: skip
    return {
        "compute": compute,
        "copy": copy,
        "queueing": inside["queueing"],
        "scheduling": inside["core"] - inside["queueing"] - compute - copy,
        "front": inside["front"],
        "transport": transport_ms,
    }


def _inside(journal: Journal, heards: list[Heard]) -> dict[str, dict[str, float]]:
    """What the journal knows of each id: ``core`` (arrival to end), ``queueing`` and ``front``, milliseconds."""
    wanted = [heard.id for heard in heards]
    requests = journal.requests.filter(pl.col("id").is_in(wanted)).drop_nulls(["parse_ns", "reply_ns"])
    waits = journal.stages.group_by("tag").agg(queueing=(pl.col("dispatched_ns") - pl.col("enqueued_ns")).sum() / 1e6)
    found = {}
    for row in requests.join(waits, on="tag", how="inner").iter_rows(named=True):
        found[row["id"]] = {
            "core": (row["end_ns"] - row["arrival_ns"]) / 1e6,
            "queueing": row["queueing"],
            "front": (row["parse_ns"] + row["reply_ns"]) / 1e6,
        }
    return found


def _by_stage(heards: list[Heard]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, list[float]]] = {}
    for heard in heards:
        for stage in heard.stages:
            times = found.setdefault(stage.stage, {"queue_ms": [], "copy_ms": [], "compute_ms": []})
            for key, values in times.items():
                values.append(getattr(stage, key))
    return {stage: {key: float(np.mean(values)) for key, values in times.items()} for stage, times in found.items()}


def _payload(heards: list[Heard], parts: dict[str, float | None]) -> float | None:
    moved_ms = (parts["front"] or 0.0) + (parts["transport"] or 0.0)
    if parts["front"] is None or moved_ms <= 0:
        return None
    return float(np.mean([heard.request_bytes + len(heard.body) for heard in heards])) / (moved_ms / 1000)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def figures(found: Attribution) -> dict[str, Any]:
    """For the document."""
    return {
        "requests": found.requests,
        "latency_ms_mean": found.latency_ms,
        **{f"{name}_ms": value for name, value in found.parts_ms.items()},
        "unexplained_ms": found.unexplained_ms,
        "unexplained_pct": 100 * found.unexplained_share,
        "adds_up": abs(found.unexplained_share) <= CLOSED_WITHIN,
        "payload_bytes_per_s": found.payload_bytes_per_s,
        "memory_bandwidth_bytes_per_s": None,
        "stages": found.by_stage,
        "source": "replies and journal" if found.from_journal else "replies",
    }


def passed(found: Attribution) -> bool | None:
    """It adds up; cannot be said without a journal."""
    return abs(found.unexplained_share) <= CLOSED_WITHIN if found.from_journal else None
