"""Threads that work for an object in the background, and end with it; and locks that outlast forks.

A subclass of `Background` says what is to be done, as `merging.py` does.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from tagmatch.model.errors import ClosedError
from tagmatch.model.parallel import GivenUpError, join, start, unless

R = TypeVar("R")

# By how much other threads are preferred (as of `nice`)
_NICENESS = 10


class Background(Generic[R]):
    """A thread that calls a method of an object when it is asked to, and again as long as there is a reason to.

    It ends when there is none, with `end`, with the object, which it refers to weakly, or with the program. A kernel
    that works is waited for.

    Parameters
    ----------
    method : callable
        Bound method of the object. Whatever it has `tagmatch.model.parallel.run` do is given up at the end.
    name : str
        Of the thread.
    in_forks : bool
        A forked child, which has none of its parent's threads, begins anew by itself.
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
        """Call the method, and see to its errors.

        `ClosedError` and `GivenUpError`, which end the thread, are to be passed on.

        Returns
        -------
        float or None
            Seconds until it is to be called again; `None`: when `begin` is called.
        """
        raise NotImplementedError

    def begin(self, after: float = 0.0) -> None:
        """Have the method called: at once or, where nothing is going on, after so many seconds.

        Calls during one of the method have it called once more. Any thread may ask, and this returns at once.
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
        """Have a queue of what is asked for, into which something is put when the object goes, too.

        The garbage collector does that in the midst of any call, also of one of this very queue. No code of Python's
        runs for it: Ctrl-C in that would be seen by nobody, and the thread would go on.
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
        """Wait until the method is to be called; whether it is."""
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


def renew_in_forks(owner: object, *names: str) -> None:
    """Give an object in each forked child new locks in the place of these, which threads of the parent may hold.

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
