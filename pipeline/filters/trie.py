"""A static trie over the tokens of sets: fat leaves, which are scanned by signature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import I64Array, IntArray, U8Array, U32Array, U64Array
from tagmatch.model.kernels.jit import inlined, kernel

# Sets of a leaf, and how many times fewer children than sets a node must have
_LEAF, _LEAST = 32, 1

_U = np.uint64
#: At the end of a node's scanned rows: it has children
INNER = np.uint32(1 << 31)


@dataclass(frozen=True, slots=True, eq=False)
class Trie:
    """Node 0 is the root. The rows of a node from its begin to its end are scanned."""

    roots: IntArray  # The child of the root for each token, 0 if there is none
    nodes: U32Array  # uint32[n, 2] array: begin and end; the end's highest bit is `INNER`
    edges: U64Array  # An open hash table: a node and a token, `node << 32 | token`
    children: IntArray  # Where the edge at the same place leads, 0 where it is free
    signatures: U64Array  # A bit for each token of a row
    fewest: U8Array  # Of each node, how many more tokens a message must have for any of the rows there and below

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """As the kernels take them, but for `fewest`."""
        return self.roots, self.nodes, self.edges, self.children, self.signatures

    @property
    def tokenless(self) -> int:
        """Rows, the first ones, that have no token."""
        return int(self.nodes[0, 1] & ~INNER)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(array.nbytes for array in self.arrays) + self.fewest.nbytes


@inlined
def home_of(node, token):
    """Where an edge is looked for first, before that is cut to the size of the table."""
    x = (_U(node) << _U(32)) | _U(token)
    x ^= x >> _U(29)
    x *= _U(0xBF58476D1CE4E5B9)
    return x ^ (x >> _U(32))


@inlined
def bit_of(token):
    """The bit of a token in signatures."""
    return _U(1) << ((_U(token) * _U(0x9E3779B97F4A7C15)) >> _U(58))


@inlined
def child_of(node, token, edges, children):
    """Where an edge leads; 0 if there is none."""
    mask = _U(len(edges) - 1)
    edge = (_U(node) << _U(32)) | _U(token)
    at = home_of(node, token) & mask
    while children[at] != 0 and edges[at] != edge:
        at = (at + _U(1)) & mask
    return np.int64(children[at])


@inlined
def rows_of_node(node, nodes):
    """Begin and end of the rows that are scanned, and whether the node has children."""
    end = nodes[node, 1]
    return np.int64(nodes[node, 0]), np.int64(end & ~INNER), end & INNER != 0


@kernel
def _nodes(paths, leaf, least):
    """Nodes over paths in order, and the edges between them."""
    rows, deepest = paths.shape
    room = 2 * rows + 2
    begins, ends, scanned = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    depths, inner = np.empty(room, np.int64), np.zeros(room, np.bool_)
    parents, tokens, children = np.empty(room, np.int64), np.empty(room, np.uint32), np.empty(room, np.int64)
    begins[0], ends[0], depths[0] = 0, rows, 0
    nodes, edges, at = 1, 0, 0
    while at < nodes:
        begin, end, depth = begins[at], ends[at], depths[at]
        split = depth < deepest and (at == 0 or end - begin > leaf)
        row = begin
        if split:
            while row < end and paths[row, depth] == 0:
                row += 1
            if at > 0:
                runs = 0
                for i in range(row, end):
                    runs += i == row or paths[i, depth] != paths[i - 1, depth]
                split = end - row >= least * runs
        scanned[at] = row if split else end
        inner[at] = split
        while split and row < end:
            token, first = paths[row, depth], row
            while row < end and paths[row, depth] == token:
                row += 1
            begins[nodes], ends[nodes], depths[nodes] = first, row, depth + 1
            parents[edges], tokens[edges], children[edges] = at, token, nodes
            nodes += 1
            edges += 1
        at += 1
    of_nodes = (begins[:nodes], scanned[:nodes], inner[:nodes], depths[:nodes])
    return of_nodes, (parents[:edges], tokens[:edges], children[:edges])


@kernel
def _add_edges(parents, tokens, children, edges, out):
    mask = _U(len(edges) - 1)
    for i in range(len(parents)):
        if parents[i] == 0:
            continue
        at = home_of(parents[i], tokens[i]) & mask
        while out[at] != 0:
            at = (at + _U(1)) & mask
        edges[at] = (_U(parents[i]) << _U(32)) | _U(tokens[i])
        out[at] = children[i]


@kernel
def _fewest(paths, begins, scanned, depths, parents, children, out):
    """Write how many more tokens the shortest path from each node on has."""
    for node in range(len(begins)):
        out[node] = paths.shape[1]
        for row in range(begins[node], scanned[node]):
            length = depths[node]
            while length < paths.shape[1] and paths[row, length] != 0:
                length += 1
            out[node] = min(out[node], length - depths[node])
    # Children come after their parents
    for edge in range(len(parents) - 1, -1, -1):
        out[parents[edge]] = min(out[parents[edge]], out[children[edge]] + 1)


@kernel
def _signatures(paths, out):
    for row in range(len(paths)):
        found = _U(0)
        for depth in range(paths.shape[1]):
            if paths[row, depth] == 0:
                break
            found |= bit_of(paths[row, depth])
        out[row] = found


def trie_of(paths: U32Array, tokens: int) -> tuple[Trie, I64Array]:
    """The trie of these paths, over tokens from 1 to `tokens`, and the order in which it has them."""
    order = np.lexsort(paths.T[::-1])
    paths = np.ascontiguousarray(paths[order])
    (begins, scanned, inner, depths), (parents, of_edge, children) = _nodes(paths, _LEAF, _LEAST)
    # The root's edges, nearly all where sets have a rare token each, are in `roots`
    room = 1 << max(4, int(np.ceil(np.log2(2 * np.count_nonzero(parents) + 1))))
    edges, leads = np.zeros(room, np.uint64), np.zeros(room, np.int32)
    _add_edges(parents, of_edge, children, edges, leads)
    roots = np.zeros(tokens + 1, np.int32)
    roots[of_edge[parents == 0]] = children[parents == 0]
    nodes = np.stack([begins, scanned | np.where(inner, np.int64(INNER), 0)], axis=1).astype(np.uint32)
    signatures = np.empty(len(paths), np.uint64)
    _signatures(paths, signatures)
    fewest = np.empty(len(nodes), np.uint8)
    _fewest(paths, begins, scanned, depths, parents, children, fewest)
    return Trie(roots, nodes, edges, leads, signatures, fewest), order
