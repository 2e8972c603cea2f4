"""`loadslice model`: versions of a model in a repository."""

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import click

from loadslice.app import admin_client
from loadslice.app.output import Finite, emit, json_option, say, seed_option
from loadslice.serve.golden import TOLERANCE
from loadslice.spec import repository
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolved
from loadslice.spec.repository import Current, Model

NOT_WELL = 3
TURNED_BACK = ("rolled_back", "aborted")
"""States of a rollout that has not adopted its candidate."""

_path = click.Path(path_type=Path)
_repo = click.argument("repo", metavar="REPO", type=_path)
_name = click.argument("name", metavar="NAME")
_code = click.option(
    "--code", "allow_code", is_flag=True, help="Allow Python stages: code that runs as the server does."
)
_url = click.option(
    "--url", default=None, help=f"Tell the server at this address; {admin_client.ADMIN_TOKEN} holds its admin token."
)


@click.group("model")
def command() -> None:
    """Keep versions of models, switch between them, and go back with one command."""


@command.command("add", epilog="Example: loadslice model add repo examples/ocr/pipeline.yaml --code")
@_repo
@click.argument("pipeline_file", metavar="P", type=_path)
@click.option("--version", default=None, help="Its name; default: the next number.")
@click.option("--with", "extra", type=_path, multiple=True, help="A file beside P that its Python stages read.")
@click.option("--tolerance", type=Finite(0, 1), default=TOLERANCE, show_default=True, help="Off the golden answers.")
@_code
@seed_option
@json_option
def add(
    repo: Path,
    pipeline_file: Path,
    version: str | None,
    extra: tuple[Path, ...],
    tolerance: float,
    allow_code: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Copy pipeline P and all its models into REPO as a new version, with the answers it gives now."""
    from loadslice.app.repository import add as add_version

    manifest = add_version(
        repo,
        pipeline_file,
        version=version,
        allow_code=allow_code,
        extra=extra,
        tolerance=tolerance,
        seed=seed,
    )
    size_bytes = sum(file.size_bytes for file in manifest.files.values())
    emit(
        {"name": manifest.name, "version": manifest.version, "files": len(manifest.files), "size_bytes": size_bytes},
        as_json=as_json,
        text=lambda: [
            f"added {manifest.name} version {manifest.version}: {len(manifest.files)} files, {size_bytes} bytes",
            f"serve it with `loadslice model use {repo} {manifest.name} {manifest.version}`",
        ],
    )


@command.command("list", epilog="Example: loadslice model list repo")
@_repo
@json_option
def list_(repo: Path, as_json: bool) -> None:
    """Which models and versions are there, and which version of each serves."""
    if not repo.is_dir():
        raise InputError(f"{repo}: no such folder. `loadslice model add {repo} PIPELINE` makes it.")
    models: list[dict[str, Any]] = []
    for folder in sorted(resolved(repo).iterdir()):
        if folder.is_dir() and not folder.name.startswith("."):
            model = Model(folder)
            if versions := model.versions():
                current = model.current()
                models.append(
                    {
                        "name": model.name,
                        "versions": versions,
                        "current": None if current is None else current.version,
                        "previous": [] if current is None else current.previous,
                    }
                )
    emit(
        {"models": models},
        as_json=as_json,
        text=lambda: [
            f"{one['name']}: "
            + ", ".join(f"{version} (serves)" if version == one["current"] else version for version in one["versions"])
            for one in models
        ],
    )


@command.command("verify", epilog="Example: loadslice model verify repo ocr 3 --code")
@_repo
@_name
@click.argument("version", required=False)
@_code
@json_option
def verify(repo: Path, name: str, version: str | None, allow_code: bool, as_json: bool) -> None:
    """Check every byte of a version, load it, and ask for its golden answers. Exit 3: it may not serve."""
    model = _model(repo, name)
    version = version or _current(model).version
    fault = _fault(model, version, allow_code=allow_code)
    emit(
        {"name": name, "version": version, "well": fault is None, "why": fault},
        as_json=as_json,
        text=lambda: [f"{name} version {version}: {'well' if fault is None else fault}"],
    )
    if fault is not None:
        raise click.exceptions.Exit(NOT_WELL)


@command.command("use", epilog="Example: loadslice model use repo ocr 3 --code --url http://127.0.0.1:8000")
@_repo
@_name
@click.argument("version")
@_code
@_url
@json_option
def use(repo: Path, name: str, version: str, allow_code: bool, url: str | None, as_json: bool) -> None:
    """Have a version serve from now on, once it is verified. Exit 3: it may not serve, and nothing has changed."""
    model = _model(repo, name)
    model.manifest(version)
    before = model.current()
    if (found := _turned_back(model, version, url)) is not None:
        say(f"warning: {found}; it serves all of the traffic all the same")
    fault = _fault(model, version, allow_code=allow_code)
    after = before
    if fault is None:
        after = model.use(version)
        fault = _told(model, before, url)
    _report(model, after if fault is None else before, fault, as_json=as_json)


@command.command("rollback", epilog="Example: loadslice model rollback repo ocr --url http://127.0.0.1:8000")
@_repo
@_name
@_url
@json_option
def rollback(repo: Path, name: str, url: str | None, as_json: bool) -> None:
    """Have the version serve that did before. A running server verifies it as it does any."""
    model = _model(repo, name)
    before = model.current()
    after = model.roll_back()
    fault = _told(model, before, url)
    _report(model, after if fault is None else before, fault, as_json=as_json)


def _model(repo: Path, name: str) -> Model:
    return Model(resolved(repo) / repository.check_name(name, "model"))


def _current(model: Model) -> Current:
    current = model.current()
    if current is None:
        raise InputError(f"{model.folder}: no version serves yet. Choose one with `loadslice model use`.")
    return current


def _turned_back(model: Model, version: str, url: str | None) -> str | None:
    """What the last rollout has found of a version that it took back; ``None``: nothing is known against it.

    Args:
        model: Its repository.
        version: What is to serve.
        url: Of the server that knows; without one, the state file beside the repository is asked.
    """
    from loadslice.serve import rollout_record
    from loadslice.serve.state_file import StateFile

    with contextlib.suppress(InputError):  # whoever does not answer here is told of where it matters
        if url is not None:
            told = admin_client.done(url, "GET", "/admin/rollout")
            state, candidate, since, why = (told.get(key) for key in ("state", "candidate", "since", "why"))
        else:
            with contextlib.closing(StateFile(model.state_file)) as file:
                record = rollout_record.read(file)
            state, candidate, since, why = record.state, record.candidate, record.since, record.why
        if candidate == version and state in TURNED_BACK:
            return f"version {version} was {state.replace('_', ' ')} by a rollout at {since}: {why}"
    return None


def _fault(model: Model, version: str, *, allow_code: bool) -> str | None:
    """Why a version may not serve; ``None``: it may."""
    from loadslice.app.repository import serving
    from loadslice.serve.clock import Clock
    from loadslice.serve.patience import Patience
    from loadslice.serve.serving import Serving
    from loadslice.serve.stages import close_stages, load_stages
    from loadslice.serve.warm import warm_models

    patience = Patience()

    def ask(ready: Serving) -> None:
        stages = load_stages(ready.pipeline, ready.folder, Clock(), patience.step)
        try:
            warm_models(ready.pipeline, stages, step=patience.step)
            assert ready.probation is not None
            ready.probation(stages, patience.step)
        finally:
            close_stages(stages)

    try:
        patience.run(partial(ask, serving(model, version, allow_code=allow_code)))
    except InputError as error:
        return str(error)
    return None


def _told(model: Model, before: Current | None, url: str | None) -> str | None:
    """Have a running server follow; what it refuses is undone. Returns why it refuses."""
    if url is None:
        return None
    try:
        admin_client.done(url, "POST", "/admin/reload")
    except InputError as error:
        model.restore(before)
        return str(error)
    return None


def _report(model: Model, current: Current | None, fault: str | None, *, as_json: bool) -> None:
    version = None if current is None else current.version
    emit(
        {
            "name": model.name,
            "current": version,
            "previous": [] if current is None else current.previous,
            "done": fault is None,
            "why": fault,
        },
        as_json=as_json,
        text=lambda: [f"{model.name}: version {version} serves"],
    )
    if fault is not None:
        say(f"nothing has changed: {fault}")
        raise click.exceptions.Exit(NOT_WELL)
