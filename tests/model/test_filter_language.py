"""What can be written, and what messages say of mistakes; areas as objects, as tags, and as text."""

import doctest
import json
import math
import random
import struct
from decimal import Decimal
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lark.lexer import BasicLexer
from oracle import OPERATORS
from support.areas import areas as sphere_areas
from support.areas import numbers_of, plane_areas
from support.areas import text_of as area_text
from support.filters import WORDS, spellings, text_of, trees

import tagmatch
from tagmatch import Box, Circle, InvalidTypeError, InvalidValueError, Near
from tagmatch.model.columns import strings_of
from tagmatch.model.errors import FilterError
from tagmatch.model.input import messages, values
from tagmatch.model.kernels.tag_table import areas_among, constraints_among
from tagmatch.model.where import alternatives, areas, constraints, grammar, language
from tagmatch.model.where.alternatives import Row
from tagmatch.model.where.areas import check
from tagmatch.model.where.constraints import Constraint
from tagmatch.model.where.language import rows_of, stored_rows
from tagmatch.model.where.tag_columns import shapes_of

_TEST = "a test, such as price < 10"
# Words in a row are drawn in `test_declared.py` alone, as attributes need words
*_NAMES, _LAST = (*(name for name, own in OPERATORS.items() if own.operands != "none"), "phrase")
_OPERATOR = f"an operator ({', '.join(_NAMES)} or {_LAST})"
_VALUE = 'a value (a number, "text", true or false)'
_SIDE = f"{_VALUE} or an attribute"
_TEXT = "a text in double quotes"
_AREA = (
    "an area (circle(lon, lat, metres), box(west, south, east, north), near(metres), polygon((lon lat, …)) or 500 m of "
    "linestring(lon lat, …))"
)
_TIME_ALONE = "now() is compared with attributes only; give messages an attribute with the time, such as today"
_NAME = "the name of an attribute"
_ESCAPE = r"an escape (\" \\ \n \t \r \f \uXXXX)"
_RANGE = "an integer must be from -2**63 to 2**63 - 1; write a decimal for others"
_ORDER = "has no order: compare it with = or !="

MISTAKES = [
    ("", 1, f"expected {_TEST}, found the end"), (" \n ", "line 2, column 2", f"expected {_TEST}, found the end"),
    ("price", 6, f"expected {_OPERATOR}, found the end"), ("price 10", 7, f'expected {_OPERATOR}, found "10"'),
    ("price < and", 9, f'expected {_SIDE}, found "and"'),
    ("price < 10 price", 12, 'expected "and", "or" or the end, found "price"'),
    ("price < 10 AND new = true", 12, 'expected "and", "or" or the end, found "AND"; "AND" is written "and" here'),
    ("price < 10 or", 14, f"expected {_TEST}, found the end"),
    ("price < 10 or or", 15, f'expected {_TEST}, found "or"'),
    ("price < 10 & b = 1", 12, 'expected "and", "or" or the end, found "&"; "&" is written "and" here'),
    ("a = 1 && b = 1", 7, 'expected "and", "or" or the end, found "&"; "&&" is written "and" here'),
    ("a >= now() - 7 d", 12, 'expected "and", "or" or the end, found "-"; the message\'s time less a week is written '
                            "now() - 7 days here"),
    ("a >= now-7d", 9, 'expected "and", "or" or the end, found "-7"; the message\'s time less a week is written '
                       "now() - 7 days here"),
    ("a : 3", 3, f'expected {_OPERATOR}, found ":"; ":" is written "=" here'),
    ('a ~ "b"', 3, f'expected {_OPERATOR}, found "~"; "~" is written "matches" here'),
    ("a = 1 || b = 1", 7, 'expected "and", "or" or the end, found "|"; "||" is written "or" here'),
    ("!(a = 1)", 1, f'expected {_TEST}, found "!"; "!" is written "not" here'),
    ("a <> 1", 4, f'expected {_SIDE}, found ">"; "<>" is written "!=" here'),
    ("a = True", 5, f'expected {_VALUE}, found "True"; "True" is written "true" here'),
    ('a LIKE "b%"', 3, f'expected {_OPERATOR}, found "LIKE"; "LIKE" is written "like" here'),
    ("a is null", 3, f'expected {_OPERATOR}, found "is"; a value that is missing is found with not exists(name)'),
    ("a in (1, 2)", 6, 'expected "{", found "("; put values in braces'),
    ("at least 2 of (a < 1, b > 0)", 4, f'expected {_OPERATOR}, found "least"; write at least 2 of {{…}}'),
    ("a = 1 and (At least two of {a < 1})", 15, f'expected {_OPERATOR}, found "least"; write at least 2 of {{…}}'),
    (
        "all of {a < 1, b > 0}",
        5,
        f'expected {_OPERATOR}, found "of"; write all of tags {{…}}, or conditions with and between them',
    ),
    ("a == 1", 4, f'expected {_SIDE}, found "="; "==" is written "=" here'),
    (
        "city = Nice",
        8,
        f'expected {_VALUE}, found "Nice"; put a text in double quotes, and an attribute in backquotes here',
    ),
    ("a = null", 5, f'expected {_VALUE}, found "null"; a value that is missing is found with not exists(name)'),
    ("a = 'b'", 5, f'expected {_SIDE}, found "\'"; put texts in double quotes'),
    ("a = 1)", 6, 'expected "and", "or" or the end, found ")"'),
    ("(a = 1", 7, 'expected "and", "or" or ")", found the end'),
    ("(a = 1 b", 8, 'expected "and", "or" or ")", found "b"'), ("()", 2, f'expected {_TEST}, found ")"'),
    ("not", 4, f"expected {_TEST}, found the end"), ("a not 5", 7, 'expected "in", found "5"'),
    ("a in 5", 6, 'expected "{", found "5"'), ("a in {}", 7, f'expected {_SIDE}, found "}}"'),
    ("a in {1 2}", 9, 'expected "," or "}", found "2"'), ("a in {1,}", 9, f'expected {_SIDE}, found "}}"'),
    ("a between 1 or 2", 13, 'expected "and", found "or"'), ("a prefix 5", 10, f'expected {_TEXT}, found "5"'),
    ("exists a", 8, 'expected "(", found "a"'), ('exists("a")', 8, f'expected {_NAME}, found "a"'),
    ("exists(a, b)", 9, 'expected ")", found ","'), ("tags {a}", 7, f'expected {_TEXT}, found "a"'),
    ("10 < a", 1, f'expected {_TEST}, found "10"'), ('"a" = 1', 1, f'expected {_TEST}, found "a"'),
    ("é = 1", 1, f'expected {_TEST}, found "é"; put a name that is no plain word in backquotes'),
    ("a = 1 and b =\n= 2", "line 2, column 1", f'expected {_SIDE}, found "="'),
    ("a = 1\nand b = 2\nand c", "line 3, column 6", f"expected {_OPERATOR}, found the end"),
    # Values without their quotes
    ("a > 1.2.3", 8, 'expected "and", "or" or the end, found ".3"; it is written version "1.2.3" here'),
    ("a < 1.10-rc1", 9, 'expected "and", "or" or the end, found "-"; it is written version "1.10-rc1" here'),
    ("a = v1.2.3", 5, f'expected {_VALUE}, found "v1.2.3"; it is written version "v1.2.3" here'),
    ("a > 2026-01-31", 9, 'expected "and", "or" or the end, found "-01"; it is written date "2026-01-31" here'),
    ("a > 2026-01-31T10:00Z", 9,
     'expected "and", "or" or the end, found "-01"; it is written timestamp "2026-01-31T10:00Z" here'),
    ("a = 10.0.0.1", 9, 'expected "and", "or" or the end, found ".0"; it is written ip "10.0.0.1" here'),
    ("a in {10.0.0.0/8}", 11, 'expected "," or "}", found ".0"; it is written cidr "10.0.0.0/8" here'),
    ("a in cidr 10.0.0.0/8", 6, 'expected "{", found "cidr"; put the value in double quotes'),
    ("a > version 1.2", 13, 'expected "and", "or" or the end, found "1.2"; put the value in double quotes'),
    ("a = 12:30", 7, 'expected "and", "or" or the end, found ":"; put texts in double quotes'),
    # Attributes on both sides, and times
    ("a < b c", 7, 'expected "and", "or" or the end, found "c"; put texts in double quotes'),
    ("a in {b}", 7,
     f'expected {_VALUE}, found "b"; put a text in double quotes, and an attribute in backquotes here'),
    ("a not in {`b`}", 11, f'expected {_VALUE}, found "`b`"'), ("a between b", 12, 'expected "and", found the end'),
    ("a in {`b`", 10, 'expected ",", "}" or a duration, such as 7 days, found the end'),
    *(
        (f"{before}true", len(before) + 1, f'expected {_TEST}, found "true"; a test names an attribute, and a '
                                           "subscription that all messages satisfy has no condition")
        for before in ("", "not ", "a = 1 and ")
    ),
    ("a in true", 6, 'expected "{", found "true"'),
    ("a < null", 5, f'expected {_VALUE}, found "null"; a value that is missing is found with not exists(name)'),
    ("a < now", 5, f'expected {_VALUE}, found "now"; the message\'s time is written now(), and an attribute of this '
     "name in backquotes"),
    ("now()", 6, "expected one of = != < <= > >= or a duration, such as 7 days, found the end"),
    ("now() < 5", 9, f'expected {_NAME} or now() (to test the time itself, give messages an attribute such as today), '
     'found "5"'),
    ("b = 1 and not `now()` < 5", 15, _TIME_ALONE), ("exists(`now()`)", 8, _TIME_ALONE),
    ("now() < now()", 9, "now() is compared with itself: compare an attribute with it"),
    ("a < b 5 days", 7, 'expected + or - before the duration "5 days"'),
    ("a - b < 5", 9, 'expected a duration, such as 7 days, found "5"'),
    ("a < b - 1.00000000001 seconds", 7, "a duration must be at most 10,000 years, in whole nanoseconds"),
    ("a < b - 6000 weeks - 520000 weeks", 5, "a duration must be at most 10,000 years"),
    ("a >= now() - 2 years", 12, 'expected "and", "or" or the end, found "-"'),
    # Patterns
    (r'a like "b\\"', 8,
     r"character 2 of the pattern: a backslash comes before % _ or \, to take it as it is: write it twice"),
    ('a matches "b("', 11, r"character 2 of the pattern: nothing closes this (: write \( for a parenthesis"),
    (r'a matches "(b)\\1"', 11, "character 4 of the pattern: a reference to a group takes longer than its text"),
    ('a matches "b(?!c)"', 11, "character 2 of the pattern: looking ahead or behind takes longer than its text: write "
     "it with `and`, `not`"),
    ('a matches "(x|y){500}.{500}"', 11, "the pattern would have an automaton of more than 1000 states: count fewer "
     "repetitions, begin it with ^, or write it as several that are joined by `and` or `or`"),
    # Areas
    ("within", 7, f"expected {_AREA}, found the end"), ("within = 3", 8, f'expected {_AREA}, found "="'),
    ("within circle", 8, f'expected {_AREA}, found "circle"'),
    ("within disc(1, 2, 3)", 8, f'expected {_AREA}, found "disc"'),
    ("a within near(3)", 3, f'expected {_OPERATOR}, found "within"'),
    ("circle(1, 2, 3)", 1, f'expected {_TEST}, found "circle"'),
    ("within circle(", 15, "expected a number, found the end"), ("within circle(1, 2)", 19, 'expected ",", found ")"'),
    ("within circle(1, 2, 3, 4)", 22, 'expected ")", found ","'),
    ("within box(1, 2, 3)", 19, 'expected ",", found ")"'), ("within near()", 13, 'expected a number, found ")"'),
    ('within near("1")', 13, 'expected a number, found "1"'), ("within near(1", 14, 'expected ")", found the end'),
    ("within near(-1)", 13, "metres must be zero or more, not -1.0"),
    ("within circle(1, 2, -3)", 21, "metres must be zero or more, not -3.0"),
    ("within circle(1, -1e999, 3)", 18, "lat must be finite, not -inf"),
    (f"within circle(1{'0' * 5000}, 1, 3)", 15, "lon must be finite, not inf"),
    ("a = 1 and\nwithin box(1, 5,\n2, 3)", "line 2, column 15", "south must be at most north, which is 3.0, not 5.0"),
    # Texts and names
    ('a = "b', 5, 'expected a " that closes this text, found the end'),
    ('a = b"', 6, 'expected a " that closes this text, found the end'),
    ('a = "b\\"', 5, 'expected a " that closes this text, found the end'),
    ("`a = 1", 1, "expected a ` that closes this name, found the end"),
    ("b = 1 or `` = 1", 10, "the name of an attribute must not be empty"),
    ("`a\0` = 1", 1, r'the name of an attribute must not contain U+0000, as "a\u0000" does'),
    ("`\ud800` = 1", 1, r"the name of an attribute '\ud800' has no UTF-8 form: it contains a lone surrogate"),
    (r'a = "b\c"', 7, f'expected {_ESCAPE}, found "\\\\c"'), (r'a = "\u12"', 6, f'expected {_ESCAPE}, found "\\\\u"'),
    ('a in {1,\n"b\n\\x"}', "line 3, column 1", f'expected {_ESCAPE}, found "\\\\x"'),
    (r'a = "\ud83e"', 5, r"the text '\ud83e' has no UTF-8 form: it contains a lone surrogate"),
    (r'a = "\udd8a\ud83e"', 5, r"the text '\udd8a\ud83e' has no UTF-8 form: it contains a lone surrogate"),
    (r'tags {"x", "\u0000-x"}', 12, "a tag must not begin with U+0000 and +, - or =, as constraints do"),
    (f'a "{"b" * 100}"', 3, f'expected {_OPERATOR}, found "{"b" * 39}…"'),
    (f"a = 1 {'b' * 100}", 7, f'expected "and", "or" or the end, found "{"b" * 39}…"'),
    ('a "\n"', "line 1, column 3", f'expected {_OPERATOR}, found "\\n"'),
    # Values
    ("a in {1, 9223372036854775808}", 10, _RANGE), ("a = -9223372036854775809", 5, _RANGE),
    (f"a = {'9' * 5000}", 5, _RANGE), ("a < true", 5, f"true {_ORDER}"),
    ("a between false and 1", 11, f"false {_ORDER}"),
    ("a between 10 and 5", 18, "no value is between 10 and 5: the lesser one comes first, as in between 5 and 10"),
    ('not a between "b" and "a"', 23,
     'no value is between "b" and "a": the lesser one comes first, as in between "a" and "b"'),
    ("a between 1 and true", 17, f"true {_ORDER}"),
    ('a between 1 and "b"', 17, 'between needs two values of one type: 1 and "b" have no order'),
    ("a = - 1", 5, f'expected {_SIDE}, found "-"'),
    ("a = 1.5.5", 8, 'expected "and", "or" or the end, found ".5"; it is written version "1.5.5" here'),
    ("a = 0x10", 6, 'expected "and", "or" or the end, found "x10"; put texts in double quotes'),
    ("a = ١", 5, f'expected {_SIDE}, found "١"'),
]  # fmt: skip


@pytest.mark.parametrize(("text", "place", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes(text: str, place: int | str, message: str) -> None:
    with pytest.raises(FilterError) as caught:
        rows_of(text)
    where = place if isinstance(place, str) else f"column {place}"
    assert str(caught.value) == f"where: {where}: {message}"
    assert len(str(caught.value).splitlines()) == 1


@given(trees, spellings, st.integers(0, 10**6), st.sampled_from(["", *'<=}){"`\\\0\n,x9-.\x85\u2028\ud800', " and "]))
def test_any_mistake_is_one_line(tree: object, spelling: random.Random, place: int, inserted: str) -> None:
    """A character is replaced, or taken away: that is a `FilterError` with a column within the text, or no mistake."""
    text = text_of(tree, spelling)
    at = place % len(text)
    wrong = text[:at] + inserted + text[at + 1 :]
    try:
        rows_of(wrong)
    except FilterError as error:
        shown = str(error)
        assert len(shown.splitlines()) == 1
        shown.encode()
        before, _, column = shown.partition(": ")[2].partition(": ")[0].rpartition("column ")
        line = int(before.removeprefix("line ").rstrip(", ") or 1)
        assert bool(before) == ("\n" in wrong)
        assert 1 <= int(column) <= len(wrong.split("\n")[line - 1]) + 1


@pytest.mark.parametrize("text", [None, 5, b"a = 1", ["a = 1"]], ids=repr)
def test_an_expression_is_a_text(text: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"^where must be a str, not "):
        rows_of(text)


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\b")), is_ascii=st.booleans())
@example(text='a\r\n\f\t"\\\x07é\u2028', is_ascii=False)
def test_texts_are_written_as_in_json(text: str, is_ascii: bool) -> None:
    written = json.dumps(text, ensure_ascii=is_ascii)
    assert rows_of(f"a = {written}") == [Row([], [Constraint.of("a", "=", [text])])]


@pytest.mark.parametrize("word", WORDS)
def test_words_of_the_language_are_names_in_backquotes_only(word: str) -> None:
    [row] = rows_of(f"exists(`{word}`)")
    assert row.constraints == [Constraint.of(word, "exists")]
    for text in (f"exists({word})", f"{word} = 1"):
        with pytest.raises(FilterError):
            rows_of(text)
    assert rows_of(f"{word}s = 1") == rows_of(f"`{word}s` = 1")
    assert rows_of(f"{word.upper()} = 1") == rows_of(f"`{word.upper()}` = 1")


SAME = [
    ("a=1and(b=2)or not c=3", "(a = 1 and b = 2) or (not (c = 3))"),
    ("not a = 1 and b = 1", "(not a = 1) and b = 1"), ("a = 1 or b = 1 and c = 1", "a = 1 or (b = 1 and c = 1)"),
    ("not (a = 1 or b = 1)", "not a = 1 and not b = 1"), ("not not a = 1", "a = 1"), ("not a not in {1}", "not a != 1"),
    ('tags {"x", "y"}', 'tags {"y"} and tags {"x"}'), ('not tags {"x", "y"}', 'not tags {"x"} or not tags {"y"}'),
    ("a = 1e3 or a = +10 or a = .5 or a = 5. or a = 007", "a = 1000 or a = 10 or a = 0.5 or a = 5 or a = 7"),
    (r'a = "\ud83e\udd8a\u00e9\"\\\t\n"', 'a = "🦊é\\"\\\\\t\n"'),
    ("a between b and c", "a >= b and a <= c"), ("a between 1 and c", "a >= 1 and a <= c"),
    ("a between now() - 1 day and b + 2 hours", "a >= now() - 1 day and a <= b + 2 hours"),
    ("not a between b and 1", "not a >= b or not a <= 1"),
    ("a in {`b`, 1, 2, now()}", "a = `b` or a in {1, 2} or a = now()"), ("a in {`b`}", "a = `b`"),
    ("a between 1 and 1", "a = 1"), ("a in {2}", "a = 2"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "same"), SAME, ids=range(len(SAME)))
def test_ways_to_say_the_same(text: str, same: str) -> None:
    assert rows_of(text) == rows_of(same)


@pytest.mark.parametrize("module", [areas, constraints, language, values, messages], ids=lambda module: module.__name__)
def test_examples_of_the_modules(module: ModuleType) -> None:
    failed, tried = doctest.testmod(module)
    assert tried
    assert not failed


#: They are in files
_WRITTEN = {
    "within circle(9.19, 45.46, 5000)": "+a\0c402261" + "47ae147ae1" + "4046bae147ae147b" + "40b3880000000000",
    "not within box(170, -10, -170, 10)": "-a\0b4065400000000000c024000000000000c0654000000000004024000000000000",
    "within near(0)": "+a\0n0000000000000000",
}


@pytest.mark.parametrize("text", _WRITTEN)
def test_areas_are_written_as_they_always_are(text: str) -> None:
    tag = "\0" + _WRITTEN[text]
    assert stored_rows(text, plane=False) == [[tag]]
    assert str(Constraint.of_tag(tag)) == text


def _tag(area: Any, sign: str, *, plane: bool) -> str:
    """The tag, made from what the documents say of it."""
    letter = type(area).__name__[0]
    digits = "".join(struct.pack(">d", number).hex() for number in numbers_of(area))
    return f"\0{sign}a\0{letter if plane else letter.lower()}{digits}"


@given(sphere_areas | plane_areas, st.booleans(), st.booleans(), st.booleans())
def test_tag_and_text_say_all_of_an_area(area: Any, is_negated: bool, plane: bool, is_exact: bool) -> None:
    is_negated = is_negated and not isinstance(area, Near)
    constraint = Constraint.within(area, plane=plane)
    constraint = constraint.negation if is_negated else constraint
    assert constraint.tag == _tag(area, "-" if is_negated else "+", plane=plane)
    assert Constraint.of_tag(constraint.tag) == constraint
    assert constraint.area == area
    assert constraint.text == ("not " if is_negated else "") + area_text(area).replace(".0,", ",").replace(".0)", ")")
    text = ("not " if is_negated else "") + area_text(area, is_exact=is_exact)
    for expression in (text, constraint.text):
        [row] = rows_of(expression)
        assert [each.tag for each in row.constraints] == [_tag(area, "-" if is_negated else "+", plane=False)]
        assert not row.tags


@pytest.mark.parametrize("around", ["not {}", "not (a = 1 and {})", "a = 1 or not ({} or a = 2)", "not not not {}"])
def test_nothing_is_not_near(around: str) -> None:
    with pytest.raises(FilterError) as caught:
        rows_of(around.format("within near(500)"))
    assert str(caught.value).startswith(
        "where: `not within near(500)` has no meaning, as it does not say whose position is not to be near: use `not`"
    )
    assert rows_of("not (a = 1 or not within near(500))") == rows_of("not a = 1 and within near(500)")


def test_names_of_areas_are_names_of_attributes() -> None:
    names = ("circle", "box", "near")
    [row] = rows_of(" and ".join(f"{name} = 1 and not {name} > 3" for name in names) + " and within  near \n(5)")
    assert [str(each) for each in row.constraints] == [
        "within near(5)",
        *(f"{name} = 1" for name in sorted(names)),
        *(f"not {name} > 3" for name in sorted(names)),
    ]


@pytest.mark.parametrize(
    "tag",
    [
        "+a\0", "+a\0c", "+a\0n", "+a\0x0000000000000000", "+a\0n000000000000000", "+a\0n00000000000000000",
        "+a\0n000000000000000A", "+a\0nbff0000000000000", "+a\0n7ff0000000000000", "+a\0n7ff8000000000000",
        "+a\0n8000000000000000", "-a\0n0000000000000000", "+ab\0n0000000000000000", "+a\0c0000000000000000",
        "+a\0n0000000000000000\n", "+a\0n０000000000000000",
    ],
)  # fmt: skip
def test_other_tags_are_no_area(tag: str) -> None:
    with pytest.raises(InvalidValueError, match="no constraint has the tag"):
        Constraint.of_tag("\0" + tag)


def test_numbers_become_floats() -> None:
    for number in (3, np.int8(3), np.float32(3), np.uint64(3), np.float64(3)):
        for area in (Circle(number, number, number), Box(number, number, number, number), Near(number)):
            assert {type(each) for each in numbers_of(area)} == {float}
            assert set(numbers_of(area)) == {3.0}
    assert repr(Circle(-0.0, 0, -0.0)) == "Circle(lon=0.0, lat=0.0, metres=0.0)"
    assert Circle(0, 0, 2**70).metres == 2.0**70


_BAD: list[tuple[Any, str]] = [
    (True, "a number, not bool True"), (np.True_, f"a number, not bool {np.True_!r}"), (None, "a number, not NoneType"),
    ("1", "a number, not str '1'"), (1j, "a number, not complex 1j"), (Decimal(1), "a number, not Decimal"),
    (np.datetime64(1, "s"), ""), (math.nan, "finite, not nan"), (np.float32("-inf"), "finite, not -inf"),
    (10**400, "finite, not inf"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "message"), _BAD)
@pytest.mark.parametrize("area", [Circle(1, 2, 3), Box(1, 2, 3, 4), Near(1)], ids=lambda area: type(area).__name__)
def test_what_is_no_finite_number_is_refused(area: Any, value: Any, message: str) -> None:
    for field in area.__slots__:
        fields = {name: getattr(area, name) for name in area.__slots__} | {field: value}
        with pytest.raises(InvalidValueError if "finite" in message else InvalidTypeError) as caught:
            type(area)(**fields)
        assert str(caught.value).startswith(f"{field} must be {message}")


def test_fields_that_do_not_fit_each_other() -> None:
    for make, message in (
        (lambda: Circle(0, 0, -0.5), "metres must be zero or more, not -0.5"),
        (lambda: Near(-1), "metres must be zero or more, not -1.0"),
        (lambda: Box(0, 2, 0, 1), "south must be at most north, which is 1.0, not 2.0"),
    ):
        with pytest.raises(InvalidValueError) as caught:
            make()
        assert str(caught.value) == message


_OUT_OF_RANGE = [
    (Circle(-180.5, 0, 1), "lon must be from -180 to 180, not -180.5"),
    (Circle(0, 91, 1), "lat must be from -90 to 90, not 91.0; lon and lat seem swapped: lon comes first"),
    (Box(181, 0, 182, 1), "west must be from -180 to 180, not 181.0"),
    (Box(0, -91, 1, 0), "south must be from -90 to 90, not -91.0; west and south seem swapped: west comes first"),
    (Box(0, 0, 181, 1), "east must be from -180 to 180, not 181.0"),
    (Box(0, 0, 1, 90.5), "north must be from -90 to 90, not 90.5; east and north seem swapped: east comes first"),
    # The other way around: on the plane
    (Box(170, -10, -170, 10), "west must be at most east, which is -170.0, on the plane, not 170.0"),
]  # fmt: skip


@pytest.mark.parametrize(("area", "message"), _OUT_OF_RANGE, ids=repr)
def test_ranges_of_the_sphere_and_the_plane(area: Any, message: str) -> None:
    of_plane = "plane" in message
    check(area, plane=not of_plane)
    with pytest.raises(InvalidValueError) as caught:
        check(area, plane=of_plane)
    assert str(caught.value) == message


@given(sphere_areas, plane_areas)
def test_what_is_in_range(on_sphere: Any, on_plane: Any) -> None:
    check(on_sphere, plane=False)
    check(on_plane, plane=True)


def test_what_is_no_area() -> None:
    for wrong in (None, (1, 2, 3), Circle):
        with pytest.raises(
            InvalidTypeError, match=r"^an area must be a Circle, a Box, a Near, a Polygon or a Corridor, not "
        ):
            check(wrong, plane=False)


def test_areas_are_public_and_do_not_change() -> None:
    assert {"Circle", "Box", "Near"} <= set(tagmatch.__all__)
    assert len({Circle(1, 2, 3), Circle(1.0, 2, 3), Near(3)}) == 2
    with pytest.raises(AttributeError):
        Near(3).metres = 4  # type: ignore[misc]


#: No areas
_OTHERS = [
    "", "a", "\0", "\0+", "\0+a", "\0+a\0", "\0=a\0n1", "\0+ab\0sa", "\0+ra\0[1:n]1:o", "+a\0n", "\0-t\0a", "\0+a\0c1",
    *(f"\0+a\0{wrong}" for wrong in ("n" + 15 * "0" + "g", "n" + 15 * "0", "b" + 16 * "0", "x" + 16 * "0")),
]  # fmt: skip


@given(st.lists(st.tuples(sphere_areas | plane_areas, st.booleans(), st.booleans()) | st.sampled_from(_OTHERS)))
def test_shapes_of_tags(drawn: list[Any]) -> None:
    tags = [each if isinstance(each, str) else _tag(each[0], "-" if each[1] else "+", plane=each[2]) for each in drawn]
    strings = strings_of(tags)
    among = areas_among(strings)
    assert among.tolist() == [tag.startswith(("\0+a\0", "\0-a\0")) and len(tag) > 4 for tag in tags]
    assert not (among & ~constraints_among(strings)).any()
    ranks = np.flatnonzero(among)[::-1].astype(np.uint32)
    kinds, negated, values, *_ = shapes_of(strings, ranks)
    assert (kinds.dtype, negated.dtype, values.dtype) == (np.uint8, np.bool_, np.float64)
    assert values.shape == (len(ranks), 4)
    for place, rank in enumerate(ranks):
        if isinstance(drawn[rank], str):
            assert not kinds[place]
            assert not values[place].any()
            continue
        area, is_negated, plane = drawn[rank]
        letter = type(area).__name__[0]
        assert (chr(kinds[place]), negated[place]) == (letter if plane else letter.lower(), is_negated)
        assert values[place].tolist() == [*numbers_of(area), 0.0, 0.0, 0.0][:4]


@pytest.mark.parametrize(
    ("text", "tests"),
    [
        (" and ".join(f"a{at} = 1 and not b{at} = 2" for at in range(500)), 1000),
        (" and ".join(f"a = {at}" for at in range(2000)), 2000),
    ],
)
def test_many_tests_are_not_compared_in_pairs(text: str, tests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would take a time that grows with the square of their number."""
    looked_at = []
    for name in ("_within", "_implies", "_product"):
        monkeypatch.setattr(alternatives, name, lambda *given: looked_at.append(given))
    (row,) = rows_of(text)
    assert (len(row.constraints), looked_at) == (tests, [])


_VALUES_WRITTEN = [
    *("1", "+1", "-0", "-0.0", "0.5", "1.", ".5", "1e3", "1E-3", "1e999", "-1e999", "1e-999", "9007199254740993"),
    *("9223372036854775807", "9223372036854775808", "9" * 41, "007", "1 2", "1a", "--1", "nan", "-", "1_0"),
    *("true", "false", "null", "b", "`b`", "now()", "now() - 2 hours", "7 days", "", " ", "[1]", "'a'"),
    *('date "2026-11-28"', 'timestamp("2026-11-28T10:00:00Z")', 'version "1.10"', 'ip "::1"', 'decimal "0.1"'),
    *('cidr "10.0.0.0/8"', 'date "x"', r'"\u00e9"', r'"\ud83d\ude00"', r'"\ud83d"', r'"\n\t\"\\"', r'"\/"', r'"\b"'),
]
_LITERALS = st.one_of(
    st.text(max_size=4).map(lambda text: f'"{text}"'),  # perhaps with a quote, or half an escape
    st.text('a"\\n\n,}é\ud83d\ude00\x00', max_size=4).map(lambda text: f'"{text}"'),
    st.sampled_from(_VALUES_WRITTEN),
    st.integers().map(str),
    st.floats(allow_nan=False).map(repr),
)
_BEFORE_LISTS = ["a in", "not a in", "a not in", "`a b` in\n", "x = 1 or a in", "tags", "all of tags", "any of tags"]
_BEFORE_LISTS += ["at least 2 of tags", "at least 1 of", "a =", "a", "", "in", "a between", "tags in", "a in in"]


def _read(text: str) -> object:
    """What an expression becomes, or its error, read anew."""
    try:
        return language.rows_of(text)
    except FilterError as error:
        return str(error)


@given(
    st.sampled_from(_BEFORE_LISTS),
    st.lists(_LITERALS, max_size=5),
    st.sampled_from([",", ", ", " ,\n", ",,"]),
    st.sampled_from(["}", " }", ",}", "", "} or b = 1", "} and", "}}", '} and b in {1, "c"}']),
)
@example("a in", ["1", '"b"'], ", ", ",}")
@example("a in", ["1", "-1e3"], " ,\n", "}")
@example("a in", ["1", "1 2"], ", ", "}")
@example("a in", ["1", "1"], ",,", "}")
@example("a not in", ['"\\""', '"}"', '"a, b"'], ",", " }")
@example("a in", ["1", "true", "-0.0", "0"], ",", "}")
@example("a in", ["9223372036854775808"], ",", "}")
@example("tags", ['"a"', "1"], ", ", "}")
@example("any of tags", ['"a"', '"\x00+"'], ", ", "}")
@example("a =", ['"a"', "1"], ", ", "}")
def test_lists_are_read_alike_as_one_token(before: str, listed: list[str], comma: str, after: str) -> None:
    text = f"{before} {{{comma.join(listed)}{after}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grammar, "_LONG", math.inf)
        ordinary = _read(text)
        patch.setattr(grammar, "_LONG", -1)
        assert _read(text) == ordinary


@pytest.mark.parametrize("before", ["city in", "city not in", "any of tags", "not tags"])
def test_a_long_list_is_one_token(before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = ", ".join(f'"t\\u00e9 {number}"' for number in range(300))
    text = f"{before} {{{values}}} and price < 10"
    rows = rows_of(text)  # the grammar itself is read with such a lexer, once
    taken = []
    next_token = BasicLexer.next_token

    def counted(*given: Any) -> Any:
        taken.append(given)
        return next_token(*given)

    monkeypatch.setattr(BasicLexer, "next_token", counted)
    assert rows_of(text) == rows
    assert len(taken) < 12
    monkeypatch.setattr(grammar, "_LONG", math.inf)
    assert rows_of(text) == rows
    assert len(taken) > 600


@pytest.mark.parametrize("bad", [r'"\q"', "null", "9223372036854775808", "1e", '"'])
def test_a_mistake_in_a_long_list_has_its_place(bad: str) -> None:
    begun = "city in {" + '"Rome",\n' * 300
    with pytest.raises(FilterError, match=r"^where: line 301, column [1-9]: "):
        rows_of(f"{begun}{bad}}}")


@pytest.mark.parametrize(
    ("one", "other"),
    [('x = "true" or x = -1e999', 'x in {-1e999, "true"}'), ("x = -1e999 or x = 5", "x in {-1e999, 5}")],
)
def test_the_least_number_is_one_value(one: str, other: str) -> None:
    """Between `or`, as in a list: it is not written as all numbers up to it."""
    assert rows_of(one) == rows_of(other)
