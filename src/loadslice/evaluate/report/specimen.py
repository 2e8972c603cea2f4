"""A made-up report that holds everything a report can hold, for tests of the page. No number in it was measured."""

import msgspec
import numpy as np

from loadslice.evaluate import compare
from loadslice.evaluate.verdict import judge, verdict
from loadslice.spec import portrait as p
from loadslice.spec.budget import Budget, Slo
from loadslice.spec.device import Device, Figure, Peak
from loadslice.spec.files import Stamp
from loadslice.spec.inspection import DeviceFit, DynamicInput, Inspection, OpCount
from loadslice.spec.latency import Entry, Milliseconds
from loadslice.spec.machine import LocalMachine, Runtime
from loadslice.spec.outcome import OUTCOMES
from loadslice.spec.replay import Accuracy, Replay, SendLagMs
from loadslice.spec.report import (
    OUTSIDE,
    SCHEMA,
    Account,
    Agreement,
    CpuUse,
    Histogram,
    Interval,
    ModelReport,
    PlanReport,
    Provenance,
    RateCurve,
    Report,
    StageCompared,
    StageTimes,
    Step,
)
from loadslice.spec.simulation import EngineFigures, LatencyMs, Simulation

HOSTILE = "</style><script>alert(1)</script><img src=http://example.invalid/x>"
"""What a trace or a pipeline of somebody else's might hold."""
STAMP = Stamp(schema=SCHEMA, loadslice="0.0.0", seed=0)
SLO = Slo(p95_ms=300.0, error_rate=0.01)


def specimen() -> Report:
    """Three plans, one of which could not be measured."""
    plans = [_plan("hybrid", "Hybrid", 95.0, 80.0), _plan("ort", "ONNX Runtime alone", 140.0, 120.0), _broken()]
    return Report(
        stamp=STAMP,
        created_utc="2026-01-01 00:00 UTC",
        pipeline="ocr",
        budget=Budget(slo=SLO),
        verdict=verdict(plans, SLO),
        portrait=_portrait(),
        rate_curve=RateCurve(
            bin_s=60.0,
            rate_per_s=[3 + 2 * float(np.sin(i / 9)) for i in range(120)],
            replayed_from_s=3000,
            replayed_to_s=3600,
        ),
        sizes=[
            Histogram(
                column="tokens_in", unit="tokens", edges=[float(v) for v in range(0, 260, 10)], requests=[*range(25)]
            )
        ],
        machine=_machine(),
        models=[_model("detect", 3.1), _model("recognise", 3.4)],
        latency_table=[
            Entry(
                variant=stage,
                engine=engine,
                batch=rows,
                shape=[3, 48, 320],
                latency_ms=Milliseconds(p50=5.0 * rows, p90=6.0 * rows, p99=8.0 * rows),
                contended_ms=Milliseconds(samples=[7.0 * rows, 9.0 * rows, 12.0 * rows]),
                n=20,
                basis="measured",
                source="made up",
            )
            for stage in ("detect", "recognise")
            for engine in ("ort", "ov")
            for rows in (1, 4)
        ],
        latency_basis="measured",
        plans=plans,
        agreements=[
            Agreement(
                first="Hybrid", second="ONNX Runtime alone", inputs=32, alike=31, different_characters=2, characters=999
            )
        ],
        provenance=_provenance(),
        limits=["Made up.", HOSTILE],
    )


def _outcomes(completed: int) -> dict[str, int]:
    return {name: completed if name == "completed" else 0 for name in OUTCOMES}


def _simulation(latencies_ms: np.ndarray) -> Simulation:
    p50, p95, p99 = (float(value) for value in np.quantile(latencies_ms, [0.5, 0.95, 0.99]))
    engine = EngineFigures(
        utilisation=0.6, queue_p99=3, batches=100, dispatched=600, placed=600, failover_in=0, breaker_transitions=0
    )
    return Simulation(
        requests=len(latencies_ms),
        attempts=len(latencies_ms),
        outcomes=_outcomes(len(latencies_ms)),
        latency_ms=LatencyMs(p50=p50, p95=p95, p99=p99, mean=float(latencies_ms.mean())),
        throughput_per_s=4.0,
        goodput_per_s=4.0,
        energy_j=None,
        cost=None,
        engines={"ort": engine, "ov": engine},
        stages={},
        requests_per_wall_s=1e5,
        requests_per_cpu_s=1e5,
        compile_s=0.0,
        journal_sha256="0" * 64,
        basis="simulated on measured times",
        seed=0,
        span_s=75.0,
    )


def _plan(name: str, title: str, mean_ms: float, cpu_ms: float) -> PlanReport:
    draw = np.random.default_rng(len(name))
    measured_ms, predicted_ms = draw.gamma(4, mean_ms / 4, 300), draw.gamma(4, mean_ms / 4, 300)
    simulated, measured = _simulation(predicted_ms), _replay(measured_ms)
    times = simulated.latency_ms
    assert times.p50 is not None
    assert times.p95 is not None
    figures = {"p50": times.p50, "p95": times.p95, "throughput": 4.0, "error rate": 0.0}
    spread = {key: Interval(low=0.9 * value, high=1.1 * value) for key, value in figures.items()}
    stage = StageTimes(
        requests=300,
        queue_ms_mean=3.0,
        queue_ms_p95=9.0,
        copy_ms_mean=0.4,
        compute_ms_mean=20.0,
        service_ms_mean=21.0,
        service_ms_p95=40.0,
        engine_share={"ov": 0.7, "ort": 0.3},
    )
    report = PlanReport(
        name=name,
        title=title,
        file=f"pipeline.{name}.yaml",
        engines={"ort": "onnxruntime fp32, 1 thread, 1 at a time"},
        hybrid=name == "hybrid",
        simulated=simulated,
        simulated_whole=simulated,
        measured=measured,
        compared=compare.figures(figures, spread, measured, measured_ms, 0, resamples=100),
        stages=[
            StageCompared(stage=where, predicted=stage, measured=stage, service_error_pct=0.0)
            for where in ("detect", "recognise", OUTSIDE)
        ],
        predicted_quantiles_ms=compare.quantiles_ms(predicted_ms),
        measured_quantiles_ms=compare.quantiles_ms(measured_ms),
        cpu=CpuUse(
            server_cpu_s=30.0,
            utilisation=0.5,
            cpu_ms_per_request=cpu_ms,
            others_utilisation=0.02,
            client_cpu_s=1.0,
            cores=2,
            load_before_1m=0.4,
            memory_bytes_peak=400_000_000,
        ),
        accounts=[Account(run="simulated", submitted=300, outcomes=_outcomes(300), holds=True)],
    )
    meets, too_close, misses = judge(report, SLO)
    return msgspec.structs.replace(report, meets_slo=meets, too_close=too_close, misses=misses)


def _broken() -> PlanReport:
    return PlanReport(
        name="broken",
        title="OpenVINO alone",
        file="pipeline.openvino.yaml",
        engines={},
        hybrid=False,
        failed="the server ended with code 1: " + "a_very_long_word_that_cannot_be_broken_" * 4,
    )


def _replay(latencies_ms: np.ndarray) -> Replay:
    p50, p95, p99 = (float(value) for value in np.quantile(latencies_ms, [0.5, 0.95, 0.99]))
    return Replay(
        requests=len(latencies_ms),
        outcomes=_outcomes(len(latencies_ms)),
        latency_ms=LatencyMs(p50=p50, p95=p95, p99=p99, mean=float(latencies_ms.mean())),
        throughput_per_s=4.0,
        goodput_per_s=4.0,
        send_lag_ms=SendLagMs(p50=0.3, p99=1.2),
        client_errors=0,
        accuracy=Accuracy(wrong_characters=12, characters=4000, share=0.003, answers=300),
        trace="traffic.parquet",
        url="http://127.0.0.1:1/v1/pipelines/ocr",
        speed=1.0,
        from_s=0.0,
        span_s=75.0,
        complete=True,
    )


def _portrait() -> p.Portrait:
    rates = [3 + 2 * float(np.sin(hour / 24 * 6.28)) for hour in range(168)]
    water = [
        p.Water(
            hour=hour,
            latency_class="interactive",
            precision_class="fp32",
            requests_per_s=rate,
            work_flop_per_s=1e9 * rate,
        )
        for hour, rate in enumerate(rates[:48])
    ]
    sizes = p.Distribution(
        mean=200, p50=180, p99=900, max=1200, quantiles=[float(i) for i in range(len(p.QUANTILE_POINTS))]
    )
    return p.Portrait(
        stamp=STAMP,
        trace="traffic.parquet",
        start_utc="2026-01-01T00:00:00Z",
        requests=20_000,
        span_s=7200.0,
        rate_per_s=p.Rate(mean=3.0, peak_1m=5.0, peak_1h=3.5, peak_to_mean=1.7),
        arrival=p.Arrival(
            class_="tidal",
            why="made up",
            interarrival_cv=1.1,
            interarrival_cv_detrended=1.0,
            dispersion=1.2,
            hour_of_week=[*rates],
            hour_of_week_origin="monday_00_utc",
            tick_ms=None,
        ),
        items=None,
        tokens_in=sizes,
        tokens_out=None,
        size_rank_correlation={},
        class_share=None,
        latency_ms=None,
        stage_share=None,
        waterline=water,
        bound=p.Bound(class_="memory_bandwidth", evidence="made up"),
        utilisation=None,
        dimensions=p.Dimensions(
            model=None,
            arrival=p.ArrivalDimension(class_="tidal", rate_per_s_mean=3.0, peak_to_mean=1.7, interarrival_cv=1.1),
            latency=None,
            batch=None,
            precision=None,
            environment=None,
        ),
        findings=[p.Finding(code="short", text=f"the trace is short {HOSTILE}", evidence={})],
    )


def _machine() -> LocalMachine:
    figure = Figure(value=3e10, source="made up", basis="measured")
    return LocalMachine(
        cpu="A processor with a long name that a vendor thought of",
        architecture="x86_64",
        cores_usable=2,
        cores_physical=1,
        isa=["avx2"],
        memory_bytes=16_000_000_000,
        memory_available_bytes=8_000_000_000,
        memory_limit_bytes=None,
        numa_nodes=1,
        onchip_bytes=None,
        runtimes=[Runtime(name="onnxruntime", version="1", devices=["CPU"])],
        device=Device(
            name="local",
            title="local",
            kind="cpu",
            peak_ops_per_s={"fp32": Peak(value=1e11, source="made up", basis="measured", dense=True)},
            bandwidth_bytes_per_s=figure,
        ),
    )


def _model(stage: str, intensity: float) -> ModelReport:
    attainable = min(1e11, 3e10 * intensity)
    fit = DeviceFit(
        bound="memory",
        fits="device",
        precision="fp32",
        peak_flop_per_s=1e11,
        bandwidth_bytes_per_s=3e10,
        attainable_flop_per_s=attainable,
    )
    inspection = Inspection(
        model=f"{stage}.onnx",
        sha256="0" * 64,
        opset=17,
        opsets={"": 17},
        nodes=600,
        parameters=1_000_000,
        weight_bytes=4_000_000,
        weight_dtypes={"float": 4_000_000},
        precision="fp32",
        shapes={"x": [1, 3, 48, 320]},
        macs=500_000_000,
        flops=1_000_000_000,
        bytes_moved=int(1e9 / intensity),
        compulsory_bytes=5_000_000,
        intensity_flop_per_byte=intensity,
        peak_activation_bytes=None,
        complete=True,
        dynamic_inputs=[DynamicInput(name="x", dtype="float", shape=None)],
        ops=[
            OpCount(type="Conv", count=60, flops=900_000_000, bytes=1_000_000),
            OpCount(type="Odd", count=1, flops=None, bytes=None),
        ],
        unknown_ops=[],
        devices={"local": fit},
    )
    return ModelReport(stages=[stage], inspection=inspection, shape_note="Made up.")


def _provenance() -> Provenance:
    return Provenance(
        command="loadslice study somewhere",
        steps=[
            Step(name="portrait", seconds=0.1, state="done", detail="2 requests"),
            Step(name="replay broken", seconds=1.0, state="failed", detail=HOSTILE),
        ],
        speed=1.0,
        speed_why="Recorded pace.",
        stretch_why="The whole trace was replayed.",
        profile_s=30.0,
        replay_s=25.0,
        seed=0,
        inputs_sha256={"traffic.parquet": "0" * 64},
        versions={"numpy": "2"},
        load_before_1m={"portrait": 0.2, "replay broken": None},
    )
