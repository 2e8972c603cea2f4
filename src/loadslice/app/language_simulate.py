"""`loadslice simulate` on a language file: routers side by side on one trace."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from loadslice.app.output import check_folder, emit, keep
from loadslice.spec.faults import load_faults
from loadslice.spec.files import stamp
from loadslice.spec.language import RouterPolicy, load_language
from loadslice.spec.language_profile import load_profile
from loadslice.spec.language_report import SCHEMA, LanguageReport, RouterResult

TOOLS = ("numba", "numpy")


class Asked(NamedTuple):
    """What is to be simulated."""

    trace: Path
    language: Path
    profile: Path | None
    faults: Path | None
    policies: Sequence[RouterPolicy]
    replicas: int
    seed: int
    speed: float
    scale_tokens: float
    prefix_tokens: int | None
    as_json: bool
    out: Path | None


def simulate_language(asked: Asked) -> None:
    """Simulate and tell.

    Raises:
        InputError: A file cannot be used, or what steps cost is not known.
    """
    from loadslice.sim.language_compare import compare
    from loadslice.sim.language_world import fault_rows, fit_context, prefix_capacity, surroundings
    from loadslice.workload import trace as trace_file

    language = load_language(asked.language)
    profile = None if asked.profile is None else load_profile(asked.profile, language)
    around = surroundings(language, profile)
    faults = None
    if asked.faults is not None:
        faults = fault_rows(load_faults(asked.faults, language), language)
    check_folder(asked.out)
    fitted = fit_context(trace_file.read(asked.trace).frame, language.context, asked.scale_tokens)
    compare(fitted.trace.head(1), around, ["cost"], seed=0, replicas=1)  # loads or compiles what is timed below
    began_s = time.process_time()
    routers = compare(
        fitted.trace,
        around,
        asked.policies or [language.router.policy],
        seed=asked.seed,
        replicas=asked.replicas,
        speed=asked.speed,
        prefix_tokens=prefix_capacity(language, asked.prefix_tokens),
        faults=faults,
    )
    taken_s = max(1e-9, time.process_time() - began_s)
    inputs = {"trace": asked.trace, "language": asked.language, "profile": asked.profile, "faults": asked.faults}
    report = LanguageReport(
        stamp=stamp(SCHEMA, inputs=inputs, seed=asked.seed, tools=TOOLS),
        seed=asked.seed,
        replicas=asked.replicas,
        speed=asked.speed,
        scale_tokens=asked.scale_tokens,
        prompts_cut=fitted.prompts_cut,
        answers_cut=fitted.answers_cut,
        context=language.context,
        basis=around.basis,
        routers=routers,
        simulated_requests_per_s=len(fitted.trace) * asked.replicas * len(routers) / taken_s,
        warnings=_warnings(fitted.prompts_cut, fitted.answers_cut, language.context, routers),
    )
    keep(report, asked.out, "simulation.json")
    emit(report, as_json=asked.as_json, text=lambda: lines(report))


def _warnings(prompts: int, answers: int, context: int, routers: Sequence[RouterResult]) -> list[str]:
    found = list(routers[0].simulation.warnings)
    if prompts or answers:
        found.append(
            f"{prompts:,} prompts and {answers:,} answers were cut to fit the context of {context} tokens (an answer "
            "has at most half of it, a prompt the rest); --scale-tokens makes all of them smaller alike."
        )
    return found


def lines(report: LanguageReport) -> Iterator[str]:
    """A report for a person."""
    first = report.routers[0].simulation
    yield f"{first.requests:,} requests over {first.span_s:,.1f} s ({report.basis}, seed {report.seed})"
    yield (
        f"  {'router':15} {'first token p50':>16} {'p95':>8} {'p99':>8} {'between p50':>12} {'p95':>7} {'p99':>7} "
        f"{'tokens/s':>9} {'handed over':>11} {'not done':>8}   (ms)"
    )
    for router in report.routers:
        yield _line(router)
        if router.interval_95 is not None:
            yield "  " + _intervals(router.interval_95)
    for router in report.routers:
        yield f"  {router.policy}:"
        yield from _details(router)
    for warning in report.warnings:
        yield f"  note: {warning}"
    yield f"  simulated at {report.simulated_requests_per_s:,.0f} requests per CPU-second"


def _line(router: RouterResult) -> str:
    said = router.simulation
    first, between = said.first_token_ms, said.between_tokens_ms
    undone = said.requests - said.outcomes["completed"]
    return (
        f"  {router.policy:15} {_ms(first.p50):>16} {_ms(first.p95):>8} {_ms(first.p99):>8} {_ms(between.p50):>12} "
        f"{_ms(between.p95):>7} {_ms(between.p99):>7} {said.tokens_per_s:9.1f} {said.handovers:11,} {undone:8,}"
    )


def _intervals(intervals: dict[str, tuple[float, float]]) -> str:
    def span(name: str) -> str:
        low, high = intervals[name]
        return f"{low:.0f} to {high:.0f}"

    names = ("first_token_ms.p50", "first_token_ms.p99", "between_tokens_ms.p50", "between_tokens_ms.p99")
    shown = [f"{name} {span(name)}" for name in names if name in intervals]
    return f"  {'':13} 19 of 20 runs: {', '.join(shown)}"


def _details(router: RouterResult) -> Iterator[str]:
    said = router.simulation
    yield f"    outcomes   {', '.join(f'{name} {count:,}' for name, count in said.outcomes.items() if count)}"
    yield f"    routes     {', '.join(f'{name} {count:,}' for name, count in said.routes.items() if count)}"
    for name, engine in said.engines.items():
        rows = "" if engine.rows_per_step is None else f", {engine.rows_per_step:.1f} sequences a step"
        yield (
            f"    engine {name:10} busy {engine.utilisation:6.1%}, {engine.steps:,} steps{rows}, "
            f"{engine.prompt_tokens:,} prompt tokens, {engine.decoded_tokens:,} decoded, "
            f"{engine.preemptions:,} preempted"
        )
    if said.handovers_failed or said.leases_expired or said.fallbacks:
        yield (
            f"    hand-overs failed {said.handovers_failed:,}, leases expired {said.leases_expired:,}, "
            f"computed again {said.fallbacks:,}"
        )
    if said.prefix_hit_share is not None:
        yield f"    prefix     {said.prefix_hit_share:.1%} of prompt tokens found in caches"
    for name, mine in router.classes.items():
        if len(router.classes) > 1:
            yield (
                f"    class {name:14} {mine.completed:,} of {mine.requests:,} completed, first token p50 "
                f"{_ms(mine.first_token_ms.p50)}, p99 {_ms(mine.first_token_ms.p99)} ms"
            )
    yield f"    journal    {said.journal_sha256[:12]}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
