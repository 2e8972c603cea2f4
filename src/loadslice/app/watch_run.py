"""A watch at work: fetches, feeds, tells. Reads a server and writes alerts; nothing here can move traffic."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from loadslice.app import watch_server
from loadslice.app.output import say
from loadslice.app.watch_outlets import Gauges, Outlet
from loadslice.evaluate.scrape import Scrape
from loadslice.evaluate.watch import reference
from loadslice.evaluate.watch.contrast import VersionMeans, advice
from loadslice.evaluate.watch.drift import DriftWatch
from loadslice.evaluate.watch.operation import OperationWatch, reading
from loadslice.evaluate.watch.sensors import Sensors
from loadslice.spec.errors import InputError
from loadslice.spec.files import NOT_JSON, read_bytes
from loadslice.spec.watch import Alert, Baseline, Contrast, Reading, Sample, Samples, WatchReport

SAMPLES_FILE = "samples.jsonl"
SAMPLE_FILE_BYTES_MAX = 1 << 30
LOST_LOOKS = 3
"""Looks in a row that a server may be out of reach, for a restart, before the watch ends."""


@dataclass(slots=True)
class Server:
    """A server that is watched."""

    url: str
    admin_url: str
    sensors: Sensors | None
    """``None``: it runs elsewhere."""
    _before: Scrape | None = None
    _after: int = 0
    missed: int = 0

    def look(self) -> tuple[Samples, list[Sample], Reading | None]:
        """What has come since the last look; the first has no reading yet."""
        now = watch_server.metrics(self.url)
        sensed = None if self.sensors is None else self.sensors.look()
        found = watch_server.samples(self.admin_url, self._after)
        if found.taken < self._after:  # it has started anew and counts from 1 again
            self._after = 0
            found = watch_server.samples(self.admin_url, 0)
        fresh = list(found.samples)
        while found.samples and found.samples[-1].number < found.taken:
            found = watch_server.samples(self.admin_url, found.samples[-1].number)
            fresh += found.samples
        if fresh:
            # What was there before the first look is nothing that was missed.
            self.missed += 0 if self._before is None else fresh[0].number - self._after - 1
            self._after = fresh[-1].number
        one = None if self._before is None else reading(self._before, now, sensed)
        self._before = now
        return found, fresh, one


@dataclass(slots=True)
class Bounds:
    """How long, and how often."""

    every_s: float
    for_s: float | None
    """``None``: until interrupted."""
    samples: int | None = None
    """Enough when so many have come."""
    stop: threading.Event = field(default_factory=threading.Event)

    def ticks(self) -> Iterator[None]:
        """One per look."""
        began_s = time.monotonic()
        while not self.stop.is_set():
            yield
            left_s = None if self.for_s is None else self.for_s - (time.monotonic() - began_s)
            if left_s is not None and left_s <= 0:
                return
            self.stop.wait(self.every_s if left_s is None else min(self.every_s, left_s))


def gather(server: Server, bounds: Bounds) -> tuple[Samples, list[Sample], list[Reading]]:
    """Samples and readings for a baseline: those that come from now on.

    Raises:
        InputError: The server cannot be reached, or too little came.
    """
    head, _, _ = server.look()
    gathered: list[Sample] = []
    readings: list[Reading] = []
    for _ in bounds.ticks():
        head, fresh, one = server.look()
        gathered += fresh
        readings += [one] if one is not None and one.requests else []
        if bounds.samples is not None and len(gathered) >= bounds.samples:
            break
    minimum = head.plan.minimum
    known = sum(sample.version in reference.STABLE for sample in gathered)
    if known < minimum:
        raise InputError(
            f"{server.url}: {known} answers came; a baseline needs {minimum} (`minimum` of the plan) at least. "
            "Send traffic meanwhile, and wait longer with --for-s."
        )
    return head, gathered, readings


def load_samples(path: Path) -> Samples:
    """Samples that were kept: the first line says of what they are, each other line is one.

    Raises:
        InputError: Not such a file.
    """
    lines = read_bytes(path, max_bytes=SAMPLE_FILE_BYTES_MAX).splitlines()
    try:
        head = msgspec.json.decode(lines[0] if lines else b"", type=Samples)
        rows = [msgspec.json.decode(line, type=Sample) for line in lines[1:]]
    except NOT_JSON as error:
        raise InputError(f"{path}: not a file of samples: {error}") from error
    signals = len(head.plan.signals)
    wrong = next((number for number, row in enumerate(rows) if len(row.values) != signals), None)
    if wrong is not None:
        raise InputError(f"{path}: line {wrong + 2}: {len(rows[wrong].values)} values for {signals} signals.")
    return msgspec.structs.replace(head, samples=rows)


def written(head: Samples, samples: Sequence[Sample]) -> bytes:
    """Samples as `load_samples` reads them."""
    first = msgspec.structs.replace(head, samples=[], taken=len(samples))
    return b"".join(msgspec.json.encode(line) + b"\n" for line in (first, *samples))


def check_alike(baseline: Baseline, samples: Samples, place: str) -> None:
    """Refuse a baseline of something else.

    Raises:
        InputError: Another pipeline, other signals, or emulated against measured.
    """
    if baseline.pipeline != samples.pipeline or baseline.plan.signals != samples.plan.signals:
        raise InputError(
            f"{place}: of pipeline '{baseline.pipeline}' with signals "
            f"{', '.join(one.name for one in baseline.plan.signals)}; the server has '{samples.pipeline}' with "
            f"{', '.join(one.name for one in samples.plan.signals)}. Record a new one with `loadslice watch baseline`."
        )
    if baseline.basis != samples.basis:
        raise InputError(f"{place}: {baseline.basis}, and the server is {samples.basis}; they are never compared.")


class Watch:
    """One watch of one server, or of samples that were kept.

    Args:
        baseline: Checked.
        outlets: Told of each alert.
        gauges: Shown to Prometheus.
        tell: Signal whose means by version the rollout is told, and the metric's name there.
        is_live: Whether alerts are of now.
    """

    def __init__(
        self,
        baseline: Baseline,
        outlets: Sequence[Outlet] = (),
        gauges: Gauges | None = None,
        tell: tuple[str, str] | None = None,
        *,
        is_live: bool = True,
    ) -> None:
        self._is_live = is_live
        self._baseline = baseline
        self._outlets = outlets
        self._gauges = gauges
        self._tell = tell
        self._drift = DriftWatch(baseline)
        self._operation = OperationWatch(baseline)
        self._versions = VersionMeans(baseline.plan)
        self._step: tuple[object, object] | None = None
        self.alerts: list[Alert] = []
        self.contrast: Contrast | None = None
        self.absent = dict(baseline.absent)

    def feed(self, samples: Sequence[Sample], one: Reading | None = None) -> None:
        """Take in what one look has brought."""
        self._versions.feed(samples)
        alerts = self._drift.feed(samples)
        if one is not None:
            alerts += self._operation.feed(one)
            self.absent = one.absent
        now_utc = datetime.now(UTC).isoformat(timespec="seconds") if self._is_live else None
        for found in alerts:
            alert = msgspec.structs.replace(found, said_utc=now_utc)
            self.alerts.append(alert)
            for outlet in self._outlets:
                outlet(alert)
        if self._gauges is not None:
            figures = {} if one is None else {name: getattr(one, name) for name in reference.OPERATING}
            self._gauges.seen(len(samples), {name: value for name, value in figures.items() if value is not None})

    def ask_rollout(self, admin_url: str) -> None:
        """Hear what the rollout says, and tell it what it may want to know."""
        status = watch_server.rollout(admin_url)
        if status is None:
            self.contrast = None
            return
        step = (status["state"], status["since"])
        if step != self._step:
            self._step = step
            self._versions.begin()
        told: dict[str, float] = {}
        if self._tell is not None and status["state"] == "running":
            signal, metric = self._tell
            means = self._versions.means(signal)
            if means is not None and watch_server.post_metric(admin_url, metric, means):
                told = means
        self.contrast = Contrast(state=status["state"], decision=status["decision"], why=status["why"], told=told)

    def report(self, source: str, missed: int = 0) -> WatchReport:
        """What was seen so far."""
        firing = [name for name, _ in self._drift.firing] + self._operation.firing
        minimum = self._baseline.plan.minimum
        return WatchReport(
            source=source,
            pipeline=self._baseline.pipeline,
            basis=self._baseline.basis,
            samples=self._drift.samples,
            minimum=minimum,
            quiet=self._drift.quiet,
            alerts=self.alerts,
            firing=len(firing),
            looks=self._drift.looks,
            missed=missed,
            absent=self.absent,
            contrast=self.contrast,
            advice=advice(firing, self.contrast, quiet=self._drift.quiet, samples=self._drift.samples, minimum=minimum),
        )


def run(watch: Watch, server: Server, bounds: Bounds, baseline: Baseline, place: str) -> None:
    """Watch a server until the time is over.

    Raises:
        InputError: The baseline is not this server's, or the server has been out of reach for too long.
    """
    lost = 0
    first = True
    for _ in bounds.ticks():
        try:
            head, fresh, one = server.look()
            lost = 0
        except InputError as error:
            lost += 1
            if first or lost >= LOST_LOOKS:
                raise
            say(f"out of reach: {error}")
            continue
        if first:
            check_alike(baseline, head, place)
            first = False
        watch.feed(fresh, one)
        watch.ask_rollout(server.admin_url)
