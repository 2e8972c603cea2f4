import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from loadslice.serve.logs_test import MS, PIPELINE, ended
from loadslice.serve.tracing import Tracer, parent_of, passed_on
from loadslice.spec.errors import InputError
from loadslice.spec.outcome import Outcome, Reason

URL = "http://127.0.0.1:4318/v1/traces"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def spans(share: float, *requests):
    kept = InMemorySpanExporter()
    tracer = Tracer(URL, share, SimpleSpanProcessor(kept))
    for request in requests:
        tracer.ended(PIPELINE, request, 140 * MS)
    tracer.close()
    return kept.get_finished_spans()


def test_queue_copy_and_compute_stand_apart_below_their_stage() -> None:
    found = spans(1.0, ended())
    by_name = {span.name: span for span in found if span.name != "queue"}
    root, first = by_name["infer p"], by_name["stage first"]
    assert first.parent.span_id == root.context.span_id
    took_ms = {
        span.name: (span.end_time - span.start_time) / MS
        for span in found
        if span.parent is not None and span.parent.span_id == first.context.span_id
    }
    assert took_ms == {"queue": 2.0, "copy": 2.0, "compute": 5.0}
    assert (root.end_time - root.start_time) / MS == 30
    assert first.attributes["loadslice.engine"] == "b"
    assert first.attributes["loadslice.batch_rows"] == 4
    assert root.attributes["loadslice.outcome"] == "completed"


def test_a_stage_that_was_not_run_has_its_queue_alone_and_the_request_is_an_error() -> None:
    found = spans(1.0, ended(Outcome.EXPIRED, Reason.DEADLINE))
    second = next(span for span in found if span.name == "stage second")
    below = [span for span in found if span.parent is not None and span.parent.span_id == second.context.span_id]
    assert [span.name for span in below] == ["queue"]
    root = next(span for span in found if span.name == "infer p")
    assert root.status.description == "deadline"


def test_the_callers_span_is_the_parent_and_its_flag_decides() -> None:
    asked, not_asked = ended(), ended()
    asked.traceparent = PARENT
    not_asked.traceparent = PARENT[:-1] + "0"
    found = spans(0.0, asked, not_asked, ended())
    (root,) = [span for span in found if span.name == "infer p"]
    assert f"{root.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{root.parent.span_id:016x}" == PARENT.split("-")[2]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 1.0])
def test_the_share_is_kept_to_exactly(share: float) -> None:
    found = spans(share, *(ended() for _ in range(40)))
    assert abs(sum(span.name == "infer p" for span in found) - 40 * share) < 1


@pytest.mark.parametrize(
    "text",
    [
        None, "", "00", PARENT.upper(), PARENT.replace("0af", "zzz"), "ff" + PARENT[2:], "00-" + "0" * 32 + PARENT[35:],
        PARENT[:36] + "0" * 16 + "-01", PARENT + "x", "\n" + PARENT,
    ],
)  # fmt: skip
def test_what_is_no_traceparent_is_none(text) -> None:
    assert parent_of(text) is None


@pytest.mark.parametrize("url", ["collector:4318", "file:///etc/passwd", "http://", "", "http://[::1", "http://a:b"])
def test_a_collector_without_an_http_url_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=r"--otlp .*like http"):
        Tracer(url, 1.0)


def test_a_batch_passes_on_the_first_context_that_is_sampled() -> None:
    quiet = PARENT[:-2] + "00"
    assert passed_on([None, "00-nothing", quiet, PARENT, PARENT.replace("0af", "1af")]) == PARENT
    assert passed_on([quiet, None]) == quiet
    assert passed_on([None, "00-nothing"]) is None
    assert passed_on([]) is None


def test_what_a_later_version_appends_is_not_passed_on() -> None:
    assert passed_on(["01" + PARENT[2:] + "-more\r"]) == "01" + PARENT[2:]
