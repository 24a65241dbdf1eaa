"""The join where every worker has the whole index: it is opened once, memory-mapped, and asked batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions
from pyspark.sql.types import StructType

from tagmatch.engine import TagMatch
from tagmatch.places import Place
from tagmatch.spark.answers import ANSWER_FIELDS, Output, reject_nulls, with_keys
from tagmatch.storage import read_manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Queries answered together, so that what they have in common, the memory of their answers, stays bounded
_QUERIES = 1024

# The indexes that this worker has opened, with the names of their snapshots. A worker runs one task at a time.
_opened: dict[Place, tuple[str, TagMatch]] = {}


def ship_join(queries: DataFrame, index: Place, *, tags: str, unique: bool, output: Output) -> DataFrame:
    """Join queries, which may be a stream, with an index that all workers reach.

    Every task answers from the snapshot that is current when it begins. Answers depend on the query and the snapshot
    alone: while the index stays as it is, a task that is run again gives the same rows.
    """
    column = queries.columns.index(tags)

    def match(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return matched(batches, index, column=column, unique=unique, output=output)

    # As structs, since `mapInArrow` does not find columns with a dot in their names
    structs = queries.select(functions.struct("*").alias("query"))
    return structs.mapInArrow(match, StructType([*queries.schema.fields, ANSWER_FIELDS[output]]))


def matched(
    batches: Iterable[pa.RecordBatch], place: Place, *, column: int, unique: bool, output: Output
) -> Iterator[pa.RecordBatch]:
    """One task: queries as structs, whose tags are the field of that number; gives rows of the outcome."""
    index = current_index(place)
    for structs in batches:
        batch = pa.RecordBatch.from_struct_array(structs.column(0))
        reject_nulls(batch.column(column), batch.schema.names[column])
        for first in range(0, len(batch), _QUERIES):
            some = batch.slice(first, _QUERIES)
            yield from with_keys(output, some, index.match_many(some.column(column), unique=unique))


def current_index(place: Place) -> TagMatch:
    """The index as it is now; opened where this worker has not opened it, or an older snapshot of it."""
    path = place.local_index()
    # Read before the index is opened: should a newer snapshot come in between, the next task opens it again
    name = str(read_manifest(path)["snapshot"])
    held = _opened.get(place)
    if held is not None and held[0] == name:
        return held[1]
    index = TagMatch.open(path, threads=1, device="cpu")
    _opened[place] = (name, index)
    if held is not None:
        held[1].close()
    return index
