"""Expressions as trees of the tests' own, and what they mean to Python's own values."""

import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

Tree = Any
Value = Any
Attributes = Mapping[str, Any]

_ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_PARTS = {"prefix": str.startswith, "suffix": str.endswith, "contains": str.__contains__}


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
class Within:
    """In a circle or a box, or so near to the client."""

    area: Any


@dataclass(frozen=True)
class Not:
    part: Tree


@dataclass(frozen=True)
class And:
    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class Or:
    parts: tuple[Tree, ...]


def evaluate(tree: Tree, tags: Collection[str], attributes: Attributes, there: Any = None) -> bool:
    """Whether a message satisfies the expression; `there` says which areas hold."""
    match tree:
        case And(parts):
            return all(evaluate(part, tags, attributes, there) for part in parts)
        case Or(parts):
            return any(evaluate(part, tags, attributes, there) for part in parts)
        case Not(part):
            return not evaluate(part, tags, attributes, there)
        case Tags(wanted):
            return all(tag in tags for tag in wanted)
        case Within(area):
            held: bool = there.holds(area)
            return held
        case Test(attribute, name, operands):
            return any(_passes(value, name, operands) for value in values_of(attributes, attribute))
    raise AssertionError(tree)


def values_of(attributes: Attributes, name: str) -> list[Value]:
    """The values of an attribute, none, one or several."""
    given = attributes.get(name)
    several = given if isinstance(given, list | tuple | set | frozenset) else [given]
    return [value for value in several if value is not None]


def _passes(value: Value, name: str, operands: tuple[Value, ...]) -> bool:
    alike = [other for other in operands if type_of(other) == type_of(value)]
    if name in ("!=", "not in"):
        return value not in alike
    if name in _PARTS:
        return isinstance(value, str) and _PARTS[name](value, operands[0])
    if name == "between":
        return all(_passes(value, end, (other,)) for end, other in zip((">=", "<="), operands, strict=True))
    if name in _ORDERS:
        return any(_ORDERS[name](ordered(value), ordered(other)) for other in alike)
    return name == "exists" or value in alike


def type_of(value: Value) -> str:
    return "bool" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"


def ordered(value: Value) -> Any:
    """Python compares integers and floats exactly, but texts by characters."""
    return value.encode() if isinstance(value, str) else value
