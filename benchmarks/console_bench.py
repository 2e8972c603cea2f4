"""What the console costs a server: by parts, in processor time, and whole, off and on and looked at, by turns.

The whole is a ratio of two loaded servers that stand side by side and are asked by turns of a second, so that what the
machine does it does to both; one more without a console is the control, which says how far such a ratio wanders when
nothing differs. The parts are processor time of one thread and hold anywhere. `share_by_parts` adds them
up for a server of a tiny model at the rate that it reached in this run, with `VIEWERS` looking on. An answer of a
server that has nothing else to do costs more, as everything there does; it takes nothing from anybody.
"""

import contextlib
import http.client
import json
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
from loadslice.app.output import emit, json_option, keep, out_option
from loadslice.serve.clock import Clock
from loadslice.serve.console.history import POINTS_MAX
from loadslice.serve.console.pipeline_view import PipelineView
from loadslice.serve.console.recent import LOOKED_AT, Recent
from loadslice.serve.generation import Generation, Serving
from loadslice.serve.limits import Limits
from loadslice.serve.request import Passage, Request
from loadslice.serve.server import Server
from loadslice.spec import pipeline as pipelines
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.work import Work

VIEWERS = 8
CLIENTS = 64
TURNS = 50
LOADS = 6
"""Turns of each server of a round; each round has servers of its own, as no two processes are quite alike."""
ANSWERS_S = 4.0
REQUESTS = 10_000
"""Of one second."""
WAYS = {"off": (), "control": (), "on": ("--console",), "seen": ("--console",)}


def run(rounds: int = 4, seconds: float = 1.0) -> Figures:
    """Measure everything.

    Args:
        rounds: Of servers, one for each way of serving.
        seconds: Of load for each turn.

    Returns:
        Medians. ``_cpu_us``: of the server per request; ``_x_off``: times the server without a console, of the same
        round, median of rounds; ``_least`` and ``_most`` of them.
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
    for _ in range(TURNS):
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
    return statistics.median(_spent_s(work) for _ in range(TURNS))


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
    """Servers without a console, with one, and with one that is looked at, by turns."""
    client = build_client(folder)
    wire = folder / "mlp.request"
    wire.write_bytes(serve_models.request("mlp", (1, serve_models.WIDTH)))
    found: dict[str, list[list[Asked]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        with contextlib.ExitStack() as stack:
            targets = {way: stack.enter_context(ours(folder / "mlp.yaml", *given)) for way, given in WAYS.items()}
            stack.enter_context(_viewers(targets["seen"].port))
            for loads in found.values():
                loads.append([])
            for turn in range(LOADS):
                for way in list(WAYS)[:: 1 if turn % 2 == 0 else -1]:
                    found[way][-1].append(load(client, targets[way], wire, CLIENTS, seconds))
    figures = _answers(folder, client)
    for way, loads in found.items():
        figures[f"{way}_requests_per_s"] = statistics.median(one.requests_per_s for turns in loads for one in turns)
        figures[f"{way}_cpu_us"] = statistics.median(one.cpu_us for turns in loads for one in turns)
    for way in [way for way in WAYS if way != "off"]:
        ratios = [_cpu_us(mine) / _cpu_us(off) for mine, off in zip(found[way], found["off"], strict=True)]
        figures[f"{way}_cpu_x_off"] = statistics.median(ratios)
        figures[f"{way}_cpu_x_off_least"], figures[f"{way}_cpu_x_off_most"] = min(ratios), max(ratios)
    return figures


def _cpu_us(turns: list[Asked]) -> float:
    """Of a server's turns; the median leaves those out in which the machine was elsewhere."""
    return statistics.median(one.cpu_us for one in turns)


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
    with ours(folder / "mlp.yaml", *WAYS["on"]) as target:
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


@click.command(epilog="Example: python -m benchmarks.console_bench --rounds 5")
@click.option("--rounds", type=click.IntRange(1, 100), default=4, show_default=True, help="Of servers.")
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
