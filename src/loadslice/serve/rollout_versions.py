"""Pipelines of a rollout: two versions side by side, then one of them. Pure."""

import hashlib
from pathlib import Path

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model
from loadslice.spec.pipeline import Canary, Pipeline, Rollout, Stage


def has_canary(pipeline: Pipeline) -> bool:
    """Whether any stage has a new version beside it."""
    return any(stage.canary is not None for stage in pipeline.stages)


def check_candidate(pipeline: Pipeline, candidate: str | None, *, is_repository: bool) -> None:
    """Refuse a rollout of nothing.

    Args:
        pipeline: As it serves.
        candidate: Version of the repository; ``None``: the canaries that the pipeline file has.
        is_repository: Whether a repository is served.

    Raises:
        InputError: It says the one thing for the other, or there is no canary.
    """
    if is_repository and candidate is None:
        raise InputError("say which version with --to VERSION.")
    if not is_repository and candidate is not None:
        raise InputError("a pipeline file has its canaries in itself; --to is for a repository.")
    if candidate is None and not has_canary(pipeline):
        raise InputError("no stage of the pipeline has a canary; add `canary:` to the stages that change.")


def fingerprint(pipeline: Pipeline, version: str | None) -> str:
    """What a rollout is about: the same until the pipeline file, or the current version, is another."""
    plain = msgspec.structs.replace(pipeline, rollout=Rollout(steps=pipeline.rollout.steps))
    raw = msgspec.json.encode((version, plain))
    return hashlib.sha256(raw).hexdigest()


def at_step(pipeline: Pipeline, step: int) -> Pipeline:
    """The same, beginning at a step; 0: no traffic for the canary."""
    return msgspec.structs.replace(pipeline, rollout=msgspec.structs.replace(pipeline.rollout, at=step))


def without_canary(pipeline: Pipeline) -> Pipeline:
    """The stable version alone."""
    return msgspec.structs.replace(
        pipeline, stages=[msgspec.structs.replace(stage, canary=None) for stage in pipeline.stages]
    )


def promoted(pipeline: Pipeline) -> Pipeline:
    """The new version alone, in the place of the stable one."""
    return msgspec.structs.replace(pipeline, stages=[_promoted(stage) for stage in pipeline.stages])


def _promoted(stage: Stage) -> Stage:
    canary = stage.canary
    if canary is None:
        return stage
    return msgspec.structs.replace(stage, python=canary.python, model=canary.model, variant=canary.variant, canary=None)


def side_by_side(
    stable: Pipeline, folder: Path, candidate: Pipeline, candidate_folder: Path, *, same_data: bool, same_code: bool
) -> Pipeline:
    """One pipeline of two versions that stand in folders of their own.

    Args:
        stable: As it serves.
        folder: Where it stands.
        candidate: The new one.
        candidate_folder: Where that stands.
        same_data: Whether all weights that lie beside their models are the same in both.
        same_code: Whether all Python modules are.

    Returns:
        The stable pipeline with a canary at every stage whose model is not the same.

    Raises:
        InputError: They differ in more than models.
    """
    if len(stable.stages) != len(candidate.stages):
        raise _too_different(candidate_folder, f"{len(candidate.stages)} stages beside {len(stable.stages)}")
    if stable.engines != candidate.engines:
        raise _too_different(candidate_folder, "its engines are others")
    stages = []
    for old, new in zip(stable.stages, candidate.stages, strict=True):
        if _frame(old) != _frame(new) or (new.model is None) != (old.model is None):
            raise _too_different(candidate_folder, f"stage '{new.name}' differs in more than its model")
        if new.model is None or old.model is None:
            if not same_code:
                raise _too_different(candidate_folder, f"the code of stage '{new.name}' differs")
            stages.append(msgspec.structs.replace(old, canary=None))
            continue
        mine, theirs = resolve_model(old.model, folder), resolve_model(new.model, candidate_folder)
        same = same_data and mine.read_bytes() == theirs.read_bytes()
        stages.append(msgspec.structs.replace(old, canary=None if same else Canary(model=str(theirs))))
    paired = msgspec.structs.replace(stable, stages=stages, rollout=candidate.rollout)
    if not has_canary(paired):
        raise InputError(f"{candidate_folder}: every model is the one that serves already.")
    return paired


def _too_different(folder: Path, what: str) -> InputError:
    return InputError(
        f"{folder}: {what}: a canary shares all but the models. Switch with `loadslice model use` instead."
    )


def _frame(stage: Stage) -> Stage:
    """A stage without what a canary may change."""
    return msgspec.structs.replace(stage, model=None, variant=None, canary=None)
