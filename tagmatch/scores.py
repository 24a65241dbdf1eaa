"""Scores of keys: an expression of columns of data and of attributes of messages, as `priority * 2 + max(bid, floor)`.

It has `+`, `-` and `*`, `min(…)` and `max(…)` of two or more, and parentheses. It is read once, to steps in postfix
order, and evaluated for many keys and messages at once, in doubles. Where a value is missing, the score is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from lark import Token, Transformer, v_args

from tagmatch.model.arrays import F64Array
from tagmatch.model.data_types import Schema, family_of, text_of_type
from tagmatch.model.errors import FilterError, InvalidTypeError
from tagmatch.model.where.grammar import Language, name_in

_MOST = 10_000
_OPERATIONS = {"+": np.add, "-": np.subtract, "*": np.multiply, "min": np.minimum, "max": np.maximum}

#: A number, a name, or an operation on the last one or two results
_Step = tuple[str, "float | str"]


class Score(NamedTuple):
    """An expression that was read."""

    text: str
    steps: tuple[_Step, ...]

    @property
    def names(self) -> list[str]:
        """The columns of data and attributes, each once."""
        return list(dict.fromkeys(str(value) for kind, value in self.steps if kind == "name"))

    def values(self, count: int, of: Callable[[str], F64Array]) -> F64Array:
        """As many scores, from the values of each name; NaN if one is missing."""
        stack: list[Any] = []
        with np.errstate(all="ignore"):
            for kind, value in self.steps:
                if kind == "number":
                    stack.append(np.float64(value))
                elif kind == "name":
                    stack.append(of(str(value)))
                elif kind == "negate":
                    stack.append(-stack.pop())
                else:
                    right = stack.pop()
                    stack.append(_OPERATIONS[kind](stack.pop(), right))
        return np.broadcast_to(stack[0], count)


@v_args(inline=True)
class _Steps(Transformer[Token, list[_Step]]):
    def number(self, token: Token) -> list[_Step]:
        return [("number", float(token))]

    def name(self, token: Token) -> list[_Step]:
        return [("name", name_in(token))]

    def negate(self, _: Token, of: list[_Step]) -> list[_Step]:
        return [*of, ("negate", "")]

    def joined(self, left: list[_Step], sign: Token, right: list[_Step]) -> list[_Step]:
        return [*left, *right, (str(sign), "")]

    def of_several(self, word: Token, first: list[_Step], *others: list[_Step]) -> list[_Step]:
        return [*first, *(step for each in others for step in (*each, (str(word), "")))]


_LANGUAGE = Language("score", "sum", _Steps())


def score_of(text: object) -> Score:
    """An expression, read; InvalidTypeError, FilterError for a mistake, by the column."""
    if not isinstance(text, str):
        raise InvalidTypeError(f'score must be a str such as "priority * 2 + bid", not {type(text).__name__}')
    if len(text) > _MOST:
        raise FilterError(f"score has {len(text):,} characters, and may have {_MOST:,}: write it with fewer")
    return _read(text)


@lru_cache(256)
def _read(text: str) -> Score:
    return Score(text, tuple(_LANGUAGE.read(text)))


def check_columns(score: Score, schema: Schema) -> None:
    """InvalidTypeError for a column of data that has no numbers."""
    for name in score.names:
        if name in schema and family_of(schema[name]) != "numbers":
            kind = text_of_type(schema[name])
            raise InvalidTypeError(f"score: column {name!r} of data has the type {kind}, and scores are of numbers")
