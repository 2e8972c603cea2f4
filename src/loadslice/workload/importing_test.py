import contextlib
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadslice.spec.errors import InputError
from loadslice.workload import importing, trace
from loadslice.workload.importing import Options

SHARED = Path(__file__).parents[4] / "shared/data/traces"

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n"
)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
    '{"timestamp": 27482, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14]}\n'
)
NGINX = (
    '10.0.0.1 - - [10/Oct/2024:13:55:38 +0200] "POST /ocr HTTP/1.1" 200 23 "-" "curl/8.0 (x 1.234)" rt=2.500\n'
    '10.0.0.2 - bob smith [10/Oct/2024:13:55:37 +0200] "GET /a\\"b HTTP/1.1" 503 0 "-" "-" rt=0.100\n'
)
ENVOY = (
    '[2024-04-15T20:17:00.310Z] "POST /api HTTP/2" 204 - 154 0 226 100 "10.0.35.28" "nsq2http" "cc21" "host" "tcp://1"\n'
    '[2024-04-15T20:17:00.110Z] "GET /x HTTP/1.1" 0 DC 7 0 3 - "-" "-" "cc22" "host" "-"\n'
)
ISTIO = (
    '[2024-04-15T20:17:00.310Z] "GET /x HTTP/1.1" 200 - via_upstream - "-" 0 45 7 6 "-" "curl" "id" "host" "1.2.3.4:80"'
    "\n"
)


def span(name: str, identity: str, parent: str, begin: int, end: int, kind: object = 1, **attributes: object) -> dict:
    return {
        "traceId": "t",
        "spanId": identity,
        "parentSpanId": parent,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(begin),
        "endTimeUnixNano": str(end),
        "attributes": [{"key": key, "value": value} for key, value in attributes.items()],
    }


EPOCH = 1_715_299_200_000_000_000
OTLP = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {
                    "spans": [
                        span("decode", "b", "a", EPOCH, EPOCH + 2_000_000),
                        span("model", "c", "a", EPOCH + 2_000_000, EPOCH + 9_000_000),
                        span("kernel", "d", "c", EPOCH + 2_000_000, EPOCH + 8_000_000),
                        span(
                            "POST /ocr", "a", "outside", EPOCH, EPOCH + 10_000_000, 2,
                            **{"http.response.status_code": {"intValue": "200"}, "loadslice.items": {"intValue": 3}},
                        ),
                        span("inner", "e", "a", EPOCH + 9_000_000, EPOCH + 9_500_000, "SPAN_KIND_SERVER"),
                    ]
                }
            ]
        }
    ]
}  # fmt: skip


def load(folder: Path, content: str | bytes, kind: str = "auto", name: str = "log", **options: object):
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return importing.load(path, kind, Options(**options))


def test_azure_traces_become_seconds_and_tokens(tmp_path: Path) -> None:
    found = load(tmp_path, AZURE)
    assert found.frame.to_dict(as_series=False) == {
        "arrival_s": [0.0, 0.052],
        "tokens_in": [4808, 3180],
        "tokens_out": [10, 8],
    }
    assert found.meta["start_utc"] == "2023-11-16T18:17:03.979960+00:00"


def test_azure_2024_times_may_have_an_offset_and_no_fraction(tmp_path: Path) -> None:
    rows = "2024-05-10 00:00:00.5+00:00,1,2\n2024-05-10 00:00:01+00:00,3,4\n"
    found = load(tmp_path, AZURE.splitlines()[0] + "\n" + rows)
    assert found.frame["arrival_s"].to_list() == [0.0, 0.5]


def test_burstgpt_rows_without_an_answer_are_named_as_failed(tmp_path: Path) -> None:
    found = load(tmp_path, BURSTGPT)
    assert found.frame["arrival_s"].to_list() == [0.0, 40.0]
    assert found.frame["source"].to_list() == ["ChatGPT", "GPT-4"]
    assert "1 requests have no response tokens" in found.notes[0]
    assert "start_utc" not in found.meta


def test_mooncake_keeps_its_prefix_blocks(tmp_path: Path) -> None:
    found = load(tmp_path, MOONCAKE)
    assert found.frame["arrival_s"].to_list() == [0.0, 27.482]
    assert found.frame["blocks"].to_list() == [[0, 1], [0, 14]]


def test_nginx_arrivals_are_completions_less_the_request_time(tmp_path: Path) -> None:
    found = load(tmp_path, NGINX, spread="even")
    # Lines 1 s apart, out of order; spread to the middle of their seconds, then moved back by 2.5 s and 0.1 s.
    assert found.frame["arrival_s"].to_list() == pytest.approx([0.0, 1.4])
    assert found.frame["latency_ms"].to_list() == pytest.approx([2500.0, 100.0])
    assert found.frame["status"].to_list() == [200, 503]
    assert found.meta["tick_ms"] == 1000.0
    assert found.meta["start_utc"] == "2024-10-10T11:55:36+00:00"
    assert any("were sorted" in note for note in found.notes)


def test_nginx_without_request_time_says_that_latency_is_unknown(tmp_path: Path) -> None:
    line = '1.2.3.4 - - [10/Oct/2024:13:55:36 +0000] "GET / HTTP/1.0" 200 2326\n'
    found = load(tmp_path, line * 2)
    assert "latency_ms" not in found.frame.columns
    assert any("no $request_time" in note for note in found.notes)


def test_envoy_logs_are_sorted_by_the_start_of_requests(tmp_path: Path) -> None:
    found = load(tmp_path, ENVOY)
    assert found.frame.to_dict(as_series=False) == {
        "arrival_s": [0.0, 0.2],
        "status": [None, 204],
        "latency_ms": [3.0, 226.0],
        "bytes_in": [7, 154],
    }


def test_istio_adds_fields_that_do_not_shift_the_others(tmp_path: Path) -> None:
    assert load(tmp_path, ISTIO).frame.select("latency_ms", "bytes_in").row(0) == (7.0, 0)


@pytest.mark.parametrize("indent", [None, 2])
def test_otlp_server_spans_become_requests_and_children_stages(tmp_path: Path, indent: int | None) -> None:
    found = load(tmp_path, json.dumps(OTLP, indent=indent))
    (row,) = found.frame.to_dicts()
    assert row == {
        "arrival_s": 0.0,
        "latency_ms": 10.0,
        "status": 200,
        "items": 3,
        "stage_ms.decode": 2.0,
        "stage_ms.model": 7.0,
        "stage_ms.inner": 0.5,
    }


def test_own_jsonl_and_gzip_are_read(tmp_path: Path) -> None:
    text = '{"meta":{"source":"me","tick_ms":5}}\n{"arrival_s":0}\n\n{"arrival_s":1.5,"items":2,"stage_ms.a":1}\n'
    found = load(tmp_path, gzip.compress(text.encode()), name="t.jsonl")
    assert found.frame["items"].to_list() == [None, 2]
    assert found.meta == {"source": "me", "tick_ms": 5}


def test_an_own_trace_in_ticks_is_spread_once(tmp_path: Path) -> None:
    text = "".join(f'{{"arrival_s":{second}}}\n' for second in range(20) for _ in range(5))
    found = load(tmp_path, text, name="t.jsonl")
    assert found.meta["tick_ms"] == 1000.0
    assert found.frame["arrival_s"].n_unique() == 100
    assert importing.load(tmp_path / "t.jsonl", options=Options(spread="none")).frame["arrival_s"].n_unique() == 20


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "empty"),
        ("\n \n", "empty"),
        (AZURE.splitlines()[0], "no requests in it"),
        (AZURE + "2023-11-16 18:17:00,1,1\n", "line 4: earlier than the line before"),
        (AZURE + "2023-11-16 18:17:05,1\n", "line 4 has 2 fields, the header 3"),
        (AZURE + "2023-11-16 18:17:05,1,1,1\n", "line 4 has 4 fields, the header 3"),
        (AZURE + "yesterday,1,1\n", "line 4: 'yesterday' is not a time"),
        (AZURE + "2023-11-16 18:17:05,x,1\n", "line 4: ContextTokens: 'x' cannot be tokens_in"),
        (AZURE + '2023-11-16 18:17:05,"1,1\n', "a double quote is never closed"),
        ("arrival_s,items\nnan,1\n", "line 2: 'nan' is not a time"),
        ("arrival_s,items\n0,1\ninf,1\n", "line 3: 'inf' is not a time"),
        ("arrival_s,items\n-5,1\n0,1\n", "arrival_s -5.0 is negative (line 2)"),
        ("arrival_s,items\n0,-1\n", "items -1 is negative or not finite (line 2)"),
        ("arrival_s,arrival_s\n0,1\n", "stands twice"),
        ("a,b\n1,2\n", "format not recognised from 'a,b'"),
        ('{"arrival_s":0}\n{"arrival_s":1,"colour":2}\n', "line 2: unknown column 'colour'"),
        ('{"arrival_s":0}\n{"arrival_s":NaN}\n', "line 2: not valid JSON"),
        ('{"arrival_s":0}\n{"items":1}\n', "arrival_s is missing (line 2)"),
        ('{"arrival_s":5}\n\n{"arrival_s":1}\n', "is earlier than the row before; sort it with --sort (line 3)"),
        ('{"arrival_s":0,"items":1}\n{"arrival_s":1,"items":"x"}\n', "line 2: column 'items' holds String"),
        ('{"arrival_s":0}\n{"arrival_s":1,"it', "line 2: not valid JSON"),
        (MOONCAKE + '{"timestamp":-1,"input_length":1,"output_length":1}\n', "line 3: timestamp"),
        (MOONCAKE + '{"timestamp":1,"input_length":1}\n', "line 3: 'output_length' is missing"),
        (BURSTGPT.replace("Log Type", "Colour"), "unknown column 'Colour'"),
        (NGINX + "hello\n", "line 3 is not nginx combined format: 'hello'"),
        (NGINX.replace("10/Oct", "10/Foo"), "line 1 is not nginx combined format"),
        ('{"resourceSpans":[]}', "none of them a server span"),
        (json.dumps(OTLP).replace(f'"{EPOCH}"', '"soon"'), "has no usable times"),
        ('{"resourceSpans":', "line 1: not valid JSON"),
    ],
)
def test_bad_input_is_one_line_that_says_where(tmp_path: Path, content: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, content, name="log.jsonl" if content.startswith("{") else "log")
    assert says in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_out_of_order_is_sorted_when_asked_and_says_so(tmp_path: Path) -> None:
    found = load(tmp_path, "arrival_s\n3\n1\n2\n", sort=True)
    assert found.frame["arrival_s"].to_list() == [0.0, 1.0, 2.0]
    assert any("--sort" in note for note in found.notes)


def test_a_table_that_is_no_trace_file_names_the_command_that_makes_one(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("arrival_s,items\n0,1\n")
    with pytest.raises(InputError, match=r"loadslice trace import .*x\.csv -o") as raised:
        trace.read(tmp_path / "x.csv")
    assert "Parquet file" not in str(raised.value)


def test_a_folder_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a folder without part"):
        importing.load(tmp_path)


mutated = st.tuples(
    st.sampled_from([AZURE, BURSTGPT, MOONCAKE, NGINX, ENVOY, json.dumps(OTLP), '{"arrival_s":0,"items":1}\n' * 2]),
    st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from([b"", b"\0", b"9", b'"', b",", b"\n", b"{", b"-", b"e", b"\xff"]))
    ),
)


@given(case=mutated, kind=st.sampled_from(["auto", *importing.FORMATS]))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_readers_never_fail_but_with_an_input_error(tmp_path: Path, case, kind: str) -> None:
    text, edits = case
    content = bytearray(text.encode())
    for place, put in edits:
        at = int(place * len(content))
        content[at : at + 1] = put
    path = tmp_path / "mutated.jsonl"
    path.write_bytes(content)
    try:
        found = importing.load(path, kind)
    except InputError:
        return
    assert found.frame.height > 0
    assert (found.frame["arrival_s"].diff().drop_nulls() >= 0).all()


@given(content=st.binary(max_size=200), kind=st.sampled_from(["auto", *importing.FORMATS]))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_refused_or_read(tmp_path: Path, content: bytes, kind: str) -> None:
    path = tmp_path / "junk"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        assert importing.load(path, kind).frame.height > 0


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.exists(), reason="the public traces are not beside this checkout")
def test_mooncake_ticks_are_recognised_and_spread() -> None:
    found = importing.load(SHARED / "mooncake/conversation_trace.jsonl")
    assert found.frame.height == 12_031
    assert found.meta["tick_ms"] == pytest.approx(3000, abs=5)
    gaps = found.frame["arrival_s"].diff().drop_nulls()
    assert (gaps == 0).mean() < 0.01
    assert any("spread inside the tick" in note for note in found.notes)


def test_a_request_that_took_longer_than_ten_years_is_refused_by_its_line(tmp_path: Path) -> None:
    line = '127.0.0.1 - - [10/Oct/2025:13:55:36 +0000] "GET /x HTTP/1.1" 200 23 "-" "curl" {}\n'
    path = tmp_path / "access.log"
    path.write_text(line.format("0.012") + line.format("1" + "0" * 27 + ".000"))
    with pytest.raises(InputError, match=r"latency_ms 1e\+30 is over ten years \(line 2\)"):
        importing.load(path)


def test_a_table_says_that_its_times_have_no_zone(tmp_path: Path) -> None:
    zoneless = "times without a zone were taken as UTC"
    assert any(zoneless in note for note in load(tmp_path, "arrival_s\n2026-03-29 00:30:00\n").notes)
    assert not any(zoneless in note for note in load(tmp_path, "arrival_s\n2026-03-29 00:30:00+01:00\n").notes)
