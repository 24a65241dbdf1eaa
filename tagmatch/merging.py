"""Merging of segments in the background, by a thread that is there while there is something to merge."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable

from tagmatch.background import Background
from tagmatch.model.errors import ClosedError, IndexChangedError, TagMatchError

_log = logging.getLogger(__name__)

# Between looks whether all is merged
_WAIT_S = 0.01


class Merging(Background[bool]):
    """Merges until there is nothing to merge and, when an index has been at rest, everything.

    Parameters
    ----------
    merge : callable
        Bound method; merges some segments, and returns whether there were any.
    merge_all : callable
        Bound method of the same object; gets how many seconds nothing has changed, and merges everything if these are
        enough; returns how many more it has to be, `None` if there is nothing to be merged any more.
    """

    def __init__(self, merge: Callable[[], bool], merge_all: Callable[[float], float | None]) -> None:
        super().__init__(merge, "tagmatch-merge")
        self._merge_all = weakref.WeakMethod(merge_all)
        self._changed = 0.0
        # How often something was to be merged, and how often of these nothing is left to be but everything
        self._wanted = self._merged = 0

    def begin(self, after: float = 0.0) -> None:
        """As of `Background`, after a change."""
        self._wanted, self._changed = self._wanted + 1, time.monotonic()
        super().begin(after)

    def wait(self) -> None:
        """Return when there is nothing to be merged, but everything after a rest."""
        wanted = self._wanted
        while self._merged < wanted and not self._ended:
            time.sleep(_WAIT_S)

    def once(self, method: Callable[[], bool]) -> float | None:
        """As of `Background`."""
        wanted, merge_all = self._wanted, self._merge_all()
        try:
            while method():
                pass
            return None if merge_all is None else merge_all(time.monotonic() - self._changed)
        except ClosedError:
            raise
        except IndexChangedError:
            pass  # who stages changes is told, and what there is after a `reload` can be merged then
        except (TagMatchError, MemoryError) as error:
            _log.warning("segments are not merged: %s", error)
        finally:
            self._merged = wanted
        return None
