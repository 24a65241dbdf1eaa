r"""The language of `where` expressions: `price < 10 and name prefix "IB" and city in {"Rome", "Milan"}`.

=========================================  =============================================================================
test                                       holds for a value that
=========================================  =============================================================================
`a = v`, `a != v`                          equals `v`; does not
`a < v`, `a <= v`, `a > v`, `a >= v`       is of the same type, and comes before or after `v` (numbers, texts)
`a between v and w`                        lies between, or equals one of both; `v` is at most `w`
`a in {v, …}`, `a not in {v, …}`           equals any one of them; none
`a prefix "…"`, `suffix`, `contains`       is a text that begins with it, ends with it, or contains it
`exists(a)`                                is any, even NaN
`tags {"x", …}`                            (the message has all these tags, not just one of them)
`within circle(lon, lat, metres)`          (the message is in this circle)
`within box(west, south, east, north)`     (in this box)
`within near(metres)`                      (at most so far from the subscriber)
=========================================  =============================================================================

`not` binds tighter than `and`, and `and` tighter than `or`; there are parentheses. Values are integers of 64 bits,
floats (`1e999` is infinite), `true`, `false` and texts in double quotes, with `\"`, `\\`, `\n`, `\t` and `\uXXXX`. Any
name of an attribute can stand in backquotes, with those in it doubled. The names of areas are names of attributes, too,
where no parenthesis follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args

from tagmatch.model.errors import FilterError, InvalidTypeError, InvalidValueError
from tagmatch.model.filters.areas import FIELDS, KINDS, finite_number
from tagmatch.model.filters.constraints import Comparison, Constraint
from tagmatch.model.filters.normal import And, Expression, HasTag, Not, Or, Row, normal_rows
from tagmatch.model.filters.values import Value, check_name, checked_text, is_reserved, key_of, quoted

_GRAMMAR = r"""
?any: all ("or" all)*
?all: one ("and" one)*
?one: "not" one -> negation
    | "(" any ")"
    | test
?test: _name COMPARISON _value                   -> compared
     | _name "between" _value "and" _value       -> between
     | _name "in" "{" _value ("," _value)* "}"   -> one_of
     | _name "not" "in" "{" _value ("," _value)* "}" -> none_of
     | _name "prefix" TEXT                       -> prefix
     | _name "suffix" TEXT                       -> suffix
     | _name "contains" TEXT                     -> contains
     | "exists" "(" _name ")"                    -> exists
     | "tags" "{" TEXT ("," TEXT)* "}"           -> tags
     | "within" CIRCLE "(" NUMBER "," NUMBER "," NUMBER ")"        -> within
     | "within" BOX "(" NUMBER "," NUMBER "," NUMBER "," NUMBER ")" -> within
     | "within" NEAR "(" NUMBER ")"              -> within
_name: NAME | QUOTED_NAME
_value: NUMBER | TEXT | TRUE | FALSE
COMPARISON: "=" | "!=" | "<" | "<=" | ">" | ">="
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
"""

_LINE_END = "\n"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_ESCAPE = re.compile(r'\\(?:(["\\nt])|u([0-9a-fA-F]{4})|.)', re.DOTALL)
_UNESCAPED = {'"': '"', "\\": "\\", "n": "\n", "t": "\t"}
_LONGEST_FOUND = 40

#: What several terminals are together, in words; greater sets first
_EXPECTED = (
    ({"COMPARISON", "BETWEEN", "IN", "NOT", "PREFIX", "SUFFIX", "CONTAINS"},
     "an operator (=, !=, <, <=, >, >=, between, in, not in, prefix, suffix or contains)"),
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
    "==": "=", "===": "=", "<>": "!=", "!==": "!=", "=>": ">=", "=<": "<=",
    "&&": "and", "&": "and", "||": "or", "|": "or", "!": "not",
    "like": "prefix", "startswith": "prefix", "endswith": "suffix",
    **{word: word for word in ["and", "or", "not", "between", "in", "prefix", "suffix", "contains", "true", "false"]},
}  # fmt: skip
_OPERATOR_OR_WORD = re.compile(r"[=<>!&|]+|[^\W\d]\w*")
_UNCLOSED = {'"': 'a " that closes this text', "`": "a ` that closes this name"}


def rows_of(text: str) -> list[Row]:
    """The rows that are stored for an expression: a message satisfies it if it has all that one of them asks for.

    Parameters
    ----------
    text : str
        The expression, of one line or several.

    Returns
    -------
    list of Row
        Tags and constraints, one for each conjunction that the expression becomes; equal ones once.

    Raises
    ------
    InvalidTypeError
        `text` is no `str`.
    FilterError
        It has a mistake: the message says in which column, counted from 1, and what was expected there. Or it would
        have more than 1,024 rows.

    Examples
    --------
    >>> [row] = rows_of('price < 10 and tags {"new"}')
    >>> row.tags, [str(Constraint.of_tag(tag)) for tag in row.constraints]
    (['new'], ['price < 10'])
    >>> rows_of("price < and")
    Traceback (most recent call last):
    tagmatch.FilterError: where: column 9: expected a value (a number, "text", true or false), found "and"
    """
    return normal_rows(parse(text))


def parse(text: str) -> Expression:
    """The expression as a tree, in which `and` and `or` have as many parts as are written beside each other.

    Raises
    ------
    InvalidTypeError, FilterError
        As `rows_of`.

    Examples
    --------
    >>> parse('exists(price) and not tags {"sold"}').parts[1]
    Not(part=HasTag(tag='sold'))
    """
    if not isinstance(text, str):
        raise InvalidTypeError(f"where must be a str, not {type(text).__name__} {text!r:.80}")
    try:
        return cast(Expression, _PARSER.parse(text))
    except UnexpectedInput as error:
        position, message = _unexpected(error, text)
    except _MistakeError as error:
        position, message = error.args
    line = f"line {text.count(_LINE_END, 0, position) + 1}, " if _LINE_END in text else ""
    raise FilterError(f"where: {line}column {position - text.rfind(_LINE_END, 0, position)}: {message}") from None


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

    def compared(self, name: Token, comparison: Token, value: Token) -> Expression:
        attribute, other = _name(name), _value(value)
        with _at(value):
            return Constraint.compared(attribute, cast(Comparison, str(comparison)), other)

    def between(self, name: Token, low: Token, high: Token) -> Expression:
        attribute, least, greatest = _name(name), _value(low), _value(high)
        with _at(low):
            Constraint.compared(attribute, ">=", least)
        with _at(high):
            return Constraint.between(attribute, least, greatest)

    def one_of(self, name: Token, *values: Token) -> Expression:
        return Constraint.one_of(_name(name), map(_value, values))

    def none_of(self, name: Token, *values: Token) -> Expression:
        return Constraint.none_of(_name(name), map(_value, values))

    def prefix(self, name: Token, text: Token) -> Expression:
        return Constraint.begins_with(_name(name), _text(text))

    def suffix(self, name: Token, text: Token) -> Expression:
        return Constraint.ends_with(_name(name), _text(text))

    def contains(self, name: Token, text: Token) -> Expression:
        return Constraint.contains(_name(name), _text(text))

    def exists(self, name: Token) -> Expression:
        return Constraint.exists(_name(name))

    def within(self, kind: Token, *numbers: Token) -> Expression:
        for field, number in zip(FIELDS[kind], numbers, strict=True):
            with _at(number):
                finite_number(field, float(number))
        # What else may be wrong, is so with one of them
        with _at(numbers[-1] if kind != "box" else numbers[1]):
            return Constraint.of_area(KINDS[kind](*map(float, numbers)))

    def tags(self, *texts: Token) -> Expression:
        tags = tuple(HasTag(_tag(text)) for text in texts)
        return tags[0] if len(tags) == 1 else And(tags)


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
