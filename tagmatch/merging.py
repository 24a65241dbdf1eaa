"""Merging of segments in the background, by a thread that is there while there is something to merge."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable

from tagmatch.model.errors import ClosedError, IndexChangedError, TagMatchError
from tagmatch.model.parallel import GivenUpError, join, unless

_log = logging.getLogger(__name__)

# By how much other threads are preferred (as of `nice`)
_NICENESS = 10


class Merging:
    """Merges until there is nothing to merge.

    Parameters
    ----------
    merge : callable
        Merges some segments; returns whether there were any. Refers to its owner weakly, so that this ends with it.
    """

    def __init__(self, merge: Callable[[], bool]) -> None:
        self._merge = merge
        self._lock = threading.Lock()
        self._wanted = self._ended = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """See that what there is to merge is being merged."""
        with self._lock:
            self._wanted = True
            alive = self._thread is not None and self._thread.is_alive()
            if not (alive or self._ended):
                self._thread = threading.Thread(target=self._work, name="tagmatch-merge", daemon=True)
                _running.add(self)
                self._thread.start()

    def wait(self) -> None:
        """Return when nothing is being merged."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def end(self) -> None:
        """Give up what is being merged: the thread ends when the kernel does in which it is."""
        with self._lock:
            self._ended = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            join(thread)
        _running.discard(self)

    def _work(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # where threads have no priority of their own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while self._go_on():
            try:
                with unless(lambda: self._ended):
                    while self._merge():
                        pass
            except (GivenUpError, ClosedError):
                break
            except IndexChangedError:
                pass  # who stages changes is told, and what there is after a `reload` can be merged then
            except (TagMatchError, MemoryError) as error:
                _log.warning("segments are not merged: %s", error)

    def _go_on(self) -> bool:
        with self._lock:
            wanted, self._wanted = self._wanted and not self._ended, False
            if not wanted:
                self._thread = None
            return wanted


_running: weakref.WeakSet[Merging] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Threads within kernels do not survive the end of the interpreter."""
    for merging in list(_running):
        merging.end()
