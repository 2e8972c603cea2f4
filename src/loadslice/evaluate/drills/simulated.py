"""The drills of the policy, in virtual time on the pipeline's own decisions and times."""

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import polars as pl
import yaml

from loadslice.evaluate.drills.stage import (
    Floats,
    Ground,
    NotApplicableError,
    endless,
    even,
    poisson,
    result,
    run,
)
from loadslice.sim import journal as sim_journal
from loadslice.sim import simulate
from loadslice.sim.check import check
from loadslice.spec import journal as journals
from loadslice.spec.drill import DrillResult
from loadslice.spec.faults import Backoff, Clients, Fault
from loadslice.spec.files import encode_json
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import Pipeline, Stage

SLOW_FROM_S, SLOW_FOR_S, AFTER_S, END_S = 20.0, 15.0, 5.0, 100.0
SLOW_FACTOR = 6.0
LOAD = 0.85
GOODPUT_MIN = 0.95
TOP_CLASS_MIN = 0.994
BURST = 12.0
FLAPS, FLAP_CALLS = 6, 1.5
"""Absences of a flapping engine, and calls that come in each over those that would open its breaker."""
CASCADE_MIN = 0.9
"""Of capacity that is still served when everything asks for too much."""

_LATE = (Outcome.REJECTED, Outcome.SHED)


def _clients(ground: Ground, *, proper: bool = True) -> Clients:
    """Clients that wait ten times a lone request, at least a second, and try four times."""
    patience_ms = max(1000.0, 10 * ground.lone_ms)
    backoff = Backoff(base_ms=patience_ms / 20, factor=2)
    return Clients(
        timeout_ms=patience_ms, attempts=4, backoff=backoff, cancels=proper, states_deadline=proper,
        states_attempt=proper,
    )  # fmt: skip


def avalanche(ground: Ground) -> DrillResult:
    """A slow spell of the busiest engine under 85 % load, with clients that come back."""
    rate = LOAD * ground.capacity_per_s
    scale = ground.span_s(rate, END_S) / END_S
    fault = Fault(
        at_s=SLOW_FROM_S * scale, for_s=SLOW_FOR_S * scale, engine=ground.busiest, kind="slow", factor=SLOW_FACTOR
    )
    arrival_s = poisson(rate, END_S * scale, ground.seed)
    after_s = fault.at_s + fault.for_s + AFTER_S * min(1.0, scale)

    def goodput(pipeline: Pipeline, clients: Clients) -> tuple[float, float]:
        trace = pl.DataFrame({"arrival_s": arrival_s})
        found = run(pipeline, ground.latency, trace, ground.seed, faults=[fault], clients=clients)
        answered_s = found.record.end_ns[simulate.in_time(found)] / 1e9 + arrival_s[0]
        return tuple(  # type: ignore[return-value]
            _share(answered_s, arrival_s, since, until)
            for since, until in ((fault.at_s, fault.at_s + fault.for_s), (after_s, float(arrival_s[-1])))
        )

    during, after = goodput(ground.pipeline, _clients(ground))
    naive_during, naive_after = goodput(endless(ground.pipeline), _clients(ground, proper=False))
    return result(
        "avalanche",
        f"goodput {after:.1%} from {AFTER_S * min(1.0, scale):.3g} s after the end of the spell ({during:.1%} during "
        f"it); without limits, deadlines and a retry budget {naive_after:.1%}",
        after >= GOODPUT_MIN,
        ground.seed,
        goodput_after_share=after, goodput_during_share=during, naive_after_share=naive_after,
        naive_during_share=naive_during, rate_per_s=rate, engine=ground.busiest,
    )  # fmt: skip


def _share(answered_s: Floats, arrival_s: Floats, since_s: float, until_s: float) -> float:
    offered = int(((arrival_s >= since_s) & (arrival_s < until_s)).sum())
    return float(((answered_s >= since_s) & (answered_s < until_s)).sum() / max(1, offered))


def _with_failover(ground: Ground) -> tuple[Stage, str, str]:
    """The first stage that fails over: it, its preferred engine, and its backup."""
    for stage in ground.pipeline.stages:
        if stage.failover is not None:
            return stage, stage.engine_names[0], stage.failover.to
    raise NotApplicableError("no stage has a failover; add `failover: {to: ENGINE, share: 0.3}` to one")


def _checked(found: simulate.Run, ground: Ground) -> list[str]:
    """Promises that every decision of the run broke, taken again one by one."""
    plain = msgspec.to_builtins(ground.pipeline)
    with tempfile.TemporaryDirectory(prefix="drill-") as name:
        folder = Path(name)
        sim_journal.write(found, folder, yaml.safe_dump(plain, sort_keys=False))
        (folder / "latency.json").write_bytes(encode_json(ground.latency))
        return [f"{one.promise}: {one.figure}" for one in check(journals.load(folder), folder) if not one.held]


def overflow(ground: Ground) -> DrillResult:
    """Half as much again as the preferred engine can take; the stage alone, where others let no more through."""
    stage, engine, backup = _with_failover(ground)
    assert stage.failover is not None
    found, rate = _overflown(ground, stage, engine)
    alone = simulate.summarise(found).decisions["overflow_eligible"] == 0 and len(ground.pipeline.stages) > 1
    if alone:
        only = msgspec.structs.replace(ground.pipeline, stages=[msgspec.structs.replace(stage, after=None)])
        ground = replace(ground, pipeline=only)
        found, rate = _overflown(ground, stage, engine)
    summary = simulate.summarise(found)
    eligible, sent = summary.decisions["overflow_eligible"], summary.decisions["overflow_sent"]
    if eligible == 0:
        raise NotApplicableError(
            f"engine '{engine}' never overflowed at 150 %; give it `queue.overflow_at` or `queue.wait_limit_ms`"
        )
    share = stage.failover.share
    others = [one for one in ground.pipeline.stages if one.failover is not None and one.name != stage.name]
    off = abs(sent - share * eligible)
    broken = _checked(found, ground)
    objective_ms = stage.timeout_ms
    backup_ms = _through(found, stage, backup)
    p99_ms = float(np.quantile(backup_ms, 0.99)) if backup_ms.size else None
    in_time = objective_ms is None or p99_ms is None or p99_ms <= objective_ms
    held = (off < 1 + len(others)) and not broken and in_time
    said = f"; stage '{stage.name}' alone, as others let no more through" if alone else ""
    said += "" if p99_ms is None else f"; p99 at '{backup}' {p99_ms:.1f} ms"
    said += "" if objective_ms is None else f" of {objective_ms:g} ms"
    said += f"; broken: {broken[0]}" if broken else "; every decision taken again, all invariants hold"
    return result(
        "overflow", f"{sent} of {eligible} sent, share {share:g} asks for {share * eligible:.1f}{said}", held,
        ground.seed, sent=sent, eligible=eligible, share=share, backup_ms_p99=p99_ms, rate_per_s=rate,
    )  # fmt: skip


def _overflown(ground: Ground, stage: Stage, engine: str) -> tuple[simulate.Run, float]:
    """Half as much again as an engine can take at a stage, and that rate."""
    rate = 1.5 * _alone_per_s(ground, stage.name, engine)
    span_s = min(ground.span_s(rate, 20.0), 8000 / rate)
    trace = pl.DataFrame({"arrival_s": poisson(rate, span_s, ground.seed)})
    return run(ground.pipeline, ground.latency, trace, ground.seed, journal=True), rate


def _alone_per_s(ground: Ground, stage: str, engine: str) -> float:
    """Capacity with this engine alone at a stage."""
    stages = [
        msgspec.structs.replace(
            one,
            engine=engine,
            engines=None,
            failover=None,
            prefer="static",
            rules=[],
            **{key: _only(getattr(one, key), engine) for key in ("accept", "batch", "share")},
        )
        if one.name == stage
        else one
        for one in ground.pipeline.stages
    ]
    alone = endless(msgspec.structs.replace(ground.pipeline, stages=stages))
    rate = 4 * ground.capacity_per_s
    requests = int(np.clip(4 * rate, 400, 10_000))
    return simulate.summarise(run(alone, ground.latency, even(requests, rate), ground.seed)).throughput_per_s


def _only(values: dict[str, object], engine: str) -> dict[str, object]:
    return {name: value for name, value in values.items() if name == engine}


def _through(found: simulate.Run, stage: Stage, engine: str) -> Floats:
    """Queueing and service at one stage on one engine, milliseconds."""
    stages = sim_journal.stages(found)
    at = stages.filter((pl.col("stage") == stage.name) & (pl.col("engine") == engine) & (pl.col("done_ns") >= 0))
    times_ms: Floats = ((at["done_ns"] - at["enqueued_ns"]) / 1e6).to_numpy()
    return times_ms


def backup_full(ground: Ground) -> DrillResult:
    """Three times as much as everything together can take."""
    _with_failover(ground)
    rate = 3 * ground.capacity_per_s
    trace = pl.DataFrame({"arrival_s": poisson(rate, ground.span_s(rate, 15.0), ground.seed)})
    found = run(ground.pipeline, ground.latency, trace, ground.seed)
    summary = simulate.summarise(found)
    refused = np.isin(found.record.outcome, [int(code) for code in _LATE])
    hints_ns = found.record.hint_ns[refused]
    with_hint = float((hints_ns > 0).mean()) if hints_ns.size else 1.0
    served = summary.throughput_per_s / ground.capacity_per_s
    failed = summary.outcomes["failed"]
    held = served >= CASCADE_MIN and with_hint == 1.0 and failed == 0 and bool(hints_ns.size)
    return result(
        "backup-full",
        f"{served:.0%} of capacity still served, {hints_ns.size} refused, {with_hint:.1%} of them with a hint, "
        f"{failed} failed",
        held, ground.seed, served_share=served, refused=int(hints_ns.size), hints_share=with_hint, failed=failed,
    )  # fmt: skip


def low_class_burst(ground: Ground) -> DrillResult:
    """The top class at 30 % of capacity, the lowest at 10 %, which bursts to twelve times that."""
    span_s = ground.span_s(2 * ground.capacity_per_s, 30.0)
    top_s = poisson(0.3 * ground.capacity_per_s, span_s, ground.seed)
    low_s = poisson(0.1 * ground.capacity_per_s, span_s, ground.seed + 1)
    burst_s = span_s / 3 + poisson((BURST - 1) * 0.1 * ground.capacity_per_s, span_s / 3, ground.seed + 2)
    low_s = np.concatenate([low_s, burst_s])
    names = ["critical_plus"] * len(top_s) + ["sheddable"] * len(low_s)
    times_s = np.concatenate([top_s, low_s])
    trace = pl.DataFrame({"arrival_s": times_s, "class": names}).sort("arrival_s", maintain_order=True)
    found = run(ground.pipeline, ground.latency, trace, ground.seed)
    top = (trace["class"] == "critical_plus").to_numpy()
    well = simulate.in_time(found)
    success, low = float(well[top].mean()), float(well[~top].mean())
    return result(
        "low-class-burst", f"{success:.2%} of the top class in time, {low:.1%} of the lowest", success >= TOP_CLASS_MIN,
        ground.seed, top_class_share=success, lowest_class_share=low, requests=len(times_s),
    )  # fmt: skip


def stage_full(ground: Ground) -> DrillResult:
    """The engines of a middle stage stand still for a while; nobody may wait for ever."""
    stages = ground.pipeline.stages
    if len(stages) < 2:
        raise NotApplicableError("the pipeline has one stage; nothing lies between two")
    middle = stages[len(stages) // 2]
    rate = 0.8 * ground.capacity_per_s
    span_s = ground.span_s(rate, 20.0)
    faults = [
        Fault(at_s=span_s / 4, for_s=span_s / 4, engine=name, kind="hang")
        for name in dict.fromkeys(middle.engine_names)
    ]
    trace = pl.DataFrame({"arrival_s": poisson(rate, span_s, ground.seed)})
    clients = _clients(ground)
    found = run(ground.pipeline, ground.latency, trace, ground.seed, faults=faults, clients=clients)
    started = found.record.start_ns >= 0
    taken_ms = simulate.taken_ns(found)[started] / 1e6
    # A client that gives up cancels, so that nothing may stay inside for longer than its patience.
    limit_ms = clients.timeout_ms + 1
    hung = int((taken_ms > limit_ms).sum()) + int((found.record.outcome[started] == Outcome.NONE).sum())
    longest = float(taken_ms.max())
    return result(
        "stage-full",
        f"{hung} of {int(started.sum())} attempts without an end; the longest was inside for {longest:.0f} ms while "
        f"'{middle.name}' stood still for {1000 * span_s / 4:.0f} ms",
        hung == 0, ground.seed, hung=hung, attempts=int(started.sum()), longest_ms=longest, stage=middle.name,
    )  # fmt: skip


def clock_jump(ground: Ground) -> DrillResult:
    """The same traffic, an hour later on the clock."""
    rate = 1.2 * ground.capacity_per_s
    arrival_s = poisson(rate, min(10.0, 3000 / rate), ground.seed)
    # Whole nanoseconds, so that an hour more changes no distance between two arrivals.
    arrival_s = np.round(arrival_s, 6)
    runs = [
        simulate.digest(run(ground.pipeline, ground.latency, pl.DataFrame({"arrival_s": at}), ground.seed))
        for at in (arrival_s, np.round(arrival_s + 3600.0, 6))
    ]
    same = runs[0] == runs[1]
    said = "same" if same else "another"
    return result(
        "clock-jump",
        f"{len(arrival_s)} requests, an hour later: the {said} decisions ({runs[0][:12]} and {runs[1][:12]}); times "
        "are handed to the core, it reads no clock",
        same, ground.seed, requests=len(arrival_s),
    )  # fmt: skip


def flapping(ground: Ground) -> DrillResult:
    """An engine with a breaker is away half of the time, by turns, each time for long enough to open it."""
    for stage in ground.pipeline.stages:
        if stage.breaker is not None and len(stage.engine_names) > 1:
            engine, breaker = stage.engine_names[0], stage.breaker
            break
    else:
        raise NotApplicableError("no stage with several engines has a breaker; add `breaker: {}` to one")
    rate = 0.5 * ground.capacity_per_s
    # What runs there must time out first, or fails at once where there is no timeout; then enough calls must fail to
    # outweigh those that the breaker remembers from better times.
    timeout_s = (stage.timeout_ms or 0.0) / 1000
    away_s = max(0.5, 2 * timeout_s, timeout_s + FLAP_CALLS * breaker.failure_rate * breaker.window / rate)
    span_s = 2 * away_s * FLAPS
    starts_s = [(2 * number + 1) * away_s for number in range(FLAPS)]
    kind: Literal["hang", "crash"] = "hang" if stage.timeout_ms is not None else "crash"
    faults = [Fault(at_s=at, for_s=away_s, engine=engine, kind=kind) for at in starts_s]
    trace = pl.DataFrame({"arrival_s": poisson(rate, span_s, ground.seed)})
    found = run(ground.pipeline, ground.latency, trace, ground.seed, faults=faults)
    changes = simulate.summarise(found).engines[engine].breaker_transitions
    if not changes:
        raise NotApplicableError(
            f"{FLAPS} absences of '{engine}' for {away_s:.1f} s each opened no breaker, so that nothing flapped; a "
            "smaller `breaker.window` or `failure_rate` opens it"
        )
    per_minute = 60 * changes / span_s
    # An absence opens a breaker once and, as its time open doubles, again as often as doublings fit (half-open and open
    # each time); its end takes it over half-open to closed. Each stage of the engine has a breaker of its own.
    stages = sum(engine in one.engine_names and one.breaker is not None for one in ground.pipeline.stages)
    again = math.ceil(math.log2(1 + 1000 * away_s / breaker.open_ms)) + 1000 * away_s / breaker.open_ms_max
    bound = 60 / span_s * FLAPS * stages * (1 + 2 * again + 2)
    return result(
        "flapping",
        f"'{engine}' away {FLAPS} times for {away_s:.1f} s: {per_minute:.1f} changes of its breakers a minute, at most "
        f"{bound:.0f} are possible",
        per_minute <= bound, ground.seed, transitions_per_minute=per_minute, bound_per_minute=bound, engine=engine,
        changes=changes, absences=FLAPS,
    )  # fmt: skip


def retry_storm(ground: Ground) -> DrillResult:
    """The busiest engine is slow, and every client tries four times and says so."""
    rate = ground.capacity_per_s
    span_s = ground.span_s(4 * rate, 20.0)
    trace = pl.DataFrame({"arrival_s": poisson(rate, span_s, ground.seed)})
    requests = trace.height
    fault = Fault(at_s=span_s / 5, for_s=span_s / 2, engine=ground.busiest, kind="slow", factor=SLOW_FACTOR)
    found = run(ground.pipeline, ground.latency, trace, ground.seed, faults=[fault], clients=_clients(ground))
    repeated = found.record.start_ns[requests:] >= 0
    admitted = simulate.summarise(found).decisions["retries"]
    denied = int((found.record.reason[requests:][repeated] == Reason.RETRY_BUDGET).sum())
    lasted_s = float(found.record.end_ns.max()) / 1e9
    retry = ground.pipeline.retry
    bound = retry.budget * requests + retry.per_s * lasted_s + retry.reserve
    return result(
        "retry-storm",
        f"{admitted} further attempts let in, {denied} of {int(repeated.sum())} that clients made turned away; "
        f"the budget covers {bound:.0f}",
        admitted <= bound and int(repeated.sum()) > 0, ground.seed,
        admitted=admitted, denied=denied, repeated=int(repeated.sum()), bound=bound,
    )  # fmt: skip


SIMULATED: dict[str, Callable[[Ground], DrillResult]] = {
    "avalanche": avalanche,
    "overflow": overflow,
    "backup-full": backup_full,
    "low-class-burst": low_class_burst,
    "stage-full": stage_full,
    "clock-jump": clock_jump,
    "flapping": flapping,
    "retry-storm": retry_storm,
}
