"""Where toolchains are installed: a folder each under the user's data folder, by `loadslice toolchain install` only.

A folder counts only with its `toolchain.json`, which is written last; an installation that breaks off leaves nothing
that is taken for one.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from loadslice.backends.toolchains.process import DISK_WORDS, ToolchainError
from loadslice.backends.toolchains.registry import KNOWN
from loadslice.spec.errors import InputError
from loadslice.spec.files import NOT_JSON, decode_json, encode_json, reason, write_bytes
from loadslice.spec.toolchain import Installed, Toolchain, ToolchainState

MARK = "toolchain.json"
INSTALL_S_MAX = 3600
PROBE_S_MAX = 120
_PROBE = """
import importlib, importlib.metadata, json, sys
out = sys.stdout; sys.stdout = sys.stderr
importlib.import_module(sys.argv[1])
names = json.loads(sys.argv[2])
found = {}
for name in names:
    try: found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError: pass
found["python"] = "%d.%d" % sys.version_info[:2]
out.write(json.dumps(found)); out.flush()
import os; os._exit(0)
"""


def folder() -> Path:
    """Where toolchains live: `$XDG_DATA_HOME/loadslice/toolchains`, usually `~/.local/share/loadslice/toolchains`."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "loadslice" / "toolchains"


def installed(toolchain: Toolchain) -> Installed | None:
    """Where a toolchain is; ``None`` when it is not installed.

    Raises:
        ToolchainError: Its mark is there, and broken or of an interpreter that has gone.
    """
    mark = folder() / toolchain.name / MARK
    if not mark.is_file():
        return None
    try:
        found = decode_json(mark, Installed)
    except InputError as error:
        raise ToolchainError(f"{error} Run `loadslice toolchain install {toolchain.name}` again.") from error
    if not Path(found.python).is_file():
        raise ToolchainError(
            f"toolchain '{toolchain.name}': its interpreter {found.python} is gone. "
            f"Run `loadslice toolchain install {toolchain.name}` again."
        )
    return found


def present(toolchain: Toolchain) -> bool:
    """It was installed once; a broken one counts, so that its trouble is told when it is asked."""
    return (folder() / toolchain.name / MARK).is_file()


def usable(toolchain: Toolchain) -> bool:
    """It is installed and its interpreter is there."""
    try:
        return installed(toolchain) is not None
    except ToolchainError:
        return False


def states() -> list[ToolchainState]:
    """Every known toolchain, installed or not."""
    found = []
    for toolchain in KNOWN.values():
        where, why = None, None
        try:
            where = installed(toolchain)
        except ToolchainError as error:
            why = str(error)
        found.append(
            ToolchainState(
                name=toolchain.name,
                title=toolchain.title,
                targets=toolchain.targets,
                input=toolchain.input,
                licence=toolchain.licence,
                installed=where,
                reason=why,
            )
        )
    return found


def install(toolchain: Toolchain, python: Path | None, tell: Callable[[str], None]) -> Installed:
    """Make an environment with the pinned versions, from the index that the user's pip is configured for.

    Args:
        toolchain: Which.
        python: The interpreter to make it with; for a toolchain of the user's own, the one that has it.
        tell: Hears what is going on.

    Raises:
        ToolchainError: It cannot be installed; nothing is left behind.
    """
    home = folder() / toolchain.name
    if toolchain.own_python:
        if python is None:
            raise ToolchainError(
                f"toolchain '{toolchain.name}' has pins of its own ({toolchain.installed_mb / 1000:.1f} GB): install "
                f"{', then '.join(toolchain.requires)} into an environment of yours and name it with --python PATH."
            )
        found = _probe(toolchain, python, ours=False)
        _mark(home, found)
        return found
    base = python or Path(sys.executable)
    _check_version(toolchain, base)
    _check_space(toolchain, home)
    tell(f"making an environment in {home}; pip installs {', '.join(toolchain.requires)}")
    shutil.rmtree(home, ignore_errors=True)
    try:
        home.mkdir(parents=True, exist_ok=True)
        _run(toolchain, [str(base), "-m", "venv", str(home / "env")], home)
        inside = home / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
        pip = [str(inside), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet"]
        _run(toolchain, [*pip, *toolchain.requires], home)
        found = _probe(toolchain, inside, ours=True)
        _mark(home, found)
    except OSError as error:
        shutil.rmtree(home, ignore_errors=True)
        raise ToolchainError(f"toolchain '{toolchain.name}': {home} cannot be written, {reason(error)}.") from error
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    return found


def _mark(home: Path, found: Installed) -> None:
    write_bytes(home / MARK, encode_json(found))


def _check_version(toolchain: Toolchain, python: Path) -> None:
    try:
        done = subprocess.run(
            [str(python), "-c", "import sys; print(*sys.version_info[:2])"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_S_MAX,
            check=True,
        )
        major, minor = (int(part) for part in done.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ToolchainError(f"{python}: is not a Python interpreter that runs.") from error
    if not toolchain.python_min <= (major, minor) <= toolchain.python_max:
        low, high = (".".join(map(str, bound)) for bound in (toolchain.python_min, toolchain.python_max))
        raise ToolchainError(
            f"toolchain '{toolchain.name}' has packages for Python {low} to {high}, {python} is {major}.{minor}. "
            "Name another with --python PATH."
        )


def _check_space(toolchain: Toolchain, home: Path) -> None:
    above = next(parent for parent in (home, *home.parents) if parent.is_dir())
    free_mb = shutil.disk_usage(above).free // 10**6
    needed_mb = toolchain.installed_mb + toolchain.download_mb
    if free_mb < needed_mb:
        raise ToolchainError(
            f"toolchain '{toolchain.name}' needs about {needed_mb} MB, {above} has {free_mb} MB free. "
            "Free some, or set XDG_DATA_HOME to another disk."
        )


def _run(toolchain: Toolchain, command: list[str], home: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    log = home / "install.log"
    try:
        with log.open("ab") as stream:
            code = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=environment,
                timeout=INSTALL_S_MAX,
                check=False,
            ).returncode
    except subprocess.TimeoutExpired as error:
        raise ToolchainError(f"toolchain '{toolchain.name}': pip took over {INSTALL_S_MAX} s, stopped.") from error
    if code:
        text = log.read_text(encoding="utf-8", errors="replace")
        if any(word in text for word in DISK_WORDS):
            raise ToolchainError(f"toolchain '{toolchain.name}': the disk is full. Free some space and try again.")
        errors = [line for line in text.splitlines() if line.startswith("ERROR")] or text.splitlines()[-1:]
        why = errors[-1].removeprefix("ERROR: ")[:300].rstrip(".") if errors else f"code {code}"
        raise ToolchainError(f"toolchain '{toolchain.name}' cannot be installed: {why}.")


def _probe(toolchain: Toolchain, python: Path, *, ours: bool) -> Installed:
    """Import the toolchain in its own interpreter and read the versions it has."""
    names = [requirement.partition("==")[0] for requirement in toolchain.requires]
    if toolchain.provides == "rknn-toolkit2":
        names += ["onnx", "numpy"]
    command = [str(python), "-E", "-s", "-c", _PROBE, toolchain.module, msgspec.json.encode(names).decode()]
    environment = dict(os.environ) | {"ORT_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S_MAX, check=False, env=environment
        )
        versions = msgspec.json.decode(done.stdout, type=dict[str, str])
    except (OSError, subprocess.SubprocessError, *NOT_JSON) as error:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] if "done" in locals() else []
        why = said[0][:200].rstrip(".") if said else "it does not run"
        raise ToolchainError(f"{python}: cannot import {toolchain.module}: {why}.") from error
    return Installed(name=toolchain.name, python=str(python.absolute()), versions=versions, ours=ours)
