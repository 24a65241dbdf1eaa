"""How kernels are compiled, and the helpers that give them longer arrays as they go."""

from __future__ import annotations

import contextlib
import copy as copies
import gc
import importlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import binding as llvm
from llvmlite import ir as llvm_ir
from numba.core import errors, ir, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.registry import cpu_target
from numba.core.typed_passes import NativeLowering
from numba.core.types.functions import BaseFunction
from numba.core.typing.templates import make_concrete_template

from tagmatch.model.kernels.behind import behind
from tagmatch.model.kernels.interpreted import by_python_first
from tagmatch.model.kernels.kept import digest_of, kept

_njit: Any = numba.njit


class _PartOfKernels(JITCodeLibrary):
    """The code of a function that kernels call: it is optimised and made machine code only as a part of these.

    Numba does so with each function, for Python to call: most of the time that it takes to compile a kernel.
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        """As Numba's, without those that have no code here: a manager of passes is made for each."""
        ll_module.data_layout = self._codegen._data_layout
        for function in ll_module.functions:
            if not function.is_declaration:
                passes, builder = self._codegen._function_pass_manager()
                passes.run(function, builder)

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


def _whole(codegen: Any) -> Any:
    return codegen.whole if isinstance(codegen, _GeneratorOfParts) else codegen


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


def _variables(own: Any, value: Any) -> list[Any]:
    """The variables in what an instruction has. Numba asks an abstract class about each of its words, too."""
    if isinstance(value, ir.Var):
        return [value]
    if isinstance(value, ir.Inst):
        return list(value.list_vars())
    if isinstance(value, dict):
        value = list(value.values())
    found: list[Any] = []
    for each in value if isinstance(value, list | tuple) else ():
        if type(each) is ir.Var:
            found.append(each)
        elif type(each) not in _WITHOUT_VARIABLES:
            found += own._rec_list_vars(each)
    return found


_WITHOUT_VARIABLES = {str, int, float, bool, type(None), ir.Loc}
_size: Any = llvm_ir.Type.get_abi_size
_sizes: dict[tuple[str, str], int] = {}


def _remembered_size(kind: Any, target: Any, context: Any = None) -> int:
    """How many bytes a type of LLVM's takes, for which LLVM parses a program at each use."""
    key = str(kind), str(target)
    if context is not None or key not in _sizes:
        _sizes[key] = _size(kind, target, context)
    return _sizes[key]


class _Plain:
    """Numba's colours of errors: none. It writes one for each template that does not fit, and throws it away."""

    code = errmsg = filename = indicate = highlight = reset = staticmethod(lambda text: text)


#: What takes the place of something of Numba's while kernels are compiled: it does the same sooner
_SOONER: tuple[tuple[Any, str, Any], ...] = (
    (_functions, "get_call_type", _call_type),
    (ir.Inst, "_rec_list_vars", _variables),
    (llvm_ir.Type, "get_abi_size", _remembered_size),
    (errors, "_termcolor_inst", _Plain),
)


@contextlib.contextmanager
def _making_parts(own: Any) -> Iterator[None]:
    """Functions that are compiled within it become parts, Numba's own, too, and the garbage collector waits.

    The collector takes a sixth of the time, and finds next to nothing. `own` is the kernel's copy of Numba's context.
    """
    context, before, collects = cpu_target.target_context, own._internal_codegen, gc.isenabled()
    # While a kernel is compiled, one that it calls apart may be compiled, too
    context._internal_codegen = own._internal_codegen = _GeneratorOfParts(_whole(before))
    replaced = [(of, name, getattr(of, name)) for of, name, _ in _SOONER]
    for of, name, better in _SOONER:
        setattr(of, name, better)
    if not behind.is_here():  # else garbage of others stays for long
        gc.disable()
    try:
        yield
    finally:
        context._internal_codegen = before
        for of, name, usual in replaced:
            setattr(of, name, usual)
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


def apart(function: Callable[..., Any]) -> Any:
    """A long kernel that others call: they do not include its code, so it is compiled once, not within each of them.

    A call takes some 20 ns more, and what the caller knows of its arguments is not used.
    """
    function = named_apart(function)
    options = {"error_model": "numpy", "no_cfunc_wrapper": True, "nogil": True}
    compiled = _njit(pipeline_class=CompilerOfKernels, **options)(function)
    compiled = by_python_first(kept(compiled, function), function)
    _apart[function.__module__, function.__qualname__] = compiled

    def template(arguments: Any, keywords: Any) -> Any:
        signature, given = compiled.fold_argument_types(arguments, keywords)
        given = tuple(map(types.unliteral, given))
        _have_ready(compiled, given)
        name = function.__name__
        made = make_concrete_template(name, key=name, signatures=[compiled.overloads[given].signature])
        return made, signature, given, {}

    compiled.get_call_template, compiled.get_overload = template, cache(lambda given: _from_elsewhere(compiled, given))
    return compiled


# Kernels that others call, by their modules and names
_apart: dict[tuple[str, str], Any] = {}


@cache
def _have_ready(compiled: Any, given: tuple[Any, ...]) -> str:
    """Let other kernels find a kernel for arguments of these types; returns the name for that."""
    compiled.compile(given)
    function = compiled.py_func
    name = f"{function.__module__}.{function.__qualname__}.{digest_of([compiled, given])}"
    engine = cpu_target.target_context.codegen()._engine
    address = engine.get_function_address(compiled.overloads[given].fndesc.mangled_name)
    assert address, f"{name} has no machine code"
    llvm.add_symbol(name, address)
    return name


class _Needed(NamedTuple):
    """What kept code calls before it is loaded: it has a kernel ready that this code calls."""

    module: str
    function: str
    given: tuple[Any, ...]

    def __call__(self) -> None:
        importlib.import_module(self.module)
        _have_ready(_apart[self.module, self.function], self.given)


def _from_elsewhere(compiled: Any, given: tuple[Any, ...]) -> object:
    """What Numba knows a kernel by that is not part of those which call it."""
    described, function, key = copies.copy(compiled.overloads[given].fndesc), compiled.py_func, object()
    described.mangled_name = _have_ready(compiled, given)
    nothing = _PartOfKernels(_whole(cpu_target.target_context.codegen()), described.mangled_name)
    nothing._shared_module, nothing._finalized = nothing._final_module, True
    nothing._reload_init = {_Needed(function.__module__, function.__qualname__, given)}
    cpu_target.target_context.insert_user_function(key, described, [nothing])
    return key


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
