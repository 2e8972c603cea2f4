"""The OCR example end to end, served: ONNX Runtime as it comes against the service that `loadslice squeeze` found.

Both are started afresh for every round, called by the same clients without a pause, by turns; inputs come as often as
the recorded trace names them. Of the untuned service two forms are asked, one run at a time (as it comes) and as many
as there are processors, and the better one counts. Processor time is of the server's processes.

``LOADSLICE_OCR_SQUEEZED=FILE`` serves another file than the example's own ``squeezed.yaml``.
"""

import http.client
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from benchmarks import Figures, load_average_1m
from benchmarks.serve_targets import Target, ours
from loadslice.evaluate.accuracy import texts_of
from loadslice.profiles.samples import of_pipeline
from loadslice.spec.files import decode_yaml
from loadslice.spec.functions import call_function, load_function
from loadslice.spec.pipeline import load
from loadslice.spec.work import Sample
from loadslice.workload import importing

EXAMPLE = Path(__file__).parent.parent / "examples" / "ocr"
CLIENTS = 8
ROUNDS, SECONDS, WARM_S = 3, 6.0, 2.0


@dataclass
class Seen:
    """What the windows of one service saw."""

    per_s: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    texts: dict[str, list[str]] = field(default_factory=dict)
    failed: int = 0


def run() -> Figures:
    """Serve, ask and compare."""
    figures: Figures = {"load_average_1m_before": load_average_1m()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "ocr"
        shutil.copytree(EXAMPLE, folder)
        tuned = Path(os.environ.get("LOADSLICE_OCR_SQUEEZED", folder / "squeezed.yaml"))
        cores = len(os.sched_getaffinity(0))
        plans = {
            "untuned": untuned(folder, 1),
            f"untuned_{cores}_runs": untuned(folder, cores),
            "squeezed": tuned,
        }
        pipeline = load(folder / "pipeline.yaml")
        samples = {one.name: one for one in of_pipeline(pipeline, folder)}
        tokens = importing.load(folder / "traffic.parquet").frame["tokens_in"].to_numpy()
        calls = [samples[name] for name in call_function("ocr_inputs:assign", folder, tokens)]
        seen = {name: Seen() for name in plans}
        for number in range(ROUNDS):
            for plan in list(plans) if number % 2 == 0 else reversed(plans):
                with ours(plans[plan]) as target:
                    window(target, calls, WARM_S, Seen())
                    window(target, calls, SECONDS, seen[plan])
                    if number == 0:
                        read_all(target, samples.values(), seen[plan])
                print(f"{plan}: {seen[plan].per_s[-1]:.1f} requests/s", file=sys.stderr, flush=True)
        score = load_function("ocr_inputs:score", folder)
        figures |= compared(seen, samples, score)
    figures["load_average_1m_after"] = load_average_1m()
    return figures


def untuned(folder: Path, runs: int) -> Path:
    """The example's stages, one ONNX Runtime session each, all threads, spinning, no batches and no buckets."""
    source = decode_yaml(folder / "pipeline.yaml", dict[str, Any])
    engine = {
        "backend": "onnxruntime", "threads": len(os.sched_getaffinity(0)), "max_inflight": runs,
        "queue": {"limit": 128}, "options": {"session.intra_op.allow_spinning": "1"},
    }  # fmt: skip
    stages = [
        stage if "python" in stage else {"name": stage["name"], "model": stage["model"], "engine": "ort"}
        for stage in source["stages"]
    ]
    path = folder / f"untuned{runs}.yaml"
    engines = {"host": source["engines"]["host"], "ort": engine}
    path.write_text(yaml.safe_dump({**source, "engines": engines, "stages": stages}, sort_keys=False))
    return path


def window(target: Target, calls: Sequence[Sample], seconds: float, seen: Seen) -> None:
    """Call from `CLIENTS` connections for a while."""
    numbers = itertools.count()
    done = [0] * CLIENTS
    before_s, began_s = target.cpu_s(), time.perf_counter()

    def client(index: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=60)
        while time.perf_counter() - began_s < seconds:
            status, _ = ask(connection, calls[next(numbers) % len(calls)])
            if status == 200:
                done[index] += 1
            else:
                seen.failed += 1
        connection.close()

    threads = [threading.Thread(target=client, args=(index,)) for index in range(CLIENTS)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    seen.per_s.append(sum(done) / (time.perf_counter() - began_s))
    seen.cpu_ms.append(1e3 * (target.cpu_s() - before_s) / max(1, sum(done)))


def read_all(target: Target, samples: Any, seen: Seen) -> None:
    """Every input once."""
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=60)
    for sample in samples:
        status, body = ask(connection, sample)
        seen.texts[sample.name] = (texts_of(body) or []) if status == 200 else []
    connection.close()


def ask(connection: http.client.HTTPConnection, sample: Sample) -> tuple[int, bytes]:
    """One request."""
    headers = {"content-type": sample.content_type, "x-loadslice-deadline-ms": "60000"}
    connection.request("POST", "/v1/pipelines/ocr", sample.body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def compared(seen: dict[str, Seen], samples: dict[str, Sample], score: Any) -> Figures:
    """Ratios of the same rounds, and marks."""
    figures: Figures = {}
    base_name = max((name for name in seen if name != "squeezed"), key=lambda name: statistics.median(seen[name].per_s))
    base, own = seen[base_name], seen["squeezed"]
    for name, one in seen.items():
        figures[f"{name}_requests_per_s"] = statistics.median(one.per_s)
        figures[f"{name}_cpu_ms_per_request"] = statistics.median(one.cpu_ms)
        figures[f"{name}_failed"] = one.failed
        marks = [score(samples[key].truth, texts) for key, texts in one.texts.items()]
        figures[f"{name}_wrong_characters_share"] = sum(mark[0] for mark in marks) / sum(mark[1] for mark in marks)
    pairs = list(zip(own.per_s, base.per_s, strict=True))
    figures["against"] = base_name
    figures["throughput_speedup"] = statistics.median([mine / theirs for mine, theirs in pairs])
    figures["throughput_speedup_least"] = min(mine / theirs for mine, theirs in pairs)
    figures["cpu_speedup"] = statistics.median(
        [theirs / mine for mine, theirs in zip(own.cpu_ms, base.cpu_ms, strict=True)]
    )
    apart = [score(base.texts[key], own.texts[key]) for key in samples]
    figures["characters_unlike_untuned_share"] = sum(one[0] for one in apart) / max(1, sum(one[1] for one in apart))
    figures["texts_alike_share"] = statistics.mean(base.texts[key] == own.texts[key] for key in samples)
    return figures


if __name__ == "__main__":
    print(json.dumps(msgspec.to_builtins(run()), indent=1))
