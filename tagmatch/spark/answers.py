"""What every strategy of the join does in the workers: add keys to batches of queries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import pyarrow as pa
from pyspark.sql.types import ArrayType, LongType, StringType, StructField

from tagmatch.model.arrays import IntArray
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.options import KeyType

Output = Literal["rows", "lists"]

#: Name of the column that each output adds
ANSWER_NAMES: dict[Output, str] = {"rows": "key", "lists": "keys"}

#: What Spark has for keys
KEY_TYPES = {"integer": LongType(), "string": StringType()}

_BATCH_KEYS = 1 << 16
_BATCH_BYTES = 1 << 30


def answer_field(output: Output, key_type: KeyType) -> StructField:
    """The column that an output adds, for an index with such keys."""
    key = KEY_TYPES[key_type]
    kind = key if output == "rows" else ArrayType(key, containsNull=False)
    return StructField(ANSWER_NAMES[output], kind, nullable=False)


def with_keys(output: Output, queries: pa.RecordBatch, answers: pa.ListArray) -> Iterator[pa.RecordBatch]:
    """Add the answers as `output` says, in batches of bounded size.

    Parameters
    ----------
    output : {"rows", "lists"}
        One row for each key of a query, or one row for each query.
    queries : pyarrow.RecordBatch
        Any columns.
    answers : pyarrow.ListArray of uint64 or large_string
        The keys of each query.

    Yields
    ------
    pyarrow.RecordBatch
        All columns, then `key`, int64 or large_string, or `keys`, lists of these.

    Raises
    ------
    InvalidValueError
        A key does not fit a `long`.
    """
    offsets, keys = answers.offsets.to_numpy(), answers.values
    if pa.types.is_integer(keys.type):
        keys = signed(keys)
    if output == "rows":
        return _key_by_key(queries, offsets, keys)
    return _query_by_query(queries, offsets, keys)


def signed(keys: pa.Array) -> pa.Array:
    """Keys, uint64, as Spark's `long`; InvalidValueError for one that is none."""
    signed = keys.view(pa.int64())
    values = signed.to_numpy()
    if len(values) and values.min() < 0:
        key = int(values.view(np.uint64).max())
        raise InvalidValueError(
            f"key {key} of the index is above 2**63 - 1, the greatest `long` of Spark; give such sets smaller keys"
        )
    return signed


def _key_by_key(queries: pa.RecordBatch, offsets: IntArray, keys: pa.Array) -> Iterator[pa.RecordBatch]:
    rows = np.repeat(np.arange(len(queries)), np.diff(offsets))
    # Few enough for Arrow's 32-bit offsets even if all of them repeat one query that has all the bytes
    step = max(1, min(_BATCH_KEYS, _BATCH_BYTES // max(1, queries.nbytes)))
    schema = queries.schema.append(pa.field("key", keys.type, nullable=False))
    for first in range(0, len(rows), step):
        repeated = queries.take(pa.array(rows[first : first + step]))
        yield pa.RecordBatch.from_arrays([*repeated.columns, keys.slice(first, step)], schema=schema)


def _query_by_query(queries: pa.RecordBatch, offsets: IntArray, keys: pa.Array) -> Iterator[pa.RecordBatch]:
    marks = np.arange(0, int(offsets[-1]), _BATCH_KEYS)
    edges = np.unique(np.concatenate([[0], np.searchsorted(offsets, marks, side="right") - 1, [len(queries)]]))
    lists = pa.ListArray.from_arrays(pa.array(offsets), keys)
    schema = queries.schema.append(pa.field("keys", lists.type, nullable=False))
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        some = slice(first, last)
        yield pa.RecordBatch.from_arrays([*queries[some].columns, lists[some]], schema=schema)
