"""Finds the sets of a segment that have areas: of packets of messages, or of one message by two calls of kernels.

One message alone goes as `tagmatch.pipeline.one` has it, which says why: the kernels are those of packets. The first
call finds sets, and entries of clients, and the other one looks up their keys.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from tagmatch.model.arrays import BoolArray, I64Array, Lists, U32Array, offsets_of
from tagmatch.model.errors import DeviceError, DeviceMemoryError
from tagmatch.model.input.places import Locations, locations_of
from tagmatch.model.kernels.intrinsics import Prepared, array_at, arrays_at, own_array_at
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import side_by_side
from tagmatch.model.kernels.sphere import LOWER
from tagmatch.model.tables import Segment, is_deleted
from tagmatch.pipeline.areas.cells import PREPARED
from tagmatch.pipeline.areas.chunks import (
    NO_PLACES,
    Candidates,
    Hits,
    Places,
    Shapes,
    Visits,
    all_frozen,
    found_in,
    visits_of,
)
from tagmatch.pipeline.areas.clients import ClientCells, find_clients
from tagmatch.pipeline.areas.fixed import AreaTree, ShapeTests, find_fixed, keep_tested, spread_rows
from tagmatch.pipeline.areas.index import AreaIndex, GroupedSets, keep_asked, write_groups
from tagmatch.pipeline.filters.constraint_finder import encoded, rows_found
from tagmatch.pipeline.filters.messages import MessageTable
from tagmatch.pipeline.filters.one_message import (
    BEHIND,
    SCALAR_BEHIND,
    TOO_MANY,
    OneMessage,
    arrays_of,
    constraints_in,
    encoded_in,
    no_codes,
    read,
    rows_for,
    table_of_one,
)
from tagmatch.pipeline.one import (
    ALL,
    DTypes,
    Kernels,
    Single,
    add_keys,
    add_keys_at,
    answer,
    deleted_in,
    live_of,
    prepare,
    scalar,
    tags_in,
)
from tagmatch.pipeline.segment import Finder, RowsFound, SegmentMessages
from tagmatch.pipeline.tags import TagIndex

_log = logging.getLogger(__name__)
#: Gets places of messages, and the groups of each
Ask: TypeAlias = Callable[[Places, Lists], Lists]


class Searcher(Protocol):
    """What finds the areas and the clients of an index by where messages are. Any number of threads may share it."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""

    def holding(self, places: Places, groups: Lists) -> Lists:
        """Areas that stay, which have each message's place."""

    def near(self, places: Places, groups: Lists) -> Lists:
        """Entries of clients near each message's place."""


class Sought(NamedTuple):
    """The groups that the areas of each message are looked for in, and the messages, of which sets may ask more."""

    groups: Lists
    messages: MessageTable
    locations: Locations | None
    device: Searcher | None  # What is asked for areas and clients, if it is not the CPU


class AreaFinder(Finder):
    """Finds sets with areas, contents first: areas and clients on the CPU, or a device, which sees all earlier moves.

    Small packets are the CPU's, and each that the device cannot answer; all are once it fails (`DeviceError`).
    """

    def __init__(
        self, index: AreaIndex, device: Searcher | None = None, fewest: int = 0, notes: tuple[str, ...] = ()
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
        device = self.device
        return self.index.nbytes + (0 if device is None else device.nbytes)

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
            table = encoded(filters, messages)
        locations = locations_of(messages.tags, messages.first, messages.last)
        device = self.device if count >= self.fewest_messages else None
        with self._counting:
            if self._matched_by:
                self._matched_by["cpu" if device is None else "cuda"] += count
        return Sought(groups_of(self.index, table), table, locations, device)

    def find(self, prepared: Sought) -> RowsFound:
        """As `Finder` says; of sets that follow clients, it finds the keys of those that a message is for."""
        index, (groups, _, locations, device) = self.index, prepared
        count, nowhere = len(groups), np.full(len(groups), np.nan)
        places = all_frozen(Places(nowhere, nowhere) if locations is None else Places(locations.lon, locations.lat))
        parts = [Lists(np.zeros(count + 1, np.int64), np.zeros(0, np.uint32))]
        if len(index.fixed_rows):
            entries = self._ask(device, "holding", places, groups)
            parts.append(Lists(entries.offsets, index.fixed_rows[entries.values]))
        if len(index.loose.values):
            visits, ends = visits_of(NO_PLACES, groups), np.zeros(count + 1, np.int64)
            loose, _ = spread_rows(index.loose.offsets, index.loose.values, visits, ends, np.iinfo(np.int64).max)
            parts.append(Lists(ends, loose))
        rows = parts[-1] if len(parts) < 3 else side_by_side(parts)
        rows = _kept(index, prepared, rows, None, places)
        followers = index.followers
        if followers is None or locations is None:
            return RowsFound(rows)
        near = partial(self._ask, device, "near")
        entries = _entries_for(followers.cells, near, places, locations, groups)
        entries = _kept(index, prepared, entries, followers.rows, places)
        if not len(entries.values):
            return RowsFound(rows)
        return RowsFound(rows, key_places=Lists(entries.offsets, followers.places[entries.values].astype(np.uint64)))

    def _ask(self, device: Searcher | None, what: Literal["holding", "near"], places: Places, groups: Lists) -> Lists:
        """Ask a device, or the CPU instead, which goes on with a packet or, if the device has failed, with all."""
        try:
            if device is not None:
                return getattr(device, what)(places, groups)  # type: ignore[no-any-return]
        except DeviceMemoryError as error:
            _log.warning("%s; the CPU matches the areas of a packet", error)
        except DeviceError as error:
            if self.device is device:
                self.device = None
                _log.error("%s; the CPU goes on with areas", error)
        return getattr(self.index, what)(places, groups)  # type: ignore[no-any-return]

    def one_query(self, segment: Segment, tags: TagIndex) -> OneLocated:
        """As `Finder` says."""
        return one_located(segment, tags, self.index)


def groups_of(index: AreaIndex, messages: MessageTable) -> Lists:
    """The contents of messages that are found first, and the groups of their tokens."""
    count = len(messages.offsets) - 1
    contents = Lists(np.zeros(count + 1, np.int64), np.zeros(0, np.uint32))
    if index.filters is not None:
        contents = rows_found(index.filters, messages).rows
    if index.of_tokens is not None:
        return index.of_tokens.groups(contents, index.every, messages)
    if len(index.every):
        each = Lists(np.arange(0, (count + 1) * len(index.every), len(index.every)), np.tile(index.every, count))
        return side_by_side([contents, each])
    return contents


def _entries_for(cells: ClientCells, near: Ask, places: Places, locations: Locations, groups: Lists) -> Lists:
    """Entries of clients that a message is for: near its place, and within its area, whichever it has."""
    if not locations.kinds.any():
        return near(places, groups)
    has_area = locations.kinds != 0
    shapes = Shapes(locations.kinds | LOWER, locations.values)
    within = cells.near(places, _only(groups, has_area), shapes)
    return side_by_side([within, near(places, _only(groups, ~has_area))])


def _only(lists: Lists, chosen: BoolArray) -> Lists:
    """The lists chosen; others are empty."""
    lengths = lists.lengths()
    return Lists(offsets_of(np.where(chosen, lengths, 0)), lists.values[np.repeat(chosen, lengths)])


def _kept(index: AreaIndex, sought: Sought, found: Lists, rows: U32Array | None, places: Places) -> Lists:
    """What was found, which are rows or have these, without what other areas say no to, or that asks for more."""
    if len(index.tests.of_rows) and len(found.values):
        out = Hits(np.empty(len(found.values), np.uint32), np.zeros(len(found) + 1, np.int64))
        keep_tested(_with_rows(found, rows), index.tests, places.lon, places.lat, index.plane, out)
        found = found_in(out)
    if index.of_tokens is not None and index.filters is not None and len(found.values):
        attributes = index.filters.attributes.count
        found = index.of_tokens.kept(_with_rows(found, rows), attributes, sought.messages)
    return found


def _with_rows(found: Lists, rows: U32Array | None) -> Candidates:
    return Candidates(found.offsets, found.values, found.values if rows is None else rows[found.values])


# -- one message -------------------------------------------------------------------------------------------------------

_DTYPES: tuple[Any, ...] = (np.float32, np.float64, np.int64, np.uint8, np.uint32, np.uint64, np.bool_)
_F32, _F64, _I64, _U8, _U32, _U64, _BOOL = _DTYPES

# The arrays of an index, in the order in which they are prepared
_OF_TREE = AreaTree(_I64, _F64, _U32, _F32, _I64)
_OF_LOOSE = (_I64, _U32)
_OF_TESTS = ShapeTests(_I64, _I64, _U8, _F64, _BOOL)
_OF_FOLLOWERS = (_U32, _I64)
_OF_TOKENS = (_I64, _I64, _U64, _U32)
_OF_SETS = (_I64, _I64, _U32)
_GROUPS = (_OF_TREE, _OF_TREE, (_U32,), _OF_LOOSE, _OF_TESTS, _OF_FOLLOWERS, (_U32,), _OF_TOKENS, _OF_SETS)
_TREES, _, _FIXED_ROWS, _LOOSE, _TESTS, _FOLLOWER_ROWS, _EVERY, _TOKENS, _SETS = (
    BEHIND + sum(map(len, _GROUPS[:place])) for place in range(len(_GROUPS))
)
_FOLLOWER_PLACES = _FOLLOWER_ROWS + 1
_HAS_FILTERS, _HAS_TOKENS, _FIRST_GROUP, _FIRST_TAG = range(SCALAR_BEHIND, SCALAR_BEHIND + 4)

# Of the arrays of cells, the one that is written to, the last
_ASKS = len(PREPARED) - 1 + len(PREPARED.tree)

# Numbers of a packed place, and which of these are what
_NUMBERS, _KIND, _SHAPE = 7, 2, 3
# Areas, and entries, for which there is room at first
_ROOM = 256


@kernel
def _room_for(count):
    """Room for so much that one message may find."""
    return Hits(np.empty(count, np.uint32), np.zeros(2, np.int64))


@kernel
def _groups_of(tables, message, most):
    """The groups in which areas are looked for, of a message that is encoded; whether `rows_for` found all."""
    found, every = np.empty(0, np.uint32), array_at(tables, _EVERY, np.uint32)
    if scalar(tables, _HAS_FILTERS):
        found, rejected = rows_for(tables, message, most)
        if rejected == TOO_MANY:
            return found, False
    if not scalar(tables, _HAS_TOKENS):
        return np.append(found, every), True
    first_cells, bits, levels, known = arrays_at(tables, _TOKENS, _OF_TOKENS)
    cells, ends = (first_cells, bits, levels, known, scalar(tables, _FIRST_TAG)), np.zeros(2, np.int64)
    contents, first = (np.array([0, len(found)]), found), scalar(tables, _FIRST_GROUP)
    out = write_groups(contents, every, first, message, cells, ends)
    return out[: ends[1]], True


@kernel
def _asked_of(tables, message, found, rows):
    """What was found, whose rows are these, without those that ask more than the message has."""
    if len(found) == 0 or not scalar(tables, _HAS_TOKENS):
        return found
    of_rows, record_offsets, records = arrays_at(tables, _SETS, _OF_SETS)
    sets = GroupedSets(of_rows, record_offsets, records.reshape((-1, 3)), constraints_in(tables))
    candidates, out = Candidates(np.array([0, len(found)]), found, rows), _room_for(len(found))
    used, _ = keep_asked(candidates, sets, message, no_codes(tables), out)
    return out.values[:used]


@kernel
def _fixed_rows(origin, tables, lon, lat, groups, most):
    """The rows, of these groups, of whose areas one has the place; whether there was memory of `most` for them."""
    rows, trees = array_at(tables, _FIXED_ROWS, np.uint32), arrays_at(tables, _TREES, (_OF_TREE, _OF_TREE))
    visits, out = Visits(lon, lat, np.array([0, len(groups)]), groups), _room_for(_ROOM)
    while True:
        done, more = find_fixed(True, origin, trees, visits, 0, out)
        if done:
            break
        if more > most:
            return out.values[:0], False
        out = Hits(np.empty(more, np.uint32), out.ends)
    found = out.values[: out.ends[1]]
    for i in range(len(found)):
        found[i] = rows[found[i]]
    return found, True


@kernel
def _loose_rows(tables, groups, most):
    """The rows, of these groups, that have no area which a message's place must be in; whether these are `most`."""
    rows, values = arrays_at(tables, _LOOSE, _OF_LOOSE)
    nowhere = np.empty(0, np.float64)
    visits = Visits(nowhere, nowhere, np.array([0, len(groups)]), groups)
    found, count = spread_rows(rows, values, visits, np.zeros(2, np.int64), most)
    return found, count <= most


@kernel
def _tested(plane, tables, found, rows, lon, lat):
    """What was found, whose rows are these, without those whose other areas say no."""
    of_rows, offsets, kinds, shapes, negated = arrays_at(tables, _TESTS, _OF_TESTS)
    if len(of_rows) == 0 or len(found) == 0:
        return found
    tests = ShapeTests(of_rows, offsets, kinds, shapes.reshape((-1, 4)), negated)
    candidates, out = Candidates(np.array([0, len(found)]), found, rows), _room_for(len(found))
    return out.values[: keep_tested(candidates, tests, lon, lat, plane, out)]


@kernel
def _sets_of(origin, tables, lon, lat, groups, message, most):
    """The sets, of these groups, that a message in this place satisfies; whether to look at `most` was enough."""
    sets, is_all = np.empty(0, np.uint32), True
    if len(array_at(tables, _FIXED_ROWS, np.uint32)) and not np.isnan(lon[0]):
        sets, is_all = _fixed_rows(origin, tables, lon, lat, groups, most)
    if is_all and len(array_at(tables, _LOOSE + 1, np.uint32)):
        more, is_all = _loose_rows(tables, groups, most)
        sets = np.append(sets, more)
    if not is_all:
        return sets, False
    sets = _tested(len(origin) == 2, tables, sets, sets, lon, lat)
    return live_of(tables, _asked_of(tables, message, sets, sets)), True


@kernel
def _entries_near(origin, cells, numbers, groups, most):
    """The entries, of these groups, of clients near the message's place, and within its area, whichever it has.

    And whether there are no more than `most`.
    """
    shapes = Shapes(numbers[_KIND:_SHAPE].astype(np.uint8), numbers[_SHAPE:].reshape((1, 4)))
    visits, out = Visits(numbers[:1], numbers[1:2], np.array([0, len(groups)]), groups), _room_for(_ROOM)
    known, asks = arrays_at(cells, 0, PREPARED), own_array_at(cells, _ASKS, np.int64)
    while not find_clients(True, origin, known, visits, shapes, asks, 0, out):
        if len(out.values) >= most:
            return out.values[:0], False
        out = Hits(np.empty(2 * len(out.values), np.uint32), out.ends)
    return out.values[: out.ends[1]], True


@kernel
def _rows_at(rows, entries):
    found = np.empty(len(entries), np.uint32)
    for i in range(len(entries)):
        found[i] = rows[entries[i]]
    return found


@kernel
def _entries_of(origin, tables, cells, numbers, groups, message, most):
    """The entries of clients that a message is for, whose sets it satisfies; the rest (see `_entries_near`)."""
    rows, deleted = array_at(tables, _FOLLOWER_ROWS, np.uint32), deleted_in(tables)
    entries, is_all = _entries_near(origin, cells, numbers, groups, most)
    lon, lat = numbers[:1], numbers[1:2]
    entries = _tested(len(origin) == 2, tables, entries, _rows_at(rows, entries), lon, lat)
    entries = _asked_of(tables, message, entries, _rows_at(rows, entries))
    used = np.int64(0)
    for i in range(len(entries)):
        entry = entries[i]
        entries[used] = entry
        used += np.int64(1) - np.int64(is_deleted(deleted, rows[entry]))
    return entries[:used], is_all


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
        lon, lat = numbers[:1], numbers[1:2]
        tags, beside = tags_in(tables[0], text, count), read((attributes,))
        found, ends = np.empty(0, np.uint32), np.zeros(2 * len(tables) + 1, np.int64)
        for segment in range(len(tables)):
            table = tables[segment]
            ends[2 * segment + 1] = ends[2 * segment + 2] = ends[2 * segment]
            is_asked = len(place) > 0 or len(array_at(table, _LOOSE + 1, np.uint32)) > 0
            groups, none = np.empty(0, np.uint32), np.empty(0, np.uint32)
            message = table_of_one(none, none, none)
            if is_asked:
                if scalar(table, _HAS_FILTERS):
                    message = encoded_in(table, tags, beside, tag_offset)
                groups, is_all = _groups_of(table, message, most)
                if not is_all:
                    return None
            if len(groups) == 0:
                continue
            sets, is_all = _sets_of(origin, table, lon, lat, groups, message, most)
            found = np.append(found, sets)
            ends[2 * segment + 1] = len(found)
            if is_all and len(place) and len(array_at(table, _FOLLOWER_ROWS, np.uint32)):
                more, is_all = _entries_of(origin, table, cells[segment], numbers, groups, message, most)
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


class OneLocated(OneMessage):
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
        # Which stay where they are as long as this does
        cells = [None if each is None else each.cells.now.prepared for each in self._followers]
        addresses = self._no_cells
        if len(cells) == 1:
            addresses = addresses if cells[0] is None else cells[0].addresses.reshape(1, -1)
        elif any(cells):
            rows = zip(cells, addresses, strict=True)
            addresses = np.stack([row if each is None else each.addresses for each, row in rows])
        find: Any = self._kernels.sets
        return find(self._tables, addresses, *query, most)


def one_located(segment: Segment, tags: TagIndex, index: AreaIndex) -> OneLocated:
    """What answers single messages about the sets of a segment that have areas."""
    arrays, scalars = arrays_of(index.filters)
    followers = index.followers
    own: list[Any] = [*index.fixed.circles, *index.fixed.boxes, index.fixed_rows]
    own += [index.loose.offsets.astype(np.int64, copy=False), index.loose.values, *index.tests]
    own += [np.zeros(0, dtype) for dtype in _OF_FOLLOWERS] if followers is None else [followers.rows, followers.places]
    of_tokens = index.of_tokens
    own.append(index.every)
    if of_tokens is None:
        own += [np.zeros(0, dtype) for dtype in (*_OF_TOKENS, *_OF_SETS)]
        scalars += [index.filters is not None, False, 0, 0]
    else:
        *arrays_of_cells, first_tag = of_tokens.of_tokens
        own += [*arrays_of_cells, *of_tokens.sets[:3]]
        scalars += [index.filters is not None, True, of_tokens.first, first_tag]
    assert [array.dtype for array in own] == [np.dtype(each) for group in _GROUPS for each in group]
    prepared, dtypes = prepare(segment, tags, [*arrays, *own], scalars)
    # Of other types there is no need of other kernels
    find = _find(dtypes._replace(rank_offset=_I64, key_offset=_I64, key=_I64), plane=index.plane)
    kernels = Kernels(_look_up(dtypes._replace(tag_offset=_I64, rank_offset=_I64)), find)
    return OneLocated([_OfSegment(prepared, index)], kernels)
