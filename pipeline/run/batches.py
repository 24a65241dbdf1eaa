"""The batch stage: queries wait in the queues of their partitions until a batch is full, or has waited enough (§3).

A batch leaves when it is full, or when a thread has nothing else to do: one of the subset match, or the one that has
brought a packet so small that it stays with its thread. One whose oldest query has waited for the flush timeout goes
before all else. What queries found so far is in a results table (§3.4).

All lists, those of queued queries, of a query's ranks and of its results, are linked lists of cells of one pool: what
comes in and goes out costs the same however long they are, and memory follows the queue.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import I64Array, Lists, offsets_of
from tagmatch.model.kernels.hashing import SIGNATURE_WORDS
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.parallel import even_ranges
from tagmatch.pipeline.run.callers import Caller
from tagmatch.pipeline.run.packets import Packet
from tagmatch.pipeline.segment import Batches, Found, Matcher
from tagmatch.pipeline.tags import QueryBatch

_FIRST_CELLS = 1 << 14
_FIRST_SLOTS = 1 << 10
_BYTES_A_CELL = 8


@inlined
def _push(cells, heads, which, value):
    values, links, free = cells
    cell = free[0]
    free[0] = links[cell]
    free[1] -= 1
    values[cell], links[cell] = value, heads[which]
    heads[which] = cell


@inlined
def _pop(cells, heads, which):
    values, links, free = cells
    cell = heads[which]
    heads[which] = links[cell]
    links[cell] = free[0]
    free[0] = cell
    free[1] += 1
    return values[cell]


@kernel
def _enter(cells, table, slots, offsets, ranks, signatures, has_empty):
    """Write queries to the results table, without results except for the empty set."""
    slot_signatures, rank_heads, rank_counts, result_heads, result_counts, outstanding, _ = table
    for i in range(len(slots)):
        slot = slots[i]
        slot_signatures[slot] = signatures[i]
        rank_counts[slot] = offsets[i + 1] - offsets[i]
        for at in range(offsets[i], offsets[i + 1]):
            _push(cells, rank_heads, slot, ranks[at])
        outstanding[slot] = 0
        result_counts[slot] = has_empty
        if has_empty:
            _push(cells, result_heads, slot, 0)


@kernel
def _enqueue(cells, table, queues, slots, batches, now, batch_size, leaving):
    """Append queries to their partitions' queues; those that become full are moved to `leaving`. Returns how many."""
    outstanding, (partitions, offsets, queued) = table[5], batches
    heads, sizes, since = queues
    full, out = leaving
    used = 0
    for b in range(len(partitions)):
        partition = partitions[b]
        for i in range(offsets[b], offsets[b + 1]):
            slot = slots[queued[i]]
            outstanding[slot] += 1
            if sizes[partition] == 0:
                since[partition] = now
            _push(cells, heads, partition, slot)
            sizes[partition] += 1
            if sizes[partition] == batch_size:
                full[used] = partition
                for j in range(batch_size):
                    out[used * batch_size + j] = _pop(cells, heads, partition)
                sizes[partition] = 0
                since[partition] = np.inf
                used += 1
    return used


@kernel
def _dequeue(cells, queues, partitions, out):
    """Move all that is queued for some partitions to `out`."""
    heads, sizes, since = queues
    used = 0
    for partition in partitions:
        for _ in range(sizes[partition]):
            out[used] = _pop(cells, heads, partition)
            used += 1
        sizes[partition] = 0
        since[partition] = np.inf


@kernel
def _number(table, entries, slots):
    """Replace slots by numbers of the distinct ones, which go to `slots`; returns how many there are."""
    numbers = table[6]
    used = 0
    for i in range(len(entries)):
        slot = entries[i]
        if numbers[slot] < 0:
            numbers[slot] = used
            slots[used] = slot
            used += 1
        entries[i] = numbers[slot]
    for i in range(used):
        numbers[slots[i]] = -1
    return used


@kernel
def _copy_queries(cells, table, slots, offsets, ranks, signatures):
    """Copy queries from the results table; ranks were pushed ascending, so the list begins with the greatest."""
    values, links, _ = cells
    slot_signatures, rank_heads = table[0], table[1]
    for i in range(len(slots)):
        slot = slots[i]
        signatures[i] = slot_signatures[slot]
        cell = rank_heads[slot]
        for at in range(offsets[i + 1] - 1, offsets[i] - 1, -1):
            ranks[at] = values[cell]
            cell = links[cell]


@kernel
def _account(cells, table, slots, queued, found_queries, found_sets, completed):
    """Append results, and count down the outstanding ones; the queries with nothing left go to `completed`."""
    _, _, _, result_heads, result_counts, outstanding, _ = table
    for i in range(len(found_queries)):
        slot = slots[found_queries[i]]
        _push(cells, result_heads, slot, found_sets[i])
        result_counts[slot] += 1
    used = 0
    for number in queued:
        slot = slots[number]
        outstanding[slot] -= 1
        if outstanding[slot] == 0:
            completed[used] = slot
            used += 1
    return used


@kernel
def _clear(cells, table, slots, offsets, results):
    """Move queries' results out and free their cells."""
    _, rank_heads, rank_counts, result_heads, _, _, _ = table
    for i in range(len(slots)):
        slot = slots[i]
        for _ in range(rank_counts[slot]):
            _pop(cells, rank_heads, slot)
        for at in range(offsets[i], offsets[i + 1]):
            results[at] = _pop(cells, result_heads, slot)


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """Batches that have left the queues; `slots` are the places of their queries in the results table."""

    queues: PartitionQueues
    batches: Batches
    slots: I64Array

    def __len__(self) -> int:
        """Return the number of (query, partition) pairs."""
        return len(self.batches.queued)


@dataclass(frozen=True, slots=True, eq=False)
class Completed:
    """Queries that are through: the caller of each, and the ids of the sets found."""

    callers: list[Any]
    sets: Lists


class PartitionQueues:
    """The queues and the results table of one matcher. Callers take turns: there is no lock in here."""

    def __init__(self, matcher: Matcher) -> None:
        assert matcher.by_partition is not None
        self.matcher, self.match = matcher, matcher.by_partition
        self.finder = self.match.finder
        self.in_flight = 0
        #: (query, partition) pairs that wait
        self.waiting = 0
        self._abandoned = False
        self._callers: npt.NDArray[np.object_] = np.empty(0, object)
        # From place `in_flight` on; what stands before has no meaning
        self._free_slots = np.empty(0, np.int64)
        self._table: tuple[Any, ...] = (
            np.empty((0, SIGNATURE_WORDS), np.uint64),
            *(np.zeros(0, np.int32) for _ in ("ranks", "rank counts", "results", "result counts", "outstanding")),
            np.empty(0, np.int32),  # -1 between calls of `_number`
        )
        # values, links, and the first free cell with the number of free cells
        self._cells: tuple[Any, ...] = (np.empty(0, np.uint32), np.empty(0, np.int32), np.zeros(2, np.int64))
        self._sizes = np.zeros(self.finder.partitions, np.int64)
        #: When the oldest query of each queue entered
        self._since = np.full(self.finder.partitions, np.inf)
        self._queues = (np.zeros(self.finder.partitions, np.int32), self._sizes, self._since)

    @property
    def nbytes(self) -> int:
        """Bytes of all lists, without the room for more."""
        return _BYTES_A_CELL * (len(self._cells[0]) - int(self._cells[2][1]))

    @property
    def room(self) -> int:
        """Bytes that the lists can have without taking more memory."""
        return _BYTES_A_CELL * len(self._cells[0])

    @property
    def oldest(self) -> float:
        """When the query that waits longest entered its queue; infinite if none waits."""
        return float(self._since.min(initial=np.inf))

    def add(self, batches: Batches, callers: Sequence[Any], now: float, parts: int) -> tuple[list[Taken], Completed]:
        """Queue queries. Returns, in at most `parts` parts, the batches that are full, and those that match none."""
        count, size = len(batches.queries), self.finder.batch_size
        full = np.empty((self.waiting + len(batches.queued)) // size, np.int64)
        out = np.empty(len(full) * size, np.int64)
        self._reserve_slots(count)
        self._reserve_cells(len(batches.queries.ranks) + len(batches.queued) + count)
        slots = self._free_slots[self.in_flight : self.in_flight + count].copy()
        self.in_flight += count
        self._callers[slots] = callers
        queries = batches.queries
        _enter(
            self._cells, self._table, slots, queries.offsets, queries.ranks, batches.signatures, self.finder.has_empty
        )
        leaving = _enqueue(
            self._cells, self._table, self._queues, slots, (batches.partitions, batches.offsets, batches.queued), now,
            size, (full, out),
        )  # fmt: skip
        self.waiting += len(batches.queued) - leaving * size
        nowhere = slots[self._table[5][slots] == 0]
        taken = [
            self._taken(full[first:last], np.arange(last - first + 1) * size, out[first * size : last * size])
            for first, last in even_ranges(leaving, parts)
        ]
        return taken, self._complete(nowhere)

    def take(self, *, until: float = np.inf, most: int | None = None) -> list[Taken]:
        """Take the queues of the partitions in which a query has waited since `until`: one piece of work, or none."""
        partitions = np.flatnonzero((self._sizes > 0) & (self._since <= until))
        if most is not None and self.waiting > most:
            partitions = partitions[np.argsort(self._since[partitions], kind="stable")]
            partitions = partitions[: int(np.searchsorted(np.cumsum(self._sizes[partitions]), most)) + 1]
        if len(partitions) == 0:
            return []
        offsets = offsets_of(self._sizes[partitions])
        entries = np.empty(int(offsets[-1]), np.int64)
        _dequeue(self._cells, self._queues, partitions, entries)
        self.waiting -= len(entries)
        return [self._taken(partitions, offsets, entries)]

    def finish(self, taken: Taken, found: Found | None) -> Completed:
        """Enter the results of batches, or that they failed; returns the queries that are now through."""
        if self._abandoned:
            return Completed([], Lists(np.zeros(1, np.int64), np.empty(0, np.uint32)))
        sets = np.empty(0, np.uint32) if found is None else found.sets
        queries = np.empty(0, np.uint32) if found is None else found.queries
        completed = np.empty(len(taken.slots), np.int64)
        self._reserve_cells(len(sets))
        through = _account(self._cells, self._table, taken.slots, taken.batches.queued, queries, sets, completed)
        return self._complete(completed[:through])

    def abandon(self) -> list[Any]:
        """Forget all queries, those in batches that have left as well; returns the callers that wait for them."""
        self._abandoned = True
        self.in_flight = self.waiting = 0
        self._sizes[:] = 0
        callers = [caller for caller in self._callers if caller is not None]
        self._callers[:] = None
        return callers

    def callers(self, taken: Taken) -> list[Any]:
        """The callers of queries of batches; none once they are abandoned."""
        return [] if self._abandoned else list(self._callers[taken.slots])

    # -- inside ------------------------------------------------------------------------------------------------------

    def _taken(self, partitions: I64Array, offsets: I64Array, entries: I64Array) -> Taken:
        slots = np.empty(len(entries), np.int64)
        slots = slots[: _number(self._table, entries, slots)].copy()
        rank_ends = offsets_of(self._table[2][slots])
        ranks = np.empty(int(rank_ends[-1]), np.uint32)
        signatures = np.empty((len(slots), SIGNATURE_WORDS), np.uint64)
        _copy_queries(self._cells, self._table, slots, rank_ends, ranks, signatures)
        return Taken(self, Batches(QueryBatch(rank_ends, ranks), signatures, partitions, offsets, entries), slots)

    def _complete(self, slots: I64Array) -> Completed:
        offsets = offsets_of(self._table[4][slots])
        results = np.empty(int(offsets[-1]), np.uint32)
        callers = list(self._callers[slots])
        _clear(self._cells, self._table, slots, offsets, results)
        self._callers[slots] = None
        self._free_slots[self.in_flight - len(slots) : self.in_flight] = slots
        self.in_flight -= len(slots)
        return Completed(callers, Lists(offsets, results))

    def _reserve_slots(self, count: int) -> None:
        old = len(self._free_slots)
        if self.in_flight + count <= old:
            return
        more = max(old, self.in_flight + count - old, _FIRST_SLOTS)
        signatures, *columns, numbers = self._table
        self._table = (
            np.concatenate([signatures, np.empty((more, SIGNATURE_WORDS), np.uint64)]),
            *(np.concatenate([column, np.zeros(more, np.int32)]) for column in columns),
            np.concatenate([numbers, np.full(more, -1, np.int32)]),
        )
        self._callers = np.concatenate([self._callers, np.empty(more, object)])
        self._free_slots = np.concatenate([self._free_slots, np.arange(old, old + more)])

    def _reserve_cells(self, count: int) -> None:
        values, links, free = self._cells
        if count <= free[1]:
            return
        old = len(values)
        more = max(old, count - int(free[1]), _FIRST_CELLS)
        new_links = np.arange(old + 1, old + more + 1, dtype=np.int32)
        new_links[-1] = free[0]
        free = np.array([old, int(free[1]) + more])
        self._cells = (np.concatenate([values, np.empty(more, np.uint32)]), np.concatenate([links, new_links]), free)


# An idle thread takes all waiting batches, or its share if they have more (query, partition) pairs
_FEWEST_PAIRS = 4096

# Bytes of the lists that empty queues keep memory for
_KEPT_BYTES = 1 << 26


class Batcher:
    """The partition queues of every matcher in use."""

    def __init__(
        self,
        flush_timeout: float | None,
        threads: int,
        hand_over: int,
        *,
        announce: Callable[[], object],
        held: Callable[[int], None],
        lost: Callable[[list[Caller], BaseException], None],
    ) -> None:
        self._flush_timeout = np.inf if flush_timeout is None else float(flush_timeout)
        self._threads = threads
        self._hand_over = hand_over
        self._announce = announce
        self._held = held
        self._lost = lost
        self._lock = threading.Lock()
        self._queues: dict[Matcher, PartitionQueues] = {}
        self._stopped = False
        self._batches = self._queries = self._places = 0

    def add(self, packet: Packet, batches: Batches) -> tuple[list[Taken], Packet]:
        """Queue a packet's queries; returns batches that leave at once, and the queries that match in no partition."""
        with self._changing() as left:
            queues = self._queues_of(packet.matcher)
            leaving, completed = queues.add(batches, packet.callers, time.monotonic(), self._threads)
            left.append(completed.callers)
            if self._stopped or self._flush_timeout == 0:
                leaving += queues.take()
            elif len(packet) < self._hand_over:
                leaving += queues.take(most=self._share(queues))
            self._count(leaving)
            nowhere = _packet(queues, completed)
            waiting = queues.waiting > 0
        if waiting:
            self._announce()
        return leaving, nowhere

    def take(self) -> Taken | None:
        """Return batches that are not full, for a thread that has nothing else to do; `None` if no query waits."""
        return self._take(np.inf)

    def take_due(self) -> Taken | None:
        """Return batches that have waited enough, for any thread; `None` without any."""
        return self._take(time.monotonic() - self._flush_timeout) if self._queues else None

    def _take(self, until: float) -> Taken | None:
        with self._changing():
            found = [queues for queues in self._queues.values() if queues.waiting and queues.oldest <= until]
            if not found:
                return None
            (taken,) = found[0].take(until=until, most=self._share(found[0]))
            self._count([taken])
            more = found[0].waiting or len(found) > 1
        if more:
            self._announce()
        return taken

    def finish(self, taken: Taken, found: Found | None) -> Packet:
        """Enter the results of batches, or that they failed; returns the queries that are now through (§3.4)."""
        queues = taken.queues
        with self._changing() as left:
            completed = queues.finish(taken, found)
            left.append(completed.callers)
            latest = next(reversed(self._queues.values()), None)
            if not queues.in_flight and (queues is not latest or queues.room > _KEPT_BYTES):
                self._queues.pop(queues.matcher, None)
            return _packet(queues, completed)

    def callers(self, taken: Taken) -> list[Caller]:
        """The callers of queries of batches."""
        with self._lock:
            return taken.queues.callers(taken)

    def stop(self) -> None:
        """From now on nothing waits."""
        self._stopped = True

    def abandon(self) -> list[Caller]:
        """Forget all queries; returns the callers that wait for them."""
        with self._lock:
            return [caller for queues in self._queues.values() for caller in queues.abandon()]

    def stats(self) -> dict[str, Any]:
        """Return `queued` (query, partition) pairs, `batches` that have left, and how `full` they were in the mean."""
        with self._lock:
            return {
                "queued": sum(queues.waiting for queues in self._queues.values()),
                "batches": self._batches,
                "fill": self._queries / self._places if self._places else 0.0,
            }

    # -- inside ------------------------------------------------------------------------------------------------------

    def _queues_of(self, matcher: Matcher) -> PartitionQueues:
        queues = self._queues.pop(matcher, None)
        if queues is None:
            queues = PartitionQueues(matcher)
            # Those of a snapshot that is no longer asked would keep it alive
            self._queues = {each.matcher: each for each in self._queues.values() if each.in_flight}
        self._queues[matcher] = queues  # the last is the one in use
        return queues

    def _share(self, queues: PartitionQueues) -> int:
        """How many (query, partition) pairs one thread should take."""
        return max(_FEWEST_PAIRS, queues.waiting // self._threads)

    def _count(self, leaving: Iterable[Taken]) -> None:
        for taken in leaving:
            self._batches += len(taken.batches.partitions)
            self._queries += len(taken.batches.queued)
            self._places += len(taken.batches.partitions) * taken.queues.finder.batch_size

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[list[Caller]]]:
        """Hold the lock, and tell what the queues hold then.

        What fails within loses all queries, those of the callers in the list that this gives as well. Queues in which
        something has failed may not be whole: they are left behind, and later queries get new ones.
        """
        left: list[list[Caller]] = []
        try:
            with self._lock:
                try:
                    yield left
                    self._held(sum(queues.nbytes for queues in self._queues.values()))
                except BaseException:
                    left += [queues.abandon() for queues in self._queues.values()]
                    self._queues = {}
                    raise
        except BaseException as error:
            for callers in left:
                self._lost(callers, error)
            raise


def _packet(queues: PartitionQueues, completed: Completed) -> Packet:
    packet = Packet.of(queues.matcher, completed.callers, [])
    packet.matched = queues.match.matched(completed.sets)
    return packet
