"""Queries of tasks of asyncio gather until all tasks that can go on have asked theirs, and are submitted together."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from tagmatch.pipeline.matcher import Matcher
from tagmatch.pipeline.stages.awaited import Awaited, Outcomes
from tagmatch.pipeline.stages.packets import Caller

#: Who answers, the query's tags, and to whom the answer goes
Query: TypeAlias = tuple[Matcher, list[str], Caller]


class Gathering:
    """Queries of one loop's tasks.

    Parameters
    ----------
    loop : event loop
    submit : callable
        Gets queries, and sees to it that each caller gets an answer or an error.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, submit: Callable[[list[Query]], object]) -> None:
        #: Gives the loop, which this does not keep alive
        self.loop = weakref.ref(loop)
        self._submit = submit
        self._gathered: deque[Query] = deque()
        self._outcomes = Outcomes()
        self._called = False

    def ask(self, matcher: Matcher, tags: list[str], *, unique: bool) -> asyncio.Future[Any]:
        """Ask a query. Only the loop's thread may call this."""
        loop = asyncio.get_running_loop()
        future, caller = self.caller(unique=unique)
        self._gathered.append((matcher, tags, caller))
        if not self._called:
            self._called = True
            loop.call_soon(self._submit_in_loop)
        return future

    def caller(self, *, unique: bool) -> tuple[asyncio.Future[Any], Caller]:
        """A future of the loop that its thread runs, and what gives it its answer."""
        future = asyncio.get_running_loop().create_future()
        return future, Caller(Awaited(future, self._outcomes), unique)

    def _submit_in_loop(self) -> None:
        self._called = False
        self.submit()

    def submit(self) -> None:
        """Submit what has gathered. Any thread may call this."""
        gathered = []
        with contextlib.suppress(IndexError):  # another thread may submit some of it meanwhile
            while self._gathered:
                gathered.append(self._gathered.popleft())
        if gathered:
            self._submit(gathered)


class Gatherings:
    """Those of all loops; each thread finds that of the loop it runs."""

    def __init__(self, submit: Callable[[list[Query]], object]) -> None:
        self._submit_queries = submit
        self._of_thread = threading.local()
        self._adding = threading.Lock()
        self._all: weakref.WeakSet[Gathering] = weakref.WeakSet()

    def of_running_loop(self) -> Gathering:
        """That of the loop which the calling thread runs."""
        loop = asyncio.get_running_loop()
        found: Gathering | None = getattr(self._of_thread, "gathering", None)
        if found is None or found.loop() is not loop:
            found = self._of_thread.gathering = Gathering(loop, self._submit_queries)
            with self._adding:
                self._all.add(found)
        return found

    def submit(self) -> None:
        """Submit what has gathered in all loops."""
        with self._adding:
            found = list(self._all)
        for gathering in found:
            gathering.submit()
