"""Figures of operation against the range they had in the baseline: rules, each with its formula and its reason."""

from collections.abc import Callable
from dataclasses import dataclass

from loadslice.evaluate.scrape import Scrape, percentile_s, since
from loadslice.evaluate.watch import compare
from loadslice.evaluate.watch.reference import NEEDS_REQUESTS
from loadslice.evaluate.watch.sensors import Sensed
from loadslice.spec.watch import HORIZON_SAMPLES, Alert, Baseline, Operating, Range, Reading

OURS = ("failed", "rejected", "shed", "expired")
"""Ends that count as errors; a client that leaves is none."""


@dataclass(frozen=True, slots=True)
class OperationRule:
    """A figure, and from where on it is not as it was."""

    name: str
    figure: str
    formula: str
    reason: str
    unit: str
    limit: Callable[[Operating], float | None]
    """What the plan says; ``None``: not looked at."""
    is_out: Callable[[float, Range, float], bool]
    """Value, baseline, limit."""


RULES: tuple[OperationRule, ...] = (
    OperationRule(
        "hot", "temperature_c", "value > high + temperature_rise_c",
        "processors slow down at their limit, some 10 °C above where they work well", "°C",
        lambda plan: plan.temperature_rise_c, lambda value, was, limit: value > was.high + limit,
    ),
    OperationRule(
        "power", "power_w", "value > high * power_ratio",
        "meters differ by a tenth; a fifth more is another load or another clock", "W",
        lambda plan: plan.power_ratio, lambda value, was, limit: value > was.high * limit,
    ),
    OperationRule(
        "memory", "memory_bytes", "value > high * memory_ratio",
        "a leak grows past what any hour needed", "bytes",
        lambda plan: plan.memory_ratio, lambda value, was, limit: value > was.high * limit,
    ),
    OperationRule(
        "rate", "rate_per_s", "value > high * rate_ratio or value < low / (2 * rate_ratio)",
        "the plan was made for the recorded load; a load that is gone is a fault somewhere before the server", "/s",
        lambda plan: plan.rate_ratio,
        lambda value, was, limit: value > was.high * limit or value < was.low / (2 * limit),
    ),
    OperationRule(
        "latency", "latency_ms_p95", "value > high * latency_ratio",
        "windows of a hundred requests move a P95 by a third by chance", "ms",
        lambda plan: plan.latency_ratio, lambda value, was, limit: value > was.high * limit,
    ),
    OperationRule(
        "errors", "error_share", "value > high + error_excess, and beyond chance (binomial)",
        "one request in a hundred is what most promises allow", "share",
        lambda plan: plan.error_excess, lambda value, was, limit: value > was.high + limit,
    ),
)  # fmt: skip


def reading(before: Scrape, after: Scrape, sensed: Sensed | None) -> Reading:
    """Figures between two scrapes.

    Args:
        before: The earlier one.
        after: The later one.
        sensed: This machine's sensors; ``None``: the server is elsewhere.
    """
    grown = since(before, after)
    span_s = after.at_s - before.at_s
    ended = grown.by("loadslice_requests_total", "outcome")
    requests = sum(count for outcome, count in ended.items() if outcome != "cancelled")
    p95_s = percentile_s(grown, "loadslice_request_seconds", 0.95)
    figures: dict[str, float | None] = {
        "rate_per_s": sum(ended.values()) / span_s if span_s > 0 else None,
        "error_share": sum(ended.get(outcome, 0.0) for outcome in OURS) / requests if requests else None,
        "latency_ms_p95": None if p95_s is None else p95_s * 1000,
    }
    elsewhere = dict.fromkeys(("temperature_c", "power_w", "memory_bytes"), "the server runs on another machine")
    return Reading(
        requests=int(sum(ended.values())),
        temperature_c=None if sensed is None else sensed.temperature_c,
        power_w=None if sensed is None else sensed.power_w,
        memory_bytes=None if sensed is None else sensed.memory_bytes,
        absent=elsewhere if sensed is None else sensed.absent,
        **figures,
    )


class OperationWatch:
    """Watches figures of operation.

    Args:
        baseline: Checked.
    """

    def __init__(self, baseline: Baseline) -> None:
        self._plan = baseline.plan.operating
        self._alpha = baseline.plan.false_alarm
        self._ranges = baseline.operating
        self._out: dict[str, int] = {}
        """In how many looks in a row a figure was out of its range."""
        self._well: dict[str, int] = {}
        self._firing: set[str] = set()

    @property
    def firing(self) -> list[str]:
        """Rules that fire."""
        return sorted(self._firing)

    def feed(self, one: Reading) -> list[Alert]:
        """Take in one reading; returns what began and what ended with it."""
        alerts: list[Alert] = []
        for rule in RULES:
            value, limit, was = getattr(one, rule.figure), rule.limit(self._plan), self._ranges.get(rule.figure)
            if value is None or limit is None or was is None:
                continue
            if rule.figure in NEEDS_REQUESTS and (one.requests or 0) < self._plan.requests_min:
                continue
            is_out = rule.is_out(value, was, limit) and self._beyond_chance(rule, one, was)
            self._out[rule.name] = self._out.get(rule.name, 0) + 1 if is_out else 0
            self._well[rule.name] = 0 if is_out else self._well.get(rule.name, 0) + 1
            if self._out[rule.name] >= self._plan.looks and rule.name not in self._firing:
                self._firing.add(rule.name)
                alerts.append(self._alert(rule, value, was))
            elif self._well[rule.name] >= self._plan.looks and rule.name in self._firing:
                self._firing.discard(rule.name)
                alerts.append(
                    Alert(
                        what=rule.figure,
                        test=rule.name,
                        state="resolved",
                        samples=None,
                        at_s=None,
                        text=f"{rule.figure}: in its range again",
                        figures={"value": value},
                    )
                )
        return alerts

    def _beyond_chance(self, rule: OperationRule, one: Reading, was: Range) -> bool:
        if rule.figure != "error_share":
            return True
        requests, share = one.requests or 0, one.error_share or 0.0
        alpha = self._alpha * requests / HORIZON_SAMPLES
        return compare.more(round(share * requests), requests, max(was.high, 1 / HORIZON_SAMPLES)) <= alpha

    def _alert(self, rule: OperationRule, value: float, was: Range) -> Alert:
        return Alert(
            what=rule.figure, test=rule.name, state="firing", samples=None, at_s=None,
            text=f"{rule.figure}: {value:.4g} {rule.unit}, {was.low:.4g} to {was.high:.4g} in the baseline "
            f"({rule.formula}, {self._plan.looks} looks in a row)",
            figures={"value": value, "low": was.low, "high": was.high},
        )  # fmt: skip


def prometheus_rules(baseline: Baseline) -> list[dict[str, object]]:
    """Alert rules for Prometheus with the baseline's limits, on what the server exports and what a watch exports."""
    plan, was = baseline.plan.operating, baseline.operating
    ends = "sum(rate(loadslice_requests_total[5m]))"
    bad = f'sum(rate(loadslice_requests_total{{outcome=~"{"|".join(OURS)}"}}[5m]))'
    rules: list[dict[str, object]] = [
        _rule("LoadsliceDrift", "max by (what, test) (loadslice_watch_firing) > 0", "0m", "not as in the baseline"),
        _rule("LoadsliceWatchGone", "absent(loadslice_watch_samples_total)", "10m", "nobody watches"),
    ]
    if plan.latency_ratio is not None and (found := was.get("latency_ms_p95")) is not None:
        limit_s = found.high * plan.latency_ratio / 1000
        p95 = "histogram_quantile(0.95, sum by (le) (rate(loadslice_request_seconds_bucket[5m])))"
        rules.append(_rule("LoadsliceLatency", f"{p95} > {limit_s:.6g}", "5m", "P95 above its baseline"))
    if plan.error_excess is not None and (found := was.get("error_share")) is not None:
        limit = found.high + plan.error_excess
        rules.append(_rule("LoadsliceErrors", f"{bad} / {ends} > {limit:.6g}", "5m", "errors above their baseline"))
    if plan.rate_ratio is not None and (found := was.get("rate_per_s")) is not None:
        high, low = found.high * plan.rate_ratio, found.low / (2 * plan.rate_ratio)
        rules.append(
            _rule("LoadsliceRate", f"{ends} > {high:.6g} or {ends} < {low:.6g}", "10m", "load unlike its baseline")
        )
    return rules


def _rule(name: str, expression: str, for_how_long: str, summary: str) -> dict[str, object]:
    return {
        "alert": name, "expr": expression, "for": for_how_long, "labels": {"severity": "warning"},
        "annotations": {"summary": summary},
    }  # fmt: skip
