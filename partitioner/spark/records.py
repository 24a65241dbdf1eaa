"""Stored sets as record batches with tags as strings, as they go from segments through Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import IntArray, Lists, UIntArray, offsets_of
from tagmatch.model.arrow import from_strings
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
