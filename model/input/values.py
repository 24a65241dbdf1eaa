"""Values of attributes: in columns of Arrow, or of one message as bytes, of which kernels read one by one.

`tagmatch.model.where.values` says what the order of values is, and the key that says where a value stands in it.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import I64Array, Strings, U8Array, U64Array, frozen, offsets_of
from tagmatch.model.arrow import numpy_type, to_strings
from tagmatch.model.arrow_input import plain_strings
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.kernels.hashing import read32, read64
from tagmatch.model.kernels.jit import brief_kernel, kernel, lent
from tagmatch.model.kernels.lists import ones, trailing_zeros
from tagmatch.model.where import values as keys

#: What a value is; a tag is no value, but stands for itself
TAG, BOOL, INTEGER, FLOAT, TEXT = range(5)
#: Stands for what the nearest double misses, of a number that is none
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
    """Values of messages, some of which may be null: row `i` has those from `rows[i]` to `rows[i + 1]`."""

    kind: int  # `TAG`, `BOOL`, `INTEGER`, `FLOAT` or `TEXT`
    prefix: U8Array  # what the tag of each value begins with; of all in turn, if there are `prefix_offsets`
    rows: I64Array  # length n + 1; empty where row `i` has value `i`
    validity: U8Array = NO_BYTES  # a bit for each value, the lowest of a byte first; empty where none is null
    first_bit: int = 0
    bits: U64Array = NO_NUMBERS  # of integers (int64), and of doubles; of bools 0 or 1
    begins: I64Array = NO_PLACES  # where in `text` each string stands
    ends: I64Array = NO_PLACES
    prefix_offsets: I64Array = NO_PLACES  # length values + 1; empty where all begin with the same
    text: U8Array = NO_BYTES

    @property
    def name(self) -> bytes:
        """The name of the attribute whose values these all are, from their prefix."""
        return self.prefix[len(keys.ATTRIBUTE) : -len(keys.RESERVED)].tobytes()


def value_column(values: pa.Array, rows: I64Array, *, prefix: U8Array = NO_BYTES) -> Column | None:
    """A column of values that `check_values` lets pass, in their own memory where that can be; `None` if all are null.

    `rows` and `prefix` are those of `Column`.
    """
    kind = kind_of(values.type)
    if pa.types.is_dictionary(values.type):
        values = plain_strings(values, "") if kind == TEXT else values.dictionary_decode()
    if kind is None or values.null_count == len(values):
        return None
    bits, begins, ends, text = NO_NUMBERS, NO_PLACES, NO_PLACES, NO_BYTES
    if kind == TEXT:
        texts = to_strings(plain_strings(values, ""))
        begins, ends, text = *places(texts), texts.data
    elif kind == BOOL:
        bits = values.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64)
    else:
        bits = _bits(values, np.float64 if kind == FLOAT else np.int64)
    # At once and by place, as a table may have many columns
    return Column(kind, prefix, frozen(rows), *_validity(values), frozen(bits), frozen(begins), frozen(ends), text=text)


def check_values(values: pa.Array, place_of: Callable[[int], str], otherwise: str) -> None:
    """See that `value_column` can take them: bools, integers, floats or strings, also in a dictionary.

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


# -- kernels -----------------------------------------------------------------------------------------------------------


@lent
def next_there(validity, first_bit, value, stop):
    """The first value from `value` on that is not null; `stop` or more if there is none before."""
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
def prefix_of(prefix, prefix_offsets, value):
    """Where the prefix of a value begins and ends."""
    return (prefix_offsets[value], prefix_offsets[value + 1]) if len(prefix_offsets) else (0, len(prefix))


@lent
def number_of(kind, bits):
    """Where an integer or a double stands: the bits of the nearest double, in the order of doubles, and what it misses.

    The latter is `NAN` for what is no number.
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

# To look at each value takes Python longer than to match the message. `marshal` writes a whole dictionary at once,
# and version 2 of what it writes is as old as Python 2.5. A value is a letter,
# and what the letter asks for, the lowest byte first:
#
# =======================  ===========================================================================================
# letter                   what follows
# =======================  ===========================================================================================
# `T`, `F`, `N`            nothing: `True`, `False`, `None`
# `i`                      an integer of 32 bits
# `l`                      how many digits of 15 bits a larger integer has, less than zero if it is; 16 bits each
# `g`                      a double
# `u`                      how many bytes, in 32 bits, and a text in UTF-8, in which lone surrogates are three bytes
# `[`, `(`, `<`, `>`       how many, in 32 bits, and the values: a list, tuple, set or frozenset
# `{`                      names and values in turn, and then `0`: a dictionary
# =======================  ===========================================================================================
#
# What else it may write, and what no attribute may have, is not *plain*: nothing reads that. `marshal` promises nothing
# to other versions of Python: where one writes something else than this, no attributes are plain.

_VERSION = 2
#: Packed attributes of a message that has none
NO_ATTRIBUTES = b"{0"

_TRUE, _FALSE, _NONE, _INT, _LONG, _DOUBLE, _TEXT, _END, _DICT = tuple(b"TFNilgu0{")
_LIST, _TUPLE, _SET, _FROZENSET = tuple(b"[(<>")

#: Columns of a value: where its attribute's name begins and ends, its kind, its bits if it is no text, and where the
#: text begins and ends
NAME_BEGIN, NAME_END, KIND, BITS, BEGIN, END = range(6)
COLUMNS = 6

# In the place of a kind
_NO_VALUE, _NOT_PLAIN = -1, -2

# Digits of 15 bits that an integer of 64 bits has at most, and what the highest of so many may be
_DIGIT, _MOST_DIGITS = 15, 5
_HIGHEST = 1 << (63 - (_MOST_DIGITS - 1) * _DIGIT)

# How UTF-8 begins lone surrogates, had it any: the second byte is less for all other characters
_SURROGATE, _SECOND = 0xED, 0xA0

# One value of each letter, and what has to be written for it
_EXAMPLE = {"é": [True, False, None, -2, 2**40 + 3, -(2**40), 1.5], "b": ("\ud800",), "c": {7}, "d": frozenset([""])}
_WRITTEN = (
    b"{u\x02\0\0\0\xc3\xa9[\x07\0\0\0TFNi\xfe\xff\xff\xffl\x03\0\0\0\x03\0\0\0\0\x04l\xfd\xff\xff\xff\0\0\0\0\0\x04"
    b"g\0\0\0\0\0\0\xf8?u\x01\0\0\0b(\x01\0\0\0u\x03\0\0\0\xed\xa0\x80u\x01\0\0\0c<\x01\0\0\0i\x07\0\0\0"
    b"u\x01\0\0\0d>\x01\0\0\0u\0\0\0\x000"
)

_NO_VALUES = np.empty((0, COLUMNS), np.int64)


@lent
def _signed32(data, at):
    return np.int64(np.int32(read32(data, _U(at))))


@lent
def _is_utf8(data, begin, end):
    """Whether there is no lone surrogate."""
    found = False
    for i in range(begin, end - 1):
        found |= (data[i] == _SURROGATE) & (data[i + 1] >= _SECOND)
    return not found


@lent
def _long(data, at):
    """An integer of more than 32 bits, and whether it fits 64; where it ends."""
    digits = _signed32(data, at)
    negative, digits = digits < 0, abs(digits)
    at += 4
    value, fits = _U(0), digits <= _MOST_DIGITS
    if fits:
        for i in range(digits):
            digit = _U(data[at + 2 * i]) | (_U(data[at + 2 * i + 1]) << _U(8))
            if i == _MOST_DIGITS - 1:
                # -2**63 has no positive counterpart
                fits = digit < _U(_HIGHEST) or (negative and digit == _U(_HIGHEST) and value == _U(0))
            value |= digit << _U(_DIGIT * i)
    return (-np.int64(value) if negative else np.int64(value)), fits, at + 2 * digits


@lent
def _value(data, at):
    """The kind, bits, begin and end of the value at a place, and where what follows it begins."""
    letter = data[at]
    at += 1
    if letter == _INT:
        return INTEGER, _signed32(data, at), 0, 0, at + 4
    if letter == _DOUBLE:
        return FLOAT, np.int64(read64(data, _U(at))), 0, 0, at + 8
    if letter == _TEXT:
        begin = at + 4
        end = begin + _signed32(data, at)
        return (TEXT if _is_utf8(data, begin, end) else _NOT_PLAIN), 0, begin, end, end
    if letter in (_TRUE, _FALSE):
        return BOOL, np.int64(letter == _TRUE), 0, 0, at
    if letter == _LONG:
        value, fits, at = _long(data, at)
        return (INTEGER if fits else _NOT_PLAIN), value, 0, 0, at
    return (_NO_VALUE if letter == _NONE else _NOT_PLAIN), 0, 0, 0, at


@lent
def _name(data, at):
    """Begin and end of the name at a place; an end before the begin if it is none that an attribute may have."""
    kind, _, begin, end, _ = _value(data, at)
    plain = kind == TEXT and end > begin
    if plain:
        for i in range(begin, end):
            plain &= data[i] != 0
    return (begin, end) if plain else (0, -1)


@kernel
def read_values(data, values):
    """Write the values of packed attributes, as many as there is room for; how many there are, -1 if any is not plain.

    A value has the columns from `NAME_BEGIN` on, in an int64[n, 6] array.
    """
    count, at = 0, 1
    if data[0] != _DICT:
        return -1
    while data[at] != _END:
        name_begin, name_end = _name(data, at)
        if name_end < name_begin:
            return -1
        at, several = name_end, 1
        if data[at] in (_LIST, _TUPLE, _SET, _FROZENSET):
            several = _signed32(data, at + 1)
            at += 5
        for _ in range(several):
            kind, bits, begin, end, at = _value(data, at)
            if kind == _NOT_PLAIN:
                return -1
            if kind == _NO_VALUE:
                continue
            if count < len(values):
                values[count, NAME_BEGIN], values[count, NAME_END] = name_begin, name_end
                values[count, KIND], values[count, BITS] = kind, bits
                values[count, BEGIN], values[count, END] = begin, end
            count += 1
    return count


@brief_kernel
def _is_plain(text, no_values):
    return read_values(np.frombuffer(text, np.uint8), no_values) >= 0


def writes_as_read(version: int) -> bool:
    """Whether `marshal` of this Python, asked for this version of what it writes, writes what is read here."""
    return marshal.dumps(_EXAMPLE, version) == _WRITTEN


_IS_READ = writes_as_read(_VERSION)


def packed(attributes: object) -> bytes | None:
    """The attributes of a message as bytes, if they are plain: a `dict` of Python's own types for `attribute_tags`.

    `None` for others, for what `attribute_tags` refuses, and for all where this Python writes them in another way.
    """
    if not _IS_READ:
        return None
    try:
        text = marshal.dumps(attributes, _VERSION)  # type: ignore[arg-type]
    except ValueError:
        return None
    return text if _is_plain(text, _NO_VALUES) else None
