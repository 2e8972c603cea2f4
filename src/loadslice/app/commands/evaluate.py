"""`loadslice evaluate`: does a placement help here, is it still right, and is it worth it?"""

import shlex
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

from loadslice.app.ending import NEGATIVE
from loadslice.app.output import check_folder, emit, guests, json_option, out_option, say
from loadslice.spec import evaluation as evaluations

PROFILE_S, QUICK_PROFILE_S = 15.0, 5.0


@click.command(
    "evaluate", epilog="Example: loadslice evaluate examples/evaluation/evaluation.yaml --quick --out out/evaluation"
)
@click.argument("evaluation_file", metavar="E", type=click.Path(path_type=Path))
@click.option("--quick", is_flag=True, help="A fraction of the time, wider intervals.")
@click.option("--baseline", type=click.Path(path_type=Path), default=None, help="evaluation.json of an earlier run.")
@click.option("--bundle", type=click.Path(path_type=Path), default=None, help="Also write all that repeats it: a .zip.")
@click.option("--allow-remote", is_flag=True, help="Send to servers at addresses that are not this machine's.")
@json_option
@out_option
def command(
    evaluation_file: Path,
    quick: bool,
    baseline: Path | None,
    bundle: Path | None,
    allow_remote: bool,
    as_json: bool,
    out: Path | None,
) -> int:
    """Run every placement that E names through all layers and judge it against the reference.

    Layers, in order: correctness, latency, ramp, soak, abnormal, attribution; and replay where E asks for it. What may
    not differ between placements is checked first. Exit code 3 when a placement is worse than the floors of E, or when
    one did not run to its end. --out keeps evaluation.json, evaluation.html and each placement's journal and profile.
    """
    from loadslice.app import evaluate_bundle, evaluate_run, evaluate_text
    from loadslice.app.evaluate_files import quick as quickened
    from loadslice.evaluate.report.evaluation_page import render
    from loadslice.spec.files import write_bytes

    wanted = evaluations.load(evaluation_file)
    wanted = quickened(wanted) if quick else wanted
    check_folder(out)
    given = shlex.join(["loadslice", *sys.argv[1:]]) if sys.argv[1:2] == ["evaluate"] else "loadslice evaluate"
    with ExitStack() as stack:
        folder = out if out is not None else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evaluate-")))
        stack.enter_context(guests())
        bench = evaluate_run.open_all(evaluation_file, wanted, folder, baseline, allow_remote=allow_remote)
        if bundle is not None:
            evaluate_bundle.check(bundle)
        report = evaluate_run.run(bench, folder, baseline, profile_s=QUICK_PROFILE_S if quick else PROFILE_S)
        if out is not None:
            write_bytes(out / "evaluation.html", render(report).encode())
            say(f"report: {out / 'evaluation.html'}")
        if bundle is not None:
            evaluate_bundle.write(bundle, bench, report, given)
            say(f"bundle: {bundle}")
    emit(report, as_json=as_json, text=lambda: evaluate_text.lines(report))
    return 0 if report.verdict == "pass" else NEGATIVE
