"""Drills with two versions of the pipeline: a canary whose metrics say nothing, a bad one, and a damaged one.

The versions are made from the user's own pipeline in a repository of the drill's: the second is the same again, or has
one layer's stored numbers scaled.
"""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from loadslice.app import repository
from loadslice.app.drill_field import Field, serving_desk
from loadslice.evaluate.drills.desk import Desk, pause, wait_for
from loadslice.evaluate.drills.stage import NotApplicableError
from loadslice.spec import pipeline as pipelines
from loadslice.spec.drill import DrillResult
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model
from loadslice.spec.repository import Model
from loadslice.spec.twin import twins

SCALE = 1.5
"""Of the bad version's largest weight tensor: wrong without a word."""
TOLERANCE = 0.05
WATCH_S = 8.0
CAUGHT_S_MAX = 60.0
LOOK_S = 0.2
"""Between two questions of how the rollout stands, which takes the server about a millisecond."""
FILE_BYTES_MAX = 256 * 1024 * 1024

Alter = Callable[[Path], None]


@contextlib.contextmanager
def _two_versions(field: Field, alter: Alter) -> Iterator[tuple[Path, Model, Desk]]:
    """A server on version 1 of a repository that holds a version 2, altered.

    Raises:
        NotApplicableError: The pipeline cannot be put into a repository.
    """
    name = field.pipeline.pipeline
    with tempfile.TemporaryDirectory(prefix="drill-") as scratch:
        folder = Path(scratch)
        try:
            first = _copied(field, folder / "first")
            second = _copied(field, folder / "second")
            alter(second)
            repo = folder / "repo"
            for copy in (first, second):
                extra = _beside(list(copy.iterdir()))
                repository.add(
                    repo, copy / "pipeline.yaml", version=None, allow_code=True, extra=extra, tolerance=TOLERANCE,
                    seed=field.seed,
                )  # fmt: skip
            model = Model(repo / name)
            model.use("1")
        except InputError as error:
            raise NotApplicableError(f"it cannot be put into a repository: {error}") from error
        more = ("--code", "--state", str(folder / "state.sqlite"))
        with serving_desk(field, model.folder, more) as desk:
            yield repo, model, desk


def _copied(field: Field, folder: Path) -> Path:
    """The pipeline with the files beside it, and with models of packages as files of its own."""
    folder.mkdir(parents=True)
    for path in sorted(field.path.parent.iterdir()):
        fits = path.suffix in {".py", ".onnx", ".json", ".yaml", ".yml", ".txt"} and not path.name.endswith("_test.py")
        if path.is_file() and fits and path.stat().st_size <= FILE_BYTES_MAX:
            shutil.copy(path, folder / path.name)
    text = field.path.read_text(encoding="utf-8")
    for stage in field.pipeline.stages:
        if stage.model is not None and stage.model.startswith("package:"):
            path = resolve_model(stage.model, folder)
            name = f"{stage.name}-{path.name}"  # packages may each have a model.onnx
            shutil.copy(path, folder / name)
            text = text.replace(stage.model, name)
    (folder / "pipeline.yaml").write_text(text, encoding="utf-8")
    return folder


def _models(folder: Path) -> list[Path]:
    """Model files of a copy, the last stage's first: what earlier ones say decides how much work later ones have.

    Those that an emulated device runs come at the end, for its times may be of the old model alone.
    """
    pipeline = pipelines.load(folder / "pipeline.yaml")
    emulated = twins(pipeline)
    stages = [stage for stage in reversed(pipeline.stages) if stage.model is not None]
    stages.sort(key=lambda stage: bool(set(stage.engine_names) & set(emulated)))
    return [resolve_model(str(stage.model), folder) for stage in stages]


def _beside(paths: list[Path]) -> list[Path]:
    """Modules and tables that stages may read; models are found by the pipeline itself."""
    return [path for path in paths if path.suffix in {".py", ".json", ".txt"}]


def stored_floats(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Tensors of floats in a model's file, as initialisers or as constants; they may be changed in place."""
    constants = [one.t for node in model.graph.node if node.op_type == "Constant" for one in node.attribute]
    return [one for one in (*model.graph.initializer, *constants) if one.data_type == onnx.TensorProto.FLOAT]


def _scaled(folder: Path) -> None:
    """Scale the largest stored tensor of floats of the last model that has one."""
    for path in _models(folder):
        model = onnx.load(path)
        if floats := stored_floats(model):
            largest = max(floats, key=lambda one: int(np.prod(one.dims)))
            values = numpy_helper.to_array(largest) * np.float32(SCALE)
            largest.CopyFrom(numpy_helper.from_array(values, largest.name))
            onnx.save(model, path)
            return
    raise NotApplicableError("no stage has a model with weights that could be altered")


def _named_anew(folder: Path) -> None:
    """Another file with the same numbers in it: a version that is as good as the first."""
    for path in _models(folder):
        model = onnx.load(path)
        model.doc_string += " again"
        onnx.save(model, path)
        return
    raise NotApplicableError("no stage has a model to make a second version of")


def _plan(**more: Any) -> dict[str, Any]:
    """A rollout in seconds: only what the drill is about is looked at."""
    return {"dwell_s": [0.5], "requests_min": 5, "look_s": 0.2, "latency": None, "outputs": None, **more}


def stale_metrics(field: Field) -> DrillResult:
    """A canary as good as the old version whose business metric is missing, no number, or old."""
    with _two_versions(field, _named_anew) as (_, _, desk):
        rule = {"age_max_s": 0.05}
        order = {"to": "2", "plan": _plan(metrics={"orders": rule, "revenue": rule})}
        desk.ask("POST", "/admin/rollout/start", order)
        posted = 0
        with desk.traffic() as heards:
            began = time.monotonic()
            while time.monotonic() - began < WATCH_S:
                # One is never posted; the other is null, then old by the time somebody looks at it.
                for stable, canary in ((None, None), (100.0, None), (100.0, 100.0)):
                    desk.ask("POST", "/admin/rollout/metric", {"name": "orders", "stable": stable, "canary": canary})
                    posted += 1
                    pause(0.3)
        status = desk.ask("GET", "/admin/rollout")
        seen = status["analysis"].get("orders", {}).get("why", status["why"])
        promotions = int(status["step"]) - 1 if status["state"] == "running" else int(status["state"] == "promoted")
        held = status["state"] == "running" and promotions == 0 and status["decision"] != "pass"
        return desk.result(
            "stale-metrics",
            f"{promotions} promotions in {WATCH_S:.0f} s, {len(heards)} requests and {posted} postings; decision "
            f"{status['decision']}: {seen}",
            held, promotions=promotions, requests=len(heards), postings=posted, decision=str(status["decision"]),
        )  # fmt: skip


def bad_canary(field: Field) -> DrillResult:
    """A new version that is wrong without a word."""
    with _two_versions(field, _scaled) as (_, _, desk):
        steps = field.pipeline.rollout.steps
        outputs = {"share": 0.5, "inflight_max": 2, "pairs_min": 20}
        desk.ask("POST", "/admin/rollout/start", {"to": "2", "plan": _plan(dwell_s=[3600.0], outputs=outputs)})
        weight = float(desk.ask("GET", "/admin/rollout")["weight"])
        # One client, so that engines are idle often enough for the old version's requests to be asked again.
        with desk.traffic(1) as heards:
            caught_s = wait_for(
                lambda: desk.ask("GET", "/admin/rollout")["state"] != "running", CAUGHT_S_MAX, every_s=LOOK_S
            )
        status = desk.ask("GET", "/admin/rollout")
        share = sum(heard.status == 200 for heard in heards) / max(1, len(heards))
        held = status["state"] == "rolled_back" and weight == steps[0]
        when = "never" if caught_s is None else f"after {caught_s:.1f} s"
        return desk.result(
            "bad-canary",
            f"{status['state'].replace('_', ' ')} {when} at {weight:.0%} of traffic and {len(heards)} requests: "
            f"{status['why']}; {share:.1%} answered",
            held, weight_share=weight, caught_s=caught_s, requests=len(heards), state=str(status["state"]),
        )  # fmt: skip


def corrupt_version(field: Field) -> DrillResult:
    """A new version whose model was damaged after it was added."""
    with _two_versions(field, lambda _: None) as (_, model, desk):
        models = sorted(model.version_folder("2").rglob("*.onnx"))
        if not models:
            raise NotApplicableError("no stage has a model file of its own that could be damaged")
        models[0].chmod(0o644)
        raw = bytearray(models[0].read_bytes())
        raw[len(raw) // 2] ^= 0xFF
        models[0].write_bytes(bytes(raw))
        with desk.traffic() as heards:
            pause(1.0)
            model.use("2")
            refused = _refusal(desk)
            pause(2.0)
        version = desk.ask("GET", "/admin/server")["version"]
        # Refused or late is what a crowded machine makes of them; failed is what a version would.
        failed = sum(heard.error is not None or heard.status in (500, 502) for heard in heards)
        held = refused is not None and str(version) == "1" and failed == 0
        return desk.result(
            "corrupt-version",
            f"{'refused' if refused else 'taken'}; version {version} serves, {failed} of {len(heards)} requests failed"
            f"{f' ({refused[:100]})' if refused else ''}",
            held, failed=failed, requests=len(heards), version=str(version),
        )  # fmt: skip


def _refusal(desk: Desk) -> str | None:
    """Why the server did not take the version; ``None``: it did."""
    try:
        desk.ask("POST", "/admin/reload", {})
    except NotApplicableError as error:
        return str(error)
    return None


VERSIONED: dict[str, Callable[[Field], DrillResult]] = {
    "stale-metrics": stale_metrics,
    "bad-canary": bad_canary,
    "corrupt-version": corrupt_version,
}
