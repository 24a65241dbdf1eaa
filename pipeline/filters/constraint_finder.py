"""Finds the sets of a segment that have constraints."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import Lists, TagLists
from tagmatch.model.kernels.lists import side_by_side
from tagmatch.model.tables import Segment
from tagmatch.pipeline.filters.index import FilterIndex
from tagmatch.pipeline.filters.messages import Messages, messages_of
from tagmatch.pipeline.filters.one_message import OneMessage, one_message
from tagmatch.pipeline.filters.subset_match import match_filters, match_lines
from tagmatch.pipeline.matcher import QueryBatch
from tagmatch.pipeline.segment import Finder, RowsFound, SegmentMessages
from tagmatch.pipeline.tags import Matches, TagIndex


class ConstraintFinder(Finder):
    """Finds sets with constraints, by the trie and the lines of an index."""

    def __init__(self, index: FilterIndex) -> None:
        self.index = index

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        """As `Finder` says."""
        return self.index.nbytes

    def prepare(self, messages: SegmentMessages) -> tuple[QueryBatch, Messages]:
        """Ranks and codes of messages."""
        return messages.ranks, encoded(self.index, messages.tags, messages.first, messages.last)

    def find(self, prepared: tuple[QueryBatch, Messages]) -> RowsFound:
        """As `Finder` says."""
        found = rows_found(self.index, *prepared)
        return RowsFound(found.sets, found.rejected)

    def one_query(self, segment: Segment, tags: TagIndex) -> OneMessage:
        """As `Finder` says."""
        return one_message(segment, tags, self.index)


def encoded(index: FilterIndex, tags: TagLists, first: int, last: int) -> Messages:
    """Messages as codes of an index, which counts what they have."""
    messages = messages_of(tags, first, last, index.attributes)
    index.seen.count(len(messages), messages.attributes)
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
