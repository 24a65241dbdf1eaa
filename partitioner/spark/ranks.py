"""The ranks of the tags that tasks have added up, and the file of the vocabulary, which is made of their tables.

Each task has the tags of a range of hashes in the order of a vocabulary: by frequency, and then by hash. Of the tags of
one frequency, those of tasks with lower hashes come first. So a task's tags have ascending ranks, consecutive ones for
each frequency.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Lists, Strings, U8Array, U32Array, frozen, list_offsets, offsets_of
from tagmatch.model.arrow import from_lists, from_strings, to_lists, to_numbers, to_strings
from tagmatch.model.kernels.copying import copy
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.storage.table_files import TableFile
from tagmatch.partitioner.spark.joined import Joined, JoinedTable
from tagmatch.partitioner.spark.scratch import Scratch

_T = TypeVar("_T")

_RANKS = "ranks-of-tasks"


@dataclass(frozen=True, slots=True, eq=False)
class TaskRanks:
    """The ranks of the tags of one task.

    Attributes
    ----------
    places : int64 array
        Where the tags of each frequency begin in the task's table, and how many tags it has.
    ranks : int64 array
        Of the tags with which each begins.
    """

    places: I64Array
    ranks: I64Array

    def of(self, places: U32Array) -> U32Array:
        """The ranks of the tags at these places."""
        out = np.empty(len(places), np.uint32)
        _ranks_of(frozen(places), self.places, self.ranks, out)
        return out

    def before(self, rank: int) -> int:
        """How many of the task's tags have a lower rank."""
        group = int(np.searchsorted(self.ranks, rank, "right")) - 1
        if group < 0:
            return 0
        return min(int(self.places[group]) + rank - int(self.ranks[group]), int(self.places[group + 1]))


@kernel
def _ranks_of(places, starts, ranks, out):
    for i in range(len(places)):
        # Most tags are rare, so the search begins with the lowest frequencies
        low, high = 0, 1
        while high < len(starts) - 1 and starts[high] <= places[i]:
            low, high = high, 2 * high
        high = min(high, len(starts) - 1)
        while high - low > 1:
            middle = (low + high) >> 1
            if starts[middle] <= places[i]:
                low = middle
            else:
                high = middle
        out[i] = ranks[low] + places[i] - starts[low]


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of the tags of all tasks, which lie in the scratch folder.

    Attributes
    ----------
    scratch : Scratch
    tasks : tuple of int
        By their hashes.
    count : int
        Tags of all tasks.
    """

    scratch: Scratch
    tasks: tuple[int, ...]
    count: int

    @classmethod
    def of(cls, scratch: Scratch, totals: Sequence[Any]) -> Ranks:
        """Find them, given how many tags of each frequency there are in each task, in the order of their hashes."""
        counts = [np.array(each.counts, np.int64) for each in totals]
        every = np.concatenate([np.zeros(0, np.int64), *(np.array(each.frequencies, np.int64) for each in totals)])
        frequencies, which = np.unique(every, return_inverse=True)
        summed = np.zeros(len(frequencies), np.int64)
        np.add.at(summed, which, np.concatenate([np.zeros(0, np.int64), *counts]))
        *next_ranks, count = offsets_of(summed)
        free = np.array(next_ranks, np.int64)
        places, ranks = list[I64Array](), list[I64Array]()
        for each, own in zip(totals, counts, strict=True):
            found = np.searchsorted(frequencies, np.array(each.frequencies, np.int64))
            places.append(offsets_of(own))
            ranks.append(free[found])
            free[found] += own
        scratch.write(_RANKS, 0, places=_lists(places), ranks=_lists(ranks))
        return cls(scratch, tuple(each.task for each in totals), int(count))

    def of_tasks(self) -> Iterator[tuple[int, TaskRanks]]:
        """The number of each task, and the ranks of its tags."""
        places, ranks = (to_lists(self.scratch.read(_RANKS, 0, name, keep=True)) for name in ("places", "ranks"))
        for i, task in enumerate(self.tasks):
            yield task, TaskRanks(_row(places, i), _row(ranks, i))


def _row(lists: Lists, row: int) -> I64Array:
    return lists.values[lists.offsets[row] : lists.offsets[row + 1]].view(np.int64)


def _lists(rows: Sequence[I64Array]) -> pa.Array:
    values = np.concatenate([np.zeros(0, np.int64), *rows])
    return from_lists(Lists(offsets_of(np.array([len(row) for row in rows], np.int64)), values.astype(np.uint64)))


def vocabulary_file(scratch: Scratch, source: str, ranks: Ranks, nbytes: int) -> TableFile:
    """The file of a vocabulary, of which tasks have left tables `source`: `strings`, `hashes`, `frequencies`.

    All strings together have that many bytes.
    """
    table = JoinedTable(scratch, source, ranks.tasks)
    offsets = np.dtype(list_offsets(np.array([nbytes])).dtype)
    ends = table.array(Joined(offsets, np.array([0, ranks.count + 1]), partial(_offsets, ranks, source)))
    ends[-1] = nbytes  # which Arrow looks at
    text = table.array(Joined(np.dtype(np.uint8), np.array([0, nbytes]), partial(_text, ranks, source)))

    def numbers(column: str, dtype: npt.DTypeLike) -> pa.Array:
        kind = np.dtype(dtype)
        rows = Joined(kind, np.array([0, ranks.count]), partial(_numbers, ranks, source, column, kind))
        return pa.array(table.array(rows))

    return table.file(
        "vocabulary",
        tag=from_strings(Strings(ends, text)),
        hash=numbers("hashes", np.uint64),
        frequency=numbers("frequencies", np.uint32),
    )


# -- what tasks read of the tables of others, as of `Read` -----------------------------------------------------------


def _tables(ranks: Ranks, source: str, column: str) -> list[tuple[TaskRanks, pa.Array]]:
    return [(ranked, ranks.scratch.read(source, task, column, keep=True)) for task, ranked in ranks.of_tasks()]


def _strings(ranks: Ranks, source: str) -> list[tuple[TaskRanks, Strings]]:
    return [(ranked, to_strings(strings)) for ranked, strings in _tables(ranks, source, "strings")]


def _in_ranks(tables: Iterable[tuple[TaskRanks, _T]], first: int, last: int) -> Iterator[tuple[_T, int, int, U32Array]]:
    """Tables that have tags with some ranks, from which place to which, and by how much each rank is above `first`."""
    for ranked, table in tables:
        begin, end = ranked.before(first), ranked.before(last)
        if begin < end:
            yield table, begin, end, ranked.of(np.arange(begin, end, dtype=np.uint32)) - np.uint32(first)


def _numbers(
    ranks: Ranks, source: str, column: str, dtype: np.dtype[Any], _: int, first: int, last: int
) -> npt.NDArray[Any]:
    numbers = np.empty(last - first, dtype)
    for table, begin, end, places in _in_ranks(_tables(ranks, source, column), first, last):
        numbers[places] = to_numbers(table)[begin:end]
    return numbers


def _bytes_before(tables: Iterable[tuple[TaskRanks, Strings]], rank: int) -> int:
    """How many bytes the strings with lower ranks have."""
    return sum(int(strings.offsets[ranked.before(rank)]) for ranked, strings in tables)


def _ends(tables: Sequence[tuple[TaskRanks, Strings]], first: int, last: int) -> I64Array:
    """Elements `first` to `last` of the offsets of all strings."""
    lengths = np.zeros(last - first, np.int64)
    lengths[0] = _bytes_before(tables, first)
    for strings, begin, end, places in _in_ranks(tables, first, last - 1):
        lengths[places + np.uint32(1)] = np.diff(strings.offsets[begin : end + 1])
    ends: I64Array = np.cumsum(lengths)
    return ends


def _offsets(ranks: Ranks, source: str, _: int, first: int, last: int) -> I64Array:
    return _ends(_strings(ranks, source), first, last)


def _text(ranks: Ranks, source: str, _: int, first: int, last: int) -> U8Array:
    """Bytes `first` to `last` of the text of all strings."""
    tables, every = _strings(ranks, source), range(ranks.count + 1)
    before = partial(_bytes_before, tables)
    begin, end = bisect_right(every, first, key=before) - 1, bisect_left(every, last, key=before)
    ends = _ends(tables, begin, end + 1)
    text = np.empty(int(ends[-1] - ends[0]), np.uint8)
    for strings, low, high, places in _in_ranks(tables, begin, end):
        _place(strings.offsets, strings.data, low, high, ends[places] - ends[0], text)
    return text[first - ends[0] : last - ends[0]]


@kernel
def _place(offsets, data, first, last, places, out):
    for i in range(first, last):
        copy(data, offsets[i], offsets[i + 1], out, places[i - first])
