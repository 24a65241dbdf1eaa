"""How kernels are compiled, and the helpers that give them longer arrays as they go."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numba
import numpy as np
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.registry import cpu_target
from numba.core.typed_passes import NativeLowering
from numba.core.types.functions import BaseFunction

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


class _GeneratorOfParts:
    """Numba's generator of code, except that it makes parts, which Python never calls."""

    def __init__(self, codegen: Any) -> None:
        self.whole = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def create_library(self, name: str) -> _PartOfKernels:
        """Return an empty part."""
        return _PartOfKernels(self, name)

    def set_env(self, name: str, env: Any) -> None:
        """Do nothing: a part has no address."""


_functions: Any = BaseFunction
_resolve = _functions.get_call_type
_call_types: dict[Any, Any] = {}


def _call_type(function: Any, context: Any, arguments: Any, keywords: Any) -> Any:
    """The signature of one of Numba's functions for arguments of these types.

    Numba tries up to a dozen templates of an operator at each use, and writes an error for each that does not fit.
    """
    key = function, arguments, tuple(keywords.items())
    if key not in _call_types:
        signature = _resolve(function, context, arguments, keywords)
        if function.get_impl_key(signature) is not function.typing_key:  # it may depend on more
            return signature
        _call_types[key] = signature
    return _call_types[key]


@contextlib.contextmanager
def _making_parts(own: Any) -> Iterator[None]:
    """Functions that are compiled within it become parts, Numba's own, too, and the garbage collector waits.

    The collector takes a sixth of the time, and finds next to nothing. `own` is the kernel's copy of Numba's context.
    """
    context, whole, collects = cpu_target.target_context, own._internal_codegen, gc.isenabled()
    context._internal_codegen = own._internal_codegen = _GeneratorOfParts(whole)
    _functions.get_call_type = _call_type
    gc.disable()
    try:
        yield
    finally:
        context._internal_codegen, _functions.get_call_type = whole, _resolve
        if collects:
            gc.enable()


@register_pass(mutates_CFG=True, analysis_only=False)
class _LoweringOfKernels(NativeLowering):
    _name = "lowering_of_kernels"

    def run_pass(self, state: Any) -> bool:
        """Write the code of a kernel, which is a whole, not a part."""
        state.library = state.targetctx.codegen().whole.create_library(state.func_id.func_qualname)
        state.library.enable_object_caching()
        super().run_pass(state)
        return True


class CompilerOfKernels(CompilerBase):
    """Compiles a kernel, and the functions that it calls as parts of it."""

    def define_pipelines(self) -> list[Any]:
        """Return Numba's own passes, except the last ones."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [(_LoweringOfKernels if each is NativeLowering else each, text) for each, text in passes.passes]
        return [passes]

    def compile_extra(self, func: Any) -> Any:
        """Compile the kernel."""
        with _making_parts(self.state.targetctx):
            return super().compile_extra(func)


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
    options = {"error_model": "numpy", "no_cfunc_wrapper": True, **options}
    compiled = _njit(pipeline_class=CompilerOfKernels, **options)(function)

    @cache
    def part() -> Any:
        return _njit(no_cpython_wrapper=True, **options)(function)

    compiled.get_call_template = lambda arguments, keywords: part().get_call_template(arguments, keywords)
    compiled.get_overload = lambda signature: part().get_overload(signature)
    return compiled


def named_apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, renamed after its surroundings, too, if it is one of several.

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
