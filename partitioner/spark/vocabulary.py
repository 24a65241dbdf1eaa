"""Step 2: the vocabulary of all shards, ranked, and with it the sets of each shard as ranks.

A task adds up the frequencies of the tags whose hashes are in a range of its own. Ranks go by frequency, and then by
hash; so how many tags of each frequency each task has is enough to tell all ranks, and the driver knows that. No tag is
sent a second time, and none looked up: a task says of each shard where the tags are that it has sent, in their order.

The ranks of the tags that tasks have added up, and the file of the vocabulary, which is made of their tables.

Each task has the tags of a range of hashes in the order of a vocabulary: by frequency, and then by hash. Of the tags of
one frequency, those of tasks with lower hashes come first. So a task's tags have ascending ranks, consecutive ones for
each frequency.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.arrays import (
    I64Array,
    Lists,
    Strings,
    U8Array,
    U32Array,
    U64Array,
    frozen,
    list_offsets,
    offsets_of,
)
from tagmatch.model.arrow import from_lists, from_strings, to_lists, to_numbers, to_strings
from tagmatch.model.errors import TagMatchError
from tagmatch.model.kernels.jit import copy, kernel
from tagmatch.model.kernels.lists import gather_strings, relabel
from tagmatch.model.storage.files import Entry
from tagmatch.model.storage.table_files import TableFile
from tagmatch.model.storage.tables import kinds_of
from tagmatch.model.tag_order import grouped_by_hash
from tagmatch.partitioner.local import by_frequency
from tagmatch.partitioner.spark.batches import (
    SERIALIZED,
    Batches,
    Scratch,
    Serializer,
    deserialized,
    for_each,
    groups_by_hash,
    labels_for_all,
    number_of_task,
    one_row,
)
from tagmatch.partitioner.spark.joined import Joined, JoinedTable, write_files
from tagmatch.partitioner.spark.shards import Shards

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_T = TypeVar("_T")

_RANKS = "ranks-of-tasks"


@dataclass(frozen=True, slots=True, eq=False)
class TaskRanks:
    """The ranks of the tags of one task."""

    places: I64Array  # Where the tags of each frequency begin in the task's table, and how many tags it has
    ranks: I64Array  # Of the tags with which each begins

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
    """The ranks of the tags of all tasks, which lie in the scratch folder."""

    scratch: Scratch
    tasks: tuple[int, ...]  # By their hashes
    count: int  # Tags of all tasks

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


# -- what tasks read of the tables of others (see `Read`) -----------------------------------------------------------


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


_TOTALS = "totals"
_TOTAL = (
    "task long, bytes long, first_group long, last_group long, kinds string, "
    "frequencies array<long>, counts array<long>"
)
_COLUMNS = ["strings", "hashes", "frequencies"]


@dataclass(frozen=True, slots=True)
class ShardTags:
    """The vocabulary of a job, whose files are those that the segment will have; tasks memory-map them."""

    scratch: Scratch
    count: int
    files: dict[str, Entry]  # What manifests say of the files, by their names
    kinds: Entry  # What `kinds_of` says of the tags
    ranks: Ranks  # Of the tags of each task, in whose tables it also is where those of each shard are

    def hashes(self) -> U64Array:
        """The hash of each tag, by rank."""
        hashes: U64Array = to_numbers(self.scratch.read_table("vocabulary", self.files)["hash"])
        return hashes

    def rank_sets(self, shard: int) -> Lists:
        """The sets of a shard as ascending ranks."""
        found = [np.zeros(0, np.uint32)]
        for task, ranked in self.ranks.of_tasks():
            shards, places = (self.scratch.read(_TOTALS, task, name, keep=True) for name in ("shards", "places"))
            row = int(np.searchsorted(to_numbers(shards), shard))
            if row < len(shards) and shards[row].as_py() == shard:
                of_shard = to_lists(places)
                found.append(ranked.of(of_shard.values[of_shard.offsets[row] : of_shard.offsets[row + 1]]))
        return relabel(to_lists(self.scratch.read("shard", shard, "ranks")), np.concatenate(found))


def build_vocabulary(spark: SparkSession, scratch: Scratch, shards: Shards) -> ShardTags:
    """Leave the vocabulary in the scratch folder, and where the tags of each shard are in it."""
    labels = labels_for_all(spark)
    sent = for_each(spark, shards.numbers, partial(_tags_of_shard, scratch, labels), SERIALIZED).repartition("label")
    added = sent.mapInArrow(partial(_add_up, scratch, len(labels)), _TOTAL).collect()
    totals = sorted(added, key=lambda row: row.first_group)
    if any(lower.last_group >= upper.first_group for lower, upper in pairwise(totals)):
        raise TagMatchError(
            "Spark has put partitions of a shuffle together that are not neighbours, so tags cannot be ranked; please "
            "report this, with the version of Spark and its settings"
        )
    ranks = Ranks.of(scratch, totals)
    (files,) = write_files(spark, scratch, [vocabulary_file(scratch, _TOTALS, ranks, sum(row.bytes for row in totals))])
    kinds: Entry = {name: value for row in totals for name, value in json.loads(row.kinds).items()}
    return ShardTags(scratch, ranks.count, files, kinds, ranks)


def _tags_of_shard(scratch: Scratch, labels: I64Array, shard: int) -> Iterator[pa.RecordBatch]:
    """Send a shard's tags, which come by their hashes, and their frequencies to the tasks of these hashes."""
    columns = [scratch.read("shard", shard, name) for name in ("tags", "hashes", "frequencies")]
    groups = groups_by_hash(to_numbers(columns[1]), len(labels))
    firsts = np.searchsorted(groups, np.arange(len(labels) + 1))
    serializer = Serializer()
    serializer.add_groups(firsts, labels, np.full(len(labels), shard), pa.record_batch(columns, _COLUMNS))
    yield from serializer.take()


def _add_up(scratch: Scratch, groups: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Add the frequencies of each tag up: all occurrences of a tag meet in one task.

    Leaves the tags in the order of a vocabulary and, for each shard, the places of those that it has sent.
    """
    shards, firsts, records = _received(batches)
    if not shards:
        return
    received, (hashes, frequencies) = to_strings(records.column(0)), map(to_numbers, records.columns[1:])
    order, repeated = grouped_by_hash(received, hashes)
    different = np.flatnonzero(~repeated)
    sums = np.add.reduceat(frequencies[order], different)
    ranked = by_frequency(sums, np.arange(len(sums), dtype=np.uint32))
    place_of = np.empty(len(ranked), np.uint32)
    place_of[ranked] = np.arange(len(ranked), dtype=np.uint32)
    places = np.empty(len(order), np.uint32)
    places[order] = np.repeat(place_of, np.diff(different, append=len(order)))
    chosen, task = order[different[ranked]], number_of_task()
    tags = gather_strings(received, chosen)
    scratch.write(
        _TOTALS,
        task,
        strings=from_strings(tags),
        hashes=pa.array(hashes[chosen]),
        frequencies=pa.array(sums[ranked]),
        shards=pa.array(shards),
        places=from_lists(Lists(firsts, places)),
    )
    found, counts = np.unique(sums, return_counts=True)
    first_group, last_group = groups_by_hash(hashes[order[[0, -1]]], groups).tolist()
    yield one_row(
        task=task,
        bytes=int(tags.offsets[-1]),
        first_group=first_group,
        last_group=last_group,
        kinds=json.dumps(kinds_of(tags)),
        frequencies=found.astype(np.int64),
        counts=counts,
    )


def _received(batches: Batches) -> tuple[list[int], I64Array, pa.RecordBatch]:
    """What shards have sent, one after the other, each in the order in which it had it."""
    by_shard: dict[int, list[pa.RecordBatch]] = {}
    for shard, records in deserialized(batches):
        # Large strings, as those of many batches come together
        by_shard.setdefault(shard, []).append(records.set_column(0, "strings", records[0].cast(pa.large_string())))
    shards = sorted(by_shard)
    firsts = offsets_of(np.array([sum(map(len, by_shard[shard])) for shard in shards], np.int64))
    # A task's twin gets batches in another order
    parts = [records for shard in shards for records in sorted(by_shard[shard], key=_first_tag)]
    return shards, firsts, pa.concat_batches(parts) if parts else pa.record_batch({})


def _first_tag(records: pa.RecordBatch) -> tuple[int, bytes]:
    return records["hashes"][0].as_py(), records["strings"][0].as_buffer().to_pybytes()
