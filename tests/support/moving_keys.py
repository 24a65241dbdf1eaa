"""An index whose keys move from set to set, so that each answer tells which version of the index it is of.

Each version moves some of the keys, which takes removals and additions in several segments. An answer has the number of
its version in it; one that is partly of another version has a key twice, or lacks one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from tagmatch import TagMatch

Contents = dict[frozenset[str], tuple[int, ...]]

_SETS = _KEYS = 300
# A key moves with every so many versions
_TURNS = 12
_FIRST_VERSION = 10**6
_VERSION = ["the version"]
_EVERYTHING = [*_VERSION, "all", *(f"set {number}" for number in range(_SETS))]


def _set(number: int) -> list[str]:
    return ["all", f"set {number}"]


def _place(key: int, version: int) -> int:
    """The number of the set that has a key."""
    moves = (version - key % _TURNS + _TURNS) // _TURNS
    return (key + 7 * moves * (1 + key % 5)) % _SETS


@cache
def contents(version: int) -> Contents:
    """All sets of a version, with their keys."""
    keys: dict[frozenset[str], tuple[int, ...]] = {frozenset(_VERSION): (_FIRST_VERSION + version,)}
    for key in range(_KEYS):
        tags = frozenset(_set(_place(key, version)))
        keys[tags] = (*keys.get(tags, ()), key)
    return keys


def store_first(tm: TagMatch) -> None:
    """Make version 0."""
    for tags, keys in contents(0).items():
        tm.add_sets([tags] * len(keys), keys)
    tm.consolidate()


def move_to(tm: TagMatch, version: int, *, full: bool = False) -> None:
    """Make a version of the one before."""
    before = _FIRST_VERSION + version - 1
    moved = [key for key in range(_KEYS) if _place(key, version) != _place(key, version - 1)]
    tm.add_set(_VERSION, before + 1)
    tm.remove_sets([_set(_place(key, version - 1)) for key in moved], moved)
    tm.add_sets([_set(_place(key, version)) for key in moved], moved)
    tm.remove_set(_VERSION, before)
    tm.consolidate(full=full)


# -- asking ------------------------------------------------------------------------------------------------------------


class MixedError(AssertionError):
    """An answer is not of one version."""


def _version_in(keys: Any) -> int:
    versions = [key - _FIRST_VERSION for key in keys if key >= _FIRST_VERSION]
    if len(versions) != 1:
        raise MixedError(f"an answer of the versions {versions}")
    return int(versions[0])


def _check_sets(found: list[tuple[frozenset[str], tuple[int, ...]]]) -> int:
    version = _version_in([key for _, keys in found for key in keys])
    if len(found) != len(dict(found)) or dict(found) != contents(version):
        wrong = dict(set(found) ^ set(contents(version).items()))
        raise MixedError(f"not the sets of version {version}: {len(found)}, of which differ {wrong}")
    return version


def _check_keys(queries: list[list[str]], answers: list[list[int]]) -> int:
    version = _version_in(answers[0])
    for query, keys in zip(queries, answers, strict=True):
        wanted = frozenset(query)
        if sorted(keys) != sorted(key for tags, own in contents(version).items() if tags <= wanted for key in own):
            raise MixedError(f"not the keys of version {version}")
    return version


def _queries(rng: random.Random, count: int) -> list[list[str]]:
    return [[*_VERSION, "all", *rng.sample(_EVERYTHING, rng.choice([3, 150]))] for _ in range(count)]


def _match(tm: TagMatch, rng: random.Random) -> int:
    (query,) = _queries(rng, 1)
    return _check_keys([query], [tm.match(query)])


def _match_many(tm: TagMatch, rng: random.Random) -> int:
    queries = _queries(rng, 8)
    return _check_keys(queries, tm.match_many(queries).to_pylist())


def _submit(tm: TagMatch, rng: random.Random) -> int:
    (query,) = _queries(rng, 1)
    return _check_keys([query], [tm.submit(query).result(60)])


def _columns(tm: TagMatch, _: random.Random) -> int:
    sets: dict[frozenset[str], tuple[int, ...]] = {}
    for row in sorted(tm.to_arrow().to_pylist(), key=lambda row: row["key"]):
        tags = frozenset(row["tags"])
        sets[tags] = (*sets.get(tags, ()), row["key"])
    return _check_sets([*sets.items()])


#: Each asks an index, and returns of which version the answer is
WAYS: tuple[Callable[[TagMatch, random.Random], int], ...] = (
    _match, _match_many, _submit, _columns,
    lambda tm, _: _check_sets(tm.explain(_EVERYTHING)),
    lambda tm, _: _check_sets(list(tm)),
)  # fmt: skip


def ask(tm: TagMatch, rng: random.Random, last: int = 0) -> Iterator[int]:
    """Ask in all ways, in any order; gives the versions of the answers, which never go back, from `last` on."""
    while True:
        for way in rng.sample(WAYS, len(WAYS)):
            version = way(tm, rng)
            assert version >= last, f"version {version} after {last}"
            last = version
            yield version
