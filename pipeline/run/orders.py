"""The orders of channels, which give threads the next tasks.

`fifo` and `edf` have lines from which all threads take. `dfgs` is Deadline-aware Fine-Grained Scheduling with Smart
Dispatch, as published: Z. Wang, Y. Zhang, X. Chang, X. Mi, Y. Wang, K. Wang, H. Yang, "Pub/Sub on Stream: A Multi-Core
Based Message Broker with QoS Support", DEBS 2012, §5.2 and §5.3.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeAlias

from tagmatch.model import options
from tagmatch.model.kernels.jit import inlined
from tagmatch.model.options import Channel
from tagmatch.pipeline.run.counts import ChannelCounts, CostModel
from tagmatch.pipeline.segment import Matcher

#: Of the time that the tightest channel has to spare, a task may take this share: threads do not wake in no time
_SHARE = 0.5
#: Seconds that a task may take in any case, and a packet should, of its thread's own time: to take one through takes a
#: tenth of that, most of it with the interpreter lock, for which other threads then wait
_SHORTEST_S = 0.001
# How fast a message's share of its thread's own time follows
_OWN_STEP = 0.1
# How many tasks of a channel all count as samples; of later ones expected to be brief, one in eight does
_LEARN_ALL, _LEARN_ONE_IN, _BRIEF_S = 64, 8, 0.0005


@dataclass(slots=True, eq=False)
class Class:
    """A channel, with the costs and counts of its messages."""

    channel: Channel
    cost: CostModel = field(default_factory=CostModel)  # What its tasks take
    counts: ChannelCounts = field(default_factory=ChannelCounts)  # What happened to its messages
    tasks: int = 0  # Tasks that were done
    own: float = 0.0  # Seconds of its thread's own time that a message of a packet takes, without waits for locks
    due: float = field(init=False)  # The channel's, which computes them
    expires: float = field(init=False)

    def __post_init__(self) -> None:
        self.due, self.expires = self.channel.due, self.channel.expires

    def learn(self, count: int, seconds: float) -> float | None:
        """Learn from a task of `count` messages, one thread at a time; returns by how much it was off, if it did.

        Of brief tasks, to learn from each would take as long as the tasks themselves.
        """
        expected = self.cost.once + self.cost.each * count
        self.tasks += 1
        if self.tasks > _LEARN_ALL and expected < _BRIEF_S and self.tasks % _LEARN_ONE_IN:
            return None
        self.cost.learn(count, seconds)
        return abs(expected - seconds)

    def learn_own(self, count: int, seconds: float) -> None:
        """Learn how much of its thread's own time a packet of `count` messages took, one thread at a time."""
        each = seconds / count
        self.own += (_OWN_STEP if self.own else 1.0) * (each - self.own)

    def worth(self, limit: int) -> int:
        """Messages from which on a packet is worth while, `limit` at most.

        Threads that wait for each other's lock make it seem long, and the shorter packets are, the more they wait.
        """
        return min(limit, max(1, int(_SHORTEST_S / self.own))) if self.own else 1


class Awaiting(Protocol):
    """The callers of an entry, who can give up."""

    @property
    def over(self) -> bool:
        """Whether the caller waits for the answer no more."""


@dataclass(slots=True, eq=False)
class Entry:
    """A message, or a packet of a call with many, that waits. Times are seconds of one clock."""

    of: Class
    since: float  # When it was handed in, and when its answer is late
    due: float
    count: int  # Its messages
    work: Any  # The work itself
    # Of a message that may share a task with others of the same matcher; `None`: it is its own task
    matcher: Matcher | None = None
    call: Awaiting | None = None  # The call whose packet it is
    rest: int = 0  # Messages of its call in packets that were handed in with it, from this one on
    number: int = field(default_factory=itertools.count().__next__)  # Entries are numbered as they come

    @property
    def over(self) -> bool:
        """Whether it need not be matched any more."""
        return self.call is not None and self.call.over

    @property
    def expires(self) -> float:
        """When the answer is wanted no more, late or not."""
        return self.since + self.of.expires

    @property
    def lifespan(self) -> float:
        """As `expires`, where the channel says so itself: being late is no reason."""
        return inf if self.of.channel.expiry is None else self.expires


class Turn(NamedTuple):
    """The next work of a thread: entries to match together, perhaps none, and some that are dropped."""

    entries: list[Entry]
    dropped: list[Entry]


def longest_task(classes: Sequence[Class]) -> float:
    """Seconds that a task of any channel may take, so that messages that come during it are in time.

    A part of the least time that a channel has to spare beyond what one of its messages takes. If one has none, or
    is believed to have none, tasks of single messages would only keep all others from being in time.
    """
    return max(_SHARE * min((each.due - each.cost.seconds(1) for each in classes), default=inf), _SHORTEST_S)


def packet_of(of: Class, classes: Sequence[Class], limit: int) -> int:
    """Messages that a packet of a channel's calls may have, so that it takes no longer than `longest_task`.

    Where to begin a task takes longer than that, smaller packets would only take longer in all: what a packet begins
    with takes at most half of its time.
    """
    most = of.cost.most(max(longest_task(classes), 2 * of.cost.seconds(0)), limit)
    return max(most, of.worth(of.cost.tried(limit)))


@inlined
def goes_behind(end, block, due, same_channel):
    """Whether a block of tasks must go behind a task (Algorithm 3, lines 4 to 11).

    It must if the task, which would end at `end`, would be late after all of `block`, and if it is
    of the same channel, whose messages stay in order.
    """
    return end + block > due or same_channel


_goes_behind = goes_behind.py_func


class Order(ABC):
    """What waits of all channels. All methods are called with one lock held, and wait for nothing.

    `now` is of the clock that entries have their times of; the orders themselves ask no clock.
    """

    by_thread = False  # Whether an entry, and a call with all its packets, goes to one certain thread

    def __init__(self, classes: Sequence[Class], threads: int, limit: int) -> None:
        self._classes, self._threads, self._limit = classes, threads, limit
        #: Until when each thread is expected to be at work
        self._busy = [-inf] * threads

    @abstractmethod
    def __len__(self) -> int:
        """Entries that wait."""

    @abstractmethod
    def put(self, entries: Sequence[Entry], now: float) -> str | None:
        """Queue a message, or the packets of a call; returns its outcome instead, if it may not wait."""

    @abstractmethod
    def take(self, worker: int, now: float) -> Turn | None:
        """What a thread, which is done with what it had, is to do next; `None` if it is to wait."""

    @abstractmethod
    def ready_in(self, worker: int, now: float) -> float:
        """Seconds until a thread may find something, if nothing more comes; infinite if it will not."""

    @abstractmethod
    def packet(self, of: Class, limit: int) -> int:
        """Messages that a packet of a call should have, `limit` at most."""

    @abstractmethod
    def clear(self) -> list[Entry]:
        """Forget all that waits, and return it."""


class Dfgs(Order):
    """A queue of tasks for each thread, which has a way for every channel.

    A message is a block of one task; a call with many is a block of as many tasks as it has packets.
    """

    by_thread = True

    def __init__(self, classes: Sequence[Class], threads: int, limit: int) -> None:
        super().__init__(classes, threads, limit)
        # Each task with the seconds that it was expected to take when it came
        self._queues: list[list[tuple[Entry, float]]] = [[] for _ in range(threads)]

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    def put(self, entries: Sequence[Entry], now: float) -> str | None:
        """Smart Dispatch (Algorithm 4): the first thread takes a block whose queue has room for it in time."""
        tasks = [(entry, entry.of.cost.seconds(entry.count)) for entry in entries]
        block = sum(seconds for _, seconds in tasks)
        for worker, queue in enumerate(self._queues):
            place = self._place(worker, entries[0], block, now)
            if place is not None:
                queue[place:place] = tasks
                return None
        if block > entries[0].of.due:  # it would be late for any thread, and had it come at once
            entries[0].of.cost.doubt()
        return "deserted"

    def take(self, worker: int, now: float) -> Turn | None:
        """As `Order` says."""
        queue = self._queues[worker]
        self._busy[worker] = now
        dropped = []
        while queue:
            entry, seconds = queue.pop(0)
            if entry.over:
                continue
            if now > entry.lifespan:
                dropped.append(entry)
                continue
            self._busy[worker] = now + seconds
            return Turn([entry], dropped)
        return Turn([], dropped) if dropped else None

    def ready_in(self, worker: int, now: float) -> float:  # noqa: ARG002 - as `Order`
        """As `Order` says."""
        return -inf if self._queues[worker] else inf

    def clear(self) -> list[Entry]:
        """As `Order` says."""
        left = [entry for queue in self._queues for entry, _ in queue]
        for queue in self._queues:
            queue.clear()
        return left

    def packet(self, of: Class, limit: int) -> int:
        """As `Order` says."""
        return packet_of(of, self._classes, min(limit, self._limit))

    def _place(self, worker: int, entry: Entry, block: float, now: float) -> int | None:
        """Algorithm 3: the place of a block in a thread's queue; `None` if it would be late."""
        end = max(now, self._busy[worker])
        place, before = 0, end
        for i, (other, seconds) in enumerate(self._queues[worker], start=1):
            end += seconds
            if _goes_behind(end, block, other.due, other.of is entry.of):
                place, before = i, end
        return place if before + block <= entry.due else None


_due = attrgetter("due")
#: How many entries in a line behind a new message are asked whether it lets them be in time
_LOOKED_AT = 8


class _Line:
    """What waits of one channel, by deadline: as all have the same, in the order in which it came."""

    def __init__(self, of: Class) -> None:
        self.of = of
        #: Whether its messages wait for others, with which they are to share a task
        self.gathers = bool(of.channel.budget)
        #: What is taken is let go at once: it holds the memory of its queries and answers
        self.entries: deque[Entry] = deque()
        #: Messages of all entries
        self.messages = 0

    def put(self, entries: Sequence[Entry]) -> None:
        """Queue entries of one call, which have the same deadline."""
        if self.entries and entries[0].due < self.entries[-1].due:  # it had to wait until it was let in
            at = bisect_right(self.entries, entries[0].due, key=_due)
            for entry in reversed(entries):
                self.entries.insert(at, entry)
        else:
            self.entries.extend(entries)
        self.messages += entries[0].rest

    def take(self) -> Entry:
        entry = self.entries.popleft()
        self.messages -= entry.count
        return entry

    def ahead(self, due: float) -> int:
        """How many entries have a deadline that is not later."""
        return bisect_right(self.entries, due, key=_due)

    def before(self, due: float) -> int:
        """About how many messages they have."""
        return -(-self.messages * self.ahead(due) // len(self.entries)) if self.entries else 0

    def clear(self) -> list[Entry]:
        left = [*self.entries]
        self.entries.clear()
        self.messages = 0
        return left


class Fifo(Order):
    """First in, first out, in tasks as large as may be: deadlines are measured, and only what expires is dropped.

    All channels have lines, from which any thread takes.
    """

    def __init__(self, classes: Sequence[Class], threads: int, limit: int) -> None:
        super().__init__(classes, threads, limit)
        self._line_of = {each.channel.name: _Line(each) for each in classes}
        self._lines = [*self._line_of.values()]

    def __len__(self) -> int:
        return sum(len(line.entries) for line in self._lines)

    def put(self, entries: Sequence[Entry], now: float) -> str | None:
        """As `Order` says."""
        if self._refuses(entries, now):
            return "refused"
        rest = 0
        for entry in reversed(entries):
            rest += entry.count
            entry.rest = rest
        self._line(entries[0]).put(entries)
        return None

    def take(self, worker: int, now: float) -> Turn | None:
        """As `Order` says."""
        self._busy[worker] = now
        dropped: list[Entry] = []
        while (line := self._most_urgent(now)) is not None:
            entry = line.take()
            if entry.over or (dropped and entry.call is not None and entry.call is dropped[-1].call):
                continue
            if self._too_late(entry, now):
                dropped.append(entry)
                continue
            entries, count = [entry], entry.count
            if entry.matcher is not None:
                most = self._most(entry, now)
                while line.entries and count < most and line.entries[0].matcher is entry.matcher:
                    entries.append(line.take())
                    count += entries[-1].count
            self._busy[worker] = now + entry.of.cost.seconds(count)
            return Turn(entries, dropped)
        return Turn([], dropped) if dropped else None

    def ready_in(self, worker: int, now: float) -> float:  # noqa: ARG002 - as `Order`
        """As `Order` says."""
        return min((self._ready_at(line, now) - now for line in self._lines if line.entries), default=inf)

    def clear(self) -> list[Entry]:
        """As `Order` says."""
        return [entry for line in self._lines for entry in line.clear()]

    def packet(self, of: Class, limit: int) -> int:
        """As `Order` says."""
        return min(limit, self._bound(of))

    # -- inside ------------------------------------------------------------------------------------------------------

    def _line(self, entry: Entry) -> _Line:
        return self._line_of[entry.of.channel.name]

    def _most_urgent(self, now: float) -> _Line | None:
        """The line of the entry that goes first, of those that need not wait for others."""
        ready = [
            line for line in self._lines if line.entries and (not line.gathers or self._ready_at(line, now) <= now)
        ]
        if len(ready) > 1:
            return min(ready, key=lambda line: self._urgency(line.entries[0]))
        return ready[0] if ready else None

    def _ready_at(self, line: _Line, now: float) -> float:
        """Until when a line's first message waits for others, with which it is to share a task."""
        first = line.entries[0]
        if not line.gathers or first.matcher is None or line.messages >= self._most(first, now):
            return -inf
        return min(first.since + line.of.channel.budget, first.due - line.of.cost.seconds(line.messages))

    def _refuses(self, entries: Sequence[Entry], now: float) -> bool:  # noqa: ARG002
        """Whether there is no use in having these wait."""
        return False

    def _urgency(self, entry: Entry) -> Any:
        """What is least of the entry that goes first."""
        return entry.number

    def _too_late(self, entry: Entry, now: float) -> bool:
        """Whether an entry is dropped rather than matched now."""
        return now > entry.lifespan

    def _bound(self, of: Class) -> int:  # noqa: ARG002
        """Messages that a task of a channel may have."""
        return self._limit

    def _most(self, first: Entry, now: float) -> int:  # noqa: ARG002
        """Messages that may share a task with one that begins now."""
        return self._limit


class Edf(Fifo):
    """Earliest deadline first, then the higher priority, then the earlier arrival. Late messages are dropped.

    A message is refused at once if too many wait with a deadline not later, so that it could not be in time; and also
    if admitted messages with a later deadline and a higher priority would not be in time because of it. A task
    takes no longer than lets its first message be in time, and leaves every other channel time.
    """

    def _refuses(self, entries: Sequence[Entry], now: float) -> bool:
        expires = entries[0].expires
        if expires == inf:
            return False
        cost = entries[0].of.cost
        counts = [entry.count for entry in entries]
        whole = cost.backlog(len(counts), sum(counts))
        alone = max(whole / self._threads, cost.seconds(max(counts)))
        if now + alone > expires:
            if alone > entries[0].of.expires:  # not because it has come late
                cost.doubt()
            return True
        start = max(now, min(self._busy))
        soonest = min((line.entries[0].expires for line in self._lines if line.entries), default=inf)
        if start + max((self._all() + whole) / self._threads, alone) <= min(expires, soonest):
            return False
        if start + max((self._before(entries[0].due) + whole) / self._threads, alone) > expires:
            return True
        return any(self._makes_late(other, whole, start) for other in self._more_important(entries[0]))

    def _more_important(self, entry: Entry) -> Iterator[Entry]:
        """Some entries with a later deadline and a higher priority: of a line the last, others in even steps."""
        for line in self._lines:
            if line.of.channel.priority <= entry.of.channel.priority:
                continue
            first = line.ahead(entry.due)
            count = len(line.entries) - first
            for i in range(1, min(count, _LOOKED_AT) + 1):
                yield line.entries[first + i * count // min(count, _LOOKED_AT) - 1]

    def _makes_late(self, other: Entry, whole: float, start: float) -> bool:
        """Whether an entry that takes so long keeps another, which was let in and could be in time, from being so."""
        if other.over:
            return False
        lost = start + self._before(other.due, CostModel.expected) / self._threads > other.expires
        return not lost and start + (self._before(other.due) + whole) / self._threads > other.expires

    def _before(self, due: float, estimate: Callable[[CostModel, int, int], float] = CostModel.backlog) -> float:
        """What it takes to match all that has a deadline which is not later, in tasks as large as may be."""
        counts = ((line.of, line.before(due)) for line in self._lines if line.entries)
        return sum(estimate(of.cost, -(-count // self._bound(of)), count) for of, count in counts if count)

    def _all(self) -> float:
        """Seconds that it takes at most to match all entries: each message alone."""
        return sum(line.messages * line.of.cost.seconds(1) for line in self._lines if line.messages)

    def _urgency(self, entry: Entry) -> tuple[float, int, int]:
        return entry.due, -entry.of.channel.priority, entry.number

    def _too_late(self, entry: Entry, now: float) -> bool:
        """Whether its call could not be in time any more: each packet might be, where the last would not."""
        cost, count = entry.of.cost, entry.count
        takes = cost.expected(1, count)
        if entry.rest > count:
            takes = max(takes, cost.expected(-(-entry.rest // count), entry.rest) / self._threads)
        return now + takes > entry.expires

    def _bound(self, of: Class) -> int:
        return packet_of(of, self._classes, self._limit)

    def _most(self, first: Entry, now: float) -> int:
        longest = longest_task(self._classes)
        if first.due > now:  # else it is late already
            longest = min(longest, first.due - now)
        return first.of.cost.most(longest, self._limit)


#: Makes an order from channels, a number of threads, and the most messages of a task
NewOrder: TypeAlias = Callable[[Sequence[Class], int, int], Order]

ORDERS: Mapping[options.Order, NewOrder] = {"fifo": Fifo, "edf": Edf, "dfgs": Dfgs}
