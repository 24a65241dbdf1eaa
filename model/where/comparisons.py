"""An attribute of a message compared with another one of it, or with the message's time, perhaps so much later.

What is compared are all pairs of values; one of them is enough. The message's time is the attribute `now()`, if the
message has one, and else the time when it is looked at.

A comparison is written, in its tag, as its operator, the nanoseconds that are added to the right
side, `:`, and the name of the attribute there.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple, Self

from tagmatch.model.errors import InvalidValueError
from tagmatch.model.where.types import TIMES, TYPED
from tagmatch.model.where.values import NAN, check_name, domain_of

#: The attribute that is the message's time
NOW = "now()"
#: Operators that compare, and those that say the same of both sides the other way round
MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
#: Operators after which an attribute needs backquotes, unless a duration follows, too: `city = Nice` lacks quotes
IN_QUOTES = ("=", "!=")
#: Nanoseconds of units, the greatest first
UNITS = {"week": 604_800 * 10**9, "day": 86_400 * 10**9, "hour": 3_600 * 10**9, "minute": 60 * 10**9, "second": 10**9}
#: Written in an expression, with a sign before it or not
DURATION = rf"(?:[+-]\s*)?[0-9]+(?:\.[0-9]*)?\s*(?:{'|'.join(UNITS)})s?\b"

_DURATION = re.compile(rf"([+-]?)\s*([0-9.]+)\s*({'|'.join(UNITS)})s?")
_MOST = 10_000 * 366 * UNITS["day"]
_PAYLOAD = re.compile(r"([<>!]?=|[<>])(0|-?[1-9]\d{0,20}):(.+)", re.DOTALL | re.ASCII)
_TIME = TYPED + TIMES
_HEX = 16


class Comparison(NamedTuple):
    """`left operator right`, with some nanoseconds added to the right side."""

    left: str
    operator: str
    right: str
    later: int = 0

    @classmethod
    def of(cls, left: str, operator: str, right: str, later: int = 0) -> Self:
        """One of the ways to say the same; InvalidTypeError and InvalidValueError for names that are none."""
        check_name(left)
        check_name(right)
        if left == right == NOW:
            raise InvalidValueError("now() is compared with itself: compare an attribute with it")
        if abs(later) > _MOST:
            raise InvalidValueError("a duration must be at most 10,000 years")
        is_mirrored = left == NOW
        if NOW not in (left, right):
            is_mirrored = operator in (">", ">=") or (operator in ("=", "!=") and (right, later) < (left, -later))
        return cls(right, MIRRORED[operator], left, -later) if is_mirrored else cls(left, operator, right, later)

    @classmethod
    def in_payload(cls, left: str, payload: str) -> Self:
        """The one that is written so; InvalidValueError."""
        found = _PAYLOAD.fullmatch(payload)
        comparison = None if found is None else cls.of(left, found[1], found[3], int(found[2]))
        if comparison is None or (comparison.left, comparison.payload) != (left, payload):
            raise InvalidValueError(f"nothing is compared as {payload!r:.80} says")
        return comparison

    @property
    def payload(self) -> str:
        """Its text in a tag, behind the name of the left side."""
        return f"{self.operator}{self.later}:{self.right}"

    def holds(self, left: str, right: str) -> bool:
        """Whether it does for values with these keys."""
        is_not = self.operator == "!="
        if self.later:
            if not (left.startswith(_TIME) and right.startswith(_TIME)):  # Others have no distance
                return False
            distance = _nanoseconds(left) - _nanoseconds(right) - self.later
        else:
            if NAN in (left, right):
                return is_not
            one, two = left.encode(), right.encode()
            distance = (one > two) - (one < two)
            if self.operator not in ("=", "!=") and ("b" in (left[0], right[0]) or domain_of(left) != domain_of(right)):
                return False
        return (self.operator[-1] == "=" and not is_not and not distance) or bool(
            distance and (is_not or self.operator[0] == ("<" if distance < 0 else ">"))
        )


def _nanoseconds(key: str) -> int:
    return int(key[2 : 2 + _HEX], 16) * 10**9 + int(key[2 + _HEX :], 16)


def nanoseconds_in(duration: str) -> int:
    """How long it is; InvalidValueError."""
    found = _DURATION.fullmatch(duration)
    assert found
    length = Decimal(found[2]) * UNITS[found[3]]
    if length > _MOST or length % 1:
        raise InvalidValueError("a duration must be at most 10,000 years, in whole nanoseconds")
    return -int(length) if found[1] == "-" else int(length)


def duration_text(nanoseconds: int) -> str:
    """A duration that is not negative, in the greatest unit, except weeks, that measures it in a whole number."""
    unit = next((name for name in [*UNITS][1:] if nanoseconds % UNITS[name] == 0), "second")
    count = Decimal(nanoseconds) / UNITS[unit]
    return f"{count:f} {unit}{'' if count == 1 else 's'}"
