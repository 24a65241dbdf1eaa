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
floats (`1e999` is infinite), `true`, `false` and texts in double quotes, with `\"`, `\\`, `\n`, `\t` and `\uXXXX`. Any
name of an attribute can be in backquotes, with those in it doubled. The names of areas are names of attributes, too,
where no parenthesis follows.

What is stored for an expression are the rows that it becomes (`tagmatch.model.where.alternatives`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import cast

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args

from tagmatch.model.errors import FilterError, InvalidTypeError, InvalidValueError
from tagmatch.model.where.alternatives import Expression, Gate, Not, Row, Term, every, one_of, rows_for, terms_in
from tagmatch.model.where.areas import KINDS
from tagmatch.model.where.comparisons import DURATION, IN_QUOTES, MIRRORED, NOW, nanoseconds_in
from tagmatch.model.where.constraints import KEYWORDS, MANY, NETWORK, OPERATORS, Constraint, Operator, Where, span_for
from tagmatch.model.where.declared import Declared, name_read, operands_read, reading
from tagmatch.model.where.outlines import Corridor, Polygon
from tagmatch.model.where.types import DECIMAL, TYPES, network_of, typed_of
from tagmatch.model.where.values import Value, check_name, checked_text, is_reserved, quoted

# As many expressions as a batch of a file has: each is read as the batch is checked, and again as its sets are staged
_REMEMBERED = 1 << 16

# -- expressions, and the rows that are stored for them ----------------------------------------------------------------


def stored_rows(text: str, *, plane: bool, declared: Declared | None = None) -> list[list[str]]:
    """The rows of tags, not to be changed, that are stored for an expression, as attributes are declared.

    Errors are those of `rows_of`; FilterError also names the field of an area out of this geometry.
    """
    if not isinstance(text, str):
        raise _no_text(text)
    return _stored_rows(text, plane, declared)


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


# -- grammar -----------------------------------------------------------------------------------------------------------


_NAME, _VALUE = "(NAME | QUOTED_NAME)", "(NUMBER | TEXT | TRUE | FALSE | typed)"


#: Those whose operands may be attributes, which are compared one by one; and by which operators
_AS_PAIRS = {"between": (">=", "<="), "in": ("=",)}


def _rule(terminal: str, own: Operator) -> str:
    """The rule of an operator's tests; `terminal` names a symbol."""
    words = terminal if own.is_symbol else " ".join(f'"{word}"' for word in own.name.split())
    operand = "TEXT" if own.takes == "texts" else f"({_VALUE} | _later)" if own.name in _AS_PAIRS else _VALUE
    if own.count == 0:
        return f'{words} "(" {_NAME} ")"'
    if own.count == MANY:
        operand = f"({operand} | network)"
        return f'{_NAME} {words} ("{{" {operand} ("," {operand})* "}}" | network)'
    return f"{_NAME} {words} {operand}" + f' "and" {operand}' * (own.count - 1)


# What is negated is written with `not`
_BY_RULE = {f"operator{number}": own for number, own in enumerate(OPERATORS.values()) if not own.negated}
_SIGNS = {f"_{rule.upper()}": own.name for rule, own in _BY_RULE.items() if own.is_symbol}
_RULES = [f"{_rule(f'_{rule.upper()}', own)} -> {rule}" for rule, own in _BY_RULE.items()]

# Those by which attributes are compared; a name alone stands on the left in both kinds of rules
_COMPARED = {f"{rule}_of_two": own.name for rule, own in _BY_RULE.items() if own.name in MIRRORED}
_SIDES = (
    f"{_NAME} SIGN _later", f"{_NAME} DURATION+ SIGN _later", "NOW DURATION* SIGN _later",
    f"{_NAME} MINUS ({_NAME} | NOW) SIGN DURATION+", f"NOW MINUS {_NAME} SIGN DURATION+",
)  # fmt: skip
_RULES += [
    f"{side.replace('SIGN', '_' + rule.removesuffix('_of_two').upper())} -> {rule}"
    for rule in _COMPARED
    for side in _SIDES
]

_GRAMMAR = (
    r"""
?any: all ("or" all)*
?all: one ("and" one)*
?one: "not" one -> negation
    | "(" any ")"
    | test
?test: ("tags" | _ALL_OF "tags") "{" TEXT ("," TEXT)* "}" -> tags
     | _ANY_OF "tags" "{" TEXT ("," TEXT)* "}"    -> any_tag
     | AT_LEAST "{" any ("," any)* "}"           -> at_least
     | AT_LEAST "tags" "{" TEXT ("," TEXT)* "}"  -> at_least_tags
     | "within" CIRCLE "(" NUMBER "," NUMBER "," NUMBER ")"        -> within
     | "within" BOX "(" NUMBER "," NUMBER "," NUMBER "," NUMBER ")" -> within
     | "within" NEAR "(" NUMBER ")"              -> within
     | "within" POLYGON                          -> within_polygon
     | "within" CORRIDOR                         -> within_corridor
     | OPERATORS
_later: (NAME | QUOTED_NAME | NOW) DURATION*
typed: TYPE (TEXT | "(" TEXT ")")
network: CIDR (TEXT | "(" TEXT ")")
SIGNS
AT_LEAST.1: /at\s+least\s+[0-9]+\s+of(?=\s*\{|\s+tags\b)/
_ALL_OF.1: /all\s+of(?=\s+tags\b)/
_ANY_OF.1: /any\s+of(?=\s+tags\b)/
TYPE.1: /(?:TYPES)(?=\s*(?:\(\s*)?")/
CIDR.1: /cidr(?=\s*(?:\(\s*)?")/
DURATION.1: /SPAN/
NOW.1: /now\s*\(\s*\)/
MINUS: "-"
TRUE: "true"
FALSE: "false"
CIRCLE.1: /circle(?=\s*\()/
BOX.1: /box(?=\s*\()/
NEAR.1: /near(?=\s*\()/
POLYGON.1: /(?:multi)?polygon\s*NESTED/i
CORRIDOR.1: /(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*m\s+of\s+(?:multi)?linestring\s*NESTED/i
NAME: /[A-Za-z_][A-Za-z0-9_.]*/
QUOTED_NAME: /`(?:[^`]|``)*`/
NUMBER: /[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?/
TEXT: /"(?:[^"\\]|\\.)*"/s
SPACE: /\s+/
%ignore SPACE
""".replace("OPERATORS", "\n     | ".join(_RULES))
    .replace("SIGNS", "\n".join(f'{terminal}: "{sign}"' for terminal, sign in _SIGNS.items()))
    .replace("SPAN", DURATION)
    .replace("TYPES", "|".join((*TYPES, DECIMAL)))
    .replace("NESTED", r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
)

_TYPED = frozenset((*TYPES, DECIMAL, NETWORK))
_NAMES = ("NAME", "QUOTED_NAME", "NOW")
_LINE_END = "\n"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_ESCAPE = re.compile(r'\\(?:(["\\nt])|u([0-9a-fA-F]{4})|.)', re.DOTALL)
_UNESCAPED = {'"': '"', "\\": "\\", "n": "\n", "t": "\t"}
_LONGEST_FOUND = 40

_BETWEEN = [own for own in _BY_RULE.values() if own.count]
_VALUES = {"NUMBER", "TEXT", "TYPE", "TRUE", "FALSE"}
_TIME_WRITTEN = "the message's time is written now(), and an attribute of this name in backquotes"
_VALUE_WORDS = 'a value (a number, "text", true or false)'
#: What several terminals are together, in words; greater sets first
_EXPECTED = (
    ({own.name.split()[0].upper() for own in _BETWEEN if not own.is_symbol} | {*_SIGNS, "DURATION", "MINUS"},
     f"an operator ({', '.join(own.name for own in _BETWEEN[:-1])} or {_BETWEEN[-1].name})"),
    ({*_SIGNS} & {f"_{rule.removesuffix('_of_two').upper()}" for rule in _COMPARED}, f"one of {' '.join(MIRRORED)}"),
    ({"NAME", "QUOTED_NAME", "NOW", "NOT", "LPAR", "EXISTS", "TAGS", "WITHIN", "_ALL_OF", "_ANY_OF", "AT_LEAST"},
     "a test, such as price < 10"),
    (_VALUES | {"NAME", "QUOTED_NAME", "NOW"}, f"{_VALUE_WORDS} or an attribute"),
    (_VALUES | {"CIDR"}, _VALUE_WORDS),
    (_VALUES, _VALUE_WORDS),
    ({"CIRCLE", "BOX", "NEAR", "POLYGON", "CORRIDOR"},
     "an area (circle(lon, lat, metres), box(west, south, east, north), near(metres), polygon((lon lat, …)) or "
     "500 m of linestring(lon lat, …))"),
    ({"NAME", "QUOTED_NAME", "NOW"}, "the name of an attribute or now()"),
    ({"NAME", "QUOTED_NAME"}, "the name of an attribute"),
    ({"TEXT"}, "a text in double quotes"), ({"NUMBER"}, "a number"),
    ({"LPAR"}, '"("'), ({"LBRACE", "CIDR"}, '"{"'), ({"LBRACE"}, '"{"'), ({"COMMA"}, '","'), ({"RBRACE"}, '"}"'),
    ({"DURATION", "AND"}, '"and"'), ({"DURATION", "RPAR"}, '")"'), ({"DURATION"}, "a duration, such as 7 days"),
    ({"AND"}, '"and"'), ({"OR"}, '"or"'), ({"IN"}, '"in"'), ({"RPAR"}, '")"'), ({"$END"}, "the end"),
)  # fmt: skip
#: Operators and words of other languages, in small letters, and their equals in this one
_WRITTEN_HERE = {
    "&&": "and", "&": "and", "||": "or", "|": "or", "!": "not",
    **{written: own.name for own in OPERATORS.values() for written in own.elsewhere},
    **{word: word for word in KEYWORDS},
}  # fmt: skip
_OPERATOR_OR_WORD = re.compile(r"[=<>!&|]+|[^\W\d]\w*")
_UNCLOSED = {'"': 'a " that closes this text', "`": "a ` that closes this name"}


def _parse(text: str) -> Expression:
    """The expression as a tree, in which `and` and `or` have all parts that follow each other in the text."""
    if not isinstance(text, str):
        raise _no_text(text)
    try:
        return cast(Expression, _PARSER.parse(text))
    except UnexpectedInput as error:
        position, message = _unexpected(error, text)
    except _MistakeError as error:
        position, message = error.args
    line = f"line {text.count(_LINE_END, 0, position) + 1}, " if _LINE_END in text else ""
    raise FilterError(f"where: {line}column {position - text.rfind(_LINE_END, 0, position)}: {message}") from None


def _no_text(given: object) -> InvalidTypeError:
    return InvalidTypeError(f"where must be a str, not {type(given).__name__} {given!r:.80}")


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
        return "; put texts in double quotes"
    if character in ("(", "[") and "LBRACE" in accepted:
        return "; put values in braces"
    if there.isidentifier() and there not in KEYWORDS and ("NUMBER" in accepted or {"DURATION", "AND"} <= accepted):
        return "; put texts in double quotes"
    if character.isalpha() and not character.isascii():
        return "; put a name that is no plain word in backquotes"
    return ""


def _accepted(text: str) -> set[str]:
    """The terminals that may follow on this text.

    The parser that found something else need not know all of them: it may have taken the end of a test for granted.
    """
    parser = _PARSER.parse_interactive(text)
    parser.exhaust_lexer()
    return set(parser.accepts())  # type: ignore[no-untyped-call]


def _start(token: Token) -> int:
    # Tokens that the lexer made have one
    return cast(int, token.start_pos)


def _shown(found: str) -> str:
    found = found.removeprefix('"').removesuffix('"')
    return quoted(found if len(found) <= _LONGEST_FOUND else found[: _LONGEST_FOUND - 1] + "…")


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
        return every(list(map(_tag, texts)))

    def any_tag(self, *texts: Token) -> Expression:
        return one_of(list(map(_tag, texts)))

    def at_least(self, counted: Token, *parts: Expression) -> Expression:
        least = int(re.findall("[0-9]+", counted)[0][:_LONGEST_FOUND])
        if not 1 <= least <= len(parts):
            said = f"{counted.split()[2][:_LONGEST_FOUND]} of {len(parts)}"
            raise _MistakeError(_start(counted), f"there is no {said}: the number is from 1 to {len(parts)} here")
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
            raise _MistakeError(_start(wrong[0] if wrong else at), str(error)) from None

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
        raise _MistakeError(_start(token), str(error)) from None


def _test_of(own: Operator) -> Callable[[list[Token]], Constraint]:
    def test(tokens: list[Token]) -> Constraint:
        name, *operands = tokens
        values = [_value(operand) for operand in operands]
        try:
            attribute = _attribute(name)
            return Constraint.of(attribute, own.name, operands_read(attribute, own, values))
        except (InvalidTypeError, InvalidValueError) as error:
            raise _MistakeError(_start(_wrong(own, tokens, values)), str(error)) from None

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
        operators = _AS_PAIRS[own.name]
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
                    raise _MistakeError(_start(token), f"expected + or - before the duration {_shown(token)}")
                try:
                    later += nanoseconds_in(token) * (1 if place > second else -1)
                except InvalidValueError as error:
                    raise _MistakeError(_start(token), str(error)) from None
        for name in names:
            instead = f"; {_TIME_WRITTEN}" if name == "now" else _instead(name, 0, set())
            if name.type == "NAME" and instead:  # as `True` and `null`
                raise _MistakeError(_start(name), f"expected {_VALUE_WORDS}, found {_shown(name)}{instead}")
        if operator in IN_QUOTES and len(tokens) == len(names) and names[1].type == "NAME":  # as `city = Nice`
            raise _MistakeError(
                _start(names[1]),
                f"expected {_VALUE_WORDS}, found {_shown(names[1])}; put a text in double quotes, and an attribute "
                "in backquotes here",
            )
        left, right = (NOW if name.type == "NOW" else _attribute(name) for name in names)
        for name in names:
            try:
                name_read(NOW if name.type == "NOW" else _attribute(name))
            except InvalidValueError as error:
                raise _MistakeError(_start(name), str(error)) from None
        try:
            return Constraint.compared(left, operator, right, later)
        except InvalidValueError as error:
            raise _MistakeError(_start(names[1]), str(error)) from None

    return compared


def _wrong(own: Operator, tokens: list[Token], values: list[Value]) -> Token:
    """Which token is wrong of those of a test that an operator does not take, the last one if they are so together."""
    try:
        name = _attribute(tokens[0])
        check_name(name)
        name_read(name)
        for token, value in zip(tokens[1:], values, strict=True):
            tokens = [token, tokens[-1]]
            (value,) = operands_read(name, own, [value])
            span_for(own, value)
    except (InvalidTypeError, InvalidValueError):
        return tokens[0]
    return tokens[-1]


def _attribute(token: Token) -> str:
    return str(token) if token.type == "NAME" else token[1:-1].replace("``", "`")


def _value(token: Token) -> Value:
    if token.type == "TEXT":
        return _text(token)
    if token.type in ("TRUE", "FALSE"):
        return token.type == "TRUE"
    if token.type in _TYPED:
        try:
            text = _text(token)
            return network_of(text) if token.type == NETWORK else typed_of(token.type, text)
        except InvalidValueError as error:
            raise _MistakeError(_start(token), str(error)) from None
    if not _INTEGER.fullmatch(token):
        return float(token)
    # Python does not read thousands of digits; no attribute may have so great a number either
    return int(token) if len(token) <= _LONGEST_FOUND else 2**64


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
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _tag(token: Token) -> str:
    try:
        tag = checked_text(_text(token))
    except InvalidValueError as error:
        raise _MistakeError(_start(token), str(error)) from None
    if is_reserved(tag):
        raise _MistakeError(_start(token), "a tag must not begin with U+0000 and +, - or =, as constraints do")
    return tag


_READER = _Reader()
for _rule_name, _operator in _BY_RULE.items():
    setattr(_READER, _rule_name, (_pairs_of if _operator.name in _AS_PAIRS else _test_of)(_operator))
for _rule_name, _sign in _COMPARED.items():
    setattr(_READER, _rule_name, _comparison_of(_sign))
_PARSER = Lark(_GRAMMAR, start="any", parser="lalr", lexer="basic", transformer=_READER)
