"""Why a key is an answer or is not: each reason, as text and as JSON. `assert_agree` compares with the oracle."""

import json
import math
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from support.agreement import index_of
from support.command import tagmatch

from tagmatch import Box, Circle, InvalidTypeError, Near, TagMatch
from tagmatch.reasons import EARTH

DEGREE = math.radians(1) * EARTH


def why(where: str | None, attributes: dict, tags: tuple[str, ...] = ("a",), **at) -> list[str]:
    with index_of([["a"]], [7], where=[where], device="cpu", threads=1) as tm:
        (alternative,) = tm.explain(tags, attributes, **at, key=7).alternatives
    return [str(test) for test in alternative.tests]


@pytest.mark.parametrize(
    ("where", "attributes", "expected"),
    [
        ("price < 10", {"price": 9.5}, "holds  price < 10"),
        ("price < 10", {"price": 12}, "fails  price < 10: price is 12"),
        ("price < 10", {"price": None}, "fails  price < 10: the message has no attribute price"),
        ("price < 10", {}, "fails  price < 10: the message has no attribute price"),
        (
            "price < 10",
            {"price": "9"},
            'fails  price < 10: price is "9", of type text; the test is of type number '
            "(write 9 in the message, or declare price)",
        ),
        ("price < 10", {"price": "x"}, 'fails  price < 10: price is "x", of type text; the test is of type number'),
        (
            'posted >= "2026-01-01"',
            {"posted": datetime(2026, 5, 1, tzinfo=UTC)},
            'fails  posted >= "2026-01-01": posted is date "2026-05-01", of type time; the test is of type text '
            '(write date "2026-01-01" in the test, or declare posted)',
        ),
        (
            'price < "10.5"',
            {"price": 9},
            'fails  price < "10.5": price is 9, of type number; the test is of type text '
            "(write 10.5 in the test, or declare price)",
        ),
        (
            'price prefix "1"',
            {"price": 1},
            'fails  price prefix "1": price is 1, of type number; the test is of type text',
        ),
        (
            'app >= version "1.9"',
            {"app": "1.10"},
            'fails  app >= version "1.9.0": app is "1.10", of type text; the test is of type version '
            '(write version "1.10.0" in the message, or declare app)',
        ),
        (
            'posted >= date "2026-01-01"',
            {"posted": "2026-05-01T10:00"},
            'fails  posted >= date "2026-01-01": posted is "2026-05-01T10:00", of type text; the test is of type time '
            "(the timestamp '2026-05-01T10:00' has no time zone: write Z at its end for UTC, or +01:00)",
        ),
        (
            'posted >= date "2026-01-01"',
            {"posted": 1795860000000},
            'fails  posted >= date "2026-01-01": posted is 1795860000000, of type number; the test is of type time '
            '(a date is written as in "2026-11-28", and a time as in "2026-11-28T10:00:00Z", '
            "not '1795860000000')",
        ),
        (
            "posted >= now() - 7 days",
            {"posted": "2026-11-28", "now()": datetime(2026, 11, 29, tzinfo=UTC)},
            'fails  posted >= now() - 7 days: posted is "2026-11-28", now() is date "2026-11-29"; '
            'posted is of type text (write date "2026-11-28" in the message, or declare posted)',
        ),
        (
            "price <= 899.01",
            {"price": Decimal("899.01")},
            'fails  price <= 899.01: price is decimal "899.01"; numbers of the test are doubles: write them as in '
            'decimal "0.10", or declare price',
        ),
        ('price < decimal "0.1"', {"price": Decimal("0.1")}, 'fails  price < decimal "0.1": price is decimal "0.1"'),
        ("price < 10", {"price": math.nan}, "fails  price < 10: price is NaN, of type NaN; the test is of type number"),
        ("price < 10", {"price": ["9", 11]}, 'fails  price < 10: price is "9", 11'),
        ("price != 10", {"price": 10.0}, "fails  price != 10: price is 10"),
        ("not price < 10", {"price": 9}, "fails  not price < 10: price is 9"),
        ("not price < 10", {}, "holds  not price < 10"),
        ("new = true", {"new": 1}, "fails  new = true: new is 1, of type number; the test is of type bool"),
        ('name suffix "x"', {"name": 3}, 'fails  name suffix "x": name is 3, of type number; the test is of type text'),
        ('name contains "x"', {"name": "abc"}, 'fails  name contains "x": name is "abc"'),
        ('not tags {"a"}', {}, 'fails  not tags {"a"}: the message has this tag'),
        ('a = "x" and b = "x"', {"a": "x"}, 'fails  b = "x": the message has no attribute b'),
        ("`a b` = 1", {"a b": 2}, "fails  `a b` = 1: `a b` is 2"),
    ],
)
def test_a_condition(where, attributes, expected):
    assert expected in why(where, attributes)


@pytest.mark.parametrize(
    ("kind", "where", "given", "why"),
    [
        (
            "string",
            'zip = "123"',
            123,
            "zip is 123, of type number; the test is of type text, as zip is declared: string",
        ),
        (
            "timestamp",
            "zip >= now() - 7 days",
            5,
            'zip is 5, now() is date "2026-11-29"; zip is of type number, as zip is declared: timestamp',
        ),
    ],
)
def test_a_value_of_another_type_than_declared(kind, where, given, why):
    with TagMatch(attributes={"zip": kind}, device="cpu", threads=1) as tm:
        tm.put(7, [], where=where)
        tm.consolidate()
        message = {"zip": given, "now()": datetime(2026, 11, 29, tzinfo=UTC)}
        ((test,),) = (each.tests for each in tm.explain([], message, key=7).alternatives)
    assert test.why == why


@pytest.mark.parametrize(
    ("where", "at", "expected"),
    [
        ("within circle(0, 0, 1000)", {}, "the message has no location"),
        (
            "within circle(0, 0, 1000)",
            {"location": (0, 1)},
            f"the message is {DEGREE:,.0f} m away, {DEGREE - 1000:,.0f} m too far",
        ),
        (
            "within circle(179.5, 0, 1)",
            {"location": (-179.5, 0)},
            f"the message is {DEGREE:,.0f} m away, {DEGREE - 1:,.0f} m too far",
        ),
        (
            "within box(170, 0, -170, 5)",
            {"location": (160, 6)},
            "the message is outside: lon is 160, not from 170 to -170, lat is 6, not from 0 to 5",
        ),
        ("not within box(0, 0, 1, 1)", {"location": (0.5, 0.5)}, "the message is within"),
        ("within near(5)", {}, "the message has no location"),
        ("within near(5)", {"location": (0, 0)}, "the client has no position"),
        ("price = 1", {"within": Circle(0, 0, 1)}, "the client has no position"),
    ],
)
def test_a_place(where, at, expected):
    assert f"fails  {where if 'within' not in at else 'within circle(0, 0, 1)'}: {expected}" in why(where, {}, **at)


@pytest.mark.parametrize("attributes", [{"location": [4.8, 45.7]}, {"location.lat": 45.7, "location.lon": 4.8}])
def test_a_place_that_is_an_attribute(attributes):
    expected = "the message has no location, only an attribute of this name: give location next to the attributes"
    assert f"fails  within circle(0, 0, 1000): {expected}" in why("within circle(0, 0, 1000)", attributes)


def test_on_the_plane():
    with index_of([["a"], ["b"]], [1, 2], area=[Circle(0, 0, 1), Near(2)], plane=True, device="cpu") as tm:
        assert "the message is 5 away, 4 too far" in str(tm.explain(["a"], location=(3, 4), key=1))
        tm.move([2], 30, 40)
        assert "the client is 50 away, 48 too far" in str(tm.explain(["b"], location=(0, 0), key=2))
        shown = str(tm.explain(["b"], within=Box(0, 0, 1, 1), key=2))
        assert "the client is outside: x is 30, not from 0 to 1, y is 40, not from 0 to 1" in shown


def test_the_tree(tmp_path):
    """The set that is nearest to an answer comes first; the command writes the same."""
    where = ["price < 10 or (price < 20 and new = true)", None]
    with index_of([["a", "b"], ["a"]], [7, 8], tmp_path / "index", where=where, device="cpu") as tm:
        found = tm.explain(["a"], {"price": 15, "new": True}, key=7)
        assert str(found) == (
            "key 7 does not match: 0 of its 2 sets hold\n"
            "  set 1 fails: 1 of 4 tests fails\n"
            '    holds  "a"\n    fails  "b": the message lacks this tag\n    holds  new = true\n    holds  price < 20\n'
            "  set 2 fails: 2 of 3 tests fail\n"
            '    holds  "a"\n    fails  "b": the message lacks this tag\n    fails  price < 10: price is 15'
        )
        asked = ("explain", tmp_path / "index", "a", "--attributes", '{"price": 15, "new": true}', "--key", "7")
        assert tagmatch(*asked) == f"{found}\n"
        assert json.loads(tagmatch(*asked, "--json")) == found.to_dict()
        assert "'x' is not an integer" in tagmatch(*asked[:-1], "x", code=2)
        assert str(tm.explain([], key=8)).startswith(
            "key 8 does not match: its set fails\n  set 1 fails: 1 of 1 tests "
        )
        assert str(tm.explain(["a"], key=8)) == 'key 8 matches: its set holds\n  set 1 holds\n    holds  "a"'
        assert "no set has it, as after delete() or when it has expired" in str(tm.explain(["a"], key=9))
        with pytest.raises(InvalidTypeError, match="key"):
            tm.explain(["a"], key="7")  # type: ignore[call-overload]


def test_names_and_deleted_rows(layout):
    with TagMatch(key_type="string", layout=layout, device="cpu") as tm:
        for tag, key in (("a", "ana"), ("b", "bo"), ("c", "ana")):
            tm.add_set([tag], key)
            tm.consolidate()
        tm.remove_set(["a"], "ana")
        tm.consolidate()
        assert [test.test for each in tm.explain(["c"], key="ana").alternatives for test in each.tests] == ["c"]
        assert tm.explain(["c"], key="ana").matches
        assert tm.explain(["c"], key="nemo").alternatives == ()
