"""The data source `tagmatch`: an index as a table of sets and keys, to read, to write and as a sink of streams.

Spark calls it in Python processes beside its driver and in those of its tasks, which have no session.

What saves rows of Spark to an index: tasks hand them over, and one process beside the driver makes them a snapshot.

A writer of Spark's data sources has rows task by task, and neither a shuffle nor a session, by which equal sets would
come together in tasks. So the rows go through the driver, as Arrow batches, and the local partitioner lays them out.
Nothing is written before all tasks are done; of a task that runs twice, Spark takes one.

The data source `tagmatch` as the sink of a stream: each micro-batch becomes the index's once, whatever fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import ArrayType, StringType, StructField, StructType, TimestampType

from tagmatch.contents import pairs_of, schema_of
from tagmatch.model import clock
from tagmatch.model.arrays import BoolArray
from tagmatch.model.errors import IndexChangedError, InvalidTypeError, InvalidValueError
from tagmatch.model.layouts import empty_segment
from tagmatch.model.options import KeyType, Layout, LayoutOptions, available_threads
from tagmatch.model.storage.format import CONSTRAINTS, EPOCHS, Manifest, files_of, key_type_of
from tagmatch.model.storage.repository import Repository
from tagmatch.model.tables import Snapshot
from tagmatch.partitioner.consolidation import consolidated
from tagmatch.partitioner.local import Changes
from tagmatch.partitioner.spark.shards import Stored
from tagmatch.partitioner.staged import StagedChanges
from tagmatch.spark.columns import KEY_TYPES, Parsers, arrow_schema, one_of, parsed, signed, truth, whole
from tagmatch.spark.stores import StoreSettings
from tagmatch.subscriptions import columns_of, rows_to_store

#: The column that says whether a row is to be removed
REMOVED = "removed"

# A column of bytes of Arrow, as which Spark has what a task hands over, holds less than 2 GiB
_MOST_BYTES = 1 << 30

# Queries whose last epoch an index remembers
_MOST_QUERIES = 16


@dataclass
class HandedOver(WriterCommitMessage):
    """The rows of a task, as a stream of Arrow, and the streaming query that they are of."""

    rows: bytes
    query: str | None


@dataclass(frozen=True, slots=True)
class Saving:
    """Where rows go, and how."""

    index: Repository
    overwrite: bool  # They replace the index; else they are added to it
    layout: Layout | None
    max_partition_size: int | None  # See `TagMatch`; `None`: as the index has it
    plane: bool  # Areas are on the plane
    match_all: bool  # See `TagMatch.add_subscriptions`

    def save(self, messages: Sequence[HandedOver], schema: pa.Schema, epoch: int | None = None) -> None:
        """Make the rows the index, or add them; in one step, at the end."""
        changes, key_type = self._changes(messages, schema), key_type_in(schema)
        if self.overwrite:
            options = Stored(self.index).options(self.layout, self.max_partition_size)
            made = _after(Snapshot((empty_segment(options, key_type),)), changes, options)
            self.index.has_index()
            with self.index.scratch():  # what a killed one has left goes
                self.index.save(made)
        else:
            self._add(changes, key_type, next((each.query for each in messages), None), epoch)

    def _changes(self, messages: Sequence[HandedOver], schema: pa.Schema) -> Changes:
        staged, key_type = StagedChanges(threads=available_threads()), key_type_in(schema)
        for message in messages:
            with pa.ipc.open_stream(message.rows) as batches:
                for batch in batches:
                    names = [name for name in batch.schema.names if name != REMOVED]
                    columns = columns_of(_with_unsigned_keys(batch.select(names)), match_all=self.match_all)
                    rows = rows_to_store(columns, key_type, plane=self.plane, threads=1)
                    removed = _removed(batch)
                    flags = removed if rows.sources is None else removed[rows.sources]
                    staged.extend(rows.chunks, rows.keys, removed=flags, expires=rows.expires)
        return staged.changes()

    def _add(self, changes: Changes, key_type: KeyType, query: str | None, epoch: int | None) -> None:
        stored = Stored.at(self.index)
        stored.check_keys(key_type)
        options = stored.options(self.layout, self.max_partition_size)
        epochs = dict((stored.manifest or {}).get(EPOCHS, {}))
        if epoch is not None and query is not None:
            if epochs.get(query, -1) >= epoch:
                return
            epochs.pop(query, None)  # the ones that are heard of last come last
            epochs[query] = epoch
        if stored.manifest is None:
            snapshot = Snapshot((empty_segment(options, key_type),))
        else:
            if epoch is None:  # a stream would read all of the index for each of its batches
                stored.verify(files_of(stored.segments))
            snapshot = stored.open()
        with self.index.scratch():
            manifest: Manifest = self.index.prepare(_after(snapshot, changes, options), stored.segments)
            if epochs:
                manifest = manifest | {EPOCHS: dict(list(epochs.items())[-_MOST_QUERIES:])}
            self.index.switch(manifest, stored.name)


def _after(snapshot: Snapshot, changes: Changes, options: LayoutOptions) -> Snapshot:
    return consolidated(snapshot, changes, options, now=clock.now_us(), threads=available_threads())[0]


def key_type_in(schema: pa.Schema) -> KeyType:
    """What the keys of rows are."""
    if "key" not in schema.names:
        raise InvalidValueError(f"there is no column 'key'; there are {', '.join(map(repr, schema.names)) or 'none'}")
    kind = schema.field("key").type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "string"
    if pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0):
        return "integer"
    raise InvalidTypeError(f"column 'key' must be a string, an integer or a decimal of scale 0, not {kind}")


def check_columns(schema: pa.Schema, *, removals: bool, match_all: bool) -> None:
    """See that rows have columns that can be saved."""
    key_type_in(schema)
    names = schema.names
    if REMOVED in names:
        if not removals:
            raise InvalidValueError(
                f"column {REMOVED!r}: rows that replace an index cannot remove any; append them, or drop the column"
            )
        if not pa.types.is_boolean(kind := schema.field(REMOVED).type):
            raise InvalidTypeError(f"column {REMOVED!r} must be boolean, not {kind}")
    rows = pa.Table.from_batches([], schema).select([name for name in names if name != REMOVED])
    columns_of(rows, match_all=match_all)


def _removed(batch: pa.RecordBatch) -> BoolArray:
    if REMOVED not in batch.schema.names:
        return np.zeros(len(batch), np.bool_)
    removed: BoolArray = pc.fill_null(batch.column(REMOVED), False).to_numpy(zero_copy_only=False)
    return removed


def _with_unsigned_keys(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Keys that are decimals, as which Spark has unsigned longs, as integers."""
    place = batch.schema.get_field_index("key")
    keys = batch.column(place)
    if not pa.types.is_decimal(keys.type):
        return batch
    try:
        return batch.set_column(place, "key", keys.cast(pa.uint64()))
    except pa.ArrowInvalid:
        raise InvalidValueError("column 'key' has keys below 0 or above 2**64 - 1; leave such rows out") from None


def handed_over(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> HandedOver:
    """One task: its rows, for the driver."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        for batch in batches:
            stream.write_batch(batch.cast(schema))
            if sink.tell() > _MOST_BYTES:
                raise InvalidValueError(
                    f"a task has more than {_MOST_BYTES} bytes of rows, which go through the driver; repartition them, "
                    "or use tagmatch.spark.partition, whose rows do not"
                )
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    return HandedOver(sink.getvalue().to_pybytes(), query)


class Writer(DataSourceArrowWriter):
    """What saves the rows of a DataFrame."""

    def __init__(self, saving: Saving, schema: StructType) -> None:
        self._saving, self._schema = saving, arrow_schema(schema)
        check_columns(self._schema, removals=not saving.overwrite, match_all=saving.match_all)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> HandedOver:
        """One task."""
        return handed_over(iterator, self._schema)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks are done."""
        self._saving.save([each for each in messages if isinstance(each, HandedOver)], self._schema)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """A task has failed: nothing has been written yet."""


class StreamWriter(DataSourceStreamArrowWriter):
    """What saves the changes of micro-batches.

    The manifest of the index has the number of the last micro-batch of each query, and gets it in the step in which it
    gets the changes. So one that Spark hands over once more, as it was stopped before it knew, changes nothing.
    """

    def __init__(self, saving: Saving, schema: StructType) -> None:
        self._saving, self._schema = saving, arrow_schema(schema)
        check_columns(self._schema, removals=True, match_all=saving.match_all)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> HandedOver:
        """One task."""
        return handed_over(iterator, self._schema)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """All tasks of a micro-batch are done. Where another program saves meanwhile, its changes come first."""
        rows = [each for each in messages if isinstance(each, HandedOver)]
        while rows:
            try:
                return self._saving.save(rows, self._schema, batchId)
            except IndexChangedError:
                continue
        return None

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """A task has failed: nothing has been written yet."""


_READING: Parsers = {"path": str, "snapshot": int, "setsPerPartition": whole}
_WRITING: Parsers = {
    "path": str, "layout": one_of(Layout), "maxPartitionSize": whole, "plane": truth, "matchAll": truth
}  # fmt: skip
# What Spark itself has among the options of a stream
_STREAMING: Parsers = {**_WRITING, "checkpointLocation": str}

# Sets that a task reads
_SETS_PER_PARTITION = 1 << 20


class TagMatchSource(DataSource):
    """An index of tagmatch, as `spark.read.format("tagmatch")` and `df.write.format("tagmatch")` have it."""

    #: Those of the session, where `register` has made it known; Spark itself tells a data source nothing of them
    stores = StoreSettings()

    @classmethod
    def name(cls) -> str:
        """What Spark's users call it."""
        return "tagmatch"

    def schema(self) -> StructType:
        """The columns of the index, as `TagMatch.to_arrow` has them, but for keys, which are long or string."""
        return _columns(self._read().location)

    def reader(self, schema: StructType) -> DataSourceReader:
        """What reads the index, or some of its columns, in any order."""
        asked = self._read()
        there = {field.name: field.dataType for field in _columns(asked.location)}
        for field in schema:
            if there.get(field.name) != field.dataType:
                listed = ", ".join(f"{name} {kind.simpleString()}" for name, kind in there.items())
                raise InvalidTypeError(
                    f"{asked.location} has no column {field.name} {field.dataType.simpleString()}; it has {listed}"
                )
        return _Reader(asked, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        """What replaces the index by rows, or adds them to it."""
        return Writer(self._saving(_WRITING, overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        """What adds the rows of each micro-batch to the index."""
        if overwrite:
            raise InvalidValueError(
                "output mode 'complete' would write the whole index for each micro-batch; use 'append' with a column "
                "`removed`, or write each batch with mode 'overwrite' within foreachBatch"
            )
        return StreamWriter(self._saving(_STREAMING, False), schema)

    def _read(self) -> _Asked:
        options = parsed(self.options, _READING, "option of the data source for reading")
        location = self.stores.location(_path(options), "path", options.get("snapshot"))
        return _Asked(location, options.get("setsPerPartition", _SETS_PER_PARTITION))

    def _saving(self, known: Parsers, overwrite: bool) -> Saving:
        options = parsed(self.options, known, "option of the data source")
        return Saving(
            self.stores.location(_path(options), "path"),
            overwrite=overwrite,
            layout=options.get("layout"),
            max_partition_size=options.get("maxPartitionSize"),
            plane=options.get("plane", False),
            match_all=options.get("matchAll", False),
        )


def _path(options: Mapping[str, Any]) -> str:
    if not (path := options.get("path")):
        raise InvalidValueError("say where the index is: load(path), save(path) or option('path', …)")
    return str(path)


# -- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    location: Repository
    sets_per_partition: int


@dataclass
class _Rows(InputPartition):
    """Some rows of a segment of a snapshot."""

    snapshot: str
    segment: int
    first_row: int
    last_row: int


def _columns(location: Repository) -> StructType:
    """The columns of an index, as its manifest tells them."""
    manifest = location.manifest()
    fields = [
        StructField("tags", ArrayType(StringType(), containsNull=False), nullable=False),
        StructField("key", KEY_TYPES[key_type_of(manifest)], nullable=False),
    ]
    if any(CONSTRAINTS in segment for segment in manifest["segments"]):  # as where there are areas
        fields.append(StructField("where", StringType()))
    if Stored(location, manifest).expiring:
        fields.append(StructField("expires", TimestampType()))
    return StructType(fields)


class _Reader(DataSourceReader):
    def __init__(self, asked: _Asked, schema: StructType) -> None:
        self._asked, self._schema = asked, schema

    def partitions(self) -> list[_Rows]:
        manifest, most = self._asked.location.manifest(), self._asked.sets_per_partition
        return [
            _Rows(manifest["snapshot"], place, first, min(first + most, segment["rows"]))
            for place, segment in enumerate(manifest["segments"])
            for first in range(0, segment["rows"], most)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Rows)
        wanted = arrow_schema(self._schema)
        snapshot = self._asked.location.open_unverified(partition.snapshot)
        # Of keys that do not fit a long, those are found here
        there = schema_of(snapshot)
        stored = pa.schema([there.field(name) if name in there.names else wanted.field(name) for name in wanted.names])
        rows = snapshot.segments[partition.segment]
        for batch in pairs_of(rows, stored, partition.first_row, partition.last_row):
            yield _as_spark_has_it(batch, wanted)


def _as_spark_has_it(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    columns: Iterable[pa.Array] = (
        signed(column) if pa.types.is_uint64(column.type) else column for column in batch.columns
    )
    return pa.record_batch(
        [column.cast(field.type) for column, field in zip(columns, wanted, strict=True)], schema=wanted
    )
