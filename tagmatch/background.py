"""Threads in the background of an index, which end with it, and locks that outlast forks.

They merge segments, drop keys that have expired, and take over snapshots that another program saves.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from tagmatch.model import clock
from tagmatch.model.errors import ClosedError, IndexChangedError, TagMatchError
from tagmatch.model.parallel import GivenUpError, join, start, unless
from tagmatch.model.tables import NEVER

R = TypeVar("R")

_log = logging.getLogger(__name__)

# By how much other threads are preferred, in the unit of `nice`
_NICENESS = 10
# Seconds between looks whether all is merged
_WAIT_S = 0.01
# Seconds between looks at the clock for keys that expire: it may have been set, and the machine may have slept
_LOOK_S = 1.0
# Seconds in which keys expire that are dropped together; at least this many times the time of the last drop
_REST_S, _REST_RATIO = 1.0, 3


class Background(Generic[R]):
    """A thread that calls a bound method of an object when it is asked to, and again as long as there is a reason to.

    It ends when there is no reason, with `end`, with the object, which it refers to weakly, or with the program. Work
    of `tagmatch.model.parallel.run` is given up then; a kernel that works is waited for. With `in_forks`, a forked
    child, which has none of its parent's threads, begins anew by itself.
    """

    def __init__(self, method: Callable[[], R], name: str, *, in_forks: bool = False) -> None:
        bound: Any = method
        self._function: Callable[[object], R] = bound.__func__
        self._name, self._in_forks = name, in_forks
        self._lock = threading.Lock()
        self._follow(bound.__self__)
        self._ended = False
        self._thread: threading.Thread | None = None

    def once(self, method: Callable[[], R]) -> float | None:
        """Call the method, see to its errors, and return the seconds until the next call; `None`: until `begin`.

        `ClosedError` and `GivenUpError`, which end the thread, must be passed on.
        """
        raise NotImplementedError

    def begin(self, after: float = 0.0) -> None:
        """Let the method be called: at once or, if nothing is going on, after some seconds.

        A call during one of the method lets it be called once more. Any thread may ask, and this returns at once.
        """
        with self._lock:
            if self._ended:
                return
            if not after:
                self._asked.put(None)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, args=[after], name=self._name, daemon=True)
                _running.add(self)
                start(self._thread)

    def wait(self) -> None:
        """Return when there is no reason to call the method."""
        thread = self._thread
        if thread is not None:
            join(thread)

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
        with contextlib.suppress(OSError, AttributeError):  # where threads have no priority of their own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while self._is_wanted(pause) and (owner := self._owner()) is not None:
            try:
                with unless(lambda: self._ended):
                    pause = self.once(functools.partial(self._function, owner))
            except (ClosedError, GivenUpError):
                break
            finally:
                del owner

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
        self._lock, self._thread = threading.Lock(), None
        if (owner := self._owner()) is not None:
            self._follow(owner)
            if worked and self._in_forks:
                self.begin()


class Merging(Background[bool]):
    """Merges segments until there are none to merge and, when an index has been at rest, everything.

    `merge` returns whether it had something to merge. `merge_all`, a method of the same object, gets for how many
    seconds nothing has changed, and merges everything if these are enough; else it returns how many more it takes.
    """

    def __init__(self, merge: Callable[[], bool], merge_all: Callable[[float], float | None]) -> None:
        super().__init__(merge, "tagmatch-merge")
        self._merge_all = weakref.WeakMethod(merge_all)
        self._changed = 0.0
        # How often something was to be merged, and how often of these all that is left to do is to merge everything
        self._wanted = self._merged = 0

    def begin(self, after: float = 0.0) -> None:
        """Let the method be called after a change."""
        self._wanted, self._changed = self._wanted + 1, time.monotonic()
        super().begin(after)

    def wait(self) -> None:
        """Return when there is nothing to merge before the index has been at rest."""
        wanted = self._wanted
        while self._merged < wanted and not self._ended:
            time.sleep(_WAIT_S)

    def once(self, method: Callable[[], bool]) -> float | None:
        """Merge what there is to merge."""
        wanted, merge_all = self._wanted, self._merge_all()
        try:
            while method():
                pass
            return None if merge_all is None else merge_all(time.monotonic() - self._changed)
        except ClosedError:
            raise
        except IndexChangedError:
            pass  # who stages changes is told; after a `reload`, there may be segments to merge
        except (TagMatchError, MemoryError) as error:
            _log.warning("segments are not merged: %s", error)
        finally:
            self._merged = wanted
        return None


class Expiring(Background[int]):
    """Drops keys when they expire; the method returns when the next do, in microseconds since 1970."""

    def __init__(self, expire: Callable[[], int]) -> None:
        super().__init__(expire, "tagmatch-expiry", in_forks=True)
        # When keys expire, as the last call said
        self._at = NEVER

    def expect(self, at: int) -> None:
        """Let keys be dropped that expire at a time, in microseconds since 1970, or `NEVER`."""
        if at < NEVER:
            self.begin()

    def once(self, method: Callable[[], int]) -> float | None:
        """Drop keys that have expired; the next call is when keys expire, with a rest after each time that some did."""
        began, some_expired = time.monotonic(), self._at <= clock.now_us()
        try:
            self._at = method()
        except ClosedError:
            raise
        except (TagMatchError, MemoryError) as error:
            some_expired = True
            _log.warning("keys that have expired are not dropped yet: %s", error)
        if self._at == NEVER:
            return None
        rest = max(_REST_S, _REST_RATIO * (time.monotonic() - began)) if some_expired else 0.0
        return max(rest, min((self._at - clock.now_us()) / 1e6, _LOOK_S))


class Following(Background[bool]):
    """Looks for a newer snapshot again and again, if seconds between looks are given; the method takes it over."""

    def __init__(self, reload: Callable[[], bool], seconds: float | None) -> None:
        super().__init__(reload, "tagmatch-reload", in_forks=True)
        self._seconds = seconds
        #: Why the newest snapshot could not be looked for, or not be taken over, when that was last tried
        self.error: str | None = None
        if seconds is not None:
            self.begin(after=seconds)

    def once(self, method: Callable[[], bool]) -> float | None:
        """Look. Whatever fails is tried again: the old snapshot goes on answering."""
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


def renew_in_forks(owner: object, *names: str) -> None:
    """Give an object in each forked child new locks instead of these, which threads of the parent may hold.

    For what is changed in one step each, so that it is whole wherever that thread was. The locks themselves stay those
    of `threading`: Ctrl-C between taking one of a class of our own and the block behind `with` would leave it taken.
    """
    _locks[owner] = names


_running: weakref.WeakSet[Background[Any]] = weakref.WeakSet()
_locks: weakref.WeakKeyDictionary[object, tuple[str, ...]] = weakref.WeakKeyDictionary()


def _begin_anew() -> None:
    for owner, names in list(_locks.items()):
        for name in names:
            setattr(owner, name, threading.Lock())
    for background in list(_running):
        background._begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


@atexit.register
def _end_all() -> None:
    """Threads within kernels do not survive the end of the interpreter."""
    for background in list(_running):
        background.end()
