"""Predicates in the language of Vespa's predicate fields: `gender in ['Female'] and age in [20..30]`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args
from lark.exceptions import VisitError

from tagmatch.importing.conditions import ALWAYS, NEVER, Condition, NotTakenError, Place, every, negated, some

#: Where the ids of documents are
KEYS = ("put", "id")
FIELD = "fields.target"

_GRAMMAR = r"""
?any: all ("or" all)*
?all: one ("and" one)*
?one: "not" "(" any ")" -> negation
    | "(" any ")"
    | (VALUE | TEXT) NOT? "in" operand -> test
    | "true" -> always
    | "false" -> never
operand: VALUE | TEXT | RANGE | "[" (VALUE | TEXT) ("," (VALUE | TEXT))* "]"
NOT: "not"
RANGE.1: /\[\s*(?:[-+]?[0-9]+)?\s*\.\.\s*(?:[-+]?[0-9]+)?\s*\]/
VALUE: /[A-Za-z0-9_]+/
TEXT: /'(?:[^'\\]|\\.)*'/s | /"(?:[^"\\]|\\.)*"/s
SPACE: /\s+/
%ignore SPACE
"""
_PARSER = Lark(_GRAMMAR, start="any", parser="lalr")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "f": "\f", "r": "\r"}
_NUMBER = re.compile(r"[-+]?[0-9]+")
_LEAST = -(2**63)


def condition(given: Any, place: Place, saw: Callable[[str], object]) -> Condition:
    """The condition that a predicate says; `saw` is told each kind of leaf."""
    text = place.of("predicate").text_of(given)
    try:
        made: Condition = _Reader(place, saw).transform(_PARSER.parse(text))
    except UnexpectedInput as error:
        is_end = isinstance(error, UnexpectedToken) and error.token.type == "$END"
        at = len(text) if is_end or error.pos_in_stream is None else error.pos_in_stream
        raise place.of("syntax").refused(
            f"column {at + 1}: this is no predicate: {text[at:] or 'the end'!r:.40}"
        ) from None
    except VisitError as error:
        if isinstance(error.orig_exc, NotTakenError):
            raise error.orig_exc from None
        raise
    return made


@v_args(inline=True)
class _Reader(Transformer[Token, Condition]):
    """Makes conditions, by rules of the grammar."""

    def __init__(self, place: Place, saw: Callable[[str], object]) -> None:
        super().__init__()
        self._place, self._saw = place, saw

    def any(self, *parts: Condition) -> Condition:
        return some(parts)

    def all(self, *parts: Condition) -> Condition:
        return every(parts)

    def negation(self, part: Condition) -> Condition:
        return negated(part)

    def always(self) -> Condition:
        return ALWAYS

    def never(self) -> Condition:
        return NEVER

    def operand(self, *values: Token) -> tuple[Token, ...]:
        return values

    def test(self, name: Token, *parts: Any) -> Condition:
        negation, values = parts if len(parts) == 2 else (None, *parts)
        attribute = _text(name)
        if values[0].type == "RANGE":
            self._saw("range")
            found = self._range(attribute, values[0])
        else:
            self._saw("set")
            texts = [_text(value) for value in values]
            operator = ("=", *texts) if len(texts) == 1 else ("in", *texts)
            found = self._place.of("set").test(attribute, *operator)
        return negated(found) if negation else found

    def _range(self, attribute: str, written: Token) -> Condition:
        place = self._place.of("range")
        low, high = (_NUMBER.search(side) for side in written.split(".."))
        if low and high:
            ends = int(low[0]), int(high[0])
            return place.test(attribute, "between", *ends) if ends[0] <= ends[1] else NEVER
        if high:
            return place.test(attribute, "<=", int(high[0]))
        return place.test(attribute, ">=", int(low[0]) if low else _LEAST)


def _text(token: Token) -> str:
    if token.type != "TEXT":
        return str(token)
    return _ESCAPE.sub(
        lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPED.get(found[2], found[2]), token[1:-1]
    )
