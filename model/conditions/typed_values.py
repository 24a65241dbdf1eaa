"""Arrow arrays of bools, numbers or texts, as columns of which kernels read the values."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import I64Array, Strings, U8Array, U64Array, frozen, offsets_of
from tagmatch.model.arrow import numpy_type
from tagmatch.model.arrow_input import plain_strings, strings_in
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.kernels.value_columns import BOOL, FLOAT, INTEGER, NO_BYTES, NO_NUMBERS, NO_PLACES, TEXT, Column

_GREATEST = 2**63 - 1
# Bytes of the numbers that kernels read
_WIDTH = 8


def value_column(values: pa.Array, rows: I64Array, *, prefix: U8Array = NO_BYTES) -> Column | None:
    """A column of values, in their own memory where that can be; `None` if it has no value at all.

    Parameters
    ----------
    values : pyarrow.Array
        As `check_values` lets them pass.
    rows : int64 array, length n + 1
        The values of row `i` are those from `rows[i]` to `rows[i + 1]`; empty where that is value `i`.
    prefix : uint8 array
        What stands before each key.
    """
    kind = kind_of(values.type)
    if pa.types.is_dictionary(values.type):
        values = plain_strings(values, "") if kind == TEXT else values.dictionary_decode()
    if kind is None or values.null_count == len(values):
        return None
    bits, begins, ends, text = NO_NUMBERS, NO_PLACES, NO_PLACES, NO_BYTES
    if kind == TEXT:
        texts = strings_in(plain_strings(values, ""))
        begins, ends, text = *places(texts), texts.data
    elif kind == BOOL:
        bits = values.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64)
    else:
        bits = _bits(values, np.float64 if kind == FLOAT else np.int64)
    # At once and by place, as a table may have many columns
    return Column(kind, prefix, frozen(rows), *_validity(values), frozen(bits), frozen(begins), frozen(ends), text=text)


def check_values(values: pa.Array, place_of: Callable[[int], str], otherwise: str) -> None:
    """See that `value_column` can take them: bools, integers, floats or strings, also in a dictionary.

    Parameters
    ----------
    values : pyarrow.Array
    place_of : callable
        What messages call the place of a value, given its number.
    otherwise : str
        The message of an error for values of other types.

    Raises
    ------
    InvalidTypeError
        The values are of another type.
    InvalidValueError
        An integer is above 2**63 - 1.
    """
    if kind_of(values.type) is None and not pa.types.is_null(values.type):
        raise InvalidTypeError(otherwise)
    own = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if pa.types.is_uint64(own):
        integers = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
        if (pc.max(integers).as_py() or 0) > _GREATEST:
            number = int(np.argmax(integers.fill_null(0).to_numpy() > _GREATEST))
            raise InvalidValueError(f"{place_of(number)} has {integers[number]}, which must be at most 2**63 - 1")


@cache
def kind_of(kind: pa.DataType) -> int | None:
    """What values of a type of Arrow's are in a `Column`; `None` where they are none."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        return BOOL
    if pa.types.is_integer(kind):
        return INTEGER
    if pa.types.is_floating(kind):
        return FLOAT
    return TEXT if is_text(kind) else None


@cache
def is_list(kind: pa.DataType) -> bool:
    """Whether an array of this type holds lists, in any of Arrow's shapes."""
    is_view = pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)
    return bool(is_view or pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def elements(lists: pa.Array) -> tuple[I64Array, pa.Array]:
    """Where the elements of each list begin, and all elements; those of null lists are none."""
    return offsets_of(pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)), lists.flatten()


@cache
def kind_within(kind: pa.DataType) -> int | None:
    """As `kind_of`, of a type of values or of lists of them."""
    return kind_of(kind.value_type if is_list(kind) else kind)


@cache
def is_sound(kind: pa.DataType) -> bool:
    """Whether all values of a type, or of lists of it, are such as `check_values` lets pass."""
    own = kind.value_type if is_list(kind) else kind
    plain = own.value_type if pa.types.is_dictionary(own) else own
    return bool(pa.types.is_null(own) or (kind_of(own) is not None and not pa.types.is_uint64(plain)))


class WideNumbers(NamedTuple):
    """Where numbers of 64 bits lie in memory: the address and the length of what `Column` has under the same names."""

    validity: tuple[int, int]
    first_bit: int
    bits: tuple[int, int]


def wide_numbers(values: pa.Array) -> WideNumbers | None:
    """Where the array has its numbers as `value_column` would; `None` where that would have to copy them.

    It takes much less time than to make a column, which matters for tables with many.
    """
    if not _is_wide(values.type):
        return None
    validity, numbers = values.buffers()
    start = numbers.address + _WIDTH * values.offset
    if start % _WIDTH:
        return None
    if not values.null_count:
        return WideNumbers((0, 0), 0, (start, len(values)))
    return WideNumbers((validity.address, validity.size), values.offset, (start, len(values)))


@cache
def _is_wide(kind: pa.DataType) -> bool:
    return bool(pa.types.is_int64(kind) or pa.types.is_uint64(kind) or pa.types.is_float64(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether an array of this type holds strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def places(strings: Strings) -> tuple[I64Array, I64Array]:
    """Where each string begins and ends."""
    offsets = strings.offsets.astype(np.int64, copy=False)
    return offsets[:-1], offsets[1:]


def _validity(values: pa.Array) -> tuple[U8Array, int]:
    """A bit for each value, and which is the first."""
    if not values.null_count:
        return NO_BYTES, 0
    return frozen(np.frombuffer(values.buffers()[0], np.uint8)), values.offset


def _bits(values: pa.Array, wide: type[np.float64 | np.int64]) -> U64Array:
    """The bits of numbers, made as wide as that; those of nulls are any."""
    own = numpy_type(values.type)
    numbers: npt.NDArray[Any] = np.frombuffer(values.buffers()[1], own, len(values), values.offset * own.itemsize)
    if not numbers.flags.aligned:
        numbers = numbers.copy()
    if numbers.dtype != wide and numbers.dtype != np.uint64:
        with np.errstate(invalid="ignore"):  # a null may be a signaling NaN
            numbers = numbers.astype(wide)
    return numbers.view(np.uint64)
