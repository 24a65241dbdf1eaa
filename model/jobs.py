"""Work in pieces that threads take in turn."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_PAUSE_S = 0.001


class Job(Generic[T, R]):
    """Pieces of work which threads take in turn.

    Ctrl-C may come to the main thread at any moment, so that thread meets nothing here but what C does in one step: no
    future, no condition, no pool of the standard library, whose locks an interruption could leave taken for ever.
    """

    def __init__(self, items: Sequence[T]) -> None:
        self._items = items
        self._results: list[Any] = [None] * len(items)
        self._errors: list[tuple[int, BaseException]] = []
        self._next, self._ends = count(), count(1)
        self._taken: list[int] = []
        self._ended: list[int] = []
        self._stopped = False
        self._all_ended = threading.Lock()
        if items:
            self._all_ended.acquire()

    def help(self, work: Callable[[T], R]) -> None:
        """Take pieces until there are none left, and do `work` on each."""
        while not self._stopped and (i := next(self._next)) < len(self._items):
            self._taken.append(i)
            try:
                if not self._stopped:
                    self._results[i] = work(self._items[i])
            except BaseException as error:
                self._errors.append((i, error))
            self._ended.append(i)
            if next(self._ends) == len(self._items):
                self._all_ended.release()

    def results(self) -> list[R]:
        """Wait for all pieces; any number of threads may."""
        self._all_ended.acquire()
        self._all_ended.release()
        if self._errors:
            raise min(self._errors, key=itemgetter(0))[1]
        return self._results

    def stop(self) -> None:
        """Have no piece begun any more, and wait for those that are; not even another Ctrl-C ends that."""
        self._stopped = True
        while len(self._ended) < len(self._taken):
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(_PAUSE_S)


def _nothing(whole: object, piece: object) -> None:
    """What is there already needs no work."""


class Memo:
    """What has been made of something, once for each owner, though many threads ask at once: they make it together.

    Examples
    --------
    >>> memo = Memo()
    >>> def square(squares, i):
    ...     squares[i] = i * i
    >>> memo.of("me", lambda: ([0, 0, 0], range(3)), square)
    [0, 1, 4]
    >>> memo.of("me", lambda: ([7, 7, 7], range(3)), square)  # it is there already
    [0, 1, 4]
    """

    def __init__(self) -> None:
        self._made: dict[object, tuple[Any, Job[Any, object]]] = {}

    def of(
        self,
        owner: object,
        begin: Callable[[], tuple[R, Sequence[T]]],
        fill: Callable[[R, T], object] = _nothing,
    ) -> R:
        """What `begin` returned for this owner, when all its pieces are done.

        Who asks while there are pieces left does some, who asks later waits. After an error, the next to ask begins
        anew.

        Parameters
        ----------
        owner : hashable
        begin : callable
            Returns what is to be filled, and the pieces of work. Of threads that ask at once, each may call it; the
            others then go by what one of them got.
        fill : callable
            Does one piece of work, as this thread does it: `fill(whole, piece)`.
        """
        made: tuple[R, Job[T, object]] | None = self._made.get(owner)
        if made is None:
            whole, pieces = begin()
            made = self._made.setdefault(owner, (whole, Job(pieces)))
        whole, job = made
        job.help(partial(fill, whole))
        try:
            job.results()
        except BaseException:
            self._made.pop(owner, None)
            raise
        return whole
