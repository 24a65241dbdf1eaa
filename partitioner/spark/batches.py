"""Work of Spark's tasks on numbered things, and how what they make gets to the tasks of the next step.

Through shuffles go record batches as bytes instead of single rows: to Spark such a batch is one value. Rows, and all
elements of their lists, it would turn into its own form and back, one by one, which takes longer than what tasks do
with them. What is too large for that, or is read by several tasks, is left in Arrow files that all machines see.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.arrays import (
    I64Array,
    IntArray,
    Lists,
    U32Array,
    U64Array,
    UIntArray,
    offsets_of,
)
from tagmatch.model.arrow import from_strings, plain_array
from tagmatch.model.asked import DATA
from tagmatch.model.data_types import Schema
from tagmatch.model.kernels.lists import gather, gather_strings
from tagmatch.model.storage.byte_store import ByteStore
from tagmatch.model.storage.tables import OpenFile, checked_columns, read_table_file
from tagmatch.model.tables import LONG_AGO, Segment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_T = TypeVar("_T")

Batches: TypeAlias = Iterable[pa.RecordBatch]


def for_each(spark: SparkSession, numbers: Sequence[int], work: Callable[[int], Batches], schema: str) -> DataFrame:
    """Return the rows of `work(number)` for every number, each in its own task."""
    count = max(1, len(numbers))
    return spark.range(0, len(numbers), 1, count).mapInArrow(partial(_for_each, tuple(numbers), work), schema)


def _for_each(numbers: tuple[int, ...], work: Callable[[int], Batches], batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for place in batch["id"].to_pylist():
            yield from work(numbers[place])


def grouped(things: Sequence[_T], sizes: Sequence[int], size: int) -> list[list[_T]]:
    """Things with these sizes, in groups of consecutive ones that have at most `size` together, or are one thing."""
    groups, room = list[list[_T]](), 0
    for thing, own in zip(things, sizes, strict=True):
        if own > room or not groups:
            groups.append([])
            room = max(size, own)
        groups[-1].append(thing)
        room -= own
    return groups


def chunks_of(rows: Iterable[tuple[int, int]], most: int) -> list[tuple[int, int, int]]:
    """Cut tables, given by number and rows, into chunks of `most` rows at most: number, first row, last row."""
    return [(number, first, min(first + most, last)) for number, last in rows for first in range(0, last, most)]


def number_of_task() -> int:
    """Return the number of the partition that the calling task makes."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


def one_row(**values: object) -> pa.RecordBatch:
    """Return a batch of one row; an array is a list to it, and numbers have 64 bits, as Spark's `long`."""
    return pa.record_batch({name: pa.array([value]) for name, value in values.items()})


#: Rows with batches: `label` decides to which task a batch goes, `number` tells what it is
SERIALIZED = "label int, number int, batch binary"

# Spark hands at most 10,000 rows at once to a worker, as one Arrow array of bytes, which can have 2 GiB
_BATCH_BYTES = 1 << 16
_BATCHES_AT_ONCE = 1024

# With both of these, Spark puts small partitions together, and looks at the first of the settings for their number
_MERGING_SETTINGS = ("spark.sql.adaptive.enabled", "spark.sql.adaptive.coalescePartitions.enabled")
# The first that is a number counts: some platforms have "auto"
_PARTITIONS_SETTINGS = ("spark.sql.adaptive.coalescePartitions.initialPartitionNum", "spark.sql.shuffle.partitions")
_DEFAULT_PARTITIONS = 200

_HALF = np.uint64(32)

#: No columns of data
NO_DATA: Schema = {}

# Of the first numbers, by how many partitions there are: the same in every session
_partitions: dict[int, I64Array] = {}


def serialized(parts: Iterable[tuple[int, int, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Rows `SERIALIZED` of records by label and number, some of them to a batch."""
    rows: list[tuple[int, int, pa.Buffer]] = []
    for label, number, records in parts:
        step = max(1, _BATCH_BYTES * len(records) // max(1, records.nbytes))
        for first in range(0, len(records), step):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, records.schema) as writer:
                writer.write_batch(records.slice(first, step))
            rows.append((label, number, sink.getvalue()))
            if len(rows) == _BATCHES_AT_ONCE:
                yield _as_rows(rows)
                rows.clear()
    if rows:
        yield _as_rows(rows)


def _as_rows(rows: Sequence[tuple[int, int, pa.Buffer]]) -> pa.RecordBatch:
    labels, numbers, batches = zip(*rows, strict=True)
    columns = [pa.array(labels, pa.int32()), pa.array(numbers, pa.int32()), _end_to_end(batches)]
    return pa.RecordBatch.from_arrays(columns, names=["label", "number", "batch"])


def in_groups(
    firsts: I64Array, labels: I64Array, numbers: I64Array, records: pa.RecordBatch
) -> Iterator[pa.RecordBatch]:
    """Rows `SERIALIZED` of records that come group by group; `firsts` has where each group begins, and the end."""
    return serialized(
        (int(labels[group]), int(numbers[group]), records[int(firsts[group]) : int(firsts[group + 1])])
        for group in np.flatnonzero(np.diff(firsts)).tolist()
    )


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
    """Give `each` x `count` different labels, those of a column for one partition of `repartition(count, "label")`."""
    # Other labels would not be spread evenly: of two, both come to one partition half of the time
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


def tasks_at_once(spark: SparkSession) -> int:
    """How many tasks run at once: the number of partitions that Spark makes by default."""
    context = getattr(spark, "sparkContext", None)  # which clients of Connect do not have
    if context is not None:
        return int(context.defaultParallelism)
    return spark.range(1 << 16).selectExpr("spark_partition_id()").distinct().count()


def tasks_of_shuffle(spark: SparkSession) -> int:
    """In how many tasks a join should meet: as many as the user has set, else as run at once, not Spark's 200."""
    given = spark.conf.getAll.get(_PARTITIONS_SETTINGS[-1], "")
    return int(given) if given.isdigit() else tasks_at_once(spark)


def labels_for_all(spark: SparkSession) -> I64Array:
    """Return a label for each partition of `repartition("label")`, which Spark may put together."""
    merges = all((spark.conf.get(name, None) or "true").lower() == "true" for name in _MERGING_SETTINGS)
    names = _PARTITIONS_SETTINGS if merges else _PARTITIONS_SETTINGS[1:]
    settings = [spark.conf.get(name, None) or "" for name in names]
    count = next((int(setting) for setting in settings if setting.isdigit()), _DEFAULT_PARTITIONS)
    labels: I64Array = labels_for(spark, count)[0]
    return labels


def sets_at(segment: Segment, rows: UIntArray, now: int = LONG_AGO, data: Schema = NO_DATA) -> pa.RecordBatch:
    """The sets in these rows of a segment, without expired keys: `tags` as strings, `keys` as they are stored.

    With columns of data, these of each key as structs, `data`.
    """
    ranks, table = gather(segment.tagsets.ranks, rows), segment.keys.of_sets(rows)
    keys = table.keys
    if table.expires is not None:
        lasts = table.expires > now
        keys = Lists(offsets_of(lasts)[keys.offsets], keys.values[lasts])
    tags = from_strings(gather_strings(segment.vocabulary.tags, ranks.values))
    # Integers as they are stored, perhaps of 32 bits
    values = pa.array(keys.values) if segment.keys.names is None else segment.keys.column(keys.values)
    columns = {"tags": lists_of(ranks.offsets, tags), "keys": lists_of(keys.offsets, values)}
    if data:
        columns["data"] = lists_of(keys.offsets, _data_of(segment, keys.values, data))
    return pa.record_batch(columns)


def _data_of(segment: Segment, keys: UIntArray, data: Schema) -> pa.StructArray:
    """Columns of data of some keys of a segment, with nulls for those that have none; texts without a dictionary."""
    places = np.full(len(keys), -1) if segment.records is None else segment.records.places_of(keys)
    there = pa.table({}) if segment.records is None else segment.records.columns
    at, columns = pa.array(places, mask=places < 0), list[pa.Array]()
    for name, kind in data.items():
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        is_there = DATA + name in there.schema.names
        found = plain_array(there.column(DATA + name).take(at)) if is_there else pa.nulls(len(keys), plain)
        columns.append(found.cast(plain))
    return pa.StructArray.from_arrays(columns, [*data])


def lists_of(offsets: IntArray, values: pa.Array) -> pa.Array:
    """An Arrow list or large list array, by the type of the offsets."""
    kind = pa.ListArray if offsets.dtype == np.int32 else pa.LargeListArray
    return kind.from_arrays(pa.array(offsets), values)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Columns of tables, by the table's name and number, each in its own file.

    A task may run twice, after a failure or with a slow twin: a file appears whole and under its name in one step,
    and its content depends on the task's input alone, so that it does not matter whose file stays.
    """

    files: ByteStore

    def write(self, name: str, number: int, **columns: pa.Array) -> None:
        """Write the columns of a table, which may differ in length."""
        for column, values in columns.items():
            schema = pa.schema([(column, values.type)])
            with (
                self.files.new(_file_name(name, number, column)) as path,
                pa.OSFile(str(path), "wb") as sink,
                pa.ipc.new_file(sink, schema) as writer,
            ):
                writer.write_batch(pa.record_batch([values], schema=schema))

    def read(self, name: str, number: int, column: str, *, keep: bool = False) -> pa.Array:
        """Return a column of a table, memory-mapped; `keep` if other tasks on this machine read it, too."""
        return pa.ipc.open_file(self.files.map(_file_name(name, number, column), keep=keep)).get_batch(0).column(0)

    def read_table(self, name: str, files: Iterable[str]) -> dict[str, pa.Array]:
        """The columns of the table of this name in these files, memory-mapped, as other tasks on this machine do."""
        return checked_columns(name, read_table_file([OpenFile.at(self.files.kept(file)) for file in files]))

    def new_array(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array in a file of this machine that is removed with it; it takes room only for the parts written."""
        if not count:
            return np.zeros(0, dtype)
        file = self.files.local_folder() / f"array-{uuid.uuid4().hex}"
        array = np.memmap(file, dtype, "w+", shape=(count,))
        file.unlink()  # it stays as long as the array does
        return array


def _file_name(name: str, number: int, column: str) -> str:
    return f"{name}-{number}.{column}.arrow"
