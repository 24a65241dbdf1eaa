"""Small tables of stored sets and arrays of queries, as the compared systems take them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


def tag_rows(rows: Sequence[Sequence[str]]) -> pa.ListArray:
    return pa.array(rows, pa.list_(pa.string()))


def table_of(rows: Sequence[tuple[Sequence[str], int]]) -> pa.Table:
    """Columns `tags` and `key` of (tags, key) pairs."""
    tags, keys = [tags for tags, _ in rows], [key for _, key in rows]
    return pa.table({"tags": tag_rows(tags), "key": pa.array(keys, pa.uint64())})
