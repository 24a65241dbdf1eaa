"""Every public call, on an index with sets stored and changes staged, and what the oracle says to it.

The arrays of these sets are larger than those that Python takes from its pools, and the tables in which new tags are
numbered grow several times, as does the memory for the tags themselves.
"""

import asyncio
import contextlib
import math
import random
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from oracle import Oracle, values_of
from support.areas import NEARS, PLACES, SHAPES, At, located_table
from support.conditions import any_attributes, any_expression
from support.expiring import pairs_in

from tagmatch import TagMatch, backup, restore
from tagmatch.model.options import Durability
from tagmatch.model.storage.copies import Copied
from tagmatch.partitioner.consolidation import FEW_SETS

Sets = list[list[str]]

#: Which keys `MESSAGES` find: 64 bits for each, first the number of the query and then the key, sorted
Answers = bytes

#: Single changes are staged as Python objects until there are 4,096
MANY_SINGLES = 4095


def _sets(seed: int, prefix: str, tags: int, count: int) -> Sets:
    """Sets of few tags of all lengths, which occur with all frequencies."""
    rng = random.Random(seed)
    names = [f"{prefix}{i}" + "·" * rng.choice([0, 0, 0, 7, 70, 700]) for i in range(tags)]
    return [[names[int(tags * rng.random() ** 2)] for _ in range(rng.randrange(5))] for _ in range(count)]


STORED = _sets(1, "a", 150, 400)
STAGED = _sets(2, "b", 60, 50)
BULK = _sets(3, "c", 500, 600)
LATER = _sets(4, "d", 700, 700)
_EVERYTHING = STORED + STAGED + BULK + LATER
#: Enough that several threads get some
QUERIES = [list(chain(*random.Random(i).sample(_EVERYTHING, 4))) for i in range(530)]
#: The same, with attributes
ATTRIBUTES = [any_attributes(random.Random(i)) for i in range(len(QUERIES))]
for _row in ATTRIBUTES:
    if isinstance(_row.get("price"), float):  # a column has one type
        del _row["price"]
MESSAGES = pa.table(
    {
        "tags": QUERIES,
        **{name: [row.get(name) for row in ATTRIBUTES] for name in ("price", "name", "new")},
        "city": [values_of(row, "city") for row in ATTRIBUTES],
    }
)
#: Some sets have conditions as well
WHERE = [any_expression(random.Random(i), STORED[i] or ["new"]) for i in range(100)]
#: Every other one goes through the stages: a zero byte in a tag, which no set has, keeps it from being answered at once
SUBMITTED = [[*query, "in a packet\0"] if i % 2 else query for i, query in enumerate(QUERIES[:100])]
QUERY = list(chain(*STORED[:40]))
#: What `add_set` adds has new tags, one of them longer than all there are
SINGLE = ["new", "new" * 5000]


class State(NamedTuple):
    """What can be seen of an index: changes staged, sets stored, the answers to `MESSAGES`, and clients that are near.

    These are, for each of `PLACES`, the keys of the clients that are near there, and of those whose area is around.
    """

    staged: int
    sets: int
    answers: Answers
    near: tuple[tuple[int, ...], ...] = ()

    def __repr__(self) -> str:
        return f"{self.staged} staged, {self.sets} stored, {len(self.answers) // 8} keys found"


class Case(NamedTuple):
    """An index, or an oracle, the options that it was made with, and a place for another one."""

    tm: Any
    options: dict[str, Any] = {}  # noqa: RUF012 - it is not changed
    path: Path = Path()


@dataclass(frozen=True)
class Call:
    """A public call.

    `ask` makes it, and `plain` makes of its result, when nothing fails any more, what the oracle has `expected`: the
    same of the result itself, unless that is given.
    Before it, `singles` changes have been staged, perhaps by a program that has ended (`left`). The index may have
    a path (`saved`) and several segments, which are merged in the background after each consolidation. After a call
    that `closes`, nothing more can be asked.
    """

    ask: Callable[[Case], Any]
    expected: Callable[[Oracle], Any] | None = None
    plain: Callable[[Case, Any], Any] = lambda _, result: result
    singles: int = 5
    saved: bool = False
    segments: bool = False
    left: bool = False
    durability: Durability | None = None
    closes: bool = False


def _same(
    name: str, *arguments: Any, plain: Callable[[Any], Any] = lambda found: found, singles: int = 5, **options: Any
) -> Call:
    """A method that the oracle has as well."""
    return Call(
        lambda case: getattr(case.tm, name)(*arguments, **options), plain=lambda _, found: plain(found), singles=singles
    )


_change = partial(_same, plain=lambda _: None)


def _consolidate_and_merge(case: Case) -> Any:
    became = case.tm.consolidate()
    case.tm._engine.changing.merging.wait()
    return became


def _opened(_: Case, tm: TagMatch) -> Any:
    with tm:
        tm.check()
        return _answers(tm)


def _copied(case: Case, copied: Copied) -> Any:
    with TagMatch.open(case.path) as tm:
        tm.check()
        assert tm.stats()["staged"] == copied.staged
        return copied.staged, _answers(tm)


def _made(_: Case, tm: TagMatch) -> Any:
    with tm:
        tm.add_sets(BULK, range(len(BULK)))
        tm.consolidate()
        return sorted(tm.match([])) == [key for key, tags in enumerate(BULK) if not tags]


def _best_of_some() -> pa.ListArray:
    with TagMatch(data={"size": "int64"}, device="cpu") as tm:
        tm.put_many(pa.table({"key": range(300), "tags": [["a"], ["b"], ["a"]] * 100, "size": range(300, 0, -1)}))
        tm.put_many(pa.table({"key": [1, 2], "tags": [["a"], ["a"]], "size": [500, 501]}))
        tm.consolidate()
        assert tm.match_counts([["a"]], count_by="size").to_pylist()[0][-1] == {"value": 501, "count": 1}
        messages = pa.table({"tags": [["a"], ["a", "c"]], "more": [1, 2]})
        assert tm.match_best(messages, limit=1, score="size * more").to_pylist() == [[2], [2]]
        return tm.match_best([["a"], ["a", "c"]], limit=2, order_by="size desc")


def _only_some() -> list[pa.ListArray]:
    """Keys with some data, before and after a change."""
    with TagMatch(data={"size": "int64"}, device="cpu") as tm:
        found = []
        for changed in (range(300), range(0, 300, 30)):
            sizes = [key % 10 + (len(changed) < 300) for key in changed]
            tm.put_many(pa.table({"key": changed, "tags": [["a"]] * len(changed), "size": sizes}))
            tm.consolidate()
            found.append(tm.match_many([["a"], ["b"]], only="size = 1"))
        return found


def _many(ask: Callable[[TagMatch], Any], expected: Callable[[Oracle], Any]) -> Call:
    return Call(lambda case: ask(case.tm), expected, lambda _, answers: [sorted(keys) for keys in answers.to_pylist()])


def _answers(tm: TagMatch) -> Answers:
    return _as_answers(tm.match_many(MESSAGES))


def _as_answers(found: pa.ListArray) -> Answers:
    lengths, keys = found.value_lengths().to_numpy(), found.flatten().to_numpy()
    assert not (keys >> 32).any(), "a key that no set has"
    numbers = np.repeat(np.arange(len(found), dtype=np.uint64), lengths)
    return np.sort(numbers << 32 | keys).tobytes()


_known: dict[frozenset[Any], Answers] = {}


def _oracle_answers(oracle: Oracle) -> Answers:
    """Return them, found once for the same sets: most calls change none."""
    sets = frozenset(oracle)
    if sets not in _known:
        found = [oracle.match(*message) for message in zip(QUERIES, ATTRIBUTES, strict=True)]
        _known[sets] = _as_answers(pa.array(found, pa.list_(pa.uint64())))
    return _known[sets]


def _near(database: Any) -> tuple[tuple[int, ...], ...]:
    asked = [*({"location": place} for place in PLACES), {"within": SHAPES[5]}]
    return tuple(tuple(sorted(database.match(["near"], **at))) for at in asked)


#: Clients, half of them with an area that follows them
CLIENTS = range(3000, 3100)
_LON = [9.0 if number % 2 else 20.0 for number in CLIENTS]
_LAT = [45.0 if number % 2 else 0.0 for number in CLIENTS]
_BULK_KEYS = range(7000, 7000 + len(BULK))
_STORED_KEYS = range(len(STORED))
_FILTERED_KEYS = range(3000, 3000 + len(WHERE))
_MESSAGE = {"price": 5, "name": "ab", "new": True, "city": ["Rome", "Oslo"]}

_CHANGES: dict[str, tuple[Any, ...]] = {
    "add_set": ("add_set", SINGLE, 1),
    "remove_set": ("remove_set", STORED[7], 7),
    "add_sets": ("add_sets", BULK, _BULK_KEYS),
    "remove_sets": ("remove_sets", STORED[:200], _STORED_KEYS[:200]),
    "consolidate": ("consolidate",),
}
_SOME_BULK = ("add_sets", BULK[:100], _BULK_KEYS[:100])
#: Of these keys some have sets, and others have not
_PUT_ROWS = [(350 + i, tags, WHERE[i], None, None, None) for i, tags in enumerate(BULK[:100])]
_PUT = pa.table({"key": [row[0] for row in _PUT_ROWS], "tags": BULK[:100], "where": pa.array(WHERE, pa.string())})
_STORED: dict[str, Any] = {"saved": True, "segments": True}

CALLS: dict[str, Call] = {
    **{name: _change(*change) for name, change in _CHANGES.items()},
    **{
        f"{name}, {durability}": replace(_change(*_CHANGES[name]), saved=True, durability=durability)
        for name, *durabilities in (
            ("add_set", "os", "fsync"), ("add_sets", "os", "fsync"), ("remove_sets", "none"),
            ("consolidate", None, "none"),
        )
        for durability in durabilities
    },
    **{
        f"{name}, the last before they become columns": _change(*_CHANGES[name], singles=MANY_SINGLES)
        for name in ("add_set", "remove_set")
    },
    **{
        f"{name}, after those of another": replace(_change(*_CHANGES[name]), saved=True, left=True)
        for name in ("add_sets", "consolidate")
    },
    "add_set, with conditions": _change("add_set", SINGLE, 1, where=WHERE[0]),
    "add_sets, with conditions": _change(*_SOME_BULK, where=WHERE),
    "add_sets, with conditions, fsync": replace(_change(*_SOME_BULK, where=WHERE), saved=True, durability="fsync"),
    "remove_sets, with conditions": _change("remove_sets", STORED[:100], _FILTERED_KEYS, where=WHERE),
    "put": _change("put", 7, SINGLE),
    "put, with a condition, os": replace(_change("put", 7, SINGLE, where=WHERE[0]), saved=True, durability="os"),
    "put_many, os": Call(
        lambda case: case.tm.put_many(_PUT), lambda oracle: oracle.put_many(_PUT_ROWS), saved=True, durability="os"
    ),
    "delete, os": replace(_change("delete", 7), saved=True, durability="os"),
    "delete_many": _change("delete_many", _STORED_KEYS[:200]),
    "get": Call(lambda case: case.tm.get(7) is None, lambda oracle: 7 not in oracle.records(), **_STORED),
    "records": Call(lambda case: sorted(case.tm.records), lambda oracle: sorted(oracle.records()), **_STORED),
    "TagMatch": Call(lambda case: TagMatch(**case.options), lambda _: True, _made),
    "open": Call(lambda case: TagMatch.open(case.tm.stats()["path"]), _oracle_answers, _opened, saved=True),
    "consolidate, several segments": Call(_consolidate_and_merge, lambda oracle: oracle.consolidate(), **_STORED),
    "consolidate, full": Call(lambda case: case.tm.consolidate(full=True), **_STORED),
    "merge": Call(
        lambda case: case.tm._engine.changing.merge() and None, lambda _: 0,
        lambda case, _: case.tm.stats()["to_merge"], **_STORED,
    ),
    "save": Call(
        lambda case: case.tm.save(case.path), _oracle_answers, lambda case, _: _opened(case, TagMatch.open(case.path))
    ),
    **{
        name: Call(
            lambda case, copy=copy: copy(case.tm.stats()["path"], case.path),
            lambda oracle: (oracle.staged, _oracle_answers(oracle)), _copied, saved=True,
        )
        for name, copy in {"backup": backup, "restore": partial(restore, replace=True)}.items()
    },
    "move": _change("move", CLIENTS, _LON, _LAT),
    "move, clients that are new": _change("move", range(2000, 9000), [9.0] * 7000, [45.0] * 7000),
    "move, several segments": replace(_change("move", CLIENTS, _LON, _LAT), **_STORED),
    "save_positions": replace(_change("save_positions"), saved=True),
    "match, where": Call(lambda case: _near(case.tm)),
    "match_many, where": _many(
        lambda tm: tm.match_many(located_table([(["near"], At(place, SHAPES[5])) for place in PLACES])),
        lambda oracle: [oracle.match(["near"], location=place, within=SHAPES[5]) for place in PLACES],
    ),
    "explain, where": _same("explain", ["near"], location=PLACES[0], plain=dict),
    "match": _same("match", QUERY, plain=sorted),
    "match_unique": _same("match_unique", QUERY),
    "match_count": _same("match_count", QUERY),
    "match_exists": _same("match_exists", QUERY),
    "match_counts": Call(
        lambda case: case.tm.match_counts(QUERIES), lambda oracle: [len(oracle.match(query)) for query in QUERIES],
        lambda _, found: found.to_pylist(),
    ),
    "match_exists_many": Call(
        lambda case: case.tm.match_exists_many(QUERIES),
        lambda oracle: [bool(oracle.match(query)) for query in QUERIES],
        lambda _, found: found.to_pylist(),
    ),
    "match_best": Call(
        lambda _: _best_of_some(), lambda _: [[2, 1], [2, 1]], lambda _, found: found.to_pylist()
    ),
    "match_many, only": Call(
        lambda _: _only_some(),
        lambda _: [[[*range(1, 300, 10)], []], [sorted([*range(1, 300, 10), *range(0, 300, 30)]), []]],
        lambda _, found: [[sorted(keys) for keys in each.to_pylist()] for each in found],
    ),
    "match_highlights": Call(
        lambda case: case.tm.match_highlights(QUERIES), lambda oracle: [oracle.match(query) for query in QUERIES],
        lambda _, found: [sorted(each["key"] for each in row) for row in found.to_pylist()],
    ),
    "match_many": _many(lambda tm: tm.match_many(QUERIES), lambda oracle: [oracle.match(query) for query in QUERIES]),
    "match_many, a table": Call(
        lambda case: case.tm.match_many(MESSAGES), _oracle_answers, lambda _, answers: _as_answers(answers)
    ),
    "match, attributes": _same("match", QUERY, _MESSAGE, plain=sorted),
    "explain, attributes": _same("explain", QUERY, _MESSAGE, plain=dict),
    "match_many, unique": _many(
        lambda tm: tm.match_many(QUERIES, unique=True),
        lambda oracle: [sorted(oracle.match_unique(query)) for query in QUERIES],
    ),
    "submit": Call(
        lambda case: [future.result() for future in [case.tm.submit(query) for query in SUBMITTED]],
        lambda oracle: [oracle.match(query) for query in QUERIES[:100]], lambda _, answers: list(map(sorted, answers)),
    ),
    "amatch": Call(
        lambda case: asyncio.run(case.tm.amatch(QUERY)), lambda oracle: oracle.match(QUERY),
        lambda _, keys: sorted(keys),
    ),
    "explain": _same("explain", QUERY, plain=dict),
    "explain, a key": Call(
        lambda case: case.tm.explain(QUERY, _MESSAGE, key=3), lambda oracle: 3 in oracle.match(QUERY, _MESSAGE),
        lambda _, found: found.matches,
    ),
    "in": Call(lambda case: QUERY in case.tm),
    "iter": Call(lambda case: dict(case.tm)),
    "to_arrow": Call(
        lambda case: case.tm.to_arrow(), lambda oracle: oracle.times().keys(), lambda _, table: pairs_in(table).keys()
    ),
    "check": Call(lambda case: case.tm.check(), lambda _: None),
    "stats": Call(lambda case: case.tm.stats(), len, lambda _, stats: stats["sets"]),
    "close": Call(lambda case: case.tm.close(), lambda _: None, closes=True),
}  # fmt: skip


def _store(database: Any, first: int = 0, last: int = len(STORED)) -> None:
    """Store sets, or those from one to before another, of whose clients either half comes with sets 0 to 250."""
    some = slice(first, min(last, len(WHERE)))
    database.add_sets(STORED[first:last], _STORED_KEYS[first:last])
    database.add_sets(STORED[some], _FILTERED_KEYS[some], where=WHERE[some])
    for begin, half, area in ((0, slice(50), NEARS[1]), (250, slice(50, 100), SHAPES[1])):
        if first <= begin < last:
            database.add_sets([["near"]] * 50, CLIENTS[half], area=area)
    database.move(CLIENTS[:80], [9.01] * 80, [45.0] * 80)
    database.consolidate()


def _stage(database: Any, singles: int) -> None:
    database.add_sets(STAGED, range(5000, 5000 + len(STAGED)))
    for i in range(singles):
        database.add_set(STAGED[i % len(STAGED)], 6000 + i)


def later(database: Any) -> None:
    """Stage the addition of many sets with new tags, and consolidate."""
    database.add_sets(LATER, range(9000, 9000 + len(LATER)))
    database.consolidate()


class Cases:
    """Cases of one call that are all alike.

    The states before it, after it and after `later`, and what `plain` makes of its result, also of one when it has been
    made already, are the oracle's; and the answers when changes staged before it have taken effect, or after it.
    """

    def __init__(self, name: str, options: dict[str, Any], folder: Path) -> None:
        self.call = CALLS[name]
        self._options = options
        self._template = folder
        if self.call.saved and not folder.exists():
            # A third of the sets in each of three segments, some of whose rows are deleted, or all in one
            parts = [(0, 250), (250, 350), (350, len(STORED))] if self.call.segments else [()]
            with (
                self.surroundings(),
                patch("tagmatch.changing.Changing._begin_merging"),
                TagMatch(folder, **options) as tm,
            ):
                for each in parts:
                    _store(tm, *each)
                found = [tm.stats()[name] > least for name, least in (("segments", 1), ("deleted", 0), ("to_merge", 0))]
                assert found == [self.call.segments] * 3
        oracle = Oracle()
        _store(oracle)
        _stage(oracle, self.call.singles)
        self.before, self.before_in_effect = _oracle_state(oracle), _oracle_answers(oracle.staged_again())
        self.result = self._result_of(oracle)
        self.after, self.after_in_effect = _oracle_state(oracle), _oracle_answers(oracle.staged_again())
        self.again = self._result_of(deepcopy(oracle))
        later(oracle)
        self.later = _oracle_state(oracle)

    def _result_of(self, oracle: Oracle) -> Any:
        asked = Case(oracle)
        return (self.call.expected or (lambda _: self.call.plain(asked, self.call.ask(asked))))(oracle)

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """What is so while the call is made."""
        few = 0 if self.call.segments else FEW_SETS
        # Each look at what answers is one at its files
        looked = patch("tagmatch.changing._FILES_LOOK_S", -math.inf)
        with looked, patch("tagmatch.partitioner.consolidation.FEW_SETS", few):
            yield

    def new(self, folder: Path) -> Case:
        """Return one that nothing has been done to."""
        for name in ("index", "other"):
            shutil.rmtree(folder / name, ignore_errors=True)
        if self.call.saved:
            shutil.copytree(self._template, folder / "index")
            if self.call.left:
                with TagMatch(folder / "index", **self._options) as tm:
                    _stage(tm, self.call.singles)
            tm = TagMatch(folder / "index", **self._options, durability=self.call.durability)
        else:
            tm = TagMatch(**self._options)
            _store(tm)
        if not self.call.left:
            _stage(tm, self.call.singles)
        tm._engine.changing._look_at = -math.inf
        return Case(tm, self._options, folder / "other")


def _oracle_state(oracle: Oracle) -> State:
    return State(oracle.staged, len(oracle), _oracle_answers(oracle), _near(oracle))


def state_of(tm: TagMatch) -> State:
    """Return the visible state of an index, which must be sound."""
    tm.check()
    return State(tm.stats()["staged"], len(tm), _answers(tm), _near(tm))
