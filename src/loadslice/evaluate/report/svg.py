"""What every chart is made of: elements, scales and ticks. Colours come from the page's style sheet by class."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH = 400.0
"""Charts are drawn this wide and scaled to the column; text of 11 units stays readable at 330 px."""


def element(tag: str, content: str | Markup = "", **attributes: str | float) -> Markup:
    """One element; ``class_`` becomes ``class``, underscores become hyphens, text is escaped."""
    shown = Markup("").join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), _short(value))
        for name, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(tag, shown, content)


def _short(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


def text(x: float, y: float, words: str, **attributes: str | float) -> Markup:
    """A piece of text at its baseline."""
    return element("text", escape(words), x=x, y=y, **attributes)


def drawing(name: str, title: str, description: str, height: float, parts: Sequence[Markup]) -> Markup:
    """A whole chart, named and described for readers who do not see it.

    Args:
        name: Unique in the page.
        title: What it shows.
        description: What can be read from it, in words.
        height: In units of the drawing.
        parts: Elements.
    """
    head = element("title", escape(title), id=f"{name}-t") + element("desc", escape(description), id=f"{name}-d")
    return element(
        "svg",
        head + Markup("").join(parts),
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        role="img",
        aria_labelledby=f"{name}-t {name}-d",
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from ``low`` .. ``high`` to ``start`` .. ``end`` of the drawing."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Position of a value; values outside are drawn at the edge."""
        if self.high <= self.low:
            return self.start
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        at = math.log10(max(value, self.low)) if self.log else value
        share = min(1.0, max(0.0, (at - low) / (high - low)))
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values to label."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            stride = max(1, math.ceil((last - first) / count))
            return [10.0**power for power in range(first, last + 1, stride)]
        step = round_step(self.high - self.low, count)
        first_index = math.ceil(self.low / step - 1e-9)
        return [index * step for index in range(first_index, math.floor(self.high / step + 1e-9) + 1)]


def round_step(span: float, count: int) -> float:
    """The step of 1, 2 or 5 times a power of ten that divides a span into about ``count`` parts."""
    if span <= 0:
        return 1.0
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= raw * 0.999)


def ceiling(value: float, count: int = 5) -> float:
    """The round number at or above a value where an axis may end."""
    step = round_step(value, count)
    return step * math.ceil(value / step - 1e-9)


def number(value: float) -> str:
    """A tick's label: at most three digits, with k, M, G, T."""
    for factor, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{suffix}"
    return f"{value:.3g}"


def x_axis(scale: Scale, y: float, label: str, *, count: int = 5, top: float | None = None) -> Markup:
    """Ticks and a label below; grid lines up to ``top`` when it is given."""
    parts = []
    for value in scale.ticks(count):
        x = scale(value)
        if top is not None:
            parts.append(element("line", x1=x, x2=x, y1=top, y2=y, class_="grid"))
        parts.append(text(x, y + 14, number(value), text_anchor="middle"))
    parts.append(element("line", x1=scale.start, x2=scale.end, y1=y, y2=y, class_="axis"))
    parts.append(text((scale.start + scale.end) / 2, y + 29, label, text_anchor="middle", class_="label"))
    return Markup("").join(parts)


def y_axis(scale: Scale, left: float, right: float, label: str, *, count: int = 4) -> Markup:
    """Ticks on the left with grid lines to ``right``; the label stands above, level, so that it can be read."""
    parts = [text(2, scale.end - 8, label, class_="label")]
    for value in scale.ticks(count):
        y = scale(value)
        parts.append(element("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(text(left - 5, y + 3.5, number(value), text_anchor="end"))
    return Markup("").join(parts)
