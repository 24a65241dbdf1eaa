"""One service changes an index and copies each snapshot to a place; others follow it there and answer, too."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Self

from tagmatch.background import Background
from tagmatch.broker.config import FOLLOW_S
from tagmatch.broker.observe import LOG
from tagmatch.embedded import TagMatch
from tagmatch.model.errors import IndexCorruptError, IndexNotFoundError, TagMatchError
from tagmatch.model.storage.copies import backup
from tagmatch.model.storage.repository import location_of

#: How often the service that changes the index looks for changes to copy, in seconds
_LOOK_S = 0.05
#: After a copy that failed
_AGAIN_S = 1.0
#: Earlier snapshots that stay in the copy, so that followers have time to read their files
_KEPT = 2


def first_of(opened: Callable[[], TagMatch[Any]]) -> TagMatch[Any]:
    """Wait until there is an index with all its files; an error that stays is raised at once."""
    told = ""
    while True:
        try:
            return opened()
        except TagMatchError as error:
            if type(error) not in (TagMatchError, IndexNotFoundError, IndexCorruptError):
                raise
            if str(error) != told:
                LOG.warning("waits for the first snapshot", extra={"fields": {"reason": str(error)}})
            told = str(error)
        time.sleep(FOLLOW_S)


class Copies:
    """The copy of an index that others follow, within a `with` block; at its end, it has everything."""

    def __init__(self, path: str, target: str) -> None:
        self._index, self._target = location_of(path, "INDEX"), location_of(target, "copy_to")
        self._copied: str | None = None  # The snapshot that the copy has
        self._late: float | None = None  # when it was seen to lack something, if it does
        self._work = Background(self.copy, "tagmatch-copy", "a snapshot is not copied for followers", _AGAIN_S)

    def __enter__(self) -> Self:
        self._work.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._work.end()
        try:
            self.copy()
        except TagMatchError as error:
            LOG.warning("the last snapshot is not copied", extra={"fields": {"reason": str(error)}})

    def copy(self) -> float:
        """Copy the changes, if there are some; returns the seconds until the next look."""
        with contextlib.suppress(IndexNotFoundError):  # nothing is saved yet
            name = self._index.manifest()["snapshot"]
            if name != self._copied:
                self._late = self._late or time.monotonic()
                backup(self._index, self._target, _KEPT)
                self._copied = name
            self._late = None
        return _LOOK_S

    def behind(self) -> float:
        """Seconds since the copy was seen to lack something; 0 if it lacks nothing."""
        late = self._late
        return 0.0 if late is None else time.monotonic() - late
