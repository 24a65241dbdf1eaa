"""Exact verification: whether a message has all that the records of a set ask."""

from __future__ import annotations

import numpy as np

from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.pipeline.filters.index import COMPLEX, TAG
from tagmatch.pipeline.rules.verify import seek

_U32 = np.uint32


@kernel
def _holds(constraint, attributes, codes, constraints):
    """Whether a constraint of several intervals, or a negated one, holds: it does for any value, or for none."""
    of_constraint, negated, offsets, lows, highs = constraints
    for i in range(len(attributes)):
        if attributes[i] == of_constraint[constraint]:
            for interval in range(offsets[constraint], offsets[constraint + 1]):
                if lows[interval] <= codes[i] <= highs[interval]:
                    return not negated[constraint]
    return negated[constraint]


@inlined
def verified(first, last, records, first_codes, ranks, attributes, codes, constraints, several):
    """Whether a message has all that a set asks."""
    for record in range(first, last):
        attribute, low, span = records[record, 0], records[record, 1], records[record, 2]
        if attribute == TAG:
            at = seek(ranks, 0, len(ranks), low)
            if at == len(ranks) or ranks[at] != low:
                return False
        elif attribute == COMPLEX:
            if not _holds(low, attributes, codes, constraints):
                return False
        else:
            code = first_codes[attribute]
            if code == _U32(0) or _U32(code - low) > span:
                if code == _U32(0) or not several:
                    return False
                good = False
                for i in range(len(attributes)):
                    good |= attributes[i] == attribute and _U32(codes[i] - low) <= span
                if not good:
                    return False
    return True
