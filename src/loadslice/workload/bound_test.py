import pytest

from loadslice.spec.portrait import Series, Utilisation
from loadslice.workload import bound


def sampled(**p95: float) -> Utilisation:
    series = {name: Series(mean=0.0, p50=0.0, p95=value, max=100.0) for name, value in p95.items()}
    return Utilisation(samples=10, span_s=10.0, series=series, curve=[])


@pytest.mark.parametrize(
    ("utilisation", "intensity", "kind"),
    [
        (sampled(cpu_pct=95), None, "compute"),
        (sampled(cpu_pct=95), 50.0, "compute"),
        (sampled(cpu_pct=95), 2.0, "memory_bandwidth"),
        (sampled(gpu_pct=80, cpu_pct=10), None, "compute"),
        (sampled(cpu_pct=95, mem_pct=97), None, "memory_size"),
        (sampled(gpu_pct=95, gpu_mem_pct=93), None, "memory_size"),
        (sampled(cpu_pct=95, mem_bandwidth_pct=80), None, "memory_bandwidth"),
        (sampled(cpu_pct=30, io_pct=85), None, "io"),
        (sampled(cpu_pct=90, io_pct=85), None, "compute"),
        (sampled(cpu_pct=40, mem_pct=20), None, "unknown"),
        (None, 2.0, "unknown"),
    ],
)
def test_the_verdict_follows_what_is_saturated(
    utilisation: Utilisation | None, intensity: float | None, kind: str
) -> None:
    found = bound.find(utilisation, None, intensity)
    assert found.class_ == kind
    assert found.evidence


def test_stages_that_move_data_speak_where_nothing_was_sampled() -> None:
    assert bound.find(None, {"fetch_image": 0.4, "upload": 0.2, "model": 0.4}, None).class_ == "io"
    assert bound.find(None, {"preload": 0.6, "model": 0.4}, None).class_ == "unknown"
    assert bound.find(None, {"spread": 0.6, "model": 0.4}, None).class_ == "unknown"
