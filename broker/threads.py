"""Threads of calls: each ends when it has had nothing to do for a while."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

_IDLE_S = 5.0


class Threads(Executor):
    """Threads for submitted work, up to a number; the program's end does not wait for them.

    Parameters
    ----------
    most : int

    Examples
    --------
    >>> Threads(2).submit(len, "abc").result()
    3
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._some = threading.Condition(self._lock)
        self._work: deque[Callable[[], None]] = deque()
        self._count = self._idle = 0

    def submit(self, act: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        """Call `act(*arguments, **keywords)` in a thread."""
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(act(*arguments, **keywords))
            except BaseException as error:
                future.set_exception(error)

        with self._lock:
            self._work.append(work)
            if self._idle >= len(self._work):
                self._some.notify()
            elif self._count < self._most:
                self._count += 1
                threading.Thread(target=self._run, name="tagmatch-call", daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._work:
                    self._idle += 1
                    is_needed = self._some.wait(_IDLE_S)
                    self._idle -= 1
                    if not is_needed and not self._work:
                        self._count -= 1
                        return
                work = self._work.popleft()
            work()
            del work
