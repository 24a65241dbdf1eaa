"""The right answers, from Python sets alone; shares nothing with the library, so none of its mistakes either."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Any

#: Integers, or strings
Key = Any
#: When a key expires; `None`: never
Time = datetime | None
Stored = tuple[frozenset[str], Collection[Key]]


def system_time() -> datetime:
    return datetime.now(UTC)


class Oracle:
    """Stored sets grouped by their greatest tag: only groups of a query's own tags can hold subsets of it.

    Parameters
    ----------
    now : callable
        Says what time it is; keys that have expired by then are no longer there.
    """

    def __init__(self, now: Callable[[], datetime] = system_time) -> None:
        self._now = now
        self._groups: dict[str | None, dict[frozenset[str], dict[Key, Time]]] = {}
        self._staged: list[tuple[bool, frozenset[str], Key, Time]] = []
        self._some_expire = False

    def add_set(self, tags: Iterable[str], key: Key, *, expires: Time | timedelta = None) -> None:
        at = self._now() + expires if isinstance(expires, timedelta) else expires
        self._some_expire |= at is not None
        self._staged.append((True, frozenset(tags), key, at))

    def remove_set(self, tags: Iterable[str], key: Key) -> None:
        self._staged.append((False, frozenset(tags), key, None))

    def add_sets(
        self,
        tags: Iterable[Iterable[str]],
        keys: Iterable[Key],
        *,
        expires: Iterable[Time | timedelta] | Time | timedelta = None,
    ) -> None:
        is_one = expires is None or isinstance(expires, datetime | timedelta)
        pairs = list(zip(tags, keys, strict=True))
        for (row, key), at in zip(pairs, repeat(expires, len(pairs)) if is_one else expires, strict=True):
            self.add_set(row, key, expires=at)

    def remove_sets(self, tags: Iterable[Iterable[str]], keys: Iterable[Key]) -> None:
        for row, key in zip(tags, keys, strict=True):
            self.remove_set(row, key)

    def consolidate(self, *, full: bool = False) -> None:  # noqa: ARG002
        for added, tags, key, at in self._staged:
            group = self._groups.setdefault(max(tags, default=None), {})
            keys = group.setdefault(tags, {})
            if added:
                keys[key] = at
            else:
                keys.pop(key, None)
            if not keys:
                del group[tags]
        self._staged.clear()

    def forget_staged(self, first: int = 0) -> None:
        """Let go of the staged changes from number `first` on."""
        del self._staged[first:]

    def is_like(self, other: Oracle) -> bool:
        """Whether both have the same sets, with the same times, and the same staged changes."""
        return self._staged == other._staged and self.times() == other.times()

    def staged_again(self) -> Oracle:
        """What there is when the staged changes have taken effect, and are staged still: they change nothing more."""
        again = deepcopy(self)
        again.consolidate()
        again._staged = list(self._staged)
        return again

    def match(self, tags: Iterable[str]) -> list[Key]:
        return sorted(key for _, keys in self._matching(tags) for key in keys)

    def match_unique(self, tags: Iterable[str]) -> set[Key]:
        return set(self.match(tags))

    def explain(self, tags: Iterable[str]) -> list[tuple[frozenset[str], tuple[Key, ...]]]:
        return [(stored, tuple(sorted(keys))) for stored, keys in self._matching(tags)]

    def times(self) -> dict[tuple[frozenset[str], Key], Time]:
        """When each key of each set expires."""
        now = self._now()
        return {
            (tags, key): at
            for group in self._groups.values()
            for tags, keys in group.items()
            for key, at in keys.items()
            if at is None or at > now
        }

    def __iter__(self) -> Iterator[tuple[frozenset[str], tuple[Key, ...]]]:
        return ((stored, tuple(sorted(keys))) for group in self._groups.values() for stored, keys in self._live(group))

    def __contains__(self, tags: Iterable[str]) -> bool:
        wanted = frozenset(tags)
        group = self._groups.get(max(wanted, default=None), {})
        return wanted in group and any(self._live({wanted: group[wanted]}))

    @property
    def staged(self) -> int:
        return len(self._staged)

    def __len__(self) -> int:
        return sum(1 for group in self._groups.values() for _ in self._live(group))

    def _matching(self, tags: Iterable[str]) -> Iterator[Stored]:
        query = frozenset(tags)
        for group in (None, *query):
            for stored, keys in self._live(self._groups.get(group, {})):
                if stored <= query:
                    yield stored, keys

    def _live(self, group: dict[frozenset[str], dict[Key, Time]]) -> Iterable[Stored]:
        """The sets of a group that have keys which have not expired, with these."""
        if not self._some_expire:
            return group.items()
        now = self._now()
        live = ((tags, [key for key, at in keys.items() if at is None or at > now]) for tags, keys in group.items())
        return ((tags, keys) for tags, keys in live if keys)
