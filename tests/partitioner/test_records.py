"""Rows of record batches by their places: what Arrow itself takes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmatch.partitioner.spark.records import rows_at

_TEXT = st.one_of(st.none(), st.text(max_size=5))
_ROWS = st.lists(st.tuples(st.lists(_TEXT, max_size=4), st.lists(st.integers(0, 2**64 - 1), max_size=3), st.text()))


@pytest.mark.parametrize(
    ("strings", "lists"),
    [(pa.string(), pa.list_), (pa.large_string(), pa.large_list), (pa.large_string(), pa.list_)],
)
@given(rows=_ROWS, nulls=st.booleans(), data=st.data())
def test_rows_at_places(strings: pa.DataType, lists: object, rows: list, nulls: bool, data: st.DataObject) -> None:
    tags = [[tag for tag in each if nulls or tag is not None] for each, _, _ in rows]
    whole = pa.record_batch(
        {
            "tags": pa.array(tags, lists(pa.field("element", strings))),
            "keys": pa.array([keys for _, keys, _ in rows], lists(pa.uint64())),
            "name": pa.array([name for _, _, name in rows], strings),
            "number": pa.array(range(len(rows)), pa.int64()),
        }
    )
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(rows))] * 2)))
    part = whole.slice(first, last - first)
    places = data.draw(st.lists(st.integers(0, len(part) - 1))) if len(part) else []
    found = rows_at(part, np.array(places, np.uint32))
    found.validate(full=True)
    assert found.schema == part.schema
    assert found.to_pylist() == [part.to_pylist()[place] for place in places]
