"""Expressions and messages: what Hypothesis draws, and what an expression means, from its tree and Python's own values.

The trees are the tests' own, and so is the way they are written; only `holds` and `satisfies` look at what the library
made of them.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from tagmatch.model.filters.constraints import CONTAINS, NO_TAG, RANGES, SUFFIX, Constraint, Cut
from tagmatch.model.filters.normal import Row
from tagmatch.model.filters.values import key_of

Value = Any
Tree = Any
Attributes = Mapping[str, Any]


# -- trees, and what they mean -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Test:
    """`operator` is as in the language; there is one operand, or there are two or several, or none."""

    __test__ = False

    attribute: str
    operator: str
    operands: tuple[Value, ...]


@dataclass(frozen=True)
class Tags:
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Not:
    part: Tree


@dataclass(frozen=True)
class And:
    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class Or:
    parts: tuple[Tree, ...]


def evaluate(tree: Tree, tags: Collection[str], attributes: Attributes) -> bool:
    """Whether a message satisfies the expression."""
    match tree:
        case And(parts):
            return all(evaluate(part, tags, attributes) for part in parts)
        case Or(parts):
            return any(evaluate(part, tags, attributes) for part in parts)
        case Not(part):
            return not evaluate(part, tags, attributes)
        case Tags(wanted):
            return all(tag in tags for tag in wanted)
        case Test(attribute, operator, operands):
            return any(_passes(value, operator, operands) for value in values_of(attributes, attribute))
    raise AssertionError(tree)


def values_of(attributes: Attributes, name: str) -> list[Value]:
    """The values of an attribute, none, one or several."""
    given = attributes.get(name)
    several = given if isinstance(given, list | tuple | set | frozenset) else [given]
    return [value for value in several if value is not None]


def _passes(value: Value, operator: str, operands: tuple[Value, ...]) -> bool:
    match operator:
        case "exists":
            return True
        case "=" | "in":
            return any(_equal(value, other) for other in operands)
        case "!=" | "not in":
            return not any(_equal(value, other) for other in operands)
        case "prefix" | "suffix" | "contains":
            (part,) = operands
            if not isinstance(value, str):
                return False
            return {"prefix": value.startswith, "suffix": value.endswith, "contains": value.__contains__}[operator](
                part
            )
        case "between":
            low, high = operands
            return _type(value) == _type(low) and _ordered(low) <= _ordered(value) <= _ordered(high)
    (other,) = operands
    if _type(value) != _type(other):
        return False
    one, two = _ordered(value), _ordered(other)
    return {"<": one < two, "<=": one <= two, ">": one > two, ">=": one >= two}[operator]


def _type(value: Value) -> str:
    return "bool" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"


def _ordered(value: Value) -> Any:
    """Python compares integers and floats exactly, but texts by characters."""
    return value.encode() if isinstance(value, str) else value


def _equal(value: Value, other: Value) -> bool:
    return _type(value) == _type(other) and value == other


def precedes(value: Value, other: Value) -> bool:
    """Whether it comes before the other in the order of all values: NaN, bools, numbers, texts."""
    ranks = [0 if value != value else 1 + ("bool", "number", "text").index(_type(value)) for value in (value, other)]
    return ranks[0] < ranks[1] or (ranks[0] == ranks[1] > 0 and _ordered(value) < _ordered(other))


# -- what the library made of an expression ----------------------------------------------------------------------------


def satisfies(row: Row, tags: Collection[str], attributes: Attributes) -> bool:
    """Whether a message has all tags of a row, and all of its constraints hold."""
    constraints = map(Constraint.of_tag, row.constraints)
    return set(row.tags) <= set(tags) and all(holds(constraint, tags, attributes) for constraint in constraints)


def holds(constraint: Constraint, tags: Collection[str], attributes: Attributes) -> bool:
    """Whether a constraint holds, from its intervals, or its text."""
    if constraint.kind == NO_TAG:
        assert constraint.negated
        assert not constraint.attribute
        return constraint.payload not in tags
    values = values_of(attributes, constraint.attribute)
    if constraint.kind == RANGES:
        assert not constraint.payload
        keys = [key_of(value) for value in values]
        found = any(
            after(key, interval.lower) and not after(key, interval.upper)
            for interval in constraint.intervals
            for key in keys
        )
    else:
        assert not constraint.intervals
        texts = [value for value in values if isinstance(value, str)]
        found = any(
            {SUFFIX: text.endswith, CONTAINS: text.__contains__}[constraint.kind](constraint.payload) for text in texts
        )
    return found != constraint.negated


def after(key: str, cut: Cut) -> bool:
    """Whether a key comes after a cut."""
    one, two = key.encode(), cut.key.encode()
    match cut.side:
        case "[":
            return one >= two
        case "]":
            return one > two
        case "^":
            return one > two and not one.startswith(two)
    raise AssertionError(cut)


# -- how trees are written ---------------------------------------------------------------------------------------------


def text_of(tree: Tree, choices: random.Random) -> str:
    """The tree in the language, one of the many ways to write it."""
    return _spaced(_words(tree, choices, 0), choices)


def _words(tree: Tree, choices: random.Random, binding: int) -> list[str]:
    """`binding`: 0 where an `or` may stand without parentheses, 1 for an `and`, 2 for a `not` or a test."""
    match tree:
        case Or(parts):
            own, words = 0, _between(parts, "or", choices, 1)
        case And(parts):
            own, words = 1, _between(parts, "and", choices, 2)
        case Not(part):
            own, words = 2, ["not", *_words(part, choices, 2)]
        case Tags(tags):
            own, words = 2, ["tags", *_braces(tags, choices)]
        case Test(attribute, operator, operands):
            own, words = 2, _test_words(attribute, operator, operands, choices)
        case _:
            raise AssertionError(tree)
    return ["(", *words, ")"] if own < binding or choices.random() < 0.1 else words


def _between(parts: Iterable[Tree], word: str, choices: random.Random, binding: int) -> list[str]:
    words = [each for part in parts for each in [word, *_words(part, choices, binding)]]
    return words[1:]


def _test_words(attribute: str, operator: str, operands: tuple[Value, ...], choices: random.Random) -> list[str]:
    name = name_of(attribute, choices)
    match operator:
        case "exists":
            return ["exists", "(", name, ")"]
        case "in" | "not in":
            return [name, *operator.split(), *_braces(operands, choices)]
        case "between":
            low, high = operands
            return [name, operator, literal_of(low, choices), "and", literal_of(high, choices)]
    return [name, operator, literal_of(operands[0], choices)]


def _braces(values: Iterable[Value], choices: random.Random) -> list[str]:
    words = [each for value in values for each in (",", literal_of(value, choices))]
    return ["{", *words[1:], "}"]


_PLAIN_NAME = re.compile("[A-Za-z_][A-Za-z0-9_.]*")
WORDS = ("and", "between", "contains", "exists", "false", "in", "not", "or", "prefix", "suffix", "tags", "true")


def name_of(attribute: str, choices: random.Random) -> str:
    if _PLAIN_NAME.fullmatch(attribute) and attribute not in WORDS and choices.random() < 0.8:
        return attribute
    return "`" + attribute.replace("`", "``") + "`"


def literal_of(value: Value, choices: random.Random) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + "".join(_character(each, choices) for each in value) + '"'
    if isinstance(value, int):
        return choices.choice(["", "+"] if value >= 0 else [""]) + str(value)
    if math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return choices.choice([repr(value), f"{value:.17e}", f"{value:.16E}"])


def _character(character: str, choices: random.Random) -> str:
    short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
    if character in '"\\' or (character in short and choices.random() < 0.5):
        return short[character]
    if choices.random() < 0.8:
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _spaced(words: list[str], choices: random.Random) -> str:
    """With a space between words that would be one without it, and perhaps elsewhere."""
    spaced = words[:1]
    for before, word in pairwise(words):
        needed = bool(re.search("[A-Za-z0-9_.]$", before) and re.match("[A-Za-z0-9_.]", word))
        spaced += [choices.choice([" ", " ", "\n", "\t  "] if needed else ["", " ", " ", "\n"]), word]
    return "".join(spaced)


# -- what Hypothesis draws ---------------------------------------------------------------------------------------------

INTEGERS = (
    0, 1, -1, 5, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, -(2**53), -(2**53) - 1, 2**62 + 1, 2**63 - 1, 2**63 - 2,
    2**63 - 512, 2**63 - 513, 2**63 - 1024, -(2**63), -(2**63) + 1,
)  # fmt: skip
FLOATS = (
    0.0, -0.0, 0.5, 0.1, 1.0, 5.0, 5e-324, -5e-324, 1.7976931348623157e308, 2.0**53, 2.0**53 + 2, 2.0**63, -(2.0**63),
    2.0**63 - 1024, 2.0**64, 1e16, math.inf, -math.inf,
)  # fmt: skip
TEXTS = (
    "", "a", "ab", "abc", "b", "ba", "é", "e\u0301", "\0", "a\0", "a\0\0", "a\U0010ffff", "\U0010ffff", "\uffff",
    "🦊", "～", '"', "\\", "\\n", "\n\t", "`", "and", "x" * 70, "\ufeff",
)  # fmt: skip
ATTRIBUTES = ("a", "b", "list `price`", "in", "x.y_1", "é")
TAGS = ("x", "y", "", "a b", '"\\', "a\0", "é")

_bools = st.booleans()
_integers = st.sampled_from(INTEGERS) | st.integers(-(2**63), 2**63 - 1)
_floats = st.sampled_from(FLOATS) | st.floats(allow_nan=False)
texts = st.sampled_from(TEXTS) | st.text(max_size=5)
numbers = _integers | _floats
#: What can be written in an expression
operands = _bools | numbers | texts
#: And what an attribute may have
values = operands | st.just(math.nan)
attribute_names = st.sampled_from(ATTRIBUTES[:3]) | st.sampled_from(ATTRIBUTES)
tags = st.sampled_from(TAGS)


def _tests(operator: str, drawn: st.SearchStrategy[tuple[Value, ...]]) -> st.SearchStrategy[Test]:
    return st.builds(Test, attribute_names, st.just(operator), drawn)


_some = st.lists(operands, min_size=1, max_size=4).map(tuple)
tests = st.one_of(
    *(_tests(operator, st.tuples(operands)) for operator in ("=", "!=")),
    *(_tests(operator, st.tuples(numbers | texts)) for operator in ("<", "<=", ">", ">=")),
    *(_tests(operator, st.tuples(texts)) for operator in ("prefix", "suffix", "contains")),
    *(_tests(operator, _some) for operator in ("in", "not in")),
    _tests("between", st.tuples(numbers, numbers) | st.tuples(texts, texts)),
    _tests("exists", st.just(())),
)
leaves = tests | st.builds(Tags, st.lists(tags, min_size=1, max_size=3).map(tuple))


def _joined(parts: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    several = st.lists(parts, min_size=2, max_size=3).map(tuple)
    return st.builds(Not, parts) | st.builds(And, several) | st.builds(Or, several)


#: At most nine tests, of which fewer than 1,024 conjunctions come
trees = st.recursive(leaves, _joined, max_leaves=9)
spellings = st.integers(0, 2**32 - 1).map(random.Random)


def tests_of(tree: Tree) -> list[Test]:
    match tree:
        case And(parts) | Or(parts):
            return [test for part in parts for test in tests_of(part)]
        case Not(part):
            return tests_of(part)
        case Test():
            return [tree]
    return []


def neighbours(value: Value) -> list[Value]:
    """Values that are easily confused with this one, and it itself."""
    if isinstance(value, bool):
        return [value, not value, int(value), str(value).lower()]
    if isinstance(value, str):
        last = [
            value[:-1] + chr(ord(value[-1]) + step) for step in (-1, 1) if value and ord(value[-1]) + step in _PLAIN
        ]
        return [value, value + "\0", value + "a", value + "\U0010ffff", "a" + value, value[:-1], value[1:], *last]
    near = [value, float(value), math.nextafter(value, math.inf), math.nextafter(value, -math.inf)]
    if math.isfinite(value):
        near += [each for each in (int(value) - 1, int(value), int(value) + 1) if each in range(-(2**63), 2**63)]
    return near


#: Characters that are no halves of others
_PLAIN = frozenset(range(0xD800)) | frozenset(range(0xE000, 0x110000))


@st.composite
def messages(draw: st.DrawFn, tree: Tree | None = None) -> tuple[set[str], dict[str, Any]]:
    """Tags and attributes: missing ones, ones of several values, and values that are near to those of the tree."""
    wanted = tests_of(tree)
    near = [value for test in wanted for operand in test.operands for value in neighbours(operand)]
    value = st.sampled_from(near) | values if near else values
    names = sorted({test.attribute for test in wanted} | {draw(attribute_names)})
    several = st.lists(st.none() | value, max_size=3)
    attributes = {name: draw(value | value | st.none() | several | several.map(tuple)) for name in names}
    return draw(st.sets(tags)), {name: attributes[name] for name in names if draw(st.integers(0, 5))}
