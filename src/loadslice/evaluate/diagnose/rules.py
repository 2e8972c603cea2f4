"""All rules, in the order of the table of symptoms."""

from loadslice.evaluate.diagnose import avalanche, jitter, operators, power, precision, queues, shapes, utilisation
from loadslice.evaluate.diagnose.rule import Rule

RULES: tuple[Rule, ...] = (
    operators.RULE,
    precision.RULE,
    shapes.RULE,
    queues.RULE,
    jitter.RULE,
    utilisation.RULE,
    power.RULE,
    avalanche.RULE,
)
