"""Strings of Arrow that are no UTF-8, which Arrow does not see to: they are refused where they would be read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tagmatch import FilterError, InvalidValueError, TagMatch
from tagmatch.files.inputs import read_queries, read_sets
from tagmatch.files.invalid import InvalidRows
from tagmatch.model.conditions.rows import have_mistakes, reject_mistakes

BAD = pa.array([b"v = 1", b"\xff"], pa.binary()).view(pa.string())
NUMBER = pa.array([1.0, 2.0])
AREA = pa.StructArray.from_arrays(
    [pa.array([b"circle", b"\xff"]).view(pa.string()), NUMBER, NUMBER, NUMBER], ["kind", "lon", "lat", "metres"]
)


def constraints(field: str) -> pa.Array:
    texts = {"attr": pa.array(["a", "b"]), "op": pa.array(["=", "="]), "value": pa.array(["c", "d"])}
    texts[field] = pa.array([b"=", b"\xff"]).view(pa.string())
    return pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), pa.StructArray.from_arrays([*texts.values()], list(texts))
    )


STORED = {
    "where": BAD,
    "area": AREA,
    **{f"constraints {field}": constraints(field) for field in ("attr", "op", "value")},
}


@pytest.mark.parametrize("name", STORED)
def test_sets(tmp_path, name):
    column = name.partition(" ")[0]
    table = pa.table({"tags": [["a"], ["b"]], "key": [1, 2], column: STORED[name]})
    tm: TagMatch[int] = TagMatch()
    with pytest.raises(InvalidValueError, match=f"{column}.* UTF8"):
        tm.add_subscriptions(table)
    with pytest.raises(InvalidValueError, match=f"{column}.* UTF8"):
        tm.add_subscriptions(table.slice(1))
    pq.write_table(table, tmp_path / "s.parquet")
    invalid = InvalidRows(skip=True)
    rows = list(read_sets(str(tmp_path / "s.parquet"), invalid=invalid, where=True))
    assert ([each for batch in rows for each in batch["key"].to_pylist()], invalid.count) == ([1], 1)


@pytest.mark.parametrize(("column", "values"), [("id", BAD), ("within", AREA)])
def test_queries(tmp_path, column: str, values: Any):
    table = pa.table({"tags": [["a"], ["b"]], column: values})
    pq.write_table(table, tmp_path / "q.parquet")
    invalid = InvalidRows(skip=True)
    rows = list(read_queries(str(tmp_path / "q.parquet"), invalid=invalid))
    assert ([each for batch in rows for each in batch["row"].to_pylist()], invalid.count) == ([0], 1)
    if column == "within":
        with pytest.raises(InvalidValueError, match=r"within.* UTF8"):
            TagMatch[int]().match_many(table)


def test_expressions_of_spark():
    assert have_mistakes(BAD, plane=False).tolist() == [False, True]
    with pytest.raises(FilterError, match="byte 1 is no UTF-8"):
        reject_mistakes(BAD, plane=False)
