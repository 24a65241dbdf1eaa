"""Tables of a job that no task holds as a whole: any, in runs; keys that are strings; the vocabulary.

The columns of a table lie among the files of a job, in runs one after the other. Which bytes a part of its file has
follows from the lengths of the runs, which the driver knows: so each task writes some parts, and reads what these need.

Keys that are strings each shard numbers by itself, and a step for all: Spark itself finds the different ones and sorts
them by their bytes, as it does on disk where memory is short.

Ranks of tags go by frequency, and then by hash. A task adds up the frequencies of the tags whose hashes are in a range
of the task; so how many tags of each frequency each task has is enough to tell all ranks, and the driver knows that.
No tag is looked up: a task keeps of each shard where the tags are that it has sent, in their order, and sends it their
ranks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.arrays import I64Array, IntArray, Lists, Strings, U32Array, U64Array, list_offsets, offsets_of
from tagmatch.model.arrow import (
    are_strings,
    from_lists,
    from_strings,
    from_words,
    to_lists,
    to_numbers,
    to_strings,
    to_words,
)
from tagmatch.model.columns import string_keys
from tagmatch.model.errors import TagMatchError
from tagmatch.model.kernels.hashing import SIGNATURE_WORDS
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import compare_to, gather_strings, relabel
from tagmatch.model.options import KeyType, LayoutOptions
from tagmatch.model.storage import tables
from tagmatch.model.storage.files import Entry
from tagmatch.model.storage.tables import Piece, TableFile, kinds_of, table_file, table_of
from tagmatch.model.tables import NEVER, KeyTable, grouped_by_hash
from tagmatch.partitioner.local import by_frequency
from tagmatch.partitioner.spark.batches import (
    SERIALIZED,
    Batches,
    Scratch,
    by_number,
    deserialized,
    for_each,
    grouped,
    groups_by_hash,
    in_groups,
    labels_for,
    labels_for_all,
    number_of_task,
    one_row,
    serialized,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WRITTEN = "part long, entry string"

#: A number for each run
Counts: TypeAlias = Sequence[int] | I64Array


@dataclass(frozen=True, slots=True, eq=False)
class _Joined:
    """An array of runs, readable at any byte: see `Piece`."""

    dtype: np.dtype[Any]
    starts: I64Array  # the place of the first element of each run, and how many elements there are
    # gives the elements of a run, by its number, from one place in it to another, in any type that `dtype` has room for
    read_run: Callable[[int, int, int], npt.NDArray[Any]]

    def __len__(self) -> int:
        return int(self.starts[-1]) * self.dtype.itemsize

    def __getitem__(self, some: slice) -> memoryview:
        """As `Piece` says."""
        first, last, size = some.start, some.stop, self.dtype.itemsize
        low, high = first // size, -(-last // size)
        array = np.empty(high - low, self.dtype)
        begin, end = np.searchsorted(self.starts, [low, high], "right")
        for run in range(begin - 1, min(end, len(self.starts) - 1)):
            base = int(self.starts[run])
            start, stop = max(low, base), min(high, int(self.starts[run + 1]))
            if start < stop:
                array[start - low : stop - low] = self.read_run(run, start - base, stop - base)
        return memoryview(array.data).cast("B")[first - low * size : last - low * size]


class JoinedTable:
    """Puts columns together from their shapes, each run from one table of the scratch folder."""

    def __init__(self, scratch: Scratch, source: str, numbers: Sequence[int]) -> None:
        self._where = scratch, source, tuple(numbers)
        self._pieces: dict[int, Piece] = {}

    def array(
        self, dtype: npt.DTypeLike, lengths: Counts, read_run: Callable[[int, int, int], npt.NDArray[Any]]
    ) -> npt.NDArray[Any]:
        """An array with the shape of one of runs with these lengths, which are read as `_Joined.read_run` says."""
        joined = _Joined(np.dtype(dtype), offsets_of(np.array(lengths, np.int64)), read_run)
        array = self._where[0].new_array(int(joined.starts[-1]), joined.dtype)
        if len(array):
            self._pieces[array.ctypes.data] = joined
        return array

    def numbers(self, column: str, counts: Counts, dtype: npt.DTypeLike, bases: I64Array | None = None) -> pa.Array:
        """A column of numbers, as many as `counts` says in each table; with a base of each table added to them."""
        return pa.array(self._values(column, counts, dtype, bases))

    def words(self, column: str, counts: Counts) -> pa.Array:
        """A column of signatures or masks."""
        words = self._values(column, [SIGNATURE_WORDS * count for count in counts], np.uint64)
        return from_words(words.reshape(-1, SIGNATURE_WORDS))

    def lists(self, column: str, counts: Counts, totals: Counts, dtype: npt.DTypeLike) -> pa.Array:
        """A column of lists, as many as `counts` says in each table, and `totals` values in them."""
        return from_lists(Lists(self._offsets(column, counts, totals), self._values(column, totals, dtype)))

    def strings(self, column: str, counts: Counts, nbytes: Counts, *, wide: bool = False) -> pa.Array:
        """A column of strings, as `lists`; with offsets of 64 bits if `wide`."""
        offsets = self._offsets(column, counts, nbytes, wide=wide)
        return from_strings(Strings(offsets, self._values(column, nbytes, np.uint8)))

    def file(self, name: str, /, **columns: pa.Array) -> TableFile:
        """The file of the table with these columns, all that were made last; any process can write parts of it."""
        pieces, self._pieces = self._pieces, {}  # addresses may be used again
        return table_file(name, table_of(**columns), pieces)

    def _values(
        self, column: str, counts: Counts, dtype: npt.DTypeLike, bases: I64Array | None = None
    ) -> npt.NDArray[Any]:
        def read_run(run: int, first: int, last: int) -> npt.NDArray[Any]:
            values = _offsets_and_values(scratch.read(source, numbers[run], column))[1][first:last]
            return values if bases is None else values + bases[run]

        scratch, source, numbers = self._where
        return self.array(dtype, counts, read_run)

    def _offsets(self, column: str, counts: Counts, totals: Counts, *, wide: bool = False) -> IntArray:
        def read_run(run: int, first: int, last: int) -> npt.NDArray[Any]:
            if run == 0:  # the first offset, which is 0
                return np.zeros(1, np.int64)
            ends = _offsets_and_values(scratch.read(source, numbers[run - 1], column))[0][first + 1 : last + 1]
            return ends + bases[run - 1]  # type: ignore[no-any-return]

        scratch, source, numbers = self._where
        lengths = np.array(totals, np.int64)
        bases = offsets_of(lengths)
        offsets: IntArray = self.array(np.int64 if wide else list_offsets(lengths).dtype, [1, *counts], read_run)
        offsets[-1] = bases[-1]  # which Arrow looks at
        return offsets


def _offsets_and_values(array: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """What an array is made of; offsets only lists and strings have."""
    kind, none = array.type, np.zeros(0, np.int64)
    if are_strings(kind):
        strings = to_strings(array)
        return strings.offsets, strings.data
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lists = to_lists(array)
        return lists.offsets, lists.values
    return none, to_words(array).reshape(-1) if pa.types.is_nested(kind) else array.to_numpy()


def write_files(spark: SparkSession, scratch: Scratch, files: Sequence[TableFile]) -> list[dict[str, Entry]]:
    """Write the files of tables to the scratch folder, with one task for each large part."""
    parts = [(file, number) for file in files for number in range(file.parts)]
    groups = grouped(range(len(parts)), [file.part_size(number) for file, number in parts], tables.PART_BYTES)

    def write(group: int) -> Iterator[pa.RecordBatch]:
        for place in groups[group]:
            file, number = parts[place]
            with scratch.files.new(file.part_name(number)) as path:
                entry = file.write(number, path)
            yield one_row(part=place, entry=json.dumps(entry))

    rows = for_each(spark, range(len(groups)), write, _WRITTEN).collect()
    # In the order of the parts
    entries = iter([json.loads(row.entry) for row in sorted(rows, key=lambda row: row.part)])
    return [{file.part_name(number): next(entries) for number in range(file.parts)} for file in files]


# -- keys --------------------------------------------------------------------------------------------------------------

_SORTED = "sorted_names"
_NAME = "name string"
_RANGE = "number long, rows long, bytes long"

# Strings that are handed to Spark at once
_BATCH_NAMES = 1 << 14


@dataclass(frozen=True, slots=True)
class Job:
    """What all tasks of a job know, and how they leave keys of sets."""

    scratch: Scratch
    key_type: KeyType
    layout: LayoutOptions
    sets_per_task: int
    expire: bool = False  # whether keys may expire: then tables have a time for each key, which of most is `NEVER`
    # what manifests say of the files of those that are strings, by their names, once they are numbered for all shards
    names: dict[str, Entry] | None = None
    plane: bool = False  # whether areas of rows are on the plane

    def columns(self, table: KeyTable) -> dict[str, pa.Array]:
        """The columns of a shard, or of a slice, with these keys."""
        columns = {"keys": from_lists(table.keys)}
        if table.names is not None:
            columns["names"] = from_strings(table.names)
        if self.expire:
            times = np.full(len(table.keys.values), NEVER) if table.expires is None else table.expires
            columns["expires"] = pa.array(times)
        return columns

    def of_shard(self, shard: int, table: str = "shard") -> KeyTable:
        """The keys of each set of a shard, which has numbered those that are strings by itself."""
        read = partial(self.scratch.read, table, shard)
        names = to_strings(read("names")) if self.key_type == "string" else None
        return KeyTable(to_lists(read("keys")), names, to_numbers(read("expires")) if self.expire else None)

    def as_numbers(self, shard: int) -> KeyTable:
        """The keys of each set of a shard, uint64; in place of those that are strings, their numbers for all."""
        table = self.of_shard(shard)
        values = table.keys.values
        if table.names is not None:
            assert self.names is not None
            known = to_strings(self.scratch.read_table("key_names", self.names)["name"])
            numbers = np.empty(len(table.names), np.uint64)
            _find_in_order(table.names.offsets, table.names.data, known.offsets, known.data, numbers)
            values = numbers[values]
        return KeyTable(Lists(table.keys.offsets, values.astype(np.uint64)), expires=table.expires)


@kernel
def _find_in_order(offsets, data, known_offsets, known_data, out):
    """The place of each string among known strings, which include it; both are in the order of their bytes."""
    first = 0
    for i in range(len(out)):
        begin, end = offsets[i], offsets[i + 1]
        # In strides that double, then by halves
        stride, last = 1, first
        while last < len(known_offsets) - 1 and compare_to(known_offsets, known_data, last, data, begin, end) < 0:
            first, last, stride = last + 1, last + stride, 2 * stride
        last = min(last, len(known_offsets) - 1)
        while first < last:
            middle = (first + last) >> 1
            if compare_to(known_offsets, known_data, middle, data, begin, end) < 0:
                first = middle + 1
            else:
                last = middle
        out[i] = first


def number_names(spark: SparkSession, scratch: Scratch, shards: Sequence[int]) -> dict[str, Entry]:
    """Number the keys of all shards, which are strings; what manifests say of the segment's files with them."""

    def names_of(shard: int) -> Iterator[pa.RecordBatch]:
        names = scratch.read("shard", shard, "names")
        for first in range(0, len(names), _BATCH_NAMES):
            yield pa.record_batch({"name": names.slice(first, _BATCH_NAMES)})

    def write_range(batches: Batches) -> Iterator[pa.RecordBatch]:
        if chunks := [batch.column(0) for batch in batches if len(batch)]:
            names, number = string_keys(pa.chunked_array(chunks), "key"), number_of_task()
            scratch.write(_SORTED, number, strings=from_strings(names))
            yield one_row(number=number, rows=len(names), bytes=int(names.offsets[-1]))

    # Partitions are numbered in the order of their ranges, also where Spark puts small ones together
    ranges = for_each(spark, shards, names_of, _NAME).distinct().repartitionByRange("name")
    made = ranges.sortWithinPartitions("name").mapInArrow(write_range, _RANGE).collect()
    found = sorted(made, key=lambda row: row.number)
    table = JoinedTable(scratch, _SORTED, [row.number for row in found])
    names = table.strings("strings", [row.rows for row in found], [row.bytes for row in found], wide=True)
    (files,) = write_files(spark, scratch, [table.file("key_names", name=names)])
    return files


# -- vocabulary --------------------------------------------------------------------------------------------------------

_TOTALS, _FIRST_RANKS, _RANKS, _RANKED = "totals", "first-ranks", "ranks", "ranked-tags"
_TOTAL = "task long, first_group long, last_group long, kinds string, frequencies array<long>, counts array<long>"
_COLUMNS = ["strings", "hashes", "frequencies"]

#: Tags whose hashes a task maps into memory, at most: 256 MiB
MAPPED_TAGS = 1 << 25


@dataclass(frozen=True, slots=True)
class ShardTags:
    """The vocabulary of a job, whose files are those that the segment will have; tasks memory-map them."""

    scratch: Scratch
    tasks: tuple[int, ...]  # those that have added up frequencies, by their hashes
    count: int
    files: dict[str, Entry]  # what manifests say of the files, by their names
    kinds: Entry  # what `kinds_of` says of the tags
    maps_hashes: bool  # whether tasks may map the hashes of all tags; else sets come with their signatures

    def hashes(self) -> U64Array:
        """The hash of each tag, by rank."""
        hashes: U64Array = to_numbers(self.scratch.read_table("vocabulary", self.files)["hash"])
        return hashes

    def for_shards(
        self,
        spark: SparkSession,
        shards: Sequence[int],
        work: Callable[[int, Iterable[pa.RecordBatch]], Batches],
        schema: str,
    ) -> DataFrame:
        """Return the rows of `work(shard, ranks)` for every shard; `rank_sets` takes these ranks."""
        labels = dict(zip(shards, labels_for(spark, max(1, len(shards)))[0].tolist(), strict=False))
        sent = for_each(spark, range(max(1, len(self.tasks))), partial(self._send, labels), SERIALIZED)
        return by_number(sent, max(1, len(shards)), work, schema)

    def _send(self, labels: Mapping[int, int], place: int) -> Iterator[pa.RecordBatch]:
        """Send the ranks of a task's tags to the shards that have these; the first task sends each shard a row more."""
        return serialized((labels[shard], shard, records) for shard, records in self._ranks_of(labels, place))

    def _ranks_of(self, labels: Mapping[int, int], place: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        def records(order: int, ranks: U32Array) -> pa.RecordBatch:
            orders = np.uint64(order << 32) + np.arange(len(ranks), dtype=np.uint64)
            return pa.record_batch([pa.array(orders), pa.array(ranks)], ["order", "rank"])

        if place == 0:  # a shard of the empty set alone has no tags
            for shard in labels:
                yield shard, records(0, np.zeros(1, np.uint32))
        for task in self.tasks[place : place + 1]:
            shards, places = (self.scratch.read(_TOTALS, task, name) for name in ("shards", "places"))
            ranks, of_shards = to_numbers(self.scratch.read(_RANKS, task, "ranks")), to_lists(places)
            for row, shard in enumerate(shards.to_pylist()):
                yield shard, records(place + 1, ranks[of_shards.values[slice(*of_shards.offsets[row : row + 2])]])

    def rank_sets(self, shard: int, ranks: Iterable[pa.RecordBatch]) -> Lists:
        """The sets of a shard as ascending ranks, given the ranks of its tags as they come from `for_shards`."""
        in_order = sorted(ranks, key=lambda records: int(records["order"][0].as_py()))
        found = to_numbers(pa.concat_batches(in_order)["rank"])[1:]
        return relabel(to_lists(self.scratch.read("shard", shard, "ranks")), found)


def build_vocabulary(spark: SparkSession, job: Job, shards: Sequence[int]) -> ShardTags:
    """Leave the vocabulary in the scratch folder, and where the tags of each shard are in it."""
    scratch, tags_per_task = job.scratch, job.sets_per_task
    labels = labels_for_all(spark)
    sent = for_each(spark, shards, partial(_tags_of_shard, scratch, labels), SERIALIZED).repartition("label")
    added = sent.mapInArrow(partial(_add_up, scratch, len(labels)), _TOTAL).collect()
    totals = sorted(added, key=lambda row: row.first_group)
    if any(lower.last_group >= upper.first_group for lower, upper in pairwise(totals)):
        raise TagMatchError(
            "Spark has put partitions of a shuffle together that are not neighbours, so tags cannot be ranked; please "
            "report this, with the version of Spark and its settings"
        )
    tasks, count = tuple(each.task for each in totals), _write_first_ranks(scratch, totals)
    labels = labels_for(spark, max(1, -(-count // tags_per_task)))[0]
    ranked = for_each(spark, range(len(tasks)), partial(_rank_tags, scratch, tasks, labels, tags_per_task), SERIALIZED)
    found = by_number(ranked, len(labels), partial(_order_tags, scratch, tags_per_task), _RANGE).collect()
    ranges = sorted(found, key=lambda row: row.number)
    counts, table = [row.rows for row in ranges], JoinedTable(scratch, _RANKED, range(len(ranges)))
    file = table.file(
        "vocabulary",
        tag=table.strings("strings", counts, [row.bytes for row in ranges]),
        hash=table.numbers("hashes", counts, np.uint64),
        frequency=table.numbers("frequencies", counts, np.uint32),
    )
    (files,) = write_files(spark, scratch, [file])
    kinds: Entry = {name: value for row in totals for name, value in json.loads(row.kinds).items()}
    return ShardTags(scratch, tasks, count, files, kinds, count <= MAPPED_TAGS)


def _write_first_ranks(scratch: Scratch, totals: Sequence[Any]) -> int:
    """Leave the lowest rank of each task's tags of each frequency; returns how many tags there are."""
    none = np.zeros(0, np.int64)
    frequencies, counts = (
        np.concatenate([none, *(np.array(each[name], np.int64) for each in totals)])
        for name in ("frequencies", "counts")
    )
    # Of the tags of one frequency, those of tasks with lower hashes come first
    order = np.argsort(frequencies, kind="stable")
    starts = offsets_of(counts[order])
    firsts = np.empty_like(counts)
    firsts[order] = starts[:-1]
    of_tasks = offsets_of(np.array([len(each.counts) for each in totals], np.int64))
    scratch.write(_FIRST_RANKS, 0, tasks=pa.array(of_tasks), firsts=pa.array(firsts), counts=pa.array(counts))
    return int(starts[-1])


def _tags_of_shard(scratch: Scratch, labels: I64Array, shard: int) -> Iterator[pa.RecordBatch]:
    """Send a shard's tags, which come by their hashes, and their frequencies to the tasks of these hashes."""
    columns = [scratch.read("shard", shard, name) for name in ("tags", "hashes", "frequencies")]
    groups = groups_by_hash(to_numbers(columns[1]), len(labels))
    firsts = np.searchsorted(groups, np.arange(len(labels) + 1))
    return in_groups(firsts, labels, np.full(len(labels), shard), pa.record_batch(columns, _COLUMNS))


def _add_up(scratch: Scratch, groups: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Add each tag's frequencies up; leave the tags in a vocabulary's order, and where those of each shard are."""
    shards, firsts, records = _received(batches)
    if not shards:
        return
    received, (hashes, frequencies) = to_strings(records.column(0)), map(to_numbers, records.columns[1:])
    order, repeated = grouped_by_hash(received, hashes)
    different = np.flatnonzero(~repeated)
    sums = np.add.reduceat(frequencies[order], different)
    ranked = by_frequency(sums, np.arange(len(sums), dtype=np.uint32))
    places = np.empty(len(order), np.uint32)
    places[order] = np.repeat(_inverse(ranked), np.diff(different, append=len(order)))
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
        by_shard.setdefault(shard, []).append(_with_large_strings(records))
    shards = sorted(by_shard)
    firsts = offsets_of(np.array([sum(map(len, by_shard[shard])) for shard in shards], np.int64))
    # A task's twin gets batches in another order
    parts = [records for shard in shards for records in sorted(by_shard[shard], key=_first_tag)]
    return shards, firsts, pa.concat_batches(parts) if parts else pa.record_batch({})


def _with_large_strings(records: pa.RecordBatch) -> pa.RecordBatch:
    """As those of many batches come together."""
    return records.set_column(0, "strings", records[0].cast(pa.large_string()))


def _first_tag(records: pa.RecordBatch) -> tuple[int, bytes]:
    return records["hashes"][0].as_py(), records["strings"][0].as_buffer().to_pybytes()


def _inverse(order: U32Array) -> U32Array:
    """The place in an order of each number."""
    places = np.empty(len(order), np.uint32)
    places[order] = np.arange(len(order), dtype=np.uint32)
    return places


def _rank_tags(
    scratch: Scratch, tasks: Sequence[int], labels: I64Array, tags_per_task: int, place: int
) -> Iterator[pa.RecordBatch]:
    """Leave the ranks of the tags of a task, which ascend, and send the tags to the ranges of these ranks."""
    task = tasks[place]
    of_tasks, firsts, counts = (
        to_numbers(scratch.read(_FIRST_RANKS, 0, name)) for name in ("tasks", "firsts", "counts")
    )
    own = slice(of_tasks[place], of_tasks[place + 1])
    starts = offsets_of(counts[own])
    ranks = (np.repeat(firsts[own] - starts[:-1], counts[own]) + np.arange(starts[-1])).astype(np.uint32)
    scratch.write(_RANKS, task, ranks=pa.array(ranks))
    columns = [*(scratch.read(_TOTALS, task, name) for name in _COLUMNS), pa.array(ranks)]
    edges = np.searchsorted(ranks, tags_per_task * np.arange(len(labels) + 1))
    return in_groups(edges, labels, np.arange(len(labels)), pa.record_batch(columns, [*_COLUMNS, "rank"]))


def _order_tags(
    scratch: Scratch, tags_per_task: int, number: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Leave the tags of a range of ranks."""
    records = pa.concat_batches([_with_large_strings(each) for each in batches])
    order = _inverse(to_numbers(records["rank"]) - np.uint32(number * tags_per_task))
    columns = records.select(_COLUMNS).take(pa.array(order)).columns
    scratch.write(_RANKED, number, **dict(zip(_COLUMNS, columns, strict=True)))
    yield one_row(number=number, rows=len(order), bytes=int(to_strings(columns[0]).offsets[-1]))
