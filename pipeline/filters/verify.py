"""Exact verification: whether a message has all that the records of a set ask."""

from __future__ import annotations

import numpy as np

from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.pipeline.filters.asked import COMPLEX, TAG
from tagmatch.pipeline.rules.verify import seek

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
