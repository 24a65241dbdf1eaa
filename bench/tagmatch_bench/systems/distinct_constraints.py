"""Constraints that several filters have, stored once: by attribute and kind, then by operand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tagmatch.model.kernels.jit import inlined
from tagmatch_bench.systems.content_matcher import BETWEEN, CONTAINS, GREATER, LESS, Filters

if TYPE_CHECKING:
    import numpy.typing as npt

    from tagmatch.model.arrays import I64Array, U32Array

# An interval is two constraints, one of each of these kinds, with which the numbers of the operators go on
FROM, UP_TO = BETWEEN, CONTAINS + 1
KINDS = UP_TO + 1


class Distinct(NamedTuple):
    """Distinct constraints, and the filters that have them.

    Those of group `attribute * KINDS + kind` are from `groups[group]` to `groups[group + 1]`; constraint `i` is one of
    the filters `filters[lists[i] : lists[i + 1]]`. `sizes` has the constraints of each filter; an interval is two.
    """

    groups: I64Array
    operands: npt.NDArray[Any]
    lists: I64Array
    filters: U32Array
    sizes: I64Array


def distinct_of(filters: Filters) -> Distinct:
    """Store each constraint once."""
    interval = filters.operators == BETWEEN
    kinds = np.concatenate([filters.operators, np.full(int(interval.sum()), UP_TO, np.uint8)])
    operands = np.concatenate([filters.values, filters.uppers[interval]])
    of, attributes = (np.concatenate([column, column[interval]]) for column in (filters.filters, filters.attributes))
    groups = attributes.astype(np.int64) * KINDS + kinds
    order = np.lexsort((of, operands, groups))
    groups, operands = groups[order], operands[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (groups[1:] != groups[:-1]) | (operands[1:] != operands[:-1])
    return Distinct(
        np.searchsorted(groups[new], np.arange(len(filters.names) * KINDS + 1)),
        operands[new],
        np.append(np.flatnonzero(new), len(order)),
        of[order],
        filters.sizes + np.bincount(filters.filters[interval], minlength=len(filters.sizes)),
    )


@inlined
def place_of(operands, first, last, x, after):
    """Return the first place whose operand is not below `x`, or with `after` is above it; `last` if none is."""
    while first < last:
        middle = (first + last) >> 1
        if operands[middle] < x or (after and operands[middle] == x):
            first = middle + 1
        else:
            last = middle
    return first


@inlined
def satisfied_run(kind, operands, first, last, x):
    """Return the run of constraints of a kind that `x` satisfies; of UNEQUAL, the one that it does not."""
    if kind == LESS:
        return place_of(operands, first, last, x, True), last
    if kind == UP_TO:
        return place_of(operands, first, last, x, False), last
    if kind == GREATER:
        return first, place_of(operands, first, last, x, False)
    if kind == FROM:
        return first, place_of(operands, first, last, x, True)
    return place_of(operands, first, last, x, False), place_of(operands, first, last, x, True)
