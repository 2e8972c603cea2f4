"""The language file: a language model, the engines that prefill and decode it, and every number of their policy.

Rules of this file are those of the pipeline file: an unknown key is refused with its path, a name that points nowhere
with the names that exist, and what is not implemented is not a key.
"""

import re
from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.files import YAML_BYTES_MAX, decode_yaml, opened
from loadslice.spec.pipeline import ClassName

Role = Literal["prefill", "decode"]
RouterPolicy = Literal["always-local", "always-remote", "length", "length-or-load", "cost"]
ROUTER_POLICIES: tuple[RouterPolicy, ...] = ("always-local", "always-remote", "length", "length-or-load", "cost")
"""In the order of the token desk's codes."""

REMOTE_BACKENDS = ("remote-openai",)
"""Engines that are servers elsewhere."""

WHOLE_BACKENDS = ("openvino-genai", *REMOTE_BACKENDS)
"""Engines that keep their KV to themselves: they compute whole requests, and draw tokens themselves."""

SHARING_BACKENDS = ("openvino-paged",)
"""Engines whose sequences can share blocks: those that have a prefix cache."""

SEATS_MAX = 512
ENGINES_MAX = 64


class StepCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a step of an engine takes: ``step_ms + token_us * prompt tokens + row_us * sequences + ...``, fitted."""

    step_ms: float
    """Of any step."""
    token_us: float
    """Per token of a prompt."""
    row_us: float
    """Per sequence that decodes."""
    attend_ns: float = 0.0
    """Per sequence that decodes and token before it."""
    prompt_attend_ns: float | None = None
    """Per token of a prompt and token before it, which many tokens read at once; ``None``: as ``attend_ns``."""
    relative_sd: float = 0.0
    """Spread of measured steps around this, as a share."""


class LanguageEngine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One engine: a model loaded once, with KV of its own."""

    backend: str
    roles: tuple[Role, ...] = ("prefill", "decode")
    device: str | None = None
    threads: int = 1
    seats: int = 16
    """Sequences that hold KV at once."""
    kv_tokens: int = 16_384
    """Tokens whose KV fits, over all sequences."""
    prefix_tokens: int = 0
    """Tokens of prompts whose KV stays beside that when their sequences are gone, for prompts that begin alike."""
    step_tokens: int = 512
    """Tokens of one step at most; above ``seats``, so that prompts always advance."""
    chunk: int | None = None
    """Tokens of one prompt in one step at most; ``None``: the whole prompt."""
    step_ms_max: float | None = None
    """A step in which somebody decodes, or that a hand-over waits for, takes less of a prompt than would make it
    longer; ``None``: no limit."""
    prompt_max: int | None = None
    """Longest prompt that is computed here; ``None``: the context."""
    buckets: tuple[int, ...] = ()
    """Lengths that prompts are padded to, growing, where the backend compiles for fixed shapes."""
    queue: int = 64
    """Sequences that may wait."""
    cost: StepCost | None = None
    """``None``: measured when the server starts, or in the latency file."""
    options: dict[str, str | int | float | bool] = {}
    """Passed to the runtime as they are."""


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A way for KV from one engine to another."""

    from_: str = msgspec.field(name="from")
    to: str
    slots: int = 4
    """Hand-overs at once: each holds shared memory for one prompt."""
    base_ms: float = 0.5
    token_us: float = 16.0


class Router(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who computes a prompt."""

    policy: RouterPolicy = "cost"
    length: int = 128
    """``length`` and ``length-or-load``: prompts with fewer tokens to compute stay local."""
    load_tokens: int = 2048
    """``length-or-load``: so many tokens waiting at the prefilling engine keep a prompt local."""
    penalty: float = 1.0
    """``cost``: seconds of first-token latency that one second of delay to one decoding sequence is worth."""
    late_share: float = 0.002
    """``cost``: share of tokens that may come late because a prompt was computed where they are decoded, though it
    could have been elsewhere. Well below 0.01: so the 99th percentile of times between tokens is that of a split."""


class LanguageClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Per-class numbers."""

    first_token_ms: float | None = None
    """Time from arrival to the first token, promised to requests that state none."""
    deadline_ms: float | None = None
    """Time to the last token."""


class Language(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole language file."""

    version: Literal[1]
    language: str
    """Name that clients ask for."""
    model: str
    """A path relative to this file, or ``package:NAME/PATH``."""
    engines: dict[str, LanguageEngine]
    links: list[Link] = []
    router: Router = Router()
    classes: dict[ClassName, LanguageClass] = {}
    context: int = 2048
    """Tokens of prompt and answer together, at most."""
    block: int = 32
    """Tokens of one KV block."""
    max_sequences: int = 256
    """Requests in the system at once."""
    lease_ms: float = 2000.0
    """A hand-over that takes longer has failed: the prompt is computed where its KV was to go."""
    attempts: int = 3
    """Hand-overs that may fail and engines that may be lost under one request before it fails."""


def crowding(language: Language, cores: int) -> dict[str, dict[str, float]]:
    """By which share a step of the first engine is longer while the second computes, as far as threads say.

    Where nobody has measured it: two engines on processors with more threads than there are cores have each as much of
    them as of the threads. What they take from each other in caches and memory is not in it.
    """
    threads = {
        name: engine.threads
        for name, engine in language.engines.items()
        if engine.backend not in REMOTE_BACKENDS and (engine.device or "CPU").startswith("CPU")
    }
    return {
        first: {
            second: max(0.0, (threads[first] + threads[second]) / cores - 1) for second in threads if second != first
        }
        for first in threads
    }


_MARK = re.compile(rb"^language\s*:", re.MULTILINE)


def is_language_file(path: Path) -> bool:
    """Whether a file is a language file rather than a pipeline; both are given to the same commands.

    False for what cannot be read: whoever reads it as a pipeline says why.
    """
    try:
        with opened(path) as stream:
            return _MARK.search(stream.read(YAML_BYTES_MAX)) is not None
    except OSError:
        return False


def load_language(path: Path) -> Language:
    """Read and check a language file.

    Raises:
        InputError: One line naming the key, the value and what would be right.
    """
    return check_language(decode_yaml(path, Language), str(path))


def check_language(language: Language, path: str) -> Language:
    """Refuse what types cannot.

    Raises:
        InputError: The first fault found.
    """
    if not 1 <= len(language.engines) <= ENGINES_MAX:
        raise InputError(f"{path}: engines: {len(language.engines)} are given, 1 to {ENGINES_MAX} can be.")
    for key, value, low, high in (
        ("context", language.context, 2, 1_048_576),
        ("block", language.block, 1, 1024),
        ("max_sequences", language.max_sequences, 1, 65_536),
        ("lease_ms", language.lease_ms, 1, 600_000),
        ("attempts", language.attempts, 1, 10),
        ("router.length", language.router.length, 0, 1_048_576),
        ("router.load_tokens", language.router.load_tokens, 0, 10**9),
        ("router.penalty", language.router.penalty, 0, 1000),
        ("router.late_share", language.router.late_share, 0, 1),
    ):
        _within(f"{path}: {key}", value, low, high)
    for priority, limits in language.classes.items():
        for key in ("first_token_ms", "deadline_ms"):
            limit = getattr(limits, key)
            if limit is not None:
                _within(f"{path}: classes.{priority}.{key}", limit, 0.001, 86_400_000)
    for name, engine in language.engines.items():
        _check_engine(engine, language, f"{path}: engines.{name}")
    _check_links(language, path)
    if not any("decode" in engine.roles for engine in language.engines.values()):
        raise InputError(f"{path}: engines: none has the role 'decode'.")
    for name, engine in language.engines.items():
        is_fed = "prefill" in engine.roles or any(link.to == name for link in language.links)
        if "decode" in engine.roles and not is_fed:
            raise InputError(f"{path}: engines.{name}: decodes, but computes no prompts and no link leads to it.")
    return language


def _check_engine(engine: LanguageEngine, language: Language, place: str) -> None:
    if not engine.roles or len(set(engine.roles)) != len(engine.roles):
        raise InputError(f"{place}.roles: {engine.roles} must be 'prefill', 'decode' or both, each once.")
    if engine.prefix_tokens and engine.backend not in SHARING_BACKENDS:
        raise InputError(f"{place}.prefix_tokens: backend '{engine.backend}' shares no blocks; it must be 0 there.")
    if engine.backend in WHOLE_BACKENDS and set(engine.roles) != {"prefill", "decode"}:
        raise InputError(f"{place}.roles: backend '{engine.backend}' computes whole requests: 'prefill' and 'decode'.")
    for key, number, low, high in (
        ("threads", engine.threads, 1, 1024),
        ("seats", engine.seats, 1, SEATS_MAX),
        ("kv_tokens", engine.kv_tokens, language.block, 10**9),
        ("prefix_tokens", engine.prefix_tokens, 0, 10**9),
        ("step_tokens", engine.step_tokens, 1, 1_048_576),
        ("queue", engine.queue, 0, 65_536),
    ):
        _within(f"{place}.{key}", number, low, high)
    for key, given, least, most in (
        ("chunk", engine.chunk, 1, 1_048_576),
        ("prompt_max", engine.prompt_max, 1, 1_048_576),
        ("step_ms_max", engine.step_ms_max, 0.001, 3_600_000),
    ):
        if given is not None:
            _within(f"{place}.{key}", given, least, most)
    for before, bucket in zip((0, *engine.buckets), engine.buckets, strict=False):
        if not before < bucket <= 1_048_576:
            raise InputError(f"{place}.buckets: {bucket} after {before}: they grow, from 1 to 1048576.")
    if engine.step_tokens <= engine.seats:
        raise InputError(
            f"{place}.step_tokens: {engine.step_tokens} is not above seats {engine.seats}: with every seat decoding, "
            "no prompt would advance."
        )
    if engine.cost is not None:
        for key in StepCost.__struct_fields__:
            value = getattr(engine.cost, key)
            if value is not None:
                _within(f"{place}.cost.{key}", value, 0, 10**7)


def _check_links(language: Language, path: str) -> None:
    seen = set()
    for index, link in enumerate(language.links):
        place = f"{path}: links[{index}]"
        for key, name, role in (("from", link.from_, "prefill"), ("to", link.to, "decode")):
            if name not in language.engines:
                raise InputError(f"{place}.{key}: '{name}' is not an engine ({', '.join(language.engines)}).")
            if role not in language.engines[name].roles:
                raise InputError(f"{place}.{key}: engine '{name}' has not the role '{role}'.")
        for name in (link.from_, link.to):
            if language.engines[name].backend in WHOLE_BACKENDS:
                backend = language.engines[name].backend
                raise InputError(f"{place}: engine '{name}' of backend '{backend}' can neither give KV nor take it.")
        if link.from_ == link.to:
            raise InputError(f"{place}: '{link.to}' needs no link to itself.")
        if (link.from_, link.to) in seen:
            raise InputError(f"{place}: from '{link.from_}' to '{link.to}' is given twice.")
        seen.add((link.from_, link.to))
        _within(f"{place}.slots", link.slots, 1, 4096)
        _within(f"{place}.base_ms", link.base_ms, 0, 600_000)
        _within(f"{place}.token_us", link.token_us, 0, 10**7)


def _within(place: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InputError(f"{place}: {value} is not between {low} and {high}.")
