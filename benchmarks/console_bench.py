"""What the console costs a server: by parts in processor time, and whole, looked at and not, by turns on one server.

Two processes are never quite alike, and the question is about a hundredth. So the same server is asked by turns of a
second with nobody looking and with `VIEWERS` pages open: what the process and the machine are like is the same in both.
The control is the same ratio of two turns in which nobody looked. A server without a console stands beside it; against
that one only the parts say something, as processor time of one thread: what is kept of each request, what is done each
second, what an answer takes. `share_by_parts` adds them up for a server of a tiny model at the rate of this run.
An answer of a server that has nothing else to do costs more, as everything there does; it takes nothing from anybody.
"""

import contextlib
import http.client
import json
import math
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import msgspec
import numpy as np

from benchmarks import Figures, load_average_1m, serve_models
from benchmarks.serve_targets import Asked, build_client, ours
from benchmarks.serve_targets import ask as load
from loadslice.app.output import emit, json_option, keep, out_option, say
from loadslice.serve.clock import Clock
from loadslice.serve.console.history import POINTS_MAX
from loadslice.serve.console.pipeline_view import PipelineView
from loadslice.serve.console.recent import LOOKED_AT, Recent
from loadslice.serve.generation import Generation
from loadslice.serve.limits import Limits
from loadslice.serve.request import Passage, Request
from loadslice.serve.server import Server
from loadslice.serve.serving import Serving
from loadslice.spec import pipeline as pipelines
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.work import Work

VIEWERS = 8
CLIENTS = 64
REPEATS = 50
ROUNDS, TURNS = 3, 8
"""Pairs of servers, and how often each way of asking comes on in a round."""
ANSWERS_S = 4.0
REQUESTS = 10_000
"""Of one second."""
WAYS = ("off", "idle", "seen", "again")
"""Without a console; with one and nobody looking; with `VIEWERS`; as the second once more, for the control."""


def run(rounds: int = ROUNDS, seconds: float = 1.0) -> Figures:
    """Measure everything.

    Args:
        rounds: Of servers: one without and one with a console.
        seconds: Of load for each turn.

    Returns:
        Medians over turns. ``_cpu_us``: of the server per request. ``_x_``: one way over the other in the same turn;
        ``_low`` and ``_high`` hold the median 95 times in 100 (order statistics, no shape assumed).
    """
    figures: Figures = {"load_average_1m_before": load_average_1m(), "viewers": VIEWERS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        serve_models.write(folder)
        figures |= parts(folder)
        figures |= whole(folder, rounds, seconds)
    rate_per_s = figures["off_requests_per_s"]
    spent_us_per_s = (
        rate_per_s * figures["request_us"]
        + 1e3 * (figures["engines64_second_ms"] + figures["engines64_document_ms"])
        + VIEWERS * figures["answer_us"]
    )
    figures["share_by_parts"] = spent_us_per_s / (rate_per_s * figures["off_cpu_us"])
    figures["load_average_1m_after"] = load_average_1m()
    return figures


def parts(folder: Path) -> Figures:
    """Processor time of what the console does, with 64 engines, at `REQUESTS` a second."""
    pipeline = pipelines.load(folder / "many.yaml")
    recent, clock, limits = Recent(), Clock(), Limits()
    view = PipelineView(Server(pipeline, folder), clock, recent)
    serving = Serving(pipeline, folder)
    plain = Generation(1, serving, limits, clock)
    watched = Generation(1, serving, limits, clock, recent=recent)
    asked = _request()

    def all_of_a_second(generation: Generation) -> float:
        record = generation._record  # noqa: SLF001 - what the front calls once it is open
        began_s = time.thread_time()
        for number in range(REQUESTS):
            if number % (REQUESTS // 10) == 0:
                recent.room = LOOKED_AT
            record(asked)
        return time.thread_time() - began_s

    requests_s, seconds_s = [], []
    for _ in range(REPEATS):
        requests_s.append(all_of_a_second(watched) - all_of_a_second(plain))
        seconds_s.append(_spent_s(view.turn))
    for _ in range(POINTS_MAX):
        view.turn()
    return {
        "request_us": 1e6 * statistics.median(requests_s) / REQUESTS,
        "engines64_second_ms": 1e3 * statistics.median(seconds_s),
        "engines64_document_ms": 1e3 * _median_s(lambda: view.document(view.number - 1)),
        "engines64_first_document_ms": 1e3 * _median_s(lambda: view.document(0)),
        "engines64_first_document_bytes": len(msgspec.json.encode(view.document(0))),
    }


def _median_s(work: Callable[[], object]) -> float:
    return statistics.median(_spent_s(work) for _ in range(REPEATS))


def _spent_s(work: Callable[[], object]) -> float:
    began_s = time.thread_time()
    work()
    return time.thread_time() - began_s


def _request() -> Request:
    passage = Passage(0, 0, Reason.PREFERRED, 0, 1, 10, started_ns=20, copy_ns=5, compute_ns=7)
    return Request(
        Work({"x": np.zeros((1, 4), np.float32)}),
        bucket=0,
        priority=1,
        deadline_ns=10**9,
        source=None,
        source_index=0,
        precision=0,
        id=None,
        input=None,
        received_ns=0,
        done=lambda _: None,
        outcome=Outcome.COMPLETED,
        stage=0,
        end_ns=10**6,
        passages=[passage],
    )


def whole(folder: Path, rounds: int, seconds: float) -> Figures:
    """A server without a console, and one with, looked at and not, by turns."""
    client = build_client(folder)
    wire = folder / "mlp.request"
    wire.write_bytes(serve_models.request("mlp", (1, serve_models.WIDTH)))
    turns: list[dict[str, Asked]] = []
    for number in range(rounds):
        say(f"servers {number + 1} of {rounds}")
        with ours(folder / "mlp.yaml") as plain, ours(folder / "mlp.yaml", "--console") as watched:
            for turn in range(TURNS):
                asked = {}
                for way in WAYS[:: 1 if turn % 2 == 0 else -1]:
                    with _viewers(watched.port) if way == "seen" else contextlib.nullcontext():
                        asked[way] = load(client, plain if way == "off" else watched, wire, CLIENTS, seconds)
                turns.append(asked)
    figures = _answers(folder, client)
    for way in WAYS[:3]:
        figures[f"{way}_requests_per_s"] = statistics.median(asked[way].requests_per_s for asked in turns)
        figures[f"{way}_cpu_us"] = statistics.median(asked[way].cpu_us for asked in turns)
    for way, other in (("seen", "idle"), ("again", "idle"), ("idle", "off"), ("seen", "off")):
        figures |= _over(f"{way}_cpu_x_{other}", [asked[way].cpu_us / asked[other].cpu_us for asked in turns])
        rates = [asked[way].requests_per_s / asked[other].requests_per_s for asked in turns]
        figures |= _over(f"{way}_requests_x_{other}", rates)
    return figures


def _over(name: str, ratios: list[float]) -> Figures:
    """The median with its interval by order statistics: the binomial of a fair coin at 2.5 % on each side."""
    ratios = sorted(ratios)
    count, below = len(ratios), 0
    while sum(math.comb(count, heads) for heads in range(below + 1)) / 2**count <= 0.025:
        below += 1
    low, high = (ratios[below - 1], ratios[count - below]) if below else (ratios[0], ratios[-1])
    return {name: statistics.median(ratios), f"{name}_low": low, f"{name}_high": high}


@contextlib.contextmanager
def _viewers(port: int) -> Iterator[None]:
    """Pages that are open."""
    stop = threading.Event()
    viewers = [threading.Thread(target=_look, args=(port, stop)) for _ in range(VIEWERS)]
    for viewer in viewers:
        viewer.start()
    try:
        yield
    finally:
        stop.set()
        for viewer in viewers:
            viewer.join()


def _answers(folder: Path, client: Path) -> Figures:
    """What an answer of the console's data costs a server that has nothing else to do, and one that is asked a lot."""
    question = folder / "question.request"
    question.write_bytes(b"GET /console/data?since=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n\r\n")
    with ours(folder / "mlp.yaml", "--console") as target:
        idle_us = _idle_answer_us(target.port, target.cpu_s)
        # Most of them are refused, as too many look on; that costs no less.
        loaded_us = load(client, target, question, VIEWERS, ANSWERS_S).cpu_us
    return {"answer_us": loaded_us, "answer_of_idle_server_us": idle_us}


def _idle_answer_us(port: int, cpu_s: Callable[[], float]) -> float:
    """Processor time of the server for one answer of its data, beside what it spends when nobody asks."""
    pause, idle_s, count, seen = threading.Event(), cpu_s(), 0, 0
    pause.wait(ANSWERS_S)
    idle_s = cpu_s() - idle_s
    connection, busy_s, began_s = http.client.HTTPConnection("127.0.0.1", port, timeout=10), cpu_s(), time.monotonic()
    while time.monotonic() - began_s < ANSWERS_S:
        seen = int(_get(connection, seen)["number"])
        count += 1
        pause.wait(0.017)
    connection.close()
    return 1e6 * (cpu_s() - busy_s - idle_s) / count


def _look(port: int, stop: threading.Event) -> None:
    """A page that is open; like a browser, it keeps its connection."""
    seen = 0
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    while not stop.is_set():
        seen = int(_get(connection, seen)["number"])
        stop.wait(1.0)
    connection.close()


def _get(connection: http.client.HTTPConnection, since: int) -> Figures:
    connection.request("GET", f"/console/data?since={since}")
    found: Figures = json.loads(connection.getresponse().read())
    return found


@click.command(epilog="Example: python -m benchmarks.console_bench --rounds 3")
@click.option("--rounds", type=click.IntRange(1, 100), default=ROUNDS, show_default=True, help="Pairs of servers.")
@click.option("--seconds", type=click.FloatRange(0.5, 600), default=1.0, show_default=True, help="Of load, each turn.")
@json_option
@out_option
def command(rounds: int, seconds: float, as_json: bool, out: Path | None) -> None:
    """Print what the console costs."""
    figures = run(rounds, seconds)
    keep(figures, out, "console.json")
    emit(figures, as_json=as_json, text=lambda: [f"{key:<34} {value:,.4g}" for key, value in figures.items()])


if __name__ == "__main__":
    sys.exit(command())
