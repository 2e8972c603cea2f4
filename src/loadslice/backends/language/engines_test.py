"""Every engine gives the tokens that every other gives, alone, in pieces, beside others and after a hand-over."""

import importlib.util
import mmap
import runpy
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from loadslice.backends.language import messages as m
from loadslice.backends.language.base import LanguageSession, NoRoomError, StepRow
from loadslice.backends.language.load import open_session
from loadslice.spec.errors import InputError

TINY = Path(__file__).parents[4] / "tests" / "tiny_model" / "tiny.gguf"
tiny = SimpleNamespace(**runpy.run_path(str(TINY.with_name("language.py"))))
encode, spelled = tiny.encode, tiny.spelled
pytestmark = pytest.mark.skipif(
    not TINY.is_file() or any(importlib.util.find_spec(name) is None for name in ("openvino_genai", "onnxruntime")),
    reason="needs the extras llm and onnxruntime, and tests/tiny_model",
)

ANSWERS = {
    f"up c:{spelled('c', 1, 9)}": spelled("l", 1, 16),
    f"up k:{spelled('k', 1, 66)}": spelled("y", 1, 16),
    f"down q:{spelled('q', -1, 8)}": spelled("i", -1, 16),
}
PROMPTS = [tuple(encode(prompt)) for prompt in ANSWERS]
EXACT = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
"""Has OpenVINO compute with activations as they are; else its int4 products round them, and tokens differ."""


def order(backend: str, **changes: object) -> m.Load:
    said: dict[str, object] = {
        "model": str(TINY),
        "backend": backend,
        "device": "CPU",
        "threads": 1,
        "kv_blocks": 32,
        "cached_blocks": 0,
        "options": EXACT if backend.startswith("openvino") else {},
        "slots": 0,
        "context": 256,
        "measure": False,
        "seats": 4,
    }
    return m.Load(**{**said, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def sessions() -> Iterator[dict[str, LanguageSession]]:
    opened = {name: open_session(order(name)) for name in ("openvino-paged", "onnxruntime-slots")}
    opened["openvino-static"] = open_session(
        order("openvino-static", buckets=(16, 64, 128), prompt_max=128, decodes=False)
    )
    layouts = [layout for _, layout in opened.values()]
    assert len({(one.model_sha256, one.layers, one.kv_heads, one.head_dim) for one in layouts}) == 1
    yield {name: session for name, (session, _) in opened.items()}
    for session, _ in opened.values():
        session.close()


def begin(session: LanguageSession, number: int, prompt: Sequence[int], pieces: Sequence[int] = ()) -> int:
    at = 0
    for piece in pieces:
        assert session.step([StepRow(number, prompt[at : at + piece], samples=False)]).shape[0] == 0
        at += piece
    return int(session.step([StepRow(number, prompt[at:], samples=True)])[0].argmax())


def go_on(session: LanguageSession, number: int, token: int, count: int) -> list[int]:
    tokens = [token]
    while len(tokens) < count:
        tokens.append(int(session.step([StepRow(number, tokens[-1:], samples=True)])[0].argmax()))
    return tokens


def greedy(session: LanguageSession, prompt: Sequence[int], pieces: Sequence[int] = ()) -> list[int]:
    try:
        return go_on(session, 1, begin(session, 1, prompt, pieces), 16)
    finally:
        session.release(1)


def test_a_model_that_knows_the_alphabet_says_it_right_on_every_runtime(sessions: dict[str, LanguageSession]) -> None:
    for name in ("openvino-paged", "onnxruntime-slots"):
        for prompt, answer in ANSWERS.items():
            assert greedy(sessions[name], encode(prompt)) == encode(answer), (name, prompt)
        for country, capital in tiny.CAPITALS.items():
            wanted = [*encode(f"The capital is {capital}."), tiny.END]
            assert greedy(sessions[name], tiny.chat(country))[: len(wanted)] == wanted, (name, country)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_whoever_computes_a_prompt_and_whoever_goes_on_the_tokens_are_the_same(
    sessions: dict[str, LanguageSession], prompt: tuple[int, ...]
) -> None:
    wanted = greedy(sessions["openvino-paged"], prompt)
    layout = sessions["openvino-paged"].layout
    for one in sessions.values():
        if one.layout.decodes:
            assert greedy(one, prompt) == wanted
            assert greedy(one, prompt, (1, 3, 5)) == wanted
        first = begin(one, 2, prompt, (2,))
        kv = np.zeros((layout.layers, 2, layout.kv_heads, len(prompt), layout.head_dim), np.float32)
        one.export_neutral(2, kv)
        one.release(2)
        for other in (other for other in sessions.values() if other.layout.decodes):
            other.import_neutral(3, kv)
            assert other.length(3) == len(prompt)
            assert go_on(other, 3, first, 16) == wanted
            other.release(3)


@pytest.mark.parametrize("backend", ["openvino-paged", "onnxruntime-slots"])
def test_a_sequence_is_not_disturbed_by_those_that_join_and_leave(
    sessions: dict[str, LanguageSession], backend: str
) -> None:
    session = sessions[backend]
    wanted = [greedy(session, prompt) for prompt in PROMPTS]
    tokens: list[list[int]] = [[begin(session, 10, PROMPTS[0])], [], []]
    for beat in range(16):
        rows = [StepRow(10 + number, one[-1:], samples=True) for number, one in enumerate(tokens) if 0 < len(one) < 16]
        members = [row.sequence - 10 for row in rows]
        if beat in (2, 5):  # a whole prompt joins in the step in which others decode
            members.append(1 if beat == 2 else 2)
            rows.append(StepRow(10 + members[-1], PROMPTS[members[-1]], samples=True))
        for member, row in zip(members, session.step(rows), strict=True):
            tokens[member].append(int(row.argmax()))
        if len(tokens[0]) == 16:
            session.release(10)
    for number in (11, 12):
        session.release(number)
    assert tokens == [one[: len(got)] for one, got in zip(wanted, tokens, strict=True)]
    assert [len(one) for one in tokens] == [16, 14, 11]


def test_rows_are_counted_and_a_raw_copy_is_the_neutral_one(sessions: dict[str, LanguageSession]) -> None:
    session = sessions["onnxruntime-slots"]
    free = session.free_blocks
    first = begin(session, 1, PROMPTS[0])
    buffer = np.zeros(session.layout.raw_bytes_per_block, np.uint8)
    assert session.export_raw(1, buffer) == buffer.nbytes
    session.import_raw(2, len(PROMPTS[0]), buffer)
    assert go_on(session, 1, first, 8) == go_on(session, 2, first, 8)
    for number in (3, 4):
        begin(session, number, PROMPTS[0])
    assert session.free_blocks == 0
    with pytest.raises(NoRoomError):
        begin(session, 5, PROMPTS[0])
    for number in (1, 2, 3, 4):
        session.release(number)
    assert session.free_blocks == free


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"backend": "openvino-static"}, "Say `roles: [prefill]`"),
        ({"backend": "openvino-static", "decodes": False}, "Say `buckets: [64, 256]`"),
        ({"backend": "openvino-static", "decodes": False, "buckets": (64,)}, "Say `prompt_max: 64`"),
        ({"buckets": (64,)}, "compiles for no fixed lengths"),
        ({"backend": "vllm"}, "is not one of openvino-paged, "),
        ({"block": 16}, "Say `block: 32` in the language file"),
        ({"backend": "onnxruntime-slots", "cached_blocks": 4}, "`prefix_tokens` must be 0"),
        ({"backend": "onnxruntime-slots", "device": "CUDA"}, "is not CPU"),
        ({"backend": "onnxruntime-slots", "options": {"x": 1}}, "options: 'x' is not one of"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_in_one_line(changes: dict[str, object], words: str) -> None:
    backend = str(changes.pop("backend", "openvino-paged"))
    with pytest.raises(InputError) as refused:
        open_session(order(backend, **changes))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_memory_of_kv_is_taken_as_it_is_written_and_what_can_never_be_had_is_refused() -> None:
    before = resident_bytes()
    session, _ = open_session(order("openvino-paged", kv_blocks=50_000))
    assert session.layout.kv_bytes == 50_000 * session.layout.raw_bytes_per_block
    assert resident_bytes() - before < session.layout.kv_bytes / 2
    assert greedy(session, PROMPTS[0])[:16] == encode(ANSWERS[f"up c:{spelled('c', 1, 9)}"])
    session.close()
    for backend, much in (("openvino-paged", {"kv_blocks": 10**9}), ("onnxruntime-slots", {"seats": 10**6})):
        with pytest.raises(InputError, match=r"takes [\d.e+]+ GB of memory, and [\d.]+ GB are free\. Lower"):
            open_session(order(backend, **much))
