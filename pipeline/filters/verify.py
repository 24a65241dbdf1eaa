"""Exact verification: whether a message has all that the records of a set ask."""

from __future__ import annotations

import numpy as np

from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.pipeline.filters.asked import COMPLEX, TAG
from tagmatch.pipeline.rules import seek

_U32 = np.uint32


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
def verified(
    first, last, records, first_codes, several, attributes, codes, begin, end,
    ranks, ranks_begin, ranks_end, constraints,
):  # fmt: skip
    """Whether a message has all that a set asks in the records from `first` to `last`.

    Parameters
    ----------
    first_codes : uint32 array
        The code of one value of each attribute of the message, 0 for those that it has not.
    several : bool
        Whether an attribute may have other values, too.
    attributes, codes, begin, end
        The message's attributes, those from `begin` to `end`.
    ranks, ranks_begin, ranks_end
        The ranks of its tags.
    constraints : tuple
        `Constraints.arrays`.
    """
    for record in range(first, last):
        attribute, low, span = records[record, 0], records[record, 1], records[record, 2]
        if attribute < COMPLEX:
            code = first_codes[attribute]
            if code != _U32(0) and _U32(code - low) <= span:
                continue
            if code == _U32(0) or not several or not _any_within(attribute, low, span, attributes, codes, begin, end):
                return False
        elif attribute == TAG:
            if not _has_rank(low, ranks, ranks_begin, ranks_end):
                return False
        elif not _holds(low, attributes, codes, begin, end, constraints):
            return False
    return True


@inlined
def verified_in_list(
    first, last, records, attributes, codes, begin, end, ranks, ranks_begin, ranks_end, constraints
):  # fmt: skip
    """As `verified`, where there is no table of a message's codes by attribute: on CUDA."""
    for record in range(first, last):
        attribute, low, span = records[record, 0], records[record, 1], records[record, 2]
        if attribute < COMPLEX:
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
def keep_verified(
    first, last, owners, candidates, used, rank_offsets, ranks, message_offsets, attributes, codes,
    constraints, rows, record_offsets, records, first_codes, out, total, ends,
):  # fmt: skip
    """Write behind the first `total` of `out` which rows messages `first` to `last` satisfy, and where each's end.

    Candidate `i` of `used` is set `candidates[i]`, for message `first + owners[i]`. Returns how many rows there are.
    """
    starts = np.zeros(last - first + 1, np.int64)
    found = _by_message(owners, candidates, used, starts)
    begins, stops = np.empty(used, np.int64), np.empty(used, np.int64)
    # Each miss of the cache in a loop of its own: the processor then waits for many at once
    for i in range(used):
        begins[i], stops[i] = record_offsets[found[i]], record_offsets[found[i] + 1]
    touched = np.uint32(0)
    for i in range(used):
        touched ^= records[begins[i], 0] ^ records[stops[i] - 1, 0] ^ rows[found[i]]
    for message in range(len(starts) - 1):
        begin, end = message_offsets[first + message], message_offsets[first + message + 1]
        if starts[message] < starts[message + 1]:
            several = False
            for i in range(begin, end):
                several |= first_codes[attributes[i]] != 0
                first_codes[attributes[i]] = codes[i]
            for i in range(starts[message], starts[message + 1]):
                out[total] = rows[found[i]]
                total += np.int64(
                    verified(
                        begins[i], stops[i], records, first_codes, several, attributes, codes, begin, end,
                        ranks, rank_offsets[first + message], rank_offsets[first + message + 1], constraints,
                    )
                )  # fmt: skip
            for i in range(begin, end):
                first_codes[attributes[i]] = 0
        ends[first + message + 1] = total
    return total, touched
