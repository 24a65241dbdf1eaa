"""Records of a job: the data that rows give their keys, and what keys have in the index already.

Rows of one key come together by a hash of the key; a task makes their records, as one program that puts them does. At
last one task finds the records of all keys of the segment; it has the keys and their data in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import I64Array, Lists, Strings, UIntArray
from tagmatch.model.arrow import from_strings, to_numbers, to_strings
from tagmatch.model.columns import KEY_CHECKS
from tagmatch.model.data_types import Schema
from tagmatch.model.input.putting import rows_to_put
from tagmatch.model.kernels.hashing import hash_strings
from tagmatch.model.kernels.lists import group_by
from tagmatch.model.layouts import empty_segment
from tagmatch.model.storage.files import Entry
from tagmatch.model.storage.format import RECORDS
from tagmatch.model.storage.tables import records_table, table_file
from tagmatch.model.tables import KeyTable, Segment
from tagmatch.partitioner.consolidation import StagedChanges
from tagmatch.partitioner.local import no_changes
from tagmatch.partitioner.replacing import records_at, records_put, with_records
from tagmatch.partitioner.spark.batches import (
    SERIALIZED,
    Batches,
    deserialized,
    for_each,
    groups_by_hash,
    in_groups,
    labels_for_all,
    number_of_task,
    one_row,
)
from tagmatch.partitioner.spark.shards import Stored, good_rows
from tagmatch.partitioner.spark.tables import Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PUT = "put"
_MADE, _WRITTEN = "task long", "name string, entry string"
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Records:
    """Where the records of the keys of a job are."""

    stored: Stored  # the index to which rows are appended, whose keys keep theirs
    put: tuple[int, ...] = ()  # the tasks that have left those of rows

    def added_to(self, job: Job, segment: Segment) -> Segment:
        """A segment of the job, with the records of its keys."""
        if self.put:
            parts = [(job.scratch.read(_PUT, task, "key"), job.scratch.read(_PUT, task, "record")) for task in self.put]
            keys = pa.concat_arrays([part for part, _ in parts])
            own = to_strings(keys) if job.key_type == "string" else to_numbers(keys)
            tables = [pa.Table.from_struct_array(part) for _, part in parts]
            return replace(segment, records=records_at(segment, own, tables))
        if self.stored.manifest is None:
            return segment
        return with_records(self.stored.open(), no_changes(), segment, self.stored.now)

    def write(
        self, spark: SparkSession, job: Job, slices: Sequence[int], kind: type[np.unsignedinteger]
    ) -> dict[str, Entry]:
        """Leave the files of the table in the scratch folder, for the keys of slices; what manifests say, by names."""
        if not self.put and not self.stored.has_records:
            return {}
        rows = for_each(spark, [0], partial(self._write, job, tuple(slices), kind), _WRITTEN).collect()
        return {row["name"]: json.loads(row.entry) for row in rows}

    def _write(
        self, job: Job, slices: Sequence[int], kind: type[np.unsignedinteger], _: int
    ) -> Iterator[pa.RecordBatch]:
        found = [np.zeros(0, kind)]
        for number in slices:
            keys = job.scratch.read("slice", number, "keys").values
            found.append(np.unique(to_numbers(keys)).astype(kind))
        numbers: UIntArray = np.unique(np.concatenate(found))
        names = None if job.names is None else to_strings(job.scratch.read_table("key_names", job.names)["name"])
        keys_of_segment = KeyTable(Lists(np.arange(len(numbers) + 1), numbers), names)
        segment = self.added_to(job, replace(empty_segment(job.layout, job.key_type), keys=keys_of_segment))
        if segment.records is not None:
            file = table_file(RECORDS, records_table(segment.records))
            for number in range(file.parts):
                with job.scratch.files.new(file.part_name(number)) as path:
                    entry = file.write(number, path)
                yield pa.record_batch({"name": [file.part_name(number)], "entry": [json.dumps(entry)]})


def put_records(rows: DataFrame, job: Job, schema: Schema) -> tuple[int, ...]:
    """Leave the records of the keys of rows, whose columns of data are those of a schema; returns in which tasks."""
    labels = labels_for_all(rows.sparkSession)
    sent = rows.mapInArrow(partial(_send, labels, job.plane), SERIALIZED)
    made = sent.repartition("label").mapInArrow(partial(_put, job, dict(schema)), _MADE).collect()
    return tuple(sorted(row.task for row in made))


def _send(labels: I64Array, plane: bool, batches: Batches) -> Iterator[pa.RecordBatch]:
    """The rows that can be stored, by hashes of their keys."""
    for batch in batches:
        rows, _ = good_rows(batch, plane=plane, skip_invalid=True)
        keys = rows["key"]
        if pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type):
            hashes = hash_strings(to_strings(keys))
        else:
            hashes = to_numbers(keys.cast(pa.uint64())) * _MIX
            rows = rows.set_column(rows.schema.get_field_index("key"), "key", keys.cast(pa.uint64()))
        firsts, order = group_by(groups_by_hash(hashes, len(labels)), len(labels))
        yield from in_groups(firsts, labels, np.zeros(len(labels), np.int64), rows.take(pa.array(order)))


def _put(job: Job, schema: Schema, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Leave the records of some keys; of rows with one key those with the least data count, as rows have no order."""
    received = [records for _, records in deserialized(batches)]
    if not received:
        return
    rows = pa.Table.from_batches(received).combine_chunks()
    rows = rows.take(pc.sort_indices(rows, [(name, "ascending") for name in ("key", *schema)])).combine_chunks()
    columns = {name: rows.column(name).chunk(0) for name in rows.column_names}
    data = {name: columns.pop(name) for name in schema}
    KEY_CHECKS[job.key_type].many(columns["key"], "key")
    put = rows_to_put(columns, data, job.key_type, schema, plane=job.plane, threads=1)
    staged = StagedChanges()
    staged.extend(put.rows.chunks, put.rows.keys, removed=put.kinds, records=put.records)
    keys, table = records_put(empty_segment(job.layout, job.key_type), staged.changes())
    if table is not None:
        own = from_strings(keys) if isinstance(keys, Strings) else pa.array(keys)
        record = table.to_struct_array().combine_chunks()
        job.scratch.write(_PUT, number_of_task(), key=own, record=record)
        yield one_row(task=number_of_task())
