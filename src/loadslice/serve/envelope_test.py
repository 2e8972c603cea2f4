import msgspec
import pytest

from loadslice.policy.columns import FOREVER
from loadslice.policy.versions import NO_KEY
from loadslice.serve.envelope import EnvelopeReader, key_of
from loadslice.serve.limits import Limits
from loadslice.serve.refusals import RefusalError
from loadslice.spec.pipeline import Pipeline, check

PIPELINE = """
version: 1
pipeline: p
tenants: {gold: {share: 0.5}, büro: {share: 0.2}}
deadline_ms: 100
classes: {sheddable: {deadline_ms: 7}}
engines: {a: {backend: onnxruntime}, b: {backend: openvino}}
stages:
  - name: s
    model: m.onnx
    engines: [a, b]
    prefer: rules
    rules: [{when: {source: batch}, to: b}, {when: {source: api}, to: a}]
""".encode()


@pytest.fixture
def reader() -> EnvelopeReader:
    return EnvelopeReader(check(msgspec.yaml.decode(PIPELINE, type=Pipeline), "p"), Limits())


def test_without_headers_a_request_is_critical_with_the_pipelines_deadline(reader) -> None:
    envelope = reader.read({}, 5)
    assert (envelope.priority, envelope.deadline_ns) == (1, 5 + 100_000_000)
    assert (envelope.source, envelope.source_index, envelope.precision, envelope.id) == (None, -1, 0, None)


def test_a_header_beats_the_class_and_the_class_beats_the_pipeline(reader) -> None:
    assert reader.read({"x-loadslice-priority": "3"}, 0).deadline_ns == 7_000_000
    headers = {"x-loadslice-priority": "sheddable", "x-loadslice-deadline-ms": "1.5"}
    assert reader.read(headers, 0).deadline_ns == 1_500_000


def test_without_any_deadline_there_is_none() -> None:
    plain = PIPELINE.replace(b"deadline_ms: 100\n", b"").replace(b"classes: {sheddable: {deadline_ms: 7}}\n", b"")
    reader = EnvelopeReader(check(msgspec.yaml.decode(plain, type=Pipeline), "p"), Limits())
    assert reader.read({}, 5).deadline_ns == FOREVER


def test_sources_that_rules_name_have_a_number_and_others_keep_their_name(reader) -> None:
    assert reader.read({"x-loadslice-source": "api"}, 0).source_index == 1
    other = reader.read({"x-loadslice-source": "other"}, 0)
    assert (other.source, other.source_index) == ("other", -1)


def test_a_request_id_is_kept_before_a_trace_id(reader) -> None:
    assert reader.read({"x-request-id": "r", "traceparent": "t"}, 0).id == "r"
    assert reader.read({"traceparent": "t"}, 0).id == "t"


def test_tenants_with_a_guarantee_have_a_number_and_others_keep_their_name(reader) -> None:
    read = [reader.read({"x-loadslice-tenant": name}, 0) for name in ("gold", "büro", "somebody")]
    assert [(one.tenant, one.tenant_index) for one in read] == [("gold", 1), ("büro", 2), ("somebody", 0)]
    assert (reader.read({}, 0).tenant, reader.read({}, 0).tenant_index) == (None, 0)


@pytest.mark.parametrize("value", ["t" * 65, "two\twords", "line\x7f", "\u202egold"])
def test_a_tenant_that_no_list_could_show_is_refused(reader, value) -> None:
    with pytest.raises(RefusalError, match="x-loadslice-tenant"):
        reader.read({"x-loadslice-tenant": value}, 0)


def test_a_key_is_a_number_that_the_core_holds_and_the_same_in_every_process(reader) -> None:
    assert reader.read({}, 0).key == NO_KEY
    assert reader.read({"x-loadslice-key": "user 7"}, 0).key == key_of("user 7") == 693782143237273724
    keys = [key_of(f"user {number}") for number in range(2000)]
    assert all(0 <= key < 2**63 for key in keys)
    assert len({key & 0xFFFFFFFF for key in keys}) == 2000, "the core splits by the lower half"


def test_tokens_are_unknown_until_the_client_says(reader) -> None:
    assert reader.read({}, 0).tokens == -1
    assert reader.read({"x-loadslice-tokens": "512"}, 0).tokens == 512


@pytest.mark.parametrize("value", ["", "-1", "1.5", "1e3", "１", "1" * 10])
def test_tokens_that_are_no_number_are_refused(reader, value) -> None:
    with pytest.raises(RefusalError, match="x-loadslice-tokens"):
        reader.read({"x-loadslice-tokens": value}, 0)


@pytest.mark.parametrize("value", ["", "0", "-3", "1e9", "1e3", "nan", "0x10", "five", "1_0", " 5", "５", "86400001"])
def test_a_deadline_that_is_none_is_refused(reader, value) -> None:
    with pytest.raises(RefusalError, match="x-loadslice-deadline-ms"):
        reader.read({"x-loadslice-deadline-ms": value}, 0)


@pytest.mark.parametrize("value", ["", "0", "1001", "-1", "1_0", "１", "1" * 5, "1" * 5000])
def test_an_attempt_that_is_no_small_number_is_refused(reader, value) -> None:
    assert reader.read({"x-loadslice-attempt": "1000"}, 0).attempt == 1000
    with pytest.raises(RefusalError, match="x-loadslice-attempt"):
        reader.read({"x-loadslice-attempt": value}, 0)


@pytest.mark.parametrize(
    "name", ["x-request-id", "traceparent", "x-loadslice-source", "x-loadslice-input", "x-loadslice-tenant"]
)
def test_names_are_utf8(reader, name) -> None:
    assert "büro" in reader.read({name: "büro"}, 0)
    not_utf8 = b"a\xff\xfe".decode("utf-8", "surrogateescape")
    with pytest.raises(RefusalError, match=f"{name} is not UTF-8"):
        reader.read({name: not_utf8}, 0)
