"""Is the knee where it was predicted, and do the parts of a lone request's latency add up to it?

The layers `latency`, `ramp` and `attribution` of `examples/evaluation` and `examples/ocr`, by turns; each prediction is
made before its ramp starts. Beside each error stand what the rounds of its ramp differed by and how much slower the
machine had become since the prediction: an error within those is the machine's.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks import Figures, load_average_1m
from loadslice.app import evaluate_run
from loadslice.app.output import emit, json_option, keep, out_option, say
from loadslice.spec import evaluation as evaluations
from loadslice.spec.evaluation import Evaluation, LayerName

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SUBJECTS = {
    "plates": EXAMPLES / "evaluation/evaluation.yaml",
    "ocr": EXAMPLES / "ocr/evaluation.yaml",
}
LAYERS: list[LayerName] = ["latency", "ramp", "attribution"]
ROUNDS, STEP_S, REPEATS = 1, 2.0, 3
PROFILE_S = 4.0
WITHIN_PCT = 5.0
CLOSED_PCT = 2.0


def run(rounds: int = ROUNDS, subjects: Iterable[str] = tuple(SUBJECTS)) -> Figures:
    """All evaluations by turns.

    Args:
        rounds: Of each.
        subjects: Which.

    Returns:
        For each placement medians over rounds; ``_worst``: the largest of either sign.
    """
    figures: Figures = {"load_average_1m_before": load_average_1m()}
    found: dict[str, list[dict[str, Any]]] = {}
    for number in range(rounds):
        for subject in subjects:
            say(f"{subject}, round {number + 1} of {rounds}")
            for name, one in _once(SUBJECTS[subject]).items():
                found.setdefault(f"{subject}_{name}", []).append(one)
    for name, ones in found.items():
        for key in ones[0]:
            known = [one[key] for one in ones if one[key] is not None]
            figures[f"{name}_{key}"] = statistics.median(known) if known else None
        for key in ("rate_error_pct", "clients_error_pct", "unexplained_pct"):
            known = [one[key] for one in ones if one[key] is not None]
            figures[f"{name}_{key}_worst"] = max(known, key=abs, default=None)
    every = [one for ones in found.values() for one in ones]
    for key in ("rate_error_pct", "clients_error_pct"):
        figures[f"{key}_within_{WITHIN_PCT:g}"] = _within(every, key, WITHIN_PCT)
    figures[f"unexplained_within_{CLOSED_PCT:g}"] = _within(every, "unexplained_pct", CLOSED_PCT)
    figures["load_average_1m_after"] = load_average_1m()
    return figures


def _within(every: list[dict[str, Any]], key: str, limit: float) -> str:
    known = [one[key] for one in every if one[key] is not None]
    return f"{sum(abs(value) <= limit for value in known)} of {len(known)}"


def _wanted(path: Path) -> Evaluation:
    wanted = evaluations.load(path)
    return msgspec.structs.replace(wanted, layers=list(LAYERS), repeats=REPEATS, step_s=STEP_S, clients_max=16)


def _once(path: Path) -> dict[str, dict[str, Any]]:
    """Placement -> its figures."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as out:
        bench = evaluate_run.open_all(path, _wanted(path), Path(out), None, allow_remote=False)
        report = evaluate_run.run(bench, Path(out), None, profile_s=PROFILE_S)
    layers = {layer.name: layer.figures for layer in report.layers}
    found = {}
    for name, ramp in layers["ramp"].items():
        knee, guess = ramp["knee"] or {}, ramp["knee_predicted"] or {}
        low, high = knee.get("throughput_per_s_range") or (None, None)
        found[name] = {
            "rate_per_s": knee.get("throughput_per_s"),
            "rate_predicted_per_s": guess.get("throughput_per_s"),
            "rate_error_pct": ramp["knee_error_pct"],
            "clients": knee.get("clients"),
            "clients_predicted": guess.get("clients"),
            "clients_error_pct": ramp["knee_clients_error_pct"],
            "rounds_differ_pct": None if low is None else 100 * (high - low) / knee["throughput_per_s"],
            "slower_than_predicted_from_pct": ramp["one_client_slower_than_predicted_pct"],
            "unexplained_pct": layers["attribution"].get(name, {}).get("unexplained_pct"),
        }
        steps = "; ".join(
            f"{step['clients']}: {step['throughput_per_s'] or 0:.1f} ({step['throughput_per_s_predicted'] or 0:.1f})"
            for step in ramp["steps"]
        )
        say(f"  {name}, {time.monotonic() - began_s:.0f} s: answers/s by clients, measured (predicted): {steps}")
    return found


@click.command(epilog="Example: python -m benchmarks.knee_bench --rounds 3 plates")
@click.argument("subjects", nargs=-1, type=click.Choice(list(SUBJECTS)))
@click.option("--rounds", type=click.IntRange(1, 100), default=ROUNDS, show_default=True, help="Of each evaluation.")
@json_option
@out_option
def command(subjects: tuple[str, ...], rounds: int, as_json: bool, out: Path | None) -> None:
    """Print how far the knee was from where it had been predicted."""
    figures = run(rounds, subjects or tuple(SUBJECTS))
    keep(figures, out, "knee.json")
    emit(figures, as_json=as_json, text=lambda: _lines(figures))


def _lines(figures: Figures) -> Iterable[str]:
    for key, value in figures.items():
        yield f"{key:<52} {value:,.4g}" if isinstance(value, float) else f"{key:<52} {value}"


if __name__ == "__main__":
    sys.exit(command())
