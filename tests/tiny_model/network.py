"""A decoder of Llama's family in NumPy, forwards and backwards, with weights rounded as the file that it ends in.

The rounding stands in the forward pass and is taken for the identity in the backward pass, so the model learns to do
its work with the rounded weights. Rotation pairs neighbours, as GGUF files of this family have it.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Weights = dict[str, Floats]
GROUP = 32
EPSILON, THETA = 1e-5, 10_000.0


class Sizes(NamedTuple):
    """Of the decoder."""

    vocabulary: int
    layers: int = 2
    hidden: int = 64
    heads: int = 2
    kv_heads: int = 1
    inner: int = 128

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def fresh(sizes: Sizes, draws: np.random.Generator) -> Weights:
    """Weights before training, by the names of GGUF files, matrices [out, in]."""
    kv = sizes.kv_heads * sizes.head_dim
    shapes = {"token_embd": (sizes.vocabulary, sizes.hidden)}
    for layer in range(sizes.layers):
        shapes |= {
            f"blk.{layer}.attn_q": (sizes.hidden, sizes.hidden),
            f"blk.{layer}.attn_k": (kv, sizes.hidden),
            f"blk.{layer}.attn_v": (kv, sizes.hidden),
            f"blk.{layer}.attn_output": (sizes.hidden, sizes.hidden),
            f"blk.{layer}.ffn_gate": (sizes.inner, sizes.hidden),
            f"blk.{layer}.ffn_up": (sizes.inner, sizes.hidden),
            f"blk.{layer}.ffn_down": (sizes.hidden, sizes.inner),
        }
    weights = {
        name: (draws.standard_normal(shape) * (0.05 if name == "token_embd" else shape[1] ** -0.5)).astype(np.float32)
        for name, shape in shapes.items()
    }
    norms = [f"blk.{layer}.{part}_norm" for layer in range(sizes.layers) for part in ("attn", "ffn")]
    return weights | {name: np.ones(sizes.hidden, np.float32) for name in (*norms, "output_norm")}


class Rounded(NamedTuple):
    """A matrix in groups of `GROUP` along its rows: ``(whole - zero) * scale``."""

    whole: NDArray[np.int16]
    zero: NDArray[np.int16]
    scale: Floats

    def dense(self) -> Floats:
        """The matrix."""
        steps = (self.whole - self.zero).astype(np.float32) * self.scale
        return steps.reshape(len(self.whole), -1)


def rounded(matrix: Floats, *, bits: int) -> Rounded:
    """As Q4_1 with a whole minimum, or as Q8_0."""
    groups = matrix.reshape(len(matrix), -1, GROUP)
    if bits == 8:
        scale = (np.abs(groups).max(-1, keepdims=True) / 127 + 1e-8).astype(np.float16).astype(np.float32)
        return Rounded(np.rint(groups / scale).clip(-127, 127).astype(np.int16), np.zeros((1, 1, 1), np.int16), scale)
    low, high = groups.min(-1, keepdims=True).clip(max=0), groups.max(-1, keepdims=True).clip(min=0)
    scale = ((high - low) / 15 + 1e-6).astype(np.float16).astype(np.float32)
    zero = np.rint(-low / scale).clip(0, 15)
    return Rounded((np.rint(groups / scale) + zero).clip(0, 15).astype(np.int16), zero.astype(np.int16), scale)


def as_filed(weights: Weights) -> Weights:
    """Weights as they are read back from a file."""
    return {
        name: rounded(one, bits=8 if name == "token_embd" else 4).dense() if one.ndim == 2 else one
        for name, one in weights.items()
    }


def loss_and_slopes(
    weights: Weights, sizes: Sizes, tokens: NDArray[np.int64], heavy: Floats
) -> tuple[float, float, Weights]:
    """One batch.

    Args:
        weights: As filed.
        sizes: Of the decoder.
        tokens: [rows, length + 1].
        heavy: [rows, length], what each prediction weighs.

    Returns:
        Weighed mean of the loss, share of weighed predictions that are right, and the loss's slope by every weight.
    """
    fed, wanted = tokens[:, :-1], tokens[:, 1:]
    words = weights["token_embd"]
    turn = _turns(fed.shape[1], sizes.head_dim)
    hidden = words[fed]
    kept: list[Any] = []
    for layer in range(sizes.layers):
        hidden, one = _attention(hidden, weights, f"blk.{layer}", sizes, turn)
        hidden, other = _feed_forward(hidden, weights, f"blk.{layer}")
        kept.append((one, other))
    last, last_kept = _norm(hidden, weights["output_norm"])
    scores = last @ words.T
    scores -= scores.max(-1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(-1, keepdims=True)
    total = float(heavy.sum())
    own = np.take_along_axis(chances, wanted[..., None], -1)[..., 0]
    loss = float((-np.log(own + 1e-20) * heavy).sum() / total)
    right = float(((scores.argmax(-1) == wanted) * heavy).sum() / total)
    # Backwards, in the order from the last.
    np.put_along_axis(chances, wanted[..., None], own[..., None] - 1, -1)
    chances *= (heavy / total)[..., None]
    slopes: Weights = {"token_embd": _outer(chances, last)}
    back, slopes["output_norm"] = _norm_back(chances @ words, last_kept)
    for layer in reversed(range(sizes.layers)):
        one, other = kept[layer]
        back = _feed_forward_back(back, weights, f"blk.{layer}", other, slopes)
        back = _attention_back(back, weights, f"blk.{layer}", sizes, turn, one, slopes)
    np.add.at(slopes["token_embd"], fed.reshape(-1), back.reshape(-1, sizes.hidden))
    return loss, right, slopes


def _outer(back: Floats, source: Floats) -> Floats:
    product: Floats = back.reshape(-1, back.shape[-1]).T @ source.reshape(-1, source.shape[-1])
    return product


def _norm(source: Floats, gain: Floats) -> tuple[Floats, Any]:
    shrink = 1 / np.sqrt((source * source).mean(-1, keepdims=True) + EPSILON)
    normed = source * shrink
    return normed * gain, (normed, shrink, gain)


def _norm_back(back: Floats, kept: Any) -> tuple[Floats, Floats]:
    normed, shrink, gain = kept
    slope = (back * normed).reshape(-1, len(gain)).sum(0)
    back = back * gain
    return (back - normed * (back * normed).mean(-1, keepdims=True)) * shrink, slope


def _turns(length: int, head_dim: int) -> tuple[Floats, Floats]:
    angles = np.arange(length)[:, None] * THETA ** (-np.arange(0, head_dim, 2) / head_dim)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _turned(source: Floats, turn: tuple[Floats, Floats], *, back: bool = False) -> Floats:
    """[..., length, head_dim], each pair of neighbours turned by its place."""
    cosine, sine = turn
    if back:
        sine = -sine
    turned = np.empty_like(source)
    even, odd = source[..., ::2], source[..., 1::2]
    turned[..., ::2], turned[..., 1::2] = even * cosine - odd * sine, even * sine + odd * cosine
    return turned


def _heads(source: Floats, count: int) -> Floats:
    rows, length, _ = source.shape
    return source.reshape(rows, length, count, -1).swapaxes(1, 2)


def _joined(source: Floats) -> Floats:
    rows, heads, length, dim = source.shape
    return source.swapaxes(1, 2).reshape(rows, length, heads * dim)


def _attention(hidden: Floats, weights: Weights, name: str, sizes: Sizes, turn: Any) -> tuple[Floats, Any]:
    normed, norm_kept = _norm(hidden, weights[f"{name}.attn_norm"])
    rows, length, _ = hidden.shape
    grouped = (rows, sizes.kv_heads, -1, sizes.head_dim)
    query = _turned(_heads(normed @ weights[f"{name}.attn_q"].T, sizes.heads), turn).reshape(grouped)
    key = _turned(_heads(normed @ weights[f"{name}.attn_k"].T, sizes.kv_heads), turn)
    value = _heads(normed @ weights[f"{name}.attn_v"].T, sizes.kv_heads)
    scores = query @ key.swapaxes(2, 3) * np.float32(sizes.head_dim**-0.5)
    scores = scores.reshape(rows, sizes.heads, length, length)
    scores += np.triu(np.full((length, length), -1e9, np.float32), 1)
    scores -= scores.max(-1, keepdims=True)
    shares = np.exp(scores)
    shares /= shares.sum(-1, keepdims=True)
    shares = shares.reshape(rows, sizes.kv_heads, -1, length)
    mixed = _joined((shares @ value).reshape(rows, sizes.heads, length, sizes.head_dim))
    return hidden + mixed @ weights[f"{name}.attn_output"].T, (norm_kept, normed, query, key, value, shares, mixed)


def _attention_back(
    back: Floats, weights: Weights, name: str, sizes: Sizes, turn: Any, kept: Any, slopes: Weights
) -> Floats:
    norm_kept, normed, query, key, value, shares, mixed = kept
    rows, length, _ = back.shape
    slopes[f"{name}.attn_output"] = _outer(back, mixed)
    by_mixed = _heads(back @ weights[f"{name}.attn_output"], sizes.heads).reshape(query.shape)
    by_value = shares.swapaxes(2, 3) @ by_mixed
    by_shares = by_mixed @ value.swapaxes(2, 3)
    by_scores = shares * (by_shares - (by_shares * shares).sum(-1, keepdims=True)) * np.float32(sizes.head_dim**-0.5)
    by_query = (by_scores @ key).reshape(rows, sizes.heads, length, sizes.head_dim)
    by_key = by_scores.swapaxes(2, 3) @ query
    by_normed = np.zeros_like(normed)
    for part, slope in (
        ("q", _turned(by_query, turn, back=True)),
        ("k", _turned(by_key, turn, back=True)),
        ("v", by_value),
    ):
        joined = _joined(slope)
        slopes[f"{name}.attn_{part}"] = _outer(joined, normed)
        by_normed += joined @ weights[f"{name}.attn_{part}"]
    by_hidden, slopes[f"{name}.attn_norm"] = _norm_back(by_normed, norm_kept)
    return back + by_hidden


def _feed_forward(hidden: Floats, weights: Weights, name: str) -> tuple[Floats, Any]:
    normed, norm_kept = _norm(hidden, weights[f"{name}.ffn_norm"])
    gate, up = normed @ weights[f"{name}.ffn_gate"].T, normed @ weights[f"{name}.ffn_up"].T
    is_open = 1 / (1 + np.exp(-gate))
    inner = gate * is_open * up
    return hidden + inner @ weights[f"{name}.ffn_down"].T, (norm_kept, normed, gate, up, is_open, inner)


def _feed_forward_back(back: Floats, weights: Weights, name: str, kept: Any, slopes: Weights) -> Floats:
    norm_kept, normed, gate, up, is_open, inner = kept
    slopes[f"{name}.ffn_down"] = _outer(back, inner)
    by_inner = back @ weights[f"{name}.ffn_down"]
    by_gate = by_inner * up * is_open * (1 + gate * (1 - is_open))
    by_up = by_inner * gate * is_open
    slopes[f"{name}.ffn_gate"], slopes[f"{name}.ffn_up"] = _outer(by_gate, normed), _outer(by_up, normed)
    by_normed = by_gate @ weights[f"{name}.ffn_gate"] + by_up @ weights[f"{name}.ffn_up"]
    by_hidden, slopes[f"{name}.ffn_norm"] = _norm_back(by_normed, norm_kept)
    return back + by_hidden
