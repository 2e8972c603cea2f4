import itertools
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the extra 'onnxruntime' is not installed")

from loadslice.backends import checks
from loadslice.profiles import measure as measuring
from loadslice.profiles import samples
from loadslice.profiles.chain import close
from loadslice.profiles.jobs import collect
from loadslice.profiles.measure import SAMPLES_MAX, measure
from loadslice.profiles.overdue import Overdue
from loadslice.spec.errors import InputError
from loadslice.spec.files import decode_json, encode_json
from loadslice.spec.latency import LatencyTable, load
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.pipeline import load as load_pipeline
from loadslice.spec.work import Sample

STAGES = """
import numpy as np
from loadslice.spec.work import Sample, StageInputError, Work

def inputs():
    return [Sample(f"in-{n}", "text/plain", b"x" * int(n[0])) for n in ("0", "2", "2b", "5", "9")]

def spread(work):
    body = work.context.body
    if b"bad" in body:
        raise StageInputError("this text is bad")
    return Work({"x": np.ones((len(body), 3, max(1, len(body))), np.float32)}, work.context)

def join(work):
    return Work({"sum": work.tensors["s"]})
"""

PIPELINE = """
version: 1
pipeline: small
inputs: small_stages:inputs
engines:
  host: {backend: python}
  a: {backend: onnxruntime}
  b: {backend: onnxruntime, max_inflight: 2}
stages:
  - {name: spread, python: "small_stages:spread", engine: host}
  - {name: model, model: m.onnx, engines: [a, b], buckets: [[3, 4], [3, 8]]}
  - {name: join, python: "small_stages:join", engine: host}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    checks.write_model(tmp_path / "m.onnx")
    (tmp_path / "small_stages.py").write_text(STAGES)
    (tmp_path / "p.yaml").write_text(PIPELINE)
    return tmp_path


def pipeline(folder: Path, *changes: tuple[str, str]) -> Pipeline:
    text = PIPELINE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "p.yaml").write_text(text)
    return load_pipeline(folder / "p.yaml")


def profile(folder: Path, *changes: tuple[str, str], on: list[str] | None = None, repeats: int = 2) -> LatencyTable:
    loaded = pipeline(folder, *changes)
    return measure(loaded, folder, samples.of_pipeline(loaded, folder), seconds=0.05, on=on, repeats=repeats)


def kinds(table: LatencyTable) -> set[tuple]:
    return {(e.variant, e.engine, e.batch, tuple(e.shape) if e.shape else None) for e in table.entries}


def test_every_kind_of_work_the_inputs_ask_for_is_measured_on_every_engine(folder: Path) -> None:
    rows = [(2, (3, 4)), (5, (3, 8)), (9, (3, 9))]
    assert kinds(profile(folder)) == {("model", engine, *row) for engine in "ab" for row in rows} | {
        ("spread", "host", 1, None),
        *(("join", "host", items, None) for items in (2, 5, 9)),
    }


def test_every_time_is_measured_and_positive_alone_and_contended(folder: Path) -> None:
    for entry in profile(folder).entries:
        for times in (entry.latency_ms, entry.contended_ms):
            assert times is not None
            assert times.samples == sorted(times.samples)
            assert 0 < times.p50 <= times.p90 <= times.p99
            assert len(times.samples) <= SAMPLES_MAX
        assert entry.basis == "measured"
        assert entry.n >= 1


def test_inputs_say_rows_and_bucket_of_every_stage_and_no_rows_are_no_work(folder: Path) -> None:
    by_name = {work.input: [(s.stage, s.items, s.shape) for s in work.stages] for work in profile(folder).inputs}
    assert by_name["in-0"] == [("spread", 1, None), ("model", 0, [3, 4]), ("join", 0, None)]
    assert by_name["in-2"][1] == ("model", 2, [3, 4])
    assert by_name["in-9"][1] == ("model", 9, [3, 9])


def test_a_stage_is_measured_on_what_the_stage_before_has_just_made(tmp_path: Path) -> None:
    (tmp_path / "fresh_stages.py").write_text(
        "import numpy as np\n"
        "from loadslice.spec.work import Sample, Work\n"
        "MADE = []\n"
        "def inputs():\n"
        "    return [Sample(str(n), 'text/plain', b'x') for n in range(3)]\n"
        "def make(work):\n"
        "    MADE.append(np.ones((1, 4), np.float32))\n"
        "    return Work({'x': MADE[-1]}, work.context)\n"
        "def take(work):\n"
        "    if work.tensors['x'] is not MADE[-1]:\n"
        "        raise RuntimeError('made long ago')\n"
        "    return work\n"
    )
    (tmp_path / "p.yaml").write_text(
        "version: 1\npipeline: fresh\ninputs: fresh_stages:inputs\nengines: {host: {backend: python}}\nstages:\n"
        "  - {name: make, python: 'fresh_stages:make', engine: host}\n"
        "  - {name: take, python: 'fresh_stages:take', engine: host}\n"
    )
    loaded = load_pipeline(tmp_path / "p.yaml")
    table = measure(loaded, tmp_path, samples.of_pipeline(loaded, tmp_path), seconds=0.05, repeats=3)
    assert {entry.n for entry in table.entries} == {9}


def test_alone_and_contended_are_measured_by_turns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "TURN_S", 0.05)
    loaded = pipeline(folder)
    found = collect(loaded, folder, samples.of_pipeline(loaded, folder))
    slots = {name: engine.max_inflight for name, engine in loaded.engines.items()}
    try:
        with measuring._Threads(slots, Overdue()) as threads:
            alone, contended = measuring._by_turns(found.walks, slots, threads, 0.4, None)
    finally:
        close(found.steps)
    order = sorted([(one.start_ns, "alone") for one in alone] + [(one.start_ns, "contended") for one in contended])
    changes = sum(first[1] != second[1] for first, second in itertools.pairwise(order))
    assert changes >= 5, "not all of one and then all of the other"
    assert {one.key for one in alone} == {one.key for one in contended} == set(found.sources)


def test_a_single_slot_of_a_single_engine_has_no_contended_time(folder: Path) -> None:
    table = profile(folder, on=["a"])
    assert {entry.engine for entry in table.entries} == {"a"}
    assert all(entry.contended_ms is None for entry in table.entries)


def test_batching_adds_the_batches_whole_requests_fill(folder: Path) -> None:
    table = profile(folder, ("buckets:", "batch: {b: {size: 5}}, buckets:"))
    assert {kind for kind in kinds(table) if kind[0] == "model" and kind[2] == 4} == {("model", "b", 4, (3, 4))}


def test_batches_of_every_power_of_two_are_measured_though_the_inputs_are_few(folder: Path) -> None:
    table = profile(folder, ("buckets:", "batch: {b: {size: 16}}, buckets:"), on=["b"])
    rows = {shape: {kind[2] for kind in kinds(table) if kind[3] == shape} for shape in ((3, 4), (3, 8), (3, 9))}
    assert rows == {(3, 4): {2, 4, 8, 16}, (3, 8): {5, 15}, (3, 9): {9}}


def test_a_bucket_that_no_input_falls_into_is_measured_on_zeros(folder: Path) -> None:
    table = profile(
        folder, ("buckets: [[3, 4], [3, 8]]", "batch: {b: {size: 4}}, buckets: [[3, 4], [3, 8], [3, 9], [3, 32]]")
    )
    assert {kind[1:] for kind in kinds(table) if kind[3] == (3, 32)} >= {("a", 1, (3, 32)), ("b", 4, (3, 32))}


def test_a_stage_that_fails_or_ends_the_process_while_it_is_measured_is_one_line(folder: Path) -> None:
    path = folder / "small_stages.py"
    path.write_text(
        STAGES + "\nimport sys\nSEEN = []\n"
        "def tire(work):\n    SEEN.append(1)\n    return sys.exit(3) if len(SEEN) > 6 else join(work)\n"
    )
    with pytest.raises(InputError, match=r"a stage failed while it was measured: small_stages:tire: SystemExit: 3"):
        profile(folder, ("small_stages:join", "small_stages:tire"))


def test_an_engine_is_measured_only_on_what_it_accepts(folder: Path) -> None:
    table = profile(folder, ("buckets:", "accept: {a: {max_items: 2}, b: {shape: [1, 3, 8]}}, buckets:"))
    assert {kind[1:] for kind in kinds(table) if kind[0] == "model"} == {
        ("a", 2, (3, 4)),
        ("a", 1, (3, 8)),
        ("b", 5, (3, 8)),
    }


def test_a_profile_survives_its_file(folder: Path) -> None:
    table = profile(folder)
    path = folder / "latency.json"
    path.write_bytes(encode_json(table))
    assert load(path) == table
    assert decode_json(path, LatencyTable).stamp.schema == "latency/1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([("inputs: small_stages:inputs\n", "")], "names no example inputs. Add `inputs: module:function`"),
        ([("small_stages:inputs", "small_stages:STAGE")], "has no function 'STAGE'"),
        ([("small_stages:spread", "small_stages:absent")], "has no function 'absent'"),
        ([("model: m.onnx", "variant: det-int8")], "names only the variant 'det-int8'.*Add `model: FILE.onnx`"),
        ([("model: m.onnx", "model: absent.onnx")], "no such file"),
    ],
)
def test_a_pipeline_that_cannot_be_measured_is_refused_with_the_way_out(
    folder: Path, changes: list[tuple[str, str]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        profile(folder, *changes)


def test_an_unknown_engine_is_refused_with_those_that_exist(folder: Path) -> None:
    with pytest.raises(InputError, match=r"--on npu9: not an engine of this pipeline \(host, a, b\)"):
        profile(folder, on=["npu9"])


def test_an_input_that_a_stage_refuses_is_named(folder: Path) -> None:
    loaded = pipeline(folder)
    bad = [Sample("good.txt", "text/plain", b"ab"), Sample("evil.txt", "text/plain", b"bad")]
    with pytest.raises(InputError, match=r"input 'evil.txt': stage 'spread' refuses it: this text is bad"):
        measure(loaded, folder, bad, seconds=0.05)


def test_a_folder_gives_one_sample_per_file_and_npz_files_are_tensors(tmp_path: Path) -> None:
    (tmp_path / "b.png").write_bytes(b"png")
    (tmp_path / ".hidden").write_bytes(b"")
    np.savez(tmp_path / "a.npz", x=np.ones((2, 3)))
    first, second = samples.of_folder(tmp_path)
    assert first.work().tensors["x"].shape == (2, 3)
    assert (second.name, second.content_type, second.work().context.body) == ("b.png", "image/png", b"png")


def test_folders_that_give_no_samples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no inputs; at least one"):
        samples.of_folder(tmp_path)
    with pytest.raises(InputError, match="cannot be read, no such file"):
        samples.of_folder(tmp_path / "absent")
    (tmp_path / "a.npz").write_bytes(b"not a zip")
    with pytest.raises(InputError, match=r"a.npz: not an .npz file"):
        samples.of_folder(tmp_path)


def test_an_endless_time_is_refused(folder: Path) -> None:
    loaded = pipeline(folder)
    with pytest.raises(InputError, match="--seconds nan"):
        measure(loaded, folder, samples.of_pipeline(loaded, folder), seconds=float("nan"))


def test_an_engine_that_pads_is_measured_at_the_sizes_it_pads_to(folder: Path) -> None:
    padding = "buckets: [[3, 4], [3, 8]], batch: {a: {size: 8, pad_to: [4, 8]}}"
    found = profile(folder, ("buckets: [[3, 4], [3, 8]]", padding))
    rows = {name: {entry.batch for entry in found.entries if entry.engine == name} for name in ("a", "b")}
    assert rows["a"] == {4, 8, 9}, "nine rows are more than it was built for, and run as they are"
    assert rows["b"] >= {2, 5, 9}
