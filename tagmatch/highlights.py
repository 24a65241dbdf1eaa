"""Which keys of sets that were found are answers, by their places; and which tags and tests of their sets held.

A set is found if all that it asks for holds. So its content is what held; where messages or clients are decides about
single keys of a set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.contents import TAGS, tags_and_tests
from tagmatch.model.arrays import BoolArray, F64Array, I64Array, Lists, frozen, offsets_of
from tagmatch.model.arrow import to_strings
from tagmatch.model.errors import ResultTooLargeError
from tagmatch.model.input.places import NO_OUTLINES, Locations, locations_of
from tagmatch.model.input.subscriptions import nears_of
from tagmatch.model.kernels.outlines import Areas, areas_have
from tagmatch.model.kernels.sphere import CIRCLE
from tagmatch.model.kernels.tag_table import has_reserved
from tagmatch.model.tables import Snapshot
from tagmatch.model.where.constraints import Where
from tagmatch.pipeline.areas.positions import Clients
from tagmatch.pipeline.segment import Part

# How tests begin that ask for an area around a client
_NEAR = "near("
# Tags of one array of lists
_MOST_TAGS = 2**31 - 1


def highlight_type(keys: pa.DataType) -> pa.DataType:
    """The type of highlights, of keys of a type."""
    return pa.list_(pa.struct({"key": keys, "tags": TAGS, "tests": TAGS}))


class _InSegment(NamedTuple):
    """Some of keys, those of one segment."""

    places: I64Array  # Which they are among all
    keys: pa.Array
    tags: pa.ListArray  # Of their different sets
    tests: pa.ListArray
    sets: I64Array  # The number of each key's set among these


@dataclass(frozen=True, slots=True, eq=False)
class KeyPlaces:
    """The keys of a snapshot by their places: those in each segment's key table, one table behind the other."""

    snapshot: Snapshot
    offsets: I64Array  # Set `i` of the snapshot has the keys at the places from `offsets[i]` to `offsets[i + 1]`

    @classmethod
    def of(cls, snapshot: Snapshot) -> KeyPlaces:
        """Those of a snapshot."""
        each = [segment.keys.keys.offsets for segment in snapshot.segments]
        if len(each) == 1:
            return cls(snapshot, frozen(each[0].astype(np.int64, copy=False)))
        return cls(snapshot, frozen(offsets_of(np.concatenate([np.diff(own).astype(np.int64) for own in each]))))

    def answers(self, clients: Clients, plane: bool, part: Part, ids: Lists) -> Lists:
        """The places of the keys, of sets with these ids, that are answers to some messages."""
        rows = ids.values.astype(np.int64)
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        ends = offsets_of(lengths)
        places = np.repeat(self.offsets[rows] - ends[:-1], lengths) + np.arange(int(ends[-1]))
        locations = locations_of(*part)
        if locations is None or not (len(locations.kinds) or len(clients)):  # a set near no client is not found
            return Lists(ends[ids.offsets], places.astype(np.uint64))
        messages = np.repeat(np.repeat(np.arange(len(ids)), ids.lengths()), lengths)
        there = _There(self, locations, clients, plane).kept(messages, np.repeat(rows, lengths), places)
        ends = offsets_of(np.bincount(messages[there], minlength=len(ids)))
        return Lists(ends, places[there].astype(np.uint64))

    def by_segment(self, rows: I64Array, places: I64Array) -> list[_InSegment]:
        """Keys at some places, with the rows of their sets."""
        found, first = [], 0
        for segment in self.snapshot.segments:
            own = np.flatnonzero((rows >= first) & (rows < first + len(segment)))
            chosen = rows[own] - first
            begins = np.flatnonzero(np.diff(chosen, prepend=-1))  # Keys of a set are next to each other
            different, sets = np.unique(chosen[begins], return_inverse=True)
            sets = np.repeat(sets, np.diff(begins, append=len(own)))
            tags, tests = tags_and_tests(segment, different, has_conditions=has_reserved(segment.vocabulary.tags))
            if tests is None:
                tests = pa.array([[]] * len(different), TAGS)
            numbers = segment.keys.keys.values[places[own] - self.offsets[first]]
            found.append(_InSegment(own, segment.keys.column(numbers), tags, tests, sets))
            first += len(segment)
        return found

    def highlights(self, answers: Lists) -> pa.ListArray:
        """The keys at some places of each message, with the tags and tests of their sets; ResultTooLargeError."""
        places = answers.values.astype(np.int64)
        parts = self.by_segment(np.searchsorted(self.offsets, places, side="right") - 1, places)
        kind, count = highlight_type(parts[0].keys.type), 0
        for part in parts:
            for texts in (part.tags, part.tests):
                count += int(pc.list_value_length(texts).to_numpy()[part.sets].sum(dtype=np.int64))
        if count > _MOST_TAGS:
            raise ResultTooLargeError(
                f"highlights have at most {_MOST_TAGS:,} tags and tests; ask with fewer queries at a time"
            )
        values = [
            pa.StructArray.from_arrays(
                [part.keys, part.tags.take(part.sets), part.tests.take(part.sets)], fields=list(kind.value_type)
            )
            for part in parts
        ]
        if len(parts) > 1:
            order = np.argsort(np.concatenate([part.places for part in parts]))
            values = [pa.concat_arrays(values).take(pa.array(order))]
        return lists_of(answers.offsets, values[0])


def lists_of(ends: I64Array, values: pa.Array) -> pa.ListArray:
    """Values as lists, which end there."""
    return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), values, type=pa.list_(values.type))


@dataclass(frozen=True, slots=True, eq=False)
class _There:
    """Where messages are, and the clients that their keys are of."""

    keys: KeyPlaces
    locations: Locations
    clients: Clients
    plane: bool

    def kept(self, messages: I64Array, rows: I64Array, places: I64Array) -> BoolArray:
        """Whether each key, at a place of its set, is an answer to its message."""
        kept = np.ones(len(places), np.bool_)
        for own, keys, _, tests, sets in self.keys.by_segment(rows, places):
            if len(own):
                kept[own] = self._are_there(messages[own], keys, _metres_of(tests)[sets])
        return kept

    def _are_there(self, messages: I64Array, keys: pa.Array, metres: F64Array) -> BoolArray:
        """Whether clients are where their messages are; they must be at most so near, which may be infinite."""
        lons, lats = self.clients.where(keys.to_numpy() if keys.type == pa.uint64() else to_strings(keys))
        nowhere, locations, kept = np.isnan(lons), self.locations, np.ones(len(keys), np.bool_)
        if len(locations.kinds):
            there = areas_have(locations.areas, messages, lons, lats, plane=self.plane)
            kept &= (locations.kinds[messages] == 0) | there
        asked = np.flatnonzero(np.isfinite(metres) & ~np.isnan(locations.lon[messages]))
        owners, lon, lat = locations.every()
        begins = np.searchsorted(owners, np.arange(len(locations) + 1))
        sizes = np.diff(begins)[messages[asked]]
        # All places of each key's message, key after key
        of = np.repeat(np.arange(len(asked)), sizes)
        at = np.arange(len(of)) + (begins[messages[asked]] - np.cumsum(sizes) + sizes)[of]
        around = np.stack([lon[at], lat[at], metres[asked][of], np.zeros(len(of))], axis=1)
        circles = Areas(np.full(len(of), CIRCLE, np.uint8), around, *NO_OUTLINES)
        near = areas_have(circles, np.arange(len(of)), lons[asked][of], lats[asked][of], plane=self.plane)
        kept[asked] &= (np.bincount(of[near], minlength=len(asked)) > 0) & ~nowhere[asked]
        return kept


def _metres_of(tests: pa.ListArray) -> F64Array:
    """How near the client of each set must be, infinite if it need not be near."""
    encoded, found = tests.flatten().dictionary_encode(), np.full(len(tests), np.inf)
    # To read a text takes long, and few are of areas around clients
    texts = encoded.dictionary.to_pylist()
    metres = [min(nears_of([Where(text)] if _NEAR in text else []), default=np.inf) for text in texts]
    owners = np.repeat(np.arange(len(tests)), pc.list_value_length(tests).to_numpy())
    np.minimum.at(found, owners, np.array(metres)[encoded.indices.to_numpy()] if metres else np.zeros(0))
    return found
