"""One placement through all layers, in order, on one server."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from loadslice.app.evaluate_files import Bench, Opened
from loadslice.app.evaluate_profile import as_found
from loadslice.app.output import keep, say
from loadslice.app.study_server import Served, ServerError, serving
from loadslice.evaluate import replay as replaying
from loadslice.evaluate.layers import abnormal, attribution, correctness, lone, observability, ramp, replayed, soak
from loadslice.evaluate.layers.subject import Subject, letters_of
from loadslice.evaluate.seen import EaseSeen, Seen
from loadslice.evaluate.wire import Line
from loadslice.profiles.measure import measure as profile
from loadslice.spec import journal as journals
from loadslice.spec.errors import InputError
from loadslice.spec.evaluation import LayerName
from loadslice.spec.twin import dilation, twins

ALIVE_S = 5.0
"""How long a server that is not ours may take to say that it is there."""


@dataclass(slots=True)
class Run:
    """How an evaluation is carried out."""

    bench: Bench
    out: Path
    profile_s: float
    reference: Seen | None = None


def evaluate(run: Run, opened: Opened) -> Seen:
    """Start a placement, ask all layers, stop it.

    A server that cannot be started, or a URL where nobody answers, is a placement that did not run; one that ends
    under way keeps what was seen before.
    """
    wanted, placement = run.bench.wanted, opened.placement
    seen = Seen(placement, reference=placement.name == wanted.reference_name, fixed=opened.fixed)
    seen.cost_per_hour, seen.power_w = placement.cost.per_hour, placement.cost.power_w
    if opened.not_run is not None:
        seen.state, seen.why = "not_run", opened.not_run
        return seen
    if opened.pipeline is not None:
        _describe(seen, opened, run.bench)
    wall_s, steady_s = time.time(), time.monotonic()
    try:
        with _serving(run, opened) as subject:
            for layer in wanted.layers:
                say(f"  {placement.name}: {layer}")
                _layer(layer, run, seen, subject)
                if not subject.alive():
                    seen.state, seen.why = "died", f"the server ended during the layer '{layer}'"
                    break
            else:
                seen.observed = observability.measure(subject)
    except (ServerError, InputError) as error:
        if seen.correctness is None and seen.lone is None and seen.ramp is None:
            seen.state, seen.why = "not_run", str(error)
        else:
            seen.state, seen.why = "died", str(error)
    seen.clock_jump_s = (time.time() - wall_s) - (time.monotonic() - steady_s)
    if seen.lone is not None and "attribution" in wanted.layers:
        seen.attribution = attribution.attribute(seen.lone, _journal(run, opened))
    if seen.correctness is not None and run.reference is not None and run.reference.correctness is not None:
        correctness.judge(seen.correctness, run.reference.correctness, wanted.scheme)
    return seen


def _describe(seen: Seen, opened: Opened, bench: Bench) -> None:
    """What the files say: devices, power, and what living with it asks."""
    pipeline = opened.pipeline
    assert pipeline is not None
    models = [stage for stage in pipeline.stages if stage.python is None]
    seen.devices = list(dict.fromkeys(name for stage in models for name in stage.engine_names))
    seen.emulated = bool(twins(pipeline))
    seen.balances = any(len(stage.engine_names) > 1 and stage.prefer in ("fastest", "cheapest") for stage in models)
    powers = [engine.active_w for engine in pipeline.engines.values() if engine.active_w is not None]
    seen.power_w = seen.power_w if seen.power_w is not None else (sum(powers) if powers else None)
    prices = [engine.cost_per_hour for engine in pipeline.engines.values() if engine.cost_per_hour is not None]
    seen.cost_per_hour = seen.cost_per_hour if seen.cost_per_hour is not None else (sum(prices) if prices else None)
    built = [accept for stage in models for accept in stage.accept.values() if accept.shape is not None]
    batches = [batch for stage in models for batch in stage.batch.values()]
    said = opened.placement.ease
    other = _lines(bench, bench.wanted.reference_name)
    own = [line for line in _lines(bench, seen.name) if line not in other]
    seen.ease = EaseSeen(
        code_changes=said.code_changes if said.code_changes is not None else _code_changes(opened, bench),
        config_lines=len(own),
        recompiles=said.recompiles if said.recompiles is not None else bool(built),
        dynamic_batching=said.dynamic_batching
        if said.dynamic_batching is not None
        else any(batch.size > 1 and not batch.pad_to for batch in batches) or not built,
        clarity=said.clarity if said.clarity is not None else 1 / (1 + len(own) / 40),
    )


def _lines(bench: Bench, name: str) -> list[str]:
    """Lines of a placement's pipeline file that say something."""
    path = next(one.path for one in bench.placements if one.placement.name == name)
    if path is None or not path.is_file():
        return []
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def _code_changes(opened: Opened, bench: Bench) -> int:
    """Lines of Python stages that the reference does not name; the same modules serve both: none."""
    reference = next(one for one in bench.placements if one.placement.name == bench.wanted.reference_name)
    if opened.pipeline is None or reference.pipeline is None:
        return 0
    known = {stage.python for stage in reference.pipeline.stages}
    new = {stage.python.partition(":")[0] for stage in opened.pipeline.stages if stage.python not in known | {None}}  # type: ignore[union-attr]
    paths = [opened.folder / f"{module}.py" for module in new]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths if path.is_file())


@contextlib.contextmanager
def _serving(run: Run, opened: Opened) -> Iterator[Subject]:
    bench, wanted = run.bench, run.bench.wanted
    placement = opened.placement
    letters = letters_of(bench.inputs)
    make = partial(
        Subject,
        placement.name,
        letters=letters,
        truths=correctness.truths_of(bench.inputs.samples),
        score=bench.inputs.score,
        tensors=bench.inputs.are_tensors,
        timeout_s=wanted.timeout_s,
        dilate=placement.dilate,
    )
    if placement.url is not None:
        where = replaying.target(placement.url, allow_remote=True)
        replaying.require_server(where)
        url = replaying.endpoint(where, None, tensors=bench.inputs.are_tensors).url
        yield make(url, alive=partial(_answers, where.base))
        return
    assert opened.path is not None
    assert opened.pipeline is not None
    folder = run.out / "placements" / placement.name
    _clear(folder / "journal")
    table = None
    if {"ramp", "replay"} & set(wanted.layers):
        say(f"  {placement.name}: profile of single requests")
        samples = list(bench.inputs.samples.values())
        assert opened.untimed is not None
        table = profile(opened.untimed, opened.folder, samples, seconds=run.profile_s, source=opened.path)
        keep(table, folder, "latency.json")
    latency_file = folder / "latency.json" if table is not None else None

    @contextlib.contextmanager
    def started(place: Path) -> Iterator[Subject]:
        assert opened.path is not None
        assert opened.pipeline is not None
        with serving(opened.path, place, latency_file, dilate=dilation(opened.pipeline)) as served:
            where = replaying.target(served.url, allow_remote=False)
            url = replaying.endpoint(where, opened.pipeline.pipeline, tensors=bench.inputs.are_tensors).url
            yield make(
                url,
                pipeline=opened.pipeline,
                table=table,
                memory_bytes=partial(_or_zero, served.memory_bytes),
                cpu_s=served.cpu_s,
                alive=partial(_is_alive, served),
                fresh=fresh,
            )

    @contextlib.contextmanager
    def fresh() -> Iterator[Subject]:
        with tempfile.TemporaryDirectory(prefix="evaluate-") as name, started(Path(name)) as subject:
            yield subject

    with started(folder) as subject:
        yield subject


def _answers(base: str) -> bool:
    """Whether a server that is not ours still answers at all."""
    with Line(base, ALIVE_S) as line:
        return line.get("/v2/health/ready").error is None


def _is_alive(served: Served) -> bool:
    try:
        return served.is_alive()
    except psutil.NoSuchProcess:
        return False


def _or_zero(read: Callable[[], int]) -> int:
    try:
        return read()
    except psutil.NoSuchProcess:
        return 0


def _layer(layer: LayerName, run: Run, seen: Seen, subject: Subject) -> None:
    wanted = run.bench.wanted
    if subject.table is not None:
        seen.times_disturbed = subject.table.disturbed
    if layer == "correctness":
        seen.correctness, _ = correctness.measure(subject)
    elif layer in ("latency", "attribution"):
        _lone(run, seen, subject)
    elif layer == "ramp":
        if subject.table is not None and subject.pipeline is not None:
            subject.table = as_found(subject.table, _lone(run, seen, subject), subject.pipeline)
            keep(subject.table, run.out / "placements" / seen.name, "latency_found.json")
        seen.ramp = ramp.measure(
            subject, step_s=wanted.step_s * subject.dilate**0.5, clients_max=wanted.clients_max, rounds=wanted.repeats,
            seed=wanted.seed,
        )  # fmt: skip
        if seen.correctness is not None:
            seen.loaded = correctness.under_load(seen.correctness, seen.ramp.heards, wanted.scheme)
    elif layer == "soak":
        knee = seen.ramp.knee if seen.ramp is not None else None
        seen.soak = soak.measure(subject, wanted.soak, clients=max(1, round(knee.clients)) if knee else 2)
    elif layer == "abnormal":
        seen.abnormal = abnormal.measure(subject)
    elif layer == "replay":
        seen.replay = replayed.measure(subject, run.bench.path.parent / (wanted.trace or ""), wanted, run.bench.inputs)


def _lone(run: Run, seen: Seen, subject: Subject) -> lone.Lone:
    """Single requests, measured once however many layers need them."""
    wanted = run.bench.wanted
    if seen.lone is None:
        for_s = 2 * wanted.step_s * subject.dilate**0.5
        seen.lone = lone.measure(
            subject, requests=wanted.requests, repeats=wanted.repeats, for_s=for_s, seed=wanted.seed
        )
    return seen.lone


def _journal(run: Run, opened: Opened) -> journals.Journal | None:
    folder = run.out / "placements" / opened.placement.name / "journal"
    if not (folder / "journal.json").is_file():
        return None
    return journals.load(folder)


def _clear(journal: Path) -> None:
    """Remove the journal of an earlier evaluation, and nothing that is not one."""
    if journal.is_dir():
        if not any((journal / name).exists() for name in ("journal.json", "requests.parquet", "parts")):
            raise InputError(f"{journal}: exists and is not a journal. Choose another place with --out.")
        shutil.rmtree(journal)
