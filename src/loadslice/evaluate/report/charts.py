"""The report's charts. Series differ in shape or dash as well as in colour, so that colour carries nothing alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from loadslice.evaluate.report.svg import (
    WIDTH,
    Scale,
    ceiling,
    drawing,
    element,
    number,
    text,
    x_axis,
    y_axis,
)

LEFT, RIGHT, TOP = 44.0, WIDTH - 12.0, 22.0


@dataclass(frozen=True, slots=True)
class Line:
    """A curve."""

    label: str
    points: Sequence[tuple[float, float]]
    series: int = 0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """A promised value, drawn across the chart."""

    value: float
    label: str


@dataclass(frozen=True, slots=True)
class Dot:
    """A value with its interval."""

    value: float
    low: float | None = None
    high: float | None = None
    hollow: bool = False
    series: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a dot chart."""

    label: str
    dots: list[Dot] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bar:
    """One horizontal bar of parts."""

    label: str
    parts: list[tuple[str, float]]
    """Part class (``queue``, ``copy``, ``compute``, ``service``) and length."""


@dataclass(frozen=True, slots=True)
class Roof:
    """A device's limits."""

    label: str
    peak_flop_per_s: float
    bandwidth_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Point:
    """A model under a roof."""

    label: str
    intensity_flop_per_byte: float
    flop_per_s: float
    measured: bool


def steps(
    name: str,
    title: str,
    description: str,
    values: Sequence[float],
    width: float,
    *,
    x_label: str,
    y_label: str,
    band: tuple[float, float] | None = None,
) -> Markup:
    """A rate over time as columns without gaps.

    Args:
        name: Unique in the page.
        title: What it shows.
        description: In words.
        values: One per column.
        width: What one column spans on the x axis.
        x_label: With its unit.
        y_label: With its unit.
        band: Part of the x axis to mark.
    """
    bottom, height = 150.0, 186.0
    x = Scale(0, len(values) * width, LEFT, RIGHT)
    y = Scale(0, ceiling(max(values, default=1) or 1), bottom, TOP)
    parts = [y_axis(y, LEFT, RIGHT, y_label)]
    if band is not None:
        left, right = x(band[0]), x(band[1])
        parts.append(element("rect", x=left, width=max(right - left, 2), y=TOP, height=bottom - TOP, class_="band"))
    path = [f"M{LEFT:.1f} {bottom:.1f}"]
    for index, value in enumerate(values):
        path.append(f"V{y(value):.1f}H{x((index + 1) * width):.1f}")
    parts.append(element("path", d="".join(path) + f"V{bottom:.1f}Z", class_="area"))
    parts.append(x_axis(x, bottom, x_label, count=6))
    return drawing(name, title, description, height, parts)


def histogram(
    name: str,
    title: str,
    description: str,
    edges: Sequence[float],
    counts: Sequence[float],
    *,
    x_label: str,
    y_label: str,
) -> Markup:
    """Counts per bin; bins are drawn to their width."""
    bottom, height = 150.0, 186.0
    x = Scale(edges[0], edges[-1], LEFT, RIGHT)
    y = Scale(0, ceiling(max(counts, default=1) or 1), bottom, TOP)
    parts = [y_axis(y, LEFT, RIGHT, y_label)]
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        left, right, top = x(low), x(high), y(count)
        parts.append(
            element("rect", x=left + 0.5, width=max(right - left - 1, 0.5), y=top, height=bottom - top, class_="bar")
        )
    parts.append(x_axis(x, bottom, x_label))
    return drawing(name, title, description, height, parts)


def lines(
    name: str,
    title: str,
    description: str,
    curves: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    limits: Sequence[Limit] = (),
    x_high: float | None = None,
) -> Markup:
    """Curves over a linear plane from 0; ``limits`` are drawn upright at their x."""
    bottom, height = 190.0, 226.0
    points = [point for curve in curves for point in curve.points]
    high = max([x for x, _ in points] + [limit.value for limit in limits], default=1)
    x = Scale(0, x_high or ceiling(high), LEFT, RIGHT)
    y = Scale(0, ceiling(max((value for _, value in points), default=1)), bottom, TOP)
    parts = [y_axis(y, LEFT, RIGHT, y_label), x_axis(x, bottom, x_label, top=TOP)]
    parts += [_upright(x(limit.value), TOP, bottom, limit.label, label_y=bottom - 6) for limit in limits]
    for curve in curves:
        shown = [point for point in curve.points if point[0] <= x.high]
        path = "M" + "L".join(f"{x(at):.1f} {y(value):.1f}" for at, value in shown)
        dash = " dashed" if curve.dashed else ""
        parts.append(element("path", d=path, class_=f"line s{curve.series}{dash}"))
    return drawing(name, title, description, height, parts)


def dots(
    name: str,
    title: str,
    description: str,
    rows: Sequence[Row],
    *,
    x_label: str,
    limits: Sequence[Limit] = (),
    log: bool = False,
) -> Markup:
    """Values with intervals, one labelled line each; a hollow dot is a prediction, a full one a measurement."""
    label_width, step = 128.0, 21.0
    values = [
        value for row in rows for dot in row.dots for value in (dot.value, dot.low, dot.high) if value is not None
    ]
    values += [limit.value for limit in limits]
    low, high = min(values, default=1.0), max(values, default=1.0)
    bottom = TOP + step * len(rows) + 4
    x = (
        Scale(_decade(low, up=False), _decade(high, up=True), label_width, RIGHT, log=True)
        if log
        else Scale(0, ceiling(high), label_width, RIGHT)
    )
    parts = [x_axis(x, bottom, x_label, top=TOP - 4, count=4)]
    parts += [_upright(x(limit.value), TOP - 4, bottom, limit.label) for limit in limits]
    for index, row in enumerate(rows):
        y = TOP + step * (index + 0.5)
        parts.append(text(label_width - 10, y + 4, row.label, text_anchor="end"))
        for number_, dot in enumerate(row.dots):
            # Dots of one line stand apart, so that equal values stay visible.
            parts.append(_dot(dot, x, y + 5.0 * (number_ - (len(row.dots) - 1) / 2)))
    return drawing(name, title, description, bottom + 36, parts)


def _decade(value: float, *, up: bool) -> float:
    """The 1, 2 or 5 times a power of ten at or beyond a value."""
    power = 1e-9
    steps_up = [factor * power * 10**exponent for exponent in range(24) for factor in (1.0, 2.0, 5.0)]
    if up:
        return next((step for step in steps_up if step >= value), value)
    return next((step for step in reversed(steps_up) if step <= value), value)


def _dot(dot: Dot, x: Scale, y: float) -> Markup:
    parts = []
    if dot.low is not None and dot.high is not None:
        parts.append(element("line", x1=x(dot.low), x2=x(dot.high), y1=y, y2=y, class_=f"whisker s{dot.series}"))
    kind = "hollow" if dot.hollow else "full"
    parts.append(element("circle", cx=x(dot.value), cy=y, r=3.6, class_=f"dot {kind} s{dot.series}"))
    return Markup("").join(parts)


def _upright(x: float, top: float, bottom: float, label: str, label_y: float | None = None) -> Markup:
    line = element("line", x1=x, x2=x, y1=top, y2=bottom, class_="limit")
    anchor = "end" if x > WIDTH * 0.6 else "start"
    y = top - 3 if label_y is None else label_y
    return line + text(x + (-4 if anchor == "end" else 4), y, label, text_anchor=anchor, class_="limit-label")


def stacked(name: str, title: str, description: str, bars: Sequence[Bar], *, x_label: str) -> Markup:
    """Horizontal bars made of parts."""
    label_width, step = 128.0, 17.0
    bottom = 10 + step * len(bars) + 2
    x = Scale(
        0, ceiling(max((sum(length for _, length in bar.parts) for bar in bars), default=1) or 1), label_width, RIGHT
    )
    parts = [x_axis(x, bottom, x_label, top=8, count=4)]
    for index, bar in enumerate(bars):
        y, at = 10 + step * index, 0.0
        parts.append(text(label_width - 10, y + 11, bar.label, text_anchor="end"))
        for kind, length in bar.parts:
            left, right = x(at), x(at + length)
            parts.append(
                element("rect", x=left, width=max(right - left, 0), y=y + 1.5, height=step - 4, class_=f"part {kind}")
            )
            at += length
    return drawing(name, title, description, bottom + 36, parts)


def roofline(name: str, title: str, description: str, roofs: Sequence[Roof], points: Sequence[Point]) -> Markup:
    """Attainable rate against arithmetic intensity, both logarithmic (Williams, Waterman and Patterson 2009)."""
    bottom, height = 200.0, 236.0
    intensities = [point.intensity_flop_per_byte for point in points]
    ridges = [roof.peak_flop_per_s / roof.bandwidth_bytes_per_s for roof in roofs]
    x = Scale(
        _decade(min([*intensities, *ridges]) / 4, up=False),
        _decade(max([*intensities, *ridges]) * 4, up=True),
        LEFT,
        RIGHT,
        log=True,
    )
    rates = [roof.peak_flop_per_s for roof in roofs] + [point.flop_per_s for point in points]
    floor = min([roof.bandwidth_bytes_per_s * x.low for roof in roofs] + [point.flop_per_s / 2 for point in points])
    y = Scale(_decade(floor, up=False), _decade(max(rates) * 1.5, up=True), bottom, TOP, log=True)
    parts = [y_axis(y, LEFT, RIGHT, "FLOP/s"), x_axis(x, bottom, "FLOP per byte moved", top=TOP)]
    for index, roof in enumerate(roofs):
        ridge = roof.peak_flop_per_s / roof.bandwidth_bytes_per_s
        corners = [
            (x.low, roof.bandwidth_bytes_per_s * x.low),
            (ridge, roof.peak_flop_per_s),
            (x.high, roof.peak_flop_per_s),
        ]
        path = "M" + "L".join(f"{x(at):.1f} {y(value):.1f}" for at, value in corners)
        parts.append(element("path", d=path, class_=f"line s{index}"))
        parts.append(
            text(
                RIGHT,
                y(roof.peak_flop_per_s) - 5,
                f"{roof.label}: {number(roof.peak_flop_per_s)} FLOP/s",
                text_anchor="end",
            )
        )
    label_y = -math.inf
    for point in sorted(points, key=lambda point: -point.flop_per_s):
        at, level = x(point.intensity_flop_per_byte), y(point.flop_per_s)
        kind = "full" if point.measured else "hollow"
        parts.append(element("circle", cx=at, cy=level, r=4, class_=f"dot {kind} s1"))
        label_y = max(level + 14, label_y + 13)
        parts.append(text(at + 8, label_y, point.label))
    return drawing(name, title, description, height, parts)
