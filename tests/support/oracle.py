"""The right answers, from Python sets alone; shares nothing with the library, so none of its mistakes either.

Areas and where clients are, which `support.areas_and_moves` knows, are on the sphere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Any

#: Integers, or strings
Key = Any
#: When a key expires; `None`: never
Time = datetime | None
Attributes = Mapping[str, Any]
NONE: Attributes = {}
#: Tags, and conditions: strings that say themselves whether they hold
Row = frozenset[str]
Stored = tuple[Row, Collection[Key]]


def system_time() -> datetime:
    return datetime.now(UTC)


# What knows areas; this module shares nothing with the library, whose areas they are
_areas: Any = None


def ask_of_areas(module: Any) -> None:
    """Have a module say which condition stands for an area (`condition_of`), and whether it has a place (`has`)."""
    global _areas
    _areas = module


def rows_of(tags: Iterable[str], where: Any, area: Any = None) -> list[Row]:
    """What is stored: a row for each alternative of an expression."""
    plain = frozenset(tags) if area is None else frozenset([*tags, _areas.condition_of(area)])
    return [plain] if where is None else [plain | row for row in where.alternatives]


def is_condition(tag: str) -> bool:
    return hasattr(tag, "holds")


def holds_for(row: Row, tags: Collection[str], attributes: Attributes) -> bool:
    """Whether a message has all tags of a row, and all of its conditions hold."""
    return all(is_condition(each) and each.holds(tags, attributes) for each in row.difference(tags))


def group_of(row: Row) -> str | None:
    return max((tag for tag in row if not is_condition(tag)), default=None)


def _for_each(where: Any, count: int) -> Iterable[Any]:
    """One expression for all, or one for each."""
    return repeat(where, count) if where is None or hasattr(where, "alternatives") else where


class Oracle:
    """Stored sets grouped by their greatest tag: only groups of a query's own tags can hold subsets of it.

    An expression has `alternatives`: for each the tags and conditions that it asks for, of which a condition has a
    method `holds`, which gets the tags and the attributes of a message.

    Parameters
    ----------
    now : callable
        Says what time it is; keys that have expired by then are no longer there.
    """

    def __init__(self, now: Callable[[], datetime] = system_time) -> None:
        self._now = now
        self._groups: dict[str | None, dict[Row, dict[Key, Time]]] = {}
        self._staged: list[tuple[bool, Row, Key, Time]] = []
        self._some_expire = False
        self.positions: dict[Key, Any] = {}
        self._saved: dict[Key, Any] = {}

    def add_set(
        self, tags: Iterable[str], key: Key, *, where: Any = None, area: Any = None, expires: Time | timedelta = None
    ) -> int:
        at = self._now() + expires if isinstance(expires, timedelta) else expires
        self._some_expire |= at is not None
        rows = rows_of(tags, where, area)
        self._staged += [(True, row, key, at) for row in rows]
        return len(rows)

    def remove_set(self, tags: Iterable[str], key: Key, *, where: Any = None, area: Any = None) -> int:
        rows = rows_of(tags, where, area)
        self._staged += [(False, row, key, None) for row in rows]
        return len(rows)

    def has_all(self, tags: Iterable[str], key: Key, *, where: Any = None, area: Any = None) -> bool:
        """Whether, when what is staged has taken effect, all that a removal removes is there."""
        again = self.staged_again()
        again._staged.clear()
        again.remove_set(tags, key, where=where, area=area)
        return again.consolidate()[3] == 0

    def add_sets(
        self,
        tags: Iterable[Iterable[str]],
        keys: Iterable[Key],
        *,
        where: Any = None,
        area: Any = None,
        expires: Iterable[Time | timedelta] | Time | timedelta = None,
    ) -> int:
        is_one = expires is None or isinstance(expires, datetime | timedelta)
        pairs = list(zip(tags, keys, strict=True))
        times = repeat(expires, len(pairs)) if is_one else expires
        rows = zip(pairs, _for_each(where, len(pairs)), times, strict=True)
        return sum(self.add_set(*pair, where=each, area=area, expires=at) for pair, each, at in rows)

    def remove_sets(
        self, tags: Iterable[Iterable[str]], keys: Iterable[Key], *, where: Any = None, area: Any = None
    ) -> int:
        pairs = list(zip(tags, keys, strict=True))
        rows = zip(pairs, _for_each(where, len(pairs)), strict=True)
        return sum(self.remove_set(*pair, where=each, area=area) for pair, each in rows)

    def consolidate(self, *, full: bool = False) -> tuple[int, int, int, int]:  # noqa: ARG002
        """How many keys were added, or there already; and removed, also by a time that is past, or missing."""
        now, counts = self._now(), [0, 0, 0, 0]
        for added, tags, key, at in self._staged:
            group = self._groups.setdefault(group_of(tags), {})
            keys = group.setdefault(tags, {})
            is_there = key in keys and ((until := keys[key]) is None or until > now)
            if added and (at is None or at > now):
                counts[1 if is_there else 0] += 1
            else:
                counts[2 if is_there else 3] += 1
            if added:
                keys[key] = at
            else:
                keys.pop(key, None)
            if not keys:
                del group[tags]
        self._staged.clear()
        self.save_positions()
        return counts[0], counts[1], counts[2], counts[3]

    def move(self, clients: Iterable[Key], lon: Iterable[float | None], lat: Iterable[float | None]) -> None:
        for client, *place in zip(clients, lon, lat, strict=True):
            self.positions.pop(client, None)
            if place[0] is not None:
                self.positions[client] = tuple(place)

    def save_positions(self) -> None:
        self._saved = dict(self.positions)

    def forget_positions(self) -> None:
        """Let go of moves since positions were saved."""
        self.positions = dict(self._saved)

    def forget_staged(self, first: int = 0) -> None:
        """Let go of the staged changes from number `first` on."""
        del self._staged[first:]

    def is_like(self, other: Oracle) -> bool:
        """Whether both have the same sets, with the same times, the same staged changes, and clients where they are."""
        mine, others = ((each._staged, each.times(), each.positions, each._saved) for each in (self, other))
        return mine == others

    def staged_again(self) -> Oracle:
        """What there is when the staged changes have taken effect, and are staged still: they change nothing more."""
        again = deepcopy(self)
        again.consolidate()
        again._staged = list(self._staged)
        return again

    def match(self, tags: Iterable[str], attributes: Attributes = NONE, **at: Any) -> list[Key]:
        return sorted(key for _, keys in self._matching(tags, attributes, **at) for key in keys)

    def match_unique(self, tags: Iterable[str], attributes: Attributes = NONE, **at: Any) -> set[Key]:
        return set(self.match(tags, attributes, **at))

    def explain(
        self, tags: Iterable[str], attributes: Attributes = NONE, **at: Any
    ) -> list[tuple[Row, tuple[Key, ...]]]:
        return [(stored, tuple(sorted(keys))) for stored, keys in self._matching(tags, attributes, **at)]

    def times(self) -> dict[tuple[Row, Key], Time]:
        """When each key of each set expires."""
        now = self._now()
        return {
            (tags, key): at
            for group in self._groups.values()
            for tags, keys in group.items()
            for key, at in keys.items()
            if at is None or at > now
        }

    def __iter__(self) -> Iterator[tuple[Row, tuple[Key, ...]]]:
        return ((stored, tuple(sorted(keys))) for group in self._groups.values() for stored, keys in self._live(group))

    def __contains__(self, tags: Iterable[str]) -> bool:
        wanted = frozenset(tags)
        group = self._groups.get(group_of(wanted), {})
        return wanted in group and any(self._live({wanted: group[wanted]}))

    @property
    def staged(self) -> int:
        return len(self._staged)

    def __len__(self) -> int:
        return sum(1 for group in self._groups.values() for _ in self._live(group))

    def _matching(
        self, tags: Iterable[str], attributes: Attributes, location: Any = None, within: Any = None
    ) -> Iterator[Stored]:
        query = frozenset(tags)
        for group in (None, *query):
            for stored, keys in self._live(self._groups.get(group, {})):
                if holds_for(stored, query, attributes):
                    areas = [each for each in stored if hasattr(each, "holds_at")]
                    some = keys if not areas and within is None else [
                        key for key in keys if self._is_for(key, areas, location, within)
                    ]  # fmt: skip
                    if some:
                        yield stored, some

    def _is_for(self, key: Key, areas: Iterable[Any], location: Any, within: Any) -> bool:
        """Whether a message that is there, for clients that are within an area, is for one."""
        client = self.positions.get(key)
        if within is not None and not (client is not None and _areas.has(within, client)):
            return False
        return all(area.holds_at(location, within, client) for area in areas)

    def _live(self, group: dict[Row, dict[Key, Time]]) -> Iterable[Stored]:
        """The sets of a group that have keys which have not expired, with these."""
        if not self._some_expire:
            return group.items()
        now = self._now()
        live = ((tags, [key for key, at in keys.items() if at is None or at > now]) for tags, keys in group.items())
        return ((tags, keys) for tags, keys in live if keys)
