"""Only keys whose data satisfies an expression, and columns of data with answers, embedded and over a connection."""

import datetime as dt
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Not, Oracle, Test
from support import filters
from support.agreement import assert_only
from support.conditions import Expression, Message

from tagmatch import Circle, FilterError, InvalidTypeError, InvalidValueError, Near, TagMatch

DATA = {"name": "dictionary", "rank": "int64"}
TAGS = [[], ["a"], ["b"], ["a", "b"], ["a", "c"]]
KEYS = st.integers(0, 30)
VALUES = st.fixed_dictionaries({}, optional={"name": st.sampled_from(["ana", "", "é"]), "rank": st.integers(-2, 2)})
PUTS = st.lists(st.tuples(KEYS, st.sampled_from(TAGS), st.none() | st.just("x > 1"), VALUES), max_size=40)
ONLY = st.builds(Expression.of, filters.data_trees, filters.spellings)
X = Expression.of(Test("x", ">", (1,)), Random(0))


def put_all(puts: Any, *databases: Any) -> None:
    for database in databases:
        for key, tags, where, data in puts:
            database.put(key, tags, where=where and X, data=data)
        database.consolidate()


@pytest.mark.parametrize("few", [0, 3, 1 << 14])
@given(st.data())
def test_answers_are_of_these_keys_and_follow_changes(layout, few, data):
    """Small segments stay, or are taken into new ones; tables with a few of these keys stay, or only with most."""
    with pytest.MonkeyPatch.context() as patch, TagMatch(layout=layout, threads=1, device="cpu", data=DATA) as tm:
        patch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", few)
        patch.setattr("tagmatch.partitioner.choosing._ENOUGH", data.draw(st.sampled_from([0.2, 0.9])))
        oracle, asked = Oracle(), data.draw(st.lists(ONLY, min_size=1, max_size=2))
        for _ in range(3):
            put_all(data.draw(PUTS), tm, oracle)
            for key in data.draw(st.lists(KEYS, max_size=5)):
                tag = data.draw(st.sampled_from(["a", "d"]))
                for database in (tm, oracle):
                    if key % 2:
                        database.add_set([tag], key)
                    else:
                        database.delete(key)
            for only in asked:
                for message in (Message(["a", "b"], {}), Message(["a", "b", "c", "d"], {"x": 2})):
                    assert_only(tm, oracle, only, message)
            for database in (tm, oracle):
                database.consolidate()
            for only in asked:
                assert_only(tm, oracle, only, Message(["a", "b", "c", "d"], {"x": 2}))


TYPES = {
    "text": "string", "word": "dictionary", "small": "int8", "large": "uint64", "real": "float64", "on": "bool",
    "day": "date", "at": "timestamp", "rome": "timestamp[ms, Europe/Rome]", "price": "decimal(10, 2)",
}  # fmt: skip
VALUES_OF_TYPES = {
    "text": "é", "word": "acme", "small": -3, "large": 2**64 - 1, "real": 0.5, "on": False,
    "day": dt.date(2026, 11, 28), "at": dt.datetime(2026, 11, 28, 12, tzinfo=dt.UTC),
    "rome": dt.datetime(2026, 11, 28, 12, tzinfo=dt.UTC), "price": Decimal("0.10"),
}  # fmt: skip


@pytest.fixture
def tm(reached):
    index = TagMatch(threads=1, device="cpu", data={**TYPES, "local": "timestamp[ms]"})
    index.put(7, ["cat"], data=VALUES_OF_TYPES)
    index.put(8, ["cat"])
    index.add_set(["cat"], 9)
    index.consolidate()
    return reached(index)


@pytest.mark.parametrize(
    "only",
    [
        'text = "é"', 'word prefix "ac"', 'text suffix "é" and word contains "cm"', "small < 0", "small in {1, -3}",
        'large = decimal "18446744073709551615"', "large >= 1e19", "real = 0.5", "on = false",
        'day = date "2026-11-28"', 'day < timestamp "2026-11-28T01:00:00Z"', 'at > date "2026-11-28"',
        'at = timestamp "2026-11-28T13:00:00+01:00"',
        'rome between date "2026-11-01" and date "2026-12-01"', 'price = decimal "0.1"', 'price < decimal "0.11"',
        "exists(word) and not exists(small) or price >= 0", "at least 2 of {on = true, small = -3, price > 0}",
    ],
)  # fmt: skip
def test_columns_of_each_type(tm, only):
    assert tm.match(["cat"], only=only) == [7]
    assert sorted(tm.match_unique(["cat"], only=f"not ({only})")) == [8, 9]
    assert tm.match_counts([["cat"], []], only=only).to_pylist() == [1, 0]


@pytest.mark.parametrize(
    ("only", "error", "message"),
    [
        ('texd = "a"', InvalidValueError, "only: there is no column 'texd'; is 'text' meant"),
        ('text = "a" and text = "b" and texd = "a"', InvalidValueError, "'texd'"),
        ('small = "a"', InvalidTypeError, "column small is of int8, and no value of it is a text"),
        ('small in {1, "a"}', InvalidTypeError, "column small"),
        ("text > 5", InvalidTypeError, "column text is of string, and no value of it is a number"),
        ("day = 5", InvalidTypeError, "column day"),
        ('on prefix "t"', InvalidTypeError, "column on is of bool, and no value of it is a text"),
        ('local > date "2026-01-01"', InvalidTypeError, "column local is of timestamp.*without a zone"),
        ('word in cidr "10.0.0.0/8"', InvalidTypeError, "IP address"),
        ("text = ", FilterError, "only: column 8"),
        ('text phrase "a b"', FilterError, "has no words to find a phrase in"),
        ('tags {"cat"} or small = 1', FilterError, "tags and areas are of sets"),
        ("not within circle(1, 2, 3)", FilterError, "tags and areas are of sets"),
        (7, InvalidTypeError, "only must be a string"),
        (["text = 1"], InvalidTypeError, "only must be a string, not list"),
    ],
)
def test_what_cannot_be_asked_of_data(tm, only, error, message):
    for ask in (tm.match, lambda tags, **given: tm.match_many([tags], **given), tm.match_exists, tm.explain):
        with pytest.raises(error, match=message):
            ask(["cat"], only=only)
    for ask in (tm.match_highlights, lambda rows, **given: tm.match_best(rows, limit=1, order_by="small", **given)):
        with pytest.raises(error, match=message):
            ask([["cat"]], only=only)


def test_columns_come_over_a_connection(tm):
    names = [*VALUES_OF_TYPES]
    nothing = dict.fromkeys(names)
    expected = [{"key": 7, **VALUES_OF_TYPES}, {"key": 8, **nothing}, {"key": 9, **nothing}]
    assert sorted(tm.match(["cat"], columns=names), key=lambda each: each["key"]) == expected
    many = tm.match_many([["cat"], [], ["cat"]], columns=names).to_pylist()
    assert [sorted(each, key=lambda one: one["key"]) for each in many] == [expected, [], expected]
    assert tm.match(["cat"], {"x": 1}, columns=["small"], only="small < 0") == [{"key": 7, "small": -3}]
    empty = tm.match_many(pa.array([], pa.list_(pa.string())), columns=["text"])
    assert (len(empty), empty.type.value_type.field("text").type) == (0, pa.string())
    for rows in ([["cat"]], pa.array([], pa.list_(pa.string()))):
        with pytest.raises(InvalidValueError, match="no column 'texd'; is 'text' meant"):
            tm.match_many(rows, columns=["texd"])


def test_every_call_takes_it_and_few_streams_are_open(tm):
    for rank in range(40):
        future = tm.submit(["cat"], only=f"small = {rank - 20}")
        assert future.result(60) == ([7] if rank == 17 else [])
    assert tm.match_best([["cat"]], limit=2, order_by="small", only="not exists(small)").to_pylist() == [[8, 9]]
    assert tm.explain(["cat"], only="small = -3") == [(frozenset(["cat"]), (7,))]
    assert tm.explain(["cat"], key=8, only="small = -3").alternatives == ()
    assert (7 in tm.records, 10 in tm.records) == (True, False)


def test_names_of_keys_places_and_expiry(layout):
    """A set has keys of both kinds, is near, or expires."""
    with TagMatch(layout=layout, threads=1, device="cpu", key_type="string", data={"tenant": "string"}) as tm:
        until = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
        for number in range(40):
            data = {"tenant": ["acme", "bob", "cy"][number % 3]}
            tm.put(f"key {number}", ["cat"], area=Near(1000) if number % 2 else None, expires=until, data=data)
        tm.put("here", ["cat"], area=Circle(9, 45, 100), data={"tenant": "acme"})
        tm.consolidate()
        tm.move([f"key {number}" for number in range(40)], 9, 45)
        acme = sorted(["here", *(f"key {number}" for number in range(0, 40, 3))])
        assert sorted(tm.match(["cat"], location=(9, 45), only='tenant = "acme"')) == acme
        assert sorted(tm.match(["cat"], only='tenant = "acme"')) == [each for each in acme if each[-1] in "02468"]
        near = [each for each in acme if each != "here"]
        assert sorted(tm.match(["cat"], within=Circle(9, 45, 5), only='tenant = "acme"')) == near
        tm.delete("key 3")
        tm.put("key 1", ["cat"], data={"tenant": "acme"})
        tm.consolidate()
        now = sorted([*(each for each in acme if each != "key 3"), "key 1"])
        assert sorted(tm.match(["cat"], location=(9, 45), only='tenant = "acme"')) == now


def test_integers_without_a_sign():
    with TagMatch(threads=1, device="cpu", data={"number": "uint64"}) as tm:
        put_all([(at, ["a"], None, {"number": number}) for at, number in enumerate((5, 2**63, 2**64 - 1))], tm)
        cases = {f"= {2**64 - 1}": [2], f"in {{5, {2**63}}}": [0, 1], f"> {2**63}": [2], f"!= {2**63}": [0, 2]}
        for test, keys in cases.items():
            assert sorted(tm.match(["a"], only=f"number {test}")) == keys
        with pytest.raises(FilterError, match="an integer must be from"):
            tm.match(["a"], only=f"number = {2**64}")


def test_an_expression_that_was_let_go_is_asked_again():
    with TagMatch(threads=1, device="cpu", data={"rank": "int64"}) as tm:
        put_all([(rank, ["a"], None, {"rank": rank}) for rank in range(100)], tm)
        for _ in range(2):
            assert [tm.match(["a"], only=f"rank = {rank}") for rank in range(100)] == [[rank] for rank in range(100)]
        assert tm._engine.only.cache_info().currsize == 64
        assert tm.match(["a"], only=Expression.of(Not(Test("rank", "<", (99,))), Random(0))) == [99]
    with pytest.raises(Exception, match="closed"):
        tm.match(["a"], only="rank = 1")
