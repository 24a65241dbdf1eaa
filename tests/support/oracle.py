"""The right answers, from Python sets alone; shares nothing with the library, so none of its mistakes either."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

#: Integers, or strings
Key = Any
Stored = tuple[frozenset[str], set[Key]]


class Oracle:
    """Stored sets grouped by their greatest tag: only groups of a query's own tags can hold subsets of it."""

    def __init__(self) -> None:
        self._groups: dict[str | None, dict[frozenset[str], set[Key]]] = {}
        self._staged: list[tuple[bool, frozenset[str], Key]] = []

    def add_set(self, tags: Iterable[str], key: Key) -> None:
        self._staged.append((True, frozenset(tags), key))

    def remove_set(self, tags: Iterable[str], key: Key) -> None:
        self._staged.append((False, frozenset(tags), key))

    def add_sets(self, tags: Iterable[Iterable[str]], keys: Iterable[Key]) -> None:
        for row, key in zip(tags, keys, strict=True):
            self.add_set(row, key)

    def remove_sets(self, tags: Iterable[Iterable[str]], keys: Iterable[Key]) -> None:
        for row, key in zip(tags, keys, strict=True):
            self.remove_set(row, key)

    def consolidate(self, *, full: bool = False) -> None:  # noqa: ARG002
        for added, tags, key in self._staged:
            group = self._groups.setdefault(max(tags, default=None), {})
            keys = group.setdefault(tags, set())
            if added:
                keys.add(key)
            else:
                keys.discard(key)
            if not keys:
                del group[tags]
        self._staged.clear()

    def forget_staged(self, first: int = 0) -> None:
        """Let go of the staged changes from number `first` on."""
        del self._staged[first:]

    def is_like(self, other: Oracle) -> bool:
        """Whether both have the same sets, and the same staged changes."""
        return self._staged == other._staged and dict(self) == dict(other)

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

    def __iter__(self) -> Iterator[tuple[frozenset[str], tuple[Key, ...]]]:
        return ((stored, tuple(sorted(keys))) for group in self._groups.values() for stored, keys in group.items())

    def __contains__(self, tags: Iterable[str]) -> bool:
        wanted = frozenset(tags)
        return wanted in self._groups.get(max(wanted, default=None), {})

    @property
    def staged(self) -> int:
        return len(self._staged)

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def _matching(self, tags: Iterable[str]) -> Iterator[Stored]:
        query = frozenset(tags)
        for group in (None, *query):
            for stored, keys in self._groups.get(group, {}).items():
                if stored <= query:
                    yield stored, keys
