"""The attributes of one message as bytes, which one call of C writes and a kernel reads.

To look at each value takes Python longer than to match the message. `marshal` writes a whole dictionary at once,
and version 2 of what it writes is as old as Python 2.5. A value is a letter,
and what the letter asks for, the lowest byte first:

=======================  ===========================================================================================
letter                   what follows
=======================  ===========================================================================================
`T`, `F`, `N`            nothing: `True`, `False`, `None`
`i`                      an integer of 32 bits
`l`                      how many digits of 15 bits a larger integer has, less than zero if it is; 16 bits each
`g`                      a double
`u`                      how many bytes, in 32 bits, and a text in UTF-8, in which lone surrogates are three bytes
`[`, `(`, `<`, `>`       how many, in 32 bits, and the values: a list, tuple, set or frozenset
`{`                      names and values in turn, and then `0`: a dictionary
=======================  ===========================================================================================

What else it may write, and what no attribute may have, is not *plain*: nothing reads that. `marshal` promises nothing
to other versions of Python: where one writes something else than this, no attributes are plain.
"""

from __future__ import annotations

import marshal

import numpy as np

from tagmatch.model.input.values import BOOL, FLOAT, INTEGER, TEXT
from tagmatch.model.kernels.hashing import read32, read64
from tagmatch.model.kernels.jit import brief_kernel, kernel, lent

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
_U = np.uint64


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
