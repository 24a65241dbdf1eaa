"""The online pipeline (§3, Figure 1), as those see it that ask: one query, one in the future, or many at once.

Queries that are asked one by one go through stages with their own threads, except for brief ones: the thread that asks
answers these at once, as to hand one over and to get the interpreter lock back takes longer. The intake gathers them
into packets. In a layout that matches partition by partition the ways of a packet's queries part in the partition
queues, and they go on when all their batches are matched. A call that waits for many queries is cut into packets; each
then stays with one thread: at 16 threads, handing packets on from stage to stage costs a third of the throughput.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

from tagmatch.model.arrays import Lists, TagLists
from tagmatch.model.errors import ClosedError
from tagmatch.model.input.messages import Message, rows_of_messages
from tagmatch.model.options import MatchOptions, Wanted, check_seconds
from tagmatch.pipeline.one import COUNT, KEYS, UNIQUE, Alone, address_of
from tagmatch.pipeline.run.batches import Batcher, Taken
from tagmatch.pipeline.run.callers import Answer, Answered, Caller, Gathering, Limits, Query, Task
from tagmatch.pipeline.run.channels import Channels
from tagmatch.pipeline.run.counts import Counts
from tagmatch.pipeline.run.orders import Class
from tagmatch.pipeline.run.packets import Intake, Keys, Packet, Services, as_asked, match_many
from tagmatch.pipeline.run.stage import FOLLOWING, STAGES, Stage, StageName, StoppedError, at_work
from tagmatch.pipeline.segment import Matcher

_Work: TypeAlias = Packet | Taken
_Following: TypeAlias = Iterable[tuple[Stage[Any], _Work]]


class Pipeline:
    """Answers queries from the matchers that they come with.

    Threads start with the first query that is submitted. `close` ends them.
    """

    def __init__(self, options: MatchOptions) -> None:
        self._options = options
        self._set_up()

    def _set_up(self) -> None:
        pipeline = self._options.pipeline
        self._counts = Counts()
        #: Where single queries are counted (see `AnswersOne`), as long as this is there
        self.counts_at = address_of(self._counts.sums)
        self._limits = Limits(pipeline.max_queries, pipeline.max_result_bytes)
        self._intake = Intake(
            pipeline.packet_queries, announce=lambda: self._preprocessing.nudge(), dropped=self._limits.leave
        )
        self._batcher = Batcher(
            self._options.flush_timeout,
            self._threads("subset_match"),
            pipeline.hand_over_queries,
            announce=lambda: self._stages["subset_match"].nudge(),
            held=self._limits.hold,
            lost=self._lose,
        )
        otherwise = {"preprocess": self._intake.take, "subset_match": self._batcher.take}
        self._stages: dict[StageName, Stage[Any]] = {
            name: Stage(
                name,
                getattr(self, f"_{name}"),
                self._fail,
                threads=self._threads(name),
                bound=pipeline.queued_packets or 2 * self._threads(name),
                hand_over=pipeline.hand_over_queries,
                first=self._batcher.take_due if name == "subset_match" else lambda: None,
                otherwise=otherwise.get(name, lambda: None),
            )
            for name in STAGES
        }
        self._preprocessing = self._stages["preprocess"]
        # What other threads do for a stage counts as well
        self._services: Services = {name: stage.service for name, stage in self._stages.items()}
        self._channels = Channels(self._options, self._counts, self._limits, self._services)
        self._gatherings: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Gathering]
        self._gatherings = weakref.WeakKeyDictionary()
        self._starting = threading.Lock()
        self._started = self._closed = False

    def _threads(self, name: StageName) -> int:
        return getattr(self._options.pipeline, f"{name}_threads") or self._options.threads

    # -- callers -----------------------------------------------------------------------------------------------------

    def submit(
        self,
        matcher: Matcher,
        asked: Alone | None,
        row: Callable[[], Message],
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
            return answer
        tags, caller = row(), Caller(answer, unique)
        self._start()
        if of is not None:
            self._channels.submit(of, matcher, tags, caller, timeout)
        else:
            self._enter(caller, matcher, tags, timeout)
        return answer

    def awaited(
        self,
        matcher: Matcher,
        asked: Alone | None,
        row: Callable[[], Message],
        *,
        unique: bool,
        channel: str | None = None,
    ) -> Awaitable[Any]:
        """Ask one query for a task of the running event loop; does not wait for its turn to enter."""
        of = None if channel is None else self._channels.of(channel)
        keys = self._brief_answer(matcher, asked, of, unique)
        if keys is not None:
            return Answered(keys)
        gathering, tags = self._gathering(), row()
        caller = Task(gathering, unique)
        if of is None:
            gathering.ask(matcher, tags, caller)
        else:
            self._start()
            self._channels.submit(of, matcher, tags, caller, 0.0)
        awaited: asyncio.Future[Any] = caller.future
        return awaited

    def _gathering(self) -> Gathering:
        """That of the event loop which the calling thread runs."""
        loop = asyncio.get_running_loop()
        found = self._gatherings.get(loop)
        if found is None:
            with self._starting:
                found = self._gatherings[loop] = Gathering(self._ask_all)
        return found

    def _brief_answer(self, matcher: Matcher, asked: Alone | None, of: Class | None, unique: bool) -> Keys | None:
        """The answer, by the calling thread, to a query for which waking another would take longer; else `None`."""
        if asked is None:
            return None
        answer: Keys | None
        answer, asked = self._entered(asked, UNIQUE if unique else KEYS)
        if answer is None:
            one, query = asked
            found = one.brief_keys(query, unique, self._counts.sums)
            if found is None:
                return None
            answer = as_asked(matcher, found, unique)
        if of is not None:
            self._channels.answered_at_once(of)
        return answer

    def _entered(self, asked: Alone, wanted: int) -> tuple[Any, Alone]:
        """What is wanted of a query without a place, if it can be answered by the shortest way; else `None`.

        And the query as it is then asked.
        """
        one, query = asked
        if query.place:
            return None, asked
        return one.enter(query.tags, wanted, self.counts_at, query.attributes), (one, query._replace(tags=None))

    def _ask_all(self, queries: list[Query]) -> None:
        """Ask queries for tasks of an event loop."""
        try:
            self._start()
            for matcher, group in groupby(queries, itemgetter(0)):
                asked = [(message, caller) for _, message, caller in group]
                overloaded = self._limits.admit([caller for _, caller in asked], 0.0)
                admitted = len(asked) - len(overloaded)
                if admitted and self._intake.extend(matcher, asked[:admitted]):
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

    def _enter(self, caller: Caller, matcher: Matcher, message: Message, timeout: float | None) -> None:
        """Queue a query in the intake, for a thread to take."""
        try:
            if overloaded := self._limits.admit([caller], timeout, always=at_work()):
                raise overloaded[0]
            if self._intake.extend(matcher, [(message, caller)]):
                self._see_to_intake()
        except BaseException:
            self._leave_behind([caller])
            raise

    def _see_to_intake(self) -> None:
        """Tell a thread to take the intake; if all threads have ended, cancel the intake."""
        if not self._preprocessing.nudge():
            self._limits.leave(self._intake.cancel())

    def _leave_behind(self, callers: list[Caller]) -> None:
        """After an error it is not known how far queries came. Others, which count on their being seen to, go on."""
        self._limits.leave(callers)
        if self._intake:
            self._preprocessing.nudge()

    def match(self, matcher: Matcher, asked: Alone, unique: bool) -> Any:
        """Ask one query and wait for its keys; the calling thread does it all."""
        one, query = asked
        keys = matcher.keys.listed(one.keys(query, unique, self._counts.sums))
        return set(keys) if unique else keys

    def match_in_packet(self, matcher: Matcher, message: Message, *, unique: bool) -> Any:
        """The same for a query that needs a packet."""
        wanted = Wanted.unique if unique else Wanted.keys
        return as_asked(matcher, self.match_many(matcher, [rows_of_messages([message])], wanted=wanted).values, unique)

    def number(self, matcher: Matcher, asked: Alone | None, row: Callable[[], Message], wanted: Wanted) -> int:
        """The wanted number of one query; few keys are looked up, and counted."""
        if asked is not None:
            count, (one, query) = self._entered(asked, COUNT)
            if count is not None:
                return int(count)
            found = one.brief_keys(query, False, self._counts.sums)
            if found is not None:
                return len(found)
        return int(self.match_many(matcher, [rows_of_messages([row()])], wanted=wanted).values[0])

    def match_many(
        self,
        matcher: Matcher,
        chunks: Sequence[TagLists],
        *,
        wanted: Wanted,
        channel: str | None = None,
        waited: float = 0.0,
    ) -> Lists:
        """Ask many queries; the wanted keys or numbers, uint64, in order.

        Their packets are not counted as on their way, as their caller waits for them anyway; nor are they queued by
        partition, being as large as many batches. Those of a channel wait each for its turn.
        """
        if channel is not None:
            of = self._channels.of(channel)
            check_seconds("waited", waited)
            self._start()
            return self._channels.match_many(of, matcher, chunks, wanted=wanted, waited=waited or 0.0)
        threads, counts = self._options.threads, self._counts
        return match_many(matcher, chunks, wanted=wanted, threads=threads, counts=counts, services=self._services)

    def close(self, *, drain: bool = True) -> None:
        """Admit no more; answer queries in flight or, without `drain`, cancel them. Ends all threads.

        In a callback of a future, whose thread is one of those to end, the closing goes on in the background.
        """
        with self._starting:
            gatherings = list(self._gatherings.values())
        for gathering in gatherings:
            gathering.submit()
        with self._starting:
            self._closed = True
        self._limits.close()
        if at_work():
            threading.Thread(target=self._end, args=[drain], name="tagmatch-close", daemon=True).start()
        else:
            self._end(drain)

    def _end(self, drain: bool) -> None:
        if drain:
            self._limits.wait_until_empty()
            self._channels.wait_until_empty()
        else:
            self._limits.give_up()
        self._channels.stop()
        self._channels.join()
        for stage in self._stages.values():
            stage.stop()
        self._limits.leave(self._intake.cancel())
        self._batcher.stop()
        for stage in self._stages.values():
            stage.join()
        self._lose(self._batcher.abandon(), ClosedError())
        _running.discard(self)

    def abandon(self) -> None:
        """Close without draining, in its own thread: the garbage collector may call this from any thread."""
        if not self._closed and any(thread.ident for stage in self._stages.values() for thread in stage.threads):
            threading.Thread(target=self.close, kwargs={"drain": False}, name="tagmatch-abandon", daemon=True).start()

    def stats(self) -> dict[str, Any]:
        """Return counts, queries in flight, and `stages` and `channels` by name."""
        first, *others = ((name, stage.stats()) for name, stage in self._stages.items())
        return {
            **self._counts.stats(),
            "queries_in_flight": self._limits.queries,
            "result_bytes_in_flight": self._limits.result_bytes,
            "stages": dict([first, ("batch", self._batcher.stats()), *others]),
            "channels": self._channels.stats(),
        }

    def _start(self) -> None:
        if not self._started:
            with self._starting:
                if not (self._started or self._closed):
                    for stage in self._stages.values():
                        stage.start()
                    self._channels.start()
                    self._started = True
                    _running.add(self)

    # -- stages ------------------------------------------------------------------------------------------------------

    def _preprocess(self, packet: Packet) -> _Following:
        by_partition = packet.matcher.by_partition
        if by_partition is None:
            packet.preprocess()
            return self._after("preprocess", packet)
        leaving, nowhere = self._batcher.add(packet, by_partition.preprocess(*packet.tags()))
        batches = [following for taken in leaving for following in self._after("preprocess", taken)]
        return [*batches, *self._after("subset_match", nowhere)]

    def _subset_match(self, work: _Work) -> _Following:
        self._limits.wait_for_room()
        if isinstance(work, Packet):
            work.subset_match()
            self._counts.add(verified=work.matched.found, rejected=work.matched.rejected)
            return self._after("subset_match", work)
        found = work.queues.match.match(work.batches)
        self._counts.add(verified=len(found.sets), rejected=found.rejected)
        return self._after("subset_match", self._batcher.finish(work, found))

    def _key_lookup(self, packet: Packet) -> _Following:
        packet.key_lookup()
        packet.result_bytes = packet.keys.values.nbytes
        self._limits.charge(packet.result_bytes)
        return self._after("key_lookup", packet)

    def _merge(self, packet: Packet) -> _Following:
        packet.merge()
        answers = packet.answers()
        self._release(packet)
        self._limits.leave(packet.callers)
        waiting = [not caller.done() for caller in packet.callers]  # those whose batches all went well
        self._counts.add(queries=sum(waiting), matches=len(packet.keys.values))
        for caller, answer in zip(packet.callers, answers, strict=True):
            caller.answer(answer)
        return ()

    def _after(self, name: StageName, work: _Work) -> _Following:
        """The stage that follows, with the work for it."""
        return [(self._stages[FOLLOWING[name]], work)] if len(work) else ()

    def _fail(self, work: _Work, error: BaseException) -> None:
        if isinstance(error, StoppedError):
            error = ClosedError()
        if isinstance(work, Taken):
            # Noted before the batches count as finished: the thread that finishes a query's last batch must know that
            # one failed
            self._lose(self._batcher.callers(work), error)
            work = self._batcher.finish(work, None)
        self._release(work)
        self._lose(work.callers, error)

    def _lose(self, callers: list[Caller], error: BaseException) -> None:
        """Let queries out, with an error."""
        self._limits.leave(callers)
        for caller in callers:
            caller.fail(error)

    def _release(self, packet: Packet) -> None:
        """Count the bytes of a packet's results out, once."""
        result_bytes, packet.result_bytes = packet.result_bytes, 0
        self._limits.charge(-result_bytes)


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
    """End pipelines that were never closed, as threads within kernels do not survive the end of the interpreter."""
    for pipeline in list(_running):
        pipeline.close(drain=False)
