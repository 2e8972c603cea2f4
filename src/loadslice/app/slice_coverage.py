"""Which operators of a model each device runs: what keeps a slice off an NPU that would not take it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadslice.app.coverage import Asking, Subject, placed, subject
from loadslice.app.slice_problem import Opened
from loadslice.graph import ops
from loadslice.graph.coverage_stage import stage
from loadslice.graph.load import load
from loadslice.spec.coverage import Coverage, OperatorTable
from loadslice.spec.device import Device
from loadslice.spec.errors import InputError
from loadslice.spec.slices import DeviceCoverage, DeviceTimes, Fallback

UNKNOWN = "no source says that it runs there"


@dataclass(frozen=True)
class Support:
    """What one device runs.

    Attributes:
        coverage: Where each node of the model runs.
        lacks: Key of an operator that the device does not run -> why.
    """

    coverage: Coverage
    lacks: Mapping[str, str]


def supports(
    opened: Opened, devices: Mapping[str, str], tables: Sequence[Path], asking: Asking, notes: list[str]
) -> dict[str, Support]:
    """Ask for every device that a table or an installed compiler speaks for; the others are taken to run everything.

    An operator that no source knows is kept off the device: a slice that its compiler refuses costs more than one that
    might have been longer.

    Args:
        opened: The model.
        devices: Name to the device that stands for it.
        tables: Of the user's own.
        asking: How to ask compilers.
        notes: Gains what sources said beside.

    Raises:
        InputError: A table that cannot be read, or that is of none of the devices.
    """
    own = [ops.read(table) for table in tables]
    asked = {name: _subject(reference, own) for name, reference in devices.items()}
    used = {id(one.table) for one in asked.values() if one is not None}
    for table, path in zip(own, tables, strict=True):
        if id(table) not in used:
            raise InputError(
                f"--table {path}: it is of {table.target}, which stands for none of --devices ({', '.join(devices)}). "
                "Name the device in the table's `devices`."
            )
    found: dict[str, Support] = {}
    for name, one in asked.items():
        if one is None or (one.table is None and one.target is None):
            continue
        said: list[str] = []
        model = load(opened.path, weights=True) if asking.compilers and one.target is not None else opened.model
        by_table, compiled, _ = placed(model, opened.shapes, one, asking, said)
        notes += [f"{name}: {line}" for line in said]
        coverage = compiled or by_table
        if coverage is not None:
            found[name] = Support(coverage, _lacks(opened, coverage))
    return found


def fallbacks(
    opened: Opened, times: Mapping[str, DeviceTimes], found: Mapping[str, Support]
) -> dict[str, DeviceCoverage]:
    """What stays off each device, and what it takes on the fastest of the others."""
    # By the graph's keys: coverage names nodes as compilers see them, who want each name once.
    kinds = {key: step.node.op_type for key, step in zip(opened.graph.keys, opened.graph.ops, strict=True)}
    result = {}
    for name, support in found.items():
        groups: dict[tuple[str, str], Fallback] = {}
        for key, why in support.lacks.items():
            others = [ms for other, one in times.items() if other != name and (ms := one.nodes_ms.get(key)) is not None]
            kind = kinds[key]
            before = groups.get((kind, why), Fallback(op=kind, count=0, ms=0.0, reason=why))
            groups[kind, why] = Fallback(
                op=kind, count=before.count + 1, ms=before.ms + min(others, default=0.0), reason=why
            )
        result[name] = DeviceCoverage(
            basis=support.coverage.basis,
            source=support.coverage.source,
            fallback_ops=len(support.lacks),
            fallback_ms=sum(one.ms for one in groups.values()),
            fallbacks=sorted(groups.values(), key=lambda one: -one.ms),
        )
    return result


def _subject(reference: str, own: Sequence[OperatorTable]) -> Subject | None:
    """The device as coverage knows it; ``None``: this machine, or a name that is refused where its times are sought."""
    if reference == "local":
        return None
    try:
        return subject(reference, own, _never)
    except InputError:
        return None


def _never() -> Device:
    raise AssertionError("this machine is asked for by name only")


def _lacks(opened: Opened, coverage: Coverage) -> dict[str, str]:
    _, names = stage(opened.model, opened.shapes)
    by_name = {node.node: node for node in coverage.nodes}
    place = {id(step.node): name for step, name in zip(opened.body.steps, names, strict=True)}
    lacks = {}
    for key, step in zip(opened.graph.keys, opened.graph.ops, strict=True):
        node = by_name.get(place[id(step.node)])
        if node is None or node.on in ("device", "load"):
            continue
        lacks[key] = node.reason or UNKNOWN if node.on == "host" else UNKNOWN
    return lacks
