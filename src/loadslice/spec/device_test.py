from pathlib import Path

import pytest

from loadslice.spec.device import load_device
from loadslice.spec.errors import InputError

GOOD = """
name: my-npu
title: My NPU
kind: npu
peak_ops_per_s:
  int8: {value: 6.0e+12, basis: stated, dense: true, source: the vendor's page}
tdp_w: {value: 8.0, basis: stated, source: the vendor's page}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "my.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_device_of_ones_own_is_read(tmp_path: Path) -> None:
    device = load_device(written(tmp_path, GOOD))
    assert device.peak_ops_per_s["int8"].value == 6e12
    assert device.memory_bytes is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("dense: true", "dense: false", "2:4 sparsity"),
        ("dense: true, ", "", "dense"),
        ("6.0e+12", "6.0", "not plausible"),
        ("6.0e+12", "6.0e12", "write 1.5e+12"),
        ("6.0e+12", ".nan", "not plausible"),
        ("int8:", "tops:", "tops"),
        ("source: the vendor's page}\ntdp", "source: ''}\ntdp", "needs a source"),
        ("kind: npu", "kind: toaster", "kind"),
        ("tdp_w", "tdp_watts", "tdp_watts"),
        ("name: my-npu", "name: My NPU", "lower case"),
        ("value: 8.0", "value: 8000000.0", "not plausible"),
        ("tdp_w:", "idle_w: {value: 9.0, basis: measured, source: a meter}\ntdp_w:", "is not below tdp_w"),
    ],
)
def test_a_figure_that_cannot_be_right_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in GOOD
    with pytest.raises(InputError) as error:
        load_device(written(tmp_path, GOOD.replace(old, new)))
    assert words in str(error.value)
    assert "\n" not in str(error.value)
