"""Drives an order with real work: on virtual clocks, which CPU time advances, or with threads on the wall clock."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from math import inf

import numpy as np

from tagmatch.model.arrays import I64Array
from tagmatch.model.parallel import join, start
from tagmatch.pipeline.run.counts import CostModel
from tagmatch.pipeline.run.orders import ORDERS, Class, Entry, NewOrder, Order, Turn
from tagmatch_bench.qos.kernels import DROPPED, LOST, Messages
from tagmatch_bench.qos.matching import H_PHASE, UNIT_SECONDS, Matching, Message
from tagmatch_bench.qos.simulator import NANOSECONDS, Flow


class InTurn(Order):
    """Workers get messages in turn, round robin; each has its own order."""

    by_thread = True

    def __init__(self, of: NewOrder, classes: Sequence[Class], threads: int, limit: int) -> None:
        super().__init__(classes, threads, limit)
        self._orders: list[Order] = [of(classes, 1, limit) for _ in range(threads)]
        self._next = 0

    def __len__(self) -> int:
        return sum(map(len, self._orders))

    def put(self, entries: Sequence[Entry], now: float) -> str | None:
        """Queue a message for the worker whose turn it is."""
        order = self._orders[self._next]
        self._next = (self._next + 1) % len(self._orders)
        return order.put(entries, now)

    def take(self, worker: int, now: float) -> Turn | None:
        """What a worker is to do next."""
        return self._orders[worker].take(0, now)

    def ready_in(self, worker: int, now: float) -> float:
        """Seconds until a worker may find something."""
        return self._orders[worker].ready_in(0, now)

    def packet(self, of: Class, limit: int) -> int:
        """Messages that a packet should have."""
        return self._orders[0].packet(of, limit)

    def clear(self) -> list[Entry]:
        """Forget all that waits, and return it."""
        return [entry for order in self._orders for entry in order.clear()]


@dataclass(frozen=True, slots=True)
class Broker:
    """How messages wait."""

    order: NewOrder  # makes the order
    whole: bool = False  # whether a message is indivisible, one task
    # whether messages of all channels are as those of one: none goes before one that came earlier
    one_line: bool = False
    # whether tasks' times are learned from tasks that ended, else each message is taken to need as long as any (§6.1)
    learns: bool = True


class Longest(CostModel):
    """The published estimate: each message takes the longest time of its channel (§6.1), as its tasks' units say."""

    def __init__(self) -> None:
        super().__init__()
        self.each = UNIT_SECONDS

    def learn(self, count: int, seconds: float) -> None:
        """Nothing is learned."""

    def doubt(self) -> None:
        """Nothing is doubted."""


#: By the simulator's names; further `FIFO`, in which all workers take from one queue, and learned estimates
BROKERS: Mapping[str, Broker] = {
    "QoS-ignorant": Broker(partial(InTurn, ORDERS["fifo"]), whole=True),
    "FIFO": Broker(ORDERS["fifo"], whole=True),
    "DFGS": Broker(partial(InTurn, ORDERS["dfgs"]), learns=False),
    "Smart Dispatch": Broker(ORDERS["dfgs"], whole=True, one_line=True, learns=False),
    "DFGS + Smart Dispatch": Broker(ORDERS["dfgs"], learns=False),
    "DFGS + Smart Dispatch, learned": Broker(ORDERS["dfgs"]),
    "EDF": Broker(ORDERS["edf"]),
}


# No task is bounded by the messages it has, as each is a part of one message
_LIMIT = 1 << 40
# Tasks that the estimates begin with
_TAUGHT = 64


@dataclass(frozen=True, slots=True)
class Channels:
    """What is matched for each channel: its deadlines, its subscriptions, and how many times their time it takes."""

    flows: Sequence[Flow]
    matchings: Sequence[Matching]
    times: Sequence[Fraction]
    longest: Sequence[float]  # seconds that a message takes at most, before that


@dataclass(slots=True)
class Spent:
    """CPU time without matching, in seconds: to queue messages, to take tasks and to learn from them."""

    putting: float = 0.0
    taking: float = 0.0
    messages: int = 0


class Driven:
    """Messages, the order in which they wait, and their outcome."""

    def __init__(self, messages: Messages, channels: Channels, broker: Broker, workers: int) -> None:
        self.workers = workers
        self.arrivals: list[float] = (messages.arrival / NANOSECONDS).tolist()  # when each message comes, in seconds
        #: When each message is answered, in nanoseconds; `kernels.DROPPED` for one that is not
        self.ends: I64Array = np.full(len(messages.arrival), LOST, np.int64)
        self.spent = Spent(messages=len(self.arrivals))
        self.found = 0  # matches of all messages that were answered
        self.channel_of = messages.channel.tolist()
        self._channels, self.flows = channels, channels.flows
        classes = [Class(flow.channel) for flow in channels.flows]
        self._classes = [classes[0]] * len(classes) if broker.one_line else classes
        self._tasks = [
            matching.tasks(times, whole=broker.whole)
            for matching, times in zip(channels.matchings, channels.times, strict=True)
        ]
        if broker.learns:
            for of, tasks in zip(self._classes, self._tasks, strict=True):
                for task in range(_TAUGHT):
                    _, units = tasks[task % len(tasks)]
                    of.cost.learn(units, units * UNIT_SECONDS)
        else:
            own = zip(self._tasks, channels.longest, channels.times, strict=True)
            self._tasks = [_as_long(tasks, seconds * float(times)) for tasks, seconds, times in own]
            for of in classes:
                of.cost = Longest()
        self.order = broker.order(classes, workers, _LIMIT)

    def put(self, number: int, now: float) -> None:
        """Queue a message, or drop it if the order refuses it."""
        entries = self.entries(number)
        if self.order.put(entries, now) is not None:
            self._drop(entries[0].work[0])

    def entries(self, number: int) -> list[Entry]:
        """The tasks of a message."""
        channel = self.channel_of[number]
        tasks, since = self._tasks[channel], self.arrivals[number]
        message = Message(number, number % self._channels.matchings[channel].rows, len(tasks))
        due = since + self._channels.flows[channel].channel.due
        of = self._classes[channel]
        return [Entry(of, since, due, units, (message, task), call=message) for task, units in tasks]

    def accept(self, turn: Turn) -> Entry | None:
        """Note the messages that the order gives up; returns the task to do, if the turn has one."""
        for entry in turn.dropped:
            self._drop(entry.work[0])
        return next((entry for entry in turn.entries if not entry.over), None)

    def perform(self, entry: Entry) -> None:
        """Do a task."""
        message, task = entry.work
        channel = self.channel_of[message.number]
        self._channels.matchings[channel].perform(message, task, self._channels.times[channel])

    def done(self, entry: Entry, end: float) -> None:
        """Note when a task ended."""
        message, _ = entry.work
        message.left -= 1
        if message.left == 0 and not message.over:
            self.ends[message.number] = max(round(end * NANOSECONDS), round(entry.since * NANOSECONDS) + 1)
            self.found += message.found

    def _drop(self, message: Message) -> None:
        message.over = True
        self.ends[message.number] = DROPPED


def _as_long(tasks: Sequence[tuple[int, int]], seconds: float) -> list[tuple[int, int]]:
    """The tasks of a message with so much work that all take these seconds."""
    share = seconds / UNIT_SECONDS / sum(units for _, units in tasks)
    return [(task, max(1, round(share * units))) for task, units in tasks]


def run_virtual(driven: Driven) -> None:
    """Do the work of all workers in this thread; each worker has its own clock.

    A clock goes on by the CPU time that the thread needs to take a task, to do it and to learn from it. The time
    to queue messages counts for no worker: as in the paper (§6.1), there is one more core for that.
    """
    order, arrivals = driven.order, driven.arrivals
    busy: list[tuple[float, int, Entry | None]] = []
    idle = set(range(driven.workers))
    coming = 0
    while coming < len(arrivals) or busy:
        now = min(arrivals[coming] if coming < len(arrivals) else inf, busy[0][0] if busy else inf)
        while busy and busy[0][0] <= now:
            end, worker, ended = heapq.heappop(busy)
            idle.add(worker)
            if ended is not None:
                driven.done(ended, end)
        while coming < len(arrivals) and arrivals[coming] <= now:
            begun = time.thread_time()
            driven.put(coming, now)
            driven.spent.putting += time.thread_time() - begun
            coming += 1
        for worker in sorted(idle):
            begun = time.thread_time()
            turn = order.take(worker, now)
            taken = time.thread_time()
            if turn is None:
                if not order.by_thread:
                    break
                continue
            driven.spent.taking += taken - begun
            entry = driven.accept(turn)
            end = now + taken - begun
            if entry is not None:
                message, task = entry.work
                driven.perform(entry)
                performed = time.thread_time()
                entry.of.learn(entry.count, performed - begun)  # to take a brief task is a part of what it costs
                learned = time.thread_time()
                driven.spent.taking += learned - performed
                # The H phase may be under way at another worker: its end is known, as it was done when it was taken
                end = max(end, message.h_end) + learned - taken
                if task == H_PHASE:
                    message.h_end = end
            idle.remove(worker)
            # Ends at the same time are in the order of workers; each worker has one end
            heapq.heappush(busy, (end, worker, entry))


@dataclass(slots=True)
class _Shared:
    """What threads share."""

    driven: Driven
    clock: Callable[[], float]
    come: threading.Condition = field(default_factory=threading.Condition)
    ended: bool = False
    error: BaseException | None = None


def run_threads(driven: Driven) -> None:
    """Do the work in one thread a worker, while this thread hands in each message when it is due."""
    begun = time.perf_counter()
    shared = _Shared(driven, lambda: time.perf_counter() - begun)
    threads = [
        threading.Thread(target=_work, args=[shared, worker], name=f"qos-{worker}", daemon=True)
        for worker in range(driven.workers)
    ]
    for thread in threads:
        start(thread)
    try:
        for number in numbers_when_due(driven.arrivals, shared.clock):
            with shared.come:
                driven.put(number, shared.clock())
                shared.come.notify_all()
    finally:
        with shared.come:
            shared.ended = True
            shared.come.notify_all()
        for thread in threads:
            join(thread)
    if shared.error is not None:
        raise shared.error


def numbers_when_due(arrivals: Sequence[float], clock: Callable[[], float]) -> Iterator[int]:
    """Give the number of each arrival when its time has come."""
    for number, arrival in enumerate(arrivals):
        while (left := arrival - clock()) > 0:
            time.sleep(left)
        yield number


def _work(shared: _Shared, worker: int) -> None:
    """Do tasks until the end."""
    try:
        while (entry := _next(shared, worker)) is not None:
            begun = shared.clock()
            shared.driven.perform(entry)
            end = shared.clock()
            with shared.come:
                shared.driven.done(entry, end)
                entry.of.learn(entry.count, end - begun)
    except BaseException as error:
        with shared.come:
            shared.error = error
            shared.ended = True
            shared.driven.order.clear()


def _next(shared: _Shared, worker: int) -> Entry | None:
    """Wait for a task; `None` at the end."""
    with shared.come:
        while True:
            turn = shared.driven.order.take(worker, shared.clock())
            if turn is None and shared.ended:
                return None
            if turn is None:
                shared.come.wait()
            elif (entry := shared.driven.accept(turn)) is not None:
                return entry
