"""Shares that are promised: of tenants against an oracle allocator, and of a new version, prefix by prefix."""

import msgspec
import pytest

from loadslice.policy import columns as c
from loadslice.policy import desk
from loadslice.policy.desk_test import MS, Desk, entry, one_stage, placements
from loadslice.spec.latency import LatencyTable
from loadslice.spec.pipeline import Canary, Engine, Pipeline, Queue, Rollout, Stage, Tenant

TENANTS = {"x": Tenant(share=0.5), "y": Tenant(share=0.2)}
LONG = Engine(backend="twin", queue=Queue(limit=1000))


def max_min(demands: list[float], weights: list[float]) -> list[float]:
    """Weighted max-min fair parts of one: whoever asks for less than their part gets it, the rest is divided."""
    parts = [0.0] * len(demands)
    open_flows = {flow for flow, demand in enumerate(demands) if demand > 0}
    left = 1.0
    while open_flows:
        weight = sum(weights[flow] for flow in open_flows)
        content = {flow for flow in open_flows if demands[flow] <= left * weights[flow] / weight}
        for flow in content or open_flows:
            parts[flow] = demands[flow] if content else left * weights[flow] / weight
        left -= sum(parts[flow] for flow in content)
        open_flows = open_flows - content if content else set()
    return parts


def arrive(run: Desk, tenant: int, *, priority: int = 1, key: int = -1) -> list[tuple[int, ...]]:
    tag = run.tag
    run.tag += 1
    row = desk.on_arrival(run.now_ns, run.tables, run.state, tag, priority, c.FOREVER, 1, 0, -1, -1, 0, 1, tenant, key)
    run.rows[tag] = row
    return run.effects()


@pytest.mark.parametrize(
    "demands", [[1.0, 1.0, 1.0], [1.0, 0.2, 1.0], [0.0, 0.1, 1.0], [0.05, 1.0, 0.05], [1.0, 0.0, 0.0]]
)
def test_tenants_are_max_min_fair_within_two_requests_of_an_oracle(demands: list[float]) -> None:
    """A demand of 1 always has somebody waiting; one of 0.2 asks for every fifth place."""
    plan = msgspec.structs.replace(one_stage({"a": LONG}), tenants=TENANTS, max_requests=1000)
    run = Desk(plan, LatencyTable(entries=[entry("a", 10)]))
    had, owner = [0, 0, 0], {}
    asked = [0.0, 0.0, 0.0]
    for served in range(400):
        for tenant, demand in enumerate(demands):
            asked[tenant] += demand
            while asked[tenant] >= 1:
                asked[tenant] -= 1
                owner[run.tag] = tenant
                arrive(run, tenant)
        if run.state.batches[0, c.B_BUSY]:
            had[owner[run.members(0)[0]]] += 1
            run.now_ns += 10 * MS
            run.done(0)
        expected = [part * (served + 1) for part in max_min(demands, [0.3, 0.5, 0.2])]
        if served > 20:
            assert all(abs(mine - fair) <= 3 for mine, fair in zip(had, expected, strict=True)), (served, had, expected)


def test_what_a_tenant_leaves_is_lent_and_taken_back_at_the_next_dispatch() -> None:
    plan = msgspec.structs.replace(one_stage({"a": LONG}), tenants=TENANTS, max_requests=1000)
    run = Desk(plan, LatencyTable(entries=[entry("a", 10)]))

    def serve_one() -> int:
        run.now_ns += 10 * MS
        run.done(0)
        return run.members(0)[0]

    for _ in range(300):
        arrive(run, 2)
    for _ in range(100):
        serve_one()
    first_of_x = run.tag
    for _ in range(50):
        arrive(run, 1)
    of_x = 0
    for dispatched in range(1, 60):
        of_x += serve_one() >= first_of_x
        assert dispatched > 1 or of_x == 1, "taken back at once"
        assert abs(of_x - dispatched * 0.5 / 0.7) <= 2, "and nothing was saved up"


def test_a_tenant_that_fills_the_queue_gives_places_up_to_one_that_holds_fewer() -> None:
    plan = msgspec.structs.replace(one_stage({"a": Engine(backend="twin", queue=Queue(limit=10))}), tenants=TENANTS)
    run = Desk(plan)
    for _ in range(11):
        arrive(run, 2)
    taken = 0
    for _ in range(10):
        taken += bool(placements(arrive(run, 1)))
    assert taken == 7, "x holds 7 of 10 places for y's 3: 0.5 to 0.2"


def stages_in_two_versions(at: int = 1) -> Desk:
    plan = Pipeline(
        version=1,
        pipeline="p",
        engines={"a": LONG},
        stages=[Stage(name="s", variant="v", engine="a", canary=Canary(variant="w"))],
        max_requests=3000,
        rollout=Rollout(steps=[0.05, 0.3, 1.0], at=at),
    )
    return Desk(msgspec.structs.replace(plan, engines={"a": Engine(backend="twin", queue=Queue(limit=3000))}))


def new_ones(run: Desk) -> int:
    return int(run.state.counters[c.C_CANARY_INSIDE])


@pytest.mark.parametrize(("at", "share"), [(1, 0.05), (2, 0.3), (3, 1.0)])
def test_the_share_of_a_new_version_is_exact_for_every_prefix(at: int, share: float) -> None:
    run = stages_in_two_versions(at)
    for arrived in range(1, 200):
        arrive(run, 0)
        assert abs(new_ones(run) - share * arrived) < 1


@pytest.mark.parametrize("verdict", [c.INCONCLUSIVE, 3, -1, 2**40])
def test_only_a_passed_analysis_promotes(verdict: int) -> None:
    run = stages_in_two_versions()
    for _ in range(5):
        assert desk.on_rollout(0, run.tables, run.state, verdict) == 0
    assert run.state.counters[c.C_STEP] == 1
    assert run.state.counters[c.C_INCONCLUSIVE] == 5
    steps = []
    for _ in range(4):
        desk.on_rollout(0, run.tables, run.state, c.PASS)
        steps.append(int(run.state.counters[c.C_STEP]))
    assert steps == [2, 3, 3, 3]


def test_after_a_failed_analysis_nobody_waits_for_the_new_version() -> None:
    run = stages_in_two_versions(3)
    for _ in range(10):
        arrive(run, 0)
    assert new_ones(run) == 10
    assert desk.on_rollout(0, run.tables, run.state, c.FAIL) == 0
    assert len(placements(run.effects())) == 9
    assert new_ones(run) == 1, "the one that runs ends in the version it began with"
    run.done(0)
    assert new_ones(run) == 0
    arrive(run, 0)
    assert new_ones(run) == 0
    assert desk.on_rollout(0, run.tables, run.state, c.PASS) == c.REFUSED


def test_a_key_keeps_its_version_while_the_share_grows() -> None:
    run = stages_in_two_versions()
    had: set[int] = set()
    for _ in range(3):
        now = set()
        for key in range(300):
            before = new_ones(run)
            arrive(run, 0, key=key)
            if new_ones(run) > before:
                now.add(key)
        assert had <= now
        had = now
        desk.on_rollout(0, run.tables, run.state, c.PASS)
    assert len(had) == 300


def test_the_cheapest_engine_is_taken_only_if_it_meets_the_deadline() -> None:
    engines = {name: msgspec.structs.replace(LONG, active_w=watts) for name, watts in (("slow", 1.0), ("fast", 50.0))}
    latency = LatencyTable(entries=[entry("slow", 100), entry("fast", 10)])
    run = Desk(one_stage(engines, prefer="cheapest"), latency)
    assert placements(run.arrive())[0][1] == 0
    assert placements(run.arrive(deadline_ns=50 * MS))[0][1] == 1
    assert placements(run.arrive(deadline_ns=201 * MS))[0][1] == 0
