"""Channels: queries wait in an order that keeps deadlines, for threads that take them in tasks.

A task is a few messages, or a packet of a call with many. It stays with one thread through all stages, and is bounded
by its time: so an urgent message never waits long for a thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from tagmatch.model.arrays import Lists, TagLists
from tagmatch.model.errors import ClosedError, DeadlineMissed, Overloaded
from tagmatch.model.input.messages import Message
from tagmatch.model.kernels.lists import join_lists
from tagmatch.model.options import MatchOptions, Wanted, of_channel
from tagmatch.pipeline.one import alone
from tagmatch.pipeline.run.callers import Answer, Caller, Limits
from tagmatch.pipeline.run.counts import Counts
from tagmatch.pipeline.run.orders import ORDERS, Class, Entry, Turn
from tagmatch.pipeline.run.packets import BulkCall, Keys, Packet, Services, as_asked, cut, matches_in, whole
from tagmatch.pipeline.run.stage import Workers, at_work
from tagmatch.pipeline.segment import Matcher, Part


class Round(BulkCall):
    """Packets of a call that wait at the same time, and the thread that waits for them."""

    def __init__(self, matcher: Matcher, parts: Sequence[Part], *, wanted: Wanted) -> None:
        super().__init__(matcher, parts, wanted=wanted)
        self.caller = Caller(Answer(), unique=False)
        self._left = len(parts)
        self._lock = threading.Lock()

    @property
    def over(self) -> bool:
        """Whether the caller waits no more."""
        return self.caller.done()

    def done(self) -> None:
        """Note that a packet has its answers."""
        with self._lock:
            self._left -= 1
            is_last = not self._left
        if is_last:
            self.caller.answer(None)

    def end(self, outcome: str, error: BaseException) -> None:
        """Fail the call; the first error counts."""
        self.caller.fail(_EndedError(outcome, error))


class _EndedError(Exception):
    """A call ended without answers."""

    def __init__(self, outcome: str, error: BaseException) -> None:
        super().__init__(outcome)
        self.outcome, self.error = outcome, error


class Channels(Workers[Turn]):
    """The channels' messages, and the threads that match them."""

    def __init__(
        self,
        options: MatchOptions,
        counts: Counts,
        limits: Limits,
        services: Services,
        clock: Callable[[], float] = time.perf_counter,
        own_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        super().__init__("channels", options.threads if options.channels else 0)
        self._classes = {channel.name: Class(channel) for channel in options.channels}
        self._names = [*self._classes]
        self._threads = options.threads
        self._order = ORDERS[options.order]([*self._classes.values()], options.threads, options.pipeline.packet_queries)
        self._counts, self._limits, self._services, self._clock = counts, limits, services, clock
        self._own_clock = own_clock
        self._lock = threading.Lock()
        self._come = threading.Condition(self._lock)
        self._gone = threading.Condition(self._lock)
        self._calls = 0
        self._stopped = False

    # -- from outside ------------------------------------------------------------------------------------------------

    def of(self, channel: object) -> Class:
        """The channel of a name; InvalidValueError."""
        return self._classes[of_channel(channel, self._names)]

    def submit(self, of: Class, matcher: Matcher, message: Message, caller: Caller, timeout: float | None) -> None:
        """Answer a query, or fail it, in time. Waits at most `timeout` for its turn to enter."""
        since = self._clock()
        if overloaded := self._limits.admit([caller], timeout, always=at_work()):
            raise overloaded[0]
        of.counts.offer(1)
        entry = Entry(of, since, since + of.due, 1, (message, caller), matcher)
        try:
            outcome = self._put([entry])
        except BaseException as error:
            self._end(entry, "failed", error)
            raise
        if outcome is not None:
            self._end(entry, outcome, self._unwanted(entry, outcome))

    def answered_at_once(self, of: Class) -> None:
        """Count a query that the thread which asked has answered itself."""
        of.counts.offer(1)
        of.counts.answer(-of.due)

    def match_many(
        self, of: Class, matcher: Matcher, chunks: Sequence[TagLists], *, wanted: Wanted, waited: float = 0.0
    ) -> Lists:
        """The wanted keys or numbers of many queries, uint64, in order; the deadline, partly past, holds for all."""
        since, count = self._clock() - waited, sum(map(len, chunks))
        of.counts.offer(count)
        outcome = "cancelled"
        with self._lock:
            self._calls += 1
        try:
            found = self._match_rounds(of, matcher, chunks, since, wanted=wanted)
            self._counts.add(matches=matches_in(found, wanted))
            outcome = "answered"
            of.counts.answer(self._clock() - since - of.due, count)
        except _EndedError as ended:
            outcome = ended.outcome
            raise ended.error from None
        except Exception:
            outcome = "failed"
            raise
        finally:
            if outcome != "answered":
                of.counts.end(outcome, count)
            with self._lock:
                self._calls -= 1
                self._gone.notify_all()
        return found

    def wait_until_empty(self) -> None:
        """Wait until all calls with many have their answers."""
        with self._lock:
            while self._calls and not self._stopped:
                self._gone.wait()

    def stop(self) -> None:
        """Begin nothing more; queries that no thread has begun are cancelled."""
        with self._lock:
            self._stopped = True
            left = self._order.clear()
            self._come.notify_all()
            self._gone.notify_all()
        for entry in left:
            if isinstance(entry.call, Round):
                entry.call.end("cancelled", ClosedError())
            else:
                _, caller = entry.work
                caller.cancel()
                self._leave(entry, "cancelled", caller)

    def stats(self) -> dict[str, Any]:
        """Return what happened to each channel's messages, by name."""
        return {name: each.counts.stats(each.cost) for name, each in self._classes.items()}

    # -- the queues ---------------------------------------------------------------------------------------------------

    def _put(self, entries: list[Entry]) -> str | None:
        with self._lock:
            if self._stopped:
                raise ClosedError
            outcome = self._order.put(entries, self._clock())
            if outcome is None:
                if self._order.by_thread:
                    self._come.notify_all()
                else:
                    self._come.notify(len(entries))
        return outcome

    def _match_rounds(
        self, of: Class, matcher: Matcher, chunks: Sequence[TagLists], since: float, *, wanted: Wanted
    ) -> Lists:
        """Match all queries; at first some, until it is known how many a packet may have."""
        found: list[Lists] = []
        left, size = whole(chunks), matcher.packet_size
        while left or not found:
            with self._lock:
                packet = self._order.packet(of, size.queries)
                growing = packet < size.queries and packet == of.cost.tried(size.queries)
                fewest = min(max(size.fewest, of.worth(packet)), packet)
            smaller = replace(size, queries=packet, fewest=fewest)
            threads = 1 if self._order.by_thread else self._threads
            part = Round(matcher, cut(left, smaller, threads, threads if growing else None), wanted=wanted)
            if part.parts:
                self._match_round(of, part, since)
            found.append(part.lists(self._threads))
        return found[0] if len(found) == 1 else join_lists(found, np.dtype(np.uint64), self._threads)

    def _match_round(self, of: Class, part: Round, since: float) -> None:
        entries = [
            Entry(of, since, since + of.due, last - first, number, call=part)
            for number, (_, first, last) in enumerate(part.parts)
        ]
        try:
            if at_work():  # a thread that others wait for must not wait for others
                for entry in entries:
                    self._match_packet(of, part, entry.work)
            elif (outcome := self._put(entries)) is not None:
                part.end(outcome, self._unwanted(entries[0], outcome))
            part.caller.future.result()
        finally:
            part.caller.future.cancel()

    # -- threads -----------------------------------------------------------------------------------------------------

    def _next(self, worker: int) -> Turn | None:
        """Wait for something to do; `None` at the end."""
        with self._lock:
            while not self._stopped:
                now = self._clock()
                turn = self._order.take(worker, now)
                if turn is not None:
                    if not self._order.by_thread and len(self._order):
                        self._come.notify()  # a thread must look after the entries that wait for others
                    return turn
                left = self._order.ready_in(worker, now)
                self._come.wait(None if left == inf else min(max(left, 0.0), threading.TIMEOUT_MAX))
        return None

    def _work_on(self, work: Turn) -> None:
        for entry in work.dropped:
            self._end(entry, "dropped", self._unwanted(entry, "dropped"))
        wanted = []
        for entry in work.entries:
            if isinstance(entry.call, Round):
                self._match_packet(entry.of, entry.call, entry.work)
            elif entry.work[1].begin():
                wanted.append(entry)
            else:
                self._leave(entry, "cancelled", entry.work[1])
        if wanted:
            self._match_messages(wanted)

    def _match_packet(self, of: Class, call: Round, number: int) -> None:
        try:
            begun, own = self._clock(), self._own_clock()
            packet = call.packet(number)
            self._perform(packet)
            own = self._own_clock() - own
        except BaseException as error:
            call.end("failed", error)
        else:
            self._learn(of, len(packet), self._clock() - begun, own)
            call.done()

    def _match_messages(self, entries: list[Entry]) -> None:
        of, matcher = entries[0].of, entries[0].matcher
        assert matcher is not None
        rows, callers = map(list, zip(*(entry.work for entry in entries), strict=True))
        try:
            begun = self._clock()
            answers = self._answers(matcher, rows, callers)
            ended = self._clock()
        except BaseException as error:
            of.counts.end("failed", len(entries))
            self._limits.leave(callers)
            for caller in callers:
                caller.fail(error)
            return
        self._learn(of, len(entries), ended - begun)
        for entry in entries:
            of.counts.answer(ended - entry.due)
        self._limits.leave(callers)
        for caller, keys in zip(callers, answers, strict=True):
            caller.answer(keys)

    def _answers(self, matcher: Matcher, rows: list[Message], callers: list[Caller]) -> list[Keys]:
        asked = alone(matcher.one_query, *rows[0]) if len(rows) == 1 else None
        if asked is not None:  # a packet takes longer
            one, query = asked
            unique = callers[0].unique
            return [as_asked(matcher, one.keys(query, unique, self._counts.sums), unique)]
        packet = Packet.of(matcher, callers, rows)
        self._perform(packet)
        self._counts.add(matches=len(packet.keys.values))
        return packet.answers()

    def _perform(self, packet: Packet) -> None:
        """Take a packet through all stages."""
        packet.go_through(self._services, self._counts)

    def _learn(self, of: Class, count: int, seconds: float, own: float | None = None) -> None:
        with self._lock:
            off = of.learn(count, seconds)
            if own is not None:
                of.learn_own(count, own)
        if off is not None:
            of.counts.estimated(off)

    # -- ends --------------------------------------------------------------------------------------------------------

    def _unwanted(self, entry: Entry, outcome: str) -> Exception:
        """The error of a message that is not to be matched."""
        channel, now = entry.of.channel, self._clock()
        if outcome == "refused":
            return Overloaded(
                f"channel {channel.name!r}: the messages that wait already would most likely delay an answer past the "
                f"deadline of {channel.due:g} seconds; try again later, or hand in fewer messages"
            )
        about = f"channel {channel.name!r}, whose deadline is {channel.due:g} seconds"
        if outcome == "deserted":
            return DeadlineMissed(f"{about}: deserted, as no thread could have it in time; hand in fewer messages")
        about += f": dropped {now - entry.since:.6f} seconds after it came,"
        if now > entry.expires:
            return DeadlineMissed(f"{about} {now - entry.expires:.6f} too late")
        late = now + entry.of.cost.seconds(entry.count) - entry.expires
        return DeadlineMissed(f"{about} as it would have been {max(late, 0.0):.6f} late")

    def _end(self, entry: Entry, outcome: str, error: BaseException) -> None:
        """Let a message out that no thread has begun, with an error."""
        if isinstance(entry.call, Round):
            entry.call.end(outcome, error)
            return
        _, caller = entry.work
        wanted = caller.begin()
        self._leave(entry, outcome if wanted else "cancelled", caller)
        if wanted:
            caller.fail(error)

    def _leave(self, entry: Entry, outcome: str, caller: Caller) -> None:
        entry.of.counts.end(outcome)
        self._limits.leave([caller])
