from pathlib import Path

import pytest

from loadslice.graph import devices
from loadslice.spec.device import Device
from loadslice.spec.errors import InputError


def figures(device: Device) -> list[tuple[str, str]]:
    found = [(peak.source, peak.basis) for peak in device.peak_ops_per_s.values()]
    fields = (device.bandwidth_bytes_per_s, device.memory_bytes, device.onchip_bytes, device.tdp_w, device.idle_w)
    return found + [(figure.source, figure.basis) for figure in fields if figure is not None]


def test_every_shipped_device_loads_and_every_figure_has_a_source(tmp_path: Path) -> None:
    shipped = devices.catalogue(tmp_path)
    assert {device.kind for device in shipped.values()} == {"cpu", "gpu", "npu"}
    assert len(shipped) >= 10
    for device in shipped.values():
        assert figures(device)
        assert all(len(source) > 10 and basis in {"stated", "derived"} for source, basis in figures(device))


def test_dense_peaks_double_as_precision_halves(tmp_path: Path) -> None:
    """On every shipped part fp16 is half of int8; a sparse figure in one of them would break the ratio."""
    for device in devices.catalogue(tmp_path).values():
        peaks = device.peak_ops_per_s
        if "fp16" in peaks and "int8" in peaks:
            assert peaks["int8"].value / peaks["fp16"].value == pytest.approx(2, rel=0.02), device.name


def test_a_users_device_joins_the_catalogue_and_replaces_a_namesake(tmp_path: Path) -> None:
    text = "name: {}\ntitle: Mine\nkind: npu\n"
    for name in ("my-npu", "nvidia-l4"):
        (tmp_path / f"{name}.yaml").write_text(text.format(name), encoding="utf-8")
    known = devices.catalogue(tmp_path)
    assert known["my-npu"].title == known["nvidia-l4"].title == "Mine"


def test_an_unknown_device_names_those_near_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(InputError, match="near it: nvidia-l4"):
        devices.find("NVIDIA-L4x")
    with pytest.raises(InputError, match="cannot be read"):
        devices.find("nowhere.yaml")
    assert devices.find("nvidia-l4").kind == "gpu"
