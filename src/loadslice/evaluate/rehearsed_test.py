"""A machine that only the simulator knows is rehearsed; a profile that is wrong about it must come out right."""

import tracemalloc
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.evaluate.company import passages
from loadslice.evaluate.differing import BLOCKS_ALIKE, drift
from loadslice.evaluate.rehearsed import BLOCK_S, Rehearsed, as_rehearsed
from loadslice.sim import journal as sim_journal
from loadslice.sim import simulate
from loadslice.sim.service import lower_service
from loadslice.spec.files import Stamp, encode_json
from loadslice.spec.latency import Drift, Entry, InputWork, LatencyTable, Milliseconds, StageWork, load
from loadslice.spec.pipeline import Engine, Pipeline, Stage, check

RATE_PER_S = 16.0
ROWS_MS = {1: 20.0, 2: 34.0, 4: 66.0}
CONTENTION = 1.4
STAMP = Stamp(schema="latency/1", loadslice="0", machine={"cpus": 2})


def pipeline() -> Pipeline:
    engines = {
        "host": Engine(backend="python"),
        "ort": Engine(backend="onnxruntime", max_inflight=2),
    }
    stages = [Stage(name="prepare", python="m:f", engine="host"), Stage(name="read", variant="v", engine="ort")]
    return check(Pipeline(version=1, pipeline="p", engines=engines, stages=stages), "test")


def profile(factor: float, contention: float, *, spread: float = 0.1, handover_ms: float = 0.3) -> LatencyTable:
    """Times ``factor`` times as long as they are, of a machine with that contention."""
    shape = 1 + spread * np.linspace(-1, 1, 21)

    def entry(variant: str, engine: str, rows: int, ms: float, slower: float) -> Entry:
        times = ms * factor * shape
        return Entry(
            variant=variant,
            engine=engine,
            batch=rows,
            latency_ms=Milliseconds(p50=ms * factor, samples=times.tolist()),
            contended_ms=Milliseconds(p50=ms * factor * slower, samples=(times * slower).tolist()),
            n=3,
            basis="measured",
        )

    # Python stages are timed beside both slots, so that three threads were on two cores.
    entries = [entry("prepare", "host", 1, 2.0, 1.5)]
    entries += [entry("v", "ort", rows, ms, contention) for rows, ms in ROWS_MS.items()]
    return LatencyTable(
        entries=entries,
        inputs=[
            InputWork(
                input=str(rows), stages=[StageWork(stage="prepare", items=1), StageWork(stage="read", items=rows)]
            )
            for rows in ROWS_MS
        ],
        handover_ms=Milliseconds(samples=[handover_ms]),
        stamp=STAMP,
    )


def traffic(requests: int, seed: int) -> pl.DataFrame:
    draw = np.random.default_rng(seed)
    times_s = np.cumsum(draw.exponential(1 / RATE_PER_S, requests))
    return pl.DataFrame({"arrival_s": times_s - times_s[0], "input": draw.choice(["1", "2", "4"], requests)})


def truth() -> LatencyTable:
    return profile(1.0, CONTENTION)


def journal(requests: int = 400, seed: int = 0, table: LatencyTable | None = None) -> pl.DataFrame:
    """What a server's journal would say of a run on the true machine."""
    run = simulate.run(simulate.prepare(traffic(requests, seed), pipeline(), table or truth(), seed=seed), seed=seed)
    stages = sim_journal.stages(run)
    took_ns = pl.col("done_ns") - pl.col("dispatched_ns")
    way_ns = pl.min_horizontal(took_ns, 300_000)
    return stages.with_columns(compute_ns=took_ns - way_ns, copy_ns=pl.lit(0, pl.Int64))


def figures(table: LatencyTable, seed: int) -> np.ndarray:
    prepared = simulate.prepare(traffic(3000, 99), pipeline(), table, seed=seed)
    return np.quantile(simulate.latency_ms(simulate.run(prepared, seed=seed)), (0.5, 0.95, 0.99))


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("contention", [1.05, 1.8])
def test_a_profile_that_is_wrong_in_speed_and_contention_comes_out_right(factor: float, contention: float) -> None:
    found = as_rehearsed(profile(factor, contention), pipeline(), [journal()], RATE_PER_S)
    assert found.ratios["read", "ort"] == pytest.approx(1 / factor, rel=0.03)
    assert found.contentions["ort"] == pytest.approx(CONTENTION, abs=0.1)
    assert figures(found.table, 1) == pytest.approx(figures(truth(), 2), rel=0.04)
    assert figures(profile(factor, contention), 1) != pytest.approx(figures(truth(), 2), rel=0.04), (
        "else it proves nothing"
    )


def test_every_rehearsed_time_says_how_much_of_it_is_its_own() -> None:
    stages = journal()
    found = as_rehearsed(profile(1.0, CONTENTION), pipeline(), [stages], RATE_PER_S)
    passed = stages.filter(pl.col("stage") == "read")
    entries = [entry for entry in found.table.entries if entry.engine == "ort"]
    assert all(entry.pooled is not None for entry in entries)
    pooled = [entry.pooled for entry in entries if entry.pooled is not None]
    assert {one.spread_of for one in pooled} == {"stage"}
    assert {one.contention for one in pooled} == {found.contentions["ort"]}
    batches = passed.height if "batch" not in passed.columns else passed["batch"].n_unique()
    assert {one.spread_runs for one in pooled} == {sum(one.rehearsed for one in pooled)} == {batches}
    assert all(entry.pooled is None for entry in profile(1.0, CONTENTION).entries)


def test_hand_over_is_what_it_is_without_company() -> None:
    found = as_rehearsed(profile(1.0, CONTENTION, handover_ms=5.0), pipeline(), [journal()], RATE_PER_S)
    assert found.table.handover_ms is not None
    assert np.mean(found.table.handover_ms.samples or []) == pytest.approx(0.3 / 1.2, rel=0.15)


def test_a_stage_that_is_reached_later_than_others_holds_its_slot_longer() -> None:
    later_ns = pl.when(pl.col("stage") == "prepare").then(1_000_000).otherwise(0)
    late = journal().with_columns(done_ns=pl.col("done_ns") + later_ns)
    near, far = (as_rehearsed(truth(), pipeline(), [one], RATE_PER_S).table for one in (journal(), late))

    def held_ms(table: LatencyTable, engine: str) -> float:
        assert table.handover_ms is not None
        own = next(entry for entry in table.entries if entry.engine == engine)
        return float(np.mean(own.latency_ms.samples or []) + np.mean(table.handover_ms.samples or []))

    assert held_ms(far, "host") - held_ms(near, "host") == pytest.approx(1.0, abs=0.35)
    assert held_ms(far, "ort") == pytest.approx(held_ms(near, "ort"), rel=0.03)


def test_no_time_is_negative_though_ways_are_longer_than_the_work(tmp_path: Path) -> None:
    held_up = pl.when(pl.col("stage") == "read").then(20_000_000).otherwise(0)
    found = as_rehearsed(truth(), pipeline(), [journal().with_columns(done_ns=pl.col("done_ns") + held_up)], RATE_PER_S)
    path = tmp_path / "latency.json"
    path.write_bytes(encode_json(found.table))
    assert load(path) == found.table
    host = next(entry for entry in found.table.entries if entry.engine == "host")
    assert min(host.latency_ms.samples or []) > 0.5


def test_one_kind_that_the_profile_has_wrong_is_told_from_the_speed_of_all() -> None:
    wrong = profile(1.0, CONTENTION)
    entries = [
        msgspec.structs.replace(entry, latency_ms=Milliseconds(samples=[10.0] * 3)) if entry.batch == 4 else entry
        for entry in wrong.entries
    ]
    found = as_rehearsed(msgspec.structs.replace(wrong, entries=entries), pipeline(), [journal()], RATE_PER_S)
    levels = {entry.batch: entry.latency_ms.p50 for entry in found.table.entries if entry.engine == "ort"}
    assert levels[4] == pytest.approx(66.0, rel=0.1)
    assert levels[1] == pytest.approx(20.0, rel=0.1)


def test_row_counts_that_were_not_profiled_count_by_those_beside_them() -> None:
    rows = journal()
    profiled = [entry for entry in profile(0.8, CONTENTION).entries if entry.batch != 2]
    found = as_rehearsed(
        msgspec.structs.replace(profile(0.8, CONTENTION), entries=profiled), pipeline(), [rows], RATE_PER_S
    )
    # Straight between 20 and 66 ms, two rows would take 35 ms and take 34.
    assert found.ratios["read", "ort"] == pytest.approx(1 / 0.8, rel=0.03)


def test_the_shape_of_a_distribution_is_the_servers() -> None:
    calm = as_rehearsed(profile(1.0, CONTENTION, spread=0.0), pipeline(), [journal()], RATE_PER_S)
    (entry,) = (entry for entry in calm.table.entries if entry.engine == "ort" and entry.batch == 2)
    samples = np.array(entry.latency_ms.samples)
    assert np.std(samples) / np.mean(samples) == pytest.approx(0.1 / np.sqrt(3), rel=0.25)


def test_what_was_not_rehearsed_stays_as_profiled() -> None:
    table = profile(0.7, CONTENTION)
    nothing = as_rehearsed(table, pipeline(), [journal().clear()], RATE_PER_S)
    assert nothing.table == table
    assert nothing.blocks[0].size == 0
    few = as_rehearsed(table, pipeline(), [journal(4)], RATE_PER_S)
    assert [entry.latency_ms for entry in few.table.entries] == [entry.latency_ms for entry in table.entries]


def test_a_stage_whose_shapes_were_not_profiled_is_as_much_slower_as_its_engine() -> None:
    plan, table = pipeline(), profile(0.8, CONTENTION)
    plan = msgspec.structs.replace(plan, stages=[*plan.stages, Stage(name="again", variant="w", engine="ort")])
    known = [entry for entry in table.entries if entry.variant == "v"]
    entries = [*table.entries, *(msgspec.structs.replace(entry, variant="w", shape=[8]) for entry in known)]
    again = (pl.col("stage") == "read") & (pl.col("dispatched_ns") % 2 == 0)
    rows = journal().with_columns(
        stage=pl.when(again).then(pl.lit("again")).otherwise("stage"),
        shape=pl.when(again).then(pl.lit([9], pl.List(pl.Int32))).otherwise("shape"),
    )
    found = as_rehearsed(msgspec.structs.replace(table, entries=entries), plan, [rows], RATE_PER_S)
    assert found.ratios["again", "ort"] == found.ratios["read", "ort"] == pytest.approx(1 / 0.8, rel=0.03)


def test_company_is_told_from_slowness_by_who_was_busy() -> None:
    service, _ = lower_service(pipeline(), truth())
    rows = pl.DataFrame(
        {
            "stage": ["read"] * 3,
            "engine": ["ort"] * 3,
            "batch_rows": [1, 1, 1],
            "shape": [None, None, None],
            "dispatched_ns": [0, 50_000_000, 200_000_000],
            "done_ns": [100_000_000, 150_000_000, 300_000_000],
            "copy_ns": [0] * 3,
            "compute_ns": [100_000_000] * 3,
        },
        schema_overrides={"shape": pl.List(pl.Int32)},
    )
    (found,) = passages(rows, pipeline(), service)
    # Half of its time alone, half at half the speed: three quarters of the work that it could have done.
    assert found.slower(2.0) == pytest.approx([4 / 3, 4 / 3, 1.0])
    assert found.slower(1.0) == pytest.approx([1.0, 1.0, 1.0])


def test_work_without_rows_is_no_measurement() -> None:
    nothing = journal(50).with_columns(batch_rows=pl.lit(0, pl.Int32))
    service, _ = lower_service(pipeline(), truth())
    assert list(passages(nothing, pipeline(), service)) == []


def test_members_of_one_batch_are_one_passage() -> None:
    rows = journal(50)
    twice = pl.concat([rows, rows.with_columns(tag=pl.col("tag") + 1000)])
    service, _ = lower_service(pipeline(), truth())
    assert [len(own.work_ms) for own in passages(twice, pipeline(), service)] == [50, 50]


def test_a_machine_that_wanders_makes_the_interval_wider() -> None:
    table, steady = truth(), journal()
    wandering = steady.with_columns(
        compute_ns=(
            pl.col("compute_ns") * (1 + 0.1 * ((pl.col("done_ns") / (2e9 * BLOCK_S)).floor().cast(pl.Int64) % 2))
        ).cast(pl.Int64)
    )
    calm, restless = (drift([as_rehearsed(table, pipeline(), [one], RATE_PER_S)], None) for one in (steady, wandering))
    assert calm is not None
    assert restless is not None
    assert calm.between_runs is not None
    assert restless.between_runs is not None
    assert restless.between_runs > 2 * calm.between_runs
    assert restless.runs == calm.runs


def test_ways_to_workers_that_wander_make_the_time_beside_engines_differ_between_runs() -> None:
    slow = (pl.col("done_ns") / (1e9 * BLOCK_S)).floor().cast(pl.Int64) % 2
    later_ns = pl.col("done_ns") + 300_000 * slow
    found = [
        drift([as_rehearsed(truth(), pipeline(), [one], RATE_PER_S)], None)
        for one in (journal(), journal().with_columns(done_ns=later_ns))
    ]
    (calm, restless) = (one.overhead_between_runs for one in found if one is not None)
    assert calm is not None
    assert restless is not None
    # A block's ways take 0.3 or 0.6 ms: a third off their mean in each of the 12 blocks.
    assert restless == pytest.approx(0.35 * np.sqrt(5 / 3 / 12), rel=0.3)
    assert restless > 3 * calm


def test_what_rehearsals_missed_is_pooled() -> None:
    one, two = (rehearsed([0.0, 0.02])._replace(missed=seen) for seen in ([1.0], [4.0, 7.0]))
    found = drift([one, two], None)
    assert found is not None
    assert (found.misses, found.missed_runs) == (2.0, 3)


def rehearsed(*blocks: list[float]) -> Rehearsed:
    return Rehearsed(truth(), {}, {}, [np.array(run) for run in blocks], [])


def test_runs_that_differ_as_a_whole_count_more_than_their_blocks() -> None:
    apart = drift([rehearsed([0.1, 0.1, 0.1], [-0.1, -0.1, -0.1], [0.0, 0.0, 0.0])], None)
    assert apart is not None
    assert apart.between_runs == pytest.approx(0.1)
    assert apart.runs == 3


def test_plans_pool_what_they_know_and_the_profiles_slow_periods_are_kept() -> None:
    known = Drift(period_ms=400.0, likeness=0.2)
    one = drift([rehearsed([0.0, 0.02, 0.04])], known)
    three = drift([rehearsed([0.0, 0.02, 0.04])] * 3, known)
    assert one is not None
    assert three is not None
    assert (three.period_ms, three.likeness) == (400.0, 0.2)
    assert (
        three.between_runs
        == one.between_runs
        == pytest.approx(0.02 * np.sqrt(1 / 3 * (1 + BLOCKS_ALIKE) / (1 - BLOCKS_ALIKE)), abs=1e-5)
    )
    assert (one.runs, three.runs) == (3, 7)
    assert (one.level_runs, three.level_runs) == (1, 1), "a plan's times are of its own rehearsals"
    assert drift([rehearsed([0.1]), rehearsed()], known) == known


def alike(draw: np.random.Generator, runs: int, blocks: int) -> np.ndarray:
    """Logarithms of blocks' speeds, [runs, blocks]: a first-order autoregression of deviation 0.05."""
    found = draw.standard_normal((runs, blocks))
    for block in range(1, blocks):
        fresh = np.sqrt(1 - BLOCKS_ALIKE**2) * found[:, block]
        found[:, block] = BLOCKS_ALIKE * found[:, block - 1] + fresh
    return 0.05 * found


@pytest.mark.parametrize(
    ("plans", "runs", "blocks", "most"),
    [(1, 1, 4, 0.965), (6, 1, 4, 0.965), (1, 4, 4, 0.985), (6, 2, 1, 0.965), (3, 3, 1, 0.965)],
)
def test_19_of_20_next_runs_lie_within_what_rehearsals_say_of_them(
    plans: int, runs: int, blocks: int, most: float
) -> None:
    draw, inside, histories = np.random.default_rng(1), 0, 2000
    if blocks == 1:
        blocks, spread = 2, 0.05  # runs differ as a whole, and hardly within
    else:
        spread = 0.0
    for _ in range(histories):
        whole = spread * draw.standard_normal((plans, runs, 1))
        steady = 1e-3 if spread else 1.0
        seen = whole + steady * alike(draw, plans * runs, blocks).reshape(plans, runs, blocks)
        found = drift([rehearsed(*plan) for plan in seen], None)
        service, _ = lower_service(pipeline(), msgspec.structs.replace(truth(), drift=found))
        following = spread * draw.standard_normal() + steady * alike(draw, 1, blocks).mean()
        inside += bool(abs(following - seen[-1].mean()) <= 1.96 * service.between_runs[0])
    assert 0.935 <= inside / histories <= most


def test_what_a_rehearsal_takes_of_memory_is_a_few_times_its_own() -> None:
    rows = journal(2000)
    tracemalloc.start()
    try:
        found = as_rehearsed(truth(), pipeline(), [rows], RATE_PER_S)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.ratios
    assert most_bytes < 20 * rows.estimated_size()
