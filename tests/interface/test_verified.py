"""Patterns, and attributes that are compared with others and with the message's time."""

import re
import unicodedata
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from oracle import Test, evaluate
from support import filters, verified
from support.conditions import Expression, Message, assert_found_one_by_one, in_tables
from support.constrained import table_of

from tagmatch import Box, Circle, FilterError, InvalidTypeError, InvalidValueError, Near, Polygon, TagMatch, Version
from tagmatch.model.input.places import area_has
from tagmatch.model.input.values import packed
from tagmatch.model.options import Layout
from tagmatch.model.where import automata, patterns
from tagmatch.model.where.automata import NEVER, automaton_of, finds, needed
from tagmatch.model.where.constraints import Constraint
from tagmatch.model.where.language import rows_of
from tagmatch.model.where.values import is_reserved
from tagmatch.pipeline.filters import computed

_TREES = st.lists(st.tuples(st.sets(filters.tags, max_size=1), verified.trees), min_size=1, max_size=5)


@given(verified.expressions, st.lists(verified.searched, min_size=1, max_size=8))
def test_expressions_are_those_of_python(pattern: str, texts: list[str]) -> None:
    for text in texts:
        found = evaluate(Test("a", "matches", (pattern,)), (), {"a": text})
        assert finds(pattern, text, is_like=False) == found
        own = needed(pattern, is_like=False)
        assert not found or any(evaluate(Test("a", own.operator, (each,)), (), {"a": text}) for each in own.texts)


@given(verified.of_unicode, st.lists(verified.searched | st.text("aBéÉΩωß日б5٣ ", max_size=5), min_size=1, max_size=8))
def test_classes_of_unicode_are_those_of_re2(pattern: str, texts: list[str]) -> None:
    """Which Arrow has; it knows Unicode's letters in another case as we do."""
    try:
        found = [finds(pattern, text, is_like=False) for text in texts]
    except InvalidValueError as error:  # drawn patterns seldom need more states than are allowed
        assume("an automaton of more than 1000 states" not in str(error))
        raise
    assert found == pc.match_substring_regex(pa.array(texts), pattern).to_pylist()


@pytest.mark.parametrize("category", ["L", "Lu", "Ll", "Lo", "Nd", "N", "P", "Zs", "Sc", "Mn"])
def test_categories_are_those_of_unicode(category: str) -> None:
    """For what this Python knows: later versions of Unicode have more characters."""
    known = [each for each in range(0x30000) if unicodedata.category(chr(each)) not in ("Cn", "Cs")]
    found = {
        each for ends in patterns.of_expression(rf"\p{{{category}}}").ranges for each in range(ends[0], ends[1] + 1)
    }
    assert found & {*known} == {each for each in known if unicodedata.category(chr(each)).startswith(category)}


@given(verified.likes, st.lists(verified.searched, min_size=1, max_size=8))
def test_like_is_that_of_sql(pattern: str, texts: list[str]) -> None:
    for text in texts:
        found = evaluate(Test("a", "like", (pattern,)), (), {"a": text})
        assert finds(pattern, text, is_like=True) == found
        own = needed(pattern, is_like=True)
        assert not found or any(evaluate(Test("a", own.operator, (each,)), (), {"a": text}) for each in own.texts)


@given(verified.trees, filters.spellings, st.data())
def test_rows_mean_what_the_expression_does(tree: Any, spelling: Any, data: st.DataObject) -> None:
    rows = rows_of(filters.text_of(tree, spelling))
    for row in rows:
        for constraint in row.constraints:
            assert Constraint.of_tag(constraint.tag) == constraint
            ((again,),) = ([*each.constraints] for each in rows_of(constraint.text))
            assert again == constraint
            assert is_reserved(constraint.tag)
    tags, attributes = data.draw(verified.messages(tree))
    assert any(filters.satisfies(row, tags, attributes) for row in rows) == evaluate(tree, tags, attributes)


@given(stored=_TREES, data=st.data())
def test_any_condition(layout: Layout, stored: list[tuple[set[str], Any]], data: st.DataObject) -> None:
    spelling = data.draw(filters.spellings)
    expressions = [Expression.of(tree, spelling) for _, tree in stored]
    messages = [
        Message(sorted(tags), found) for tags, found in (data.draw(verified.messages(tree)) for _, tree in stored)
    ]
    with TagMatch(layout=layout, device="cpu", threads=1) as tm:
        tm.add_sets([own for own, _ in stored], range(len(stored)), where=expressions)
        tm.consolidate()
        expected = assert_found_one_by_one(tm, stored, messages)
        found = tm.match_many(table_of([(list(tags), attributes) for tags, attributes in messages]), unique=True)
        assert [set(each) for each in found.to_pylist()] == expected
        for numbers, table in in_tables(messages):
            doubled = pa.concat_tables([table, table]).combine_chunks()[1:]
            found = tm.match_many(doubled, unique=True).to_pylist()
            assert [set(each) for each in found] == [expected[number] for number in (numbers + numbers)[1:]]
        for key, ((own, _), expression) in enumerate(zip(stored, expressions, strict=True)):
            if key % 2:
                tm.remove_set(own, key, where=expression)
        for row, keys in list(tm):
            for key in keys:
                if key % 2 == 0:
                    tm.remove_set(row, key)
        tm.consolidate()
        assert len(tm) == 0


def test_the_time_of_a_message_is_a_time() -> None:
    """A text of one would compare with nothing."""
    now = datetime(2026, 11, 30, 12, tzinfo=UTC)
    with TagMatch(device="cpu") as tm:
        tm.add_set([], 1, where="posted >= now() - 7 days")
        tm.consolidate()
        for time in (now, [now], {"timestamp": now.isoformat()}, None):
            assert tm.match([], {"posted": now, "now()": time}) == [1]
        for time in ("2026-11-30T12:00:00Z", 5, True, [now, "12:00"], Version("1.2"), {"version": "1.2"}):
            with pytest.raises(InvalidTypeError, match=r"attribute \"now\(\)\" is the message's time: give a datetime"):
                tm.match([], {"posted": now, "now()": time})
        texts, types = ["2026-11-30T12:00:00Z"], pa.map_(pa.string(), pa.string())
        for given in (pa.array(texts), pa.array([texts]), pa.array(texts).dictionary_encode(), pa.array([5])):
            with pytest.raises(
                InvalidTypeError, match=r"column 'now\(\)' is of .*, but now\(\) is the time of a message"
            ):
                tm.match_many(pa.table({"tags": [[]], "now()": given}))
        maps = pa.table({"tags": [[]], "attributes": pa.array([[("now()", texts[0])]], types)})
        with pytest.raises(
            InvalidTypeError, match=r"column 'attributes': now\(\) is of string, but now\(\) is the time"
        ):
            tm.match_many(maps)


def test_a_tag_is_not_taken_for_a_test_that_holds() -> None:
    with TagMatch(device="cpu") as tm:
        tm.add_sets([[], []], [1, 2], where=["a <= b", "not a <= b"])
        tm.consolidate()
        for tag in ("\0+oa\0<=0:b", "\0-oa\0<=0:b"):
            assert tm.match([tag], {"a": 2, "b": 1}) == [2]
            assert tm.match([tag], {"a": 1, "b": 1}) == [1]


def test_the_time_is_that_of_the_call_unless_a_message_has_its_own() -> None:
    now = datetime.now(UTC)
    with TagMatch(device="cpu") as tm:
        tm.add_set([], 1, where="posted >= now() - 7 days")
        tm.add_set([], 2, where="now() - posted > 7 days")
        tm.add_set([], 3, where="now() < posted")
        tm.consolidate()
        for days, wanted in ((-6, [1]), (-8, [2]), (1, [1, 3]), (-7.001, [2]), (-6.999, [1])):
            assert sorted(tm.match([], {"posted": now + timedelta(days=days)})) == wanted
        times = pa.array([now, now, None], pa.timestamp("us", "UTC"))
        columns = {"tags": [[]] * 3, "posted": times, "now()": [now - timedelta(1), None, now]}
        assert [sorted(each) for each in tm.match_many(pa.table(columns)).to_pylist()] == [[1, 3], [1], []]
        ((test,),) = (each.tests for each in tm.explain([], {"posted": now - timedelta(8)}, key=1).alternatives)
        assert test.why.startswith(f'posted is timestamp "{now - timedelta(8):%Y-%m-%dT%H:%M:%S}')
        assert ', now() is timestamp "' in test.why


def test_values_of_between_and_in_may_be_attributes() -> None:
    with (
        TagMatch(device="cpu", attributes={"price": "decimal(10,2)", "low": "int64"}, strict=True) as tm,
        pytest.raises(FilterError, match=r"^where: column 15: attribute \"lo\" is not declared; is 'low' meant"),
    ):
        tm.add_set([], 1, where="price between lo and 5")
    with TagMatch(device="cpu") as tm:
        tm.add_sets([[]] * 3, range(3), where=["a between b and c", "a in {`b`, 5}", "not a between b and 9"])
        tm.consolidate()
        for attributes, wanted in (
            ({"a": 3, "b": 3, "c": 3}, [0, 1]), ({"a": 3, "b": 2, "c": 2}, []), ({"a": 5, "b": 6, "c": 7}, [1, 2]),
            ({"a": 3, "b": 2}, []), ({"a": 10, "b": 2, "c": 12}, [0, 2]), ({"a": [1, 5], "b": [2]}, [1]), ({}, [2]),
        ):  # fmt: skip
            assert tm.match_unique([], attributes) == {*wanted}


_BEGINNINGS = st.sampled_from([b"\xff", b"\xffn", b"\xff!", b"\xffp", b"\xffpa", b"\xffpb", b"\xffs", b"\xffb1", b"z"])


@given(st.lists(st.tuples(_BEGINNINGS, st.binary(max_size=30)).map(b"".join), min_size=2, max_size=6))
def test_texts_that_begin_as_values_of_other_types_do(texts: list[bytes]) -> None:
    """No text of UTF-8 does, but Arrow checks none: they are compared by their bytes if no value is written so."""
    texts = [text for text in texts if not re.fullmatch(rb"\xff(n.{19,}|!|pa.{16,}|p[bc].*)", text, re.DOTALL)]
    columns = [pa.array(each, pa.binary()).view(pa.string()) for each in (texts, texts[::-1])]
    with TagMatch(device="cpu") as tm:
        tm.add_set([], 1, where="a < b")
        tm.consolidate()
        found = tm.match_many(pa.table(columns, ["a", "b"])).to_pylist()
        packed_column = pa.array([packed({"a": "z", "b": "x" * 9}).replace(b"x" * 9, b"\xffn1234567")], pa.binary())
        with pytest.raises(InvalidValueError, match="row 0 has no attributes as clients pack them"):
            tm.match_many(pa.table({"attributes": packed_column}))
    assert found == [[1] if text < other else [] for text, other in zip(texts, texts[::-1], strict=True)]


def test_explained() -> None:
    with TagMatch(device="cpu") as tm:
        tm.add_set([], 1, where='price <= budget and name matches "^IB"')
        tm.consolidate()
        assert str(tm.explain([], {"price": [3, 4], "budget": 2, "name": "HAL"}, key=1)).splitlines()[2:] == [
            '    fails  name matches "^IB": name is "HAL"',
            "    fails  price <= budget: price is 3, 4, budget is 2",
        ]
        assert str(tm.explain([], {"price": 3, "name": 5}, key=1)).splitlines()[2:] == [
            '    fails  name matches "^IB": name is 5, of type number; the test is of type text',
            "    fails  price <= budget: the message has no attribute budget",
        ]
        assert tm.explain([], {"price": 3, "budget": 3, "name": "IB"}, key=1).matches
        columns = {"tags": [[]], "price": [3], "budget": [3.0], "name": ["IBM"]}
        ((found,),) = tm.match_highlights(pa.table(columns)).to_pylist()
        assert sorted(found["tests"]) == ['name matches "^IB"', "price <= budget"]


STRUCTURES: list[tuple[dict[str, Any], str]] = [
    ({"attr": "a", "op": "like", "value": "b%c_"}, 'a like "b%c_"'),
    ({"attr": "a", "op": "like", "value": "b%"}, 'a prefix "b"'),
    ({"attr": "a", "op": "matches", "value": "b|c"}, 'a matches "b|c"'),
]


@pytest.mark.parametrize(("struct", "text"), STRUCTURES, ids=range(len(STRUCTURES)))
def test_in_columns(struct: dict[str, Any], text: str) -> None:
    with TagMatch(device="cpu") as tm:
        other = {"attr": "d", "op": "=", "value": "b%"}
        tm.add_subscriptions(pa.table({"key": [1], "tags": [["x"]], "constraints": [[other, struct]]}))
        tm.consolidate()
        ((row, _),) = tm
        assert {*map(str, row)} == {"x", 'd = "b%"', text}
        assert tm.match(["x"], {"a": "b c!", "d": "b%"}) == [1]
        tm.remove_set(["x"], 1, where=f'd = "b%" and {text}')
        assert tm.consolidate().removed == 1


WRONG = [
    ({"attr": "a", "op": "matches", "value": "b("}, InvalidValueError, "character 2 of the pattern: nothing closes"),
    (
        {"attr": "a", "op": "like", "value": "b\\"},
        InvalidValueError,
        "character 2 of the pattern: a backslash comes before",
    ),
    ({"attr": "a", "op": "like", "int": 5}, InvalidTypeError, "like needs a text, not 5"),
]


@pytest.mark.parametrize(("struct", "error", "message"), WRONG, ids=range(len(WRONG)))
def test_mistakes_in_columns(struct: dict[str, Any], error: type[Exception], message: str) -> None:
    with TagMatch(device="cpu") as tm:
        with pytest.raises(error, match=f"^constraints: row 1, constraint 0: {message}"):
            tm.add_subscriptions(pa.table({"key": [1, 2], "tags": [["x"], []], "constraints": [[], [struct]]}))
        assert tm.stats()["staged"] == 0


_AREAS = (Box(1, 1, 2, 2), Circle(1, 1, 100_000), Polygon("POLYGON ((1 1, 2 1, 2 2, 1 2, 1 1))"), Near(100_000))
_PLACES = st.sampled_from([(1.5, 1.5), (1.0, 1.0), (1.2, 0.8), (50.0, 50.0)])


@given(
    stored=st.lists(
        st.tuples(st.sets(filters.tags, max_size=1), verified.trees, st.sampled_from([*_AREAS, None])),
        min_size=1,
        max_size=5,
    ),
    data=st.data(),
)
def test_with_areas(layout: Layout, stored: list[tuple[set[str], Any, Any]], data: st.DataObject) -> None:
    """Sets that are near a client, or in an area, and whose tests are verified; some ask for one of both only."""
    spelling = data.draw(filters.spellings)
    messages = [(*data.draw(verified.messages(tree)), data.draw(_PLACES)) for _, tree, _ in stored]
    keys = range(len(stored))
    with TagMatch(layout=layout, device="cpu", threads=1) as tm:
        wheres = [filters.text_of(tree, spelling) for _, tree, _ in stored]
        tm.add_sets([own for own, _, _ in stored], keys, where=wheres, area=[area for *_, area in stored])
        tm.consolidate()
        tm.move(keys, [1.5] * len(keys), [1.5] * len(keys))
        for tags, attributes, place in messages:
            wanted = {
                key
                for key, (own, tree, area) in enumerate(stored)
                if own <= {*tags} and evaluate(tree, tags, attributes) and _has(area, place)
            }
            assert tm.match_unique(sorted(tags), attributes, location=place) == wanted
            for key in keys:
                assert tm.explain(sorted(tags), attributes, location=place, key=key).matches == (key in wanted)
            without = {key for key in wanted if stored[key][2] is None}
            assert tm.match_unique(sorted(tags), attributes) == without


def _has(area: Any, place: tuple[float, float]) -> bool:
    if area is None:
        return True
    around = Circle(1.5, 1.5, area.metres) if isinstance(area, Near) else area
    return bool(area_has(around, np.array([place[0]]), np.array([place[1]]), plane=False)[0])


@pytest.mark.parametrize(
    ("where", "attributes", "wanted"),
    [
        ("a < b and within box(1, 1, 2, 2)", {"a": 1, "b": 2}, True),
        ("a < b and not within box(1, 1, 2, 2)", {"a": 1, "b": 2}, False),
        ('a like "b_" or within box(1, 1, 2, 2)', {"a": "c"}, True),
        ("at least 2 of {a = 1, b = 1, c = 1} and within box(1, 1, 2, 2)", {"a": 1, "c": 1}, True),
        ("at least 2 of {a = 1, b = 1, c = 1} and within box(1, 1, 2, 2)", {"a": 1, "c": 2}, False),
        ("at least 1 of {within box(3, 3, 4, 4), within box(1, 1, 2, 2)} and a < b", {"a": 1, "b": 2}, True),
        (" and ".join(f"(a{n} = 1 or b{n} = 1)" for n in range(12)) + " and within box(1, 1, 2, 2)",
         {f"a{n}": 1 for n in range(12)}, True),
    ],
)  # fmt: skip
def test_areas_in_expressions(where: str, attributes: dict[str, Any], wanted: bool) -> None:
    with TagMatch(device="cpu") as tm:
        tm.add_set([], 1, where=where)
        tm.consolidate()
        assert tm.match([], attributes, location=(1.5, 1.5)) == [1] * wanted
        ((row, _),) = tm if len(tm) == 1 else [(None, None)]
        if row is not None:
            tm.remove_set(row, 1)
            assert tm.consolidate().removed == 1


def test_a_structure_with_an_area(tmp_path: Path) -> None:
    struct = {"attr": "a", "op": "like", "value": "b_"}
    areas = pa.array([None, {"metres": 5.0}])
    table = pa.table({"key": [1, 2], "constraints": [[struct], [struct]], "area": areas})
    with TagMatch(tmp_path / "index", device="cpu") as tm:
        tm.add_subscriptions(table)
        tm.consolidate()
    with TagMatch.open(tmp_path / "index", device="cpu") as tm:
        tm.move([2], [1.0], [1.0])
        # A tag of this text says nothing of a test
        for tags, text, wanted in (([], "bc", [1, 2]), (["\0+la\0b_"], "b", [])):
            assert sorted(tm.match(tags, {"a": text}, location=(1.0, 1.0))) == wanted


def test_stored_and_opened_again(tmp_path: Path, layout: Layout) -> None:
    """Many at once, in two segments; each message finds some."""
    wheres = [f'a matches "^x{at}[0-9]+$"' for at in range(50)] + [f"a{at} <= b{at}" for at in range(50)]
    with TagMatch(tmp_path / "index", layout=layout, device="cpu") as tm:
        tm.add_sets([[]] * 50, range(50), where=wheres[:50])
        tm.consolidate()
        tm.add_sets([[]] * 50, range(50, 100), where=wheres[50:])
        tm.consolidate()
    with TagMatch.open(tmp_path / "index", device="cpu") as tm:
        assert sorted(tm.match([], {"a": "x123", "a7": 1, "b7": 1.5, "a8": 2, "b8": 1})) == [1, 12, 57]


def test_only_automata_that_texts_may_reach_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None when an index is opened, and each once."""
    wheres = [f'a matches "^x{at}[0-9]+$"' for at in range(50)] + [f'a like "y{at}%z_"' for at in range(50)]
    with TagMatch(tmp_path / "index", device="cpu") as tm:
        tm.add_sets([[]] * 100, range(100), where=wheres)
        tm.consolidate()
    made: list[str] = []

    def counted(pattern: str, *, is_like: bool) -> automata.Automaton:
        made.append(pattern)
        return automaton_of(pattern, is_like=is_like)

    monkeypatch.setattr(computed, "automaton_of", counted)
    with TagMatch.open(tmp_path / "index", device="cpu") as tm:
        assert not tm.match([], {"a": 5, "b": "x12"})
        assert not made
        for text, wanted in (("x123", [1, 12]), ("x12!", []), ("y7 z", []), ("y49_z!", [54, 99]), ("x123", [1, 12])):
            assert sorted(tm.match([], {"a": text})) == wanted
        assert sorted(made) == sorted(["^x1[0-9]+$", "^x12[0-9]+$", "y4%z_", "y49%z_", "y7%z_"])


#: Where each is wrong, and how its message begins
REFUSED = [
    ("(a", 1, "nothing closes this ("), ("a)", 2, "this ) closes nothing"), ("[a", 1, "nothing closes this ["),
    ("a**", 3, "this repeats a repetition"), ("a|*", 3, "there is nothing before this"),
    ("^*", 1, "there is nothing before this"), ("a++", 2, "a part that is not given back"),
    ("a(?=b)", 2, "looking ahead or behind"), ("(?<!a)b", 1, "looking ahead or behind"),
    (r"(a)\1", 4, "a reference to a group"), (r"(?P=n)", 1, "a reference to a group"),
    (r"\p", 1, "there is no such class of Unicode"),
    (r"a\p{greek}", 2, r"there is no such class of Unicode: write \p{Greek}"),
    (r"[\p{L&}]", 2, "there is no such class of Unicode"), (r"[\pL-z]", 2, "a range is from"),
    (r"a\Z", 2, "the end of the text is written"), (r"\q", 1, "no character is"),
    ("a{2,1}", 2, "a count is at most 1000"), ("a{1001}", 2, "a count is at most 1000"),
    ("[b-a]", 2, "a range is from"),
    (r"[a-\d]", 2, "a range is from"), ("[[:foo:]]", 2, "there is no such class"), ("(?x)a", 1, "no group begins so"),
    ("(?i", 1, "no group begins so"), (r"\x{110000}", 1, "Unicode has no such character"),
    ("(" * 101 + ")" * 101, 101, "more than 100 groups"), ("a\\", 2, "no character is written so"),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "place", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_no_expression(pattern: str, place: int, message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        automaton_of(pattern, is_like=False)
    assert str(caught.value).startswith(f"character {place} of the pattern: {message}")


#: What Python has not, or otherwise
FOUND = [
    (r"\B", "aéb", False), (r"\B", "ab", True), (r"\B", "", True), (r"é\B", "é", True), ("a$", "a\n", False),
    ("[[:digit:][:^alpha:]]", "ab", False), ("[[:upper:]]", "aB", True), (r"\x{e9}\x41", "éA", True),
    ("(?-i:a)", "A", False),
    ("(?i)k", "\u212a", True), ("(?i)straße", "STRAẞE", True), ("(?i)ß", "ss", False), ("(?i)[^k]", "\u212aK", False),
    ("(?i:a)b", "Ab", True), ("(?i:a)b", "AB", False), ("(?P<n>a)(?<m>b)", "ab", True), ("a{,2}", "a{,2}", True),
    ("[]a]", "]", True), ("[a-]", "-", True), ("(?U)a+?", "a", True), ("(?s).", "\n", True), (".", "\n", False),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "text", "found"), FOUND, ids=range(len(FOUND)))
def test_what_expressions_find(pattern: str, text: str, found: bool) -> None:
    assert finds(pattern, text, is_like=False) == found


def test_automata_are_bounded() -> None:
    with pytest.raises(InvalidValueError, match="an automaton of more than 1000 states: count fewer repetitions"):
        automaton_of("(a|b)*a(a|b){12}", is_like=False)
    own = automaton_of("^ab", is_like=False)
    assert own.steps[(own.first * (max(own.classes) + 1)) + own.classes[ord("b")]] == NEVER
    assert automata.MOST_STATES == 1000
    assert patterns.like_parts("a%%_") == [(False, "a"), (True, "%"), (True, "_")]
