"""What the types of a pipeline file cannot refuse in its stages and engines; see `loadslice.spec.pipeline.check`."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from loadslice.spec.errors import InputError
from loadslice.spec.predicate import bounds

if TYPE_CHECKING:
    from loadslice.spec.pipeline import Engine, Pipeline, Stage

TIME_MS_MAX = 86_400_000
"""A day: the longest that any key of the file lets something last."""

PADS_MAX = 8
"""Row counts that one engine may be built for at one stage."""


def check_stage(stage: "Stage", pipeline: "Pipeline", place: str) -> None:
    """Refuse what a stage's types cannot.

    Args:
        stage: Of the pipeline.
        pipeline: With one engine in the place of each two that share a stage.
        place: How messages name the stage.

    Raises:
        InputError: The first fault found.
    """
    kinds = [key for key in ("python", "model", "variant") if getattr(stage, key) is not None]
    if not stage.name or any(character in stage.name for character in "/\\ \t\n"):
        raise InputError(f"{place}.name: '{stage.name}' must be one word without slashes.")
    if len(kinds) == 0 or ("python" in kinds and len(kinds) > 1):
        raise InputError(f"{place}: give one of python, model or variant (a model may name its variant too).")
    if (stage.from_ is not None or stage.to is not None) and (stage.model is None or stage.canary is not None):
        raise InputError(f"{place}: from and to name a part of a model; give `model` too, and no canary.")
    _check_engine_names(stage, pipeline.engines, place)
    _check_rules(stage, place)
    _check_numbers(stage, place)
    _check_shared(stage, pipeline, place)


def _check_engine_names(stage: "Stage", engines: "dict[str, Engine]", place: str) -> None:
    if stage.engine is not None and stage.engines is not None:
        raise InputError(f"{place}: give engine or engines, not both.")
    if not stage.engine_names:
        raise InputError(f"{place}.engines: at least one of {', '.join(engines)}.")
    for name in stage.engine_names:
        known(place, "engines", name, list(engines))
    if len(set(stage.engine_names)) != len(stage.engine_names):
        raise InputError(f"{place}.engines: an engine is named twice.")
    for key, names in (("accept", stage.accept), ("batch", stage.batch)):
        for name in names:
            known(place, f"{key}.{name}", name, stage.engine_names)
    if stage.failover is not None:
        known(place, "failover.to", stage.failover.to, stage.engine_names)
        if stage.failover.to == stage.engine_names[0]:
            raise InputError(f"{place}.failover.to: '{stage.failover.to}' is the preferred engine itself, a cycle.")


def _check_rules(stage: "Stage", place: str) -> None:
    if bool(stage.rules) != (stage.prefer == "rules"):
        raise InputError(f"{place}.prefer: 'rules' and a list of rules go together.")
    for number, rule in enumerate(stage.rules):
        known(place, f"rules[{number}].to", rule.to, stage.engine_names)
        for key, text in (("items", rule.when.items), ("tokens_in", rule.when.tokens_in)):
            if text is not None:
                bounds(text, f"{place}.rules[{number}].when.{key}")
        if rule.when.bucket is not None and not 0 <= rule.when.bucket <= len(stage.buckets):
            raise InputError(f"{place}.rules[{number}].when.bucket: {rule.when.bucket} is not a bucket of this stage.")


def _check_numbers(stage: "Stage", place: str) -> None:
    for name, batch in stage.batch.items():
        if not 1 <= batch.size <= 65_536 or not 0 <= batch.window_ms <= 60_000:
            raise InputError(
                f"{place}.batch.{name}: size 1 to 65536 and window_ms 0 to 60000, not {batch.size}, {batch.window_ms}."
            )
    within(f"{place}.", {"timeout_ms": stage.timeout_ms}, 0.001, TIME_MS_MAX)
    if stage.failover is not None:
        within(f"{place}.", {"failover.share": stage.failover.share}, 0, 1)
    if (breaker := stage.breaker) is not None:
        rates = {"breaker.failure_rate": breaker.failure_rate, "breaker.slow_rate": breaker.slow_rate}
        within(f"{place}.", rates, 1e-6, 1)
        counts = {"breaker.window": breaker.window, "breaker.permits": breaker.permits}
        within(f"{place}.", counts, 1, 10_000)
        within(f"{place}.", {"breaker.min_calls": breaker.min_calls}, 1, breaker.window)
        spans = {"open_ms": breaker.open_ms, "half_open_ms": breaker.half_open_ms, "slow_ms": breaker.slow_ms}
        within(f"{place}.", {f"breaker.{key}": value for key, value in spans.items()}, 0.001, TIME_MS_MAX)
        within(f"{place}.", {"breaker.open_ms_max": breaker.open_ms_max}, breaker.open_ms, TIME_MS_MAX)
        windows = [batch.window_ms for batch in stage.batch.values()]
        # A probe that waits for company past the end of half-open would never be recorded.
        within(f"{place}.", {"breaker.half_open_ms": breaker.half_open_ms}, max([0.001, *windows]), TIME_MS_MAX)
    for number, bucket in enumerate(stage.buckets):
        if not bucket or any(side < 1 for side in bucket) or len(bucket) != len(stage.buckets[0]):
            raise InputError(
                f"{place}.buckets[{number}]: {bucket} is not a shape like the others "
                "(no row dimension, sides of at least 1)."
            )
    for name, accept in stage.accept.items():
        within(f"{place}.", {f"accept.{name}.max_items": accept.max_items}, 1, 1_000_000)
        if accept.shape is None:
            continue
        if len(accept.shape) < 2 or any(side < 1 for side in accept.shape):
            raise InputError(f"{place}.accept.{name}.shape: {accept.shape} is not a static shape, rows first.")
        if stage.buckets and len(accept.shape) != len(stage.buckets[0]) + 1:
            raise InputError(f"{place}.accept.{name}.shape: {accept.shape} has another rank than the stage's buckets.")
        if not stage.buckets:
            raise InputError(f"{place}.accept.{name}.shape: give the stage `buckets` too: [{accept.shape[1:]}].")


def _check_shared(stage: "Stage", pipeline: "Pipeline", place: str) -> None:
    """Shares, memory, canary and prices of one stage."""
    for name, share in stage.share.items():
        known(place, f"share.{name}", name, stage.engine_names)
        within(f"{place}.", {f"share.{name}": share}, 0.0001, 1)
    within(f"{place}.", {"memory_mb": stage.memory_mb, "load_ms": stage.load_ms}, 0, 10_000_000)
    if stage.degraded is not None and not re.fullmatch(r"[^:]+:[^:]+", stage.degraded):
        raise InputError(f"{place}.degraded: '{stage.degraded}' is not module:function.")
    if stage.canary is not None:
        given = [key for key in ("python", "model", "variant") if getattr(stage.canary, key) is not None]
        if len(given) != 1 or (given == ["python"]) != (stage.python is not None):
            raise InputError(f"{place}.canary: give one of python, model or variant, of the stage's own kind.")
    for name in stage.engine_names:
        engine = pipeline.engines[name]
        if engine.memory_mb is not None:
            if stage.memory_mb is None or stage.load_ms is None:
                raise InputError(f"{place}: engine '{name}' has memory_mb; give the stage memory_mb and load_ms too.")
            if stage.memory_mb > engine.memory_mb:
                raise InputError(
                    f"{place}.memory_mb: {stage.memory_mb:g} does not fit engine '{name}' ({engine.memory_mb:g})."
                )
        price = engine.active_w if pipeline.cheapest == "energy" else engine.cost_per_hour
        if stage.prefer == "cheapest" and price is None:
            key = "active_w" if pipeline.cheapest == "energy" else "cost_per_hour"
            raise InputError(f"{place}.prefer: 'cheapest' by {pipeline.cheapest} needs engines.{name}.{key}.")
    for name, batch in stage.batch.items():
        pads = batch.pad_to
        if pads and (sorted(set(pads)) != pads or pads[0] < 1 or pads[-1] != batch.size or len(pads) > PADS_MAX):
            raise InputError(
                f"{place}.batch.{name}.pad_to: {pads} must rise, end at the size ({batch.size}) "
                f"and name at most {PADS_MAX}."
            )


def in_order(stages: "list[Stage]", path: str) -> "list[Stage]":
    """Follow ``after`` from the first stage to the last; a chain is the only shape served.

    Raises:
        InputError: A name that is no stage, a cycle or a fork.
    """
    before = {
        stage.name: stage.after or (stages[index - 1].name if index else None) for index, stage in enumerate(stages)
    }
    for stage_name, previous in before.items():
        if previous is not None and previous not in before:
            raise InputError(f"{path}: stages '{stage_name}'.after: '{previous}' is not a stage ({', '.join(before)}).")
    following = {previous: stage_name for stage_name, previous in before.items()}
    by_name = {stage.name: stage for stage in stages}
    ordered: list[Stage] = []
    name: str | None = following.get(None)
    while name is not None and len(ordered) <= len(stages):
        ordered.append(by_name[name])
        name = following.get(name)
    if len(ordered) != len(stages):
        left = sorted(set(before) - {stage.name for stage in ordered})
        raise InputError(
            f"{path}: stages {', '.join(left)}: `after` makes a cycle or a fork; stages must form one chain."
        )
    return ordered


def check_engine(engine: "Engine", place: str) -> None:
    """Refuse numbers of an engine that are out of range.

    Raises:
        InputError: The first fault found.
    """
    queue = engine.queue
    within(f"{place}.", {"threads": engine.threads}, 1, 4096)
    within(f"{place}.", {"max_inflight": engine.max_inflight}, 1, 256)
    within(f"{place}.", {"queue.limit": queue.limit, "queue.overflow_at": queue.overflow_at}, 0, 1_000_000)
    within(f"{place}.", {"queue.wait_limit_ms": queue.wait_limit_ms}, 0, TIME_MS_MAX)
    within(f"{place}.", {"active_w": engine.active_w, "idle_w": engine.idle_w}, 0, 1_000_000)
    within(f"{place}.", {"cost_per_hour": engine.cost_per_hour, "memory_mb": engine.memory_mb}, 0, 1_000_000_000)
    within(f"{place}.", {"memory_limit_mb": engine.memory_limit_mb}, 64, 1_000_000_000)
    within(f"{place}.", {"hand_over_mb": engine.hand_over_mb}, 1, 65_536)


def known(place: str, key: str, name: str, among: list[str]) -> None:
    """Refuse the name of an engine that is not there.

    Raises:
        InputError: Names those that are.
    """
    if name not in among:
        raise InputError(f"{place}.{key}: '{name}' is not an engine here ({', '.join(among)}).")


def within(place: str, values: Mapping[str, float | None], low: float, high: float) -> None:
    """Refuse the first number outside ``low .. high``; NaN is outside everything.

    Raises:
        InputError: Names it, and what is allowed.
    """
    for key, value in values.items():
        if value is not None and not low <= value <= high:
            raise InputError(f"{place}{key}: {value:g} is not between {low:g} and {high:g}.")
