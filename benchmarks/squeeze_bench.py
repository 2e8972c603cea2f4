"""How far a squeeze gets on real models: speed-up, task metric and what keeping layers gives back.

Takes minutes a model (NNCF, one-layer-only sweeps, timing in turns). A model whose package is absent is left out and
named. ``LOADSLICE_SQUEEZE_MODELS=rec,det`` runs some of them, ``LOADSLICE_SQUEEZE_TARGETS=cpu-int4`` some targets.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import squeeze_models as models
from benchmarks import squeeze_smollm
from loadslice.backends.base import Session, open_backend
from loadslice.spec.pipeline import Engine
from loadslice.spec.variant import TARGETS, Squeeze
from loadslice.variants import recorded
from loadslice.variants.metrics import Outputs, Score
from loadslice.variants.order import Order
from loadslice.variants.squeeze import squeeze

SECONDS = 40.0
SMOLLM_STEPS = int(os.environ.get("LOADSLICE_SQUEEZE_STEPS", "800"))
"""Half of them judge."""


@dataclass(frozen=True)
class Case:
    """A model, its inputs, and how its answers are marked."""

    model: Path
    feeds: list[models.Feeds]
    labels: list[Any] | None
    score: tuple[str, Score] | None
    in_use: Callable[[Session, Session], dict[str, float]] | None = None
    """Figures of a shipped variant and the source, each on its own, as they would be used."""


def first(outputs: Outputs) -> Any:
    """The first output."""
    return next(iter(outputs.values()))


def nearest_label(outputs: list[Outputs], labels: list[Any]) -> float:
    """Share of texts whose nearest other text, by cosine, has the same label (leave one out)."""
    vectors = np.concatenate([first(one) for one in outputs])
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, -np.inf)
    named = np.array(labels)
    return float((named[likeness.argmax(axis=1)] == named).mean())


def mask_overlap(outputs: list[Outputs], source: list[Any]) -> float:
    """Mean intersection over union of text masks at the detector's threshold, with the source model's."""
    shares = []
    for given, wanted in zip(outputs, source, strict=True):
        own, theirs = first(given) > 0.3, first(wanted) > 0.3
        shares.append((own & theirs).sum() / max(1, (own | theirs).sum()))
    return float(np.mean(shares))


def character_accuracy(alphabet: list[str]) -> Score:
    """1 - character error rate of greedily decoded lines, spaces ignored."""

    def score(outputs: list[Outputs], labels: list[Any]) -> float:
        wrong = total = 0
        for one, label in zip(outputs, labels, strict=True):
            ids = first(one)[0].argmax(axis=-1)
            read = "".join(alphabet[i] for at, i in enumerate(ids) if i and (at == 0 or ids[at - 1] != i))
            wanted = label.replace(" ", "")
            wrong += _distance(read.replace(" ", ""), wanted)
            total += len(wanted)
        return 1 - wrong / total

    return score


def _distance(left: str, right: str) -> int:
    row = list(range(len(right) + 1))
    for i, mine in enumerate(left, 1):
        before, row[0] = row[0], i
        for j, theirs in enumerate(right, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (mine != theirs))
    return row[-1]


def minilm(folder: Path) -> Case:
    """Sentence embedding, marked by what the standard library's docstrings are about."""
    texts = models.docstrings(600)
    labels = [topic for _, topic in texts]
    feeds = models.tokenised([text for text, _ in texts])
    return Case(models.minilm(folder / "minilm.onnx"), feeds, labels, ("nearest_label", nearest_label))


def resnet18(folder: Path) -> Case:
    """Random weights: a speed, and a quality that says nothing about trained ones."""
    return Case(models.resnet18(folder / "resnet18.onnx"), models.images(48), None, None)


def decoder(folder: Path) -> Case:
    """A step of a language model at batch 1; random weights, so what 4 bits do to its answers says nothing."""
    return Case(models.decoder(folder / "decoder.onnx"), models.steps(12), None, None)


def smollm(folder: Path) -> Case:
    """A step of SmolLM2-135M-Instruct at batch 1, marked by how likely it finds the token that follows in real text."""
    path = squeeze_smollm.step_model(folder / "smollm.onnx")
    session = open_backend("onnxruntime").load(path, Engine(backend="onnxruntime", threads=0))
    feeds, following = squeeze_smollm.recorded_steps(session, SMOLLM_STEPS)
    session.close()
    return Case(path, feeds, following, ("foreseen", squeeze_smollm.foreseen), squeeze_smollm.on_its_own)


def rec(_: Path) -> Case:
    """PP-OCRv4 recognition of rendered lines."""
    path = models.package_folder("rapidocr_onnxruntime") / "models" / "ch_PP-OCRv4_rec_infer.onnx"
    stored = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    alphabet = ["", *stored["character"].split("\n"), " "]
    lines = models.text_lines(160)
    labels = [text for _, text in lines]
    return Case(path, [feeds for feeds, _ in lines], labels, ("character_accuracy", character_accuracy(alphabet)))


def det(_: Path) -> Case:
    """PP-OCRv4 detection on rendered pages."""
    path = models.package_folder("rapidocr_onnxruntime") / "models" / "ch_PP-OCRv4_det_infer.onnx"
    return Case(path, models.pages(40), None, ("mask_overlap", mask_overlap))


def cls(_: Path) -> Case:
    """PP-OCR's upside-down classifier: 0.9 ms, where overhead is most of the time."""
    path = models.package_folder("rapidocr_onnxruntime") / "models" / "ch_ppocr_mobile_v2.0_cls_infer.onnx"
    feeds = []
    for index, (one, _text) in enumerate(models.text_lines(120)):
        row = one["x"][..., :192]
        row = np.pad(row, [(0, 0), (0, 0), (0, 0), (0, 192 - row.shape[3])])
        feeds.append({"x": np.ascontiguousarray(row[:, :, ::-1, ::-1] if index % 2 else row)})
    return Case(path, feeds, [index % 2 for index in range(len(feeds))], None)


CASES: dict[str, Callable[[Path], Case]] = {
    "minilm": minilm,
    "resnet18": resnet18,
    "decoder": decoder,
    "smollm": smollm,
    "rec": rec,
    "det": det,
    "cls": cls,
}


def run_case(name: str, keep: Path | None = None) -> tuple[Squeeze, dict[str, dict[str, float]]]:
    """Squeeze one model; progress on standard error.

    Args:
        name: One of `CASES`.
        keep: Folder for variants and figures; ``None``: thrown away.

    Returns:
        The record, and what was found of shipped variants in use, by target.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        case = CASES[name](folder)
        models.write_inputs(folder / "inputs", case.feeds, case.labels)
        session = open_backend("onnxruntime").load(case.model, Engine(backend="onnxruntime"))
        found = recorded.of_folder(folder / "inputs", session.inputs)
        session.close()
        named = os.environ.get("LOADSLICE_SQUEEZE_TARGETS")
        targets = TARGETS if named is None else [one for one in TARGETS if one in named.split(",")]
        order = Order(case.model, found, targets, keep or folder / "out", score=case.score, seconds=SECONDS)
        result = squeeze(order, lambda text: print(f"{name}: {text}", file=sys.stderr, flush=True))
        return result, _in_use(case, result)


def _in_use(case: Case, result: Squeeze) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for one in result.variants:
        if case.in_use is None or not one.shipped or one.engine is None or one.path is None:
            continue
        source = open_backend("onnxruntime").load(case.model, Engine(backend="onnxruntime", threads=0))
        variant = open_backend(one.engine.backend).load(Path(one.path), one.engine)
        try:
            found[one.target] = case.in_use(variant, source)
        finally:
            source.close()
            variant.close()
    return found


def figures(name: str, result: Squeeze, in_use: dict[str, dict[str, float]]) -> dict[str, float | str]:
    """A squeeze in a few flat figures."""
    found: dict[str, float | str] = {
        f"{name}_{target}_in_use_{key}": value for target, own in in_use.items() for key, value in own.items()
    }
    found |= {
        f"{name}_untuned_ms_p50": result.untuned.latency_ms_p50,
        f"{name}_floor": result.floor,
    }
    for one in result.variants:
        if one.shipped and one.speedup_vs_untuned is not None and one.metric.variant is not None:
            key = f"{name}_{one.target}"
            found[f"{key}_variant"] = one.name
            found[f"{key}_speedup"] = one.speedup_vs_untuned
            found[f"{key}_speedup_basis"] = one.timings[0].basis
            found[f"{key}_metric_loss"] = (one.metric.source or 0.0) - one.metric.variant
            if one.throughput:
                found[f"{key}_throughput_speedup"] = one.throughput[0].speedup_vs_untuned
    best = max((one.speedup_vs_untuned or 0.0 for one in result.variants if one.target == "cpu-int4"), default=0.0)
    if best:
        found[f"{name}_cpu-int4_speedup_at_any_quality"] = best
    if result.precision is not None:
        shares = [step.recovered_share for step in result.precision.keep if step.recovered_share is not None]
        if shares:
            found[f"{name}_keep_worst_recovered_share"] = max(shares)
    if result.calibration is not None:
        found[f"{name}_calibration"] = result.calibration.finding
    return found


def run() -> dict[str, float | str]:
    """Squeeze every model that is here."""
    chosen = os.environ.get("LOADSLICE_SQUEEZE_MODELS", ",".join(CASES)).split(",")
    found: dict[str, float | str] = {}
    for name in chosen:
        try:
            found |= figures(name, *run_case(name))
        except ModuleNotFoundError as error:
            found[f"{name}_left_out"] = str(error)
    return found


if __name__ == "__main__":
    for key, value in run().items():
        print(f"{key:>48} {value}")
