"""A verdict measured at another pace than the recorded one says so, and what is predicted for the traffic as it came.

A study plays traffic faster or slower so that the slowest plan is half busy: plans differ there. Whether they keep the
promise on the traffic that was recorded is another question, and only a prediction answers it.
"""

from collections.abc import Sequence

import msgspec

from loadslice.evaluate.compare import error_rate
from loadslice.spec.budget import Slo
from loadslice.spec.report import PlanReport, Rule, Verdict
from loadslice.spec.simulation import Simulation


def paced(found: Verdict, plans: Sequence[PlanReport], slo: Slo) -> Verdict:
    """The verdict with the pace it holds for; as it is where that is the recorded one.

    Args:
        found: Of what was measured.
        plans: Measured at one pace, each with what is predicted for the recorded one.
        slo: What is promised.
    """
    speed = next((plan.measured.speed for plan in plans if plan.measured is not None), 1.0)
    if speed == 1.0:
        return found
    predicted = {
        plan.name: (plan.title, plan.simulated_recorded) for plan in plans if plan.simulated_recorded is not None
    }
    keeping = [title for title, simulation in predicted.values() if _keeps(simulation, slo)]
    said = "; ".join(f"{title} {_figures(simulation, slo)}" for title, simulation in predicted.values())
    sentence = f"Traffic was played at {speed:.3g} times its recorded pace. At that itself, by prediction only: {said}."
    rule = Rule(
        code="another_pace",
        text="Measured at another pace than the recorded one.",
        evidence=f"{speed:.3g} times: {said}",
    )
    action = found.action
    if found.recommended is None and keeping:
        action = (
            f"At the recorded pace {' and '.join(keeping)} {'are' if len(keeping) > 1 else 'is'} predicted to keep it: "
            "measure that with `--speed 1` before anything is squeezed or bought."
        )
    elif found.recommended in predicted and predicted[found.recommended][0] not in keeping:
        action += " But at the recorded pace it is predicted to break the promise: `--speed 1` measures that."
    return msgspec.structs.replace(
        found,
        headline=f"At {speed:.3g} times the recorded pace: {found.headline}",
        action=action,
        sentences=[*found.sentences, sentence],
        rules=[*found.rules, rule],
    )


def _keeps(simulation: Simulation, slo: Slo) -> bool:
    lost = error_rate(simulation.outcomes)
    times = [(getattr(simulation.latency_ms, name), limit) for name, limit in slo.latency_limits_ms.items()]
    in_time = all(took is not None and took <= limit for took, limit in times)
    return in_time and lost is not None and lost <= slo.error_rate


def _figures(simulation: Simulation, slo: Slo) -> str:
    times = {name.upper(): getattr(simulation.latency_ms, name) for name in slo.latency_limits_ms}
    told = ", ".join(f"{name} {'unknown' if took is None else f'{took:.0f} ms'}" for name, took in times.items())
    return f"{told}, {'kept' if _keeps(simulation, slo) else 'broken'}"
