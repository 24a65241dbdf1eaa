"""The best keys by a column of data: against sorting all keys of a message, in Python."""

import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command import done, from_json_lines, tagmatch, write
from support.expiring import set_clock
from support.service import remote
from support.waiting import wait_until

from tagmatch import Circle, InvalidTypeError, InvalidValueError, Near, TagMatch

TAGS = st.lists(st.sampled_from("abcd"), max_size=3)
VALUES = {
    "size": st.none() | st.integers(-3, 3),
    "name": st.none() | st.sampled_from(["", "a", "ä", "b"]),
    "share": st.none() | st.sampled_from([-1.5, 0.0, 2.25]),
}
TYPES = {"size": "int64", "name": "string", "share": "float64"}
CHANGES = st.lists(
    st.tuples(st.integers(0, 12), TAGS, st.fixed_dictionaries(VALUES), st.booleans()), min_size=1, max_size=25
)


def ordered(found: list[Any], values: dict[Any, Any], *, descending: bool) -> list[Any]:
    """Keys with values in their order, equal ones by key, then those without."""
    with_value = sorted(key for key in found if values.get(key) is not None)
    with_value.sort(key=lambda key: _plain(values[key]), reverse=descending)
    return with_value + sorted(key for key in found if values.get(key) is None)


def _plain(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@given(
    parts=st.lists(CHANGES, min_size=1, max_size=3), queries=st.lists(TAGS, max_size=5),
    names=st.booleans(), over=st.booleans(), limit=st.integers(1, 6),
)  # fmt: skip
@pytest.mark.usefixtures("segments_stay")
def test_the_best_are_the_first_of_all(layout, parts, queries, names, over, limit):
    """Of several segments, of which some rows are deleted, also over a connection."""
    index: TagMatch[Any] = TagMatch(
        layout=layout, key_type="string" if names else "integer", data=TYPES, device="cpu", threads=2
    )
    stored: dict[Any, tuple[set[str], dict[str, Any]]] = {}
    with index:
        for part in parts:
            for number, tags, data, deleted in part:
                key: Any = f"key {number}" if names else number
                if deleted:
                    index.delete(key)
                    stored.pop(key, None)
                else:
                    index.put(key, tags, data=data)
                    stored[key] = set(tags), data
            index.consolidate()
        for tm in _ways(index, over):
            for column in TYPES:
                values = {key: data[column] for key, (_, data) in stored.items()}
                for way in ("asc", "desc"):
                    found = tm.match_best(queries, limit=limit, order_by=f"{column} {way}")
                    every = [[key for key, (tags, _) in stored.items() if tags <= set(query)] for query in queries]
                    expected = [ordered(keys, values, descending=way == "desc")[:limit] for keys in every]
                    assert found.to_pylist() == expected
                    assert found.type == pa.list_(pa.large_string() if names else pa.uint64())


def _ways(index: TagMatch[Any], over: bool) -> Iterator[Any]:
    if over:
        with remote(index) as (_, tm):
            yield tm
    else:
        yield index


def test_clients_and_keys_that_expire(layout, monkeypatch):
    clock = set_clock(monkeypatch)
    with TagMatch(layout=layout, data={"size": "int64"}, device="cpu") as tm:
        tm.put(1, ["a"], area=Near(100), data={"size": 1})
        tm.put(2, ["a"], area=Near(100), data={"size": 2})
        tm.put(3, ["a"], area=Circle(0, 0, 100), data={"size": 3})
        tm.put(4, ["a"], data={"size": 4}, expires=clock.after(5))
        tm.add_set(["a"], 5)
        tm.consolidate()
        tm.move([1, 2, 5], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0])
        places = [{"lon": 0.0, "lat": 0.0}, {"lon": 1.0, "lat": 0.0}, None]
        messages = pa.table({"tags": [["a"]] * 3, "location": places})

        def best(table: pa.Table, limit: int = 9) -> list[list[int]]:
            return tm.match_best(table, limit=limit, order_by="size desc").to_pylist()

        assert best(messages) == [[4, 3, 1, 5], [4, 2, 5], [4, 5]]
        assert best(messages, 2) == [[4, 3], [4, 2], [4, 5]]
        within = pa.table({"tags": [["a"]], "within": [{"kind": "circle", "lon": 0.0, "lat": 0.0, "metres": 5.0}]})
        assert best(within) == [[1, 5]]
        clock.pass_by(5)
        wait_until(lambda: best(messages) == [[3, 1, 5], [2, 5], [5]])


def test_what_cannot_be_asked(tmp_path):
    with TagMatch(tmp_path / "index", data={"size": "float64", "other": "int64"}, device="cpu") as tm:
        for key, size in enumerate([1.0, math.nan, None, 2.0]):
            tm.put(key, ["a"], data={"size": size})
        tm.consolidate()
        assert tm.match_best([["a"]], limit=9, order_by="size").to_pylist() == [[0, 3, 1, 2]]
        assert tm.match_best([["a"]], limit=9, order_by="size DESC").to_pylist() == [[3, 0, 1, 2]]
        assert tm.match_best([], limit=9, order_by="size").to_pylist() == []
        for limit, order_by, error, message in (
            (0, "size", InvalidValueError, "limit must be from 1 to 10,000, not 0"),
            ("1", "size", InvalidTypeError, "limit must be an int"),
            (1, "sise", InvalidValueError, "the index has no column of data 'sise'.*size"),
            (1, "", InvalidValueError, "the index has no column of data ''"),
            (1, 5, InvalidTypeError, "order_by must be a str"),
        ):
            with pytest.raises(error, match=message):
                tm.match_best([["a"]], limit=limit, order_by=order_by)
    queries = write(tmp_path / "q.jsonl", [{"tags": ["a"]}])
    found = done("match", tmp_path / "index", queries, "--limit", "2", "--order-by", "size desc")
    assert from_json_lines(found) == [{"id": 0, "keys": [3, 0]}]
    assert "goes with --order-by" in tagmatch("match", tmp_path / "index", queries, "--limit", "2", code=2)
