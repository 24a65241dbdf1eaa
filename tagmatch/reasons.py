"""Why one key is an answer to a message, or is not: its sets as a tree of tests, each with what the message has.

The tests are evaluated here, in Python, as kernels do it for all sets; only places are looked at by kernels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise, product
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from tagmatch.model.columns import tag_list
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.input.places import LOCATION, area_has, checked_locations
from tagmatch.model.kernels.sphere import EARTH, points
from tagmatch.model.where.areas import Area, Box, Circle, Near, Place, text_of
from tagmatch.model.where.automata import finds
from tagmatch.model.where.comparisons import NOW, Comparison
from tagmatch.model.where.constraints import (
    AREA,
    COMPARED,
    LIKE,
    MATCHES,
    NO_TAG,
    PARTS,
    PHRASES,
    RANGES,
    SUFFIX,
    Constraint,
    Where,
    name_text,
)
from tagmatch.model.where.declared import SEVERAL, Declared, Kind, value_in
from tagmatch.model.where.language import rows_of
from tagmatch.model.where.outlines import Corridor, Outline, Polygon
from tagmatch.model.where.values import NAN, TEXTS, is_reserved, key_of, literal, quoted, type_of, value_of

#: As what a text is read for each type that `type_of` names
_KINDS: dict[str, Kind] = {"number": "float", "bool": "bool", "time": "time", "version": "version", "IP address": "ip"}

# In the text of a test: how a number begins that no double is, and a number that is read as a double
_EXACT, _DOUBLE = 'decimal "', re.compile(r"[ {]-?\d+\.\d")

#: Where a client, or a message, is
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Test:
    """What a set asks for: a tag, a condition on an attribute, an area, or that the client is within one.

    Attributes
    ----------
    kind : {"tag", "condition", "area", "client"}
    test : str
        The tag, or the test as `where` has it.
    holds : bool
    has : str or None
        What the message, or the client, has there: the attribute's values, or the place; `None` if it has nothing.
    why : str or None
        Why the test does not hold: a missing or ill-typed value, or the distance. `None` if it holds.
    """

    kind: Literal["tag", "condition", "area", "client"]
    test: str
    holds: bool
    has: str | None = None
    why: str | None = None

    def __str__(self) -> str:
        shown = quoted(self.test) if self.kind == "tag" else self.test
        return f"holds  {shown}" if self.holds else f"fails  {shown}: {self.why}"


@dataclass(frozen=True, slots=True)
class ExplainedSet:
    """A set that has the key: it is an answer if all tests of the set hold.

    Attributes
    ----------
    holds : bool
    tests : tuple of Test
        Tags first, each kind in the order of its text.
    """

    holds: bool
    tests: tuple[Test, ...]


@dataclass(frozen=True, slots=True)
class Reasons:
    """What `TagMatch.explain` gives for one key; `str` of it is a tree as indented text.

    Attributes
    ----------
    key : int or str
    matches : bool
        Whether the key is an answer: an alternative holds.
    alternatives : tuple of ExplainedSet
        The sets that have the key, those with the fewest tests that fail first; none if the key is not stored.
    """

    key: Any
    matches: bool
    alternatives: tuple[ExplainedSet, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same as dictionaries, lists, texts and bools, which JSON has."""
        return asdict(self, dict_factory=_listed)

    @classmethod
    def of_dict(cls, found: Mapping[str, Any]) -> Self:
        """What `to_dict` has made."""
        alternatives = [
            ExplainedSet(each["holds"], tuple(Test(**test) for test in each["tests"])) for each in found["alternatives"]
        ]
        return cls(found["key"], found["matches"], tuple(alternatives))

    def __str__(self) -> str:
        count, holding = len(self.alternatives), sum(each.holds for each in self.alternatives)
        if not count:
            return (
                f"key {self.key!r} does not match: no set has it, as after delete() or when it has expired, or only= "
                "leaves it out; a staged change counts after consolidate()"
            )
        sets = "its set" if count == 1 else f"{holding} of its {count} sets"
        lines = [f"key {self.key!r} {'matches' if self.matches else 'does not match'}: {_verb(sets, holding)}"]
        for number, each in enumerate(self.alternatives, 1):
            failing = sum(not test.holds for test in each.tests)
            said = "holds" if each.holds else f"fails: {failing} of {len(each.tests)} tests {_fail(failing)}"
            lines.append(f"  set {number} {said}")
            lines += [f"    {test}" for test in each.tests] or ["    (it asks for nothing)"]
        return "\n".join(lines)


def _listed(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in pairs}


def _verb(sets: str, holding: int) -> str:
    if sets == "its set":
        return f"{sets} {'holds' if holding else 'fails'}"
    return f"{sets} {'holds' if holding == 1 else 'hold'}"


def _fail(count: int) -> str:
    return "fails" if count == 1 else "fail"


class Asked(NamedTuple):
    """A message, and where the client is whose key is asked for."""

    tags: frozenset[str]
    attributes: Mapping[str, Any]
    place: Place
    client: Point | None
    plane: bool
    declared: Declared

    @classmethod
    def of(
        cls,
        tags: Iterable[str],
        attributes: Mapping[str, Any] | None,
        place: Place,
        client: Point | None,
        *,
        plane: bool,
        declared: Declared,
    ) -> Self:
        """A message as callers give it, whose values and places are sound."""
        points = checked_locations(place.location, plane=plane)
        return cls(frozenset(tag_list(tags)), attributes or {}, Place(points, place.within), client, plane, declared)

    def reasons(self, key: Any, sets: Iterable[frozenset[str]]) -> Reasons:
        """Why the key, which these sets have, is an answer or is not."""
        found = sorted(map(self._alternative, sets), key=_failing)
        return Reasons(key, any(each.holds for each in found), tuple(found))

    def _alternative(self, stored: frozenset[str]) -> ExplainedSet:
        plain = sorted(tag for tag in stored if not isinstance(tag, Where))
        tests = [self._tag(tag) for tag in plain]
        conditions = sorted(tag for tag in stored if isinstance(tag, Where))
        constraints = [each for text in conditions for row in rows_of(text) for each in row.constraints]
        tests += [self._condition(each) for each in constraints]
        if self.place.within is not None:
            tests.append(self._client())
        return ExplainedSet(all(test.holds for test in tests), tuple(tests))

    def _tag(self, tag: str) -> Test:
        holds = tag in self.tags
        return Test("tag", tag, holds, quoted(tag) if holds else None, None if holds else "the message lacks this tag")

    def _condition(self, constraint: Constraint) -> Test:
        if constraint.kind == NO_TAG:
            holds = constraint.payload not in self.tags
            why = None if holds else "the message has this tag"
            return Test("condition", constraint.text, holds, None if holds else quoted(constraint.payload), why)
        if constraint.kind == AREA:
            return self._area(constraint)
        if constraint.kind == PARTS:
            return self._parts(constraint)
        if constraint.kind == COMPARED:
            return self._compared(constraint)
        keys = self._keys(constraint.attribute)
        holds = any(_satisfies(constraint, key) for key in keys) != constraint.negated
        is_decimal = constraint.attribute in self.declared.decimals
        has = ", ".join(sorted(_shown(key, is_decimal=is_decimal) for key in keys)) or None
        text = constraint.text_for(self.declared.decimals)
        return Test("condition", text, holds, has, None if holds else self._why(constraint, keys, has))

    def _why(self, constraint: Constraint, keys: list[str], has: str | None) -> str:
        """Why a test of these values does not hold."""
        attribute = constraint.attribute.removesuffix(PHRASES)
        name = name_text(attribute)
        if not keys:
            return f"the message has no attribute {name}"
        wanted, given = _types_of(constraint), {type_of(key) for key in keys}
        if constraint.negated or not wanted or not given.isdisjoint(wanted):
            if self.declared[attribute] is None and _EXACT in f"{has}" and _DOUBLE.search(constraint.text):
                has = f'{has}; numbers of the test are doubles: write them as in {_EXACT}0.10", or declare {name}'
            return f"{name} is {has}"
        types = f"of type {' and '.join(sorted(given))}; the test is of type {' and '.join(wanted)}"
        return f"{name} is {has}, {types}{self._declared_as(attribute) or _remedy(constraint, wanted, keys)}"

    def _declared_as(self, attribute: str) -> str:
        """As what an attribute is declared, which values in messages must be; nothing if it is not declared."""
        own = self.declared[attribute]
        return "" if own is None else f", as {name_text(attribute)} is declared: {own.attribute.type}"

    def _keys(self, attribute: str) -> list[str]:
        """The keys of the values that an attribute has; the message's time is now, if it has no other one."""
        given = self.attributes.get(attribute)
        keys = [key_of(each) for each in (given if isinstance(given, SEVERAL) else [given]) if each is not None]
        return [key_of(datetime.now(UTC))] if attribute == NOW and not keys else keys

    def _compared(self, constraint: Constraint) -> Test:
        own = Comparison.in_payload(constraint.attribute, constraint.payload)
        sides = {name: self._keys(name) for name in (own.left, own.right)}
        pairs = product(*(sides[name] for name in (own.left, own.right)))
        holds = any(own.holds(*pair) for pair in pairs) != constraint.negated
        names = {name: NOW if name == NOW else name_text(name) for name in sides}
        there = [f"{names[name]} is {', '.join(sorted(map(_shown, keys)))}" for name, keys in sides.items() if keys]
        missing = [f"the message has no attribute {names[name]}" for name, keys in sides.items() if not keys]
        why = ", ".join(missing or there)
        left, right = ({type_of(key) for key in sides[name]} for name in (own.left, own.right))
        for name, given, wanted in ((own.left, left, right), (own.right, right, left)):
            if wanted == {"time"} and given and "time" not in given:
                advice = self._declared_as(name) or _advice(name, sides[name], wanted)
                why += f"; {names[name]} is of type {' and '.join(sorted(given))}{advice}"
        return Test("condition", constraint.text, holds, ", ".join(there) or None, None if holds else why)

    def _parts(self, constraint: Constraint) -> Test:
        least, tags = constraint.parts
        parts = [self._condition(Constraint.of_tag(tag)) if is_reserved(tag) else self._tag(tag) for tag in tags]
        held = [quoted(part.test) if part.kind == "tag" else part.test for part in parts if part.holds]
        why = f"{len(held)} of {len(parts)} hold, not {least}"
        holds = len(held) >= least
        text = constraint.text_for(self.declared.decimals)
        return Test("condition", text, holds, ", ".join(held) or None, None if holds else why)

    def _area(self, constraint: Constraint) -> Test:
        area: Any = constraint.area
        points: Any = self.place.location
        has = ", ".join(map(_place_text, points)) or None
        found = [self._near(area, at) if isinstance(area, Near) else self._at(area, at) for at in points]
        if points:
            holds, why = any(each for each, _ in found), "; ".join(each for _, each in found)
        else:
            holds, why = isinstance(area, Near) and self.place.within is not None, "the message has no location"
            if any(name.partition(".")[0] == LOCATION for name in self.attributes):
                why += ", only an attribute of this name: give location next to the attributes"
        if constraint.negated:
            holds, why = not holds, "the message is within"
        return Test("area", constraint.text, holds, has, None if holds else why)

    def _at(self, area: Any, at: Point) -> tuple[bool, str]:
        """Whether the area has a place of the message, and why it has not."""
        return _is_in(area, at, plane=self.plane), _outside(area, at, "the message", plane=self.plane)

    def _near(self, area: Near, at: Point) -> tuple[bool, str]:
        """Whether the client is near a place of the message, and why it is not."""
        if self.client is None:
            return False, "the client has no position"
        around = Circle(*self.client, area.metres)
        return _is_in(around, at, plane=self.plane), _outside(around, at, "the client", plane=self.plane)

    def _client(self) -> Test:
        area: Any = self.place.within
        if self.client is None:
            return Test("client", f"within {text_of(area)}", False, None, "the client has no position")
        holds = _is_in(area, self.client, plane=self.plane)
        why = None if holds else _outside(area, self.client, "the client", plane=self.plane)
        return Test("client", f"within {text_of(area)}", holds, _place_text(self.client), why)


def _failing(alternative: ExplainedSet) -> int:
    return sum(not test.holds for test in alternative.tests)


# -- attributes --------------------------------------------------------------------------------------------------------


def _satisfies(constraint: Constraint, key: str) -> bool:
    """Whether the value with this key satisfies the test, without its sign."""
    if constraint.kind == RANGES:
        at = key.encode()
        return any(lower.position <= at < upper.position for lower, upper in constraint.intervals)
    if key[0] != TEXTS[0]:
        return False
    text = key[1:]
    if constraint.kind in (LIKE, MATCHES):
        return finds(constraint.payload, text, is_like=constraint.kind == LIKE)
    return text.endswith(constraint.payload) if constraint.kind == SUFFIX else constraint.payload in text


def _remedy(constraint: Constraint, wanted: list[str], keys: list[str]) -> str:
    """The advice if there is a text instead of a value of another type, in the test or in the message; else nothing."""
    name = name_text(constraint.attribute)
    if wanted == ["text"] and constraint.kind == RANGES:
        is_prefix = any(lower.key == upper.key and upper.side == "^" for lower, upper in constraint.intervals)
        texts = [] if is_prefix else [cut.key for interval in constraint.intervals for cut in interval]
        meant = _meant(texts, {type_of(key) for key in keys})
        return f" (write {meant} in the test, or declare {name})" if meant else ""
    return _advice(constraint.attribute, keys, set(wanted))


def _advice(attribute: str, keys: list[str], wanted: set[str]) -> str:
    """How a message has a value of the wanted type instead of these; of a time, why the first is not read as one."""
    if meant := _meant(keys, wanted):
        return f" (write {meant} in the message, or declare {name_text(attribute)})"
    try:
        if wanted == {"time"}:
            value_in("time", keys[0][1:] if keys[0][:1] == TEXTS[0] else _shown(keys[0]))
    except InvalidValueError as error:
        return f" ({error})"
    return ""


def _meant(keys: list[str], types: set[str]) -> str:
    """The first of the texts, read as a value of the one type and written as in expressions; else nothing."""
    texts = [key[1:] for key in keys if key[:1] == TEXTS[0] and len(key) > 1]
    if len(types) != 1 or not texts:
        return ""
    (kind,) = types
    try:
        return _shown(key_of(value_in(_KINDS[kind], texts[0])))
    except (KeyError, InvalidValueError):
        return ""


def _types_of(constraint: Constraint) -> list[str]:
    """The types of values that can satisfy a test; none if all can."""
    if constraint.kind != RANGES:
        return ["text"]
    lowest = [interval.lower.key for interval in constraint.intervals]
    return sorted(set(map(type_of, lowest))) if all(lowest) else []


def _shown(key: str, *, is_decimal: bool = False) -> str:
    return "NaN" if key == NAN else literal(value_of(key), is_decimal=is_decimal)


# -- places ------------------------------------------------------------------------------------------------------------


def _is_in(area: Area, at: Point, *, plane: bool) -> bool:
    return bool(area_has(area, np.array([at[0]]), np.array([at[1]]), plane=plane)[0])


def _outside(area: Circle | Box | Outline, at: Point, who: str, *, plane: bool) -> str:
    """How far from an area a place is that it does not have."""
    if isinstance(area, Polygon | Corridor):
        away, unit = _from_lines(area, at, plane=plane), "" if plane else " m"
        if isinstance(area, Polygon):
            return f"{who} is outside the polygon, {away:,.0f}{unit} from its border"
        return f"{who} is {away:,.0f}{unit} from the line, {max(away - area.metres, 0):,.0f}{unit} too far"
    if isinstance(area, Circle):
        away = _distance((area.lon, area.lat), at, plane=plane)
        unit = "" if plane else " m"
        return f"{who} is {away:,.0f}{unit} away, {max(away - area.metres, 0):,.0f}{unit} too far"
    names = ("x", "y") if plane else ("lon", "lat")
    across = area.west <= at[0] <= area.east if area.west <= area.east else not area.east < at[0] < area.west
    sides = [(names[0], at[0], area.west, area.east)] if not across else []
    sides += [(names[1], at[1], area.south, area.north)] if not area.south <= at[1] <= area.north else []
    return f"{who} is outside: " + ", ".join(
        f"{name} is {value:g}, not from {least:g} to {most:g}" for name, value, least, most in sides
    )


def _distance(one: Point, other: Point, *, plane: bool) -> float:
    """Metres along the ground, or units of the plane."""
    if plane:
        return math.hypot(other[0] - one[0], other[1] - one[1])
    (lon, lat), (other_lon, other_lat) = (map(math.radians, each) for each in (one, other))
    across = math.cos(lat) * math.cos(other_lat) * math.sin((other_lon - lon) / 2) ** 2
    return 2 * EARTH * math.asin(math.sqrt(min(1.0, math.sin((other_lat - lat) / 2) ** 2 + across)))


def _from_lines(area: Outline, at: Point, *, plane: bool) -> float:
    """How far a place is from the edges of an outline: metres along the ground, or units of the plane."""
    parts = area.parts if isinstance(area, Polygon) else [area.lines]
    lines = [line for part in parts for line in part]
    ends = np.array([edge for line in lines for edge in pairwise(line)]).reshape(-1, 4).T
    zero = np.zeros(ends.shape[1])
    one, other = (
        np.stack((x, y, zero) if plane else points(x, y, plane=False), axis=1)
        for x, y in ((ends[0].copy(), ends[1].copy()), (ends[2].copy(), ends[3].copy()))
    )
    here = np.array([*at, 0.0] if plane else [each[0] for each in points(*np.array(at)[:, None], plane=False)])
    if plane:
        along = ((here - one) * (other - one)).sum(axis=1) / ((other - one) ** 2).sum(axis=1)
        nearest = one + np.clip(along, 0, 1)[:, None] * (other - one)
        return float(np.sqrt(((here - nearest) ** 2).sum(axis=1)).min())
    around = np.cross(one, other)
    between = ((np.cross(around, one) @ here) >= 0) & ((np.cross(other, around) @ here) >= 0)
    aside = np.arcsin(np.clip(np.abs(around @ here) / np.sqrt((around**2).sum(axis=1)), 0, 1))
    from_ends = np.minimum(*(2 * np.arcsin(np.sqrt(((here - end) ** 2).sum(axis=1)) / 2) for end in (one, other)))
    return float(EARTH * np.where(between, aside, from_ends).min())


def _place_text(at: Point) -> str:
    return f"{at[0]:g}, {at[1]:g}"
