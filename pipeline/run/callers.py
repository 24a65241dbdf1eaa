"""Callers of single queries: how many may be on their way, and how they get their answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeAlias

from tagmatch.model.errors import ClosedError, Overloaded
from tagmatch.model.input.messages import Message
from tagmatch.pipeline.run.stage import working
from tagmatch.pipeline.segment import Matcher

_log = logging.getLogger(__name__)


class _Condition(threading.Condition):
    """Entered by C code alone.

    The usual one is entered by Python code, which Ctrl-C may interrupt when the lock is taken already. A thread that
    answers a future whose caller waits would then wait for that lock for ever.
    """

    @property
    def __enter__(self) -> Any:
        return self._lock.__enter__  # type: ignore[attr-defined]


class Answer(Future[Any]):
    """The future of a query; waiting for it can be interrupted at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self._condition.__class__ = _Condition  # to make another one takes longer than all else here

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """As of any future; a callback that is called here is at work as it would be in a stage's thread."""
        with working():
            super().add_done_callback(fn)


class Answered:
    """An answer that is there already. A task that awaits it lets the loop's others go on first."""

    __slots__ = ("keys",)

    def __init__(self, keys: Any) -> None:
        self.keys = keys

    def __await__(self) -> Generator[None, None, Any]:
        yield
        return self.keys


class Caller:
    """The caller with a future for a query's answer, and whether the answer is a set of keys."""

    __slots__ = ("future", "unique")

    def __init__(self, future: Future[Any], unique: bool) -> None:
        self.future: Any = future
        self.unique = unique

    def begin(self) -> bool:
        """Begin with the query; returns whether its answer is still wanted."""
        wanted: bool = self.future.set_running_or_notify_cancel()
        return wanted

    def done(self) -> bool:
        """Whether there is an answer, or never will be one."""
        done: bool = self.future.done()
        return done

    def cancel(self) -> None:
        """Cancel the query, which no thread has begun."""
        self.future.cancel()
        # Without this, callers that wait for several futures would not learn of it
        self.future.set_running_or_notify_cancel()

    def answer(self, keys: Any) -> None:
        """Give the keys, if there is no error yet."""
        self._end("set_result", keys)

    def fail(self, error: BaseException) -> None:
        """Give the error, if there is no answer yet."""
        self._end("set_exception", error)

    def _end(self, give: str, outcome: Any) -> None:
        try:
            getattr(self.future, give)(outcome)
        except InvalidStateError:
            pass  # two batches of one query may fail at once
        except BaseException:
            # Futures let through an error that is no `Exception`; other queries must not suffer from it
            _log.exception("exception calling callback for %r", self.future)


class Task(Caller):
    """A task of an event loop, whose own thread gives it the answer."""

    __slots__ = ("_ended", "_gathering")

    def __init__(self, gathering: Gathering, unique: bool) -> None:
        self.future, self.unique = asyncio.get_running_loop().create_future(), unique
        self._gathering, self._ended = gathering, False

    def begin(self) -> bool:
        """As `Caller` says."""
        self._ended = self._ended or self.future.cancelled()
        return not self._ended

    def done(self) -> bool:
        """As `Caller` says."""
        return self._ended

    def cancel(self) -> None:
        """As `Caller` says."""
        self._end("cancel")

    def _end(self, give: str, *outcome: Any) -> None:
        if not self._ended:
            self._ended = True
            self._gathering.give(self.future, give, outcome)


#: Who answers, the query's tags, and to whom the answer goes
Query: TypeAlias = tuple[Matcher, Message, Caller]


class Gathering:
    """What goes between the tasks of one event loop and the stages: queries, and what answers them, many at once."""

    def __init__(self, submit: Callable[[list[Query]], object]) -> None:
        self._submit = submit
        self._asked: deque[Query] = deque()
        self._given: deque[tuple[asyncio.Future[Any], str, tuple[Any, ...]]] = deque()
        self._comes_to_ask = self._comes_to_give = False  # Whether the loop will

    def ask(self, matcher: Matcher, message: Message, caller: Task) -> None:
        """Ask a query. Only the loop's thread may call this."""
        self._asked.append((matcher, message, caller))
        if not self._comes_to_ask:
            self._comes_to_ask = True
            asyncio.get_running_loop().call_soon(self._ask)

    def _ask(self) -> None:
        self._comes_to_ask = False
        self.submit()

    def submit(self) -> None:
        """Submit the queries that have gathered. Any thread may call this."""
        gathered = []
        with contextlib.suppress(IndexError):  # another thread may submit some of it at the same time
            while self._asked:
                gathered.append(self._asked.popleft())
        if gathered:
            self._submit(gathered)

    def give(self, future: asyncio.Future[Any], how: str, outcome: tuple[Any, ...]) -> None:
        """Let the loop give an outcome to one of its futures. Any thread may call this."""
        self._given.append((future, how, outcome))
        if self._comes_to_give:
            return
        self._comes_to_give = True
        try:
            future.get_loop().call_soon_threadsafe(self._give)
        except RuntimeError:  # the loop is closed: no task awaits any more
            self._comes_to_give = False
            self._given.clear()

    def _give(self) -> None:
        # In this order: who puts something where this has just emptied the queue finds that the loop must be called
        self._comes_to_give = False
        while self._given:
            future, how, outcome = self._given.popleft()
            if not future.done():  # the task may have been cancelled
                getattr(future, how)(*outcome)


class Limits:
    """Counts queries and bytes of results in flight, and has callers wait that would add one too many."""

    def __init__(self, queries: int, result_bytes: int) -> None:
        self._most_queries, self._most_bytes = queries, result_bytes
        # Entered as it is: a condition's own `__enter__` is Python, which Ctrl-C may interrupt with the lock taken
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closed = self._given_up = False
        # Not a count, so that queries that are let out twice, after an error, count once
        self._inside: set[Caller] = set()
        self.result_bytes = 0
        self._partial_bytes = 0

    @property
    def queries(self) -> int:
        """Queries in flight."""
        return len(self._inside)

    def admit(
        self, callers: Sequence[Caller], timeout: float | None = None, *, always: bool = False
    ) -> list[Overloaded]:
        """Let queries in, the first ones first; returns an error for each of those that find no room.

        Waits for room, at most `timeout` seconds; with `always`, there may be too many.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            for at, caller in enumerate(callers):
                while not (self._closed or always) and (too_much := self._too_much()):
                    left = threading.TIMEOUT_MAX if deadline is None else deadline - time.monotonic()
                    if left <= 0:
                        text = f"{too_much} allows; try again later, or use `submit`, which waits"
                        return [Overloaded(text) for _ in callers[at:]]
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))
                if self._closed:
                    raise ClosedError
                self._inside.add(caller)
        return []

    def leave(self, callers: Iterable[Caller]) -> None:
        """Let queries out; those that are out already stay out."""
        with self._lock:
            self._inside.difference_update(callers)
            self._changed.notify_all()

    def charge(self, result_bytes: int) -> None:
        """Count bytes of results in, or out, if they are less than 0."""
        with self._lock:
            self.result_bytes += result_bytes
            if result_bytes <= 0:
                self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Wait while there are too many bytes of results."""
        with self._lock:
            while self.result_bytes >= self._most_bytes and not self._closed:
                self._changed.wait()

    def hold(self, partial_bytes: int) -> None:
        """Say how many bytes of partial results there are."""
        with self._lock:
            less = partial_bytes < self._partial_bytes
            self._partial_bytes = partial_bytes
            if less:
                self._changed.notify_all()

    def _too_much(self) -> str | None:
        queries = len(self._inside)
        if queries >= self._most_queries:
            return f"{queries} queries are being answered, as many as max_queries"
        # Where nothing is in flight there is nothing to wait for
        if queries and (made := self.result_bytes + self._partial_bytes) >= self._most_bytes:
            return f"answers of {made} bytes are being made, as many as max_result_bytes"
        return None

    def close(self) -> None:
        """Admit nothing more."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def wait_until_empty(self) -> None:
        """Wait until no query is in flight, or until `give_up` is called."""
        with self._lock:
            while self.queries and not self._given_up:
                self._changed.wait()

    def give_up(self) -> None:
        """Let callers of `wait_until_empty` go on, also with queries in flight."""
        with self._lock:
            self._given_up = True
            self._changed.notify_all()
