"""Plans of sets that ask for a number of parts: conjunctions that reach them, and programs that verify the rest.

If the parts are tags and tests, or conjunctions of them, those that were counted while the set was reached need not be
looked at again, and only `k - 1` of `n` parts are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import (
    BoolArray,
    I64Array,
    IntArray,
    Lists,
    Strings,
    U8Array,
    U16Array,
    U32Array,
    U64Array,
    bytes_of,
    offsets_of,
)
from tagmatch.model.arrow import from_strings, to_strings
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.kernels.lists import gather, gather_strings
from tagmatch.model.kernels.tag_table import constraints_among
from tagmatch.model.tables import Vocabulary
from tagmatch.model.where.constraints import MOST_PARTS_DEEP, PARTS
from tagmatch.model.where.tag_columns import Parsed, parsed, parts_in, parts_of
from tagmatch.pipeline.filters.asked import COMPLEX, TAG, Asked, Requirements, requirements_of
from tagmatch.pipeline.filters.computed import ComputedTests, Implied, are_of_kinds, as_tags
from tagmatch.pipeline.filters.index import FilterIndex, encoder_of, index_of
from tagmatch.pipeline.filters.trie import bit_of
from tagmatch.pipeline.tags import TagIndex

#: Stand in a program for parts that are counted: those before, and those that were counted while the set was reached
COUNTED, WITH_FOUND = COMPLEX - np.uint32(1), COMPLEX - np.uint32(2)
#: The greatest count of a set's conjunctions
MOST = 255
#: The number of no conjunction
NO_CONJUNCTION = np.uint32(0xFFFFFFFF)
# Places that a message's tags have in its filter, which has a byte for each
_PLACE_BITS = 12
#: The place of no tag, in filters
NO_PLACE = 1 << _PLACE_BITS
# Other parts of a set that are looked at before it is counted, which does so for each by itself
_OTHERS = 4

_U, _U32 = np.uint64, np.uint32


@inlined
def place_of(tag):
    """The place of a tag in filters; several have the same."""
    return (_U(tag) * _U(0x9E3779B97F4A7C15)) >> _U(64 - _PLACE_BITS)


class Programs(NamedTuple):
    """What is left to be verified of each set, as kernels take it."""

    rows: U32Array  # the segment's
    offsets: I64Array  # Set number `i` has the steps from `offsets[i]` to `offsets[i + 1]`
    # [n, 3]: a record of a tag or a constraint (see `Sets`); or `COUNTED` or `WITH_FOUND`, how many results before are
    # counted, and how many of these must hold
    steps: U32Array
    # A bit for each tag that is left to be verified, if the program is `WITH_FOUND` of tags and tests: fewer bits are
    # missing than parts were counted, if it holds
    signatures: U64Array
    most: int  # steps of a set


class Reached(NamedTuple):
    """Which sets have each conjunction, by the number of the set; kernels take it."""

    of_tags: U32Array  # the conjunction of each tag alone, by its rank, or `NO_CONJUNCTION`
    offsets: I64Array  # Conjunction `i` is one of the sets from `offsets[i]` to `offsets[i + 1]`
    sets: U32Array
    # [sets, _OTHERS]: places, in a message's filter, of tags that are other parts of the set; and how many of these a
    # message has, at least, if the set holds
    others: U16Array
    due: U8Array


class Made(NamedTuple):
    """What finds sets that ask for parts."""

    tags: TagIndex  # those that parts have
    filters: FilterIndex
    reached: Reached
    programs: Programs
    computed: ComputedTests | None

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        own = self.tags.nbytes + self.filters.nbytes + bytes_of(*self.reached, *self.programs)
        return own + (0 if self.computed is None else self.computed.nbytes)


class _Tree(NamedTuple):
    """The requirements of some rows: different tags and tests, then the tests of parts, then the rows themselves."""

    leaves: Strings  # tags and tests
    found: Parsed  # the tests
    first_row: int  # Rows are numbered from here on
    least: I64Array  # of each, how many of its parts must hold
    parts: Lists  # of each, by number; a leaf has none
    heights: I64Array  # of each, how many parts are within each other
    sound: BoolArray  # of each: whether an expression may have made it
    computed: Mapping[str, Implied]  # tests that are tags here


def tree_of(tags: Strings, row_offsets: IntArray, of_rows: I64Array) -> _Tree:
    """The tree of rows that have some of these different tags, by number."""
    terms, read, parts = from_strings(tags).cast(pa.large_binary()), 0, []
    places = [np.zeros(0, np.int64)]
    for _ in range(MOST_PARTS_DEEP):
        new, read = to_strings(terms[read:]), len(terms)
        parts.append(parts_in(new, are_of_kinds(new, (PARTS,))))
        own = from_strings(parts_of(new.data, parts[-1].places)).cast(pa.large_binary())
        encoded = pa.concat_arrays([terms, own]).dictionary_encode()
        terms = encoded.dictionary
        places.append(encoded.indices[read:].to_numpy())
        if len(terms) == read:
            break
    least, sizes, sound = (np.concatenate(each) for each in list(zip(*parts, strict=True))[:3])
    # Terms that are too deep to be read are leaves, and no sound ones
    least, sizes, sound = (np.append(each, np.zeros(len(terms) - read, each.dtype)) for each in (least, sizes, sound))
    order = np.argsort(sizes > 0, kind="stable").astype(np.uint64)
    number = np.empty(len(terms), np.int64)
    number[order] = np.arange(len(terms))
    gathered = gather(Lists(offsets_of(sizes), number[np.concatenate(places)].astype(np.uint32)), order)
    leaves = gather_strings(to_strings(terms), order[: np.count_nonzero(sizes == 0)])
    leaves, computed, are_none = as_tags(leaves)
    is_test = constraints_among(leaves)
    found = parsed(leaves, is_test)
    sound, row_sizes = sound[order], np.diff(row_offsets).astype(np.int64)
    sound[np.flatnonzero(is_test)] = False
    sound[found.ranks] = True
    sound[are_none] = False
    all_parts = Lists(
        offsets_of(np.concatenate([gathered.lengths(), row_sizes])),
        np.concatenate([gathered.values, number[of_rows].astype(np.uint32)]),
    )
    sound = np.append(sound, np.ones(len(row_sizes), np.bool_))
    heights, owners = np.zeros(len(sound), np.int64), np.repeat(np.arange(len(sound)), all_parts.lengths())
    while True:  # A part is shorter than what it is a part of
        before = heights.copy()
        np.maximum.at(heights, owners, heights[all_parts.values] + 1)
        np.logical_and.at(sound, owners, sound[all_parts.values])
        if (before == heights).all():
            break
    return _Tree(leaves, found, len(terms), np.append(least[order], row_sizes), all_parts, heights, sound, computed)


class _Pool:
    """Arrays of different lengths, one after the other; more can be added."""

    def __init__(self, sizes: I64Array, values: Any) -> None:
        self._offsets, self.values = offsets_of(sizes), values

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def add(self, sizes: I64Array, values: Any) -> None:
        """Add arrays, which are numbered from the length on."""
        self._offsets = np.append(self._offsets, self._offsets[-1] + np.cumsum(sizes))
        self.values = np.concatenate([self.values, values])

    def of(self, numbers: I64Array) -> tuple[I64Array, Any]:
        """The lengths of some, and their values."""
        begins, sizes = self._offsets[numbers], self._offsets[numbers + 1] - self._offsets[numbers]
        return sizes, self.values[np.repeat(begins - offsets_of(sizes)[:-1], sizes) + np.arange(int(sizes.sum()))]


class _Level(NamedTuple):
    """Some of a tree, and all parts of each, the least likely first."""

    numbers: I64Array
    least: I64Array
    sizes: I64Array
    owners: I64Array  # of each part, the place in `numbers`
    parts: I64Array
    is_leaf: BoolArray  # of each part
    reaches: BoolArray  # of each part: whether what it is a part of is reached by it

    @property
    def all_hold(self) -> BoolArray:
        """Of which all parts must hold."""
        found: BoolArray = self.least == self.sizes
        return found

    def counts(self, chosen: BoolArray) -> I64Array:
        """How many parts of each are chosen."""
        return np.bincount(self.owners[chosen], minlength=len(self.numbers))


class Plan:
    """The conjunctions that reach sets, and the programs that verify the rest."""

    def __init__(self, tree: _Tree) -> None:
        self._tree, leaves, count = tree, len(tree.leaves), len(tree.sound)
        self._of_leaf = np.full(leaves, -1)  # the number of the constraint, for a test
        self._of_leaf[tree.found.ranks] = np.arange(len(tree.found))
        self._required = self._requirements()
        things, likely = self._required.asked.ranks, self._required.likely
        self._has_token, self._chances = np.zeros(leaves, np.bool_), np.full(count, np.inf)
        self._has_token[things], self._chances[things] = likely.has_token, likely.chances
        is_test, one = self._of_leaf >= 0, np.ones(leaves, np.int64)
        steps = np.zeros((leaves, 3), np.uint32)
        steps[:, 0], steps[:, 1] = TAG, np.arange(leaves)
        steps[is_test] = self._required.tests.records[self._of_leaf[is_test]]
        self._conjunctions = _Pool(one, np.arange(leaves))  # as leaves
        self._alternatives, self._programs = _Pool(one, np.arange(leaves)), _Pool(one, steps)
        # Where the alternatives and the program of each node are; and the programs that need a count
        self._reached_by, self._program, self._short = np.arange(count), np.arange(count), np.arange(count)
        # What holds if and only if its one conjunction does
        self._is_conjunction = np.arange(count) < leaves
        for height in range(1, int(tree.heights.max())):
            of_height = tree.sound & (tree.heights == height)
            of_height[tree.first_row :] = False
            self._add(self._level(of_height))

    def finder(self, rows: U32Array) -> Made:
        """What finds the rows."""
        tree, is_row = self._tree, self._tree.sound.copy()
        is_row[: tree.first_row] = False
        level = self._level(is_row)
        sizes, conjunctions = self._reach(level)
        gates = level.parts[~level.is_leaf]
        several = level.counts(~level.is_leaf) > 1
        # What was counted is of use if it was of the row's only part that is no leaf
        whole = several | level.is_leaf[level.reaches]
        own = np.where(whole[level.owners[~level.is_leaf]], self._program[gates], self._short[gates])
        # Without any, what it was reached by is all, and none is counted
        counted = level.counts(~level.is_leaf) != 1
        lengths, steps = self._with_count(level, ~level.is_leaf, own, counted, np.full(len(counted), COUNTED))
        offsets = offsets_of(lengths)
        numbers = rows[level.numbers - tree.first_row]
        programs = Programs(numbers, offsets, steps, _signatures(offsets, steps), int(lengths.max(initial=1)))
        index, reached = self._reached(np.repeat(np.arange(len(sizes)), sizes), conjunctions, programs)
        computed = ComputedTests(tree.computed, tree.leaves, index.attributes) if tree.computed else None
        return Made(TagIndex(Vocabulary(tree.leaves)), index, reached, programs, computed)

    def _requirements(self) -> Requirements:
        """What all rows ask in all their parts, taken to be as likely as it is asked for often."""
        tree, weights = self._tree, np.zeros(len(self._tree.sound), np.int64)
        weights[tree.first_row :] = tree.sound[tree.first_row :]
        owners = np.repeat(np.arange(len(weights)), tree.parts.lengths())
        for height in range(int(tree.heights.max()), 0, -1):
            chosen = tree.heights[owners] == height
            np.add.at(weights, tree.parts.values[chosen], weights[owners[chosen]])
        rows, of_leaves = np.flatnonzero(weights[tree.first_row :]), weights[: len(tree.leaves)]
        things = np.repeat(np.arange(len(of_leaves)), of_leaves)
        # Which row asks for what makes no difference here
        asked = Asked(rows, np.zeros_like(things), things.astype(np.uint32), self._of_leaf[things])
        return requirements_of(asked, tree.found, tree.leaves, of_leaves.astype(np.uint32))

    def _level(self, chosen: BoolArray) -> _Level:
        numbers, count = np.flatnonzero(chosen), len(chosen)
        own = gather(self._tree.parts, numbers.astype(np.uint64))
        sizes, least = own.lengths(), self._tree.least[numbers]
        owners = np.repeat(np.arange(len(numbers)), sizes)
        by_chance, rank = np.argsort(self._chances, kind="stable"), np.empty(count, np.int64)
        rank[by_chance] = np.arange(count)
        parts = by_chance[np.sort(owners * count + rank[own.values]) % count]
        reaches = np.arange(len(parts)) - offsets_of(sizes)[owners] <= (sizes - least)[owners]
        return _Level(numbers, least, sizes, owners, parts, parts < len(self._tree.leaves), reaches)

    def _reach(self, level: _Level) -> tuple[I64Array, I64Array]:
        """How many conjunctions reach each, and which ones."""
        by, count = level.owners[level.reaches], len(level.numbers)
        sizes, found = self._alternatives.of(self._reached_by[level.parts[level.reaches]])
        owners = np.repeat(by, sizes)
        # If all must hold, tags and tests are looked at together
        joined = (level.all_hold & (level.sizes > 1) & (level.counts(level.is_leaf) > 0))[owners]
        some = np.arange(np.count_nonzero(joined))
        leaves = _Pool(level.counts(level.is_leaf), level.parts[level.is_leaf]).of(owners[joined])
        both = (leaves, self._conjunctions.of(found[joined]))
        pairs = np.sort(np.concatenate([np.repeat(some, own) << 32 | values for own, values in both]))
        pairs = pairs[np.diff(pairs, prepend=-1) != 0]
        found[joined] = len(self._conjunctions) + some
        self._conjunctions.add(np.bincount(pairs >> 32, minlength=len(some)), pairs & 0xFFFFFFFF)
        return np.bincount(owners, minlength=count), found

    def _add(self, level: _Level) -> None:
        """Add the tests of parts of a level."""
        numbers, count = level.numbers, len(level.numbers)
        sizes, conjunctions = self._reach(level)
        self._reached_by[numbers] = len(self._alternatives) + np.arange(count)
        self._alternatives.add(sizes, conjunctions)
        self._chances[numbers] = np.bincount(
            level.owners[level.reaches], self._chances[level.parts[level.reaches]], count
        )
        self._is_conjunction[numbers] = level.all_hold & (level.counts(~level.is_leaf) == 0)
        countable = ~level.all_hold & (level.least <= MOST)
        countable &= level.counts(~self._is_conjunction[level.parts]) == 0
        for places, counted in ((self._program, np.zeros(count, np.bool_)), (self._short, countable)):
            left = ~(counted[level.owners] & level.reaches)
            own = self._program[level.parts[left]]
            kinds = np.where(counted, WITH_FOUND, COUNTED)
            steps = self._with_count(level, left, own, np.ones(count, np.bool_), kinds)
            places[numbers] = len(self._programs) + np.arange(count)
            self._programs.add(*steps)

    def _with_count(
        self, level: _Level, chosen: BoolArray, programs: I64Array, counted: BoolArray, kinds: U32Array
    ) -> tuple[I64Array, U32Array]:
        """The programs of parts that are chosen; behind them, a step that counts, of each that has to be counted."""
        sizes, values = self._programs.of(programs)
        lengths = np.bincount(level.owners[chosen], sizes, len(level.numbers)).astype(np.int64) + counted
        ends = offsets_of(lengths)[1:]
        steps = np.empty((int(lengths.sum()), 3), np.uint32)
        counts = level.counts(chosen)
        # Of a row, all that is no tag and no test must hold
        least = np.where(level.numbers < self._tree.first_row, level.least, counts)
        is_count = np.zeros(len(steps), np.bool_)
        is_count[ends[counted] - 1] = True
        steps[is_count] = np.stack([kinds, counts, least], axis=1)[counted]
        steps[~is_count] = values
        return lengths, steps

    def _reached(self, sets: I64Array, conjunctions: I64Array, programs: Programs) -> tuple[FilterIndex, Reached]:
        """What finds conjunctions that are more than a tag; and the sets that have each."""
        pairs = np.sort(conjunctions << 32 | sets)
        of_each = np.bincount(conjunctions, minlength=len(self._conjunctions))
        of_tags = np.full(len(self._of_leaf), NO_CONJUNCTION)
        alone = np.flatnonzero((self._of_leaf < 0) & (of_each[: len(self._of_leaf)] > 0))
        of_tags[alone] = alone
        of_each_left = of_each > 0
        of_each_left[alone] = False
        numbers = np.flatnonzero(of_each_left)
        sizes, things = self._conjunctions.of(numbers)
        owners = np.repeat(np.arange(len(numbers)), sizes)
        asked = Asked(numbers, owners, things.astype(np.uint32), self._of_leaf[things])
        likely = replace(self._required.likely, has_token=self._has_token[things], chances=self._chances[things])
        required = replace(self._required, asked=asked, likely=likely)
        index = index_of(required) if len(numbers) else encoder_of(required)
        of_sets = (pairs & 0xFFFFFFFF).astype(np.uint32)
        others, due = _others(of_sets, pairs >> 32, of_tags, programs)
        return index, Reached(of_tags, offsets_of(of_each), of_sets, others, due)


def _left(offsets: I64Array, steps: U32Array) -> tuple[BoolArray, I64Array, U32Array]:
    """Of which programs only a number of tags and tests is left; the owners of such tags, and the tags."""
    last = steps[offsets[1:] - 1]
    simple = (last[:, 0] == WITH_FOUND) & (last[:, 1] == np.diff(offsets) - 1)
    owners = np.repeat(np.arange(len(last)), np.diff(offsets))
    chosen = simple[owners] & (steps[:, 0] == TAG)
    return simple, owners[chosen], steps[chosen, 1]


def _signatures(offsets: I64Array, steps: U32Array) -> U64Array:
    """See `Programs`; 0 of a set for which more than tags and tests is left."""
    simple, owners, tags = _left(offsets, steps)
    signatures = np.zeros(len(simple), np.uint64)
    _add_bits(owners, tags, signatures)
    return signatures


def _others(sets: U32Array, conjunctions: I64Array, of_tags: U32Array, programs: Programs) -> tuple[U16Array, U8Array]:
    """See `Reached`: of each set that has a conjunction, all by conjunction.

    If `k` of `n` parts hold, `m - (n - k)` of any `m` do.
    """
    offsets, steps = programs.offsets, programs.steps
    simple, owners, tags = _left(offsets, steps)
    alone = np.isin(conjunctions, np.flatnonzero(of_tags != NO_CONJUNCTION))
    owners = np.concatenate([sets[alone], owners])
    tags = np.concatenate([conjunctions[alone], tags])
    order = np.argsort(owners, kind="stable")
    parts = Lists(offsets_of(np.bincount(owners, minlength=len(simple))), tags[order].astype(np.uint32))
    most = np.bincount(sets, minlength=len(simple)) + np.diff(offsets) - 1 - steps[offsets[1:] - 1, 2]
    others, due = np.full((len(sets), _OTHERS), NO_PLACE, np.uint16), np.zeros(len(sets), np.uint8)
    _add_others(sets, conjunctions, (parts.offsets, parts.values), np.where(simple, most, _OTHERS), others, due)
    return others, due


@kernel
def _add_others(sets, conjunctions, parts, most, others, due):
    """Of each set, the places of parts that are not the conjunction; `most` of the set's parts need not hold."""
    offsets, tags = parts
    for i in range(len(sets)):
        number, used = sets[i], 0
        for place in range(offsets[number], offsets[number + _U32(1)]):
            if used < _OTHERS and tags[place] != conjunctions[i]:
                others[i, used] = place_of(tags[place])
                used += 1
        due[i] = max(used - most[number], 0)


@kernel
def _add_bits(owners, tags, signatures):
    for i in range(len(owners)):
        signatures[owners[i]] |= bit_of(tags[i])
