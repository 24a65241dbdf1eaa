"""Expressions as trees, and as the rows that are stored for them: one for each conjunction of what they become.

`not` goes to the leaves, by De Morgan's laws, and `and` below `or`, by the distributive law. Tests of one attribute are
not made one: an attribute may have several values, and each test may hold for another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, product
from typing import NamedTuple

from tagmatch.model.errors import FilterError
from tagmatch.model.filters.constraints import Constraint, is_constraint

#: Most rows that are stored for one expression
MAX_CONJUNCTIONS = 1024
#: Most parentheses and `not` within each other
MAX_DEPTH = 100
#: Greater numbers are not shown in full
_MANY = 10**9


@dataclass(frozen=True, slots=True)
class HasTag:
    """The message has the tag."""

    tag: str


@dataclass(frozen=True, slots=True)
class Not:
    """The part does not hold."""

    part: Expression


@dataclass(frozen=True, slots=True)
class And:
    """All parts hold."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """One of the parts holds, or several."""

    parts: tuple[Expression, ...]


Expression = HasTag | Constraint | Not | And | Or


class Row(NamedTuple):
    """A conjunction, as it is stored: what a message must have.

    Attributes
    ----------
    tags : list of str
        Tags, sorted.
    constraints : list of str
        Tags that stand for constraints, sorted.
    """

    tags: list[str]
    constraints: list[str]


class _All(NamedTuple):
    parts: list[_Plain]


class _Any(NamedTuple):
    parts: list[_Plain]


#: Without `not`; a test is the tag that stands for it
_Plain = str | _All | _Any


def normal_rows(expression: Expression) -> list[Row]:
    r"""The rows of which a message satisfies one if and only if it satisfies the expression; equal ones once.

    Raises
    ------
    FilterError
        There would be more than `MAX_CONJUNCTIONS`, or parts are more than `MAX_DEPTH` within each other.

    Examples
    --------
    >>> cheap = Constraint.compared("price", "<", 10)
    >>> for row in normal_rows(And((Or((HasTag("new"), HasTag("sale"))), Not(cheap)))):
    ...     print(row.tags, [str(Constraint.of_tag(tag)) for tag in row.constraints])
    ['new'] ['not price < 10']
    ['sale'] ['not price < 10']
    """
    plain = _plain(expression, negated=False, depth=0)
    count = _count(plain)
    if count > MAX_CONJUNCTIONS:
        shown = f"{count:,}" if count < _MANY else f"more than {_MANY:,}"
        raise FilterError(
            f"where: this becomes {shown} conjunctions, at most {MAX_CONJUNCTIONS:,} are allowed: "
            "write alternatives for one attribute as `in {…}`, or split it at an `or`, with one set for each part"
        )
    return [_row(tags) for tags in dict.fromkeys(_conjunctions(plain))]


def _plain(expression: Expression, *, negated: bool, depth: int) -> _Plain:
    if depth > MAX_DEPTH:
        raise FilterError(
            f"where: parentheses and `not` are more than {MAX_DEPTH} within each other: write it with fewer of them"
        )
    if isinstance(expression, HasTag):
        return Constraint.without_tag(expression.tag).tag if negated else expression.tag
    if isinstance(expression, Constraint):
        return (expression.negation if negated else expression).tag
    if isinstance(expression, Not):
        return _plain(expression.part, negated=not negated, depth=depth + 1)
    parts = [_plain(part, negated=negated, depth=depth + 1) for part in expression.parts]
    return _All(parts) if isinstance(expression, And) != negated else _Any(parts)


def _count(plain: _Plain) -> int:
    if isinstance(plain, str):
        return 1
    counts = map(_count, plain.parts)
    return math.prod(counts) if isinstance(plain, _All) else sum(counts)


def _conjunctions(plain: _Plain) -> Iterable[tuple[str, ...]]:
    """Each as its tags, sorted, each once."""
    if isinstance(plain, str):
        return [(plain,)]
    parts = map(_conjunctions, plain.parts)
    if isinstance(plain, _Any):
        return chain.from_iterable(parts)
    return (tuple(sorted(set(chain.from_iterable(chosen)))) for chosen in product(*parts))


def _row(tags: tuple[str, ...]) -> Row:
    return Row(
        [tag for tag in tags if not is_constraint(tag)],
        [tag for tag in tags if is_constraint(tag)],
    )
