"""An index whose keys move from set to set, so that each answer tells which version of the index it is of.

Two in three sets have conditions, and messages attributes. Each version moves some of the keys, which takes removals
and additions in several segments. An answer has the number of its version in it; one that is partly of another version
has a key twice, or lacks one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
from oracle import holds_for
from support.conditions import Message, conditions_in
from support.numbered_conditions import FOR_ALL, any_attributes, condition_of, row_of, table_of
from support.pipelines import IN_PACKET

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
        place = _place(key, version)
        row = row_of(place, _set(place))
        keys[row] = (*keys.get(row, ()), key)
    return keys


def store_first(tm: TagMatch) -> None:
    """Make version 0."""
    tm.add_set(_VERSION, _FIRST_VERSION)
    tm.add_sets(**_columns_of(range(_KEYS), 0))
    tm.consolidate()


def move_to(tm: TagMatch, version: int, *, full: bool = False) -> None:
    """Make a version of the one before."""
    before = _FIRST_VERSION + version - 1
    moved = [key for key in range(_KEYS) if _place(key, version) != _place(key, version - 1)]
    tm.add_set(_VERSION, before + 1)
    tm.remove_sets(**_columns_of(moved, version - 1))
    tm.add_sets(**_columns_of(moved, version))
    tm.remove_set(_VERSION, before)
    tm.consolidate(full=full)


def _columns_of(keys: Sequence[int], version: int) -> dict[str, Any]:
    """The sets of these keys, as they are added and removed."""
    places = [_place(key, version) for key in keys]
    return {"tags": list(map(_set, places)), "keys": keys, "where": list(map(condition_of, places))}


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


def _check_keys(messages: list[Message], answers: list[list[int]]) -> int:
    version = _version_in(answers[0])
    for message, keys in zip(messages, answers, strict=True):
        expected = [key for row, own in contents(version).items() if holds_for(row, *message) for key in own]
        if sorted(keys) != sorted(expected):
            raise MixedError(f"not the keys of version {version}")
    return version


def _messages(rng: random.Random, count: int) -> list[Message]:
    tags = [[*_VERSION, "all", *rng.sample(_EVERYTHING, rng.choice([3, 150]))] for _ in range(count)]
    return [Message(each, any_attributes(rng)) for each in tags]


def _match(tm: TagMatch, rng: random.Random) -> int:
    (message,) = _messages(rng, 1)
    return _check_keys([message], [tm.match(*message)])


def _match_unique(tm: TagMatch, rng: random.Random) -> int:
    (message,) = _messages(rng, 1)
    return _check_keys([message], [list(tm.match_unique(*message))])


def _match_many(tm: TagMatch, rng: random.Random) -> int:
    messages = _messages(rng, 8)
    return _check_keys(messages, tm.match_many(table_of(messages), unique=rng.random() < 0.5).to_pylist())


def _match_many_tags(tm: TagMatch, rng: random.Random) -> int:
    """One message so often that the work is split, in several chunks."""
    message = Message([*_VERSION, "all", *rng.sample(_EVERYTHING, 3)], {})
    answers = tm.match_many(pa.chunked_array([[message.tags] * 1000] * 3)).to_pylist()
    if len(set(map(frozenset, answers))) != 1:
        raise MixedError("answers of several versions in one call")
    return _check_keys([message], answers[:1])


def _submit(tm: TagMatch, rng: random.Random) -> int:
    (message,) = _messages(rng, 1)
    return _check_keys([message], [list(tm.submit(*message, unique=rng.random() < 0.5).result(60))])


def _amatch(tm: TagMatch, rng: random.Random) -> int:
    (message,) = _messages(rng, 1)
    return _check_keys([message], [list(asyncio.run(tm.amatch(*message, unique=rng.random() < 0.5)))])


def _in_a_packet(tm: TagMatch, rng: random.Random) -> int:
    ((tags, _),) = _messages(rng, 1)
    submitted = tm.submit([*tags, IN_PACKET]).result(60)
    return _check_keys([Message(tags, {})], [submitted])


def _columns(tm: TagMatch, _: random.Random) -> int:
    sets: dict[frozenset[str], tuple[int, ...]] = {}
    for row in sorted(tm.to_arrow().to_pylist(), key=lambda row: row["key"]):
        stored = frozenset(row["tags"]) | conditions_in(row["where"])
        sets[stored] = (*sets.get(stored, ()), row["key"])
    return _check_sets([*sets.items()])


#: Each asks an index, and returns of which version the answer is
WAYS: tuple[Callable[[TagMatch, random.Random], int], ...] = (
    _match, _match_unique, _match_many, _match_many_tags, _submit, _amatch, _in_a_packet, _columns,
    lambda tm, _: _check_sets(tm.explain(_EVERYTHING, FOR_ALL)),
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
