"""Finds the sets of a segment that have constraints."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import Lists
from tagmatch.model.kernels.lists import side_by_side
from tagmatch.model.tables import Segment
from tagmatch.pipeline.filters.index import FilterIndex
from tagmatch.pipeline.filters.messages import MessageTable, messages_of
from tagmatch.pipeline.filters.one_message import OneMessage, one_message
from tagmatch.pipeline.filters.subset_match import match_filters, match_lines
from tagmatch.pipeline.segment import Finder, RowsFound, SegmentMessages
from tagmatch.pipeline.tags import TagIndex


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

    def prepare(self, messages: SegmentMessages) -> MessageTable:
        """Ranks and codes of messages."""
        return encoded(self.index, messages)

    def find(self, prepared: MessageTable) -> RowsFound:
        """As `Finder` says."""
        return rows_found(self.index, prepared)

    def one_query(self, segment: Segment, tags: TagIndex) -> OneMessage:
        """As `Finder` says."""
        return one_message(segment, tags, self.index)


def encoded(index: FilterIndex, messages: SegmentMessages) -> MessageTable:
    """Messages as codes of an index, which counts what they have."""
    table = messages_of(messages.ranks, messages.tags, messages.first, messages.last, index.attributes)
    index.seen.count(len(messages), table.attributes)
    return table


def rows_found(index: FilterIndex, messages: MessageTable) -> RowsFound:
    """Rows that the trie and the lines find."""
    parts = []
    if index.trie is not None:
        parts.append(match_filters(index.trie, messages))
    if index.lines is not None:
        parts.append(match_lines(index.lines, messages))
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return RowsFound(Lists(np.zeros(len(messages.offsets), np.int64), np.zeros(0, np.uint32)), 0)
    return RowsFound(side_by_side([part.rows for part in parts]), sum(part.rejected for part in parts))
