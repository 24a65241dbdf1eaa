"""What sets and queries of the shuffled join meet by, and so which buckets they go to.

A set is met by its rarest tag. One without tags, but with conditions, is met by an attribute that a message must have
for one of them to hold: only a negated condition holds without. What is left has no tags, and only conditions that are
negated, if any; it is met by nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import BoolArray, I64Array, Lists, U32Array, U64Array, UIntArray
from tagmatch.model.arrow import from_strings
from tagmatch.model.columns import strings_of
from tagmatch.model.filters.values import ATTRIBUTE
from tagmatch.model.kernels.lists import gather
from tagmatch.model.kernels.reserved import constraints_among
from tagmatch.model.kernels.xxh64 import hash_strings
from tagmatch.model.layouts import rules_of
from tagmatch.model.tables import Segment, Snapshot
from tagmatch.partitioner.spark.serialized import groups_by_hash
from tagmatch.pipeline.filters.parsing import parsed, parts_of


@dataclass(frozen=True, slots=True)
class Meeting:
    """What the sets of a segment are met by: a *place*, of which each tag and each attribute has one.

    Attributes
    ----------
    hashes : uint64 array
        Of each place; those of tags come first. The place after all of them is that of what is met by nothing.
    names : tuple of str
        Of the attributes, those that fewest sets ask for first.
    places : int64 array, optional
        Of each rank, the place of the tag, or of the attribute that its condition needs: a set is met by the least
        place of its ranks. `None` where there are no conditions: by its first rank.
    """

    hashes: U64Array
    names: tuple[str, ...] = ()
    places: I64Array | None = None

    def of_sets(self, sets: Lists, rows: U32Array) -> I64Array:
        """The place by which each of these sets is met."""
        begins = sets.offsets[rows]
        some = np.flatnonzero(sets.offsets[rows + np.uint32(1)] > begins)
        found = np.full(len(rows), len(self.hashes))
        if self.places is None:
            found[some] = sets.values[begins[some]]
        elif len(some):
            ranks = gather(sets, rows[some])
            found[some] = np.minimum.reduceat(self.places[ranks.values], ranks.offsets[:-1])
        return found


def meeting_of(segment: Segment) -> Meeting:
    """What the sets of a segment are met by; the same in all tasks."""
    tags, hashes = segment.vocabulary.tags, hashes_of(segment)
    is_constraint = constraints_among(tags)
    if not is_constraint.any():
        return Meeting(hashes)
    conditions = parsed(tags, is_constraint)
    needed = ~conditions.negated
    ranks = conditions.ranks[needed]
    encoded = from_strings(parts_of(tags.data, conditions.names[needed])).dictionary_encode()
    numbers = encoded.indices.to_numpy()
    sets = np.zeros(len(encoded.dictionary), np.int64)
    np.add.at(sets, numbers, segment.vocabulary.frequencies[ranks])
    order = np.argsort(sets, kind="stable")
    places = np.arange(len(hashes))
    places[is_constraint] = len(hashes) + len(order)
    places[ranks] = len(hashes) + np.argsort(order)[numbers]
    names = tuple(encoded.dictionary.take(order).to_pylist())
    return Meeting(np.concatenate([hashes, hashes_of_attributes(names)]), names, places)


def hashes_of_attributes(names: Iterable[str]) -> U64Array:
    """Hashes of attributes, as those of tags that no set has."""
    return hash_strings(strings_of(ATTRIBUTE + name for name in names))


@dataclass(frozen=True, slots=True)
class Buckets:
    """A bucket for each hash of a tag or an attribute, and several for one that very many sets are met by.

    Attributes
    ----------
    count : int
    salted : uint64 array
        Hashes of the tags and attributes whose sets are spread over several buckets, ascending.
    spreads : int64 array
        Over how many, for each of them.
    names : frozenset of str
        Attributes that sets are met by.
    has_others : bool
        Whether there are sets that are met by nothing.
    """

    count: int
    salted: U64Array
    spreads: I64Array
    names: frozenset[str]
    has_others: bool

    def of_sets(self, hashes: U64Array, rows: UIntArray) -> I64Array:
        """The bucket of each set, given the hash of what it is met by, and its row."""
        return (self._first(hashes) + rows.astype(np.int64) % self._spread(hashes)) % self.count

    def of_hashes(self, hashes: U64Array) -> tuple[I64Array, I64Array]:
        """The buckets with sets that are met by what has one of these hashes.

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
    meetings = list(map(meeting_of, segments))
    met = [_count_met(segment, meeting, bucket_sets) for segment, meeting in zip(segments, meetings, strict=True)]
    # What is less in every segment is less than too much in all of them
    many = [np.flatnonzero(sets[:-1] > bucket_sets // len(segments)) for sets in met]
    found = np.concatenate([meeting.hashes[places] for meeting, places in zip(meetings, many, strict=True)])
    hashes, numbers = np.unique(found, return_inverse=True)
    sets = np.zeros(len(hashes), np.int64)
    np.add.at(sets, numbers, np.concatenate([each[places] for each, places in zip(met, many, strict=True)]))
    salted = sets > bucket_sets
    rows = sum(map(len, segments))
    return Buckets(
        max(at_least, -(-rows // bucket_sets), 1),
        hashes[salted],
        -(-sets[salted] // bucket_sets),
        frozenset(name for meeting, each in zip(meetings, met, strict=True) for name in _names_met(meeting, each)),
        any(each[-1] > 0 for each in met),
    )


def _count_met(segment: Segment, meeting: Meeting, at_once: int) -> I64Array:
    """How many sets are met by each place, and at last by nothing."""
    if meeting.places is None:
        empty = segment.tagsets.has_empty_set and 0 in segment.live_rows(0, 1)
        return np.append(rules_of(segment.options).sets_by_rarest_tag(segment), int(empty))
    met = np.zeros(len(meeting.hashes) + 1, np.int64)
    for first in range(0, len(segment), at_once):
        rows = segment.live_rows(first, min(first + at_once, len(segment))).astype(np.uint32)
        places, sets = np.unique(meeting.of_sets(segment.tagsets.ranks, rows), return_counts=True)
        met[places] += sets
    return met


def _names_met(meeting: Meeting, met: I64Array) -> Iterator[str]:
    first = len(meeting.hashes) - len(meeting.names)
    return (name for name, sets in zip(meeting.names, met[first:-1].tolist(), strict=True) if sets)
