"""How a squeeze begins: inputs divided, the source's answers to them, and what can be doubted from the start."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from loadslice.backends.base import EngineError, Session, open_backend
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine
from loadslice.variants import environment
from loadslice.variants.bench import Workbench
from loadslice.variants.exam import Exam
from loadslice.variants.metrics import LABELLED_LOSS_MAX, Judge, Outputs, parse_floor
from loadslice.variants.order import Order
from loadslice.variants.prepare import prepare
from loadslice.variants.recorded import APART_MIN, Feeds, Recorded, distinct, split


def lay_out(order: Order, folder: Path, tell: Callable[[str], None]) -> Workbench:
    """Divide the inputs, run the source on those that mark, and prepare the model.

    Raises:
        InputError: The metric, the floor, the labels or an input cannot be used.
    """
    inputs = distinct(order.recorded)
    if len(inputs) < 2:
        raise InputError(
            f"{order.source}: all {len(order.recorded)} recorded inputs are the same one. Give others, too."
        )
    parts = split(inputs, order.seed)
    name = order.score[0] if order.score else "top1" if order.recorded.labels is not None else "cosine"
    floor = parse_floor(order.floor) if order.floor else None
    if floor is not None:
        if order.score and floor.metric != order.score[0]:
            raise InputError(f"--floor {order.floor}: the metric given with --metric is called '{order.score[0]}'.")
        name = floor.metric
    score = order.score[1] if order.score else None
    # The name is checked before anything is built.
    Judge(name, [], Recorded([], [], np.ones(1), None), score)
    chosen_by = parts.pool if parts.choice is None else parts.choice
    tell(f"running the source on {len(chosen_by)} inputs to choose by and {len(parts.judged)} that judge")
    session = open_backend("onnxruntime").load(order.source, Engine(backend="onnxruntime", threads=0))
    try:
        choosing, judging = (
            Exam(name, inputs, _answers(session, inputs), floor, score) for inputs in (chosen_by, parts.judged)
        )
    finally:
        session.close()
    for exam in (choosing, judging):
        _check_labels(exam)
    notes = _doubts(choosing, judging, apart=parts.choice is not None)
    if len(inputs) < len(order.recorded):
        notes.append(
            f"of {len(order.recorded)} recorded inputs {len(inputs)} are different: the others repeat them, and add to "
            "their weight alone."
        )
    prepared = prepare(order.source, folder / "source.onnx")
    notes += prepared.notes
    lock = environment.lock()
    offer = environment.cpu_offer(lock)
    if offer.int8 is None:
        notes.append("this processor lists no instructions for 8-bit products: INT8 may be slower than fp32.")
    if (offer.numa_nodes or 1) > 1:
        notes.append(
            f"{offer.numa_nodes} memory nodes: run under `numactl --cpunodebind=0 --membind=0` for one of them."
        )
    return Workbench(
        source=order.source, prepared=prepared, folder=folder, pool=parts.pool, choosing=choosing, judging=judging,
        cpu=offer, tell=tell, notes=notes,
    )  # fmt: skip


def _check_labels(exam: Exam) -> None:
    """Refuse labels that the source never agrees with: half a point below nothing is a floor for anything.

    Raises:
        InputError: It agrees with none.
    """
    if exam.judge.name == "top1" and exam.judge.labelled and exam.source_mark == 0.0:
        assert exam.inputs.labels is not None
        answer = next(iter(exam.source[0].values())).argmax(axis=-1)
        raise InputError(
            f"metric top1: the source model agrees with none of {len(exam)} labels (label "
            f"{str(exam.inputs.labels[0])[:40]!r} where it answers {str(answer.tolist())[:40]}). Labels are class "
            "numbers as the model counts them; for anything else give --metric FILE.py:FUNCTION."
        )


def _doubts(choosing: Exam, judging: Exam, *, apart: bool) -> list[str]:
    """What the inputs are too few for, in words."""
    notes = []
    if judging.source_mark < judging.floor.least:
        notes.append(
            f"the source model itself has {judging.floor.metric} {judging.source_mark:.4g}, below the floor "
            f"{judging.floor}: no variant can pass."
        )
    if not apart:
        notes.append(
            f"{len(choosing) + len(judging)} inputs are too few to choose by a part of their own: candidates were "
            f"chosen by the {len(choosing)} that were calibrated on, which flatter them. Give {APART_MIN} or more."
        )
    if judging.judge.name not in {"cosine", "sqnr_db"} and 1 / len(judging) > LABELLED_LOSS_MAX:
        notes.append(
            f"judged by {len(judging)} inputs: one of them can be {100 / len(judging):.1f} points of "
            f"{judging.judge.name}, more than the half a point that a variant may lose. Give more inputs before you "
            "trust a close pass."
        )
    return notes


def _answers(session: Session, inputs: Recorded) -> list[Outputs]:
    return [_answer(session, name, feeds) for name, feeds in zip(inputs.names, inputs.feeds, strict=True)]


def _answer(session: Session, name: str, feeds: Feeds) -> Outputs:
    try:
        return session.run(feeds)
    except EngineError as error:
        raise InputError(f"input '{name}': the source model cannot run it: {error}") from error
