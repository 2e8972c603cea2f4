"""What the error of modelled times does to a choice between slices."""

from collections.abc import Iterator, Sequence

from loadslice.app.slice_problem import Machine
from loadslice.sim.draws import t_95
from loadslice.spec.latency import ModelError
from loadslice.spec.slices import Assignment, Objective
from loadslice.spec.uncertainty import bounds


def times_95(error: ModelError) -> tuple[float, float]:
    """Factors on a device's times that the truth lies between 95 times of 100."""
    return bounds(error, t_95(error.freedom))


def turning(rows: Sequence[Assignment], chosen: str, objective: Objective, machine: Machine) -> Iterator[str]:
    """For each device whose error turns the choice over: at which end, and to what.

    Args:
        rows: Assignments with what each device does in them.
        chosen: Name of the best, as modelled.
        objective: What is least for the best.
        machine: Its times state their errors.
    """
    able = [row for row in rows if row.latency_ms is not None and row.devices]
    for name, times in machine.times.items():
        if times.error is None:
            continue
        for factor in times_95(times.error):
            best = min(able, key=lambda row: (_value(row, objective, name, factor), row.name != chosen))
            if best.name == chosen:
                continue
            way = f"{factor:.2g} times as long as modelled" if factor > 1 else f"only {factor:.2g} of what is modelled"
            yield (
                f"not sure: were times on {name} {way}, which their error allows, '{best.name}' would be better than "
                f"'{chosen}'. Measure them there, and give them with --times."
            )


def _value(row: Assignment, objective: Objective, name: str, factor: float) -> float:
    """An assignment's figure with one device's operators ``factor`` times as long."""
    longer = {
        device: load.compute_ms * (factor if device == name else 1.0) + load.transfer_ms
        for device, load in row.devices.items()
    }
    return sum(longer.values()) if objective == "latency" else max(longer.values())
