"""The end of a study whose folder holds offers: which fleet to buy, searched on the times that were just measured."""

from pathlib import Path

from loadslice.app.output import say
from loadslice.app.plan_run import Asked, run
from loadslice.app.study_findings import Findings
from loadslice.app.study_observed import observed
from loadslice.app.study_report import plan_reports
from loadslice.evaluate.verdict import crowd
from loadslice.spec.errors import MissingExtraError
from loadslice.spec.plan import Plan


def plan(found: Findings, out: Path) -> None:
    """Plan with the first pipeline of the study; what it writes goes to ``out/plan``.

    Args:
        found: Gets the plan, or why there is none.
        out: Folder of the study.
    """
    studied = found.studied[0]
    if studied.table is None:
        found.not_planned = f"{studied.plan.title} could not be profiled."
        return
    if (share := crowd(plan_reports(found))) is not None:
        found.not_planned = (
            f"other programs took up to {share:.0%} of this machine, so what its engines can do is not known. "
            "Repeat the study on a quiet machine."
        )
        say(f"no fleet to buy is sought: {found.not_planned}")
        return

    def search() -> tuple[Plan | None, str]:
        try:
            made = run(_asked(found, out))
        except MissingExtraError as error:
            found.not_planned = str(error)
            return None, str(error)
        return made, made.decision or "no decision"

    found.planned = found.journey.attempt("plan", search)
    if found.planned is None and found.not_planned is None:
        found.not_planned = found.journey.steps[-1].detail


def _asked(found: Findings, out: Path) -> Asked:
    """The command line that would make the same plan."""
    studied = found.studied[0]
    models = {stage.name for stage in studied.plan.pipeline.stages if stage.python is None}
    evidence = {name: path for name in ("portrait", "inspections") if (path := out / f"{name}.json").is_file()}
    return Asked(
        trace=found.folder.trace,
        models=(),
        pipeline=studied.plan.path,
        budget=found.folder.budget_path,
        objective="cost",
        profile=studied.profile_path,
        offers=found.folder.offers,
        prices=found.folder.prices,
        devices=(),
        address=None,
        jobs=None,
        seed=found.options.seed,
        out=out / "plan",
        portrait=evidence.get("portrait"),
        inspections=[evidence["inspections"]] if "inspections" in evidence else [],
        observed=observed(plan_reports(found), found.rehearsed, models, found.folder.budget.slo),
    )
