"""The drill of drift: what is asked turns to inputs of low confidence; a watch must say so, and only say.

The signal is found in the pipeline's own answers: the number whose mean differs most between its example inputs. A
baseline is made while all of them are sent by turns; then only those whose value is lowest are sent.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from loadslice.app.drill_field import Field, serving_desk
from loadslice.evaluate.closed_loop import drive
from loadslice.evaluate.drills.desk import CLIENTS, Desk
from loadslice.evaluate.drills.stage import NotApplicableError
from loadslice.evaluate.wire import Letter
from loadslice.spec.drill import DrillResult
from loadslice.spec.errors import MissingExtraError
from loadslice.spec.files import write_bytes
from loadslice.spec.watch import MINIMUM_MIN, Sample, Samples, Signal, WatchPlan

BASELINE = 3 * MINIMUM_MIN
LIMIT_S = 60.0
"""For each of the two; a pipeline that answers fewer in that time is not watched by the second."""
PORTION = 20
"""Requests between two looks, so that the first alarm's time is known."""
LOW_SHARE = 0.34
"""Of the inputs, those of the lowest value, that are sent while the mix has turned."""


def drift(field: Field) -> DrillResult:
    """Confidence drifts on a live server."""
    with serving_desk(field) as desk:
        signal, values = _signal(desk)
    plan = WatchPlan(signals=[signal], samples_per_s=1000.0, minimum=MINIMUM_MIN)
    with tempfile.TemporaryDirectory(prefix="drill-") as name:
        path = Path(name) / "watch.yaml"
        write_bytes(path, msgspec.yaml.encode(plan))
        with serving_desk(field, more=("--watch", str(path))) as desk:
            return _held(desk, plan, values)


def _signal(desk: Desk) -> tuple[Signal, dict[str, float]]:
    """The number that differs most between inputs, in its own spread, and its value for each.

    Raises:
        NotApplicableError: No number of the answers differs.
    """
    desk.learn()
    best: tuple[float, str, dict[str, float]] | None = None
    for output in sorted({name for outputs in desk.known.values() for name in outputs}):
        values = {
            given: float(np.mean(found))
            for given, outputs in desk.known.items()
            if isinstance(found := outputs.get(output), np.ndarray) and found.size and np.isfinite(found).all()
        }
        known = np.array(list(values.values()))
        if len(known) < 2 or known.std() == 0:
            continue
        # Names that say what they are go first; otherwise the one whose values are most spread.
        score = float(len(np.unique(known))) + (
            1e6 if "confidence" in output.lower() or "score" in output.lower() else 0
        )
        if best is None or score > best[0]:
            best = score, output, values
    if best is None:
        raise NotApplicableError("no number of the answers differs between the example inputs; give it more `inputs:`")
    return Signal(name=best[1], output=best[1], take="mean"), best[2]


def _held(desk: Desk, plan: WatchPlan, values: dict[str, float]) -> DrillResult:
    try:
        from loadslice.evaluate.watch.drift import DriftWatch
        from loadslice.evaluate.watch.reference import make
    except MissingExtraError as missing:
        raise NotApplicableError(str(missing)) from missing
    before = desk.ask("GET", "/admin/server")
    drive(desk.subject.line, desk.subject.letters, CLIENTS, for_s=LIMIT_S, requests_max=BASELINE)
    usual, after = _fetched(desk, 0)
    if len(usual) < MINIMUM_MIN:
        raise NotApplicableError(f"it answered {len(usual)} requests in {LIMIT_S:g} s; {MINIMUM_MIN} are needed")
    watch = DriftWatch(make(plan, desk.pipeline.pipeline, "emulated" if desk.emulated else "measured", usual, []))
    letters = _low(desk.subject.letters, values)
    early, first, acted = 0, None, False
    while first is None and watch.samples < 10 * MINIMUM_MIN:
        heard = drive(desk.subject.line, letters, CLIENTS, for_s=LIMIT_S, requests_max=PORTION)
        fresh, after = _fetched(desk, after)
        if not heard or not fresh:
            break
        alerts = watch.feed(fresh)
        early += sum((alert.samples or 0) < MINIMUM_MIN for alert in alerts)
        first = next((alert for alert in alerts if alert.state == "firing"), None)
    now = desk.ask("GET", "/admin/server")
    rollout = desk.ask("GET", "/admin/rollout")
    acted = now["generation"] != before["generation"] or rollout["state"] != "none"
    held = first is not None and early == 0 and not acted
    said = "no alarm" if first is None else f"an alarm after {first.samples} answers ({first.test})"
    return desk.result(
        "drift",
        f"{said}, {early} below the minimum of {MINIMUM_MIN}; the server "
        f"{'was changed' if acted else 'serves on as it was'}; '{plan.signals[0].output}', {len(letters)} inputs of "
        f"{len(desk.subject.letters)}",
        held,
        alarm_samples=None if first is None else first.samples,
        early_alarms=early,
        minimum=MINIMUM_MIN,
        generation=int(now["generation"]),
        signal=plan.signals[0].output,
    )


def _fetched(desk: Desk, after: int) -> tuple[list[Sample], int]:
    """Samples that came after one, and the number of the last."""
    found: list[Sample] = []
    while True:
        page = msgspec.convert(desk.ask("GET", f"/admin/watch?after={after}"), type=Samples)
        found += page.samples
        after = page.samples[-1].number if page.samples else after
        if after >= page.taken or not page.samples:
            return found, after


def _low(letters: Sequence[Letter], values: dict[str, float]) -> list[Letter]:
    """Requests whose answers have the lowest values."""
    order = sorted((one for one in letters if one.input in values), key=lambda one: values[one.input])
    return order[: max(1, round(LOW_SHARE * len(order)))]
