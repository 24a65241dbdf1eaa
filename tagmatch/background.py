"""Threads in the background of an index, which end with it, and locks that outlast forks."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any

from tagmatch.model.errors import ClosedError
from tagmatch.model.parallel import GivenUpError, join, start, unless

_log = logging.getLogger(__name__)

# By how much other threads are preferred, in the unit of `nice`
_NICENESS = 10
# Seconds between looks whether a call is over
_WAIT_S = 0.01


class Background:
    """A thread that calls a bound method of an object when it is asked to, and again as long as there is a reason to.

    The method returns the seconds until the next call; `None`: until `begin`. What it raises is logged with the words
    of `failed`, once while it is the same, and it is called again after the seconds of `again`.

    The thread ends when there is no reason, with `end`, with the object, which it refers to weakly, with `ClosedError`,
    or with the program. Work of `tagmatch.model.parallel.run` is given up then; a kernel that works is waited for. With
    `in_forks`, a forked child, which has none of its parent's threads, begins anew by itself.
    """

    def __init__(
        self,
        method: Callable[[], float | None],
        name: str,
        failed: str,
        again: float | None = None,
        *,
        in_forks: bool = False,
    ) -> None:
        bound: Any = method
        self._function: Callable[[object], float | None] = bound.__func__
        self._name, self._failed, self._again, self._in_forks = name, failed, again, in_forks
        _go_on_in_forks()
        self._lock = threading.Lock()
        self._follow(bound.__self__)
        self._ended = False
        self._thread: threading.Thread | None = None
        # How often `begin` was called, and how often of these a call that began later is over
        self._wanted = self._done = 0
        self.error: str | None = None  # why the last call failed, if it did

    def begin(self, after: float = 0.0) -> None:
        """Let the method be called: at once or, if nothing is going on, after some seconds.

        A call during one of the method lets it be called once more. Any thread may ask, and this returns at once.
        """
        with self._lock:
            if self._ended:
                return
            self._wanted += 1
            if not after:
                self._asked.put(None)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, args=[after], name=self._name, daemon=True)
                _running.add(self)
                start(self._thread)

    def wait(self) -> None:
        """Return when each `begin` until now has led to a call that is over."""
        wanted = self._wanted
        while self._done < wanted and not self._ended:
            time.sleep(_WAIT_S)

    def end(self) -> None:
        """Call the method no more, and wait for a call that is going on, which is given up."""
        with self._lock:
            self._ended = True
            self._asked.put(None)
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            join(thread)
        _running.discard(self)

    def _follow(self, owner: object) -> None:
        """Make a queue of requests; something is put into it when the object goes, too.

        The garbage collector does that in the midst of any call, also of one of this very queue. No code of Python's
        runs for it: Ctrl-C in that would be lost, and the thread would go on.
        """
        self._asked: SimpleQueue[object] = SimpleQueue()
        self._owner = weakref.ref(owner, self._asked.put)

    def _work(self, pause: float | None) -> None:
        with contextlib.suppress(OSError, AttributeError):  # if the system has no priorities of threads
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while self._is_wanted(pause) and (owner := self._owner()) is not None:
            wanted = self._wanted
            try:
                with unless(lambda: self._ended):
                    pause = self._function(owner)
                self.error = None
            except (ClosedError, GivenUpError):
                break
            except Exception as error:
                pause, told = self._again, f"{type(error).__name__}: {error}"
                if told != self.error:
                    _log.warning("%s: %s", self._failed, told)
                self.error = told
            finally:
                del owner
                self._done = wanted

    def _is_wanted(self, pause: float | None) -> bool:
        """Wait for the time of the next call; returns whether there is one."""
        if pause is None:
            with self._lock:
                if self._asked.empty():
                    self._thread = None
                    return False
        with contextlib.suppress(Empty):
            self._asked.get(timeout=min(pause or 0.0, threading.TIMEOUT_MAX))
            while True:
                self._asked.get_nowait()
        return not self._ended

    def _begin_anew(self) -> None:
        """Set up what a forked child needs: the parent's other threads may have held any lock."""
        worked = self._thread is not None
        self._lock, self._thread, self._done = threading.Lock(), None, self._wanted
        if (owner := self._owner()) is not None:
            self._follow(owner)
            if worked and self._in_forks:
                self.begin()


def renew_in_forks(owner: object, *names: str) -> None:
    """Give an object in each forked child new locks instead of these, which threads of the parent may hold.

    For changes of one step each, which are whole wherever that thread was. The locks themselves stay those
    of `threading`: Ctrl-C between taking one of a class of our own and the block behind `with` would leave it taken.
    """
    _locks[owner] = names
    _go_on_in_forks()


_running: weakref.WeakSet[Background] = weakref.WeakSet()
_locks: weakref.WeakKeyDictionary[object, tuple[str, ...]] = weakref.WeakKeyDictionary()


def _begin_anew() -> None:
    for owner, names in list(_locks.items()):
        for name in names:
            setattr(owner, name, threading.Lock())
    for background in list(_running):
        background._begin_anew()


@cache
def _go_on_in_forks() -> None:
    """Renew and begin anew after all else: a thread that a child begins may use anything that does so, too."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_begin_anew)


@atexit.register
def _end_all() -> None:
    """Threads within kernels do not survive the end of the interpreter."""
    for background in list(_running):
        background.end()
