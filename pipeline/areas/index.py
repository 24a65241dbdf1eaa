"""The sets of a segment that have areas, made ready for messages with locations; and the finders of their areas.

Besides areas, sets ask for few different contents, which many sets share: a message first finds the contents that it
has, and then, for each of these, the areas that have its place. The CPU or a device looks for these.

Of sets whose content hardly another one has, areas come first, and contents are verified afterwards: to find each of a
message's contents would take longer than to find the areas that have its place. These sets are in groups by the least
likely token of each (`tagmatch.pipeline.filters.asked`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from tagmatch.model.arrays import (
    BoolArray,
    F64Array,
    I64Array,
    Lists,
    Strings,
    U8Array,
    U32Array,
    UIntArray,
    frozen,
    offsets_of,
)
from tagmatch.model.kernels.hashing import hash_strings
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import gather
from tagmatch.model.kernels.outlines import CORRIDOR, POLYGON, SOUND, Outlines, around_outlines, prepared
from tagmatch.model.kernels.sphere import LOWER, NEAR
from tagmatch.model.kernels.tag_table import TagInterner, areas_among, constraints_among
from tagmatch.model.tables import Segment
from tagmatch.model.where.constraints import PARTS, VERIFIED
from tagmatch.model.where.tag_columns import Parsed, check_geometry, parsed, shapes_of
from tagmatch.pipeline.areas.chunks import Places, Shapes, all_frozen
from tagmatch.pipeline.areas.clients import ClientCells
from tagmatch.pipeline.areas.fixed import FixedAreas
from tagmatch.pipeline.areas.positions import Clients
from tagmatch.pipeline.filters.asked import Asked, Requirements, TokenCells, cells_of, requirements_of, sets_of
from tagmatch.pipeline.filters.computed import are_of_kinds
from tagmatch.pipeline.filters.index import FilterIndex, encoder_of, index_of
from tagmatch.pipeline.filters.parts import PartsFinder, holding_of

# In the place of a number
_NONE = -1
# How likely a message is near one of the clients of a set, if nothing is known of it
_OF_CLIENTS = 0.01
# So many areas are compared with each other
_SAMPLE = 1024
# To find a content takes as long as to verify this number of sets whose areas have been found
_WORTH = 4
# With no more areas of a content at a place, areas come first
_CLEARLY = 1e-3

# -- contents ----------------------------------------------------------------------------------------------------------


class Contents(NamedTuple):
    """The different contents of some sets."""

    size: int
    numbers: I64Array  # The content of each set
    asked: Asked  # What each content asks, except for the one that asks nothing; its `rows` are their numbers
    of_nothing: int  # The content that asks nothing; -1 if no set has it


def contents_of(ranks: Lists, rows: I64Array, is_area: BoolArray, found: Parsed, is_constraint: BoolArray) -> Contents:
    """The contents of some rows, without areas."""
    of_rows = gather(ranks, rows.astype(np.uint64))
    kept = ~is_area[of_rows.values]
    ends, left = np.append(0, np.cumsum(kept))[of_rows.offsets], of_rows.values[kept].astype(np.uint32, copy=False)
    # Lists of ranks are different if their bytes are
    whole = Strings(4 * ends, left.view(np.uint8))
    interner = TagInterner()
    numbers = interner.intern(whole, hash_strings(whole)).astype(np.int64)
    different = interner.strings()
    ends_of = different.offsets.astype(np.int64)
    sizes = (ends_of[1:] - ends_of[:-1]) // 4
    owners = np.repeat(np.arange(len(sizes)), sizes)
    values: U32Array = different.data.copy().view(np.uint32)
    number_of = np.full(len(is_constraint), -1, np.int64)
    number_of[found.ranks] = np.arange(len(found))
    unknown = is_constraint[values] & (number_of[values] < 0)
    has_way = np.ones(len(different), np.bool_)
    # What only begins like a constraint never holds
    has_way[owners[unknown]] = False
    asks = has_way & (sizes > 0)
    all_asked = Asked(np.arange(len(sizes)), owners, values, number_of[values])
    empty = np.flatnonzero(sizes == 0)
    return Contents(len(sizes), numbers, all_asked.only(asks), int(empty[0]) if len(empty) else -1)


# -- groups by tokens --------------------------------------------------------------------------------------------------


class GroupedSets(NamedTuple):
    """What sets in groups by a token ask, as kernels take it."""

    of_rows: I64Array  # Of each row of the segment, its number here; -1 for those that are not in these groups
    record_offsets: I64Array  # What a set asks of a message (see `Sets`)
    records: U32Array
    constraints: tuple[Any, ...]  # Those that are more than an interval


class GroupTokens(NamedTuple):
    """Which groups messages have besides contents, as kernels take it."""

    every: U32Array  # Groups that every message has
    # The number of the group of sets without a token, which all messages have; that of token `i` is `first + i`
    first: int
    cells: tuple[Any, ...]  # The tokens by which sets are grouped (see `TokenCells`), and no others


def areas_come_first(required: Requirements, at_a_place: F64Array) -> BoolArray:
    """For which contents it takes less time to find areas first."""
    first: BoolArray = at_a_place < _CLEARLY
    unsure = ~first & (at_a_place < _WORTH)
    if unsure.any():
        first[unsure] = at_a_place[unsure] < _WORTH * _with_all(required.only(unsure))
    return first


def _with_all(required: Requirements) -> F64Array:
    """Of messages that have a content's least likely token, the part that probably has its others, too.

    Messages are taken to be as sets are, and all but the least likely token not to depend on each other.
    """
    asked, likely = required.asked, required.likely
    _, tokens, _ = cells_of(required)
    owners = asked.owners[likely.has_token]
    # Tokens are numbered from the least likely one on
    least = np.full(len(asked), np.iinfo(np.uint32).max, np.uint32)
    np.minimum.at(least, owners, tokens)
    of_least = least[owners]
    pairs = of_least.astype(np.uint64) << np.uint64(32) | tokens
    _, number_of, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    _, group_of, sizes = np.unique(least, return_inverse=True, return_counts=True)
    found = np.ones(len(asked))
    np.multiply.at(found, owners, np.minimum(counts[number_of] / sizes[group_of[owners]], 1.0))
    return found


def token_groups(required: Requirements, first: int) -> tuple[TokenCells, I64Array, int]:
    """Group sets, and number groups from `first` on: the tokens, the group of each set, and how many groups."""
    asked, likely = required.asked, required.likely
    least = np.full(len(asked), _NONE)
    _least_likely(asked.owners, likely.has_token, likely.chances, least)
    some = np.flatnonzero(least >= 0)
    things = least[some]
    only_least = Asked(asked.rows[some], np.arange(len(some)), asked.ranks[things], asked.numbers[things])
    of_least = replace(likely, has_token=np.ones(len(some), np.bool_), chances=likely.chances[things])
    cells, tokens, count = cells_of(replace(required, asked=only_least, likely=of_least))
    groups = np.full(len(asked), first)
    groups[some] += tokens.astype(np.int64)
    return cells, groups, count + 1


@kernel
def _least_likely(owners, has_token, chances, least):
    """Write which thing of each owner has the least likely token."""
    for i in range(len(owners)):
        if has_token[i] and (least[owners[i]] < 0 or chances[i] < chances[least[owners[i]]]):
            least[owners[i]] = i


# -- the index ---------------------------------------------------------------------------------------------------------


class ShapeTests(NamedTuple):
    """What is left to be tested of sets that have several areas, or one that must not have the message's place."""

    of_rows: I64Array  # Of each row of the segment, its number here; -1 for most
    offsets: I64Array  # Row number `i` has the tests from `offsets[i]` to `offsets[i + 1]`
    kinds: U8Array
    values: F64Array  # [n, 4]; both (see `Shapes`); for polygons and corridors the shape around them
    negated: BoolArray
    places: I64Array  # Of polygons and corridors (see `Outlines`)
    numbers: F64Array


class Searcher(Protocol):
    """What finds areas, or entries of clients, by where messages are. Any number of threads may share it."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""

    def find(self, places: Places, groups: Lists) -> Lists:
        """Those of the groups of each message that have its place, in no order."""


class Searchers(NamedTuple):
    """What searches an index, on the CPU or on a device."""

    areas: Searcher  # Areas that stay
    clients: Searcher | None


class Followers(NamedTuple):
    """Keys of sets that ask for messages near the client."""

    cells: ClientCells
    rows: U32Array  # The row of each entry, ascending
    places: I64Array  # Where in the key table its key stands


@dataclass(frozen=True, slots=True, eq=False)
class AreaIndex:
    """The sets of a segment that have areas."""

    plane: bool
    # Of those contents that are found first, which ask something: what it finds are their groups
    filters: FilterIndex | None
    computed: PartsFinder | None  # Which tests that are computed, and parts, hold, by their ranks: these are contents
    tokens: GroupTokens  # The groups of the others, whose areas are found first
    sets: GroupedSets
    fixed: FixedAreas  # The fixed area of each set that has one; its id is the row
    fixed_rows: U32Array  # The rows of all these, ascending
    loose: Lists  # Of each group, the rows that have no area which a message's place must be in
    tests: ShapeTests
    followers: Followers | None

    def __len__(self) -> int:
        """How many rows there are, those of followers once."""
        rows = 0 if self.followers is None else len(np.unique(self.followers.rows))
        return len(self.fixed_rows) + len(self.loose.values) + rows

    def among(self, rows: UIntArray) -> BoolArray:
        """Which of some rows of the segment have areas."""
        found: BoolArray = np.isin(rows, self.loose.values)
        for ascending in (self.fixed_rows, *(() if self.followers is None else (self.followers.rows,))):
            if len(ascending):
                places = np.searchsorted(ascending, rows)
                found |= ascending[np.minimum(places, len(ascending) - 1)] == rows
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        arrays = [*self.tokens.cells[:-1], *self.sets[:3], *self.tests, self.fixed_rows, self.loose]
        found: int = self.fixed.nbytes + sum(each.nbytes for each in arrays)
        found += sum(each.nbytes for each in (self.filters, self.computed) if each is not None)
        if self.followers is not None:
            found += self.followers.cells.nbytes + self.followers.rows.nbytes + self.followers.places.nbytes
        return found

    @property
    def searchers(self) -> Searchers:
        """What searches on the CPU."""
        return Searchers(self.fixed, None if self.followers is None else self.followers.cells)


class _Asked(NamedTuple):
    """The areas that sets ask for, set by set: `owners` are their numbers among `rows`."""

    rows: I64Array
    owners: I64Array
    kinds: U8Array
    negated: BoolArray
    values: F64Array
    outlines: Outlines
    is_outline: BoolArray  # Which are polygons or corridors; their `values` describe the shape around them


def areas_of(
    segment: Segment, clients: Clients, *, plane: bool, before: Sequence[AreaIndex | None] = ()
) -> AreaIndex | None:
    """Index the sets of a segment that have areas; `None` without any."""
    tags = segment.vocabulary.tags
    is_area = areas_among(tags)
    if not is_area.any():
        return None
    asked = _asked(segment, is_area, plane=plane)
    # A test that is computed is a tag, which messages have if it holds
    is_computed = are_of_kinds(tags, (PARTS, *VERIFIED))
    is_constraint = constraints_among(tags) & ~is_computed
    found = parsed(tags, is_constraint)
    contents = contents_of(segment.tagsets.ranks, asked.rows, is_area, found, is_constraint)
    count = len(asked.rows)
    is_near = asked.kinds == NEAR
    is_fixed = ~is_near & ~asked.negated
    chosen = _first_of_each(asked.owners, is_fixed, count)
    follows = np.zeros(count, np.bool_)
    follows[asked.owners[is_near]] = True
    # A client is sought by its position; the other areas of its set are tested then
    chosen[follows] = _NONE
    some = np.flatnonzero(chosen >= 0)
    left = ~is_near
    # The shape around an outline tells only roughly if the place is inside
    left[chosen[some]] = asked.is_outline[chosen[some]]
    loose = np.flatnonzero((chosen < 0) & ~follows)
    kinds = around_outlines(asked.kinds, plane=plane)
    shapes = Shapes(kinds[chosen[some]], asked.values[chosen[some]])
    likely = np.where(follows, _OF_CLIENTS, 1.0)
    likely[some] = _at_a_place(shapes, plane=plane)
    required = None
    if len(contents.asked):
        seen = [index.filters.seen for index in before if index is not None and index.filters is not None]
        required = requirements_of(contents.asked, found, tags, segment.frequencies, seen)
    groups = _groups(segment, asked, contents, required, likely)
    rows = asked.rows.astype(np.uint32)
    used = np.unique(contents.asked.ranks)
    computed = used[is_computed[used]]
    return AreaIndex(
        plane, groups.filters, holding_of(tags, computed) if len(computed) else None, groups.tokens, groups.sets,
        FixedAreas.of(groups.numbers[some], groups.size, shapes, rows[some], plane=plane), rows[some],
        _by_group(groups.numbers[loose], groups.size, rows[loose]),
        _tests(asked, np.flatnonzero(left), len(segment)),
        _followers(segment, asked, groups, np.flatnonzero(is_near), clients, plane=plane) if follows.any() else None,
    )  # fmt: skip


_NO_CELLS = (*(np.zeros(0, dtype) for dtype in (np.int64, np.int64, np.uint64, np.uint32)), 0)
_NO_SETS = GroupedSets(
    frozen(np.zeros(0, np.int64)), frozen(np.zeros(1, np.int64)), frozen(np.zeros((0, 3), np.uint32)),
    tuple(np.zeros(0, dtype) for dtype in (np.int64, np.bool_, np.int64, np.uint32, np.uint32)),
)  # fmt: skip


class _Groups(NamedTuple):
    """The group of each set, and how messages get to groups; see `AreaIndex`."""

    size: int
    numbers: I64Array
    filters: FilterIndex | None
    tokens: GroupTokens
    sets: GroupedSets


def _groups(
    segment: Segment, asked: _Asked, contents: Contents, required: Requirements | None, likely: F64Array
) -> _Groups:
    """Group sets; `likely` says how likely a message's place is in the area of each."""
    if required is None:
        # There is one content, that which asks nothing, or none that can hold
        all_have = np.flatnonzero(np.arange(contents.size) == contents.of_nothing).astype(np.uint32)
        return _Groups(contents.size, contents.numbers, None, GroupTokens(all_have, 0, _NO_CELLS), _NO_SETS)
    at_a_place = np.bincount(contents.numbers, weights=likely, minlength=contents.size).astype(np.float64, copy=False)
    later = np.zeros(contents.size, np.bool_)
    later[contents.asked.rows] = areas_come_first(required, at_a_place[contents.asked.rows])
    number_of = np.cumsum(~later) - 1
    first = int(np.count_nonzero(~later))
    every = [] if contents.of_nothing < 0 else [number_of[contents.of_nothing]]
    cells, sets, count = _NO_CELLS, _NO_SETS, first
    found_first = required.only(~later[contents.asked.rows])
    found_first = replace(found_first, asked=replace(found_first.asked, rows=number_of[found_first.asked.rows]))
    filters = index_of(found_first) if len(found_first) else encoder_of(required)
    if later.any():
        some = required.only(later[contents.asked.rows])
        number = np.full(contents.size, _NONE)
        number[some.asked.rows] = np.arange(len(some))
        of_rows = np.full(len(segment), _NONE)
        of_rows[asked.rows] = number[contents.numbers]
        asks = sets_of(some.asked, some.tests, some.likely.chances, np.arange(len(some)))
        sets = GroupedSets(frozen(of_rows), frozen(asks.record_offsets), frozen(asks.records), asks.constraints)
        found, number_of[some.asked.rows], more = token_groups(some, first)
        cells, count = tuple(found), first + more
        if (number_of[some.asked.rows] == first).any():
            every.append(np.int64(first))
    tokens = GroupTokens(np.array(every, np.uint32), first, cells)
    return _Groups(count, number_of[contents.numbers], filters, tokens, sets)


def _at_a_place(shapes: Shapes, *, plane: bool) -> float:
    """How likely the place of a message is in one of these areas, if messages come from where areas are."""
    known = len(shapes.kinds)
    if known < 2:
        return 1.0
    some = np.sort(np.random.default_rng(known).choice(known, min(known, _SAMPLE), replace=False))
    values, count = shapes.values[some], len(some)
    sample = FixedAreas.of(np.zeros(count, np.int64), 1, Shapes(shapes.kinds[some], values), plane=plane)
    every = Lists(np.arange(count + 1), np.zeros(count, np.uint32))
    # The middles of circles, and corners of boxes; each of these is in its own shape
    found = len(sample.find(Places(values[:, 0], values[:, 1]), every).values)
    return max(found - count, 1) / (count * (count - 1))


def _asked(segment: Segment, is_area: BoolArray, *, plane: bool) -> _Asked:
    ranks = segment.tagsets.ranks
    places = np.flatnonzero(is_area[ranks.values])
    of_places = np.searchsorted(ranks.offsets, places.astype(ranks.offsets.dtype), side="right") - 1
    rows, owners = np.unique(of_places, return_inverse=True)
    shapes = shapes_of(segment.vocabulary.tags, ranks.values[places])
    check_geometry(shapes.kinds, "there are areas", plane=plane)
    kinds, values = shapes.kinds | LOWER, shapes.values
    is_outline = (kinds == POLYGON) | (kinds == CORRIDOR)
    outlines, states = prepared(kinds, shapes.numbers, shapes.offsets, values, plane=plane)
    known = (shapes.kinds != 0) & (states == SOUND)
    # What only begins like an area never holds
    has_way = np.ones(len(rows), np.bool_)
    has_way[owners[~known]] = False
    kept = has_way[owners]
    numbers = np.cumsum(has_way) - 1
    return _Asked(
        rows[has_way].astype(np.int64), numbers[owners[kept]], kinds[kept], shapes.negated[kept], values[kept],
        Outlines(outlines.places[kept], outlines.numbers), is_outline[kept],
    )  # fmt: skip


def _first_of_each(owners: I64Array, chosen: BoolArray, count: int) -> I64Array:
    """The first thing of each owner among those chosen; -1 for none."""
    first = np.full(count, _NONE)
    places = np.flatnonzero(chosen)[::-1]
    first[owners[places]] = places
    return first


def _by_group(groups: I64Array, count: int, rows: U32Array) -> Lists:
    """The rows of each group, of some that have these groups."""
    return Lists(offsets_of(np.bincount(groups, minlength=count)), rows[np.argsort(groups, kind="stable")])


def _tests(asked: _Asked, left: I64Array, count: int) -> ShapeTests:
    owners = asked.owners[left]
    order = np.argsort(owners, kind="stable")
    left, owners = left[order], owners[order]
    some, numbers = np.unique(owners, return_inverse=True)
    of_rows = np.full(count if len(some) else 0, _NONE)
    of_rows[asked.rows[some]] = np.arange(len(some))
    offsets = offsets_of(np.bincount(numbers, minlength=len(some)))
    outlines = asked.outlines.places[left], asked.outlines.numbers
    return all_frozen(
        ShapeTests(of_rows, offsets, asked.kinds[left], asked.values[left], asked.negated[left], *outlines)
    )


def _followers(
    segment: Segment, asked: _Asked, groups: _Groups, near: I64Array, clients: Clients, *, plane: bool
) -> Followers:
    """Entries for all keys of sets that ask for messages near the client: of several distances, the least."""
    metres = np.full(len(asked.rows), np.inf)
    np.minimum.at(metres, asked.owners[near], asked.values[near, 0])
    sets = np.unique(asked.owners[near])
    offsets = segment.keys.keys.offsets.astype(np.int64)
    rows = asked.rows[sets]
    sizes = offsets[rows + 1] - offsets[rows]
    starts = offsets_of(sizes)
    places = np.arange(int(starts[-1])) + np.repeat(offsets[rows] - starts[:-1], sizes)
    keys = segment.keys.column(segment.keys.keys.values[places])
    numbers = np.repeat(groups.numbers[sets], sizes)
    cells = clients.cells_of(keys, numbers, groups.size, np.repeat(metres[sets], sizes), plane=plane)
    return Followers(cells, frozen(np.repeat(rows, sizes).astype(np.uint32)), places)
