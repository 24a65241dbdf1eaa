"""Declared attributes: what an index says of their types and of how their texts are analysed.

Texts become values of the declared type, in conditions and messages alike. If nothing else is let in, other names and
other values are errors. An attribute with words has a second one, hidden from users: all words in a row, for phrases.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.names import Attribute, near_match
from tagmatch.model.where.analyzers import Analyzer, analyzer_of
from tagmatch.model.where.comparisons import NOW
from tagmatch.model.where.constraints import MANY, OPERATORS, PHRASE, PHRASES, Constraint, Operator, phrase_text
from tagmatch.model.where.types import Typed, Version, decimal_of, network_of, typed_of
from tagmatch.model.where.values import NAN, NUMBERS, TEXTS, Value, Written, key_of, literal, of_numpy, quoted

#: What values of a declared type are
Kind = Literal["text", "bool", "integer", "float", "decimal", "time", "version", "ip"]
#: Those whose values are numbers
NUMERIC = ("integer", "float", "decimal")

_KEYS = {"text": TEXTS[0], "bool": "b", "time": "pa", "version": "pb", "ip": "pc"}
_BEGINNINGS: tuple[tuple[str, Kind], ...] = (
    ("int", "integer"), ("uint", "integer"), ("float", "float"), ("decimal", "decimal"), ("date", "time"),
    ("timestamp", "time"), ("version", "version"), ("ip", "ip"), ("bool", "bool"), ("string", "text"),
)  # fmt: skip
#: Kinds whose values are in quotes, which they lack if they are numbers
_IN_QUOTES = {
    "time": 'put dates and times in quotes, as in "2026-11-28"',
    "version": 'put versions in quotes, as in "1.10.0": without, 1.10 is the number 1.1',
    "ip": 'put addresses in quotes, as in "10.0.0.1"',
}
_INTEGER = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
#: Types of several values of an attribute
SEVERAL = (list, tuple, set, frozenset)


def kind_named(type_name: str) -> Kind:
    """What values of the type that is written so are."""
    for beginning, kind in _BEGINNINGS:
        if type_name.startswith(beginning):
            return kind
    raise InvalidValueError(f"no attribute has the type {type_name!r:.60}")


# -- values ------------------------------------------------------------------------------------------------------------


def _bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise InvalidValueError(f"it takes true or false, not {text!r:.60}")
    return text == "true"


def _integer(text: str) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise InvalidValueError(f"it takes an integer, such as 17, not {text!r:.60}")
    number = int(text)
    key_of(number)
    return number


def _time(text: str) -> Value:
    if not _DATE.match(text):
        raise InvalidValueError(
            f'a date is written as in "2026-11-28", and a time as in "2026-11-28T10:00:00Z", not {text!r:.60}'
        )
    return typed_of("date" if _DATE.fullmatch(text) else "timestamp", text)


def _number(text: str) -> Decimal:
    try:
        return decimal_of(text)
    except InvalidValueError:
        raise InvalidValueError(f"it takes a number, such as 9.5, not {text!r:.60}") from None


def _decimal(text: str) -> Decimal:
    number = _number(text)
    key_of(number)
    return number


_READ: dict[Kind, Callable[[str], Value]] = {
    "text": str,
    "bool": _bool,
    "integer": _integer,
    "float": lambda text: float(_number(text)),
    "decimal": _decimal,
    "time": _time,
    "version": lambda text: typed_of("version", text),
    "ip": lambda text: typed_of("ip", text),
}


@lru_cache(64)
def decimals_of(attributes: tuple[Attribute, ...]) -> frozenset[str]:
    """The names of those that are declared as decimals."""
    return frozenset(each.name for each in attributes if kind_named(each.type) == "decimal")


def value_in(kind: Kind, text: str) -> Value:
    """The value of this kind that a text writes; InvalidValueError."""
    return _READ[kind](text)


def exact_decimal(number: float) -> Decimal | float:
    """The decimal that is written as a double is, or as an expression has it; infinities and NaN stay."""
    if not math.isfinite(number):
        return number
    return decimal_of(number.text if isinstance(number, Written) else repr(float(number)))


def _is_of(kind: Kind, value: object) -> bool:
    """Whether a value, which attributes can have, is of this kind."""
    key = key_of(value)
    if kind not in NUMERIC:
        return key.startswith(_KEYS[kind])
    if kind == "integer" and key != NAN:
        return key.startswith(NUMBERS[0]) and not isinstance(value, float | Decimal)
    return key[0] in (NAN, NUMBERS[0])


class _Own(NamedTuple):
    """What is declared of an attribute, as it is needed."""

    attribute: Attribute
    kind: Kind
    analyzer: Analyzer | None

    def value(self, value: Any) -> Value:
        """A value, which a text may write, as one of this type; InvalidTypeError, InvalidValueError."""
        if isinstance(value, str) and not isinstance(value, Version):
            return value_in(self.kind, value)
        plain = value if isinstance(value, float) else of_numpy(value)
        if self.kind == "decimal" and isinstance(plain, float):
            return exact_decimal(plain)
        if not _is_of(self.kind, value):
            raise InvalidTypeError(f"it takes values of {self.attribute.type}, not {_shown(value)}")
        return value  # type: ignore[no-any-return]


def _shown(value: Any) -> str:
    return literal(value) if isinstance(value, bool | int | str | Decimal | Typed) else f"{value!r:.60}"


# -- conditions, and single messages -----------------------------------------------------------------------------------


class Declared:
    """The declared attributes of an index."""

    def __init__(self, attributes: Iterable[Attribute], *, strict: bool) -> None:
        self.strict, attributes = strict, tuple(attributes)
        self.decimals = decimals_of(attributes)
        self._own = {
            each.name: _Own(each, kind_named(each.type), analyzer_of(each.analyzer) if each.analyzer else None)
            for each in attributes
        }

    def __bool__(self) -> bool:
        """Whether anything is declared."""
        return self.strict or bool(self._own)

    def __getitem__(self, name: str) -> _Own | None:
        return self._own.get(name)

    def __iter__(self) -> Iterator[_Own]:
        return iter(self._own.values())

    def check_name(self, name: str) -> None:
        """See that an attribute may have this name; InvalidValueError."""
        if self.strict and name != NOW and name.removesuffix(PHRASES) not in self._own:
            raise InvalidValueError(f"attribute {quoted(name)} is not declared{near_match(name, [*self._own])}")

    def operands(self, name: str, operator: Operator, given: Sequence[Value]) -> Sequence[Value]:
        """The operands of a test as values of the type, and analysed; InvalidTypeError, InvalidValueError."""
        self.check_name(name)
        own = self._own.get(name)
        if operator.name == PHRASE:
            if own is None or own.analyzer is None or not own.analyzer.has_words:
                raise InvalidValueError(f"phrase needs an attribute with words: declare {quoted(name)} with words()")
            found = " ".join(own.analyzer.forms(given[0])) if isinstance(given[0], str) else ""
            if not found:
                raise InvalidValueError(f"phrase needs a text with a word, not {_shown(given[0])}")
            return [found]
        if own is None:
            return given
        if operator.takes == "texts":
            if self.strict and own.kind != "text":
                raise InvalidTypeError(f"{operator.name} is for texts, and {quoted(name)} is of {own.attribute.type}")
            is_part = own.analyzer is not None and operator.name in ("prefix", "suffix", "contains")
            return [own.analyzer.part(text) for text in given] if is_part else given  # type: ignore[union-attr, arg-type]
        return [self._operand(own, operator, value) for value in given]

    def _operand(self, own: _Own, operator: Operator, value: Value) -> Value:
        if own.kind == "ip" and operator.count == MANY and isinstance(value, str) and "/" in value:
            return network_of(value)
        try:
            found = value if key_of_network(value) else own.value(value)
        except (InvalidTypeError, InvalidValueError) as error:
            is_text = isinstance(value, str) and not isinstance(value, Version)
            if own.kind in _IN_QUOTES:
                said = (
                    f"{_shown(value)} is no {own.attribute.type}: {error}"
                    if is_text
                    else f"{error}; {_IN_QUOTES[own.kind]}"
                )
            elif self.strict and not (own.kind == "integer" and _is_of("float", value)):
                said = str(error)
            else:
                return value
            raise type(error)(f"attribute {quoted(own.attribute.name)}: {said}") from None
        if own.analyzer is None or not isinstance(found, str):
            return found
        forms = own.analyzer.forms(found)
        if len(forms) != 1:
            raise InvalidValueError(
                f"{quoted(own.attribute.name)} has words, and {operator.name} takes one word, not {_shown(found)}: "
                f"see {PHRASE}"
            )
        return forms[0]

    def message(self, attributes: Any) -> dict[str, Any]:
        """The attributes of one message as values of their types, and analysed; InvalidTypeError, InvalidValueError."""
        if not isinstance(attributes, Mapping):
            raise InvalidTypeError(f"attributes must be a mapping from names to values, not {attributes!r:.60}")
        found = {}
        for name, given in attributes.items():
            own = self._own.get(name)
            if own is None:
                if given is not None:
                    self.check_name(name)
                found[name] = given
                continue
            several = given if isinstance(given, SEVERAL) else [given]
            values = [self.value(own, each) for each in several if each is not None]
            if own.analyzer is not None:
                rows = [own.analyzer.forms(each) for each in values if isinstance(each, str)]
                values = [each for each in values if not isinstance(each, str)] + [form for row in rows for form in row]
                if own.analyzer.has_words:
                    found[name + PHRASES] = [phrase_text(row) for row in rows if row]
            found[name] = values
        return found

    def value(self, own: _Own, value: Any) -> Any:
        """A value of a message as one of the type; InvalidTypeError, InvalidValueError."""
        try:
            return own.value(value)
        except (InvalidTypeError, InvalidValueError) as error:
            if self.strict:
                raise type(error)(f"attribute {quoted(own.attribute.name)}: {error}") from None
            return value


def key_of_network(value: Value) -> bool:
    """Whether an operand is a network."""
    return not isinstance(value, bool | int | float | str | Decimal | Typed)


def declared_tag(tag: str, declared: Declared | None, *, is_phrase: bool) -> str:
    """The tag of a constraint, which a column has, as if an expression said so; a phrase has that of `contains`.

    InvalidTypeError, InvalidValueError.
    """
    constraint = Constraint.of_tag(tag)
    tests = constraint.tests
    operator, operands = tests[0]
    operator, name = OPERATORS[PHRASE] if is_phrase else operator, constraint.attribute
    if declared is not None:
        if len(tests) > 1 or declared[name] is None:
            declared.check_name(name)
        else:
            if name in declared.decimals:  # doubles in columns became decimals before
                operands = [Decimal(each) if isinstance(each, float) else each for each in operands]
            operands = declared.operands(name, operator, operands)
    found = Constraint.of(name, operator.name, operands) if is_phrase or operands is not tests[0][1] else constraint
    return found.negation.tag if constraint.negated and found is not constraint else found.tag


#: Nothing is declared
NOTHING = Declared((), strict=False)
_declared: ContextVar[Declared | None] = ContextVar("declared", default=None)


@lru_cache(64)
def declared_of(attributes: tuple[Attribute, ...], *, strict: bool) -> Declared:
    """The declared attributes of an index that keeps these."""
    return Declared(attributes, strict=strict) if attributes or strict else NOTHING


@contextmanager
def reading(declared: Declared | None) -> Iterator[None]:
    """Read conditions, in the block, as an index with these attributes does; `None`: as they are stored."""
    token = _declared.set(declared)
    try:
        yield
    finally:
        _declared.reset(token)


def name_read(name: str) -> None:
    """See that an attribute may have this name, in such a block; InvalidValueError."""
    declared = _declared.get()
    if declared is not None:
        declared.check_name(name)


def operands_read(name: str, operator: Operator, given: Sequence[Value]) -> Sequence[Value]:
    """The operands of a test, in such a block."""
    declared = _declared.get()
    return given if declared is None else declared.operands(name, operator, given)
