"""Python itself runs kernels that are not compiled yet, if they have little to do: compiling one takes seconds.

There is no second text of a kernel. Its own code runs with what it names replaced: other kernels by their code, what
only compiled code has by what Python can call, and arrays by such whose elements are Python's own numbers, which are
wide enough for any sum, as those of compiled code are.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import count
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from llvmlite import binding as llvm
from llvmlite import ir

from tagmatch.model.kernels.behind import behind
from tagmatch.model.kernels.kept import code_size, load
from tagmatch.model.parallel import in_one_step

#: Python runs a kernel until that has taken as long as to compile it takes, times this number
PATIENCE = 1.0
# Seconds of CPU to compile a kernel, for each byte of Python's code
_A_BYTE_S = 3e-4
# Most numbers of the arguments of a kernel that has not run yet. A long kernel takes Python longer for each number, but
# to compile it takes longer, too
_FEW = 1 << 18

_U64 = np.uint64
_ALL_BITS = (1 << 64) - 1


def compile_at_once() -> None:
    """Compile each kernel of this process before its first use, however little it has to do."""
    global PATIENCE
    PATIENCE = -1.0


@contextlib.contextmanager
def compiling_at_once() -> Iterator[None]:
    """As `compile_at_once`, within it."""
    global PATIENCE
    patience = PATIENCE
    compile_at_once()
    try:
        yield
    finally:
        PATIENCE = patience


class NotInterpretedError(Exception):
    """A kernel names something that only compiled code has."""


# What Python calls in place of what only compiled code has
_instead: dict[Any, Callable[..., Any]] = {}


def instead(compiled: Any, function: Callable[..., Any]) -> None:
    """Register the function that Python calls in place of a compiled one."""
    _instead[compiled] = function


def by_python_first(compiled: Any, function: Callable[..., Any]) -> Any:
    """Let Python run a kernel with little to do while it is neither compiled nor kept; returns the kernel.

    How much that is says its attribute `elements`, of its arguments; `patience`, how often it may take as long as to
    compile it. Then it is compiled in the background, or at once if the call at hand alone would take longer than that.
    Once it is compiled, nothing is asked here.
    """
    compile_for, missing = compiled._compile_for_args, set()
    spent, done = 0.0, 0  # seconds, and elements, of Python

    def is_due(arguments: Any, patience: float = 1.0) -> bool:
        """Whether it is time to compile it, for these arguments."""
        return bool(spent + expected(arguments) > patience * PATIENCE * code_size(function) * _A_BYTE_S)

    def is_long(arguments: Any) -> bool:
        """Whether Python would take longer than to compile it takes."""
        return bool(PATIENCE < 0 or expected(arguments) > code_size(function) * _A_BYTE_S)

    def expected(arguments: Any) -> float:
        """Seconds that Python would take, as far as is known."""
        elements: int = compiled.elements(arguments)
        if done == 0:
            return 0.0 if elements <= _FEW else math.inf
        return elements * spent / done

    def code_for(*arguments: Any) -> Any:
        """What the dispatcher calls for arguments of types that it does not know."""
        nonlocal spent
        types = tuple(map(numba.typeof, arguments))
        if is_due(arguments, compiled.patience) and (is_long(arguments) or not compile_behind(compiled, types)):
            return compile_for(*arguments)
        if types not in missing and not behind.is_busy:
            if load(compiled, types):
                return compile_for(*arguments)
            missing.add(types)
        try:
            code = _interpreted(function)
        except NotInterpretedError:
            spent = math.inf
            return compile_for(*arguments)

        def run(arguments: Any) -> Any:
            nonlocal spent, done
            begin = time.thread_time()
            with np.errstate(all="ignore"):
                result = _given(code(*map(_taken, arguments)))
            spent += time.thread_time() - begin
            done += 1 + compiled.elements(arguments)
            return result

        return lambda *arguments: in_one_step(partial(run, arguments))

    compiled._compile_for_args, compiled.elements, compiled.patience = code_for, numbers_in, 1.0
    compiled.is_due, compiled.is_long = is_due, is_long
    return compiled


def compile_behind(compiled: Any, types: tuple[Any, ...]) -> bool:
    """Begin to compile a kernel in the background for arguments of these types; whether that can be."""
    return behind.compile((compiled, types), partial(compiled.compile, types))


def numbers_in(arguments: Sequence[Any]) -> int:
    """How many numbers there are in arrays, bytes in texts, and both in tuples of such."""
    total = 0
    for each in arguments:
        if isinstance(each, np.ndarray):
            total += each.size
        elif isinstance(each, bytes):
            total += len(each)
        elif isinstance(each, tuple):
            total += numbers_in(each)
    return total


class _Array(np.ndarray[Any, Any]):
    """Its elements are numbers as wide as compiled code has them; it keeps the low bits of one that is too wide."""

    def __getitem__(self, place: Any) -> Any:
        element = _element(self, place)
        return int(element) if isinstance(element, np.integer) and type(element) is not _U64 else element

    def __setitem__(self, place: Any, value: Any) -> None:
        try:
            _set_element(self, place, value)
        except OverflowError:
            _set_element(self, place, _U64(value & _ALL_BITS))

    def __iter__(self) -> Any:
        return map(self.__getitem__, range(len(self)))


_element, _set_element = np.ndarray.__getitem__, np.ndarray.__setitem__


def _taken(value: Any) -> Any:
    """A value as interpreted code has it."""
    if isinstance(value, np.ndarray):
        return value.view(_Array)
    if isinstance(value, tuple):
        return _tuple_as(value, map(_taken, value))
    return int(value) if isinstance(value, np.integer) and type(value) is not _U64 else value


def _given(value: Any) -> Any:
    """What interpreted code returns, as compiled code returns it."""
    if isinstance(value, _Array):
        return value.view(np.ndarray)
    if isinstance(value, tuple):
        return _tuple_as(value, map(_given, value))
    return value.item() if isinstance(value, np.generic) else value


def _tuple_as(like: Any, parts: Any) -> Any:
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)


def _number(dtype: Any) -> Any:
    """A type of numbers of NumPy, which makes such numbers as `_Array` has."""

    class Number(dtype):  # type: ignore[misc]
        def __new__(cls, value: Any) -> Any:
            try:
                number = dtype(value)
            except OverflowError:
                number = _U64(int(value) & _ALL_BITS).astype(dtype)
            return number if dtype is _U64 else int(number)

    return Number


_NUMBERS = {each: _number(each) for each in np.sctypeDict.values() if issubclass(each, np.integer)}


class _Module:
    """A module, as interpreted code names it."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = _in_place_of(getattr(self._module, name))
        setattr(self, name, found)
        return found


def _in_place_of(value: Any) -> Any:
    """The Python counterpart of a value that a kernel names."""
    if isinstance(value, ModuleType):
        return _Module(value)
    if isinstance(value, type):
        return _NUMBERS.get(value, value)
    if hasattr(value, "py_func"):
        return _interpreted(value.py_func)
    if isinstance(value, FunctionType) and value.__module__.startswith("tagmatch."):
        return _interpreted(value)
    if type(value).__module__.startswith("numba."):
        _learn_intrinsics()
        if value not in _instead:
            raise NotInterpretedError(value)
        return _instead[value]
    if callable(value) and (isinstance(value, np.ufunc) or getattr(value, "__module__", None) == "numpy"):
        return lambda *arguments, **options: _taken(value(*arguments, **options))
    return _taken(value)


_made: dict[Any, Any] = {}


def _interpreted(function: Any) -> Any:
    """The function with what it names replaced."""
    if function not in _made:
        known, named = function.__globals__, _names(function.__code__)
        names = {name: _in_place_of(known[name]) for name in named if name in known}
        cells = tuple(CellType(_in_place_of(cell.cell_contents)) for cell in function.__closure__ or ())
        names["__builtins__"] = known["__builtins__"]
        _made[function] = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
    return _made[function]


def _names(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(each) for each in code.co_consts if isinstance(each, CodeType)))


@cache
def _learn_intrinsics() -> None:
    """What Python calls for those of `intrinsics`, whose kernels are made by means of this module."""
    from tagmatch.model.kernels import intrinsics

    instead(intrinsics.ones, lambda word: _U64(int(word).bit_count()))
    instead(intrinsics.trailing_zeros, lambda word: _U64((int(word) & -int(word) or 1).bit_length() - 1))
    instead(intrinsics.leading_zeros, lambda word: _U64(64 - int(word).bit_length()))
    instead(intrinsics.add, _add)
    instead(intrinsics.load_relaxed, lambda words, place: words[place])
    instead(intrinsics.load_acquire, _load_acquire)
    instead(intrinsics.fence_acquire, lambda: _in_order()[1]())
    instead(intrinsics.prefetch, lambda *_: None)
    instead(intrinsics.give_way, lambda: time.sleep(0))
    instead(intrinsics.array_at, _array_at)
    instead(intrinsics.own_array_at, _array_at)
    instead(intrinsics.arrays_at, _arrays_at)
    instead(intrinsics.on_stack, lambda dtype, count: np.empty(count, dtype).view(_Array))
    instead(intrinsics.rows_on_stack, lambda dtype, count, columns: np.empty((count, columns), dtype).view(_Array))


def _add(words: Any, place: int, more: int) -> Any:
    assert words.itemsize == _INT64.width // 8
    return _in_order()[0](words.ctypes.data + place * words.itemsize, more)


def _load_acquire(words: Any, place: int) -> Any:
    word = words[place]
    _in_order()[1]()
    return word


_INT64 = ir.IntType(64)


@cache
def _in_order() -> tuple[Callable[[int, int], int], Callable[[], None], Any]:
    """Compiled code that adds to a word in one step, a fence of memory, and their owner; threads go on with them."""
    module = ir.Module()
    for result, arguments in ((_INT64, [_INT64, _INT64]), (ir.VoidType(), [])):
        function = ir.Function(module, ir.FunctionType(result, arguments), f"of_{len(arguments)}")
        builder = ir.IRBuilder(function.append_basic_block())
        if arguments:
            at, more = function.args
            builder.ret(builder.atomic_rmw("add", builder.inttoptr(at, _INT64.as_pointer()), more, "seq_cst"))
        else:
            builder.fence("seq_cst")
            builder.ret_void()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), machine)
    engine.finalize_object()
    add_type, fence_type = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, ctypes.c_int64), ctypes.CFUNCTYPE(None)
    add, fence = add_type(engine.get_function_address("of_2")), fence_type(engine.get_function_address("of_0"))
    return add, fence, engine


def _array_at(addresses: Any, place: int, dtype: Any) -> Any:
    address, size = (int(addresses[2 * place + each]) for each in range(2))
    memory = (ctypes.c_uint8 * (size * np.dtype(dtype).itemsize)).from_address(address) if size else b""
    return np.frombuffer(memory, dtype).view(_Array)


def _arrays_at(addresses: Any, place: int, dtypes: Any) -> Any:
    places = count(place)

    def made(each: Any) -> Any:
        is_one = not isinstance(each, tuple)
        return _array_at(addresses, next(places), each) if is_one else _tuple_as(each, map(made, each))

    return made(dtypes)
