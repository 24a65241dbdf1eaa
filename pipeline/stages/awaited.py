"""Answers for asyncio: a loop is woken once for all that have come meanwhile, not once for each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import InvalidStateError
from typing import Any

_Giving = tuple["asyncio.Future[Any]", Callable[..., object], tuple[Any, ...]]


class Outcomes:
    """What is to be given to futures of one loop, by that loop's own thread."""

    def __init__(self) -> None:
        self._waiting: deque[_Giving] = deque()
        self._called = False

    def put(self, future: asyncio.Future[Any], give: Callable[..., object], *outcome: Any) -> None:
        """Have the loop give an outcome to one of its futures. Any thread may call this."""
        self._waiting.append((future, give, outcome))
        if self._called:
            return
        self._called = True
        try:
            future.get_loop().call_soon_threadsafe(self._give)
        except RuntimeError:  # the loop is closed: nobody awaits any more
            self._called = False
            self._waiting.clear()

    def _give(self) -> None:
        # In this order: who puts something where this has just emptied the queue finds that the loop must be called
        self._called = False
        while self._waiting:
            future, give, outcome = self._waiting.popleft()
            if not future.done():  # the task may have been cancelled
                give(*outcome)


class Answered:
    """An answer that is there already. A task that awaits it lets the loop's others go on first."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Any) -> None:
        self._keys = keys

    def __await__(self) -> Generator[None, None, Any]:
        yield
        return self._keys


class Awaited:
    """The answer to a query for a task of an event loop; to the stages it is what a future is to them.

    Attributes
    ----------
    future : asyncio.Future
        What the task awaits.
    outcomes : Outcomes
        Of the future's loop.
    """

    __slots__ = ("_cancelled", "_given", "_outcomes", "future")

    def __init__(self, future: asyncio.Future[Any], outcomes: Outcomes) -> None:
        self.future = future
        self._outcomes = outcomes
        self._given = self._cancelled = False

    def set_running_or_notify_cancel(self) -> bool:
        """Begin with the query; returns whether its answer is still wanted."""
        self._cancelled = self._cancelled or self.future.cancelled()
        return not self._cancelled

    def cancelled(self) -> bool:
        """Return whether the query was cancelled before it was begun."""
        return self._cancelled

    def done(self) -> bool:
        """Return whether there is an answer, or never will be one."""
        return self._given or self._cancelled

    def cancel(self) -> bool:
        """Cancel the query, which nobody has begun."""
        self._cancelled = True
        self._outcomes.put(self.future, self.future.cancel)
        return True

    def set_result(self, keys: Any) -> None:
        """Give the keys."""
        self._give(self.future.set_result, keys)

    def set_exception(self, error: BaseException | None) -> None:
        """Give the error."""
        self._give(self.future.set_exception, error)

    def _give(self, give: Callable[..., object], outcome: Any) -> None:
        if self.done():
            raise InvalidStateError
        self._given = True
        self._outcomes.put(self.future, give, outcome)
