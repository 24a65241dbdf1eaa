"""Indexes in formats of earlier versions, in `tests/model/storage/data`, and their contents.

`python -m support.old_formats FORMAT`, in `tests`, has written those of each format when it was the newest one.
"""

import random
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from oracle import And, Not, Or, Tags, Test
from support.conditions import Expression
from support.segments import cut_every, segments_stay

from tagmatch import TagMatch, Where
from tagmatch.model.options import Layout

DATA = Path(__file__).parent.parent / "model" / "storage" / "data"

SETS = [[f"t{i}", f"t{i % 3}", "é", "all"][: i % 5] for i in range(40)]
_INTEGERS = [i if i % 2 else 2**40 + i for i in range(len(SETS))]
_STRINGS = [f"key {i} é" for i in range(len(SETS))]
_LATE = datetime(9000, 1, 1, tzinfo=UTC)
_LONG = [f"{i}" + 50_000 * "long" for i in range(2)]


def _store_all(keys: list[Any]) -> Callable[[Any], None]:
    def change(database: Any) -> None:
        database.add_sets(SETS, keys)
        database.consolidate()

    return change


def _segments(database: Any) -> None:
    """Two segments, with rows of the first deleted, and changes that are staged."""
    with segments_stay():
        _store_all(_INTEGERS)(database)
        database.remove_sets(SETS[5:9], _INTEGERS[5:9])
        database.add_sets([["new"], SETS[3]], [7, 8])
        database.consolidate()
    database.add_sets([["staged"], ["new"]], [9, 10])
    database.remove_set(SETS[11], _INTEGERS[11])


def _expiring(database: Any) -> None:
    """Keys that expire late, and one such that is staged."""
    database.add_sets(SETS[:20], _INTEGERS[:20], expires=_LATE)
    database.add_sets(SETS[20:], _INTEGERS[20:])
    database.consolidate()
    database.add_set(["staged"], 9, expires=_LATE)


def _with(wheres: list[Any], removed: int) -> Callable[[Any], None]:
    """Sets with conditions or without, in turn; some expire, and some of all are staged."""
    where = [wheres[i % len(wheres)] for i in range(len(SETS))]

    def change(database: Any) -> None:
        database.add_sets(SETS[:20], _INTEGERS[:20], where=where[:20], expires=_LATE)
        database.add_sets(SETS[20:], _INTEGERS[20:], where=where[20:])
        database.consolidate()
        database.add_set(["staged"], 9, where=where[0], expires=_LATE)
        database.remove_set(SETS[removed], _INTEGERS[removed], where=where[removed])

    return change


def _conditions(database: Any) -> None:
    """Sets with conditions, some with alternatives, and others."""
    trees = [
        Or((Test("x", "<", (10,)), Not(Test("y", "=", (True,))))),
        And((Test("name", "prefix", ("IB",)), Test("city", "in", ("Rome", "Milan")))),
        And((Not(Tags(("sold",))), Test("x", "!=", (0.5,)))),
        And((Test("list price", "exists", ()), Test("name", "contains", ("é",)))),
    ]
    wheres: list[Any] = [Expression.of(tree, random.Random(0)) for tree in trees]
    wheres.insert(2, None)
    _with(wheres, 1)(database)


def _areas(database: Any) -> None:
    """Sets with areas of each kind, and others."""

    class Elsewhere(Where):
        """An area, in which no message is."""

        tree = Or(())

    def within(area: str) -> Any:
        expression = Expression(f"within {area}")
        expression.alternatives = (frozenset([Elsewhere(expression)]),)
        return expression

    circle, box, near = map(within, ("circle(9.19, 45.46, 5000)", "box(170, -10, -170, 10.5)", "near(500)"))
    _with([circle, box, None, Expression.of(Test("x", "<", (10,)), random.Random(0)), near], 4)(database)


def _parts(database: Any) -> None:
    """Tables that are cut into several files, as a few tags and keys are very long; one change is staged."""
    with cut_every(1 << 16):  # all machines have pages of this size, or smaller ones
        database.add_sets([*SETS, *([each, "all"] for each in _LONG)], [*_STRINGS, *_LONG])
        database.consolidate()
    database.add_set(["staged"], "nine")


def _records(database: Any) -> None:
    """Keys with records, one of them put anew, and others; a change of each kind is staged."""
    wheres = [
        Expression.of(tree, random.Random(0))
        for tree in (Or((Test("x", "<", (10,)), Test("y", "=", (True,)))), Test("name", "prefix", ("IB",)))
    ]
    database.add_sets(SETS, _STRINGS)
    for number, tags in enumerate(SETS[:20]):
        database.put(f"put {number % 15}", tags, where=wheres[number % 2], data={"rank": number, "name": f"é{number}"})
    database.consolidate()
    database.put("put 3", ["staged"], where=wheres[0], data={"rank": -1}, expires=_LATE)
    database.put("nine", ["staged"])
    database.delete("put 4")
    database.delete_many(["put 5", _STRINGS[0]])


#: Columns of data that keys of an index have
COLUMNS = {"format-8": {"name": "string", "rank": "int64"}}
#: By the name of an index, without its layout: the type of its keys, and how it and an oracle are filled
CONTENTS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "format-1": ("integer", _store_all(_INTEGERS)), "format-2": ("string", _store_all(_STRINGS)),
    "format-3": ("integer", _segments), "format-4": ("integer", _expiring), "format-5": ("integer", _conditions),
    "format-6": ("integer", _areas), "format-7": ("string", _parts), "format-8": ("string", _records),
}  # fmt: skip


def main() -> None:
    name = sys.argv[1]
    key_type, fill = CONTENTS[name]
    for each in get_args(Layout):
        path = DATA / f"{name}-{each}.index"
        shutil.rmtree(path, ignore_errors=True)
        options: Any = {"layout": each, "key_type": key_type, "max_partition_size": 7, "device": "cpu", "threads": 1}
        if name in COLUMNS:
            options["data"] = COLUMNS[name]
        with TagMatch(path, **options) as tm:
            fill(tm)
        for lock in ("LOCK", "WRITER"):
            (path / lock).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
