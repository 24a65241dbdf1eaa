"""Record batches as bytes: what goes through Spark's shuffles instead of single rows.

To Spark such a batch is one value. Rows, and all elements of their lists, it would turn into its own form and back,
one by one, which takes longer than what tasks do with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, U32Array, U64Array, offsets_of
from tagmatch.model.kernels.sorting import group_by
from tagmatch.partitioner.spark.tasks import Batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Rows with batches: `label` decides to which task a batch goes, `number` tells what it is
SERIALIZED = "label int, number int, batch binary"
_NAMES = ["label", "number", "batch"]

# Spark hands at most 10,000 rows at once to a worker, as one Arrow array of bytes, which can have 2 GiB
_BATCH_BYTES = 1 << 16
_BATCHES_AT_ONCE = 1024

# The first that is a number counts: some platforms have "auto"
_PARTITIONS_SETTINGS = ("spark.sql.adaptive.coalescePartitions.initialPartitionNum", "spark.sql.shuffle.partitions")
_DEFAULT_PARTITIONS = 200

_HALF = np.uint64(32)

# Of the first numbers, by how many partitions there are: the same in every session
_partitions: dict[int, I64Array] = {}


class Serializer:
    """Collects batches as bytes."""

    def __init__(self) -> None:
        self._labels: list[int] = []
        self._numbers: list[int] = []
        self._batches: list[pa.Buffer] = []

    def add(self, label: int, number: int, records: pa.RecordBatch) -> None:
        """Take records, some to a batch."""
        step = max(1, _BATCH_BYTES * len(records) // max(1, records.nbytes))
        for first in range(0, len(records), step):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, records.schema) as writer:
                writer.write_batch(records.slice(first, step))
            self._labels.append(label)
            self._numbers.append(number)
            self._batches.append(sink.getvalue())

    def scatter(
        self, groups: U32Array, labels: I64Array, numbers: I64Array, rows: Callable[[U32Array], pa.RecordBatch]
    ) -> None:
        """Take rows by groups.

        Parameters
        ----------
        groups : uint32 array
            The group of each row.
        labels, numbers : int64 arrays
            Label and number of each group.
        rows : callable
            Gives the rows with these places in `groups`, uint32.
        """
        firsts, order = group_by(groups, len(labels))
        self.add_groups(firsts, labels, numbers, rows(order))

    def add_groups(self, firsts: I64Array, labels: I64Array, numbers: I64Array, records: pa.RecordBatch) -> None:
        """Take rows that come group by group, as `scatter`; `firsts` has where each group begins, and the end."""
        for group in np.flatnonzero(np.diff(firsts)).tolist():
            first, last = int(firsts[group]), int(firsts[group + 1])
            self.add(int(labels[group]), int(numbers[group]), records.slice(first, last - first))

    def take(self) -> Iterator[pa.RecordBatch]:
        """All batches, as rows, some at a time."""
        for first in range(0, len(self._batches), _BATCHES_AT_ONCE):
            some = slice(first, first + _BATCHES_AT_ONCE)
            columns = [
                pa.array(self._labels[some], pa.int32()),
                pa.array(self._numbers[some], pa.int32()),
                _end_to_end(self._batches[some]),
            ]
            yield pa.RecordBatch.from_arrays(columns, names=_NAMES)


def _end_to_end(batches: Sequence[pa.Buffer]) -> pa.Array:
    """An Arrow array of bytes, which are copied once; `pa.array` would look at each of them twice."""
    offsets = offsets_of(np.array([batch.size for batch in batches], np.int64)).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(batches))]
    return pa.Array.from_buffers(pa.binary(), len(batches), buffers)


def groups_by_hash(hashes: U64Array, count: int) -> U32Array:
    """One of `count` groups for each hash, about equally many hashes in each."""
    return ((hashes >> _HALF) * np.uint64(count) >> _HALF).astype(np.uint32)


def deserialized(batches: Batches) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Number and records of each batch."""
    for batch in batches:
        for number, serialized in zip(batch["number"].to_pylist(), batch["batch"], strict=True):
            with pa.ipc.open_stream(serialized.as_buffer()) as reader:
                yield number, reader.read_next_batch()


def gathered(batches: Batches, nbytes: int) -> Iterator[pa.RecordBatch]:
    """Join record batches to larger ones, of about that many bytes."""
    waiting: list[pa.RecordBatch] = []
    bytes_waiting = 0
    for batch in batches:
        waiting.append(batch)
        bytes_waiting += batch.nbytes
        if bytes_waiting >= nbytes:
            yield pa.concat_batches(waiting)
            waiting, bytes_waiting = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


def sorted_by_number(batches: DataFrame, count: int) -> DataFrame:
    """Bring batches together in as many tasks as there are labels, `count`, sorted by number in each."""
    return batches.repartition(count, "label").sortWithinPartitions("number")


def by_number(
    batches: DataFrame, count: int, work: Callable[[int, Iterable[pa.RecordBatch]], Batches], schema: str
) -> DataFrame:
    """Return the rows of `work(number, records)` for every number, in as many tasks as there are labels, `count`."""
    return sorted_by_number(batches, count).mapInArrow(partial(_by_number, work), schema)


def _by_number(work: Callable[[int, Iterable[pa.RecordBatch]], Batches], batches: Batches) -> Iterator[pa.RecordBatch]:
    for number, some in groupby(deserialized(batches), itemgetter(0)):
        yield from work(number, (records for _, records in some))


def labels_for(spark: SparkSession, count: int, each: int = 1) -> I64Array:
    """Return `each` x `count` different labels, those of a column for one partition of `repartition(count, "label")`.

    Other labels would not be spread evenly: of two, both come to one partition half of the time.
    """
    if count not in _partitions:
        # With that many numbers, fewer than two for a partition are out of the question. Spark answers without a job,
        # as of a table of constants.
        numbers = f"transform(sequence(0, {64 * count}), number -> pmod(hash(number), {count}))"
        found = spark.sql(f"SELECT {numbers} AS partitions FROM VALUES (0)").first()
        _partitions[count] = np.array(found["partitions"])  # type: ignore[index]
    partitions = _partitions[count]
    order = np.argsort(partitions, kind="stable")
    firsts = np.searchsorted(partitions[order], np.arange(count))
    return np.stack([order[firsts + i] for i in range(each)])


def labels_for_all(spark: SparkSession) -> I64Array:
    """Return a label for each partition of `repartition("label")`, which Spark may put together."""
    settings = [spark.conf.get(name, None) or "" for name in _PARTITIONS_SETTINGS]
    count = next((int(setting) for setting in settings if setting.isdigit()), _DEFAULT_PARTITIONS)
    labels: I64Array = labels_for(spark, count)[0]
    return labels
