"""Evidence from a live server: what its metrics show over some seconds."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loadslice.evaluate.diagnose.evidence import (
    EndedSeen,
    EngineSeen,
    Evidence,
    Floats,
    OutageSeen,
    PowerSeen,
    StageSeen,
    Timeline,
)
from loadslice.evaluate.scrape import Scrape, percentile_s, since
from loadslice.evaluate.watch.sensors import Sensed

BAD = ("failed", "rejected", "shed", "expired", "cancelled")


def evidence(
    scrapes: Sequence[Scrape],
    sensed: Sequence[Sensed | None],
    rollout: dict[str, Any] | None = None,
    described: Mapping[str, Mapping[str, Any]] | None = None,
) -> Evidence:
    """Everything rules can be asked about a server that was looked at.

    Args:
        scrapes: Two or more, in order.
        sensed: This machine's sensors at each; ``None``: the server is elsewhere.
        rollout: What its administration says of a rollout, if it was asked.
        described: And of its engines: backend, device and slots, by name.
    """
    grown = since(scrapes[0], scrapes[-1])
    span_s = scrapes[-1].at_s - scrapes[0].at_s
    names = [own["engine"] for own, _ in scrapes[-1].where("loadslice_engine_up")]
    emulated = bool(list(scrapes[-1].where("loadslice_twin_late_runs_total")))
    found = Evidence(
        basis="emulated" if emulated else "measured",
        requests=int(grown.total("loadslice_requests_total")),
        rollout=rollout,
    )
    found.ended, found.ended_over = _ended(grown, scrapes[-1], span_s)
    found.outages = _outages(scrapes, names)
    found.stages = _stages(grown, scrapes[-1])
    busy = grown.by("loadslice_engine_busy_seconds_total", "engine")
    known = described or {}
    found.engines = [_engine(name, grown, scrapes[-1], busy.get(name, 0.0) / span_s, known.get(name)) for name in names]
    found.timeline = _timeline(scrapes, names)
    found.powers, why = _powers(sensed)
    found.power_absent = why
    return found


def _ended(grown: Scrape, last: Scrape, span_s: float) -> tuple[list[EndedSeen], str]:
    """What ended while the server was looked at; where none of that was lost, what has ended since it started."""
    seen = _counted(grown)
    if any(one.outcome != "completed" for one in seen):
        return seen, f"in the {span_s:.1f} s that were looked at"
    return _counted(last), f"since the server started, none of it lost in the {span_s:.1f} s that were looked at"


def _counted(scrape: Scrape) -> list[EndedSeen]:
    seen = [
        EndedSeen(own["outcome"], own["reason"], int(count))
        for own, count in scrape.where("loadslice_requests_total")
        if count > 0
    ]
    at_door = scrape.by("loadslice_front_refusals_total", "status")
    return seen + [EndedSeen("refused", f"HTTP {code}", int(count)) for code, count in at_door.items() if count > 0]


def _outages(scrapes: Sequence[Scrape], names: list[str]) -> list[OutageSeen]:
    """Since the server started: it counts, and an engine that was lost before the first look was lost all the same."""
    return [
        OutageSeen(
            engine=name,
            downs=int(scrapes[-1].total("loadslice_engine_downs_total", engine=name)),
            is_down=any(value == 0 for _, value in scrapes[-1].where("loadslice_engine_up", engine=name)),
            down_s=None,
        )
        for name in names
    ]


def _stages(grown: Scrape, last: Scrape) -> list[StageSeen]:
    order: list[str] = []
    for own, _ in last.where("loadslice_stage_compute_seconds_count"):
        if own["stage"] not in order:
            order.append(own["stage"])
    seen = []
    for own, count in grown.where("loadslice_stage_compute_seconds_count"):
        if count <= 0:
            continue
        pair = {"stage": own["stage"], "engine": own["engine"]}

        def ms(name: str, share: float, pair: dict[str, str] = pair) -> float | None:
            found = percentile_s(grown, name, share, **pair)
            return None if found is None else found * 1000

        closed = grown.total("loadslice_batches_closed_total", **pair)
        seen.append(
            StageSeen(
                stage=own["stage"],
                engine=own["engine"],
                position=order.index(own["stage"]),
                requests=int(count),
                rows_mean=count / closed if closed else None,
                wait_ms_p50=ms("loadslice_stage_queue_seconds", 0.5),
                wait_ms_p95=ms("loadslice_stage_queue_seconds", 0.95),
                service_ms_p50=ms("loadslice_stage_compute_seconds", 0.5),
                service_ms_p99=ms("loadslice_stage_compute_seconds", 0.99),
            )
        )
    return seen


def _engine(
    name: str, grown: Scrape, last: Scrape, busy_slots: float, described: Mapping[str, Any] | None
) -> EngineSeen:
    batches = grown.total("loadslice_engine_batches_total", engine=name)
    dispatched = grown.total("loadslice_engine_requests_total", engine=name)
    if described is None:
        # Metrics do not tell slots; the server's own ratio, of its last ten seconds, knows them.
        slots, utilisation = 1, last.total("loadslice_engine_utilisation_ratio", engine=name)
    else:
        slots = int(described["slots"])
        utilisation = busy_slots / slots
    return EngineSeen(
        name=name,
        backend=None if described is None else described["backend"],
        device=None if described is None else described["device"],
        slots=slots,
        utilisation=min(1.0, utilisation),
        rows_mean=dispatched / batches if batches else None,
        batch_size=None,
        alone=described is None or described["backend"] != "python",
    )


def _timeline(scrapes: Sequence[Scrape], names: list[str]) -> Timeline | None:
    if len(scrapes) < 3:
        return None
    pairs = list(itertools.pairwise(scrapes))
    shape = (len(names), len(pairs))
    queue, errors, placed, busy = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape)
    service = np.full(shape, np.nan)
    arrivals, retries, completed = (np.zeros(len(pairs)) for _ in range(3))
    step_s = (scrapes[-1].at_s - scrapes[0].at_s) / len(pairs)
    for at, (before, after) in enumerate(pairs):
        grown = since(before, after)
        inside = after.total("loadslice_requests_inside") - before.total("loadslice_requests_inside")
        ended = grown.by("loadslice_requests_total", "outcome")
        completed[at] = ended.get("completed", 0.0)
        arrivals[at] = max(0.0, sum(ended.values()) + inside)
        retries[at] = grown.total("loadslice_retries_total") + grown.total(
            "loadslice_requests_total", reason="retry_budget"
        )
        bad = sum(ended.get(outcome, 0.0) for outcome in BAD)
        deepest = _deepest(after, names)
        for number, name in enumerate(names):
            queue[number, at] = after.total("loadslice_engine_queue_length", engine=name)
            placed[number, at] = grown.total("loadslice_placements_total", engine=name)
            failures = grown.total("loadslice_engine_failures_total", engine=name)
            # Metrics do not say where a request expired or was refused; it is where most wait.
            errors[number, at] = max(failures, bad if number == deepest else 0.0)
            batches = grown.total("loadslice_engine_batches_total", engine=name)
            busy_s = grown.total("loadslice_engine_busy_seconds_total", engine=name)
            busy[number, at] = min(1.0, busy_s / (after.at_s - before.at_s))
            service[number, at] = 1000 * busy_s / batches if batches else np.nan
    return Timeline(step_s, 0.0, names, queue, errors, placed, service, busy, arrivals, retries, completed)


def _deepest(scrape: Scrape, names: list[str]) -> int:
    waiting: Floats = np.array([scrape.total("loadslice_engine_queue_length", engine=name) for name in names])
    return int(waiting.argmax()) if len(names) else 0


def _powers(sensed: Sequence[Sensed | None]) -> tuple[list[PowerSeen], str]:
    known = [one for one in sensed if one is not None]
    if not known:
        return [], "the server runs on another machine, whose power is not seen from here"
    told = [one for one in known if one.power_limit_w is not None and one.power_w is not None]
    if not told:
        return [], known[-1].absent.get("power_w", "no accelerator's driver tells power and limit")
    limit_w = float(told[-1].power_limit_w or 0.0)
    near = [one for one in told if (one.gpu_utilisation or 0.0) >= 0.5] or told
    drawn_w = float(np.mean([one.power_w or 0.0 for one in near]))
    share = len(near) / len(told)
    return [PowerSeen("accelerators", drawn_w, limit_w, "the driver", share, None, "measured")], ""
