import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.sim import replicas, simulate
from loadslice.sim.service import draw_ns, lower_service, of_run
from loadslice.spec.errors import InputError
from loadslice.spec.latency import Drift, Entry, InputWork, LatencyTable, Milliseconds, StageWork
from loadslice.spec.pipeline import Accept, Batch, Engine, Pipeline, Stage, check

PERIOD_NS = 200_000_000
SAMPLES = [float(value) for value in np.linspace(8.0, 16.0, 33)]


def pipeline() -> Pipeline:
    engines = {"a": Engine(backend="onnxruntime"), "b": Engine(backend="onnxruntime"), "npu": Engine(backend="twin")}
    stage = Stage(name="s", variant="v", engines=list(engines))
    return check(Pipeline(version=1, pipeline="p", engines=engines, stages=[stage]), "test")


def table(times: Milliseconds, drift: Drift | None = None) -> LatencyTable:
    entries = [
        Entry(variant="v", engine=engine, batch=1, latency_ms=times, basis="modelled") for engine in ("a", "b", "npu")
    ]
    return LatencyTable(entries=entries, drift=drift)


def drawn_ms(latency: LatencyTable, now_ns: list[int], engine: int = 0, first_tag: int = 0) -> np.ndarray:
    service, _ = lower_service(pipeline(), latency)
    return np.array(
        [draw_ns(service, 7, at_ns, first_tag + tag, 0, engine, 0, 1) / 1e6 for tag, at_ns in enumerate(now_ns)]
    )


def in_periods(each: int, periods: int) -> list[int]:
    return [period * PERIOD_NS + number for period in range(periods) for number in range(each)]


FAMILIES = [
    Milliseconds(samples=SAMPLES),
    Milliseconds(mean=12.0, family="exponential"),
    Milliseconds(mean=12.0, family="lognormal", cv=0.3),
]


@pytest.mark.parametrize("times", FAMILIES, ids=["samples", "exponential", "lognormal"])
def test_slow_periods_leave_the_distribution_as_it_was_measured(times: Milliseconds) -> None:
    drift = Drift(period_ms=PERIOD_NS / 1e6, likeness=0.5)
    alone = drawn_ms(table(times), in_periods(1, 4000))
    alike = drawn_ms(table(times, drift), in_periods(1, 4000))
    shares = (0.1, 0.5, 0.9, 0.99)
    assert np.quantile(alike, shares) == pytest.approx(np.quantile(alone, shares), rel=0.08)


@pytest.mark.parametrize("times", FAMILIES, ids=["samples", "exponential", "lognormal"])
def test_work_of_one_period_is_alike_and_of_two_it_is_not(times: Milliseconds) -> None:
    drift = Drift(period_ms=PERIOD_NS / 1e6, likeness=0.6)
    first, second = drawn_ms(table(times, drift), in_periods(2, 3000)).reshape(-1, 2).T
    assert 0.4 < np.corrcoef(np.argsort(np.argsort(first)), np.argsort(np.argsort(second)))[0, 1] < 0.75
    assert abs(np.corrcoef(first[1:], second[:-1])[0, 1]) < 0.06


def test_engines_of_one_processor_share_its_periods_and_a_device_has_its_own() -> None:
    latency = table(FAMILIES[0], Drift(period_ms=PERIOD_NS / 1e6, likeness=0.9))
    at_ns = in_periods(1, 2000)
    first, second, device = (drawn_ms(latency, at_ns, engine, first_tag=10_000 * engine) for engine in range(3))
    assert np.corrcoef(first, second)[0, 1] > 0.8
    assert abs(np.corrcoef(first, device)[0, 1]) < 0.08


def test_a_draw_depends_on_seed_request_and_period_and_on_nothing_that_came_before() -> None:
    latency = table(FAMILIES[0], Drift(period_ms=PERIOD_NS / 1e6, likeness=0.5))
    service, _ = lower_service(pipeline(), latency)
    at = [(tag, tag * 30_000_000) for tag in range(50)]
    forwards = {tag: draw_ns(service, 3, at_ns, tag, 0, 0, 0, 1) for tag, at_ns in at}
    backwards = {tag: draw_ns(service, 3, at_ns, tag, 0, 0, 0, 1) for tag, at_ns in reversed(at)}
    assert forwards == backwards


def test_a_table_that_knows_of_no_likeness_gives_the_same_times_as_one_without_drift() -> None:
    at_ns = in_periods(3, 200)
    for times in FAMILIES:
        bare = drawn_ms(table(times), at_ns)
        assert (drawn_ms(table(times, Drift(period_ms=1.0, likeness=0.0)), at_ns) == bare).all()


def test_runs_differ_as_far_as_the_table_says_and_more_when_it_knows_few() -> None:
    many, _ = lower_service(pipeline(), table(FAMILIES[0], Drift(period_ms=1.0, likeness=0.0, between_runs=0.05)))
    assert np.std([of_run(many, seed)[0].pace for seed in range(2000)]) == pytest.approx(0.05, rel=0.06)
    drift = Drift(period_ms=1.0, likeness=0.0, between_runs=0.05, runs=3)
    few, _ = lower_service(pipeline(), table(FAMILIES[0], drift))
    assert few.between_runs[0] == pytest.approx(0.05 * 4.303 / 1.960 * (4 / 3) ** 0.5, rel=0.01)


def test_the_time_beside_engines_differs_from_run_to_run_by_itself() -> None:
    drift = Drift(period_ms=1.0, likeness=0.0, between_runs=0.05, overhead_between_runs=0.2)
    handover = msgspec.structs.replace(table(FAMILIES[0], drift), handover_ms=Milliseconds(p50=0.4))
    service, _ = lower_service(pipeline(), handover)
    runs = [of_run(service, seed) for seed in range(2000)]
    longer = np.array([one for _, one in runs])
    assert np.std(np.log(longer)) == pytest.approx(0.2, rel=0.06)
    assert [run.handover_ns[40] / service.handover_ns[40] for run, _ in runs] == pytest.approx(longer)
    assert abs(np.corrcoef(longer, [run.pace for run, _ in runs])[0, 1]) < 0.07


def test_the_interval_of_replicas_knows_how_far_runs_differ_and_the_run_shown_is_typical() -> None:
    trace = pl.DataFrame({"arrival_s": [0.05 * number for number in range(300)]})
    found = {}
    for between_runs in (0.0, 0.1):
        drift = Drift(period_ms=1.0, likeness=0.0, between_runs=between_runs)
        prepared = simulate.prepare(trace, pipeline(), table(FAMILIES[0], drift))
        found[between_runs] = replicas.run(prepared, seed=1, replicas=12)
    (still, narrow), (shown, wide) = found[0.0], found[0.1]
    assert simulate.digest(still) == simulate.digest(shown)
    low, high = wide["latency_ms.p50"]
    assert high - low > 3 * (narrow["latency_ms.p50"][1] - narrow["latency_ms.p50"][0])


def gaps(
    stage: Stage, entries: list[tuple[str, int, list[int] | None]], inputs: list[InputWork] | None = None
) -> list[str]:
    engines = {name: Engine(backend="onnxruntime") for name in stage.engine_names}
    plan = check(Pipeline(version=1, pipeline="p", engines=engines, stages=[stage]), "test")
    known = [
        Entry(variant=stage.variant_id, engine=name, batch=rows, shape=shape, latency_ms=FAMILIES[0], basis="measured")
        for name, rows, shape in entries
    ]
    _, warnings = lower_service(plan, LatencyTable(entries=known, inputs=inputs or []), pipeline_path="plans/p.yaml")
    return warnings


STAGE = Stage(name="s", model="m.onnx", engines=["a", "b"], buckets=[[4], [8]], batch={"b": Batch(size=8)})


def test_a_shape_and_a_batch_that_were_not_measured_are_one_line_each_with_the_command_that_measures_them() -> None:
    warnings = gaps(STAGE, [("a", 1, [4]), ("a", 1, [8]), ("b", 1, [4]), ("b", 2, [8])])
    remedy = "Run `loadslice profile plans/p.yaml --on b`, or add an entry."
    assert warnings == [
        f"s on b at [4], 8 rows: measured up to 1; taken in proportion to rows. {remedy}",
        f"s on b at [8], 8 rows: measured up to 2; taken in proportion to rows. {remedy}",
    ]
    (warning,) = gaps(STAGE, [("a", 1, [4]), ("b", 8, [4]), ("b", 8, [8])])
    assert warning.startswith(
        "s on a at [8] was not measured: taken as 2.00 x its nearest shape. Run `loadslice profile"
    )


def test_examples_of_more_rows_than_were_measured_are_named() -> None:
    asked = [InputWork(input="long", stages=[StageWork(stage="s", items=5, shape=[8])])]
    stage = msgspec.structs.replace(STAGE, batch={})
    (warning,) = gaps(stage, [("a", 5, [8]), ("a", 1, [4]), ("b", 2, [8]), ("b", 1, [4])], asked)
    assert warning.startswith("s on b at [8], 5 rows: measured up to 2")


def test_an_engine_of_one_static_shape_takes_that_shapes_time_for_every_bucket() -> None:
    stage = msgspec.structs.replace(STAGE, batch={}, accept={"a": Accept(shape=[1, 8])})
    assert gaps(stage, [("a", 1, [8]), ("b", 1, [4]), ("b", 1, [8])]) == []


def test_a_stage_without_any_time_is_an_error_with_the_command() -> None:
    with pytest.raises(InputError, match=r"stage 's' has no time on engine 'b' .*profile plans/p.yaml --on b`"):
        gaps(STAGE, [("a", 1, [4])])
