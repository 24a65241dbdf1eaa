"""Step 4: the slices become the tables of one segment, of which many tasks write the files, each some parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tagmatch.model.options import LayoutOptions
from tagmatch.model.storage.format import Entry
from tagmatch.model.storage.tables import segment_entry
from tagmatch.partitioner.spark.joined import JoinedTable, write_files
from tagmatch.partitioner.spark.keys import Keys
from tagmatch.partitioner.spark.plan import Slices
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.slices import plan_of
from tagmatch.partitioner.spark.vocabulary import Tags

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write_slices(
    spark: SparkSession, scratch: Scratch, options: LayoutOptions, slices: Slices, keys: Keys, tags: Tags
) -> tuple[int, Entry]:
    """Leave the files of a segment in the scratch folder, under the names that they have in the segment.

    Returns
    -------
    partitions : int
        How many it has.
    entry : dict
        What manifests say of the segment.
    """
    table = JoinedTable(scratch, "slice", slices.numbers)
    tagsets = table.file(
        "tagsets",
        signature=table.words("signatures", slices.sets),
        ranks=table.lists("ranks", slices.sets, slices.ranks, np.uint32),
    )
    table = JoinedTable(scratch, "slice", slices.numbers)
    kind = np.uint32 if slices.greatest_key < 2**32 else np.uint64
    files = [tagsets, table.file("keys", keys=table.lists("keys", slices.sets, slices.keys, kind))]
    if slices.some_expire:
        table = JoinedTable(scratch, "slice", slices.numbers)
        files.append(table.file("expires", expires=table.numbers("expires", slices.keys, np.int64)))
    partitions, count = plan_of(options).partitions(scratch, slices, tags.count)
    of_tagsets, of_keys, *others = write_files(spark, scratch, [*files, partitions])
    entries = tags.files | of_tagsets | of_keys
    # In the order of `tables_of`
    for some in ([] if keys.names is None else [keys.names.files]) + others:
        entries |= some
    return count, segment_entry(entries, int(slices.sets.sum()), tags.count, 0) | tags.kinds
