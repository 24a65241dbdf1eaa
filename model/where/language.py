r"""The language of `where` expressions: `price < 10 and name prefix "IB" and city in {"Rome", "Milan"}`.

A test is an operator of `tagmatch.model.where.operators` with an attribute and operands, or one of these:

=========================================  =============================================================================
test                                       holds for a message that
=========================================  =============================================================================
`tags {"x", …}`                            has all these tags, not just one of them
`within circle(lon, lat, metres)`          is in this circle
`within box(west, south, east, north)`     is in this box
`within near(metres)`                      is at most so far from the subscriber
=========================================  =============================================================================

`not` binds tighter than `and`, and `and` tighter than `or`; there are parentheses. Values are integers of 64 bits,
floats (`1e999` is infinite), `true`, `false` and texts in double quotes, with `\"`, `\\`, `\n`, `\t` and `\uXXXX`. Any
name of an attribute can stand in backquotes, with those in it doubled. The names of areas are names of attributes, too,
where no parenthesis follows.

What is stored for an expression are rows, one for each conjunction that it becomes: `not` goes to the leaves, by De
Morgan's laws, and `and` below `or`, by the distributive law. Tests of one attribute are not made one: an attribute may
have several values, and each test may hold for another one.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, product
from typing import Any, NamedTuple, cast

from lark import Lark, Token, Transformer, Tree, UnexpectedInput, UnexpectedToken, v_args

from tagmatch.model.errors import FilterError, InvalidTypeError, InvalidValueError
from tagmatch.model.where.areas import FIELDS, KINDS
from tagmatch.model.where.constraints import KEYWORDS, Constraint, check_operand
from tagmatch.model.where.operators import MANY, OPERATORS, Operator
from tagmatch.model.where.values import Value, check_name, checked_text, finite_number, is_reserved, key_of, quoted

#: Most rows that are stored for one expression
MAX_CONJUNCTIONS = 1024
#: Most parentheses and `not` within each other
MAX_DEPTH = 100
# Greater numbers are not shown in full
_MANY_ROWS = 10**9
# As many expressions as a batch of a file has: each is read as the batch is checked, and again as its sets are staged
_REMEMBERED = 1 << 16

# -- expressions, and the rows that are stored for them ----------------------------------------------------------------


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


#: A `str` is a tag that the message has
Expression = str | Constraint | Not | And | Or


class Row(NamedTuple):
    """A conjunction: what a message must have, in the order of the tags that are stored, each once."""

    tags: list[str]
    constraints: list[Constraint]

    def stored(self, *, plane: bool) -> list[str]:
        """The tags of a set that stands for it; FilterError names the field of an area out of this geometry."""
        return [*self.tags, *(constraint.located(plane=plane).tag for constraint in self.constraints)]


def stored_rows(text: str, *, plane: bool) -> list[list[str]]:
    """The rows of tags, not to be changed, that are stored for an expression; errors as `rows_of` and `Row.stored`."""
    _reject_no_text(text)
    return _stored_rows(text, plane)


@lru_cache(_REMEMBERED)
def _stored_rows(text: str, plane: bool) -> list[list[str]]:
    return [row.stored(plane=plane) for row in rows_of(text)]


def rows_of(text: str) -> list[Row]:
    """The rows of which a message satisfies one if and only if it satisfies the expression; equal ones once.

    InvalidTypeError if it is no text. FilterError for a mistake, by the column, counted from 1, and what was expected
    there; or for more than `MAX_CONJUNCTIONS` rows.

    Examples
    --------
    >>> for row in rows_of('(tags {"new"} or tags {"sale"}) and not price < 10'):
    ...     print(row.tags, *row.constraints)
    ['new'] not price < 10
    ['sale'] not price < 10
    >>> rows_of("price < and")
    Traceback (most recent call last):
    tagmatch.FilterError: where: column 9: expected a value (a number, "text", true or false), found "and"
    """
    plain = _without_not(_parse(text), negated=False, depth=0)
    count = _count(plain)
    if count > MAX_CONJUNCTIONS:
        shown = f"{count:,}" if count < _MANY_ROWS else f"more than {_MANY_ROWS:,}"
        raise FilterError(
            f"where: this becomes {shown} conjunctions, at most {MAX_CONJUNCTIONS:,} are allowed: "
            "write alternatives for one attribute as `in {…}`, or split it at an `or`, with one set for each part"
        )
    rows = {tuple(terms): Row(*_sorted(terms.values())) for terms in map(dict, _conjunctions(plain))}
    return list(rows.values())


def _sorted(terms: Iterable[str | Constraint]) -> tuple[list[str], list[Constraint]]:
    """The tags and the constraints."""
    terms = list(terms)
    return [each for each in terms if isinstance(each, str)], [each for each in terms if not isinstance(each, str)]


def _without_not(expression: Expression, *, negated: bool, depth: int) -> Expression:
    """The expression, or what holds where it does not, of tags, constraints, `And` and `Or`."""
    if depth > MAX_DEPTH:
        raise FilterError(
            f"where: parentheses and `not` are more than {MAX_DEPTH} within each other: write it with fewer of them"
        )
    if isinstance(expression, str):
        return Constraint.without_tag(expression) if negated else expression
    if isinstance(expression, Constraint):
        return expression.negation if negated else expression
    if isinstance(expression, Not):
        return _without_not(expression.part, negated=not negated, depth=depth + 1)
    parts = tuple(_without_not(part, negated=negated, depth=depth + 1) for part in expression.parts)
    return And(parts) if isinstance(expression, And) != negated else Or(parts)


def _count(plain: Expression) -> int:
    """How many conjunctions there are."""
    if not isinstance(plain, And | Or):
        return 1
    counts = map(_count, plain.parts)
    return math.prod(counts) if isinstance(plain, And) else sum(counts)


def _conjunctions(plain: Expression) -> Iterable[list[tuple[str, Any]]]:
    """Each as what is stored for its terms, in order, and the terms."""
    if isinstance(plain, And | Or):
        parts = map(_conjunctions, plain.parts)
        if isinstance(plain, Or):
            return chain.from_iterable(parts)
        return (sorted(dict(chain.from_iterable(chosen)).items(), key=_FIRST) for chosen in product(*parts))
    return [[(plain, plain) if isinstance(plain, str) else (cast(Constraint, plain).tag, plain)]]


_FIRST = operator.itemgetter(0)

# -- grammar -----------------------------------------------------------------------------------------------------------


def _rule(number: int, own: Operator) -> str:
    """The rule of an operator's tests, named by its number."""
    words = f"_SIGN{number}" if own.is_symbol else " ".join(f'"{word}"' for word in own.name.split())
    operand = "TEXT" if own.takes == "texts" else "_value"
    if own.count == 0:
        test = f'{words} "(" _name ")"'
    elif own.count == MANY:
        test = f'_name {words} "{{" {operand} ("," {operand})* "}}"'
    else:
        test = f"_name {words} {operand}" + f' "and" {operand}' * (own.count - 1)
    return f"{test} -> operator{number}"


# What is negated is written with `not`
_BY_RULE = {f"operator{number}": own for number, own in enumerate(OPERATORS.values()) if not own.negated}
_RULES = [_rule(number, own) for number, own in enumerate(_BY_RULE.values())]
_SIGNS = {f"_SIGN{number}": own.name for number, own in enumerate(_BY_RULE.values()) if own.is_symbol}

_GRAMMAR = r"""
?any: all ("or" all)*
?all: one ("and" one)*
?one: "not" one -> negation
    | "(" any ")"
    | test
?test: "tags" "{" TEXT ("," TEXT)* "}"           -> tags
     | "within" CIRCLE "(" NUMBER "," NUMBER "," NUMBER ")"        -> within
     | "within" BOX "(" NUMBER "," NUMBER "," NUMBER "," NUMBER ")" -> within
     | "within" NEAR "(" NUMBER ")"              -> within
     | OPERATORS
_name: NAME | QUOTED_NAME
_value: NUMBER | TEXT | TRUE | FALSE
SIGNS
TRUE: "true"
FALSE: "false"
CIRCLE.1: /circle(?=\s*\()/
BOX.1: /box(?=\s*\()/
NEAR.1: /near(?=\s*\()/
NAME: /[A-Za-z_][A-Za-z0-9_.]*/
QUOTED_NAME: /`(?:[^`]|``)*`/
NUMBER: /[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?/
TEXT: /"(?:[^"\\]|\\.)*"/s
SPACE: /\s+/
%ignore SPACE
""".replace("OPERATORS", "\n     | ".join(_RULES)).replace(
    "SIGNS", "\n".join(f'{terminal}: "{sign}"' for terminal, sign in _SIGNS.items())
)

_LINE_END = "\n"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_ESCAPE = re.compile(r'\\(?:(["\\nt])|u([0-9a-fA-F]{4})|.)', re.DOTALL)
_UNESCAPED = {'"': '"', "\\": "\\", "n": "\n", "t": "\t"}
_LONGEST_FOUND = 40

_BETWEEN = [own for own in _BY_RULE.values() if own.count]
#: What several terminals are together, in words; greater sets first
_EXPECTED = (
    ({own.name.split()[0].upper() for own in _BETWEEN if not own.is_symbol} | {*_SIGNS},
     f"an operator ({', '.join(own.name for own in _BETWEEN[:-1])} or {_BETWEEN[-1].name})"),
    ({"NAME", "QUOTED_NAME", "NOT", "LPAR", "EXISTS", "TAGS", "WITHIN"}, "a test, such as price < 10"),
    ({"NUMBER", "TEXT", "TRUE", "FALSE"}, 'a value (a number, "text", true or false)'),
    ({"CIRCLE", "BOX", "NEAR"},
     "an area (circle(lon, lat, metres), box(west, south, east, north) or near(metres))"),
    ({"NAME", "QUOTED_NAME"}, "the name of an attribute"),
    ({"TEXT"}, "a text in double quotes"), ({"NUMBER"}, "a number"),
    ({"LPAR"}, '"("'), ({"LBRACE"}, '"{"'), ({"COMMA"}, '","'), ({"RBRACE"}, '"}"'),
    ({"AND"}, '"and"'), ({"OR"}, '"or"'), ({"IN"}, '"in"'), ({"RPAR"}, '")"'), ({"$END"}, "the end"),
)  # fmt: skip
#: What other languages write, in small letters, and what is written here
_WRITTEN_HERE = {
    "&&": "and", "&": "and", "||": "or", "|": "or", "!": "not",
    **{written: own.name for own in OPERATORS.values() for written in own.elsewhere},
    **{word: word for word in KEYWORDS},
}  # fmt: skip
_OPERATOR_OR_WORD = re.compile(r"[=<>!&|]+|[^\W\d]\w*")
_UNCLOSED = {'"': 'a " that closes this text', "`": "a ` that closes this name"}


def _parse(text: str) -> Expression:
    """The expression as a tree, in which `and` and `or` have as many parts as are written beside each other."""
    _reject_no_text(text)
    try:
        return cast(Expression, _PARSER.parse(text))
    except UnexpectedInput as error:
        position, message = _unexpected(error, text)
    except _MistakeError as error:
        position, message = error.args
    line = f"line {text.count(_LINE_END, 0, position) + 1}, " if _LINE_END in text else ""
    raise FilterError(f"where: {line}column {position - text.rfind(_LINE_END, 0, position)}: {message}") from None


def _reject_no_text(text: object) -> None:
    if not isinstance(text, str):
        raise InvalidTypeError(f"where must be a str, not {type(text).__name__} {text!r:.80}")


class _MistakeError(Exception):
    """What is wrong, and at which character of the text."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(position, message)


def _unexpected(error: UnexpectedInput, text: str) -> tuple[int, str]:
    """At which character something else was expected, and what."""
    if not isinstance(error, UnexpectedToken):
        position = cast(int, error.pos_in_stream)
        found = _shown(text[position])
        if text[position] in _UNCLOSED:
            return position, f"expected {_UNCLOSED[text[position]]}, found the end"
    elif error.token.type == "$END":
        position, found = len(text), "the end"
    else:
        position, found = _start(error.token), _shown(error.token)
    accepted = _accepted(text[:position])
    found += _instead(text, position, accepted)
    words = []
    for terminals, word in _EXPECTED:
        if terminals <= accepted:
            accepted -= terminals
            words.append(word)
    *most, last = words
    return position, f"expected {', '.join(most)}{' or ' if most else ''}{last}, found {found}"


def _instead(text: str, position: int, accepted: set[str]) -> str:
    """How that is written which another language writes there, or nothing."""
    pieces = _OPERATOR_OR_WORD.finditer(text)
    there = next((each[0] for each in pieces if each.start() <= position < each.end()), "")
    wanted = _WRITTEN_HERE.get(there.lower(), there)
    if wanted != there:
        return f"; {_shown(there)} is written {_shown(wanted)} here"
    if there.lower() in ("is", "null", "none", "nil"):
        return "; a value that is missing is found with not exists(name)"
    character = text[position : position + 1]
    if character in ("'", "‘", "’", "“", "”"):
        return "; texts stand in double quotes"
    if character in ("(", "[") and "LBRACE" in accepted:
        return "; values stand in braces"
    if character.isalpha() and not character.isascii():
        return "; a name that is no plain word stands in backquotes"
    return ""


def _accepted(text: str) -> set[str]:
    """The terminals that may follow on this text.

    The parser that found something else need not know all of them: it may have taken the end of a test for granted.
    """
    parser = _PARSER.parse_interactive(text)
    parser.exhaust_lexer()
    return set(parser.accepts())  # type: ignore[no-untyped-call]


@contextmanager
def _at(token: Token) -> Iterator[None]:
    """A mistake in there is one of this token."""
    try:
        yield
    except (InvalidTypeError, InvalidValueError) as error:
        raise _MistakeError(_start(token), str(error)) from None


def _start(token: Token) -> int:
    # Tokens that the lexer made have one
    return cast(int, token.start_pos)


def _shown(found: str) -> str:
    found = found.removeprefix('"').removesuffix('"')
    return quoted(found if len(found) <= _LONGEST_FOUND else found[: _LONGEST_FOUND - 1] + "…")


@v_args(inline=True)
class _Reader(Transformer[Token, Expression]):
    """Makes the tree, by rules of the grammar."""

    def any(self, *parts: Expression) -> Expression:
        return Or(parts)

    def all(self, *parts: Expression) -> Expression:
        return And(parts)

    def negation(self, part: Expression) -> Expression:
        return Not(part)

    def tags(self, *texts: Token) -> Expression:
        tags = tuple(map(_tag, texts))
        return tags[0] if len(tags) == 1 else And(tags)

    def within(self, kind: Token, *numbers: Token) -> Expression:
        for field, number in zip(FIELDS[kind], numbers, strict=True):
            with _at(number):
                finite_number(field, float(number))
        # What else may be wrong, is so with one of them
        with _at(numbers[-1] if kind != "box" else numbers[1]):
            return Constraint.within(KINDS[kind](*map(float, numbers)))

    def __default__(self, rule: str, tokens: list[Any], _: object) -> Any:
        """A test by the operator that the rule is of; of other rules what Lark makes."""
        if rule not in _BY_RULE:
            return Tree(rule, tokens)
        own, (name, *operands) = _BY_RULE[rule], tokens
        attribute = _name(name)
        values: list[Value] = [_value(operand) for operand in operands]
        for operand, value in zip(operands, values, strict=True):
            with _at(operand):
                check_operand(own, value)
        with _at(tokens[-1]):
            return Constraint.of(attribute, own.name, values)


def _name(token: Token) -> str:
    name = str(token) if token.type == "NAME" else token[1:-1].replace("``", "`")
    with _at(token):
        check_name(name)
    return name


def _value(token: Token) -> Value:
    if token.type == "TEXT":
        return _text(token)
    if token.type in ("TRUE", "FALSE"):
        return token.type == "TRUE"
    if not _INTEGER.fullmatch(token):
        return float(token)
    try:
        value = int(token)
    except ValueError:  # thousands of digits, which Python does not read
        value = 2**64
    with _at(token):
        key_of(value)
    return value


def _text(token: Token) -> str:
    def unescaped(found: re.Match[str]) -> str:
        if found[1]:
            return _UNESCAPED[found[1]]
        if found[2]:
            return chr(int(found[2], 16))
        escapes = r"an escape (\" \\ \n \t \uXXXX)"
        raise _MistakeError(_start(token) + 1 + found.start(), f"expected {escapes}, found {_shown(found[0])}")

    text = _ESCAPE.sub(unescaped, token[1:-1])
    # Two escapes may be the halves of one character
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    with _at(token):
        return checked_text(text)


def _tag(token: Token) -> str:
    tag = _text(token)
    if is_reserved(tag):
        raise _MistakeError(_start(token), "a tag must not begin with U+0000 and +, - or =, as constraints do")
    return tag


_PARSER = Lark(_GRAMMAR, start="any", parser="lalr", lexer="basic", transformer=_Reader())
