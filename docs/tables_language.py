"""Turns plans for language files into ``docs/language-models-table.md``.

    python docs/tables_language.py out/conv/plan.json out/code/plan.json ...

Each is what `loadslice plan` wrote; the table's caption says the limits, the pace and what the figures rest on.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from loadslice.spec.language_plan import Estimate, LanguageFleet, LanguagePlan

TARGET = Path(__file__).parent / "language-models-table.md"


def tables(plans: Sequence[tuple[str, LanguagePlan]]) -> Iterator[str]:
    """One table for every plan, and the verdicts of all first."""
    first = plans[0][1]
    machine = first.stamp.machine
    yield (
        f"{first.quantile:.0%} of first tokens within {first.first_token_ms:,.0f} ms and of gaps within "
        f"{first.between_tokens_ms:,.0f} ms; {first.basis}, from {machine.get('cpu', 'an unnamed machine')}."
    )
    yield ""
    yield "| trace | engines | verdict | capacity of the best split over the best shared, in parts of the larger |"
    yield "| --- | --- | --- | --- |"
    for name, plan in plans:
        company = "on cores of their own" if _is_apart(plan) else "side by side, as measured"
        told = "-" if plan.advantage is None else _share(plan.advantage)
        yield f"| {name} | {company} | {plan.verdict} | {told} |"
    for name, plan in plans:
        company = "engines on cores of their own" if _is_apart(plan) else "engines side by side, as measured"
        yield ""
        yield f"**{name}, {company}**"
        yield ""
        yield (
            f"{plan.requests:,} requests in {plan.stretches} stretches, {plan.scale_tokens:g} tokens for one of the "
            f"trace ({plan.prompts_cut:,} prompts and {plan.answers_cut:,} answers cut), times at "
            f"{plan.rate_per_s:.2g}/s."
        )
        yield ""
        yield "| fleet | threads | requests/s that keep the limits | first token, ms | between tokens, ms | completed |"
        yield "| --- | --- | --- | --- | --- | --- |"
        for fleet in plan.fleets:
            yield _row(fleet)
        yield ""
        least = plan.recommended or "none of these"
        yield f"The least that keeps the limits at that pace: {least}. {_sentence(plan.why)}"


def _row(fleet: LanguageFleet) -> str:
    return (
        f"| {fleet.name} | {fleet.threads} | {_span(fleet.capacity_per_s)} | {fleet.first_token_ms.mean:,.0f} | "
        f"{fleet.between_tokens_ms.mean:,.0f} | {fleet.completed_share.mean:.1%} |"
    )


def _span(value: Estimate) -> str:
    return f"{value.mean:.3g} ({max(0.0, value.low):.3g} to {value.high:.3g})"


def _share(value: Estimate) -> str:
    return f"{value.mean:+.0%} ({value.low:+.0%} to {value.high:+.0%})"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _is_apart(plan: LanguagePlan) -> bool:
    return any("cores and memory of their own" in warning for warning in plan.warnings)


def main(paths: Sequence[str]) -> None:
    """Write the page."""
    plans = [
        (Path(path).parent.name, msgspec.json.decode(Path(path).read_bytes(), type=LanguagePlan)) for path in paths
    ]
    named = [(name.removesuffix("-apart"), plan) for name, plan in plans]
    TARGET.write_text("\n".join(tables(named)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
