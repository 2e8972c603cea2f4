"""From what was seen of each placement to the document: layers, dimensions, rules, limits and the verdict."""

from collections.abc import Callable, Sequence
from typing import Any

from loadslice.evaluate import dimensions, rules
from loadslice.evaluate.layers import abnormal, attribution, correctness, lone, ramp, replayed, soak
from loadslice.evaluate.seen import Seen
from loadslice.spec.environment import Environment
from loadslice.spec.evaluation import Evaluation, LayerName
from loadslice.spec.evaluation_report import Dimension, EvaluationReport, Layer, Placed, Rule, Verdict

CLOCK_JUMP_S = 0.5

Figures = dict[str, Any]
Judged = tuple[Figures, bool | None]


def conclude(
    found: list[Seen],
    wanted: Evaluation,
    environment: Environment,
    *,
    limits: Sequence[str] = (),
    more: Sequence[Rule] = (),
    changed: bool = False,
) -> EvaluationReport:
    """Judge.

    Args:
        found: Every placement of the file, run or not.
        wanted: The file.
        environment: That it was run in.
        limits: What the caller knows to limit the conclusion.
        more: Rules that a baseline fired.
        changed: The environment was another one at the end than at the beginning.
    """
    fired = [*rules.fired(found, wanted), *more]
    layers = [_layer(name, found, wanted) for name in wanted.layers]
    scored = dimensions.score(found, wanted)
    verdict = verdict_of(found, fired, layers, changed=changed)
    return EvaluationReport(
        verdict=verdict,
        headline=_headline(verdict, found, fired, wanted),
        dimensions=scored,
        layers=layers,
        placements=[_placed(seen, scored, fired, wanted) for seen in found],
        rules_fired=fired,
        limits=[*limits, *_limits(found)],
        scenario=wanted.scenario,
        varied=wanted.varied,
        environment=environment,
    )


def verdict_of(found: Sequence[Seen], fired: Sequence[Rule], layers: Sequence[Layer], *, changed: bool) -> Verdict:
    """A regression is one whatever else is missing; what did not run to its end is no pass."""
    if any(rule.effect == "regression" for rule in fired):
        return "regression"
    whole = all(seen.state == "run" for seen in found) and not changed
    return "pass" if whole and not any(layer.passed is False for layer in layers) else "incomplete"


def _headline(verdict: Verdict, found: Sequence[Seen], fired: Sequence[Rule], wanted: Evaluation) -> str:
    if verdict == "regression":
        bad = [rule for rule in fired if rule.effect == "regression"]
        return f"Regression: {bad[0].placement}: {bad[0].text}"
    if verdict == "incomplete":
        missing = [seen for seen in found if seen.state != "run"]
        if not missing:
            return "Incomplete: not every layer held; nothing worse than the floors was seen."
        names = ", ".join(seen.name for seen in missing)
        return f"Incomplete: {names} did not run to the end; nothing worse was seen of the others."
    if len(found) == 1:
        return f"Pass: {found[0].name} keeps every floor."
    others = ", ".join(seen.name for seen in found if not seen.reference)
    keeps = "keeps" if len(found) == 2 else "keep"
    return f"Pass: {others} {keeps} every floor of the file beside {wanted.reference_name}."


_MEASURES: dict[LayerName, Callable[[Seen, Evaluation], Judged | None]] = {
    "correctness": lambda seen, _: _correctness(seen),
    "latency": lambda seen, _: (
        None if seen.lone is None else (lone.figures(seen.lone), bool(seen.lone.times_ms().size))
    ),
    "ramp": lambda seen, _: None if seen.ramp is None else (ramp.figures(seen.ramp), _climbed(seen.ramp)),
    "soak": lambda seen, _: None if seen.soak is None else (soak.figures(seen.soak), soak.passed(seen.soak)),
    "abnormal": lambda seen, _: (
        None if seen.abnormal is None else (abnormal.figures(seen.abnormal), abnormal.passed(seen.abnormal))
    ),
    "attribution": lambda seen, _: (
        None
        if seen.attribution is None
        else (attribution.figures(seen.attribution), attribution.passed(seen.attribution))
    ),
    "replay": lambda seen, wanted: (
        None if seen.replay is None else (seen.replay, replayed.passed(seen.replay, wanted.floors.error_rate))
    ),
}


def _correctness(seen: Seen) -> Judged | None:
    if seen.correctness is None:
        return None
    figures = correctness.figures(seen.correctness) | {"under_load": seen.loaded}
    return figures, correctness.passed(seen.correctness) and not (seen.loaded and seen.loaded["differing"])


def _climbed(found: ramp.Ramp) -> bool | None:
    """A knee was found; where one was predicted it must not be missed by so much that the machine was another one."""
    return True if found.knee is not None else None


def _layer(name: LayerName, found: Sequence[Seen], wanted: Evaluation) -> Layer:
    judged = {seen.name: made for seen in found if (made := _MEASURES[name](seen, wanted)) is not None}
    passes = [passed for _, passed in judged.values()]
    passed = None if not passes or (None in passes and False not in passes) else all(passes)
    missing = [seen.name for seen in found if seen.name not in judged]
    return Layer(
        name=name,
        passed=passed,
        figures={place: {**figures, "passed": one} for place, (figures, one) in judged.items()},
        notes=[f"Not measured: {', '.join(missing)}."] if missing else [],
    )


def _placed(seen: Seen, scored: list[Dimension], fired: Sequence[Rule], wanted: Evaluation) -> Placed:
    return Placed(
        name=seen.name,
        state=seen.state,
        why=seen.why,
        basis=None if seen.state == "not_run" else "emulated" if seen.emulated else "measured",
        reference=seen.reference,
        fixed=seen.fixed,
        overall=None if seen.state == "not_run" else dimensions.overall(seen.name, scored),
        advice=_advice(seen, [rule for rule in fired if rule.placement == seen.name], wanted),
    )


def _advice(seen: Seen, mine: Sequence[Rule], wanted: Evaluation) -> str:
    codes = {rule.code for rule in mine}
    if seen.state == "not_run":
        return "Not run here: nothing can be said."
    if seen.reference:
        return "The reference."
    if any(rule.effect == "regression" for rule in mine):
        return "Refuse it: " + "; ".join(sorted({rule.code for rule in mine if rule.effect == "regression"})) + "."
    if "throughput-up-first-later" in codes and wanted.scenario != "offline":
        return "For offline work only."
    if "no-benefit" in codes:
        return "Stay with the reference: it brings nothing here."
    if "outputs-slightly-different" in codes:
        return "Check the order of rounding on your own inputs, then enable it."
    return "Enable it."


def _limits(found: Sequence[Seen]) -> list[str]:
    limits = []
    for seen in found:
        if seen.state != "run":
            limits.append(f"{seen.name} {'did not run' if seen.state == 'not_run' else 'ended early'}: {seen.why}")
            continue
        limits += _limits_of(seen)
    limits.append(
        f"What was compared are {_inputs(found)} inputs on this machine, at the load and for the time stated; another "
        "machine, other inputs or a longer run may show more."
    )
    return limits


def _limits_of(seen: Seen) -> list[str]:
    limits = []
    if seen.emulated:
        limits.append(f"{seen.name} has an emulated device: its answers are computed here, its times are modelled.")
    if seen.lone is not None and not seen.lone.small:
        limits.append(
            f"{seen.name}: after {seen.lone.repeats} repeats the 95 % interval of the median latency is still wider "
            f"than {2 * lone.SMALL:.0%} of it."
        )
    if seen.correctness is not None and seen.correctness.metric is None:
        limits.append(f"{seen.name}: no labels; outputs were only compared with the reference.")
    if seen.soak is not None and seen.soak.latency is not None and seen.soak.latency_ms:
        half = (seen.soak.latency.high - seen.soak.latency.low) / 2
        limits.append(
            f"{seen.name}: a soak of {seen.soak.for_s:.0f} s cannot show a drift of latency below "
            f"{100 * half / seen.soak.latency_ms:.0f} % per hour"
            + (f"; below {soak.LEAST_S:.0f} s none is told at all." if seen.soak.for_s < soak.LEAST_S else ".")
        )
    if seen.soak is not None and (seen.soak.others_share or 0.0) > soak.OTHERS_MAX:
        limits.append(
            f"{seen.name}: other programs used {seen.soak.others_share:.0%} of the processors during the soak; "
            "latencies, the ramp and what was predicted for it contain that."
        )
    if seen.times_disturbed is not None:
        limits.append(f"{seen.name}: what was predicted is not to be relied on, {seen.times_disturbed}")
    if seen.ramp is not None and seen.ramp.unpredicted is not None:
        limits.append(f"{seen.name}: the knee was not predicted, {seen.ramp.unpredicted}.")
    if abs(seen.clock_jump_s) > CLOCK_JUMP_S:
        limits.append(
            f"{seen.name}: the wall clock jumped by {seen.clock_jump_s:+.1f} s meanwhile; all times here are of a "
            "steady clock and do not contain it."
        )
    return limits


def _inputs(found: Sequence[Seen]) -> int:
    return max((seen.correctness.inputs for seen in found if seen.correctness is not None), default=0)
