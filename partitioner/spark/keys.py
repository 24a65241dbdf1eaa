"""Keys as numbers. Those that are strings get numbers first, in a step of their own: in the order of their bytes.

Spark itself finds the different strings and sorts them, as it does on disk where memory is short. Some may be keys of
rows that cannot be stored; the last step leaves out those that no set has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import Lists, U64Array
from tagmatch.model.arrow import from_strings, to_strings
from tagmatch.model.columns import string_keys
from tagmatch.model.errors import TagMatchError
from tagmatch.model.kernels.tag_table import UNKNOWN, new_key
from tagmatch.model.kernels.xxh64 import hash_strings
from tagmatch.model.tables import KeyTable
from tagmatch.partitioner.key_names import only_used
from tagmatch.partitioner.spark.numbered import join_numbered, numbers_of
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.tasks import Batches, for_each, number_of_task, one_row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SORTED, _KEYS = "sorted_keys", "keys"
_RANGE = "number long"
_COUNT = "count long"


class Keys(Protocol):
    """What the keys of the rows are to the job: numbers, and at last a key table."""

    def numbers(self, keys: pa.Array) -> pa.Array:
        """Number of each key, uint64."""

    def table(self, numbers: Lists) -> KeyTable:
        """The key table of sets with these numbers."""


@dataclass(frozen=True, slots=True)
class IntegerKeys:
    """Keys that are numbers already."""

    def numbers(self, keys: pa.Array) -> pa.Array:
        """As `Keys` says."""
        return keys.cast(pa.uint64())

    def table(self, numbers: Lists) -> KeyTable:
        """As `Keys` says."""
        return KeyTable(numbers)


@dataclass(frozen=True, slots=True)
class StringKeys:
    """Keys that are strings; `number_keys` has left them in the scratch folder.

    Attributes
    ----------
    scratch : Scratch
    """

    scratch: Scratch

    def numbers(self, keys: pa.Array) -> pa.Array:
        """As `Keys` says.

        Raises
        ------
        TagMatchError
            The rows did not have a key when they were first read.
        """
        numbers = numbers_of(self.scratch, _KEYS, to_strings(keys.cast(pa.large_string())))
        if len(unknown := np.flatnonzero(numbers == UNKNOWN)):
            raise TagMatchError(
                f"the rows did not have the key {keys[int(unknown[0])].as_py()!r} when they were first read; keys that "
                "are strings are read twice: save the rows, and build the index of what is saved"
            )
        return pa.array(numbers.astype(np.uint64))

    def table(self, numbers: Lists) -> KeyTable:
        """As `Keys` says, without keys that no set has."""
        return only_used(KeyTable(numbers), to_strings(self.scratch.read(_KEYS, 0, "strings")))


def number_keys(rows: DataFrame, scratch: Scratch) -> StringKeys:
    """Number the different keys of the column `key`, string, for all tasks."""
    spark = rows.sparkSession
    different = rows.select("key").where("key is not null").distinct()
    # Partitions are numbered in the order of their ranges, also where Spark puts small ones together
    ranges = different.repartitionByRange("key").sortWithinPartitions("key")
    found = ranges.mapInArrow(partial(_write, scratch), _RANGE).collect()
    numbers = sorted(row.number for row in found)
    for_each(spark, [0], partial(_join, scratch, numbers, new_key()), _COUNT).collect()
    return StringKeys(scratch)


def _write(scratch: Scratch, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Leave a range of the keys, which are sorted."""
    chunks = [batch.column(0) for batch in batches if len(batch)]
    if not chunks:
        return
    keys = string_keys(pa.chunked_array(chunks), "key")
    number = number_of_task()
    scratch.write(_SORTED, number, strings=from_strings(keys), hashes=pa.array(hash_strings(keys)))
    yield one_row(number=number)


def _join(scratch: Scratch, numbers: Sequence[int], key: U64Array, _: int) -> Iterator[pa.RecordBatch]:
    yield one_row(count=join_numbered(scratch, _SORTED, numbers, _KEYS, key))
