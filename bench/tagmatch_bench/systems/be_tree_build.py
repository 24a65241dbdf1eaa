"""How a BE-Tree is built: kernels that cut leaves, by attribute and by value, until they are small."""

from __future__ import annotations

import numpy as np

from tagmatch.model.kernels.jit import inlined, kernel

# Columns of nodes, in the order of the tree's
_LEAF, _LENGTH, _FIRST, _COUNT, _ABOUT, _MIDDLE, _LEFT, _RIGHT = range(8)


@inlined
def _with_room(rows, used):
    """The same rows, with room for one more, which is -1."""
    if used < len(rows):
        return rows
    more = np.full((2 * len(rows), rows.shape[1]), -1, np.int64)
    more[: len(rows)] = rows
    return more


@inlined
def _narrowest(of, attribute, offsets, attributes, lows, highs):
    """Return the values of a filter's narrowest constraint on an attribute; the highest is -1 if it has none."""
    low, high = np.int64(0), np.int64(-1)
    for c in range(offsets[of], offsets[of + 1]):
        if attributes[c] == attribute and (high < 0 or highs[c] - lows[c] < high - low):
            low, high = np.int64(lows[c]), np.int64(highs[c])
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
def grow(offsets, attributes, lows, highs, tops, most, order):
    """Build the tree of filters; `order` becomes that of its leaves.

    Parameters
    ----------
    offsets, attributes, lows, highs
        Constraints of filters: where each filter's begin, the attribute of each, and the codes for which it may hold.
    tops
        The highest code of each attribute.
    most : int
        Filters of a leaf, but for those that cannot be cut.
    order : int64 array
        All filters.

    Returns
    -------
    nodes, entries
        Rows with the columns that `be_tree` names: eight of nodes, and two of p-directories.
    """
    names = len(tops)
    nodes, entries = np.full((1024, 8), -1, np.int64), np.full((1024, 2), -1, np.int64)
    # What is to be cut: node, filters from and to, path, the c-directory's attribute, and its values there
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
                from_, to = _narrowest(order[i], about, offsets, attributes, lows, highs)
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
            _score(order, begin, end, offsets, attributes, lows, highs, tops, 1, many, scores)
            while end - begin > most:
                best = -1
                for name in range(names):
                    if many[name] and not used[name] and (best < 0 or scores[name] > scores[best]):
                        best = name
                if best < 0:
                    break
                for i in range(begin, end):
                    side[i] = _narrowest(order[i], best, offsets, attributes, lows, highs)[1] >= 0
                first, last = _cut(order, begin, end, side, scratch)
                _score(order, first, last, offsets, attributes, lows, highs, tops, -1, many, scores)
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
def _score(order, begin, end, offsets, attributes, lows, highs, tops, sign, many, scores):
    """Add filters to the scores of their attributes, or with `sign` -1, take them away."""
    for i in range(begin, end):
        for c in range(offsets[order[i]], offsets[order[i] + 1]):
            share = (highs[c] - lows[c] + 1) / (tops[attributes[c]] + 1)
            many[attributes[c]] += sign
            scores[attributes[c]] += sign * (1 - share)
