"""`loadslice profile` on a language file."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from loadslice.app.output import check_folder, emit, keep, say
from loadslice.spec.errors import InputError
from loadslice.spec.files import Stamp, resolve_model, stamp
from loadslice.spec.language import Language, load_language
from loadslice.spec.language_profile import NOISE_AT, SCHEMA, EngineTimes, LanguageProfile, costs_of

FILE = "language-profile.json"
TOOLS = ("openvino", "openvino-genai", "numpy")


def model_language(path: Path, kernels: tuple[str, ...], *, as_json: bool, out: Path | None) -> None:
    """Measure nothing: engines from tables of kernels, the others as the file states them.

    Args:
        path: Of the language file.
        kernels: Each ``ENGINE=DEVICE:LAYERS:FILE``.
        as_json: Print the document.
        out: Folder to keep it in.

    Raises:
        InputError: One is not of that form, or an engine's costs are known from neither.
    """
    from loadslice.graph.devices import find
    from loadslice.profiles.language_kernels import kernel_engine

    language = load_language(path)
    tables: dict[str, tuple[str, int, Path]] = {}
    for text in kernels:
        name, _, rest = text.partition("=")
        device, _, more = rest.partition(":")
        layers, _, file = more.partition(":")
        if name not in language.engines or not layers.isdigit() or not 1 <= int(layers) <= 1000 or not file:
            raise InputError(
                f"--kernels {text}: expected ENGINE=DEVICE:LAYERS:FILE with an engine of the file "
                f"({', '.join(language.engines)}), for instance prefill=nvidia-a100-sxm-80gb:32:mlp.csv."
            )
        if not Path(file).is_file():
            raise InputError(f"--kernels {text}: {file}: no such file.")
        tables[name] = (device, int(layers), Path(file))
    check_folder(out)
    engines = {
        name: kernel_engine(tables[name][2], find(tables[name][0]), tables[name][1], engine)
        for name, engine in language.engines.items()
        if name in tables
    }
    inputs = {"language": path} | {f"kernels.{name}": file_path for name, (_, _, file_path) in tables.items()}
    profile = stated_profile(language, stamp(SCHEMA, inputs=inputs, tools=("numpy",)), engines)
    kept = keep(profile, out, FILE)
    emit(profile, as_json=as_json, text=lambda: lines(profile, kept))


def stated_profile(
    language: Language, stamped: Stamp, known: Mapping[str, EngineTimes] | None = None
) -> LanguageProfile:
    """A profile of engines that are known, and of the others as the language file states them; nothing else is known.

    Raises:
        InputError: It states no costs for one.
    """
    from loadslice.profiles.language_kernels import stated_engine

    return LanguageProfile(
        stamp=stamped,
        language=language.language,
        model_sha256="",
        context=language.context,
        engines={name: (known or {}).get(name) or stated_engine(engine) for name, engine in language.engines.items()},
        handovers=[],
        beside={},
        serving=None,
        load_average_1m=None,
        load_average_1m_after=None,
    )


def profile_language(
    path: Path, *, seconds: float, served_seconds: float, seed: int, as_json: bool, out: Path | None
) -> None:
    """Measure the engines of a language file alone, in twos, and under a load that is served.

    Raises:
        InputError: The file, its model or an engine cannot be used.
    """
    from loadslice.app.language_served import under_load
    from loadslice.profiles.language import measure

    language = load_language(path)
    model = resolve_model(language.model, path.parent)
    check_folder(out)
    load_before = _load_average()
    engines, handovers, beside, model_sha256 = measure(language, model, seconds=seconds, seed=seed, tell=say)
    profile = LanguageProfile(
        stamp=stamp(SCHEMA, inputs={"language": path, "model": model}, seed=seed, tools=TOOLS),
        language=language.language,
        model_sha256=model_sha256,
        context=language.context,
        engines=engines,
        handovers=handovers,
        beside=beside,
        serving=None,
        load_average_1m=load_before,
        load_average_1m_after=_load_average(),
    )
    if served_seconds > 0:
        say(f"serving a load for about {served_seconds:g} s")
        profile = under_load(profile, language, model, seconds=served_seconds, seed=seed)
        profile = msgspec.structs.replace(profile, load_average_1m_after=_load_average())
    assert set(costs_of(profile)) == set(language.engines)
    kept = keep(profile, out, FILE)
    emit(profile, as_json=as_json, text=lambda: lines(profile, kept))


def _load_average() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def lines(profile: LanguageProfile, kept: Path | None) -> Iterator[str]:
    """A profile for a person."""
    for name, times in profile.engines.items():
        cost = times.cost
        yield (
            f"engine {name}: a step takes {cost.step_ms:.2f} ms, {cost.token_us / 1e3:.3f} ms a prompt token, "
            f"{cost.row_us / 1e3:.2f} ms a sequence, and for each token before one {cost.attend_ns:.0f} ns"
            + ("" if cost.prompt_attend_ns is None else f", in prompts {cost.prompt_attend_ns:.0f} ns")
            + f" ({times.basis})"
        )
        if times.fit_error_p50 is not None and times.fit_error_max is not None:
            half, worst = times.fit_error_p50, times.fit_error_max
            yield f"  fit: half of the kinds of steps within {half:.1%}, all within {worst:.1%}"
        yield f"  from {times.source}"
        if times.noise:
            low, high = (times.noise[NOISE_AT.index(share)] for share in (0.05, 0.95))
            yield f"  single steps: 90 % between {low:.2f} and {high:.2f} of that"
        if times.reshape_ms:
            yield f"  a step with more tokens than the one before, or fewer, takes {times.reshape_ms:.1f} ms longer"
        if times.adopt_us_per_token is not None:
            yield f"  a cached prefix is adopted in {times.adopt_us_per_token:.1f} us a token"
        if not times.steps:
            continue
        yield f"  {'prompt tokens':>13} {'sequences':>9} {'before':>6} {'p50':>9} {'p90':>9} {'runtime':>9}    n"
        for step in times.steps:
            yield (
                f"  {step.prompt_tokens:13} {step.rows:9} {step.before:6} {step.time_ms_p50:6.2f} ms "
                f"{step.time_ms_p90:6.2f} ms {step.compute_ms_p50:6.2f} ms {step.n:4}"
            )
    for handover in profile.handovers:
        share = "" if handover.of_prefill is None else f", {handover.of_prefill:.1%} of computing the prompt"
        yield (
            f"hand-over from {handover.from_} to {handover.to}: {handover.base_ms:.2f} ms and "
            f"{handover.token_us:.1f} us a token{share}"
        )
    for name, others in profile.beside.items():
        for other, longer in others.items():
            yield f"engine {name} takes {longer:.0%} longer while {other} computes"
    if profile.serving is not None:
        serving = profile.serving
        yield (
            f"served {serving.requests} requests in {serving.seconds:.0f} s: {serving.request_ms:.2f} ms between "
            "client and token desk; single steps above are those of this load"
        )
    before, after = profile.load_average_1m, profile.load_average_1m_after
    if before is not None and after is not None:
        yield f"load average {before:.1f} before, {after:.1f} after; whatever else ran is part of these times"
    if kept is not None:
        yield f"kept in {kept}"
