"""Replicas of a matcher that take turns, and what is common to all matchers made of matchers (§3.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from tagmatch.model.arrays import Lists, TagLists, U64Array
from tagmatch.model.deletions import Deletions
from tagmatch.pipeline.matcher import (
    Batches,
    DeviceMatcher,
    Found,
    MatchBatches,
    OneQuery,
    PacketSize,
    Preprocessed,
    SegmentMatcher,
)


class Several:
    """What is common to matchers of several others.

    Parameters
    ----------
    matchers : sequence of SegmentMatcher
        At least one.
    notes : tuple of str
        Beside those of the matchers.
    """

    by_partition = None

    def __init__(self, matchers: Sequence[SegmentMatcher], notes: tuple[str, ...] = ()) -> None:
        self._matchers = tuple(matchers)
        self.packet_size: PacketSize = matchers[0].packet_size
        self.devices = tuple(name for matcher in matchers for name in matcher.devices)
        self.notes = (*notes, *(note for matcher in matchers for note in matcher.notes))

    def memory(self, count: int) -> U64Array | None:
        """That of the first."""
        return self._matchers[0].memory(count)

    @property
    def one_query(self) -> OneQuery | None:
        """None: devices get packets."""
        return None

    @property
    def nbytes(self) -> int:
        """Bytes of what all matchers keep in memory beside the tables of the sets."""
        return sum(matcher.nbytes for matcher in self._matchers)

    @property
    def matched_by(self) -> dict[str, int]:
        """The sums of all matchers."""
        return dict(sum((Counter(matcher.matched_by) for matcher in self._matchers), Counter[str]()))


class RoundRobin(Several):
    """Matchers of the same sets on several devices, which take packets in turn."""

    def __init__(self, matchers: Sequence[DeviceMatcher], notes: tuple[str, ...] = ()) -> None:
        super().__init__(matchers, notes)
        self.keys = matchers[0].keys
        self._devices, self._own_notes = matchers, notes
        size = self.packet_size
        if size.at_once is not None and size.per_device:
            self.packet_size = replace(size, at_once=size.at_once * len(matchers))
        self._turns = count()
        self._in_turn = match_batches_of(matchers)
        self.match_batches = None if self._in_turn is None else self._match_batches

    def __len__(self) -> int:
        return len(self._matchers[0])

    def preprocess(self, tags: TagLists, first: int, last: int) -> Preprocessed:
        """Look up the tags of queries `first` to `last` with the matcher whose turn it is."""
        return self._matchers[next(self._turns) % len(self._matchers)].preprocess(tags, first, last)

    def _match_batches(self, batches: Batches) -> Found:
        assert self._in_turn is not None
        return self._in_turn[next(self._turns) % len(self._in_turn)](batches)

    def set_ids(self, tags: TagLists, first: int, last: int) -> Lists:
        """Ids of the sets that each of queries `first` to `last` contains."""
        return self._matchers[0].set_ids(tags, first, last)

    def without(self, deletions: Deletions) -> RoundRobin:
        """As of `SegmentMatcher`."""
        return RoundRobin([matcher.without(deletions) for matcher in self._devices], self._own_notes)


def match_batches_of(matchers: Sequence[DeviceMatcher]) -> list[MatchBatches] | None:
    """What matches batches in each, where the layout has partitions."""
    matches = [matcher.match_batches for matcher in matchers]
    return None if None in matches else [match for match in matches if match is not None]
