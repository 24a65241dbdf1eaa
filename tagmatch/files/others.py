"""Columns of a file without a meaning of their own: misspelt ones are errors, others are attributes, or left aside."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tagmatch.model.errors import InputFileError
from tagmatch.model.names import near_name

#: In the place of names of columns: all that have no meaning
EVERY_OTHER = ("*",)


class OtherColumns:
    """What becomes of columns that have no meaning.

    A column is taken for a misspelt one if its name is nearly that of a known one, which is not there itself.

    Parameters
    ----------
    known : iterable of str
        Names that have a meaning.
    ignored : tuple of str
        Names that are left aside without a word, or `EVERY_OTHER`.
    attributes : tuple of str
        Names of columns that are an attribute of queries each, whatever they are nearly called, or `EVERY_OTHER`.
        Without any, columns are those of sets.

    Attributes
    ----------
    seen : dict
        Its keys are those that were left aside, and noted.
    """

    def __init__(self, known: Iterable[str], ignored: tuple[str, ...] = (), attributes: tuple[str, ...] = ()) -> None:
        self._known = frozenset(known)
        self._ignored = ignored
        self._attributes = attributes
        self.seen: dict[str, None] = {}

    @property
    def of_queries(self) -> bool:
        """Whether columns are those of queries."""
        return bool(self._attributes)

    def attributes_in(self, names: Iterable[str]) -> tuple[str, ...]:
        """The columns, of these or as they were named, that are an attribute each."""
        if self._attributes == EVERY_OTHER:
            return tuple(self._without_meaning(names))
        return tuple(name for name in self._attributes if name not in self._ignored)

    def leave_aside(self, names: Iterable[str]) -> bool:
        """Take note of columns of many rows that are left aside; whether none can be a misspelt one of some row."""
        for name in self._without_meaning(names):
            if self._near(name, self._known):
                return False
            self._note(name)
        return True

    def check(self, names: Collection[str], place: str) -> None:
        """See that no column is misspelt, and take note of those that are left aside.

        Parameters
        ----------
        names : collection of str
            All columns of a file or a row.
        place : str
            What messages call it.

        Raises
        ------
        InputFileError
            One is; the message names it, and what is most likely meant.
        """
        missing = self._known.difference(names)
        for name in self._without_meaning(names):
            if near := self._near(name, missing):
                instead = (
                    f"an attribute of that name goes into the column 'attributes', or is named by --attributes {name!r}"
                    if self.of_queries
                    else f"leave it aside with --ignore-columns {name!r}"
                )
                raise InputFileError(
                    f"{place} has a column {name!r}, which means nothing here; is {near!r} meant? "
                    f"Rename the column, or {instead}"
                )
            self._note(name)

    def _near(self, name: str, known: Collection[str]) -> str | None:
        return None if name in self._attributes else near_name(name, known)

    def _without_meaning(self, names: Iterable[str]) -> list[str]:
        if self._ignored == EVERY_OTHER:
            return []
        return [name for name in names if name not in self._known and name not in self._ignored]

    def _note(self, name: str) -> None:
        if not self.of_queries:
            self.seen[name] = None
