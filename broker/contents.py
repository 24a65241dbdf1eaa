"""`DoGet`: what is stored, as batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from tagmatch.contents import pairs, schema_of
from tagmatch.interface import TagMatch
from tagmatch.model.filters.where import Where

_SETS_A_BATCH = 4096


def rows_of(index: TagMatch[Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Rows `tags`, `key`, and `where` and `expires` where there are some, as `TagMatch.to_arrow` gives them."""
    snapshot = index.snapshot
    return schema_of(snapshot), iter(pairs(snapshot))


def sets_of(index: TagMatch[Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Sets with `tags`, `where`, a list of conditions, and `keys`, as iteration gives them."""
    kind = pa.large_string() if index.stats()["key_type"] == "string" else pa.uint64()
    schema = pa.schema([("tags", pa.list_(pa.string())), ("where", pa.list_(pa.string())), ("keys", pa.list_(kind))])
    return schema, _batches(iter(index), schema)


def _batches(sets: Iterator[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while some := list(islice(sets, _SETS_A_BATCH)):
        tags = [[tag for tag in stored if not isinstance(tag, Where)] for stored, _ in some]
        where = [[str(tag) for tag in stored if isinstance(tag, Where)] for stored, _ in some]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(column, field.type)
                for column, field in zip((tags, where, [k for _, k in some]), schema, strict=True)
            ],
            schema=schema,
        )


#: What a ticket `{"get": NAME}` may ask for
CONTENTS = {"rows": rows_of, "sets": sets_of}
