r"""The language of `where` expressions: `price < 10 and name prefix "IB" and city in {"Rome", "Milan"}`.

A test is an operator of `tagmatch.model.where.constraints` with an attribute and operands, or one of these:

=========================================  =============================================================================
test                                       holds for a message that
=========================================  =============================================================================
`all of tags {"x", …}`, `tags {"x", …}`    has all these tags, not just one of them
`any of tags {"x", …}`                     has one of these tags, or several
`at least 2 of {test, …}`                  satisfies this number of tests, or more; each may be an expression
`at least 2 of tags {"x", …}`              has this number of these tags, or more
`a < b`, `a = b + 2 hours`, …              has values of both attributes for which this holds
`a >= now() - 7 days`                      has a value for which this holds at the message's time
`a between b and now()`                    satisfies `a >= b and a <= now()`
``a in {`b`, 5}``                          satisfies ``a = 5 or a = `b` ``
`within circle(lon, lat, metres)`          is in this circle
`within box(west, south, east, north)`     is in this box
`within near(metres)`                      is at most so far from the subscriber
`within polygon((9 45, 10 45, 9 46, 9 45))`  is in this polygon, written as WKT, or in this `multipolygon`
`within 500 m of linestring(9 45, 10 45)`  is at most so far from this line, or `multilinestring`
=========================================  =============================================================================

`not` binds tighter than `and`, and `and` tighter than `or`; there are parentheses. Values are integers of 64 bits,
floats (`1e999` is infinite), `true`, `false` and texts in double quotes, with `\"`, `\\`, `\n`, `\t`,
`\r`, `\f` and `\uXXXX`, as JSON has them; not its `\b`, which patterns have for the edge of a word. Any
name of an attribute can be in backquotes, with those in it doubled. The names of areas are names of attributes, too,
where no parenthesis follows.

What is stored for an expression are the rows that it becomes (`tagmatch.model.where.alternatives`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial

from lark import Token, Transformer, v_args

from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.where.alternatives import Expression, Gate, Not, Row, Term, every, one_of, rows_for, terms_in
from tagmatch.model.where.areas import KINDS
from tagmatch.model.where.comparisons import IN_QUOTES, NOW, nanoseconds_in
from tagmatch.model.where.constraints import (
    MANY,
    NETWORK,
    OPERATORS,
    VERSION_NAME,
    Constraint,
    Operator,
    Where,
    span_for,
)
from tagmatch.model.where.declared import Declared, name_read, operands_read, reading
from tagmatch.model.where.grammar import (
    AS_PAIRS,
    BY_RULE,
    COMPARED,
    LISTED,
    LONGEST_FOUND,
    VALUE_WORDS,
    Language,
    MistakeError,
    instead,
    name_in,
    shown_text,
    start_of,
    typed_hint,
    values_in,
)
from tagmatch.model.where.outlines import Corridor, Polygon
from tagmatch.model.where.types import DECIMAL, TYPES, network_of, typed_of
from tagmatch.model.where.values import Value, Written, check_name, checked_text, is_reserved

# As many expressions as a batch of a file has: each is read as the batch is checked, and again as its sets are staged
_REMEMBERED = 1 << 16

# -- expressions, and the rows that are stored for them ----------------------------------------------------------------


def stored_rows(text: str, *, plane: bool, declared: Declared | None = None) -> list[list[str]]:
    """The rows of tags, not to be changed, that are stored for an expression, as attributes are declared.

    Errors are those of `rows_of`; FilterError also names the field of an area out of this geometry.
    """
    return _stored_rows(text_of_condition(text), plane, declared)


@lru_cache(_REMEMBERED)
def _stored_rows(text: str, plane: bool, declared: Declared | None) -> list[list[str]]:
    rows = []
    with reading(declared):
        found = rows_of(text)
    for tags, constraints in found:
        rows.append(tags.copy())
        for each in constraints:
            rows[-1].append(each.tag if each.area is None else each.located(plane=plane).tag)
    return rows


def rows_of(text: str) -> list[Row]:
    """The rows of an expression, each once: a message satisfies the expression if and only if it satisfies one of them.

    InvalidTypeError if it is no text. FilterError names the column of a mistake, counted from 1, and what it expected.
    Rows have one order for all orders of the expression. A `Where` is one condition of a stored set.

    Examples
    --------
    >>> for row in rows_of('(tags {"new"} or tags {"sale"}) and not price < 10'):
    ...     print(row.tags, *row.constraints)
    ['new'] not price < 10
    ['sale'] not price < 10
    >>> rows_of("city prefix and")
    Traceback (most recent call last):
    tagmatch.FilterError: where: column 13: expected a text in double quotes, found "and"
    """
    return rows_for(_parse(text), is_stored=isinstance(text, Where))


def terms_of(text: str) -> Iterator[Term]:
    """The tags and tests of an expression as they are written, in order; errors as `rows_of`."""
    return terms_in(_parse(text))


# -- trees made of them ------------------------------------------------------------------------------------------------

_TYPED = frozenset((*TYPES, DECIMAL, NETWORK))
_NAMES = ("NAME", "QUOTED_NAME", "NOW")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_ESCAPE = re.compile(r'\\(?:(["\\ntrf])|u([0-9a-fA-F]{4})|.)', re.DOTALL)
_UNESCAPED = {'"': '"', "\\": "\\", "n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_TIME_ALONE = "now() is compared with attributes only; give messages an attribute with the time, such as today"
_TIME_WRITTEN = "the message's time is written now(), and an attribute of this name in backquotes"


def _parse(text: str) -> Expression:
    """The expression as a tree, in which `and` and `or` have all parts that follow each other in the text."""
    return _LANGUAGE.read(text_of_condition(text))


def text_of_condition(given: object) -> str:
    """A condition as it was given; InvalidTypeError if it is no string."""
    if not isinstance(given, str):
        hint = "; importing.elasticsearch makes one of a query" if isinstance(given, dict) else ""
        raise InvalidTypeError(f"where must be a str, not {type(given).__name__} {given!r:.80}{hint}")
    return given


@v_args(inline=True)
class _Reader(Transformer[Token, Expression]):
    """Makes the tree, by rules of the grammar; `_test_of` by those of operators."""

    def any(self, *parts: Expression) -> Expression:
        return Gate(1, parts)

    def all(self, *parts: Expression) -> Expression:
        return Gate(len(parts), parts)

    def negation(self, part: Expression) -> Expression:
        return Not(part)

    def tags(self, *texts: Token) -> Expression:
        return every(_tags(texts))

    def any_tag(self, *texts: Token) -> Expression:
        return one_of(_tags(texts))

    def at_least(self, counted: Token, *parts: Expression) -> Expression:
        least = int(re.findall("[0-9]+", counted)[0][:LONGEST_FOUND])
        if not 1 <= least <= len(parts):
            said = f"{counted.split()[2][:LONGEST_FOUND]} of {len(parts)}"
            raise MistakeError(start_of(counted), f"there is no {said}: the number is from 1 to {len(parts)} here")
        return Gate(least, parts, is_counted=True)

    def at_least_tags(self, counted: Token, *texts: Token) -> Expression:
        return self.at_least(counted, *map(_tag, texts))

    def within(self, kind: Token, *numbers: Token) -> Expression:
        # What may be wrong with several numbers, is so with one of them
        at = numbers[-1] if kind != "box" else numbers[1]
        try:
            return Constraint.within(KINDS[kind](*map(float, numbers)))
        except InvalidValueError as error:
            wrong = [number for number in numbers if not math.isfinite(float(number))]
            raise MistakeError(start_of(wrong[0] if wrong else at), str(error)) from None

    def within_polygon(self, text: Token) -> Expression:
        return _outline(text, Polygon)

    def within_corridor(self, text: Token) -> Expression:
        metres, line = re.split(r"m\s+of\s+", text, maxsplit=1, flags=re.IGNORECASE)
        return _outline(text, partial(Corridor, metres=float(metres)), line)

    def typed(self, kind: Token, text: Token) -> Token:
        # As one token, which the rules of operators take as any other operand
        return Token.new_borrow_pos(str(kind), text, kind)

    network = typed


def _outline(token: Token, kind: Callable[[str], Polygon | Corridor], text: str | None = None) -> Constraint:
    try:
        return Constraint.within(kind(text or str(token)))
    except (InvalidTypeError, InvalidValueError) as error:
        raise MistakeError(start_of(token), str(error)) from None


def _test_of(own: Operator) -> Callable[[list[Token]], Constraint]:
    def test(tokens: list[Token]) -> Constraint:
        name, *operands = tokens
        values = _values(operands)
        try:
            attribute = name_in(name)
            if attribute == NOW:  # a message seldom brings the time, and is only given it to be compared
                raise MistakeError(start_of(name), _TIME_ALONE)
            return Constraint.of(attribute, own.name, operands_read(attribute, own, values))
        except (InvalidTypeError, InvalidValueError) as error:
            raise MistakeError(start_of(_wrong(own, tokens, values)), str(error)) from None

    return test


def _pairs_of(own: Operator) -> Callable[[list[Token]], Expression]:
    """A test whose operands may be attributes, and times: each of these is compared by itself."""
    plain = _test_of(own)

    def test(tokens: list[Token]) -> Expression:
        name, sides = tokens[0], list[list[Token]]()
        for token in tokens[1:]:
            if token.type == "DURATION":
                sides[-1].append(token)
            else:
                sides.append([token])
        values = [side[0] for side in sides if side[0].type not in _NAMES]
        if len(values) == len(sides):
            return plain(tokens)
        operators = AS_PAIRS[own.name]
        if own.count != MANY:
            pairs = zip(operators, sides, strict=True)
            return every([_either(name, operator, side) for operator, side in pairs])
        compared = [_either(name, operators[0], side) for side in sides if side[0].type in _NAMES]
        return one_of([*([plain([name, *values])] if values else []), *compared])

    return test


def _either(name: Token, operator: str, side: list[Token]) -> Constraint:
    made = _comparison_of(operator) if side[0].type in _NAMES else _test_of(OPERATORS[operator])
    return made([name, *side])


def _comparison_of(operator: str) -> Callable[[list[Token]], Constraint]:
    def compared(tokens: list[Token]) -> Constraint:
        names = [token for token in tokens if token.type not in ("DURATION", "MINUS")]
        is_difference = tokens[1].type == "MINUS"
        second, later = tokens.index(names[1], 1), 0
        for place, token in enumerate(tokens):
            if token.type == "DURATION":
                if token[0].isdigit() and (not is_difference or place > second + 1):
                    raise MistakeError(start_of(token), f"expected + or - before the duration {shown_text(token)}")
                try:
                    later += nanoseconds_in(token) * (1 if place > second else -1)
                except InvalidValueError as error:
                    raise MistakeError(start_of(token), str(error)) from None
        for name in names:
            hint = f"; {_TIME_WRITTEN}" if name == "now" else instead(name, 0, set())
            hint = typed_hint(name) if VERSION_NAME.fullmatch(name) else hint
            if name.type == "NAME" and hint:  # as `True` and `null`
                raise MistakeError(start_of(name), f"expected {VALUE_WORDS}, found {shown_text(name)}{hint}")
        if operator in IN_QUOTES and len(tokens) == len(names) and names[1].type == "NAME":  # as `city = Nice`
            raise MistakeError(
                start_of(names[1]),
                f"expected {VALUE_WORDS}, found {shown_text(names[1])}; put a text in double quotes, and an attribute "
                "in backquotes here",
            )
        left, right = (NOW if name.type == "NOW" else name_in(name) for name in names)
        for name in names:
            try:
                name_read(NOW if name.type == "NOW" else name_in(name))
            except InvalidValueError as error:
                raise MistakeError(start_of(name), str(error)) from None
        try:
            return Constraint.compared(left, operator, right, later)
        except InvalidValueError as error:
            raise MistakeError(start_of(names[1]), str(error)) from None

    return compared


def _values(operands: Sequence[Token]) -> list[Value]:
    """The values of operands, or of the one token that is a list of them."""
    if len(operands) == 1 and operands[0].type == LISTED:
        at = start_of(operands[0])
        return [_text(each, at) if each[0] == '"' else _number(each) for each in values_in(operands[0])]
    return list(map(_value, operands))


def _wrong(own: Operator, tokens: list[Token], values: list[Value]) -> Token:
    """Which token is wrong of those of a test that an operator does not take, the last one if they are so together."""
    try:
        name = name_in(tokens[0])
        check_name(name)
        name_read(name)
        for token, value in zip(tokens[1:], values, strict=False):
            tokens = [token, tokens[-1]]
            (value,) = operands_read(name, own, [value])
            span_for(own, value)
    except (InvalidTypeError, InvalidValueError):
        return tokens[0]
    return tokens[-1]


def _value(token: Token) -> Value:
    if token.type == "TEXT":
        return _text(token, start_of(token))
    if token.type in ("TRUE", "FALSE"):
        return token.type == "TRUE"
    if token.type in _TYPED:
        try:
            text = _text(token, start_of(token))
            return network_of(text) if token.type == NETWORK else typed_of(token.type, text)
        except InvalidValueError as error:
            raise MistakeError(start_of(token), str(error)) from None
    return _number(token)


def _number(text: str) -> int | float:
    if not _INTEGER.fullmatch(text):
        return Written(text)
    # Python does not read thousands of digits; no attribute may have so great a number either
    return int(text) if len(text) <= LONGEST_FOUND else 2**64


def _text(written: str, at: int) -> str:
    """The text that is written in quotes at a place."""
    if written.isascii() and "\\" not in written:
        return written[1:-1]

    def unescaped(found: re.Match[str]) -> str:
        if found[1]:
            return _UNESCAPED[found[1]]
        if found[2]:
            return chr(int(found[2], 16))
        escapes = r"an escape (\" \\ \n \t \r \f \uXXXX)"
        raise MistakeError(at + 1 + found.start(), f"expected {escapes}, found {shown_text(found[0])}")

    text = _ESCAPE.sub(unescaped, written[1:-1])
    # Two escapes may be the halves of one character
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _tags(texts: Sequence[Token]) -> list[Expression]:
    if len(texts) == 1 and texts[0].type == LISTED:
        at = start_of(texts[0])
        return [_checked_tag(each, at) for each in values_in(texts[0])]
    return list(map(_tag, texts))


def _tag(token: Token) -> str:
    return _checked_tag(token, start_of(token))


def _checked_tag(written: str, at: int) -> str:
    if not written.startswith('"'):
        raise MistakeError(at, "a tag is a text")
    try:
        tag = checked_text(_text(written, at))
    except InvalidValueError as error:
        raise MistakeError(at, str(error)) from None
    if is_reserved(tag):
        raise MistakeError(at, "a tag must not begin with U+0000 and +, - or =, as constraints do")
    return tag


_READER = _Reader()
for _rule_name, _operator in BY_RULE.items():
    setattr(_READER, _rule_name, (_pairs_of if _operator.name in AS_PAIRS else _test_of)(_operator))
for _rule_name, _sign in COMPARED.items():
    setattr(_READER, _rule_name, _comparison_of(_sign))
_LANGUAGE = Language("where", "any", _READER)
