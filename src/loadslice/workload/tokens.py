"""Measures what only a language model's load has: KV that is held over time, and prefixes that are met again."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loadslice.spec.portrait import Finding
from loadslice.spec.token_load import HeldKv, PrefixCacheShare, Prefixes, TokenLoad

BLOCK = 32
ANSWER_TOKEN_MS = 50.0
"""Twenty tokens a second, faster than people read."""
CACHE_SHARES = (0.01, 0.05, 0.1, 0.25, 0.5)
"""Caches that are tried, in parts of one that drops nothing."""
PREFILL_HEAVY, DECODE_HEAVY = 0.9, 0.5
REUSE_HIGH, REUSE_LOW = 0.2, 0.02


def load_of(
    frame: pl.DataFrame, *, answer_token_ms: float = ANSWER_TOKEN_MS, cache_tokens: int | None = None
) -> TokenLoad | None:
    """Describe a trace's tokens; ``None``: it has none.

    Args:
        frame: Of a checked trace.
        answer_token_ms: Pace at which answers are assumed to come, for the KV that is held.
        cache_tokens: A prefix cache to try beside the usual ones.
    """
    if "tokens_in" not in frame.columns or "tokens_out" not in frame.columns:
        return None
    known = frame.drop_nulls(["tokens_in", "tokens_out"])
    if known.height == 0:
        return None
    prompt = known["tokens_in"].to_numpy().astype(np.int64)
    answer = known["tokens_out"].to_numpy().astype(np.int64)
    arrival_s = known["arrival_s"].to_numpy()
    span_s = max(1e-9, float(arrival_s[-1] - arrival_s[0]))
    whole = prompt + answer
    return TokenLoad(
        prompt_tokens_per_s=float(prompt.sum()) / span_s,
        answer_tokens_per_s=float(answer.sum()) / span_s,
        prompt_share=float(prompt.sum() / max(1, whole.sum())),
        whole_p99=float(np.percentile(whole, 99)),
        whole_max=float(whole.max()),
        kv=held(arrival_s, prompt, answer, answer_token_ms),
        prefixes=_prefixes(known, prompt, cache_tokens),
    )


def held(
    arrival_s: NDArray[np.float64], prompt: NDArray[np.int64], answer: NDArray[np.int64], answer_token_ms: float
) -> HeldKv:
    """KV held over time: a prompt's blocks from its arrival, one more each time its answer fills one, to its end.

    Args:
        arrival_s: In order.
        prompt: Tokens.
        answer: Tokens.
        answer_token_ms: Between two tokens of an answer.
    """
    token_s = answer_token_ms / 1e3
    first = -(-np.maximum(prompt, 1) // BLOCK)
    last = -(-np.maximum(prompt + answer, 1) // BLOCK)
    grown = last - first
    owner = np.repeat(np.arange(len(prompt)), grown)
    step = np.arange(len(owner)) - np.repeat(np.cumsum(grown) - grown, grown)
    grows_s = arrival_s[owner] + ((first[owner] + step) * BLOCK + 1 - prompt[owner]) * token_s
    ends_s = arrival_s + answer * token_s
    at_s = np.concatenate((arrival_s, grows_s, ends_s))
    change = np.concatenate((first, np.ones(len(owner), np.int64), -last))
    inside = np.concatenate(
        (np.ones(len(prompt), np.int64), np.zeros(len(owner), np.int64), -np.ones(len(prompt), np.int64))
    )
    # At equal times what ends goes first.
    order = np.lexsort((change, at_s))
    at_s, blocks, requests = at_s[order], np.cumsum(change[order]), np.cumsum(inside[order])
    lasts_s = np.diff(at_s, append=at_s[-1])
    by_size = np.argsort(blocks, kind="stable")
    passed = np.cumsum(lasts_s[by_size])
    total_s = float(passed[-1])
    if total_s <= 0:
        most = float(blocks.max() * BLOCK)
        return _held(most, most, most, most, int(requests.max()), answer_token_ms)
    places = np.minimum(len(passed) - 1, np.searchsorted(passed, np.array([0.5, 0.99]) * total_s))
    p50, p99 = (float(size) for size in blocks[by_size[places]])
    mean = float((blocks * lasts_s).sum() / total_s)
    return _held(
        mean * BLOCK, p50 * BLOCK, p99 * BLOCK, float(blocks.max() * BLOCK), int(requests.max()), answer_token_ms
    )


def _held(mean: float, p50: float, p99: float, most: float, requests: int, answer_token_ms: float) -> HeldKv:
    return HeldKv(
        block=BLOCK,
        answer_token_ms=answer_token_ms,
        tokens_mean=mean,
        tokens_p50=p50,
        tokens_p99=p99,
        tokens_max=most,
        requests_max=requests,
    )


def _prefixes(known: pl.DataFrame, prompt: NDArray[np.int64], cache_tokens: int | None) -> Prefixes | None:
    if "blocks" not in known.columns or known["blocks"].null_count() == known.height:
        return None
    chains: list[list[int]] = [chain or [] for chain in known["blocks"].to_list()]
    lengths = np.array([len(chain) for chain in chains])
    has = lengths > 0
    if not has.any():
        return None
    block = int(np.ceil((prompt[has] / lengths[has]).max()))
    different = len({one for chain in chains for one in chain})
    ideal, finds = hits(chains, prompt, block, different)
    sizes = sorted({max(1, round(different * share)) for share in CACHE_SHARES})
    if cache_tokens is not None:
        sizes = sorted({*sizes, cache_tokens // block})
    total = max(1, int(prompt.sum()))
    return Prefixes(
        block_tokens=block,
        different_tokens=different * block,
        ideal_share=ideal / total,
        requests_share=finds / len(chains),
        caches=[
            PrefixCacheShare(cache_tokens=size * block, hit_share=hits(chains, prompt, block, size)[0] / total)
            for size in sizes
        ],
    )


def hits(chains: Sequence[Sequence[int]], prompt: NDArray[np.int64], block: int, capacity: int) -> tuple[int, int]:
    """Prompt tokens that a cache of so many blocks finds, and prompts that find any.

    Whole leading blocks count; the last token of a prompt is always computed. A prompt is kept once it has come.

    Args:
        chains: Of each prompt, in order of arrival, its prefix blocks: a hash each, that stands for all before it too.
        prompt: [n] tokens of each.
        block: Tokens of a block.
        capacity: Blocks that the cache holds; the least recently used goes first.
    """
    kept: OrderedDict[int, None] = OrderedDict()
    tokens = finds = 0
    for chain, length in zip(chains, prompt.tolist(), strict=True):
        count = 0
        while count < len(chain) and chain[count] in kept:
            count += 1
        found = min(count * block, length - 1)
        tokens += found
        finds += found > 0
        # From the last to the first: a prefix is worth nothing without its beginning, which is dropped last.
        for one in reversed(chain):
            if one in kept:
                kept.move_to_end(one)
            elif capacity > 0:
                if len(kept) >= capacity:
                    kept.popitem(last=False)
                kept[one] = None
    return tokens, finds


def findings(load: TokenLoad, *, counts_items: bool = False) -> Iterator[Finding]:
    """What to know about a load of tokens.

    Args:
        load: Measured.
        counts_items: The trace counts items too: tokens are not all that its model does, and KV may be none of it.
    """
    share = load.prompt_share
    if share >= PREFILL_HEAVY:
        text = (
            f"{share:.0%} of all tokens are prompts: computing them is the work, and a split keeps it off who decodes."
        )
        yield Finding(code="prefill_heavy", text=text, evidence={"prompt_share": share})
    elif share <= DECODE_HEAVY:
        text = f"Only {share:.0%} of all tokens are prompts: answers are the work, and a split has little to take away."
        yield Finding(code="decode_heavy", text=text, evidence={"prompt_share": share})
    kv = load.kv
    text = (
        f"Of a language model that answers at {kv.answer_token_ms:g} ms a token, KV of {kv.tokens_p99:,.0f} tokens is "
        f"held at once 1 % of the time or more, of {kv.tokens_max:,.0f} at most ({kv.requests_max:,} requests)."
    )
    if not counts_items:
        yield Finding(code="kv_held", text=text, evidence={"tokens_p99": kv.tokens_p99, "tokens_max": kv.tokens_max})
    prefixes = load.prefixes
    if prefixes is None:
        return
    if prefixes.ideal_share >= REUSE_HIGH:
        enough = [one for one in prefixes.caches if one.hit_share >= 0.8 * prefixes.ideal_share]
        least = f"; a cache of {enough[0].cache_tokens:,} tokens finds {enough[0].hit_share:.0%}" if enough else ""
        text = f"{prefixes.ideal_share:.0%} of prompt tokens were met before: a prefix cache saves as much{least}."
        yield Finding(code="prefix_reuse", text=text, evidence={"ideal_share": prefixes.ideal_share})
    elif prefixes.ideal_share <= REUSE_LOW:
        text = f"Only {prefixes.ideal_share:.1%} of prompt tokens were met before: a prefix cache is no use here."
        yield Finding(code="no_prefix_reuse", text=text, evidence={"ideal_share": prefixes.ideal_share})


def lines(load: TokenLoad, *, counts_items: bool = False) -> Iterator[str]:
    """A load of tokens for a person; arguments as `findings`."""
    yield (
        f"  tokens      {load.prompt_tokens_per_s:,.0f}/s in prompts, {load.answer_tokens_per_s:,.0f}/s in answers; "
        f"both together p99 {load.whole_p99:,.0f}, max {load.whole_max:,.0f}"
    )
    kv = load.kv
    if not counts_items:
        yield (
            f"  KV held     mean {kv.tokens_mean:,.0f} tokens, p50 {kv.tokens_p50:,.0f}, p99 {kv.tokens_p99:,.0f}, max "
            f"{kv.tokens_max:,.0f} (modelled: a language model that answers at {kv.answer_token_ms:g} ms a token, "
            f"blocks of {kv.block})"
        )
    if load.prefixes is not None:
        prefixes = load.prefixes
        tried = ", ".join(f"{one.cache_tokens:,} find {one.hit_share:.0%}" for one in prefixes.caches)
        yield (
            f"  prefixes    {prefixes.ideal_share:.0%} of prompt tokens met before, in {prefixes.requests_share:.0%} "
            f"of prompts ({prefixes.different_tokens:,} tokens keep all); caches of {tried}"
        )
