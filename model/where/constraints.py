"""Tests of an attribute, or of a message's place: their operators, and the tags that encode them in stored sets.

There is one table of operators, from which the language, columns, their kernels, texts and errors are made. A new
operator that holds for values in ranges is a line in it. Two cuts say what a range is: a cut is a side of a key, `[`
just before it, `]` just after it, `^` after all keys that begin with it, and a place, which says by what key it is.

A stored row holds a constraint as a tag that begins with U+0000: `+` or, negated, `-`; the kind; the attribute; U+0000;
and what it is compared with. A message has that tag where the constraint holds.

====  ==================  ==============================================================================================
kind  attribute           what it is compared with
====  ==================  ==============================================================================================
`r`   its name            ranges of values: for each its lower and its upper cut, as the side, the length of the key in
                          bytes, `:` and the key
`s`   its name            the suffix
`c`   its name            the text that is contained; of a phrase, the name and U+0001, and its words, each after a
                          space, and a space
`l`   its name            the pattern of `like` (see `tagmatch.model.where.patterns`)
`m`   its name            the regular expression that is found
`o`   its name            another attribute, or the message's time (see `tagmatch.model.where.comparisons`)
`t`   none                a tag, always negated: the message does not have it
`a`   none                an area, as `tagmatch.model.where.areas` writes it: the message is within it
`p`   none                how many parts must hold, `:`, and the parts in order: the length of each's tag in bytes,
                          `:` and the tag, which is a plain tag that the message has, or encodes a test, or parts
====  ==================  ==============================================================================================

An attribute of a message may have several values: a constraint holds if any of them satisfies it, a negated one if none
does, and so also without a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Literal, NamedTuple, Self, cast

from tagmatch.model.errors import FilterError, InvalidTypeError, InvalidValueError
from tagmatch.model.where.areas import Area, Near, area_in, check, payload_of, text_of
from tagmatch.model.where.automata import automaton_of, needed
from tagmatch.model.where.comparisons import IN_QUOTES, NOW, Comparison, duration_text
from tagmatch.model.where.patterns import like_parts
from tagmatch.model.where.types import Network, Version, ends_of_network, network_between
from tagmatch.model.where.values import (
    NAN,
    RESERVED,
    TEXTS,
    Value,
    check_name,
    checked_text,
    domain_of,
    is_reserved,
    key_of,
    literal,
    quoted,
    value_of,
)

Side = Literal["[", "]", "^"]
#: Kinds of constraints: ranges of values, the end of a text, a part of it, two kinds of patterns, comparisons with
#: another attribute, a tag that must not be there, an area, parts
Kind = Literal["r", "s", "c", "l", "m", "o", "t", "a", "p"]
RANGES: Kind = "r"
SUFFIX: Kind = "s"
CONTAINS: Kind = "c"
LIKE: Kind = "l"
MATCHES: Kind = "m"
COMPARED: Kind = "o"
NO_TAG: Kind = "t"
AREA: Kind = "a"
PARTS: Kind = "p"
#: Kinds that are verified, after what they imply was found
VERIFIED = (LIKE, MATCHES, COMPARED)

#: Where a cut may be: before all values of the operand's type, after them, at the operand, at the second operand
BEGIN, END, OPERAND, SECOND = "bevw"
#: The operator of words in a row, and what follows the name of an attribute in the name of the one with such rows
PHRASE, PHRASES = "phrase", "\x01"
#: How many operands there are, if that is not a number: a list of any length
MANY = -1
#: Comes before the text of a network
NETWORK = "cidr"
#: What operands are: any values that equal something, those that have an order, texts
Takes = Literal["values", "ordered", "texts"]


@dataclass(frozen=True, slots=True)
class Operator:
    """What may stand between an attribute and what it is compared with."""

    name: str  # in expressions, and in the field `op` of a struct
    means: str  # what it holds for, in words: `a` is the attribute, `v` and `w` are the operands
    count: int  # of operands, or `MANY`
    takes: Takes = "values"
    cuts: tuple[tuple[Side, str], ...] = ()  # two, for each operand or for both: sides and places
    is_other: bool = False  # it holds for what lies outside of the cuts, of all values
    kind: Kind = RANGES
    negated: bool = False  # it holds if no value of the attribute satisfies the cuts
    elsewhere: tuple[str, ...] = ()  # what other languages write, in small letters

    @property
    def is_symbol(self) -> bool:
        """Whether its name is no word."""
        return not self.name[0].isalpha()

    @property
    def syntax(self) -> str:
        """How a test of the attribute `a` is written."""
        operand = '"…"' if self.takes == "texts" else "v"
        return self.written("a", [operand, "…"] if self.count == MANY else [operand, "w"][: self.count])

    def written(self, attribute: str, operands: list[str]) -> str:
        """A test as an expression has it."""
        if self.count == 0:
            return f"{self.name}({attribute})"
        if self.count == MANY:
            listed = ", ".join(operands)
            is_network = len(operands) == 1 and listed.startswith(NETWORK + " ")
            return f"{attribute} {self.name} {listed}" if is_network else f"{attribute} {self.name} {{{listed}}}"
        return f"{attribute} {self.name} {' and '.join(operands)}"


def _cuts(written: str) -> tuple[tuple[Side, str], ...]:
    """Two cuts as they are written here: `[v]w` is from `v` to `w`, with both."""
    return tuple((cast(Side, written[at]), written[at + 1]) for at in (0, 2))


_TABLE = (
    Operator("=", "equals `v`", 1, cuts=_cuts("[v]v"), elsewhere=("==", "===", ":")),
    Operator("!=", "does not equal `v`", 1, cuts=_cuts("[v]v"), is_other=True, elsewhere=("<>", "!==")),
    Operator("<", "comes before `v`, of the same type", 1, "ordered", _cuts("[b[v")),
    Operator("<=", "comes before `v`, or equals it", 1, "ordered", _cuts("[b]v"), elsewhere=("=<",)),
    Operator(">", "comes after `v`, of the same type", 1, "ordered", _cuts("]v[e")),
    Operator(">=", "comes after `v`, or equals it", 1, "ordered", _cuts("[v[e"), elsewhere=("=>",)),
    Operator("between", "lies between both, or equals one; `v` is at most `w`", 2, "ordered", _cuts("[v]w")),
    Operator("in", "equals one of them", MANY, cuts=_cuts("[v]v")),
    Operator("not in", "equals none of them", MANY, cuts=_cuts("[v]v"), is_other=True),
    Operator("prefix", "is a text that begins with it", 1, "texts", _cuts("[v^v"), elsewhere=("startswith",)),
    Operator("suffix", "is a text that ends with it", 1, "texts", kind=SUFFIX, elsewhere=("endswith",)),
    Operator("contains", "is a text that contains it", 1, "texts", kind=CONTAINS),
    Operator("like", "is a text as it says: `%` is any text, `_` any character", 1, "texts", kind=LIKE),
    Operator(
        "matches",
        "is a text in which this regular expression is found",
        1,
        "texts",
        kind=MATCHES,
        elsewhere=("regexp", "rlike", "similar", "=~", "~"),
    ),
    Operator("phrase", "has these words, one after the other", 1, "texts", kind=CONTAINS, elsewhere=("match_phrase",)),
    Operator("exists", "is any, even NaN", 0, is_other=True),
    Operator("not exists", "(there is no value)", 0, is_other=True, negated=True),
)
#: By name, in the order in which they are shown
OPERATORS = {operator.name: operator for operator in _TABLE}

# -- constraints -------------------------------------------------------------------------------------------------------

#: How the tags of areas begin
AREA_TAGS = (f"{RESERVED}+{AREA}{RESERVED}", f"{RESERVED}-{AREA}{RESERVED}")
#: Words of the language, which are names of attributes only in backquotes
KEYWORDS = frozenset(
    chain(("and", "false", "or", "tags", "true", "within"), *(name.split() for name in OPERATORS if name[0].isalpha()))
)

# As many conditions as are often shown again and again
_REMEMBERED = 1 << 14

_TAG = re.compile(rf"{RESERVED}([+-])([rsclmotap])([^{RESERVED}]*){RESERVED}(.*)", re.DOTALL)
_CUT = re.compile(rb"([\[\]^])(\d+):")
_LENGTH = re.compile(rb"(\d{1,9}):")
#: Parts of parts that are read, and one more than expressions have
MOST_PARTS_DEEP = 102
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
#: Names that need backquotes: a version without quotes looks like them
VERSION_NAME = re.compile(r"[vV][0-9]+(?:\.[0-9]+)+")
# Patterns of `like` for which there is an operator
_LIKE_ALONE = {"": "=", "…": "=", "%": "prefix", "…%": "prefix", "%…": "suffix", "%…%": "contains"}
#: What ends the bytes of a cut: nothing, the least byte, and one that UTF-8 does not have
_ENDS = {"[": b"", "]": b"\x00", "^": b"\xff"}


class Cut(NamedTuple):
    """A place between the keys of values: just before a key, just after it, or after all that begin with it."""

    side: Side
    key: str  # which need not be that of a value

    @property
    def position(self) -> bytes:
        """The least bytes after the cut: the keys below these lie before the cut, the others after it."""
        return self.key.encode() + _ENDS[self.side]


class Interval(NamedTuple):
    """The values between a lower and an upper cut."""

    lower: Cut
    upper: Cut


#: Around all keys, NaN's too
_ALL = Interval(Cut("[", ""), Cut("[", TEXTS[1]))

# Operators that may have made a text, or ranges, by the kind, and by whether these are others and the first sides
_OF_TEXTS = {own.kind: own for own in OPERATORS.values() if own.kind != RANGES and own.name != PHRASE}
_OF_SIDES: dict[tuple[bool | Side, ...], list[Operator]] = {}
for _own in OPERATORS.values():
    if _own.kind == RANGES and not _own.negated:
        _OF_SIDES.setdefault((_own.is_other, *(side for side, _ in _own.cuts)), []).append(_own)


@dataclass(frozen=True, slots=True, eq=False)
class Constraint:
    r"""A test of one attribute, perhaps negated; equal ones have equal tags.

    Examples
    --------
    >>> constraint = Constraint.of("city", "in", ["Rome", "Milan"])
    >>> constraint.tag
    '\x00+rcity\x00[6:sMilan]6:sMilan[5:sRome]5:sRome'
    >>> Constraint.of_tag(constraint.tag) == constraint
    True
    >>> print(constraint, "/", constraint.negation)
    city in {"Milan", "Rome"} / not city in {"Milan", "Rome"}
    """

    attribute: str  # its name; empty for the kinds `t` and `a`
    kind: Kind
    intervals: tuple[Interval, ...] = ()  # of the kind `r`: disjoint and ascending; none, if no value satisfies it
    payload: str = ""  # of kinds without intervals and area
    negated: bool = False
    area: Area | None = None
    plane: bool = False  # whether the area is one of the plane
    tag: str = field(init=False)  # its unique text in a stored row

    def __post_init__(self) -> None:
        payload = self.payload
        if self.area is not None:
            payload = payload_of(self.area, plane=self.plane)
        elif self.intervals:
            cuts = [f"{side}{len(key.encode())}:{key}" for interval in self.intervals for side, key in interval]
            payload = "".join(cuts)
        sign = "-" if self.negated else "+"
        object.__setattr__(self, "tag", f"{RESERVED}{sign}{self.kind}{self.attribute}{RESERVED}{payload}")

    @classmethod
    def of(cls, attribute: str, operator: str, operands: Sequence[Value] = ()) -> Constraint:
        """The test by an operator of the table; InvalidTypeError and InvalidValueError for operands it does not take.

        Order is within a type; values of other types, and NaN, are `!=`.
        """
        check_name(attribute)
        if attribute.endswith(PHRASES):
            raise InvalidValueError(f"the name of an attribute must not end with U+0001, as {quoted(attribute)} does")
        own = OPERATORS[operator]
        if own.kind == LIKE and isinstance(operands[0], str):
            operator, operands = _simpler(operands[0])
            own = OPERATORS[operator]
        spans = [span_for(own, operand) for operand in operands]
        if operator == PHRASE:
            return cls(attribute + PHRASES, CONTAINS, payload=phrase_text(cast(str, operands[0]).split()))
        if own.kind != RANGES:
            text = cast(str, operands[0])
            if own.kind in (LIKE, MATCHES):
                automaton_of(text, is_like=own.kind == LIKE)
            return cls(attribute, own.kind, payload=text, negated=own.negated)
        intervals = _intervals(own, spans)
        if own.count == 2 and not intervals:
            low, high = map(literal, operands)
            if domain_of(spans[0].low) != domain_of(spans[1].low):
                raise InvalidTypeError(f"{operator} needs two values of one type: {low} and {high} have no order")
            raise InvalidValueError(
                f"no value is between {low} and {high}: the lesser one comes first, as in between {high} and {low}"
            )
        return cls(attribute, RANGES, intervals, negated=own.negated)

    @classmethod
    def compared(cls, left: str, operator: str, right: str, later: int = 0) -> Constraint:
        """A comparison of two attributes, with some nanoseconds added to the right one; errors as `of`."""
        own = Comparison.of(left, operator, right, later)
        return cls(own.left, COMPARED, payload=own.payload)

    @classmethod
    def without_tag(cls, tag: str) -> Constraint:
        """The message does not have the tag."""
        return cls("", NO_TAG, payload=checked_text(tag, "tag"), negated=True)

    @classmethod
    def within(cls, area: Area, *, plane: bool = False) -> Constraint:
        """The message is within an area, of the sphere or of the plane."""
        return cls("", AREA, area=area, plane=plane)

    @classmethod
    def at_least(cls, least: int, tags: Sequence[str]) -> Constraint:
        """The test that `least` of some parts hold: tags of the message or of constraints, some perhaps twice."""
        parts = "".join(f"{len(tag.encode())}:{tag}" for tag in sorted(tags))
        return cls("", PARTS, payload=f"{least}:{parts}")

    @classmethod
    def of_tag(cls, tag: str) -> Constraint:
        """The constraint that has this tag; InvalidValueError if none has it."""
        found = _TAG.fullmatch(tag)
        if found is None:
            raise InvalidValueError(f"no constraint has the tag {quoted(tag)}")
        sign, kind, attribute, payload = found.groups()
        intervals: tuple[Interval, ...] = ()
        area, plane = None, False
        if kind == RANGES:
            cuts = iter(_cuts_in(payload.encode()))
            intervals, payload = tuple(map(Interval, cuts, cuts)), ""
        elif kind == AREA:
            area, plane, payload = area_in(payload), payload[:1].isupper(), ""
        constraint = cls(attribute, cast(Kind, kind), intervals, payload, sign == "-", area, plane)
        if constraint.tag != tag or (kind == AREA and not constraint._is_sound_area):
            raise InvalidValueError(f"no constraint has the tag {quoted(tag)}")
        if kind in VERIFIED and cls._verified(attribute, kind, payload) != replace(constraint, negated=False):
            raise InvalidValueError(f"no constraint has the tag {quoted(tag)}")
        if kind == PARTS and (constraint.negated or attribute or not _are_sound_parts(payload, MOST_PARTS_DEEP)):
            raise InvalidValueError(f"no constraint has the tag {quoted(tag)}")
        return constraint

    @classmethod
    def _verified(cls, attribute: str, kind: str, payload: str) -> Constraint:
        if kind == COMPARED:
            return cls.compared(*Comparison.in_payload(attribute, payload))
        check_name(attribute)
        needed(checked_text(payload), is_like=kind == LIKE)
        if kind == LIKE and _simpler(payload)[0] != "like":
            raise InvalidValueError(f"no pattern of like is {quoted(payload)}")
        return cls(attribute, cast(Kind, kind), payload=payload)

    @property
    def _is_sound_area(self) -> bool:
        return self.area is not None and not self.attribute and not (self.negated and isinstance(self.area, Near))

    def located(self, *, plane: bool) -> Constraint:
        """The same in a geometry, which expressions do not know; FilterError names the field of an area out of it."""
        if self.area is None:
            return self
        try:
            check(self.area, plane=plane)
        except InvalidValueError as error:
            raise FilterError(f"where: {error}") from None
        return replace(self, plane=plane)

    @property
    def parts(self) -> tuple[int, list[str]]:
        """How many parts of the kind `p` must hold, and their tags."""
        return _parts_in(self.payload)

    @property
    def attributes(self) -> list[str]:
        """The attributes whose values it tests; one of them may be the message's time."""
        if self.kind != COMPARED:
            return [self.attribute] if self.attribute else []
        return [self.attribute, Comparison.in_payload(self.attribute, self.payload).right]

    @property
    def negation(self) -> Constraint:
        """What holds where this does not; FilterError for `within near(…)`."""
        if self.kind == PARTS:
            least, tags = self.parts
            return Constraint.at_least(len(tags) - least + 1, list(map(_negated, tags)))
        if isinstance(self.area, Near):
            raise FilterError(
                f"where: `not {self.text}` has no meaning, as it does not say whose position is not to be near: "
                "use `not` with a circle or a box"
            )
        return replace(self, negated=not self.negated)

    @property
    def text(self) -> str:
        """An expression that says the same; read again, if nothing is declared, it gives the same constraint."""
        return self.text_for(frozenset())

    def text_for(self, decimals: frozenset[str]) -> str:
        """The same where these attributes are declared as decimals."""
        if self.kind == NO_TAG:
            test = f"tags {{{quoted(self.payload)}}}"
        elif self.kind == PARTS:
            least, tags = self.parts
            test = f"at least {least} of {{{', '.join(_text_of_part(tag, decimals) for tag in tags)}}}"
        elif self.area is not None:
            test = f"within {text_of(self.area)}"
        elif self.kind == COMPARED:
            test = _text_of_comparison(Comparison.in_payload(self.attribute, self.payload))
        else:
            name = name_text(self.attribute.removesuffix(PHRASES))
            is_decimal = self.attribute in decimals
            tests = [
                own.written(name, [literal(each, is_decimal=is_decimal) for each in given]) for own, given in self.tests
            ]
            test = tests[0] if len(tests) == 1 else f"({' or '.join(tests)})"
        return f"not {test}" if self.negated else test

    @property
    def can_be_written(self) -> bool:
        """Whether there is a text for it, as there is for each that an expression makes."""
        try:
            _ = self.tests
        except InvalidValueError:
            return False
        return True

    @property
    def tests(self) -> list[tuple[Operator, Sequence[Value]]]:
        """Alternative operators and operands: one of them must hold, or none if this is negated."""
        if self.kind == CONTAINS and self.attribute.endswith(PHRASES):
            return [(OPERATORS[PHRASE], [self.payload.strip()])]
        if self.kind != RANGES:
            return [(_OF_TEXTS[self.kind], [self.payload])]
        if not self.intervals:  # only below all texts there is nothing
            return [(OPERATORS["<"], [""])]
        whole = _operation(self.intervals)
        if whole is not None:
            return [whole]
        points = tuple(each for each in self.intervals if each.lower.key == each.upper.key and each.upper.side == "]")
        ranges = [(each,) for each in self.intervals if each not in points]
        tests = [_operation(some) for some in ([points] if points else []) + ranges]
        found = [test for test in tests if test is not None]
        if len(found) < len(tests):
            raise InvalidValueError(f"no constraint has the tag {quoted(self.tag)}")
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constraint) and self.tag == other.tag

    def __hash__(self) -> int:
        return hash(self.tag)

    def __str__(self) -> str:
        return self.text


class Where(str):
    """A condition of a stored set: `explain` and iteration give it together with the set's tags.

    It is the text of the expression, and no tag: it equals no `str` but another `Where`.

    Attributes
    ----------
    path : str, optional
        Of what `explain` gives, how the set was reached: by a `"trie"` of what messages rarely have, or by `"lines"` of
        bits, in which sets are that ask for what most messages have.

    Examples
    --------
    >>> Where("price < 10")
    Where('price < 10')
    >>> Where("price < 10") == "price < 10"
    False
    >>> print(Where("price < 10"))
    price < 10
    """

    __slots__ = ("path",)
    path: str | None

    def __new__(cls, text: str, path: str | None = None) -> Self:
        """A condition, and how its set was reached."""
        where = super().__new__(cls, text)
        where.path = path
        return where

    @classmethod
    def of_tag(cls, tag: str, decimals: frozenset[str] = frozenset()) -> Self:
        """The constraint with this tag in a stored row of an index that declares these attributes as decimals.

        Returns
        -------
        Where
            Its expression.

        Raises
        ------
        ValueError
            No constraint has this tag.
        """
        return cls(_text_of_tag(tag, decimals))

    def __repr__(self) -> str:
        return f"Where({str.__repr__(self)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Where) and str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((Where, str.__hash__(self)))


def _simpler(pattern: str) -> tuple[str, list[Value]]:
    """The operator that says the same as `like` with a pattern, and its operand."""
    parts = like_parts(pattern)
    signs = "".join(text if is_sign else "…" for is_sign, text in parts)
    if signs not in _LIKE_ALONE:
        return "like", [pattern]
    return _LIKE_ALONE[signs], ["".join(text for is_sign, text in parts if not is_sign)]


def _text_of_comparison(own: Comparison) -> str:
    left, right = (NOW if name == NOW else name_text(name) for name in (own.left, own.right))
    later = f" {'+' if own.later > 0 else '-'} {duration_text(abs(own.later))}" if own.later else ""
    if own.operator in IN_QUOTES and own.right != NOW and not later:
        right = in_backquotes(own.right)
    return f"{left} {own.operator} {right}{later}"


def phrase_text(words: Sequence[str]) -> str:
    """Words in a row, as a part of such a text: they have no spaces."""
    return f" {' '.join(words)} "


def _negated(tag: str) -> str:
    """The tag of a part that holds where the one with this tag does not."""
    if not is_reserved(tag):
        return Constraint.without_tag(tag).tag
    constraint = Constraint.of_tag(tag)
    return constraint.payload if constraint.kind == NO_TAG else constraint.negation.tag


def _text_of_part(tag: str, decimals: frozenset[str]) -> str:
    """A part as an expression has it, within braces or parentheses."""
    if not is_reserved(tag):
        return f"tags {{{quoted(tag)}}}"
    constraint = Constraint.of_tag(tag)
    if constraint.kind == PARTS:
        least, tags = constraint.parts
        if least in (1, len(tags)):
            joint = " or " if least == 1 else " and "
            return f"({joint.join(_text_of_part(each, decimals) for each in tags)})"
    return constraint.text_for(decimals)


def _parts_in(payload: str) -> tuple[int, list[str]]:
    """How many parts must hold, and their tags; InvalidValueError."""
    data, tags = payload.encode(), []
    found = _LENGTH.match(data)
    least, at = (0, 0) if found is None else (int(found[1]), found.end())
    while found and at < len(data):
        found = _LENGTH.match(data, at)
        if found:
            at = found.end() + int(found[1])
            tags.append(data[found.end() : at].decode(errors="replace"))
    if found is None:
        raise InvalidValueError(f"no constraint has the parts {quoted(payload)}")
    return least, tags


def _are_sound_parts(payload: str, deep: int) -> bool:
    """Whether these are parts that an expression may have."""
    try:
        least, tags = _parts_in(payload)
        if not deep or not 0 < least <= len(tags) or Constraint.at_least(least, tags).payload != payload:
            return False
        for tag in filter(is_reserved, tags):
            found = _TAG.fullmatch(tag)
            if found is None or found[2] == AREA:
                return False
            if found[2] == PARTS:
                if found[1] == "-" or found[3] or not _are_sound_parts(found[4], deep - 1):
                    return False
            else:
                Constraint.of_tag(tag)
    except InvalidValueError:
        return False
    return True


@lru_cache(_REMEMBERED)
def _text_of_tag(tag: str, decimals: frozenset[str]) -> str:
    return Constraint.of_tag(tag).text_for(decimals)


def name_text(attribute: str) -> str:
    """The name of an attribute as an expression has it.

    Examples
    --------
    >>> print(name_text("price"), name_text("list price"), name_text("in"))
    price `list price` `in`
    """
    if _NAME.fullmatch(attribute) and attribute not in KEYWORDS and not VERSION_NAME.fullmatch(attribute):
        return attribute
    return in_backquotes(attribute)


def in_backquotes(attribute: str) -> str:
    """The name of an attribute where a plain word would be taken for something else."""
    return "`" + attribute.replace("`", "``") + "`"


class Span(NamedTuple):
    """The keys of the first and the last value that an operand means."""

    low: str
    high: str


def span_for(operator: Operator, value: Value) -> Span:
    """The keys of an operand; InvalidTypeError, InvalidValueError if the operator does not take it."""
    if isinstance(value, Network):
        if operator.count != MANY:
            raise InvalidTypeError(f"{operator.name} needs a value, not a network, which is for in {literal(value)}")
        return Span(*ends_of_network(value))
    if operator.takes == "texts" and (not isinstance(value, str) or isinstance(value, Version)):
        raise InvalidTypeError(f"{operator.name} needs a text, not {literal(value)}")
    if operator.takes == "ordered" and isinstance(value, bool):
        raise InvalidTypeError(f"{literal(value)} has no order: compare it with = or !=")
    key = key_of(value)
    if key == NAN:
        raise InvalidValueError("NaN cannot be written in an expression: it equals nothing")
    return Span(key, key)


def _intervals(operator: Operator, spans: Sequence[Span]) -> tuple[Interval, ...]:
    """The ranges of values for which an operator holds with these operands, which it takes."""
    if operator.count == 2 and domain_of(spans[0].low) != domain_of(spans[1].low):
        return ()
    cuts: list[Cut] = []
    if operator.count == MANY:  # of those that begin alike, the widest first
        for low, high in sorted(sorted(set(spans), key=itemgetter(1), reverse=True), key=itemgetter(0)):
            # An operand may be within the range of the one before
            if not cuts or low > cuts[-1].key:
                cuts += Cut("[", low), Cut("]", high)
    elif spans:
        cuts += _cuts_of(operator, spans[0], spans[-1].low)
    if operator.is_other:
        cuts = [_ALL.lower, *cuts, _ALL.upper]
    elif len(cuts) == 2 and cuts[0].position >= cuts[1].position:
        return ()
    return tuple(map(Interval, cuts[::2], cuts[1::2]))


def _cuts_of(operator: Operator, span: Span, second: str) -> list[Cut]:
    """The two cuts of one operand, or of both, by their keys."""
    begin, end = domain_of(span.low)
    places = {BEGIN: begin, END: end, SECOND: second}
    return [
        Cut(side, own if place == OPERAND else places[place])
        for (side, place), own in zip(operator.cuts, span, strict=False)
    ]


def _operation(intervals: Sequence[Interval]) -> tuple[Operator, Sequence[Value]] | None:
    """The first operator of the table that makes these ranges, and the operands; `None` if no operator does."""
    cuts = [cut for interval in intervals for cut in interval]
    is_other = (cuts[0], cuts[-1]) == _ALL
    cuts = cuts[1:-1] if is_other else cuts
    for operator in _OF_SIDES.get((is_other, *[cut.side for cut in cuts[:2]]), ()):
        operands = _operands(operator, cuts)
        if operands is not None:
            return operator, operands
    return None


def _operands(operator: Operator, cuts: list[Cut]) -> Sequence[Value] | None:
    """The operands for which an operator makes these cuts; `None` if it makes no such cuts."""
    if operator.count != MANY and len(cuts) > 2:
        return None
    operands: list[Value] = []
    for lower, upper in zip(cuts[::2], cuts[1::2], strict=True):
        span = (lower.key, upper.key)
        network = network_between(*span) if operator.count != 1 and lower.key != upper.key else None
        if network is not None:
            if operator.count != MANY:
                return None
            operands.append(network)
            continue
        own = {place: key for (_, place), key in zip(operator.cuts, span, strict=True)}
        if _cuts_of(operator, Span(own[OPERAND], own[OPERAND]), own.get(SECOND, "")) != [lower, upper]:
            return None
        try:
            operands += [value_of(own[place]) for place in (OPERAND, SECOND) if place in own]
        except InvalidValueError:
            return None
    return operands


def _cuts_in(payload: bytes) -> Iterator[Cut]:
    at = 0
    while found := _CUT.match(payload, at):
        at = found.end() + int(found[2])
        yield Cut(cast(Side, found[1].decode()), payload[found.end() : at].decode(errors="replace"))
