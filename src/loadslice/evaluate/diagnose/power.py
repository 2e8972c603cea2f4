"""The power wall: a device that draws its limit lowers its clocks, and more load brings no more answers."""

from collections.abc import Iterable

from loadslice.evaluate.diagnose.evidence import Evidence, NotSeenError, PowerSeen
from loadslice.evaluate.diagnose.rule import Rule
from loadslice.spec.diagnosis import Confidence, Finding

NEAR = 0.95
"""Of the limit: a regulator holds a device a few per cent below it."""
BUSY_SHARE_MIN = 0.2
SLOWED = 1.1


def _look(evidence: Evidence) -> Iterable[Finding]:
    if not evidence.powers:
        raise NotSeenError(evidence.power_absent)
    for one in evidence.powers:
        if one.drawn_w >= NEAR * one.limit_w and one.busy_share >= BUSY_SHARE_MIN:
            yield _finding(one)


def _finding(one: PowerSeen) -> Finding:
    slowed = one.slowed is not None and one.slowed >= SLOWED
    over = one.drawn_w > one.limit_w
    confidence: Confidence = "high" if slowed else "medium"
    return Finding(
        rule=RULE.name,
        symptom=f"'{one.name}' is at its power limit",
        evidence=f"{one.drawn_w:.0f} W drawn under load of {one.limit_w:.0f} W allowed ({one.limit_source}), "
        f"{one.busy_share:.0%} of the time"
        + ("" if one.slowed is None else f"; a batch takes {one.slowed:.2f} times what it was measured to take"),
        cause="more would be drawn than is allowed"
        if over
        else "it draws all it may: its clocks are held down"
        + (", and its batches are slower for it" if slowed else ""),
        remedy="raise the limit where cooling and the rack bear it (`nvidia-smi -pl W`), or ask for less: a lower "
        "precision (`loadslice squeeze`), or spread the load over more boxes (`loadslice plan`, power.per_box_w)",
        confidence=confidence,
        basis=one.basis,
        figures={"drawn_w": one.drawn_w, "limit_w": one.limit_w, "busy_share": one.busy_share, "slowed": one.slowed},
    )


RULE = Rule(
    name="power-wall",
    formula=f"power under load >= {NEAR:.0%} of the limit in {BUSY_SHARE_MIN:.0%} of the time or more",
    reason="regulators hold a device a few per cent below its limit; a moment at it is harmless",
    needs="a driver that tells power and limit (--for-s on the server's machine), or a journal with engines whose "
    "power is "
    "known and --budget with power.per_box_w",
    look=_look,
)
