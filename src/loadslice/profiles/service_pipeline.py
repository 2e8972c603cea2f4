"""From what was chosen for a service to its pipeline file: the user's own document with other engines."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from loadslice.profiles.service_stage import Option
from loadslice.spec.files import replacing
from loadslice.spec.service import Rate, StageChoice

_SHORT = {"onnxruntime": "ort", "openvino": "ov"}


@dataclass(frozen=True)
class Tuned:
    """A stage's final settings.

    Attributes:
        option: What is served.
        buckets: Shapes without rows; empty: rows keep their own.
        buckets_from: Where they come from.
        buckets_cpu_ms: Of a request's rows, by where buckets come from.
        batch: Rows at most.
        batch_cpu_ms: Of one row, by rows at most; 0: every request alone.
    """

    option: Option
    buckets: list[list[int]]
    buckets_from: Literal["none", "pipeline", "traffic"]
    buckets_cpu_ms: dict[str, float]
    batch: int
    batch_cpu_ms: dict[int, float]

    @property
    def precision(self) -> str:
        """What the engine computes in where nothing is quantised."""
        engine = self.option.proof.engine
        in_bf16 = engine.precision == "bf16" or engine.options.get("INFERENCE_PRECISION_HINT") == "bf16"
        return "bf16" if in_bf16 else "fp32"

    @property
    def engine(self) -> str:
        """Name of the engine that serves it."""
        short = _SHORT[self.option.proof.engine.backend]
        return f"{short}-fp32" if (short, self.precision) == ("ov", "fp32") else short


def keep(tuned: Mapping[str, Tuned], out: Path) -> dict[str, Path]:
    """Copy what tools made into ``out``; a source file stays where it is.

    Returns:
        Stage to the file to load.

    Raises:
        OutputError: It cannot be written there.
    """
    files: dict[str, Path] = {}
    for name, one in tuned.items():
        artefact = one.option.proof.artefact
        if artefact.scheme.tool == "none":
            continue
        for path in artefact.files:
            target = out / f"{name}-{artefact.name}{path.suffix}"
            with replacing(target) as temporary:
                shutil.copyfile(path, temporary)
            files.setdefault(name, target)
    return files


def document(
    source: Mapping[str, Any], tuned: Mapping[str, Tuned], files: Mapping[str, Path], best: Rate, folder: Path
) -> dict[str, Any]:
    """A pipeline document with an engine for each runtime that is used.

    Args:
        source: The user's, as YAML gives it; keys that are not about engines are kept.
        tuned: By stage.
        files: By stage, of `keep`.
        best: Streams and threads.
        folder: Where the document will lie.
    """
    hosts = {name for stage in source["stages"] if "python" in stage for name in _engines(stage)}
    queues = [engine["queue"] for engine in source["engines"].values() if "queue" in engine]
    engines = {name: engine for name, engine in source["engines"].items() if name in hosts}
    stages = []
    for stage in source["stages"]:
        one = tuned.get(stage["name"])
        if one is None:
            stages.append(stage)
            continue
        engines[one.engine] = {
            "backend": one.option.proof.engine.backend,
            "threads": best.threads,
            "max_inflight": best.streams,
            "precision": one.precision,
            **({"queue": dict(queues[-1])} if queues else {}),
        }
        stages.append(_stage(stage, one, files.get(stage["name"]), folder))
    return {**source, "engines": engines, "stages": stages}


def choice(stage: str, one: Tuned, files: Mapping[str, Path], candidates: list[Any]) -> StageChoice:
    """A stage's record."""
    return StageChoice(
        stage=stage,
        chosen=one.option.name,
        file=str(files[stage]) if stage in files else None,
        candidates=candidates,
        buckets=one.buckets,
        buckets_from=one.buckets_from,
        buckets_cpu_ms=one.buckets_cpu_ms,
        batch=one.batch,
        batch_cpu_ms={str(size or "alone"): cost for size, cost in one.batch_cpu_ms.items()},
    )


def _stage(stage: Mapping[str, Any], one: Tuned, file: Path | None, folder: Path) -> dict[str, Any]:
    about_engines = {"engine", "engines", "prefer", "rules", "accept", "buckets", "batch", "failover", "share"}
    kept = {key: value for key, value in stage.items() if key not in about_engines}
    if file is not None:
        kept["model"] = os.path.relpath(file, folder)
        # Times are known by variant: a profile of the source says nothing about this file, and is refused for it.
        kept["variant"] = f"{stage.get('variant') or stage['name']}-{one.option.proof.artefact.name}"
    kept["engine"] = one.engine
    bits = one.option.proof.artefact.scheme.weight_bits
    if bits in (4, 8):
        kept["accept"] = {one.engine: {"precision": f"int{bits}"}}
    if one.buckets:
        kept["buckets"] = one.buckets
    if one.batch > 1:
        kept["batch"] = {one.engine: {"size": one.batch}}
    return kept


def _engines(stage: Mapping[str, Any]) -> list[str]:
    return [one for one in [stage.get("engine"), *(stage.get("engines") or [])] if isinstance(one, str)]
