"""Values of attributes: of many messages in columns of Arrow, and of single ones packed as bytes, as kernels read them.

`tagmatch.model.where.values` defines the order of values, and the key of each value in that order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import F64Array, I64Array, Strings, TagLists, U8Array, U64Array, frozen, offsets_of
from tagmatch.model.arrow import is_text, numpy_type, plain_strings, to_strings
from tagmatch.model.columns import shown
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.input.typed import is_typed, typed_strings
from tagmatch.model.kernels.hashing import read32, read64
from tagmatch.model.kernels.intrinsics import ones, trailing_zeros
from tagmatch.model.kernels.jit import kernel, lent
from tagmatch.model.parallel import run_evenly
from tagmatch.model.where import values as keys
from tagmatch.model.where.comparisons import NOW
from tagmatch.model.where.declared import SEVERAL
from tagmatch.model.where.types import ADDRESSES, MARK, TIMES, TYPED, VERSIONS

#: What a value is
BOOL, INTEGER, FLOAT, TEXT = range(1, 5)
_MARK_BYTE = MARK[0]
_BANG, _B, _N, _S, _P, _ZERO = tuple(b"!bnsp0")
_LETTERS = tuple((TIMES + VERSIONS + ADDRESSES).encode())
# Bytes of the key of a number, and, at least, of a time
_NUMBER_KEY, _TIME_KEY = 20, 18
#: The types of Arrow's that values may have, in words
VALUES = "bools, integers, floats, decimals, strings, dates, or timestamps with a time zone"
#: In place of a number's distance to the nearest double, for a value that is no number
NAN = -1

NO_NUMBERS: U64Array = frozen(np.zeros(0, np.uint64))
NO_PLACES: I64Array = frozen(np.zeros(0, np.int64))
NO_BYTES: U8Array = frozen(np.zeros(0, np.uint8))

_U = np.uint64
_SIGN, _INFINITY, _ALL_BUT_SIGN = _U(keys.SIGN), _U(0x7FF0000000000000), _U(2**63 - 1)
# Bytes of the numbers that kernels read
_WIDTH = 8
_EXACT, _TOO_GREAT, _GREATEST = keys.EXACT, 2.0**63, 2**63 - 1


class Column(NamedTuple):
    """Values of messages, perhaps with nulls: row `i` has those from `rows[i]` to `rows[i + 1]`."""

    kind: int  # `BOOL`, `INTEGER`, `FLOAT` or `TEXT`
    rows: I64Array  # length n + 1; empty where row `i` has value `i`
    validity: U8Array = NO_BYTES  # a bit for each value, the lowest of a byte first; empty without nulls
    first_bit: int = 0
    bits: U64Array = NO_NUMBERS  # of integers (int64), and of doubles; of bools 0 or 1
    begins: I64Array = NO_PLACES  # where in `text` each string stands
    ends: I64Array = NO_PLACES
    text: U8Array = NO_BYTES


def value_column(values: pa.Array, rows: I64Array) -> Column | None:
    """A column of values that `check_values` lets pass, in their own memory where that can be; `None` if all are null.

    `rows` are those of `Column`.
    """
    kind = kind_of(values.type)
    if pa.types.is_dictionary(values.type):
        is_string = is_text(values.type.value_type)
        values = plain_strings(values, "") if is_string else values.dictionary_decode()
    if kind is None or values.null_count == len(values):
        return None
    bits, begins, ends, text = NO_NUMBERS, NO_PLACES, NO_PLACES, NO_BYTES
    if kind == TEXT:
        texts = typed_strings(values) if is_typed(values.type) else to_strings(plain_strings(values, ""))
        begins, ends, text = *places(texts), texts.data
    elif kind == BOOL:
        bits = values.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64)
    else:
        bits = _bits(values, np.float64 if kind == FLOAT else np.int64)
    for each in (rows, bits, begins, ends):
        each.setflags(write=False)
    # At once and by place, as a table may have many columns
    return Column(kind, rows, *_validity(values), bits, begins, ends, text)


def check_values(values: pa.Array, place_of: Callable[[int], str], otherwise: str) -> None:
    """See that `value_column` can take them: `VALUES`, also in a dictionary.

    InvalidTypeError with the message `otherwise`; InvalidValueError for an integer above 2**63 - 1, which begins with
    what `place_of` calls the place with its number.
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
    """The kind of values that a type of Arrow's has in a `Column`; `None` for another type."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        return BOOL
    if pa.types.is_integer(kind):
        return INTEGER
    if pa.types.is_floating(kind):
        return FLOAT
    # A text represents each time and each decimal
    return TEXT if is_text(kind) or is_typed(kind) else None


def struct_fields(structs: pa.StructArray, known: Sequence[str], what: str) -> dict[str, pa.Array]:
    """The fields of structs by name; InvalidTypeError, which says of what they are, for one that is not known."""
    fields: dict[str, pa.Array] = {}
    for number, values in enumerate(structs.flatten()):
        field = structs.type.field(number).name
        if field not in known or field in fields:
            raise InvalidTypeError(f"{what} have fields {', '.join(known)}, each once, not {field!r}")
        fields[field] = values
    return fields


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
    """Where the array has its numbers, as `value_column` would, but much sooner; `None` where that would copy them."""
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


def as_doubles(values: pa.Array) -> F64Array:
    """Numbers as doubles; NaN for those that are missing."""
    doubles: F64Array = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return doubles


def places(strings: Strings) -> tuple[I64Array, I64Array]:
    """Where each string begins and ends."""
    offsets = strings.offsets.astype(np.int64, copy=False)
    return offsets[:-1], offsets[1:]


def _validity(values: pa.Array) -> tuple[U8Array, int]:
    """A bit for each value, and which is the first."""
    if not values.null_count:
        return NO_BYTES, 0
    return np.frombuffer(values.buffers()[0], np.uint8), values.offset


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


# -- kernels -----------------------------------------------------------------------------------------------------------


@lent
def next_there(validity, first_bit, value, stop):
    """The first value from `value` on that is not null; `stop` or more without one before."""
    if len(validity) == 0:
        return value
    while value < stop:
        bit = first_bit + value
        left = validity[bit >> 3] >> (bit & 7)
        if left != 0:
            return value + np.int64(trailing_zeros(_U(left)))
        value += 8 - (bit & 7)
    return value


@lent
def places_there(validity, first_bit, value, stop, places):
    """Write the numbers of the values from `value` to `stop` that are not null; returns how many there are."""
    count = np.int64(0)
    if len(validity) == 0:
        for place in range(value, stop):
            places[count] = place
            count += 1
        return count
    # Word by word: most values of most columns may be null
    bit, end = first_bit + value, first_bit + stop
    while bit < end:
        byte, skipped = bit >> 3, bit & 7
        if byte + 8 <= len(validity):
            left, bits = read64(validity, _U(byte)), np.int64(64)
        else:
            left, bits = _U(validity[byte]), np.int64(8)
        left = (left >> _U(skipped)) << _U(skipped)
        base, bit = 8 * byte, 8 * byte + bits
        if bit > end:
            left &= (_U(1) << _U(end - base)) - _U(1)
        while left != _U(0):
            places[count] = base + np.int64(trailing_zeros(left)) - first_bit
            count += 1
            left &= left - _U(1)
    return count


@lent
def count_there(validity, first_bit, value, stop):
    """How many of the values from `value` to `stop` are not null."""
    if len(validity) == 0:
        return stop - value
    count, bit, end = np.int64(0), first_bit + value, first_bit + stop
    while bit < end:
        byte, skipped = bit >> 3, bit & 7
        if byte + 8 <= len(validity):
            left, bits = read64(validity, _U(byte)), np.int64(64)
        else:
            left, bits = _U(validity[byte]), np.int64(8)
        left >>= _U(skipped)
        bits -= skipped
        if bit + bits > end:
            left &= (_U(1) << _U(end - bit)) - _U(1)
        count += np.int64(ones(left))
        bit += bits
    return count


@lent
def values_of_rows(rows, first, last):
    """From which to which the values of rows `first` to `last` are."""
    return (rows[first], rows[last]) if len(rows) else (first, last)


@lent
def row_of(rows, row, value):
    """The row of a value; `row` is that of one before it."""
    if len(rows) == 0:
        return value
    while rows[row + 1] <= value:
        row += 1
    return row


@lent
def number_of(kind, bits):
    """Where an integer or a double stands: the bits of the nearest double, in the order of doubles, and what it misses.

    The latter is `NAN` for a value that is no number.
    """
    if kind == INTEGER:
        value = np.int64(bits)
        nearest = np.float64(value)
        # The double nearest to the greatest integers is beyond them
        rest = value - _GREATEST - 1 if nearest >= _TOO_GREAT else value - np.int64(nearest)
        double, rest = nearest.view(np.uint64), rest + _EXACT
    else:
        double, rest = bits, np.int64(_EXACT)
        if double & _ALL_BUT_SIGN > _INFINITY:
            rest = np.int64(NAN)
        if double == _SIGN:  # -0.0 is 0.0
            double = _U(0)
    return (~double if double & _SIGN else double ^ _SIGN), rest


# -- the attributes of one message as bytes ----------------------------------------------------------------------------

# Packed attributes are a record for each value, the lowest byte first: the length of its attribute's name, in 32 bits,
# and the name; the kind of the value, in 32 bits; 64 bits, which are the length of a text; and the text. To make arrays
# of them would take Python longer than to match the message.

#: Packed attributes of a message that has none
NO_ATTRIBUTES = b""
#: Bytes of a record besides its name and its text
FRAME = 16
_INTEGERS, _FLOATS, _LENGTH = struct.Struct("<iq").pack, struct.Struct("<id").pack, struct.Struct("<i").pack
_RECORD = struct.Struct("<iq").unpack_from
_NUMBERS = {bool: (BOOL, _INTEGERS), int: (INTEGER, _INTEGERS), float: (FLOAT, _FLOATS)}
# Names as records have them; as many as messages often have
_NAMES: dict[str, bytes] = {}
_MOST_NAMES = 1 << 14
# How the bytes of a time begin
_TIME = MARK + (TYPED + TIMES).encode()


def packed(attributes: object) -> bytes:
    r"""The attributes of a message, a mapping from names to values or to several; InvalidTypeError, InvalidValueError.

    >>> packed({"new": True, "sold": None, "city": ["Rome"]}).partition(b"city")[2]
    b'\x04\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00Rome'
    """
    if type(attributes) is not dict and not isinstance(attributes, Mapping):
        raise InvalidTypeError(f"attributes must be a mapping from names to values, not {shown(attributes)}")
    records: list[bytes] = []
    for name, value in attributes.items():
        own, kind = _NAMES.get(name) or _named(name, value), type(value)
        try:
            if kind is str:
                text = value.encode()
                records += own, _INTEGERS(TEXT, len(text)), text
            elif number := _NUMBERS.get(kind):
                records += own, number[1](number[0], value)
            else:
                for each in value if isinstance(value, SEVERAL) else (value,):
                    records += _record(own, each)
        except (struct.error, UnicodeEncodeError, InvalidTypeError, InvalidValueError):
            raise _mistake(name, value) from None
    return b"".join(records)


def _named(name: str, value: object) -> bytes:
    """How a record of this attribute begins."""
    keys.check_name(name)
    text = name.encode()
    own = _LENGTH(len(text)) + text
    if name == NOW:  # Its values are looked at in each message
        _check_time(value)
        return own
    if len(_NAMES) >= _MOST_NAMES:
        _NAMES.clear()
    _NAMES[name] = own
    return own


def _check_time(value: object) -> None:
    """See that the time of a message is one: a text would be no error elsewhere, and compare with nothing."""
    for each in value if isinstance(value, SEVERAL) else (value,):
        if each is not None and not (keys.marked(each) or b"").startswith(_TIME):
            raise InvalidTypeError(
                f"attribute {keys.quoted(NOW)} is the message's time: give a datetime with a time zone, in JSON "
                f'{{"timestamp": "2026-11-30T12:00:00Z"}}, not {shown(each)}'
            )


def check_column_of_times(kind: pa.DataType, label: str) -> None:
    """See that a column of this type has the times of messages; InvalidTypeError."""
    own = kind.value_type if is_list(kind) else kind
    plain = own.value_type if pa.types.is_dictionary(own) else own
    is_json = pa.types.is_struct(plain) and [field.name for field in plain] in (["timestamp"], ["date"])
    if not (is_json or pa.types.is_timestamp(plain) or pa.types.is_date(plain) or pa.types.is_null(plain)):
        raise InvalidTypeError(
            f"{label} is of {kind}, but {NOW} is the time of a message: cast it to a timestamp with a time zone"
        )


def _record(own: bytes, value: Any) -> tuple[bytes, ...]:
    """The record of a value that need be of none of Python's own types; none of `None`."""
    if value is None:
        return ()
    text = keys.marked(value)
    if text is None and isinstance(value, str):
        text = value.encode()
    if text is not None:
        return own, _INTEGERS(TEXT, len(text)), text
    for kind, (number, pack) in _NUMBERS.items():
        if isinstance(value, kind):
            return own, pack(number, value)
    plain = keys.of_numpy(value)
    if plain is None:
        raise InvalidTypeError("")  # `_mistake` makes the message
    return _record(own, plain)


def _mistake(name: str, value: object) -> Exception:
    """What is wrong with a value, or with one of several."""
    for each in value if isinstance(value, SEVERAL) else (value,):
        try:
            if each is not None:
                keys.key_of(each)
        except (InvalidTypeError, InvalidValueError) as error:
            return type(error)(f"attribute {keys.quoted(name)}: {error}")
    raise AssertionError(name)


def unpacked(records: bytes) -> dict[str, list[Any]]:
    """The attributes that `packed` has packed, with all values of each.

    InvalidValueError: a text is no UTF-8, or no value.

    >>> unpacked(packed({"new": True, "city": ["Rome", None]}))
    {'new': [True], 'city': ['Rome']}
    """
    try:
        return _unpacked(records)
    except ValueError as error:
        raise InvalidValueError(f"attributes cannot be read: {error}") from None


def _unpacked(records: bytes) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    at = 0
    while at < len(records):
        begin = at + _WIDTH // 2
        end = begin + int.from_bytes(records[at:begin], "little")
        kind, bits = _RECORD(records, end)
        at, value = end + FRAME - _WIDTH // 2, bits
        if kind == TEXT:
            text, at = records[at : at + bits], at + bits
            value = keys.value_of(text[1:].decode()) if text[:1] == MARK else text.decode()
            value = Decimal(value) if isinstance(value, float) else value  # one that a double equals
        elif kind == FLOAT:
            (value,) = struct.unpack("<d", struct.pack("<q", bits))
        found.setdefault(records[begin:end].decode(), []).append(bool(bits) if kind == BOOL else value)
    return found


@lent
def record_at(data, at):
    """Kind and bits of the value whose record is at a place; where its name begins and ends, and its text."""
    begin = at + 4
    end = begin + np.int64(read32(data, _U(at)))
    kind, bits, text = np.int64(read32(data, _U(end))), read64(data, _U(end + 4)), end + 12
    return kind, bits, begin, end, text, text + (np.int64(bits) if kind == TEXT else 0)


@lent
def is_key(data, begin, end):
    """Whether the key of a value can be what follows the byte `MARK` in a text; only its length is looked at."""
    size = end - begin
    if size < 1:
        return False
    if data[begin] == _N:
        return size >= _NUMBER_KEY
    if data[begin] == _P:
        is_time = size > 1 and data[begin + 1] == _LETTERS[0]
        return size >= _TIME_KEY if is_time else size > 1 and _LETTERS[1] <= data[begin + 1] <= _LETTERS[2]
    return data[begin] == _BANG and size == 1


@kernel
def _first_unsound(offsets, data):
    """The first row whose bytes are no records; -1 without one."""
    for row in range(len(offsets) - 1):
        at, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        while at < end:
            room = end - at - FRAME
            if room < 0 or not 0 < np.int64(read32(data, _U(at))) <= room:
                return row
            kind, _, _, _, text, at = record_at(data, at)
            if not (BOOL <= kind <= TEXT and text <= at <= end):
                return row
            if text < at and data[text] == _MARK_BYTE and not is_key(data, text + 1, at):
                return row
    return -1


@kernel
def _numbers_of(offsets, data, name, out, marked):
    """Write the greatest number that each row has by a name, if it has one, and which rows have marked texts by it."""
    for row in range(len(out)):
        at = np.int64(offsets[row])
        while at < offsets[row + 1]:
            kind, bits, begin, end, text, at = record_at(data, at)
            is_named = end - begin == len(name)
            for i in range(len(name) if is_named else 0):
                is_named &= data[begin + i] == name[i]
            if is_named and INTEGER <= kind <= FLOAT:
                value = np.float64(np.int64(bits)) if kind == INTEGER else np.uint64(bits).view(np.float64)
                if not out[row] >= value and value == value:
                    out[row] = value
            elif is_named and kind == TEXT:
                marked[row] |= text < at and data[text] == _MARK_BYTE


def packed_numbers(rows: Strings, name: str) -> F64Array:
    """The greatest number that each row has by a name; NaN if it has none."""
    found, marked = np.full(len(rows), np.nan), np.zeros(len(rows), np.bool_)
    _numbers_of(rows.offsets, rows.data, np.frombuffer(name.encode(), np.uint8), found, marked)
    for row in np.flatnonzero(marked).tolist():  # decimals are written so
        given = unpacked(rows.data[rows.offsets[row] : rows.offsets[row + 1]].tobytes())[name]
        found[row] = np.fmax.reduce([_as_double(each) for each in given])
    return found


def _as_double(value: object) -> float:
    """A number as a double; NaN for other values."""
    return float(Decimal(value)) if isinstance(value, int | float | Decimal) and not isinstance(value, bool) else np.nan


def typed_numbers(values: pa.ExtensionArray) -> F64Array:
    """Values of the type `TypedTexts` as doubles; NaN for those that are no numbers."""
    distinct = values.storage.dictionary_encode()
    found = [
        _as_double(keys.value_of(text[1:].decode())) if text[:1] == MARK else np.nan
        for text in distinct.dictionary.to_pylist()
    ]
    doubles: F64Array = np.array([*found, np.nan])[distinct.indices.fill_null(len(found)).to_numpy()]
    return doubles


@cache
def is_packed(kind: pa.DataType) -> bool:
    """Whether a column of attributes of this type has them packed."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def packed_rows(column: pa.Array, label: str, first_row: int = 0) -> Strings:
    """Packed attributes of messages, empty for nulls; InvalidValueError names the row of a wrong one."""
    rows = to_strings(column.cast(pa.large_binary()).fill_null(b"").view(pa.large_string()))
    row = _first_unsound(rows.offsets, rows.data)
    if row >= 0:
        raise InvalidValueError(f"{label}: row {first_row + row} has no attributes as clients pack them")
    return rows


# -- keys --------------------------------------------------------------------------------------------------------------


_DIGITS = frozen(np.frombuffer(b"0123456789abcdef", np.uint8))


@kernel
def _measure(column, first, last, counts, sizes):
    kind, _, validity, first_bit, bits, begins, ends, text = column
    i = next_there(validity, first_bit, first, last)
    while i < last:
        if kind == BOOL:
            size = 2
        elif kind == TEXT:
            is_marked = begins[i] < ends[i] and text[begins[i]] == _MARK_BYTE
            size = ends[i] - begins[i] + (-1 if is_marked else 1)
        else:
            size = 1 if number_of(kind, bits[i])[1] == NAN else _NUMBER_KEY
        counts[i] += 1
        sizes[i] += size
        i = next_there(validity, first_bit, i + 1, last)


@kernel
def _write(column, first, last, ends_at, out, digits):
    """Write the keys of rows behind what they have, whose ends `ends_at` gives and gets: number and byte."""
    kind, _, validity, first_bit, bits, begins, ends, text = column
    key_at, byte_at = ends_at
    offsets, data = out
    i = next_there(validity, first_bit, first, last)
    while i < last:
        at = byte_at[i]
        if kind == BOOL:
            data[at], data[at + 1] = _B, _ZERO + bits[i]
            at += 2
        elif kind == TEXT:
            begin = begins[i]
            if begin < ends[i] and text[begin] == _MARK_BYTE:
                begin += 1
            else:
                data[at] = _S
                at += 1
            for place in range(begin, ends[i]):
                data[at] = text[place]
                at += 1
        else:
            double, rest = number_of(kind, bits[i])
            if rest == NAN:
                data[at] = _BANG
                at += 1
            else:
                data[at] = _N
                for digit in range(16):
                    shift = np.uint64(60 - 4 * digit)
                    data[at + 1 + digit] = digits[(double >> shift) & np.uint64(15)]
                for digit in range(3):
                    data[at + 17 + digit] = digits[(rest >> (8 - 4 * digit)) & 15]
                at += _NUMBER_KEY
        key_at[i] += 1
        offsets[key_at[i]] = byte_at[i] = at
        i = next_there(validity, first_bit, i + 1, last)


def keys_of_rows(columns: Sequence[Column], count: int, threads: int) -> TagLists:
    """The keys of the values that each row has in some columns of a value a row, column by column."""
    counts, sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)

    def measure(first: int, last: int) -> None:
        for column in columns:
            _measure(column, first, last, counts, sizes)

    run_evenly(measure, count, threads)
    row_offsets, byte_offsets = offsets_of(counts), offsets_of(sizes)
    offsets, data = np.zeros(int(row_offsets[-1]) + 1, np.int64), np.empty(int(byte_offsets[-1]), np.uint8)
    ends_at = row_offsets[:-1].copy(), byte_offsets[:-1].copy()

    def write(first: int, last: int) -> None:
        for column in columns:
            _write(column, first, last, ends_at, (offsets, data), _DIGITS)

    run_evenly(write, count, threads)
    return TagLists(row_offsets, Strings(offsets, data))
