"""What goes through the stages: queries in columns, what the stages make of them, and who waits for the answers."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tagmatch.model.arrays import BoolArray, IntArray, Lists, TagLists, U64Array, offsets_of, pooled
from tagmatch.model.columns import rows_of_tags
from tagmatch.model.kernels.lists import join_lists
from tagmatch.model.parallel import run
from tagmatch.pipeline.run.counts import Counts, Histogram
from tagmatch.pipeline.run.stage import StageName, working
from tagmatch.pipeline.segment import Matched, Matcher, Preprocessed
from tagmatch.pipeline.tags import Space, merge_unique

_log = logging.getLogger(__name__)

#: What each stage takes, from the first to the last
Services = Mapping[StageName, Histogram]

# More memory than the first packet lets expect, in parts of it
_SPARE = 4

# Keys of a list array, of which there can be no more; where a call has more all the same, its packets are joined
_MOST = 2**31 - 1

# Of keys: where memory is so small, none of it is given back that the keys did not take
_FEW = 1 << 17

# What it takes to copy a key into memory that is not in use yet
_COPY_S = 10e-9


class Answers:
    """Keys of all packets of a call, in memory that is allocated once, as the first packet lets expect.

    A packet's place is known when those before it have said how many keys they have. Where that takes too long, or
    the memory is too small, the packet has memory of its own, which is copied later. Any number of threads may write.
    """

    def __init__(self, queries: Sequence[int], memory: Space) -> None:
        self._rows: list[int] = offsets_of(np.array(queries, np.int64)).tolist()
        self._memory = memory
        self._counted = threading.Condition()
        self._counts: list[int | None] = [None] * len(queries)
        #: Of the packets whose place is known, and the end of the last
        self._starts = [0]
        self._allocated = self._shared = False
        self._offsets: IntArray = np.zeros(1, np.int32)
        self._values: U64Array | None = None
        self._in_place: set[int] = set()
        self._kept: dict[int, Lists] = {}

    def space(self, packet: int, count: int) -> U64Array | None:
        """The place of a packet's keys; the caller then writes all `count` there.

        Waits for the packets before it, no longer than it takes to copy the keys: these may never come. `None` where
        the place is not known then.
        """
        with self._counted:
            place = self._place(packet, count)
            self._counted.notify_all()
            if self._shared and packet >= len(self._starts):
                self._counted.wait_for(lambda: packet < len(self._starts), count * _COPY_S)
                place = self._place(packet, count)
            if place is None or not self._shared:
                return None
            self._in_place.add(packet)
            return place

    def put(self, packet: int, keys: Lists) -> None:
        """Take the keys of each of a packet's queries."""
        with self._counted:
            place = self._place(packet, len(keys.values))
            self._counted.notify_all()
        if place is None:
            self._kept[packet] = keys
        else:
            self._write(packet, place, keys)

    def lists(self, threads: int) -> Lists:
        """Keys, uint64, of each query, when all packets have been put; can be asked for once."""
        count, values = self._starts[-1], self._values
        if values is not None and count <= len(values) <= max(2 * count, _FEW):
            run(self._write_kept, list(self._kept), threads)
            return Lists(self._offsets, values[:count])
        parts = [self._kept.pop(i) if i in self._kept else self._written(i) for i in range(len(self._counts))]
        return join_lists(parts, np.dtype(np.uint64), threads)

    # -- inside, where the lock is taken -----------------------------------------------------------------------------

    def _place(self, packet: int, count: int) -> U64Array | None:
        self._counts[packet] = count
        while len(self._starts) <= len(self._counts):
            next_count = self._counts[len(self._starts) - 1]
            if next_count is None:
                break
            self._starts.append(self._starts[-1] + next_count)
        if not self._allocated:
            self._allocate(packet, count)
        if self._values is None or packet >= len(self._starts):
            return None
        start = self._starts[packet]
        return self._values[start : start + count] if start + count <= len(self._values) else None

    def _allocate(self, packet: int, count: int) -> None:
        """Have memory for all keys if other packets have as many as this one, for its queries, and some more."""
        self._allocated = True
        queries, of_packet = self._rows[-1], self._rows[packet + 1] - self._rows[packet]
        expected = count if queries == of_packet else (count * queries // of_packet) * (_SPARE + 1) // _SPARE
        wanted = min(expected, _MOST)
        try:
            self._offsets = pooled(queries + 1, np.int32)
            self._offsets[0] = 0
            values = self._memory(wanted)
            self._shared = values is not None
            self._values = pooled(wanted, np.uint64) if values is None else values
        except MemoryError:
            _log.debug("no memory for the %d keys that are expected; there may be for those that come", wanted)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _write(self, packet: int, place: U64Array, keys: Lists) -> None:
        ends = self._offsets[self._rows[packet] + 1 : self._rows[packet + 1] + 1]
        np.add(keys.offsets[1:], np.int32(self._starts[packet]), out=ends, casting="same_kind")
        if packet not in self._in_place:
            place[:] = keys.values

    def _write_kept(self, packet: int) -> None:
        self._write(packet, self._places(packet), self._kept.pop(packet))

    def _written(self, packet: int) -> Lists:
        ends = self._offsets[self._rows[packet] : self._rows[packet + 1] + 1]
        offsets = ends - np.int32(self._starts[packet])
        offsets[0] = 0  # the packet before may have been kept
        return Lists(offsets, self._places(packet))

    def _places(self, packet: int) -> U64Array:
        assert self._values is not None
        return self._values[self._starts[packet] : self._starts[packet + 1]]


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
    """The answer to a query for a task of an event loop; to the stages it is what a future is to them."""

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


#: Integers or strings
Keys = list[Any] | set[Any]


class _Condition(threading.Condition):
    """Entered by C code alone.

    The usual one is entered by Python code, which Ctrl-C may interrupt when the lock is taken already. Who gives an
    answer to a future that somebody waits for would then wait for that lock for ever.
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


class Caller(NamedTuple):
    """What a query that was submitted gives its answer to, and whether that is a set of keys."""

    future: Future[Any] | Awaited
    unique: bool

    def answer(self, keys: Keys) -> None:
        """Give the keys, where there is no error yet."""
        self._end(self.future.set_result, keys)

    def fail(self, error: BaseException) -> None:
        """Give the error, where there is no answer yet."""
        self._end(self.future.set_exception, error)

    def _end(self, give: Callable[[Any], None], outcome: Any) -> None:
        try:
            give(outcome)
        except InvalidStateError:
            pass  # two batches of one query may fail at once
        except BaseException:
            # Futures let through what is no `Exception`; other queries must not suffer from it
            _log.exception("exception calling callback for %r", self.future)


@dataclass(slots=True, eq=False, kw_only=True)
class Packet(ABC):
    """A micro-batch of queries; its methods are the stages."""

    matcher: Matcher  # What answers
    unique: BoolArray  # Of each query: whether its keys are wanted once each
    queries: Preprocessed = field(init=False)  # From the preprocess stage on
    matched: Matched = field(init=False)  # From the subset match on
    keys: Lists = field(init=False)  # From the key lookup on: those of each query

    def __len__(self) -> int:
        return len(self.unique)

    @abstractmethod
    def tags(self) -> tuple[TagLists, int, int]:
        """Rows of tags, and from which to which of them are the packet's queries."""

    def space(self, count: int) -> U64Array | None:  # noqa: ARG002 - as `Space`
        """Memory for all keys of the packet, where there is some already."""
        return None

    def go_through(self, services: Services, counts: Counts) -> None:
        """Take the packet through all stages, in the calling thread; what each takes is counted as its service."""
        for stage, service in services.items():
            begun = time.perf_counter()
            getattr(self, stage)()
            service.add(time.perf_counter() - begun)
        counts.add(queries=len(self), verified=self.matched.found, rejected=self.matched.rejected)

    def preprocess(self) -> None:
        """Tags become what the matcher understands (§3.2)."""
        self.queries = self.matcher.preprocess(*self.tags())

    def subset_match(self) -> None:
        """Find the sets that each query contains (§3.3)."""
        self.matched = self.queries.subset_match()

    def key_lookup(self) -> None:
        """Sets become keys (§3.4)."""
        self.keys = self.matched.key_lookup(self.space)

    def merge(self) -> None:
        """Each query gets its keys, each once if that was asked (§3.4)."""
        if self.unique.any():
            self.keys = merge_unique(self.keys, self.unique)


@dataclass(slots=True, eq=False, kw_only=True)
class CallPacket(Packet):
    """Some of the queries of a call that asks many: `first` to `last` of `rows`."""

    rows: TagLists
    first: int
    last: int
    number: int  # Which of the call's packets it is
    answers: Answers  # Where the keys go

    def tags(self) -> tuple[TagLists, int, int]:
        """As `Packet` says."""
        return self.rows, self.first, self.last

    def space(self, count: int) -> U64Array | None:
        """As `Packet` says; keys that are to be made unique are not yet those of the answers."""
        return None if self.unique.any() else self.answers.space(self.number, count)

    def merge(self) -> None:
        """As `Packet` says; the keys then come to the others."""
        Packet.merge(self)
        self.answers.put(self.number, self.keys)


@dataclass(slots=True, eq=False, kw_only=True)
class Submitted(Packet):
    """Queries that were submitted one by one."""

    callers: list[Caller]  # The caller of each
    rows: list[list[str]] = field(default_factory=list)  # The queries
    result_bytes: int = 0  # With how many bytes of results the packet is counted as on its way

    def tags(self) -> tuple[TagLists, int, int]:
        """As `Packet` says."""
        return rows_of_tags(self.rows), 0, len(self.rows)

    def answers(self) -> list[Keys]:
        """List each query's keys, or give them as a set where they are unique."""
        ends, values = self.keys.offsets.tolist(), self.matcher.keys.listed(self.keys.values)
        parts = [values[first:last] for first, last in pairwise(ends)]
        return [set(keys) if caller.unique else keys for caller, keys in zip(self.callers, parts, strict=True)]
