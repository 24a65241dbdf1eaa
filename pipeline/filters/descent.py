"""Down the trie by the tokens of many messages at once.

What is fetched from far memory is fetched in loops of their own, without branches, over the nodes of all messages: the
processor then waits for many at a time.
"""

from __future__ import annotations

import numpy as np

from tagmatch.model.kernels.jit import kernel, with_room
from tagmatch.pipeline.filters.trie import INNER, home_of

_U = np.uint64
_U32 = np.uint32

# Edges that are looked up in one step, at least; what waits then stays small, however many tokens messages have
_EDGES = 1 << 15


@kernel
def _at_root(tokens, ends, signatures, roots, nodes, row_signatures, fewest):
    """Candidates among the rows of the root, and the children of the root that each message reaches."""
    count, rows = len(ends) - 1, np.int64(nodes[0, 1] & ~INNER)
    owners, found = np.empty(count * rows, np.int32), np.empty(count * rows, np.uint32)
    used = np.int64(0)
    for message in range(count):
        for row in range(rows):
            owners[used], found[used] = message, row
            used += np.int64(row_signatures[row] & ~signatures[message] == _U(0))
    waiting = np.int64(0)
    of, at, nexts = np.empty(len(tokens), np.int32), np.empty(len(tokens), np.uint32), np.empty(len(tokens), np.int32)
    for message in range(count):
        for place in range(ends[message], ends[message + 1]):
            child, left = roots[tokens[place]], ends[message + 1] - (place + 1)
            of[waiting], at[waiting], nexts[waiting] = message, child, place + 1
            waiting += np.int64((child != 0) & (fewest[child] <= left))
    return owners, found, used, of, at, nexts, waiting


@kernel
def descend(tokens, ends, signatures, trie, fewest):
    """Rows at the ends of all paths of each message's tokens, whose signature fits.

    It goes to no node from which all paths are longer than the tokens that the message has left.
    """
    roots, nodes, edges, children, row_signatures = trie
    mask, last_row = _U(len(edges) - 1), len(row_signatures) - 1
    owners, rows, used, of, at, nexts, waiting = _at_root(
        tokens, ends, signatures, roots, nodes, row_signatures, fewest
    )
    begins, stops, inner = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_)
    edge_of, edge_at, edge_next = np.empty(0, np.int32), np.empty(0, np.uint32), np.empty(0, np.int32)
    homes, leads = np.empty(0, np.uint64), np.empty(0, np.int32)
    touched = _U(0)
    while waiting > 0:
        # The last that came are taken first
        first, most = waiting, np.int64(0)
        while first > 0 and most < _EDGES:
            first -= 1
            most += 1 + ends[of[first] + 1] - nexts[first]
        count = waiting - first
        begins, stops, inner = with_room(begins, 0, count), with_room(stops, 0, count), with_room(inner, 0, count)
        for i in range(count):
            node = at[first + i]
            begins[i], stops[i] = nodes[node, 0], nodes[node, 1] & ~INNER
            inner[i] = nodes[node, 1] & INNER != _U32(0)
        scanned = 0
        for i in range(count):
            touched ^= row_signatures[min(begins[i], last_row)]
            scanned += stops[i] - begins[i]
        if used + scanned > len(rows):
            owners, rows = with_room(owners, used, scanned), with_room(rows, used, scanned)
        for i in range(count):
            owner = of[first + i]
            absent = ~signatures[owner]
            for row in range(begins[i], stops[i]):
                owners[used], rows[used] = owner, row
                used += np.int64(row_signatures[row] & absent == _U(0))

        edge_of, edge_at = with_room(edge_of, 0, most), with_room(edge_at, 0, most)
        edge_next, homes, leads = with_room(edge_next, 0, most), with_room(homes, 0, most), with_room(leads, 0, most)
        looked = 0
        for i in range(count):
            if inner[i]:
                owner, node = of[first + i], at[first + i]
                for place in range(nexts[first + i], ends[owner + 1]):
                    edge_of[looked], edge_at[looked], edge_next[looked] = owner, node, place + 1
                    homes[looked] = home_of(node, tokens[place]) & mask
                    looked += 1
        for i in range(looked):
            leads[i] = children[homes[i]]
        waiting = first
        if waiting + looked > len(at):
            of, at = with_room(of, waiting, looked), with_room(at, waiting, looked)
            nexts = with_room(nexts, waiting, looked)
        for i in range(looked):
            child, home = leads[i], homes[i]
            if child == 0:
                continue
            edge = (_U(edge_at[i]) << _U(32)) | _U(tokens[edge_next[i] - 1])
            while child != 0 and edges[home] != edge:
                home = (home + _U(1)) & mask
                child = children[home]
            if child != 0 and fewest[child] <= ends[edge_of[i] + 1] - edge_next[i]:
                of[waiting], at[waiting], nexts[waiting] = edge_of[i], child, edge_next[i]
                waiting += 1
    return owners, rows, used, touched
