"""Conditions by number, so that programs know what each other's sets ask for, and messages for which they hold."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pyarrow as pa
from support.conditions import Expression, Message
from support.trees import And, Not, Test, Tree

_CITIES = [f"city {number}" for number in range(7)]
_STEP, _MOST = 50, 300
_TYPES = {"price": pa.list_(pa.int64()), "city": pa.list_(pa.string()), "sold": pa.bool_()}
#: With these, the conditions of all numbers hold
FOR_ALL: dict[str, Any] = {"price": [-1, *range(0, _MOST + 1, _STEP)], "city": _CITIES}


@cache
def condition_of(number: int) -> Expression | None:
    """What the set of a number asks for, as one alternative; every third number has none."""
    tree = _tree_of(number)
    if tree is None:
        return None
    expression = Expression.of(tree, random.Random(number))
    assert len(expression.alternatives) == 1
    return expression


def _tree_of(number: int) -> Tree | None:
    low, city = number % _MOST, _CITIES[number % len(_CITIES)]
    match number % 9:
        case 1:
            return Test("price", "<", (low,))
        case 2:
            return Test("price", "between", (low, low + _STEP))
        case 4:
            return And((Test("city", "=", (city,)), Not(Test("sold", "=", (True,)))))
        case 5:
            return Test("city", "in", (city, "Rome"))
        case 7:
            return And((Test("city", "contains", (city[-3:],)), Test("price", "exists", ())))
        case 8:
            return And((Test("city", "prefix", (city,)), Test("price", "!=", (low,))))
    return None


def row_of(number: int, tags: list[str]) -> frozenset[str]:
    """What is stored for these tags with the condition of this number."""
    condition = condition_of(number)
    return frozenset(tags).union(*(condition.alternatives if condition else ()))


def any_attributes(rng: random.Random) -> dict[str, Any]:
    """None, some, or those with which all conditions hold."""
    if rng.random() < 0.5:
        return rng.choice([{}, FOR_ALL])
    some = {name: rng.sample(values, rng.randrange(len(values) + 1)) for name, values in FOR_ALL.items()}
    return {name: values for name, values in some.items() if values} | {"sold": rng.choice([None, True, False])}


def table_of(messages: list[Message]) -> pa.Table:
    """Messages with such attributes, as a table."""
    rows = [{"tags": list(tags), **attributes} for tags, attributes in messages]
    return pa.Table.from_pylist(rows, pa.schema({"tags": pa.list_(pa.string()), **_TYPES}))
