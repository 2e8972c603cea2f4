"""Writes the tiny model as a GGUF file, with its tokenizer: Q4_1 matrices, Q8_0 words, F32 norms."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
from language import END, MERGES, SPECIALS, TEMPLATE, TOKENS
from network import EPSILON, THETA, Floats, Sizes, Weights, rounded

ALIGNMENT = 32
CONTEXT = 1024
F32, Q4_1, Q8_0 = 0, 3, 8
NORMAL, CONTROL = 1, 3
"""Kinds of tokens."""


def write(path: Path, weights: Weights, sizes: Sizes) -> None:
    """Write all of it."""
    says: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "tiny alphabet model",
        "general.license": "Apache-2.0",
        "general.file_type": np.uint32(Q4_1),
        "general.quantization_version": np.uint32(2),
        "llama.block_count": np.uint32(sizes.layers),
        "llama.context_length": np.uint32(CONTEXT),
        "llama.embedding_length": np.uint32(sizes.hidden),
        "llama.feed_forward_length": np.uint32(sizes.inner),
        "llama.attention.head_count": np.uint32(sizes.heads),
        "llama.attention.head_count_kv": np.uint32(sizes.kv_heads),
        "llama.attention.layer_norm_rms_epsilon": np.float32(EPSILON),
        "llama.rope.freq_base": np.float32(THETA),
        "llama.rope.dimension_count": np.uint32(sizes.head_dim),
        "llama.vocab_size": np.uint32(sizes.vocabulary),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": list(TOKENS),
        "tokenizer.ggml.token_type": [CONTROL if token in SPECIALS else NORMAL for token in TOKENS],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in MERGES],
        "tokenizer.ggml.bos_token_id": np.uint32(1),
        "tokenizer.ggml.eos_token_id": np.uint32(END),
        "tokenizer.ggml.unknown_token_id": np.uint32(0),
        "tokenizer.ggml.padding_token_id": np.uint32(END),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": TEMPLATE,
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, len(weights), len(says))
    head += b"".join(_text(key) + _value(value) for key, value in says.items())
    data = b""
    for name, one in weights.items():
        kind, raw = _packed(name, one)
        sides = one.shape[::-1]
        head += _text(f"{name}.weight") + struct.pack(f"<I{len(sides)}QIQ", len(sides), *sides, kind, len(data))
        data += raw + bytes(-len(raw) % ALIGNMENT)
    path.write_bytes(head + bytes(-len(head) % ALIGNMENT) + data)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, np.uint32):
        return struct.pack("<II", 4, int(value))
    if isinstance(value, np.float32):
        return struct.pack("<If", 6, float(value))
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)


def _packed(name: str, weight: Floats) -> tuple[int, bytes]:
    if weight.ndim == 1:
        return F32, weight.astype("<f4").tobytes()
    is_words = name == "token_embd"
    groups = rounded(weight, bits=8 if is_words else 4)
    scale = groups.scale.astype("<f2").view(np.uint8)
    if is_words:
        return Q8_0, np.concatenate((scale, groups.whole.astype(np.int8).view(np.uint8)), -1).tobytes()
    least = (-groups.zero * groups.scale).astype("<f2").view(np.uint8)
    low, high = groups.whole[..., :16], groups.whole[..., 16:]
    return Q4_1, np.concatenate((scale, least, (low | high << 4).astype(np.uint8)), -1).tobytes()
