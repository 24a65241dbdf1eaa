"""How kernels are compiled, and the helpers that give them longer arrays as they go."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering

from tagmatch.model.kernels.interpreted import by_python_first
from tagmatch.model.kernels.kept import digest_of, kept

_njit: Any = numba.njit


class _PartOfKernels(JITCodeLibrary):
    """The code of a function that kernels call: it is optimised and made machine code only as a part of these.

    Numba does so with each function, for Python to call: most of the time that it takes to compile a kernel.
    """

    def finalize(self) -> None:
        """Link the functions that it calls into it."""
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LoweringOfParts(NativeLowering):
    _name = "lowering_of_parts"

    def run_pass(self, state: Any) -> bool:
        """Write its code; other kernels know it by a function of C that is never called."""
        state.flags.no_compile = state.flags.no_cpython_wrapper = state.flags.no_cfunc_wrapper = True
        state.library = _PartOfKernels(state.targetctx.codegen(), state.func_id.func_qualname)
        super().run_pass(state)
        lowered = state["cr"]._replace(cfunc=object().__sizeof__)  # some function of C, and no other function's
        state.targetctx.insert_user_function(lowered.cfunc, lowered.fndesc, [state.library])
        state["cr"] = lowered
        return True


class _CompilerOfParts(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        """Return Numba's own passes, except the last ones."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [(_LoweringOfParts if each is NativeLowering else each, text) for each, text in passes.passes]
        return [passes]


def kernel(function: Callable[..., Any]) -> Any:
    """Compile on first use that is not little, without the interpreter lock; cached on disk. No division is checked."""
    return by_python_first(kept(inlined(function), function), function)


def brief_kernel(function: Callable[..., Any]) -> Any:
    """A kernel that keeps the interpreter lock, as it takes microseconds: to get it back may take longer."""
    return by_python_first(kept(_compiled(function), function), function)


def inlined(function: Callable[..., Any]) -> Any:
    """A helper, compiled only as part of the kernels that call it, without a call: one that gets arrays costs 50 ns."""
    return _compiled(function, nogil=True, forceinline=True)


def lent(function: Callable[..., Any]) -> Any:
    """As `inlined`, of a helper that neither makes nor returns an array: it counts no references to those that it gets.

    To count them takes 5 ns for each array, longer than most helpers do. What makes an array does not compile.
    """
    return _compiled(function, nogil=True, forceinline=True, _nrt=False)


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    """What Python calls; other kernels call its part, which is made when one of them is compiled."""
    function = named_apart(function)
    compiled = _njit(error_model="numpy", no_cfunc_wrapper=True, **options)(function)

    @cache
    def part() -> Any:
        return _njit(error_model="numpy", pipeline_class=_CompilerOfParts, **options)(function)

    compiled.get_call_template = lambda arguments, keywords: part().get_call_template(arguments, keywords)
    compiled.get_overload = lambda signature: part().get_overload(signature)
    return compiled


def named_apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, named by what is around it, too, if it is one of several.

    Numba calls the constants of kept code by the name of its function and a number that counts those of a process: of
    two such functions, compiled by two processes, one would take the constants of the other.
    """
    if function.__closure__:
        function.__qualname__ += f"_{digest_of([cell.cell_contents for cell in function.__closure__])}"
    return function


_U = np.uint64


@inlined
def copy(values, begin, end, out, at):
    """Copy those from `begin` to `end` to where `at` is; returns the place behind them.

    To assign a slice has Numba compile the text of an error, for a second.
    """
    # Unsigned indices save the test for a negative one, and so the compiler copies many at once: in a third of the time
    count, source, target = _U(end - begin), _U(begin), _U(at)
    for i in range(count):
        out[target + i] = values[source + i]
    return at + end - begin


@kernel
def with_room(array, used, more):
    """The array, or a longer copy with room for `more` after the first `used`."""
    if used + more <= len(array):
        return array
    longer = np.empty(max(2 * len(array), used + more), array.dtype)
    copy(array, 0, used, longer, 0)
    return longer
