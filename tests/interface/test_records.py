"""Records: what keys were put with, one by one and in tables, embedded and over a connection."""

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tagmatch import (
    Circle,
    FilterError,
    InvalidTypeError,
    InvalidValueError,
    NotStoredError,
    NullError,
    TagMatch,
)
from tagmatch.model.records import Alternative, Record

DATA = {
    "email": "string", "rank": "int8", "weight": "float64", "on": "bool", "since": "date", "price": "decimal(10, 2)",
    "seen": "timestamp", "local": "timestamp[ms]", "tenant": "dictionary",
}  # fmt: skip
VALUES = {
    "email": "ana@example.org", "rank": -3, "weight": 0.1, "on": False, "since": dt.date(2026, 11, 28),
    "price": Decimal("12345678.90"), "seen": dt.datetime(2026, 11, 28, 12, tzinfo=dt.UTC),
    "local": dt.datetime(2026, 11, 28, 12), "tenant": "acme",
}  # fmt: skip
WHERE = 'price between 1 and 5 or tags {"new"}'


@pytest.fixture
def tm(reached) -> Any:
    return reached(TagMatch(threads=1, device="cpu", data=DATA))


def test_a_record_is_what_was_put(tm):
    until = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
    tm.put(7, ["cat"], where=WHERE, area=Circle(9.0, 45.0, 10.0), expires=until, data=VALUES)
    tm.put(8, ["dog"], area=Circle(9.0, 45.0, 10.0))
    tm.put(9, [], data={"rank": 3, "email": None})
    assert (tm.get(7), len(tm.records), 7 in tm.records) == (None, 0, False)
    tm.consolidate()
    as_put = Alternative(frozenset(["cat"]), WHERE, Circle(9.0, 45.0, 10.0), until)
    assert tm.get(7) == Record(7, (as_put,), VALUES)
    assert tm.get(8) == Record(8, (Alternative(frozenset(["dog"]), None, Circle(9.0, 45.0, 10.0)),))
    assert tm.get(9) == Record(9, (Alternative(frozenset()),), {"rank": 3})
    assert tm.get(10) is None
    assert sorted(tm.records) == [7, 8, 9]
    assert dict(tm.records) == {record.key: record for record in tm.records.values()}
    with pytest.raises(KeyError):
        tm.records[10]


@pytest.mark.parametrize("form", [iter, tuple, set, pa.array])
def test_a_record_has_all_tags_whatever_gives_them(form):
    with TagMatch(device="cpu") as tm:
        tm.put(7, form(["flat"]), where="price < 900")
        tm.consolidate()
        (alternative,) = tm.get(7).alternatives
        assert alternative.tags == {"flat"}


def test_what_means_the_same_changes_nothing_and_another_one_replaces_it(tm):
    tm.put(7, ["cat"], where="city = 1 or city = 2")
    tm.consolidate()
    tm.put(7, ["cat"], where="city in {2, 1}")
    assert tm.consolidate() == (0, 1, 0, 0)
    assert tm.get(7).where == "city in {2, 1}"
    tm.put(7, ["cat"], where="city = 3")
    assert tm.consolidate() == (1, 0, 1, 0)
    assert tm.match(["cat"], {"city": 1}) == []
    assert tm.match(["cat"], {"city": 3}) == [7]


def test_what_is_deleted_and_what_is_not_there(tm):
    tm.add_sets([["a"], ["b"], ["b"]], [7, 7, 8])
    tm.consolidate()
    assert tm.delete(7) == 1
    assert tm.delete_many([9, 10]) == 2
    assert tm.consolidate() == (0, 0, 2, 2)
    assert sorted(tm.records) == [8]
    with pytest.raises(NotStoredError, match="key 7 has no sets"):
        tm.delete(7, missing="error")
    with pytest.raises(NotStoredError, match="key 8 has no sets"):  # at the second time
        tm.delete_many([8, 8], missing="error")
    tm.put(7, ["a"])
    assert tm.delete(7, missing="error") == 1
    assert tm.consolidate() == (1, 0, 1, 0)


def test_a_table_has_alternatives_and_data(tm):
    table = pa.table({
        "key": [7, 8, 8], "tags": [["a"], ["b"], ["c"]], "where": ["x > 1 or y > 1", None, "z = 1"],
        "email": pa.array(["p", "q", "r"]).dictionary_encode(), "rank": [1, None, 2],
    })  # fmt: skip
    assert tm.put_many(table) == 4
    assert tm.consolidate() == (4, 0, 0, 0)
    assert tm.get(7) == Record(7, (Alternative(frozenset(["a"]), "x > 1 or y > 1"),), {"email": "p", "rank": 1})
    two = Alternative(frozenset(["b"])), Alternative(frozenset(["c"]), "z = 1")
    assert tm.get(8) == Record(8, two, {"email": "q"})
    with pytest.raises(InvalidValueError, match="has 2 alternatives"):
        _ = tm.get(8).where


def test_once_its_sets_are_others_a_record_has_these(tm):
    tm.put(7, ["a"], where="x > 1 or y > 1", data={"rank": 1})
    tm.add_set(["b"], 7)
    tm.consolidate()
    assert len(tm.get(7).alternatives) == 3
    tm.remove_set(["b"], 7)
    tm.consolidate()
    assert tm.get(7).where == "x > 1 or y > 1"
    tm.remove_set(["a"], 7, where="y > 1")
    tm.consolidate()
    assert tm.get(7) == Record(7, (Alternative(frozenset(["a"]), "x > 1"),), {"rank": 1})


@pytest.mark.parametrize(
    ("put", "error", "message"),
    [
        ({}, NullError, "it replaces all that the key had"),
        ({"where": "x >"}, FilterError, "column 4"),
        ({"tags": ["a"], "data": {"emall": "x"}}, InvalidValueError, "'emall'"),
        ({"tags": ["a"], "data": {"rank": 1000}}, InvalidTypeError, "'rank' takes values of int8"),
        ({"tags": ["a"], "data": {"rank": "x"}}, InvalidTypeError, "'rank' takes values of int8"),
        ({"tags": ["a"], "data": {"email": 7}}, InvalidTypeError, "'email' takes values of string"),
        ({"tags": ["a"], "data": {"on": 1}}, InvalidTypeError, "'on' takes values of bool"),
        ({"tags": ["a"], "data": {"rank": True}}, InvalidTypeError, "'rank' takes values of int8"),
        ({"tags": ["a"], "data": {"price": Decimal("0.001")}}, InvalidTypeError, "'price' takes values of decimal"),
        ({"tags": ["a"], "data": ["x"]}, InvalidTypeError, "data must map"),
    ],
)
def test_what_cannot_be_put_is_not(tm, put, error, message):
    with pytest.raises(error, match=message):
        tm.put(7, **put)
    assert tm.stats()["staged"] == 0


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({"key": "string"}, InvalidValueError, "cannot be called 'key'"),
        ({"x": "text"}, InvalidValueError, "no type 'text'"),
        ({"x\udce9": "string"}, InvalidValueError, "the name of a column .* has no UTF-8 form"),
        ({"x": "timestamp[us, Mars/X]"}, InvalidValueError, "no time zone 'Mars/X'"),
        ({"x": pa.timestamp("ns", "nowhere")}, InvalidValueError, "no time zone 'nowhere'"),
        ({"x": pa.list_(pa.string())}, InvalidTypeError, "the type list"),
        (["x"], InvalidTypeError, "data must be a schema"),
    ],
)
def test_columns_that_cannot_be(data, error, message):
    with pytest.raises(error, match=message):
        TagMatch(data=data)


def test_an_index_knows_its_columns(tmp_path):
    with TagMatch(tmp_path / "index", data=pa.schema({"rank": pa.int8()})) as tm:
        tm.put(7, ["a"], data={"rank": 1})
        tm.consolidate()
        tm.put(8, ["a"], data={"rank": 2})
    with TagMatch(tmp_path / "index", data={"name": "string"}) as tm:
        assert tm.get(7).data == {"rank": 1}
        tm.put(9, ["a"], data={"rank": 3, "name": "x"})
        tm.consolidate()
        assert [tm.get(key).data for key in (7, 8, 9)] == [{"rank": 1}, {"rank": 2}, {"rank": 3, "name": "x"}]
    with pytest.raises(InvalidTypeError, match="'rank' has the type int8, but string"):
        TagMatch(tmp_path / "index", data={"rank": "string"})


def test_data_comes_with_answers():
    with TagMatch(threads=1, device="cpu", key_type="string", data=DATA) as tm:
        tm.put("a", ["x"], data=VALUES)
        tm.consolidate()
        tm.put("b", ["x"], data={"tenant": "other"})
        tm.add_set(["x"], "c")
        tm.consolidate()
        found = tm.match_many([["x"], [], ["x"]], columns=[*DATA])
        assert found[0].as_py() == found[2].as_py()
        assert found[1].as_py() == []
        nothing = dict.fromkeys(DATA)
        expected = [{"key": "a", **VALUES}, {"key": "b", **nothing, "tenant": "other"}, {"key": "c", **nothing}]
        assert sorted(found[0].as_py(), key=lambda each: each["key"]) == expected
        assert sorted(tm.match(["x"], columns=["rank"]), key=lambda each: each["key"])[0] == {"key": "a", "rank": -3}
        assert tm.match_many([["x"]], columns=[]).to_pylist()[0][0].keys() == {"key"}
        with pytest.raises(InvalidValueError, match="no column 'emial'; is 'email' meant"):
            tm.match(["x"], columns=["emial"])
        with pytest.raises(InvalidTypeError, match="columns must be a list of names"):
            tm.match_many([["x"]], columns="email")


@pytest.mark.usefixtures("segments_stay")
@pytest.mark.parametrize("key_type", ["integer", "string"])
def test_one_record_is_what_all_of_them_have(key_type):
    """`get` reads a key by itself: in several segments with deleted rows, with sets that expire."""
    keys = [2**63 + number if key_type == "integer" else f"ä{number}" * (number % 3) for number in (5, 1, 4, 8, 11)]
    other = {"area": Circle(9.0, 45.0, 10.0), "expires": dt.datetime(2100, 1, 1, tzinfo=dt.UTC), "data": VALUES}
    with TagMatch(threads=1, device="cpu", key_type=key_type, data=DATA) as tm:
        for change in (
            lambda key, place: tm.put(key, ["x", f"t{place}"], where=[None, WHERE][place % 2], data={"rank": place}),
            lambda key, place: place % 3 or tm.put(key, ["y"], **other),
            lambda key, place: tm.add_set(["z"], key, where="x = 1") if place % 2 else tm.delete(keys[0]),
        ):
            for place, key in enumerate(keys):
                change(key, place)
            tm.consolidate()
            records = {record.key: record for record in tm.records.values()}
            assert {key: tm.get(key) for key in keys} == {key: records.get(key) for key in keys}
        assert len(records) == 4
        assert tm.get("no one" if key_type == "string" else 7) is None


def test_keys_that_are_not_indexed_are_not_asked_for(tmp_path, reached):
    """What another program has put, takes effect."""
    with TagMatch(tmp_path / "index", threads=1, device="cpu") as tm:
        tm.add_sets([["a"], ["a", "b"]], [7, 2**40])
        tm.consolidate()
        assert tm.stats()["directory_bytes"] == 0
        assert tm.get(7).tags == {"a"}
        assert tm.stats()["directory_bytes"] == 2 * 12
        tm.put(8, ["a"])
    tm = reached(TagMatch(tmp_path / "index", threads=1, device="cpu", keys="unindexed"))
    tm.consolidate()
    assert sorted(tm.match(["a", "b"])) == [7, 8, 2**40]
    for ask in (
        lambda: tm.get(7), lambda: tm.put(7, ["b"]), lambda: tm.put_many(pa.table({"key": [7], "tags": [["b"]]})),
        lambda: tm.delete(7), lambda: tm.delete_many([7]), lambda: 7 in tm.records, lambda: [*tm.records],
        lambda: [*tm.records.values()], lambda: tm.explain(["a"], key=7),
    ):  # fmt: skip
        with pytest.raises(InvalidValueError, match='opened with keys="unindexed", so that nothing is'):
            ask()
    assert tm.stats()["staged"] == 0
    with pytest.raises(InvalidValueError, match="keys must be one of 'indexed', 'unindexed'"):
        TagMatch(keys="none")


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("emial", pa.array(["x"]), "column 'emial' means nothing here; is 'email' meant"),
        ("at", pa.array([dt.datetime(2026, 1, 1)]), "column 'at' needs times with a zone, not timestamp"),
        (
            "local",
            pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]),
            "column 'local' takes times without a zone, not timestamp",
        ),
        ("local", pa.array([2**40], pa.timestamp("s")), "'local': row 0: dates and times of data are of the years 1"),
        ("day", pa.array([-719_163], pa.date32()), "column 'day': row 0: dates and times of data are of the years 1"),
        ("email", pa.array([b"x\xe9"]).view(pa.string()), "column 'email': rows 0 to 0: Invalid UTF8"),
        ("price", pa.array([1.239]), "'price' takes values of decimal.*, not double: .* data loss"),
    ],
)
def test_columns_of_data_that_cannot_be_used_say_why(column, values, said):
    kinds = {"email": "string", "at": "timestamp", "local": pa.timestamp("us"), "day": "date", "price": "decimal(9, 2)"}
    with TagMatch(threads=1, device="cpu", data=kinds) as tm:
        table = pa.table({"key": pa.array([1], pa.uint64()), "tags": [["a"]], column: values})
        with pytest.raises((InvalidValueError, InvalidTypeError), match=said):
            tm.put_many(table)


@pytest.mark.parametrize("value", ["0000-01-01", "10000-01-01"])
@pytest.mark.parametrize(("kind", "unit"), [("date", "D"), (pa.timestamp("s"), "s")])
def test_dates_that_python_cannot_show_are_not_put(kind, unit, value):
    with TagMatch(threads=1, device="cpu", data={"day": kind}) as tm:
        with pytest.raises(InvalidValueError, match="'day': dates and times of data are of the years 1 to 9999"):
            tm.put(1, ["a"], data={"day": np.datetime64(value, unit)})
        assert tm.stats()["staged"] == 0
        for number, day in enumerate(("0001-01-01", "9999-12-31")):
            tm.put(number, ["a"], data={"day": dt.datetime.fromisoformat(day)})
        tm.consolidate()
        assert [f"{tm.get(number).data['day']:%m-%d}" for number in (0, 1)] == ["01-01", "12-31"]


def test_doubles_are_decimals_as_they_are_written():
    with TagMatch(threads=1, device="cpu", data={"price": "decimal(20, 2)"}) as tm:
        prices = pa.array([1.1, 1e15, -0.25, None])
        tm.put_many(pa.table({"key": range(4), "tags": [["a"]] * 4, "price": prices}))
        tm.consolidate()
        assert [tm.get(key).data for key in range(4)] == [
            {"price": Decimal("1.10")}, {"price": Decimal(10**15)}, {"price": Decimal("-0.25")}, {}
        ]  # fmt: skip


def test_more_tags_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tags that were read are kept up to a number, and then read again."""
    monkeypatch.setattr("tagmatch.records._TAGS_KEPT", 2)
    with TagMatch(device="cpu") as tm:
        tm.add_sets([[f"a{key}", f"b{key}", f"c{key}"] for key in range(5)], range(5))
        tm.consolidate()
        for key in (0, 1, 2, 3, 4, 0, 4, 2):
            assert tm.get(key).tags == {f"a{key}", f"b{key}", f"c{key}"}  # type: ignore[union-attr]
        (reader,) = tm._engine._readers[1]
        assert len(reader._tag.__self__) <= 2  # type: ignore[attr-defined]
