"""Evidence from a folder of results: whatever of ours stands in it, by its name."""

from collections.abc import Callable, Iterator
from pathlib import Path

from loadslice.evaluate.diagnose import from_journal
from loadslice.evaluate.diagnose.evidence import EndedSeen, EngineSeen, Evidence
from loadslice.spec import journal as journals
from loadslice.spec.errors import InputError
from loadslice.spec.evaluation_report import EvaluationReport
from loadslice.spec.files import decode_json
from loadslice.spec.inspection import Inspection
from loadslice.spec.simulation import Simulation
from loadslice.spec.variant import Manifest, Squeeze

FILES_MAX = 2000
"""In a folder, below which it is walked; a home directory is no run."""

NAMES = ("inspection.json", "inspections.json", "squeeze.json", "manifest.json", "evaluation.json", "simulation.json")


def found_in(folder: Path) -> Iterator[Path]:
    """Files of results, and journals, in a folder and below.

    Raises:
        InputError: Too many files to be a run.
    """
    for seen, path in enumerate(sorted(folder.rglob("*.json")), 1):
        if seen > FILES_MAX:
            raise InputError(f"{folder}: holds more than {FILES_MAX} JSON files; name the folder of one run.")
        if path.name in NAMES or path.name == "journal.json":
            yield path


def evidence(folder: Path) -> list[Evidence]:
    """What each journal of a folder shows, and first what all other results show together.

    Raises:
        InputError: A file of ours that cannot be read, or none there.
    """
    together = Evidence()
    apart: list[Evidence] = []
    for path in found_in(folder):
        if path.name == "journal.json":
            apart.append(from_journal.evidence(journals.load(path.parent), path.parent))
        else:
            READERS[path.name](path, together)
            together.read.append(str(path))
    if not together.read and not apart:
        raise InputError(
            f"{folder}: nothing to diagnose in it: no journal, and none of {', '.join(NAMES)}. Commands write them "
            "with "
            "--out, a server with --journal."
        )
    if apart:
        together.engines, together.ended = [], None  # journals say more of them
    return [together, *apart] if together.read else apart


def _inspection(path: Path, found: Evidence) -> None:
    found.inspections.append((str(path), decode_json(path, Inspection)))


def _inspections(path: Path, found: Evidence) -> None:
    found.inspections += [(str(path), one) for one in decode_json(path, list[Inspection])]


def _squeeze(path: Path, found: Evidence) -> None:
    squeeze = decode_json(path, Squeeze)
    found.variants += [(str(path), variant, squeeze.floor) for variant in squeeze.variants]
    if squeeze.precision is not None:
        found.precision.append((str(path), squeeze.precision))


def _manifest(path: Path, found: Evidence) -> None:
    try:
        manifest = decode_json(path, Manifest)
    except InputError:
        return  # the manifest of a version in a repository has this name too
    if all(variant.name != manifest.variant.name for _, variant, _ in found.variants):
        found.variants.append((str(path), manifest.variant, manifest.floor))


def _evaluation(path: Path, found: Evidence) -> None:
    found.evaluations.append((str(path), decode_json(path, EvaluationReport)))


def _simulation(path: Path, found: Evidence) -> None:
    """Utilisation alone; its journal, if one was kept, says more and stands apart."""
    simulation = decode_json(path, Simulation)
    found.basis = "emulated" if simulation.basis == "simulated on emulated times" else "simulated"
    found.requests += simulation.requests
    found.ended = (found.ended or []) + [
        EndedSeen(outcome, None, count) for outcome, count in simulation.outcomes.items()
    ]
    found.ended_over = "in the simulation"
    found.engines += [
        EngineSeen(
            name=name,
            backend=None,
            device=None,
            slots=1,
            utilisation=engine.utilisation,
            rows_mean=engine.dispatched / engine.batches if engine.batches else None,
            batch_size=None,
        )
        for name, engine in simulation.engines.items()
    ]


READERS: dict[str, Callable[[Path, Evidence], None]] = {
    "inspection.json": _inspection,
    "inspections.json": _inspections,
    "squeeze.json": _squeeze,
    "manifest.json": _manifest,
    "evaluation.json": _evaluation,
    "simulation.json": _simulation,
}
