"""Keys of shards. Those that are strings each shard numbers by itself; a step numbers them for all shards at last.

In the order of their bytes: Spark itself finds the different strings of all shards and sorts them, as it does on disk
where memory is short.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import Lists, Strings
from tagmatch.model.arrow import from_lists, from_strings, to_lists, to_numbers, to_strings
from tagmatch.model.columns import string_keys
from tagmatch.model.options import KeyType
from tagmatch.model.storage.files import Entry
from tagmatch.model.storage.table_files import TableFile
from tagmatch.model.tables import NEVER, KeyTable
from tagmatch.partitioner.spark.batches import Batches, Scratch, for_each, number_of_task, one_row
from tagmatch.partitioner.spark.joined import JoinedTable, Known, Numbers, make_slots, write_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SORTED = "sorted_names"
_NAME = "name string"
_RANGE = "number long, names long, bytes long"

# Strings that are handed to Spark at once
_BATCH_NAMES = 1 << 14


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """The keys of the sets of shards."""

    scratch: Scratch  # Has the shards and, where keys are strings, what `number_names` leaves there
    type: KeyType
    expire: bool = False  # Whether some may expire: then tables have a time for each key, which of most is `NEVER`
    names: ShardNames | None = None  # Those that are strings, of all shards, once they are numbered

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
        """The keys of each set of a shard, uint64; in place of those that are strings, their numbers for all."""
        table = self.of_shard(shard)
        values = table.keys.values
        if table.names is not None:
            assert self.names is not None
            known = _strings(self.scratch, [*self.names.files])
            values = self.names.numbers.of(table.names, known)[values]
        return KeyTable(Lists(table.keys.offsets, values.astype(np.uint64)), expires=table.expires)


@dataclass(frozen=True, slots=True)
class ShardNames:
    """The keys of a job that are strings, whose files are those that the segment will have.

    Each is the key of a set, as a shard has no others.
    """

    files: dict[str, Entry]  # What manifests say of the files, by their names
    numbers: Numbers


def number_names(spark: SparkSession, scratch: Scratch, shards: Sequence[int], names_per_task: int) -> ShardNames:
    """Number the keys of all shards, which are strings."""
    different = for_each(spark, shards, partial(_names_of_shard, scratch), _NAME).distinct()
    # Partitions are numbered in the order of their ranges, also where Spark puts small ones together
    ranges = different.repartitionByRange("name").sortWithinPartitions("name")
    found = sorted(ranges.mapInArrow(partial(_write, scratch), _RANGE).collect(), key=lambda row: row.number)
    (files,) = write_files(spark, scratch, [_file(scratch, found)])
    known = Known("names", partial(_strings, scratch, [*files]), sum(row.names for row in found))
    (numbers,) = make_slots(spark, scratch, [known], names_per_task)
    return ShardNames(files, numbers)


def _file(scratch: Scratch, ranges: Sequence[Any]) -> TableFile:
    """The file of the names of all ranges, which come in order."""
    table, counts = JoinedTable(scratch, _SORTED, [row.number for row in ranges]), [row.names for row in ranges]
    return table.file("key_names", name=table.strings("strings", counts, [row.bytes for row in ranges]))


def _strings(scratch: Scratch, files: Sequence[str]) -> Strings:
    return to_strings(scratch.read_table("key_names", files)["name"])


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
    scratch.write(_SORTED, number, strings=from_strings(names))
    yield one_row(number=number, names=len(names), bytes=int(names.offsets[-1]))
