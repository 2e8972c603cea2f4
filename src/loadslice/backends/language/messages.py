"""What the owner of the token desk and an engine's process say to each other, as MessagePack over a socket pair.

The owner decides (`policy.tokens.desk`); an engine computes what it is told and says what came of it. Sequences are
known by the desk's row and a number that is never used twice, so that a late word about a row's former sequence is
recognised. Prompts and tokens travel here; KV never does: it stands in shared memory, in a slot that the message names.
"""

from typing import Literal

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One message; array-like, because a step is sent a hundred times a second."""


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """How a sequence's tokens are drawn."""

    temperature: float = 0.0
    """0: the most likely token."""
    top_p: float = 1.0
    seed: int = 0
    logprobs: int = 0
    """How many of the likeliest tokens are reported with each; 0: no logarithms of probabilities at all."""
    stop_tokens: tuple[int, ...] = ()
    """Tokens that end a sequence; they are reported."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    """Added to logits, by token."""


class Layout(msgspec.Struct, frozen=True):
    """What KV means; two engines hand over only when everything but ``raw`` is equal."""

    model_sha256: str
    layers: int
    kv_heads: int
    head_dim: int
    dtype: Literal["float32", "float16", "bfloat16"]
    """Of the neutral layout [layers, 2, kv_heads, tokens, head_dim], keys after rotation; which rotation is the
    model's."""
    has_neutral: bool
    """Whether its KV can be had in that layout: quantised blocks move only as they are."""
    raw: str
    """Hash of the runtime, its precision and block shapes: with equal ones blocks are copied as they are."""
    raw_bytes_per_block: int


class Load(Message, frozen=True):
    """To an engine, first: what to load."""

    model: str
    backend: str
    device: str
    threads: int
    kv_blocks: int
    """Beside those of the prefix cache."""
    cached_blocks: int
    """Prompt blocks that stay when their sequences are released."""
    options: dict[str, str | int | float | bool]
    slots: int
    """Of shared memory, equal parts of the one file that all engines have mapped."""
    context: int
    """Tokens of the longest sequence."""
    measure: bool
    """Whether to measure what steps cost."""
    seats: int = 16
    """Sequences at once, where the runtime must know."""
    block: int = 32
    """Tokens of one block, as the owner counts them."""
    buckets: tuple[int, ...] = ()
    """Lengths of prompts that are compiled for, where the runtime has such."""
    prompt_max: int = 0
    """Tokens of the longest prompt that comes; 0: the context."""
    decodes: bool = True
    """Whether sequences are continued here."""


class Begin(Message, frozen=True):
    """To an engine: a sequence it will compute, or take over."""

    row: int
    number: int
    tokens: tuple[int, ...]
    """Its prompt, and what it has produced already."""
    prompt: int
    """How many of them are the prompt: the rest counts for penalties and the random stream."""
    sampling: Sampling
    hit: int = 0
    """So many of its first tokens are in the prefix cache here."""
    new_max: int = 0
    """Tokens it may produce in all; for engines elsewhere, which count themselves."""
    left_ms: int = 0
    """Until its last token must be there; 0: no matter when."""


class Step(Message, frozen=True):
    """To an engine: compute these rows now."""

    epoch: int
    rows: tuple[tuple[int, int, bool], ...]
    """(row of a sequence, how many of its tokens have KV after this step, whether one is sampled then).

    Said as a length, so that an engine whose prefix cache has lost what the owner counted on computes that too.
    """


class Export(Message, frozen=True):
    """To the engine that computed a prompt: write its KV into a slot."""

    row: int
    number: int
    epoch: int
    slot: int
    raw: bool


class Import(Message, frozen=True):
    """To the engine that continues it (after `Begin` with the same number): read it."""

    row: int
    number: int
    epoch: int
    slot: int
    raw: bool


class Release(Message, frozen=True):
    """To an engine: forget a sequence, give its blocks back (its prompt may stay in the prefix cache)."""

    row: int
    number: int


class Ping(Message, frozen=True):
    """To an engine: answer, from the thread that computes."""

    number: int


class Stop(Message, frozen=True):
    """To an engine: end."""


class Started(Message, frozen=True):
    """From an engine, before it loads; its host keeps it to itself."""

    witnesses: tuple[int, ...]
    """Threads that end when its process does, see `backends.isolated.witnesses`."""


class Ready(Message, frozen=True):
    """From an engine: it has loaded, warmed up and measured itself."""

    layout: Layout
    vocabulary: int
    step_ms: float
    token_us: float
    row_us: float
    attend_ns: float
    prompt_attend_ns: float
    relative_sd: float
    export_us_per_token: float
    import_us_per_token: float
    others_share: float
    """Of the processors, in others' hands while it measured itself, 0 to 1."""
    memory_bytes: int
    """Resident when it had loaded."""
    kv_bytes: int = 0
    """See `base.KvLayout`."""


class Measuring(Message, frozen=True):
    """From an engine that has loaded: so many kinds of steps are measured, of so many."""

    done: int
    of: int


class Drawn(msgspec.Struct, frozen=True, array_like=True):
    """One sampled token."""

    row: int
    number: int
    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Stepped(Message, frozen=True):
    """From an engine: a step is done. ``compute_ns`` in the runtime, ``sample_ns`` in drawing."""

    epoch: int
    drawn: tuple[Drawn, ...]
    compute_ns: int
    sample_ns: int
    late: tuple[int, ...] = ()
    """Rows that have nothing to show yet, of an engine whose sequences do not advance together."""
    lost: tuple[tuple[int, str], ...] = ()
    """Rows that the engine cannot go on with, and why, in words for their clients."""


class Exported(Message, frozen=True):
    """From an engine: the slot is written."""

    row: int
    number: int
    epoch: int
    slot: int
    tokens: int
    payload_bytes: int
    took_ns: int


class Imported(Message, frozen=True):
    """From an engine: the slot has been read and may be used again."""

    row: int
    number: int
    epoch: int
    slot: int
    took_ns: int


class Broken(Message, frozen=True):
    """From an engine: something it was told cannot be done; the engine itself is well."""

    what: Literal["step", "export", "import", "begin"]
    row: int
    number: int
    epoch: int
    slot: int
    reason: str


class Cached(Message, frozen=True):
    """From an engine: what its prefix cache holds has changed; names of blocks (`prefix.names`) added and dropped."""

    added: tuple[bytes, ...]
    dropped: tuple[bytes, ...]


class Failed(Message, frozen=True):
    """From an engine, instead of `Ready`: it cannot be loaded."""

    reason: str


class Pong(Message, frozen=True):
    """From an engine: the answer."""

    number: int


ToEngine = Load | Begin | Step | Export | Import | Release | Ping | Stop
FromEngine = Started | Ready | Measuring | Failed | Stepped | Exported | Imported | Broken | Cached | Pong

MESSAGE_BYTES_MAX = 196_608
"""A sequential-packet socket takes no larger one."""

CONTEXT_MAX = 32_768
"""Tokens of the longest sequence that fits a message, five bytes each."""

encoder = msgspec.msgpack.Encoder()
to_engine = msgspec.msgpack.Decoder(ToEngine)
from_engine = msgspec.msgpack.Decoder(FromEngine)
