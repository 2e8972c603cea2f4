from collections.abc import Iterator
from pathlib import Path

import pytest

from loadslice.backends import probe
from loadslice.spec.device import BUSY


def test_the_probe_knows_this_machine_without_measuring() -> None:
    machine = probe.local(measure=False)
    assert machine.cores_usable >= 1
    assert machine.memory_bytes > 0
    assert machine.device.kind == "cpu"
    assert machine.device.peak_ops_per_s == {}


def test_measurements_are_labelled_measured_and_plausible() -> None:
    device = probe.local().device
    peak, bandwidth = device.peak_ops_per_s["fp32"], device.bandwidth_bytes_per_s
    assert bandwidth is not None
    assert (peak.basis, bandwidth.basis) == ("measured", "measured")
    assert 1e9 < peak.value < 1e15
    assert 1e8 < bandwidth.value < 1e13


def test_every_runtime_reports_devices_or_the_reason_it_has_none() -> None:
    for runtime in probe.runtimes():
        assert bool(runtime.devices) != bool(runtime.reason)


def test_instruction_sets_are_read_from_either_architecture(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("model name\t: X\nflags\t\t: fpu avx2 avx512_vnni amx_int8\n", encoding="utf-8")
    assert probe.instruction_sets(file) == ["amx_int8", "avx2", "avx512_vnni"]
    file.write_text("Features\t: fp asimd i8mm\n", encoding="utf-8")
    assert probe.instruction_sets(file) == ["asimd", "i8mm"]
    assert probe.instruction_sets(tmp_path / "none") is None


@pytest.mark.parametrize(("text", "limit"), [("max\n", None), ("1073741824\n", 1 << 30)])
def test_a_containers_memory_limit_is_seen(tmp_path: Path, text: str, limit: int | None) -> None:
    (tmp_path / "memory.max").write_text(text, encoding="ascii")
    assert probe.memory_limit_bytes(tmp_path / "memory.max") == limit


def test_what_a_container_has_left_is_what_is_free(tmp_path: Path) -> None:
    for name, text in (("max", "3000000"), ("current", "2500000"), ("stat", "anon 5\ninactive_file 100000\n")):
        (tmp_path / f"memory.{name}").write_text(text, encoding="ascii")
    assert probe.free_memory_bytes(tmp_path) == 600_000
    assert probe.free_memory_bytes(tmp_path / "none") > 600_000


def test_caches_shared_by_cores_count_once(tmp_path: Path) -> None:
    for cpu, shared in ((0, "0-1"), (1, "0-1"), (2, "2")):
        for level, size in ((2, "512K"), (3, "4096K")):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{level}"
            folder.mkdir(parents=True)
            (folder / "level").write_text(f"{level}\n", encoding="ascii")
            (folder / "size").write_text(f"{size}\n", encoding="ascii")
            (folder / "shared_cpu_list").write_text(f"{shared}\n", encoding="ascii")
    assert probe.last_level_cache_bytes(tmp_path) == 2 * 4096 * 1024
    assert probe.last_level_cache_bytes(tmp_path / "none") is None


def test_a_peak_that_was_measured_beside_others_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # Seconds of all processors, of those idle, own: of ten seconds that passed others took six, or none.
    def reading(busy_s: float) -> Iterator[tuple[float, float, float]]:
        while True:
            yield 0.0, 0.0, 0.0
            yield 10.0, 8.0 - busy_s, 2.0

    for busy_s in (6.0, 0.0):
        readings = reading(busy_s)
        monkeypatch.setattr(probe.Others, "_read", staticmethod(lambda readings=readings: next(readings)))
        monkeypatch.setattr(probe, "measured_peak_flop_per_s", lambda: (9.3e10, 3))
        monkeypatch.setattr(probe, "measured_bandwidth_bytes_per_s", lambda: (1e10, 3))
        device = probe.local().device
        assert device.bandwidth_bytes_per_s is not None
        notes = [device.peak_ops_per_s["fp32"].note or "", device.bandwidth_bytes_per_s.note or ""]
        assert [f"{BUSY}: others took 60% of its processors" in note for note in notes] == [busy_s > 0] * 2
