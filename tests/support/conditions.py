"""Expressions for an index and for the oracle at once, and messages that these are asked with.

An `Expression` is its text to the library, and to the oracle what its tree means to Python's own values.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa
from oracle import (
    OPERATORS,
    And,
    AtLeast,
    Compared,
    Not,
    Or,
    Oracle,
    Tags,
    Test,
    Tree,
    Within,
    evaluate,
    type_of,
    values_of,
)
from support.expressions import text_of
from support.filters import in_order, of_python

from tagmatch import TagMatch, Where
from tagmatch.model.where.comparisons import Comparison
from tagmatch.model.where.constraints import COMPARED, NO_TAG, PARTS, Constraint
from tagmatch.model.where.language import rows_of
from tagmatch.model.where.values import is_reserved

_PLAIN = random.Random(0)


class Condition(Where):
    """A condition as the library names it in a stored set, and what it means."""

    tree: Tree

    @classmethod
    def of(cls, constraint: Constraint) -> Condition:
        condition = cls(constraint.text)
        condition.tree = _tree_of(constraint)
        return condition

    def __deepcopy__(self, _: Any) -> Condition:
        return self


def _tree_of(constraint: Constraint) -> Tree:
    if constraint.kind == NO_TAG:
        return Not(Tags((constraint.payload,)))
    if constraint.kind == PARTS:
        least, parts = constraint.parts
        return AtLeast(
            least, tuple(_tree_of(Constraint.of_tag(part)) if is_reserved(part) else Tags((part,)) for part in parts)
        )
    if constraint.kind == COMPARED:
        own = Comparison.in_payload(constraint.attribute, constraint.payload)
        compared = Compared(own.left, own.operator, own.right, timedelta(microseconds=own.later // 1000))
        return Not(compared) if constraint.negated else compared
    tests: list[Tree] = [Within(constraint.area)]
    if constraint.area is None:
        tests = [
            Test(constraint.attribute, own.name, tuple(map(of_python, operands))) for own, operands in constraint.tests
        ]
    tree = tests[0] if len(tests) == 1 else Or(tuple(tests))
    return Not(tree) if constraint.negated else tree


@cache
def condition_of(area: Any) -> Condition:
    (row,) = rows_of(text_of(Within(area), _PLAIN))
    (constraint,) = row.constraints
    return Condition.of(constraint)


Oracle.name_of = staticmethod(condition_of)


class Expression(str):
    """The text of a tree, and its stored form, each once: tags and conditions."""

    __slots__ = ("alternatives", "tree")
    tree: Tree
    alternatives: tuple[frozenset[str], ...]

    @classmethod
    def of(cls, tree: Tree, spelling: random.Random) -> Expression:
        expression = cls(text_of(tree, spelling))
        expression.tree = tree
        rows = rows_of(expression)
        expression.alternatives = tuple(frozenset([*row.tags, *map(Condition.of, row.constraints)]) for row in rows)
        return expression

    def __deepcopy__(self, _: Any) -> Expression:
        return self


@cache
def conditions_in(where: str | None) -> frozenset[Where]:
    """The conditions of a stored set, as `to_arrow` has them, as iteration gives them."""
    if where is None:
        return frozenset()
    ((tags, constraints),) = rows_of(where)
    assert not tags
    return frozenset(Where(each.text) for each in constraints)


class Message(NamedTuple):
    """What an index is asked: tags, and attributes."""

    tags: list[str]
    attributes: dict[str, Any]


def _is_in_arrow(value: Any) -> bool:
    """Whether Arrow finds the type: it takes a version for a text, has no addresses, and bounds decimals."""
    if isinstance(value, Decimal):
        return abs(value) < 10**30 and -value.as_tuple().exponent <= 30
    return type_of(value) not in ("version", "ip")


def in_tables(messages: Sequence[Message]) -> list[tuple[list[int], pa.Table]]:
    """Messages as tables, with their numbers; those whose attributes have the same types are in one.

    What has values of several types in one attribute is in none: a column has one type. So is what Arrow lacks.
    """
    groups: dict[frozenset[tuple[str, type]], list[int]] = {}
    for number, message in enumerate(messages):
        values = {name: values_of(message.attributes, name) for name in message.attributes}
        types = frozenset((name, type(value)) for name, found in values.items() for value in found)
        are_in_arrow = all(map(_is_in_arrow, (value for found in values.values() for value in found)))
        if are_in_arrow and len(types) == len({name for name, _ in types}):
            groups.setdefault(types, []).append(number)
    tables = []
    for types, numbers in groups.items():
        columns = {"tags": pa.array([list(messages[each].tags) for each in numbers], pa.list_(pa.string()))}
        for name, _ in types:
            rows = [values_of(messages[each].attributes, name) for each in numbers]
            is_single = all(len(row) < 2 for row in rows)
            columns[name] = pa.array([row[0] if row else None for row in rows] if is_single else rows)
        tables.append((numbers, pa.table(columns)))
    return tables


# -- by chance, from a seed --------------------------------------------------------------------------------------------

#: Of each attribute the values that expressions compare with, and messages have
VALUES: dict[str, tuple[Any, ...]] = {
    "price": (-1, 0, 5, 2**53 + 1, 2**63 - 1, 7.5, float("inf")),
    "name": ("", "a", "ab", "b", "é\U0010ffff"),
    "new": (True, False),
    "city": ("Rome", "Milan", "Oslo"),
}
_TYPES = {"price": (int, float), "name": (str,), "new": (bool,), "city": (str,)}


def any_expression(rng: random.Random, tags: Sequence[str]) -> Expression:
    """A short expression, which may ask for some of these tags."""
    return Expression.of(_any_tree(rng, tags, 2), rng)


def _any_tree(rng: random.Random, tags: Sequence[str], depth: int) -> Tree:
    kind = rng.choice(["test", "test", "and", "or", "not", "tag"]) if depth else "test"
    if kind in ("and", "or"):
        parts = tuple(_any_tree(rng, tags, depth - 1) for _ in range(2))
        return And(parts) if kind == "and" else Or(parts)
    if kind == "not":
        return Not(_any_tree(rng, tags, depth - 1))
    return Tags((rng.choice(tags),)) if kind == "tag" else _any_test(rng)


def _any_test(rng: random.Random) -> Test:
    name = rng.choice([*VALUES])
    values = rng.sample(VALUES[name], 2)
    takes = {"values"} | ({"ordered"} if name != "new" else set()) | ({"texts"} if name in ("name", "city") else set())
    operator = rng.choice([each for each, own in OPERATORS.items() if own.takes in takes])
    operands = {"none": 0, "one": 1, "two": 2, "list": 2}[OPERATORS[operator].operands]
    test = Test(name, operator, tuple(values[:operands]))
    return in_order(test) if OPERATORS[operator].operands == "two" else test


def any_attributes(rng: random.Random) -> dict[str, Any]:
    """Some attributes, each of one type; one may have several values."""
    attributes: dict[str, Any] = {}
    for name, values in VALUES.items():
        kind = rng.choice(_TYPES[name])
        own = [value for value in values if type(value) is kind]
        if rng.random() < 0.7:
            attributes[name] = rng.sample(own, 2) if name == "city" and rng.random() < 0.5 else rng.choice(own)
    return attributes


def assert_found_one_by_one(
    tm: TagMatch[Any], stored: Sequence[tuple[set[str], Tree]], messages: Sequence[Message]
) -> list[set[int]]:
    """Each message is for the keys that it should be for, by `match_unique` and by `explain`; these keys.

    A set's key is its place.
    """
    expected = [
        {key for key, (own, tree) in enumerate(stored) if own <= {*tags} and evaluate(tree, tags, attributes)}
        for tags, attributes in messages
    ]
    for (tags, attributes), wanted in zip(messages, expected, strict=True):
        assert tm.match_unique(tags, attributes) == wanted
        for key in range(len(stored)):
            assert tm.explain(tags, attributes, key=key).matches == (key in wanted)
    return expected
