"""Which charts a report has and what each of them says in words."""

from markupsafe import Markup

from loadslice.evaluate.report import charts, words
from loadslice.spec.latency import Entry, Milliseconds
from loadslice.spec.portrait import Portrait
from loadslice.spec.report import QUANTILES, PlanReport, RateCurve, Report, StageTimes

ENGINE_ROWS_MAX = 24
"""Lines of one engine chart; with more entries the fewest and the most rows are shown, the table has all."""


def all_charts(report: Report) -> dict[str, Markup]:
    """Every chart there is data for, by name."""
    made: dict[str, Markup | None] = {
        "rate": _rate(report.rate_curve),
        "week": _week(report.portrait),
        "waterline": _waterline(report.portrait),
        "roofline": _roofline(report),
        "percentiles": _percentiles(report),
        "curves": _curves(report),
    }
    for histogram in report.sizes:
        made[f"size-{histogram.column}"] = charts.histogram(
            f"size-{histogram.column}",
            f"Requests by {histogram.column}",
            f"Most requests ({max(histogram.requests)}) fall into one of {len(histogram.requests)} bins; sizes reach "
            f"{histogram.edges[-1]:.0f} {histogram.unit}.",
            histogram.edges,
            histogram.requests,
            x_label=f"{histogram.column.replace('_', ' ')} ({histogram.unit})",
            y_label="requests",
        )
    for plan in report.plans:
        made[f"stages-{plan.name}"] = _stages(plan)
    for variant in dict.fromkeys(entry.variant for entry in report.latency_table):
        made[f"engines-{variant}"] = _engines(variant, [e for e in report.latency_table if e.variant == variant])
    return {name: chart for name, chart in made.items() if chart is not None}


def _rate(curve: RateCurve | None) -> Markup | None:
    if curve is None:
        return None
    unit_s, unit = (60.0, "minutes") if len(curve.rate_per_s) * curve.bin_s < 7200 else (3600.0, "hours")
    peak = max(curve.rate_per_s)
    return charts.steps(
        "rate",
        "Requests per second over the trace",
        f"{len(curve.rate_per_s)} columns of {words.seconds(curve.bin_s)}; the highest is {peak:.2f} requests/s. "
        "The marked part was replayed.",
        curve.rate_per_s,
        curve.bin_s / unit_s,
        x_label=f"{unit} since the trace began",
        y_label="requests/s",
        band=(curve.replayed_from_s / unit_s, curve.replayed_to_s / unit_s),
    )


def _week(portrait: Portrait | None) -> Markup | None:
    """The hour-of-week curve, where the trace covers at least a day of it."""
    if portrait is None:
        return None
    known = [value for value in portrait.arrival.hour_of_week if value is not None]
    if len(known) < 24:
        return None
    return charts.steps(
        "week",
        "Requests per second by hour of the week",
        f"{len(known)} of 168 hours are covered; from {min(known):.2f} to {max(known):.2f} requests per second.",
        [value or 0.0 for value in portrait.arrival.hour_of_week],
        1.0,
        x_label="hour of the week"
        + (
            ", Monday 0 h UTC first"
            if portrait.arrival.hour_of_week_origin == "monday_00_utc"
            else ", first request first"
        ),
        y_label="requests/s",
    )


def _waterline(portrait: Portrait | None) -> Markup | None:
    """Work by hour, where there are enough hours for a curve; fewer stand in the table."""
    if portrait is None:
        return None
    by_hour: dict[int, float] = {}
    for water in portrait.waterline:
        work = water.work_flop_per_s if water.work_flop_per_s is not None else water.work_tokens_per_s
        by_hour[water.hour] = by_hour.get(water.hour, 0.0) + (water.requests_per_s if work is None else work)
    if len(by_hour) < 6:
        return None
    first = portrait.waterline[0]
    unit = "FLOP/s" if first.work_flop_per_s is not None else "tokens/s" if first.work_tokens_per_s else "requests/s"
    hours = range(min(by_hour), max(by_hour) + 1)
    return charts.steps(
        "waterline",
        "Work asked for, by hour",
        f"From {min(by_hour.values()):.3g} to {max(by_hour.values()):.3g} {unit}.",
        [by_hour.get(hour, 0.0) for hour in hours],
        1.0,
        x_label="hour of the trace",
        y_label=unit,
    )


def _roofline(report: Report) -> Markup | None:
    roofs: dict[str, charts.Roof] = {}
    points = []
    for model in report.models:
        inspection = model.inspection
        for name, fit in inspection.devices.items():
            if fit.peak_flop_per_s and fit.bandwidth_bytes_per_s:
                roofs[name] = charts.Roof(name, fit.peak_flop_per_s, fit.bandwidth_bytes_per_s)
            if inspection.intensity_flop_per_byte and fit.attainable_flop_per_s:
                points.append(
                    charts.Point(
                        ", ".join(model.stages),
                        inspection.intensity_flop_per_byte,
                        fit.attainable_flop_per_s,
                        measured=False,
                    )
                )
    if not roofs or not points:
        return None
    shown = list(roofs.values())[:3]
    said = "; ".join(f"{point.label} at {point.intensity_flop_per_byte:.3g} FLOP per byte" for point in points)
    return charts.roofline(
        "roofline", "What the device can give each model", f"Under the roof of {shown[0].label}: {said}.", shown, points
    )


def _percentiles(report: Report) -> Markup | None:
    rows = []
    for index, plan in enumerate(report.plans):
        for figure in plan.compared:
            if figure.figure not in ("p50", "p95", "p99"):
                continue
            dots = [
                charts.Dot(
                    value,
                    low=interval.low if interval else None,
                    high=interval.high if interval else None,
                    hollow=hollow,
                    series=index % 3,
                )
                for value, interval, hollow in (
                    (figure.predicted, figure.predicted_95, True),
                    (figure.measured, figure.measured_95, False),
                )
                if value is not None
            ]
            if dots:
                rows.append(charts.Row(f"{plan.title.removesuffix(' alone')} {figure.figure.upper()}", dots))
    if not rows:
        return None
    return charts.dots(
        "percentiles",
        "Latency of each plan, predicted and measured",
        "; ".join(f"{row.label}: " + " and ".join(f"{dot.value:.0f} ms" for dot in row.dots) for row in rows),
        rows,
        x_label="latency from the due time, ms",
        limits=_limits(report),
    )


def _curves(report: Report) -> Markup | None:
    curves = []
    highest = 0.0
    for index, plan in enumerate(report.plans):
        for quantiles, dashed in ((plan.measured_quantiles_ms, False), (plan.predicted_quantiles_ms, True)):
            if quantiles is None:
                continue
            points = [(value, 100 * share) for value, share in zip(quantiles, QUANTILES, strict=True)]
            curves.append(charts.Line(plan.title, points, series=index % 3, dashed=dashed))
            highest = max(highest, quantiles[-1])
    if not curves:
        return None
    return charts.lines(
        "curves",
        "Share of requests answered within a time",
        f"One curve per plan, measured (solid) and predicted (dashed); the slowest answer took {highest:.0f} ms.",
        curves,
        x_label="latency from the due time, ms",
        y_label="% of completed requests",
        limits=_limits(report),
    )


def _limits(report: Report) -> list[charts.Limit]:
    return [charts.Limit(ms, f"{name.upper()} limit") for name, ms in report.budget.slo.latency_limits_ms.items()]


def _stages(plan: PlanReport) -> Markup | None:
    bars = []
    for stage in plan.stages:
        name = stage.stage
        if stage.predicted is not None:
            bars.append(charts.Bar(f"{name}, predicted", _parts(stage.predicted)))
        if stage.measured is not None:
            bars.append(charts.Bar(f"{name}, measured", _parts(stage.measured)))
    if not bars:
        return None
    return charts.stacked(
        f"stages-{plan.name}",
        f"Mean time at each stage: {plan.title}",
        "; ".join(f"{bar.label}: {sum(length for _, length in bar.parts):.1f} ms" for bar in bars),
        bars,
        x_label="mean time per request, ms",
    )


def _parts(times: StageTimes) -> list[tuple[str, float]]:
    if times.compute_ms_mean is None:
        return [("queue", times.queue_ms_mean), ("service", max(times.service_ms_mean, 0.0))]
    return [("queue", times.queue_ms_mean), ("compute", times.compute_ms_mean), ("copy", times.copy_ms_mean or 0.0)]


def _engines(variant: str, entries: list[Entry]) -> Markup | None:
    rows = []
    entries = [entry for entry in entries if not (entry.source or "").startswith("python ")]
    names = list(dict.fromkeys(entry.engine for entry in entries))
    if len(entries) > ENGINE_ROWS_MAX:
        batches = {entry.batch for entry in entries}
        entries = [entry for entry in entries if entry.batch in (min(batches), max(batches))]
    for entry in entries[:ENGINE_ROWS_MAX]:
        dots = [
            charts.Dot(
                p50, high=p99, low=p50 if p99 is not None else None, hollow=hollow, series=names.index(entry.engine) % 3
            )
            for times, hollow in ((entry.latency_ms, False), (entry.contended_ms, True))
            if times is not None
            for p50, p99 in [percentiles(times)]
            if p50 is not None
        ]
        if dots:
            shape = " " + "×".join(map(str, entry.shape[-2:])) if entry.shape else ""
            rows.append(charts.Row(f"{entry.engine}{shape}, {entry.batch} row{'s' if entry.batch > 1 else ''}", dots))
    if not rows:
        return None
    return charts.dots(
        f"engines-{variant}",
        f"Time of '{variant}' by engine, shape and rows",
        "; ".join(f"{row.label}: {row.dots[0].value:.2f} ms" for row in rows),
        rows,
        x_label="time of one batch, ms: median to P99",
    )


def percentiles(times: Milliseconds) -> tuple[float | None, float | None]:
    """P50 and P99 of a distribution in any of its forms; ``None`` where it does not say."""
    if times.samples:
        ordered = sorted(times.samples)
        return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return times.p50 if times.p50 is not None else times.mean, times.p99
