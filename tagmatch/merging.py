"""Merging of segments in the background, by a thread that is there while there is something to merge."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tagmatch.background import Background
from tagmatch.model.errors import ClosedError, IndexChangedError, TagMatchError

_log = logging.getLogger(__name__)


class Merging(Background[bool]):
    """Merges until there is nothing to merge.

    Parameters
    ----------
    merge : callable
        Bound method; merges some segments, and returns whether there were any.
    """

    def __init__(self, merge: Callable[[], bool]) -> None:
        super().__init__(merge, "tagmatch-merge")

    def once(self, method: Callable[[], bool]) -> None:
        """As of `Background`: nothing is left to do until there are new segments."""
        try:
            while method():
                pass
        except ClosedError:
            raise
        except IndexChangedError:
            pass  # who stages changes is told, and what there is after a `reload` can be merged then
        except (TagMatchError, MemoryError) as error:
            _log.warning("segments are not merged: %s", error)
