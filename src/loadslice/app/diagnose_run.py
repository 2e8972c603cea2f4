"""Gathers evidence for a diagnosis, from wherever the user points at, and asks all rules."""

import os
import threading
from pathlib import Path

from loadslice.app import watch_server
from loadslice.app.admin_client import ADMIN_TOKEN
from loadslice.app.coverage import Asking, subject, with_subjects
from loadslice.app.output import say
from loadslice.backends import probe
from loadslice.evaluate.diagnose import drawn, from_folder, from_journal, from_scrapes
from loadslice.evaluate.diagnose.evidence import Evidence
from loadslice.evaluate.diagnose.rule import ask
from loadslice.evaluate.diagnose.rules import RULES
from loadslice.evaluate.watch.sensors import Sensors
from loadslice.graph.inspect import inspect
from loadslice.spec import budget as budgets
from loadslice.spec import journal as journals
from loadslice.spec import pipeline as pipelines
from loadslice.spec.diagnosis import Diagnosis, LookedAt
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model
from loadslice.spec.inspection import Inspection
from loadslice.spec.pipeline import Pipeline

COMPILER_S_MAX = 300.0


def of_server(url: str, admin_url: str | None, for_s: float, every_s: float) -> Evidence:
    """Look at a live server for some seconds.

    Raises:
        InputError: It cannot be reached.
    """
    sensors = Sensors() if watch_server.is_here(url) else None
    scrapes, sensed = [], []
    pause = threading.Event()
    looks = max(2, round(for_s / every_s) + 1)
    for number in range(looks):
        scrapes.append(watch_server.metrics(url))
        sensed.append(None if sensors is None else sensors.look())
        if number + 1 < looks:
            pause.wait(every_s)
    asked = admin_url or url if os.environ.get(ADMIN_TOKEN) else None
    rollout = None if asked is None else watch_server.rollout(asked)
    described = None if asked is None else watch_server.engines(asked)
    found = from_scrapes.evidence(scrapes, sensed, rollout, described)
    found.read.append(f"{url}/metrics, {looks} times over {scrapes[-1].at_s - scrapes[0].at_s:.1f} s")
    if rollout is not None:
        found.read.append(f"{admin_url or url}/admin/rollout")
    return found


def of_path(path: Path, budget: Path | None) -> list[Evidence]:
    """Read a journal, or whatever stands in a folder.

    Raises:
        InputError: There is nothing of ours, or it cannot be read.
    """
    if not path.is_dir():
        raise InputError(f"{path}: neither an address (http://...) nor a folder of a run.")
    limit_w = None if budget is None else budgets.load(budget).power.per_box_w
    if budget is not None and limit_w is None:
        raise InputError(f"{budget}: power.per_box_w: missing; say how many watts a box may draw.")
    parts = from_folder.evidence(path) if not (path / "journal.json").is_file() else [_journal(path)]
    for part in parts:
        if part.batches is not None:
            folder = Path(part.read[0])
            pipeline = journals.pipeline_of(journals.load(folder), folder)
            drawn.add(part, pipeline, limit_w, f"{budget}, power.per_box_w")
    return parts


def _journal(path: Path) -> Evidence:
    return from_journal.evidence(journals.load(path), path)


def of_pipeline(path: Path) -> Evidence:
    """Which operators of a pipeline's models its engines' devices run.

    Raises:
        InputError: The file or a model cannot be read.
    """
    pipeline = pipelines.load(path)
    found = Evidence(basis="modelled", read=[str(path)])
    for model, devices in _meant_for(pipeline).items():
        say(f"inspecting {model} for {', '.join(devices)}")
        found.inspections.append((model, _inspected(model, devices, path.parent)))
    return found


def _meant_for(pipeline: Pipeline) -> dict[str, list[str]]:
    """Models and the devices of the engines that are to run them."""
    wanted: dict[str, list[str]] = {}
    for stage in pipeline.stages:
        if stage.model is None or not isinstance(stage.model, str):
            continue
        for name in stage.engine_names:
            device = pipeline.engines[name].device
            if device is not None and device not in wanted.setdefault(stage.model, []):
                wanted[stage.model].append(device)
    return {model: devices for model, devices in wanted.items() if devices}


def _inspected(model: str, devices: list[str], folder: Path) -> Inspection:
    path = resolve_model(model, folder)
    subjects = [subject(name, [], lambda: probe.local().device) for name in devices]
    known = [one.device for one in subjects if one.device is not None]
    asking = Asking(compilers=False, deadline_s=COMPILER_S_MAX, memory_bytes=None, tell=say)
    return with_subjects(inspect(path, {}, known, None), path, {}, subjects, asking)


def conclude(source: str, kind: str, parts: list[Evidence]) -> Diagnosis:
    """Ask every rule about every part; what one of them could be asked about was looked at."""
    findings, looked = [], dict[str, LookedAt]()
    for part in parts:
        found, asked = ask(RULES, part)
        findings += [one for one in found if one not in findings]
        for one in asked:
            if one.looked or one.rule not in looked:
                looked[one.rule] = one
    order = {"high": 0, "medium": 1, "low": 2}
    return Diagnosis(
        source=source,
        kind=kind,  # type: ignore[arg-type]
        findings=sorted(findings, key=lambda one: order[one.confidence]),
        looked_at=list(looked.values()),
        read=[place for part in parts for place in part.read],
    )
