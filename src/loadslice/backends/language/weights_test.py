"""A GGUF file is read as it is written, and one that is cut or damaged is refused in one line."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadslice.backends.language.gguf import converted
from loadslice.backends.language.onnx_decoder import shape_of
from loadslice.backends.language.weights import GROUP, GgufWeights
from loadslice.spec.errors import InputError

Q4_0, Q4_1, Q8_0, F32 = 2, 3, 8, 0


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def file_of(tensors: dict[str, tuple[int, tuple[int, ...], bytes]], says: dict[str, Any] | None = None) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(says or {}))
    for key, value in (says or {}).items():
        if isinstance(value, str):
            head += text(key) + struct.pack("<I", 8) + text(value)
        else:
            head += text(key) + struct.pack("<If", 6, value)
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(data))
        data += raw + bytes(-len(raw) % 32)
    return head + bytes(-len(head) % 32) + data


def read(path: Path, raw: bytes) -> GgufWeights:
    file = path / "model.gguf"
    file.write_bytes(raw)
    return GgufWeights(file)


def group(kind: int, scale: float, least: float, steps: list[int]) -> bytes:
    head = np.float16(scale).tobytes() + (np.float16(least).tobytes() if kind == Q4_1 else b"")
    if kind == Q8_0:
        return head + np.array(steps, np.int8).tobytes()
    return head + bytes(low | high << 4 for low, high in zip(steps[:16], steps[16:], strict=True))


@pytest.mark.parametrize("kind", [Q4_0, Q4_1, Q8_0])
def test_groups_are_what_they_were_made_from(tmp_path: Path, kind: int) -> None:
    generator = np.random.default_rng(3)
    low, high = (-128, 128) if kind == Q8_0 else (0, 16)
    steps = generator.integers(low, high, (6, GROUP))
    raw = b"".join(group(kind, 0.5, -1.5, row.tolist()) for row in steps)
    read_back = read(tmp_path, file_of({"w": (kind, (2 * GROUP, 3), raw)})).matrix("w")
    base = {Q4_0: steps - 8, Q4_1: steps - 3, Q8_0: steps}[kind]
    np.testing.assert_array_equal(read_back.dense(), (base * 0.5).reshape(3, 2 * GROUP))


def test_plain_tensors_and_what_the_file_says_are_read(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    weights = read(tmp_path, file_of({"v": (F32, (6,), values.tobytes())}, {"a.b": "c", "n": 1.5}))
    np.testing.assert_array_equal(weights.vector("v"), values)
    assert weights.says == {"a.b": "c", "n": 1.5}
    assert weights.number("n") == 1.5
    for call in (lambda: weights.number("a.b"), lambda: weights.vector("w"), lambda: weights.matrix("v")):
        with pytest.raises(InputError):
            call()


def test_a_file_that_is_cut_anywhere_is_refused_in_one_line(tmp_path: Path) -> None:
    whole = file_of({"w": (Q4_0, (GROUP, 2), 2 * group(Q4_0, 1, 0, [1] * 32))}, {"general.architecture": "llama"})
    padding = -36 % 32
    for length in range(len(whole) - padding):
        with pytest.raises(InputError) as refused:
            read(tmp_path, whole[:length]).check_whole()
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("says", [{}, {"general.architecture": "gemma3"}, {"general.architecture": "llama"}])
def test_a_model_that_cannot_be_built_is_refused(tmp_path: Path, says: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        shape_of(read(tmp_path, file_of({"w": (F32, (1,), bytes(4))}, says)))


def test_a_file_that_the_converter_does_not_take_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino_genai")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "model.gguf"
    file.write_bytes(file_of({"w": (F32, (1,), bytes(4))}, {"general.architecture": "none"}))
    with pytest.raises(InputError, match="cannot be converted") as refused:
        converted(file)
    assert "\n" not in str(refused.value)
    assert list((tmp_path / "cache" / "loadslice" / "language").iterdir()) == []
