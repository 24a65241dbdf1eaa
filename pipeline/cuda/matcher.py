"""Matching on CUDA: one segment's tables in the memory of one device."""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any, Protocol, TypeAlias

import numba.cuda
import numpy as np

from tagmatch.model.arrays import I64Array, Lists, Strings, TagLists, U64Array
from tagmatch.model.errors import DeviceMemoryError
from tagmatch.model.kernels.lists import join_lists
from tagmatch.model.layouts import implementations_of
from tagmatch.model.options import MatchOptions, Wanted
from tagmatch.model.tables import Deletions, Segment
from tagmatch.pipeline.cuda import on_device
from tagmatch.pipeline.cuda.device import PinnedPool, Workspace, sent, to_device
from tagmatch.pipeline.cuda.filters import CudaFilters, CudaMessageIndex
from tagmatch.pipeline.cuda.pairs import CudaTagIndex, DeviceQueries, KeyArrays, PairArrays, Pairs, Room
from tagmatch.pipeline.filters.index import FilterIndex
from tagmatch.pipeline.segment import About, Batches, Found, PacketSize
from tagmatch.pipeline.tags import Space, as_numbers, key_counts, look_up_keys, no_space

cuda: Any = numba.cuda

_log = logging.getLogger(__name__)

# Room for the first packet's results; later ones find as much as earlier ones had
_FIRST_ROOM = 1 << 16

# What must be left for packets, in bytes, when the keys come to the device as well
_LEFT_FOR_PACKETS = 1 << 30

# Of these threads each is busy copying, or waits for the device, longer than it needs the interpreter, which a packet
# takes as long as another, however few queries it has
_PACKET_SIZE = PacketSize(queries=1 << 18, tags=1 << 21, fewest=1 << 16, a_thread=1, at_once=8)

_ONE_QUERY = TagLists(np.array([0, 1]), Strings(np.array([0, 1]), np.zeros(1, np.uint8)))


def _pinned(count: int, *, at_most: bool = False) -> U64Array:  # noqa: ARG001 - as `Space`
    keys: U64Array = cuda.pinned_array(1 + count, np.uint64)[:count]
    return keys


@dataclass(slots=True, eq=False)
class DevicePacket:
    """Queries on the device, and the sets found for them: the payload of the stages.

    Gives its workspace back at the latest when nothing refers to it any more.
    """

    matcher: CudaMatcher  # whose tables the packet is matched with
    tags: TagLists  # the queries, should they have to be matched in smaller packets
    first: int
    last: int
    workspace: Workspace | None  # none once it was given back
    queries: DeviceQueries | None = None  # none if there was no memory for them
    pairs: Pairs | None = None
    lists: Lists | None = None  # the results, if they had to be fetched in parts
    found: int = 0  # see `Matched`
    rejected: int = 0

    def subset_match(self, wanted: Wanted = Wanted.keys) -> DevicePacket:
        """Sets that each query contains; only their ids, if these are wanted."""
        ids = wanted is Wanted.sets
        with self.released_on_error():
            if self.queries is not None:
                with self.matcher.memory_for(self.first, self.last):
                    self.pairs, self.found, self.rejected = self.matcher.find(self.queries, ids=ids)
                    return self
            assert self.workspace is not None
            self.lists, self.found, self.rejected = self.matcher.in_halves(
                self.tags, self.first, self.last, self.workspace, ids=ids
            )
        return self

    def key_lookup(self, space: Space = no_space, *, wanted: Wanted = Wanted.keys) -> Lists:
        """Keys of each query's sets; can be asked for once."""
        if wanted is Wanted.sets:
            return self.results()
        if wanted.is_number:
            return as_numbers(self.matcher.counts_of(self.results()), wanted)
        return self.matcher.keys_of(self.results(space, unique=wanted is Wanted.unique), space)

    @property
    def once(self) -> bool:
        """See `Matched`."""
        return self.pairs is not None and self.pairs.once

    def results(self, space: Space = no_space, *, unique: bool = False) -> Lists:
        """Keys of each query's sets, if these are on the device, else ids of sets."""
        with self.released_on_error(), on_device(self.matcher.device):
            found = self.lists if self.pairs is None else self.pairs.lists(space, unique=unique)
        assert found is not None
        self.release()
        return found

    def release(self) -> None:
        """Give the workspace back, so that no thread waits for a holder of the packet, such as a debugger."""
        workspace, self.workspace = self.workspace, None
        if workspace is not None:
            self.matcher.free.put(workspace)

    @contextlib.contextmanager
    def released_on_error(self) -> Iterator[None]:
        """Give the workspace back if something fails: else what keeps the error would keep it."""
        try:
            yield
        except BaseException:
            if self.workspace is not None:
                # The next packet must not meet copies that are still under way
                with contextlib.suppress(Exception):
                    self.workspace.stream.synchronize()
            self.release()
            raise

    def __del__(self) -> None:
        self.release()


class CudaLayoutMatch(Protocol):
    """The subset match of a layout over tables in device memory."""

    nbytes: int  # Bytes of device memory
    # Matches batches with their partitions, in a workspace, where the layout has partitions
    match_batches: Callable[[Batches, Workspace], Found] | None

    def launch(self, queries: DeviceQueries, out: PairArrays) -> None:
        """Append the matches of all queries."""


#: Gets a segment, and options
MakeLayoutMatch: TypeAlias = Callable[[Segment, MatchOptions], CudaLayoutMatch]


class CudaMatcher:
    """Matches on one device within one segment. Any number of threads may share it."""

    by_partition = None
    one_query = None

    def __init__(
        self, segment: Segment, options: MatchOptions, device: int = 0, filters: FilterIndex | None = None
    ) -> None:
        self.keys = segment.keys
        self._sets = len(segment)
        self._has_empty_set = segment.tagsets.has_empty_set
        self._notes: tuple[str, ...] = ()
        self.device = device
        self.free: queue.SimpleQueue[Workspace] = queue.SimpleQueue()
        self._room = Room(_FIRST_ROOM)
        self._pool = PinnedPool(device)
        self._leave_out(segment.deletions)
        self._keys_there: KeyArrays | None = None
        with on_device(device):
            self._filters = None if filters is None else CudaFilters(filters)
            tags = segment.vocabulary
            self._tag_index = CudaTagIndex(tags) if filters is None else CudaMessageIndex(tags, filters)
            make: MakeLayoutMatch = resolve_name(implementations_of(segment.options).cuda)
            self._match = make(segment, options)
            by_partition = self._match.match_batches is not None and self._filters is None
            self.match_batches = self._match_batches if by_partition else None
            # The CPU encodes texts, without the interpreter lock: there more threads help
            at_once = None if filters is not None and filters.attributes.has_texts else _PACKET_SIZE.at_once
            self.packet_size = replace(_PACKET_SIZE, at_once=at_once)
            keys = segment.keys.keys
            if cuda.current_context().get_memory_info().free - keys.nbytes >= _LEFT_FOR_PACKETS:
                self._keys_there = sent(KeyArrays(keys.offsets, keys.values))
            else:
                self._notes = (
                    f"the keys are looked up on the CPU: they do not fit the memory of CUDA device {device}",
                )
            for _ in range(options.cuda.streams):
                self.free.put(Workspace())
        # All kernels are compiled by this thread, before others want them
        _log.info("compiling what CUDA kernels are not in the cache; this can take a minute")
        query = segment.sets(np.array([len(segment) - 1], np.uint64)) if len(segment) else _ONE_QUERY
        for form in (query, TagLists(query.offsets, query.tags, np.arange(len(query.tags), dtype=np.uint32))):
            for space in (no_space, _pinned):
                self.preprocess(form, 0, 1).subset_match().key_lookup(space, wanted=Wanted.unique)

    def _leave_out(self, deletions: Deletions | None) -> None:
        with on_device(self.device):
            self._deleted = to_device(np.zeros(0, np.uint8) if deletions is None else deletions.bits)

    def without(self, deletions: Deletions) -> CudaMatcher:
        """See `SegmentMatcher`."""
        other = copy(self)
        other._leave_out(deletions)
        return other

    def __len__(self) -> int:
        return self._sets

    def about(self) -> About:
        """As `Matcher` says, without the memory that packets take on their way."""
        filters = () if self._filters is None else (self._filters,)
        tables = (self._tag_index, self._match, *filters, *(self._keys_there or ()))
        return About((f"cuda:{self.device}",), self._notes, {}, sum(int(table.nbytes) for table in tables))

    def memory(self, count: int) -> U64Array | None:
        """Pinned memory for `count` keys, unless they are few."""
        return self._pool.lend(count)

    def preprocess(self, tags: TagLists, first: int, last: int) -> DevicePacket:
        """Queries `first` to `last`, copied to the device when they are matched, as their tags are looked up."""
        look_up = self._tag_index.prepare(tags, first, last)
        workspace = self.free.get()
        packet = DevicePacket(self, tags, first, last, workspace)
        with packet.released_on_error(), self.memory_for(first, last):
            packet.queries = look_up(workspace)
        return packet

    @contextlib.contextmanager
    def memory_for(self, first: int, last: int) -> Iterator[None]:
        """Use the device, and end quietly where its memory is too little, unless there is one query only."""
        try:
            with on_device(self.device):
                yield
        except DeviceMemoryError:
            if last - first == 1:
                raise

    def find(self, queries: DeviceQueries, *, ids: bool = False) -> tuple[Pairs, int, int]:
        """The pairs of each query and its sets, with and without constraints; how many, and how many were rejected."""
        keys = None if ids else self._keys_there
        pairs = Pairs(queries.count, self._has_empty_set, keys, self._deleted, queries.workspace, self._room)

        def launch(out: PairArrays) -> None:
            self._match.launch(queries, out)
            if self._filters is not None:
                self._filters.launch(queries, out)

        return pairs, *pairs.find(launch)

    def keys_of(self, found: Lists, space: Space) -> Lists:
        """Keys that were found, or those of sets that were, if the device has no keys."""
        return found if self._keys_there else look_up_keys(found, self.keys, space)

    def counts_of(self, found: Lists) -> I64Array:
        """How many these keys of each query are, or those of these sets."""
        return found.lengths() if self._keys_there else key_counts(found, self.keys)

    def _match_batches(self, batches: Batches) -> Found:
        match = self._match.match_batches
        assert match is not None
        workspace = self.free.get()
        try:
            with on_device(self.device):
                workspace.stream.synchronize()  # a call that failed may have left something behind
                return match(batches, workspace)
        finally:
            self.free.put(workspace)

    def in_halves(
        self, tags: TagLists, first: int, last: int, workspace: Workspace, *, ids: bool
    ) -> tuple[Lists, int, int]:
        """Match queries with more results than there is memory for, one half after the other in the same memory."""
        self._room.forget()
        middle = (first + last) // 2
        parts, found, rejected = zip(
            *(self._results(tags, *half, workspace, ids) for half in ((first, middle), (middle, last))), strict=True
        )
        return join_lists(list(parts), parts[0].values.dtype, 1), sum(found), sum(rejected)

    def _results(
        self, tags: TagLists, first: int, last: int, workspace: Workspace, ids: bool
    ) -> tuple[Lists, int, int]:
        try:
            with on_device(self.device):
                workspace.clear()
                pairs, found, rejected = self.find(self._tag_index.prepare(tags, first, last)(workspace), ids=ids)
                return pairs.lists(), found, rejected
        except DeviceMemoryError:
            if last - first == 1:
                raise
        return self.in_halves(tags, first, last, workspace, ids=ids)
