"""All rules, in the order of the table of symptoms."""

from loadslice.evaluate.diagnose import (
    avalanche,
    jitter,
    losses,
    operators,
    outages,
    power,
    precision,
    queues,
    shapes,
    utilisation,
)
from loadslice.evaluate.diagnose.rule import Rule

RULES: tuple[Rule, ...] = (
    outages.RULE,
    losses.RULE,
    operators.RULE,
    precision.RULE,
    shapes.RULE,
    queues.RULE,
    jitter.RULE,
    utilisation.RULE,
    power.RULE,
    avalanche.RULE,
)
