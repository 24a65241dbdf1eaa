"""Tables of other libraries are taken wherever one of Arrow is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from support.service import remote

from tagmatch import InvalidTypeError, TagMatch
from tagmatch.broker.publications import messages_of


class Stream:
    """What has nothing but Arrow's C stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


class Batch:
    """What has nothing but Arrow's C array."""

    def __init__(self, table: pa.Table) -> None:
        self._batch = table.combine_chunks().to_batches()[0]

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self._batch.__arrow_c_array__(requested_schema)


def old_pandas(table: pa.Table) -> pd.DataFrame:
    """With an index that its stream would have as a column."""
    frame = pd.DataFrame({name: table[name].to_pylist() for name in table.column_names})
    frame.index = pd.Index([7 + row for row in range(len(frame))], name="rooms")
    return frame


def relation(table: pa.Table) -> Any:
    frame = table  # which DuckDB finds by its name
    assert frame is table
    return duckdb.sql("SELECT * FROM frame")


LIBRARIES: list[Callable[[pa.Table], Any]] = [
    old_pandas, pl.DataFrame, relation, Stream, Batch, pa.Table.to_reader
]  # fmt: skip
SUBSCRIPTIONS = pa.table({"key": [1, 2], "tags": [["flat"], ["flat"]], "where": ["price < 900", "rooms = 7"]})
QUERIES = pa.table({"tags": [["flat"], ["house"]], "price": [850.5, 1.0]})


@pytest.mark.parametrize("made", LIBRARIES)
def test_tables_of_any_library(made: Callable[[pa.Table], Any]) -> None:
    with TagMatch() as tm:
        tm.add_subscriptions(made(SUBSCRIPTIONS))
        tm.consolidate()
        assert tm.match_many(made(QUERIES)).to_pylist() == [[1], []]
        tm.remove_subscriptions(made(SUBSCRIPTIONS.slice(0, 1)))
        tm.consolidate()
        assert tm.match_many(made(QUERIES)).to_pylist() == [[], []]


def test_tables_of_any_library_go_to_a_service() -> None:
    with remote() as (_, tm):
        for made in LIBRARIES:
            tm.add_subscriptions(made(SUBSCRIPTIONS))
            tm.consolidate()
            assert tm.match_many(made(QUERIES)).to_pylist() == [[1], []]
            assert tm.publish(made(QUERIES.append_column("id", [["a", "b"]]))).matched == 1
            tm.remove_subscriptions(made(SUBSCRIPTIONS))
            tm.consolidate()
            assert len(tm) == 0


def test_columns_of_any_library() -> None:
    with TagMatch() as tm:
        tm.add_sets(pl.Series([["a"], ["b"]]), pd.Series([1, 2]))
        tm.consolidate()
        assert tm.match_many(pl.Series([["a"], ["b"]])).to_pylist() == [[1], [2]]


@pytest.mark.parametrize("given", [{"tags": [["a"]]}, pl.LazyFrame({"tags": [["a"]]}), 7])
def test_other_objects_are_refused_in_words(given: Any) -> None:
    words = "a table of Arrow or a DataFrame of pandas, polars or DuckDB"
    with TagMatch() as tm:
        with pytest.raises(InvalidTypeError, match=words):
            tm.match_many(given)
        for change in (tm.add_subscriptions, tm.remove_subscriptions):
            with pytest.raises(InvalidTypeError, match=words):
                change(given)
        with pytest.raises(InvalidTypeError, match=words):
            messages_of(given)
        with pytest.raises(InvalidTypeError, match="row 0 must be an iterable of strings, not the bare string"):
            messages_of(["fr"])
        with pytest.raises(InvalidTypeError, match="one column, not a DataFrame; pick one, as in table"):
            tm.add_sets(pd.DataFrame({"tags": [["a"]]}), [1])
        with pytest.raises(InvalidTypeError, match="a DataFrame cannot be a table of Arrow"):
            tm.match_many(pd.DataFrame({"price": [1, "a"]}))
