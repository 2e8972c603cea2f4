"""The model repository: a folder of versions, each with its pipeline, all variants of its models, and golden answers.

``REPO/NAME/VERSION/`` holds ``pipeline.yaml``, the models it names, ``golden.npz`` and ``manifest.json``;
``REPO/NAME/current.json`` says which version serves and which did before.

Rules of this file: a version is never changed after it was added; every file of it is in its manifest with size and
hash, and nothing else is there; a switch is one rename; a name is a name and never a path.
"""

import os
import re
import stat
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from loadslice.spec import pipeline as pipelines
from loadslice.spec.errors import InputError
from loadslice.spec.files import Stamp, decode_json, encode_json, reason, resolved, sha256_file, write_bytes
from loadslice.spec.pipeline import Pipeline

SCHEMA: Literal["repository/1"] = "repository/1"
PIPELINE_FILE = "pipeline.yaml"
MANIFEST_FILE = "manifest.json"
GOLDEN_FILE = "golden.npz"
CURRENT_FILE = "current.json"

FILES_MAX = 10_000
"""Of one version."""
FILE_BYTES_MAX = 256 << 30
VERSION_BYTES_MAX = 1 << 40
PREVIOUS_MAX = 32
"""Versions that a roll back can reach."""

DATA_SUFFIXES = frozenset({".onnx", ".data", ".bin", ".safetensors", ".yaml", ".json", ".npz", ".txt"})
"""What a version may hold. ``.bin`` and ``.data`` are weights that an ONNX file names; nothing here is executed."""
CODE_SUFFIX = ".py"
MODEL_SUFFIXES = frozenset({".onnx", ".safetensors"})

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One file of a version."""

    sha256: str
    size_bytes: int


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a version consists of."""

    schema: Literal["repository/1"] = SCHEMA
    name: str
    version: str
    files: dict[str, File]
    """By path inside the version's folder, with forward slashes; without the manifest itself."""
    has_code: bool = False
    """Whether it brings Python modules, which run with the server's rights."""
    stamp: Stamp | None = None


class Current(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which version serves."""

    version: str
    previous: list[str] = []
    """Those before it, newest last."""


def check_name(text: str, what: str) -> str:
    """A model's or a version's name.

    Raises:
        InputError: It is a path, hidden, too long, or not plain ASCII.
    """
    if not _NAME.fullmatch(text):
        raise InputError(f"{what} {text!r:.80}: use 1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or a digit.")
    return text


class Model:
    """One model of a repository.

    Args:
        folder: ``REPO/NAME``.
    """

    def __init__(self, folder: Path) -> None:
        check_name(folder.name, "model")
        self.folder = folder

    @property
    def name(self) -> str:
        """As clients call it: the pipeline's."""
        return self.folder.name

    @property
    def state_file(self) -> Path:
        """Where a server on it remembers rollouts and quotas, unless told otherwise."""
        return self.folder / ".state" / "server.sqlite"

    def version_folder(self, version: str) -> Path:
        """Where a version stands, or would."""
        return self.folder / check_name(version, "version")

    def versions(self) -> list[str]:
        """Those that have a manifest, in the order of their names; numbers count as numbers."""
        if not self.folder.is_dir():
            return []
        found = [
            one.name for one in self.folder.iterdir() if _NAME.fullmatch(one.name) and (one / MANIFEST_FILE).is_file()
        ]
        return sorted(
            found,
            key=lambda name: [
                (not part.isdigit(), int(part) if part.isdigit() else 0, part)
                for part in re.split(r"(\d+)", name)
                if part
            ],
        )

    def current(self) -> Current | None:
        """Which version serves; ``None``: none was ever chosen.

        Raises:
            InputError: The file that says so is damaged.
        """
        path = self.folder / CURRENT_FILE
        return decode_json(path, Current) if path.exists() else None

    def use(self, version: str) -> Current:
        """Have a version serve; one rename, so that whoever reads sees the old one or the new one.

        Raises:
            InputError: There is no such version.
        """
        self.manifest(version)
        before = self.current()
        if before is not None and before.version == version:
            return before
        previous = [] if before is None else [*before.previous, before.version][-PREVIOUS_MAX:]
        return self._point(Current(version=version, previous=previous))

    def roll_back(self) -> Current:
        """Have the version serve that did before.

        Raises:
            InputError: There is none.
        """
        now = self.current()
        if now is None or not now.previous:
            raise InputError(f"{self.folder}: there is no version before the current one. See `loadslice model list`.")
        return self._point(Current(version=now.previous[-1], previous=now.previous[:-1]))

    def restore(self, current: Current | None) -> None:
        """Put back what `current` gave, after a switch that did not work out."""
        if current is None:
            (self.folder / CURRENT_FILE).unlink(missing_ok=True)
        else:
            self._point(current)

    def _point(self, current: Current) -> Current:
        self.manifest(current.version)
        write_bytes(self.folder / CURRENT_FILE, encode_json(current))
        return current

    def manifest(self, version: str) -> Manifest:
        """What a version consists of.

        Raises:
            InputError: No such version, or the manifest is damaged or of another one.
        """
        folder = self.version_folder(version)
        if not (folder / MANIFEST_FILE).is_file():
            there = ", ".join(self.versions()) or "none"
            raise InputError(f"{self.folder}: no version '{version}' ({there}). Add it with `loadslice model add`.")
        manifest = decode_json(folder / MANIFEST_FILE, Manifest)
        if (manifest.name, manifest.version) != (self.name, version):
            raise InputError(
                f"{folder}: the manifest is that of '{manifest.name:.64}' version '{manifest.version:.64}'."
            )
        return manifest

    def verify(self, version: str, *, allow_code: bool) -> Pipeline:
        """Check every byte of a version against its manifest, and what its pipeline may name.

        Returns:
            Its pipeline.

        Raises:
            InputError: The first thing that is not as it was when the version was added, or not allowed here.
        """
        manifest, folder = self.manifest(version), self.version_folder(version)
        if manifest.has_code and not allow_code:
            raise InputError(
                f"{folder}: brings Python code, which runs with the server's rights. Allow it with --code."
            )
        found = files_of(folder)
        found.pop(MANIFEST_FILE, None)
        for name in sorted(set(found) ^ set(manifest.files)):
            where = "is not in the manifest" if name in found else "is missing"
            raise InputError(f"{folder}: '{name:.120}' {where}.")
        for name, kept in manifest.files.items():
            check_suffix(name, folder, allow_code=allow_code)
            if found[name] != kept.size_bytes or sha256_file(folder / name) != kept.sha256:
                raise InputError(f"{folder}: '{name:.120}' is not the file that was added (its SHA-256 differs).")
        if GOLDEN_FILE not in manifest.files:
            raise InputError(f"{folder}: has no {GOLDEN_FILE}; add the version again.")
        pipeline = pipelines.load(folder / PIPELINE_FILE)
        check_confined(pipeline, folder, allow_code=allow_code)
        if pipeline.pipeline != self.name:
            raise InputError(f"{folder}: its pipeline is '{pipeline.pipeline}', not '{self.name}'.")
        return pipeline


def find_model(path: Path) -> Model | None:
    """The model that a path means: a model's folder, or a repository with one model; ``None``: a file.

    Raises:
        InputError: A folder that is neither.
    """
    if not path.is_dir():
        return None
    path = resolved(path)
    if (path / CURRENT_FILE).is_file():
        return Model(path)
    models = sorted(one.name for one in path.iterdir() if (one / CURRENT_FILE).is_file())
    if len(models) == 1:
        return Model(path / models[0])
    if not models:
        raise InputError(f"{path}: no model here has a current version. Choose one with `loadslice model use`.")
    raise InputError(f"{path}: holds {', '.join(models)}; name one, for instance {path / models[0]}.")


def files_of(folder: Path) -> dict[str, int]:
    """Every file under a folder with its size in bytes, by path with forward slashes.

    Raises:
        InputError: A link, a second name of a file elsewhere, something that is no file, or too much of it.
    """
    found: dict[str, int] = {}
    total = 0
    pending = [folder]
    while pending:
        for entry in _entries(pending.pop()):
            path = Path(entry.path)
            name = path.relative_to(folder).as_posix()
            info = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(info.st_mode):
                pending.append(path)
                continue
            if not stat.S_ISREG(info.st_mode):
                raise InputError(f"{folder}: '{name:.120}' is a link or no file; a version holds plain files only.")
            if info.st_nlink != 1:
                raise InputError(f"{folder}: '{name:.120}' has another name somewhere (hard link); copy it instead.")
            total += info.st_size
            found[name] = info.st_size
            if info.st_size > FILE_BYTES_MAX or total > VERSION_BYTES_MAX or len(found) > FILES_MAX:
                raise InputError(f"{folder}: more than {FILES_MAX} files or {VERSION_BYTES_MAX} bytes.")
    return found


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise InputError(f"{folder}: cannot be read, {reason(error)}.") from error


def check_suffix(name: str, folder: Path, *, allow_code: bool) -> None:
    """Refuse files of kinds that a version does not hold.

    Raises:
        InputError: Names the file.
    """
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in DATA_SUFFIXES or (suffix == CODE_SUFFIX and allow_code):
        return
    raise InputError(
        f"{folder}: '{name:.120}': a version holds ONNX and safetensors models and their data, not '{suffix:.20}' files"
        f"{' (Python stages: --code)' if suffix == CODE_SUFFIX else ''}."
    )


def check_confined(pipeline: Pipeline, folder: Path, *, allow_code: bool) -> None:
    """Refuse a pipeline that reaches outside its version's folder, or brings code where none is allowed.

    Raises:
        InputError: Names the key.
    """
    for index, stage in enumerate(pipeline.stages):
        sources = [(f"stages[{index}]", stage.python, stage.model)]
        if stage.canary is not None:
            sources.append((f"stages[{index}].canary", stage.canary.python, stage.canary.model))
        for place, python, model in sources:
            if python is not None and not allow_code:
                raise InputError(f"{folder}: {place}.python: runs code with the server's rights. Allow it with --code.")
            if model is not None:
                _check_inside(model, folder, f"{place}.model")
        if stage.degraded is not None and not allow_code:
            raise InputError(f"{folder}: stages[{index}].degraded: runs code. Allow it with --code.")
    if pipeline.inputs is not None and not allow_code:
        raise InputError(f"{folder}: inputs: runs code. Allow it with --code.")
    for name, engine in pipeline.engines.items():
        for key, value in engine.options.items():
            if isinstance(value, str) and ("/" in value or "\\" in value):
                _check_inside(value, folder, f"engines.{name}.options.{key}", model=False)


def _check_inside(reference: str, folder: Path, place: str, *, model: bool = True) -> None:
    path = PurePosixPath(reference)
    if (
        reference.startswith("package:")
        or "\\" in reference
        or "\0" in reference
        or path.is_absolute()
        or ".." in path.parts
    ):
        raise InputError(f"{folder}: {place}: '{reference:.120}' is outside the version's folder.")
    if model and path.suffix.lower() not in MODEL_SUFFIXES:
        raise InputError(f"{folder}: {place}: '{reference:.120}' is neither ONNX nor safetensors.")
