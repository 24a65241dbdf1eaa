"""Stored sets as record batches with tags as strings, as they go from segments through Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import IntArray, Lists, Strings, U32Array, UIntArray, list_offsets, offsets_of
from tagmatch.model.arrow import from_lists, from_strings, to_lists, to_strings
from tagmatch.model.kernels.lists import gather, gather_strings
from tagmatch.model.tables import LONG_AGO, Segment


def sets_at(segment: Segment, rows: UIntArray, now: int = LONG_AGO) -> pa.RecordBatch:
    """The sets in these rows of a segment: columns `tags`, lists of strings, and `keys`, lists as they are stored.

    Without keys that have expired `now`, in microseconds since 1970.
    """
    ranks, table = gather(segment.tagsets.ranks, rows), segment.keys.of_sets(rows)
    keys = table.keys
    if table.expires is not None:
        lasts = table.expires > now
        keys = Lists(offsets_of(lasts)[keys.offsets], keys.values[lasts])
    tags = from_strings(gather_strings(segment.vocabulary.tags, ranks.values))
    # Integers as they are stored, of 32 bits where they may be
    values = pa.array(keys.values) if segment.keys.names is None else segment.keys.column(keys.values)
    columns = [lists_of(ranks.offsets, tags), lists_of(keys.offsets, values)]
    return pa.RecordBatch.from_arrays(columns, names=["tags", "keys"])


def lists_of(offsets: IntArray, values: pa.Array) -> pa.Array:
    """An Arrow list or large list array, by the type of the offsets."""
    kind = pa.ListArray if offsets.dtype == np.int32 else pa.LargeListArray
    return kind.from_arrays(pa.array(offsets), values)


def rows_at(records: pa.RecordBatch, places: U32Array) -> pa.RecordBatch:
    """The rows with these places, as `records.take` gives them, which is slow where there are lists.

    The columns have no nulls, but elements of lists may be anything.
    """
    columns = [_elements_at(column, places).cast(column.type) for column in records.columns]
    return pa.record_batch(columns, schema=records.schema)


def _elements_at(array: pa.Array, places: U32Array) -> pa.Array:
    kind = array.type
    if _are_strings(kind) and not array.offset:
        return from_strings(gather_strings(to_strings(array), places))
    if len(array) and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        values, offsets = array.values, array.offsets.to_numpy()
        if pa.types.is_integer(kind.value_type) and not values.null_count:
            return from_lists(gather(to_lists(array), places))
        if _are_strings(kind.value_type) and not (values.null_count or values.offset):
            return _string_lists_at(offsets, to_strings(values), places)
    return array.take(pa.array(places))


def _string_lists_at(offsets: IntArray, strings: Strings, places: U32Array) -> pa.Array:
    """The text of a list is in one piece, so it is copied as a whole, whatever strings it has."""
    lengths = gather(Lists(offsets, np.diff(strings.offsets).astype(np.uint32)), places)
    text = gather_strings(Strings(strings.offsets[offsets], strings.data), places).data
    return lists_of(lengths.offsets, from_strings(Strings(list_offsets(lengths.values), text)))


def _are_strings(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
