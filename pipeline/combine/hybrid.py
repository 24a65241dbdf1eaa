"""A device's matcher beside the CPU's of the same sets (§3.3)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tagmatch.model.arrays import Lists, TagLists, U64Array
from tagmatch.model.deletions import Deletions
from tagmatch.model.errors import DeviceError
from tagmatch.model.kernels.lists import gather_strings
from tagmatch.pipeline.matcher import (
    Batches,
    DeviceMatcher,
    Found,
    MatchBatches,
    Matched,
    Matcher,
    OneQuery,
    PacketSize,
    PartitionMatcher,
    Preprocessed,
    SegmentMatcher,
    Space,
    no_space,
)

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


def _with_own_tags(rows: TagLists, first: int, last: int) -> tuple[TagLists, int, int]:
    """Rows `first` to `last`; of a dictionary, which would be looked up as a whole, only the strings that they have."""
    if rows.indices is None:
        return rows, first, last
    offsets = rows.offsets[first : last + 1]
    used, indices = np.unique(rows.indices[offsets[0] : offsets[-1]], return_inverse=True)
    used = used[used < len(rows.tags)]  # what is beyond the dictionary stays beyond it
    own = TagLists(offsets - offsets[0], gather_strings(rows.tags, used), indices.astype(np.uint32))
    return own, 0, last - first


class Hybrid:
    """A device's matcher beside the CPU's of the same sets: small packets are the CPU's, and all once the device fails.

    The packets that are on the device when it fails, fail.

    Parameters
    ----------
    device : DeviceMatcher
        Raises `DeviceError` when it can do no more.
    cpu : callable
        Returns the CPU's matcher of the same sets, in seconds; not called before it is needed.
    fewest : int
        Packets of fewer queries are the CPU's.
    """

    def __init__(self, device: DeviceMatcher, cpu: Callable[[], SegmentMatcher], fewest: int) -> None:
        self.keys = device.keys
        self.fewest_queries = fewest
        self._sets = len(device)
        self._make_cpu = cpu
        self._making = threading.Lock()
        self._cpu: SegmentMatcher | None = None
        self._device: DeviceMatcher | None = device
        self._reason = ""
        self._counting = threading.Lock()
        self._matched_by = {"cuda": 0, "cpu": 0}
        match_batches = device.match_batches
        self.by_partition = None if match_batches is None else _HybridByPartition(self, match_batches)

    def __len__(self) -> int:
        return self._sets

    def without(self, deletions: Deletions) -> SegmentMatcher:
        """As of `SegmentMatcher`; where the device has failed, that of the CPU."""
        device = self._device
        if device is None:
            return self.cpu.without(deletions)
        return Hybrid(device.without(deletions), lambda: self.cpu.without(deletions), self.fewest_queries)

    @property
    def cpu(self) -> SegmentMatcher:
        """The CPU's matcher."""
        matcher = self._cpu
        if matcher is None:
            with self._making:
                matcher = self._cpu = self._cpu or self._make_cpu()
        return matcher

    @property
    def one_query(self) -> OneQuery | None:
        """That of the CPU, unless even single queries are the device's."""
        return self.cpu.one_query if self._device is None or self.fewest_queries > 1 else None

    @property
    def packet_size(self) -> PacketSize:
        """Of what size packets should be now."""
        return self._in_use().packet_size

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices that match now."""
        return self._in_use().devices

    @property
    def notes(self) -> tuple[str, ...]:
        """Why the devices are not those that were asked for, and what the CPU has to do."""
        if self._device is None:
            return (self._reason, *self.cpu.notes)
        small = f"packets of fewer than {self.fewest_queries} queries are matched on the CPU, which is faster for few"
        return (*self._device.notes, *([small] if self.fewest_queries > 1 else []))

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept in memory beside the tables of the sets."""
        return sum(matcher.nbytes for matcher in (self._device, self._cpu) if matcher is not None)

    @property
    def matched_by(self) -> dict[str, int]:
        """How many queries of packets went to the device and how many to the CPU.

        Where queries wait by partition, it is how many (query, partition) pairs.
        """
        with self._counting:
            return dict(self._matched_by)

    def memory(self, count: int) -> U64Array | None:
        """That of the matcher in use."""
        return self._in_use().memory(count)

    def preprocess(self, tags: TagLists, first: int, last: int) -> Preprocessed:
        """Look up the tags of queries `first` to `last`."""
        device = self.device_for(last - first, last - first)
        if device is None:
            # The device may have all other packets of the call
            few = self._device is not None
            return self.cpu.preprocess(*(_with_own_tags(tags, first, last) if few else (tags, first, last)))
        return _Guarded(self, device, self.ask(device, lambda: device.preprocess(tags, first, last)))

    def set_ids(self, tags: TagLists, first: int, last: int) -> Lists:
        """Ids of the sets that each of queries `first` to `last` contains."""
        device = self.device_for(last - first, 0)
        if device is None:
            return self.cpu.set_ids(tags, first, last)
        return self.ask(device, lambda: device.set_ids(tags, first, last))

    def device_for(self, queries: int, count: int) -> DeviceMatcher | None:
        """The device's matcher, or `None` where the CPU is to match these queries, which are counted as `count`."""
        device = self._device if queries >= self.fewest_queries else None
        with self._counting:
            self._matched_by["cpu" if device is None else "cuda"] += count
        return device

    def ask(self, device: DeviceMatcher, do: Callable[[], Result]) -> Result:
        """Return what the device's matcher gives; if it fails, the CPU is in use from then on."""
        try:
            return do()
        except DeviceError as error:
            with self._making:
                if self._device is device:
                    self._device, self._reason = None, str(error)
                    _log.error("%s; the CPU goes on", error)
            raise

    def _in_use(self) -> Matcher:
        return self._device or self.cpu


@dataclass(frozen=True, slots=True, eq=False)
class _Guarded:
    """Queries of a matcher that may fail."""

    hybrid: Hybrid
    device: DeviceMatcher
    queries: Preprocessed

    def subset_match(self) -> Matched:
        found = self.hybrid.ask(self.device, self.queries.subset_match)
        return _GuardedSets(self.hybrid, self.device, found)


@dataclass(frozen=True, slots=True, eq=False)
class _GuardedSets:
    """Sets found by a matcher that may fail."""

    hybrid: Hybrid
    device: DeviceMatcher
    sets: Matched

    @property
    def found(self) -> int:
        return self.sets.found

    @property
    def rejected(self) -> int:
        return self.sets.rejected

    def key_lookup(self, space: Space = no_space) -> Lists:
        return self.hybrid.ask(self.device, lambda: self.sets.key_lookup(space))


class _HybridByPartition:
    """Queries wait on the CPU, which routes them and keeps their results; their batches are the device's or its own."""

    def __init__(self, hybrid: Hybrid, match_batches: MatchBatches) -> None:
        on_cpu = hybrid.cpu.by_partition
        assert on_cpu is not None
        self.partitions, self.batch_size, self.has_empty = on_cpu.partitions, on_cpu.batch_size, on_cpu.has_empty
        self._hybrid = hybrid
        self._on_cpu: PartitionMatcher = on_cpu
        self._match_batches = match_batches

    def preprocess(self, tags: TagLists, first: int, last: int) -> Batches:
        """Find the partitions in which sets may be that queries `first` to `last` contain (Algorithm 2)."""
        return self._on_cpu.preprocess(tags, first, last)

    def match(self, batches: Batches) -> Found:
        """Match batches with their partitions."""
        device = self._hybrid.device_for(len(batches.queries), len(batches.queued))
        if device is None:
            return self._on_cpu.match(batches)
        return self._hybrid.ask(device, lambda: self._match_batches(batches))

    def matched(self, sets: Lists) -> Matched:
        """Sets, by id, that were found for each query in all partitions."""
        return self._on_cpu.matched(sets)
