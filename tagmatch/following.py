"""Newer snapshots, which another program saves, are taken over by a thread in the background."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tagmatch.background import Background
from tagmatch.model.errors import ClosedError
from tagmatch.model.parallel import GivenUpError

_log = logging.getLogger(__name__)


class Following(Background[bool]):
    """Looks for a newer snapshot each so many seconds; also in forked children.

    Parameters
    ----------
    reload : callable
        Bound method; takes over a newer snapshot, and returns whether there was one.
    seconds : float, optional
        `None`: never.

    Attributes
    ----------
    error : str or None
        Why the newest snapshot could not be taken over, or could not be looked for, when that was last tried.
    """

    def __init__(self, reload: Callable[[], bool], seconds: float | None) -> None:
        super().__init__(reload, "tagmatch-reload", in_forks=True)
        self._seconds = seconds
        self.error: str | None = None
        if seconds is not None:
            self.begin(after=seconds)

    def once(self, method: Callable[[], bool]) -> float | None:
        """As of `Background`. Whatever fails is tried again: the old snapshot goes on answering."""
        try:
            method()
        except (ClosedError, GivenUpError):
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            if told != self.error:  # once, not each time
                _log.warning("a newer snapshot is not taken over: %s", told)
            self.error = told
        else:
            self.error = None
        return self._seconds
