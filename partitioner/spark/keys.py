"""Keys of shards. Those that are strings each shard numbers by itself; a step numbers them for all shards at last.

In the order of their bytes: Spark itself finds the different strings of all shards and sorts them, as it does on disk
where memory is short.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import Lists, U64Array
from tagmatch.model.arrow import from_lists, from_strings, to_lists, to_numbers, to_strings
from tagmatch.model.columns import string_keys
from tagmatch.model.kernels.tag_table import new_key
from tagmatch.model.kernels.xxh64 import hash_strings
from tagmatch.model.options import KeyType
from tagmatch.model.tables import NEVER, KeyTable
from tagmatch.partitioner.key_names import only_used
from tagmatch.partitioner.spark.numbered import join_numbered, numbers_of
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.tasks import Batches, for_each, number_of_task, one_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SORTED, _NAMES = "sorted_names", "names"
_NAME = "name string"
_RANGE = "number long"
_COUNT = "count long"

# Strings that are handed to Spark at once
_BATCH_NAMES = 1 << 14


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of the sets of shards.

    Attributes
    ----------
    scratch : Scratch
        Has the shards and, where keys are strings, what `number_names` leaves there.
    type : KeyType
    expire : bool
        Whether some may expire: then tables have a time for each key, which of most is `NEVER`.
    """

    scratch: Scratch
    type: KeyType
    expire: bool = False

    def columns(self, table: KeyTable) -> dict[str, pa.Array]:
        """The columns of a shard, or of a slice, with these keys."""
        columns = {"keys": from_lists(table.keys)}
        if table.names is not None:
            columns["names"] = from_strings(table.names)
        if self.expire:
            columns["expires"] = pa.array(
                np.full(len(table.keys.values), NEVER) if table.expires is None else table.expires
            )
        return columns

    def of_shard(self, shard: int) -> KeyTable:
        """The keys of each set of a shard, which has numbered those that are strings by itself."""
        read = partial(self.scratch.read, "shard", shard)
        names = to_strings(read("names")) if self.type == "string" else None
        return KeyTable(to_lists(read("keys")), names, to_numbers(read("expires")) if self.expire else None)

    def as_numbers(self, shard: int) -> KeyTable:
        """The keys of each set of a shard, uint64; in the place of those that are strings, their numbers for all."""
        table = self.of_shard(shard)
        values = table.keys.values
        if table.names is not None:
            values = numbers_of(self.scratch, _NAMES, table.names)[values]
        return KeyTable(Lists(table.keys.offsets, values.astype(np.uint64)), expires=table.expires)

    def named(self, table: KeyTable) -> KeyTable:
        """The key table of sets of which `table` has the keys as `as_numbers` gives them."""
        if self.type == "integer":
            return table
        return only_used(table, to_strings(self.scratch.read(_NAMES, 0, "strings")))


def number_names(spark: SparkSession, scratch: Scratch, shards: Sequence[int]) -> None:
    """Number the keys of all shards, which are strings."""
    different = for_each(spark, shards, partial(_names_of_shard, scratch), _NAME).distinct()
    # Partitions are numbered in the order of their ranges, also where Spark puts small ones together
    ranges = different.repartitionByRange("name").sortWithinPartitions("name")
    found = ranges.mapInArrow(partial(_write, scratch), _RANGE).collect()
    numbers = sorted(row.number for row in found)
    for_each(spark, [0], partial(_join, scratch, numbers, new_key()), _COUNT).collect()


def _names_of_shard(scratch: Scratch, shard: int) -> Iterator[pa.RecordBatch]:
    names = scratch.read("shard", shard, "names")
    for first in range(0, len(names), _BATCH_NAMES):
        yield pa.record_batch({"name": names.slice(first, _BATCH_NAMES)})


def _write(scratch: Scratch, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Leave a range of the names, which are sorted."""
    chunks = [batch.column(0) for batch in batches if len(batch)]
    if not chunks:
        return
    names = string_keys(pa.chunked_array(chunks), "key")
    number = number_of_task()
    scratch.write(_SORTED, number, strings=from_strings(names), hashes=pa.array(hash_strings(names)))
    yield one_row(number=number)


def _join(scratch: Scratch, numbers: Sequence[int], key: U64Array, _: int) -> Iterator[pa.RecordBatch]:
    yield one_row(count=join_numbered(scratch, _SORTED, numbers, _NAMES, key))
