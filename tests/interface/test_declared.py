"""Declared attributes, analyzers and phrases, against what plain Python says of them."""

import json
import math
import re
from datetime import UTC, datetime
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.command import done, refused
from support.service import remote

from tagmatch import (
    FilterError,
    InvalidTypeError,
    InvalidValueError,
    TagMatch,
    casefold,
    nfc,
    nfkc,
    no_accents,
    stems,
    words,
)
from tagmatch.model.input.values import packed
from tagmatch.model.where.analyzers import analyzer_of

ATTRIBUTES = {"title": "string", "city": "string", "price": "decimal(10, 2)", "posted": "timestamp", "n": "int64"}
ATTRIBUTES |= {"new": "bool"}
ANALYZERS = {"title": casefold(nfc(words())), "city": casefold()}

# -- what it means to plain Python -------------------------------------------------------------------------------------


def words_of(text: str) -> list[str]:
    return [word.casefold() for word in re.findall(r"\w+", text)]


def has_row(given: list[str], wanted: list[str]) -> bool:
    return any(given[at : at + len(wanted)] == wanted for at in range(len(given)))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC) if len(text) == 10 else datetime.fromisoformat(text)


READ = {"price": Decimal, "posted": at, "n": int, "new": {"true": True, "false": False}.__getitem__}
COMPARE = {
    "=": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def holds(tree: Any, message: dict[str, list[str]]) -> bool:
    """Whether a message, whose values are texts, satisfies an expression."""
    kind, *rest = tree
    if kind in ("and", "or"):
        return (all if kind == "and" else any)(holds(each, message) for each in rest)
    if kind == "not":
        return not holds(rest[0], message)
    operator, operand = rest
    values = message.get(kind, [])
    if operator == "phrase":
        return any(has_row(words_of(value), words_of(operand)) for value in values)
    own = {"title": words_of, "city": lambda text: [text.casefold()]}.get(kind, lambda text: [READ[kind](text)])
    given = [each for value in values for each in own(value)]
    if operator == "in":
        return any(each in [wanted for text in operand for wanted in own(text)] for each in given)
    (wanted,) = own(operand)
    if isinstance(wanted, str) and operator in "<>=!":  # texts are compared as bytes
        given, wanted = [each.encode() for each in given], wanted.encode()
    return any(COMPARE[operator](each, wanted) for each in given)


def text_of(tree: Any) -> str:
    kind, *rest = tree
    if kind in ("and", "or"):
        return "(" + f" {kind} ".join(map(text_of, rest)) + ")"
    if kind == "not":
        return f"not {text_of(rest[0])}"
    operator, operand = rest
    return f"{kind} {operator} " + (
        f'"{operand}"' if isinstance(operand, str) else "{" + ", ".join(f'"{each}"' for each in operand) + "}"
    )


WORD = st.sampled_from(["Red", "red", "BIKE", "bike", "Straße", "STRASSE", "x1", "自"])
TEXT = st.lists(st.tuples(WORD, st.sampled_from([" ", ", ", " — ", "! "])), max_size=5).map(
    lambda parts: "".join(word + between for word, between in parts)
)
VALUES = {
    "title": TEXT,
    "city": st.sampled_from(["Rome", "ROME", "Straße", "strasse", ""]),
    "price": st.sampled_from(["0.1", "0.10", "0.30000000000000004", "-7", "0"]),
    "posted": st.sampled_from(["2026-11-28", "2026-11-28T01:00:00+01:00", "2026-11-28T00:00:00.5+00:00", "2025-01-01"]),
    "n": st.sampled_from(["7", "-7", "9007199254740993", "9007199254740992"]),
    "new": st.sampled_from(["true", "false"]),
}


def drawn_tests(name: str) -> st.SearchStrategy[Any]:
    value = WORD if name == "title" else VALUES[name]
    operators = ["=", "!="] if name == "new" else list(COMPARE)
    plain = st.tuples(st.just(name), st.sampled_from(operators), value)
    several = st.tuples(st.just(name), st.just("in"), st.lists(value, min_size=1, max_size=3))
    if name != "title":
        return plain | several
    return plain | several | st.tuples(st.just(name), st.just("phrase"), TEXT.filter(words_of))


TREE = st.recursive(
    st.sampled_from(list(VALUES)).flatmap(drawn_tests),
    lambda inner: st.tuples(st.just("not"), inner) | st.tuples(st.sampled_from(["and", "or"]), inner, inner),
    max_leaves=5,
)
MESSAGE = st.fixed_dictionaries({}, optional={name: st.lists(value, max_size=3) for name, value in VALUES.items()})


def as_columns(messages: list[dict[str, list[str]]]) -> pa.Table:
    columns = {name: pa.array([each.get(name) for each in messages], pa.list_(pa.string())) for name in VALUES}
    return pa.table({"tags": [[]] * len(messages), **columns})


def as_dictionaries(messages: list[dict[str, list[str]]]) -> pa.Table:
    """The first value of each."""
    columns = {
        name: pa.array([next(iter(each.get(name) or []), None) for each in messages], pa.string()).dictionary_encode()
        for name in VALUES
    }
    return pa.table({"tags": [[]] * len(messages), **columns})


def as_maps(messages: list[dict[str, list[str]]]) -> pa.Table:
    maps = pa.array([list(each.items()) for each in messages], pa.map_(pa.string(), pa.list_(pa.string())))
    return pa.table({"tags": [[]] * len(messages), "attributes": maps})


def as_packed(messages: list[dict[str, list[str]]]) -> pa.Table:
    return pa.table({"tags": [[]] * len(messages), "attributes": [packed(each) for each in messages]})


def only_firsts(message: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: values[:1] for name, values in message.items()}


@given(trees=st.lists(TREE, min_size=1, max_size=6), messages=st.lists(MESSAGE, min_size=1, max_size=5))
@pytest.mark.parametrize("strict", [False, True])
def test_agrees(layout: Any, strict: bool, trees: list[Any], messages: list[dict[str, list[str]]]) -> None:
    with TagMatch(
        layout=layout, threads=1, device="cpu", attributes=ATTRIBUTES, analyzers=ANALYZERS, strict=strict
    ) as tm:
        tm.add_sets([[]] * len(trees), range(len(trees)), where=list(map(text_of, trees)))
        tm.consolidate()

        def keys_of(message: dict[str, list[str]]) -> set[int]:
            return {key for key, tree in enumerate(trees) if holds(tree, message)}

        expected = list(map(keys_of, messages))
        assert [tm.match_unique([], each) for each in messages] == expected
        for form in (as_columns, as_maps, as_packed):
            assert [set(keys) for keys in tm.match_many(form(messages), unique=True).to_pylist()] == expected
        found = tm.match_many(as_dictionaries(messages), unique=True).to_pylist()
        assert [set(keys) for keys in found] == [keys_of(only_firsts(each)) for each in messages]
        for message, keys in zip(messages, expected, strict=True):
            for key in range(len(trees)):
                assert tm.explain([], message, key=key).matches == (key in keys)
        # What is stored means the same again
        table = tm.to_arrow()
        tm.remove_subscriptions(table, missing="error")
        assert tm.consolidate().removed == len(table)


# -- types -------------------------------------------------------------------------------------------------------------


def matched(where: str, message: dict[str, Any], **declared: Any) -> bool:
    with TagMatch(threads=1, device="cpu", **declared) as tm:
        tm.add_set([], 1, where=where)
        tm.consolidate()
        one = tm.match([], message) == [1]
        table = pa.table({"tags": [[]], **{name: [value] for name, value in message.items()}})
        assert tm.match_many(table).to_pylist() == [[1] if one else []]
        return one


@pytest.mark.parametrize(
    ("kind", "where", "value", "holds"),
    [
        ("decimal(10, 2)", "x = 0.1", 0.1, True),
        ("decimal(10, 2)", "x = 0.1", Decimal("0.10"), True),
        ("float64", "x = 0.1", Decimal("0.10"), False),
        ("float64", 'x < "0.2"', "0.1", True),
        ("int64", 'x = "9007199254740993"', "9007199254740993", True),
        ("uint8", "x < 7.5", 7, True),
        ("bool", 'x = "true"', "true", True),
        ("timestamp", 'x >= "2026-11-28"', "2026-11-28T00:00Z", True),
        (pa.timestamp("ms", "UTC"), 'x < "2026-11-28"', datetime(2026, 11, 28, tzinfo=UTC), False),
        ("date", 'x between "2026-11-01" and "2026-11-30"', "2026-11-28", True),
        ("version", 'x between "1.9" and "1.10"', "1.9.7", True),
        ("ip", 'x in {"10.0.0.0/8"}', "10.1.2.3", True),
        ("string", 'x = "1"', "1", True),
        (pa.dictionary(pa.int32(), pa.string()), 'x prefix "a"', "ab", True),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_texts_become_values(kind: Any, where: str, value: Any, holds: bool, strict: bool) -> None:
    assert matched(where, {"x": value}, attributes={"x": kind}, strict=strict) is holds


def test_packed_decimals_are_no_doubles() -> None:
    """A double is the decimal that is written as it is; a decimal that equals the double is another one."""
    with TagMatch(threads=1, device="cpu", attributes={"x": "decimal(38, 10)"}) as tm:
        tm.add_set([], 1, where="x = 0.1")
        tm.consolidate()
        for value, wanted in ((0.1, [1]), (Decimal.from_float(0.1), [])):
            assert tm.match([], {"x": value}) == wanted
            table = pa.table({"tags": [[]], "attributes": [packed({"x": value})]})
            assert tm.match_many(table).to_pylist() == [wanted]


#: Doubles but 0, after which the next decimal has too many digits; the decimals that equal these, and others that are
#: nearer to a double than any text of 17 digits
_DOUBLES = st.sampled_from([0.1, -0.3, 1e22, 2.0**70, 5e-324, 1e16 / 3]) | st.floats(-1e30, 1e30).filter(bool)
_EXACT = _DOUBLES.flatmap(
    lambda each: st.sampled_from([Decimal(each), Decimal(repr(each)), Decimal(each).next_plus(Context(prec=60))])
)
_TENTH = Decimal.from_float(0.1)


def _operand(number: Decimal, spelling: str) -> Any:
    return {"bare": f"{number:f}", "text": f'"{number}"', "typed": f'decimal "{number}"'}[spelling]


@given(
    numbers=st.lists(_EXACT, min_size=1, max_size=4),
    operator=st.sampled_from(["=", "!=", "<", ">=", "in", "between"]),
    spelling=st.sampled_from(["bare", "text", "typed", "column"]),
    counted=st.booleans(),
)
@example([_TENTH], "=", "bare", False)
@example([_TENTH, Decimal("0.1")], "in", "typed", True)
def test_decimals_stay_exact_in_conditions_and_in_texts_of_these(
    numbers: list[Decimal], operator: str, spelling: str, counted: bool
) -> None:
    """However they come in, and from each text of the condition."""
    numbers = [number for number in numbers if spelling != "bare" or "." in f"{number:f}" or abs(number) < 2**63]
    numbers = sorted(numbers or [_TENTH])
    declared: dict[str, Any] = {"threads": 1, "device": "cpu", "attributes": {"x": "decimal(38, 10)"}}
    tested = {"in": numbers, "between": [numbers[0], numbers[-1]]}.get(operator, numbers[:1])
    with TagMatch(**declared) as tm:
        if spelling == "column":
            field = {"value": tested[0]} if len(tested) == 1 and operator != "in" else {"values": tested}
            given = {"attr": "x", "op": operator, **field}
            tm.add_subscriptions(pa.table({"key": [1], "constraints": [[_with_texts(given)]]}))
        else:
            texts = [_operand(number, spelling) for number in tested]
            operand = {"in": f"{{{', '.join(texts)}}}", "between": " and ".join(texts)}.get(operator, texts[0])
            where = f"x {operator} {operand}"
            tm.add_set([], 1, where=f"at least 2 of {{{where}, n = 1, n = 2}}" if counted else where)
        tm.consolidate()
        asked = {Decimal(text) for each in numbers for text in (str(each), repr(float(each)))}
        asked |= {Decimal(float(each)) for each in numbers}
        among: Any = {"in": numbers.__contains__, "between": lambda value: tested[0] <= value <= tested[-1]}
        holds = among.get(operator) or (lambda value: COMPARE[operator](value, tested[0]))
        found = {value: tm.match([], {"x": value, "n": 1}) for value in asked}
        assert found == {value: [1] * holds(value) for value in asked}
        table, record, [(stored, _)] = tm.to_arrow(), tm.get(1), [*tm]
        assert record is not None
        reasons = tm.explain([], {"x": min(asked), "n": 1}, key=1)
        for text in (*table["where"].to_pylist(), record.where, *(test.test for test in reasons.alternatives[0].tests)):
            with TagMatch(**declared) as other:
                other.add_set([], 1, where=text)
                other.consolidate()
                assert [*other] == [(stored, (1,))]
        tm.remove_sets(table["tags"], table["key"], where=table["where"], missing="error")
        assert tm.consolidate().removed == 1


def _with_texts(constraint: dict[str, Any]) -> dict[str, Any]:
    """A constraint whose decimals are fields with texts, which Arrow's decimals may be too short for."""
    name, value = [*constraint.items()][-1]
    texts = [{"decimal": str(each)} for each in value] if isinstance(value, list) else {"decimal": str(value)}
    return {**constraint, name: texts}


def test_doubles_in_columns_of_constraints_are_the_decimals_that_are_written_so() -> None:
    kinds = {"x": "decimal(38, 10)"}
    with TagMatch(threads=1, device="cpu", attributes=kinds) as tm:
        values = [{"attr": name, "op": "=", "value": 0.1} for name in ("x", "y")]
        lists = [{"attr": name, "op": "in", "values": [0.1, 0.5]} for name in ("x", "y")]
        for first, given_ in ((1, values), (3, lists)):
            tm.add_subscriptions(pa.table({"key": [first, first + 1], "constraints": [[each] for each in given_]}))
        with pytest.raises(InvalidValueError, match="NaN"):
            tm.add_subscriptions(pa.table({"key": [9], "constraints": [[values[0] | {"value": math.nan}]]}))
        tm.consolidate()
        for value, wanted in ((0.1, [1, 3]), (Decimal("0.1"), [1, 3]), (_TENTH, [])):
            assert sorted(tm.match([], {"x": value})) == wanted
        for value, wanted in ((0.1, [2, 4]), (Decimal("0.1"), []), (_TENTH, [2, 4])):
            assert sorted(tm.match([], {"y": value})) == wanted


def test_what_is_not_of_the_type_stays_unless_strict() -> None:
    for kind in ("int64", "bool", "decimal(5, 1)"):
        assert matched('x = "many"', {"x": "many"}, attributes={"x": kind})
    assert matched("y = 1", {"y": 1}, attributes={"x": "int64"})
    # Some texts of a column are bools, and others are not
    with TagMatch(threads=1, device="cpu", attributes={"x": "bool"}) as tm:
        tm.add_sets([[]] * 3, [1, 2, 3], where=["x = true", 'x = "maybe"', "not exists(x)"])
        tm.consolidate()
        table = pa.table({"tags": [[], [], []], "x": ["true", "maybe", None]})
        assert tm.match_many(table).to_pylist() == [[1], [2], [3]]


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        ("timestamp", "2026-13-01", '"2026-13-01" is no timestamp: '),
        ("timestamp", "2026-11-28T10:00", "has no time zone: write Z at its end"),
        ("date", "28/11/2026", '"28/11/2026" is no date: '),
        ("date", 2026, "it takes values of date, not 2026; put dates and times in quotes"),
        ("version", 1.10, "not 1.1; put versions in quotes, as in"),
        ("version", "new", '"new" is no version: '),
        ("ip", 10.1, "not 10.1; put addresses in quotes, as in"),
        ("ip", "10.0.0", '"10.0.0" is no ip: '),
    ],
)
def test_conditions_have_times_versions_and_addresses(
    path: Path, tmp_path: Path, kind: str, value: Any, told: str
) -> None:
    """Without `strict`, too, and wherever a condition comes in."""
    where, data = f"posted > {json.dumps(value)}", tmp_path / "sets.jsonl"
    with TagMatch(path, threads=1, device="cpu", attributes={"posted": kind}) as tm:
        constraints = [[{"attr": "posted", "op": ">", "value": value}]]
        calls: list[Any] = [lambda: tm.add_set([], 1, where=where), lambda: tm.put(1, [], where=where)]
        calls += [lambda: tm.add_sets([[]], [1], where=[where]), lambda: tm.remove_set([], 1, where=where)]
        calls += [lambda: tm.add_subscriptions(pa.table({"key": [1], "constraints": constraints}))]
        calls += [lambda: tm.add_subscriptions(pa.table({"key": [1], "where": [f"a = 1 or not {where}"]}))]
        for call in calls:
            kinds = (InvalidTypeError, InvalidValueError) if call is calls[4] else FilterError
            with pytest.raises(kinds, match=re.escape(told)):
                call()
        tm.match([], {"posted": value})  # a message may have other values
        tm.consolidate()
    data.write_text(json.dumps({"key": 1, "tags": [], "where": where}) + "\n")
    assert told in refused("add", path, data)
    index = TagMatch.open(path, threads=1, device="cpu")
    with index, remote(index) as (_, tm), pytest.raises(FilterError, match=re.escape(told)):
        tm.put(1, [], where=where)


STRICT: dict[str, Any] = {"attributes": {"price": "int64", "title": "string"}, "strict": True}


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("prise < 1", "where: column 1: attribute \"prise\" is not declared; is 'price' meant?"),
        ("title = 1", 'where: column 9: attribute "title": it takes values of string, not 1'),
        ('price = "much"', "where: column 9: attribute \"price\": it takes an integer, such as 17, not 'much'"),
        ('price prefix "1"', 'where: column 14: prefix is for texts, and "price" is of int64'),
        ("exists(titel)", "where: column 8: attribute \"titel\" is not declared; is 'title' meant?"),
        ("price <= budget", 'where: column 10: attribute "budget" is not declared; there is price, title'),
        ('title phrase "a"', 'where: column 14: phrase needs an attribute with words: declare "title" with words()'),
    ],
)
def test_strict_conditions(where: str, told: str) -> None:
    with TagMatch(threads=1, device="cpu", **STRICT) as tm, pytest.raises(FilterError, match=re.escape(told)):
        tm.add_set([], 1, where=where)


@pytest.mark.parametrize(
    ("attributes", "error", "told"),
    [
        ({"prise": 1}, InvalidValueError, "\"prise\" is not declared; is 'price' meant?"),
        ({"price": 1.5}, InvalidTypeError, "it takes values of int64, not"),
        ({"price": "x"}, InvalidValueError, "it takes an integer, such as 17, not 'x'"),
        ({"title": 1}, InvalidTypeError, "it takes values of string, not"),
        ({"share": "much"}, InvalidValueError, "\"share\": it takes a number, such as 9.5, not 'much'"),
        ({"new": "yes"}, InvalidValueError, "\"new\": it takes true or false, not 'yes'"),
        ({"day": "28/11"}, InvalidValueError, '"day": a date is written as in "2026-11-28", and a time as in'),
    ],
)
def test_strict_messages(attributes: dict[str, Any], error: Any, told: str) -> None:
    table = pa.table({"tags": [[]], **{name: [value] for name, value in attributes.items()}})
    maps = pa.table(
        {"tags": [[]], "attributes": pa.array([list(attributes.items())], pa.map_(pa.string(), table.schema.types[1]))}
    )
    declared = STRICT["attributes"] | {"share": "float64", "new": "bool", "day": "date"}
    with TagMatch(threads=1, device="cpu", attributes=declared, strict=True) as tm:
        tm.match([], {"price": 1, "title": None, "other": None})
        calls: list[Any] = [lambda: tm.match([], attributes), lambda: tm.submit([], attributes).result()]
        calls += [lambda: tm.match_many(table), lambda: tm.match_many(maps), lambda: tm.explain([], attributes)]
        calls += [lambda: tm.explain([], attributes, key=1), lambda: tm.match_counts(table)]
        for call in calls:
            with pytest.raises(error, match=re.escape(told)):
                call()


def test_strict_with_the_time_and_patterns() -> None:
    declared: dict[str, Any] = {"attributes": {"posted": "timestamp", "title": "string"}, "strict": True}
    with TagMatch(threads=1, device="cpu", analyzers={"title": casefold(words())}, **declared) as tm:
        tm.add_set([], 1, where='posted >= now() - 2 days and title like "b_k%"')
        tm.consolidate()
        message = {"posted": "2026-11-27", "title": "A BIKE", "now()": datetime(2026, 11, 28, tzinfo=UTC)}
        assert tm.match([], message) == [1]
        assert tm.match_many(pa.Table.from_pylist([{"tags": [], **message}])).to_pylist() == [[1]]
        assert tm.match([], message | {"posted": "2026-11-25"}) == []


def test_strict_columns_of_constraints() -> None:
    def table(**constraint: Any) -> pa.Table:
        return pa.table({"key": [1], "constraints": [[constraint]]})

    attributes = {"title": "string", "posted": "timestamp"}
    with TagMatch(
        threads=1, device="cpu", attributes=attributes, analyzers={"title": casefold(words())}, strict=True
    ) as tm:
        for told, wrong in [
            (
                "row 0, constraint 0: attribute \"titel\" is not declared; is 'title' meant?",
                table(attr="titel", op="exists"),
            ),
            (
                "row 0, constraint 0: phrase needs an attribute with words",
                table(attr="posted", op="phrase", value="a b"),
            ),
        ]:
            with pytest.raises(InvalidValueError, match=re.escape(told)):
                tm.add_subscriptions(wrong)
        tm.add_subscriptions(table(attr="title", op="phrase", value="Red Bike"))
        tm.put_many(table(attr="posted", op=">", value="2026-11-28").set_column(0, "key", pa.array([2])))
        tm.put(3, [], where='title = "BIKE"')
        tm.consolidate()
        assert sorted(tm.match([], {"title": "a red bike", "posted": "2026-11-29"})) == [1, 2, 3]
        assert tm.get(3).where == 'title = "BIKE"'


# -- kept --------------------------------------------------------------------------------------------------------------


def test_is_kept(path: Path, layout: Any) -> None:
    with TagMatch(path, layout=layout, threads=1, device="cpu", attributes=ATTRIBUTES, analyzers=ANALYZERS) as tm:
        tm.add_set([], 1, where='title phrase "Red BIKE"')
        tm.consolidate()
    with TagMatch.open(path, threads=1, device="cpu") as tm:
        assert tm.stats()["attributes"]["title"] == "string, casefold(nfc(words()))"
        assert tm.match([], {"title": "a red bike!"}) == [1]
        tm.add_set([], 2, where='city = "rome"')
        tm.consolidate()
        assert sorted(tm.match([], {"title": "a red bike!", "city": "ROME"})) == [1, 2]
        tm.consolidate(full=True)
    # More can be declared; nothing becomes something else
    with TagMatch(path, threads=1, device="cpu", attributes={"more": "int64", "n": "int64"}, strict=True) as tm:
        tm.consolidate()
    with TagMatch.open(path, threads=1, device="cpu") as tm:
        stats = tm.stats()
        assert stats["strict"]
        assert set(stats["attributes"]) == {*ATTRIBUTES, "more"}
        with pytest.raises(InvalidValueError, match="not declared"):
            tm.match([], {"x": 1})
    with pytest.raises(InvalidValueError, match='"n" is int64 in this index, and cannot become string'):
        TagMatch(path, attributes={"n": "string"})
    with pytest.raises(InvalidValueError, match="cannot become"):
        TagMatch(path, analyzers={"title": casefold(words())})


@pytest.mark.parametrize("has_sets", [False, True])
def test_is_kept_from_the_first_staged_change_on(path: Path, has_sets: bool) -> None:
    """So that who opens the index next reads conditions and messages in the same way."""
    if has_sets:
        with TagMatch(path, threads=1, device="cpu") as tm:
            tm.add_set([], 1)
            tm.consolidate()
    TagMatch(path, threads=1, device="cpu", attributes={"x": "int64"}).close()
    assert not has_sets or TagMatch.open(path, device="cpu").stats()["attributes"] == {}
    with TagMatch(path, threads=1, device="cpu", attributes={"x": "int64"}, strict=True) as tm:
        tm.add_set([], 2, where='x = "1"')
        assert len(tm) == has_sets
    with TagMatch(path, threads=1, device="cpu") as tm:
        stats = tm.stats()
        assert (stats["attributes"], stats["strict"], stats["staged"]) == ({"x": "int64"}, True, 1)
        with pytest.raises(FilterError, match="not declared"):
            tm.add_set([], 3, where="y = 1")
        assert tm.consolidate() == (1, 0, 0, 0)
        assert sorted(tm.match([], {"x": "1"})) == [1, 2][not has_sets :]


def test_reload_takes_over(path: Path) -> None:
    with TagMatch(path, threads=1, device="cpu") as tm:
        tm.add_set([], 1, where="x = 1")
        tm.consolidate()
    with TagMatch.open(path, threads=1, device="cpu") as reader:
        with TagMatch(path, threads=1, device="cpu", attributes={"x": "int64"}, strict=True) as tm:
            tm.consolidate()
        assert reader.match([], {"x": "1"}) == []
        assert reader.reload()
        assert reader.match([], {"x": "1"}) == [1]


def test_over_a_connection() -> None:
    index = TagMatch(threads=1, device="cpu", attributes=ATTRIBUTES, analyzers=ANALYZERS, strict=True)
    with index, remote(index) as (_, tm):
        tm.add_set([], 1, where='title phrase "red bike" and posted >= "2026-11-28"')
        tm.consolidate()
        message = {"title": "Red, bike", "posted": "2026-11-28"}
        assert tm.match([], message) == [1]
        assert tm.match_many(pa.Table.from_pylist([{"tags": [], **message}])).to_pylist() == [[1]]
        assert tm.stats()["attributes"]["n"] == "int64"
        with pytest.raises(InvalidValueError, match="is 'title' meant"):
            tm.match([], {"titel": "x"})
        with pytest.raises(FilterError, match="is 'title' meant"):
            tm.add_set([], 1, where="titel = 1")


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"attributes": {"x": "strin"}}, InvalidValueError, "there is no type"),
        ({"attributes": {"x": pa.timestamp("s")}}, InvalidValueError, "needs a time zone"),
        ({"attributes": {"x": "timestamp[s, Mars/X]"}}, InvalidValueError, "no time zone 'Mars/X'"),
        ({"attributes": {"x": pa.list_(pa.string())}}, InvalidTypeError, "has no type of attributes"),
        ({"attributes": {"x": 3}}, InvalidTypeError, "has no type of attributes"),
        ({"attributes": ["x"]}, InvalidTypeError, "attributes must map names"),
        ({"attributes": {"": "string"}}, InvalidValueError, "must not be empty"),
        ({"analyzers": {"x": casefold()}}, InvalidValueError, '"x" is not declared: declare it as string'),
        ({"attributes": {"x": "int8"}, "analyzers": {"x": casefold()}}, InvalidValueError, "is declared as int8"),
        ({"attributes": {"x": "string"}, "analyzers": {"x": 3}}, InvalidTypeError, "such is expected, not 3"),
        ({"attributes": {"x": "string"}, "analyzers": {"x": "casefld()"}}, InvalidValueError, "is 'casefold' meant?"),
        ({"strict": 1.5}, InvalidTypeError, "strict must be True or False"),
    ],
)
def test_what_cannot_be_declared(given: dict[str, Any], error: Any, told: str) -> None:
    with pytest.raises(error, match=re.escape(told)):
        TagMatch(**given)


def test_commands(path: Path, tmp_path: Path) -> None:
    sets, queries = tmp_path / "sets.jsonl", tmp_path / "queries.jsonl"
    sets.write_text('{"tags": [], "key": 1, "where": "title phrase \\"Red BIKE\\" and price = 0.1"}\n')
    declared = ["--attribute", "title=string", "--analyzer", "title=casefold(words())", "--strict"]
    assert 'attribute "price" is not declared' in refused("build", sets, path, *declared)
    done("build", sets, path, *declared, "--attribute", "price=decimal(10, 2)")
    said = json.loads(done("info", path, "--json"))
    assert said["attributes"] == {"price": "decimal(10, 2)", "title": "string, casefold(words())"}
    queries.write_text('{"tags": [], "title": "a red bike", "price": 0.1}\n')
    assert done("match", path, queries) == '{"id":0,"keys":[1]}\n'
    queries.write_text('{"tags": [], "titel": "a red bike"}\n')
    assert "is 'title' meant?" in refused("match", path, queries)


# -- analyzers ---------------------------------------------------------------------------------------------------------


def test_how_analyzers_are_written() -> None:
    for each in (
        words(),
        casefold(nfc(words())),
        stems("english", no_accents(words())),
        nfkc(casefold()),
        stems("german"),
    ):
        assert analyzer_of(str(each)) == each
    for wrong in ("words(casefold())", "casefold(words()", "casefold", "stems(words())", "casefold(words()))", ""):
        with pytest.raises(InvalidValueError, match="analyzers: "):
            analyzer_of(wrong)
    with pytest.raises(InvalidValueError, match="is 'english' meant"):
        stems("englisch")


@given(st.text(alphabet="aB1 2_:.',;-\"!\n\t/", max_size=12))
def test_words_of_ascii_are_those_of_unicode(text: str) -> None:
    longer = words().forms(text + " é")
    assert words().forms(text) == longer[:-1]


@given(st.text(max_size=12))
def test_a_form_of_a_form_is_itself(text: str) -> None:
    for each in (casefold(nfkc()), no_accents(casefold()), stems("english", casefold(nfkc()))):
        (form,) = each.forms(text)
        assert each.forms(form) == (form,)
    own = casefold(nfc(words()))
    assert own.forms(" ".join(own.forms(text))) == own.forms(text)
