"""The online pipeline (§3, Figure 1), as those see it that ask: one query, one in the future, or many at once.

Queries that are asked one by one go through stages with threads of their own, but for brief ones: the thread that asks
answers these at once, as to hand one over and to get the interpreter lock back takes longer.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from itertools import groupby
from operator import itemgetter
from typing import Any

from tagmatch.model.arrays import Lists, TagLists, UIntArray
from tagmatch.model.columns import one_row
from tagmatch.model.options import MatchOptions
from tagmatch.pipeline.one import Alone
from tagmatch.pipeline.run.batches import Gatherings, Query
from tagmatch.pipeline.run.counts import Counts
from tagmatch.pipeline.run.orders import Class
from tagmatch.pipeline.run.packets import Answer, Answered, Caller, Keys
from tagmatch.pipeline.run.scheduled import Scheduled
from tagmatch.pipeline.run.stage import at_work
from tagmatch.pipeline.run.threaded import Threaded, match_inline
from tagmatch.pipeline.segment import Matcher

# Seconds without an answer after which a caller does not count on another that helps, but wakes a thread
_PATIENCE_S = 0.01


class Pipeline:
    """Answers queries from the matchers that they come with.

    Threads start with the first query that is submitted. `close` ends them.
    """

    def __init__(self, options: MatchOptions) -> None:
        self._options = options
        self._set_up()

    def _set_up(self) -> None:
        self._counts = Counts()
        self._stages = Threaded(self._options, self._counts)
        self._channels = Scheduled(self._options, self._counts, self._stages.limits, self._stages.services)
        self._gatherings = Gatherings(self._ask_all)
        self._starting = threading.Lock()
        self._helping = threading.Lock()
        self._started = self._closed = False

    # -- callers -----------------------------------------------------------------------------------------------------

    def submit(
        self,
        matcher: Matcher,
        asked: Alone | None,
        row: Callable[[], list[str]],
        *,
        unique: bool,
        timeout: float | None,
        channel: str | None = None,
    ) -> Future[Any]:
        """Ask one query, which is `row` in a packet; waits at most `timeout` seconds for its turn to enter."""
        of, answer = None if channel is None else self._channels.of(channel), Answer()
        # Callbacks that submit more, whose callbacks submit more, must not call each other ever deeper
        keys = None if at_work() else self._brief_answer(matcher, asked, of, unique)
        if keys is not None:
            answer.set_result(keys)
        elif of is None:
            self._ask(Caller(answer, unique), matcher, row(), timeout)
        else:
            self._start()
            self._channels.submit(of, matcher, row(), Caller(answer, unique), timeout)
        return answer

    def awaited(
        self,
        matcher: Matcher,
        asked: Alone | None,
        row: Callable[[], list[str]],
        *,
        unique: bool,
        channel: str | None = None,
    ) -> Awaitable[Any]:
        """Ask one query for a task of the running event loop; does not wait for its turn to enter."""
        of = None if channel is None else self._channels.of(channel)
        keys = self._brief_answer(matcher, asked, of, unique)
        if keys is not None:
            return Answered(keys)
        gathering = self._gatherings.of_running_loop()
        if of is None:
            return gathering.ask(matcher, row(), unique=unique)
        self._start()
        future, caller = gathering.caller(unique=unique)
        self._channels.submit(of, matcher, row(), caller, 0.0)
        return future

    def _brief_answer(self, matcher: Matcher, asked: Alone | None, of: Class | None, unique: bool) -> Keys | None:
        """The answer, by the calling thread, to a query for which waking another would take longer; else `None`."""
        if asked is None:
            return None
        one, query = asked
        found = one.brief_keys(query, unique, self._counts.of_kernels)
        if found is None:
            return None
        if of is not None:
            self._channels.answered_at_once(of)
        return _as_asked(matcher, found, unique)

    def _ask_all(self, queries: list[Query]) -> None:
        """Ask queries for tasks of an event loop."""
        try:
            self._start()
            for matcher, group in groupby(queries, itemgetter(0)):
                asked = [(tags, caller) for _, tags, caller in group]
                overloaded = self._stages.limits.admit_some([caller for _, caller in asked])
                admitted = len(asked) - len(overloaded)
                if admitted and self._stages.intake.extend(matcher, asked[:admitted]):
                    self._see_to_intake()
                for (_, caller), error in zip(asked[admitted:], overloaded, strict=True):
                    caller.fail(error)
        except BaseException as error:
            callers = [caller for *_, caller in queries]
            self._leave_behind(callers)
            for caller in callers:
                caller.fail(error)
            if not isinstance(error, Exception):
                raise

    def _ask(self, caller: Caller, matcher: Matcher, tags: list[str], timeout: float | None) -> None:
        self._start()
        try:
            if self._enter(caller, matcher, tags, timeout):
                self._see_to_intake()
        except BaseException:
            self._leave_behind([caller])
            raise

    def _see_to_intake(self) -> None:
        """Have a thread take what is in the intake; where none will any more, it is cancelled."""
        if not self._stages.first.nudge():
            self._stages.limits.leave(self._stages.intake.cancel())

    def match(self, matcher: Matcher, asked: Alone, *, unique: bool) -> Any:
        """Ask one query and wait for its keys; the calling thread does it all."""
        one, query = asked
        return _as_asked(matcher, one.keys(query, unique, self._counts.of_kernels), unique)

    def match_in_packet(self, matcher: Matcher, tags: list[str], *, unique: bool) -> Any:
        """As `submit`; meanwhile the calling thread does the work for which another would have to be woken.

        The main thread, which Ctrl-C may interrupt at any moment, has no part in the work for others.
        """
        if at_work() or threading.current_thread() is threading.main_thread():
            answers = self.match_many(matcher, [one_row(tags)], unique=unique)
            return _as_asked(matcher, answers.values, unique)
        self._start()
        future = Answer()
        caller = Caller(future, unique)
        try:
            self._enter(caller, matcher, tags, None)
        except BaseException:
            self._leave_behind([caller])
            raise
        # One at a time helps, so that the queries of the others gather. A caller that finds another at it leaves its
        # query to that one, which sees to it that somebody takes what is left.
        while self._stages.intake and not future.done() and self._helping.acquire(blocking=False):
            try:
                self._stages.first.help()
            finally:
                self._helping.release()
        if self._stages.intake and not self._helping.locked():
            self._stages.first.nudge()
        try:
            return future.result(_PATIENCE_S)
        except TimeoutError:
            self._stages.first.nudge()
        return future.result()

    def _enter(self, caller: Caller, matcher: Matcher, tags: list[str], timeout: float | None) -> bool:
        """Hand a query to the intake; returns whether its taking must be seen to."""
        if at_work():
            self._stages.limits.admit_at_once(caller)
        else:
            self._stages.limits.admit(caller, timeout=timeout)
        return self._stages.intake.extend(matcher, [(tags, caller)])

    def _leave_behind(self, callers: list[Caller]) -> None:
        """After an error it is not known how far queries came. Others, which count on their being seen to, go on."""
        self._stages.limits.leave(callers)
        if self._stages.intake:
            self._stages.first.nudge()

    def match_many(
        self,
        matcher: Matcher,
        chunks: Sequence[TagLists],
        *,
        unique: bool,
        channel: str | None = None,
        waited: float = 0.0,
    ) -> Lists:
        """Ask many queries; their keys, uint64, in order.

        Their packets are not counted as on their way, as their caller waits for them anyway; nor are they queued by
        partition, being as large as many batches. Those of a channel wait each for its turn.
        """
        if channel is not None:
            of = self._channels.of(channel)
            self._start()
            return self._channels.match_many(of, matcher, chunks, unique=unique, waited=waited)
        return match_inline(
            matcher,
            chunks,
            unique=unique,
            threads=self._options.threads,
            counts=self._counts,
            services=self._stages.services,
        )

    def close(self, *, drain: bool = True) -> None:
        """Admit nothing more; answer what is on its way or, without `drain`, cancel it. Ends all threads.

        In a callback of a future, whose thread is one of those to end, the closing goes on in the background.
        """
        self._gatherings.submit()
        with self._starting:
            self._closed = True
        self._stages.limits.close()
        if at_work():
            threading.Thread(target=self._end, args=[drain], name="tagmatch-close", daemon=True).start()
        else:
            self._end(drain)

    def _end(self, drain: bool) -> None:
        if drain:
            self._stages.limits.wait_until_empty()
            self._channels.wait_until_empty()
        else:
            self._stages.limits.give_up()
        self._channels.stop()
        self._channels.join()
        self._stages.stop()
        self._stages.join()
        with self._helping:  # the thread of a caller may be at giving answers to others
            pass
        self._stages.abandon()
        _running.discard(self)

    def abandon(self) -> None:
        """Close without draining, in a thread of its own: the garbage collector may call this from any thread."""
        if not self._closed and self._stages.started:
            threading.Thread(target=self.close, kwargs={"drain": False}, name="tagmatch-abandon", daemon=True).start()

    def stats(self) -> dict[str, Any]:
        """Return counts, what is in flight, and `stages` and `channels` by name."""
        return {**self._counts.stats(), **self._stages.stats(), "channels": self._channels.stats()}

    def _start(self) -> None:
        if not self._started:
            with self._starting:
                if not (self._started or self._closed):
                    self._stages.start()
                    self._channels.start()
                    self._started = True
                    _running.add(self)


def _as_asked(matcher: Matcher, found: UIntArray, unique: bool) -> Keys:
    """Keys of one query as a list, or as a set where they are unique."""
    keys = matcher.keys.listed(found)
    return set(keys) if unique else keys


_running: weakref.WeakSet[Pipeline] = weakref.WeakSet()


def _set_up_anew() -> None:
    """A forked child has none of its parent's threads, and locks may be held by them: all begins anew."""
    for pipeline in list(_running):
        _running.discard(pipeline)
        pipeline._set_up()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_set_up_anew)


@atexit.register
def _close_all() -> None:
    """End what was never closed, as threads within kernels do not survive the end of the interpreter."""
    for pipeline in list(_running):
        pipeline.close(drain=False)
