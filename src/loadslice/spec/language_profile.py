"""The language profile: what the steps, hand-overs and company of a language model's engines take, on one machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.files import Stamp, decode_json
from loadslice.spec.language import Language, StepCost

SCHEMA = "language-profile/1"

NOISE_AT = (
    *(at / 80 for at in range(77)),
    *(0.95 + at / 400 for at in range(1, 16)),
    *(0.99 + at / 1000 for at in range(10)),
    1.0,
)
"""Shares at which the quantiles of `EngineTimes.noise` are, from the least step to the longest. Close together at the
end: on a line from the 99th percentile to the longest of all, one stall in a thousand would be ten long steps.
"""
NOISE_POINTS = len(NOISE_AT)

BESIDE_MAX = 1000
"""Times longer beside another engine: more is no measurement."""

SHAPE_ROWS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Sequences that decode, where `EngineTimes.shape` is given."""


class StepTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kind of step, measured again and again among the others."""

    prompt_tokens: int
    rows: int
    """Sequences that decode in it."""
    before: int
    """Tokens that each of them, and the prompt, has already."""
    time_ms_p50: float
    """From the order to the answer, as the server sees it."""
    time_ms_p90: float
    compute_ms_p50: float
    """Of that, in the runtime."""
    n: int


class EngineTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One engine."""

    backend: str
    basis: Literal["measured", "modelled"]
    source: str
    """Runtime, precision and block shapes; for modelled times, what they were made from."""
    threads: int
    cost: StepCost
    """Fitted to `steps`, relative errors counted; what the router is told."""
    shape: list[float]
    """At `SHAPE_ROWS`: what steps with so many decoding sequences take, in parts of what `cost` says."""
    noise: list[float]
    """Quantiles of single steps, in parts of what cost and shape say; empty: only `cost.relative_sd` is known."""
    fit_error_p50: float | None
    """Median of |median of a kind of step / what cost and shape say - 1|."""
    fit_error_max: float | None
    cold_ms: float = 0.0
    """What the first step after a pause takes longer: weights and KV are behind the caches then."""
    reshape_ms: float = 0.0
    """What a step takes longer that has not as many tokens as the one before: the runtime makes itself ready for
    another shape. So sequences that come, and those that end, cost everybody a step."""
    adopt_us_per_token: float | None
    """To begin a sequence with a cached prefix."""
    kv_bytes_per_token: int | None
    memory_bytes: int | None
    steps: list[StepTime]


class HandoverTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """KV from one engine to another: ``base_ms + token_us * tokens``, from the order to the second engine's answer."""

    from_: str = msgspec.field(name="from")
    to: str
    base_ms: float
    token_us: float
    relative_sd: float
    noise: list[float] = []
    """Quantiles of single hand-overs in parts of that line; empty: only ``relative_sd`` is known."""
    of_prefill: float | None
    """Share of what computing the same prompt takes, at the longest prompt measured."""
    n: int


class ServingTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a server adds that its engines do not see; part of every simulated time."""

    request_ms: float
    """From the client's first byte to the arrival, and from the first token to the client: parsing, sending."""
    seconds: float
    """Of served load behind `EngineTimes.noise`."""
    requests: int


class LanguageProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole profile."""

    stamp: Stamp
    language: str
    model_sha256: str
    context: int
    engines: dict[str, EngineTimes]
    handovers: list[HandoverTime]
    beside: dict[str, dict[str, float]]
    """``[first][second]``: by which share a step of the first is longer while the second computes."""
    serving: ServingTime | None
    """``None``: no load was served for it."""
    load_average_1m: float | None
    """Processes that wanted a processor when measuring began: whatever else ran is part of these times."""
    load_average_1m_after: float | None


def load_profile(path: Path, language: Language) -> LanguageProfile:
    """Read a profile and check it against a language file.

    Raises:
        InputError: Not a profile, or of other engines.
    """
    profile = decode_json(path, LanguageProfile)
    if profile.stamp.schema != SCHEMA:
        raise InputError(f"{path}: its schema is '{profile.stamp.schema}', not '{SCHEMA}'.")
    for name in language.engines:
        times = profile.engines.get(name)
        if times is None:
            raise InputError(
                f"{path}: engine '{name}' is not in it ({', '.join(profile.engines)}). "
                "Run `loadslice profile` on the language file again."
            )
        if len(times.shape) != len(SHAPE_ROWS) or not all(0.01 <= part <= 100 for part in times.shape):
            raise InputError(f"{path}: engines.{name}.shape: {len(SHAPE_ROWS)} numbers from 0.01 to 100 are expected.")
        if len(times.noise) not in (0, NOISE_POINTS) or not all(0 < part < 1e6 for part in times.noise):
            raise InputError(f"{path}: engines.{name}.noise: {NOISE_POINTS} numbers above 0 are expected, or none.")
        for key in ("cold_ms", "reshape_ms"):
            if not 0 <= getattr(times, key) <= 10**7:
                raise InputError(f"{path}: engines.{name}.{key}: {getattr(times, key)} is no cost.")
        for key in StepCost.__struct_fields__:
            value = getattr(times.cost, key)
            if value is not None and not 0 <= value <= 10**7:
                raise InputError(f"{path}: engines.{name}.cost.{key}: {value} is no cost.")
    for link in profile.handovers:
        if len(link.noise) not in (0, NOISE_POINTS) or not all(0 < part < 1e6 for part in link.noise):
            raise InputError(
                f"{path}: hand-over from {link.from_} to {link.to}: noise: {NOISE_POINTS} numbers above 0 are "
                "expected, or none."
            )
    for name, others in profile.beside.items():
        for other, longer in others.items():
            if not 0 <= longer <= BESIDE_MAX:
                raise InputError(f"{path}: beside.{name}.{other}: {longer} is not between 0 and {BESIDE_MAX}.")
    return profile


def costs_of(profile: LanguageProfile) -> dict[str, StepCost]:
    """Step costs by engine."""
    return {name: times.cost for name, times in profile.engines.items()}


def with_links(language: Language, profile: LanguageProfile) -> Language:
    """The language file with its links' times as measured."""
    known = {(one.from_, one.to): one for one in profile.handovers}
    links = [
        msgspec.structs.replace(link, base_ms=found.base_ms, token_us=found.token_us)
        if (found := known.get((link.from_, link.to))) is not None
        else link
        for link in language.links
    ]
    return msgspec.structs.replace(language, links=links)


def modelled_engines(engines: Mapping[str, EngineTimes]) -> list[str]:
    """Names of engines whose times were not measured."""
    return [name for name, times in engines.items() if times.basis != "measured"]
