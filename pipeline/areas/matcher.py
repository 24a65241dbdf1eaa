"""What answers queries about a segment that has sets with areas."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tagmatch.model.arrays import BoolArray, IntArray, Lists, TagLists, U32Array, offsets_of
from tagmatch.model.input.places import Locations, locations_of
from tagmatch.model.kernels.area_shapes import BOX as BOX_LETTER
from tagmatch.model.kernels.area_shapes import TO_PLANE
from tagmatch.model.kernels.lists import side_by_side
from tagmatch.model.tables import Deletions, Segment
from tagmatch.pipeline.areas.clients import ClientCells
from tagmatch.pipeline.areas.index import AreaIndex, Finder, Finders
from tagmatch.pipeline.areas.one_located import one_located
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
from tagmatch.pipeline.filters.matcher import Beside, rows_found
from tagmatch.pipeline.filters.messages import Messages, messages_of
from tagmatch.pipeline.matcher import Matched, Preprocessed, QueryBatch, SegmentMatcher, Space, no_space
from tagmatch.pipeline.one import OfSeveralTypes, OneQuery, one_of_all
from tagmatch.pipeline.segment import SetIds
from tagmatch.pipeline.tags import TagIndex, live_sets


class AreaMatcher(Beside[SegmentMatcher, AreaIndex]):
    """Two matchers of one segment: no set with areas is a subset of tags, so the other one never finds it.

    Contents of messages are found by the CPU, areas by it or by a device, whatever matches the others.
    """

    def __init__(
        self,
        segment: Segment,
        others: SegmentMatcher,
        tags: TagIndex,
        index: AreaIndex,
        finders: Finders | None = None,
    ) -> None:
        super().__init__(segment, others, index)
        self._tags = tags
        self.finders = Finders(index) if finders is None else finders
        self.notes = (*others.notes, *self.finders.notes)
        if self.finders.device is not None:
            # The CPU has a part in each packet, for which more threads help
            self.packet_size = replace(self.packet_size, at_once=None)
        self.one_query = self._of_both(others.one_query)

    def _of_both(self, others: object) -> OneQuery | OfSeveralTypes | None:
        """What answers single messages, if the other matcher has what does so for the others."""
        if not isinstance(others, OneQuery | OfSeveralTypes):
            return None
        own = one_located(self._segment, self._tags, self.index)
        return one_of_all([others, own], [0, 0], [0, 0]) if self._has_others else own

    def without(self, deletions: Deletions) -> AreaMatcher:
        """As of `SegmentMatcher`."""
        segment = replace(self._segment, deletions=deletions)
        return AreaMatcher(segment, self._others.without(deletions), self._tags, self.index, self.finders)

    @property
    def nbytes(self) -> int:
        """As of `Matcher`."""
        return super().nbytes + self.finders.nbytes

    @property
    def matched_by(self) -> dict[str, int]:
        """As of `Matcher`: messages that the other one got, and those whose areas were looked for."""
        found = dict(self._others.matched_by)
        for kind, count in self.finders.matched_by.items():
            found[kind] = found.get(kind, 0) + count
        return found

    def preprocess(self, tags: TagLists, first: int, last: int) -> _Both:
        """Where messages `first` to `last` are, and the groups whose areas each is looked for in."""
        others = self._others.preprocess(tags, first, last) if self._has_others else None
        return _Both(
            others,
            self._sought(tags, first, last),
            locations_of(tags, first, last),
            self.index,
            self._segment,
            self.finders.of_packet(last - first),
        )

    def set_ids(self, tags: TagLists, first: int, last: int) -> Lists:
        """Ids of the sets that each of messages `first` to `last` satisfies, for one client at least."""
        sought, locations = self._sought(tags, first, last), locations_of(tags, first, last)
        found = _found(self.index, self.finders.cpu, self._segment, sought, locations)
        parts = [self._others.set_ids(tags, first, last), found.sets] if self._has_others else [found.sets]
        if found.entries is not None and self.index.followers is not None:
            parts.append(_each_once(found.entries.offsets, self.index.followers.rows[found.entries.values]))
        return side_by_side(parts)

    def _sought(self, tags: TagLists, first: int, last: int) -> Sought:
        filters = self.index.filters
        if filters is None:
            none = np.zeros(last - first + 1, np.int64), np.zeros(0, np.uint32)
            return sought(self.index, QueryBatch(*none), Messages(*none, none[1]))
        messages = messages_of(tags, first, last, filters.attributes)
        filters.seen.count(len(messages), messages.attributes)
        return sought(self.index, self._tags.ranks(tags, first, last), messages)


@dataclass(frozen=True, slots=True, eq=False)
class Sought:
    """In which groups the areas of each message are looked for, and the messages, of which sets may ask more."""

    groups: Lists
    messages: MessageTable

    def __len__(self) -> int:
        return len(self.groups)


def sought(index: AreaIndex, queries: QueryBatch, messages: Messages) -> Sought:
    """The contents of messages that are found first, and the groups of their tokens."""
    count = len(messages)
    table = MessageTable(queries.offsets, queries.ranks, messages.offsets, messages.attributes, messages.codes)
    contents = Lists(np.zeros(count + 1, np.int64), np.zeros(0, np.uint32))
    if index.filters is not None:
        contents = rows_found(index.filters, queries, messages).sets
    if index.of_tokens is not None:
        contents = index.of_tokens.groups(contents, index.every, table)
    elif len(index.every):
        each = Lists(np.arange(0, (count + 1) * len(index.every), len(index.every)), np.tile(index.every, count))
        contents = side_by_side([contents, each])
    return Sought(contents, table)


@dataclass(frozen=True, slots=True, eq=False)
class _Both:
    others: Preprocessed | None
    sought: Sought
    locations: Locations | None
    index: AreaIndex
    segment: Segment
    finder: Finder

    def subset_match(self) -> _FoundInBoth:
        found = _found(self.index, self.finder, self.segment, self.sought, self.locations)
        sets = SetIds(found.sets, self.segment.keys)
        others = None if self.others is None else self.others.subset_match()
        return _FoundInBoth(others, sets, self._keys_of(found.entries))

    def _keys_of(self, entries: Lists | None) -> Lists | None:
        """The keys that these entries are."""
        if entries is None or self.index.followers is None or not len(entries.values):
            return None
        places = self.index.followers.places[entries.values]
        return Lists(entries.offsets, self.segment.keys.keys.values[places])


@dataclass(frozen=True, slots=True, eq=False)
class _FoundInBoth:
    others: Matched | None
    sets: SetIds
    keys: Lists | None

    @property
    def found(self) -> int:
        others = 0 if self.others is None else self.others.found
        return others + self.sets.found + (0 if self.keys is None else len(self.keys.values))

    @property
    def rejected(self) -> int:
        return 0 if self.others is None else self.others.rejected

    def key_lookup(self, space: Space = no_space) -> Lists:
        looked_up = [each for each in (self.others, self.sets) if each is not None and each.found]
        if self.keys is None and len(looked_up) < 2:
            return (looked_up or [self.sets])[0].key_lookup(space)
        parts = [each.key_lookup() for each in looked_up]
        return side_by_side(parts if self.keys is None else [*parts, self.keys], space)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """Sets of messages, and entries of clients."""

    sets: Lists
    entries: Lists | None


def _found(index: AreaIndex, finder: Finder, segment: Segment, sought: Sought, locations: Locations | None) -> _Found:
    groups, count = sought.groups, len(sought)
    nowhere = np.full(count, np.nan)
    places = Places(nowhere, nowhere) if locations is None else Places(locations.lon, locations.lat)
    parts = []
    if len(index.fixed_rows):
        entries = finder.holding(places, groups)
        parts.append(Lists(entries.offsets, index.fixed_rows[entries.values]))
    if len(index.loose.values):
        parts.append(_spread(index.loose, groups))
    none = Lists(np.zeros(count + 1, np.int64), np.zeros(0, np.uint32))
    sets = side_by_side(parts) if len(parts) > 1 else (parts or [none])[0]
    sets = live_sets(_tested(index, sought, sets, None, places), segment.deletions)
    if index.followers is None or locations is None:
        return _Found(sets, None)
    followers = index.followers
    entries = _entries_of(followers.cells, finder, places, locations, groups)
    entries = _tested(index, sought, entries, followers.rows, places)
    return _Found(sets, _live(entries, followers.rows, segment.deletions))


def _entries_of(cells: ClientCells, finder: Finder, places: Places, locations: Locations, groups: Lists) -> Lists:
    """Entries of clients that a message is for: near its place, and within its area, whichever it has."""
    if not locations.kinds.any():
        return finder.near(places, groups)
    has_area = locations.kinds != 0
    is_box = (locations.kinds == BOX_LETTER) | (locations.kinds == BOX_LETTER + TO_PLANE)
    shapes = Shapes(np.where(is_box, BOX, CIRCLE).astype(np.uint8), locations.values)
    has_place = ~np.isnan(locations.lon)
    within = cells.inside(shapes, None, _only(groups, has_area & ~has_place))
    near_and_within = cells.inside(shapes, places, _only(groups, has_area & has_place))
    return side_by_side([within, near_and_within, finder.near(places, _only(groups, ~has_area))])


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
        found = index.of_tokens.kept(_with_rows(found, rows), attributes, sought.messages)
    return found


def _with_rows(found: Lists, rows: U32Array | None) -> Candidates:
    return Candidates(found.offsets, found.values, found.values if rows is None else rows[found.values])


def _live(entries: Lists, rows: U32Array, deletions: Deletions | None) -> Lists:
    """The entries whose rows are not deleted."""
    if deletions is None or not len(entries.values):
        return entries
    kept = np.ones(len(entries.values), np.bool_)
    kept[deletions.among(rows[entries.values])] = False
    before = np.append(0, np.cumsum(kept))
    return Lists(before[entries.offsets], entries.values[kept])


def _each_once(offsets: IntArray, rows: U32Array) -> Lists:
    """The rows of each list, each once."""
    owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    pairs = (
        np.unique(np.stack([owners, rows.astype(np.int64)], axis=1), axis=0)
        if len(rows)
        else np.zeros((0, 2), np.int64)
    )
    return Lists(offsets_of(np.bincount(pairs[:, 0], minlength=len(offsets) - 1)), pairs[:, 1].astype(np.uint32))
