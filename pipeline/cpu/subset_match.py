"""What a subset match takes and gives, where queries and answers are arrays of the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tagmatch.model.arrays import Lists
from tagmatch.pipeline.matcher import Batches, Found, QueryBatch


@dataclass(frozen=True, slots=True)
class Matches:
    """What a subset match found.

    Attributes
    ----------
    sets : Lists of uint32
        Set ids of each query.
    rejected : int
        Candidates that exact verification turned away.
    """

    sets: Lists
    rejected: int


class SubsetMatch(Protocol):
    """The subset match of whole packets."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory beside the snapshot's tables."""

    def __call__(self, queries: QueryBatch, /) -> Matches:
        """Sets that each query contains."""


class PartitionSubsetMatch(SubsetMatch, Protocol):
    """The subset match of batches of one partition each; attributes as of `PartitionMatcher`."""

    partitions: int
    batch_size: int
    has_empty: bool

    def route(self, queries: QueryBatch) -> Batches:
        """Find the partitions in which sets may be that a query contains (Algorithm 2)."""

    def match(self, batches: Batches) -> Found:
        """Match batches with their partitions (Algorithm 3)."""
