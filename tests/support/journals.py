"""Logs of staged changes: calls that are logged, and what logs hold, in plain Python."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st
from support import strategies
from support.dictionaries import encoded

from tagmatch.model.arrays import Strings, TagLists
from tagmatch.model.columns import KEY_CHECKS, rows_of_tags, tag_lists
from tagmatch.model.options import Durability
from tagmatch.model.storage.folders import LocalFolder
from tagmatch.model.storage.log import Journal, scan
from tagmatch.model.storage.log_records import Logged, Record, bulk_record, single_record

#: Tags, a key, and whether the pair is removed
Change = tuple[list[str], Any, bool]

FIRST = 3


@dataclass(frozen=True)
class Call:
    """One call that stages changes: what it changes, and the record of that."""

    changes: list[Change]
    record: Record


def single(tags: list[str], key: int | str, *, removed: bool = False) -> Call:
    return Call([(tags, key, removed)], single_record(tags, key, removed=removed))


def bulk(chunks: list[TagLists], rows: list[list[str]], keys: list[Any], *, removed: bool = False) -> Call:
    checks = KEY_CHECKS["string" if keys and isinstance(keys[0], str) else "integer"]
    changes = [(row, key, removed) for row, key in zip(rows, keys, strict=True)]
    return Call(changes, bulk_record(chunks, checks.many(keys, "keys"), removed=removed))


def journal_in(folder: Path, first: int = FIRST) -> Journal:
    return Journal.acquire(LocalFolder(folder), lambda: first)


def append(journal: Journal, record: Record, durability: Durability) -> None:
    position = journal.write(record)
    if durability == "fsync":
        journal.sync(position)


class Staged(NamedTuple):
    """What logs hold, and what opening the index would cut."""

    changes: int
    records: int
    nbytes: int
    torn_bytes: int
    torn_records: int


def peek(folder: Path, first: int) -> Staged:
    logs = [
        (log.rows, log.records, log.end, log.torn_bytes, log.torn_records) for log in scan(LocalFolder(folder), first)
    ]
    return Staged(*map(sum, zip(*[(0,) * 5, *logs], strict=True)))


ROWS = [["d"], [], ["e", "é"]]
CALLS = [
    single(["a", "b"], 1),
    bulk([rows_of_tags(ROWS)], ROWS, [2, 3, 2**64 - 1], removed=True),
    single([], 4, removed=True),
    single(["c"], 5),
]


def texts_in(strings: Strings) -> list[str]:
    data = strings.data.tobytes()
    ends = strings.offsets.tolist()
    return [data[begin:end].decode() for begin, end in itertools.pairwise(ends)]


def rows_in(chunk: TagLists) -> list[list[str]]:
    texts = texts_in(chunk.tags)
    if chunk.indices is not None:
        texts = [texts[i] for i in chunk.indices.tolist()]
    ends = chunk.offsets.tolist()
    return [texts[begin:end] for begin, end in itertools.pairwise(ends)]


def changes_in(logged: Iterable[Logged]) -> list[Change]:
    found: list[Change] = []
    for each in logged:
        rows = [row for chunk in each.chunks for row in rows_in(chunk)]
        keys = texts_in(each.keys) if isinstance(each.keys, Strings) else each.keys.tolist()
        found += zip(rows, keys, each.removed.tolist(), strict=True)
    return found


def changes_of(calls: Iterable[Call]) -> list[Change]:
    return [change for call in calls for change in call.changes]


def acquired(folder: Path) -> list[Change]:
    """What the program that opens an index next replays."""
    journal = journal_in(folder)
    try:
        return changes_in(journal.replay())
    finally:
        journal.close()


def write_all(folder: Path, calls: Iterable[Call]) -> None:
    journal = journal_in(folder)
    for call in calls:
        append(journal, call.record, "os")
    journal.close()


@st.composite
def sliced_chunks(draw: st.DrawFn) -> tuple[list[TagLists], list[list[str]]]:
    """Rows of tags in chunks of any shape; some begin or end within their arrays."""
    rows = draw(st.lists(strategies.tag_sets, max_size=6))
    if draw(st.booleans()):
        chunks = [rows_of_tags(rows)]
    else:
        rows, array = draw(encoded(rows))
        chunks = tag_lists(array, "tags", stored=True)
    found = []
    for chunk in chunks:
        begin = draw(st.integers(0, len(chunk)))
        end = draw(st.integers(begin, len(chunk)))
        found.append(TagLists(chunk.offsets[begin : end + 1], chunk.tags, chunk.indices, chunk.memo))
    return found, [row for chunk in found for row in rows_in(chunk)]
