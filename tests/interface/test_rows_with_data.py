"""Columns of data among the rows that an index gives, and an index that is made anew of these."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.command import done, ended
from support.service import remote

from tagmatch import TagMatch

TYPES = {
    "tenant": "dictionary", "priority": "int64", "price": "decimal(20, 4)", "active": "bool", "since": "timestamp",
    "email": "string",
}  # fmt: skip
VALUES = {
    "tenant": st.sampled_from(["acme", "", 'é,\n"x"']),
    "priority": st.integers(-(2**63), 2**63 - 1),
    "price": st.decimals(-(10**15), 10**15, places=4),
    "active": st.booleans(),
    "since": st.datetimes(datetime(1800, 1, 1), datetime(2200, 1, 1)).map(lambda time: time.replace(tzinfo=UTC)),
    "email": st.sampled_from(["", "null", "7", " a\\b ", "ana@example.org"]),
}
DATA = st.fixed_dictionaries({}, optional=VALUES)
LAYOUTS = st.sampled_from(["rarest", "balanced"])
KEYS = st.integers(0, 5)
TAGS = st.frozensets(st.sampled_from("abc"), max_size=3)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, TAGS, DATA),
        st.tuples(st.just("add"), KEYS, TAGS),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("consolidate")),
    ),
    max_size=12,
)


def changed(
    tm: TagMatch[Any], changes: list[Any], key_of: Any
) -> dict[Any, tuple[set[frozenset[str]], dict[str, Any]]]:
    """Make the changes; returns the sets and the data of each key that has some."""
    expected: dict[Any, tuple[set[frozenset[str]], dict[str, Any]]] = {}
    for what, *rest in [*changes, ("consolidate",)]:
        if what == "consolidate":
            tm.consolidate()
            continue
        key, *more = key_of(rest[0]), *rest[1:]
        if what == "put":
            tags, data = more
            tm.put(key, tags, data=data)
            expected[key] = {tags}, data
        elif what == "add":
            tm.add_set(more[0], key)
            expected.setdefault(key, (set(), {}))[0].add(more[0])
        else:
            tm.delete(key)
            expected.pop(key, None)
    return expected


def rows_of(expected: dict[Any, Any]) -> list[Any]:
    return sorted(
        (
            [key, sorted(tags), [data.get(name) for name in TYPES]]
            for key, (sets, data) in expected.items()
            for tags in sets
        ),
        key=str,
    )


def rows_in(table: pa.Table) -> list[Any]:
    return sorted(
        ([row["key"], sorted(row["tags"]), [row.get(name) for name in TYPES]] for row in table.to_pylist()), key=str
    )


@given(CHANGES, LAYOUTS, LAYOUTS, st.sampled_from([int, str]))
@settings(deadline=None)
def test_each_row_has_the_data_of_its_key(changes: list[Any], layout: Any, other: Any, key_of: Any) -> None:
    """In several segments, after replacements and deletions; `put_many` makes the same of them in either layout."""
    key_type: Any = "string" if key_of is str else "integer"
    with TagMatch(key_type=key_type, data=TYPES, layout=layout, device="cpu") as tm:
        expected = changed(tm, changes, key_of)
        table = tm.to_arrow()
        assert rows_in(table) == rows_of(expected)
        with TagMatch(key_type=key_type, data=TYPES, layout=other, device="cpu") as again:
            again.put_many(table)
            again.consolidate()
            assert rows_in(again.to_arrow()) == rows_of(expected)
            for key, (_, data) in expected.items():
                assert again.records[key].data == data


FULL: dict[str, Any] = {
    "tenant": 'é,\n"x"', "priority": 2**63 - 1, "price": Decimal("-123456789012345.6789"), "active": False,
    "since": datetime(1969, 7, 20, 20, 17, 40, 1, tzinfo=UTC), "email": " a\\b ",
}  # fmt: skip
CHANGED = [
    ("put", 1, frozenset("a"), FULL), ("put", 2, frozenset("b"), {"tenant": "acme", "email": "null"}),
    ("consolidate",), ("put", 3, frozenset(), {"priority": 7}), ("put", 2, frozenset("ab"), {"active": True}),
    ("add", 1, frozenset("bc")), ("add", 4, frozenset("c")), ("put", 5, frozenset("c"), FULL), ("consolidate",),
    ("delete", 5),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("key_of", [int, str])
def test_build_makes_the_index_again_of_an_export(tmp_path: Path, kind: str, key_of: Any) -> None:
    index, file, again = tmp_path / "index", tmp_path / f"rows.{kind}", tmp_path / "again"
    key_type: Any = "string" if key_of is str else "integer"
    with TagMatch(index, key_type=key_type, data=TYPES, device="cpu") as tm:
        expected = changed(tm, CHANGED, key_of)
        data = {"email": "7" if kind == "csv" else ""}  # an empty cell of CSV is no value
        tm.put(key_of(6), ["a"], where="y = 2", data=data, expires=datetime(2199, 1, 1, tzinfo=UTC))
        tm.consolidate()
        answers = tm.match(["a", "b", "c"], {"y": 2}, columns=list(TYPES))
        assert rows_in(tm.to_arrow()) == rows_of({**expected, key_of(6): ({frozenset("a")}, data)})
    done("export", index, file)
    types = json.loads(done("info", index, "--json"))["data"]
    assert types == TYPES
    shown = {" ".join(line.split()) for line in done("info", index).splitlines()}
    assert {f"data {name} {kind}" for name, kind in TYPES.items()} <= shown
    declared = [f"--data={name}={kind}" for name, kind in types.items()]
    done("build", file, again, "--key-type", key_type, "--layout", "balanced", *declared)
    done("check", again)
    with TagMatch.open(again, device="cpu") as tm:
        found = tm.match(["a", "b", "c"], {"y": 2}, columns=list(TYPES))
        assert sorted(found, key=str) == sorted(answers, key=str)
        assert tm.stats()["data"] == TYPES
    done("export", again, tmp_path / "second.jsonl")
    done("export", index, tmp_path / "first.jsonl")
    first, second = (sorted((tmp_path / f"{name}.jsonl").read_text().splitlines()) for name in ("first", "second"))
    assert first == second


@pytest.mark.slow
def test_columns_come_by_their_names_whichever_was_put_first() -> None:
    with TagMatch(data={"b": "dictionary", "c": "int64", "a": "int64"}, device="cpu", threads=1) as tm:
        for key, data in enumerate([{"b": "x", "a": 2}, {"c": 1}]):
            tm.put(key, ["x"], data=data)
            tm.consolidate()
        assert tm.to_arrow().column_names == ["tags", "key", "a", "b", "c"]


def test_a_connection_gives_the_same_rows() -> None:
    """But for dictionaries, which come as strings."""
    with TagMatch[int](data=TYPES, device="cpu") as tm:
        expected = changed(tm, CHANGED, int)
        with remote(tm) as (_, index):
            table = index.to_arrow()
            assert rows_in(table) == rows_of(expected)
            assert table.schema.field("tenant").type == pa.string()
            assert index.stats()["data"] == TYPES


@pytest.mark.slow
@pytest.mark.parametrize("command", ["build", "put"])
def test_a_column_of_data_that_no_row_has_is_told(tmp_path: Path, command: str) -> None:
    file, index = tmp_path / "rows.jsonl", tmp_path / "index"
    file.write_text('{"key": 1, "tags": ["a"], "email": null, "plan": "x"}\n')
    if command == "put":
        TagMatch(index, device="cpu").save(index)
    places = (file, index) if command == "build" else (index, file)
    ran = ended(command, *places, *(f"--data={name}=string" for name in ("plan", "email", "tenat")))
    assert ran.returncode == 0
    assert ran.stderr == "tagmatch: no row that was taken has a value for --data email, tenat\n"
