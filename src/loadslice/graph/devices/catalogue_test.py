from collections import Counter
from pathlib import Path

import pytest

from loadslice.graph import devices
from loadslice.spec.device import FIGURES, Device, power_curve
from loadslice.spec.errors import InputError


def figures(device: Device) -> list[tuple[str, str]]:
    found = [(peak.source, peak.basis) for peak in device.peak_ops_per_s.values()]
    fields = [getattr(device, name) for name in (*FIGURES, "power")]
    stated = [*fields, *device.purchase_price, *device.rent_per_hour]
    return found + [(figure.source, figure.basis) for figure in stated if figure is not None]


def test_every_shipped_device_loads_and_every_figure_has_a_source(tmp_path: Path) -> None:
    shipped = devices.catalogue(tmp_path)
    assert {device.kind for device in shipped.values()} == {"cpu", "gpu", "npu"}
    assert len(shipped) >= 10
    for device in shipped.values():
        assert figures(device)
        assert all(len(source) > 10 for source, _ in figures(device))


def test_only_power_was_measured_by_others_and_says_by_which_meter(tmp_path: Path) -> None:
    for device in devices.catalogue(tmp_path).values():
        peaks = [peak.basis for peak in device.peak_ops_per_s.values()]
        assert "measured" not in peaks, device.name
        for field in FIGURES:
            figure = getattr(device, field)
            if figure is not None and figure.basis == "measured":
                assert field in {"idle_w", "active_w", "tdp_w"}, device.name
                assert "nvidia-smi" in figure.source, device.name


def test_the_catalogue_holds_servers_cards_and_chips_on_edge_boards(tmp_path: Path) -> None:
    kinds = Counter(device.kind for device in devices.catalogue(tmp_path).values())
    assert kinds["cpu"] >= 3
    assert kinds["gpu"] >= 15
    assert kinds["npu"] >= 12


def test_a_curve_is_never_the_tdp_alone(tmp_path: Path) -> None:
    for device in devices.catalogue(tmp_path).values():
        curve = power_curve(device)
        if curve is None:
            assert device.idle_w is None, device.name
        else:
            assert curve.idle_w < curve.active_w, device.name
            assert curve.basis == "derived" or device.active_w is not None or device.power is not None, device.name


def test_prices_name_what_is_sold_and_when(tmp_path: Path) -> None:
    found = [
        price
        for device in devices.catalogue(tmp_path).values()
        for price in [*device.purchase_price, *device.rent_per_hour]
    ]
    assert len(found) >= 8
    assert all(price.offer and price.date >= "2024" for price in found)


def test_dense_peaks_double_as_precision_halves(tmp_path: Path) -> None:
    """On shipped parts fp16 is half of int8; a sparse figure in one of them would break the ratio.

    GeForce accumulates in fp32 at half rate, and AMX does eight times what AVX-512 does in fp32.
    """
    for device in devices.catalogue(tmp_path).values():
        peaks = device.peak_ops_per_s
        if "fp16" in peaks and "int8" in peaks and device.name != "nvidia-rtx-4090":
            assert peaks["int8"].value / peaks["fp16"].value == pytest.approx(2, rel=0.02), device.name


def test_a_users_device_joins_the_catalogue_and_replaces_a_namesake(tmp_path: Path) -> None:
    text = "name: {}\ntitle: Mine\nkind: npu\n"
    for name in ("my-npu", "nvidia-l4"):
        (tmp_path / f"{name}.yaml").write_text(text.format(name), encoding="utf-8")
    known = devices.catalogue(tmp_path)
    assert known["my-npu"].title == known["nvidia-l4"].title == "Mine"


def test_two_files_of_one_name_in_a_folder_are_refused(tmp_path: Path) -> None:
    for file in ("one.yaml", "two.yml"):
        (tmp_path / file).write_text("name: my-npu\ntitle: Mine\nkind: npu\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"two\.yml: name 'my-npu' is that of one\.yaml too"):
        devices.catalogue(tmp_path)


def test_an_unknown_device_names_those_near_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(InputError, match="near it: nvidia-l4"):
        devices.find("NVIDIA-L4x")
    with pytest.raises(InputError, match="cannot be read"):
        devices.find("nowhere.yaml")
    assert devices.find("nvidia-l4").kind == "gpu"
