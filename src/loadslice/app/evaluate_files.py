"""What an evaluation file points at: pipelines, inputs, servers; and the fixed variables of each placement."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from loadslice.app import twins
from loadslice.app.evaluate_built_in import build, drawn_inputs
from loadslice.evaluate import payloads
from loadslice.evaluate import replay as replaying
from loadslice.evaluate.answers import letters_digest
from loadslice.evaluate.layers.subject import letters_of
from loadslice.spec import pipeline as pipelines
from loadslice.spec.environment import Environment
from loadslice.spec.errors import InputError, MissingExtraError
from loadslice.spec.evaluation import VARIABLES, Evaluation, Placement
from loadslice.spec.files import resolve_model, sha256_file
from loadslice.spec.pipeline import Pipeline

FROM_MACHINE = ("driver", "runtime", "toolchain", "clock_policy", "power_policy", "cooling")


@dataclass(slots=True)
class Opened:
    """A placement that can be started, or why not."""

    placement: Placement
    path: Path | None = None
    """Its pipeline file."""
    pipeline: Pipeline | None = None
    untimed: Pipeline | None = None
    """The same with emulated devices that answer at once, for a profile."""
    not_run: str | None = None
    fixed: dict[str, str | None] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Of its pipeline file."""
        assert self.path is not None
        return self.path.parent


@dataclass(frozen=True, slots=True)
class Bench:
    """All that an evaluation is made on."""

    path: Path
    wanted: Evaluation
    placements: list[Opened]
    inputs: payloads.Inputs
    environment: Environment


def open_bench(path: Path, wanted: Evaluation, out: Path, environment: Environment, *, allow_remote: bool) -> Bench:
    """Open every placement, and refuse what may not be compared.

    Raises:
        InputError: A file that is missing or wrong, or placements that differ in a fixed variable.
    """
    opened = [_open(placement, wanted, path.parent, out, allow_remote=allow_remote) for placement in wanted.placements]
    inputs = _inputs(wanted, path.parent, opened)
    digest = letters_digest(letters_of(inputs))
    for one in opened:
        one.fixed = _fixed(one, wanted, environment, digest, path.parent)
    enforce(opened, wanted.varied, str(path))
    return Bench(path, wanted, opened, inputs, environment)


def _open(placement: Placement, wanted: Evaluation, folder: Path, out: Path, *, allow_remote: bool) -> Opened:
    if placement.url is not None:
        replaying.target(placement.url, allow_remote=allow_remote)
        return Opened(placement)
    if placement.built_in is not None:
        assert wanted.model is not None
        model = resolve_model(wanted.model, folder)
        try:
            path = build(placement, model, out / "placements" / placement.name)
        except InputError as error:
            return Opened(placement, not_run=str(error))
    else:
        assert placement.pipeline is not None
        path = folder / placement.pipeline
    pipeline = pipelines.load(path)
    try:
        resolved = twins.resolved(pipeline, path.parent, placement.dilate)
    except MissingExtraError as error:
        return Opened(placement, path, pipeline, not_run=str(error))
    return Opened(placement, path, resolved, twins.resolved(pipeline, path.parent, keeps_time=False))


def _inputs(wanted: Evaluation, folder: Path, opened: Sequence[Opened]) -> payloads.Inputs:
    if wanted.inputs is not None:
        return payloads.from_function(wanted.inputs, folder)
    named = next(one for one in opened if one.placement.name == wanted.reference_name)
    for one in (named, *opened):
        if one.pipeline is not None and one.pipeline.inputs is not None:
            return payloads.from_function(one.pipeline.inputs, one.folder)
    if wanted.model is not None:
        return drawn_inputs(resolve_model(wanted.model, folder), wanted.seed)
    raise InputError(
        "no inputs: add `inputs: module:function` to the evaluation file, or to the reference's pipeline file."
    )


def _fixed(
    one: Opened, wanted: Evaluation, environment: Environment, inputs_sha256: str, folder: Path
) -> dict[str, str | None]:
    """Every fixed variable but ``placement``, as text; ``None``: not known."""
    here = one.placement.url is None
    lengths = wanted.lengths
    found: dict[str, str | None] = {
        "model": _model(one, wanted, folder),
        "scheme": wanted.scheme,
        "inputs": inputs_sha256,
        "context_tokens": _text(lengths.context_tokens),
        "generation_tokens": _text(lengths.generation_tokens),
        "sampling": lengths.sampling,
        "processor": environment.processor if here else None,
        "system": environment.system if here else None,
        "memory_clock": environment.memory_clock if here else None,
    }
    for name in FROM_MACHINE:
        value = getattr(environment, name)
        found[name] = json.dumps(value, sort_keys=True) if here and value else None
    found.update({name: str(value) for name, value in one.placement.fixed.items()})
    return {name: found[name] for name in VARIABLES if name != "placement"}


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _model(one: Opened, wanted: Evaluation, folder: Path) -> str | None:
    """Hash of the models a placement is made of; a built-in one is made of the evaluation's own."""
    if one.placement.built_in is not None and wanted.model is not None:
        return sha256_file(resolve_model(wanted.model, folder))
    if one.pipeline is None or one.path is None:
        return None
    hashes = {
        sha256_file(resolve_model(stage.model, one.folder)) for stage in one.pipeline.stages if stage.model is not None
    }
    if len(hashes) == 1:
        return hashes.pop()
    return hashlib.sha256("".join(sorted(hashes)).encode()).hexdigest() if hashes else None


def enforce(opened: Sequence[Opened], varied: str, place: str) -> None:
    """Refuse placements that differ in what is to be the same; what is not known of one is told as a limit instead.

    Raises:
        InputError: Names the variable, two placements and their values.
    """
    for variable in VARIABLES[1:]:
        if variable == varied:
            continue
        known = [(one.placement.name, value) for one in opened if (value := one.fixed.get(variable)) is not None]
        for name, value in known[1:]:
            if value != known[0][1]:
                raise InputError(
                    f"{place}: placements '{known[0][0]}' and '{name}' differ in {variable} ({known[0][1]:.60} and "
                    f"{value:.60}). Make it the same, or say `varied: {variable}`."
                )


def unknown_variables(opened: Sequence[Opened]) -> list[str]:
    """Fixed variables that are known of no placement, or not of all."""
    found = []
    for variable in VARIABLES[1:]:
        missing = [one.placement.name for one in opened if one.fixed.get(variable) is None]
        if missing:
            found.append(variable if len(missing) == len(opened) else f"{variable} (of {', '.join(missing)})")
    return found


def quick(wanted: Evaluation) -> Evaluation:
    """The same evaluation in a fraction of the time: wider intervals, and a soak too short to tell a drift."""
    return msgspec.structs.replace(
        wanted,
        requests=min(wanted.requests, 30),
        repeats=min(wanted.repeats, 2),
        step_s=min(wanted.step_s, 1.5),
        clients_max=min(wanted.clients_max, 16),
        soak=msgspec.structs.replace(wanted.soak, for_s=min(wanted.soak.for_s, 6.0)),
        replay_s=min(wanted.replay_s, 6.0),
        timeout_s=min(wanted.timeout_s, 5.0),
    )
