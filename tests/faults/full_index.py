"""An index with every kind of file: several segments, deletions, and logs of staged changes; and damage to these."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zlib import crc32

from oracle import Oracle
from support.conditions import any_expression
from support.index_files import contents_of
from support.segments import segments_stay

from tagmatch import IndexCorruptError, IndexNotFoundError, IndexVersionError, StagedChangesWarning, TagMatch

TAGS = [f"tag {number}" for number in range(90)]
NOTICED, CUT, NOTHING = "noticed", "cut at the end of the log", "nothing changed"
_OPTIONS: dict[str, Any] = {"threads": 1, "device": "cpu"}
_PARTS = 3
_WHERE = [None, None, None, *(any_expression(random.Random(number), TAGS) for number in range(4))]


def _where_of(key: Any) -> Any:
    """Some sets have conditions: those of some keys."""
    return _WHERE[crc32(str(key).encode()) % len(_WHERE)]


_CALLS_OF_A_LOG = 4


@dataclass
class FullIndex:
    """An index on disk: what is stored; and if none, the first, the first two... of the calls that staged take effect.

    `changes` says how many changes these calls have staged.
    """

    path: Path
    stored: Oracle
    after: list[Oracle] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)


def make_index(path: Path, pairs: Sequence[tuple[list[str], Any]], rng: random.Random, **options: Any) -> FullIndex:
    """Make an index that has these keys of sets, and others staged in two logs."""
    stored = Oracle()
    with (
        segments_stay(),
        TagMatch(path, **_OPTIONS, **options) as tm,
    ):
        for part in range(_PARTS):
            # Fewer and fewer, so that none is taken into the next; and a key that is taken from the one before
            first, last = len(pairs) - (len(pairs) >> 2 * part), len(pairs) - (len(pairs) >> 2 * part + 2)
            some = pairs[first:] if part == _PARTS - 1 else pairs[first:last]
            for database in (tm, stored):
                wheres = [_where_of(key) for _, key in some]
                expires = None if part else datetime(9000, 1, 1, tzinfo=UTC)
                database.add_sets([tags for tags, _ in some], [k for _, k in some], where=wheres, expires=expires)
                if first:
                    database.remove_set(*pairs[first - 1], where=_where_of(pairs[first - 1][1]))
                database.consolidate()
        index = FullIndex(path, stored, [deepcopy(stored)], [0])
        for number in range(2 * _CALLS_OF_A_LOG):
            if number == _CALLS_OF_A_LOG:
                tm._engine._staging.take()  # as a consolidation does that then fails
            _stage(index, tm, pairs, rng)
    return index


def _stage(index: FullIndex, tm: TagMatch[Any], pairs: Sequence[tuple[list[str], Any]], rng: random.Random) -> None:
    staged, count = deepcopy(index.after[-1]), rng.choice([1, 1, 20])
    some = rng.choices(pairs, k=count)
    is_removal = rng.random() < 0.3
    for database in (tm, staged):
        sets, keys = [tags if is_removal else [*tags, "staged"] for tags, _ in some], [key for _, key in some]
        where = [_where_of(key) for key in keys]
        if count == 1:
            (database.remove_set if is_removal else database.add_set)(sets[0], keys[0], where=where[0])
        else:
            (database.remove_sets if is_removal else database.add_sets)(sets, keys, where=where)
    changes = staged.staged
    staged.consolidate()
    index.after.append(staged)
    index.changes.append(index.changes[-1] + changes)


def notice(index: FullIndex, path: Path, *, fewest: int, **options: Any) -> str:
    """Open a damaged copy of an index; returns what becomes of that.

    An error names the index. Damage to the last log may look as if the program had been killed in its last call: then
    changes are gone that calls from number `fewest` on have staged, with a warning if that leaves a part of a call.
    """
    said = ""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with TagMatch.open(path, **_OPTIONS, **options) as tm:
                before, now = contents_of(index.path), contents_of(path)
                staged, stored = tm.stats()["staged"], dict(tm)
                tm.consolidate()
                tm.check()
                in_effect = dict(tm)
        except (IndexCorruptError, IndexNotFoundError, IndexVersionError) as error:
            said = str(error)
    if said:
        assert contents_of(index.path) != contents_of(path), f"an error without damage: {said}"
        assert str(path) in said, f"the message does not name the index: {said}"
        return NOTICED
    damaged = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    assert all(name.startswith("staged-") for name in damaged), f"the damage was not noticed: {damaged}"
    assert staged in index.changes, f"{staged} changes are staged, which no calls have staged"
    calls = index.changes.index(staged)
    assert stored == dict(index.stored), "wrong sets"
    if not damaged:
        assert calls == len(index.changes) - 1
        return NOTHING
    assert calls >= fewest, f"only {calls} calls of {len(index.changes) - 1} are left"
    assert in_effect == dict(index.after[calls]), "not the sets of the calls that are left"
    is_warned = any(each.category is StagedChangesWarning for each in warned)
    sizes = {name: len(contents) for name, contents in now.items() if name in damaged}
    assert is_warned or not sizes or _ends_with_a_call(before, sizes), "changes are cut without a warning"
    return CUT


def _ends_with_a_call(before: dict[str, bytes], sizes: dict[str, int]) -> bool:
    """Whether logs have been cut between two calls, which nothing can show."""
    return all(before[name][size : size + 4] in (b"TMr1", b"") and size >= 40 for name, size in sizes.items())
