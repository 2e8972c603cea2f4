"""A version that is silently wrong, and one that is not, on recorded load: `python -m benchmarks canary`.

The wrong version of `examples/ocr` has the weights of one convolution of its text detector times 1.02. First its
answers to the example's 32 images are compared as `loadslice evaluate` does. Then it is the canary of a live server, at
5 % of the traffic with the plan's own numbers, until it is taken back; the load is the example's recorded seven
minutes, one after the other until they make an hour. At last an equal version is the canary over 100,000 requests of
that load, which must raise no alarm.

Live runs are compressed: arrivals come `SPEED` times as fast as they were recorded, and in place of the models stand
functions that give back what the real models gave for the same image, after the time that took divided by `SPEED`.
Everything else is the server as it is: the split, what is asked again, the comparison of the detector's whole output,
the tests and the way back.
"""

import secrets
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import polars as pl
from onnx import numpy_helper

from benchmarks import Figures
from loadslice.app.admin_client import ADMIN_TOKEN
from loadslice.app.drill_versions import stored_floats
from loadslice.app.inputs import with_inputs
from loadslice.app.study_server import Served, serving
from loadslice.evaluate import answers
from loadslice.evaluate.drills.desk import Desk
from loadslice.evaluate.layers.subject import Subject
from loadslice.evaluate.loadgen import Limits, Shot, drive
from loadslice.profiles.chain import close, open_steps, walk
from loadslice.spec import pipeline as pipelines
from loadslice.spec.files import resolve_model
from loadslice.spec.functions import load_function
from loadslice.spec.rollout import LatencyRule, RolloutPlan

OCR = Path(__file__).resolve().parents[1] / "examples/ocr"
PIPELINE = OCR / "pipeline.onnxruntime.yaml"
OFF = 1.02
HOUR_S = 3600.0
REQUESTS = 100_000
SPEED = 80.0
WALKS = 3
"""Of each image through each version: real outputs and times with whatever differs from run to run."""
PORTION = 250
"""Requests between two looks at how the rollout stands."""
PLAN = RolloutPlan(automatic=False, latency=LatencyRule(slower_max_ms=LatencyRule().slower_max_ms / SPEED))

SERVED = """
version: 1
pipeline: ocr
max_requests: 256
deadline_ms: 5000
rollout: {steps: [0.05, 0.25]}
engines: {ort: {backend: python, max_inflight: 2, queue: {limit: 128}}, host: {backend: python}}
stages:
  - {name: detect, python: "kept:detect", canary: {python: "kept:detect_anew"}, engine: ort}
  - {name: read, python: "kept:read", engine: host}
"""

KEPT = """
import itertools, time
from pathlib import Path
import numpy as np
from loadslice.spec.work import Work

FOLDER = Path(__file__).parent
KEPT = {version: dict(np.load(FOLDER / f"{version}.npz")) for version in ("stable", "canary")}
TURN = itertools.count()

def given(work, version):
    image, kept = work.context.body.decode(), KEPT[version]
    turn = next(TURN) % WALKS
    time.sleep(float(kept[f"{image}.s"][turn]) / SPEED)
    return Work({"map": kept[f"{image}.map.{turn}"]}, image)

def detect(work):
    return given(work, "stable")

def detect_anew(work):
    return given(work, "canary")

def read(work):
    return Work({"confidence": KEPT["stable"][f"{work.context}.confidence"]})
"""


def run() -> Figures:
    """Correctness, then the canary."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        layers, layer = write_versions(folder)
        stable, again, off = (recorded(folder / kind) for kind in ("stable", "stable", "off"))
        differences = [answers.compare(stable.answers[one], off.answers[one]) for one in stable.answers]
        distances = [_apart(stable.maps[one], off.maps[one]) for one in stable.maps]
        trace = with_inputs(pl.read_parquet(OCR / "traffic.parquet"), pipelines.load(PIPELINE), OCR)
        wrong = roll_out(folder, trace, stable, off, until_s=HOUR_S)
        equal = roll_out(folder, trace, stable, again, requests=REQUESTS)
    return {
        "layers": layers,
        "layer": layer,
        "images": len(stable.answers),
        "answers": answers.alike(differences, "fp32"),
        "answers_identical": sum(one.identical for one in differences),
        "answers_relative_error_max": max(one.relative_error or 0.0 for one in differences),
        "texts_differ": sum(one.text_differs for one in differences),
        "detector_distance_min": min(distances),
        "detector_distance_median": float(np.median(distances)),
        "hour_requests": wrong["planned"],
        "wrong_state": wrong["state"],
        "wrong_why": wrong["why"],
        "wrong_requests_until_back": wrong["requests"],
        "wrong_canary_requests": wrong["canary"],
        "wrong_share_of_hour": wrong["requests"] / wrong["planned"],
        "wrong_recorded_s_until_back": wrong["recorded_s"],
        "wrong_pairs": wrong["pairs"],
        "wrong_failed": wrong["failed"],
        "equal_requests": equal["requests"],
        "equal_recorded_hours": equal["recorded_s"] / HOUR_S,
        "equal_false_alarms": int(equal["decision"] == "fail"),
        "equal_decision": equal["decision"],
        "equal_why": equal["why"],
        "equal_canary_requests": equal["canary"],
        "equal_pairs": equal["pairs"],
        "equal_failed": equal["failed"],
    }


class Recorded(msgspec.Struct):
    """What one version made of every image."""

    maps: dict[str, list[np.ndarray]]
    """The detector's output, once for each walk."""
    took_s: dict[str, list[float]]
    answers: dict[str, dict[str, Any]]


def write_versions(folder: Path) -> tuple[int, str]:
    """The example twice, its detector as it is and with one layer off; how many layers there are, and which it was."""
    pipeline = pipelines.load(PIPELINE)
    reference = next(str(stage.model) for stage in pipeline.stages if stage.name == "detect")
    for kind in ("stable", "off"):
        place = folder / kind
        place.mkdir()
        for module in ("ocr_stages.py", "ocr_inputs.py"):
            shutil.copy(OCR / module, place / module)
        text = PIPELINE.read_text(encoding="utf-8").replace(reference, "detect.onnx")
        (place / "pipeline.yaml").write_text(text, encoding="utf-8")
        model = onnx.load(resolve_model(reference, place))
        filters = [one for one in stored_floats(model) if len(one.dims) == 4 and np.prod(one.dims) > 1]
        wrong = filters[len(filters) // 2]
        if kind == "off":
            wrong.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(wrong) * np.float32(OFF), wrong.name))
        onnx.save(model, place / "detect.onnx")
    return len(filters), f"{wrong.name or 'a constant'} {list(wrong.dims)}"


def recorded(place: Path) -> Recorded:
    """Walk every image through every stage on this machine."""
    pipeline = pipelines.load(place / "pipeline.yaml")
    samples = load_function("ocr_inputs:samples", place)()
    steps = open_steps(pipeline, place)
    found = Recorded(maps={}, took_s={}, answers={})
    try:
        for sample in samples:
            for _ in range(WALKS):
                works = walk(sample, steps)
                began_s = time.perf_counter()
                steps[1].run(works[1])
                found.took_s.setdefault(sample.name, []).append(time.perf_counter() - began_s)
                found.maps.setdefault(sample.name, []).append(*works[2].tensors.values())
            found.answers[sample.name] = {
                name: tensor.tolist() if tensor.dtype == object else tensor.astype(np.float64).ravel()
                for name, tensor in works[-1].tensors.items()
            }
    finally:
        close(steps)
    return found


def roll_out(
    folder: Path, trace: pl.DataFrame, stable: Recorded, canary: Recorded, *, until_s: float = 0.0, requests: int = 0
) -> dict[str, Any]:
    """Serve both on the recorded load until the canary is taken back, or it is over.

    Args:
        folder: Gets a folder of its own for the server.
        trace: What was recorded, with the image of each request.
        stable: What the old version gives.
        canary: What the new one gives.
        until_s: Seconds of recorded load; or
        requests: requests of it.
    """
    place = folder / secrets.token_hex(4)
    place.mkdir()
    (place / "pipeline.yaml").write_text(SERVED, encoding="utf-8")
    (place / "kept.py").write_text(f"SPEED, WALKS = {SPEED}, {WALKS}\n{KEPT}", encoding="utf-8")
    for version, kept in (("stable", stable), ("canary", canary)):
        np.savez(place / f"{version}.npz", allow_pickle=False, **_arrays(kept))
    shots = _shots(trace, until_s=until_s, requests=requests)
    secret = secrets.token_urlsafe(24)
    more = ("--drills", "--state", str(place / "state.sqlite"))
    with serving(
        place / "pipeline.yaml", place, None, journal=False, more=more, secrets={ADMIN_TOKEN: secret}
    ) as served:
        desk = _desk(served, place, secret)
        desk.ask("POST", "/admin/rollout/start", {"plan": msgspec.to_builtins(PLAN)})
        sent = failed = 0
        status: dict[str, Any] = {}
        # In portions, so that what comes after the way back is not counted as before it.
        for first in range(0, len(shots), PORTION):
            portion = shots[first : first + PORTION]
            begin_s = portion[0].due_s
            shifted = [Shot(one.row, one.due_s - begin_s, one.body, one.headers) for one in portion]
            made = drive(f"{served.url}/v1/pipelines/ocr", shifted, Limits())
            sent += len(portion)
            failed += sum(answer.outcome == "failed" for answer in made.answers)
            status = desk.ask("GET", "/admin/rollout")
            if status["state"] != "running":
                break
    analysis = status["analysis"]
    return {
        "planned": len(shots),
        "requests": sent,
        "failed": failed,
        "recorded_s": SPEED * shots[sent - 1].due_s,
        "state": status["state"],
        "decision": status["decision"],
        "why": status["why"],
        "canary": analysis["errors"]["figures"]["canary_requests"],
        "pairs": analysis["outputs"]["figures"]["pairs"],
    }


def _shots(trace: pl.DataFrame, *, until_s: float, requests: int) -> list[Shot]:
    """The recording, over and over, compressed."""
    rows = list(zip(trace["arrival_s"].to_list(), trace["input"].to_list(), strict=True))
    span_s = rows[-1][0] * len(rows) / (len(rows) - 1)
    shots: list[Shot] = []
    while True:
        number = len(shots)
        at_s = rows[number % len(rows)][0] + span_s * (number // len(rows))
        if (until_s and at_s >= until_s) or (requests and number >= requests):
            return shots
        body = rows[number % len(rows)][1].encode()
        shots.append(Shot(number, at_s / SPEED, body, {"content-type": "text/plain"}))


def _arrays(kept: Recorded) -> dict[str, np.ndarray]:
    arrays = {f"{image}.map.{turn}": one for image, maps in kept.maps.items() for turn, one in enumerate(maps)}
    arrays |= {f"{image}.s": np.array(took_s) for image, took_s in kept.took_s.items()}
    return arrays | {f"{image}.confidence": np.asarray(one["confidence"]) for image, one in kept.answers.items()}


def _desk(served: Served, place: Path, secret: str) -> Desk:
    subject = Subject("ocr", f"{served.url}/v1/pipelines/ocr", [], {}, None, False, 60.0)
    return Desk(subject, pipelines.load(place / "pipeline.yaml"), secret, False)


def _apart(kept: list[np.ndarray], given: list[np.ndarray]) -> float:
    """Relative L2, of the first walks."""
    return float(np.linalg.norm(given[0] - kept[0]) / np.linalg.norm(kept[0]))
