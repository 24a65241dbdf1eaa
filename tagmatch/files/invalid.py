"""Rows that cannot be used."""

from __future__ import annotations

from tagmatch.model.errors import TagMatchError


class InvalidRows:
    """What becomes of rows that cannot be used: the first ends the reading, or all are skipped and counted.

    Attributes
    ----------
    count : int
        Rows that were skipped.
    first : TagMatchError or None
        What is wrong with the first of them.
    """

    def __init__(self, *, skip: bool = False) -> None:
        self._skip = skip
        self.count = 0
        self.first: TagMatchError | None = None

    def found(self, error: TagMatchError) -> None:
        """Raise or count what is wrong with a row."""
        if not self._skip:
            raise error
        self.count += 1
        self.first = self.first or error
