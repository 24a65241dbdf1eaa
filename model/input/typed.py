"""Arrow's times and decimals as the texts that represent them (see `tagmatch.model.where.types`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import BoolArray, F64Array, I64Array, Strings, U8Array, U64Array, offsets_of
from tagmatch.model.arrow import plain_strings, to_strings
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.where.types import DECIMAL, MARK, TIMES, TYPED, TYPES, typed_of
from tagmatch.model.where.values import EXACT, NUMBERS, SIGN, marked

#: Types whose values are written as strings, by the name of the type
PARSED = (*TYPES, DECIMAL)

_SECOND = 1_000_000_000
_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": _SECOND}
_DAY = 86_400
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_OF_TIME = MARK + f"{TYPED}{TIMES}".encode()
_OF_NUMBER = MARK + NUMBERS[0].encode()
_EXACT = f"{EXACT:03x}".encode()

# Up to here, integers and powers of ten are doubles, so that a quotient is rounded once
_MOST_UNITS, _MOST_SCALE = 2**53, 22
_MOST_DIGITS, _SHIFT = 16, 5000
_POWERS = 10 ** np.arange(_MOST_DIGITS + 1, dtype=np.int64)
_ZERO, _NINE, _TILDE = tuple(b"09~")
# By which a double is split in two of half as many digits
_SPLITTER = 2.0**27 + 1
_ALL_BITS = np.uint64(2**64 - 1)


class TypedTexts(pa.ExtensionType):  # type: ignore[misc]
    """Texts that represent values already."""

    def __init__(self) -> None:
        super().__init__(pa.large_binary(), "tagmatch.typed")

    def __hash__(self) -> int:
        return hash(TypedTexts)

    def __arrow_ext_serialize__(self) -> bytes:
        """No bytes, as there is one such type."""
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> TypedTexts:
        """There is one such type."""
        return cls()


def parsed(values: pa.Array, name: str, place_of: Callable[[int], str]) -> pa.Array:
    """The values of a type with this name (see `typed_of`) that strings write.

    InvalidValueError, which begins with what `place_of` calls the place with its number, for one that writes none.
    """
    distinct = plain_strings(values, "").dictionary_encode()
    found: list[bytes] = []
    for number, text in enumerate(distinct.dictionary.to_pylist()):
        try:
            found.append(marked(typed_of(name, text)) or b"")
        except InvalidValueError as error:
            place = pc.index(distinct.indices, number).as_py()
            raise InvalidValueError(f"{place_of(place)}: {error}") from None
    storage = pa.array(found, pa.large_binary()).take(distinct.indices)
    return pa.ExtensionArray.from_storage(TypedTexts(), storage)


@cache
def is_typed(kind: pa.DataType) -> bool:
    """Whether values of this type of Arrow's are times, decimals, or `TypedTexts`."""
    if isinstance(kind, TypedTexts):
        return True
    is_time = pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None)
    return bool(is_time or pa.types.is_decimal(kind))


def typed_strings(values: pa.Array) -> Strings:
    """The text that represents each value of an array of such a type; nulls get any."""
    if isinstance(values.type, TypedTexts):
        return to_strings(values.storage.fill_null(b"").view(pa.large_string()))
    if pa.types.is_decimal(values.type):
        return _decimals(values)
    return _times(values)


# -- times -------------------------------------------------------------------------------------------------------------


def _times(values: pa.Array) -> Strings:
    kind = values.type
    if pa.types.is_timestamp(kind):
        numbers = values.cast(pa.timestamp(kind.unit)).cast(pa.int64()).fill_null(0).to_numpy()
        seconds, rest = np.divmod(numbers, _UNITS[kind.unit])
        rest *= _SECOND // _UNITS[kind.unit]
    else:
        days = values.cast(pa.date32()).cast(pa.int32()).fill_null(0).to_numpy()
        seconds, rest = days.astype(np.int64) * _DAY, np.zeros(len(days), np.int64)
    out = np.empty((len(values), len(_OF_TIME) + 24), np.uint8)
    out[:, : len(_OF_TIME)] = tuple(_OF_TIME)
    _put_hex(seconds.view(np.uint64) ^ np.uint64(SIGN), out[:, len(_OF_TIME) : -8])
    _put_hex(rest.view(np.uint64), out[:, -8:])
    return Strings(np.arange(len(values) + 1) * out.shape[1], out.reshape(-1))


def _put_hex(numbers: U64Array, out: U8Array) -> None:
    """Write the last hexadecimal digits of each number, as many as `out` has columns."""
    count = out.shape[1]
    for digit in range(count):
        out[:, digit] = _HEX[(numbers >> np.uint64(4 * (count - 1 - digit))) & np.uint64(15)]


# -- decimals ----------------------------------------------------------------------------------------------------------


def _decimals(values: pa.Array) -> Strings:
    scale = values.type.scale
    if 0 <= scale <= _MOST_SCALE and values.type.bit_width <= 128:
        units = _units(values)
        if units is not None:
            return _of_units(units, scale)
    distinct = values.dictionary_encode()
    texts = pa.array([marked(each) for each in distinct.dictionary.to_pylist()], pa.large_binary())
    return to_strings(texts.take(distinct.indices).fill_null(b"").view(pa.large_string()))


def _units(values: pa.Array) -> I64Array | None:
    """The integers that decimals are by their scale, 0 for nulls; `None` if one has no double that equals it."""
    if values.type.bit_width < 128:
        values = values.cast(pa.decimal128(values.type.precision, values.type.scale))
    words = np.frombuffer(values.buffers()[1], np.int64)[2 * values.offset : 2 * (values.offset + len(values))]
    low, high = words[::2], words[1::2]
    if values.null_count:
        known = values.is_valid().to_numpy(zero_copy_only=False)
        low, high = np.where(known, low, 0), np.where(known, high, 0)
    small = (high == low >> 63) & (low < _MOST_UNITS) & (low > -_MOST_UNITS)
    return np.ascontiguousarray(low) if small.all() else None


def _of_units(units: I64Array, scale: int) -> Strings:
    power = float(10**scale)
    doubles = units / power
    above = _signs_of_error(doubles, power, units)
    below = np.where(above > 0, np.nextafter(doubles, -np.inf), doubles) + 0.0
    head, at = len(_OF_NUMBER) + 16 + len(_EXACT), len(_OF_NUMBER)
    out = np.empty((len(units), head + 4 + _MOST_DIGITS + 1), np.uint8)
    out[:, :at] = tuple(_OF_NUMBER)
    bits = below.view(np.uint64)
    is_negative = units < 0
    _put_hex(np.where(is_negative, bits ^ _ALL_BITS, bits ^ np.uint64(SIGN)), out[:, at : at + 16])
    out[:, head - len(_EXACT) : head] = tuple(_EXACT)
    lengths = _put_tails(np.abs(units), scale, is_negative, out[:, head:])
    lengths = np.where(above == 0, head, head + lengths)
    there = np.arange(out.shape[1]) < lengths[:, np.newaxis]
    return Strings(offsets_of(lengths), out[there])


def _signs_of_error(quotients: F64Array, power: float, units: I64Array) -> F64Array:
    """The sign of `quotient - units / power`, exactly: above 0, 0 or below 0.

    The product of two doubles is the sum of two, which are exact (Dekker, Numerische Mathematik 1971).
    """
    product = quotients * power

    def halves(number: Any) -> tuple[Any, Any]:
        wide = number * _SPLITTER
        upper = wide - (wide - number)
        return upper, number - upper

    (one, two), (upper, lower) = halves(quotients), halves(power)
    rest = ((one * upper - product) + one * lower + two * upper) + two * lower
    error: F64Array = (product - units) + rest
    return error


def _put_tails(numbers: I64Array, scale: int, is_negative: BoolArray, out: U8Array) -> I64Array:
    """Write the tail of each decimal; returns how long they are."""
    digits = np.searchsorted(_POWERS, numbers, side="right")
    exponents = digits - 1 - scale + _SHIFT
    exponents = np.where(is_negative, 2 * _SHIFT - 1 - exponents, exponents)
    written: npt.NDArray[np.uint8] = out[:, 4:]
    left, ends = numbers * _POWERS[_MOST_DIGITS - digits], np.zeros(len(numbers), np.int64)
    for place in range(4):
        out[:, place] = _ZERO + exponents // 10 ** (3 - place) % 10
    for place in range(_MOST_DIGITS):
        digit = left // _POWERS[_MOST_DIGITS - 1 - place] % 10
        ends = np.where(digit > 0, place + 1, ends)
        written[:, place] = np.where(is_negative, _NINE - digit, _ZERO + digit)
    rows = np.flatnonzero(is_negative)
    written[rows, ends[rows]] = _TILDE
    return 4 + ends + is_negative
