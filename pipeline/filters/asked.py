"""What sets with constraints ask of a message, and the records by which that is verified."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import BoolArray, F64Array, I64Array, U32Array, offsets_of
from tagmatch.model.tables import Segment
from tagmatch.pipeline.filters.attributes import Constraints
from tagmatch.pipeline.filters.codes import LEAST
from tagmatch.pipeline.filters.parsing import Parsed

#: What stands for the attribute in the record of a tag, and of a constraint that is more than an interval
TAG, COMPLEX = np.uint32(0xFFFFFFFF), np.uint32(0xFFFFFFFE)


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What some sets ask, one thing after the other, set by set.

    Attributes
    ----------
    rows : int64 array
        The segment's row of each set.
    owners : int64 array
        Of each thing, the number of the set that asks it, ascending.
    ranks : uint32 array
    numbers : int64 array
        Of the constraint that the tag with this rank stands for; -1 for a plain tag.
    """

    rows: I64Array
    owners: I64Array
    ranks: U32Array
    numbers: I64Array

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def is_tag(self) -> BoolArray:
        """Which things are plain tags."""
        tags: BoolArray = self.numbers < 0
        return tags

    @property
    def counts(self) -> I64Array:
        """How much each set asks."""
        return np.bincount(self.owners, minlength=len(self))

    def only(self, chosen: BoolArray) -> Asked:
        """What some of the sets ask."""
        kept = chosen[self.owners]
        numbers = np.cumsum(chosen) - 1
        return Asked(self.rows[chosen], numbers[self.owners[kept]], self.ranks[kept], self.numbers[kept])


def asked_in(segment: Segment, found: Parsed, is_constraint: BoolArray) -> Asked:
    """What the sets of a segment that have constraints ask."""
    ranks = segment.tagsets.ranks
    sizes = ranks.lengths()
    of_values = np.repeat(np.arange(len(ranks)), sizes)
    rows = np.flatnonzero(np.bincount(of_values[is_constraint[ranks.values]], minlength=len(ranks)) > 0)
    sizes = sizes[rows]
    starts = offsets_of(sizes)
    values = ranks.values[np.arange(int(starts[-1])) + np.repeat(ranks.offsets[rows] - starts[:-1], sizes)]
    number_of = np.full(len(is_constraint), -1, np.int64)
    number_of[found.ranks] = np.arange(len(found))
    asked = Asked(rows, np.repeat(np.arange(len(rows)), sizes), values, number_of[values])
    known = (asked.numbers >= 0) | ~is_constraint[values]
    if known.all():
        return asked
    # What only begins like a constraint never holds: its sets have no way to match
    has_way = np.ones(len(asked), np.bool_)
    has_way[asked.owners[~known]] = False
    return asked.only(has_way)


@dataclass(frozen=True, slots=True, eq=False)
class Tests:
    """How each constraint is verified.

    Attributes
    ----------
    attributes : uint32 array
        Where the codes that satisfy it are one interval, its attribute, else `COMPLEX`.
    lows, spans : uint32 arrays
        The least code of the interval, and how many more; of others, the number in `complexes`, and 0.
    complexes : Constraints
        Those that are more than an interval.
    """

    attributes: U32Array
    lows: U32Array
    spans: U32Array
    complexes: Constraints


def tests_of(constraints: Constraints, last_codes: I64Array) -> Tests:
    """How constraints are verified; `last_codes` are those of the attributes."""
    offsets = constraints.offsets
    sizes = np.diff(offsets)
    lows, highs = constraints.hulls
    spans = highs - lows
    # All values but those of one interval: what is beyond the last code counts as before the first
    around = ~constraints.negated & (sizes == 2)
    around[around] = (constraints.lows[offsets[:-1][around]] == LEAST) & (
        constraints.highs[offsets[1:][around] - 1] == last_codes[constraints.attributes[around]]
    )
    lows[around] = constraints.lows[offsets[1:][around] - 1]
    spans[around] = constraints.highs[offsets[:-1][around]] - lows[around]
    simple = ~constraints.negated & (sizes == 1) | around
    complex_numbers = np.cumsum(~simple) - 1
    return Tests(
        np.where(simple, constraints.attributes, COMPLEX).astype(np.uint32),
        np.where(simple, lows, complex_numbers).astype(np.uint32),
        np.where(simple, spans, 0).astype(np.uint32),
        constraints.only(~simple),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """What sets ask of a message.

    Attributes
    ----------
    offsets : int64 array
        Which records each set has.
    values : uint32[n, 3] array
        Likely to fail first: attribute, least code, and how many more. For a tag `TAG` and its rank, for what is more
        than an interval `COMPLEX` and the number of the constraint.
    """

    offsets: I64Array
    values: U32Array


def records_of(asked: Asked, tests: Tests, chances: F64Array, order: I64Array) -> Records:
    """The records of sets in an order; `chances` says how likely messages have what is asked."""
    by_chance = np.lexsort((chances, asked.owners))
    is_tag, numbers = asked.is_tag[by_chance], asked.numbers[by_chance]
    values = np.empty((len(numbers), 3), np.uint32)
    values[:, 0] = np.where(is_tag, TAG, tests.attributes[numbers])
    values[:, 1] = np.where(is_tag, asked.ranks[by_chance], tests.lows[numbers])
    values[:, 2] = np.where(is_tag, 0, tests.spans[numbers])
    counts = asked.counts
    starts, offsets = offsets_of(counts), offsets_of(counts[order])
    moved = np.arange(len(values)) + np.repeat(starts[:-1][order] - offsets[:-1], counts[order])
    return Records(offsets, values[moved])
