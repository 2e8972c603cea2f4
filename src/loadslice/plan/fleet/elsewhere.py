"""Times that were measured on one machine and are taken over to another: no measurement of what is bought or rented.

An offered engine has measured times only on machines like the profiled one (`on_profiled_machine`). Anywhere else it
has the same times as a model has them: with an error, drawn for all engines of a type of machine together.
"""

import math
from collections.abc import Mapping

import msgspec

from loadslice.plan.shocks import SPREAD, Z_95
from loadslice.spec.latency import Entry, LatencyTable, ModelError
from loadslice.spec.offers import Offers
from loadslice.spec.pipeline import Pipeline

NORMAL = 1000
"""Degrees of freedom with which Student's t is the normal distribution."""


def taken_over(offers: Offers, latency: LatencyTable, pipeline: Pipeline) -> dict[str, str]:
    """Engine types that stand on another machine than their times were measured on -> engine of the latency table.

    Args:
        offers: Checked.
        latency: Its stamp says how many cores the profiled machine has.
        pipeline: Its engines name the devices they were profiled on.
    """
    measured = {entry.engine for entry in latency.entries if entry.basis == "measured"}
    found = {}
    for name, offer in offers.engines.items():
        times = offer.times or name
        if times in measured and not on_profiled_machine(name, offers, latency, pipeline):
            found[name] = times
    return found


def on_profiled_machine(name: str, offers: Offers, latency: LatencyTable, pipeline: Pipeline) -> bool:
    """An offered engine stands on a machine like the one its times were measured on.

    The box says so (``profiled``); or it is a card of the profiled device; or it stands where the engine of the latency
    table's own name does, in a box that is not rented and has the profiled machine's cores.
    """
    offer, box = offers.engines[name], offers.boxes[offers.engines[name].box]
    if box.profiled is not None:
        return box.profiled
    times = offer.times or name
    home = offers.engines.get(times)
    known = pipeline.engines.get(times)
    devices = {one.device for one in (home, known) if one is not None and one.device is not None}
    if offer.kind != "cpu" and offer.device is not None and offer.device in devices:
        return True
    if times != name and (home is None or home.box != offer.box):
        return False
    cores = None if latency.stamp is None else latency.stamp.machine.get("cpus")
    return box.price_per_hour is None and (offer.kind != "cpu" or cores is None or int(cores) == box.cores)


def with_taken_over(latency: LatencyTable, offers: Offers, found: Mapping[str, str]) -> LatencyTable:
    """The table with entries of their own for engines whose times are taken over, under `entries_name`."""
    wanted = {(times, offers.engines[name].box) for name, times in found.items()}
    added = [
        _modelled(entry, box) for times, box in sorted(wanted) for entry in latency.entries if entry.engine == times
    ]
    return msgspec.structs.replace(latency, entries=[*latency.entries, *added]) if added else latency


def entries_name(times: str, box: str) -> str:
    """Engine of the latency table under which times stand that are taken over to a box."""
    return f"{times} on {box}"


def told(offers: Offers, found: Mapping[str, str]) -> list[str]:
    """What is taken over, in words; empty: nothing is."""
    if not found:
        return []
    boxes: dict[str, list[str]] = {}
    for name in found:
        boxes.setdefault(offers.engines[name].box, []).append(name)
    listed = ", ".join(f"{' and '.join(names)} on '{box}'" for box, names in boxes.items())
    how = f"times of the profiled machine are taken over, called modelled and counted as off by {SPREAD:.0%}"
    mend = "Profile on such a machine, or state `profiled: true` of a box that is like the profiled one."
    return [f"nobody measured {listed}: {how}. {mend}"]


def _modelled(entry: Entry, box: str) -> Entry:
    engine = entries_name(entry.engine, box)
    if entry.basis != "measured":
        return msgspec.structs.replace(entry, engine=engine)
    error = ModelError(
        device=f"machines '{box}'",
        device_sd=math.log1p(SPREAD) / Z_95,
        model_sd=0.0,
        freedom=NORMAL,
        why=f"measured for '{entry.engine}' on the profiled machine and taken over to '{box}'",
    )
    return msgspec.structs.replace(entry, engine=engine, basis="modelled", error=error)
