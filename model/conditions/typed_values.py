"""Arrow arrays of bools, numbers or texts, as columns of which kernels read the values."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import I64Array, Strings, U8Array, U64Array, frozen
from tagmatch.model.arrow_input import plain_strings, strings_in
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.kernels.value_columns import BOOL, FLOAT, INTEGER, NO_BYTES, TEXT, Column

_GREATEST = 2**63 - 1


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
    kind = _kind_of(values.type)
    if pa.types.is_dictionary(values.type):
        values = plain_strings(values, "") if kind == TEXT else values.dictionary_decode()
    if kind is None or values.null_count == len(values):
        return None
    column = Column(kind, prefix, frozen(rows), *_validity(values))
    if kind == TEXT:
        texts = strings_in(plain_strings(values, ""))
        begins, ends = places(texts)
        return column._replace(begins=frozen(begins), ends=frozen(ends), text=texts.data)
    if kind == BOOL:
        bools = values.fill_null(False).to_numpy(zero_copy_only=False)
        return column._replace(bits=frozen(bools.astype(np.uint64)))
    return column._replace(bits=_bits(values, np.float64 if kind == FLOAT else np.int64))


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
    if _kind_of(values.type) is None and not pa.types.is_null(values.type):
        raise InvalidTypeError(otherwise)
    own = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if pa.types.is_uint64(own):
        integers = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
        if (pc.max(integers).as_py() or 0) > _GREATEST:
            number = int(np.argmax(integers.fill_null(0).to_numpy() > _GREATEST))
            raise InvalidValueError(f"{place_of(number)} has {integers[number]}, which must be at most 2**63 - 1")


@cache
def _kind_of(kind: pa.DataType) -> int | None:
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
    own = np.frombuffer(values.buffers()[1], values.type.to_pandas_dtype())
    numbers: npt.NDArray[Any] = np.require(own[values.offset : values.offset + len(values)], requirements="A")
    if numbers.dtype != wide and numbers.dtype != np.uint64:
        with np.errstate(invalid="ignore"):  # a null may be a signaling NaN
            numbers = numbers.astype(wide)
    return frozen(numbers.view(np.uint64))
