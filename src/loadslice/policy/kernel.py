"""The one door to numba.

Every decision is a plain Python function under `@kernel`; with ``NUMBA_DISABLE_JIT=1`` it runs uncompiled, byte for
byte the same. No fastmath, Python's division rules, and a cache that cannot go stale: numba checks only the file a
function stands in, and would serve a caller compiled against yesterday's callee. So the cache folder is named by the
hash of every source file that compiled code may come from; any edit starts a new folder.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numba
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering
from numba.core.types import Dispatcher, unliteral  # type: ignore[attr-defined] # its stubs do not know it

P = ParamSpec("P")
R = TypeVar("R")

_PACKAGE = Path(__file__).resolve().parent.parent


def source_hash() -> str:
    """Hash of the sources that compiled code comes from, of the numbers it holds, and of the numba that compiles it.

    Code: the modules of policy and sim that have kernels. Numbers: columns, outcomes and reasons, which are constants
    to the compiler.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    policy, spec = _PACKAGE / "policy", _PACKAGE / "spec"
    numbers = [spec / "outcome.py", spec / "route.py"]
    numbers += [folder / name for folder in (policy, policy / "tokens") for name in ("columns.py", "layout.py")]
    rooms = [*policy.rglob("*.py"), *(_PACKAGE / "sim").glob("*.py")]
    for path in sorted({*rooms, *numbers}):
        source = path.read_bytes()
        has_kernels = b"from loadslice.policy.kernel import" in source and not path.name.endswith("_test.py")
        if has_kernels or path in numbers:
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
    "cache": _folder is not None,
    # Tables and state are some forty arrays passed to every function. Counting references to them, and copying them to
    # calls that are not inlined, cost twelve times the decisions themselves (0.38 against 4.6 million requests per
    # CPU-second, one engine). So compiled code allocates nothing, and holds no array beyond a call.
    "_nrt": False,
}


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a pure function, inlined wherever it is called. It may make views, never arrays.

    Only other kernels may call it: one that Python calls is an `entry`.
    """
    return _compiled(function, inlined=True, wrapped=False)


def rare(function: Callable[P, R]) -> Callable[P, R]:
    """The same for what is decided seldom: compiled once, and called, which costs about 0.1 us.

    Inlined everywhere, the seldom paths were most of the code and of the time to compile it.
    """
    return _compiled(function, inlined=False, wrapped=False)


def entry(*, inlined: bool) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A kernel that Python calls too.

    The wrapper that takes forty arrays out of Python objects is a quarter of what there is to compile, so that only
    these have one.
    """
    return lambda function: _compiled(function, inlined=inlined, wrapped=True)


def _refuse_call(*_: Any, **__: Any) -> None:
    raise TypeError("only kernels call a kernel: make it an `entry` to call it from Python.")


class _PartLibrary(JITCodeLibrary):
    """Code that only other code calls: it is linked into an entry, and optimised there, once.

    By itself numba optimises every function with all that it calls, then again in each of its callers, and makes
    machine code of it each time.
    """

    def finalize(self) -> None:
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)  # noqa: SLF001
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)  # noqa: SLF001
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(NativeLowering):
    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        if not state.flags.forceinline:
            name = state.cr.fndesc.mangled_name
            for attribute in ("cold", "noinline"):
                state.library._final_module.get_function(name).add_function_attribute(attribute)
        entry_point = object()
        state.targetctx.insert_user_function(entry_point, state.cr.fndesc, [state.library])
        state["cr"] = state.cr._replace(cfunc=entry_point)
        return True


class _PartCompiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        pipeline = DefaultPassBuilder.define_nopython_pipeline(self.state)
        pipeline.passes = [
            (_PartLowering, text) if step is NativeLowering else (step, text) for step, text in pipeline.passes
        ]
        pipeline.finalize()
        return [pipeline]


class _Entry(CPUDispatcher):
    """What Python calls; other kernels link its part."""

    @property
    def _numba_type_(self) -> Any:
        return Dispatcher(self.part)


def _compiled(function: Callable[P, R], *, inlined: bool, wrapped: bool) -> Callable[P, R]:
    if numba.config.DISABLE_JIT:
        return function
    part: Any = numba.njit(
        **_FLAGS | {"cache": False},
        forceinline=inlined and os.environ.get("SIMSPEED_INLINE") != "0",
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        pipeline_class=_PartCompiler,
    )(function)
    call_template = part.get_call_template

    def of_plain_types(arguments: Any, keywords: Any) -> Any:
        return call_template(tuple(map(unliteral, arguments)), {key: unliteral(kind) for key, kind in keywords.items()})

    # numba would compile `finish(..., FAILED, ...)` and `finish(..., SHED, ...)`, and all they call, once per constant:
    # 148 functions where there are 66, and twice the time.
    part.get_call_template = of_plain_types
    # There is nothing in a part that Python could call, and numba would call it all the same.
    part._insert = lambda *_: None  # noqa: SLF001
    part._compile_for_args = _refuse_call  # noqa: SLF001
    if not wrapped:
        return part  # type: ignore[no-any-return]
    whole: Any = numba.njit(**_FLAGS, no_cfunc_wrapper=True)(function)
    whole.__class__ = _Entry
    whole.part = part
    return whole  # type: ignore[no-any-return]
