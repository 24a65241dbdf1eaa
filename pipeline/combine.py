"""Matchers made of matchers: of parts of the sets, of replicas that take turns, and of one that may fail (§3.3)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count
from typing import TypeVar

import numpy as np

from tagmatch.model.arrays import Lists, TagLists
from tagmatch.model.errors import DeviceError
from tagmatch.model.kernels.lists import side_by_side
from tagmatch.pipeline.matcher import (
    Batches,
    Found,
    Matched,
    Matcher,
    OneQuery,
    PacketSize,
    PartitionMatcher,
    Preprocessed,
)

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


class _Several:
    """What is common to matchers of several others.

    Parameters
    ----------
    matchers : sequence of Matcher
        At least one.
    notes : tuple of str
        Beside those of the matchers.
    """

    by_partition = None
    one_query = None

    def __init__(self, matchers: Sequence[Matcher], notes: tuple[str, ...] = ()) -> None:
        self.keys = matchers[0].keys
        self._matchers = tuple(matchers)
        self.packet_size: PacketSize = matchers[0].packet_size
        self.devices = tuple(name for matcher in matchers for name in matcher.devices)
        self.notes = (*notes, *(note for matcher in matchers for note in matcher.notes))

    @property
    def nbytes(self) -> int:
        """Bytes of what all matchers keep in memory beside the tables of the sets."""
        return sum(matcher.nbytes for matcher in self._matchers)


class RoundRobin(_Several):
    """Matchers of the same sets, which take packets in turn."""

    def __init__(self, matchers: Sequence[Matcher], notes: tuple[str, ...] = ()) -> None:
        super().__init__(matchers, notes)
        size = self.packet_size
        if size.at_once is not None and size.per_device:
            self.packet_size = replace(size, at_once=size.at_once * len(matchers))
        self._turns = count()

    def __len__(self) -> int:
        return len(self._matchers[0])

    def preprocess(self, tags: TagLists, first: int, last: int) -> Preprocessed:
        """Look up the tags of queries `first` to `last` with the matcher whose turn it is."""
        return self._matchers[next(self._turns) % len(self._matchers)].preprocess(tags, first, last)

    def set_ids(self, tags: TagLists, first: int, last: int) -> Lists:
        """Ids of the sets that each of queries `first` to `last` contains."""
        return self._matchers[0].set_ids(tags, first, last)


class Union(_Several):
    """Matchers of parts of the sets, which are numbered part after part; every packet goes to all of them.

    Parts are segments of a snapshot, or rows of one segment on several devices.
    """

    def __len__(self) -> int:
        return sum(map(len, self._matchers))

    def preprocess(self, tags: TagLists, first: int, last: int) -> Preprocessed:
        """Look up the tags of queries `first` to `last` in all parts."""
        return _InAllParts([matcher.preprocess(tags, first, last) for matcher in self._matchers])

    def set_ids(self, tags: TagLists, first: int, last: int) -> Lists:
        """Ids of the sets that each of queries `first` to `last` contains."""
        first_rows = accumulate(map(len, self._matchers), initial=0)
        parts = [matcher.set_ids(tags, first, last) for matcher in self._matchers]
        return side_by_side(
            [Lists(part.offsets, part.values + np.uint32(row)) for part, row in zip(parts, first_rows, strict=False)]
        )


@dataclass(frozen=True, slots=True, eq=False)
class _InAllParts:
    queries: list[Preprocessed]

    def subset_match(self) -> _FoundInParts:
        return _FoundInParts([queries.subset_match() for queries in self.queries])


@dataclass(frozen=True, slots=True, eq=False)
class _FoundInParts:
    parts: list[Matched]

    @property
    def found(self) -> int:
        return sum(part.found for part in self.parts)

    @property
    def rejected(self) -> int:
        return sum(part.rejected for part in self.parts)

    def key_lookup(self) -> Lists:
        return side_by_side([part.key_lookup() for part in self.parts])


class Failover:
    """A device's matcher and, from the moment when the device fails, the CPU's.

    The packets that are on the device then fail.

    Parameters
    ----------
    matcher : Matcher
        Raises `DeviceError` when it can do no more.
    on_cpu : callable
        Gets the reason and returns the CPU's matcher of the same sets, in seconds; not called before it is needed.
    """

    def __init__(self, matcher: Matcher, on_cpu: Callable[[str], Matcher]) -> None:
        self.keys = matcher.keys
        self._sets = len(matcher)
        by_partition = matcher.by_partition
        self.by_partition = None if by_partition is None else _FailoverByPartition(self, by_partition)
        self._on_cpu = on_cpu
        self._moving = threading.Lock()
        self._matcher: Matcher | None = matcher
        self._reason = ""

    def __len__(self) -> int:
        return self._sets

    @property
    def one_query(self) -> OneQuery | None:
        """That of the CPU, once it is in use."""
        return self.in_use().one_query

    @property
    def packet_size(self) -> PacketSize:
        """Of what size packets should be now."""
        return self.in_use().packet_size

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices that match now."""
        return self.in_use().devices

    @property
    def notes(self) -> tuple[str, ...]:
        """Why the devices are not those that were asked for."""
        return self.in_use().notes

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept in memory beside the tables of the sets."""
        return self.in_use().nbytes

    def preprocess(self, tags: TagLists, first: int, last: int) -> Preprocessed:
        """Look up the tags of queries `first` to `last`."""
        matcher = self.in_use()
        return _Guarded(self, matcher, self.ask(matcher, lambda: matcher.preprocess(tags, first, last)))

    def set_ids(self, tags: TagLists, first: int, last: int) -> Lists:
        """Ids of the sets that each of queries `first` to `last` contains."""
        matcher = self.in_use()
        return self.ask(matcher, lambda: matcher.set_ids(tags, first, last))

    def in_use(self) -> Matcher:
        """Return the device's matcher or, after it has failed, the CPU's."""
        matcher = self._matcher
        if matcher is None:
            with self._moving:
                matcher = self._matcher = self._matcher or self._on_cpu(self._reason)
        return matcher

    def ask(self, matcher: Matcher, do: Callable[[], Result]) -> Result:
        """Return what a matcher gives; if it fails, the CPU is in use from then on."""
        try:
            return do()
        except DeviceError as error:
            with self._moving:
                if self._matcher is matcher:
                    self._matcher, self._reason = None, str(error)
                    _log.error("%s; the CPU goes on", error)
            raise


@dataclass(frozen=True, slots=True, eq=False)
class _Guarded:
    """Queries of a matcher that may fail."""

    failover: Failover
    matcher: Matcher
    queries: Preprocessed

    def subset_match(self) -> Matched:
        found = self.failover.ask(self.matcher, self.queries.subset_match)
        return _GuardedSets(self.failover, self.matcher, found)


@dataclass(frozen=True, slots=True, eq=False)
class _GuardedSets:
    """Sets found by a matcher that may fail."""

    failover: Failover
    matcher: Matcher
    sets: Matched

    @property
    def found(self) -> int:
        return self.sets.found

    @property
    def rejected(self) -> int:
        return self.sets.rejected

    def key_lookup(self) -> Lists:
        return self.failover.ask(self.matcher, self.sets.key_lookup)


class _FailoverByPartition:
    """Batches of one partition each, on the device or on the CPU: both have the same partitions."""

    def __init__(self, failover: Failover, match: PartitionMatcher) -> None:
        self.partitions, self.batch_size, self.has_empty = match.partitions, match.batch_size, match.has_empty
        self._failover = failover

    def preprocess(self, tags: TagLists, first: int, last: int) -> Batches:
        """Find the partitions in which sets may be that queries `first` to `last` contain."""
        matcher = self._failover.in_use()
        return self._failover.ask(matcher, lambda: _by_partition(matcher).preprocess(tags, first, last))

    def match(self, batches: Batches) -> Found:
        """Match batches with their partitions."""
        matcher = self._failover.in_use()
        return self._failover.ask(matcher, lambda: _by_partition(matcher).match(batches))

    def matched(self, sets: Lists) -> Matched:
        """Sets, by id, that were found for each query in all partitions."""
        return _by_partition(self._failover.in_use()).matched(sets)


def _by_partition(matcher: Matcher) -> PartitionMatcher:
    assert matcher.by_partition is not None
    return matcher.by_partition
