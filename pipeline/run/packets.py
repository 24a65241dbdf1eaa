"""Packets: queries in columns on their way through the stages, and what the stages make of them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self, TypeAlias

import numpy as np

from tagmatch.model.arrays import IntArray, Lists, TagLists, U64Array, UIntArray, offsets_of, pooled
from tagmatch.model.input.messages import Message, rows_of_messages
from tagmatch.model.kernels.lists import join_lists
from tagmatch.model.options import Wanted
from tagmatch.model.parallel import even_ranges, even_work, run, run_rows
from tagmatch.pipeline.run.callers import Caller
from tagmatch.pipeline.run.counts import Counts, Histogram
from tagmatch.pipeline.run.stage import StageName
from tagmatch.pipeline.segment import Matched, Matcher, PacketSize, Part, Preprocessed
from tagmatch.pipeline.tags import no_space
from tagmatch.pipeline.unique import merge_all, merge_unique

_log = logging.getLogger(__name__)

#: What each stage takes, from the first to the last
Services = Mapping[StageName, Histogram]

# More memory than the first packet lets expect, in parts of it
_SPARE = 4

# The most keys of a list array; if a call has more, its packets are joined
_MOST = 2**31 - 1

# Of keys: where memory is so small, none of it is given back that the keys did not take
_FEW = 1 << 17

# Pieces of a call's keys that are merged when all packets are there
_PIECES_PER_THREAD = 4

# What it takes to copy a key into memory that is not in use yet
_COPY_S = 10e-9


class BulkCall:
    """Parts of a call that asks many queries, each a packet; their keys are in memory that is allocated once.

    If numbers are wanted, each query has one in place of keys. The first packet lets expect how much it takes.

    A packet's place is known when those before it have said how many keys they have. If that takes too long, or
    the memory is too small, the packet gets other memory, which is copied later. Any number of threads may write.
    """

    def __init__(self, matcher: Matcher, parts: Sequence[Part], *, wanted: Wanted, merged_later: bool = False) -> None:
        self.matcher, self.parts, self.wanted = matcher, parts, wanted
        #: Whether unique keys that have to be merged are left until all packets are there; and whether any are left
        self.merged_later, self.to_merge = merged_later, False
        queries = [last - first for _, first, last in parts]
        self._rows: list[int] = offsets_of(np.array(queries, np.int64)).tolist()
        self._counted = threading.Condition()
        self._counts: list[int | None] = [None] * len(parts)
        #: Of the packets whose place is known, and the end of the last
        self._starts = [0]
        self._allocated = self._shared = False
        self._offsets: IntArray = np.zeros(1, np.int32)
        self._values: U64Array | None = None
        self._in_place: set[int] = set()
        self._kept: dict[int, Lists] = {}

    def packet(self, number: int) -> SharedPacket:
        """One of the packets, which is not kept: it holds much memory."""
        part, later = self.parts[number], self.merged_later
        return SharedPacket(
            matcher=self.matcher, wanted=self.wanted, part=part, merged_later=later, call=self, number=number
        )

    def space(self, packet: int, count: int, *, at_most: bool = False) -> U64Array | None:
        """The place of a packet's keys; the caller then writes all `count`, or only the first ones with `at_most`.

        Waits for the packets before it, no longer than it takes to copy the keys: these may never come. `None` if
        the place is not known then.
        """
        with self._counted:
            if not at_most:
                self._count(packet, count)
            place = self._place(packet, count)
            if self._shared and packet >= len(self._starts) and not at_most:
                self._counted.wait_for(lambda: packet < len(self._starts), count * _COPY_S)
                place = self._place(packet, count)
            if place is None or not self._shared:
                return None
            self._in_place.add(packet)
            return place

    def put(self, packet: int, keys: Lists) -> None:
        """Take the keys of each of a packet's queries."""
        with self._counted:
            self._count(packet, len(keys.values))
            place = self._place(packet, len(keys.values))
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

    def _count(self, packet: int, count: int) -> None:
        self._counts[packet] = count
        known = len(self._starts)
        while len(self._starts) <= len(self._counts):
            next_count = self._counts[len(self._starts) - 1]
            if next_count is None:
                break
            self._starts.append(self._starts[-1] + next_count)
        if len(self._starts) > known:
            self._counted.notify_all()

    def _place(self, packet: int, count: int) -> U64Array | None:
        if not self._allocated:
            self._allocate(packet, count)
        if self._values is None or packet >= len(self._starts):
            return None
        start = self._starts[packet]
        return self._values[start : start + count] if start + count <= len(self._values) else None

    def _allocate(self, packet: int, count: int) -> None:
        """Take memory for all keys if other packets have as many as this one, for its queries, and some more."""
        self._allocated = True
        queries, of_packet = self._rows[-1], self._rows[packet + 1] - self._rows[packet]
        expected = count if queries == of_packet else (count * queries // of_packet) * (_SPARE + 1) // _SPARE
        wanted = min(expected, _MOST)
        try:
            self._offsets = pooled(queries + 1, np.int32)
            self._offsets[0] = 0
            values = self.matcher.memory(wanted)
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


#: Keys of a query, which are integers or strings
Keys: TypeAlias = list[Any] | set[Any]


def as_asked(matcher: Matcher, found: UIntArray, unique: bool) -> Keys:
    """Keys of one query as a list, or as a set if they are unique."""
    keys = matcher.keys.listed(found)
    return set(keys) if unique else keys


@dataclass(slots=True, eq=False, kw_only=True)
class Packet:
    """A micro-batch of queries, here of some that were submitted one by one; its methods are the stages."""

    matcher: Matcher  # What answers
    rows: list[Message] = field(default_factory=list)  # The queries
    callers: list[Caller] = field(default_factory=list)  # The caller of each
    wanted: Wanted = Wanted.keys
    result_bytes: int = 0  # With how many bytes of results the packet is counted as on its way
    queries: Preprocessed = field(init=False)  # From the preprocess stage on
    matched: Matched = field(init=False)  # From the subset match on
    keys: Lists = field(init=False)  # From the key lookup on: those of each query

    @classmethod
    def of(cls, matcher: Matcher, callers: list[Caller], rows: list[Message]) -> Self:
        """A packet of these callers' queries."""
        return cls(matcher=matcher, rows=rows, callers=callers)

    def __len__(self) -> int:
        return len(self.callers)

    def tags(self) -> tuple[TagLists, int, int]:
        """Rows of tags, and from which to which of them are the packet's queries."""
        return rows_of_messages(self.rows), 0, len(self.rows)

    def space(self, count: int, *, at_most: bool = False) -> U64Array | None:  # noqa: ARG002 - as `Space`
        """Memory for all keys of the packet, or `None`."""
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
        self.matched = self.queries.subset_match(self.wanted)

    def key_lookup(self) -> None:
        """Sets become keys (§3.4)."""
        self.keys = self.matched.key_lookup(self.space)

    def merge(self) -> None:
        """Each query gets its keys, each once if its caller asks for that (§3.4)."""
        unique = [caller.unique for caller in self.callers]
        if any(unique):
            self.keys = merge_unique(self.keys, np.array(unique))

    def answers(self) -> list[Keys]:
        """List each query's keys, or give them as a set if they are unique."""
        ends, values = self.keys.offsets.tolist(), self.matcher.keys.listed(self.keys.values)
        parts = [values[first:last] for first, last in pairwise(ends)]
        return [set(keys) if caller.unique else keys for caller, keys in zip(self.callers, parts, strict=True)]


@dataclass(slots=True, eq=False, kw_only=True)
class CallPacket(Packet):
    """The queries of a call that asks many, or some of them."""

    part: Part
    merged_later: bool = False  # Whether unique keys that must be merged are left to the call

    def __len__(self) -> int:
        _, first, last = self.part
        return last - first

    @property
    def to_merge(self) -> bool:
        """Whether the call must merge them."""
        return self.wanted is Wanted.unique and self.merged_later and not self.matched.once

    def tags(self) -> Part:
        """As `Packet` says."""
        return self.part

    def space(self, count: int, *, at_most: bool = False) -> U64Array | None:  # noqa: ARG002 - as `Space`
        """As `Packet` says."""
        no_space(count)
        return self.matcher.memory(count)

    def key_lookup(self) -> None:
        """As `Packet` says; the keys that are looked up are those that the call gets, if they need no merging."""
        stay = self.merged_later or self.wanted is not Wanted.unique or self.matched.once
        self.keys = self.matched.key_lookup(self.space if stay else no_space, wanted=self.wanted)

    def merge(self) -> None:
        """As `Packet` says."""
        if self.wanted is Wanted.unique and not self.merged_later and not self.matched.once:
            self.keys = merge_all(self.keys, self.space)


@dataclass(slots=True, eq=False, kw_only=True)
class SharedPacket(CallPacket):
    """One packet of several, whose keys come next to those of the others."""

    call: BulkCall
    number: int  # Which of the call's packets it is

    def space(self, count: int, *, at_most: bool = False) -> U64Array | None:
        """As `CallPacket` says."""
        no_space(count)
        return self.call.space(self.number, count, at_most=at_most)

    def merge(self) -> None:
        """As `CallPacket` says; the keys then come to the others."""
        CallPacket.merge(self)
        if self.to_merge:
            self.call.to_merge = True
        self.call.put(self.number, self.keys)


def match_many(
    matcher: Matcher, chunks: Sequence[TagLists], *, wanted: Wanted, threads: int, counts: Counts, services: Services
) -> Lists:
    """The wanted keys or numbers of many queries, uint64, in order; shared threads take the packets through."""
    size = matcher.packet_size
    at_once = min(threads, size.at_once or threads)
    # Few threads keep a device busy, and would merge alone
    merged_later = size.at_once is not None
    parts = cut(whole(chunks), size, at_once)
    if len(parts) == 1:
        packet = CallPacket(matcher=matcher, wanted=wanted, part=parts[0], merged_later=merged_later)
        packet.go_through(services, counts)
        found = Lists(packet.keys.offsets, packet.keys.values.astype(np.uint64, copy=False))
        to_merge = packet.to_merge
    else:
        call = BulkCall(matcher, parts, wanted=wanted, merged_later=merged_later)
        run(lambda number: call.packet(number).go_through(services, counts), range(len(parts)), at_once)
        found, to_merge = call.lists(threads), call.to_merge

    def merge(first: int, last: int) -> Lists:
        begin, end = found.offsets[first], found.offsets[last]
        begun = time.perf_counter()
        merged = merge_all(Lists(found.offsets[first : last + 1] - begin, found.values[begin:end]))
        services["merge"].add(time.perf_counter() - begun)
        return merged

    if to_merge:
        pieces = run_rows(merge, even_work(found.offsets, _PIECES_PER_THREAD * threads), threads)
        found = join_lists(pieces, np.dtype(np.uint64), threads)
    counts.add(matches=matches_in(found, wanted))
    return found


def matches_in(answers: Lists, wanted: Wanted) -> int:
    """How many keys there are in answers, or were counted for them."""
    return int(answers.values.sum()) if wanted.is_number else len(answers.values)


def whole(chunks: Sequence[TagLists]) -> deque[Part]:
    """All queries of chunks, for `cut`."""
    return deque([(chunk, 0, count) for chunk in chunks if (count := len(chunk))])


def cut(left: deque[Part], size: PacketSize, threads: int, most: int | None = None) -> list[Part]:
    """Cut packets off the rest of a call's queries: `most`, as large as may be; or all, of about even size."""
    found: list[Part] = []
    while left and (most is None or len(found) < most):
        chunk, begun, end = left.popleft()
        if most is None:
            ranges = packet_ranges(chunk.offsets[begun:], size, threads)
            found += [(chunk, begun + first, begun + last) for first, last in ranges]
        else:
            last = min(begun + size.queries, end)
            found.append((chunk, begun, last))
            if last < end:
                left.appendleft((chunk, last, end))
    return found


def packet_ranges(offsets: IntArray, size: PacketSize, threads: int) -> list[tuple[int, int]]:
    """Ranges of queries, whose tags these offsets cut, for packets: as many in each, unless they have many tags."""
    count = len(offsets) - 1
    # One thread waits for no other, so that it gains nothing from a second packet
    wanted = min(size.a_thread * threads if threads > 1 else 1, -(-count // size.fewest))
    tags = int(offsets[-1]) - int(offsets[0])
    if wanted == 1 and count <= size.queries and tags <= size.tags:
        return [(0, count)]
    parts = max(-(-count // size.queries), -(-tags // size.tags))
    # All threads are then busy to the end
    parts = -(-parts // threads) * threads if parts > wanted else wanted
    even = np.array(even_ranges(count, parts))
    if not len(even):
        return []
    begins, ends = offsets[even[:, 0]].astype(np.int64), offsets[even[:, 1]].astype(np.int64)
    # A range with too many tags is cut after each `size.tags` of them
    cuts = np.maximum(-(-(ends - begins) // size.tags), 1) - 1
    marks = np.repeat(begins - size.tags * offsets_of(cuts)[:-1], cuts) + size.tags * np.arange(1, cuts.sum() + 1)
    by_tags = np.searchsorted(offsets, marks.astype(offsets.dtype), side="right") - 1
    edges = np.unique(np.concatenate([even[:, 0], by_tags, [count]])).tolist()
    return list(pairwise(edges))


class Intake:
    """Gathers queries while no thread is free to take them, so that batches grow with the load."""

    def __init__(
        self, packet_queries: int, *, announce: Callable[[], object], dropped: Callable[[list[Caller]], None]
    ) -> None:
        self._packet_queries = packet_queries
        self._announce = announce
        self._dropped = dropped
        self._lock = threading.Lock()
        self._groups: dict[Matcher, list[tuple[Message, Caller]]] = {}

    def __bool__(self) -> bool:
        """Return whether there is something to take."""
        return bool(self._groups)

    def extend(self, matcher: Matcher, queries: list[tuple[Message, Caller]]) -> bool:
        """Append queries to which `matcher` has the answers; returns whether their taking must be seen to.

        If not, there are others whose taking has been seen to.
        """
        with self._lock:
            waiting = self._groups.setdefault(matcher, [])
            waiting += queries
            return len(waiting) == len(queries)

    def take(self) -> Packet | None:
        """Return some of the gathered queries, without cancelled ones; `None` if no query waits."""
        while True:
            with self._lock:
                if not self._groups:
                    return None
                matcher, waiting = next(iter(self._groups.items()))
                gathered, rest = waiting[: self._packet_queries], waiting[self._packet_queries :]
                if rest:
                    self._groups[matcher] = rest
                else:
                    del self._groups[matcher]
                more = bool(self._groups)
            try:
                begun = [caller.begin() for _, caller in gathered]
                if not all(begun):
                    self._dropped([caller for (_, caller), wanted in zip(gathered, begun, strict=True) if not wanted])
                    gathered = [query for query, wanted in zip(gathered, begun, strict=True) if wanted]
                if not gathered:
                    continue
                rows, callers = map(list, zip(*gathered, strict=True))
                packet = Packet.of(matcher, callers, rows)
            except BaseException as error:
                for _, caller in gathered:
                    caller.fail(error)
                self._dropped([caller for _, caller in gathered])
                raise
            if more:
                self._announce()
            return packet

    def cancel(self) -> list[Caller]:
        """Cancel all queries that no thread has taken; returns the callers that wait for them."""
        with self._lock:
            waiting = [caller for group in self._groups.values() for _, caller in group]
            self._groups.clear()
        for caller in waiting:
            caller.cancel()
        return waiting
