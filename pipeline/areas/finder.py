"""Finds the sets of a segment that have areas: of packets of messages, or of one message by two calls of kernels.

One message alone goes as `tagmatch.pipeline.one` has it, which says why: the kernels are those of packets. The first
call finds sets, and entries of clients, and the other one looks up their keys.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from tagmatch.model.arrays import I64Array, Lists, U32Array, U64Array, UIntArray, frozen, offsets_of
from tagmatch.model.errors import DeviceError, DeviceMemoryError
from tagmatch.model.input.places import NO_FURTHER, Locations, locations_of
from tagmatch.model.kernels.intrinsics import Prepared, array_at, arrays_at, own_array_at
from tagmatch.model.kernels.jit import apart, copy, inlined, kernel, lent, with_room
from tagmatch.model.kernels.lists import gather
from tagmatch.model.kernels.outlines import area_has, around_outlines
from tagmatch.model.tables import Segment, is_deleted
from tagmatch.pipeline.areas.cells import PREPARED
from tagmatch.pipeline.areas.chunks import Hits, Places, Shapes, Visits, all_frozen
from tagmatch.pipeline.areas.clients import find_clients
from tagmatch.pipeline.areas.fine import FineCells
from tagmatch.pipeline.areas.fixed import find_fixed
from tagmatch.pipeline.areas.grids import AreaGrid
from tagmatch.pipeline.areas.index import AreaIndex, GroupedSets, GroupTokens, Searcher, Searchers, ShapeTests
from tagmatch.pipeline.filters.asked import verified
from tagmatch.pipeline.filters.finder import (
    BEHIND,
    SCALAR_BEHIND,
    TOO_MANY,
    arrays_of,
    constraints_in,
    encoded_in,
    no_codes,
    read,
    rows_for,
    table_of_one,
)
from tagmatch.pipeline.filters.messages import MessageTable
from tagmatch.pipeline.filters.trie import most_room, tokens_of
from tagmatch.pipeline.one import (
    ALL,
    FEW,
    DTypes,
    Kernels,
    OneQuery,
    Single,
    add_keys,
    add_keys_at,
    answer,
    deleted_in,
    is_short,
    live_of,
    prepare,
    scalar,
    tags_in,
)
from tagmatch.pipeline.segment import Finder, RowsFound, SegmentMessages
from tagmatch.pipeline.tags import QueryBatch, TagIndex

_log = logging.getLogger(__name__)
# A message and a rank are one number, in which the rank has this number of bits
_RANK_BITS = 32
# No row has more than that
_ALL = np.iinfo(np.int64).max
#: In the place of the rows of things that are rows
_THEMSELVES = frozen(np.empty(0, np.uint32))


class Sought(NamedTuple):
    """The groups in which the areas of each message are sought, and the messages, for sets with further conditions."""

    groups: Lists
    messages: MessageTable
    locations: Locations | None
    device: Searchers | None  # What is asked for areas and clients, if it is not the CPU


class AreaFinder(Finder):
    """Finds sets with areas, contents first: areas and clients on the CPU, or a device, which sees all earlier moves.

    Small packets are the CPU's, and each that the device cannot answer; all are once it fails (`DeviceError`).
    """

    def __init__(
        self, index: AreaIndex, device: Searchers | None = None, fewest: int = 0, notes: tuple[str, ...] = ()
    ) -> None:
        self.index, self.device, self.fewest_messages, self._notes = index, device, fewest, notes
        if device is not None and fewest > 1:
            few = f"areas are matched on the CPU for packets of fewer than {fewest} messages, which is faster for few"
            self._notes = (*notes, few)
        self._counting = threading.Lock()
        self._matched_by = {} if device is None else {"cuda": 0, "cpu": 0}

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        """As `Finder` says."""
        return self.index.nbytes + sum(each.nbytes for each in self.device or () if each is not None)

    @property
    def notes(self) -> tuple[str, ...]:
        """As `Finder` says."""
        return self._notes

    @property
    def matched_by(self) -> dict[str, int]:
        """How many messages went to the device and how many to the CPU; empty if there was no device."""
        with self._counting:
            return dict(self._matched_by)

    def prepare(self, messages: SegmentMessages) -> Sought:
        """Where messages are, and the groups whose areas each is looked for in."""
        filters, count = self.index.filters, len(messages)
        if filters is None:
            ends, none = np.zeros(count + 1, np.int64), np.zeros(0, np.uint32)
            table = MessageTable(ends, none, ends, none, none)
        else:
            table = filters.encoded(messages, self._ranks(messages))
        locations = locations_of(messages.tags, messages.first, messages.last)
        device = self.device if count >= self.fewest_messages else None
        with self._counting:
            if self._matched_by:
                self._matched_by["cpu" if device is None else "cuda"] += count
        return Sought(groups_of(self.index, table), table, locations, device)

    def _ranks(self, messages: SegmentMessages) -> QueryBatch:
        """Ranks of messages, and of the computed tests that hold for each."""
        ranks, computed = messages.ranks, self.index.computed
        if computed is None:
            return ranks
        held = computed.find(computed.prepare(messages)).rows
        own = [
            np.repeat(np.arange(len(messages)), np.diff(offsets)) << _RANK_BITS | values
            for offsets, values in ((ranks.offsets, ranks.ranks), (held.offsets, held.values))
        ]
        pairs = np.sort(np.concatenate(own))
        counts = np.bincount(pairs >> _RANK_BITS, minlength=len(messages))
        return QueryBatch(offsets_of(counts), (pairs & (1 << _RANK_BITS) - 1).astype(np.uint32))

    def find(self, prepared: Sought) -> RowsFound:
        """As `Finder` says; of sets that follow clients, it finds the keys of those that a message is for."""
        index, (groups, _, locations, device) = self.index, prepared
        rows = Lists(np.zeros(len(groups) + 1, np.int64), np.zeros(0, np.uint32))
        own, there = index.searchers, device or (None, None)
        if locations is not None and len(index.fixed_rows):
            rows = _at_each_place(locations, groups, lambda places, its, _: self._ask(there[0], own.areas, places, its))
        if len(index.loose.values):
            rows = Lists(*with_loose(_arrays(rows), _arrays(groups), _arrays(index.loose), _ALL)[:2])
        rows = self._satisfied(rows, _THEMSELVES, prepared)
        followers = index.followers
        if followers is None or locations is None:
            return RowsFound(rows)
        cells = followers.cells
        if locations.kinds.any():
            kinds, values = around_outlines(locations.kinds, plane=index.plane), locations.values
            entries = _at_each_place(
                locations,
                groups,
                lambda places, its, of: cells.find(places, its, Shapes(kinds[of], values[of])),
            )
        else:
            entries = _at_each_place(locations, groups, lambda places, its, _: self._ask(there[1], cells, places, its))
        entries = self._satisfied(entries, followers.rows, prepared)
        if not len(entries.values):
            return RowsFound(rows)
        return RowsFound(rows, key_places=Lists(entries.offsets, followers.places[entries.values].astype(np.uint64)))

    def _satisfied(self, found: Lists, row_of: U32Array, sought: Sought) -> Lists:
        """What was found, whose rows these are, without what other areas say no to, or that asks for more."""
        index, filters, locations = self.index, self.index.filters, sought.locations
        asks_more = len(index.tests.of_rows) + len(index.sets.of_rows) > 0
        if not (asks_more and len(found.values)):  # a call with as many arrays takes 10 us
            return found
        codes = np.zeros(0 if filters is None else filters.attributes.count, np.uint32)
        lon = lat = np.full(len(found), np.nan)
        if locations is not None:
            lon, lat = locations.lon, locations.lat
        further = NO_FURTHER if locations is None else locations.further
        places = (*all_frozen(Places(lon, lat)), *all_frozen(further))
        known = index.tests, index.sets, index.plane
        ends, values, _ = satisfied(_arrays(found), row_of, known, (sought.messages, places, codes))
        return Lists(ends, values)

    def _ask(self, device: Searcher | None, cpu: Searcher, places: Places, groups: Lists) -> Lists:
        """Ask a device, or the CPU instead, which goes on with a packet or, if the device has failed, with all."""
        try:
            if device is not None:
                return device.find(places, groups)
        except DeviceMemoryError as error:
            _log.warning("%s; the CPU matches the areas of a packet", error)
        except DeviceError as error:
            if self.device is not None and device in self.device:
                self.device = None
                _log.error("%s; the CPU goes on with areas", error)
        return cpu.find(places, groups)

    def one_query(self, segment: Segment, tags: TagIndex) -> OneLocated | None:
        """As `Finder` says; `None` if tests are computed, which packets do."""
        return None if self.index.computed is not None else one_located(segment, tags, self.index)


def _at_each_place(
    locations: Locations, groups: Lists, find: Callable[[Places, Lists, I64Array | slice], Lists]
) -> Lists:
    """What a search finds for messages at any of their places, each once; it is told which messages places are of."""
    if not len(locations.further.lon):
        return find(all_frozen(Places(locations.lon, locations.lat)), groups, slice(None))
    owners, lon, lat = locations.every()
    found = find(all_frozen(Places(lon, lat)), gather(groups, owners.astype(np.uint32)), owners)
    pairs = np.unique(np.repeat(owners, found.lengths()) << _RANK_BITS | found.values)
    offsets = offsets_of(np.bincount(pairs >> _RANK_BITS, minlength=len(locations)))
    return Lists(offsets, (pairs & (1 << _RANK_BITS) - 1).astype(found.values.dtype))


def groups_of(index: AreaIndex, messages: MessageTable) -> Lists:
    """The contents of messages that are found first, and the groups of their tokens."""
    count, every = len(messages.offsets) - 1, index.tokens.every
    if index.filters is None:  # so there are no tokens, either
        return Lists(len(every) * np.arange(count + 1), np.tile(every, count))
    contents = index.filters.rows_found(messages).rows
    return Lists(*groups_in(_arrays(contents), index.tokens, messages))


def _arrays(lists: Lists) -> tuple[I64Array, UIntArray]:
    """Lists as kernels take them."""
    return frozen(lists.offsets.astype(np.int64, copy=False)), lists.values


@kernel
def groups_in(contents, known, messages):
    """The contents of each message, what every message has, and the groups of its tokens: where each's end, and all."""
    content_offsets, content_values = contents
    rank_offsets, ranks, offsets, attributes, codes = messages
    ends, used, has_tokens = np.zeros(len(offsets), np.int64), np.int64(0), len(known.cells[3]) > 0
    out = np.empty(len(content_values) + len(known.every) * (len(ends) - 1), np.uint32)
    for message in range(len(ends) - 1):
        begin, end = content_offsets[message], content_offsets[message + 1]
        if has_tokens:
            ranks_begin, ranks_end = rank_offsets[message], rank_offsets[message + 1]
            values_begin, values_end = offsets[message], offsets[message + 1]
            more = (end - begin) + len(known.every) + most_room(ranks_end - ranks_begin, values_end - values_begin)
            out = with_room(out, used, more)
        for place in range(begin, end):
            out[used] = content_values[place]
            used += 1
        for place in range(len(known.every)):
            out[used] = known.every[place]
            used += 1
        if has_tokens:
            begin = used
            of_message = (attributes, codes, values_begin, values_end, ranks, ranks_begin, ranks_end)
            used, _ = tokens_of(of_message, known.cells, out, used)
            for place in range(begin, used):
                out[place] += np.uint32(known.first)
        ends[message + 1] = used
    return ends, out[:used]


@kernel
def with_loose(found, groups, loose, most):
    """The rows that messages have found, and those of their groups that have no area: where each's end, and all.

    And whether these are no more than `most`; else none.
    """
    (found_offsets, rows), (offsets, values), (loose_offsets, loose_rows) = found, groups, loose
    count, ends = len(rows), np.zeros(len(offsets), np.int64)
    for i in range(offsets[0], offsets[len(offsets) - 1]):
        count += loose_offsets[np.int64(values[i]) + 1] - loose_offsets[np.int64(values[i])]
    if count > most:
        return ends, np.empty(0, np.uint32), False
    out, used = np.empty(count, np.uint32), 0
    for message in range(len(ends) - 1):
        used = copy(rows, found_offsets[message], found_offsets[message + 1], out, used)
        for i in range(offsets[message], offsets[message + 1]):
            group = np.int64(values[i])
            used = copy(loose_rows, loose_offsets[group], loose_offsets[group + 1], out, used)
        ends[message + 1] = used
    return ends, out, True


@lent
def _has_areas(tests, row, places, message, plane):
    """Whether all tests of a row hold for the places of a message: an area must have any, or, if negated, none."""
    number = tests.of_rows[row] if len(tests.of_rows) else -1
    if number >= 0:
        lon, lat, offsets, lons, lats = places
        for test in range(tests.offsets[number], tests.offsets[number + 1]):
            has = area_has(tests, test, lon[message], lat[message], plane)
            if not has and len(offsets):
                place, end = offsets[message], offsets[message + 1]
                while place < end and not has:
                    has = area_has(tests, test, lons[place], lats[place], plane)
                    place += 1
            if has == tests.negated[test]:
                return False
    return True


@apart
def satisfied(found, row_of, known, asked):
    """What was found of each message, if it has all that the row asks, areas and else: where each's end, and all.

    Its rows are those of `row_of`, or itself if that is empty. Rows that are in no group ask no more than areas.
    """
    (offsets, values), (tests, sets, plane), (messages, places, first_codes) = found, known, asked
    count, used, touched = len(values), np.int64(0), np.uint32(0)
    if count == 0 or len(tests.of_rows) + len(sets.of_rows) == 0:
        return offsets, values, touched
    rows, ends, kept = np.empty(count, np.uint32), np.zeros(len(offsets), np.int64), np.empty(count, np.uint32)
    begins, stops = np.zeros(count, np.int64), np.zeros(count, np.int64)
    # Each miss of the cache in its own loop: the processor then waits for many at once
    for i in range(count):
        rows[i] = row_of[values[i]] if len(row_of) else values[i]
    if len(sets.of_rows):
        for i in range(count):
            begins[i] = sets.of_rows[np.int64(rows[i])]
        for i in range(count):
            number = begins[i]
            begins[i] = sets.record_offsets[max(number, 0)]
            stops[i] = sets.record_offsets[number + 1] if number >= 0 else begins[i]
        for i in range(count):
            touched ^= sets.records[min(begins[i], len(sets.records) - 1), 0]
    for message in range(len(ends) - 1):
        begin, end, several = messages.offsets[message], messages.offsets[message + 1], False
        ranks_begin, ranks_end = messages.rank_offsets[message], messages.rank_offsets[message + 1]
        if offsets[message] < offsets[message + 1]:
            own = (messages.attributes, messages.codes, begin, end, messages.ranks, ranks_begin, ranks_end)
            for i in range(begin, end):
                several |= first_codes[messages.attributes[i]] != 0
                first_codes[messages.attributes[i]] = messages.codes[i]
            for i in range(offsets[message], offsets[message + 1]):
                holds = _has_areas(tests, np.int64(rows[i]), places, message, plane)
                if holds and begins[i] < stops[i]:
                    holds = verified(begins[i], stops[i], sets.records, own, first_codes, several, sets.constraints)
                kept[used] = values[i]
                used += np.int64(holds)
            for i in range(begin, end):
                first_codes[messages.attributes[i]] = 0
        ends[message + 1] = used
    return ends, kept[:used], touched


# -- one message -------------------------------------------------------------------------------------------------------

_DTYPES: tuple[Any, ...] = (np.int16, np.int32, np.int64, np.uint8, np.uint32, np.uint64, np.float32, np.float64)
_I16, _I32, _I64, _U8, _U32, _U64, _F32, _F64 = _DTYPES
_BOOL: Any = np.bool_

# The arrays of an index, in the order in which they are prepared
_OF_KIND = AreaGrid(_I64, _F64, _U32, _I32, _F64, _I64, _I32, _F32, _U32)
_OF_FINE = FineCells(_I32, _F64, _I64, _U32, _U32, _I16)
_OF_LOOSE = (_I64, _U32)
_OF_TESTS = ShapeTests(_I64, _I64, _U8, _F64, _BOOL, _I64, _F64)
_OF_FOLLOWERS = (_U32, _I64)
_OF_TOKENS = (_I64, _I64, _U64, _U32)
_OF_SETS = (_I64, _I64, _U32)
_GROUPS = (_OF_KIND, _OF_KIND, _OF_FINE, (_U32,), _OF_LOOSE, _OF_TESTS, _OF_FOLLOWERS, (_U32,), _OF_TOKENS, _OF_SETS)
_KINDS, _, _, _FIXED_ROWS, _LOOSE, _TESTS, _FOLLOWER_ROWS, _EVERY, _TOKENS, _SETS = (
    BEHIND + sum(map(len, _GROUPS[:place])) for place in range(len(_GROUPS))
)
_FOLLOWER_PLACES = _FOLLOWER_ROWS + 1
_HAS_FILTERS, _FIRST_GROUP, _FIRST_TAG = range(SCALAR_BEHIND, SCALAR_BEHIND + 3)

# Of the arrays of cells, the one that is written to, the last
_ASKS = len(PREPARED) - 1 + len(PREPARED.tree)

# Numbers of a packed place, and which of these are what
_NUMBERS, _KIND, _SHAPE = 7, 2, 3
# Areas, and entries, for which there is room at first
_ROOM = 256


@inlined
def _known_in(tables, plane):
    """The tests and the sets of an index, as `satisfied` takes them."""
    of_rows, offsets, kinds, shapes, negated, places, numbers = arrays_at(tables, _TESTS, _OF_TESTS)
    tests = ShapeTests(of_rows, offsets, kinds, shapes.reshape((-1, 4)), negated, places, numbers)
    of_rows, record_offsets, records = arrays_at(tables, _SETS, _OF_SETS)
    return tests, GroupedSets(of_rows, record_offsets, records.reshape((-1, 3)), constraints_in(tables)), plane


@apart
def _groups_of(tables, message, most):
    """The groups in which areas are looked for, of a message that is encoded; whether `rows_for` found all."""
    found = np.empty(0, np.uint32)
    if scalar(tables, _HAS_FILTERS):
        found, rejected = rows_for(tables, message, most)
        if rejected == TOO_MANY:
            return found, False
    cells = (*arrays_at(tables, _TOKENS, _OF_TOKENS), scalar(tables, _FIRST_TAG))
    known = GroupTokens(array_at(tables, _EVERY, np.uint32), scalar(tables, _FIRST_GROUP), cells)
    return groups_in((np.array([0, len(found)]), found), known, message)[1], True


@apart
def _sets_of(origin, tables, visits, asked, most):
    """The sets, of the groups of a message, that it satisfies; whether to look at `most` was enough."""
    fixed_rows, loose = array_at(tables, _FIXED_ROWS, np.uint32), arrays_at(tables, _LOOSE, _OF_LOOSE)
    kinds, out = (
        arrays_at(tables, _KINDS, (_OF_KIND, _OF_KIND, _OF_FINE)),
        Hits(np.empty(_ROOM, np.uint32), np.zeros(2, np.int64)),
    )
    is_asked = len(fixed_rows) > 0 and not np.isnan(visits.lon[0])
    while is_asked and not find_fixed(True, origin, kinds, visits, 0, out):
        if len(out.values) >= most:
            return out.values[:0], False
        out = Hits(np.empty(2 * len(out.values), np.uint32), out.ends)
    areas, groups = (out.ends, out.values[: out.ends[1]]), (visits.offsets, visits.groups)
    ends, rows, is_all = with_loose(areas, groups, loose, most)
    # No rows of others, as an array of their type: so one kernel does for both
    found = satisfied((ends, rows), fixed_rows[:0], _known_in(tables, len(origin) == 2), asked)
    return live_of(tables, found[1]), is_all


@apart
def _entries_of(origin, tables, cells, numbers, visits, asked, most):
    """The entries, of the groups of a message, of clients that it is for, and near which, or in whose area, they are.

    And whether to look at `most` was enough.
    """
    rows, deleted = array_at(tables, _FOLLOWER_ROWS, np.uint32), deleted_in(tables)
    shapes = Shapes(numbers[_KIND:_SHAPE].astype(np.uint8), numbers[_SHAPE:].reshape((1, 4)))
    known, asks = arrays_at(cells, 0, PREPARED), own_array_at(cells, _ASKS, np.int64)
    out = Hits(np.empty(_ROOM, np.uint32), np.zeros(2, np.int64))
    while not find_clients(True, origin, known, visits, shapes, asks, 0, out):
        if len(out.values) >= most:
            return out.values[:0], False
        out = Hits(np.empty(2 * len(out.values), np.uint32), out.ends)
    found = out.ends, out.values[: out.ends[1]]
    entries, used = satisfied(found, rows, _known_in(tables, len(origin) == 2), asked)[1], np.int64(0)
    for i in range(len(entries)):
        entry = entries[i]
        entries[used] = entry
        used += np.int64(1) - np.int64(is_deleted(deleted, rows[entry]))
    return entries[:used], True


@cache
def _find(dtypes: DTypes, *, plane: bool) -> Any:
    """What finds sets and entries.

    It writes, one segment's after the other's, sets and then entries, and where each end; `None` where to look at
    `most` is not enough.
    """
    tag_offset = dtypes.tag_offset
    origin = (0.0, 0.0) if plane else (0.0, 0.0, 0.0)

    @kernel
    def find(tables, cells, text, count, attributes, place, most):
        numbers = np.full(_NUMBERS, np.nan)
        numbers[_KIND] = 0
        if len(place):
            numbers[:] = np.frombuffer(place, np.float64)
        lon, lat, none_at = numbers[:1], numbers[1:2], np.empty(0)
        tags, others = tags_in(text, count), read((attributes,))
        found, ends = np.empty(0, np.uint32), np.zeros(2 * len(tables) + 1, np.int64)
        for segment in range(len(tables)):
            table = tables[segment]
            ends[2 * segment + 1] = ends[2 * segment + 2] = ends[2 * segment]
            is_asked = len(place) > 0 or len(array_at(table, _LOOSE + 1, np.uint32)) > 0
            groups, none = np.empty(0, np.uint32), np.empty(0, np.uint32)
            message = table_of_one(none, none, none)
            if is_asked:
                if scalar(table, _HAS_FILTERS):
                    message = encoded_in(table, tags, others, tag_offset)
                groups, is_all = _groups_of(table, message, most)
                if not is_all:
                    return None
            if len(groups) == 0:
                continue
            visits = Visits(lon, lat, np.array([0, len(groups)]), groups)
            asked = (message, (lon, lat, np.empty(0, np.int64), none_at, none_at), no_codes(table))
            sets, is_all = none, True
            if len(array_at(table, _FIXED_ROWS, np.uint32)) + len(array_at(table, _LOOSE + 1, np.uint32)):
                sets, is_all = _sets_of(origin, table, visits, asked, most)
            found = np.append(found, sets)
            ends[2 * segment + 1] = len(found)
            if is_all and len(place) and len(array_at(table, _FOLLOWER_ROWS, np.uint32)):
                more, is_all = _entries_of(origin, table, cells[segment], numbers, visits, asked, most)
                found = np.append(found, more)
            if not is_all or len(found) > most:
                return None
            ends[2 * segment + 2] = len(found)
        return found, ends

    return find


@cache
def _look_up(dtypes: DTypes) -> Any:
    """What looks up the keys of sets and entries."""
    *_, key_offset, key = dtypes

    @kernel
    def look_up(tables, sets_and_entries, ends, unique, counts, most):
        found, used = np.empty(0, np.uint64), 0
        for segment in range(len(tables)):
            begin, middle, end = ends[2 * segment], ends[2 * segment + 1], ends[2 * segment + 2]
            sets, entries = sets_and_entries[begin:middle], sets_and_entries[middle:end]
            found, used = add_keys(tables[segment], sets, most, found, used, key_offset, key)
            if used < 0:
                return None
            if len(entries):
                all_places = array_at(tables[segment], _FOLLOWER_PLACES, np.int64)
                places = np.empty(len(entries), np.int64)
                for i in range(len(entries)):
                    places[i] = all_places[entries[i]]
                found, used = add_keys_at(tables[segment], places, found, used, key)
        return answer(found[:used], unique, len(sets_and_entries), 0, counts)

    return look_up


class _OfSegment(Prepared):
    """The prepared arrays of a segment, and the index that they are of."""

    def __init__(self, prepared: Prepared, index: AreaIndex) -> None:
        self.arrays, self.addresses, self.index = prepared.arrays, prepared.addresses, index


class OneLocated(OneQuery):
    """Answers single messages about the sets with areas of segments."""

    def __init__(
        self,
        segments: Sequence[_OfSegment],
        kernels: Kernels,
        first_rows: Sequence[int] = (0,),
        first_keys: Sequence[int] = (0,),
    ) -> None:
        super().__init__(segments, kernels, first_rows, first_keys)
        self._first_rows = first_rows
        self._followers = [segment.index.followers for segment in segments]
        self._no_cells = np.zeros((len(segments), 2 * (_ASKS + 1)), np.uint64)
        self._needs_place = not any(len(segment.index.loose.values) for segment in segments)

    @property
    def needs_place(self) -> bool:
        """Whether no query without a place has an answer."""
        return self._needs_place

    def brief_keys(self, query: Single, unique: bool, counts: I64Array) -> U64Array | None:
        """See `OneQuery`."""
        keys: U64Array | None = self._keys(query, unique, counts, FEW) if is_short(query) else None
        return keys

    def _keys(self, query: Single, unique: bool, counts: I64Array, most: int) -> Any:
        found = self._found(query, most)
        return None if found is None else self._kernels.keys(self._tables, *found, unique, counts, most)

    def set_ids(self, query: Single) -> U32Array:
        """Ids of the sets with areas that the message satisfies, for one client at least."""
        found, ends = self._found(query, ALL)
        parts = []
        for i, (first, followers) in enumerate(zip(self._first_rows, self._followers, strict=True)):
            begin, middle, end = ends[2 * i : 2 * i + 3]
            parts.append(found[begin:middle] + np.uint32(first))
            if followers is not None:
                parts.append(np.unique(followers.rows[found[middle:end]]) + np.uint32(first))
        return np.concatenate(parts)

    def _found(self, query: Single, most: int) -> Any:
        # They stay in place as long as this does
        cells = [None if each is None else each.cells.now.prepared for each in self._followers]
        addresses = self._no_cells
        if len(cells) == 1:
            addresses = addresses if cells[0] is None else cells[0].addresses.reshape(1, -1)
        elif any(cells):
            rows = zip(cells, addresses, strict=True)
            addresses = np.stack([row if each is None else each.addresses for each, row in rows])
        find: Any = self._kernels.sets
        return find(self._tables, addresses, *query[:4], most)


def one_located(segment: Segment, tags: TagIndex, index: AreaIndex) -> OneLocated:
    """What answers single messages about the sets of a segment that have areas."""
    arrays, scalars = arrays_of(index.filters)
    followers = index.followers
    own: list[Any] = [*chain(*index.fixed.kinds), index.fixed_rows]
    own += [index.loose.offsets.astype(np.int64, copy=False), index.loose.values, *index.tests]
    own += [np.zeros(0, dtype) for dtype in _OF_FOLLOWERS] if followers is None else [followers.rows, followers.places]
    *arrays_of_cells, first_tag = index.tokens.cells
    own += [index.tokens.every, *arrays_of_cells, *index.sets[:3]]
    scalars += [index.filters is not None, index.tokens.first, first_tag]
    assert [array.dtype for array in own] == [np.dtype(each) for group in _GROUPS for each in group]
    prepared, dtypes = prepare(segment, tags, [*arrays, *own], scalars)
    # Of other types there is no need of other kernels
    find = _find(dtypes._replace(rank_offset=_I64, key_offset=_I64, key=_I64), plane=index.plane)
    kernels = Kernels(_look_up(dtypes._replace(tag_offset=_I64, rank_offset=_I64)), find)
    return OneLocated([_OfSegment(prepared, index)], kernels)
