"""Matchers of parts of the sets, to all of which every packet goes: segments, or rows on several devices (§3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from tagmatch.model.arrays import I64Array, Lists, TagLists, offsets_of
from tagmatch.model.deletions import Deletions
from tagmatch.model.kernels.lists import side_by_side
from tagmatch.pipeline.combine.several import Several, match_batches_of
from tagmatch.pipeline.cpu.matcher import CpuMatcher
from tagmatch.pipeline.cpu.one_query import OneQueryOfSeveral
from tagmatch.pipeline.matcher import (
    Batches,
    DeviceMatcher,
    Found,
    Matched,
    OneQuery,
    Preprocessed,
    Space,
    no_space,
)


class Union(Several):
    """Matchers of parts of the sets, which are numbered part after part; every packet goes to all of them.

    Parts are segments of a snapshot, or rows of one segment on several devices.
    """

    _one_query: OneQuery | None = None

    def __len__(self) -> int:
        return sum(map(len, self._matchers))

    @property
    def one_query(self) -> OneQuery | None:
        """Those of all parts, if each has one."""
        if self._one_query is None:
            self._one_query = self._of_parts()
        return self._one_query

    def _of_parts(self) -> OneQuery | None:
        parts = [matcher.one_query for matcher in self._matchers]
        if None in parts:
            return None
        first_rows = list(accumulate(map(len, self._matchers), initial=0))
        return OneQueryOfSeveral([part for part in parts if part is not None], first_rows[:-1])

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
        # At last, as the numbers become part of it
        others.insert(
            self._segments.index(self._largest), self._largest.ranked(known.batch(tags, first, last, numbers))
        )
        return _InAllParts(others)


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

    def key_lookup(self, space: Space = no_space) -> Lists:
        parts = [part for part in self.parts if part.found] or self.parts[:1]
        if len(parts) == 1:
            return parts[0].key_lookup(space)
        return side_by_side([part.key_lookup() for part in parts], space)
