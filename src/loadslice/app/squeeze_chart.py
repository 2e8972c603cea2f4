"""Pictures beside `squeeze.json`: speed and quality of every candidate, and what calibration sets were worth."""

from collections.abc import Sequence

from markupsafe import Markup

from loadslice.evaluate.report.svg import Scale, ceiling, element, text, x_axis, y_axis
from loadslice.spec.variant import Calibration, Squeeze, Variant

WIDTH, HEIGHT = 640.0, 400.0
SQNR_DB_SHOWN_MAX = 60.0
"""Beyond, differences are those of fp32 kernels; such variants stand at the upper edge."""

_STYLE = """
text { font: 11px system-ui, sans-serif; fill: #56606b } .label { fill: #1a1e23 } .grid { stroke: #dde2e7 }
.axis { stroke: #56606b } .front { fill: #0067a8 } .behind { fill: #9aa6b2 } .below { fill: none; stroke: #8a1c4b }
.shipped { fill: #b84700 } rect { fill: #ffffff }
"""


def draw(result: Squeeze) -> str:
    """An SVG file: speed-up to the right, signal to noise upwards; orange shipped, blue on the front, hollow too bad.

    Args:
        result: At least one variant measured here.
    """
    shown = [one for one in result.variants if one.speedup_vs_untuned is not None]
    across = Scale(0.0, ceiling(max(one.speedup_vs_untuned or 0.0 for one in shown)), 46.0, WIDTH - 24)
    up = Scale(0.0, SQNR_DB_SHOWN_MAX, HEIGHT - 46, 36.0)
    parts = [
        element("title", f"{result.model}: speed and quality of every candidate"),
        element("style", Markup(_STYLE)),  # noqa: S704 - ours
        element("rect", width=WIDTH, height=HEIGHT),
        x_axis(across, HEIGHT - 40, "times faster than ONNX Runtime as it comes", top=36.0),
        y_axis(up, 46.0, WIDTH - 24, f"signal to noise, dB (floor: {result.floor})"),
    ]
    for one in sorted(shown, key=lambda one: one.shipped):
        x, y = across(one.speedup_vs_untuned or 0.0), up(_db(one))
        label = one.name.partition("-")[2] if one.shipped or one.on_front or _rival(one) else ""
        parts.append(
            element("circle", element("title", f"{one.name}: {one.why}"), cx=x, cy=y, r=4.5, class_=_kind(one))
        )
        if label:
            end = x > WIDTH * 0.6
            parts.append(text(x + (-8 if end else 8), y + 4, label, text_anchor="end" if end else "start"))
    return _page(parts)


def draw_calibration(found: Calibration) -> str:
    """An SVG file: inputs calibrated on to the right, signal to noise of what came of them upwards.

    Args:
        found: With at least one trial that differs from the source.
    """
    shown = [(trial, trial.sqnr_db) for trial in found.trials if trial.sqnr_db is not None]
    levels = [level for _, level in shown]
    across = Scale(0.0, ceiling(float(max(trial.inputs for trial, _ in shown))), 46.0, WIDTH - 24)
    up = Scale(min(0.0, min(levels)), ceiling(max(0.1, *levels)), HEIGHT - 46, 36.0)
    parts = [
        element("title", "What INT8 answers are worth, by calibration set"),
        element("style", Markup(_STYLE)),  # noqa: S704 - ours
        element("rect", width=WIDTH, height=HEIGHT),
        x_axis(across, HEIGHT - 40, "inputs calibrated on: orange by coverage, grey drawn at random", top=36.0),
        y_axis(up, 46.0, WIDTH - 24, "signal to noise on the inputs to choose by, dB"),
    ]
    for trial, level in shown:
        kind = "shipped" if trial.method == "coverage" else "behind"
        named = f"{trial.inputs} inputs by {trial.method}" + ("" if trial.seed is None else f" (draw {trial.seed})")
        parts.append(
            element(
                "circle", element("title", f"{named}: {level:.2f} dB"), cx=across(float(trial.inputs)), cy=up(level),
                r=4.5, class_=kind,
            )
        )  # fmt: skip
    return _page(parts)


def _page(parts: Sequence[Markup]) -> str:
    return str(
        element(
            "svg",
            Markup("").join(parts),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
            role="img",
        )
    )


def _rival(one: Variant) -> bool:
    """Three answers to the same loss, which a reader wants to find: layers kept, bf16, scales as they come."""
    return bool(one.kept_layers) or one.target == "cpu-bf16" or one.scheme.activation_scales == "dynamic"


def _kind(one: Variant) -> str:
    if one.shipped:
        return "shipped"
    if "below the floor" in one.why:
        return "below"
    return "front" if one.on_front else "behind"


def _db(one: Variant) -> float:
    return SQNR_DB_SHOWN_MAX if one.sqnr_db is None else max(0.0, min(one.sqnr_db, SQNR_DB_SHOWN_MAX))
