"""Values of attributes as text: in one total order, and as they are written in an expression.

The key of a value is text, and keys compare by their UTF-8 bytes:

==============  ==================================================================================================
value           key
==============  ==================================================================================================
NaN             `!`
`bool`          `b0`, `b1`
number          `n`, 16 hexadecimal digits of the nearest double, and 3 of how far an integer is from it, plus 0x800
other types     `p`, and what `tagmatch.model.where.types` says; it also describes the keys of decimals
`str`           `s` and the text
==============  ==================================================================================================

So all numbers are in their order, whether they are integers or not, and equal ones have one key. The digits of a double
are its 64 bits, with the first one flipped, or all of them if it is negative: as unsigned numbers, these are in order.
"""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal
from typing import Self

from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.where.types import (
    DECIMAL,
    MARK,
    TYPE_NAMES,
    TYPED,
    Network,
    Typed,
    below,
    decimal_in,
    decimal_of,
    key_of_typed,
    tail_of,
    typed_in,
)

#: A network is one only as an operand
Value = bool | int | float | str | Decimal | Typed | Network

#: Begins all strings among tags that are not tags, and separates their parts
RESERVED = "\0"
#: The signs after it in those: constraints, negated ones, and attributes in Spark's buckets
SIGNS = ("+", "-", "=")
ATTRIBUTE = RESERVED + "="

NAN = "!"
#: The first letter of the keys of a type, and a letter behind all of them
NUMBERS, TEXTS = ("n", "o"), ("s", "t")

#: The bit of a double that its sign is
SIGN = 2**63
#: What the last digits of a number are that is the double itself
EXACT = 0x800

_INT64 = range(-(2**63), 2**63)
_ALL_BITS = 2**64 - 1
_DIGITS_OF_DOUBLE = slice(1, 17)
_DIGITS_OF_DISTANCE = slice(17, 20)

_ESCAPES = {'"': r"\"", "\\": r"\\", "\n": r"\n", "\t": r"\t"}
# Controls, what else ends a line for some programs, and lone surrogates, which messages may have to show
_ESCAPED = re.compile(r'["\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]')


class Written(float):
    """A number of an expression: the nearest double, and how it is written, which a declared decimal is exactly."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Self:
        """The number that is written so."""
        number = super().__new__(cls, text)
        number.text = text
        return number


def key_of(value: object) -> str:
    """The key of a value, also of NumPy's; InvalidTypeError, InvalidValueError."""
    if type(value) is str:  # most are
        return TEXTS[0] + checked_text(value)
    if isinstance(value, bool):
        return "b1" if value else "b0"
    if isinstance(value, int):
        if value not in _INT64:
            raise InvalidValueError("an integer must be from -2**63 to 2**63 - 1; write a decimal for others")
        nearest = float(value)
        return _number_key(nearest, value - int(nearest))
    if isinstance(value, float):
        return NAN if math.isnan(value) else _number_key(value, 0)
    if (typed := key_of_typed(value)) is not None:
        return typed
    if isinstance(value, str):
        return TEXTS[0] + checked_text(value)
    if isinstance(value, Decimal):
        return _decimal_key(value)
    if (found := marked(value)) is not None:  # of an object of JSON
        return found[1:].decode()
    plain = of_numpy(value)
    if plain is not None:
        return key_of(plain)
    is_place = isinstance(value, dict) and {"lat", "lon"} <= value.keys()
    raise InvalidTypeError(
        "a value must be a bool, a number, a str, a date, a datetime, an IP address or a Version, not "
        f"{type(value).__name__} {value!r:.80}{'; a place is no attribute: give it as location' if is_place else ''}"
    )


def marked(value: object) -> bytes | None:
    """The bytes of a typed value, or of a decimal, in texts of messages; `None` of others; InvalidValueError."""
    if isinstance(value, dict) and isinstance(value.get(DECIMAL), str) and len(value) == 1:
        value = decimal_of(value[DECIMAL])
    key = key_of(value) if isinstance(value, Decimal) else key_of_typed(value)
    return None if key is None else MARK + key.encode()


def _decimal_key(value: Decimal) -> str:
    if not value.is_finite():
        return NAN if value.is_nan() else key_of(float(value))
    number = below(value)
    return key_of(number) + ("" if number == value else tail_of(value))


def domain_of(key: str) -> tuple[str, str]:
    """The beginning of all keys that have an order with this one, and the least text after all of them."""
    first = key[:1]
    if first == TYPED:
        return key[:2], TYPED + chr(ord(key[1]) + 1)
    return TEXTS if first == TEXTS[0] else NUMBERS


def of_numpy(value: object) -> Value | None:
    """A bool, an integer or a float of NumPy as Python has it, if there is an equal one; else `None`."""
    # Only for values that are not Python's own: commands begin without NumPy
    import numpy as np

    # Times are integers to NumPy, but not by their kind
    if not isinstance(value, np.generic) or value.dtype.kind not in "biuf":
        return None
    plain = value.item()
    return plain if isinstance(plain, bool | int | float) else None


def finite_number(field: str, value: object) -> float:
    """The number as a double, a negative zero as zero; InvalidTypeError and InvalidValueError name the field."""
    plain = value if isinstance(value, bool | int | float) else of_numpy(value)
    if plain is None or not isinstance(plain, int | float) or isinstance(plain, bool):
        raise InvalidTypeError(f"{field} must be a number, not {type(value).__name__} {value!r:.80}")
    try:
        number = float(plain)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidValueError(f"{field} must be finite, not {number!r}")
    return number + 0.0  # which makes -0.0 0.0


def _number_key(nearest: float, distance: int) -> str:
    # Adding zero makes -0.0 0.0
    (bits,) = struct.unpack(">Q", struct.pack(">d", nearest + 0.0))
    bits ^= _ALL_BITS if bits & SIGN else SIGN
    return f"{NUMBERS[0]}{bits:016x}{distance + EXACT:03x}"


def type_of(key: str) -> str:
    """What the type of the value with this key is called."""
    if key[:1] == TYPED:
        return TYPE_NAMES[key[1]]
    return {"b": "bool", NUMBERS[0]: "number", TEXTS[0]: "text", NAN: "NaN"}[key[0]]


def value_of(key: str) -> Value:
    """The value that has this key, of an integer and a float that share one the integer; InvalidValueError."""
    if key == NAN:
        return math.nan
    if key in ("b0", "b1"):
        return key == "b1"
    if key.startswith(TEXTS[0]):
        return key[1:]
    if key.startswith(TYPED):
        return typed_in(key)
    if len(key) > _DIGITS_OF_DISTANCE.stop:
        found = decimal_in(key[_DIGITS_OF_DISTANCE.stop :])
        if _decimal_key(found) != key:
            raise InvalidValueError(f"no value has the key {key!r}")
        return found
    try:
        bits = int(key[_DIGITS_OF_DOUBLE], 16)
        distance = int(key[_DIGITS_OF_DISTANCE], 16) - EXACT
        (nearest,) = struct.unpack(">d", struct.pack(">Q", bits ^ (SIGN if bits & SIGN else _ALL_BITS)))
    except (ValueError, struct.error):
        raise InvalidValueError(f"no value has the key {key!r}") from None
    if math.isfinite(nearest) and nearest.is_integer() and int(nearest) + distance in _INT64:
        return int(nearest) + distance
    return float(nearest)


def is_reserved(tag: str) -> bool:
    """Whether a string encodes a constraint or an attribute's value: no user's tag may be like it."""
    return tag.startswith(RESERVED) and tag[1:2] in SIGNS


def check_name(name: object) -> None:
    """Refuse what cannot be the name of an attribute by InvalidTypeError or InvalidValueError."""
    if not isinstance(name, str):
        raise InvalidTypeError(f"the name of an attribute must be a str, not {type(name).__name__} {name!r:.80}")
    if not name:
        raise InvalidValueError("the name of an attribute must not be empty")
    if RESERVED in name:
        raise InvalidValueError(f"the name of an attribute must not contain U+0000, as {quoted(name)} does")
    checked_text(name, "name of an attribute")


def checked_text(text: str, what: str = "text") -> str:
    """The text; InvalidValueError, which says of what it is the text, if it has no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidValueError(f"the {what} {text!r:.80} has no UTF-8 form: it contains a lone surrogate") from None
    return text


def quoted(text: str) -> str:
    """A text as it is written in an expression, on one line."""
    return '"' + _ESCAPED.sub(_escape, text) + '"'


def _escape(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0], f"\\u{ord(found[0]):04x}")


def literal(value: Value, *, is_decimal: bool = False) -> str:
    """A value as it is written in an expression, an infinity as a number too large for a double; InvalidValueError.

    For an attribute that is declared as a decimal, a double is the decimal that it equals, if it is written otherwise.
    """
    if is_decimal and isinstance(value, float) and math.isfinite(value) and Decimal(repr(value)) != Decimal(value):
        value = Decimal(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Decimal):
        return f'{DECIMAL} "{value}"'
    if isinstance(value, Typed):
        return str(value)
    if isinstance(value, Network):
        return f'cidr "{value}"'
    if math.isnan(value):
        raise InvalidValueError("NaN cannot be written in an expression: it equals nothing")
    if math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return repr(float(value)) if isinstance(value, float) else str(int(value))
