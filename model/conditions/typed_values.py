"""Arrow arrays of bools, numbers or texts, as columns from which kernels write the keys of values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Strings, U8Array
from tagmatch.model.arrow_input import plain_strings, strings_in
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.filters import values as keys
from tagmatch.model.kernels.message_tags import BOOL, NAN, NO_BYTES, NO_NUMBERS, NO_PLACES, NUMBER, TEXT, Column

_GREATEST = 2**63 - 1
_TOO_GREAT = 2.0**63
_SIGN = np.uint64(keys.SIGN)


def value_column(
    values: pa.Array, rows: I64Array, place_of: Callable[[int], str], otherwise: str, *, prefix: U8Array = NO_BYTES
) -> Column | None:
    """A column of values; `None` if it has no value at all.

    Parameters
    ----------
    values : pyarrow.Array
        Of bools, integers, floats or strings, also in a dictionary.
    rows : int64 array, length n + 1
        The values of row `i` are those from `rows[i]` to `rows[i + 1]`.
    place_of : callable
        What messages call the place of a value, given its number.
    otherwise : str
        The message of an error for values of other types.
    prefix : uint8 array
        What stands before each key.

    Raises
    ------
    InvalidTypeError
        The values are of another type.
    InvalidValueError
        An integer is above 2**63 - 1.
    """
    if pa.types.is_dictionary(values.type) and not is_text(values.type.value_type):
        values = values.dictionary_decode()
    valid = np.ones(len(values), np.bool_)
    if values.null_count:
        valid = values.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_null(values.type):
        return None
    if pa.types.is_boolean(values.type):
        bools = values.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64)
        return Column(BOOL, prefix, rows, valid, ordered=bools)
    if pa.types.is_integer(values.type):
        integers = values.fill_null(0).to_numpy(zero_copy_only=False)
        if integers.dtype == np.uint64 and len(integers) and integers.max() > _GREATEST:
            number = int(np.argmax(integers > _GREATEST))
            raise InvalidValueError(f"{place_of(number)} has {integers[number]}, which must be at most 2**63 - 1")
        return Column(NUMBER, prefix, rows, valid, *_of_integers(integers.astype(np.int64)))
    if pa.types.is_floating(values.type):
        return Column(NUMBER, prefix, rows, valid, *_of_floats(_doubles(values)))
    if is_text(values.type) or (pa.types.is_dictionary(values.type) and is_text(values.type.value_type)):
        texts = strings_in(plain_strings(values, otherwise).fill_null("").cast(pa.large_string()))
        return Column(TEXT, prefix, rows, valid, NO_NUMBERS, NO_PLACES, *places(texts), texts.data)
    raise InvalidTypeError(otherwise)


def is_text(kind: pa.DataType) -> bool:
    """Whether an array of this type holds strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def places(strings: Strings) -> tuple[I64Array, I64Array]:
    """Where each string begins and ends."""
    offsets = strings.offsets.astype(np.int64)
    return offsets[:-1], offsets[1:]


def _doubles(values: pa.Array) -> npt.NDArray[np.float64]:
    doubles: npt.NDArray[np.float64] = values.to_numpy(zero_copy_only=False).astype(np.float64)
    return doubles


def _of_floats(values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.uint64], I64Array]:
    return _in_order(values), np.where(np.isnan(values), NAN, keys.EXACT)


def _of_integers(values: I64Array) -> tuple[npt.NDArray[np.uint64], I64Array]:
    nearest = values.astype(np.float64)
    beyond = nearest >= _TOO_GREAT  # the double nearest to the greatest integers
    distance = values - np.where(beyond, 0.0, nearest).astype(np.int64)
    distance[beyond] = values[beyond] - _GREATEST - 1
    return _in_order(nearest), distance + keys.EXACT


def _in_order(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint64]:
    # Adding zero makes -0.0 0.0
    bits = (values + 0.0).view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits ^ _SIGN)
