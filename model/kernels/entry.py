"""A kernel as a function of Python's own, which gets objects and returns one, in a tenth of a microsecond.

Numba's dispatcher looks at the types of arguments, and makes arrays of them, and an object of the result: that takes
longer than most single queries. This kernel gets the objects as a function of C does (`METH_FASTCALL`): by their
addresses. It asks Python about them by functions of its stable C interface, which LLVM finds in this process by their
names, and it keeps the interpreter lock. What is not as it expects it leaves to others, by returning `None`.
"""

from __future__ import annotations

import ctypes
import sysconfig
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types

from tagmatch.model.arrays import U64Array
from tagmatch.model.kernels.behind import behind
from tagmatch.model.kernels.interpreted import compile_behind
from tagmatch.model.kernels.intrinsics import _called, on_stack, own_array_at
from tagmatch.model.kernels.jit import CompilerOfKernels, inlined, lent, named_apart
from tagmatch.model.kernels.kept import kept, load

_U = np.uint64
_array: Any = numba.carray  # type: ignore[attr-defined]
_OBJECT, _SIZE, _POINTER = types.uintp, types.intp, types.uintp
_WORDS = types.CPointer(types.uint64)


def _function(name: str, result: Any, *arguments: Any) -> Any:
    return types.ExternalFunction(name, result(*arguments))


_type_of = _function("PyObject_Type", _OBJECT, _OBJECT)
_incref, _decref = (_function(name, types.void, _OBJECT) for name in ("Py_IncRef", "Py_DecRef"))
_forget_error = _function("PyErr_Clear", types.void)
_list_size, _tuple_size = (_function(name, _SIZE, _OBJECT) for name in ("PyList_Size", "PyTuple_Size"))
# These two lend what they return
_list_item, _tuple_item = (_function(name, _OBJECT, _OBJECT, _SIZE) for name in ("PyList_GetItem", "PyTuple_GetItem"))
_list_of = _function("PySequence_List", _OBJECT, _OBJECT)
_new_list = _function("PyList_New", _OBJECT, _SIZE)
# Takes the item over
_set_item = _function("PyList_SetItem", types.int32, _OBJECT, _SIZE, _OBJECT)
_new_set, _set_size = _function("PySet_New", _OBJECT, _OBJECT), _function("PySet_Size", _SIZE, _OBJECT)
_new_bytes = _function("PyBytes_FromStringAndSize", _OBJECT, _POINTER, _SIZE)
_words_in, _bytes_in = (_function("PyBytes_AsString", each, _OBJECT) for each in (_WORDS, _POINTER))
_bytes_size = _function("PyBytes_Size", _SIZE, _OBJECT)
_new_text = _function("PyUnicode_FromStringAndSize", _OBJECT, _POINTER, _SIZE)
_new_number = _function("PyLong_FromUnsignedLongLong", _OBJECT, types.uint64)
_number_of = _function("PyLong_AsLong", types.intp, _OBJECT)
# Lends the bytes, and writes how many they are; 0 and an error if it is no string, or not Unicode
_text_of = _function("PyUnicode_AsUTF8AndSize", _POINTER, _OBJECT, _POINTER)
_copy_bytes = _function("memcpy", _POINTER, _POINTER, _POINTER, types.uintp)


@inlined
def words_of(given, count):
    """Words that are given by their address."""
    return _array(given, count)


# Words of what an entry is bound to: the addresses of its table and of Python's objects
_TABLE, _COLUMNS, _NONE, _LIST, _TUPLE, _SET, _FROZENSET, _WORDS_BOUND = 0, *range(2, 9)
_ONE = 1


@inlined
def bound_to(bound):
    """The words that an entry is bound to."""
    return _array(_words_in(_tuple_item(bound, 0)), _WORDS_BOUND)


@inlined
def table_in(words):
    """The table that an entry is bound to, row behind row, and the number of its columns."""
    return own_array_at(words, _TABLE, np.uint64), np.int64(words[_COLUMNS])


@lent
def ask_others(words):
    """What an entry returns that leaves its work to others."""
    _incref(words[_NONE])
    return words[_NONE]


@lent
def number_in(number):
    """The small int that an object is."""
    return _number_of(number)


@inlined
def address_in(given):
    """The address of the bytes of a `bytes`."""
    return _array(_words_in(given), _ONE)[0]


@lent
def texts_in(texts, words, offsets, data, spare):
    """Copy the strings of a list, tuple or set; how many there are; -1 if they are something else, or do not fit.

    `spare` bytes of `data` stay free.
    """
    kind = _type_of(texts)
    _decref(kind)
    if kind == words[_LIST]:
        return _copied(texts, False, offsets, data, spare)
    if kind == words[_TUPLE]:
        return _copied(texts, True, offsets, data, spare)
    if kind != words[_SET] and kind != words[_FROZENSET]:
        return -1
    listed = _list_of(texts)
    if listed == 0:
        _forget_error()
        return -1
    count = _copied(listed, False, offsets, data, spare)
    _decref(listed)
    return count


@lent
def _copied(texts, is_tuple, offsets, data, spare):
    count = _tuple_size(texts) if is_tuple else _list_size(texts)
    if count >= len(offsets):
        return -1
    size = on_stack(np.int64, _ONE)
    to, to_size, used, room = _U(data.ctypes.data), _U(size.ctypes.data), _U(0), _U(len(data) - spare)
    offsets[0] = 0
    for i in range(count):
        text = _text_of(_tuple_item(texts, i) if is_tuple else _list_item(texts, i), to_size)
        if text == 0:
            _forget_error()
            return -1
        if used + _U(size[0]) > room:
            return -1
        _copy_bytes(to + used, text, _U(size[0]))
        used += _U(size[0])
        offsets[i + 1] = used
    return count


@lent
def new_list(count):
    """A new list with room for `count` objects; 0 without memory, for which Python raises, as for all new objects."""
    return _new_list(count)


@lent
def put_number(listed, place, number):
    """Put a uint64 number into a new list; whether there was memory for it."""
    made = _new_number(number)
    if made != 0:
        _set_item(listed, place, made)
    return made != 0


@lent
def put_text(listed, place, data, begin, end):
    """As `put_number`, the string that some bytes are, in UTF-8."""
    made = _new_text(_U(data.ctypes.data) + _U(begin), end - begin)
    if made != 0:
        _set_item(listed, place, made)
    return made != 0


@lent
def forgotten(made):
    """Let go of an object; returns 0, to store in its place."""
    _decref(made)
    return made - made


@lent
def set_of(listed):
    """A new set in place of a new list, and how many it has."""
    if listed == 0:
        return listed, 0
    made = _new_set(listed)
    _decref(listed)
    return made, 0 if made == 0 else _set_size(made)


@lent
def new_bytes(numbers):
    """The bytes of uint64 numbers."""
    return _new_bytes(numbers.ctypes.data, 8 * len(numbers))


@lent
def new_number(number):
    """An int."""
    return _new_number(_U(number))


@lent
def bytes_in(given, words):
    """Write where the bytes of a `bytes` are, and how many."""
    words[0], words[1] = _bytes_in(given), _U(_bytes_size(given))


@lent
def find(address, words):
    """What a kernel finds that gets words, and is called by its address."""
    return _called(address, (_U(words.ctypes.data),))


class _Definition(ctypes.Structure):
    """`PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)
    )  # fmt: skip


_FASTCALL = 0x80
#: Without the interpreter lock, lists may change while they are read
IS_LOCKED = not sysconfig.get_config_var("Py_GIL_DISABLED")


class Addressed:
    """A kernel that is called by its address; it returns a word."""

    def __init__(self, function: Callable[..., Any], *types: Any) -> None:
        function = named_apart(function)
        compiled: Any = numba.njit(error_model="numpy", pipeline_class=CompilerOfKernels)(function)
        self._compiled, self._types = kept(compiled, function), types
        self._address = 0
        self._is_missing = False

    def address(self, is_due: bool, is_long: bool) -> int:
        """The address; 0 if it is neither compiled nor due to be, or will be in the background, as nothing is long."""
        compiled, types = self._compiled, self._types
        if not (self._address or self._is_missing or is_long or behind.is_busy):
            self._is_missing = not load(compiled, types)
        if types not in compiled.overloads:
            if not is_due or (not is_long and compile_behind(compiled, types)):
                return 0
            compiled.compile(types)
        if self._address == 0:
            made = compiled.overloads[types]
            self._address = made.library.get_pointer_to_function(made.fndesc.llvm_cfunc_wrapper_name)
        return self._address


class Entry(NamedTuple):
    """What answers a query at once."""

    find: Addressed  # Gets words, and returns how many keys it has found, or -1 if it leaves that to others
    # Gets what it is bound to, its arguments and how many they are, and returns a new object, or 0 after an error
    enter: Addressed


def finding(function: Callable[..., Any]) -> Addressed:
    """A kernel as `Entry.find`."""
    return Addressed(function, _WORDS)


def entering(function: Callable[..., Any]) -> Addressed:
    """A kernel as `Entry.enter`."""
    return Addressed(function, _OBJECT, _WORDS, _SIZE)


def bound(enter: int, table: U64Array, held: object) -> Callable[..., Any]:
    """The function at an address as one of Python's, bound to a table and what this is about."""
    definition = _Definition(b"entry", enter, _FASTCALL, None)
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    known = map(id, (None, list, tuple, set, frozenset))
    words = np.array([table.ctypes.data, table.size, table.shape[1], *known], np.uint64)
    # All that it needs stays as long as the function
    stays = words.tobytes(), table, held, definition
    function: Callable[..., Any] = new(ctypes.addressof(definition), stays, None)
    return function
