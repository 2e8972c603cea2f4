"""Who is guaranteed what: shares of tenants, classes and stages, and the share of traffic that a new version gets."""

from typing import TYPE_CHECKING

from loadslice.spec.errors import InputError
from loadslice.spec.pipeline_stage import within

if TYPE_CHECKING:
    from loadslice.spec.pipeline import Pipeline

OTHER_TENANTS = "others"
"""What metrics call whoever has no guarantee."""

TENANTS_MAX = 1000

TENANT_LENGTH_MAX = 64

LEAST_SHARE = 0.01
"""What is left to those without a guarantee, so that nobody is locked out."""


def check_shares(pipeline: "Pipeline", path: str) -> None:
    """Refuse guarantees that together promise more than there is.

    Raises:
        InputError: The first fault found.
    """
    _check_tenants(pipeline, path)
    _check_classes(pipeline, path)
    _check_engines(pipeline, path)
    _check_rollout(pipeline, path)


def _check_tenants(pipeline: "Pipeline", path: str) -> None:
    shares = {f"tenants.{name}.share": tenant.share for name, tenant in pipeline.tenants.items()}
    within(f"{path}: ", shares, 0.0001, 1)
    for name in pipeline.tenants:
        if not 1 <= len(name) <= TENANT_LENGTH_MAX or not name.isprintable() or name == OTHER_TENANTS:
            raise InputError(
                f"{path}: tenants: {name!r:.80} is not a name of 1 to {TENANT_LENGTH_MAX} printable characters other "
                f"than '{OTHER_TENANTS}', which stands for whoever is not named."
            )
    if sum(shares.values()) > 1 - LEAST_SHARE:
        raise InputError(
            f"{path}: tenants: shares add up to {sum(shares.values()):g}; leave {LEAST_SHARE:g} to those not named."
        )
    if len(shares) > TENANTS_MAX:
        raise InputError(f"{path}: tenants: {len(shares)} are more than {TENANTS_MAX}.")


def _check_classes(pipeline: "Pipeline", path: str) -> None:
    for priority, limits in pipeline.classes.items():
        if limits.offline and limits.floor > 0:
            raise InputError(f"{path}: classes.{priority}: an offline class takes what is left; it can have no floor.")
    floors = {f"classes.{name}.floor": limits.floor for name, limits in pipeline.classes.items()}
    within(f"{path}: ", floors, 0, 1)
    if sum(floors.values()) > 1:
        raise InputError(f"{path}: classes: floors add up to {sum(floors.values())}, more than everything.")


def _check_engines(pipeline: "Pipeline", path: str) -> None:
    for engine in pipeline.engines:
        guaranteed = sum(stage.share.get(engine, 0.0) for stage in pipeline.stages)
        if guaranteed > 1 - LEAST_SHARE and any(
            engine in stage.engine_names and engine not in stage.share for stage in pipeline.stages
        ):
            raise InputError(
                f"{path}: stages: shares of '{engine}' add up to {guaranteed:g}; nothing is left for others."
            )
        if guaranteed > 1 + 1e-9:
            raise InputError(f"{path}: stages: shares of '{engine}' add up to {guaranteed:g}, more than everything.")


def _check_rollout(pipeline: "Pipeline", path: str) -> None:
    steps = pipeline.rollout.steps
    within(f"{path}: ", {f"rollout.steps[{number}]": step for number, step in enumerate(steps)}, 0, 1)
    if sorted(set(steps)) != steps:
        raise InputError(f"{path}: rollout.steps: {steps} must rise from step to step.")
    within(f"{path}: ", {"rollout.at": pipeline.rollout.at}, 0, len(steps))
