"""Counting with an index of distinct constraints, as in Siena's forwarding algorithm."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import BoolArray, I64Array, U32Array
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch_bench.systems.content_matcher import (
    BETWEEN,
    CONTAINS,
    GREATER,
    LESS,
    UNEQUAL,
    ContentMatcher,
    Filters,
    Messages,
    add_match,
    narrow_sizes,
)
from tagmatch_bench.systems.matcher import first_of_equals

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
    new = first_of_equals(groups, operands)
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


class _Index(NamedTuple):
    """Distinct constraints, as `Distinct` has them, and what filters are; `unmarked` is not marked anywhere."""

    groups: I64Array
    operands: npt.NDArray[Any]
    lists: I64Array
    filters: U32Array
    sizes: npt.NDArray[Any]
    interfaces: U32Array
    unmarked: BoolArray
    always: U32Array


class Sff(ContentMatcher):
    """SFF: A. Carzaniga, A. L. Wolf, "Forwarding in a Content-Based Network", SIGCOMM 2003. Exact.

    As PCM's §4 sums it up: constraints that several filters have are stored once, here in the order of their operands,
    so that a binary search finds those which an attribute's value satisfies; each part of a text is looked up among
    those that texts are to contain. With `unique`, filters of an interface that has been marked are not counted any
    more, and a message is done when all interfaces are. Simplified: filters of marked interfaces are not taken out of
    the lists, but skipped one by one: to keep each list in the order of interfaces and jump over those of a marked one
    takes twice as long in PCM's scenario, where a list has two or three of each. Counters are cleared for each message,
    all at once.
    """

    def _build(self, filters: Filters) -> _Index:
        distinct = distinct_of(filters)
        return _Index(
            distinct.groups,
            distinct.operands,
            distinct.lists,
            distinct.filters,
            narrow_sizes(distinct.sizes),
            filters.interfaces,
            np.zeros(len(filters.keys), np.bool_),
            np.flatnonzero(distinct.sizes == 0).astype(np.uint32),
        )

    def _find(self, messages: Messages, *, unique: bool, ends: I64Array) -> U32Array:
        found: U32Array = _count(messages.columns, self._tables, unique, ends)
        return found


@inlined
def _add(run, index, memory, unique, found, used, purged):
    """Count a run of constraints as satisfied; with `purged`, some interface is marked."""
    # Before some interface is marked, not to look up whose each filter is takes a tenth less time
    counts, marked = memory
    for i in range(index.lists[run[0]], index.lists[run[1]]):
        of = index.filters[i]
        if purged and marked[index.interfaces[of]]:
            continue
        counts[of] += 1
        if counts[of] == index.sizes[of]:
            found, used = add_match(found, used, index.interfaces[of], marked, unique)
            purged = unique
    return found, used


@inlined
def _add_contained(text, run, index, memory, unique, found, used, purged):
    """Count the constraints whose operand a text contains as satisfied: each of its parts is looked up, once."""
    whole = np.int64(text)
    first, last = run
    while whole and whole & 255 == 0:
        whole >>= 8
    ones = np.int64(0)
    while True:
        rest = whole
        while rest > ones >> 8 or rest == whole:
            part, earlier = rest & ones, whole
            while earlier > rest and earlier & ones != part:
                earlier >>= 8
            if earlier == rest:
                low = place_of(index.operands, first, last, part, False)
                high = place_of(index.operands, low, last, part, True)
                found, used = _add((low, high), index, memory, unique, found, used, purged)
            if rest == 0:
                break
            rest >>= 8
        if ones >= whole:
            break
        ones = ones << 8 | 255
    return found, used


@kernel
def _count(messages, index, unique, ends):
    """Interfaces of the filters that match each message, and in `ends` where each message's end."""
    offsets, attributes, values = messages
    found = np.empty(1024, np.uint32)
    used = 0
    counts, marked = memory = np.zeros_like(index.sizes), np.zeros_like(index.unmarked)
    for message in range(len(ends) - 1):
        counts[:] = 0
        marked[:] = False
        begin = used
        for of in index.always:
            found, used = add_match(found, used, index.interfaces[of], marked, unique)
        for i in range(offsets[message], offsets[message + 1]):
            if unique and used - begin == len(marked):
                break
            for kind in range(KINDS):
                group = np.int64(attributes[i]) * KINDS + kind
                first, last = index.groups[group], index.groups[group + 1]
                purged = unique and used > begin
                if kind == CONTAINS:
                    if first < last:
                        run = first, last
                        found, used = _add_contained(values[i], run, index, memory, unique, found, used, purged)
                    continue
                low, high = satisfied_run(kind, index.operands, first, last, values[i])
                if kind == UNEQUAL:
                    found, used = _add((first, low), index, memory, unique, found, used, purged)
                    low, high = high, last
                found, used = _add((low, high), index, memory, unique, found, used, purged)
        ends[message + 1] = used
    return found[:used]
