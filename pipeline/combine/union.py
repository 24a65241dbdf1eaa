"""Matchers of parts of the sets, to all of which every packet goes: segments, or rows on several devices (§3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from tagmatch.model.arrays import I64Array, Lists, TagLists, offsets_of
from tagmatch.model.deletions import Deletions
from tagmatch.model.kernels.lists import side_by_side
from tagmatch.model.tables import KeyTable
from tagmatch.pipeline.combine.names import NamesOfSegments
from tagmatch.pipeline.combine.several import Several, match_batches_of
from tagmatch.pipeline.cpu.matcher import CpuMatcher
from tagmatch.pipeline.cpu.one_query import OfSeveralTypes, one_of_all
from tagmatch.pipeline.cpu.one_query import OneQuery as CpuOneQuery
from tagmatch.pipeline.matcher import (
    Batches,
    DeviceMatcher,
    Found,
    Keys,
    Matched,
    OneQuery,
    Preprocessed,
    SegmentMatcher,
    Space,
    no_space,
)


class Union(Several):
    """Matchers of parts of the sets, which are numbered part after part; every packet goes to all of them.

    Parts are segments of a snapshot, or rows of one segment on several devices.
    """

    _one_query: OneQuery | None = None

    def __init__(self, matchers: Sequence[SegmentMatcher], notes: tuple[str, ...] = ()) -> None:
        super().__init__(matchers, notes)
        tables = [matcher.keys for matcher in matchers]
        names = [table.names for table in tables if table.names is not None]
        self._keys: Keys = tables[0]
        self._first_keys = [0] * len(tables)
        if any(each is not names[0] for each in names):
            self._keys = in_all = NamesOfSegments(names)
            self._first_keys = in_all.first_numbers.tolist()

    @property
    def keys(self) -> Keys:
        """As of `Matcher`; keys that are strings have a number for each segment."""
        return self._keys

    def __len__(self) -> int:
        return sum(map(len, self._matchers))

    @property
    def one_query(self) -> OneQuery | None:
        """Those of all parts, if each has one."""
        if self._one_query is None:
            self._one_query = self._of_parts()
        return self._one_query

    def _of_parts(self) -> OneQuery | None:
        of_parts = [matcher.one_query for matcher in self._matchers]
        parts = [one for one in of_parts if isinstance(one, CpuOneQuery | OfSeveralTypes)]
        if len(parts) < len(self._matchers):
            return None
        first_rows = list(accumulate(map(len, self._matchers), initial=0))
        return one_of_all(parts, first_rows[:-1], self._first_keys)

    def preprocess(self, tags: TagLists, first: int, last: int) -> Preprocessed:
        """Look up the tags of queries `first` to `last` in all parts."""
        return _InAllParts([matcher.preprocess(tags, first, last) for matcher in self._matchers], self._first_keys)

    def set_ids(self, tags: TagLists, first: int, last: int) -> Lists:
        """Ids of the sets that each of queries `first` to `last` contains."""
        first_rows = accumulate(map(len, self._matchers), initial=0)
        parts = [matcher.set_ids(tags, first, last) for matcher in self._matchers]
        return side_by_side(
            [Lists(part.offsets, part.values + np.uint32(row)) for part, row in zip(parts, first_rows, strict=False)]
        )


class CpuUnion(Union):
    """Matchers of segments on the CPU: tags are looked up where there are the most; others have these ranks translated.

    Parameters
    ----------
    matchers : sequence of CpuMatcher
    """

    def __init__(self, matchers: Sequence[CpuMatcher]) -> None:
        super().__init__(matchers)
        self._segments = matchers
        self._largest = max(matchers, key=lambda matcher: len(matcher.tag_index.vocabulary))

    def preprocess(self, tags: TagLists, first: int, last: int) -> Preprocessed:
        """As of `Union`."""
        if tags.indices is not None:  # each segment looks up the strings of a dictionary once
            return super().preprocess(tags, first, last)
        known = self._largest.tag_index
        numbers = known.numbers(tags, first, last)
        others = [
            matcher.ranked(matcher.translations.of(known).ranks(tags, first, last, numbers))
            for matcher in self._segments
            if matcher is not self._largest
        ]
        # After the others, as the numbers become part of it
        largest = self._largest.ranked(known.batch(tags, first, last, numbers))
        place = self._segments.index(self._largest)
        return _InAllParts([*others[:place], largest, *others[place:]], self._first_keys)


class Split(Union):
    """Matchers of consecutive rows of one segment on several devices.

    Parameters
    ----------
    matchers : sequence of DeviceMatcher
    partitions : sequence of int64 array
        Of each matcher, the numbers that its partitions have in the segment, ascending.
    notes : tuple of str
    """

    def __init__(
        self, matchers: Sequence[DeviceMatcher], partitions: Sequence[I64Array], notes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(matchers, notes)
        self._devices, self._own_notes = matchers, notes
        self._partitions = partitions
        self._in_parts = match_batches_of(matchers)
        self.match_batches = None if self._in_parts is None else self._match_batches

    @property
    def keys(self) -> KeyTable:
        """That of the first, whose names are all of the segment's."""
        return self._devices[0].keys

    def _match_batches(self, batches: Batches) -> Found:
        """Each device gets the batches of partitions of which it has rows."""
        assert self._in_parts is not None
        first_rows = accumulate(map(len, self._matchers), initial=0)
        found = [
            (match(_of_partitions(batches, partitions)), row)
            for match, partitions, row in zip(self._in_parts, self._partitions, first_rows, strict=False)
        ]
        return Found(
            np.concatenate([each.queries for each, _ in found]),
            np.concatenate([each.sets + np.uint32(row) for each, row in found]),
            sum(each.rejected for each, _ in found),
        )

    def without(self, deletions: Deletions) -> Split:
        """As of `SegmentMatcher`."""
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
    queries: Sequence[Preprocessed]
    first_keys: Sequence[int]

    def subset_match(self) -> _FoundInParts:
        return _FoundInParts([queries.subset_match() for queries in self.queries], self.first_keys)


@dataclass(frozen=True, slots=True, eq=False)
class _FoundInParts:
    parts: list[Matched]
    first_keys: Sequence[int]

    @property
    def found(self) -> int:
        return sum(part.found for part in self.parts)

    @property
    def rejected(self) -> int:
        return sum(part.rejected for part in self.parts)

    def key_lookup(self, space: Space = no_space) -> Lists:
        parts = list(zip(self.parts, self.first_keys, strict=True))
        some = [(part, first) for part, first in parts if part.found] or parts[:1]
        if len(some) == 1 and some[0][1] == 0:
            return some[0][0].key_lookup(space)
        return side_by_side([_counted_from(first, part.key_lookup()) for part, first in some], space)


def _counted_from(first: int, keys: Lists) -> Lists:
    """Keys of a part as keys of all parts."""
    return Lists(keys.offsets, keys.values + np.uint64(first)) if first else keys
