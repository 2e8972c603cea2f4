"""What a rule of diagnosis is."""

from collections.abc import Callable, Iterable, Sequence
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
    is_loss: bool = False
    """Whether it speaks of requests or engines that were lost: read before anything that is merely slow or idle."""


def ask(rules: Sequence[Rule], evidence: Evidence) -> tuple[list[Finding], list[LookedAt]]:
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
    return ranked(rules, findings), looked


def ranked(rules: Iterable[Rule], findings: Iterable[Finding]) -> list[Finding]:
    """What was lost first, as it was found: engines before the requests they cost; then by how sure the cause is."""
    order = {"high": 0, "medium": 1, "low": 2}
    losses = {rule.name for rule in rules if rule.is_loss}
    return sorted(findings, key=lambda one: -1 if one.rule in losses else order[one.confidence])
