"""Work in flight and how fast it moves.

Engines of one machine slow each other: a running batch moves at ``1 / contention`` in full company and at a speed in
between in less, and all share the cores once busy threads outnumber them. Whenever the set of running batches changes,
what is left of each is carried over to its new speed.
"""

from typing import Annotated, NamedTuple

import numpy as np

from loadslice.policy import columns as c
from loadslice.policy.kernel import by_reference, kernel, rare
from loadslice.policy.tables import Int64s, State
from loadslice.sim.record import REQUEST_COLUMNS
from loadslice.sim.service import Float64s, Service


@by_reference
class Clockwork(NamedTuple):
    """Work in flight, one row per batch slot, and how engines are doing."""

    done_ns: Annotated[Int64s, "leaves"]
    """FOREVER when idle or standing still; as many as slots, rounded up to a power of two"""
    earliest: Annotated[Int64s, "2 * leaves"]
    """A knockout of the slots: at a leaf the slot itself, at a node whichever of its two is done first"""
    running: Annotated[Int64s, "slots"]
    """1 while a batch runs"""
    left_ns: Annotated[Float64s, "slots"]
    """Work left, in ns of a well engine that has the machine to itself"""
    speed: Annotated[Float64s, "slots"]
    """Work done per ns"""
    since_ns: Annotated[Int64s, "slots"]
    """When ``left_ns`` was true"""
    pace_ppm: Annotated[Int64s, "E"]
    """Time per unit of work, in millionths of a well engine's; 0: it stands still"""
    wrong: Annotated[Int64s, "E"]
    """1 while answers are wrong"""
    results: Annotated[Int64s, "largest batch", 2]
    """Scratch: what a batch's members ask of the next stage"""
    asks: Annotated[Int64s, REQUEST_COLUMNS]
    """Scratch: what the request that arrives asks"""


def idle_clockwork(state: State) -> Clockwork:
    """Nothing in flight. Made outside the loop: compiled code allocates nothing."""
    slots, engines = len(state.batches), len(state.engines)
    leaves = 1 << (slots - 1).bit_length()
    earliest = np.zeros(2 * leaves, np.int64)
    earliest[leaves:] = np.arange(leaves)
    for node in range(leaves - 1, 0, -1):
        earliest[node] = earliest[2 * node]
    return Clockwork(
        done_ns=np.full(leaves, c.FOREVER, np.int64),
        earliest=earliest,
        running=np.zeros(slots, np.int64),
        left_ns=np.zeros(slots),
        speed=np.ones(slots),
        since_ns=np.zeros(slots, np.int64),
        pace_ppm=np.full(engines, c.PPM, np.int64),
        wrong=np.zeros(engines, np.int64),
        results=np.zeros((state.members.shape[1], 2), np.int64),
        asks=np.zeros(REQUEST_COLUMNS, np.int64),
    )


@kernel
def set_done(clockwork: Clockwork, slot: int, at_ns: int) -> None:
    """Set when a slot is done and play its matches again; of two done at one instant the lower slot wins."""
    done_ns = clockwork.done_ns
    earliest = clockwork.earliest
    done_ns[slot] = at_ns
    winner = slot
    winner_ns = at_ns
    node = done_ns.shape[0] + slot
    # Up to the root always: where a change ends nobody can guess, and a wrong guess costs more than a few levels.
    while node > 1:
        other = earliest[node ^ 1]
        other_ns = done_ns[other]
        is_first = other_ns < winner_ns or (other_ns == winner_ns and other < winner)
        winner = other if is_first else winner
        winner_ns = other_ns if is_first else winner_ns
        node >>= 1
        earliest[node] = winner


@kernel
def set_speed(now_ns: int, clockwork: Clockwork, slot: int, speed: float) -> None:
    """Carry what is left of a running batch over to a new speed."""
    if speed == clockwork.speed[slot]:
        return
    clockwork.left_ns[slot] -= (now_ns - clockwork.since_ns[slot]) * clockwork.speed[slot]
    clockwork.since_ns[slot] = now_ns
    clockwork.speed[slot] = speed
    set_done(clockwork, slot, now_ns + max(1, int(clockwork.left_ns[slot] / speed + 0.5)) if speed > 0.0 else c.FOREVER)


@rare
def change_speed(now_ns: int, service: Service, state: State, clockwork: Clockwork) -> None:
    """Set the speed of every running batch by its engine's pace and the present company."""
    threads = 0
    for slot in range(clockwork.running.shape[0]):
        if clockwork.running[slot] == 1:
            threads += service.threads[state.batches[slot, c.B_ENGINE]]
    crowding = max(1.0, (threads + service.background) / service.cores)
    for slot in range(clockwork.running.shape[0]):
        if clockwork.running[slot] == 0:
            continue
        batch = state.batches[slot]
        engine = batch[c.B_ENGINE]
        pace = clockwork.pace_ppm[engine]
        speed = c.PPM / pace if pace > 0 else 0.0
        if service.threads[engine] > 0 and service.cores < np.inf:
            stage = batch[c.B_STAGE]
            slower = service.contention[stage, engine, batch[c.B_BUCKET]]
            company = (threads - service.threads[engine]) / service.company[stage, engine]
            speed /= slower if company >= 1.0 else 1.0 + company * (slower - 1.0)
            speed /= crowding
        set_speed(now_ns, clockwork, slot, speed)
