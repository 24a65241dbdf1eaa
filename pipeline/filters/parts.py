"""Finds sets that ask for a number of parts, as `at least 2 of {…}` does, or for tests that are computed.

A test that is computed (see `tagmatch.pipeline.filters.computed`) is a tag here, which messages have if it holds.

If `k` of `n` parts hold, one of any `n - k + 1` parts does: a set is reached by each of its `n - k + 1` least likely
parts. Such a part is a conjunction of tags and tests, which many sets may share. A message's conjunctions are found
once, by its tags or in an index, and counted for each set that has them. What is left of each set that has one is then
verified: a program in postfix order. See `tagmatch.pipeline.filters.plans` for how both are planned.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np

from tagmatch.model.arrays import Lists, Strings, U32Array
from tagmatch.model.kernels.intrinsics import ones, prefetch
from tagmatch.model.kernels.jit import kernel, lent, with_room
from tagmatch.model.kernels.lists import gather, gather_strings
from tagmatch.model.kernels.tag_table import areas_among
from tagmatch.model.tables import Segment
from tagmatch.model.where.constraints import PARTS, VERIFIED
from tagmatch.pipeline.filters.asked import COMPLEX, TAG
from tagmatch.pipeline.filters.computed import are_of_kinds
from tagmatch.pipeline.filters.messages import MessageTable, messages_of
from tagmatch.pipeline.filters.plans import (
    COUNTED,
    MOST,
    NO_CONJUNCTION,
    NO_PLACE,
    WITH_FOUND,
    Made,
    Plan,
    place_of,
    tree_of,
)
from tagmatch.pipeline.filters.trie import bit_of
from tagmatch.pipeline.segment import Finder, RowsFound, SegmentMessages

_U, _U32 = np.uint64, np.uint32


class PartsFinder(Finder):
    """Finds sets that ask for parts; what finds them is made when the first message comes."""

    def __init__(self, count: int, make: Callable[[], Made]) -> None:
        self._count, self._make, self._making = count, make, Lock()
        self._made: Made | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """As `Finder` says."""
        return 0 if self._made is None else self._made.nbytes

    def _own(self) -> Made:
        if self._made is None:
            with self._making:
                if self._made is None:
                    self._made = self._make()
        return self._made

    def prepare(self, messages: SegmentMessages) -> MessageTable:
        """Messages as ranks of the tags that parts have, and codes."""
        own = self._own()
        ranks = own.tags.ranks(messages.tags, messages.first, messages.last)
        table = messages_of(ranks, messages.tags, messages.first, messages.last, own.filters.attributes)
        own.filters.seen.count(len(messages), table.attributes)
        return table if own.computed is None else own.computed.with_held(table, messages)

    def find(self, prepared: MessageTable) -> RowsFound:
        """As `Finder` says."""
        own = self._own()
        rows, rejected, _ = own.filters.rows_found(prepared)
        ends, room = np.zeros(len(prepared.offsets), np.int64), np.zeros(own.filters.attributes.count, np.uint32)
        found = (rows.offsets.astype(np.int64, copy=False), rows.values.astype(np.uint32, copy=False))
        constraints = own.filters.constraints.arrays
        kept, looked_at = _verified(prepared, found, own.reached, own.programs, constraints, room, ends)
        return RowsFound(Lists(ends, kept), rejected + looked_at - len(kept))

    def one_query(self, segment: Segment, tags: Any) -> None:
        """None: a single message is a packet."""


@lent
def _holds(step, message, first_codes, several, has_tag, constraints):
    """Whether a message satisfies the tag or the constraint of a step."""
    attribute, low, span = step
    if attribute == TAG:
        return has_tag[low] != 0
    attributes, codes, begin, end = message
    if attribute != COMPLEX:
        code = first_codes[attribute]
        holds = code != _U32(0) and _U32(code - low) <= span
        if several and not holds:
            for i in range(begin, end):
                holds |= attributes[i] == attribute and _U32(codes[i] - low) <= span
        return holds
    of_constraint, negated, offsets, lows, highs = constraints
    for i in range(begin, end):
        if attributes[i] == of_constraint[low]:
            for interval in range(offsets[low], offsets[low + _U32(1)]):
                if lows[interval] <= codes[i] <= highs[interval]:
                    return not negated[low]
    return negated[low]


@lent
def _count(conjunction, reached, own, counts, candidates, used):
    """Count a conjunction for each set that has it and may hold; those that had none yet are candidates.

    Most sets hold not: their other parts are looked at first, as they lie one after the other, and counts do not.
    """
    _, offsets, sets, others, due = reached
    for i in range(_U(offsets[conjunction]), _U(offsets[conjunction + _U32(1)])):
        held = own[others[i, 0]] + own[others[i, 1]] + own[others[i, 2]] + own[others[i, 3]]
        if held >= due[i]:
            number = sets[i]
            count = counts[number]
            candidates[used] = number
            used += np.int64(count == 0)
            counts[number] = count + np.uint8(count < MOST)
    return used


@kernel
def _verified(messages, found, reached, programs, constraints, first_codes, ends):
    """The rows whose program holds for a message, and where those of each message end; how many were looked at."""
    rank_offsets, ranks, message_offsets, attributes, codes = messages
    found_offsets, conjunctions = found
    rows, step_offsets, steps, signatures, most = programs
    of_tags, looked_at, total = reached[0], np.int64(0), np.int64(0)
    results, kept = np.empty(most, np.uint8), np.empty(0, np.uint32)
    has_tag, counts = np.zeros(len(of_tags), np.uint8), np.zeros(len(rows), np.uint8)
    # One more is written before it is known to be no candidate
    candidates = np.empty(len(rows) + 1, np.uint32)
    own_places = np.zeros(NO_PLACE + 1, np.uint8)
    for owner in range(len(ends) - 1):
        ranks_begin, ranks_end, used = rank_offsets[owner], rank_offsets[owner + 1], np.int64(0)
        own = _U(0)
        for i in range(ranks_begin, ranks_end):
            own |= bit_of(ranks[i])
            own_places[place_of(ranks[i])] = 1
        for i in range(ranks_begin, ranks_end):
            if of_tags[ranks[i]] != NO_CONJUNCTION:
                used = _count(of_tags[ranks[i]], reached, own_places, counts, candidates, used)
        for i in range(found_offsets[owner], found_offsets[owner + 1]):
            used = _count(conjunctions[i], reached, own_places, counts, candidates, used)
        for i in range(ranks_begin, ranks_end):
            own_places[place_of(ranks[i])] = 0
        looked_at += used
        left = np.int64(0)
        for i in range(used):
            number = candidates[i]
            candidates[left] = number
            is_left = ones(signatures[number] & ~own) < _U(counts[number])
            prefetch(step_offsets, number)
            prefetch(rows, number)
            left += np.int64(is_left)
            counts[number] *= np.uint8(is_left)
        if left:
            for i in range(left):
                prefetch(steps, 3 * step_offsets[candidates[i]])
            begin, end, several = message_offsets[owner], message_offsets[owner + 1], False
            message = (attributes, codes, begin, end)
            for i in range(begin, end):
                several |= first_codes[attributes[i]] != 0
                first_codes[attributes[i]] = codes[i]
            for i in range(ranks_begin, ranks_end):
                has_tag[ranks[i]] = 1
            kept = with_room(kept, total, left)
            for i in range(left):
                number, top = candidates[i], 0
                for place in range(step_offsets[number], step_offsets[number + _U32(1)]):
                    step = (steps[place, 0], steps[place, 1], steps[place, 2])
                    if step[0] == COUNTED or step[0] == WITH_FOUND:
                        held = _U32(counts[number]) if step[0] == WITH_FOUND else _U32(0)
                        for _ in range(step[1]):
                            top -= 1
                            held += _U32(results[top])
                        results[top] = held >= step[2]
                    else:
                        results[top] = _holds(step, message, first_codes, several, has_tag, constraints)
                    top += 1
                counts[number] = 0
                kept[total] = rows[number]
                total += np.int64(results[0])
            for i in range(begin, end):
                first_codes[attributes[i]] = 0
            for i in range(ranks_begin, ranks_end):
                has_tag[ranks[i]] = 0
        ends[owner + 1] = total
    return kept[:total].copy(), looked_at


def parts_of_sets(segment: Segment) -> PartsFinder | None:
    """What finds the sets of a segment that ask for parts, or for tests that are computed; `None` if none does."""
    tags, ranks = segment.vocabulary.tags, segment.tagsets.ranks
    are_parts = are_of_kinds(tags, (PARTS, *VERIFIED))
    if not are_parts.any():
        return None
    owners = np.repeat(np.arange(len(ranks)), ranks.lengths())
    # Those that ask for areas, too, are found by these
    rows = np.setdiff1d(owners[are_parts[ranks.values]], owners[areas_among(tags)[ranks.values]]).astype(np.uint32)

    def made() -> Made:
        of_rows = gather(ranks, rows.astype(np.uint64))
        used, places = np.unique(of_rows.values, return_inverse=True)
        tree = tree_of(gather_strings(tags, used.astype(np.uint64)), of_rows.offsets, places)
        return Plan(tree).finder(rows)

    return PartsFinder(len(rows), made) if len(rows) else None


def holding_of(tags: Strings, ranks: U32Array) -> PartsFinder:
    """What finds which of these tags, of parts and of tests that are computed, hold; its rows are their ranks."""
    places = np.arange(len(ranks) + 1)

    def made() -> Made:
        return Plan(tree_of(gather_strings(tags, ranks.astype(np.uint64)), places, places[:-1])).finder(ranks)

    return PartsFinder(len(ranks), made)
