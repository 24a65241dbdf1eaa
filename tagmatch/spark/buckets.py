"""What sets and queries of the shuffled join meet by, and so which buckets they go to.

A set is met by its rarest tag. One without tags, but with conditions, is met by an attribute that a message must have
for one of them to hold: only a negated condition holds without. Of an area that is a place, which counts as an
attribute. What is left has no tags, and only conditions that are negated, if any; it is met by nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import BoolArray, I64Array, Lists, U32Array, U64Array, UIntArray
from tagmatch.model.arrow import from_strings
from tagmatch.model.columns import strings_of
from tagmatch.model.filters.values import ATTRIBUTE
from tagmatch.model.kernels.area_shapes import shapes_of
from tagmatch.model.kernels.lists import gather
from tagmatch.model.kernels.reserved import areas_among, constraints_among
from tagmatch.model.kernels.xxh64 import hash_strings
from tagmatch.model.layouts import rules_of
from tagmatch.model.storage.partial import InPlace
from tagmatch.model.tables import Segment
from tagmatch.partitioner.spark.serialized import groups_by_hash
from tagmatch.pipeline.filters.parsing import parsed, parts_of

#: What the place of a message is called as an attribute, as no other can be
PLACE = ""


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


def meeting_of(index: InPlace, number: int) -> Meeting:
    """What the sets of a segment, the one with this number, are met by; the same in all tasks.

    Where there are no constraints, only hashes of ranks that are fetched can be looked at.
    """
    segment = index.snapshot.segments[number]
    if not index.constrained[number]:
        return Meeting(hashes_of(index, segment))
    tags, frequencies = segment.vocabulary.tags, segment.vocabulary.frequencies
    index.fetch_all(tags.offsets, tags.data, segment.vocabulary.hashes, frequencies)
    hashes = hashes_of(index, segment)
    is_constraint = constraints_among(tags)
    conditions = parsed(tags, is_constraint)
    needed = ~conditions.negated
    areas = np.flatnonzero(areas_among(tags)).astype(np.uint32)
    areas = areas[~shapes_of(tags, areas).negated]
    ranks = np.concatenate([conditions.ranks[needed], areas])
    # That of areas is empty, as `PLACE` is
    where_names = np.concatenate([conditions.names[needed], np.zeros((len(areas), 2), np.int64)])
    encoded = from_strings(parts_of(tags.data, where_names)).dictionary_encode()
    numbers = encoded.indices.to_numpy()
    sets = np.zeros(len(encoded.dictionary), np.int64)
    np.add.at(sets, numbers, frequencies[ranks])
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


def hashes_of(index: InPlace, segment: Segment) -> U64Array:
    """XXH64 of each tag of a segment with seed 0, which vocabularies of older versions may not have."""
    known = segment.vocabulary
    if known.seed == 0:
        return known.hashes
    index.fetch_all(known.tags.offsets, known.tags.data)
    return hash_strings(known.tags)


@dataclass(frozen=True, slots=True)
class _Met:
    """How many sets of a segment are met by what: of places by which many are."""

    hashes: U64Array
    sets: I64Array
    names: tuple[str, ...]
    has_others: bool


def buckets_for(index: InPlace, bucket_sets: int, *, at_least: int = 1) -> Buckets:
    """As many buckets as a snapshot needs, of about `bucket_sets` sets each."""
    segments = index.snapshot.segments
    # What is less in every segment is less than too much in all of them
    few = bucket_sets // len(segments)
    met = [_count_met(index, number, few, bucket_sets) for number in range(len(segments))]
    hashes, numbers = np.unique(np.concatenate([each.hashes for each in met]), return_inverse=True)
    sets = np.zeros(len(hashes), np.int64)
    np.add.at(sets, numbers, np.concatenate([each.sets for each in met]))
    salted = sets > bucket_sets
    rows = sum(map(len, segments))
    return Buckets(
        max(at_least, -(-rows // bucket_sets), 1),
        hashes[salted],
        -(-sets[salted] // bucket_sets),
        frozenset(name for each in met for name in each.names),
        any(each.has_others for each in met),
    )


def _count_met(index: InPlace, number: int, few: int, at_once: int) -> _Met:
    """Count the sets of a segment by what they are met by, where those are more than `few`."""
    segment, meeting = index.snapshot.segments[number], meeting_of(index, number)
    if meeting.places is None:
        return _count_by_tags(index, segment, meeting, few)
    met = np.zeros(len(meeting.hashes) + 1, np.int64)
    for first in range(0, len(segment), at_once):
        last = min(first + at_once, len(segment))
        index.fetch_sets(segment, first, last)
        rows = segment.live_rows(first, last).astype(np.uint32)
        places, sets = np.unique(meeting.of_sets(segment.tagsets.ranks, rows), return_counts=True)
        met[places] += sets
    many = np.flatnonzero(met[:-1] > few)
    of_names = met[len(meeting.hashes) - len(meeting.names) : -1].tolist()
    names = tuple(name for name, sets in zip(meeting.names, of_names, strict=True) if sets)
    return _Met(meeting.hashes[many], met[many], names, bool(met[-1]))


def _count_by_tags(index: InPlace, segment: Segment, meeting: Meeting, few: int) -> _Met:
    """The same where there are no constraints. No more sets are met by a tag than have it."""
    index.fetch_sets(segment, 0, min(1, len(segment)))
    has_empty = segment.tagsets.has_empty_set and 0 in segment.live_rows(0, 1)
    index.fetch_all(segment.vocabulary.frequencies)
    first = int(np.searchsorted(segment.vocabulary.frequencies, few, "right"))  # they ascend
    if first == len(segment.vocabulary):
        return _Met(np.zeros(0, np.uint64), np.zeros(0, np.int64), (), has_empty)
    rules = rules_of(segment.options)
    index.fetch_all(*rules.saying_rarest_tags(segment))
    met = rules.sets_by_rarest_tag(segment)[first:]
    many = np.flatnonzero(met > few)
    index.fetch(meeting.hashes, first + many, first + many + 1)
    return _Met(meeting.hashes[first + many], met[many], (), has_empty)
