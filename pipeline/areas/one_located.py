"""One message that says where it is, from its tags, attributes and place to the keys of sets with areas.

As `tagmatch.pipeline.one`, which says why; it is the kernels of packets that are called here, too. There are
two calls: one finds sets, and entries of clients, and the other one looks up their keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tagmatch.model.arrays import I64Array, U32Array
from tagmatch.model.kernels.area_shapes import BOX as BOX_LETTER
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.prepared import Prepared, array_at, arrays_at, own_array_at
from tagmatch.model.tables import Segment, is_deleted
from tagmatch.pipeline.areas.client_search import find_clients
from tagmatch.pipeline.areas.clients import PREPARED
from tagmatch.pipeline.areas.fixed import find_fixed
from tagmatch.pipeline.areas.index import AreaIndex
from tagmatch.pipeline.areas.packing import BOX, CIRCLE, keep_tested, spread_rows, way
from tagmatch.pipeline.areas.token_groups import keep_asked, write_groups
from tagmatch.pipeline.filters.few_nodes import TOO_MANY
from tagmatch.pipeline.filters.one_message import (
    BEHIND,
    SCALAR_BEHIND,
    OneMessage,
    arrays_of,
    constraints_in,
    encoded_in,
    no_codes,
    rows_for,
    values_of,
)
from tagmatch.pipeline.matcher import Single
from tagmatch.pipeline.one import (
    ALL,
    DTypes,
    Kernels,
    add_keys,
    add_keys_at,
    answer,
    deleted_in,
    live_of,
    prepare,
    scalar,
    tags_in,
)
from tagmatch.pipeline.tags import TagIndex

_F32, _F64, _I64, _U8, _U32, _U64, _BOOL = (
    np.float32, np.float64, np.int64, np.uint8, np.uint32, np.uint64, np.bool_
)  # fmt: skip

# The arrays of an index, in the order in which they are prepared
_OF_PACKED = (_I64, _F64, _U32, _F32, _I64)
_OF_LOOSE = (_I64, _U32)
_OF_TESTS = (_I64, _I64, _U8, _F64, _BOOL)
_OF_FOLLOWERS = (_U32, _I64)
_OF_TOKENS = (_I64, _I64, _U64, _U32, _I64, _I64, _U32)
_GROUPS = (_OF_PACKED, _OF_PACKED, (_U32,), _OF_LOOSE, _OF_TESTS, _OF_FOLLOWERS, (_U32,), _OF_TOKENS)
_CIRCLES, _BOXES, _FIXED_ROWS, _LOOSE, _TESTS, _FOLLOWER_ROWS, _EVERY, _TOKENS = (
    BEHIND + sum(map(len, _GROUPS[:place])) for place in range(len(_GROUPS))
)
_FOLLOWER_PLACES = _FOLLOWER_ROWS + 1
_HAS_FILTERS, _HAS_TOKENS, _FIRST_GROUP, _FIRST_TAG = range(SCALAR_BEHIND, SCALAR_BEHIND + 4)

# Arrays of cells that are only read, and where the other one is
_OF_CELLS, _ASKS = PREPARED[:-1], len(PREPARED) - 1

# Numbers of a packed place, and which of these are what
_NUMBERS, _KIND, _SHAPE = 7, 2, 3
# Areas, and entries, for which there is room at first
_ROOM = 256


@kernel
def _not_encoded():
    """What stands for the ranks, attributes and codes of a message where nobody asks for any."""
    return np.empty(0, np.uint32), np.empty(0, np.uint32), np.empty(0, np.uint32)


@kernel
def _groups_of(tables, encoded, most):
    """The groups in which areas are looked for, of a message that is encoded; whether `rows_for` found all."""
    ranks, attributes, codes = encoded
    found, every = np.empty(0, np.uint32), array_at(tables, _EVERY, np.uint32)
    if scalar(tables, _HAS_FILTERS):
        found, rejected = rows_for(tables, ranks, attributes, codes, most)
        if rejected == TOO_MANY:
            return found, False
    if not scalar(tables, _HAS_TOKENS):
        return np.append(found, every), True
    first_cells, bits, levels, known, _, _, _ = arrays_at(tables, _TOKENS, _OF_TOKENS)
    ends = np.zeros(2, np.int64)
    out = write_groups(
        np.array([0, len(found)]), found, every, scalar(tables, _FIRST_GROUP), np.array([0, len(ranks)]), ranks,
        np.array([0, len(attributes)]), attributes, codes, first_cells, bits, levels, known,
        scalar(tables, _FIRST_TAG), ends,
    )  # fmt: skip
    return out[: ends[1]], True


@kernel
def _asked_of(tables, encoded, found, rows):
    """What was found, whose rows are these, without those that ask more than the message has."""
    if len(found) == 0 or not scalar(tables, _HAS_TOKENS):
        return found
    ranks, attributes, codes = encoded
    _, _, _, _, of_rows, record_offsets, records = arrays_at(tables, _TOKENS, _OF_TOKENS)
    ends, out = np.zeros(2, np.int64), np.empty(len(found), np.uint32)
    used, _ = keep_asked(
        np.array([0, len(found)]), found, rows, of_rows, np.array([0, len(ranks)]), ranks,
        np.array([0, len(attributes)]), attributes, codes, constraints_in(tables), record_offsets,
        records.reshape((-1, 3)), no_codes(tables), ends, out,
    )  # fmt: skip
    return out[:used]


@kernel
def _fixed_rows(way, origin, tables, lon, lat, groups, most):
    """The rows, of these groups, of whose areas one has the place; whether there was memory of `most` for them."""
    rows = array_at(tables, _FIXED_ROWS, np.uint32)
    circles, boxes = arrays_at(tables, _CIRCLES, _OF_PACKED), arrays_at(tables, _BOXES, _OF_PACKED)
    offsets, ends, out = np.array([0, len(groups)]), np.zeros(2, np.int64), np.empty(_ROOM, np.uint32)
    while True:
        done, more = find_fixed(way, origin, circles, boxes, lon, lat, offsets, groups, 0, out, ends)
        if done:
            break
        if more > most:
            return out[:0], False
        out = np.empty(more, np.uint32)
    found = out[: ends[1]]
    for i in range(len(found)):
        found[i] = rows[found[i]]
    return found, True


@kernel
def _loose_rows(tables, groups, most):
    """The rows, of these groups, that have no area which a message's place must be in; whether these are `most`."""
    rows, values = arrays_at(tables, _LOOSE, _OF_LOOSE)
    offsets, ends = np.array([0, len(groups)]), np.zeros(2, np.int64)
    count = spread_rows(rows, values, offsets, groups, ends, np.empty(0, np.uint32))
    if count > most:
        return np.empty(0, np.uint32), False
    out = np.empty(count, np.uint32)
    spread_rows(rows, values, offsets, groups, ends, out)
    return out, True


@kernel
def _tested(plane, tables, found, rows, lon, lat):
    """What was found, whose rows are these, without those whose other areas say no."""
    of_rows, offsets, kinds, shapes, negated = arrays_at(tables, _TESTS, _OF_TESTS)
    if len(of_rows) == 0 or len(found) == 0:
        return found
    ends, out = np.zeros(2, np.int64), np.empty(len(found), np.uint32)
    used = keep_tested(
        np.array([0, len(found)]), found, rows, of_rows, offsets, kinds, shapes.reshape((-1, 4)), negated, lon, lat,
        plane, ends, out,
    )  # fmt: skip
    return out[:used]


@kernel
def _sets_of(way, origin, tables, lon, lat, groups, encoded, most):
    """The sets, of these groups, that a message in this place satisfies; whether to look at `most` was enough."""
    sets, is_all = np.empty(0, np.uint32), True
    if len(array_at(tables, _FIXED_ROWS, np.uint32)) and not np.isnan(lon[0]):
        sets, is_all = _fixed_rows(way, origin, tables, lon, lat, groups, most)
    if is_all and len(array_at(tables, _LOOSE + 1, np.uint32)):
        more, is_all = _loose_rows(tables, groups, most)
        sets = np.append(sets, more)
    if not is_all:
        return sets, False
    sets = _tested(len(origin) == 2, tables, sets, sets, lon, lat)
    return live_of(tables, _asked_of(tables, encoded, sets, sets)), True


@kernel
def _entries_near(way, origin, cells, numbers, groups, most):
    """The entries, of these groups, of clients near the message's place, and within its area, whichever it has.

    And whether there are no more than `most`.
    """
    (
        words, cell_numbers, following, versions, all_lon, all_lat, space_cells, cuts, axes, reaches, group_spaces,
        clients,
    ) = arrays_at(cells, 0, _OF_CELLS)  # fmt: skip
    has_place, has_area = not np.isnan(numbers[0]), numbers[_KIND] != 0
    lon, lat = numbers[: int(has_place)], numbers[1 : 1 + int(has_place)]
    kinds = np.full(int(has_area), BOX if numbers[_KIND] == BOX_LETTER else CIRCLE, np.uint8)
    shape = numbers[_SHAPE:].reshape((1, 4))
    offsets, ends, out = np.array([0, len(groups)]), np.zeros(2, np.int64), np.empty(_ROOM, np.uint32)
    while not find_clients(
        way, origin, (words, cell_numbers, following), (versions, all_lon, all_lat), (space_cells, cuts, axes), reaches,
        group_spaces, clients, kinds, shape, lon, lat, offsets, groups, 0, out, ends,
        own_array_at(cells, _ASKS, np.int64),
    ):  # fmt: skip
        if len(out) >= most:
            return out[:0], False
        out = np.empty(2 * len(out), np.uint32)
    return out[: ends[1]], True


@kernel
def _rows_at(rows, entries):
    found = np.empty(len(entries), np.uint32)
    for i in range(len(entries)):
        found[i] = rows[entries[i]]
    return found


@kernel
def _entries_of(way, origin, tables, cells, numbers, groups, encoded, most):
    """The entries of clients that a message is for, whose sets it satisfies; the rest as of `_entries_near`."""
    rows, deleted = array_at(tables, _FOLLOWER_ROWS, np.uint32), deleted_in(tables)
    entries, is_all = _entries_near(way, origin, cells, numbers, groups, most)
    lon, lat = numbers[:1], numbers[1:2]
    entries = _tested(len(origin) == 2, tables, entries, _rows_at(rows, entries), lon, lat)
    entries = _asked_of(tables, encoded, entries, _rows_at(rows, entries))
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
    origin, vector = (0.0, 0.0) if plane else (0.0, 0.0, 0.0), way()

    @kernel
    def find(tables, cells, text, count, attributes, place, most):
        numbers = np.full(_NUMBERS, np.nan)
        numbers[_KIND] = 0
        if len(place):
            numbers[:] = np.frombuffer(place, np.float64)
        lon, lat = numbers[:1], numbers[1:2]
        tags, data = tags_in(tables[0], text, count), np.frombuffer(attributes, np.uint8)
        values = values_of(data)
        found, ends = np.empty(0, np.uint32), np.zeros(2 * len(tables) + 1, np.int64)
        for segment in range(len(tables)):
            table = tables[segment]
            ends[2 * segment + 1] = ends[2 * segment + 2] = ends[2 * segment]
            is_asked = len(place) > 0 or len(array_at(table, _LOOSE + 1, np.uint32)) > 0
            groups, encoded = np.empty(0, np.uint32), _not_encoded()
            if is_asked:
                if scalar(table, _HAS_FILTERS):
                    encoded = encoded_in(table, tags, data, values, tag_offset)
                groups, is_all = _groups_of(table, encoded, most)
                if not is_all:
                    return None
            if len(groups) == 0:
                continue
            sets, is_all = _sets_of(vector, origin, table, lon, lat, groups, encoded, most)
            found = np.append(found, sets)
            ends[2 * segment + 1] = len(found)
            if is_all and len(place) and len(array_at(table, _FOLLOWER_ROWS, np.uint32)):
                more, is_all = _entries_of(vector, origin, table, cells[segment], numbers, groups, encoded, most)
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
        self._no_cells = np.zeros((len(segments), 2 * len(PREPARED)), np.uint64)
        self._needs_place = not any(len(segment.index.loose.values) for segment in segments)

    @property
    def needs_place(self) -> bool:
        """As of `OneQuery`."""
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
        cells = [None if each is None else each.cells.prepared for each in self._followers]
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
    tests, followers = index.tests, index.followers
    own = [*index.fixed.circles.arrays, *index.fixed.boxes.arrays, index.fixed_rows]
    own += [index.loose.offsets.astype(np.int64, copy=False), index.loose.values]
    own += [tests.of_rows, tests.offsets, tests.shapes.kinds, tests.shapes.values, tests.negated]
    if followers is None:
        own += [np.zeros(0, dtype) for dtype in _OF_FOLLOWERS]
    else:
        own += [followers.rows, followers.places]
    of_tokens = index.of_tokens
    own.append(index.every)
    if of_tokens is None:
        own += [np.zeros(0, dtype) for dtype in _OF_TOKENS]
        scalars += [index.filters is not None, False, 0, 0]
    else:
        *arrays_of_cells, first_tag = of_tokens.of_tokens
        own += [*arrays_of_cells, of_tokens.of_rows, of_tokens.record_offsets, of_tokens.records]
        scalars += [index.filters is not None, True, of_tokens.first, first_tag]
    assert [array.dtype for array in own] == [np.dtype(each) for group in _GROUPS for each in group]
    prepared, dtypes = prepare(segment, tags, [*arrays, *own], scalars)
    # Of other types there is no need of other kernels
    find = _find(dtypes._replace(rank_offset=_I64, key_offset=_I64, key=_I64), plane=index.plane)
    kernels = Kernels(_look_up(dtypes._replace(tag_offset=_I64, rank_offset=_I64)), find)
    return OneLocated([_OfSegment(prepared, index)], kernels)
