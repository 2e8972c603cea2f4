"""Installing, listing and finding toolchains, without installing any."""

import os
import sys
from pathlib import Path

import msgspec
import pytest

from loadslice.backends.toolchains import environment, registry
from loadslice.backends.toolchains.compile import compile_model, is_installed
from loadslice.backends.toolchains.process import ToolchainError
from loadslice.spec.errors import InputError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "loadslice" / "toolchains"


def quiet(_: str) -> None:
    """Nobody listens."""


def test_a_fresh_machine_has_none_of_them() -> None:
    assert {state.name for state in environment.states()} == {"qnn", "vela", "rknn", "tflite"}
    assert all(state.installed is None for state in environment.states())
    assert not is_installed("qnn-htp")


def test_asking_one_that_is_missing_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"Run `loadslice toolchain install qnn`\."):
        compile_model(tmp_path / "m.onnx", "qnn-htp")


def test_a_half_made_folder_is_not_taken_for_an_installation(home: Path) -> None:
    (home / "vela" / "env").mkdir(parents=True)
    assert environment.installed(registry.VELA) is None


def test_an_interpreter_that_went_away_is_said_and_the_others_go_on(home: Path) -> None:
    (home / "vela").mkdir(parents=True)
    mark = {"name": "vela", "python": "/gone/python", "versions": {}, "ours": False}
    (home / "vela" / "toolchain.json").write_bytes(msgspec.json.encode(mark))
    (home / "qnn").mkdir()
    (home / "qnn" / "toolchain.json").write_text("{", encoding="utf-8")
    reasons = {state.name: state.reason for state in environment.states()}
    assert reasons["rknn"] is None
    assert reasons["vela"] is not None
    assert "/gone/python is gone" in reasons["vela"]
    assert reasons["qnn"] is not None
    assert "install qnn` again" in reasons["qnn"]
    assert [environment.present(one) for one in (registry.VELA, registry.QNN, registry.RKNN)] == [True, True, False]
    assert not any(environment.usable(one) for one in registry.KNOWN.values())


def test_one_of_the_users_own_is_never_installed_by_us() -> None:
    with pytest.raises(ToolchainError, match="name it with --python PATH"):
        environment.install(registry.RKNN, None, quiet)


def test_a_named_interpreter_without_it_is_refused(home: Path) -> None:
    with pytest.raises(ToolchainError, match="No module named 'rknn'"):
        environment.install(registry.RKNN, Path(sys.executable), quiet)
    assert not home.exists()


def test_a_python_it_has_no_packages_for_is_refused_before_anything_is_made(home: Path) -> None:
    future = msgspec.structs.replace(registry.VELA, python_min=(3, 98), python_max=(3, 99))
    with pytest.raises(ToolchainError, match=r"has packages for Python 3\.98 to 3\.99"):
        environment.install(future, None, quiet)
    assert not home.exists()


def test_too_small_a_disk_is_said_before_anything_is_made(home: Path) -> None:
    huge = msgspec.structs.replace(registry.VELA, installed_mb=10**12)
    with pytest.raises(ToolchainError, match="needs about"):
        environment.install(huge, None, quiet)
    assert not home.exists()


@pytest.mark.skipif(os.name == "nt", reason="the stand-in interpreter is a shell script")
@pytest.mark.parametrize(
    ("last_words", "words"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("ERROR: No matching distribution found for ethos-u-vela==5.2.0", "cannot be installed: No matching"),
    ],
)
def test_an_installation_that_breaks_off_leaves_nothing_behind(
    tmp_path: Path, home: Path, last_words: str, words: str
) -> None:
    """An interpreter that begins to make an environment and fails."""
    python = tmp_path / "python"
    begins = f'mkdir -p {home}/vela/env; echo "{last_words}" >&2; exit 1'
    python.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then echo 3 11; else {begins}; fi\n', encoding="utf-8")
    python.chmod(0o755)
    with pytest.raises(ToolchainError, match=words):
        environment.install(registry.VELA, python, quiet)
    assert not (home / "vela").exists()


def test_targets_and_their_options_are_checked() -> None:
    toolchain, name, options = registry.target("qnn-htp:soc_model=57")
    assert (toolchain.name, name, options) == ("qnn", "qnn-htp", {"soc_model": "57"})
    assert registry.target("qnn-htp")[2] == {"soc_model": "60"}
    assert registry.target("qnn-htp:htp_arch=75")[2] == {"htp_arch": "75"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("qnn-htq", "near it: qnn-htp"),
        ("qnn-htp:soc=60", "has no option 'soc'"),
        ("qnn-htp:soc_model=60;rm", "must look like"),
        ("qnn-htp:soc_model", "is not of the form"),
        ("qnn-htp:soc_model=60,soc_model=57", "twice"),
        ("ethos-u55-256:system_config=../../x", "must look like"),
    ],
)
def test_a_target_that_is_none_is_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        registry.target(text)
