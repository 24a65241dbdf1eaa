"""Tests of one attribute, or of where a message is, and the tags that stand for them in the sets of subscriptions.

A stored row holds a constraint as a tag that begins with U+0000: `+` or, negated, `-`; the kind; the attribute; U+0000;
and what it is compared with. A message has that tag where the constraint holds.

====  ==================  ==============================================================================================
kind  attribute           what it is compared with
====  ==================  ==============================================================================================
`r`   its name            ranges of values: for each its lower and its upper cut, as the side, the length of the key in
                          bytes, `:` and the key
`s`   its name            the suffix
`c`   its name            the text that is contained
`t`   none                a tag, always negated: the message does not have it
`a`   none                an area, as `tagmatch.model.filters.areas` writes it: the message is within it
====  ==================  ==============================================================================================

An attribute of a message may have several values: a constraint holds if any of them satisfies it, a negated one if none
does, and so where there is no value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple, cast

from tagmatch.model.errors import FilterError, InvalidTypeError, InvalidValueError
from tagmatch.model.filters.areas import Area, Near, area_in, payload_of, text_of
from tagmatch.model.filters.values import (
    NUMBERS,
    RESERVED,
    TEXTS,
    Value,
    check_name,
    checked_text,
    is_reserved,
    key_of,
    literal,
    quoted,
    value_of,
)

Side = Literal["[", "]", "^"]
Kind = Literal["r", "s", "c", "t", "a"]
Comparison = Literal["=", "!=", "<", "<=", ">", ">="]

RANGES: Kind = "r"
SUFFIX: Kind = "s"
CONTAINS: Kind = "c"
NO_TAG: Kind = "t"
AREA: Kind = "a"
#: How the tags of areas begin
AREA_TAGS = (f"{RESERVED}+a{RESERVED}", f"{RESERVED}-a{RESERVED}")

#: Words of the language, which are names of attributes only in backquotes
KEYWORDS = frozenset(
    ("and", "between", "contains", "exists", "false", "in", "not", "or", "prefix", "suffix", "tags", "true", "within")
)

_TAG = re.compile(rf"{RESERVED}([+-])([rscta])([^{RESERVED}]*){RESERVED}(.*)", re.DOTALL)
_CUT = re.compile(rb"([\[\]^])(\d+):")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
#: What ends the bytes of a cut: nothing, the least byte, and one that UTF-8 does not have
_ENDS = {"[": b"", "]": b"\x00", "^": b"\xff"}


class Cut(NamedTuple):
    """A place between the keys of values: just before a key, just after it, or after all that begin with it.

    Attributes
    ----------
    side : {"[", "]", "^"}
    key : str
        It need not be the key of a value.
    """

    side: Side
    key: str

    @property
    def position(self) -> bytes:
        r"""The least bytes after the cut: the keys below these lie before the cut, the others after it.

        Examples
        --------
        >>> Cut("]", "sRome").position, Cut("^", "sRome").position
        (b'sRome\x00', b'sRome\xff')
        """
        return self.key.encode() + _ENDS[self.side]


class Interval(NamedTuple):
    """The values between two cuts, of which the lower one comes first."""

    lower: Cut
    upper: Cut

    @property
    def is_point(self) -> bool:
        """Whether it has one key."""
        return self.lower.key == self.upper.key and (self.lower.side, self.upper.side) == ("[", "]")


#: All keys, NaN's too
_ALL = Interval(Cut("[", ""), Cut("[", "t"))


@dataclass(frozen=True, slots=True)
class Constraint:
    r"""A test of one attribute, perhaps negated; equal ones have equal tags.

    Attributes
    ----------
    attribute : str
        Its name; empty for the kinds `t` and `a`.
    kind : {"r", "s", "c", "t", "a"}
        As in the table above.
    intervals : tuple of Interval
        Of the kind `r`: disjoint and ascending; none, if no value satisfies it.
    payload : str
        Of the other kinds: the suffix, the text, the tag, or what stands for the area.
    negated : bool

    Examples
    --------
    >>> constraint = Constraint.one_of("city", ["Rome", "Milan"])
    >>> constraint.tag
    '\x00+rcity\x00[6:sMilan]6:sMilan[5:sRome]5:sRome'
    >>> Constraint.of_tag(constraint.tag) == constraint
    True
    >>> print(constraint, "/", constraint.negation)
    city in {"Milan", "Rome"} / not city in {"Milan", "Rome"}
    """

    attribute: str
    kind: Kind
    intervals: tuple[Interval, ...] = ()
    payload: str = ""
    negated: bool = False

    @classmethod
    def compared(cls, attribute: str, comparison: Comparison, value: Value) -> Constraint:
        """`=`, `!=`, `<`, `<=`, `>`, `>=`: order is within a type; values of other types, and NaN, are `!=`.

        Raises
        ------
        InvalidTypeError, InvalidValueError
            As `key_of`; NaN; and for an order of bools.
        """
        if comparison == "=":
            return cls.one_of(attribute, [value])
        if comparison == "!=":
            return cls.none_of(attribute, [value])
        least, end = _type_of(value)
        before, after = Cut("[", key_of(value)), Cut("]", key_of(value))
        lower, upper = {"<": (least, before), "<=": (least, after), ">": (after, end), ">=": (before, end)}[comparison]
        return cls._of_range(attribute, lower, upper)

    @classmethod
    def between(cls, attribute: str, low: Value, high: Value) -> Constraint:
        """From `low` to `high`, with both.

        Raises
        ------
        InvalidTypeError, InvalidValueError
            As `compared`, for values of two types, and if `low` is greater: no value is between them.
        """
        if _type_of(low) != _type_of(high):
            raise InvalidTypeError(
                f"between needs two numbers or two texts: {literal(low)} and {literal(high)} have no order"
            )
        constraint = cls._of_range(attribute, Cut("[", key_of(low)), Cut("]", key_of(high)))
        if not constraint.intervals:
            raise InvalidValueError(
                f"no value is between {literal(low)} and {literal(high)}: the lesser one comes first, "
                f"as in between {literal(high)} and {literal(low)}"
            )
        return constraint

    @classmethod
    def one_of(cls, attribute: str, values: Iterable[Value]) -> Constraint:
        """`in`: a value equals one of these."""
        points = tuple(Interval(Cut("[", key), Cut("]", key)) for key in _keys_of(values))
        return cls(_checked(attribute), RANGES, points)

    @classmethod
    def none_of(cls, attribute: str, values: Iterable[Value]) -> Constraint:
        """`not in`: there is a value that equals none of these."""
        keys = _keys_of(values)
        lowers = [_ALL.lower, *(Cut("]", key) for key in keys)]
        uppers = [*(Cut("[", key) for key in keys), _ALL.upper]
        return cls(_checked(attribute), RANGES, tuple(map(Interval, lowers, uppers)))

    @classmethod
    def begins_with(cls, attribute: str, text: str) -> Constraint:
        """`prefix`."""
        key = key_of(text)
        return cls._of_range(attribute, Cut("[", key), Cut("^", key))

    @classmethod
    def ends_with(cls, attribute: str, text: str) -> Constraint:
        """`suffix`."""
        return cls(_checked(attribute), SUFFIX, payload=checked_text(text))

    @classmethod
    def contains(cls, attribute: str, text: str) -> Constraint:
        """`contains`."""
        return cls(_checked(attribute), CONTAINS, payload=checked_text(text))

    @classmethod
    def exists(cls, attribute: str) -> Constraint:
        """There is a value, which may be NaN."""
        return cls(_checked(attribute), RANGES, (_ALL,))

    @classmethod
    def without_tag(cls, tag: str) -> Constraint:
        """The message does not have the tag."""
        return cls("", NO_TAG, payload=checked_text(tag, "tag"), negated=True)

    @classmethod
    def of_area(cls, area: Area, *, plane: bool = False) -> Constraint:
        r"""The message is within an area, of the sphere or of the plane.

        Examples
        --------
        >>> near = Constraint.of_area(Near(500))
        >>> near.tag, near.text, near.area
        ('\x00+a\x00n407f400000000000', 'within near(500)', Near(metres=500.0))
        """
        return cls("", AREA, payload=payload_of(area, plane=plane))

    @classmethod
    def _of_range(cls, attribute: str, lower: Cut, upper: Cut) -> Constraint:
        some = lower.position < upper.position
        return cls(_checked(attribute), RANGES, (Interval(lower, upper),) if some else ())

    @classmethod
    def of_tag(cls, tag: str) -> Constraint:
        """The constraint that has this tag.

        Raises
        ------
        InvalidValueError
            No constraint has it.
        """
        found = _TAG.fullmatch(tag)
        if found is None:
            raise InvalidValueError(f"no constraint has the tag {quoted(tag)}")
        sign, kind, attribute, payload = found.groups()
        intervals: tuple[Interval, ...] = ()
        if kind == RANGES:
            cuts = iter(_cuts_in(payload.encode()))
            intervals, payload = tuple(map(Interval, cuts, cuts)), ""
        constraint = cls(attribute, cast(Kind, kind), intervals, payload, sign == "-")
        if constraint.tag != tag or (kind == AREA and not constraint._is_sound_area):
            raise InvalidValueError(f"no constraint has the tag {quoted(tag)}")
        return constraint

    @property
    def tag(self) -> str:
        """The tag that stands for it in a stored row: two that are equal have the same one, and no others have."""
        cuts = (cut for interval in self.intervals for cut in interval)
        ranges = "".join(f"{side}{len(key.encode())}:{key}" for side, key in cuts)
        return f"{RESERVED}{'-' if self.negated else '+'}{self.kind}{self.attribute}{RESERVED}{ranges}{self.payload}"

    @property
    def area(self) -> Area | None:
        """The area of the kind `a`; `None` of other kinds."""
        return area_in(self.payload) if self.kind == AREA else None

    @property
    def _is_sound_area(self) -> bool:
        return self.area is not None and not self.attribute and not (self.negated and isinstance(self.area, Near))

    @property
    def negation(self) -> Constraint:
        """What holds where this does not.

        Raises
        ------
        FilterError
            This is `within near(…)`.
        """
        if isinstance(self.area, Near):
            raise FilterError(
                f"where: `not {self.text}` has no meaning, as it does not say whose position is not to be near: "
                "use `not` with a circle or a box"
            )
        return replace(self, negated=not self.negated)

    @property
    def text(self) -> str:
        """An expression that says the same; read again, it gives the same constraint."""
        if self.kind == NO_TAG:
            test = f"tags {{{quoted(self.payload)}}}"
        elif self.area is not None:
            test = f"within {text_of(self.area)}"
        elif self.kind == RANGES:
            test = _text_of_ranges(name_text(self.attribute), self.intervals)
        else:
            test = (
                f"{name_text(self.attribute)} {'suffix' if self.kind == SUFFIX else 'contains'} {quoted(self.payload)}"
            )
        return f"not {test}" if self.negated else test

    def __str__(self) -> str:
        return self.text


def is_constraint(tag: str) -> bool:
    r"""Whether a tag of a stored row stands for a constraint.

    Examples
    --------
    >>> is_constraint(Constraint.exists("price").tag), is_constraint("price")
    (True, False)
    """
    return is_reserved(tag)


def name_text(attribute: str) -> str:
    """The name of an attribute as an expression has it.

    Examples
    --------
    >>> print(name_text("price"), name_text("list price"), name_text("in"))
    price `list price` `in`
    """
    if _NAME.fullmatch(attribute) and attribute not in KEYWORDS:
        return attribute
    return "`" + attribute.replace("`", "``") + "`"


def _checked(attribute: str) -> str:
    check_name(attribute)
    return attribute


def _keys_of(values: Iterable[Value]) -> list[str]:
    """Their keys in order, each once."""
    values = list(values)
    for value in values:
        # NaN has a key, but equals nothing
        literal(value)
    return sorted({key_of(value) for value in values})


def _type_of(value: Value) -> tuple[Cut, Cut]:
    """The cuts before and after all values that can be compared with this one."""
    if isinstance(value, bool):
        raise InvalidTypeError(f"{literal(value)} has no order: compare it with = or !=")
    literal(value)
    first, end = TEXTS if isinstance(value, str) else NUMBERS
    return Cut("[", first), Cut("[", end)


def _cuts_in(payload: bytes) -> Iterator[Cut]:
    at = 0
    while found := _CUT.match(payload, at):
        at = found.end() + int(found[2])
        yield Cut(cast(Side, found[1].decode()), payload[found.end() : at].decode(errors="replace"))


def _text_of_ranges(name: str, intervals: tuple[Interval, ...]) -> str:
    if not intervals:
        return f'{name} < ""'  # below all texts
    if all(interval.is_point for interval in intervals):
        return _text_of_points(name, "=", "in", [interval.lower.key for interval in intervals])
    (lower, _), (_, upper) = intervals[0], intervals[-1]
    if len(intervals) > 1:
        return _text_of_points(name, "!=", "not in", [left.upper.key for left, _ in pairwise(intervals)])
    if Interval(lower, upper) == _ALL:
        return f"exists({name})"
    if upper.side == "^":
        return f"{name} prefix {_literal(upper)}"
    if lower.key in (TEXTS[0], NUMBERS[0]) and upper.key not in (TEXTS[1], NUMBERS[1]):
        return f"{name} {'<=' if upper.side == ']' else '<'} {_literal(upper)}"
    if upper.key in (TEXTS[1], NUMBERS[1]):
        return f"{name} {'>' if lower.side == ']' else '>='} {_literal(lower)}"
    return f"{name} between {_literal(lower)} and {_literal(upper)}"


def _text_of_points(name: str, one: str, several: str, keys: list[str]) -> str:
    values = [literal(value_of(key)) for key in keys]
    return f"{name} {one} {values[0]}" if len(values) == 1 else f"{name} {several} {{{', '.join(values)}}}"


def _literal(cut: Cut) -> str:
    return literal(value_of(cut.key))
