"""The data source `tagmatch`: an index as a table of sets and keys, to read, to write and as a sink of streams.

Spark calls it in Python processes of its driver and of its tasks, which have no session. A writer has rows
task by task, and neither a shuffle nor a session, by which equal sets would come together in tasks. So the rows go
through the driver, as Arrow batches, and a process of the driver lays them out with the local partitioner. Nothing is
written before all tasks are done; of a task that runs twice, Spark takes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
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

from tagmatch.contents import pairs_of, schema_of, schema_of_data
from tagmatch.model import clock
from tagmatch.model.errors import IndexChangedError, IndexNotFoundError, InvalidTypeError, InvalidValueError
from tagmatch.model.input.subscriptions import columns_of, rows_to_store
from tagmatch.model.layouts import empty_segment
from tagmatch.model.options import Layout, available_threads
from tagmatch.model.storage.format import CONSTRAINTS, EPOCHS, files_of, key_type_of
from tagmatch.model.storage.repository import Repository
from tagmatch.model.tables import Snapshot
from tagmatch.model.where.declared import Declared, declared_of
from tagmatch.partitioner.consolidation import StagedChanges, consolidated
from tagmatch.partitioner.local import Changes
from tagmatch.partitioner.spark.batches import chunks_of
from tagmatch.partitioner.spark.shards import REMOVED, Stored, check_removed, removes
from tagmatch.spark.answers import KEY_TYPES, as_spark, type_of_data
from tagmatch.spark.columns import arrow_schema, key_type_in
from tagmatch.spark.session import Parsers, StoreSettings, one_of, parsed, truth, whole

# A column of bytes of Arrow, as which Spark has what a task hands over, holds less than 2 GiB
_MOST_BYTES = 1 << 30

# Queries whose last epoch an index remembers
_MOST_QUERIES = 16


@dataclass
class HandedOver(WriterCommitMessage):
    """The rows of a task, as a stream of Arrow, and the streaming query that they are of."""

    rows: bytes
    query: str | None


class Writer(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """What saves the rows of a DataFrame, or of micro-batches: it goes to the tasks, and has what the options say.

    The manifest of the index has the number of the last micro-batch of each query, and gets it in the step in which it
    gets the changes. So one that Spark hands over once more, as it was stopped before it knew, changes nothing.
    """

    def __init__(self, index: Repository, options: Mapping[str, Any], schema: StructType, *, overwrite: bool) -> None:
        self._index, self._options, self._overwrite = index, options, overwrite
        self._replaced = index.replaced_name() if overwrite else None
        self._schema, self._key_type = arrow_schema(schema), key_type_in(schema, "key")
        names = self._schema.names
        if REMOVED in names:
            check_removed(self._schema.field(REMOVED).type, append=not overwrite)
        self._names = [name for name in names if name != REMOVED]
        self._columns(self._schema.empty_table())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> HandedOver:
        """One task: its rows, for the driver."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
            for batch in iterator:
                stream.write_batch(batch.cast(self._schema))
                if sink.tell() > _MOST_BYTES:
                    raise InvalidValueError(
                        f"a task has more than {_MOST_BYTES} bytes of rows, which go through the driver; repartition "
                        "them, or use tagmatch.spark.partition, whose rows do not"
                    )
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        return HandedOver(sink.getvalue().to_pybytes(), query)

    def abort(self, messages: Sequence[WriterCommitMessage | None], *epoch: int) -> None:
        """A task has failed: nothing has been written yet."""

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int | None = None,  # noqa: N803 - Spark's name
    ) -> None:
        """All tasks are done; of a micro-batch if it has a number: then changes of other programs come first."""
        while batchId is None or any(messages):
            try:
                return self._save(messages, batchId)
            except IndexChangedError:
                if batchId is None:
                    raise
        return None

    def _save(self, messages: Sequence[WriterCommitMessage | None], epoch: int | None) -> None:
        """Make the rows the index, or add them; in one step, at the end."""
        rows = [each for each in messages if isinstance(each, HandedOver)]
        stored = Stored(self._index) if self._overwrite else Stored.at(self._index)
        stored.check_keys(self._key_type)
        options = stored.options(self._options.get("layout"), self._options.get("maxPartitionSize"))
        changes = self._changes(rows, declared_of(options.attributes, strict=options.strict))
        epochs = dict((stored.manifest or {}).get(EPOCHS, {}))
        query = next((each.query for each in rows), None)
        if epoch is not None and query is not None:
            if epochs.get(query, -1) >= epoch:
                return
            epochs.pop(query, None)  # the ones that are heard of last come last
            epochs[query] = epoch
        if stored.manifest is not None and epoch is None:  # of a stream, each batch would read all of the index
            stored.verify(files_of(stored.segments))
        empty = Snapshot((empty_segment(options, self._key_type),))
        before = empty if stored.manifest is None else stored.open()
        made, _ = consolidated(before, changes, options, now=clock.now_us(), threads=available_threads())
        self._index.has_index()
        if self._overwrite:
            try:
                self._index.save(made, known={self._replaced} if self._replaced else set())
            except IndexChangedError:
                raise self._index.changed_meanwhile() from None
            return
        marks = {EPOCHS: dict(list(epochs.items())[-_MOST_QUERIES:])} if epochs else {}
        self._index.append(made, stored.name, marks)

    def _changes(self, messages: Sequence[HandedOver], declared: Declared) -> Changes:
        plane = self._options.get("plane", False)
        staged = StagedChanges(threads=available_threads())
        for message in messages:
            with pa.ipc.open_stream(message.rows) as batches:
                for batch in batches:
                    columns = self._columns(batch)
                    rows = rows_to_store(columns, self._key_type, plane=plane, threads=1, declared=declared)
                    removed = removes(batch)
                    if rows.sources is not None:
                        removed = removed[rows.sources]
                    staged.extend(rows.chunks, rows.keys, removed=removed, expires=rows.expires)
        return staged.changes()

    def _columns(self, batch: pa.RecordBatch | pa.Table) -> Any:
        """Rows as `TagMatch.add_subscriptions` takes them, without decimals, as which Spark has unsigned longs."""
        rows = batch.select(self._names)
        place = rows.schema.get_field_index("key")
        if pa.types.is_decimal(rows.schema.field(place).type):
            try:
                rows = rows.set_column(place, "key", rows.column(place).cast(pa.uint64()))
            except pa.ArrowInvalid:
                raise InvalidValueError(
                    "column 'key' has keys below 0 or above 2**64 - 1; leave such rows out"
                ) from None
        return columns_of(rows, match_all=self._options.get("matchAll", False))


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
        """The columns of the index, as `TagMatch.to_arrow` has them; keys are long or string."""
        return _columns(self._options(_READING, " for reading")[0])

    def reader(self, schema: StructType) -> DataSourceReader:
        """What reads the index, or some of its columns, in any order."""
        index, options = self._options(_READING, " for reading")
        # By their names, as what a user declares may have nulls in its lists
        there = {field.name: field.dataType.simpleString() for field in _columns(index)}
        for field in schema:
            if there.get(field.name) != (kind := field.dataType.simpleString()):
                listed = ", ".join(f"{name} {kind}" for name, kind in there.items())
                raise InvalidTypeError(f"{index} has no column {field.name} {kind}; it has {listed}")
        return _Reader(index, schema, options.get("setsPerPartition", _SETS_PER_PARTITION))

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        """What replaces the index by rows, or adds them to it."""
        return Writer(*self._options(_WRITING, ""), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Writer:  # noqa: N802 - Spark's name
        """What adds the rows of each micro-batch to the index."""
        if overwrite:
            raise InvalidValueError(
                "output mode 'complete' would write the whole index for each micro-batch; use 'append' with a column "
                "`removed`, or write each batch with mode 'overwrite' within foreachBatch"
            )
        return Writer(*self._options(_STREAMING, ""), schema, overwrite=False)

    def _options(self, known: Parsers, what: str) -> tuple[Repository, dict[str, Any]]:
        """Where the index is, and all options."""
        # Of a table that is read or written, Spark 4 gives no options; when it is made, its own property, too
        given = {name.lower(): text for name, text in self.options.items()}
        if not given.get("path") or "owner" in given:
            raise InvalidValueError(
                "say where the index is: load(path), save(path) or option('path', …). Spark tells a data source in "
                "Python nothing of the options of a table: write SELECT … FROM t WITH (path = '…'), or CREATE "
                "TEMPORARY VIEW … USING tagmatch OPTIONS (path '…')"
            )
        options = parsed(self.options, known, f"option of the data source{what}")
        path = options["path"]
        return self.stores.location(path, "path", options.get("snapshot")), options


# -- reading ---------------------------------------------------------------------------------------------------------


@dataclass
class _Rows(InputPartition):
    """Some rows of a segment of a snapshot."""

    snapshot: str
    segment: int
    first_row: int
    last_row: int


def _columns(location: Repository) -> StructType:
    """The columns of an index, as its manifest and its records tell them."""
    manifest = location.manifest()
    stored = Stored(location, manifest)
    fields = [
        StructField("tags", ArrayType(StringType(), containsNull=False), nullable=False),
        StructField("key", KEY_TYPES[key_type_of(manifest)], nullable=False),
    ]
    if any(CONSTRAINTS in segment for segment in manifest["segments"]):  # which conditions and areas have
        fields.append(StructField("where", StringType()))
    if stored.expiring:
        fields.append(StructField("expires", TimestampType()))
    if stored.has_records:  # only then are tables opened; of a store, their ends
        data = schema_of_data(location.in_place(manifest["snapshot"]).snapshot)
        fields += [StructField(name, type_of_data(kind)) for name, kind in data.items()]
    return StructType(fields)


class _Reader(DataSourceReader):
    def __init__(self, index: Repository, schema: StructType, sets_per_partition: int) -> None:
        self._index, self._schema, self._sets_per_partition = index, schema, sets_per_partition

    def partitions(self) -> list[_Rows]:
        manifest = self._index.manifest()
        sizes = ((place, each["rows"]) for place, each in enumerate(manifest["segments"]))
        return [_Rows(manifest["snapshot"], *chunk) for chunk in chunks_of(sizes, self._sets_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Rows):  # Spark's own, as an index without sets has no part
            return
        wanted = arrow_schema(self._schema)
        try:
            snapshot = self._index.open_unverified(partition.snapshot)
        except IndexNotFoundError:  # Spark keeps what `partitions` has told for as long as the plan
            raise IndexChangedError(
                f"{self._index} has changed since this DataFrame or view was first read; load it, or create it, again"
            ) from None
        # Of keys that do not fit a long, those are found here
        there = schema_of(snapshot)
        stored = pa.schema([there.field(name) if name in there.names else wanted.field(name) for name in wanted.names])
        rows = snapshot.segments[partition.segment]
        for batch in pairs_of(rows, stored, partition.first_row, partition.last_row):
            arrays = [as_spark(each, field.dataType) for each, field in zip(batch.columns, self._schema, strict=True)]
            yield pa.record_batch(arrays, schema=wanted)
