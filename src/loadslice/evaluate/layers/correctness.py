"""Layer 1: are the answers those of the reference, alone, again, and on every way through the pipeline?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadslice.evaluate import accuracy, answers
from loadslice.evaluate.layers.subject import Subject
from loadslice.evaluate.wire import Heard
from loadslice.spec.evaluation_report import Alike

Answers = dict[str, dict[str, answers.Values]]
"""Outputs by input."""


@dataclass(slots=True)
class Correctness:
    """What one placement answered."""

    outputs: Answers = field(default_factory=dict)
    first_bytes: dict[str, bytes] = field(default_factory=dict)
    inputs: int = 0
    unanswered: list[str] = field(default_factory=list)
    unreadable: int = 0
    """Answers without outputs that could be compared."""
    not_finite: int = 0
    """NaN, infinity, or their null."""
    repeats_differ: int = 0
    """Inputs whose second answer differed from the first."""
    degraded: int = 0
    """Answers a stage gave in place of the model."""
    paths: dict[str, int] = field(default_factory=dict)
    """Engines in order of stages -> answers."""
    metric: float | None = None
    """Share of the labels that was right; ``None``: no labels."""
    alike: Alike | None = None
    differences: list[answers.Difference] = field(default_factory=list)


def measure(subject: Subject) -> tuple[Correctness, list[Heard]]:
    """Ask for each input twice."""
    found = Correctness(inputs=len(subject.letters))
    heards: list[Heard] = []
    with subject.line() as line:
        for round_number in range(2):
            for letter in subject.letters:
                heard = line.post(letter)
                heards.append(heard)
                _take(found, heard, first=round_number == 0)
    scored = []
    for name, truth in subject.truths.items():
        texts = accuracy.texts_of(found.first_bytes.get(name, b""))
        if subject.score is not None and texts is not None:
            scored.append(subject.score(truth, texts))
    total = accuracy.total(scored)
    if total is not None and total.share is not None:
        found.metric = max(0.0, 1 - total.share)
    return found, heards


def _take(found: Correctness, heard: Heard, *, first: bool) -> None:
    if not heard.completed:
        found.unanswered.append(heard.input)
        return
    found.degraded += heard.degraded
    path = ", ".join(heard.engines)
    found.paths[path] = found.paths.get(path, 0) + 1
    outputs = answers.outputs_of(heard)
    if not outputs:
        found.unreadable += 1
        return
    if first:
        found.outputs[heard.input] = outputs
        found.first_bytes[heard.input] = heard.body
        found.not_finite += sum(
            int((~np.isfinite(values)).sum()) for values in outputs.values() if isinstance(values, np.ndarray)
        )
    elif heard.input in found.outputs:
        found.repeats_differ += not answers.compare(found.outputs[heard.input], outputs).identical


def judge(found: Correctness, reference: Correctness, scheme: str | None) -> None:
    """Compare with the reference, in place."""
    shared = [name for name in reference.outputs if name in found.outputs]
    found.differences = [answers.compare(reference.outputs[name], found.outputs[name]) for name in shared]
    if found.differences:
        found.alike = answers.alike(found.differences, scheme)


def under_load(found: Correctness, heards: Sequence[Heard], scheme: str | None) -> dict[str, Any]:
    """Answers given under load, by path, against those given to lone requests: the paths of several steps.

    Returns:
        ``answers``, ``differing`` (more than rounding), and ``paths`` with both for each path taken.
    """
    paths: dict[str, dict[str, int]] = {}
    known: dict[tuple[str, bytes], bool] = {}
    for heard in heards:
        if not heard.completed or heard.input not in found.outputs:
            continue
        key = (heard.input, heard.body)
        if key not in known:
            outputs = answers.outputs_of(heard) or {}
            difference = answers.compare(found.outputs[heard.input], outputs)
            known[key] = answers.alike([difference], scheme) == "clearly"
        path = paths.setdefault(", ".join(heard.engines), {"answers": 0, "differing": 0})
        path["answers"] += 1
        path["differing"] += known[key]
    return {
        "answers": sum(path["answers"] for path in paths.values()),
        "differing": sum(path["differing"] for path in paths.values()),
        "paths": paths,
    }


def figures(found: Correctness) -> dict[str, Any]:
    """For the document."""
    differences = found.differences
    return {
        "inputs": found.inputs,
        "unanswered": len(found.unanswered),
        "unreadable": found.unreadable,
        "compared": len(differences),
        "alike": found.alike,
        "identical": sum(one.identical for one in differences),
        "relative_error_max": _most([one.relative_error for one in differences]),
        "slope_median": _median([one.slope for one in differences]),
        "shift_median": _median([one.shift for one in differences]),
        "outlier_share_max": _most([one.outlier_share for one in differences]),
        "texts_differing": sum(one.text_differs for one in differences),
        "shapes_differing": sum(not one.same_shape for one in differences),
        "not_finite": found.not_finite,
        "repeats_differing": found.repeats_differ,
        "degraded": found.degraded,
        "paths": found.paths,
        "metric": found.metric,
    }


def passed(found: Correctness) -> bool:
    """Every input answered with finite numbers, and not clearly different."""
    return not (found.unanswered or found.unreadable or found.not_finite or found.degraded) and found.alike != "clearly"


def _most(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def truths_of(samples: Mapping[str, Any]) -> dict[str, list[str]]:
    """Labels of the inputs that have one."""
    return {name: sample.truth for name, sample in samples.items() if sample.truth is not None}
