"""Finding the Python functions a pipeline file names as ``module:function``.

The module is a file beside the pipeline file and is trusted as that file is. It is loaded once per process under a
name of its own, so that two pipelines may both have a ``stages.py``.
"""

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from loadslice.spec.errors import InputError
from loadslice.spec.files import resolved


def load_function(reference: str, folder: Path) -> Callable[..., Any]:
    """The function a pipeline file names.

    Args:
        reference: ``module:function``; ``module`` is a Python file in ``folder``, without ``.py``.
        folder: The folder of the pipeline file.

    Raises:
        InputError: Not of that form, no such file or function, or the file cannot be imported.
    """
    module_name, _, function_name = reference.partition(":")
    if not module_name.isidentifier() or not function_name.isidentifier():
        raise InputError(f"'{reference}' is not like 'module:function', with module.py beside the pipeline file.")
    path = resolved(folder / f"{module_name}.py")
    if not path.is_file():
        raise InputError(f"'{reference}': no such file: {path}.")
    function = getattr(_module(path), function_name, None)
    if not callable(function):
        raise InputError(f"'{reference}': {path} has no function '{function_name}'.")
    assert callable(function)
    return function  # type: ignore[no-any-return]


def call_function(reference: str, folder: Path, *arguments: Any) -> Any:
    """Find a named function and call it.

    Raises:
        InputError: As `load_function`, or the function itself fails.
    """
    function = load_function(reference, folder)
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:
        raise InputError(f"'{reference}' fails: {type(error).__name__}: {error}") from error


def _module(path: Path) -> ModuleType:
    name = f"loadslice_beside_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        with _importable(path.parent):
            found.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"{path}: cannot be imported: {type(error).__name__}: {error}") from error
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let a module import its neighbours at its top level, and only then."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before
