"""Timing variants against the untuned model, in turns.

A figure taken now and one taken a minute later differ by what the machine did meanwhile. So all contenders run in one
process, round after round, forwards and then backwards, and what counts is the median over rounds of the ratio within a
round. A round in which another process held a processor that we were waiting for says nothing about wall time and is
left out; with too few left, the ratio of processor time is all that can be said. It is taken against the untuned file
on one thread, for threads that spin burn processor time that is no work.

A contender is run once unseen before its turn is timed, for the one before it left its own weights in the cache; and
nobody's turn begins while another's threads still spin.
"""

import time  # noqa: TID251 - this module measures
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from loadslice.backends.base import Session
from loadslice.variants.recorded import Feeds

ROUNDS_MIN = 5
TURN_NS = 30_000_000
"""A turn repeats a quick model for about so long, so that the clock and one interruption do not decide."""

WAITED_SHARE_MAX = 0.05
"""Of a turn's wall time, that its threads may have waited for a processor."""
CLEAN_ROUNDS_MIN = 3

_IDLE_CPU_NS, _SETTLE_NS_MAX = 200_000, 200_000_000


@dataclass(frozen=True)
class Speed:
    """How many times faster than the untuned model.

    Attributes:
        wall: ``None``: others held the processors in nearly every round.
        cpu: In processor time of all threads.
        clean_rounds: Rounds that ``wall`` is the median of.
    """

    wall: float | None
    cpu: float
    clean_rounds: int

    @property
    def best(self) -> tuple[float, Literal["wall", "processor"]]:
        """What can be said."""
        return (self.cpu, "processor") if self.wall is None else (self.wall, "wall")


@dataclass
class Contender:
    """A loaded model and the inputs it is timed on.

    Attributes:
        name: Unique among contenders.
        session: Loaded.
        panel: Inputs of one turn: what recorded traffic is like, from small to large.
    """

    name: str
    session: Session
    panel: Sequence[Feeds]
    wall_ns: list[int] = field(default_factory=list)
    """Of one pass over the panel, per round."""
    cpu_ns: list[int] = field(default_factory=list)
    clean: list[bool] = field(default_factory=list)
    """Whether the processors were ours in that round."""

    def turn(self, passes: int) -> None:
        """One unseen pass, then timed ones."""
        self.one_pass()
        waited, cpu, wall = _waited_ns(), time.process_time_ns(), time.perf_counter_ns()
        for _ in range(passes):
            self.one_pass()
        took = time.perf_counter_ns() - wall
        self.wall_ns.append(took // passes)
        self.cpu_ns.append((time.process_time_ns() - cpu) // passes)
        self.clean.append(_waited_ns() - waited <= WAITED_SHARE_MAX * took)

    def one_pass(self) -> None:
        """Run every input of the panel."""
        for feeds in self.panel:
            self.session.run(feeds)

    @property
    def ms_p50(self) -> tuple[float, float]:
        """Median wall and processor time per input, ms."""
        per_input = 1e6 * len(self.panel)
        return float(np.median(self.wall_ns)) / per_input, float(np.median(self.cpu_ns)) / per_input

    def speedup(self, untuned: "Contender", one_thread: "Contender") -> "Speed":
        """Medians over rounds of the untuned model's time divided by this one's.

        Args:
            untuned: The runtime as it comes.
            one_thread: The same file on one thread that does not spin, for processor time.
        """
        clean = np.flatnonzero(np.logical_and(self.clean, untuned.clean))
        ratios = np.divide(untuned.wall_ns, self.wall_ns)[clean]
        cpu = np.median(np.divide(one_thread.cpu_ns, np.maximum(self.cpu_ns, 1)))
        wall = float(np.median(ratios)) if len(ratios) >= CLEAN_ROUNDS_MIN else None
        return Speed(wall, float(cpu), len(clean))


def in_turns(contenders: Sequence[Contender], seconds: float) -> int:
    """Time every contender in every round until time is up; `ROUNDS_MIN` rounds at least.

    Returns:
        Rounds.
    """
    passes = {}
    for one in contenders:
        # Runtimes prepare a shape when they first meet it, some also at the second run.
        one.one_pass()
        one.one_pass()
        start = time.perf_counter_ns()
        one.one_pass()
        passes[one.name] = max(1, min(50, TURN_NS // max(time.perf_counter_ns() - start, 1)))
    deadline_ns = time.perf_counter_ns() + round(seconds * 1e9)
    rounds = 0
    while rounds < ROUNDS_MIN or time.perf_counter_ns() < deadline_ns:
        for one in contenders if rounds % 2 == 0 else reversed(contenders):
            _settle()
            one.turn(passes[one.name])
        rounds += 1
    return rounds


def items_per_s(session: Session, panel: Sequence[Feeds], callers: int, seconds: float, *, one_slot: bool) -> float:
    """Rows per second while ``callers`` threads call without a pause.

    Args:
        session: Loaded for as many slots, unless ``one_slot``.
        panel: Inputs, taken in turn.
        callers: Threads.
        seconds: How long.
        one_slot: All callers share slot 0, which the session's runtime must allow.
    """
    session.run(panel[0])
    _settle()
    end_ns = time.perf_counter_ns() + round(seconds * 1e9)

    def call(caller: int) -> int:
        done = 0
        position = caller
        while time.perf_counter_ns() < end_ns or not done:
            feeds = panel[position % len(panel)]
            session.run(feeds, 0 if one_slot else caller)
            done += next(iter(feeds.values())).shape[0]
            position += 1
        return done

    start = time.perf_counter_ns()
    with ThreadPoolExecutor(callers) as pool:
        rows = sum(pool.map(call, range(callers)))
    return rows / ((time.perf_counter_ns() - start) / 1e9)


def seconds(action: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter_ns()
    action()
    return (time.perf_counter_ns() - start) / 1e9


def _waited_ns(folder: Path = Path("/proc/self/task")) -> int:
    """Time that threads of this process were ready to run and had no processor; 0 where it is not told."""
    total = 0
    for file in folder.glob("*/schedstat"):
        try:
            total += int(file.read_text(encoding="ascii").split()[1])
        except (OSError, ValueError, IndexError):
            continue
    return total


def _settle() -> None:
    """Wait until no thread of this process computes or spins any more."""
    begun = time.perf_counter_ns()
    while time.perf_counter_ns() - begun < _SETTLE_NS_MAX:
        cpu = time.process_time_ns()
        time.sleep(0.001)
        if time.process_time_ns() - cpu < _IDLE_CPU_NS:
            return
