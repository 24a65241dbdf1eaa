"""BE-Tree: filters in a tree that cuts the space of messages by attribute, and then by value."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.arrays import BoolArray, I64Array, U8Array, U32Array, offsets_of
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
    contains,
    ones_of,
)
from tagmatch_bench.systems.matcher import first_of_equals
from tagmatch_bench.systems.sff import place_of

I32Array = npt.NDArray[np.int32]


# Columns of nodes, in the order of the tree's
_LEAF, _LENGTH, _FIRST, _COUNT, _ABOUT, _MIDDLE, _LEFT, _RIGHT = range(8)


class _Constraints(NamedTuple):
    """Where each filter begins, its constraints' attributes and the codes that may hold, and the highest of each."""

    offsets: I64Array
    attributes: U32Array
    lows: I32Array
    highs: I32Array
    tops: I32Array


@inlined
def _with_room(rows, used):
    """The same rows, with room for one more, which is -1."""
    if used < len(rows):
        return rows
    more = np.full((2 * len(rows), rows.shape[1]), -1, np.int64)
    more[: len(rows)] = rows
    return more


@inlined
def _narrowest(of, attribute, filters):
    """Return the values of a filter's narrowest constraint on an attribute; the highest is -1 if it has none."""
    low, high = np.int64(0), np.int64(-1)
    for c in range(filters.offsets[of], filters.offsets[of + 1]):
        width = filters.highs[c] - filters.lows[c]
        if filters.attributes[c] == attribute and (high < 0 or width < high - low):
            low, high = np.int64(filters.lows[c]), np.int64(filters.highs[c])
    return low, high


@inlined
def _cut(order, begin, end, side, scratch):
    """Bring those of side 0 to the front, then those of 1, then of 2; returns where the first two end."""
    ends = np.zeros(4, np.int64)
    for i in range(begin, end):
        ends[side[i] + 1] += 1
    ends[0] = begin
    for i in range(3):
        ends[i + 1] += ends[i]
    first, second = ends[1], ends[2]
    for i in range(begin, end):
        scratch[ends[side[i]]] = order[i]
        ends[side[i]] += 1
    order[begin:end] = scratch[begin:end]
    return first, second


@kernel
def grow(filters, most, order):
    """Build the tree of filters, at most `most` a leaf; `order` becomes that of leaves. Rows of nodes and entries."""
    tops = filters.tops
    names = len(tops)
    nodes, entries = np.full((1024, 8), -1, np.int64), np.full((1024, 2), -1, np.int64)
    # Nodes to cut: node, filters from and to, path, the c-directory's attribute, and its values there
    todo = np.full((1024, 7), -1, np.int64)
    # Attributes on the way from the root: each with the place of the one before
    paths = np.full((1024, 2), -1, np.int64)
    node_count, entry_count, path_count, waiting = 1, 0, 0, 1
    todo[0, 1], todo[0, 2] = 0, len(order)
    todo[0, 0] = 0
    used, many, scores = np.zeros(names, np.bool_), np.zeros(names, np.int64), np.zeros(names)
    side, scratch = np.zeros(len(order), np.uint8), np.empty_like(order)
    while waiting:
        waiting -= 1
        node, begin, end, path, about, low, high = todo[waiting]
        todo[waiting] = -1
        if about >= 0 and end - begin > most and low < high:
            middle = (low + high) >> 1
            for i in range(begin, end):
                from_, to = _narrowest(order[i], about, filters)
                side[i] = 1 if to <= middle else (2 if from_ > middle else 0)
            first, second = _cut(order, begin, end, side, scratch)
            nodes[node, _ABOUT], nodes[node, _MIDDLE] = about, middle
            for column in (_LEFT, _RIGHT):
                part, last = (first, second) if column == _LEFT else (second, end)
                if part < last:
                    nodes, todo = _with_room(nodes, node_count), _with_room(todo, waiting)
                    nodes[node, column] = node_count
                    todo[waiting, 0], todo[waiting, 1], todo[waiting, 2] = node_count, part, last
                    todo[waiting, 3], todo[waiting, 4] = path, about
                    todo[waiting, 5] = low if column == _LEFT else middle + 1
                    todo[waiting, 6] = middle if column == _LEFT else high
                    node_count, waiting = node_count + 1, waiting + 1
            end = first
        nodes[node, _FIRST] = entry_count
        if end - begin > most:
            step = path
            while step >= 0:
                used[paths[step, 1]] = True
                step = paths[step, 0]
            many[:] = 0
            scores[:] = 0
            _score(order, begin, end, filters, 1, many, scores)
            while end - begin > most:
                best = -1
                for name in range(names):
                    if many[name] and not used[name] and (best < 0 or scores[name] > scores[best]):
                        best = name
                if best < 0:
                    break
                for i in range(begin, end):
                    side[i] = _narrowest(order[i], best, filters)[1] >= 0
                first, last = _cut(order, begin, end, side, scratch)
                _score(order, first, last, filters, -1, many, scores)
                nodes, todo = _with_room(nodes, node_count), _with_room(todo, waiting)
                paths, entries = _with_room(paths, path_count), _with_room(entries, entry_count)
                paths[path_count, 0], paths[path_count, 1] = path, best
                entries[entry_count, 0], entries[entry_count, 1] = best, node_count
                todo[waiting, 0], todo[waiting, 1], todo[waiting, 2] = node_count, first, last
                todo[waiting, 3], todo[waiting, 4] = path_count, best
                todo[waiting, 5], todo[waiting, 6] = 0, tops[best]
                node_count, entry_count = node_count + 1, entry_count + 1
                path_count, waiting = path_count + 1, waiting + 1
                end = first
            used[:] = False
        nodes[node, _LEAF], nodes[node, _LENGTH] = begin, end - begin
        nodes[node, _COUNT] = entry_count - nodes[node, _FIRST]
        some = entries[nodes[node, _FIRST] : entry_count]
        some[:] = some[np.argsort(some[:, 0])]
    return nodes[:node_count], entries[:entry_count]


@inlined
def _score(order, begin, end, filters, sign, many, scores):
    """Add filters to the scores of their attributes, or with `sign` -1, take them away."""
    for i in range(begin, end):
        for c in range(filters.offsets[order[i]], filters.offsets[order[i] + 1]):
            attribute = filters.attributes[c]
            share = (filters.highs[c] - filters.lows[c] + 1) / (filters.tops[attribute] + 1)
            many[attribute] += sign
            scores[attribute] += sign * (1 - share)


#: Filters that a leaf may have: 3, 10 and 20 are slower with a million constraints of PCM's default scenario
_MOST_IN_A_LEAF = 5


class _Codes(NamedTuple):
    """The operands of each attribute, distinct and ascending: those of attribute `a` are from `offsets[a]` on.

    A value's code is twice the number of operands below it, and one more if it is an operand itself. So a constraint
    holds for a run of codes, or for all but one.
    """

    offsets: I64Array
    operands: npt.NDArray[np.generic]


class _Tree(NamedTuple):
    """The tree, and the filters in the order of its leaves.

    A node is the paper's c-node, with its leaf and its p-directory, and if it is in a c-directory, the nodes below it
    there. Node `i` has the filters from `leaves[i]` to `leaves[i] + lengths[i]`; its p-directory has, from
    `firsts[i]` on, `counts[i]` attributes in `attributes`, ascending, with the root of each one's c-directory in
    `roots`. Values of the directory's attribute `about[i]` are in node `left[i]` up to code `middles[i]`, above it in
    `right[i]`, which are -1 without a filter.
    The constraints of filter `i` are from `offsets[i]` to `offsets[i + 1]`: they are on attribute `on`, and hold for
    codes from `lows` to `highs`, if `operators` has UNEQUAL, for all others, and if it has CONTAINS, for texts that
    contain the operand whose code `lows` is. `unmarked` is not marked anywhere.
    """

    codes: _Codes
    leaves: I32Array
    lengths: I32Array
    firsts: I32Array
    counts: I32Array
    about: I32Array
    middles: I32Array
    left: I32Array
    right: I32Array
    attributes: I32Array
    roots: I32Array
    offsets: I64Array
    on: U32Array
    lows: I32Array
    highs: I32Array
    operators: U8Array
    interfaces: U32Array
    unmarked: BoolArray


class BeTree(ContentMatcher):
    """BE-Tree: M. Sadoghi, H.-A. Jacobsen, "BE-Tree: an index structure to efficiently match Boolean expressions over
    high-dimensional discrete space", SIGMOD 2011. Exact.

    A leaf with too many filters is cut in two phases. By attribute: the attribute of the best score, on which no node
    above cuts, gets the filters that have a constraint on it, until the rest fit. By value: these filters go into a
    directory of its values, halved again and again while there are too many; a filter stays where its values are in
    both halves. A message goes to all attributes that it has, and there to one half after the other; filters of all
    leaves on the way are evaluated.

    Chosen, as the tree is built at once, with no messages to learn from: an attribute's score is what its filters
    gain, one each, less what they are expected to lose, the share of codes that satisfy the constraint. ≠ holds for
    all codes there, and so does a text to be contained, which the paper has not and which is no interval of codes.
    Simplified: a p-directory is searched in order, not hashed; filters are not inserted one by one. Operands
    of any type are made discrete by their order; the codes of messages are found when these are prepared.
    Filters of an interface that is found already are evaluated, as published.
    """  # noqa: D205

    def __init__(self, subscriptions: pa.Table, *, threads: int = 1, leaf: int = _MOST_IN_A_LEAF) -> None:
        self._leaf = leaf
        super().__init__(subscriptions, threads=threads)

    def _build(self, filters: Filters) -> _Tree:
        codes, lows, highs = _discretised(filters)
        tops = (2 * np.diff(codes.offsets)).astype(np.int32)
        offsets = offsets_of(filters.sizes)
        # Where a constraint may hold, for which an interval that is empty must have a place, too
        anywhere = (filters.operators == UNEQUAL) | (filters.operators == CONTAINS)
        from_, to = np.where(anywhere, 0, lows), np.where(anywhere, tops[filters.attributes], np.maximum(lows, highs))
        order = np.arange(len(filters.sizes))
        nodes, entries = grow(_Constraints(offsets, filters.attributes, from_, to, tops), self._leaf, order)
        ordered = offsets_of(filters.sizes[order])
        at = np.repeat(offsets[:-1][order] - ordered[:-1], filters.sizes[order]) + np.arange(len(lows))
        columns: list[Any] = [
            codes,
            *np.ascontiguousarray(nodes.T, np.int32),
            *np.ascontiguousarray(entries.T, np.int32),
            ordered,
            filters.attributes[at],
            lows[at],
            highs[at],
            filters.operators[at],
            filters.interfaces[order],
            np.zeros(len(filters.keys), np.bool_),
        ]
        return _Tree(*columns)

    def prepare(self, messages: pa.Table | pa.RecordBatch) -> Messages:
        """Convert messages, whose values get codes."""
        given = super().prepare(messages)
        values = np.empty(len(given.values), np.dtype([("x", given.values.dtype), ("code", np.int32)], align=True))
        values["x"] = given.values
        _encode(given.attributes, given.values, *self._tables.codes, values["code"])
        return Messages(given.offsets, given.attributes, values)

    def _find(self, messages: Messages, *, unique: bool, ends: I64Array) -> U32Array:
        found: U32Array = _match(messages.columns, self._tables, unique, ends)
        return found

    def nbytes(self) -> int | None:
        """Bytes of memory."""
        codes, *others = self._tables
        return sum(int(table.nbytes) for table in (*codes, *others, self._keys.keys.values))


def _discretised(filters: Filters) -> tuple[_Codes, I32Array, I32Array]:
    """Return the operands, and of each constraint, the lowest and highest codes that satisfy it, or, of ≠, do not."""
    count, names = len(filters.values), len(filters.names)
    attributes = np.tile(filters.attributes.astype(np.int64), 2)
    operands = np.concatenate([filters.values, np.where(filters.operators == BETWEEN, filters.uppers, filters.values)])
    order = np.lexsort((operands, attributes))
    sorted_attributes, sorted_operands = attributes[order], operands[order]
    new = first_of_equals(sorted_attributes, sorted_operands)
    offsets = np.searchsorted(sorted_attributes[new], np.arange(names + 1))
    places = np.empty(len(order), np.int64)
    places[order] = np.cumsum(new) - 1
    codes = (2 * (places - offsets[attributes]) + 1).astype(np.int32)
    lows, highs = codes[:count], codes[count:]
    tops = (2 * np.diff(offsets)).astype(np.int32)[filters.attributes]
    less, greater = filters.operators == LESS, filters.operators == GREATER
    lows, highs = (
        np.where(greater, lows + 1, np.where(less, 0, lows)),
        np.where(less, highs - 1, np.where(greater, tops, highs)),
    )
    return _Codes(offsets, sorted_operands[new]), lows.astype(np.int32), highs.astype(np.int32)


@kernel
def _encode(attributes, values, offsets, operands, codes):
    """Write the code of each value."""
    for i in range(len(values)):
        begin, last = offsets[attributes[i]], offsets[attributes[i] + 1]
        first = place_of(operands, begin, last, values[i], False)
        code = 2 * (first - begin)
        if first < last and operands[first] == values[i]:
            code += 1
        codes[i] = code


@inlined
def _holds(tree, c, value):
    """Whether constraint `c` of a tree is satisfied by a value, which has a code, too."""
    if tree.operators[c] == CONTAINS:
        needle = tree.codes.operands[tree.codes.offsets[tree.on[c]] + (tree.lows[c] >> 1)]
        return contains(value.x, needle, ones_of(needle))
    return (tree.lows[c] <= value.code <= tree.highs[c]) != (tree.operators[c] == UNEQUAL)


@kernel
def _match(messages, tree, unique, ends):
    """Interfaces of the filters that match each message, and in `ends` where each message's end."""
    offsets, attributes, values = messages
    found = np.empty(1024, np.uint32)
    used = 0
    marked = np.zeros_like(tree.unmarked)
    names = len(tree.codes.offsets) - 1
    has, value_of = np.zeros(names, np.int64), np.empty(names, values.dtype)
    waiting = np.empty(len(tree.leaves), np.int32)
    for message in range(len(ends) - 1):
        begin, end = offsets[message], offsets[message + 1]
        for i in range(begin, end):
            has[attributes[i]], value_of[attributes[i]] = message + 1, values[i]
        first_found = used
        waiting[0] = 0
        count = 1
        while count:
            count -= 1
            node = waiting[count]
            while node >= 0:
                leaf = tree.leaves[node]
                for of in range(leaf, leaf + tree.lengths[node]):
                    matches = True
                    for c in range(tree.offsets[of], tree.offsets[of + 1]):
                        on = tree.on[c]
                        if has[on] != message + 1 or not _holds(tree, c, value_of[on]):
                            matches = False
                            break
                    if matches:
                        found, used = add_match(found, used, tree.interfaces[of], marked, unique)
                first, entries = tree.firsts[node], tree.counts[node]
                if entries <= end - begin:
                    for entry in range(first, first + entries):
                        if has[tree.attributes[entry]] == message + 1:
                            waiting[count] = tree.roots[entry]
                            count += 1
                else:
                    for i in range(begin, end):
                        wanted = np.int64(attributes[i])
                        low = place_of(tree.attributes, first, first + entries, wanted, False)
                        if low < first + entries and tree.attributes[low] == wanted:
                            waiting[count] = tree.roots[low]
                            count += 1
                if tree.about[node] < 0:
                    break
                code = value_of[tree.about[node]].code
                node = tree.left[node] if code <= tree.middles[node] else tree.right[node]
        for i in range(first_found, used):
            marked[found[i]] = False
        ends[message + 1] = used
    return found[:used]
