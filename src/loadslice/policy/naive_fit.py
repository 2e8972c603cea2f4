"""Who may serve a request, for the naive twin: shapes, rows, precision, and the rules of a stage."""

import math
from collections.abc import Sequence

from loadslice.policy.naive_engine import NaiveEngine, Request
from loadslice.spec.pipeline import CLASSES, PRECISIONS, Rule, Stage
from loadslice.spec.predicate import bounds


def accepts(stage: Stage, engine: NaiveEngine, request: Request) -> bool:
    """Whether an engine, were it up, may serve a request that stands at a stage."""
    if not takes_bucket(stage, engine, request.bucket):
        return False
    precision, items_max = reach(stage, engine)
    return request.precision <= precision and request.items <= items_max


def reach(stage: Stage, engine: NaiveEngine) -> tuple[int, float]:
    """The highest precision floor and the most rows that an engine takes at a stage."""
    accept = stage.accept.get(engine.name)
    precision = (accept.precision if accept else None) or engine.settings.precision
    items_max = accept.max_items if accept is not None and accept.max_items is not None else math.inf
    return PRECISIONS.index(precision), items_max


def can_stand_in(stage: Stage, other: NaiveEngine, engine: NaiveEngine) -> bool:
    """Whether another engine computes no less precisely, and takes no fewer rows."""
    return all(theirs >= mine for theirs, mine in zip(reach(stage, other), reach(stage, engine), strict=True))


def takes_bucket(stage: Stage, engine: NaiveEngine, bucket: int) -> bool:
    """Whether an engine takes a shape bucket at a stage; the last one is of what fits none."""
    if engine.name not in stage.engine_names:
        return False
    accept = stage.accept.get(engine.name)
    if accept is None or accept.shape is None:
        return True
    if bucket == len(stage.buckets):
        return False
    return all(side <= most for side, most in zip(stage.buckets[bucket], accept.shape[1:], strict=True))


def holds(rule: Rule, request: Request, sources: Sequence[str]) -> bool:
    """Whether every predicate of a rule holds."""
    when = rule.when
    if when.items is not None:
        low, high = bounds(when.items, "items")
        if not low <= request.items <= high:
            return False
    if when.tokens_in is not None:
        low, high = bounds(when.tokens_in, "tokens_in")
        if not low <= request.tokens <= high:
            return False
    if when.class_ is not None and when.class_ != CLASSES[request.priority]:
        return False
    if when.source is not None and (request.source < 0 or sources[request.source] != when.source):
        return False
    return when.bucket is None or when.bucket == request.bucket
