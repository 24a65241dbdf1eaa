"""The grammar of expressions, of `where` and `only` as of scores, and the words for mistakes in them."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cached_property
from typing import Generic, TypeVar, cast

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken

from tagmatch.model.errors import FilterError, InvalidValueError
from tagmatch.model.where.comparisons import DURATION, MIRRORED
from tagmatch.model.where.constraints import KEYWORDS, MANY, OPERATORS, Operator
from tagmatch.model.where.types import DECIMAL, TYPES, network_of
from tagmatch.model.where.values import quoted

Tree = TypeVar("Tree")

_NAME, _VALUE = "(NAME | QUOTED_NAME)", "(NUMBER | TEXT | TRUE | FALSE | typed)"


#: A list of texts and numbers alone, as one token; in the grammar that is tried first on long texts
LISTED = "LISTED"
_OR_LISTED = f" | {LISTED}"
_LONG = 1_000

#: Those whose operands may be attributes, which are compared one by one; and by which operators
AS_PAIRS = {"between": (">=", "<="), "in": ("=",)}


def _rule(terminal: str, own: Operator) -> str:
    """The rule of an operator's tests; `terminal` names a symbol."""
    words = terminal if own.is_symbol else " ".join(f'"{word}"' for word in own.name.split())
    operand = "TEXT" if own.takes == "texts" else f"({_VALUE} | _later)" if own.name in AS_PAIRS else _VALUE
    if own.count == 0:
        return f'{words} "(" {_NAME} ")"'
    if own.count == MANY:
        operand = f"({operand} | network)"
        return f'{_NAME} {words} ("{{" {operand} ("," {operand})* "}}" | network{_OR_LISTED})'
    return f"{_NAME} {words} {operand}" + f' "and" {operand}' * (own.count - 1)


# What is negated is written with `not`
BY_RULE = {f"operator{number}": own for number, own in enumerate(OPERATORS.values()) if not own.negated}
_SIGNS = {f"_{rule.upper()}": own.name for rule, own in BY_RULE.items() if own.is_symbol}
_TESTS = [f"{_rule(f'_{rule.upper()}', own)} -> {rule}" for rule, own in BY_RULE.items()]

# Those by which attributes are compared; a name alone stands on the left in both kinds of rules
COMPARED = {f"{rule}_of_two": own.name for rule, own in BY_RULE.items() if own.name in MIRRORED}
_SIDES = (
    f"{_NAME} SIGN _later", f"{_NAME} DURATION+ SIGN _later", "NOW DURATION* SIGN _later",
    f"{_NAME} MINUS ({_NAME} | NOW) SIGN DURATION+", f"NOW MINUS {_NAME} SIGN DURATION+",
)  # fmt: skip
_TESTS += [
    f"{side.replace('SIGN', '_' + rule.removesuffix('_of_two').upper())} -> {rule}"
    for rule in COMPARED
    for side in _SIDES
]

#: The rules of each kind of expression, by the first one
_RULES = {
    "any": r"""
?any: all ("or" all)*
?all: one ("and" one)*
?one: "not" one -> negation
    | "(" any ")"
    | test
?test: ("tags" | _ALL_OF "tags") ("{" TEXT ("," TEXT)* "}" | LISTED) -> tags
     | _ANY_OF "tags" ("{" TEXT ("," TEXT)* "}" | LISTED) -> any_tag
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
""".replace("OPERATORS", "\n     | ".join(_TESTS)),
    "sum": """
?sum: product
    | sum (PLUS | MINUS) product -> joined
?product: factor
    | product TIMES factor -> joined
?factor: UNSIGNED -> number
    | (NAME | QUOTED_NAME) -> name
    | MINUS factor -> negate
    | "(" sum ")"
    | OF_SEVERAL "(" sum ("," sum)+ ")" -> of_several
""",
}
_UNSIGNED = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_LITERAL = rf'"(?:[^"\\]|\\.)*+"|[+-]?{_UNSIGNED}'
_TERMINALS = (
    r"""
SIGNS
AT_LEAST.1: /at\s+least\s+[0-9]+\s+of(?=\s*\{|\s+tags\b)/
_ALL_OF.1: /all\s+of(?=\s+tags\b)/
_ANY_OF.1: /any\s+of(?=\s+tags\b)/
TYPE.1: /(?:TYPES)(?=\s*(?:\(\s*)?")/
CIDR.1: /cidr(?=\s*(?:\(\s*)?")/
DURATION.1: /SPAN/
NOW.1: /now\s*\(\s*\)/
PLUS: "+"
MINUS: "-"
TIMES: "*"
OF_SEVERAL.1: /(?:min|max)(?=\s*\()/
UNSIGNED: /UNSIGNED_NUMBER/
TRUE: "true"
FALSE: "false"
CIRCLE.1: /circle(?=\s*\()/
BOX.1: /box(?=\s*\()/
NEAR.1: /near(?=\s*\()/
POLYGON.1: /(?:multi)?polygon\s*NESTED/i
CORRIDOR.1: /UNSIGNED_NUMBER\s*m\s+of\s+(?:multi)?linestring\s*NESTED/i
NAME: /[A-Za-z_][A-Za-z0-9_.]*/
QUOTED_NAME: /`(?:[^`]|``)*`/
NUMBER: /[+-]?UNSIGNED_NUMBER/
TEXT: /"(?:[^"\\]|\\.)*"/s
LISTED.1: /\{\s*(?:LITERAL)(?:\s*,\s*(?:LITERAL))*+\s*\}/s
SPACE: /\s+/
%ignore SPACE
""".replace("SIGNS", "\n".join(f'{terminal}: "{sign}"' for terminal, sign in _SIGNS.items()))
    .replace("LITERAL", _LITERAL)
    .replace("UNSIGNED_NUMBER", _UNSIGNED)
    .replace("SPAN", DURATION)
    .replace("TYPES", "|".join((*TYPES, DECIMAL)))
    .replace("NESTED", r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
)

_LINE_END = "\n"
LONGEST_FOUND = 40

_BETWEEN = [own for own in BY_RULE.values() if own.count]
_VALUES = {"NUMBER", "TEXT", "TYPE", "TRUE", "FALSE"}
VALUE_WORDS = 'a value (a number, "text", true or false)'
#: What several terminals are together, in words; greater sets first
_EXPECTED = (
    ({own.name.split()[0].upper() for own in _BETWEEN if not own.is_symbol} | {*_SIGNS, "DURATION", "MINUS"},
     f"an operator ({', '.join(own.name for own in _BETWEEN[:-1])} or {_BETWEEN[-1].name})"),
    ({*_SIGNS} & {f"_{rule.removesuffix('_of_two').upper()}" for rule in COMPARED}, f"one of {' '.join(MIRRORED)}"),
    ({"NAME", "QUOTED_NAME", "NOW", "NOT", "LPAR", "EXISTS", "TAGS", "WITHIN", "_ALL_OF", "_ANY_OF", "AT_LEAST"},
     "a test, such as price < 10"),
    ({"UNSIGNED", "NAME", "QUOTED_NAME", "MINUS", "LPAR", "OF_SEVERAL"},
     'a number, a name, "-", min(…), max(…) or "("'),
    ({"PLUS", "MINUS", "TIMES"}, "an operator (+, - or *)"),
    (_VALUES | {"NAME", "QUOTED_NAME", "NOW"}, f"{VALUE_WORDS} or an attribute"),
    (_VALUES | {"CIDR"}, VALUE_WORDS),
    (_VALUES, VALUE_WORDS),
    ({"CIRCLE", "BOX", "NEAR", "POLYGON", "CORRIDOR"},
     "an area (circle(lon, lat, metres), box(west, south, east, north), near(metres), polygon((lon lat, …)) or "
     "500 m of linestring(lon lat, …))"),
    ({"NAME", "QUOTED_NAME", "NOW"},
     "the name of an attribute or now() (to test the time itself, give messages an attribute such as today)"),
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
#: How tests are counted, by the words that begin it; without what follows these, they would be an attribute and a word
_COUNTED = {
    "at least": "at least 2 of {…}", "any of": "any of tags {…}, or at least 1 of {…} for conditions",
    "all of": "all of tags {…}, or conditions with and between them",
}  # fmt: skip
_OPERATOR_OR_WORD = re.compile(r"[=<>!&|~:]+|[^\W\d]\w*")
# A version, a date, an address or a text that begins with a digit, without quotes
_UNQUOTED = re.compile(r"(?<![\w.`\"])[vV]?[0-9][\w.:/+-]*")
_TYPE_BEFORE = re.compile(rf"\b(?:{'|'.join((*TYPES, DECIMAL, 'cidr'))})\s*\(?\s*$")
_SHORT_DURATION = re.compile(r"[+-]\s*[0-9]+\s*(?:ms|[smhdwMy])\b")
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_LISTED = re.compile(_LITERAL, re.DOTALL)
_UNCLOSED = {'"': 'a " that closes this text', "`": "a ` that closes this name"}


class Language(Generic[Tree]):
    """Reads the expressions that begin with a rule of the grammar; `what` is what messages call them."""

    def __init__(self, what: str, start: str, reader: Transformer[Token, Tree]) -> None:
        self._what = what
        self._start, self._reader = start, reader
        self._parser = self._made(_RULES[start].replace(_OR_LISTED, ""))

    def _made(self, rules: str) -> Lark:
        return Lark(rules + _TERMINALS, start=self._start, parser="lalr", lexer="basic", transformer=self._reader)

    @cached_property
    def _of_long(self) -> Lark:
        return self._made(_RULES[self._start])

    def read(self, text: str) -> Tree:
        """The result of the reader for a text; FilterError names the column of a mistake, and the expected words."""
        if len(text) > _LONG:
            # What is wrong, and where, is said by the grammar that has a token for each value
            with suppress(UnexpectedInput, MistakeError):
                return cast(Tree, self._of_long.parse(text))
        try:
            return cast(Tree, self._parser.parse(text))
        except UnexpectedInput as error:
            position, message = _unexpected(error, text, self._parser)
        except MistakeError as error:
            position, message = error.args
        line = f"line {text.count(_LINE_END, 0, position) + 1}, " if _LINE_END in text else ""
        column = position - text.rfind(_LINE_END, 0, position)
        raise FilterError(f"{self._what}: {line}column {column}: {message}") from None


class MistakeError(Exception):
    """What is wrong, and at which character of the text."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(position, message)


def _unexpected(error: UnexpectedInput, text: str, parser: Lark) -> tuple[int, str]:
    """At which character something else was expected, and what."""
    if not isinstance(error, UnexpectedToken):
        position = cast(int, error.pos_in_stream)
        found = shown_text(text[position])
        if text[position] in _UNCLOSED and not _TEXT.match(text, position):
            return position, f"expected {_UNCLOSED[text[position]]}, found the end"
    elif error.token.type == "$END":
        position, found = len(text), "the end"
    else:
        position, found = start_of(error.token), shown_text(error.token)
    accepted = _accepted(text[:position], parser)
    found += instead(text, position, accepted)
    words = []
    for terminals, word in _EXPECTED:
        if terminals <= accepted:
            accepted -= terminals
            words.append(word)
    *most, last = words
    return position, f"expected {', '.join(most)}{' or ' if most else ''}{last}, found {found}"


def instead(text: str, position: int, accepted: set[str]) -> str:
    """How that is written which another language writes there, or nothing."""
    if "TIMES" in accepted or "UNSIGNED" in accepted:
        if text[position : position + 1] == "/":
            return "; there is no division: multiply by 0.5 instead of / 2"
        return _in_backquotes(text[position : position + 1])
    if hint := _in_quotes(text, position):
        return hint
    pieces = _OPERATOR_OR_WORD.finditer(text)
    there = next((each[0] for each in pieces if each.start() <= position < each.end()), "")
    if counted := _COUNTED.get(" ".join([*re.findall(r"\w+", text[:position])[-1:], there]).lower()):
        return f"; write {counted}"
    wanted = _WRITTEN_HERE.get(there.lower(), there)
    if wanted != there:
        return f"; {shown_text(there)} is written {shown_text(wanted)} here"
    if there.lower() in ("is", "null", "none", "nil"):
        return "; a value that is missing is found with not exists(name)"
    if "EXISTS" in accepted and there.lower() in ("true", "false"):
        return "; a test names an attribute, and a subscription that all messages satisfy has no condition"
    if _SHORT_DURATION.match(text, position):
        return "; the message's time less a week is written now() - 7 days here"
    character = text[position : position + 1]
    if character in ("'", "‘", "’", "“", "”"):
        return "; put texts in double quotes"
    if character in ("(", "[") and "LBRACE" in accepted:
        return "; put values in braces"
    if there.isidentifier() and there not in KEYWORDS and ("NUMBER" in accepted or {"DURATION", "AND"} <= accepted):
        return "; put texts in double quotes"
    return _in_backquotes(character)


def _in_quotes(text: str, position: int) -> str:
    """How a value is written that was read as a number up to this place, or nothing."""
    written = next((each[0] for each in _UNQUOTED.finditer(text) if each.start() < position < each.end()), "")
    if _TYPE_BEFORE.search(text, 0, position) or text.startswith("cidr", position):
        return "; put the value in double quotes"
    if hint := written and typed_hint(written):
        return hint
    return "; put texts in double quotes" if re.search("[^0-9._+-]", written) else ""


def typed_hint(written: str) -> str:
    """How that is written which looks like a version, a date, a time, an address or a network; or nothing."""
    for name, read in (*((name, TYPES[name].key_of) for name in sorted(TYPES)), ("cidr", network_of)):
        with suppress(InvalidValueError):
            if name != "version" or "." in written:
                read(written)
                return f"; it is written {name} {quoted(written)} here"
    return ""


def _in_backquotes(character: str) -> str:
    is_of_name = character.isalpha() and not character.isascii()
    return "; put a name that is no plain word in backquotes" if is_of_name else ""


def _accepted(text: str, parser: Lark) -> set[str]:
    """The terminals that may follow on this text.

    The parser that found something else need not know all of them: it may have taken the end of a test for granted.
    """
    begun = parser.parse_interactive(text)
    begun.exhaust_lexer()
    return set(begun.accepts())  # type: ignore[no-untyped-call]


def start_of(token: Token) -> int:
    """Where it stands, which each token knows that the lexer made."""
    return cast(int, token.start_pos)


def name_in(token: Token) -> str:
    """The name that stands there, perhaps in backquotes."""
    return str(token) if token.type == "NAME" else token[1:-1].replace("``", "`")


def values_in(token: Token) -> list[str]:
    """The texts, in their quotes, and the numbers of such a list."""
    return _LISTED.findall(token)


def shown_text(found: str) -> str:
    """A piece of an expression as messages show it."""
    found = found.removeprefix('"').removesuffix('"')
    return quoted(found if len(found) <= LONGEST_FOUND else found[: LONGEST_FOUND - 1] + "…")
