"""Clients in virtual time: they give up, leave, and come back.

An attempt of logical request ``i`` has the tag ``i + n * requests``; n counts attempts from 0. What is still to happen
(an attempt that starts, a client that leaves) stands in one binary heap ordered by (time, order of planning). An entry
about an attempt that has ended meanwhile is passed over when its time comes.
"""

from typing import Annotated, NamedTuple

import numpy as np

from loadslice.policy import columns as c
from loadslice.policy.kernel import by_reference, kernel, rare
from loadslice.policy.tables import Int64s
from loadslice.sim.draws import uniform
from loadslice.spec.faults import Clients

_NS_PER_MS = 1_000_000

H_AT_NS, H_ORDER, H_TAG, H_KIND, HEAP_COLUMNS = range(5)
ATTEMPT, LEAVE, GIVE_UP = range(3)
"""An attempt starts; its client leaves for good; its client gives it up and may come back."""

A_BACKOFF, A_LEAVES, A_LEAVES_AT = 200, 300, 400
"""Purposes of draws, apart from those of service times."""


@by_reference
class Behaviour(NamedTuple):
    """Clients, lowered."""

    timeout_ns: int
    """0: there is no client model, every request is one attempt and nobody leaves"""
    attempts: int
    backoff_ns: float
    backoff_factor: float
    jitter: int
    leaves: float
    cancels: int
    states_deadline: int
    states_attempt: int


@by_reference
class Diary(NamedTuple):
    """What clients are going to do."""

    heap: Annotated[Int64s, HEAP_COLUMNS]
    """[capacity, HEAP_COLUMNS]"""
    counts: Int64s
    """[2] entries in the heap, entries ever planned"""
    row: Int64s
    """[attempts] row of the core's table while an attempt is inside"""


NO_CLIENTS = Behaviour(0, 1, 0.0, 1.0, 0, 0.0, 0, 0, 0)


def lower_clients(clients: Clients | None) -> Behaviour:
    """Lower a clients file."""
    if clients is None:
        return NO_CLIENTS
    return Behaviour(
        timeout_ns=round(clients.timeout_ms * _NS_PER_MS),
        attempts=clients.attempts,
        backoff_ns=clients.backoff.base_ms * _NS_PER_MS,
        backoff_factor=clients.backoff.factor,
        jitter=int(clients.backoff.jitter),
        leaves=clients.disconnect_share,
        cancels=int(clients.cancels),
        states_deadline=int(clients.states_deadline),
        states_attempt=int(clients.states_attempt),
    )


def empty_diary(requests: int, behaviour: Behaviour) -> Diary:
    """Room for everything clients can plan: per attempt one start and one end."""
    attempts = requests * behaviour.attempts if behaviour.timeout_ns else 0
    return Diary(
        np.zeros((2 * attempts + 1, HEAP_COLUMNS), np.int64), np.zeros(2, np.int64), np.full(attempts, -1, np.int64)
    )


@kernel
def before(heap: Int64s, a: int, b: int) -> bool:
    """Whether entry a is due before entry b."""
    if heap[a, H_AT_NS] != heap[b, H_AT_NS]:
        return bool(heap[a, H_AT_NS] < heap[b, H_AT_NS])
    return bool(heap[a, H_ORDER] < heap[b, H_ORDER])


@kernel
def swap(heap: Int64s, a: int, b: int) -> None:
    """Exchange two entries."""
    for column in range(HEAP_COLUMNS):
        heap[a, column], heap[b, column] = heap[b, column], heap[a, column]


@kernel
def plan(diary: Diary, at_ns: int, tag: int, kind: int) -> None:
    """Put an entry into the heap."""
    heap = diary.heap
    at = diary.counts[0]
    heap[at, H_AT_NS] = at_ns
    heap[at, H_ORDER] = diary.counts[1]
    heap[at, H_TAG] = tag
    heap[at, H_KIND] = kind
    diary.counts[0] += 1
    diary.counts[1] += 1
    while at > 0 and before(heap, at, (at - 1) // 2):
        swap(heap, at, (at - 1) // 2)
        at = (at - 1) // 2


@kernel
def drop_first(diary: Diary) -> None:
    """Take the first entry out."""
    heap = diary.heap
    diary.counts[0] -= 1
    count = diary.counts[0]
    swap(heap, 0, count)
    at = 0
    while 2 * at + 1 < count:
        child = 2 * at + 1
        if child + 1 < count and before(heap, child + 1, child):
            child += 1
        if not before(heap, child, at):
            break
        swap(heap, child, at)
        at = child


@kernel
def due_ns(diary: Diary) -> int:
    """When the first entry is due."""
    return int(diary.heap[0, H_AT_NS]) if diary.counts[0] > 0 else c.FOREVER


@rare
def start_waiting(now_ns: int, seed: int, behaviour: Behaviour, diary: Diary, tag: int) -> None:
    """A client has sent an attempt: plan how its patience ends."""
    if uniform(seed, tag, A_LEAVES) < behaviour.leaves:
        plan(diary, now_ns + int(uniform(seed, tag, A_LEAVES_AT) * behaviour.timeout_ns), tag, LEAVE)
    else:
        plan(diary, now_ns + behaviour.timeout_ns, tag, GIVE_UP)


@rare
def come_back(
    now_ns: int, seed: int, behaviour: Behaviour, diary: Diary, tag: int, requests: int, hint_ns: int
) -> None:
    """An attempt has not been answered well: plan the next one, if the client has one left.

    Args:
        now_ns: Time since the run began.
        seed: The run's.
        behaviour: Clients.
        diary: Changed.
        tag: The attempt that ended.
        requests: Logical requests.
        hint_ns: Retry-After of the refusal; the client waits at least that long.
    """
    made = tag // requests + 1
    if made >= behaviour.attempts:
        return
    wait_ns = behaviour.backoff_ns * behaviour.backoff_factor ** (made - 1)
    if behaviour.jitter == 1:
        wait_ns *= uniform(seed, tag, A_BACKOFF)
    plan(diary, now_ns + max(int(wait_ns), hint_ns), tag + requests, ATTEMPT)
