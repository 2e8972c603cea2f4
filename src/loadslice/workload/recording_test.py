import json
import sys
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadslice.record.request import Request
from loadslice.spec.errors import InputError
from loadslice.workload import machine, recording
from loadslice.workload.recording import Folder

EPOCH_NS = 1_715_299_200_000_000_000


def request(begin_ms: int, latency_ms: float = 5.0, **fields: object) -> Request:
    made = Request(begin_ms * 1_000_000)
    made.end_ns = made.begin_ns + int(latency_ms * 1e6)
    made.status = 200
    made.fields = dict(fields)
    return made


def folder(path: Path, max_bytes: int = 1 << 30, begin_ms: int = 0) -> Folder:
    return Folder(path, max_bytes, EPOCH_NS, EPOCH_NS + begin_ms * 1_000_000)


def test_parts_of_several_processes_join_in_arrival_order(tmp_path: Path) -> None:
    staged = request(100, items=3)
    staged.stages = [("decode", 1_000_000), ("model", 2_000_000), ("decode", 1_000_000)]
    folder(tmp_path).write_part([staged, request(0)])
    folder(tmp_path, begin_ms=1).write_part([request(50, tenant=b"a")])
    found = recording.read(tmp_path)
    assert found.frame["arrival_s"].to_list() == [0.0, 0.05, 0.1]
    assert found.frame["stage_ms.decode"].to_list() == [None, None, 2.0]
    assert found.frame["tenant"].to_list() == [None, "a", None]
    assert found.meta["start_utc"] == "2024-05-10T00:00:00+00:00"


def test_old_parts_make_room(tmp_path: Path) -> None:
    writer = folder(tmp_path, max_bytes=1)
    assert [writer.write_part([request(at)]) for at in range(3)] == [0, 1, 1]
    assert [part.name[-14:] for part in tmp_path.glob("part-*")] == ["000003.parquet"]


@given(
    value=st.one_of(
        st.none(), st.integers(), st.floats(), st.text(), st.binary(max_size=8), st.just(object()), st.just([1])
    ),
    name=st.sampled_from(["items", "bytes_in", "deadline_ms", "class", "tenant", "tokens_in"]),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_clients_say_becomes_a_valid_trace_or_unknown(tmp_path: Path, value: object, name: str) -> None:
    for part in tmp_path.glob("part-*"):
        part.unlink()
    folder(tmp_path).write_part([request(0, **{name: value}), request(1)])
    assert recording.read(tmp_path).frame.height == 2


def test_payloads_are_named_by_the_input_column(tmp_path: Path) -> None:
    sampled = [request(0), request(1), request(2)]
    sampled[0].payload, sampled[2].payload = b"one", b"two"
    writer = folder(tmp_path)
    assert writer.write_payloads(sampled, most=1) == 1
    writer.write_part(sampled)
    names = recording.read(tmp_path).frame["input"].to_list()
    assert names[1:] == [None, None]
    assert (tmp_path / "payloads" / f"{names[0]}.bin").read_bytes() == b"one"


def test_stage_names_without_number_are_cut_off(tmp_path: Path) -> None:
    many = request(0)
    many.stages = [(f"job-{number}", 1) for number in range(1000)]
    folder(tmp_path).write_part([many])
    assert len(pl.read_parquet(next(tmp_path.glob("part-*"))).columns) < 80


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    (tmp_path / "part-1.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="damaged"):
        recording.read(tmp_path)


def test_utilisation_is_appended_and_put_aside_when_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "UTILISATION_BYTES_MAX", 10)
    writer = folder(tmp_path)
    for at in range(2):
        writer.append_utilisation({"time": float(at), "cpu_pct": None})
    assert json.loads((tmp_path / "utilisation.jsonl").read_text()) == {"time": 1.0, "cpu_pct": None}
    assert (tmp_path / "utilisation-old.jsonl").exists()


class Nvml:
    """The parts of `pynvml` that are called, for machines without a GPU."""

    class NVMLError(Exception):
        pass

    lost = False

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if self.lost:
            raise self.NVMLError
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=handle + 1, total=4)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=40 * handle)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        return 100_000


def test_gpus_are_sampled_where_nvml_is_and_unknown_when_one_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    sampler = machine.Sampler(0)
    sample = sampler.sample(10**9)
    assert (sample["gpu_pct"], sample["gpu_mem_pct"], sample["gpu_w"]) == (20.0, 50.0, 200.0)
    nvml.lost = True
    assert sampler.sample(2 * 10**9)["gpu_pct"] is None


def test_a_sample_of_this_machine_is_in_range() -> None:
    sample = machine.Sampler(0).sample(10**9)
    assert sample["time"] == 1.0
    for name, value in sample.items():
        if name.endswith("_pct") and value is not None:
            assert 0 <= value <= 100
