"""What sets with constraints ask of a message: records, by which that is verified, and tokens, by which it is found.

Every constraint that asks for a value implies a token: the name of its attribute, or the cell of a value at the level
as wide as the constraint. A tag is a token, too. How likely messages have each is counted as they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tagmatch.model.arrays import BoolArray, F64Array, I64Array, Strings, U32Array, U64Array, UIntArray, offsets_of
from tagmatch.model.input.values import NO_PLACES
from tagmatch.model.kernels.intrinsics import leading_zeros
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.tables import Segment
from tagmatch.model.where.tag_columns import Parsed
from tagmatch.pipeline.filters.attributes import Attributes, Constraints, Names, attributes_of
from tagmatch.pipeline.filters.codes import LEAST
from tagmatch.pipeline.tags import seek

#: In the place of the attribute, for the record of a tag, and of a constraint that is more than an interval
TAG, COMPLEX = np.uint32(0xFFFFFFFF), np.uint32(0xFFFFFFFE)

# So much that a set asks is sorted by comparing each with each
_FEW_THINGS = 32

_U32 = np.uint32


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What some sets ask, one thing after the other, set by set."""

    rows: I64Array  # the segment's row of each set
    owners: I64Array  # of each thing, the number of the set that asks it, ascending
    ranks: U32Array
    numbers: I64Array  # the constraint's number, if the tag with this rank encodes one; -1 for a plain tag

    def __post_init__(self) -> None:
        # Be it the segment's own memory or not: kernels are compiled for one of both
        self.ranks.setflags(write=False)

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
    """How each constraint is verified."""

    # [n, 3]: where the codes that satisfy it are one interval, its attribute, the least code, and how many more; of
    # others `COMPLEX`, the number in `complexes`, and 0
    records: U32Array
    complexes: Constraints  # those that are more than an interval


def tests_of(constraints: Constraints, last_codes: I64Array) -> Tests:
    """How constraints are verified; `last_codes` are those of the attributes."""
    offsets = constraints.offsets
    sizes = np.diff(offsets)
    lows, highs = constraints.hulls
    spans = highs - lows
    # All values except those of one interval: codes beyond the last one count as before the first
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


class Sets(NamedTuple):
    """What sets with constraints ask of a message; kernels of the CPU and of CUDA take it."""

    constraints: tuple[Any, ...]  # the arrays of those that are more than an interval
    rows: U32Array  # the segment's row of each set
    record_offsets: I64Array  # which records each set has
    # [n, 3], likely to fail first: attribute, least code, and how many more; for a tag `TAG` and its rank; for a
    # constraint that is more than an interval `COMPLEX` and the number of the constraint
    records: U32Array


@kernel
def _write_records(order, starts, ranks, numbers, chances, of_constraints, offsets, records):
    """Write the requirements of each set, least likely first, and equally likely ones in their order."""
    places = np.empty(_FEW_THINGS, np.int64)
    for row in range(len(order)):
        begin, end = starts[order[row]], starts[order[row] + 1]
        count = end - begin
        if count > len(places):
            places = np.empty(count, np.int64)
        if count > _FEW_THINGS:
            places[np.argsort(chances[begin:end], kind="mergesort")] = np.arange(count)
        else:
            # Without a branch on the comparison, which no processor can predict
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


def sets_of(asked: Asked, tests: Tests, chances: F64Array, order: I64Array) -> Sets:
    """The requirements of sets, in an order; `chances` says how likely messages meet each."""
    counts = asked.counts
    offsets = offsets_of(counts[order])
    records = np.empty((len(asked.numbers), 3), np.uint32)
    _write_records(order, offsets_of(counts), asked.ranks, asked.numbers, chances, tests.records, offsets, records)
    return Sets(tests.complexes.arrays, asked.rows[order].astype(np.uint32), offsets, records)


# -- verified ----------------------------------------------------------------------------------------------------------


@kernel
def _holds(constraint, attributes, codes, begin, end, constraints):
    """Whether a constraint of several intervals, or a negated one, holds: it does for any value, or for none."""
    of_constraint, negated, offsets, lows, highs = constraints
    for i in range(begin, end):
        if attributes[i] == of_constraint[constraint]:
            for interval in range(offsets[constraint], offsets[constraint + 1]):
                if lows[interval] <= codes[i] <= highs[interval]:
                    return not negated[constraint]
    return negated[constraint]


@kernel
def _any_within(attribute, low, span, attributes, codes, begin, end):
    for i in range(begin, end):
        if attributes[i] == attribute and _U32(codes[i] - low) <= span:
            return True
    return False


@kernel
def _has_rank(rank, ranks, begin, end):
    at = seek(ranks, begin, end, rank)
    return at < end and ranks[at] == rank


@inlined
def verified(first, last, records, message, first_codes, several, constraints):
    """Whether a message has all that a set asks in the records from `first` to `last`.

    The message has `attributes` and `codes` from `begin` to `end`, `ranks` of tags, and one code of each attribute in
    `first_codes`, 0 for none, or no such table; `several` says whether it may have others, too.
    """
    attributes, codes, begin, end, ranks, ranks_begin, ranks_end = message
    for record in range(first, last):
        attribute, low, span = records[record, 0], records[record, 1], records[record, 2]
        if attribute < COMPLEX:
            if first_codes is not None:
                code = first_codes[attribute]
                if code != _U32(0) and _U32(code - low) <= span:
                    continue
                if code == _U32(0) or not several:
                    return False
            if not _any_within(attribute, low, span, attributes, codes, begin, end):
                return False
        elif attribute == TAG:
            if not _has_rank(low, ranks, ranks_begin, ranks_end):
                return False
        elif not _holds(low, attributes, codes, begin, end, constraints):
            return False
    return True


@kernel
def _by_message(owners, rows, used, starts):
    """The rows of candidates, those of each message side by side; message `i` has those from `starts[i]` on."""
    for i in range(used):
        starts[owners[i] + 1] += 1
    for message in range(len(starts) - 1):
        starts[message + 1] += starts[message]
    places, sorted_rows = starts.copy(), np.empty(used, np.uint32)
    for i in range(used):
        place = places[owners[i]]
        places[owners[i]] = place + 1
        sorted_rows[place] = rows[i]
    return sorted_rows


@kernel
def keep_verified(first, last, candidates, messages, sets, first_codes, out):
    """Write behind the first `total` rows which rows messages `first` to `last` satisfy, and where each's end.

    Candidate `i` of `used` is set `by_candidate[i]`, for message `first + owners[i]`. Returns how many rows there are.
    """
    owners, by_candidate, used = candidates
    rank_offsets, ranks, message_offsets, attributes, codes = messages
    constraints, rows, record_offsets, records = sets
    kept, total, ends = out
    starts = np.zeros(last - first + 1, np.int64)
    found = _by_message(owners, by_candidate, used, starts)
    begins, stops = np.empty(used, np.int64), np.empty(used, np.int64)
    # Each miss of the cache in its own loop: the processor then waits for many at once
    for i in range(used):
        begins[i], stops[i] = record_offsets[found[i]], record_offsets[found[i] + 1]
    touched = np.uint32(0)
    for i in range(used):
        touched ^= records[begins[i], 0] ^ records[stops[i] - 1, 0] ^ rows[found[i]]
    for number in range(len(starts) - 1):
        begin, end = message_offsets[first + number], message_offsets[first + number + 1]
        if starts[number] < starts[number + 1]:
            ranks_begin, ranks_end = rank_offsets[first + number], rank_offsets[first + number + 1]
            message = (attributes, codes, begin, end, ranks, ranks_begin, ranks_end)
            several = False
            for i in range(begin, end):
                several |= first_codes[attributes[i]] != 0
                first_codes[attributes[i]] = codes[i]
            for i in range(starts[number], starts[number + 1]):
                kept[total] = rows[found[i]]
                total += np.int64(verified(begins[i], stops[i], records, message, first_codes, several, constraints))
            for i in range(begin, end):
                first_codes[attributes[i]] = 0
        ends[first + number + 1] = total
    return total, touched


# A cell is worth another token in each message if it tells many sets apart, or if the name tells few apart
_TELLING, _TELLING_COMMON, _COMMON = 5, 2, 0.25
# Of fewer messages nothing is learned
_ENOUGH = 1_000
# In place of a token's likelihood if there is no token
_NO_TOKEN = -1.0

_U = np.uint64


@dataclass(frozen=True, slots=True, eq=False)
class Likelihoods:
    """Which token each constraint implies, and how likely messages have it."""

    has_token: BoolArray  # of each thing that sets ask
    chances: F64Array  # of each thing; 1 without a token
    celled: BoolArray  # of each constraint: whether its token is a cell
    depths: I64Array  # of each constraint, the level of its cell; 0 without a cell
    bits: I64Array  # how many bits the codes of each attribute have; 0 for those without values

    def of(self, things: BoolArray) -> Likelihoods:
        """Those of some of the things."""
        if things.all():
            return self
        return replace(self, has_token=self.has_token[things], chances=self.chances[things])


@kernel
def _implied(constraints, bits, presence, celled, depths, likely):
    """Write of each constraint whether its token is a cell, at which level, and how likely it is; -1 if it has none."""
    attributes, negated, offsets, lows, highs = constraints
    for i in range(len(attributes)):
        begin, end = offsets[i], offsets[i + 1]
        if negated[i] or begin == end:
            likely[i] = _NO_TOKEN
            continue
        of_attribute, likely[i] = bits[attributes[i]], presence[attributes[i]]
        span = _U(highs[end - 1] - lows[begin])
        depth = of_attribute - (64 - np.int64(leading_zeros(span)) if span else 0)
        tells = depth >= _TELLING or (depth >= _TELLING_COMMON and presence[attributes[i]] > _COMMON)
        if of_attribute > 0 and tells:
            celled[i], depths[i] = True, depth
            likely[i] *= (1.0 if depth == of_attribute else 2.0) / np.float64(_U(1) << _U(depth))


@kernel
def _of_things(numbers, ranks, frequencies, sets, likely, has_token, chances):
    for i in range(len(numbers)):
        if numbers[i] < 0:
            chances[i] = min(frequencies[ranks[i]] / sets, 1.0)
        elif likely[numbers[i]] == _NO_TOKEN:
            has_token[i] = False
        else:
            chances[i] = likely[numbers[i]]


def presence_among(asked: Asked, constraints: Constraints, count: int) -> F64Array:
    """How many of the sets ask for each of `count` attributes: messages are taken to be as sets are."""
    used = asked.numbers[~asked.is_tag]
    wanted = np.bincount(constraints.attributes[used[constraints.some[used]]], minlength=count)
    presence: F64Array = np.minimum(wanted / max(len(asked), 1), 1.0)
    return presence


def likelihoods(
    asked: Asked, constraints: Constraints, attributes: Attributes, presence: F64Array, frequencies: U32Array
) -> Likelihoods:
    """The tokens of what sets ask; `presence` is how likely messages have each attribute, tags have `frequencies`."""
    bits = attributes.constants.bits.copy()
    bits[len(attributes.names) :] = 0
    count = len(constraints)
    celled, depths, likely = np.zeros(count, np.bool_), np.zeros(count, np.int64), np.zeros(count, np.float64)
    _implied(constraints.arrays, bits, presence, celled, depths, likely)
    has_token, chances = np.ones(len(asked.numbers), np.bool_), np.ones(len(asked.numbers), np.float64)
    _of_things(asked.numbers, asked.ranks, frequencies, max(len(asked), 1), likely, has_token, chances)
    return Likelihoods(has_token, chances, celled, depths, bits)


class TokenCells(NamedTuple):
    """Which tokens the values of an attribute are: its name, and cells of values at some levels."""

    first_cells: I64Array  # length attributes + 1: where the cells of each attribute begin among all tokens
    bits: I64Array  # how many bits the attribute's codes have; 0 for those without values
    levels: U64Array  # a bit for each level at which a set has a cell of the attribute
    # Of attributes, cells and ranks of tags, in this order: the number by which the token is known, from 1 on, least
    # likely first; 0 for those that no set has
    tokens: U32Array
    first_tag: int  # where the ranks of tags begin


# -- how often messages have attributes --------------------------------------------------------------------------------


@kernel
def count_messages(messages, attributes, since, counts):
    """Count messages, which have these attributes in all, in the arrays of a `Seen`."""
    since[0] += messages
    for attribute in attributes:
        if attribute < len(counts):
            counts[attribute] += 1


class Seen:
    """Messages, and those of them that have each attribute, which counts as often as it has values.

    Threads that count at the same time may lose some. Counts begin with those of `before`, made for other sets.
    """

    def __init__(self, names: Names, before: Sequence[Seen] = ()) -> None:
        self._names = names
        self._before, self._counts = _sums(names, before)
        self._since = np.zeros(1, np.int64)

    @property
    def arrays(self) -> tuple[I64Array, I64Array]:
        """What `count_messages` writes to."""
        return self._since, self._counts

    def count(
        self, messages: int, attributes: U32Array, columns: I64Array = NO_PLACES, sizes: I64Array = NO_PLACES
    ) -> None:
        """Count more messages: `attributes` in all of them, and `sizes` values in the `columns` of other attributes."""
        count_messages(messages, attributes, self._since, self._counts)
        if len(columns):
            np.add.at(self._counts, columns, sizes)

    @property
    def _messages(self) -> I64Array:
        """Messages that were seen since each attribute is known."""
        return self._before + self._since

    @property
    def presence(self) -> F64Array:
        """Which part of messages has each attribute; NaN where too few were seen."""
        messages = self._messages
        enough = messages >= _ENOUGH
        presence = np.full(len(enough), np.nan)
        presence[enough] = np.minimum(self._counts[enough] / messages[enough], 1.0)
        return presence


def _sums(names: Names, before: Sequence[Seen]) -> tuple[I64Array, I64Array]:
    """Messages, and those with each attribute, over all that know its name."""
    messages, counts = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
    if before:
        strings = [names.strings, *(seen._names.strings for seen in before)]
        offsets = offsets_of(np.concatenate([np.diff(each.offsets) for each in strings]))
        # These names come first, and so have the first numbers
        numbers = Names.of(Strings(offsets, np.concatenate([each.data for each in strings])))[1][len(names) :]
        known = numbers < len(names)
        np.add.at(messages, numbers[known], np.concatenate([seen._messages for seen in before])[known])
        np.add.at(counts, numbers[known], np.concatenate([seen._counts for seen in before])[known])
    return messages, counts


# -- all of it ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Requirements:
    """What some sets ask, and how likely messages have it."""

    asked: Asked
    attributes: Attributes  # Of all constraints of the vocabulary
    constraints: Constraints
    tests: Tests
    likely: Likelihoods  # Of what these sets ask
    ranks: int  # Of the vocabulary
    seen: Seen  # Counts the messages that come

    def __len__(self) -> int:
        return len(self.asked)

    def only(self, chosen: BoolArray) -> Requirements:
        """Those of some of the sets."""
        return replace(self, asked=self.asked.only(chosen), likely=self.likely.of(chosen[self.asked.owners]))


def cells_of(required: Requirements) -> tuple[TokenCells, U32Array, int]:
    """The tokens of some sets; that of each thing that has one; how many."""
    asked, constraints, likely = required.asked, required.constraints, required.likely
    attributes = required.attributes.count
    of_attribute, bits, depths = constraints.attributes, likely.bits, likely.depths
    used = np.zeros(len(constraints), np.bool_)
    used[asked.numbers[~asked.is_tag]] = True
    used &= likely.celled
    levels = np.zeros(attributes, np.uint64)
    np.bitwise_or.at(levels, of_attribute[used], np.uint64(1) << depths[used].astype(np.uint64))
    first_cells = attributes + np.concatenate([[0], np.cumsum(np.where(levels > 0, np.int64(2) << bits, 0))])
    lows = constraints.hulls[0].astype(np.int64)
    token_at = np.where(
        likely.celled,
        first_cells[of_attribute] + (np.int64(1) << depths) + (lows >> (bits[of_attribute] - depths)),
        of_attribute,
    )
    first_tag = int(first_cells[-1])
    has_token = likely.has_token
    # Tags, which may be all that sets ask for, have the number before the first
    of_numbers = np.append(token_at, 0)[asked.numbers]
    places = np.where(asked.is_tag, first_tag + asked.ranks, of_numbers)[has_token]
    different, first_use = np.unique(places, return_index=True)
    order = different[np.argsort(likely.chances[has_token][first_use], kind="stable")]
    tokens = np.zeros(first_tag + required.ranks, np.uint32)
    tokens[order] = np.arange(1, len(order) + 1, dtype=np.uint32)
    return TokenCells(first_cells, bits, levels, tokens, first_tag), tokens[places], len(order)


def requirements_of(
    asked: Asked, found: Parsed, tags: Strings, frequencies: UIntArray, before: Sequence[Seen] = ()
) -> Requirements:
    """What sets ask, which `found` are the constraints of; `before` has seen messages, such as are expected."""
    attributes, constraints = attributes_of(tags, found)
    seen = Seen(attributes.names, before)
    # Where nothing is known of messages, they are taken to be as sets are
    presence = presence_among(asked, constraints, attributes.count)
    learned = seen.presence
    presence[: len(learned)] = np.where(np.isnan(learned), presence[: len(learned)], learned)
    likely = likelihoods(asked, constraints, attributes, presence, frequencies)
    tests = tests_of(constraints, attributes.constants.last_codes)
    return Requirements(asked, attributes, constraints, tests, likely, len(tags), seen)
