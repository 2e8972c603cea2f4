"""Code is optimised once, where Python enters it.

By itself numba takes every function for one that Python may call: it optimises it with all that it calls, makes machine
code of it, and does so again for each of its callers. A part is only linked into what calls it; the whole is optimised
where it is entered. That took a third of the time to compile the simulator (70 to 24 seconds of processor time).

The whole is known to be the whole: nobody else calls its parts, so that the compiler may see from their code what they
read, write and answer, and need not ask for errors that cannot come.
"""

# numba is not typed.
# mypy: disable-error-code="misc"

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering
from numba.core.types import Dispatcher


class _Unfinished(JITCodeLibrary):
    """A function with all it calls, neither optimised nor made machine code of."""

    def add_ir_module(self, ir_module: Any) -> None:
        """Take a function's code, but for the zeros that every variable and every slot for an answer begins with.

        Nothing reads them. In a part that was inlined they would be written each time on the way, for calls of what is
        rare that are not made.
        """
        for function in ir_module.functions:
            for entry in function.blocks[:1]:
                before = [None, *entry.instructions]
                entry.instructions = [
                    step for place, step in zip(before, entry.instructions, strict=False) if not _fills(step, place)
                ]
        super().add_ir_module(ir_module)

    def finalize(self) -> None:
        """Gather what is called."""
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)  # noqa: SLF001
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)  # noqa: SLF001
        self._finalized = True


def _fills(step: Any, place: Any) -> bool:
    """Whether an instruction does no more than fill the place on the stack that the one before has made."""
    return isinstance(step, ir.StoreInstr) and isinstance(place, ir.AllocaInstr) and step.operands[1] is place


class _Whole(JITCodeLibrary):
    """An entry with all it calls, which nobody else calls."""

    def finalize(self) -> None:
        """Link, optimise and make machine code."""
        entered = [function for function in self._final_module.functions if not function.is_declaration]
        self._entered = {function.name for function in entered}
        for function in entered:
            # Frames of tables are written where Python enters; the same function must not read them as never written.
            function.add_function_attribute("noinline")
        super().finalize()

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if not function.is_declaration and function.name not in self._entered:
                function.linkage = "internal"
        super()._optimize_final_module()


@register_pass(mutates_CFG=True, analysis_only=False)
class _EntryLowering(NativeLowering):
    """Lower a function, and make machine code of it with all it calls."""

    _name = "entry_lowering"

    def run_pass(self, state: Any) -> bool:
        """Lower it."""
        state.library = _Whole(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return bool(super().run_pass(state))


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(NativeLowering):
    """Lower a function to code for linking."""

    _name = "part_lowering"
    attributes: tuple[str, ...] = ()

    def run_pass(self, state: Any) -> bool:
        """Lower it, and say how it is called."""
        state.library = _Unfinished(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        code = state.library.get_function(state.cr.fndesc.llvm_func_name)
        for attribute in self.attributes:
            code.add_function_attribute(attribute)
        # numba knows a function by where its machine code begins; this one has none.
        identity = object()
        state.targetctx.insert_user_function(identity, state.cr.fndesc, [state.library])
        state["cr"] = state.cr._replace(cfunc=identity)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _CalledLowering(_PartLowering):
    """The same for what is called, not inlined."""

    _name = "called_lowering"
    attributes = ("noinline",)


@register_pass(mutates_CFG=True, analysis_only=False)
class _RareLowering(_PartLowering):
    """The same for what is called seldom."""

    _name = "rare_lowering"
    attributes = ("noinline", "cold")


class EntryCompiler(CompilerBase):
    """Numba's compiler, but for the step that makes machine code."""

    lowering: Any = _EntryLowering

    def define_pipelines(self) -> list[Any]:
        """The usual passes, with ours in the place of that one."""
        pipeline = DefaultPassBuilder.define_nopython_pipeline(self.state)
        pipeline.passes = [
            (self.lowering, text) if step is NativeLowering else (step, text) for step, text in pipeline.passes
        ]
        pipeline.finalize()
        return [pipeline]


class PartCompiler(EntryCompiler):
    """The same for a part, of which no machine code is made."""

    lowering = _PartLowering


class CalledCompiler(EntryCompiler):
    """The same for a part that is not inlined."""

    lowering = _CalledLowering


class RareCompiler(EntryCompiler):
    """The same for a part that is called seldom."""

    lowering = _RareLowering


class Entry(CPUDispatcher):
    """What Python calls; kernels that call it link its part.

    Attributes:
        part: The same function, for linking.
    """

    part: Any

    @property
    def _numba_type_(self) -> Any:
        return Dispatcher(self.part)
