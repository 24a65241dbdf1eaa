"""Orders in which messages of a channel stand in line, and all threads take from the same lines: `fifo` and `edf`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right, insort
from collections.abc import Sequence
from math import inf
from operator import attrgetter
from typing import Any

from tagmatch.pipeline.channels.waiting import Class, Entry, Turn, longest_task

# Entries that were taken are forgotten when there are so many, and more than half
_FORGET = 1024

_due = attrgetter("due")


class _Line:
    """What waits of one channel, by deadline: as all have the same, in the order in which it came."""

    def __init__(self, of: Class) -> None:
        self.of = of
        #: Messages of all entries
        self.messages = 0
        self._entries: list[Entry] = []
        self._head = 0

    def __len__(self) -> int:
        return len(self._entries) - self._head

    @property
    def first(self) -> Entry:
        """The entry that is next."""
        return self._entries[self._head]

    def put(self, entry: Entry) -> None:
        if self and entry.due < self._entries[-1].due:  # it had to wait until it was let in
            insort(self._entries, entry, lo=self._head, key=_due)
        else:
            self._entries.append(entry)
        self.messages += entry.count

    def take(self) -> Entry:
        entry = self._entries[self._head]
        self._head += 1
        self.messages -= entry.count
        if self._head >= _FORGET and 2 * self._head > len(self._entries):
            del self._entries[: self._head]
            self._head = 0
        return entry

    def before(self, due: float) -> int:
        """About how many messages have a deadline that is not later."""
        if not self:
            return 0
        ahead = bisect_right(self._entries, due, lo=self._head, key=_due) - self._head
        return -(-self.messages * ahead // len(self))

    def clear(self) -> list[Entry]:
        left = self._entries[self._head :]
        self._entries, self._head, self.messages = [], 0, 0
        return left


class _Lines(ABC):
    """Lines of all channels, from which any thread takes.

    Parameters
    ----------
    classes : sequence of Class
    threads : int
        Threads that take.
    limit : int
        Messages of a task at most.
    """

    #: Any thread may take what comes
    by_thread = False

    def __init__(self, classes: Sequence[Class], threads: int, limit: int) -> None:
        self._classes = classes
        self._lines = {each.channel.name: _Line(each) for each in classes}
        self._threads = threads
        self._limit = limit
        #: Until when each thread is expected to be at work
        self._busy = [-inf] * threads

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def put(self, entries: Sequence[Entry], now: float) -> str | None:
        """Have a message, or the packets of a call, wait; returns what becomes of it instead, if it may not."""
        if self._refuses(entries, now):
            return "refused"
        line = self._line(entries[0])
        for entry in entries:
            line.put(entry)
        return None

    def take(self, worker: int, now: float) -> Turn | None:
        """What a thread, which is done with what it had, is to do next; `None` if it is to wait."""
        self._busy[worker] = now
        dropped: list[Entry] = []
        while ready := [line for line in self._lines.values() if line and self._ready_at(line, now) <= now]:
            line = min(ready, key=lambda line: self._urgency(line.first))
            entry = line.take()
            if entry.over:
                continue
            if self._too_late(entry, now):
                dropped.append(entry)
                continue
            entries = [entry]
            if entry.matcher is not None:
                most = self._most(entry, now)
                while line and len(entries) < most and line.first.matcher is entry.matcher:
                    entries.append(line.take())
            self._busy[worker] = now + entry.of.cost.seconds(sum(each.count for each in entries))
            return Turn(entries, dropped)
        return Turn([], dropped) if dropped else None

    def ready_in(self, worker: int, now: float) -> float:  # noqa: ARG002 - as `Order`
        """Seconds until a thread may find something, if nothing more comes; infinite if it will not."""
        return min((self._ready_at(line, now) - now for line in self._lines.values() if line), default=inf)

    def clear(self) -> list[Entry]:
        """Forget all that waits, and return it."""
        return [entry for line in self._lines.values() for entry in line.clear()]

    def packet(self, of: Class, limit: int) -> int:
        """Messages that a packet of a call should have, `limit` at most."""
        return min(limit, self._bound(of))

    # -- inside ------------------------------------------------------------------------------------------------------

    def _line(self, entry: Entry) -> _Line:
        return self._lines[entry.of.channel.name]

    def _ready_at(self, line: _Line, now: float) -> float:
        """Until when a line's first message waits for others, with which it is to share a task."""
        first, budget = line.first, line.of.channel.budget
        if not budget or first.matcher is None or line.messages >= self._most(first, now):
            return -inf
        return min(first.since + budget, first.due - line.of.cost.seconds(line.messages))

    @abstractmethod
    def _refuses(self, entries: Sequence[Entry], now: float) -> bool:
        """Whether there is no use in having these wait."""

    @abstractmethod
    def _urgency(self, entry: Entry) -> Any:
        """What is least of the entry that goes first."""

    @abstractmethod
    def _too_late(self, entry: Entry, now: float) -> bool:
        """Whether an entry is dropped rather than matched now."""

    @abstractmethod
    def _bound(self, of: Class) -> int:
        """Messages that a task of a channel may have."""

    @abstractmethod
    def _most(self, first: Entry, now: float) -> int:
        """Messages that may share a task with one that begins now."""


class Fifo(_Lines):
    """First in, first out, in tasks as large as may be: deadlines are measured, and only what expires is dropped."""

    def _refuses(self, entries: Sequence[Entry], now: float) -> bool:  # noqa: ARG002
        return False

    def _urgency(self, entry: Entry) -> int:
        return entry.number

    def _too_late(self, entry: Entry, now: float) -> bool:
        return now > entry.lifespan

    def _bound(self, of: Class) -> int:  # noqa: ARG002
        return self._limit

    def _most(self, first: Entry, now: float) -> int:  # noqa: ARG002
        return self._limit


class Edf(_Lines):
    """Earliest deadline first, then the higher priority, then what came first. What could not be in time is dropped.

    Where so much waits, with a deadline not later, that a message could not be in time, it is refused at once. A task
    takes no longer than lets its first message be in time, and leaves every other channel time.
    """

    def _refuses(self, entries: Sequence[Entry], now: float) -> bool:
        expires = entries[0].expires
        if expires == inf:
            return False
        own = [entry.of.cost.seconds(entry.count) for entry in entries]
        longest, whole = max(own), sum(own)
        if now + longest > expires:
            entries[0].of.cost.doubt()
            return True
        start = max(now, min(self._busy))
        if start + max((self._all() + whole) / self._threads, longest) <= expires:
            return False
        due = entries[0].due
        before = sum(line.of.cost.backlog(line.before(due), self._bound(line.of)) for line in self._lines.values())
        return start + max((before + whole) / self._threads, longest) > expires

    def _all(self) -> float:
        """At most so many seconds it takes to match all that waits: each message alone."""
        return sum(line.messages * line.of.cost.seconds(1) for line in self._lines.values() if line.messages)

    def _urgency(self, entry: Entry) -> tuple[float, int, int]:
        return entry.due, -entry.of.channel.priority, entry.number

    def _too_late(self, entry: Entry, now: float) -> bool:
        return now + entry.of.cost.seconds(entry.count) > entry.expires

    def _bound(self, of: Class) -> int:
        return of.cost.most(longest_task(self._classes), self._limit)

    def _most(self, first: Entry, now: float) -> int:
        longest = longest_task(self._classes)
        if first.due > now:  # else it is late already
            longest = min(longest, first.due - now)
        return first.of.cost.most(longest, self._limit)
