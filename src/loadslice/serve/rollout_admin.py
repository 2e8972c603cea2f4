"""The rollout's part of administration."""

from typing import Any

import msgspec

from loadslice.serve.admin import Admin, decode
from loadslice.serve.rollout import Rollout
from loadslice.spec import rollout as plans
from loadslice.spec.rollout import RolloutPlan


class StartOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `loadslice rollout start` sends."""

    to: str | None = None
    plan: RolloutPlan = RolloutPlan()


class PromoteOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `loadslice rollout promote` sends."""

    force: bool = False


class MetricOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What whoever knows a business metric sends; null is a value that is missing."""

    name: str
    stable: float | None
    canary: float | None


def administer(admin: Admin, rollout: Rollout) -> None:
    """Have the rollout's paths answered."""

    async def status(_body: bytes) -> dict[str, Any]:
        return rollout.status()

    async def start(body: bytes) -> dict[str, Any]:
        order = decode(body, StartOrder)
        await rollout.start(order.to, plans.check(order.plan, "plan"))
        return rollout.status()

    async def promote(body: bytes) -> dict[str, Any]:
        await rollout.promote(force=decode(body, PromoteOrder).force)
        return rollout.status()

    async def abort(_body: bytes) -> dict[str, Any]:
        await rollout.abort()
        return rollout.status()

    async def roll_back(_body: bytes) -> dict[str, Any]:
        await rollout.roll_back()
        return rollout.status()

    async def metric(body: bytes) -> dict[str, Any]:
        order = decode(body, MetricOrder)
        rollout.post(order.name, order.stable, order.canary)
        return rollout.status()

    admin.add("GET", "/admin/rollout", status)
    for path, handler in (
        ("start", start),
        ("promote", promote),
        ("abort", abort),
        ("rollback", roll_back),
        ("metric", metric),
    ):
        admin.add("POST", f"/admin/rollout/{path}", handler)
