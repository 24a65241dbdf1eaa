"""Matchers made of matchers: replicas, parts of the sets, and a device's with the CPU's (§3.3)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, cycle, pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Lists, Strings, TagLists, U64Array, UIntArray, offsets_of
from tagmatch.model.arrow import from_strings, in_order
from tagmatch.model.errors import DeviceError
from tagmatch.model.input.messages import with_own_tags
from tagmatch.model.kernels.lists import side_by_side
from tagmatch.model.options import Wanted
from tagmatch.model.tables import Deletions, KeyTable, Segment
from tagmatch.pipeline.areas.finder import AreaFinder
from tagmatch.pipeline.filters.parts import PartsFinder
from tagmatch.pipeline.one import OfSeveralTypes, OneQuery, one_of_all
from tagmatch.pipeline.segment import (
    About,
    Batches,
    ByPartition,
    Changed,
    CpuMatcher,
    DeviceMatcher,
    Found,
    Keys,
    Matcher,
    PacketSize,
    Part,
    Preprocessed,
    SegmentMatcher,
    SegmentSets,
    added_up,
)
from tagmatch.pipeline.tags import Space, look_up_in_all, no_space
from tagmatch.pipeline.unique import merge_unique


class Several:
    """What is common to matchers of several others."""

    by_partition = None

    def __init__(self, matchers: Sequence[SegmentMatcher], notes: tuple[str, ...] = ()) -> None:
        self._matchers = tuple(matchers)
        self._own_notes = notes
        self.packet_size: PacketSize = matchers[0].packet_size

    def about(self) -> About:
        """As `Matcher` says."""
        each = [matcher.about() for matcher in self._matchers]
        return About(
            tuple(name for about in each for name in about.devices),
            (*self._own_notes, *(note for about in each for note in about.notes)),
            added_up(about.matched_by for about in each),
            sum(about.nbytes for about in each),
        )

    def memory(self, count: int) -> U64Array | None:
        """That of the first."""
        return self._matchers[0].memory(count)

    @property
    def one_query(self) -> OneQuery | OfSeveralTypes | None:
        """None: devices get packets."""
        return None


class RoundRobin(Several):
    """Matchers of the same sets on several devices, which take packets in turn."""

    def __init__(self, matchers: Sequence[DeviceMatcher]) -> None:
        super().__init__(matchers)
        self.keys = matchers[0].keys
        self._devices = matchers
        size, count = self.packet_size, len(matchers)
        if size.at_once is not None:
            # Each device wants its number of threads; a call that is too small for all of them has no smaller packets
            self.packet_size = replace(size, at_once=size.at_once * count, fewest=size.fewest * count)
        self._turns = cycle(matchers)
        self.match_batches = None if matchers[0].match_batches is None else self._match_batches

    def __len__(self) -> int:
        return len(self._matchers[0])

    def preprocess(self, tags: TagLists, first: int, last: int) -> Preprocessed:
        """Look up the tags of queries `first` to `last` with the matcher whose turn it is."""
        return next(self._turns).preprocess(tags, first, last)

    def _match_batches(self, batches: Batches) -> Found:
        match = next(self._turns).match_batches
        assert match is not None
        return match(batches)

    def without(self, deletions: Deletions) -> RoundRobin:
        """See `SegmentMatcher`."""
        return RoundRobin([matcher.without(deletions) for matcher in self._devices])


class NamesOfSegments:
    """Strings by number, where each segment's numbers follow those of the one before it; a string may have several."""

    def __init__(self, names: Sequence[Strings]) -> None:
        self._names = [from_strings(each) for each in names]
        self.first_numbers = offsets_of(np.array([len(each) for each in names]))[:-1]

    def column(self, keys: UIntArray) -> pa.Array:
        """See `KeyTable`."""
        segments = np.searchsorted(self.first_numbers, keys.astype(np.int64), side="right") - 1
        taken, places = [], []
        for segment, names in enumerate(self._names):
            of_segment = np.flatnonzero(segments == segment)
            places.append(of_segment)
            taken.append(names.take(pa.array(keys[of_segment] - np.uint64(self.first_numbers[segment]))))
        order = np.empty(len(keys), np.int64)
        order[np.concatenate(places)] = np.arange(len(keys))
        return pa.concat_arrays(taken).take(pa.array(order))

    def listed(self, keys: UIntArray) -> list[str]:
        """See `KeyTable`."""
        return self.column(keys).to_pylist()  # type: ignore[no-any-return]

    def answers(self, keys: Lists, *, unique: bool) -> tuple[Lists, pa.Array]:
        """See `KeyTable`: strings with several numbers are found by their bytes."""
        if not unique:
            return keys, self.column(keys.values)
        used, numbers = np.unique(keys.values, return_inverse=True)
        names = self.column(used)
        places, in_common = in_order(names)
        of_names = Lists(keys.offsets, in_common[numbers].astype(np.uint64))
        once = merge_unique(of_names, np.ones(len(keys), np.bool_))
        return once, names.take(pa.array(places)).take(pa.array(once.values))


class Union(Several):
    """Matchers of parts of the sets, which are numbered part after part; every packet goes to all of them.

    Parts are segments of a snapshot, or rows of one segment on several devices.
    """

    _one_query: OneQuery | OfSeveralTypes | None = None

    def __init__(self, matchers: Sequence[SegmentMatcher], notes: tuple[str, ...] = ()) -> None:
        super().__init__(matchers, notes)
        tables = [matcher.keys for matcher in matchers]
        names = [table.names for table in tables if table.names is not None]
        self._keys: Keys = tables[0]
        self._first_keys = [0] * len(tables)
        self._first_rows = list(accumulate(map(len, matchers), initial=0))[:-1]
        if any(each is not names[0] for each in names):
            self._keys = in_all = NamesOfSegments(names)
            self._first_keys = in_all.first_numbers.tolist()

    @property
    def keys(self) -> Keys:
        """See `Matcher`; keys that are strings have a number for each segment."""
        return self._keys

    def __len__(self) -> int:
        return sum(map(len, self._matchers))

    @property
    def one_query(self) -> OneQuery | OfSeveralTypes | None:
        """Those of all parts, if each has one."""
        if self._one_query is None:
            parts = [one for matcher in self._matchers if (one := matcher.one_query) is not None]
            if len(parts) == len(self._matchers):
                self._one_query = one_of_all(parts, self._first_rows, self._first_keys)
        return self._one_query

    def preprocess(self, tags: TagLists, first: int, last: int) -> Preprocessed:
        """Look up the tags of queries `first` to `last` in all parts."""
        parts = [matcher.preprocess(tags, first, last) for matcher in self._matchers]
        return _InAllParts(parts, self._first_keys, self._first_rows)


class Beside(Union):
    """A device's matcher of a segment, and finders of the segment's sets with areas or parts, which no device has."""

    def __init__(
        self, segment: Segment, device: SegmentMatcher, finder: AreaFinder | None, parts: PartsFinder | None = None
    ) -> None:
        finders = [each for each in (finder, parts) if each is not None]
        self.others, self.located, self.finder, self.parts = device, CpuMatcher(segment, finders), finder, parts
        super().__init__([self.others, self.located])
        self._segment = segment
        self._first_rows = [0, 0]
        if finder is None or finder.device is not None:
            # The CPU has a part in each packet, for which more threads help
            self.packet_size = replace(self.packet_size, at_once=None)

    @property
    def keys(self) -> KeyTable:
        """The keys of the segment."""
        return self._segment.keys

    def about(self) -> About:
        """As `Matcher` says; the devices are those of the other sets."""
        return super().about()._replace(devices=self.others.about().devices)

    def __len__(self) -> int:
        return len(self._segment)

    def without(self, deletions: Deletions) -> Beside:
        """The matcher of the same tables with these rows deleted."""
        segment = replace(self._segment, deletions=deletions)
        return Beside(segment, self.others.without(deletions), self.finder, self.parts)


class CpuUnion(Union):
    """Matchers of segments on the CPU: tags are looked up in the largest; others have these ranks translated."""

    def __init__(self, matchers: Sequence[CpuMatcher]) -> None:
        super().__init__(matchers)
        self._segments = matchers
        self._largest = max(matchers, key=lambda matcher: len(matcher.tag_index.vocabulary))

    def preprocess(self, tags: TagLists, first: int, last: int) -> Preprocessed:
        """See `Union`."""
        if tags.indices is not None:  # each segment looks up the strings of a dictionary once
            return super().preprocess(tags, first, last)
        known = self._largest.tag_index
        numbers = known.numbers(tags, first, last)
        parts = []
        for matcher in self._segments:
            index = matcher.tag_index
            own = numbers if index is known else index.translation(known).numbers(tags, first, numbers)
            parts.append(matcher.preprocess(tags, first, last, own))
        return _InAllParts(parts, self._first_keys, self._first_rows)


class Split(Union):
    """Matchers of consecutive rows of one segment on several devices."""

    def __init__(
        self, matchers: Sequence[DeviceMatcher], partitions: Sequence[I64Array], notes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(matchers, notes)
        self._devices = matchers
        self._partitions = partitions
        self.match_batches = None if matchers[0].match_batches is None else self._match_batches

    @property
    def keys(self) -> KeyTable:
        """That of the first, whose names are all of the segment's."""
        return self._devices[0].keys

    def _match_batches(self, batches: Batches) -> Found:
        """Each device gets the batches of the partitions whose rows it has."""
        found = []
        for matcher, partitions, row in zip(self._devices, self._partitions, self._first_rows, strict=True):
            assert matcher.match_batches is not None
            found.append((matcher.match_batches(_of_partitions(batches, partitions)), row))
        return Found(
            np.concatenate([each.queries for each, _ in found]),
            np.concatenate([each.sets + np.uint32(row) for each, row in found]),
            sum(each.rejected for each, _ in found),
        )

    def without(self, deletions: Deletions) -> Split:
        """See `SegmentMatcher`."""
        edges = list(accumulate(map(len, self._devices), initial=0))
        parts = [deletions.part(*ends) for ends in pairwise(edges)]
        matchers = [matcher.without(part) for matcher, part in zip(self._devices, parts, strict=True)]
        return Split(matchers, self._partitions, self._own_notes)


def _of_partitions(batches: Batches, partitions: I64Array) -> Batches:
    """The batches of some partitions, which are numbered anew."""
    places = np.searchsorted(partitions, batches.partitions)
    among = np.flatnonzero(np.isin(batches.partitions, partitions))
    sizes = np.diff(batches.offsets)[among]
    offsets = offsets_of(sizes)
    queued = batches.queued[np.arange(int(offsets[-1])) + np.repeat(batches.offsets[among] - offsets[:-1], sizes)]
    return Batches(batches.queries, batches.signatures, places[among], offsets, queued)


@dataclass(frozen=True, slots=True, eq=False)
class _InAllParts:
    """Queries in all parts: `Preprocessed`, then `Matched`."""

    parts: Sequence[Any]
    first_keys: Sequence[int]
    first_rows: Sequence[int]

    def subset_match(self, wanted: Wanted = Wanted.keys) -> _InAllParts:
        return replace(self, parts=[part.subset_match(wanted) for part in self.parts])

    @property
    def found(self) -> int:
        return sum(part.found for part in self.parts)

    @property
    def rejected(self) -> int:
        return sum(part.rejected for part in self.parts)

    @property
    def some(self) -> list[tuple[Any, int]]:
        """Parts with keys, and what their keys are counted from."""
        parts = list(zip(self.parts, self.first_keys, strict=True))
        return [(part, first) for part, first in parts if part.found] or parts[:1]

    @property
    def once(self) -> bool:
        return len(self.some) == 1 and bool(self.some[0][0].once)

    def key_lookup(self, space: Space = no_space, *, wanted: Wanted = Wanted.keys) -> Lists:
        if wanted is Wanted.sets:
            ids = [part.key_lookup(wanted=wanted) for part in self.parts]
            firsts = map(np.uint32, self.first_rows)
            return side_by_side([Lists(own.offsets, own.values + row) for own, row in zip(ids, firsts, strict=True)])
        some = self.some
        if wanted.is_number:
            numbers = [part.key_lookup(wanted=wanted) for part, _ in some]
            add_up = np.maximum if wanted is Wanted.exists else np.add
            return Lists(numbers[0].offsets, add_up.reduce([each.values for each in numbers]))
        if len(some) == 1 and some[0][1] == 0:
            keys: Lists = some[0][0].key_lookup(space, wanted=wanted)
            return keys
        if wanted is Wanted.keys and all(isinstance(part, SegmentSets) and part.key_places is None for part, _ in some):
            return look_up_in_all([(part.sets, part.segment.keys, first) for part, first in some], space)
        each = [_counted_from(first, part.key_lookup(wanted=wanted)) for part, first in some]
        return side_by_side(each, space)


def _counted_from(first: int, keys: Lists) -> Lists:
    """Keys of a part as keys of all parts."""
    return Lists(keys.offsets, keys.values + np.uint64(first)) if first else keys


class Making:
    """A matcher that makes its answers from the sets of messages, in packets of at most `messages`, instead of keys."""

    by_partition = one_query = None

    def __init__(self, matcher: Matcher, make: Callable[[Part, Lists], Lists], messages: int) -> None:
        self._matcher, self._make, size = matcher, make, matcher.packet_size
        self.keys, self.memory, self.about = matcher.keys, matcher.memory, matcher.about
        self.packet_size = replace(size, queries=min(size.queries, messages), fewest=min(size.fewest, messages))

    def __len__(self) -> int:
        return len(self._matcher)

    def preprocess(self, tags: TagLists, first: int, last: int) -> Changed:
        """As `Matcher` says."""
        queries, part = self._matcher.preprocess(tags, first, last), (tags, first, last)
        return Changed(queries, partial(self._make, part), Wanted.sets)


Result = TypeVar("Result")

_log = logging.getLogger(__name__)


class Hybrid:
    """A device's matcher, and the CPU's of the same sets: small packets are the CPU's, and all once the device fails.

    The packets that are on the device when it fails, fail.
    """

    def __init__(self, device: DeviceMatcher, cpu: Callable[[], SegmentMatcher], fewest: int) -> None:
        self.keys = device.keys
        self.fewest_queries = fewest
        self._sets = len(device)
        self._make_cpu = cpu
        self._making = threading.Lock()
        self._cpu: SegmentMatcher | None = None
        self._device: DeviceMatcher | None = device
        self._reason: str | None = None  # Why the device is not used any more
        self._counting = threading.Lock()
        self._matched_by = {"cuda": 0, "cpu": 0}
        # Queries wait on the CPU, which routes them and keeps their results
        on_cpu = None if device.match_batches is None else self.cpu.by_partition
        self.by_partition = None if on_cpu is None else replace(on_cpu, elsewhere=partial(self._match, device, on_cpu))

    def __len__(self) -> int:
        return self._sets

    def without(self, deletions: Deletions) -> SegmentMatcher:
        """See `SegmentMatcher`; where the device has failed, that of the CPU."""
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
    def one_query(self) -> OneQuery | OfSeveralTypes | None:
        """That of the CPU, unless even single queries are the device's."""
        return self.cpu.one_query if self._device is None or self.fewest_queries > 1 else None

    @property
    def packet_size(self) -> PacketSize:
        """Of what size packets should be now."""
        return self._in_use().packet_size

    def about(self) -> About:
        """As `Matcher` says; of queries that wait by partition, it counts (query, partition) pairs."""
        used, cpu = self._in_use().about(), self._cpu
        notes = used.notes if self._reason is None else (self._reason, *used.notes)
        if self._reason is None and self.fewest_queries > 1:
            fewer = f"packets of fewer than {self.fewest_queries} queries"
            notes = (*notes, f"{fewer} are matched on the CPU, which is faster for few")
        nbytes = used.nbytes + (0 if self._reason is not None or cpu is None else cpu.about().nbytes)
        with self._counting:
            return About(used.devices, notes, dict(self._matched_by), nbytes)

    def memory(self, count: int) -> U64Array | None:
        """That of the matcher in use."""
        return self._in_use().memory(count)

    def preprocess(self, tags: TagLists, first: int, last: int) -> Preprocessed:
        """Look up the tags of queries `first` to `last`."""
        device = self.device_for(last - first, last - first)
        if device is None:
            # The device may have all other packets of the call
            few = self._device is not None
            return self.cpu.preprocess(*(with_own_tags(tags, first, last) if few else (tags, first, last)))
        return _Guarded(self, device, self.ask(device, lambda: device.preprocess(tags, first, last)))

    def _match(self, device: DeviceMatcher, on_cpu: ByPartition, batches: Batches) -> Found:
        """Match batches with their partitions."""
        match = device.match_batches
        if match is None or self.device_for(len(batches.queries), len(batches.queued)) is None:
            return on_cpu.match(batches)
        return self.ask(device, lambda: match(batches))

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
    """Queries of a matcher that may fail: `Preprocessed`, then `Matched`."""

    hybrid: Hybrid
    device: DeviceMatcher
    stage: Any

    def subset_match(self, wanted: Wanted = Wanted.keys) -> _Guarded:
        return replace(self, stage=self.hybrid.ask(self.device, partial(self.stage.subset_match, wanted)))

    @property
    def found(self) -> int:
        found: int = self.stage.found
        return found

    @property
    def rejected(self) -> int:
        rejected: int = self.stage.rejected
        return rejected

    @property
    def once(self) -> bool:
        once: bool = self.stage.once
        return once

    def key_lookup(self, space: Space = no_space, *, wanted: Wanted = Wanted.keys) -> Lists:
        keys: Lists = self.hybrid.ask(self.device, lambda: self.stage.key_lookup(space, wanted=wanted))
        return keys
