"""The part of a portrait that only a language model's load has: prompts, answers, KV held, prefixes met again."""

import msgspec


class HeldKv(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Tokens whose KV is held at once, in whole blocks, over the time of the trace; modelled from a pace."""

    block: int
    """Tokens of a block."""
    answer_token_ms: float
    """Pace that answers are assumed to come at; a prompt is held from its arrival on."""
    tokens_mean: float
    tokens_p50: float
    tokens_p99: float
    tokens_max: float
    requests_max: int
    """Held at once."""


class PrefixCacheShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one cache of prefixes, the least recently used dropped first, would find."""

    cache_tokens: int
    hit_share: float
    """Of prompt tokens."""


class Prefixes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Prompts that begin alike, by the trace's own block hashes."""

    block_tokens: int
    """Tokens of one of the trace's blocks, as its prompts say."""
    different_tokens: int
    """In blocks that differ: a cache of this size drops nothing."""
    ideal_share: float
    """Of prompt tokens found when nothing is dropped."""
    requests_share: float
    """Of prompts that find anything then."""
    caches: list[PrefixCacheShare]


class TokenLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All of it."""

    prompt_tokens_per_s: float
    answer_tokens_per_s: float
    prompt_share: float
    """Of all tokens."""
    whole_p99: float
    """Tokens of prompt and answer together, which a context must hold."""
    whole_max: float
    kv: HeldKv
    prefixes: Prefixes | None
    """``None``: the trace has no blocks."""
