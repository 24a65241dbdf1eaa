"""Step 4: the slices become the tables of one snapshot, which replaces the index's in one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import Lists
from tagmatch.model.arrow import to_numbers, to_strings, to_words
from tagmatch.model.kernels.signature import SIGNATURE_WORDS
from tagmatch.model.options import LayoutOptions
from tagmatch.model.storage.location import Location
from tagmatch.model.tables import Segment, Snapshot, TagsetTable, Vocabulary
from tagmatch.partitioner.spark.keys import Keys
from tagmatch.partitioner.spark.plan import Slices
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.slices import plan_of
from tagmatch.partitioner.spark.tasks import for_each, one_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def save_slices(
    spark: SparkSession, scratch: Scratch, index: Location, options: LayoutOptions, slices: Sequence[Any], keys: Keys
) -> int:
    """Save the index, as one task does, in little memory as all columns are files; returns its partitions."""
    work = partial(_save, scratch, index, options, Slices(slices), keys)
    (saved,) = for_each(spark, [0], work, "count long").collect()
    return int(saved["count"])


def _save(
    scratch: Scratch, index: Location, options: LayoutOptions, slices: Slices, keys: Keys, _: int
) -> Iterator[pa.RecordBatch]:
    segment = _segment(scratch, options, slices, keys)
    index.save(Snapshot((segment,)))
    yield one_row(count=len(segment.partitions))


def _segment(scratch: Scratch, options: LayoutOptions, slices: Slices, keys: Keys) -> Segment:
    tags, hashes, frequencies = (scratch.read("vocabulary", 0, name) for name in ("strings", "hashes", "frequencies"))
    vocabulary = Vocabulary(to_strings(tags), to_numbers(hashes), to_numbers(frequencies))

    key_type = np.uint32 if slices.greatest_key < 2**32 else np.uint64
    ranks = Lists(*scratch.joined_lists("slice", slices.numbers, "ranks", np.uint32))
    numbers = Lists(*scratch.joined_lists("slice", slices.numbers, "keys", key_type))
    signatures = scratch.joined("slice", slices.numbers, "signatures", to_words, np.uint64).reshape(-1, SIGNATURE_WORDS)
    tagsets = TagsetTable(signatures, ranks)
    partitions = plan_of(options).partitions(scratch, slices, tagsets, len(vocabulary))
    return Segment(options, vocabulary, tagsets, keys.table(numbers), partitions)
