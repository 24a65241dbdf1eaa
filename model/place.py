"""Where a message is, as callers say it."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """Where one message is, and in which area the clients must be that it is for.

    Attributes
    ----------
    location : tuple of two numbers, optional
        Not checked yet.
    within : Circle or Box, optional
    """

    location: object = None
    within: object = None

    @property
    def is_given(self) -> bool:
        """Whether there is either."""
        return self.location is not None or self.within is not None


#: Of a message that says nothing of it
NOWHERE = Place()
