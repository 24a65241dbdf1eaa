"""Step 2: the vocabulary of all shards, ranked, and with it the sets of each shard as ranks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from partitioner.rows import gather_strings, relabel
from partitioner.spark.scratch import Scratch
from partitioner.spark.shards import Shards
from partitioner.spark.tasks import Batches, for_each, number_of_task, one_row
from tagmatch.arrays import I64Array, Lists, Strings, U32Array, U64Array, narrow_offsets
from tagmatch.arrow import from_strings, to_lists, to_numbers, to_strings
from tagmatch.kernels.tag_table import TagInterner, build_slots, find_all
from tagmatch.kernels.xxh64 import hash_strings, tag_seeds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TAGS = "tag string, hash long, frequency long"
_RECEIVED = pa.schema([("tag", pa.string()), ("hash", pa.int64()), ("frequency", pa.int64())])
_PART = "part long, tags long, clash boolean"

# Longs sort as signed numbers, hashes are unsigned
_SIGN = np.uint64(1 << 63)

_ROWS_PER_BATCH = 65_536


def rank_tags(spark: SparkSession, scratch: Scratch, shards: Shards, tags_per_task: int) -> tuple[int, int]:
    """Leave the vocabulary in the scratch folder, with slots to look tags up; returns its seed and how many tags.

    As of the local partitioner, the seed is the first under which no two tags have the same hash.
    """
    for seed in tag_seeds():
        occurring = for_each(spark, shards.numbers, partial(_tags_of_shard, scratch, seed), _TAGS)
        totals = occurring.repartition("hash").mapInArrow(partial(_add_up, scratch, f"totals-{seed}"), _PART).collect()
        if not any(part.clash for part in totals):
            break
    numbers = sorted(part.part for part in totals)
    tags = sum(part.tags for part in totals)
    tasks = max(1, -(-tags // tags_per_task))
    added = for_each(spark, numbers, partial(_read_tags, scratch, f"totals-{seed}"), _TAGS)
    ranges = added.repartitionByRange(tasks, "frequency", "hash").mapInArrow(partial(_sort, scratch), _PART).collect()
    in_order = sorted(part.part for part in ranges)
    for_each(spark, [0], partial(_join, scratch, in_order), _PART).collect()
    return seed, tags


def rank_sets(scratch: Scratch, seed: int, shard: int) -> Lists:
    """Return the sets of a shard as ascending ranks."""
    tags = to_strings(scratch.read("shard", shard, "tags"))
    known = to_strings(scratch.read("vocabulary", 0, "tags", keep=True))
    slots = to_numbers(scratch.read("vocabulary", 0, "slots", keep=True))
    ranks = np.empty(len(tags), np.uint32)
    find_all(hash_strings(tags, seed=seed), tags.offsets, tags.data, 0, slots, known.offsets, known.data, ranks)
    return relabel(to_lists(scratch.read("shard", shard, "ranks")), ranks)


def vocabulary_hashes(scratch: Scratch) -> U64Array:
    """Return the hash of each tag, by rank."""
    hashes: U64Array = to_numbers(scratch.read("vocabulary", 0, "hashes", keep=True))
    return hashes


def _tags_of_shard(scratch: Scratch, seed: int, shard: int) -> Iterator[pa.RecordBatch]:
    tags = scratch.read("shard", shard, "tags")
    hashes = hash_strings(to_strings(tags), seed=seed)
    return _emitted(tags, hashes, to_numbers(scratch.read("shard", shard, "frequencies")))


def _read_tags(scratch: Scratch, name: str, number: int) -> Iterator[pa.RecordBatch]:
    tags, *numbers = (scratch.read(name, number, column) for column in ("tags", "hashes", "frequencies"))
    return _emitted(tags, *map(to_numbers, numbers))


def _emitted(tags: pa.Array, hashes: U64Array, frequencies: U32Array) -> Iterator[pa.RecordBatch]:
    longs = (pa.array((hashes ^ _SIGN).view(np.int64)), pa.array(frequencies.astype(np.int64)))
    for first in range(0, len(tags), _ROWS_PER_BATCH):
        part = tags[first : first + _ROWS_PER_BATCH].cast(pa.string())
        yield pa.record_batch(
            [part, *(column[first : first + _ROWS_PER_BATCH] for column in longs)], ["tag", "hash", "frequency"]
        )


def _received(batches: Batches) -> tuple[Strings, U64Array, I64Array]:
    """All tags of a task, with hashes and frequencies."""
    table = pa.Table.from_batches(
        batches, pa.schema([("tag", pa.string()), ("hash", pa.int64()), ("frequency", pa.int64())])
    )
    tags = to_strings(
        pa.concat_arrays(table["tag"].cast(pa.large_string()).chunks or [pa.array([], pa.large_string())])
    )
    return tags, table["hash"].to_numpy().view(np.uint64) ^ _SIGN, table["frequency"].to_numpy()


def _add_up(scratch: Scratch, name: str, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Add the frequencies of each tag up. Tags with the same hash meet in one task, which sees whether they clash."""
    tags, hashes, frequencies = _received(batches)
    if not len(tags):
        return
    interner = TagInterner()
    numbers = interner.intern(tags, hashes)
    sums = np.zeros(len(interner), np.int64)
    np.add.at(sums, numbers, frequencies)
    hash_of = np.empty(len(interner), np.uint64)
    hash_of[numbers] = hashes
    ascending = np.sort(hash_of)
    clash = bool(np.any(ascending[1:] == ascending[:-1]))
    part = number_of_task()
    _write(scratch, name, part, interner.strings(), hash_of, sums)
    yield one_row(part=part, tags=len(interner), clash=clash)


def _sort(scratch: Scratch, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Sort the tags of a range by frequency and hash."""
    tags, hashes, frequencies = _received(batches)
    if not len(tags):
        return
    order = np.lexsort((hashes, frequencies)).astype(np.uint32)
    part = number_of_task()
    _write(scratch, "ranked", part, gather_strings(tags, order), hashes[order], frequencies[order])
    yield one_row(part=part, tags=len(tags), clash=False)


def _write(scratch: Scratch, name: str, number: int, tags: Strings, hashes: U64Array, frequencies: I64Array) -> None:
    scratch.write(
        name,
        number,
        tags=from_strings(tags),
        hashes=pa.array(hashes),
        frequencies=pa.array(frequencies.astype(np.uint32)),
    )


def _join(scratch: Scratch, parts: list[int], _: int) -> Iterator[pa.RecordBatch]:
    """Join all ranges to one table, which tasks memory-map."""
    strings = [to_strings(scratch.read("ranked", part, "tags")) for part in parts]
    counts = [len(each) for each in strings]
    offsets = scratch.new_array(1 + sum(counts), np.int64)
    data = scratch.new_array(sum(int(each.offsets[-1]) for each in strings), np.uint8)
    hashes = scratch.new_array(sum(counts), np.uint64)
    frequencies = scratch.new_array(sum(counts), np.uint32)
    row = at = 0
    for part, each in zip(parts, strings, strict=True):
        end, last = row + len(each), int(each.offsets[-1])
        offsets[row + 1 : end + 1] = each.offsets[1:].astype(np.int64) + at
        data[at : at + last] = each.data[:last]
        hashes[row:end] = to_numbers(scratch.read("ranked", part, "hashes"))
        frequencies[row:end] = to_numbers(scratch.read("ranked", part, "frequencies"))
        row, at = end, at + last
    scratch.write(
        "vocabulary",
        0,
        tags=from_strings(Strings(narrow_offsets(offsets), data)),
        hashes=pa.array(hashes),
        frequencies=pa.array(frequencies),
        slots=pa.array(build_slots(hashes)),
    )
    yield one_row(part=0, tags=row, clash=False)
