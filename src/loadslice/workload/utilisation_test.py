from pathlib import Path

import pytest

from loadslice.spec.errors import InputError
from loadslice.workload import utilisation


def write(folder: Path, text: str) -> Path:
    path = folder / "utilisation"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "time,cpu,gpu_w\n1715299200,20%,100\n1715299260,40,\n1715302860,90,300\n",
        (
            '{"time":1715299200,"cpu_pct":20,"gpu_w":100}\n{"time":1715299260,"cpu_pct":40,"gpu_w":null}\n'
            '{"time":1715302860,"cpu_pct":90,"gpu_w":300}\n'
        ),
    ],
)
def test_samples_are_summarised_with_a_curve_by_hour(tmp_path: Path, text: str) -> None:
    found = utilisation.read(write(tmp_path, text))
    assert found.samples == 3
    assert found.span_s == 3660.0
    assert found.series["cpu_pct"].mean == 50.0
    assert found.series["gpu_w"].max == 300.0
    assert [(hour.hour, hour.mean["cpu_pct"]) for hour in found.curve] == [(0, 30.0), (1, 90.0)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("time,cpu\n1,120\n", "line 2: cpu: '120' is not a percentage"),
        ("time,cpu\n1,10\n2,x\n", "line 3: cpu: 'x' is not"),
        ("time,cpu\nsoon,10\n", "'soon' is not a time"),
        ("cpu\n10\n", "needs a column time"),
        ("time,colour\n1,2\n", "found time, colour"),
        ("time,cpu\n", "no samples"),
        ("", "needs a column|no samples"),
        ('{"time":1,"cpu_pct":-1}\n', "line 1: cpu_pct: '-1' is not"),
    ],
)
def test_samples_that_cannot_be_are_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        utilisation.read(write(tmp_path, text))
