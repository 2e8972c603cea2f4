import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from loadslice.evaluate import loadgen, payloads
from loadslice.evaluate import replay as replaying
from loadslice.evaluate.checks import serving
from loadslice.sim.traffic import Intake
from loadslice.spec.errors import InputError
from loadslice.spec.latency import InputWork, LatencyTable, StageWork
from loadslice.spec.pipeline import Engine, Pipeline, Stage, check
from loadslice.spec.work import Sample


def wrong_letters(truth: list[str], texts: list[str]) -> tuple[int, int]:
    return sum(a != b for a, b in zip(truth[0], texts[0], strict=True)), len(truth[0])


INPUTS = payloads.Inputs(
    {
        "good": Sample("good", "text/plain", b'200|{"text": ["abcd"]}', ["abcd"]),
        "poor": Sample("poor", "text/plain", b'200|{"outputs": [{"name": "text", "data": ["abcx"]}]}', ["abcd"]),
        "full": Sample("full", "text/plain", b"429", ["abcd"]),
    },
    score=wrong_letters,
)


def stretch_of(names: list[str], **columns: list) -> pl.DataFrame:
    frame = pl.DataFrame({"arrival_s": [0.01 * index for index in range(len(names))], "input": names} | columns)
    return payloads.cut(frame, from_s=0, for_s=None, speed=1, limit=None)


@pytest.mark.live
def test_a_replay_counts_outcomes_marks_answers_and_sends_what_the_trace_says() -> None:
    stretch = stretch_of(
        ["good", "poor", "full", "good"],
        **{
            "class": ["critical", None, None, None],
            "deadline_ms": [1e6, 0.001, None, None],
            "source": ["api\n", None, None, None],
        },
    )
    with serving() as server:
        where = replaying.target(server.url, allow_remote=False)
        replaying.require_server(where)
        where = replaying.endpoint(where, None, tensors=False)
        rows, run = replaying.replay(stretch, INPUTS, where, loadgen.Limits())
    document = replaying.summarise(rows, run, trace="t", url=where.url, speed=1, from_s=0)
    assert where.url.endswith("/v1/pipelines/p")
    assert document.outcomes == {
        "completed": 3,
        "failed": 0,
        "rejected": 1,
        "shed": 0,
        "expired": 0,
        "cancelled": 0,
    }
    assert document.accuracy is not None
    assert (document.accuracy.wrong_characters, document.accuracy.characters) == (1, 12)
    assert rows["within_deadline"].to_list() == [True, False, None, None]
    assert document.throughput_per_s is not None
    assert document.goodput_per_s == pytest.approx(document.throughput_per_s * 2 / 3)
    assert document.client_errors == 0
    assert document.reasons == {"http_429": 1}
    first = server.headers[server.ids.index("0")]
    assert first["x-loadslice-priority"] == "critical"
    assert first["x-loadslice-source"] == "api"
    assert first["x-loadslice-input"] == "good"


def test_tensors_are_sent_in_the_binary_extension() -> None:
    tensors = payloads.Inputs({"t": Sample("t", "", b"", tensors={"x": np.ones((2, 3), np.float32)})})
    (shot,) = payloads.shots(stretch_of(["t"]), tensors)
    head = int(shot.headers["inference-header-content-length"])
    assert json.loads(shot.body[:head])["inputs"] == [
        {"name": "x", "shape": [2, 3], "datatype": "FP32", "parameters": {"binary_data_size": 24}}
    ]
    assert shot.body[head:] == np.ones((2, 3), "<f4").tobytes()
    assert replaying.endpoint(replaying.Target("http://h"), "p", tensors=True).url == "http://h/v2/models/p/infer"


def test_figures_of_nothing_completed_are_null() -> None:
    rows = replaying._rows(
        stretch_of(["good"]), INPUTS, [loadgen.Answer(0, 0.0, outcome="failed", reason="connection_refused")]
    )
    document = replaying.summarise(rows, loadgen.Run([]), trace="t", url="u", speed=1, from_s=0)
    assert document.latency_ms.p50 is None
    assert document.accuracy is None
    assert document.throughput_per_s is None


def test_a_stretch_is_cut_before_its_pace_is_scaled_and_rows_number_the_trace() -> None:
    frame = pl.DataFrame({"arrival_s": [0.0, 1.0, 2.0, 3.0, 4.0]})
    stretch = payloads.cut(frame, from_s=1.0, for_s=3.0, speed=2.0, limit=2)
    assert stretch["arrival_s"].to_list() == [0.0, 0.5]
    assert stretch["row"].to_list() == [1, 2]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("127.0.0.1:8000", "not like http"),
        ("http://127.0.0.1:99999", "[Pp]ort"),
        ("ftp://127.0.0.1", "not like http"),
        ("http://192.0.2.7/x", "is not this machine"),
    ],
)
def test_a_wrong_url_is_one_line(url: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        replaying.target(url, allow_remote=False)


def test_a_server_that_is_not_there_is_said_before_anything_is_sent() -> None:
    with serving() as server:
        pass
    with pytest.raises(InputError, match="nobody answers there"):
        replaying.require_server(replaying.target(server.url, allow_remote=False))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"input": ["good", None]}, "empty in 1 rows"),
        ({"input": ["good", "bad"]}, "input 'bad' is not one of the 3"),
    ],
)
def test_a_trace_that_does_not_say_what_to_send_is_refused(columns: dict, message: str) -> None:
    frame = pl.DataFrame({"arrival_s": [0.0, 1.0]} | columns)
    with pytest.raises(InputError, match=message):
        payloads.name_inputs(frame, INPUTS, "t.parquet")


def test_a_trace_that_names_no_inputs_gets_them_evenly_and_the_same_each_time() -> None:
    frame = pl.DataFrame({"arrival_s": [float(row) for row in range(300)]})
    first, again = (payloads.name_inputs(frame, INPUTS, "t.parquet")["input"] for _ in range(2))
    assert first.to_list() == again.to_list()
    assert set(first) == set(INPUTS.samples)
    assert payloads.are_drawn(frame, INPUTS)


def test_a_trace_that_says_sizes_only_is_replayed_with_the_inputs_that_are_simulated() -> None:
    sizes = dict(zip(INPUTS.samples, (9, 1, 9), strict=True))
    works = [InputWork(input=name, stages=[StageWork(stage="s", items=size)]) for name, size in sizes.items()]
    latency = LatencyTable(entries=[], inputs=works)
    items = [9, 1, 7, None, 30] * 40
    frame = pl.DataFrame({"arrival_s": np.arange(200.0), "items": items}, schema_overrides={"items": pl.Int32})
    pipeline = Pipeline(
        version=1,
        pipeline="p",
        engines={"e": Engine(backend="twin")},
        stages=[Stage(name="s", variant="v", engine="e")],
    )
    simulated = Intake(check(pipeline, "p"), latency, seed=0).lower(frame).work
    replayed = payloads.name_inputs(frame, INPUTS, "t.parquet", latency)["input"].to_list()
    assert replayed == [list(sizes)[place] for place in simulated]
    assert [sizes[name] for name in replayed[0::5]] == [9] * 40
    assert {sizes[name] for name in replayed[3::5]} == {1, 9}
    assert "one of its size" in payloads.how_drawn(frame, INPUTS, latency)
    assert "--profile" in payloads.how_drawn(frame, INPUTS, None)


def test_a_profile_of_other_inputs_is_refused() -> None:
    latency = LatencyTable(entries=[], inputs=[InputWork(input="good", stages=[])])
    with pytest.raises(InputError, match="the profile knows no input"):
        payloads.name_inputs(pl.DataFrame({"arrival_s": [0.0]}), INPUTS, "t.parquet", latency)


def test_inputs_are_chosen_over_the_whole_trace() -> None:
    by_rank = payloads.Inputs(
        INPUTS.samples, assign=lambda tokens: ["poor" if token > 10 else "good" for token in tokens]
    )
    frame = pl.DataFrame({"arrival_s": [0.0, 1.0], "tokens_in": [5, 50]})
    assert payloads.name_inputs(frame, by_rank, "t")["input"].to_list() == ["good", "poor"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"speed": 0.0}, "--speed 0.0"),
        ({"speed": float("nan")}, "--speed nan"),
        ({"for_s": -1.0}, "--for-s -1.0"),
        ({"from_s": 100.0}, "the trace ends at 1.0 s"),
        ({"speed": 0.0001}, "would last 10000 s"),
    ],
)
def test_numbers_that_make_no_replay_are_refused(changed: dict, message: str) -> None:
    frame = pl.DataFrame({"arrival_s": [0.0, 1.0], "input": ["good", "good"]})
    options = {"from_s": 0.0, "for_s": None, "speed": 1.0, "limit": None, "max_s": 3600.0} | changed
    with pytest.raises(InputError, match=message):
        payloads.checked_stretch(frame, INPUTS, "t", **options)


def test_an_inputs_file_that_gives_no_samples_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def samples():\n    return [1]\n")
    with pytest.raises(InputError, match="must return a list"):
        payloads.from_module(path)
    with pytest.raises(InputError, match="not a Python file"):
        payloads.from_module(tmp_path / "mine.txt")


@pytest.mark.live
def test_a_dilated_replay_sends_slower_and_reports_in_the_servers_time() -> None:
    inputs = payloads.Inputs({"slow": Sample("slow", "text/plain", b"200 60|", None)})
    stretch = stretch_of(["slow", "slow", "slow"])
    with serving() as server:
        where = replaying.endpoint(replaying.target(server.url, allow_remote=False), None, tensors=False)
        rows, run = replaying.replay(stretch, inputs, where, loadgen.Limits(), dilate=10)
    document = replaying.summarise(rows, run, trace="t", url=where.url, speed=1, from_s=0, dilate=10)
    assert rows["due_s"].to_list() == [0.0, 0.01, 0.02]
    assert document.latency_ms.p50 is not None
    assert 6.0 <= document.latency_ms.p50 < 30.0
    assert document.span_s < 0.1
    assert (document.basis, document.dilate) == ("measured", 10)
    assert "yet times were divided by 10" in document.warnings[-1]


@pytest.mark.parametrize(
    ("basis", "dilate", "told"),
    [
        (None, 1.0, []),
        ("emulated", 1.0, ["Times are emulated: answers came from a device that is not here."]),
        (
            "emulated, dilated 20x",
            1.0,
            [
                "Times are emulated: answers came from a device that is not here.",
                "The server says 'emulated, dilated 20x', and this replay was dilated 1x: the times mean nothing.",
            ],
        ),
    ],
)
def test_answers_of_emulated_devices_make_a_replay_emulated(basis: str | None, dilate: float, told: list[str]) -> None:
    answers = [loadgen.Answer(n, 0.1 * n, 0.1 * n, 0.1 * n + 0.02, 200, "completed", basis=basis) for n in range(100)]
    rows = replaying._rows(stretch_of(["good"] * 100), INPUTS, answers).with_columns(texts=pl.lit(["x"]))
    run = loadgen.Run(answers)
    document = replaying.summarise(rows, run, trace="t", url="u", speed=1, from_s=0, dilate=dilate)
    assert document.basis == ("measured" if basis is None else "emulated")
    assert document.warnings == told
