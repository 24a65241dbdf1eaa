"""Indexes in formats of earlier versions, in `tests/model/storage/data`, and what is in them.

`python -m support.old_formats FORMAT`, in `tests`, has written those of one format, with the version that has it first
in `PYTHONPATH`, from its commit. It uses the public interface only, so that any version can run it.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

from support.segments import segments_stay

from tagmatch import TagMatch
from tagmatch.model.options import Layout

DATA = Path(__file__).parent.parent / "model" / "storage" / "data"

SETS = [[f"t{i}", f"t{i % 3}", "é", "all"][: i % 5] for i in range(40)]
_INTEGERS = [i if i % 2 else 2**40 + i for i in range(len(SETS))]
_STRINGS = [f"key {i} é" for i in range(len(SETS))]
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
    expires = {"expires": datetime(9000, 1, 1, tzinfo=UTC)} if isinstance(database, TagMatch) else {}
    database.add_sets(SETS[:20], _INTEGERS[:20], **expires)
    database.add_sets(SETS[20:], _INTEGERS[20:])
    database.consolidate()
    database.add_set(["staged"], 9, **expires)


def _with(wheres: list[Any], removed: int) -> Callable[[Any], None]:
    """Sets with conditions or without, in turn; some expire, and some of all are staged."""
    where, late = [wheres[i % len(wheres)] for i in range(len(SETS))], datetime(9000, 1, 1, tzinfo=UTC)

    def change(database: Any) -> None:
        database.add_sets(SETS[:20], _INTEGERS[:20], where=where[:20], expires=late)
        database.add_sets(SETS[20:], _INTEGERS[20:], where=where[20:])
        database.consolidate()
        database.add_set(["staged"], 9, where=where[0], expires=late)
        database.remove_set(SETS[removed], _INTEGERS[removed], where=where[removed])

    return change


def _conditions(database: Any) -> None:
    """Sets with conditions, of which some have alternatives, beside others."""
    # Which versions before format 5 do not have
    from support.conditions import Expression
    from support.trees import And, Not, Or, Tags, Test

    trees = [
        Or((Test("x", "<", (10,)), Not(Test("y", "=", (True,))))),
        And((Test("name", "prefix", ("IB",)), Test("city", "in", ("Rome", "Milan")))),
        And((Not(Tags(("sold",))), Test("x", "!=", (0.5,)))),
        And((Test("list price", "exists", ()), Test("name", "contains", ("é",)))),
    ]
    plain = random.Random(0)
    wheres: list[Any] = [Expression.of(tree, plain) for tree in trees]
    wheres.insert(2, None)
    _with(wheres, 1)(database)


def _areas(database: Any) -> None:
    """Sets with areas of each kind, beside others."""
    # Which versions before format 6 do not have
    from support.conditions import Expression
    from support.trees import Or, Test

    from tagmatch import Where

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
    # Where versions before format 7 have no parts; all machines have pages of this size, or smaller ones
    with patch("tagmatch.model.storage.table_files.PART_BYTES", 1 << 16):
        database.add_sets([*SETS, *([each, "all"] for each in _LONG)], [*_STRINGS, *_LONG])
        database.consolidate()
    database.add_set(["staged"], "nine")


#: By the name of an index, without its layout: the type of its keys, and how it and an oracle are filled
CONTENTS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "format-1": ("integer", _store_all(_INTEGERS)), "format-2": ("string", _store_all(_STRINGS)),
    "format-3": ("integer", _segments), "format-4": ("integer", _expiring), "format-5": ("integer", _conditions),
    "format-6": ("integer", _areas), "format-7": ("string", _parts),
}  # fmt: skip


def main() -> None:
    name = sys.argv[1]
    key_type, fill = CONTENTS[name]
    for each in get_args(Layout):
        path = DATA / f"{name}-{each}.index"
        shutil.rmtree(path, ignore_errors=True)
        options: Any = {"layout": each, "key_type": key_type, "max_partition_size": 7, "device": "cpu", "threads": 1}
        with TagMatch(path, **options) as tm:
            fill(tm)
        for lock in ("LOCK", "WRITER"):
            (path / lock).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
