"""Conditions of our language, put together of parts, and what cannot be said in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.where.constraints import Constraint


class NotTakenError(InvalidValueError):
    """A subscription of another engine cannot be taken; the message begins with the path of the reason.

    `kind` is what the other engine calls that: the name of a query, of an operator, or of a part of the document.
    """

    def __init__(self, path: str, message: str, kind: str) -> None:
        super().__init__(f"{path}: {message}")
        self.kind = kind


class Place(NamedTuple):
    """A part of a document: its path, and the kind of query or condition around it."""

    path: str
    kind: str = "document"

    def at(self, name: str | int) -> Place:
        """A member or an item of it."""
        own = f"[{name}]" if isinstance(name, int) else f".{name}" if self.path else name
        return Place(f"{self.path}{own}", self.kind)

    def of(self, kind: str) -> Place:
        """The same part, which begins a query of this kind."""
        return Place(self.path, kind)

    def refused(self, message: str) -> NotTakenError:
        """The error that says why it cannot be taken."""
        return NotTakenError(self.path, message, self.kind)

    def never(self, why: str) -> Condition:
        """What no message can satisfy, which is an error if the whole is so."""
        return Condition(_NEVER, reason=self.refused(f"no message can satisfy it: {why}"))

    def list_of(self, given: object) -> list[tuple[Any, Place]]:
        """The items of a list, or the only one without one, with their places."""
        if not isinstance(given, list):
            return [(given, self)]
        return [(each, self.at(number)) for number, each in enumerate(given)]

    def object_of(self, given: object, known: Iterable[str] | None = None) -> dict[str, Any]:
        """An object of JSON, which has no other members than the known ones."""
        if not isinstance(given, dict):
            raise self.refused(f"an object must be here, not {given!r:.60}")
        for name in given:
            if known is not None and name not in known:
                raise self.at(name).refused(f"{self.kind} with {name!r} is not taken")
        return given

    def text_of(self, given: object) -> str:
        """A text."""
        if not isinstance(given, str):
            raise self.refused(f"a text must be here, not {given!r:.60}")
        return given

    def test(self, attribute: str, operator: str, *operands: Any) -> Condition:
        """A test of our table of operators."""
        try:
            return Condition(Constraint.of(attribute, operator, operands).text, _TEST)
        except (InvalidTypeError, InvalidValueError) as error:
            raise self.refused(str(error)) from None

    def compared(self, attribute: str, operator: str, right: str, later: int = 0) -> Condition:
        """An attribute is compared with another one, a number of nanoseconds later, which may be the message's time."""
        try:
            return Condition(Constraint.compared(attribute, operator, right, later).text)
        except InvalidValueError as error:
            raise self.refused(str(error)) from None


_ANY, _ALL, _TEST = range(3)
_NEVER = "never"


class Condition(NamedTuple):
    """A condition as our language has it, and what holds it together: `or`, `and`, or nothing, as it is one test."""

    text: str
    binding: int = _TEST
    reason: NotTakenError | None = None  # Why no message can satisfy it, if none can

    @property
    def is_never(self) -> bool:
        """Whether no message can satisfy it."""
        return self.text == _NEVER

    def within(self, binding: int) -> str:
        """The text between parts that are held together so."""
        return self.text if self.binding > binding else f"({self.text})"


#: Hold for every message, and for none
ALWAYS, NEVER = Condition("always"), Condition(_NEVER)


def every(parts: Iterable[Condition]) -> Condition:
    """All of them hold."""
    found = [part for part in dict.fromkeys(parts) if part is not ALWAYS]
    if (never := next((part for part in found if part.is_never), None)) is not None:
        return never
    if len(found) < 2:
        return found[0] if found else ALWAYS
    return Condition(" and ".join(part.within(_ALL) if part.binding != _ALL else part.text for part in found), _ALL)


def some(parts: Sequence[Condition], least: int = 1) -> Condition:
    """So many of them hold, or more; one that is listed twice counts twice."""
    least -= parts.count(ALWAYS)
    found = [part for part in parts if part is not ALWAYS and not part.is_never]
    if least <= 0:
        return ALWAYS
    if least > len(found):
        return next((part for part in parts if part.is_never), NEVER)
    if least == len(found):
        return every(found)
    if least == 1:
        different = list(dict.fromkeys(found))
        return Condition(" or ".join(part.text for part in different), _ANY if len(different) > 1 else found[0].binding)
    return Condition(f"at least {least} of {{{', '.join(part.text for part in found)}}}")


def negated(part: Condition) -> Condition:
    """It does not hold."""
    if part is ALWAYS or part.is_never:
        return NEVER if part is ALWAYS else ALWAYS
    return Condition(f"not {part.within(_ALL)}")
