"""The one door to numba.

Every decision is a plain Python function under `@kernel`; with ``NUMBA_DISABLE_JIT=1`` it runs uncompiled, byte for
byte the same. No fastmath, Python's division rules, and a cache that cannot go stale: numba checks only the file a
function stands in, and would serve a caller compiled against yesterday's callee. So the cache folder is named by the
hash of every source file that compiled code may come from; any edit starts a new folder.

Tables and state are passed by reference (`cells`), and code is optimised once, where Python enters it (`parts`).
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numba
from numba.core.types import unliteral  # type: ignore[attr-defined] # its stubs do not know it

from loadslice.policy.kernel.cells import by_reference
from loadslice.policy.kernel.parts import CalledCompiler, Entry, EntryCompiler, PartCompiler, RareCompiler
from loadslice.policy.kernel.scan import first_least

__all__ = ["by_reference", "called", "entry", "first_least", "kernel", "rare", "source_hash"]

P = ParamSpec("P")
R = TypeVar("R")

_PACKAGE = Path(__file__).resolve().parent.parent.parent


def source_hash() -> str:
    """Hash of the sources that compiled code comes from, of the numbers it holds, and of the numba that compiles it.

    Code: the modules of policy and sim that have kernels, and what compiles them. Numbers: columns, outcomes and
    reasons, which are constants to the compiler.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    policy, spec = _PACKAGE / "policy", _PACKAGE / "spec"
    always = [spec / "outcome.py", spec / "route.py", *(policy / "kernel").glob("*.py")]
    always += [folder / name for folder in (policy, policy / "tokens") for name in ("columns.py", "layout.py")]
    rooms = [*policy.rglob("*.py"), *(_PACKAGE / "sim").glob("*.py")]
    for path in sorted({*rooms, *always}):
        source = path.read_bytes()
        is_test = path.name.endswith("_test.py")
        if not is_test and (path in always or b"from loadslice.policy.kernel import" in source):
            digest.update(path.relative_to(_PACKAGE).as_posix().encode() + source)
    return digest.hexdigest()[:16]


def _cache_folder() -> Path | None:
    """A private, writable folder for compiled code, or ``None``: then everything is compiled anew."""
    home = os.environ.get("XDG_CACHE_HOME")
    base = Path(home) if home else Path.home() / ".cache"
    folder = base / "loadslice" / "compiled" / source_hash()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        return None
    # Compiled code is loaded and run: only a folder that is ours alone will do.
    mine = not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()
    return folder if mine and not folder.stat().st_mode & 0o022 else None


_folder = _cache_folder()
if _folder is not None:
    numba.config.CACHE_DIR = str(_folder)
# Decisions are short branches, not vector loops: looking for vectors costs compile time and gains nothing.
numba.config.LOOP_VECTORIZE = 0
numba.config.SLP_VECTORIZE = 0


_FLAGS = {
    "fastmath": False,
    "error_model": "python",
    "nogil": True,
    # Compiled code allocates nothing and holds no array beyond a call, so that no references need be counted.
    "_nrt": False,
    "no_cfunc_wrapper": True,
}


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a pure function, inlined wherever it is called. It may make views, never arrays.

    Only other kernels may call it: one that Python calls is an `entry`.
    """
    return _part(function, PartCompiler)


def called(function: Callable[P, R]) -> Callable[P, R]:
    """The same for what is long and needed in several places: it is there once."""
    return _part(function, CalledCompiler)


def rare(function: Callable[P, R]) -> Callable[P, R]:
    """The same for what is decided seldom: called, and laid out beside the path that is always taken.

    Inlined everywhere, the seldom paths were most of the code and of the time to compile it.
    """
    return _part(function, RareCompiler)


def entry(*, inlined: bool) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A kernel that Python calls too."""

    def whole(function: Callable[P, R]) -> Callable[P, R]:
        if numba.config.DISABLE_JIT:
            return function
        dispatcher: Any = numba.njit(**_FLAGS, cache=_folder is not None, pipeline_class=EntryCompiler)(function)
        dispatcher.__class__ = Entry
        dispatcher.part = _part(function, PartCompiler if inlined else RareCompiler)
        compiled: Callable[P, R] = dispatcher
        return compiled

    return whole


def _refuse_call(*_: Any, **__: Any) -> None:
    raise TypeError("only kernels call a kernel: make it an `entry` to call it from Python.")


def _part(function: Callable[P, R], compiler: type[EntryCompiler]) -> Callable[P, R]:
    if numba.config.DISABLE_JIT:
        return function
    inlined = compiler is PartCompiler
    dispatcher: Any = numba.njit(**_FLAGS, forceinline=inlined, no_cpython_wrapper=True, pipeline_class=compiler)(
        function
    )
    call_template = dispatcher.get_call_template

    def of_plain_types(arguments: Any, keywords: Any) -> Any:
        return call_template(tuple(map(unliteral, arguments)), {key: unliteral(kind) for key, kind in keywords.items()})

    # numba would compile `finish(..., FAILED, ...)` and `finish(..., SHED, ...)`, and all they call, once per constant:
    # 148 functions where there are 66, and twice the time.
    dispatcher.get_call_template = of_plain_types
    # There is nothing in a part that Python could call, and numba would call it all the same.
    dispatcher._insert = lambda *_: None  # noqa: SLF001
    dispatcher._compile_for_args = _refuse_call  # noqa: SLF001
    part: Callable[P, R] = dispatcher
    return part
