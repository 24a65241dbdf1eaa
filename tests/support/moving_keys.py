"""An index whose keys move from set to set, so that each answer tells which version of the index it is of.

Two in three sets have conditions, by their number, and messages attributes. Each version moves some of the keys, which
takes removals and additions in several segments. An answer has the number of its version in it; one that is partly of
another version has a key twice, or lacks one.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
from oracle import And, Not, Test, holds_for
from support.conditions import Expression, Message, conditions_in
from support.pipelines import IN_PACKET

from tagmatch import TagMatch

Contents = dict[frozenset[str], tuple[int, ...]]

_SETS = _KEYS = 300
# A key moves every `_TURNS` versions
_TURNS = 12
_FIRST_VERSION = 10**6
_VERSION = ["the version"]
_EVERYTHING = [*_VERSION, "all", *(f"set {number}" for number in range(_SETS))]
_CITIES, _STEP = [f"city {number}" for number in range(7)], 50
#: With these, the conditions of all numbers hold
FOR_ALL: dict[str, Any] = {"price": [-1, *range(0, _SETS + 1, _STEP)], "city": _CITIES}


@cache
def condition_of(number: int) -> Expression | None:
    """What the set of a number asks for, as one alternative; every third number has none."""
    low, city = number % _SETS, _CITIES[number % len(_CITIES)]
    tree = {
        1: Test("price", "<", (low,)),
        2: Test("price", "between", (low, low + _STEP)),
        4: And((Test("city", "=", (city,)), Not(Test("sold", "=", (True,))))),
        5: Test("city", "in", (city, "Rome")),
        7: And((Test("city", "contains", (city[-3:],)), Test("price", "exists", ()))),
        8: And((Test("city", "prefix", (city,)), Test("price", "!=", (low,)))),
    }.get(number % 9)
    return None if tree is None else Expression.of(tree, random.Random(number))


def row_of(number: int, tags: list[str]) -> frozenset[str]:
    """What is stored for these tags with the condition of this number."""
    condition = condition_of(number)
    return frozenset(tags).union(*(condition.alternatives if condition else ()))


def table_of(messages: list[Message]) -> pa.Table:
    """Messages with such attributes, as a table."""
    rows = [{"tags": list(tags), **attributes} for tags, attributes in messages]
    texts = pa.list_(pa.string())
    types = {"tags": texts, "price": pa.list_(pa.int64()), "city": texts, "sold": pa.bool_()}
    return pa.Table.from_pylist(rows, pa.schema(list(types.items())))


def _place(key: int, version: int) -> int:
    moves = (version - key % _TURNS + _TURNS) // _TURNS
    return (key + 7 * moves * (1 + key % 5)) % _SETS


@cache
def contents(version: int) -> Contents:
    """All sets of a version, with their keys."""
    keys: dict[frozenset[str], tuple[int, ...]] = {frozenset(_VERSION): (_FIRST_VERSION + version,)}
    for key in range(_KEYS):
        place = _place(key, version)
        row = row_of(place, ["all", f"set {place}"])
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
    return {"tags": [["all", f"set {at}"] for at in places], "keys": keys, "where": list(map(condition_of, places))}


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
        raise MixedError(f"not the sets of version {version}: {len(found)}, and {wrong} of them differ")
    return version


def _check_keys(messages: list[Message], answers: list[list[int]]) -> int:
    version = _version_in(answers[0])
    for message, keys in zip(messages, answers, strict=True):
        expected = [key for row, own in contents(version).items() if holds_for(row, *message) for key in own]
        if sorted(keys) != sorted(expected):
            raise MixedError(f"not the keys of version {version}")
    return version


def _message(rng: random.Random) -> Message:
    """One that finds the version; no attributes, some, or those with which all conditions hold."""
    tags, attributes = [*_VERSION, "all", *rng.sample(_EVERYTHING, rng.choice([3, 150]))], rng.choice([{}, FOR_ALL])
    if rng.random() < 0.5:
        some = {name: rng.sample(values, rng.randrange(len(values) + 1)) for name, values in FOR_ALL.items()}
        attributes = {name: values for name, values in some.items() if values} | {
            "sold": rng.choice([None, True, False])
        }
    return Message(tags, attributes)


def _one(ask: Callable[[TagMatch, Message, bool], Any]) -> Callable[[TagMatch, random.Random], int]:
    def asked(tm: TagMatch, rng: random.Random) -> int:
        message = _message(rng)
        return _check_keys([message], [list(ask(tm, message, rng.random() < 0.5))])

    return asked


def _match_many(tm: TagMatch, rng: random.Random) -> int:
    messages = [_message(rng) for _ in range(8)]
    return _check_keys(messages, tm.match_many(table_of(messages), unique=rng.random() < 0.5).to_pylist())


def _match_many_tags(tm: TagMatch, rng: random.Random) -> int:
    """One message so often that the work is split, in several chunks."""
    message = Message([*_VERSION, "all", *rng.sample(_EVERYTHING, 3)], {})
    answers = tm.match_many(pa.chunked_array([[message.tags] * 1000] * 3)).to_pylist()
    if len(set(map(frozenset, answers))) != 1:
        raise MixedError("answers of several versions in one call")
    return _check_keys([message], answers[:1])


def _columns(tm: TagMatch, _: random.Random) -> int:
    sets: dict[frozenset[str], tuple[int, ...]] = {}
    for row in sorted(tm.to_arrow().to_pylist(), key=lambda row: row["key"]):
        stored = frozenset(row["tags"]) | conditions_in(row["where"])
        sets[stored] = (*sets.get(stored, ()), row["key"])
    return _check_sets([*sets.items()])


#: Each asks an index, and returns the version of the answer
WAYS: tuple[Callable[[TagMatch, random.Random], int], ...] = (
    _one(lambda tm, asked, unique: (tm.match_unique if unique else tm.match)(*asked)),
    _one(lambda tm, asked, unique: tm.submit(*asked, unique=unique).result(60)),
    _one(lambda tm, asked, unique: asyncio.run(tm.amatch(*asked, unique=unique))),
    _one(lambda tm, asked, unique: tm.submit([*asked.tags, IN_PACKET], asked.attributes, unique=unique).result(60)),
    _match_many, _match_many_tags, _columns,
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
