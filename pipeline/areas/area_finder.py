"""Finds the sets of a segment that have areas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import BoolArray, Lists, U32Array, offsets_of
from tagmatch.model.input.places import Locations, locations_of
from tagmatch.model.kernels.area_shapes import BOX as BOX_LETTER
from tagmatch.model.kernels.area_shapes import TO_PLANE
from tagmatch.model.kernels.lists import side_by_side
from tagmatch.model.tables import Segment
from tagmatch.pipeline.areas.clients import ClientCells
from tagmatch.pipeline.areas.index import AreaIndex, Ask, Finders
from tagmatch.pipeline.areas.one_located import OneLocated, one_located
from tagmatch.pipeline.areas.packing import (
    BOX,
    CIRCLE,
    Candidates,
    Hits,
    Places,
    Shapes,
    found_in,
    keep_tested,
    spread_rows,
    visits_of,
)
from tagmatch.pipeline.areas.token_groups import MessageTable
from tagmatch.pipeline.filters.constraint_finder import encoded, rows_found
from tagmatch.pipeline.filters.messages import Messages
from tagmatch.pipeline.matcher import QueryBatch
from tagmatch.pipeline.segment import Finder, RowsFound, SegmentMessages
from tagmatch.pipeline.tags import TagIndex


class AreaFinder(Finder):
    """Finds sets with areas: contents on the CPU, areas on the CPU or a device, whatever matches other sets."""

    def __init__(self, index: AreaIndex, finders: Finders | None = None) -> None:
        self.index = index
        self.finders = Finders(index) if finders is None else finders

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        """As `Finder` says."""
        return self.index.nbytes + self.finders.nbytes

    @property
    def notes(self) -> tuple[str, ...]:
        """As `Finder` says."""
        return self.finders.notes

    @property
    def matched_by(self) -> dict[str, int]:
        """Messages whose areas were looked for."""
        return self.finders.matched_by

    def prepare(self, messages: SegmentMessages) -> Sought:
        """Where messages are, and the groups whose areas each is looked for in."""
        filters, count = self.index.filters, len(messages)
        if filters is None:
            none = np.zeros(count + 1, np.int64), np.zeros(0, np.uint32)
            queries, codes = QueryBatch(*none), Messages(*none, none[1])
        else:
            queries, codes = messages.ranks, encoded(filters, messages.tags, messages.first, messages.last)
        return Sought(
            groups_of(self.index, queries, codes),
            queries,
            codes,
            locations_of(messages.tags, messages.first, messages.last),
            self.finders.of_packet(count),
        )

    def find(self, prepared: Sought) -> RowsFound:
        """As `Finder` says; of sets that follow clients, it finds the keys of those that a message is for."""
        return _found(self.index, prepared)

    def one_query(self, segment: Segment, tags: TagIndex) -> OneLocated:
        """As `Finder` says."""
        return one_located(segment, tags, self.index)


@dataclass(frozen=True, slots=True, eq=False)
class Sought:
    """The groups that the areas of each message are looked for in, and the messages, of which sets may ask more."""

    groups: Lists
    queries: QueryBatch
    messages: Messages
    locations: Locations | None
    asks: tuple[Ask, Ask]  # What finds areas, and clients

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def table(self) -> MessageTable:
        """The messages as kernels take them."""
        return table_of(self.queries, self.messages)


def table_of(queries: QueryBatch, messages: Messages) -> MessageTable:
    """Messages as kernels take them."""
    return MessageTable(queries.offsets, queries.ranks, messages.offsets, messages.attributes, messages.codes)


def groups_of(index: AreaIndex, queries: QueryBatch, messages: Messages) -> Lists:
    """The contents of messages that are found first, and the groups of their tokens."""
    count = len(messages)
    contents = Lists(np.zeros(count + 1, np.int64), np.zeros(0, np.uint32))
    if index.filters is not None:
        contents = rows_found(index.filters, queries, messages).sets
    if index.of_tokens is not None:
        return index.of_tokens.groups(contents, index.every, table_of(queries, messages))
    if len(index.every):
        each = Lists(np.arange(0, (count + 1) * len(index.every), len(index.every)), np.tile(index.every, count))
        return side_by_side([contents, each])
    return contents


def _found(index: AreaIndex, sought: Sought) -> RowsFound:
    groups, locations, count = sought.groups, sought.locations, len(sought)
    holding, near = sought.asks
    nowhere = np.full(count, np.nan)
    places = Places(nowhere, nowhere) if locations is None else Places(locations.lon, locations.lat)
    parts = []
    if len(index.fixed_rows):
        entries = holding(places, groups)
        parts.append(Lists(entries.offsets, index.fixed_rows[entries.values]))
    if len(index.loose.values):
        parts.append(_spread(index.loose, groups))
    none = Lists(np.zeros(count + 1, np.int64), np.zeros(0, np.uint32))
    rows = _tested(index, sought, side_by_side(parts) if len(parts) > 1 else (parts or [none])[0], None, places)
    followers = index.followers
    if followers is None or locations is None:
        return RowsFound(rows)
    entries = _entries_of(followers.cells, near, places, locations, groups)
    entries = _tested(index, sought, entries, followers.rows, places)
    if not len(entries.values):
        return RowsFound(rows)
    return RowsFound(rows, key_places=Lists(entries.offsets, followers.places[entries.values].astype(np.uint64)))


def _entries_of(cells: ClientCells, near: Ask, places: Places, locations: Locations, groups: Lists) -> Lists:
    """Entries of clients that a message is for: near its place, and within its area, whichever it has."""
    if not locations.kinds.any():
        return near(places, groups)
    has_area = locations.kinds != 0
    is_box = (locations.kinds == BOX_LETTER) | (locations.kinds == BOX_LETTER + TO_PLANE)
    shapes = Shapes(np.where(is_box, BOX, CIRCLE).astype(np.uint8), locations.values)
    has_place = ~np.isnan(locations.lon)
    within = cells.inside(shapes, None, _only(groups, has_area & ~has_place))
    near_and_within = cells.inside(shapes, places, _only(groups, has_area & has_place))
    return side_by_side([within, near_and_within, near(places, _only(groups, ~has_area))])


def _only(lists: Lists, chosen: BoolArray) -> Lists:
    """The lists chosen; others are empty."""
    lengths = lists.lengths()
    return Lists(offsets_of(np.where(chosen, lengths, 0)), lists.values[np.repeat(chosen, lengths)])


def _spread(rows: Lists, groups: Lists) -> Lists:
    """The rows of all groups of each message."""
    out, visits = Hits(np.zeros(0, np.uint32), np.zeros(len(groups) + 1, np.int64)), visits_of(None, groups)
    count = spread_rows(rows.offsets, rows.values, visits, out)
    if count:
        out = out._replace(values=np.empty(count, np.uint32))
        spread_rows(rows.offsets, rows.values, visits, out)
    return found_in(out)


def _tested(index: AreaIndex, sought: Sought, found: Lists, rows: U32Array | None, places: Places) -> Lists:
    """What was found, which are rows or have these, without what other areas say no to, or that asks for more."""
    if len(index.tests.of_rows) and len(found.values):
        out = Hits(np.empty(len(found.values), np.uint32), np.zeros(len(found) + 1, np.int64))
        keep_tested(_with_rows(found, rows), index.tests, places.lon, places.lat, index.plane, out)
        found = found_in(out)
    if index.of_tokens is not None and index.filters is not None and len(found.values):
        attributes = index.filters.attributes.count
        found = index.of_tokens.kept(_with_rows(found, rows), attributes, sought.table)
    return found


def _with_rows(found: Lists, rows: U32Array | None) -> Candidates:
    return Candidates(found.offsets, found.values, found.values if rows is None else rows[found.values])
