"""Times that are missing, however libraries write that, and columns of extension types of Arrow."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tagmatch import InvalidTypeError, TagMatch
from tagmatch.files.inputs import read_queries, read_sets

MISSING = [None, pd.NaT, pd.NA, np.nan, float("nan"), np.datetime64("NaT"), np.timedelta64("NaT")]
LATE = datetime(9000, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("value", MISSING, ids=repr)
def test_a_missing_time_is_none(value):
    tm: TagMatch[int] = TagMatch()
    tm.add_set(["a"], 1, expires=value)
    tm.add_sets([["a"], ["a"]], [2, 3], expires=value)
    tm.add_sets([["a"], ["a"]], [4, 5], expires=[value, LATE])
    tm.add_sets([["a"], ["a"]], [6, 7], expires=np.array([LATE, value], object))
    tm.consolidate()
    rows = tm.to_arrow()
    assert dict(zip(rows["key"].to_pylist(), rows["expires"].to_pylist(), strict=True)) == dict.fromkeys(
        range(1, 8)
    ) | {5: LATE, 6: LATE}


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([pd.NaT, pd.Timestamp(LATE).as_unit("s")], dtype="datetime64[s, UTC]"),
        np.array(["NaT", "9000-01-01"], "datetime64[s]"),
        pa.array([None, LATE], pa.timestamp("us", "UTC")),
    ],
    ids=lambda column: type(column).__name__,
)
def test_columns_with_missing_times(column):
    tm: TagMatch[int] = TagMatch()
    tm.add_sets([["a"], ["a"]], [1, 2], expires=column)
    tm.consolidate()
    rows = tm.to_arrow()
    assert dict(zip(rows["key"].to_pylist(), rows["expires"].to_pylist(), strict=True)) == {1: None, 2: LATE}


class Own(pa.ExtensionType):
    """A type that somebody has defined in Python."""

    def __init__(self, storage: pa.DataType) -> None:
        super().__init__(storage, "tests.own")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, _):
        return cls(storage)


def own(values: list[Any], kind: pa.DataType | None = None) -> pa.Array:
    storage = pa.array(values, kind)
    return pa.ExtensionArray.from_storage(Own(storage.type), storage)


def in_lists(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def bool8(values: list[bool]) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.bool8(), pa.array(values).cast(pa.int8()))


STORED = {"price": "price = 1", "new": "new = true", "doc": 'doc = "x"', "both": "both = 2"}
QUERIES = {
    "tags": own([["a"]]),
    "price": own([1]),
    "new": bool8([True]),
    "doc": pa.array(["x"], pa.json_()),
    "both": in_lists(own([1, 2])),
    "location": own([{"lon": 1.0, "lat": 2.0}]),
}


@pytest.fixture
def tm():
    tm: TagMatch[int] = TagMatch()
    for key, where in enumerate(STORED.values()):
        tm.add_set(["a"], key, where=where)
    tm.consolidate()
    return tm


def _match(tm, table, _):
    return tm.match_many(table).to_pylist()


def _match_batches(tm, table, _):
    return tm.match_many(table.to_batches()[0]).to_pylist()


def _match_parquet(tm, table, path):
    pq.write_table(table, path / "q.parquet")
    names = tuple(STORED)
    found = [batch.select(["tags"]) for batch in read_queries(str(path / "q.parquet"), attributes=names)]
    return [keys for batch in found for keys in tm.match_many(batch["tags"]).to_pylist()]


@pytest.mark.parametrize("ask", [_match, _match_batches, _match_parquet])
def test_messages_of_extension_types_are_what_is_stored(tm, tmp_path, ask: Callable[..., Any]):
    [keys] = ask(tm, pa.table(QUERIES), tmp_path)
    assert sorted(keys) == list(range(len(STORED)))


@pytest.mark.parametrize("name", ["price", "tags"])
def test_one_that_is_stored_as_nothing_known_is_named(tm, name):
    ids = pa.array([uuid.uuid4().bytes], pa.uuid())
    with pytest.raises(InvalidTypeError, match=f"column '{name}'"):
        tm.match_many(pa.table(QUERIES | {name: ids}))


def test_sets_of_extension_types(tmp_path):
    table = pa.table(
        {
            "tags": own([["a"], ["b"]]),
            "key": own([1, 2], pa.uint64()),
            "where": own(["v = 1", None]),
            "expires": own([None, LATE], pa.timestamp("us", "UTC")),
        }
    )
    pq.write_table(table, tmp_path / "s.parquet")
    (batch,) = read_sets(str(tmp_path / "s.parquet"), where=True, expires=True)
    assert batch["key"].to_pylist() == [1, 2]
    for give in (
        lambda tm: tm.add_subscriptions(table),
        lambda tm: tm.add_sets(
            *(table[name] for name in ("tags", "key")), where=table["where"], expires=table["expires"]
        ),
    ):
        tm: TagMatch[int] = TagMatch()
        give(tm)
        tm.consolidate()
        [keys] = tm.match_many(pa.table({"tags": [["a", "b"]], "v": own([1])})).to_pylist()
        assert sorted(keys) == [1, 2]
