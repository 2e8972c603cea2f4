"""Replay a trace at a live server and say what came of it."""

import io
import ipaddress
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

import msgspec
import numpy as np
import polars as pl

from loadslice.evaluate import accuracy, loadgen, payloads
from loadslice.spec.address import web_address
from loadslice.spec.errors import InputError
from loadslice.spec.files import Stamp, write_bytes
from loadslice.spec.outcome import OUTCOMES
from loadslice.spec.replay import REPLAY_COLUMNS, Replay, SendLagMs, ServerSaid
from loadslice.spec.simulation import LatencyMs
from loadslice.spec.twin import label

REQUESTS_MAX = 1_000_000
SEND_LAG_MS_WARN = 5.0
"""A generator later than this at its 99th percentile measures itself; named in a warning."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go."""

    url: str
    """Of a server, or of one endpoint."""

    @property
    def base(self) -> str:
        """Scheme and address."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


def target(url: str, *, allow_remote: bool) -> Target:
    """Check a URL.

    Raises:
        InputError: Not an http URL, or an address that is not this machine's.
    """
    parts = web_address(url, "URL")
    assert parts.hostname is not None
    if not allow_remote and not _is_loopback(parts.hostname, parts.port or 80):
        raise InputError(
            f"URL '{url}': '{parts.hostname}' is not this machine. Load on somebody else's server needs --allow-remote."
        )
    return Target(url)


def endpoint(where: Target, pipeline: str | None, *, tensors: bool) -> Target:
    """Complete a URL that has no path with the endpoint of a pipeline.

    Args:
        where: Checked, and its server is there.
        pipeline: Its name; ``None``: asks the server, which must have just one.
        tensors: Inputs are tensors and not raw bytes.

    Raises:
        InputError: No path, and no pipeline to make one from.
    """
    if urlsplit(where.url).path not in ("", "/"):
        return where
    name = pipeline or _only_pipeline(where)
    return Target(f"{where.base}/v2/models/{name}/infer" if tensors else f"{where.base}/v1/pipelines/{name}")


def _only_pipeline(where: Target) -> str:
    try:
        with _open(f"{where.base}/v1/pipelines") as answer:
            names = [entry["name"] for entry in msgspec.json.decode(answer.read(1 << 20))["pipelines"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, HTTPException) as error:
        raise InputError(
            f"URL '{where.url}': no path, and the server does not list pipelines. Add the endpoint's path."
        ) from error
    if len(names) != 1:
        raise InputError(f"URL '{where.url}': the server has {len(names)} pipelines; say which with --pipeline P.yaml.")
    return str(names[0])


def _open(url: str) -> HTTPResponse:
    """GET. No proxy of the environment may stand between us and a server of this machine."""
    answer = build_opener(ProxyHandler({})).open(url, timeout=10)
    assert isinstance(answer, HTTPResponse)
    return answer


def _is_loopback(host: str, port: int) -> bool:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InputError(f"URL host '{host}': no such address.") from error
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


def require_server(where: Target) -> None:
    """Ask the server whether it is ready, so that a replay never starts at nothing.

    Raises:
        InputError: Nobody listens there, or the server says that it is not ready.
    """
    try:
        _open(f"{where.base}/v2/health/ready").close()
    except HTTPError as error:
        error.close()
        if error.code == 503:
            raise InputError(
                f"{where.base}: the server says it is not ready (503). Wait for it, or see its log."
            ) from error
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error) or "it breaks off"
        raise InputError(
            f"{where.base}: nobody answers there ({reason}). Start it with `loadslice serve PIPELINE --http PORT`."
        ) from error


def replay(
    stretch: pl.DataFrame,
    inputs: payloads.Inputs,
    where: Target,
    limits: loadgen.Limits,
    *,
    dilate: float = 1.0,
    on_answer: Callable[[loadgen.Answer], None] = lambda _: None,
) -> tuple[pl.DataFrame, loadgen.Run]:
    """Send a stretch (see `payloads.cut`) open loop.

    Args:
        stretch: What to send.
        inputs: With which bodies.
        where: To whom.
        limits: Bounds, in the server's time.
        dilate: Seconds of the world for one of the server's, whose clock is as slow; the rows are in its time.
        on_answer: Called for each answer.

    Returns:
        One row per request with `REPLAY_COLUMNS`, in order of the stretch, and how the run ended.

    Raises:
        InputError: More requests than one replay keeps in memory.
    """
    if stretch.height > REQUESTS_MAX:
        raise InputError(
            f"{stretch.height} requests are more than the {REQUESTS_MAX} of one replay. Use --limit or --for-s."
        )
    scored = inputs.score is not None and any(sample.truth is not None for sample in inputs.samples.values())
    slowed = stretch.with_columns(arrival_s=pl.col("arrival_s") * dilate) if dilate != 1 else stretch
    limits = replace(limits, timeout_s=limits.timeout_s * dilate)
    run = loadgen.drive(where.url, payloads.shots(slowed, inputs), limits, keep_bodies=scored, on_answer=on_answer)
    if dilate != 1:
        _undilate(run.answers, dilate)
    return _rows(stretch, inputs, run.answers), run


def _undilate(answers: list[loadgen.Answer], dilate: float) -> None:
    for answer in answers:
        answer.due_s /= dilate
        answer.sent_s = None if answer.sent_s is None else answer.sent_s / dilate
        answer.done_s = None if answer.done_s is None else answer.done_s / dilate


def _rows(stretch: pl.DataFrame, inputs: payloads.Inputs, answers: list[loadgen.Answer]) -> pl.DataFrame:
    names = stretch["input"].to_list()
    deadlines = stretch["deadline_ms"].to_list() if "deadline_ms" in stretch.columns else [None] * stretch.height
    rows = []
    for answer, name, deadline_ms in zip(answers, names, deadlines, strict=True):
        latency_ms = None if answer.done_s is None else 1000 * (answer.done_s - answer.due_s)
        texts = accuracy.texts_of(answer.body) if answer.body is not None else None
        truth = inputs.samples[name].truth
        wrong, characters = (None, None)
        if texts is not None and truth is not None and inputs.score is not None:
            wrong, characters = inputs.score(truth, texts)
        within = None
        if deadline_ms is not None:
            within = answer.outcome == "completed" and latency_ms is not None and latency_ms <= deadline_ms
        rows.append(
            {
                "row": answer.row,
                "due_s": answer.due_s,
                "send_lag_ms": None if answer.sent_s is None else 1000 * (answer.sent_s - answer.due_s),
                "latency_ms": latency_ms,
                "status": answer.status,
                "outcome": answer.outcome,
                "reason": answer.reason,
                "within_deadline": within,
                "input": name,
                "engine": answer.engine,
                "texts": texts,
                "wrong_characters": wrong,
                "characters": characters,
            }
        )
    return pl.DataFrame(rows, schema=REPLAY_COLUMNS)


def summarise(
    rows: pl.DataFrame,
    run: loadgen.Run,
    *,
    trace: str,
    url: str,
    speed: float,
    from_s: float,
    dilate: float = 1.0,
    made: Stamp | None = None,
) -> Replay:
    """Figures over the rows of one replay; percentiles are over completed requests.

    Args:
        rows: As `replay` gives them.
        run: How it ended.
        trace: Path, for the record.
        url: Where it was sent.
        speed: Pace against the recording.
        from_s: Begin of the stretch in the trace.
        dilate: As it was replayed.
        made: Where the document came from.
    """
    completed = rows.filter(pl.col("outcome") == "completed")
    latencies_ms = completed["latency_ms"].to_numpy()
    ended_s = (rows["due_s"] + rows["latency_ms"] / 1000).max()
    first_s, last_due_s = rows["due_s"].min(), rows["due_s"].max()
    assert isinstance(first_s, float)
    assert isinstance(last_due_s, float)
    span_s = max(ended_s if isinstance(ended_s, float) else 0.0, last_due_s) - first_s
    late = int((completed["within_deadline"] == False).sum())  # noqa: E712 - null is not late
    outcomes = Counter(rows["outcome"].to_list())
    reasons = Counter(rows["reason"].drop_nulls().to_list())
    assert sum(outcomes.values()) == rows.height
    lag_ms = rows["send_lag_ms"].drop_nulls().to_numpy()
    return Replay(
        requests=rows.height,
        outcomes={name: outcomes.get(name, 0) for name in OUTCOMES},
        latency_ms=percentiles_ms(latencies_ms),
        throughput_per_s=completed.height / span_s if span_s > 0 else None,
        goodput_per_s=(completed.height - late) / span_s if span_s > 0 else None,
        send_lag_ms=SendLagMs(p50=_quantile(lag_ms, 0.5), p99=_quantile(lag_ms, 0.99)),
        client_errors=sum(count for reason, count in reasons.items() if _is_ours(reason)),
        accuracy=accuracy.total(_scores(rows)),
        basis="emulated" if any(answer.basis is not None for answer in run.answers) else "measured",
        dilate=dilate,
        trace=trace,
        url=url,
        speed=speed,
        from_s=from_s,
        span_s=span_s,
        complete=not (run.interrupted or run.gone),
        answered=2 * completed.height >= rows.height,
        server_said=_server_said(run),
        reasons=dict(reasons.most_common()),
        warnings=[*_warnings(rows, run, lag_ms), *_told_apart(run, dilate)],
        stamp=made,
    )


def _server_said(run: loadgen.Run) -> ServerSaid | None:
    said = Counter((answer.told, answer.status) for answer in run.answers if answer.told is not None)
    if not said:
        return None
    ((text, status), requests) = said.most_common(1)[0]
    assert text is not None
    assert status is not None
    return ServerSaid(text=text, status=status, requests=requests)


def _scores(rows: pl.DataFrame) -> list[tuple[int, int]]:
    scored = rows.filter(pl.col("characters").is_not_null())
    return list(zip(scored["wrong_characters"].to_list(), scored["characters"].to_list(), strict=True))


def _is_ours(reason: str) -> bool:
    """Blame of the client: 4xx answers other than 429 and 499, and requests it could not send."""
    return reason == "connection_limit" or (reason.startswith("http_4") and reason not in ("http_429", "http_499"))


def _warnings(rows: pl.DataFrame, run: loadgen.Run, lag_ms: np.ndarray) -> list[str]:
    found = []
    lag_p99 = _quantile(lag_ms, 0.99)
    if lag_p99 is not None and lag_p99 > SEND_LAG_MS_WARN:
        found.append(
            f"The generator was late by {lag_p99:.1f} ms at its 99th percentile; latencies contain that. "
            "Run it on another core or slow the pace with --speed."
        )
    completed = int((rows["outcome"] == "completed").sum())
    if 2 * completed < rows.height:
        found.append(
            f"Only {completed} of {rows.height} requests completed: exit code 3, the figures say more of refusals than "
            "of service."
        )
    if 0 < completed < 100:
        found.append(f"Only {completed} requests completed: the 99th percentile is the slowest one or two of them.")
    unscored = rows.filter((pl.col("outcome") == "completed") & pl.col("texts").is_null()).height
    if 0 < unscored < completed:
        found.append(f"{unscored} completed answers held no text and were not scored.")
    if run.gone:
        found.append("The server went away during the replay; requests after that failed with reason 'server_gone'.")
    if run.interrupted:
        found.append("Interrupted; requests that were open or not sent yet are cancelled.")
    return found


def _told_apart(run: loadgen.Run, dilate: float) -> list[str]:
    """What an emulated device had a part in, and a pace that was not the server's."""
    said = sorted({answer.basis for answer in run.answers if answer.basis is not None})
    found = [f"Times are {label(dilate)}: answers came from a device that is not here."] if said else []
    if said not in ([], [label(dilate)]):
        found.append(f"The server says '{said[0]}', and this replay was dilated {dilate:g}x: the times mean nothing.")
    if dilate != 1 and not said:
        found.append(f"No answer came from an emulated device, yet times were divided by {dilate:g}.")
    return found


def percentiles_ms(latencies_ms: np.ndarray) -> LatencyMs:
    """Percentiles of a sample by linear interpolation; all null for an empty one."""
    return LatencyMs(
        p50=_quantile(latencies_ms, 0.5),
        p95=_quantile(latencies_ms, 0.95),
        p99=_quantile(latencies_ms, 0.99),
        mean=float(latencies_ms.mean()) if latencies_ms.size else None,
    )


def _quantile(values: np.ndarray, share: float) -> float | None:
    return float(np.quantile(values, share)) if values.size else None


def write_rows(rows: pl.DataFrame, path: Path) -> None:
    """Write rows as Parquet, whole or not at all.

    Raises:
        OutputError: Not writable, or the disk is full.
    """
    # In memory first: Polars reports a full disk as an error of the file format.
    buffer = io.BytesIO()
    rows.write_parquet(buffer, compression="zstd")
    write_bytes(path, buffer.getvalue())
