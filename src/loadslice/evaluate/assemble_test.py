import polars as pl
import pytest

from loadslice.evaluate import assemble
from loadslice.evaluate.pace import Window
from loadslice.spec.journal import REQUEST_COLUMNS, STAGE_COLUMNS, Journal, JournalHead
from loadslice.spec.latency import Entry, InputWork, LatencyTable, Milliseconds, StageWork
from loadslice.spec.outcome import OUTCOMES
from loadslice.spec.replay import REPLAY_COLUMNS


def journal(ids: list[str], *, clean: bool = True, lost: int = 0) -> Journal:
    count = len(ids)
    requests = pl.DataFrame(
        {
            "tag": range(count),
            "id": ids,
            "arrival_ns": [0] * count,
            "end_ns": [5_000_000] * count,
            "outcome": ["completed"] * count,
        }
    )
    missing = {name: kind for name, kind in REQUEST_COLUMNS.items() if name not in requests.columns}
    requests = requests.with_columns(pl.lit(None, dtype=kind).alias(name) for name, kind in missing.items())
    stages = pl.DataFrame(
        {
            "tag": range(count),
            "stage": ["s"] * count,
            "engine": ["e"] * count,
            "enqueued_ns": [0] * count,
            "dispatched_ns": [1_000_000] * count,
            "done_ns": [4_000_000] * count,
            "copy_ns": [0] * count,
            "compute_ns": [3_000_000] * count,
        }
    )
    assert set(stages.columns) <= set(STAGE_COLUMNS)
    head = JournalHead(
        schema="journal/1",
        pipeline="p",
        basis="measured",
        requests=count,
        outcomes={name: count - lost if name == "completed" else 0 for name in OUTCOMES},
        clean=clean,
        span_ns=1,
        pipeline_yaml="",
    )
    return Journal(head=head, requests=requests, stages=stages, events=pl.DataFrame())


def replayed(count: int) -> pl.DataFrame:
    rows = pl.DataFrame({"row": range(count), "outcome": ["completed"] * count, "latency_ms": [7.5] * count})
    missing = {name: kind for name, kind in REPLAY_COLUMNS.items() if name not in rows.columns}
    return rows.with_columns(pl.lit(None, dtype=kind).alias(name) for name, kind in missing.items())


def test_warm_up_requests_of_the_server_are_left_out_of_the_stages() -> None:
    stage, outside = assemble.stages(["s"], None, journal(["warm-0", "0", "1"]), replayed(2))
    assert stage.measured is not None
    assert stage.measured.requests == 2
    assert outside.measured is not None
    assert outside.measured.service_ms_mean == pytest.approx(7.5 - 1 - 3)


@pytest.mark.parametrize(("clean", "lost", "holds"), [(True, 0, True), (True, 1, False), (False, 0, True)])
def test_the_servers_account_must_add_up(clean: bool, lost: int, holds: bool) -> None:
    (account,) = assemble.accounts(2, None, None, journal(["0", "1"], clean=clean, lost=lost))
    assert account.holds is holds
    assert (account.note is None) is clean


def test_requests_that_never_reached_the_core_are_counted() -> None:
    (account,) = assemble.accounts(3, None, None, journal(["0", "1"]))
    assert account.note == "1 requests never reached the server's core"


def test_agreement_is_counted_over_inputs_both_answered() -> None:
    texts = {"a": {"x": ["abc"], "y": ["de"]}, "b": {"x": ["abd"], "z": ["f"]}}
    (found,) = assemble.agreements(
        texts, lambda left, right: (sum(p != q for p, q in zip(left[0], right[0], strict=False)), len(left[0]))
    )
    assert (found.inputs, found.alike, found.different_characters, found.characters) == (1, 0, 1, 3)
    assert assemble.agreements(texts, None) == []


def test_a_rate_curve_holds_every_request_and_marks_the_window() -> None:
    frame = pl.DataFrame({"arrival_s": [0.0, 1.0, 2.5, 900.0]})
    curve = assemble.rate_curve(frame, Window(10.0, 5.0, 0, ""))
    assert sum(curve.rate_per_s) * curve.bin_s == pytest.approx(4)
    assert len(curve.rate_per_s) <= assemble.RATE_COLUMNS + 1
    assert (curve.replayed_from_s, curve.replayed_to_s) == (10.0, 15.0)


def test_rows_of_the_widest_stage_are_one_bin_per_whole_number() -> None:
    frame = pl.DataFrame({"arrival_s": [0.0, 1.0, 2.0], "input": ["a", "b", "b"]})
    table = LatencyTable(
        entries=[Entry(variant="v", engine="e", batch=1, latency_ms=Milliseconds(p50=1.0), basis="measured")],
        inputs=[
            InputWork(input="a", stages=[StageWork(stage="s", items=1)]),
            InputWork(input="b", stages=[StageWork(stage="s", items=3)]),
        ],
    )
    (found,) = assemble.histograms(frame, table)
    assert found.requests == [1, 0, 2]
    assert found.edges == [0.5, 1.5, 2.5, 3.5]
