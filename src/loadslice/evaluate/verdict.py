"""From figures to an answer: which plan keeps the promise, at what cost, and what to do about it.

The rules, in order:

1. A plan keeps the promise when its *measured* run kept every limit of the budget and lost no request. Predictions
   never decide; where a limit lies inside the measurement's own noise the verdict says that it is too close to call.
2. Among plans that keep it, the one that spends the least processor time per request is recommended. Differences below
   `NOISE_PCT` are noise: then the simpler plan (one engine) goes before the hybrid, and lower latency decides last.
3. A hybrid pays when it alone keeps the promise, or when rule 2 chose it. Otherwise the advice is: stay on one engine.
4. Beside other programs that took a large part of the machine a promise that was kept all the same is kept. Nothing
   else can be told: neither that it would be broken on a quiet machine, nor that another plan would be dearer.
5. What was measured at another pace than the recorded one is said with its pace (`verdict_pace`).
"""

import msgspec

from loadslice.evaluate.compare import error_rate
from loadslice.evaluate.verdict_pace import paced
from loadslice.spec.budget import Slo
from loadslice.spec.report import Compared, PlanReport, Rule, Verdict

NOISE_PCT = 5.0
"""Two replays of one plan on a shared two-core machine differ by about that much in processor time per request."""
PREDICTION_GOAL_PCT = 10.0
SQUEEZE = (
    "Squeeze the software before buying anything: a lower precision, other thread counts or input shapes, or less "
    "traffic per machine. If that is not enough, the load needs more than this machine."
)
QUIET_SHARE = 0.10
"""A run is disturbed when other programs took more of the machine than this."""
CROWDED_SHARE = 0.25
"""From here on latencies are those of the other programs as much as the plan's."""


def judge(plan: PlanReport, slo: Slo) -> tuple[bool | None, bool, list[str]]:
    """Does a plan's measured run keep the promise?

    Returns:
        Whether it does (``None``: not measured), whether a limit lies inside the noise, and what it breaks.
    """
    measured = plan.measured
    if measured is None or not measured.complete:
        return None, False, []
    misses, too_close = [], False
    by_name = {figure.figure: figure for figure in plan.compared}
    for name, limit_ms in slo.latency_limits_ms.items():
        value_ms = getattr(measured.latency_ms, name)
        if value_ms is None:
            misses.append(f"no request completed, so {name.upper()} is unknown")
        elif value_ms > limit_ms:
            misses.append(
                f"{name.upper()} {value_ms:.0f} ms, {value_ms - limit_ms:.0f} ms over the limit of {limit_ms:g} ms"
            )
        too_close |= _inside(by_name.get(name), limit_ms)
    errors = error_rate(measured.outcomes)
    assert errors is not None
    if errors > slo.error_rate:
        misses.append(f"{errors:.1%} of requests did not complete; the limit is {slo.error_rate:.1%}")
    marked = measured.accuracy
    wrong = marked.share if marked is not None else None
    if slo.wrong_characters_share is not None and wrong is not None and wrong > slo.wrong_characters_share:
        misses.append(f"{wrong:.2%} of characters wrong; the limit is {slo.wrong_characters_share:.2%}")
    if not all(account.holds for account in plan.accounts):
        misses.append("submitted requests and outcomes do not add up")
    return not misses, too_close, misses


def _inside(figure: Compared | None, limit: float) -> bool:
    if figure is None or figure.measured_95 is None:
        return False
    return figure.measured_95.low <= limit <= figure.measured_95.high


def verdict(plans: list[PlanReport], slo: Slo) -> Verdict:
    """The answer over all plans; see the module's rules."""
    found = paced(_verdict(plans, slo), plans, slo)
    return found if (share := crowd(plans)) is None else _beside(found, share)


def crowd(plans: list[PlanReport]) -> float | None:
    """The most of this machine that other programs took during a run; ``None``: too little to hide what plans do."""
    most = max((plan.cpu.others_utilisation for plan in plans if plan.cpu is not None), default=0.0)
    return most if most > CROWDED_SHARE else None


def _beside(found: Verdict, share: float) -> Verdict:
    """What is left of a verdict on a machine that other programs had a large part of."""
    took = f"other programs took up to {share:.0%} of this machine while it was measured"
    rule = Rule(code="crowded", text="What was measured is not of the plans alone.", evidence=took)
    if found.recommended is not None:
        headline = f"{found.headline} That was although {took}; whether another plan would be cheaper cannot be told."
        return msgspec.structs.replace(found, headline=headline, rules=[*found.rules, rule])
    return msgspec.structs.replace(
        found,
        headline=f"It cannot be told which plan keeps the promise: {took}.",
        action="Repeat the study on a quiet machine. Nothing follows from these runs, neither to squeeze nor to buy.",
        rules=[*found.rules, rule],
    )


def _verdict(plans: list[PlanReport], slo: Slo) -> Verdict:
    kept = [plan for plan in plans if plan.meets_slo]
    promise = _promise(slo)
    if not any(plan.measured for plan in plans):
        return _unmeasured(plans)
    rules: list[Rule] = []
    sentences = [*(_sentence(plan) for plan in plans), *_disturbed(plans, rules)]
    if not kept:
        headline = (
            f"No plan keeps the promise of {promise} on this traffic."
            if len(plans) > 1
            else (f"{plans[0].title} does not keep the promise of {promise} on this traffic.")
        )
        rules.append(Rule(code="none_meets", text="No measured run kept every limit.", evidence=_evidence(plans)))
        return Verdict(
            headline=headline,
            action=SQUEEZE + _caveat(rules),
            recommended=None,
            sentences=[*sentences, _prediction(plans, rules)],
            rules=rules,
        )
    best, why = _cheapest(kept)
    rules.append(why)
    headline = _headline(best, kept, plans, promise)
    action = _action(best, kept, plans, rules)
    if best.too_close:
        sentences.append(
            f"A limit lies inside the measurement's own noise for {best.title}: measure longer before relying on it."
        )
        rules.append(Rule(code="too_close", text="A limit lies inside the 95% interval.", evidence=_evidence([best])))
    return Verdict(
        headline=headline,
        action=action + _caveat(rules),
        recommended=best.name,
        sentences=[*sentences, _prediction(plans, rules)],
        rules=rules,
    )


def _unmeasured(plans: list[PlanReport]) -> Verdict:
    reasons = "; ".join(f"{plan.title}: {plan.failed or 'no measurement'}" for plan in plans)
    return Verdict(
        headline="There is no verdict: no plan could be measured.",
        action="Repair what failed (see below) and run the study again.",
        recommended=None,
        sentences=[reasons],
        rules=[Rule(code="unmeasured", text="A verdict needs a measured run.", evidence=reasons)],
    )


def _promise(slo: Slo) -> str:
    limits = [f"{name.upper()} within {limit:g} ms" for name, limit in slo.latency_limits_ms.items()]
    return " and ".join([*limits, f"at most {slo.error_rate:.1%} errors"])


def _cheapest(kept: list[PlanReport]) -> tuple[PlanReport, Rule]:
    costs = {plan.name: plan.cpu.cpu_ms_per_request if plan.cpu else None for plan in kept}
    known = [cost for cost in costs.values() if cost is not None]
    if not known or len(known) < len(kept):
        best = min(kept, key=lambda plan: (plan.hybrid, _latency_ms(plan)))
        return best, Rule(
            code="fastest",
            text="Processor time is not known for every plan; latency decided.",
            evidence=_evidence(kept),
        )
    bound = min(known) * (1 + NOISE_PCT / 100)
    near = [plan for plan in kept if (costs[plan.name] or 0) <= bound]
    best = min(near, key=lambda plan: (plan.hybrid, _latency_ms(plan)))
    listed = ", ".join(f"{plan.title} {costs[plan.name]:.0f} ms" for plan in kept)
    return best, Rule(
        code="cheapest",
        text=f"Least processor time per request among plans that keep the promise; differences below {NOISE_PCT:g}% "
        "are noise, then one engine goes before two.",
        evidence=listed,
    )


def _latency_ms(plan: PlanReport) -> float:
    value = plan.measured.latency_ms.p95 if plan.measured else None
    return float("inf") if value is None else value


def _headline(best: PlanReport, kept: list[PlanReport], plans: list[PlanReport], promise: str) -> str:
    cost = f" with {best.cpu.utilisation:.0%} of the processor" if best.cpu else ""
    if len(plans) == 1:
        return f"{best.title} keeps the promise of {promise}{cost}."
    others = len(kept) - 1
    also = "the only plan that does" if others == 0 else f"{others} other{'s' if others > 1 else ''} would too"
    return f"{best.title} keeps the promise of {promise}{cost}; {also}."


def _action(best: PlanReport, kept: list[PlanReport], plans: list[PlanReport], rules: list[Rule]) -> str:
    hybrids = [plan for plan in plans if plan.hybrid]
    singles = [plan for plan in plans if not plan.hybrid]
    if not hybrids or not singles:
        return f"Stay with {best.title} on this machine; nothing needs to be bought for this traffic."
    if best.hybrid:
        if not any(plan in kept for plan in singles):
            text = "Only the hybrid keeps the promise."
        else:
            text = "The hybrid spends less processor time per request than any single engine."
        rules.append(Rule(code="hybrid_pays", text=text, evidence=_evidence(plans)))
        return f"Run both engines under one scheduler: {text[0].lower()}{text[1:]}"
    hybrid = min(hybrids, key=_latency_ms)
    if hybrid.measured is None or hybrid.measured.latency_ms.p95 is None:
        return f"Stay on one engine: run {best.title}. The hybrid was not measured."
    faster = _latency_ms(best) - hybrid.measured.latency_ms.p95
    if faster > 0:
        gain = f"it would lower P95 by {faster:.0f} ms, which the promise does not ask for"
    else:
        gain = f"its P95 is {-faster:.0f} ms higher"
    if not hybrid.meets_slo:
        gain = "it does not keep the promise"
    text = "A second engine does not pay on this traffic."
    rules.append(Rule(code="stay_on_one_engine", text=text, evidence=_evidence([best, hybrid])))
    return f"Stay on one engine: run {best.title}. A second engine under the scheduler does not pay here: {gain}."


def _sentence(plan: PlanReport) -> str:
    measured = plan.measured
    if measured is None or measured.latency_ms.p95 is None:
        return f"{plan.title}: not measured ({plan.failed or 'no request completed'})."
    if not measured.complete:
        return f"{plan.title}: the run ended early ({plan.failed or 'the server went away'}), so it is not judged."
    verb = "keeps the promise" if plan.meets_slo else "breaks the promise (" + "; ".join(plan.misses) + ")"
    cost = ""
    if plan.cpu is not None and plan.cpu.cpu_ms_per_request is not None:
        spent = plan.cpu
        each = f"{spent.cpu_ms_per_request:.0f} ms of processor time per request"
        cost = f", {each} ({spent.utilisation:.0%} of the machine)"
    return f"{plan.title} {verb}: P50 {measured.latency_ms.p50:.0f} ms, P95 {measured.latency_ms.p95:.0f} ms{cost}."


def _disturbed(plans: list[PlanReport], rules: list[Rule]) -> list[str]:
    shares = {plan.title: plan.cpu.others_utilisation for plan in plans if plan.cpu is not None}
    loud = {title: share for title, share in shares.items() if share > QUIET_SHARE}
    if not loud:
        return []
    listed = ", ".join(f"{share:.0%} ({title})" for title, share in loud.items())
    rules.append(Rule(code="disturbed", text="Other programs used this machine during a run.", evidence=listed))
    return [f"Other programs took part of this machine during the runs: {listed}."]


def _caveat(rules: list[Rule]) -> str:
    if any(rule.code == "disturbed" for rule in rules):
        return " But other programs disturbed the runs: repeat the study on a quiet machine before deciding."
    return ""


def _prediction(plans: list[PlanReport], rules: list[Rule]) -> str:
    errors = [
        (abs(figure.error_pct), plan.title, figure.figure, figure.error_pct)
        for plan in plans
        for figure in plan.compared
        if figure.figure in ("p50", "p95") and figure.error_pct is not None
    ]
    if not errors:
        return "There is no prediction to compare with."
    worst, title, name, signed = max(errors)
    inside = sum(error[0] <= PREDICTION_GOAL_PCT for error in errors)
    rules.append(
        Rule(
            code="prediction_held" if worst <= PREDICTION_GOAL_PCT else "prediction_off",
            text=f"P50 and P95 predicted within {PREDICTION_GOAL_PCT:g}%: {inside} of {len(errors)}.",
            evidence=f"worst: {name.upper()} of {title}, {_signed(signed)}",
        )
    )
    return (
        f"The simulator predicted {inside} of {len(errors)} P50 and P95 figures within {PREDICTION_GOAL_PCT:g}%; "
        f"the worst is {name.upper()} of {title}, {_signed(signed)}."
    )


def _signed(percent: float) -> str:
    return f"{percent:+.1f}%".replace("-", "\N{MINUS SIGN}")


def _evidence(plans: list[PlanReport]) -> str:
    parts = []
    for plan in plans:
        if plan.measured is None or plan.measured.latency_ms.p95 is None:
            parts.append(f"{plan.title}: not measured")
            continue
        cost = f", {plan.cpu.cpu_ms_per_request:.0f} CPU ms" if plan.cpu and plan.cpu.cpu_ms_per_request else ""
        parts.append(f"{plan.title}: P95 {plan.measured.latency_ms.p95:.0f} ms{cost}")
    return "; ".join(parts)
