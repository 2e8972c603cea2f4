"""A plan for a person at a terminal."""

from collections.abc import Iterator

from loadslice.app.plan_inputs import shown
from loadslice.spec.plan import Plan, PlannedFleet

NAME_WIDTH, LABEL_WIDTH = 12, 54


def lines(plan: Plan) -> Iterator[str]:
    """Decision, table, proof, path, checklist, warnings."""
    load = plan.load
    asked = f"{load.requests:,} request{'' if load.requests == 1 else 's'}"
    yield f"{asked}, {load.rate_per_s:.4g}/s, busiest bucket {load.peak_rate_per_s:.4g}/s"
    yield ""
    yield plan.decision or "no decision"
    yield ""
    yield from _table(plan)
    yield ""
    yield from _error(plan)
    yield from _money(plan)
    yield from _search(plan)
    for step in plan.decision_path:
        yield f"  {step.question} {step.answer} ({step.evidence})"
    if plan.confidence is not None:
        yield ""
        yield from _confidence(plan)
    if plan.checklist:
        yield ""
        yield "checklist"
        for item in plan.checklist:
            yield f"  [{item.state}] {item.step}: {item.evidence}"
    for warning in plan.warnings:
        yield f"note: {warning}"
    if plan.pipelines:
        yield f"written: {', '.join(plan.pipelines)}, latency.json, plan.json, plan.html"


def _table(plan: Plan) -> Iterator[str]:
    priced = any(fleet.tco for fleet in plan.fleets)
    yield (
        f"{'fleet':<{NAME_WIDTH}} {'what':<{LABEL_WIDTH}} {'kept':<5} {'p95 ms':>8} {'p99 ms':>8} {'errors':>7} "
        f"{'energy J':>10} {plan.currency + '/h':>9} {f'{plan.currency}, {plan.horizon_years} y' if priced else '':>12}"
    )
    for fleet in plan.fleets:
        yield _row(fleet, plan)
        binding = [limit for limit in fleet.limits if limit.met is False]
        for limit in binding[:2]:
            against = "" if limit.limit is None else f" {shown(limit.value)} against {shown(limit.limit)}"
            yield f"{'':<{NAME_WIDTH}} binds: {limit.name}{against}; {limit.evidence}"
        doubt = plan.doubt(fleet)
        if doubt is not None:
            yield f"{'':<{NAME_WIDTH}} {doubt}"
        if fleet.missing_prices:
            yield f"{'':<{NAME_WIDTH}} unknown: {', '.join(fleet.missing_prices)}"


def _row(fleet: PlannedFleet, plan: Plan) -> str:
    total = next((cost.total for cost in fleet.tco or [] if cost.years == plan.horizon_years), None)
    kept = {True: "yes", False: "no", None: "-"}[fleet.meets_slo]
    errors = "-" if fleet.error_rate is None else f"{fleet.error_rate:.2%}"
    mark = "*" if fleet.name == plan.recommended else "~" if fleet.name == plan.nearest else " "
    name = "" if fleet.name == fleet.label else fleet.name
    return (
        f"{mark}{name[: NAME_WIDTH - 1]:<{NAME_WIDTH - 1}} {_short(fleet.label):<{LABEL_WIDTH}} {kept:<5} "
        f"{_ms(fleet.latency_ms.p95):>8} {_ms(fleet.latency_ms.p99):>8} {errors:>7} {_whole(fleet.energy_j):>10} "
        f"{shown(fleet.cost_per_hour):>9} {_whole(total):>12} {fleet.basis if fleet.judged == 'simulated' else ''}"
    ).rstrip()


def _short(label: str) -> str:
    return label if len(label) <= LABEL_WIDTH else f"{label[: LABEL_WIDTH - 3]}..."


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _whole(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}" if value < 1e12 else f"{value:.4g}"


def _error(plan: Plan) -> Iterator[str]:
    """Between which figures the recommended fleet's may lie."""
    fleet = next((one for one in plan.fleets if one.name == plan.recommended), None)
    if fleet is None:
        return
    names = {"latency_ms.p95": "P95", "latency_ms.p99": "P99"}
    known = [
        f"{title} {_ms(low)} to {_ms(high)} ms"
        for name, title in names.items()
        if fleet.interval_95 is not None and name in fleet.interval_95
        for low, high in [fleet.interval_95[name]]
    ]
    if known:
        yield f"error      another run shows {', '.join(known)}, 19 times of 20 ({fleet.basis} times, simulated queues)"
    cost = next((one for one in fleet.tco or [] if one.years == plan.horizon_years), None)
    if cost is not None and cost.interval_95 is not None:
        low, high = cost.interval_95
        worlds = "in 95 of 100 worlds of prices, traffic, tariff and hours"
        yield f"           {low:,.0f} to {high:,.0f} {plan.currency} {worlds}"


def _money(plan: Plan) -> Iterator[str]:
    """What its parts cost by whom, when it has paid for itself, and what growth asks for."""
    fleet = next((one for one in plan.fleets if one.name == plan.recommended), None)
    for price in plan.prices:
        if fleet is not None and (price.part in fleet.boxes or price.part in fleet.engines) and price.purchase != 0:
            yield f"price      {price.told(plan.currency)}"
    for one in plan.break_even:
        yield f"pays       {one.told(plan.currency, plan.horizon_years)}"
    if plan.growth is not None:
        for line in plan.growth.told(plan.currency):
            yield f"growth     {line}"


def _search(plan: Plan) -> Iterator[str]:
    proof = plan.proof
    if proof is not None:
        claim = plan.claim if plan.recommended is not None else "no mix found that keeps the promise"
        yield (
            f"search     {claim}: {proof.solved} programs in {proof.solve_s:.2f} s, {proof.simulated} fleets "
            f"simulated ({proof.requests_simulated:,} requests), {proof.bounded} settled by a bound, "
            f"{proof.dominated} by others, {proof.estimated} by a sample, {proof.seconds:.1f} s"
        )
        if proof.front_tolerance is not None:
            error = "" if proof.sample_error is None else f"; samples flattered by up to {proof.sample_error:.1%}"
            yield f"front      in cost, P99 and energy, to {proof.front_tolerance:.0%}{error}"
        yield f"assumes    {'; '.join(proof.assumes)}"
    for one in plan.compared_with:
        saves = (
            "" if one.saves_pct is None else f"; the cheapest fleet found costs {max(0.0, one.saves_pct):.1f} % less"
        )
        held = "until it held" if one.cost_per_hour is not None else "and it still did not"
        more = (
            f", {one.added} engine{'' if one.added == 1 else 's'} added {held}"
            if one.added and one.label is not None
            else ""
        )
        kept = "keeps the promise" if one.meets_slo else "does not keep the promise"
        first = "finds nothing" if one.label is None else f"{one.label} {kept}"
        yield f"compared   {one.planner}: {first}{more}{saves}"
    if plan.saves_vs_gpu_only_pct:
        word = "less" if plan.saves_vs_gpu_only_pct > 0 else "more"
        yield f"against    GPU only: {abs(plan.saves_vs_gpu_only_pct):.1f} % {word} over the horizon"


def _confidence(plan: Plan) -> Iterator[str]:
    known = plan.confidence
    assert known is not None
    if known.survives is not None:
        yield f"confidence stays the best in {known.survives:.0%} of {known.draws:,} draws"
    for name, share in list(known.rivals.items())[:3]:
        yield f"           {name} in {share:.0%}"
    if known.safer is not None and known.safer_survives is not None:
        yield f"           {known.safer} would in {known.safer_survives:.0%}: the safer choice"
    if known.experiment is not None:
        price = "" if known.experiment_cost is None else f" ({known.experiment_cost:,.0f} {plan.currency})"
        yield f"           would be settled by: {known.experiment}{price}"
