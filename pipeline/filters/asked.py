"""What sets with constraints ask of a message, and the records by which that is verified."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import BoolArray, F64Array, I64Array, U32Array, frozen, offsets_of
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.tables import Segment
from tagmatch.pipeline.filters.attributes import Constraints
from tagmatch.pipeline.filters.codes import LEAST
from tagmatch.pipeline.filters.parsing import Parsed

#: What stands for the attribute in the record of a tag, and of a constraint that is more than an interval
TAG, COMPLEX = np.uint32(0xFFFFFFFF), np.uint32(0xFFFFFFFE)

# So much that a set asks is sorted by comparing each with each
_FEW_THINGS = 32


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

    def __post_init__(self) -> None:
        # Be it the segment's own memory or not: kernels are compiled for one of both
        object.__setattr__(self, "ranks", frozen(self.ranks))

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
        if chosen.all():
            return self
        kept = chosen[self.owners]
        numbers = np.cumsum(chosen) - 1
        return Asked(self.rows[chosen], numbers[self.owners[kept]], self.ranks[kept], self.numbers[kept])


# Of tags, instead of the number of a constraint: those that are none, and those that only begin like one
_PLAIN, _UNKNOWN = -1, -2


@kernel
def _have_constraints(offsets, numbers, out):
    """Whether each row has a tag that is not plain."""
    for row in range(len(out)):
        found = False
        for place in range(offsets[row], offsets[row + 1]):
            found |= numbers[place] != _PLAIN
        out[row] = found


def asked_in(segment: Segment, found: Parsed, is_constraint: BoolArray) -> Asked:
    """What the sets of a segment that have constraints ask."""
    ranks = segment.tagsets.ranks
    number_of = np.where(is_constraint, np.int32(_UNKNOWN), np.int32(_PLAIN))
    number_of[found.ranks] = np.arange(len(found), dtype=np.int32)
    numbers = number_of[ranks.values]
    chosen = np.empty(len(ranks), np.bool_)
    _have_constraints(ranks.offsets, numbers, chosen)
    rows, sizes = np.arange(len(ranks)), ranks.lengths()
    asked = Asked(rows, np.repeat(rows, sizes), ranks.values, numbers.astype(np.int64))
    # What only begins like a constraint never holds: its sets have no way to match
    chosen[asked.owners[numbers == _UNKNOWN]] = False
    return asked.only(chosen)


@dataclass(frozen=True, slots=True, eq=False)
class Tests:
    """How each constraint is verified.

    Attributes
    ----------
    records : uint32[n, 3] array
        Where the codes that satisfy it are one interval, its attribute, the least code, and how many more; of others
        `COMPLEX`, the number in `complexes`, and 0.
    complexes : Constraints
        Those that are more than an interval.
    """

    records: U32Array
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
    records = np.empty((len(constraints), 3), np.uint32)
    records[:, 0], records[:, 1], records[:, 2] = constraints.attributes, lows, spans
    several = np.flatnonzero(~simple)
    records[several, 0], records[several, 1], records[several, 2] = COMPLEX, np.arange(len(several)), 0
    return Tests(records, constraints.only(~simple))


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


@kernel
def _write_records(order, starts, ranks, numbers, chances, of_constraints, offsets, records):
    """Write what each set asks, least likely first and what is as likely in its order."""
    places = np.empty(_FEW_THINGS, np.int64)
    for row in range(len(order)):
        begin, end = starts[order[row]], starts[order[row] + 1]
        count = end - begin
        if count > len(places):
            places = np.empty(count, np.int64)
        if count > _FEW_THINGS:
            places[np.argsort(chances[begin:end], kind="mergesort")] = np.arange(count)
        else:
            # Without a branch on what is compared, which no processor can foresee
            for i in range(count):
                before = np.int64(0)
                for other in range(i):
                    before += np.int64(chances[begin + other] <= chances[begin + i])
                for other in range(i + 1, count):
                    before += np.int64(chances[begin + other] < chances[begin + i])
                places[i] = before
        for i in range(count):
            number, at = numbers[begin + i], offsets[row] + places[i]
            if number < 0:
                records[at, 0], records[at, 1], records[at, 2] = TAG, ranks[begin + i], 0
            else:
                for column in range(3):
                    records[at, column] = of_constraints[number, column]


def records_of(asked: Asked, tests: Tests, chances: F64Array, order: I64Array) -> Records:
    """The records of sets in an order; `chances` says how likely messages have what is asked."""
    counts = asked.counts
    offsets = offsets_of(counts[order])
    values = np.empty((len(asked.numbers), 3), np.uint32)
    _write_records(order, offsets_of(counts), asked.ranks, asked.numbers, chances, tests.records, offsets, values)
    return Records(offsets, values)
