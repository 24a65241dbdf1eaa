"""Mistakes in conditions and attributes, in each call that takes them: one clear line, and nothing is staged."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tagmatch import FilterError, TagMatch

ERRORS = (TypeError, ValueError)
TOO_MANY = " and ".join(f"(a{i} = 1 or b{i} = 1)" for i in range(11))
BACKQUOTES = "a name that is no plain word stands in backquotes"
ALTERNATIVES = " or ".join(f"a = {i}" for i in range(1025))

#: Expressions, and what is said of them
EXPRESSIONS = [
    ("", "column 1: expected a test, such as price < 10, found the end"),
    ("  ", "column 3: expected a test, such as price < 10, found the end"),
    ("x", "column 2: expected an operator (="),
    ("x == 5", 'column 4: expected a value (a number, "text", true or false), found "="'),
    ("x <> 5", 'column 4: expected a value (a number, "text", true or false), found ">"'),
    ('x like "a"', 'column 3: expected an operator (='),
    ("x = 'a'", 'column 5: expected a value (a number, "text", true or false), found "\'"'),
    ("x = y", 'column 5: expected a value (a number, "text", true or false), found "y"'),
    ("x = null", 'found "null"'),
    ("5 < x", 'column 1: expected a test, such as price < 10, found "5"'),
    ("x = 1 AND y = 2", 'column 7: expected "and", "or" or the end, found "AND"'),
    ("x = 1)", 'column 6: expected "and", "or" or the end, found ")"'),
    ("(x = 1", 'column 7: expected "and", "or" or ")", found the end'),
    ("x < true", "column 5: true has no order: compare it with = or !="),
    ('x between 1 and "a"', "column 17: between needs two numbers or two texts"),
    ("x in {}", "column 7: expected a value"),
    ("x = 9223372036854775808", "column 5: an integer must be from -2**63 to 2**63 - 1"),
    ("x < 1,5", 'column 6: expected "and", "or" or the end, found ","'),
    ("`` = 1", "column 1: the name of an attribute must not be empty"),
    ("`a\0` = 1", "column 1: the name of an attribute must not contain U+0000"),
    ("größe = 1", f'found "ö"; {BACKQUOTES}'),
    ("élan = 1", f'column 1: expected a test, such as price < 10, found "é"; {BACKQUOTES}'),
    ("exists(é)", f'column 8: expected the name of an attribute, found "é"; {BACKQUOTES}'),
    ('tags {"\0+a"}', "column 7: a tag must not begin with U+0000 and +, - or =, as constraints do"),
    ('x = "a', 'column 5: expected a " that closes this text, found the end'),
    (TOO_MANY, "this becomes 2,048 conjunctions, at most 1,024 are allowed"),
    (ALTERNATIVES, "this becomes 1,025 conjunctions, at most 1,024 are allowed"),
]  # fmt: skip

#: Each way to give one expression; how a message begins
CALLS: dict[str, tuple[Callable[[TagMatch, Any], None], str]] = {
    "add_set": (lambda tm, where: tm.add_set(["a"], 1, where=where), "where: "),
    "remove_set": (lambda tm, where: tm.remove_set(["a"], 1, where=where), "where: "),
    "add_sets": (lambda tm, where: tm.add_sets([["a"], ["b"]], [1, 2], where=[None, where]), "where: row 1: "),
    "remove_sets": (lambda tm, where: tm.remove_sets([["a"], ["b"]], [1, 2], where=["a = 1", where]), "where: row 1: "),
    "add_sets, one for all": (lambda tm, where: tm.add_sets([["a"], ["b"]], [1, 2], where=where), "where: "),
    "add_subscriptions": (
        lambda tm, where: tm.add_subscriptions(pa.table({"key": [1, 2], "where": pa.array(["a = 1", where])})),
        "where: row 1: ",
    ),
    "add_sets, a dictionary": (
        lambda tm, where: tm.add_sets([["a"]] * 2, [1, 2], where=pa.array(["a = 1", where]).dictionary_encode()),
        "where: row 1: ",
    ),
}


def said(change: Callable[[TagMatch], Any], *errors: type[Exception]) -> str:
    """The one line of the error; nothing is staged by the call."""
    with TagMatch(device="cpu", threads=1) as tm:
        with pytest.raises(errors) as found:
            change(tm)
        assert tm.stats()["staged"] == 0
    text = str(found.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("where", "message"), EXPRESSIONS)
def test_expressions(call: str, where: str, message: str) -> None:
    change, begin = CALLS[call]
    found = said(lambda tm: change(tm, where), FilterError)
    assert found.startswith(begin + ("" if message.startswith("found") else message)), found
    assert message in found


@pytest.mark.parametrize("where", [b"x = 1", 5, 1.5, True, ["x = 1"], {"x": 1}, math.nan, object()])
@pytest.mark.parametrize("call", ["add_set", "remove_set"])
def test_no_text(call: str, where: Any) -> None:
    assert said(lambda tm: CALLS[call][0](tm, where), TypeError).startswith("where must be a str, not ")


@pytest.mark.parametrize("name", ["add_sets", "remove_sets"])
@pytest.mark.parametrize(
    ("where", "message"),
    [
        (5, "where must be a text, or one for each row, not 5 (int)"),
        (b"x = 1", "where must be a text, or one for each row, not b'x = 1'"),
        ({"x = 1"}, "where must be a text, or one for each row, not {'x = 1'} (set)"),
        ({"x": 1}, "where must be a text, or one for each row, not {'x': 1} (dict)"),
        (["x = 1", 5], "where: row 1 must be a text, not 5 (int)"),
        ([math.nan, None], "where: row 0 must be a text, not nan (float)"),
        (["x = 1"], "where must have a text or a null for each of the 2 sets, not 1"),
        (pa.array([1, 2]), "where must be texts, not int64"),
        (pa.array([b"x = 1", None]), "where must be texts, not binary"),
        (pa.table({"where": ["x = 1", None]}), "where must be one column, not a Table; pick one, as in table['tags']"),
    ],
)
def test_columns_of_expressions(name: str, where: Any, message: str) -> None:
    assert said(lambda tm: getattr(tm, name)([["a"], ["b"]], [1, 2], where=where), *ERRORS) == message


async def _amatch(tm: TagMatch, tags: Any, attributes: Any) -> Any:
    return await tm.amatch(tags, attributes)


#: Each way to ask with attributes
ASK: dict[str, Callable[[TagMatch, Any, Any], Any]] = {
    "match": TagMatch.match,
    "match_unique": TagMatch.match_unique,
    "explain": TagMatch.explain,
    "submit": lambda tm, tags, attributes: tm.submit(tags, attributes).result(60),
    "amatch": lambda tm, tags, attributes: asyncio.run(_amatch(tm, tags, attributes)),
}


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"x": b"a"}, 'attribute "x": a value must be a bool, an int, a float or a str, not bytes'),
        ({"x": Decimal(1)}, 'attribute "x": a value must be a bool, an int, a float or a str, not Decimal'),
        ({"x": datetime(2026, 1, 1)}, 'attribute "x": a value must be a bool, an int, a float or a str, not datetime'),
        ({"x": {"y": 1}}, 'attribute "x": a value must be a bool, an int, a float or a str, not dict'),
        ({"x": [1, [2]]}, 'attribute "x": a value must be a bool, an int, a float or a str, not list'),
        ({"x": np.uint64(2**63)}, 'attribute "x": an integer must be from -2**63 to 2**63 - 1'),
        (
            {"x": np.datetime64(1, "ns")},
            'attribute "x": a value must be a bool, an int, a float or a str, not datetime64',
        ),
        ({"x": 2**63}, 'attribute "x": an integer must be from -2**63 to 2**63 - 1'),
        ({"x": "\ud800"}, "attribute \"x\": the text '\\ud800' has no UTF-8 form"),
        ({"": 1}, "the name of an attribute must not be empty"),
        ({"a\0": 1}, "the name of an attribute must not contain U+0000"),
        ({5: 1}, "the name of an attribute must be a str, not int 5"),
        ([("x", 1)], "attributes must be a mapping from names to values, not [('x', 1)] (list)"),
        ("x", "attributes must be a mapping from names to values, not 'x'"),
    ],
)
def test_attributes(ask: str, attributes: Any, message: str) -> None:
    assert said(lambda tm: ASK[ask](tm, ["a"], attributes), *ERRORS).startswith(message)


@pytest.mark.parametrize("ask", ASK)
def test_values_of_numpy(ask: str) -> None:
    """As those of Python: integers are exact, which floats of 64 bits are not."""
    with TagMatch(device="cpu", threads=1) as tm:
        where = ["x = 9007199254740993", "x = 9.5", "x = true", 'x = "Rome"', "x > 0"]
        tm.add_sets([[]] * 5, range(5), where=[np.str_(text) for text in where])
        tm.consolidate()
        values = [2**53 + 1, 9.5, True, "Rome", [2**53 + 1, True]]
        of_numpy = [
            np.int64(2**53 + 1),
            np.float32(9.5),
            np.bool_(True),
            np.str_("Rome"),
            [np.uint64(2**53 + 1), np.True_],
        ]
        for value, same in zip(values, of_numpy, strict=True):
            found = ASK[ask](tm, [], {"x": value})
            assert found
            # In no particular order
            assert Counter(ASK[ask](tm, [], {np.str_("x"): same})) == Counter(found)


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize("make", [dict, MappingProxyType])
def test_attributes_in_the_place_of_tags(ask: str, make: Any) -> None:
    message = "tags must be an iterable of strings, not the mapping "
    for attributes in (None, {}):
        found = said(lambda tm, also=attributes: ASK[ask](tm, make({"price": 9}), also), TypeError)
        assert found.startswith(message)
        assert found.endswith("; values of attributes go into attributes=, or into columns of a table")


@pytest.mark.parametrize("value", [4, 6, "A", "b", True, False, math.nan, None, [4, "A"]])
def test_an_attribute_that_is_of_another_type_elsewhere(value: Any) -> None:
    """Attributes have no types of their own: a test holds for values of the type that it compares with."""
    with TagMatch(device="cpu", threads=1) as tm:
        tm.add_sets([[]] * 5, range(5), where=["x < 5", 'x < "a"', "x = true", "x != 5", "not x < 5"])
        tm.consolidate()
        several = value if isinstance(value, list) else [] if value is None else [value]
        numbers = [each for each in several if isinstance(each, int | float) and not isinstance(each, bool)]
        wanted = {0} if any(each < 5 for each in numbers) else {4}
        wanted |= {1} if any(isinstance(each, str) and each < "a" for each in several) else set()
        wanted |= {2} if any(each is True for each in several) else set()
        wanted |= {3} if several else set()
        assert tm.match_unique([], {"x": value}) == wanted
