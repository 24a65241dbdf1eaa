"""The right answers, from plain Python alone; shares nothing with the library, so none of its mistakes either.

Subscriptions are in a dict, and each message is held against all of them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import product
from typing import Any, Literal, NamedTuple

from support.distances import Around, Place, surely_has

Tree = Any
Value = Any
Attributes = Mapping[str, Any]
#: Tags, and conditions: strings that have a `tree`
Row = frozenset[str]
Key = Any  # an integer, or a string
Time = datetime | None
NONE: Attributes = {}


# -- expressions as trees, and what they mean to Python's own values ---------------------------------------------------


class Operator(NamedTuple):
    """The meaning of a test for one value, its number of operands, and their types."""

    holds: Callable[[Any, list[Any]], bool]  # gets the operands that are of the value's type
    operands: Literal["none", "one", "two", "list"]
    takes: Literal["values", "ordered", "texts", "like", "expressions"] = "values"


def _any(test: Callable[[Any, Any], bool]) -> Callable[[Any, list[Any]], bool]:
    return lambda value, operands: any(test(value, operand) for operand in operands)


def _is(value: Any, operand: Any) -> bool:
    """Whether it is the operand, or in the network that this is."""
    return operand.first <= value <= operand.last if isinstance(operand, Ends) else value == operand


def _no(value: Any, operands: list[Any]) -> bool:
    return not any(_is(value, operand) for operand in operands)


def _finds(pattern: re.Pattern[str], text: bytes) -> bool:
    return pattern.search(text.decode()) is not None


@lru_cache
def _of_like(pattern: bytes) -> re.Pattern[str]:
    found = re.findall(r"\\(.)|([%_])|(.)", pattern.decode(), re.DOTALL)
    parts = [{"%": ".*", "_": "."}.get(sign) or re.escape(escaped or plain) for escaped, sign, plain in found]
    return re.compile(rf"\A{''.join(parts)}\Z", re.DOTALL)


@lru_cache
def _of_expression(pattern: bytes) -> re.Pattern[str]:
    """As Python has it: patterns of tests mean the same there, except for the end of the text."""
    text = pattern.decode()
    own = text if "(?m)" in text else text.replace("$", r"\Z")
    return re.compile(own.replace(r"\z", r"\Z"), 0 if "(?i)" in text else re.ASCII)


#: All operators, in the order in which messages name them; texts are compared as bytes
OPERATORS: Mapping[str, Operator] = {
    "=": Operator(_any(operator.eq), "one"), "!=": Operator(_no, "one"),
    "<": Operator(_any(operator.lt), "one", "ordered"), "<=": Operator(_any(operator.le), "one", "ordered"),
    ">": Operator(_any(operator.gt), "one", "ordered"), ">=": Operator(_any(operator.ge), "one", "ordered"),
    "between": Operator(lambda value, ends: len(ends) == 2 and ends[0] <= value <= ends[1], "two", "ordered"),
    "in": Operator(_any(_is), "list"), "not in": Operator(_no, "list"),
    "prefix": Operator(_any(bytes.startswith), "one", "texts"),
    "suffix": Operator(_any(bytes.endswith), "one", "texts"),
    "contains": Operator(_any(operator.contains), "one", "texts"),
    "like": Operator(_any(lambda text, pattern: _finds(_of_like(pattern), text)), "one", "like"),
    "matches": Operator(_any(lambda text, pattern: _finds(_of_expression(pattern), text)), "one", "expressions"),
    "exists": Operator(lambda *_: True, "none"),
}  # fmt: skip


@dataclass(frozen=True)
class Test:
    """`operator` is as in the language; there is one operand, or there are two or several, or none."""

    __test__ = False

    attribute: str
    operator: str
    operands: tuple[Value, ...]


@dataclass(frozen=True)
class Compared:
    """Both sides are attributes, and `now()` is the message's time; the right one is `later`."""

    left: str
    operator: str
    right: str
    later: timedelta = timedelta()


@dataclass(frozen=True)
class Tags:
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Within:
    """In a circle or a box, or so near to the client."""

    area: Any


@dataclass(frozen=True)
class Not:
    part: Tree


@dataclass(frozen=True)
class And:
    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class Or:
    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class AtLeast:
    least: int
    parts: tuple[Tree, ...]


def evaluate(tree: Tree, tags: Collection[str], attributes: Attributes, there: Any = None) -> bool:
    """Whether a message satisfies the expression; `there` says which areas hold."""
    match tree:
        case And(parts):
            return all(evaluate(part, tags, attributes, there) for part in parts)
        case Or(parts):
            return any(evaluate(part, tags, attributes, there) for part in parts)
        case AtLeast(least, parts):
            return sum(evaluate(part, tags, attributes, there) for part in parts) >= least
        case Not(part):
            return not evaluate(part, tags, attributes, there)
        case Tags(wanted):
            return all(tag in tags for tag in wanted)
        case Within(area):
            held: bool = there.holds(area)
            return held
        case Test(attribute, name, operands):
            return any(_passes(value, name, operands) for value in values_of(attributes, attribute))
        case Compared(left, name, right, later):
            pairs = product(values_of(attributes, left), values_of(attributes, right))
            return any(_relates(value, name, other, later) for value, other in pairs)
    raise AssertionError(tree)


def values_of(attributes: Attributes, name: str) -> list[Value]:
    """The values of an attribute, none, one or several."""
    given = attributes.get(name)
    several = given if isinstance(given, list | tuple | set | frozenset) else [given]
    return [value for value in several if value is not None]


def _relates(value: Value, name: str, other: Value, later: timedelta) -> bool:
    """Whether a value does to another one; only times have a distance, and bools have no order."""
    if later:
        if type_of(other) != "time" or type_of(value) != "time":
            return False
        return OPERATORS[name].holds(ordered(value), [ordered(other) + later])
    if type_of(value) == "bool" and OPERATORS[name].takes == "ordered":
        return False
    return _passes(value, name, (other,) if other == other else ())


def _passes(value: Value, name: str, operands: tuple[Value, ...]) -> bool:
    """Whether one value does; a value of another type than an operand is neither equal to it nor in order with it."""
    # NaN is like nothing; with it, Python raises an error for a decimal
    alike = [ordered(other) for other in operands if value == value and type_of(other) == type_of(value)]
    return OPERATORS[name].holds(ordered(value), alike)


def type_of(value: Value) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, date):  # times are dates to Python
        return "time"
    if hasattr(value, "max_prefixlen"):
        return "ip"
    if isinstance(value, str):
        return "version" if type(value).__name__ == "Version" else "text"
    return "number"


def ordered(value: Value) -> Any:
    """Python compares integers, floats and decimals exactly, but texts by characters."""
    match type_of(value):
        case "text":
            return value.encode()
        case "time":
            # Python compares times of one zone without it
            at = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day, tzinfo=UTC)
            return at - datetime(1970, 1, 1, tzinfo=UTC)
        case "version":
            return _precedence(value)
        case "ip" if hasattr(value, "prefixlen"):
            return Ends(ordered(value[0]), ordered(value[-1]))
        case "ip":
            return value.version, int(value)
    return value


class Ends(NamedTuple):
    """The first and the last address of a network."""

    first: Any
    last: Any


def _precedence(version: str) -> Any:
    """Of a semantic version (semver.org, 11)."""
    numbers, _, before = version.partition("+")[0].partition("-")
    three = [*map(int, numbers.split(".")), *[0] * 10][:10]
    fields = [(0, int(each), "") if each.isdigit() else (1, 0, each) for each in before.split(".")] if before else []
    return three, not fields, fields


# -- an index ----------------------------------------------------------------------------------------------------------


class There(NamedTuple):
    """The place of a message, the area of the clients that it is for, and the place of one of these."""

    location: Place | list[Place] | None = None  # one place, or several
    within: Any = None
    client: Place | None = None
    plane: bool = False

    def holds(self, area: Any) -> bool:
        """Whether the message is in an area; one around the client may be for all clients within another."""
        several: Any = self.location if isinstance(self.location, list) else [self.location]
        places = [place for place in several if place is not None]
        if hasattr(area, "west") or hasattr(area, "lon"):
            return any(surely_has(area, place, plane=self.plane) for place in places)
        if not places or self.client is None:
            return not places and self.within is not None
        return any(surely_has(Around(*self.client, area.metres), place, plane=self.plane) for place in places)


NOWHERE = There()


def is_condition(tag: str) -> bool:
    return hasattr(tag, "tree")


@lru_cache(maxsize=100_000)
def _tags(row: Row) -> Row:
    return frozenset(tag for tag in row if not is_condition(tag))


def holds_for(row: Row, tags: Collection[str], attributes: Attributes, there: There = NOWHERE) -> bool:
    """Whether a message has all tags of a row, and all of its conditions hold."""
    plain = _tags(row)
    return plain.issubset(tags) and all(evaluate(each.tree, tags, attributes, there) for each in row - plain)


class Put(NamedTuple):
    """What a key was put with."""

    given: Any  # tags, expression and area, if there was an expression
    data: Mapping[str, Any]
    rows: frozenset[Row] = frozenset()  # the stored rows


class _Change(NamedTuple):
    """A staged change."""

    kind: str
    row: Row
    key: Key
    at: Time
    put: Put | None = None


def _rows(plain: Row, where: Any) -> list[Row]:
    return [plain] if where is None else list(dict.fromkeys(plain | row for row in where.alternatives))


class Oracle:
    """Gets the calls that an index gets; `now` says what time it is.

    An expression has `alternatives`, the rows that are stored for it.
    """

    #: What is stored for an area; `support.conditions` sets it, which names areas as the library does
    name_of: Callable[[Any], str]

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC), *, plane: bool = False) -> None:
        self._now, self._plane = now, plane
        self._sets: dict[Row, dict[Key, Time]] = {}
        self._staged: list[_Change] = []
        self._records: dict[Key, Put] = {}
        self.positions: dict[Key, Place] = {}
        self._saved: dict[Key, Place] = {}

    def add_set(self, tags: Iterable[str], key: Key, *, expires: Any = None, **conditions: Any) -> int:
        at = self._now() + expires if isinstance(expires, timedelta) else expires
        return self._stage(True, tags, key, at, **conditions)

    def remove_set(self, tags: Iterable[str], key: Key, **conditions: Any) -> int:
        return self._stage(False, tags, key, None, **conditions)

    def _stage(self, added: bool, tags: Iterable[str], key: Key, at: Time, where: Any = None, area: Any = None) -> int:
        plain = frozenset(tags).union([] if area is None else [self.name_of(area)])
        rows = _rows(plain, where)
        self._staged += [_Change("add" if added else "remove", row, key, at) for row in rows]
        return len(rows)

    def put(
        self,
        key: Key,
        tags: Iterable[str],
        *,
        where: Any = None,
        area: Any = None,
        expires: Any = None,
        data: Any = None,
    ) -> int:
        return self.put_many([(key, tags, where, area, expires, data)])

    def put_many(self, rows: Iterable[tuple[Any, ...]]) -> int:
        """Rows of key, tags, where, area, expiry and data: those of a key are alternatives; the first has the data."""
        staged, count, seen = list(rows), len(self._staged), dict[Key, int]()
        for key, *_ in staged:
            seen[key] = seen.get(key, 0) + 1
        begun = set()
        for key, tags, where, area, expires, data in staged:
            at = self._now() + expires if isinstance(expires, timedelta) else expires
            plain = frozenset(tags).union([] if area is None else [self.name_of(area)])
            given = None if where is None or seen[key] > 1 else (frozenset(tags), str(where), area)
            for row in _rows(plain, where):
                kind = "also put" if key in begun else "put"
                self._staged.append(_Change(kind, row, key, at, Put(given, dict(data or {}))))
                begun.add(key)
        return len(self._staged) - count

    def delete(self, key: Key) -> int:
        self._staged.append(_Change("delete", frozenset(), key, None))
        return 1

    def delete_many(self, keys: Iterable[Key]) -> int:
        return sum(map(self.delete, keys))

    def add_sets(self, tags: Iterable[Any], keys: Iterable[Key], **columns: Any) -> int:
        return self._for_each(self.add_set, tags, keys, columns)

    def remove_sets(self, tags: Iterable[Any], keys: Iterable[Key], **columns: Any) -> int:
        return self._for_each(self.remove_set, tags, keys, columns)

    def _for_each(self, change: Any, tags: Iterable[Any], keys: Iterable[Key], columns: dict[str, Any]) -> int:
        """With one expression, area and time for all, or with a list of them."""
        staged = 0
        for place, (own, key) in enumerate(zip(tags, keys, strict=True)):
            options = {name: each[place] if isinstance(each, list) else each for name, each in columns.items()}
            staged += change(own, key, **options)
        return staged

    def consolidate(self, **_: Any) -> tuple[int, ...]:
        """How many keys were added, or there already; and removed, also by a time that is past, or missing."""
        now, counts = self._now(), [0, 0, 0, 0]
        self._forget_records(now)
        had: dict[Key, set[Row]] = {}
        for place, (kind, row, key, at, put) in enumerate(self._staged):
            if kind in ("put", "delete"):
                before = {row for row, keys in self._sets.items() if key in keys and _lasts(keys[key], now)}
                had[key] = set(before)
                stay = self._put_together(place) if kind == "put" else set()
                counts[2] += len(before - stay)
                counts[3] += kind == "delete" and not before
                self._remove_key(key)
                self._records.pop(key, None)
                if put is not None:
                    self._records[key] = put._replace(rows=frozenset(stay))
                if kind == "delete":
                    continue
            keys = self._sets.setdefault(row, {})
            is_there = key in keys and _lasts(keys[key], now)
            if "put" in kind:
                is_there |= row in had[key]
                had[key].discard(row)
            if kind != "remove" and _lasts(at, now):
                counts[1 if is_there else 0] += 1
            else:
                counts[2 if is_there else 3] += 1
            if kind != "remove":
                keys[key] = at
            else:
                keys.pop(key, None)
            if not keys:
                del self._sets[row]
        self._staged.clear()
        self._forget_records(now)
        self.save_positions()
        return tuple(counts)

    def _put_together(self, place: int) -> set[Row]:
        """The sets that a key is put into from a change on."""
        key, rows = self._staged[place].key, {self._staged[place].row}
        for kind, row, other, *_ in self._staged[place + 1 :]:
            if other == key:
                if kind != "also put":
                    break
                rows.add(row)
        return rows

    def _remove_key(self, key: Key) -> None:
        for row in [row for row, keys in self._sets.items() if key in keys]:
            del self._sets[row][key]
            if not self._sets[row]:
                del self._sets[row]

    def _forget_records(self, now: datetime) -> None:
        """What a key was put with goes with its last set."""
        live = {key for keys in self._sets.values() for key, at in keys.items() if _lasts(at, now)}
        self._records = {key: put for key, put in self._records.items() if key in live}

    def records(self) -> dict[Key, tuple[Any, set[tuple[Row, Time]], Mapping[str, Any]]]:
        """Of each key, how it was put, if its sets are those still; its sets, each with its expiry; and its data."""
        found: dict[Key, set[tuple[Row, Time]]] = {}
        for (row, key), at in self.times().items():
            found.setdefault(key, set()).add((row, at))
        records = {}
        for key, sets in found.items():
            put = self._records.get(key, Put(None, {}))
            is_same = {row for row, _ in sets} == put.rows and len({at for _, at in sets}) == 1
            records[key] = put.given if is_same else None, sets, put.data
        return records

    def data_of(self, key: Key) -> Mapping[str, Any]:
        """The columns of data in which a key that has sets has a value."""
        return self._records[key].data if key in self._records else {}

    def move(self, clients: Iterable[Key], lon: Iterable[float | None], lat: Iterable[float | None]) -> None:
        for client, x, y in zip(clients, lon, lat, strict=True):
            self.positions.pop(client, None)
            if x is not None and y is not None:
                self.positions[client] = (x, y)

    def save_positions(self) -> None:
        self._saved = dict(self.positions)

    def match(self, tags: Iterable[str], attributes: Attributes = NONE, **at: Any) -> list[Key]:
        return sorted(key for _, keys in self.explain(tags, attributes, **at) for key in keys)

    def match_unique(self, tags: Iterable[str], attributes: Attributes = NONE, **at: Any) -> set[Key]:
        return set(self.match(tags, attributes, **at))

    def match_count(self, *message: Any, **at: Any) -> int:
        return len(self.match(*message, **at))

    def match_exists(self, *message: Any, **at: Any) -> bool:
        return bool(self.match(*message, **at))

    def explain(
        self, tags: Iterable[str], attributes: Attributes = NONE, only: Tree | None = None, **at: Any
    ) -> list[tuple[Row, tuple[Any, ...]]]:
        """Sets with those keys that a message is for; with `only`, of these those whose data satisfies it."""
        query, now, found = frozenset(tags), self._now(), []
        for row, keys in self._sets.items():
            if (plain := _tags(row)) <= query:
                live = [key for key, until in keys.items() if _lasts(until, now)]
                is_alike = len(plain) == len(row) and not at  # it holds for all keys
                some = live if is_alike else [key for key in live if self._is_for(key, row, query, attributes, **at)]
                if only is not None:
                    some = [key for key in some if evaluate(only, (), self.data_of(key))]
                found += [(row, tuple(sorted(some)))] if some else []
        return found

    def _is_for(self, key: Key, row: Row, query: Row, attributes: Attributes, **at: Any) -> bool:
        there = There(**at, client=self.positions.get(key), plane=self._plane)
        is_asked = there.within is None or surely_has(there.within, there.client, plane=self._plane)
        return is_asked and holds_for(row, query, attributes, there)

    def times(self) -> dict[tuple[Row, Key], Time]:
        """When each key of each set expires."""
        return {(row, key): self._sets[row][key] for row, keys in self._live() for key in keys}

    def _live(self) -> Iterator[tuple[Row, list[Key]]]:
        now = self._now()
        live = ((row, [key for key in keys if _lasts(keys[key], now)]) for row, keys in self._sets.items())
        return ((row, keys) for row, keys in live if keys)

    def __iter__(self) -> Iterator[tuple[Row, tuple[Key, ...]]]:
        return ((row, tuple(sorted(keys))) for row, keys in self._live())

    def __contains__(self, tags: Iterable[str]) -> bool:
        wanted = frozenset(tags)
        return any(row == wanted for row, _ in self._live())

    def __len__(self) -> int:
        return sum(1 for _ in self._live())

    @property
    def staged(self) -> int:
        return len(self._staged)

    # -- of indexes that crash -----------------------------------------------------------------------------------------

    def forget_positions(self) -> None:
        """Let go of moves since positions were saved."""
        self.positions = dict(self._saved)

    def forget_staged(self, first: int = 0) -> None:
        """Let go of the staged changes from number `first` on."""
        del self._staged[first:]

    def staged_again(self) -> Oracle:
        """What there is when the staged changes have taken effect, and are staged still: they change nothing more."""
        again = deepcopy(self)
        again.consolidate()
        again._staged = list(self._staged)
        return again


def _lasts(at: Time, now: datetime) -> bool:
    return at is None or at > now
