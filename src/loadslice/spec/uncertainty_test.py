import math

import numpy as np
import pytest

from loadslice.spec.latency import Entry, LatencyTable, Milliseconds, ModelError
from loadslice.spec.uncertainty import interval, perturbed


def entry(variant: str, engine: str, batch: int, error: ModelError | None) -> Entry:
    return Entry(
        variant=variant,
        engine=engine,
        batch=batch,
        latency_ms=Milliseconds(mean=10.0 * batch, family="lognormal", cv=0.1),
        energy_j=2.0,
        basis="measured" if error is None else "modelled",
        error=error,
    )


def of(device: str, *, device_sd: float = 0.2, model_sd: float = 0.1, power_sd: float = 0.0) -> ModelError:
    return ModelError(
        device=device, device_sd=device_sd, model_sd=model_sd, power_sd=power_sd, freedom=1000, why="a test"
    )


def drawn(table: LatencyTable, seed: int) -> list[float]:
    found = []
    for each in perturbed(table, np.random.default_rng(seed)).entries:
        assert each.latency_ms.mean is not None
        found.append(each.latency_ms.mean / (10.0 * each.batch))
    return found


def test_a_measured_time_is_never_drawn() -> None:
    table = LatencyTable(entries=[entry("m", "cpu0", 1, None), entry("m", "gpu0", 1, of("gpu"))])
    measured, modelled = drawn(table, 1)
    assert measured == 1.0
    assert modelled != 1.0


def test_a_table_without_errors_comes_back_itself_and_draws_nothing() -> None:
    table = LatencyTable(entries=[entry("m", "cpu0", 1, None)])
    rng = np.random.default_rng(1)
    assert perturbed(table, rng) is table
    assert rng.random() == np.random.default_rng(1).random()


def test_batches_of_one_model_are_off_together_and_models_of_one_device_nearly_so() -> None:
    table = LatencyTable(
        entries=[entry("a", "g", 1, of("gpu")), entry("a", "g", 8, of("gpu")), entry("b", "g", 1, of("gpu"))]
    )
    draws = np.log([drawn(table, seed) for seed in range(500)])
    assert np.array_equal(draws[:, 0], draws[:, 1])
    # Shared variance over all: 0.04 / (0.04 + 0.01).
    assert np.corrcoef(draws[:, 0], draws[:, 2])[0, 1] == pytest.approx(0.8, abs=0.05)


def test_draws_have_the_stated_deviation_and_no_bias() -> None:
    table = LatencyTable(entries=[entry("a", "g", 1, of("gpu"))])
    draws = np.log([drawn(table, seed)[0] for seed in range(2000)])
    assert np.mean(draws) == pytest.approx(0.0, abs=0.02)
    assert np.std(draws) == pytest.approx(math.hypot(0.2, 0.1), rel=0.06)


def test_energy_follows_the_time_and_the_power() -> None:
    table = LatencyTable(entries=[entry("a", "g", 1, of("gpu", power_sd=0.3))])
    one = perturbed(table, np.random.default_rng(3)).entries[0]
    assert one.energy_j is not None
    assert one.latency_ms.mean is not None
    assert one.energy_j / 2.0 != pytest.approx(one.latency_ms.mean / 10.0)
    still = perturbed(LatencyTable(entries=[entry("a", "g", 1, of("gpu"))]), np.random.default_rng(3)).entries[0]
    assert still.energy_j is not None
    assert still.latency_ms.mean is not None
    assert still.energy_j / 2.0 == pytest.approx(still.latency_ms.mean / 10.0)


def test_an_interval_holds_both_errors() -> None:
    low, high = interval(entry("a", "g", 1, of("gpu", device_sd=0.3, model_sd=0.4)), points=2.0)
    assert (low, high) == (pytest.approx(math.exp(-1.0)), pytest.approx(math.exp(1.0)))
    assert interval(entry("a", "g", 1, None), points=2.0) == (1.0, 1.0)
