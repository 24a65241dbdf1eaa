"""Which buckets of the shuffled join the sets of a tag are in, and so the queries with that tag have to go to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import BoolArray, I64Array, U64Array, UIntArray
from tagmatch.model.kernels.xxh64 import hash_strings
from tagmatch.model.layouts import rules_of
from tagmatch.model.tables import Segment, Snapshot
from tagmatch.partitioner.spark.serialized import groups_by_hash


@dataclass(frozen=True, slots=True)
class Buckets:
    """A bucket for each hash of a tag, and several for a tag that is the rarest of very many sets.

    Attributes
    ----------
    count : int
    salted : uint64 array
        Hashes of the tags whose sets are spread over several buckets, ascending.
    spreads : int64 array
        Over how many, for each of them.
    """

    count: int
    salted: U64Array
    spreads: I64Array

    def of_sets(self, hashes: U64Array, rows: UIntArray) -> I64Array:
        """The bucket of each set, given the hash of its rarest tag and its row."""
        return (self._first(hashes) + rows.astype(np.int64) % self._spread(hashes)) % self.count

    def of_tags(self, hashes: U64Array) -> tuple[I64Array, I64Array]:
        """The buckets with sets whose rarest tag has one of these hashes.

        Returns
        -------
        places, buckets : int64 arrays of the same length
            A place in `hashes`, ascending, and one of its buckets.
        """
        spreads = self._spread(hashes)
        places = np.repeat(np.arange(len(hashes)), spreads)
        nth = np.arange(len(places)) - np.repeat(np.cumsum(spreads) - spreads, spreads)
        return places, (self._first(hashes)[places] + nth) % self.count

    def _first(self, hashes: U64Array) -> I64Array:
        return groups_by_hash(hashes, self.count).astype(np.int64)

    def _spread(self, hashes: U64Array) -> I64Array:
        spreads = np.ones(len(hashes), np.int64)
        if len(self.salted):
            at = np.minimum(np.searchsorted(self.salted, hashes), len(self.salted) - 1)
            salted: BoolArray = self.salted[at] == hashes
            spreads[salted] = self.spreads[at[salted]]
        return spreads


def hashes_of(segment: Segment) -> U64Array:
    """XXH64 of each tag of a segment with seed 0, which vocabularies of older versions may not have."""
    known = segment.vocabulary
    return known.hashes if known.seed == 0 else hash_strings(known.tags)


def buckets_for(snapshot: Snapshot, bucket_sets: int, *, at_least: int = 1) -> Buckets:
    """As many buckets as a snapshot needs, of about `bucket_sets` sets each."""
    segments = snapshot.segments
    rarest = [rules_of(segment.options).sets_by_rarest_tag(segment) for segment in segments]
    # What is less in every segment is less than too much in all of them
    many = [np.flatnonzero(sets > bucket_sets // len(segments)) for sets in rarest]
    tags = np.concatenate([hashes_of(segment)[places] for segment, places in zip(segments, many, strict=True)])
    hashes, numbers = np.unique(tags, return_inverse=True)
    sets = np.zeros(len(hashes), np.int64)
    np.add.at(sets, numbers, np.concatenate([each[places] for each, places in zip(rarest, many, strict=True)]))
    salted = sets > bucket_sets
    rows = sum(map(len, segments))
    return Buckets(max(at_least, -(-rows // bucket_sets), 1), hashes[salted], -(-sets[salted] // bucket_sets))
