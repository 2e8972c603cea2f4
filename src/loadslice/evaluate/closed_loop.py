"""So many clients that each send their next request when the last is answered: live, and as the simulator sees it.

A closed loop says how much a placement can do (the ramp); what users wait for is said open loop, by a replay.

The simulator plays a trace, whose arrivals are given. A closed loop is found as a fixed point: the arrival of request
N + k is the k-th end. Ends depend only on what arrived before them, so each round of simulation makes at least the
next N requests exact; rounds go on until nothing moves any more.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from loadslice.evaluate.wire import Heard, Letter, Line
from loadslice.sim import simulate
from loadslice.sim.record import A_HINT_NS
from loadslice.sim.service import Service
from loadslice.spec.latency import LatencyTable
from loadslice.spec.outcome import Outcome
from loadslice.spec.pipeline import Pipeline

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

LOST_MAX = 3
"""Requests in a row that a client got no answer to, after which it takes the server for gone."""
_LONE_PER_S = 10.0
"""A first guess of one client's rate."""
RATE_ROUNDS = 4
RATE_CLOSE = 0.02

HINT_MS = 50.0
"""How long a refused client waits when the server does not say."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What a closed loop did, in the server's time."""

    clients: int
    throughput_per_s: float | None
    """Of answers between the first and the last one that count; ``None``: fewer than three."""
    mean_ms: float | None
    p95_ms: float | None
    answers: int
    refused: int
    """Answered with 429, 503 or 504."""
    failed: int
    """No answer, or another status."""


def drive(
    line: Callable[[], Line],
    letters: Sequence[Letter],
    clients: int,
    *,
    for_s: float,
    requests_min: int = 0,
    requests_max: int | None = None,
    stop: threading.Event | None = None,
) -> list[Heard]:
    """Run ``clients`` threads for a while; inputs are taken in turn from ``letters``.

    Args:
        line: Opens one client's connection.
        letters: What to send.
        clients: At least 1.
        for_s: Seconds of the world.
        requests_min: Go on after that until so many were sent, at most four times as long.
        requests_max: Requests in all.
        stop: Set from outside to end it early; each client waits for the answer it is owed.

    Returns:
        Every answer, in order of its end.
    """
    lock, heard = threading.Lock(), list[Heard]()
    sent = 0
    began = time.monotonic()

    def next_letter() -> Letter | None:
        nonlocal sent
        with lock:
            passed_s = time.monotonic() - began
            over = passed_s >= for_s and (sent >= requests_min or passed_s >= 4 * for_s)
            if over or (requests_max is not None and sent >= requests_max):
                return None
            sent += 1
            return letters[(sent - 1) % len(letters)]

    stop = stop or threading.Event()

    def client() -> None:
        with line() as mine:
            lost = 0
            while not stop.is_set() and (letter := next_letter()) is not None:
                answer = mine.post(letter)
                with lock:
                    heard.append(answer)
                lost = lost + 1 if answer.error is not None else 0
                if lost >= LOST_MAX:
                    stop.set()  # nobody is there any more
                if answer.status in (429, 503, 504):
                    stop.wait((answer.retry_after_ms or HINT_MS) * mine.dilate / 1000)

    threads = [threading.Thread(target=client, name=f"client {number}") for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(heard, key=lambda answer: answer.done_s)


def flow(clients: int, answers: Sequence[Heard]) -> Flow:
    """Sum one step up; the first answer of each client is left out, for it found an idle server."""
    done = sorted((answer.done_s, answer.whole_ms or 0.0) for answer in answers if answer.completed)
    refused = sum(answer.status in (429, 503, 504) for answer in answers)
    return _flow(
        clients,
        np.array([at for at, _ in done]),
        np.array([took for _, took in done]),
        refused=refused,
        failed=len(answers) - len(done) - refused,
    )


def _flow(clients: int, ends_s: Float64s, took_ms: Float64s, *, refused: int, failed: int) -> Flow:
    """Rate and latency of what ended after the first round and before clients began to leave."""
    kept = slice(min(clients, len(ends_s) // 3), max(len(ends_s) - clients + 1, len(ends_s) * 2 // 3))
    ends_s, took_ms = ends_s[kept], took_ms[kept]
    known = len(ends_s) >= 3 and ends_s[-1] > ends_s[0]
    return Flow(
        clients=clients,
        throughput_per_s=float((len(ends_s) - 1) / (ends_s[-1] - ends_s[0])) if known else None,
        mean_ms=float(took_ms.mean()) if len(took_ms) else None,
        p95_ms=float(np.quantile(took_ms, 0.95)) if len(took_ms) else None,
        answers=len(took_ms),
        refused=refused,
        failed=failed,
    )


def predict(
    pipeline: Pipeline,
    latency: LatencyTable,
    inputs: Sequence[str],
    clients: int,
    requests: int,
    *,
    seed: int,
) -> Flow:
    """The same loop in virtual time.

    Args:
        pipeline: As it is served.
        latency: Its profile, overhead included.
        inputs: Names of inputs in the order in which they are sent, taken in turn.
        clients: At least 1.
        requests: In all; at least three per client say something.
        seed: Of the draws of service times.
    """
    known = {work.input for work in latency.inputs}
    names = [inputs[number % len(inputs)] for number in range(requests)] if known else None
    rate_per_s = clients * _LONE_PER_S
    start_ns = np.zeros(requests, np.int64)
    start_ns[clients:] = (np.arange(requests - clients) * 1e9 / rate_per_s).astype(np.int64)
    found = _settled(pipeline, latency, names, clients, start_ns, rate_per_s, seed)
    # What the front takes from the engines depends on the rate, which the loop itself decides.
    for _ in range(RATE_ROUNDS):
        if not found.throughput_per_s or abs(found.throughput_per_s / rate_per_s - 1) < RATE_CLOSE:
            break
        rate_per_s = found.throughput_per_s
        found = _settled(pipeline, latency, names, clients, start_ns, rate_per_s, seed)
    return found


def _settled(
    pipeline: Pipeline,
    latency: LatencyTable,
    names: Sequence[str] | None,
    clients: int,
    arrival_ns: Int64s,
    rate_per_s: float,
    seed: int,
) -> Flow:
    """The loop's fixed point, on a machine that also serves the fronts of so many requests a second.

    Args:
        pipeline: As in `predict`.
        latency: As in `predict`.
        names: Of the inputs of all requests.
        clients: As in `predict`.
        arrival_ns: [requests] where to begin; changed to the arrivals that were found.
        rate_per_s: Answers a second.
        seed: As in `predict`.
    """
    requests = len(arrival_ns)
    frame = pl.DataFrame({"arrival_s": np.arange(requests) / rate_per_s})
    if names is not None:
        frame = frame.with_columns(input=pl.Series(names))
    prepared = simulate.prepare(frame, pipeline, latency, seed=seed)
    prepared = prepared._replace(service=_saturated(prepared.service, clients))
    for _ in range(requests // clients + 2):
        run = simulate.run(prepared._replace(traffic=prepared.traffic._replace(arrival_ns=arrival_ns)), seed=seed)
        ends_ns = arrival_ns + simulate.taken_ns(run)
        back_ns = np.sort(ends_ns + np.where(_refused(run), run.record.attempts[:, A_HINT_NS], 0))
        wanted_ns = np.concatenate([np.zeros(clients, np.int64), back_ns])[:requests]
        if (wanted_ns == arrival_ns).all():
            break
        arrival_ns[:] = wanted_ns
    completed = run.record.outcome == Outcome.COMPLETED
    order = np.argsort(ends_ns[completed], kind="stable")
    return _flow(
        clients,
        ends_ns[completed][order] / 1e9,
        simulate.taken_ns(run)[completed][order] / 1e6,
        refused=int(_refused(run).sum()),
        failed=int((~completed).sum() - _refused(run).sum()),
    )


def _saturated(service: Service, clients: int) -> Service:
    """The machine as a closed loop finds it.

    Fronts are short and do not wait their turn beside engines that keep the cores busy all the time: they have what
    they need, and engines share what is left. Requests that keep a core busy are in nobody's front, so that as many
    clients as cores are not crowded by fronts at all. A rate is a mean: that neighbours share slow periods moves it
    hardly, and would make a short run a matter of luck.
    """
    fronts = min(service.background, max(0.0, clients - service.cores), 0.9 * service.cores)
    return service._replace(cores=service.cores - fronts, background=0.0, likeness=0.0)


def _refused(run: simulate.Run) -> npt.NDArray[np.bool_]:
    refusals = (Outcome.REJECTED, Outcome.SHED, Outcome.EXPIRED)
    refused: npt.NDArray[np.bool_] = np.isin(run.record.outcome, [int(outcome) for outcome in refusals])
    return refused
