"""Subscriptions that ask for nothing match every message: rows of tables must say that this is meant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from support.service import remote

from tagmatch import InvalidValueError, NullError, TagMatch

CONDITION = [{"attr": "x", "op": "=", "value": 1}]


@pytest.fixture(params=["here", "remote"])
def tm(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "here":
        with TagMatch() as tm:
            yield tm
    else:
        with remote() as (_, client):
            yield client


def changes(tm: Any) -> tuple[Any, Any]:
    return tm.add_subscriptions, tm.remove_subscriptions


def test_a_table_without_anything_to_ask_for(tm: Any) -> None:
    for columns in ({"key": [1]}, {"key": [1], "expires": pa.nulls(1)}, {"key": pa.nulls(0)}):
        for change in changes(tm):
            with pytest.raises(InvalidValueError, match=r"each would match every message; .* match_all=True"):
                change(pa.table(columns))
    assert tm.stats()["staged"] == 0


@pytest.mark.parametrize(
    "columns",
    [
        {"where": ["x = 1", None]},
        {"tags": [["a"], None]},
        {"tags": [None, None], "where": ["x = 1", None]},
        {"constraints": [CONDITION, None]},
        {"area": [{"lon": 9.0, "lat": 45.0, "metres": 5.0}, None]},
        {"tags": pa.chunked_array([pa.array([["a"]]), pa.nulls(1, pa.list_(pa.string()))])},
    ],
)
def test_a_row_without_anything_to_ask_for(tm: Any, columns: dict[str, Any]) -> None:
    table = pa.table({"key": [1, 2], **columns})
    for change in changes(tm):
        with pytest.raises(NullError, match=r"row 1 has no tags and no condition, .* match_all=True"):
            change(table)
    assert tm.stats()["staged"] == 0
    tm.add_subscriptions(table, match_all=True)
    tm.consolidate()
    assert tm.match(["z"], {"x": 0}) == [2]
    tm.remove_subscriptions(table, match_all=True)
    tm.consolidate()
    assert len(tm) == 0


def test_an_empty_set_says_that_it_is_meant(tm: Any) -> None:
    tm.add_set([], 1)
    tm.add_sets([[]], [2])
    tm.add_subscriptions(pa.table({"key": [3], "tags": pa.array([[]], pa.list_(pa.string()))}))
    tm.consolidate()
    assert sorted(tm.match([])) == [1, 2, 3]
    with pytest.raises(InvalidValueError, match="each would match every message"):
        tm.add_subscriptions(pa.table({"key": [1]}))
    tm.add_subscriptions(pa.table({"key": [4]}), match_all=True)
    tm.consolidate()
    assert sorted(tm.match([])) == [1, 2, 3, 4]
