"""Texts that end with, or contain, one of many patterns (Aho and Corasick, CACM 1975)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import BoolArray, I64Array, Strings, U64Array
from tagmatch.model.kernels.jit import inlined, kernel

_U = np.uint64


@dataclass(frozen=True, slots=True, eq=False)
class Patterns:
    """One automaton for each attribute that has patterns.

    Attributes
    ----------
    roots : int64 array
        Of each attribute; 0 where it has no patterns.
    edges : uint64 array
        An open hash table: a node and a byte, `node << 8 | byte`, 0 where free.
    children : int64 array
        Where the edge at the same place leads.
    fails : int64 array
        Of each node, that of the longest end of its text that is there, too.
    outputs : int64 array
        Of each node, it or the nearest one along `fails` at which patterns end; 0 if there is none.
    firsts, nexts : int64 arrays
        The first pattern that ends at each node, and the next one after each pattern; -1 at the end.
    only_at_end : bool array
        Of each pattern: whether texts must end with it.
    attributes : int64 array
        The attribute that a message has where the pattern is found.
    """

    roots: I64Array
    edges: U64Array
    children: I64Array
    fails: I64Array
    outputs: I64Array
    firsts: I64Array
    nexts: I64Array
    only_at_end: BoolArray
    attributes: I64Array

    def __len__(self) -> int:
        return len(self.nexts)

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """As the kernels take them."""
        return (
            self.roots, self.edges, self.children, self.fails, self.outputs,
            self.firsts, self.nexts, self.only_at_end, self.attributes,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(array.nbytes for array in self.arrays)


@inlined
def _home(edge, edges):
    return ((edge * _U(0x9E3779B97F4A7C15)) >> _U(20)) & _U(len(edges) - 1)


@inlined
def _place(node, byte, edges):
    """Where an edge is, or would be."""
    edge = (_U(node) << _U(8)) | _U(byte)
    at = _home(edge, edges)
    while edges[at] != _U(0) and edges[at] != edge:
        at = (at + _U(1)) & _U(len(edges) - 1)
    return at


@kernel
def _build(owners, offsets, data, roots, edges, children, firsts, nexts, parents, letters, of_root):
    nodes = 1
    for pattern in range(len(owners)):
        owner = owners[pattern]
        if roots[owner] == 0:
            roots[owner] = nodes
            of_root[nodes] = nodes
            nodes += 1
        node = roots[owner]
        for at in range(offsets[pattern], offsets[pattern + 1]):
            place = _place(node, data[at], edges)
            if edges[place] == _U(0):
                edges[place] = (_U(node) << _U(8)) | _U(data[at])
                children[place] = nodes
                parents[nodes], letters[nodes], of_root[nodes] = node, data[at], of_root[node]
                nodes += 1
            node = children[place]
        nexts[pattern] = firsts[node]
        firsts[node] = pattern
    return nodes


@kernel
def _link(order, edges, children, fails, outputs, firsts, parents, letters, of_root):
    """Nodes come by depth, so that those of shorter texts are done."""
    for node in order:
        root = of_root[node]
        if node != root:
            at = fails[parents[node]] if parents[node] != root else 0
            fails[node] = root
            while at != 0:
                place = _place(at, letters[node], edges)
                if edges[place] != _U(0):
                    fails[node] = children[place]
                    break
                at = fails[at] if at != root else 0
        if firsts[node] >= 0:
            outputs[node] = node
        elif node != root:
            outputs[node] = outputs[fails[node]]


@kernel
def _depths(parents, depths):
    for node in range(1, len(depths)):  # parents have smaller numbers
        depths[node] = depths[parents[node]] + 1 if parents[node] else 0


def patterns_of(count: int, owners: I64Array, texts: Strings, only_at_end: BoolArray, attributes: I64Array) -> Patterns:
    """The automata of `count` attributes; `owners` says in which attribute's texts each pattern is looked for."""
    room = int(texts.offsets[-1]) + len(owners) + 2
    size = 1 << max(4, int(np.ceil(np.log2(2 * room))))
    roots, edges, children = np.zeros(count, np.int64), np.zeros(size, np.uint64), np.zeros(size, np.int64)
    fails, outputs, parents, of_root = (np.zeros(room, np.int64) for _ in range(4))
    firsts, nexts = np.full(room, -1, np.int64), np.full(len(owners), -1, np.int64)
    letters = np.zeros(room, np.uint8)
    nodes = _build(owners, texts.offsets, texts.data, roots, edges, children, firsts, nexts, parents, letters, of_root)
    depths = np.zeros(nodes, np.int64)
    _depths(parents, depths)
    order = np.argsort(depths, kind="stable")[1:]
    _link(order, edges, children, fails, outputs, firsts, parents, letters, of_root)
    return Patterns(
        roots, edges, children, fails[:nodes].copy(), outputs[:nodes].copy(), firsts[:nodes].copy(), nexts,
        only_at_end, attributes,
    )  # fmt: skip


@inlined
def step(node, root, byte, edges, children, fails):
    """The node after one more byte."""
    while True:
        place = _place(node, byte, edges)
        if edges[place] != _U(0):
            return children[place]
        if node == root:
            return root
        node = fails[node]
