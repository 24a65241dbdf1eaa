"""What answers queries about a segment that has sets with constraints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np

from tagmatch.model.arrays import Lists, TagLists, U64Array
from tagmatch.model.kernels.lists import side_by_side
from tagmatch.model.tables import Deletions, KeyTable, Segment
from tagmatch.pipeline.filters.index import FilterIndex
from tagmatch.pipeline.filters.line_match import match_lines
from tagmatch.pipeline.filters.messages import Messages, messages_of
from tagmatch.pipeline.filters.one_message import one_message
from tagmatch.pipeline.filters.subset_match import match_filters
from tagmatch.pipeline.matcher import Matched, PacketSize, Preprocessed, QueryBatch, SegmentMatcher, Space, no_space
from tagmatch.pipeline.one import one_of_all
from tagmatch.pipeline.segment import CpuMatcher, SetIds
from tagmatch.pipeline.tags import Matches, live_sets

Others = TypeVar("Others", bound=SegmentMatcher)
Index = TypeVar("Index", bound="HasBytes")


class HasBytes(Protocol):
    """An index of some sets of a segment."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""


class Beside(Generic[Others, Index]):
    """What a matcher of some sets of a segment has from the one of the others, beside which it stands."""

    by_partition = None

    def __init__(self, segment: Segment, others: Others, index: Index) -> None:
        self._segment, self._others, self.index = segment, others, index
        self._has_others = len(index) < len(segment)
        self.devices, self.notes = others.devices, others.notes
        self.packet_size: PacketSize = others.packet_size

    @property
    def keys(self) -> KeyTable:
        """As of `SegmentMatcher`."""
        return self._segment.keys

    def __len__(self) -> int:
        return len(self._segment)

    @property
    def nbytes(self) -> int:
        """As of `Matcher`."""
        return self._others.nbytes + self.index.nbytes

    @property
    def matched_by(self) -> dict[str, int]:
        """As of `Matcher`."""
        return self._others.matched_by

    def memory(self, count: int) -> U64Array | None:
        """As of `Matcher`."""
        return self._others.memory(count)


class FilterMatcher(Beside[CpuMatcher, FilterIndex]):
    """Two matchers of one segment: no set with constraints is a subset of tags, so the other one never finds it."""

    def __init__(self, segment: Segment, others: CpuMatcher, index: FilterIndex) -> None:
        super().__init__(segment, others, index)
        self._tag_index = others.tag_index
        own = one_message(segment, self._tag_index, index)
        each = [own, others.one_query] if self._has_others else [own]
        self.one_query = one_of_all(each, [0] * len(each), [0] * len(each))

    def without(self, deletions: Deletions) -> FilterMatcher:
        """As of `SegmentMatcher`."""
        segment = replace(self._segment, deletions=deletions)
        return FilterMatcher(segment, self._others.without(deletions), self.index)

    def preprocess(self, tags: TagLists, first: int, last: int) -> Preprocessed:
        """Ranks and codes of messages `first` to `last`; ranks are looked up once for both matchers."""
        queries = self._tag_index.ranks(tags, first, last)
        filters = _Filters(queries, self._messages(tags, first, last), self.index, self._segment)
        return _Both(self._others.ranked(queries), filters) if self._has_others else filters

    def set_ids(self, tags: TagLists, first: int, last: int) -> Lists:
        """Ids of the sets that each of messages `first` to `last` satisfies."""
        queries = self._tag_index.ranks(tags, first, last)
        found = _Filters(queries, self._messages(tags, first, last), self.index, self._segment).subset_match().sets
        return side_by_side([self._others.set_ids(tags, first, last), found]) if self._has_others else found

    def _messages(self, tags: TagLists, first: int, last: int) -> Messages:
        messages = messages_of(tags, first, last, self.index.attributes)
        self.index.seen.count(len(messages), messages.attributes)
        return messages


def rows_found(index: FilterIndex, queries: QueryBatch, messages: Messages) -> Matches:
    """Rows that the trie and the lines find."""
    parts = []
    if index.trie is not None:
        parts.append(match_filters(index.trie, queries, messages))
    if index.lines is not None:
        parts.append(match_lines(index.lines, queries, messages))
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Matches(Lists(np.zeros(len(messages) + 1, np.int64), np.zeros(0, np.uint32)), 0)
    return Matches(side_by_side([part.sets for part in parts]), sum(part.rejected for part in parts))


@dataclass(frozen=True, slots=True, eq=False)
class _Filters:
    queries: QueryBatch
    messages: Messages
    index: FilterIndex
    segment: Segment

    def subset_match(self) -> SetIds:
        matches = rows_found(self.index, self.queries, self.messages)
        return SetIds(live_sets(matches.sets, self.segment.deletions), self.segment.keys, matches.rejected)


@dataclass(frozen=True, slots=True, eq=False)
class _Both:
    others: Preprocessed
    filters: _Filters

    def subset_match(self) -> _FoundInBoth:
        return _FoundInBoth(self.others.subset_match(), self.filters.subset_match())


@dataclass(frozen=True, slots=True, eq=False)
class _FoundInBoth:
    others: Matched
    filters: SetIds

    @property
    def found(self) -> int:
        return self.others.found + self.filters.found

    @property
    def rejected(self) -> int:
        return self.others.rejected + self.filters.rejected

    def key_lookup(self, space: Space = no_space) -> Lists:
        if not self.filters.found:
            return self.others.key_lookup(space)
        if not self.others.found:
            return self.filters.key_lookup(space)
        return side_by_side([self.others.key_lookup(), self.filters.key_lookup()], space)
