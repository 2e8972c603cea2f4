"""What each layer's figures are called for a reader, in which unit, and how they were obtained."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loadslice.evaluate.report import words
from loadslice.spec.evaluation import LayerName

Figures = Mapping[str, Any]
Cell = Callable[[Figures], str]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a layer's table."""

    label: str
    cell: Cell


@dataclass(frozen=True, slots=True)
class About:
    """A layer for a reader."""

    title: str
    how: str
    rows: tuple[Row, ...]


def number(value: float | None, unit: str = "") -> str:
    """With about three digits."""
    return words.UNKNOWN if value is None else f"{words.rate(value)}{f' {unit}' if unit else ''}"


def _n(key: str, unit: str = "") -> Cell:
    return lambda figures: number(figures.get(key), unit)


def _ms(key: str) -> Cell:
    return lambda figures: words.UNKNOWN if figures.get(key) is None else f"{words.ms(figures[key])} ms"


def _yes(key: str, yes: str = "yes", no: str = "no") -> Cell:
    return lambda figures: words.UNKNOWN if figures.get(key) is None else yes if figures[key] else no


def _interval(value: str, ends: str, unit: str, how: str = "") -> Cell:
    """A value with its ends below it."""

    def cell(figures: Figures) -> str:
        told = number(figures.get(value), unit)
        return told if not figures.get(ends) else f"{told} ({how}{between(figures[ends])})"

    return cell


def between(ends: list[float]) -> str:
    """Two ends."""
    return f"{words.rate(ends[0])} to {words.rate(ends[1])}"


def _of(part: str, whole: str) -> Cell:
    return lambda figures: f"{number(figures.get(part))} of {number(figures[whole])}" if figures.get(whole) else "–"


def _shares(key: str) -> Cell:
    def cell(figures: Figures) -> str:
        return ", ".join(f"{name} {words.share(share, 0)}" for name, share in (figures.get(key) or {}).items()) or "–"

    return cell


def _alike(figures: Figures) -> str:
    if not figures.get("compared"):
        return "is the reference"
    said = figures.get("alike") or "not compared"
    return f"{said}{' different' if said in ('slightly', 'clearly') else ''}"


def _paths(figures: Figures) -> str:
    return "; ".join(f"{path}: {count}" for path, count in (figures.get("paths") or {}).items()) or words.UNKNOWN


def _under_load(figures: Figures) -> str:
    loaded = figures.get("under_load")
    return words.UNKNOWN if not loaded else f"{number(loaded['differing'])} of {number(loaded['answers'])}"


def _knee(value: str, ends: str | None, which: str, unit: str) -> Cell:
    def cell(figures: Figures) -> str:
        knee = figures.get(which)
        if not knee:
            return words.UNKNOWN
        told = number(knee[value], unit)
        return told if ends is None or not knee.get(ends) else f"{told} ({between(knee[ends])})"

    return cell


def _pct(key: str) -> Cell:
    return lambda figures: words.signed_pct(figures.get(key))


def _part(name: str) -> Cell:
    def cell(figures: Figures) -> str:
        value, whole = figures.get(f"{name}_ms"), figures.get("latency_ms_mean")
        if value is None or not whole:
            return words.UNKNOWN
        return f"{value:.2f} ms ({words.share(value / whole, 0)})".replace("-", "\N{MINUS SIGN}")

    return cell


def _over_fresh(figures: Figures) -> str:
    ratios = figures.get("latency_over_fresh")
    if not ratios:
        return "not asked: latency did not surely rise"
    return f"{sorted(ratios)[len(ratios) // 2]:.2f} in the median of {len(ratios)} rounds"


def _per_hour(key: str, ends: str, scale: float, unit: str) -> Cell:
    def cell(figures: Figures) -> str:
        if figures.get(key) is None:
            return words.UNKNOWN
        low, high = (end * scale for end in figures[ends])
        return f"{words.rate(figures[key] * scale)} {unit} ({words.rate(low)} to {words.rate(high)})"

    return cell


LAYERS: dict[LayerName, About] = {
    "correctness": About(
        "Correctness",
        "Every input was sent to each placement, and once more; outputs are compared with the reference's. The task "
        "metric is the share right by the inputs' own labels. The ramp's answers are compared again under load.",
        (
            Row("Inputs", _n("inputs")),
            Row("Without an answer", _n("unanswered")),
            Row("Outputs beside the reference's", _alike),
            Row("Bit for bit the same", _of("identical", "compared")),
            Row("Largest relative error", _n("relative_error_max")),
            Row("Slope against the reference, median (1: no scale is off)", _n("slope_median")),
            Row("Texts that differ", _n("texts_differing")),
            Row("Answers with NaN or infinity", _n("not_finite")),
            Row("Otherwise when asked again", _n("repeats_differing")),
            Row("Otherwise under load", _under_load),
            Row("Task metric, share right", _n("metric")),
            Row("Engines taken: answers", _paths),
        ),
    ),
    "latency": About(
        "Latency of a lone request",
        "One client sends one request at a time, all inputs in turn, until the 95 % interval of the median (bootstrap) "
        "is within 2 % of it or the repeats are used up. Times are the client's, on this machine, to the last byte.",
        (
            Row("Requests completed", _of("completed", "requests")),
            Row("Median (95 % interval)", _interval("whole_ms_p50", "whole_ms_p50_95", "ms")),
            Row("Known within 2 %", _yes("interval_small", no="no, see limits")),
            Row("95 of 100 within", _ms("whole_ms_p95")),
            Row("99 of 100 within", _ms("whole_ms_p99")),
            Row("First byte, median", _ms("first_ms_p50")),
            Row("The very first request", _ms("cold_ms")),
        ),
    ),
    "ramp": About(
        "How much it can do",
        "More and more clients, each with one request open, until twice as many bring less than 5 % more. The knee is "
        "the plateau's rate times the latency at one client (saturation point). The prediction was made before the "
        "first client started, by simulating the same requests on the times of single requests. Measured figures are "
        "medians of rounds; in brackets the least and most of them.",
        (
            Row("Most answers a second, measured", _knee("throughput_per_s", "throughput_per_s_range", "knee", "/s")),
            Row("predicted", _knee("throughput_per_s", None, "knee_predicted", "/s")),
            Row("Error of the prediction", _pct("knee_error_pct")),
            Row("Knee, measured", _knee("clients", "clients_range", "knee", "clients")),
            Row("predicted ", _knee("clients", None, "knee_predicted", "clients")),
            Row("Error of the prediction ", _pct("knee_clients_error_pct")),
            Row("One client's requests, longer than predicted by", _pct("one_client_slower_than_predicted_pct")),
            Row("Busy at the end of the climb", _shares("engine_busy")),
            Row("Server's processor time per answer", _ms("cpu_ms_per_answer")),
            Row("The climb ended because", lambda figures: str(figures.get("ended") or words.UNKNOWN)),
        ),
    ),
    "soak": About(
        "Constant load for a while",
        "As many clients as the knee has, for the time stated. A slope is Theil and Sen's with its 95 % interval. "
        "Where latency surely rises, a fresh server is asked by turns with the old one, so that a slower machine is "
        "not taken for a decay.",
        (
            Row("Clients", _n("clients")),
            Row("Time", lambda figures: words.seconds(figures.get("for_s"))),
            Row("Failed", _of("failed", "requests")),
            Row("Median latency", _ms("latency_ms_p50")),
            Row("Latency rises by", _per_hour("latency_drift_ms_per_hour", "latency_drift_95", 1.0, "ms/h")),
            Row("Over a fresh server's latency", _over_fresh),
            Row("Decays", _yes("decays")),
            Row("Memory", lambda figures: words.si(figures.get("memory_bytes_p50"), "B")),
            Row("Memory rises by", _per_hour("memory_drift_bytes_per_hour", "memory_drift_95", 1e-6, "MB/h")),
            Row("Memory goes on growing", _yes("grows")),
            Row("Clients that starved", _n("starved")),
            Row("Requests left inside", _n("left_inside")),
            Row("Other programs' share of the processors", lambda f: words.share(f.get("others_share"), 0)),
        ),
    ),
    "abnormal": About(
        "Inputs that nobody should send",
        "Empty, huge, hostile, wrong and impossible inputs, one by one; after each a good one must be answered as "
        "before. The cases stand below.",
        (
            Row("Cases", _n("cases")),
            Row("Refused, as should be", _n("refused")),
            Row("Answered", _n("answered")),
            Row("Connection closed", _n("dropped")),
            Row("Blamed on the server (5xx)", _n("failed")),
            Row("Without an answer in time", _n("hung")),
            Row("Good request suffered afterwards", _n("not_recovered")),
            Row("Server alive at the end", _yes("alive")),
        ),
    ),
    "attribution": About(
        "Where a lone request's time goes",
        "Means over the lone requests. Compute, copy and queueing as the server states them in each answer; "
        "scheduling and front from its journal; transport from round trips that ask for nothing. Nothing is fitted: "
        "what the parts leave of the client's own time stands as unexplained.",
        (
            Row("Latency", _ms("latency_ms_mean")),
            *(
                Row(name.capitalize(), _part(name))
                for name in ("compute", "copy", "queueing", "scheduling", "front", "transport", "unexplained")
            ),
            Row("Adds up within 2 %", _yes("adds_up")),
            Row("Taken from", lambda figures: str(figures.get("source") or words.UNKNOWN)),
        ),
    ),
    "replay": About(
        "Recorded traffic",
        "Replayed open loop: each request leaves when it is due, whatever the server does, and its latency counts from "
        "then. Intervals are of the measurement, 95 %.",
        (
            Row("Requests", _n("requests")),
            Row("Median", _interval("latency_ms_p50", "latency_ms_p50_95", "ms")),
            Row("predicted", _ms("latency_ms_p50_predicted")),
            Row("95 of 100 within", _interval("latency_ms_p95", "latency_ms_p95_95", "ms")),
            Row("predicted ", _ms("latency_ms_p95_predicted")),
            Row("Answers a second", _n("throughput_per_s", "/s")),
            Row("Errors", lambda figures: words.share(figures.get("error_share"), 2)),
            Row("Sent late by, 99 of 100 within", _ms("send_lag_ms_p99")),
        ),
    ),
}


def table(name: LayerName, figures: Mapping[str, Figures]) -> Iterator[tuple[str, list[str]]]:
    """Lines of a layer's table, one value for each placement; what is known of none is left out."""
    for row in LAYERS[name].rows:
        cells = [row.cell(own) for own in figures.values()]
        if any(cell != words.UNKNOWN for cell in cells):
            yield row.label, cells
