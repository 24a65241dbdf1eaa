"""A thread in the background compiles kernels while Python runs them: calls with little to do wait for no compiler.

Numba compiles in one thread at a time. This one makes way for others, for a fork, and for the end of the process: at
Numba's next pass it gives up what it does, and begins it again later.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from numba.core import event
from numba.core.compiler_lock import global_compiler_lock

from tagmatch.model import parallel

_ASKED, _PASS = "numba:compiler_lock", "numba:run_pass"
#: It begins when no other thread has asked for the compiler for these seconds
_QUIET_S = 0.5


class MadeWayError(BaseException):
    """A kernel is not compiled now, as others need the compiler. It is no `Exception`, which Numba would catch."""


class _Behind(event.Listener):
    """The kernels that are due, and the thread that compiles them: it ends when there are none."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Be as at first."""
        self._due: dict[Any, Callable[[], object]] = {}
        self._failed: set[Any] = set()
        self._changing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._asked_at = 0.0
        self._is_over = self._is_wanted = False
        self.is_busy = False  # whether it has the compiler

    def compile(self, key: Any, work: Callable[[], object]) -> bool:
        """Do this in the background, once for each key; whether it is, or will be."""
        if key in self._due:
            return True
        if key in self._failed or self._is_over:
            return False
        with self._changing:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="tagmatch-compiler", daemon=True)
                self._thread, self._due[key] = thread, work
                try:
                    parallel.start(thread)
                except BaseException as error:
                    self._thread = None
                    del self._due[key]
                    if isinstance(error, MemoryError):
                        return False
                    raise
            self._due[key] = work
        return True

    def is_here(self) -> bool:
        """Whether this thread is the one in the background."""
        return self._thread is not None and threading.get_ident() == self._thread.ident

    def on_start(self, event: Any) -> None:
        """Note that another thread asks for the compiler, and give up what this one does, if so."""
        if not self.is_here():
            if event.kind == _ASKED:
                self._asked_at, self._is_wanted = time.monotonic(), True
        elif self._is_wanted and event.kind == _PASS:
            raise MadeWayError

    def on_end(self, event: Any) -> None:
        """Nothing more."""

    def _work(self) -> None:
        while True:
            with self._changing:
                if not self._due or self._is_over:
                    self._thread = None
                    return
                key = next(iter(self._due))
            self._try(key)

    def _try(self, key: Any) -> None:
        while (quiet := self._asked_at + _QUIET_S - time.monotonic()) > 0 and not self._is_over:
            time.sleep(min(quiet, 0.1))
        work, later = self._due[key], {}
        self._is_wanted = self._is_over
        try:
            with global_compiler_lock:
                self.is_busy = True
                work()
        except MadeWayError:
            self._asked_at, later = time.monotonic(), {key: work}
        except BaseException:  # who needs it compiles it, and is told
            self._failed.add(key)
        finally:
            self.is_busy = False
        with self._changing:
            self._due.pop(key, None)
            self._due.update(later)

    def end(self) -> None:
        """Give up for good, as the process ends: LLVM may not be at work then."""
        self._is_over = True
        if self._thread is not None:
            with global_compiler_lock:
                pass


behind = _Behind()
for _kind in (_ASKED, _PASS):
    event.register(_kind, behind)
atexit.register(behind.end)
if hasattr(os, "register_at_fork"):  # a fork asks for the compiler first; the child has no thread here
    os.register_at_fork(after_in_child=behind.begin_anew)
