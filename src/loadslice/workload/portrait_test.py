from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.spec import portrait as spec
from loadslice.spec.budget import Budget, People, Power, Slo
from loadslice.spec.errors import InputError
from loadslice.spec.files import Stamp, encode_json, write_bytes
from loadslice.spec.portrait import ModelDimension
from loadslice.workload import importing, words
from loadslice.workload.portrait import SCHEMA, Context, clock_at, portray
from loadslice.workload.trace import Trace

SHARED = Path(__file__).parents[4] / "shared/data/traces"
STAMP = Stamp(schema=SCHEMA, loadslice="0")
MODEL = ModelDimension(model="m.onnx", flop_per_item=2e9, intensity_flop_per_byte=3.0, precision="fp32")


def trace(rows: int = 2000, span_s: float = 7200.0, **columns: object) -> Trace:
    frame = pl.DataFrame({"arrival_s": np.linspace(0, span_s, rows)})
    return Trace(frame.with_columns(**{name: pl.lit(value) for name, value in columns.items()}), {})


def codes(found: spec.Portrait) -> set[str]:
    return {finding.code for finding in found.findings}


def test_the_document_has_the_keys_of_the_contract() -> None:
    whole = trace(items=2, tokens_in=3, tokens_out=4, latency_ms=5.0, **{"stage_ms.a": 1.0})
    document = msgspec.json.decode(encode_json(portray(whole, "x", STAMP)))
    for key in (
        "requests", "span_s", "rate_per_s", "arrival", "items", "tokens_in", "tokens_out", "latency_ms", "stage_share",
        "waterline", "bound", "utilisation", "dimensions", "findings",
    ):  # fmt: skip
        assert key in document
    assert set(document["rate_per_s"]) == {"mean", "peak_1m", "peak_1h", "peak_to_mean"}
    assert {"class", "interarrival_cv", "hour_of_week"} <= set(document["arrival"])
    assert len(document["arrival"]["hour_of_week"]) == 168
    assert {"mean", "p50", "p99", "max"} <= set(document["items"])
    assert set(document["latency_ms"]) == {"p50", "p95", "p99"}
    assert {"hour", "latency_class", "precision_class", "requests_per_s", "work_tokens_per_s"} <= set(
        document["waterline"][0]
    )
    assert set(document["bound"]) == {"class", "evidence"}
    assert set(document["dimensions"]) == {"model", "arrival", "latency", "batch", "precision", "environment"}
    assert set(document["findings"][0]) == {"code", "text", "evidence"}


def text(found: spec.Portrait) -> str:
    return "\n".join(words.portrait_lines(found))


def test_the_latency_that_is_wanted_and_its_waterline_stand_in_the_text() -> None:
    loaded = trace(tokens_in=3, tokens_out=4, latency_ms=900.0)
    said = text(portray(loaded, "x", STAMP, Context(latency_budget_ms=300)))
    assert "wanted      300 ms, stated for every request: interactive 100%" in said
    assert "waterline   interactive: highest hour 0.278/s, 1.94 tokens/s, in 2 hours of the week" in said
    said = text(portray(loaded, "x", STAMP, Context(model=MODEL)))
    assert "wanted      900 ms in the median, by the latency that they got, an upper bound: online 100%" in said
    assert "waterline   online: highest hour 0.278/s, 0.556 GFLOP/s" in said
    assert "waterline" not in text(portray(trace(), "x", STAMP))


def test_kv_is_said_to_be_that_of_a_language_model_and_not_spoken_of_where_items_are_counted() -> None:
    tokens = portray(trace(tokens_in=3, tokens_out=4), "x", STAMP)
    assert "Of a language model that answers at 50 ms a token, KV of" in text(tokens)
    pages = portray(trace(tokens_in=3, tokens_out=4, items=2), "x", STAMP)
    assert "KV" not in text(pages)
    assert pages.tokens is not None


def test_unknown_is_null() -> None:
    document = msgspec.json.decode(encode_json(portray(trace(), "x", STAMP)))
    for key in ("items", "tokens_in", "tokens_out", "latency_ms", "stage_share", "utilisation"):
        assert document[key] is None
    assert document["bound"]["class"] == "unknown"
    assert [document["dimensions"][key] for key in ("model", "latency", "batch", "precision", "environment")] == [
        None
    ] * 5


@pytest.mark.parametrize(("days", "expected"), [(0.1, {"short_trace", "short_week"}), (4, {"short_week"}), (8, set())])
def test_a_trace_too_short_for_the_question_warns(days: float, expected: set[str]) -> None:
    found = portray(trace(span_s=days * 86_400), "x", STAMP)
    assert codes(found) & {"short_trace", "short_week"} == expected


def test_what_is_missing_limits_the_answers_and_says_so() -> None:
    bare = codes(portray(trace(), "x", STAMP))
    assert {"no_latency", "no_status", "no_sizes", "no_stages", "no_latency_budget", "no_utilisation"} <= bare
    assert "no_wall_clock" in bare
    rich = trace(items=2, latency_ms=5.0, status=200, **{"stage_ms.a": 1.0})
    assert not codes(portray(rich, "x", STAMP)) & {"no_latency", "no_status", "no_sizes", "no_stages"}
    assert "no_items" in codes(portray(trace(tokens_in=3), "x", STAMP, Context(model=MODEL)))


def test_shapes_of_load_worth_knowing_are_found() -> None:
    tokens = np.where(np.arange(2000) % 20 == 0, 4096, 100)
    cut = trace(status=503)
    cut = Trace(cut.frame.with_columns(tokens_out=pl.Series(tokens)), {"tick_ms": 3000.0, "notes": ["as imported"]})
    found = portray(cut, "x", STAMP)
    assert {"truncated", "size_tail", "failures", "ticks", "note"} <= codes(found)
    burst = np.sort(np.concatenate([np.linspace(0, 86_400 * 2, 5000), np.linspace(40_000, 43_000, 20_000)]))
    assert {"peak_to_mean", "idle_valleys"} <= codes(portray(Trace(pl.DataFrame({"arrival_s": burst}), {}), "x", STAMP))


def test_sizes_that_are_as_frequent_as_those_below_were_cut_by_no_limit() -> None:
    for sizes, cut in (((1, 1, 1, 2, 2, 3, 4, 8, 8, 8), True), ((1, 2, 3, 4, 5), False), (range(1, 13), False)):
        items = np.resize(sizes, 2000)
        known = Trace(trace().frame.with_columns(items=pl.Series(items)), {})
        assert ("truncated" in codes(portray(known, "x", STAMP))) is cut


def test_model_and_budget_fill_their_dimensions() -> None:
    budget = Budget(slo=Slo(p95_ms=300.0), power=Power(per_box_w=500.0), people=People(count=2))
    found = portray(trace(items=4), "x", STAMP, Context(model=MODEL, budget=budget, precision="int8"))
    dimensions = found.dimensions
    assert dimensions.latency is not None
    assert dimensions.latency.share["interactive"] == 1.0
    assert dimensions.environment is not None
    assert (dimensions.environment.power_per_box_w, dimensions.environment.people) == (500.0, 2)
    assert dimensions.precision is not None
    assert (dimensions.precision.native, dimensions.precision.tolerated) == ("fp32", "int8")
    assert found.waterline[0].work_flop_per_s == pytest.approx(4 * 2e9 * found.waterline[0].requests_per_s)
    assert found.waterline[0].latency_class == "interactive"


def test_a_single_request_can_be_portrayed() -> None:
    found = portray(trace(rows=1, span_s=0.0), "x", STAMP)
    assert (found.requests, found.span_s, found.rate_per_s.mean) == (1, 0.0, None)
    assert list(words.portrait_lines(found))


def test_a_portrait_is_read_back_and_a_strange_file_refused(tmp_path: Path) -> None:
    found = portray(trace(items=2), "x", STAMP, Context(model=MODEL))
    write_bytes(tmp_path / "portrait.json", encode_json(found))
    assert spec.load(tmp_path / "portrait.json") == found
    (tmp_path / "other.json").write_text('{"requests": 3}')
    with pytest.raises(InputError, match=r"other\.json"):
        spec.load(tmp_path / "other.json")


def test_the_clock_counts_from_monday_whatever_the_offset() -> None:
    assert clock_at("2024-03-05T01:30:00+02:00").offset_s == 23.5 * 3600
    assert clock_at("2024-03-04T00:00:00", 5.0).offset_s == 5.0
    assert not clock_at(None).known
    assert not clock_at("soon").known


def test_the_text_shows_the_curve_the_verdict_and_every_finding() -> None:
    week = Trace(trace(rows=20_000, span_s=8 * 86_400.0, items=1).frame, {"start_utc": "2024-03-04T00:00:00+00:00"})
    found = portray(week, "x", STAMP)
    text = "\n".join(words.portrait_lines(found))
    assert "Mon     ████" in text
    assert found.arrival.why in text
    assert all(finding.text in text for finding in found.findings)


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.exists(), reason="the public traces are not beside this checkout")
@pytest.mark.parametrize(
    ("name", "requests", "cv", "kind"), [("conv", 19_366, 1.09, "uniform"), ("code", 8_819, 13.2, "bursty")]
)
def test_the_azure_traces_have_their_known_figures(name: str, requests: int, cv: float, kind: str) -> None:
    path = SHARED / f"azure_llm_2023/AzureLLMInferenceTrace_{name}.csv"
    found = portray(importing.load(path), path.name, STAMP)
    assert found.requests == requests
    assert found.arrival.interarrival_cv == pytest.approx(cv, rel=0.005)
    assert found.arrival.class_ == kind
    assert "short_trace" in codes(found)
