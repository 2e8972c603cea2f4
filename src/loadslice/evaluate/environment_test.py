from pathlib import Path

import msgspec
import pytest

from loadslice.evaluate.baseline import compare as compare_reports
from loadslice.evaluate.baseline import require_comparable
from loadslice.evaluate.environment import read
from loadslice.spec.environment import Environment, compare
from loadslice.spec.errors import InputError
from loadslice.spec.evaluation import Evaluation, Placement
from loadslice.spec.evaluation_report import EvaluationReport, Layer, Placed

FILES = {
    "sys/module/nvidia/version": "580.1\n",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "performance\n",
    "sys/devices/system/cpu/cpufreq/policy1/scaling_governor": "powersave\n",
    "sys/devices/system/cpu/cpufreq/boost": "1\n",
    "sys/class/drm/card0/device/pp_dpm_mclk": "0: 96Mhz\n1: 1000Mhz *\n",
    "sys/firmware/acpi/platform_profile": "balanced\n",
    "sys/class/powercap/intel-rapl:0/name": "package-0\n",
    "sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw": "65000000\n",
    "sys/class/thermal/cooling_device0/type": "Fan\n",
    "sys/class/thermal/cooling_device1/type": "Fan\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
}


@pytest.fixture
def machine(tmp_path: Path) -> Environment:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return read(tmp_path)


def test_everything_linux_shows_is_read(machine: Environment) -> None:
    assert machine.driver == {"nvidia": "580.1"}
    assert machine.clock_policy == {"scaling_governor": "performance powersave", "boost": "1"}
    assert machine.memory_clock == "1: 1000Mhz *"
    assert machine.power_policy == {"platform_profile": "balanced", "package-0_limit_uw": "65000000"}
    assert machine.cooling == {"Fan": "2"}
    assert machine.clock_source == "tsc"
    assert machine.runtime["numpy"]


def test_what_is_not_shown_is_unknown_and_not_a_value(tmp_path: Path) -> None:
    bare = read(tmp_path)
    assert bare.driver == bare.clock_policy == bare.power_policy == {}
    assert bare.memory_clock is None
    assert {"memory_clock", "cooling", "power_policy"} <= set(compare(bare, bare).unknown)
    assert compare(bare, bare).same


def test_a_driver_that_changed_differs_unless_it_is_what_is_varied(machine: Environment) -> None:
    later = msgspec.structs.replace(machine, driver={"nvidia": "581.0"})
    found = compare(machine, later)
    assert [(one.variable, one.before, one.now) for one in found.differences] == [("driver", "580.1", "581.0")]
    assert compare(machine, later, varied="driver").same


def report(machine: Environment, *, per_s: float, ms: float, model: str = "m") -> EvaluationReport:
    return EvaluationReport(
        verdict="pass",
        headline="",
        dimensions=[],
        layers=[
            Layer(name="latency", passed=True, figures={"a": {"whole_ms_p50": ms, "whole_ms_p50_95": [ms, ms]}}),
            Layer(name="ramp", passed=True, figures={"a": {"knee": {"throughput_per_s": per_s}}}),
        ],
        placements=[
            Placed(
                name="a", state="run", why=None, basis="measured", reference=True, fixed={"model": model}, overall=None,
                advice="",
            )
        ],
        rules_fired=[],
        limits=[],
        scenario="interactive",
        varied="driver",
        environment=machine,
    )  # fmt: skip


WANTED = Evaluation(version=1, placements=[Placement(name="a", url="http://a")], varied="driver")


def test_a_baseline_of_another_machine_is_refused_with_the_difference(machine: Environment) -> None:
    other = msgspec.structs.replace(machine, processor="another", driver={"nvidia": "581.0"})
    before = report(machine, per_s=100, ms=10)
    with pytest.raises(InputError) as error:
        require_comparable(before, other, {"a": {"model": "m"}}, "driver", "old.json")
    assert f"processor: was {machine.processor}, is another" in str(error.value)
    assert "581.0" not in str(error.value)


def test_a_baseline_of_another_model_is_refused(machine: Environment) -> None:
    with pytest.raises(InputError, match="a model: was m, is n"):
        require_comparable(report(machine, per_s=1, ms=1), machine, {"a": {"model": "n"}}, "driver", "old.json")


@pytest.mark.parametrize(
    ("per_s", "ms", "codes"),
    [
        (100.0, 10.0, []),
        (96.0, 10.4, []),
        (90.0, 10.0, ["baseline-throughput-down"]),
        (100.0, 12.0, ["baseline-latency-up"]),
    ],
)
def test_what_is_worse_than_the_baseline_is_a_regression(
    machine: Environment, per_s: float, ms: float, codes: list[str]
) -> None:
    rules, told = compare_reports(report(machine, per_s=100, ms=10), report(machine, per_s=per_s, ms=ms), WANTED)
    assert [rule.code for rule in rules] == codes
    assert told["a"]["before"]["throughput_per_s"] == 100
