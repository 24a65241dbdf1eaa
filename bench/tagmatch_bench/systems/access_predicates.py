"""The matcher of "Pub/Sub on Stream" in its two phases: which predicates hold, and which clusters have only such."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import BoolArray, F64Array, I64Array, U32Array, offsets_of
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch_bench.systems.content_matcher import (
    CONTAINS,
    EQUAL,
    GREATER,
    LESS,
    UNEQUAL,
    ContentMatcher,
    Filters,
    Messages,
    add_match,
    contains,
    ones_of,
)
from tagmatch_bench.systems.matcher import first_of_equals
from tagmatch_bench.systems.sff import FROM, KINDS, UP_TO, Distinct, distinct_of, satisfied_run

I32Array = npt.NDArray[np.int32]

#: Share of values that contain a text: unknown
_CONTAIN = 0.5


class _Index(NamedTuple):
    """Predicates, and filters in clusters.

    Predicates of group `attribute * KINDS + kind` are from `groups[group]` to `groups[group + 1]`, in the order of
    their `operands`. Entry `a` of the cluster bit vector is predicate `access[a]`, whose clusters are from `lists[a]`
    to `lists[a + 1]`. Cluster `c` has the filters `rows[c]` to `rows[c + 1]`, each with `widths[c]` other predicates:
    a column in `others` for the first of each filter, from `columns[c]` on, then one for the second. `unmarked` is not
    marked anywhere; interfaces of filters without constraints are in `always`.
    """

    groups: I64Array
    operands: npt.NDArray[Any]
    access: I32Array
    lists: I64Array
    rows: I64Array
    widths: I64Array
    columns: I64Array
    others: I32Array
    interfaces: U32Array
    unmarked: BoolArray
    always: U32Array


class AccessPredicates(ContentMatcher):
    """The H and C phases of Z. Wang et al., "Pub/Sub on Stream", DEBS 2012, §4, after F. Fabret et al., SIGMOD 2001. Exact.

    The H phase looks up the tables of a message's attributes, one for each operator, and sets the bits of the
    predicates that hold. The C phase goes through the cluster bit vector: where an access predicate holds, it looks at
    its clusters, whose filters have equally many other predicates, in columns, and tests these by their bits.

    Chosen, as the tables are built at once, with no messages to learn from: a filter's access predicate is the one that
    holds for the smallest share of the operands of its attribute; its others are tested in that order. The cluster bit
    vector is in random order, so that SubC phases, which have as many filters as each other, take about as long.
    Simplified: tables are in the order of their operands, so that those that hold are found by a binary search, where
    Algorithm 1 evaluates all; only texts of `contains` are evaluated. A bit is a byte, which takes less time
    to set and to test. An interval is two predicates. An access predicate is always a single one, as "Pub/Sub on
    Stream" has it; Fabret's may be several together.
    """  # noqa: E501

    def _build(self, filters: Filters) -> _Index:
        distinct = distinct_of(filters)
        predicates = np.repeat(np.arange(len(distinct.operands)), np.diff(distinct.lists))
        of = distinct.filters.astype(np.int64)
        # A filter may have a predicate twice, and has it once here
        once = first_of_equals(predicates, of)
        predicates, of = predicates[once], of[once]
        order = np.lexsort((predicates, _selectivity(distinct)[predicates], of))
        predicates = predicates[order]
        sizes = np.bincount(of, minlength=len(filters.sizes))
        firsts = offsets_of(sizes)[:-1]
        some = np.flatnonzero(sizes)
        access, list_of = np.unique(predicates[firsts[some]], return_inverse=True)
        shuffled = np.random.default_rng(0).permutation(len(access))
        place = np.empty(len(access), np.int64)
        place[shuffled] = np.arange(len(access))
        list_of, widths = place[list_of], sizes[some] - 1
        order = np.lexsort((some, widths, list_of))
        some, list_of, widths = some[order], list_of[order], widths[order]
        new = first_of_equals(list_of, widths)
        rows = np.append(np.flatnonzero(new), len(some))
        counts, width_of = np.diff(rows), widths[new]
        columns = offsets_of(counts * width_of)[:-1]
        cluster = np.repeat(np.arange(len(counts)), counts)
        # The others of all filters, one after the other, and where each goes
        begin = offsets_of(widths)
        number = np.arange(begin[-1]) - np.repeat(begin[:-1], widths)
        row = np.repeat(np.arange(len(some)), widths)
        others = np.empty(begin[-1], np.int32)
        in_cluster = cluster[row]
        at = columns[in_cluster] + number * counts[in_cluster] + row - rows[in_cluster]
        others[at] = predicates[firsts[some][row] + 1 + number]
        return _Index(
            distinct.groups,
            distinct.operands,
            access[shuffled].astype(np.int32),
            np.searchsorted(list_of[new], np.arange(len(access) + 1)),
            rows,
            width_of,
            columns,
            others,
            filters.interfaces[some],
            np.zeros(len(filters.keys), np.bool_),
            filters.interfaces[np.flatnonzero(sizes == 0)],
        )

    def _find(self, messages: Messages, *, unique: bool, ends: I64Array) -> U32Array:
        found: U32Array = _match(messages.columns, self._tables, unique, ends)
        return found

    # -- a message in tasks ------------------------------------------------------------------------------------------

    def h_phase(self, messages: Messages, row: int) -> npt.NDArray[np.uint8]:
        """Return the predicate bit vector of a message, a byte for each bit (Algorithm 1)."""
        bits: npt.NDArray[np.uint8] = _h_phase(messages.columns, row, self._tables)
        return bits

    def sub_c_phase(self, bits: npt.NDArray[np.uint8], part: int, parts: int) -> U32Array:
        """Return the interfaces of filters that match, of a part of the clusters (Algorithm 2, and §4.2.2)."""
        found: U32Array = _sub_c_phase(bits, part, parts, self._tables)
        return found

    def keys_of(self, interfaces: U32Array) -> npt.NDArray[np.uint64]:
        """Keys of what SubC phases have found together, in any order."""
        keys: npt.NDArray[np.uint64] = self._keys.keys.values[interfaces]
        return keys

    @property
    def predicates(self) -> int:
        """Distinct predicates of all filters."""
        return len(self._tables.operands)


def _selectivity(distinct: Distinct) -> F64Array:
    """Share of the operands of its attribute for which each predicate holds."""
    counts = np.diff(distinct.groups)
    group = np.repeat(np.arange(len(counts)), counts)
    attributes, kinds = group // KINDS, group % KINDS
    order = np.lexsort((distinct.operands, attributes))
    in_order = attributes[order]
    new = first_of_equals(in_order, distinct.operands[order])
    firsts = np.searchsorted(in_order[new], np.arange(len(counts) // KINDS + 1))
    values = np.maximum(np.diff(firsts), 1)[attributes]
    below = np.empty(len(order), np.int64)
    below[order] = np.cumsum(new) - 1
    below -= firsts[attributes]
    held = np.select(
        [kinds == kind for kind in (EQUAL, UNEQUAL, LESS, GREATER, FROM, UP_TO)],
        [np.ones_like(below), values - 1, below, values - 1 - below, values - below, below + 1],
        _CONTAIN * values,
    )
    share: F64Array = held / values
    return share


@inlined
def _set_bits(attributes, values, begin, end, groups, operands, bits):
    """Set the bit of each predicate that holds for one of the values."""
    for i in range(begin, end):
        for kind in range(KINDS):
            group = np.int64(attributes[i]) * KINDS + kind
            first, last = groups[group], groups[group + 1]
            if first == last:
                continue
            if kind == CONTAINS:
                for p in range(first, last):
                    bits[p] = contains(values[i], operands[p], ones_of(operands[p]))
                continue
            low, high = satisfied_run(kind, operands, first, last, values[i])
            if kind == UNEQUAL:
                bits[first:low] = 1
                low, high = high, last
            bits[low:high] = 1


@inlined
def _check(bits, first, last, index, found, used, marked, unique):
    """Write the interfaces of filters that match, of entries of the cluster bit vector."""
    for entry in range(first, last):
        if bits[index.access[entry]] == 0:
            continue
        for cluster in range(index.lists[entry], index.lists[entry + 1]):
            begin, end = index.rows[cluster], index.rows[cluster + 1]
            count, width, column = end - begin, index.widths[cluster], index.columns[cluster]
            for row in range(count):
                at, stop = column + row, column + width * count
                while at < stop and bits[index.others[at]] != 0:
                    at += count
                if at >= stop:
                    found, used = add_match(found, used, index.interfaces[begin + row], marked, unique)
    return found, used


@kernel
def _match(messages, index, unique, ends):
    """Interfaces of the filters that match each message, and in `ends` where each message's end."""
    offsets, attributes, values = messages
    found = np.empty(1024, np.uint32)
    used = 0
    bits, marked = np.zeros(len(index.operands), np.uint8), np.zeros_like(index.unmarked)
    for message in range(len(ends) - 1):
        begin, end = offsets[message], offsets[message + 1]
        first = used
        for interface in index.always:
            found, used = add_match(found, used, interface, marked, unique)
        _set_bits(attributes, values, begin, end, index.groups, index.operands, bits)
        found, used = _check(bits, 0, len(index.access), index, found, used, marked, unique)
        for i in range(begin, end):
            group = np.int64(attributes[i]) * KINDS
            bits[index.groups[group] : index.groups[group + KINDS]] = 0
        for i in range(first, used):
            marked[found[i]] = False
        ends[message + 1] = used
    return found[:used]


@kernel
def _h_phase(messages, message, index):
    """The predicate bit vector of a message."""
    offsets, attributes, values = messages
    bits = np.zeros(len(index.operands), np.uint8)
    _set_bits(attributes, values, offsets[message], offsets[message + 1], index.groups, index.operands, bits)
    return bits


@inlined
def _begin_of(part, parts, index):
    """The first entry of the cluster bit vector behind a part of the filters."""
    filters = len(index.interfaces) * part // parts
    low, high = 0, len(index.access)
    while low < high:
        middle = (low + high) >> 1
        if index.rows[index.lists[middle]] < filters:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _sub_c_phase(bits, part, parts, index):
    """Interfaces of filters that match, of a part of the clusters."""
    found = np.empty(64, np.uint32)
    used = 0
    if part == 0:
        for interface in index.always:
            found, used = add_match(found, used, interface, np.zeros(0, np.bool_), False)
    first = _begin_of(part, parts, index)
    last = len(index.access) if part == parts - 1 else _begin_of(part + 1, parts, index)
    found, used = _check(bits, first, last, index, found, used, np.zeros(0, np.bool_), False)
    return found[:used]
