"""`loadslice rewrite`: change a model so that a device runs more of it, and prove that it computes the same."""

from collections.abc import Iterator
from pathlib import Path

import click

from loadslice.app.ending import NEGATIVE
from loadslice.app.output import emit, json_option, say, seed_option
from loadslice.graph import rewrites
from loadslice.graph.coverage_stage import write
from loadslice.graph.inputs import check_shapes, parse_shapes
from loadslice.graph.load import load
from loadslice.graph.rewrites.proof import prove
from loadslice.spec.errors import InputError
from loadslice.spec.files import replacing, resolve_model, resolved, sha256_file
from loadslice.spec.rewrite import RewriteReport, RewriteStep


@click.command("rewrite")
@click.argument("model", required=False)
@click.option("--pass", "names", multiple=True, metavar="NAME", help="A rewrite, or several joined by '+'; repeats.")
@click.option("--list", "listed", is_flag=True, help="List the rewrites and end.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1x3x640x640", help="Shape of an open input; repeats.")
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), default=None, help="The model to write.")
@click.option("--proof/--no-proof", "proved", default=True, help="Run both models in ONNX Runtime on random inputs.")
@seed_option
@json_option
def command(
    model: str | None,
    names: tuple[str, ...],
    listed: bool,
    shapes: tuple[str, ...],
    out: Path | None,
    proved: bool,
    seed: int,
    as_json: bool,
) -> int:
    """Change MODEL so that more of it runs on a device, and prove that it still computes the same.

    `loadslice inspect MODEL --device D` says which rewrite would remove which fallback. Each step is proved against the
    model before it; a difference above the step's tolerance is exit code 3 and nothing is written.

    Example: loadslice rewrite det.onnx --shape x=1x3x640x640 --pass static-shapes+fold-constants -o det-640.onnx
    """
    given = parse_shapes(shapes)
    if listed:
        found = rewrites.available(given)
        document = [{"name": one.name, "title": one.title} for one in found]
        emit(document, as_json=as_json, text=lambda: (f"{one.name:<24}{one.title}" for one in found))
        return 0
    if model is None or out is None or not names:
        raise InputError("rewrite needs MODEL, --pass and -o. `loadslice rewrite --list` has the rewrites.")
    path = resolve_model(model, Path.cwd())
    if resolved(out) == resolved(path):
        raise InputError(f"{out}: is the model itself; write the rewritten one beside it.")
    before = load(path, weights=True)
    check_shapes(path, before, given)
    steps, after = [], before
    for name in [part for several in names for part in several.split("+")]:
        rewrite = rewrites.find(name, given)
        result = rewrites.apply(rewrite, after)
        proof = prove(after, result.model, given, seed=seed) if proved else None
        step = RewriteStep(
            rewrite=rewrite.name,
            changes=result.changes,
            nodes_before=len(after.graph.node),
            nodes_after=len(result.model.graph.node),
            tolerance=result.tolerance,
            proof=proof,
        )
        steps.append(step)
        if proof is not None and (proof.relative or 0.0) > result.tolerance:
            say(
                f"loadslice: {rewrite.name}: outputs differ by {proof.relative:.2g} of their range, more than the "
                f"{result.tolerance:g} allowed; nothing is written."
            )
            return NEGATIVE
        after = result.model
    with replacing(out) as temporary:
        write(after, temporary)
    report = RewriteReport(
        model=str(path), sha256=sha256_file(path), out=str(out), out_sha256=sha256_file(out), steps=steps
    )
    emit(report, as_json=as_json, text=lambda: _lines(report))
    return 0


def _lines(report: RewriteReport) -> Iterator[str]:
    for step in report.steps:
        proof = step.proof
        said = "not proved"
        if proof is not None:
            said = f"outputs differ by at most {proof.max_abs_diff:.2g} (largest output {proof.max_abs_output:.3g})"
        yield f"{step.rewrite:<24}{step.changes:>5} changes, {step.nodes_before} -> {step.nodes_after} nodes; {said}"
    yield f"written to {report.out}"
