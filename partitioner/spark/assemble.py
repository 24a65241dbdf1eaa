"""Step 4: the slices become the tables of one segment, which is saved as the index or beside what it has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import Lists
from tagmatch.model.arrow import to_numbers, to_strings, to_words
from tagmatch.model.kernels.signature import SIGNATURE_WORDS
from tagmatch.model.options import LayoutOptions
from tagmatch.model.storage.format import Manifest
from tagmatch.model.storage.location import Location
from tagmatch.model.tables import KeyTable, Segment, Snapshot, TagsetTable, Vocabulary
from tagmatch.partitioner.spark.keys import Keys
from tagmatch.partitioner.spark.plan import Slices
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.slices import plan_of
from tagmatch.partitioner.spark.tasks import for_each, one_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def save_slices(
    spark: SparkSession,
    scratch: Scratch,
    save: Callable[[Segment], Manifest],
    options: LayoutOptions,
    slices: Sequence[Any],
    keys: Keys,
) -> tuple[int, Manifest]:
    """Make a segment, as one task does, in little memory as all columns are files, and have it saved there.

    Returns
    -------
    partitions : int
        How many it has.
    saved : dict
        What `save` returned.
    """
    work = partial(_save, scratch, save, options, Slices(slices), keys)
    (saved,) = for_each(spark, [0], work, "count long, saved string").collect()
    return int(saved["count"]), json.loads(saved["saved"])


def _save(
    scratch: Scratch,
    save: Callable[[Segment], Manifest],
    options: LayoutOptions,
    slices: Slices,
    keys: Keys,
    _: int,
) -> Iterator[pa.RecordBatch]:
    segment = _segment(scratch, options, slices, keys)
    yield one_row(count=len(segment.partitions), saved=json.dumps(save(segment)))


def save_alone(index: Location, segment: Segment) -> Manifest:
    """Save a segment as the index, whatever that is now: done twice, it comes to the same."""
    index.save(Snapshot((segment,)))
    return {}


def _segment(scratch: Scratch, options: LayoutOptions, slices: Slices, keys: Keys) -> Segment:
    tags, hashes, frequencies = (scratch.read("vocabulary", 0, name) for name in ("strings", "hashes", "frequencies"))
    vocabulary = Vocabulary(to_strings(tags), to_numbers(hashes), to_numbers(frequencies))

    key_type = np.uint32 if slices.greatest_key < 2**32 else np.uint64
    ranks = Lists(*scratch.joined_lists("slice", slices.numbers, "ranks", np.uint32))
    numbers = Lists(*scratch.joined_lists("slice", slices.numbers, "keys", key_type))
    signatures = scratch.joined("slice", slices.numbers, "signatures", to_words, np.uint64).reshape(-1, SIGNATURE_WORDS)
    tagsets = TagsetTable(signatures, ranks)
    partitions = plan_of(options).partitions(scratch, slices, tagsets, len(vocabulary))
    expires = None
    if slices.some_expire:
        expires = scratch.joined("slice", slices.numbers, "expires", to_numbers, np.int64)
    return Segment(options, vocabulary, tagsets, keys.named(KeyTable(numbers, expires=expires)), partitions)
