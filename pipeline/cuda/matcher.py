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

from tagmatch.model.arrays import Lists, Strings, TagLists, U64Array
from tagmatch.model.errors import DeviceMemoryError
from tagmatch.model.kernels.lists import join_lists
from tagmatch.model.layouts import implementations_of
from tagmatch.model.options import MatchOptions
from tagmatch.model.tables import Deletions, Segment
from tagmatch.pipeline.cuda.device import PinnedPool, Workspace, sent, to_device
from tagmatch.pipeline.cuda.filters import CudaFilters, CudaMessageIndex
from tagmatch.pipeline.cuda.pairs import CudaTagIndex, DeviceQueries, KeyArrays, Pairs, Room
from tagmatch.pipeline.cuda.support import on_device
from tagmatch.pipeline.filters.index import FilterIndex
from tagmatch.pipeline.segment import About, Batches, Found, PacketSize
from tagmatch.pipeline.tags import Space, look_up_keys, no_space

cuda: Any = numba.cuda

_log = logging.getLogger(__name__)

# Room for the first packet's results; later ones find as much as earlier ones had
_FIRST_ROOM = 1 << 16

# What must be left for packets, in bytes, when the keys come to the device as well
_LEFT_FOR_PACKETS = 1 << 30

# Three threads keep a device busier than eight, which are half as fast: they take the interpreter from each other
_PACKET_SIZE = PacketSize(queries=1 << 18, tags=1 << 21, fewest=1 << 14, at_once=3)

_ONE_QUERY = TagLists(np.array([0, 1]), Strings(np.array([0, 1]), np.zeros(1, np.uint8)))


@dataclass(slots=True, eq=False)
class DevicePacket:
    """Queries on the device, and the sets found for them: what goes from one stage to the next.

    Gives its workspace back at the latest when nothing refers to it any more.
    """

    matcher: CudaMatcher  # Whose tables the packet is matched with
    tags: TagLists  # The queries, should they have to be matched in smaller packets
    first: int
    last: int
    workspace: Workspace | None  # None once it was given back
    free: queue.SimpleQueue[Workspace]  # Where it goes back
    queries: DeviceQueries | None = None  # None if there was no memory for them
    pairs: Pairs | None = None
    lists: Lists | None = None  # The results, where they had to be fetched in parts
    found: int = 0  # See `Matched`
    rejected: int = 0

    def subset_match(self) -> DevicePacket:
        """Sets that each query contains."""
        self.matcher.subset_match(self)
        return self

    def key_lookup(self, space: Space = no_space) -> Lists:
        """Keys of each query's sets; can be asked for once."""
        return self.matcher.key_lookup(self, space)

    def release(self) -> None:
        """Give the workspace back, so that nobody waits for what still refers to the packet, such as a debugger."""
        workspace, self.workspace = self.workspace, None
        if workspace is not None:
            self.free.put(workspace)

    @contextlib.contextmanager
    def released_on_error(self) -> Iterator[None]:
        """Give the workspace back if something fails: else what keeps the error would keep it."""
        try:
            yield
        except BaseException:
            if self.workspace is not None:
                # The next packet must not meet what is still on its way
                with contextlib.suppress(Exception):
                    self.workspace.stream.synchronize()
            self.release()
            raise

    def __del__(self) -> None:
        self.release()


class CudaLayoutMatch(Protocol):
    """The subset match of a layout over tables in device memory."""

    nbytes: int  # Bytes of device memory
    per_device: bool  # See `PacketSize`
    # Matches batches with their partitions, in a workspace, where the layout has partitions
    match_batches: Callable[[Batches, Workspace], Found] | None

    def launch(self, queries: DeviceQueries, *results: Any) -> None:
        """Append the matches of all queries to `results`, as `pairs.append` takes them."""


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
        self._device = device
        self._free: queue.SimpleQueue[Workspace] = queue.SimpleQueue()
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
            self.packet_size = replace(_PACKET_SIZE, per_device=self._match.per_device, at_once=at_once)
            keys = segment.keys.keys
            if cuda.current_context().get_memory_info().free - keys.nbytes >= _LEFT_FOR_PACKETS:
                self._keys_there = sent(KeyArrays(keys.offsets, keys.values))
            else:
                self._notes = (
                    f"the keys are looked up on the CPU: they do not fit the memory of CUDA device {device}",
                )
            for _ in range(options.cuda.streams):
                self._free.put(Workspace())
        # All kernels are compiled by this thread, before others want them
        _log.info("compiling what CUDA kernels are not in the cache; this can take a minute")
        query = segment.sets(np.array([len(segment) - 1], np.uint64)) if len(segment) else _ONE_QUERY
        for form in (query, TagLists(query.offsets, query.tags, np.arange(len(query.tags), dtype=np.uint32))):
            for space in (no_space, lambda count: cuda.pinned_array(1 + count, np.uint64)[:count]):
                self.preprocess(form, 0, 1).subset_match().key_lookup(space)

    def _leave_out(self, deletions: Deletions | None) -> None:
        with on_device(self._device):
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
        return About((f"cuda:{self._device}",), self._notes, {}, sum(int(table.nbytes) for table in tables))

    def memory(self, count: int) -> U64Array | None:
        """Pinned memory for `count` keys, unless they are few."""
        return self._pool.lend(count)

    def preprocess(self, tags: TagLists, first: int, last: int) -> DevicePacket:
        """Copy queries `first` to `last` to the device and look their tags up."""
        look_up = self._tag_index.prepare(tags, first, last)
        workspace = self._free.get()
        packet = DevicePacket(self, tags, first, last, workspace, self._free)
        with packet.released_on_error():
            try:
                with on_device(self._device):
                    packet.queries = look_up(workspace)
            except DeviceMemoryError:
                if last - first == 1:
                    raise
        return packet

    def subset_match(self, packet: DevicePacket) -> None:
        """Find the sets that each query of a packet contains."""
        with packet.released_on_error():
            if packet.queries is not None:
                try:
                    packet.pairs, packet.found, packet.rejected = self._find(packet.queries, self._keys_there)
                except DeviceMemoryError:
                    if packet.last - packet.first == 1:
                        raise
                else:
                    return
            assert packet.workspace is not None
            packet.lists, packet.found, packet.rejected = self._halves(
                packet.tags, packet.first, packet.last, packet.workspace
            )

    def key_lookup(self, packet: DevicePacket, space: Space) -> Lists:
        """Keys of the sets of each query of a packet."""
        lists = packet.lists
        if lists is None:
            assert packet.pairs is not None
            with packet.released_on_error(), on_device(self._device):
                lists = packet.pairs.lists(space)
        packet.release()
        return lists if self._keys_there else look_up_keys(lists, self.keys, space)

    def set_ids(self, tags: TagLists, first: int, last: int) -> Lists:
        """Ids of the sets that each of queries `first` to `last` contains."""
        packet = self.preprocess(tags, first, last)
        assert packet.queries is not None
        with packet.released_on_error():
            pairs, _, _ = self._find(packet.queries, None)
            with on_device(self._device):
                lists = pairs.lists()
        packet.release()
        return lists

    def _match_batches(self, batches: Batches) -> Found:
        match = self._match.match_batches
        assert match is not None
        workspace = self._free.get()
        try:
            with on_device(self._device):
                workspace.stream.synchronize()  # a call that failed may have left something behind
                return match(batches, workspace)
        finally:
            self._free.put(workspace)

    def _find(self, queries: DeviceQueries, keys: KeyArrays | None) -> tuple[Pairs, int, int]:
        with on_device(self._device):
            pairs = Pairs(queries.count, self._has_empty_set, keys, self._deleted, queries.workspace, self._room)
            return pairs, *pairs.find(lambda *results: self._launch(queries, *results))

    def _launch(self, queries: DeviceQueries, *results: Any) -> None:
        """Have sets without constraints, and those with some, appended to the same pairs."""
        self._match.launch(queries, *results)
        if self._filters is not None:
            self._filters.launch(queries, *results)

    def _halves(self, tags: TagLists, first: int, last: int, workspace: Workspace) -> tuple[Lists, int, int]:
        """Match queries with more results than there is memory for, one half after the other in the same memory."""
        self._room.forget()
        middle = (first + last) // 2
        parts, found, rejected = zip(
            *(self._results(tags, *half, workspace) for half in ((first, middle), (middle, last))), strict=True
        )
        return join_lists(list(parts), parts[0].values.dtype, 1), sum(found), sum(rejected)

    def _results(self, tags: TagLists, first: int, last: int, workspace: Workspace) -> tuple[Lists, int, int]:
        try:
            with on_device(self._device):
                workspace.clear()
                queries = self._tag_index.prepare(tags, first, last)(workspace)
            pairs, found, rejected = self._find(queries, self._keys_there)
            with on_device(self._device):
                return pairs.lists(), found, rejected
        except DeviceMemoryError:
            if last - first == 1:
                raise
        return self._halves(tags, first, last, workspace)
