"""Step 2: the vocabulary of all shards, ranked, and with it the sets of each shard as ranks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Lists, Strings, U32Array, U64Array, offsets_of
from tagmatch.model.arrow import from_strings, to_lists, to_numbers, to_strings
from tagmatch.model.kernels.lists import gather_strings, relabel
from tagmatch.model.kernels.tag_table import TagInterner
from tagmatch.model.kernels.xxh64 import hash_strings
from tagmatch.model.storage.format import Entry
from tagmatch.model.storage.segment_files import kinds_of
from tagmatch.model.storage.table_files import TableFile
from tagmatch.model.tag_order import by_hash
from tagmatch.partitioner.spark.joined import JoinedTable, write_files
from tagmatch.partitioner.spark.numbered import Known, Numbers, make_slots
from tagmatch.partitioner.spark.records import rows_at
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.serialized import (
    SERIALIZED,
    Serializer,
    by_number,
    deserialized,
    groups_by_hash,
    labels_for,
    labels_for_all,
)
from tagmatch.partitioner.spark.shards import Shards
from tagmatch.partitioner.spark.tasks import Batches, for_each, number_of_task, one_row
from tagmatch.partitioner.vocabulary import by_frequency

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COLUMNS = ["strings", "hashes", "frequencies"]
_TOTALS = "totals"
_TOTAL = "task long, frequencies array<long>, counts array<long>"
_RANGE = "number long, tags long, bytes long, kinds string"
_RANKED = "ranked-tags"


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of the order of tags, by frequency and then by hash, of about as many tags each.

    Attributes
    ----------
    frequencies : int64 array
        All that occur, ascending.
    first_ranks : int64 array
        How many tags are rarer than those of each frequency; the number of all tags at the end.
    count : int
    """

    frequencies: I64Array
    first_ranks: I64Array
    count: int

    @classmethod
    def of(cls, totals: Sequence[Any], tags_per_range: int) -> Ranges:
        """Return ranges, given how many tags of each frequency there are in each task."""
        pairs = [np.array([task.frequencies, task.counts], np.int64) for task in totals]
        found, counts = np.concatenate([np.zeros((2, 0), np.int64), *pairs], axis=1)
        frequencies, which = np.unique(found, return_inverse=True)
        summed = np.zeros(len(frequencies), np.int64)
        np.add.at(summed, which, counts)
        first_ranks = offsets_of(summed)
        return cls(frequencies, first_ranks, max(1, -(-int(first_ranks[-1]) // tags_per_range)))

    def numbers(self, frequencies: U32Array, hashes: U64Array) -> U32Array:
        """Range of each tag. Hashes are spread evenly, so they tell where among those with its frequency a tag is."""
        places = np.searchsorted(self.frequencies, frequencies)
        first, last = self.first_ranks[places], self.first_ranks[places + 1]
        ranks = first + (last - first) * (hashes / 2.0**64)
        numbers: U32Array = (ranks * (self.count / self.first_ranks[-1])).astype(np.uint32)
        return np.minimum(numbers, np.uint32(self.count - 1))


@dataclass(frozen=True, slots=True)
class Tags:
    """The vocabulary of a job, whose files are those that the segment will have; tasks memory-map them.

    Attributes
    ----------
    count : int
    files : dict
        What manifests say of the files, by their names.
    kinds : dict
        What `kinds_of` says of the tags.
    numbers : Numbers
        Tags' ranks.
    """

    scratch: Scratch
    count: int
    files: dict[str, Entry]
    kinds: Entry
    numbers: Numbers

    def hashes(self) -> U64Array:
        """The hash of each tag, by rank."""
        hashes: U64Array = to_numbers(self.scratch.read_table([*self.files])["hash"])
        return hashes

    def rank_sets(self, shard: int) -> Lists:
        """The sets of a shard as ascending ranks."""
        tags = to_strings(self.scratch.read("shard", shard, "tags"))
        ranks = self.numbers.of(tags, _strings(self.scratch, [*self.files]))
        return relabel(to_lists(self.scratch.read("shard", shard, "ranks")), ranks)


def _strings(scratch: Scratch, files: Sequence[str]) -> Strings:
    return to_strings(scratch.read_table(files)["tag"])


def build_vocabulary(spark: SparkSession, scratch: Scratch, shards: Shards, tags_per_task: int) -> Tags:
    """Leave the vocabulary in the scratch folder, with slots to look tags up."""
    labels = labels_for_all(spark)
    occurring = for_each(spark, shards.numbers, partial(_tags_of_shard, scratch, labels), SERIALIZED)
    totals = occurring.repartition("label").mapInArrow(partial(_add_up, scratch), _TOTAL).collect()
    ranges = Ranges.of(totals, tags_per_task)
    labels = labels_for(spark, ranges.count)[0]
    tasks = sorted(row.task for row in totals)
    sent = for_each(spark, tasks, partial(_tags_of_task, scratch, ranges, labels), SERIALIZED)
    sorted_ranges = by_number(sent, ranges.count, partial(_sort, scratch), _RANGE).collect()
    found = sorted(sorted_ranges, key=lambda row: row.number)
    (files,) = write_files(spark, scratch, [_file(scratch, found)])
    count = sum(row.tags for row in found)
    kinds: Entry = {name: value for row in found for name, value in json.loads(row.kinds).items()}
    known = Known("tags", partial(_strings, scratch, [*files]), count)
    (numbers,) = make_slots(spark, scratch, [known], tags_per_task)
    return Tags(scratch, count, files, kinds, numbers)


def _file(scratch: Scratch, ranges: Sequence[Any]) -> TableFile:
    """The file of the table of all ranges, which come in order."""
    table, counts = JoinedTable(scratch, _RANKED, [row.number for row in ranges]), [row.tags for row in ranges]
    strings, hashes, frequencies = _COLUMNS
    return table.file(
        "vocabulary",
        tag=table.strings(strings, counts, [row.bytes for row in ranges]),
        hash=table.numbers(hashes, counts, np.uint64),
        frequency=table.numbers(frequencies, counts, np.uint32),
    )


def _tags_of_shard(scratch: Scratch, labels: I64Array, shard: int) -> Iterator[pa.RecordBatch]:
    """Send a shard's tags and their frequencies to where those with the same hash meet."""
    tags = scratch.read("shard", shard, "tags")
    hashes = hash_strings(to_strings(tags))
    groups = groups_by_hash(hashes, len(labels))
    yield from _sent(tags, pa.array(hashes), scratch.read("shard", shard, "frequencies"), groups, labels)


def _tags_of_task(scratch: Scratch, ranges: Ranges, labels: I64Array, task: int) -> Iterator[pa.RecordBatch]:
    """Send tags of which all occurrences are counted to the range that they belong to."""
    tags, hashes, frequencies = (scratch.read(_TOTALS, task, column) for column in _COLUMNS)
    groups = ranges.numbers(to_numbers(frequencies), to_numbers(hashes))
    yield from _sent(tags, hashes, frequencies, groups, labels)


def _sent(
    tags: pa.Array, hashes: pa.Array, frequencies: pa.Array, groups: U32Array, labels: I64Array
) -> Iterator[pa.RecordBatch]:
    serializer = Serializer()
    # Large strings, as those of many batches come together
    records = pa.record_batch([tags.cast(pa.large_string()), hashes, frequencies], _COLUMNS)
    serializer.scatter(groups, labels, np.arange(len(labels)), partial(rows_at, records))
    return serializer.take()


def _received(batches: Iterable[pa.RecordBatch]) -> tuple[Strings, U64Array, U32Array]:
    """All tags of a task, with hashes and frequencies."""
    table = pa.concat_batches(list(batches))
    tags, *numbers = table.columns
    hashes, frequencies = map(to_numbers, numbers)
    return to_strings(tags), hashes, frequencies


def _add_up(scratch: Scratch, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Add the frequencies of each tag up: all occurrences of a tag meet in one task."""
    received = [records for _, records in deserialized(batches)]
    if not received:
        return
    tags, hashes, frequencies = _received(received)
    interner = TagInterner()
    numbers = interner.intern(tags, hashes)
    sums = np.zeros(len(interner), np.uint32)
    np.add.at(sums, numbers, frequencies)
    hash_of = np.empty(len(interner), np.uint64)
    hash_of[numbers] = hashes
    # Sorted, as batches come in another order to a slow task's twin, which writes the same files
    order = by_hash(interner.strings(), hash_of)
    task = number_of_task()
    _write(scratch, _TOTALS, task, gather_strings(interner.strings(), order), hash_of[order], sums[order])
    found, counts = np.unique(sums, return_counts=True)
    yield one_row(task=task, frequencies=found.astype(np.int64), counts=counts)


def _sort(scratch: Scratch, number: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sort the tags of a range by frequency, hash and bytes."""
    tags, hashes, frequencies = _received(batches)
    order = by_frequency(frequencies, by_hash(tags, hashes))
    ranked = gather_strings(tags, order)
    _write(scratch, _RANKED, number, ranked, hashes[order], frequencies[order])
    yield one_row(number=number, tags=len(ranked), bytes=int(ranked.offsets[-1]), kinds=json.dumps(kinds_of(ranked)))


def _write(scratch: Scratch, name: str, number: int, tags: Strings, hashes: U64Array, frequencies: U32Array) -> None:
    columns = (from_strings(tags), pa.array(hashes), pa.array(frequencies))
    scratch.write(name, number, **dict(zip(_COLUMNS, columns, strict=True)))
