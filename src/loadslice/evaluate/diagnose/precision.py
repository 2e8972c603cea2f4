"""Answers that a lower precision has made worse."""

from collections.abc import Iterable, Iterator

from loadslice.evaluate.diagnose.evidence import Evidence, NotSeenError
from loadslice.evaluate.diagnose.rule import Rule
from loadslice.spec.diagnosis import Confidence, Finding
from loadslice.spec.variant import Difference, Precision, Variant

LOSS_MAX = 0.01
"""Of the metric: what a floor is set at where nothing else is promised (`loadslice squeeze`)."""
SQNR_DB_MIN = 20.0
"""A tenth of the signal is noise below: more than quantisation of 8 bits adds to a layer that suits it."""
LOW_BITS = 8

CAUSES = {
    "shift": ("a constant shift: ranges were calibrated on inputs that do not stand for the traffic",
              "calibrate on recorded traffic: `loadslice squeeze M --data TRACE`"),
    "outliers": ("a few large values: the range has to hold them, and nothing is left for the others",
                 "quantise by channel, or keep the layers that have them in the source's precision"),
    "spread": ("noise over everything: more layers are coarse than the model bears",
               "keep the worst layers in the source's precision: `loadslice squeeze` finds them one by one"),
}  # fmt: skip


def _look(evidence: Evidence) -> Iterable[Finding]:
    reports = [(place, one) for place, one in evidence.evaluations if any(_alike(one.layers))]
    rolling = evidence.rollout is not None and "outputs" in evidence.rollout.get("analysis", {})
    low = [(place, one, floor) for place, one, floor in evidence.variants if _is_low(one)]
    if not low and not reports and not rolling:
        raise NotSeenError("nothing compares answers of a lower precision with the source's")
    precision = {known.plain: known for _, known in evidence.precision}
    for place, variant, floor in low:
        found = _of_variant(place, variant, floor, precision.get(variant.name))
        if found is not None:
            yield found
    for place, report in reports:
        for rule in report.rules_fired:
            if rule.code == "outputs-clearly-different":
                yield Finding(
                    rule=RULE.name, symptom=f"answers of '{rule.placement}' differ by more than rounding",
                    evidence=f"{place}: {rule.evidence}",
                    cause="another precision, a wrong scale, or another model: correctness was compared on the same "
                    "inputs",
                    remedy="refuse it; `loadslice squeeze M` keeps the layers that cause it in the source's precision",
                    confidence="low", basis="measured", figures={"placement": rule.placement},
                )  # fmt: skip
    if rolling:
        yield from _of_rollout(evidence)


def _alike(layers: Iterable[object]) -> Iterator[bool]:
    for layer in layers:
        yield getattr(layer, "name", None) == "correctness" and getattr(layer, "passed", None) is not None


def _is_low(variant: Variant) -> bool:
    return min(variant.scheme.weight_bits, variant.scheme.activation_bits) <= LOW_BITS


def _of_variant(place: str, variant: Variant, floor: str, precision: Precision | None) -> Finding | None:
    metric = variant.metric
    lost = None
    if metric.source is not None and metric.variant is not None and metric.source != 0:
        lost = (metric.source - metric.variant) / abs(metric.source)
    noisy = variant.sqnr_db is not None and variant.sqnr_db < SQNR_DB_MIN
    if not ((lost is not None and lost > LOSS_MAX) or noisy):
        return None
    worst = _worst(precision)
    cause, remedy = CAUSES[worst.kind] if worst is not None and worst.kind in CAUSES else (
        (f"{variant.scheme.weight_bits} bit weights and {variant.scheme.activation_bits} bit activations are too "
        "few for "
        "some layer, or the calibration did not see the traffic"),
        "`loadslice squeeze M --data TRACE` measures every layer alone and keeps the worst",
    )  # fmt: skip
    kept = _keep(precision)
    confidence: Confidence = "high" if worst is not None and worst.kind in CAUSES else "medium"
    labelled = "against labels" if metric.labelled else "against the source's own answers"
    sqnr = "unknown" if variant.sqnr_db is None else f"{variant.sqnr_db:.1f} dB"
    return Finding(
        rule=RULE.name,
        symptom=f"{variant.name} ({variant.target}) answers worse than its source",
        evidence=f"{place}: {metric.name} {_figure(metric.source)} -> {_figure(metric.variant)} {labelled} on "
        f"{metric.inputs} inputs, signal to noise {sqnr}; floor {floor}; "
        f"{'shipped' if variant.shipped else 'not shipped'}: {variant.why}",
        cause=cause,
        remedy=remedy + kept,
        confidence=confidence,
        basis="measured",
        figures={
            "metric_source": metric.source,
            "metric_variant": metric.variant,
            "loss_share": lost,
            "sqnr_db": variant.sqnr_db,
        },
    )


def _worst(precision: Precision | None) -> Difference | None:
    known = [] if precision is None else [one for one in precision.differences if one.sqnr_db is not None]
    return min(known, key=lambda one: one.sqnr_db or 0.0, default=None)


def _keep(precision: Precision | None) -> str:
    if precision is None or not precision.layers:
        return ""
    named = ", ".join(one.layer for one in precision.layers[:3])
    return f"; the worst layers are {named}"


def _of_rollout(evidence: Evidence) -> Iterator[Finding]:
    assert evidence.rollout is not None
    outputs = evidence.rollout["analysis"]["outputs"]
    if outputs.get("decision") == "fail":
        figures = outputs.get("figures", {})
        yield Finding(
            rule=RULE.name, symptom="the new version answers otherwise than the stable one",
            evidence=f"rollout: {figures.get('different')} of {figures.get('pairs')} answers to the same inputs "
            "differ, "
            f"by up to {figures.get('distance_max')} (relative)",
            cause="another precision, a wrong scale, or another model behind the same name",
            remedy="it goes back by itself; compare variant and source with `loadslice evaluate`, layer correctness",
            confidence="low", basis="measured",
        )  # fmt: skip


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


RULE = Rule(
    name="int8-loss",
    formula=f"metric lost > {LOSS_MAX:.0%} of the source's, or signal to noise < {SQNR_DB_MIN:g} dB, at 8 bits or "
    "fewer",
    reason="a hundredth is what most floors allow; below 20 dB a tenth of the signal is noise",
    needs="squeeze.json or a manifest.json, an evaluation.json, or a rollout that compares answers",
    look=_look,
)
