"""Names of columns that have a meaning: they are meant exactly as they are written, and no other name is nearly one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from functools import lru_cache
from typing import NamedTuple

from tagmatch.model.errors import InvalidValueError

#: Columns of messages; each other one is an attribute
MESSAGE_COLUMNS = ("tags", "attributes", "location", "within", "id")
#: Those of messages that are published
PUBLISHED_COLUMNS = (*MESSAGE_COLUMNS, "payload", "expires")
#: How an attribute is called like a column that has a meaning, or nearly so
ON_PURPOSE = "an attribute of that name is a field of the column 'attributes', a struct or a map"

# What else columns of sets are called, by those who come from elsewhere
_OTHER_WORDS = dict.fromkeys(
    ("attribute", "attributes", "condition", "conditions", "expression", "filter", "predicate", "rule"), "where"
)
_OTHER_WORDS |= dict.fromkeys(
    ("location", "within", "lat", "lon", "lng", "latitude", "longitude", "radius", "metres", "meters", "circle"), "area"
)

# Shorter names than the first are one edit away from too many words; from the second on, two edits at the end are few
_ONE_EDIT, _TWO_EDITS = 4, 7
# So much of a long name must be right before its end
_SURE = 5


class Attribute(NamedTuple):
    """A declared attribute, as an index keeps it."""

    name: str
    type: str  # as it is written
    analyzer: str = ""  # likewise; empty: none

    def __str__(self) -> str:
        return f"{self.type}, {self.analyzer}" if self.analyzer else self.type


def near_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that another most likely is, misspelt.

    Case, spaces, `_`, `-` and an `s` at the end do not count. Names of four letters and more may have one letter
    too many, too few, another one, or two by turns, but begin alike; long ones may end otherwise. A few words mean the
    same as `where` and `area`, which only sets have.
    """
    return _near_name(name, tuple(sorted(known)))


@lru_cache(16384)
def _near_name(name: str, known: tuple[str, ...]) -> str | None:
    plain = "".join(letter for letter in name.casefold() if letter not in " _-.\t")
    for meant in known:
        if plain == meant or plain.rstrip("s") == meant.rstrip("s"):
            return meant
    if (word := _OTHER_WORDS.get(plain)) in known:
        return word
    return next((meant for meant in known if _is_near(plain, meant)), None)


def _is_near(name: str, meant: str) -> bool:
    """Whether few edits make one name of another."""
    if len(meant) < _ONE_EDIT or abs(len(name) - len(meant)) > 2:
        return False
    if name[0] != meant[0] and name[-1] != meant[-1]:  # one edit leaves one of both; most names are done with here
        return False
    edits = _edits(name, meant)
    if edits == 1:
        return name[0] == meant[0] or (len(name) != len(meant) and len(meant) > _ONE_EDIT)
    return edits == 2 and len(name) <= len(meant) >= _TWO_EDITS and name[:_SURE] == meant[:_SURE]


def _edits(one: str, other: str) -> int:
    """Letters to insert, to delete, to replace, or to swap with the next one."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, meant in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != meant))
            if i > 1 and j > 1 and (letter, one[i - 2]) == (other[j - 2], meant):
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]


def misspelt(names: Collection[str], known: Iterable[str]) -> tuple[str, str] | None:
    """The first of some names that most likely is a known one, misspelt, which is not among them itself; and that."""
    absent = sorted(set(known).difference(names))
    for name in names:
        if name not in known and (near := near_name(name, absent)):
            return name, near
    return None


def check_names(names: Collection[str], known: Collection[str], instead: str = ON_PURPOSE) -> None:
    """See that no column is misspelt."""
    if found := misspelt(names, known):
        name, near = found
        raise InvalidValueError(f"column {name[:60]!r} means nothing here; is {near!r} meant? Rename it; {instead}")


def near_match(name: str, known: list[str]) -> str:
    """What is perhaps meant by a name that is not known, for messages of errors; all names if nothing is near."""
    near = near_name(name, known) or next(iter(get_close_matches(name, known, 1)), None)
    return f"; is {near!r} meant?" if near else f"; there is {', '.join(known) or 'none'}"


def counted(count: int, noun: str, form: str = "") -> str:
    """A number of things whose plural has an s, such as `1 set` and `2 sets`; the form is as in f-strings."""
    return f"{count:{form}} {noun}" if count == 1 else f"{count:{form}} {noun}s"
