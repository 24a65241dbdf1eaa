"""The join where every worker has the whole index: it is opened once, memory-mapped, and asked batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions
from pyspark.sql.types import StructType

from tagmatch.embedded import TagMatch
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.options import KeyType
from tagmatch.model.storage.format import key_type_of
from tagmatch.model.storage.repository import Repository
from tagmatch.spark.columns import AskedColumns, Output, answer_field, on_plane, reject_nulls, with_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Queries answered together, so that what they have in common, the memory of their answers, stays bounded
QUERIES = 1024

# The indexes that this worker has opened, by what they are called, and where: for each store or folder the last one,
# as credentials may change. A worker runs one task at a time.
_opened: dict[str, tuple[Repository, TagMatch[Any]]] = {}


def ship_join(
    queries: DataFrame, index: Repository, *, key_type: KeyType, asked: AskedColumns, unique: bool, output: Output
) -> DataFrame:
    """Join queries, which may be a stream, with an index that all workers reach.

    Every task answers from the snapshot that is current when it begins. Answers depend on the query and the snapshot
    alone: while the index stays as it is, and none of its keys expires, a task that is run again gives the same rows.
    """

    def tagmatch_ship(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return matched(batches, index, key_type=key_type, asked=asked, unique=unique, output=output)

    # As structs, since `mapInArrow` does not find columns with a dot in their names
    structs = queries.select(functions.struct("*").alias("query"))
    return structs.mapInArrow(tagmatch_ship, StructType([*queries.schema.fields, answer_field(output, key_type)]))


def matched(
    batches: Iterable[pa.RecordBatch],
    location: Repository,
    *,
    key_type: KeyType,
    asked: AskedColumns,
    unique: bool,
    output: Output,
) -> Iterator[pa.RecordBatch]:
    """One task: queries as structs; gives rows of the outcome."""
    index = current_index(location, key_type)
    for structs in batches:
        batch = pa.RecordBatch.from_struct_array(structs.column(0))
        reject_nulls(batch.column(asked.tags), batch.schema.names[asked.tags])
        for first in range(0, len(batch), QUERIES):
            some = batch.slice(first, QUERIES)
            yield from with_keys(output, some, index.match_many(asked.messages(some), unique=unique))


def current_index(location: Repository, key_type: KeyType) -> TagMatch[Any]:
    """The index as it is now; opened where this worker has not opened it, or an older snapshot of it."""
    try:
        return _reloaded(location, key_type)
    except InvalidValueError:
        found = key_type_of(location.manifest())
        if found == key_type:
            _reject_plane(location, key_type)
            raise
        raise InvalidValueError(
            f'the index {location} had key_type "{key_type}" when the join began, and has "{found}" now; begin it anew'
        ) from None


def _reloaded(location: Repository, key_type: KeyType) -> TagMatch[Any]:
    where, held = _opened.get(str(location), (location, None))
    if held is not None and where == location and held.snapshot.key_type == key_type:
        held.reload()
        return held
    index = _open(location, key_type)
    _opened[str(location)] = location, index
    if held is not None:
        held.close()
    return index


def _open(location: Repository, key_type: KeyType, *, plane: bool = False) -> TagMatch[Any]:
    # With the location's credentials, which no address has
    found: Any = location
    return TagMatch.open(found, threads=1, device="cpu", key_type=key_type, plane=plane)


def _reject_plane(location: Repository, key_type: KeyType) -> None:
    """InvalidValueError if an index that cannot be opened on the sphere is one on the plane."""
    try:
        _open(location, key_type, plane=True).close()
    except InvalidValueError:
        return
    raise on_plane(location) from None
