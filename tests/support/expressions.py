"""Expressions as trees of the tests' own: how they are written.

Nothing here asks the library.
"""

import math
import random
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

from oracle import OPERATORS, And, AtLeast, Compared, Not, Or, Tags, Test, Tree, Value, Within, ordered, type_of


def precedes(value: Value, other: Value) -> bool:
    """Whether it comes before the other in the order of all values: NaN, bools, numbers, texts."""
    ranks = [
        0 if value != value else 1 + ("bool", "number", "time", "version", "ip", "text").index(type_of(value))
        for value in (value, other)
    ]
    return ranks[0] < ranks[1] or (ranks[0] == ranks[1] > 0 and ordered(value) < ordered(other))


def tests_of(tree: Tree) -> list[Test]:
    match tree:
        case And(parts) | Or(parts) | AtLeast(_, parts):
            return [test for part in parts for test in tests_of(part)]
        case Not(part):
            return tests_of(part)
        case Test():
            return [tree]
    return []


# -- how trees are written ---------------------------------------------------------------------------------------------


def text_of(tree: Tree, choices: random.Random) -> str:
    """The tree in the language, one of the many ways to write it."""
    return _spaced(_words(tree, choices, 0), choices)


def _words(tree: Tree, choices: random.Random, binding: int) -> list[str]:
    """`binding`: 0 where an `or` may stand without parentheses, 1 for an `and`, 2 for a `not` or a test."""
    match tree:
        case Or(parts):
            own, words = 0, _between(parts, "or", choices, 1)
        case And(parts):
            own, words = 1, _between(parts, "and", choices, 2)
        case Not(part):
            own, words = 2, ["not", *_words(part, choices, 2)]
        case AtLeast(least, parts):
            own, words = 2, ["at", "least", str(least), "of", *_parts(parts, choices)]
        case Tags(tags):
            own, words = 2, ["tags", *_braces(tags, choices)]
        case Test(attribute, operator, operands):
            own, words = 2, _test_words(attribute, operator, operands, choices)
        case Compared():
            own, words = 2, _comparison_words(tree, choices)
        case Within(area):
            own, words = 2, ["within", *_area_words(area)]
        case _:
            raise AssertionError(tree)
    return ["(", *words, ")"] if own < binding or choices.random() < 0.1 else words


def _parts(parts: tuple[Tree, ...], choices: random.Random) -> list[str]:
    if all(isinstance(part, Tags) and len(part.tags) == 1 for part in parts) and choices.random() < 0.5:
        return ["tags", *_braces([part.tags[0] for part in parts], choices)]
    words = [each for part in parts for each in [",", *_words(part, choices, 0)]]
    return ["{", *words[1:], "}"]


def _between(parts: Iterable[Tree], word: str, choices: random.Random, binding: int) -> list[str]:
    words = [each for part in parts for each in [word, *_words(part, choices, binding)]]
    return words[1:]


def _test_words(attribute: str, operator: str, operands: tuple[Value, ...], choices: random.Random) -> list[str]:
    name = name_of(attribute, choices)
    match OPERATORS[operator].operands:
        case "none":
            return [operator, "(", name, ")"]
        case "list":
            return [name, *operator.split(), *_braces(operands, choices)]
    literals = [each for operand in operands for each in ("and", literal_of(operand, choices))]
    return [name, operator, *literals[1:]]


def _comparison_words(test: Compared, choices: random.Random) -> list[str]:
    """With either side first, and the duration at one of them, or alone on the other side of their difference."""
    mirrored = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
    left, operator, right, later = test.left, test.operator, test.right, test.later
    if choices.random() < 0.5:
        left, operator, right, later = right, mirrored.get(operator, operator), left, -later
    sides = ["now()" if name == "now()" else name_of(name, choices) for name in (left, right)]
    if choices.random() < 0.3:
        return [sides[0], "-", sides[1], operator, *_duration(later, choices)]
    if later and choices.random() < 0.3:
        return [sides[0], *_duration(-later, choices), operator, sides[1]]
    if operator in ("=", "!=") and not later and right != "now()":  # a name alone would be a text without quotes
        sides[1] = _in_backquotes(right)
    return [sides[0], operator, sides[1], *(_duration(later, choices) if later else [])]


def _duration(length: timedelta, choices: random.Random) -> list[str]:
    unit, size = choices.choice([("second", 1), ("minute", 60), ("hour", 3600), ("day", 86_400), ("week", 604_800)])
    count = Decimal(abs(length) // timedelta(microseconds=1)) / (size * 10**6)
    if count * size * 10**6 != abs(length) // timedelta(microseconds=1):  # it has no end
        unit, count = "second", Decimal(abs(length) // timedelta(microseconds=1)) / 10**6
    return ["-" if length < timedelta(0) else "+", f"{count:f}", unit + choices.choice(["", "s"])]


def _area_words(area: Any) -> list[str]:
    """Three numbers are of a circle, four of a box, and one says how near to a client."""
    names = ("lon", "lat", "metres", "west", "south", "east", "north")
    numbers = [repr(float(getattr(area, name))) for name in names if hasattr(area, name)]
    kind = {1: "near", 3: "circle", 4: "box"}[len(numbers)]
    return [kind, "(", *[each for number in numbers for each in (",", number)][1:], ")"]


def _braces(values: Iterable[Value], choices: random.Random) -> list[str]:
    words = [each for value in values for each in (",", literal_of(value, choices))]
    return ["{", *words[1:], "}"]


_PLAIN_NAME = re.compile("[A-Za-z_][A-Za-z0-9_.]*")
_OF_OPERATORS = {word for name in OPERATORS for word in name.split() if word[0].isalpha()}
WORDS = sorted({"and", "false", "or", "phrase", "tags", "true", "within"} | _OF_OPERATORS)


def name_of(attribute: str, choices: random.Random) -> str:
    if _PLAIN_NAME.fullmatch(attribute) and attribute not in WORDS and choices.random() < 0.8:
        return attribute
    return _in_backquotes(attribute)


def _in_backquotes(attribute: str) -> str:
    return "`" + attribute.replace("`", "``") + "`"


def literal_of(value: Value, choices: random.Random) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if (kind := type_of(value)) in ("time", "version", "ip") or isinstance(value, Decimal):
        text = value.isoformat(choices.choice("T ")) if isinstance(value, datetime) else str(value)
        names = {"time": "timestamp" if isinstance(value, datetime) else "date", "number": "decimal"}
        name = "cidr" if hasattr(value, "prefixlen") else names.get(kind, kind)
        return choices.choice([f'{name} "{text}"', f'{name}("{text}")', f'{name} ( "{text}" )'])
    if isinstance(value, str):
        return '"' + "".join(_character(each, choices) for each in value) + '"'
    if isinstance(value, int):
        return choices.choice(["", "+"] if value >= 0 else [""]) + str(value)
    if math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return choices.choice([repr(value), f"{value:.17e}", f"{value:.16E}"])


def _character(character: str, choices: random.Random) -> str:
    short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
    if character in '"\\' or (character in short and choices.random() < 0.5):
        return short[character]
    if choices.random() < 0.8:
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _spaced(words: list[str], choices: random.Random) -> str:
    """With a space between words that would be one without it, and perhaps elsewhere."""
    spaced = words[:1]
    for before, word in pairwise(words):
        needed = bool(re.search("[A-Za-z0-9_.]$", before) and re.match("[A-Za-z0-9_.]", word))
        spaced += [choices.choice([" ", " ", "\n", "\t  "] if needed else ["", " ", " ", "\n"]), word]
    return "".join(spaced)
