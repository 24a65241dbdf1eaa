"""Step 4: the parts become the tables of one snapshot, which replaces the index's in one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import Lists, narrow_offsets, offsets_of
from tagmatch.model.arrow import to_numbers, to_strings, to_words
from tagmatch.model.kernels.lists import count_firsts
from tagmatch.model.kernels.signature import SIGNATURE_WORDS
from tagmatch.model.options import LayoutOptions
from tagmatch.model.storage.places import Place
from tagmatch.model.tables import ClusterTable, PartitionTable, Snapshot, TagsetTable, Vocabulary
from tagmatch.partitioner.spark.keys import Keys
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.tasks import for_each, one_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def save_parts(
    spark: SparkSession, scratch: Scratch, index: Place, options: LayoutOptions, parts: Sequence[Any], keys: Keys
) -> int:
    """Save the index, as one task does, in little memory as all columns are files; returns its partitions."""
    work = partial(_save, scratch, index, options, _Parts(parts), keys)
    (saved,) = for_each(spark, [0], work, "count long").collect()
    return int(saved["count"])


class _Parts:
    """Numbers of parts in order, and what they have."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.numbers = [int(row.part) for row in rows]
        self.sets = [int(row.sets) for row in rows]
        self.greatest_key = max((int(row.greatest_key) for row in rows), default=0)


def _save(
    scratch: Scratch, index: Place, options: LayoutOptions, parts: _Parts, keys: Keys, _: int
) -> Iterator[pa.RecordBatch]:
    snapshot = _snapshot(scratch, options, parts, keys)
    index.save_snapshot(snapshot)
    yield one_row(count=len(snapshot.partitions))


def _snapshot(scratch: Scratch, options: LayoutOptions, parts: _Parts, keys: Keys) -> Snapshot:
    tags, hashes, frequencies = (scratch.read("vocabulary", 0, name) for name in ("strings", "hashes", "frequencies"))
    vocabulary = Vocabulary(to_strings(tags), to_numbers(hashes), to_numbers(frequencies))

    key_type = np.uint32 if parts.greatest_key < 2**32 else np.uint64
    ranks = Lists(*scratch.joined_lists("part", parts.numbers, "ranks", np.uint32))
    numbers = Lists(*scratch.joined_lists("part", parts.numbers, "keys", key_type))
    signatures = scratch.joined("part", parts.numbers, "signatures", to_words, np.uint64).reshape(-1, SIGNATURE_WORDS)
    tagsets = TagsetTable(signatures, ranks)
    partitions: PartitionTable | ClusterTable
    if options.layout == "rarest":
        # Sets come by their first ranks, after the empty set
        first_rows = int(tagsets.has_empty_set) + offsets_of(count_firsts(ranks, len(vocabulary)))
        partitions = ClusterTable(narrow_offsets(first_rows))
    else:
        partitions = _partition_table(scratch, parts)
    return Snapshot(options, vocabulary, tagsets, keys.table(numbers), partitions)


def _partition_table(scratch: Scratch, parts: _Parts) -> PartitionTable:
    masks, ends, row = [np.zeros((0, SIGNATURE_WORDS), np.uint64)], [], 0
    first = 0
    for part, sets in zip(parts.numbers, parts.sets, strict=True):
        masks.append(to_words(scratch.read("part", part, "masks")))
        found = to_numbers(scratch.read("part", part, "ends"))
        if len(found) == 0:  # the empty set, which is in no partition
            first = sets
        ends.append(found + row)
        row += sets
    return PartitionTable(np.concatenate(masks), np.concatenate([np.array([first], np.int64), *ends]))
