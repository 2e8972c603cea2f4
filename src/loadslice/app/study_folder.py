"""What a study finds in a folder: plans, a trace, a budget."""

from dataclasses import dataclass
from pathlib import Path

from loadslice.app import twins
from loadslice.spec import budget as budgets
from loadslice.spec import pipeline as pipelines
from loadslice.spec.budget import Budget
from loadslice.spec.errors import InputError
from loadslice.spec.files import reason
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.twin import twins as emulated

PLANS_MAX = 6
TRACE_NAMES = ("traffic", "trace")
TRACE_SUFFIXES = (".parquet", ".jsonl", ".csv", ".log")

RUNTIME_TITLES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "twin": "Twin"}


@dataclass(frozen=True, slots=True)
class Plan:
    """One pipeline file to be studied."""

    name: str
    """``hybrid`` for ``pipeline.yaml`` beside others, else what stands between ``pipeline.`` and ``.yaml``."""
    title: str
    path: Path
    pipeline: Pipeline

    @property
    def model_engines(self) -> list[str]:
        """Engines that run models."""
        used = [name for stage in self.pipeline.stages if stage.python is None for name in stage.engine_names]
        return list(dict.fromkeys(used))

    @property
    def hybrid(self) -> bool:
        """More than one engine can run models."""
        return len(self.model_engines) > 1


@dataclass(frozen=True, slots=True)
class Folder:
    """A study's inputs."""

    plans: list[Plan]
    """``pipeline.yaml`` first."""
    trace: Path
    budget_path: Path
    budget: Budget
    offers: Path | None = None
    """What could be bought; with it the study ends with a plan."""
    prices: Path | None = None


def read(folder: Path) -> Folder:
    """Find and check what is in a folder.

    Raises:
        InputError: Not a folder, or something is missing or wrong; says what to add.
    """
    if not folder.is_dir():
        raise InputError(
            f"{folder}: not a folder. `loadslice study` wants one with pipeline.yaml, a trace and budget.yaml."
        )
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise InputError(f"{folder}: cannot be read, {reason(error)}.") from error
    offers, prices = (folder / name if name in names else None for name in ("offers.yaml", "prices.yaml"))
    return Folder(_plans(folder, names), _trace(folder, names), folder / "budget.yaml", _budget(folder), offers, prices)


def _plans(folder: Path, names: list[str]) -> list[Plan]:
    found = [name for name in names if name.startswith("pipeline") and name.endswith((".yaml", ".yml"))]
    if not found:
        raise InputError(f"{folder}: no pipeline.yaml. Add the pipeline to study; more plans as pipeline.NAME.yaml.")
    if len(found) > PLANS_MAX:
        raise InputError(f"{folder}: {len(found)} pipeline files; a study compares up to {PLANS_MAX}.")
    found.sort(key=lambda name: (name.count("."), name))
    plans = []
    for name in found:
        pipeline = twins.resolved(pipelines.load(folder / name), folder, keeps_time=False)
        if pipeline.inputs is None:
            raise InputError(f"{folder / name}: names no example inputs. Add `inputs: module:function`.")
        short = name.removeprefix("pipeline").rpartition(".")[0].strip(".-_") or "main"
        plans.append(Plan(short, "", folder / name, pipeline))
    if len({plan.name for plan in plans}) < len(plans):
        raise InputError(f"{folder}: two pipeline files differ only in .yaml and .yml; keep one.")
    return [
        Plan("hybrid" if plan.name == "main" and plan.hybrid else plan.name, _titled(plan), plan.path, plan.pipeline)
        for plan in plans
    ]


def _titled(plan: Plan) -> str:
    """A plan's title, which says so where a device of it is not here."""
    return f"{_title(plan)} (emulated)" if emulated(plan.pipeline) else _title(plan)


def _title(plan: Plan) -> str:
    """A name for people: the runtime of a single engine, ``Hybrid`` for several."""
    if plan.hybrid:
        return "Hybrid" if plan.name == "main" else f"Hybrid {plan.name}"
    engines = plan.model_engines or list(plan.pipeline.engines)
    backend = plan.pipeline.engines[engines[0]].backend
    runtime = RUNTIME_TITLES.get(backend, backend)
    return f"{runtime} alone" if plan.name in ("main", backend) else f"{runtime} alone ({plan.name})"


def _trace(folder: Path, names: list[str]) -> Path:
    found = [name for name in names if name.endswith(TRACE_SUFFIXES)]
    named = [name for name in found if name.partition(".")[0] in TRACE_NAMES]
    if named:
        return folder / named[0]
    if len(found) == 1:
        return folder / found[0]
    if found:
        raise InputError(
            f"{folder}: {', '.join(found[:4])} could each be the trace. Name the one to use traffic.parquet."
        )
    raise InputError(
        f"{folder}: no trace (*.parquet, *.jsonl, *.csv). Make one with "
        f"`loadslice trace import ACCESS_LOG -o {folder / 'traffic.parquet'}`."
    )


def _budget(folder: Path) -> Budget:
    path = folder / "budget.yaml"
    if not path.is_file():
        raise InputError(
            f"{folder}: no budget.yaml. Add one that says what is promised, for instance "
            "`slo: {p95_ms: 300, error_rate: 0.01}`."
        )
    return budgets.load(path)
