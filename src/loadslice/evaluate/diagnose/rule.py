"""What a rule of diagnosis is."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from loadslice.evaluate.diagnose.evidence import Evidence, NotSeenError
from loadslice.spec.diagnosis import Finding, LookedAt


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table of symptoms."""

    name: str
    formula: str
    """When it fires, with its thresholds."""
    reason: str
    """Why these thresholds."""
    needs: str
    """What has to be known."""
    look: Callable[[Evidence], Iterable[Finding]]
    """Raises NotSeenError where that is not known."""


def ask(rules: Iterable[Rule], evidence: Evidence) -> tuple[list[Finding], list[LookedAt]]:
    """All findings, and what each rule could see."""
    findings: list[Finding] = []
    looked: list[LookedAt] = []
    for rule in rules:
        try:
            findings += rule.look(evidence)
        except NotSeenError as missing:
            why = f"{missing}; it needs {rule.needs}"
            looked.append(LookedAt(rule=rule.name, looked=False, formula=rule.formula, why=why))
            continue
        looked.append(LookedAt(rule=rule.name, looked=True, formula=rule.formula))
    order = {"high": 0, "medium": 1, "low": 2}
    return sorted(findings, key=lambda one: order[one.confidence]), looked
