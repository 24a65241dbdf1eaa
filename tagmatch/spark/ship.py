"""The join where every worker has the whole index: it is opened once, memory-mapped, and asked batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions
from pyspark.sql.types import StructType

from tagmatch.interface import TagMatch
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.options import KeyType
from tagmatch.model.storage.format import key_type_of, read_manifest
from tagmatch.model.storage.places import Place
from tagmatch.spark.answers import Output, answer_field, reject_nulls, with_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Queries answered together, so that what they have in common, the memory of their answers, stays bounded
_QUERIES = 1024

# The indexes that this worker has opened, with the names of their snapshots. A worker runs one task at a time.
_opened: dict[Place, tuple[str, TagMatch[Any]]] = {}


def ship_join(
    queries: DataFrame, index: Place, *, key_type: KeyType, tags: str, unique: bool, output: Output
) -> DataFrame:
    """Join queries, which may be a stream, with an index that all workers reach.

    Every task answers from the snapshot that is current when it begins. Answers depend on the query and the snapshot
    alone: while the index stays as it is, a task that is run again gives the same rows.
    """
    column = queries.columns.index(tags)

    def match(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return matched(batches, index, key_type=key_type, column=column, unique=unique, output=output)

    # As structs, since `mapInArrow` does not find columns with a dot in their names
    structs = queries.select(functions.struct("*").alias("query"))
    return structs.mapInArrow(match, StructType([*queries.schema.fields, answer_field(output, key_type)]))


def matched(
    batches: Iterable[pa.RecordBatch],
    place: Place,
    *,
    key_type: KeyType,
    column: int,
    unique: bool,
    output: Output,
) -> Iterator[pa.RecordBatch]:
    """One task: queries as structs, whose tags are the field of that number; gives rows of the outcome."""
    index = current_index(place, key_type)
    for structs in batches:
        batch = pa.RecordBatch.from_struct_array(structs.column(0))
        reject_nulls(batch.column(column), batch.schema.names[column])
        for first in range(0, len(batch), _QUERIES):
            some = batch.slice(first, _QUERIES)
            yield from with_keys(output, some, index.match_many(some.column(column), unique=unique))


def current_index(place: Place, key_type: KeyType) -> TagMatch[Any]:
    """The index as it is now; opened where this worker has not opened it, or an older snapshot of it.

    Raises
    ------
    InvalidValueError
        Its keys have become others than `key_type`, which the columns of the join are for.
    """
    path = place.local_index()
    # Read before the index is opened: should a newer snapshot come in between, the next task opens it again
    manifest = read_manifest(path)
    name, found = str(manifest["snapshot"]), key_type_of(manifest)
    if found != key_type:
        raise InvalidValueError(
            f'the index {place} had key_type "{key_type}" when the join began, and has "{found}" now; begin it anew'
        )
    held = _opened.get(place)
    if held is not None and held[0] == name:
        return held[1]
    index = TagMatch.open(path, threads=1, device="cpu", key_type=key_type)
    _opened[place] = (name, index)
    if held is not None:
        held[1].close()
    return index
