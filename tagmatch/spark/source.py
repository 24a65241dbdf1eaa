"""The data source `tagmatch`: an index as a table of sets and keys, to read, to write and as a sink of streams.

Spark calls it in Python processes beside its driver and in those of its tasks, which have no session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import ArrayType, StringType, StructField, StructType, TimestampType

from tagmatch.contents import pairs_of, schema_of
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.options import Layout
from tagmatch.model.storage.format import CONSTRAINTS, key_type_of
from tagmatch.model.storage.location import Location
from tagmatch.partitioner.spark.stored import Stored
from tagmatch.spark.answers import KEY_TYPES, signed
from tagmatch.spark.options import Parsers, one_of, parsed, truth, whole
from tagmatch.spark.schemas import arrow_schema
from tagmatch.spark.sink import StreamWriter
from tagmatch.spark.stores import StoreSettings
from tagmatch.spark.writing import Saving, Writer

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
    location: Location
    sets_per_partition: int


@dataclass
class _Rows(InputPartition):
    """Some rows of a segment of a snapshot."""

    snapshot: str
    segment: int
    first_row: int
    last_row: int


def _columns(location: Location) -> StructType:
    """The columns of an index, as its manifest tells them."""
    manifest = location.manifest()
    fields = [
        StructField("tags", ArrayType(StringType(), containsNull=False), nullable=False),
        StructField("key", KEY_TYPES[key_type_of(manifest)], nullable=False),
    ]
    if any(CONSTRAINTS in segment for segment in manifest["segments"]):  # as where there are areas
        fields.append(StructField("where", StringType()))
    if Stored(location, manifest, 0).some_expire:
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
