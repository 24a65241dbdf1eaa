"""Patricia trees over signatures: the prefix tree and the ICN matcher of §4.1.

A node is a run of rows in lexicographic order; below it the rows are split by the first bit in which they
differ. A query goes into a node only if it has all one-bits of the prefix that the node's rows have in common, hence
into a child that begins with a one-bit only if it has that bit. A run of few rows is scanned, some rows with one
instruction. A query goes through the tree breadth first, without a branch on what it finds: the processor then waits
for many nodes at once, which is two to three times as fast as following one link after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Lists, U8Array, U64Array, frozen
from tagmatch.model.kernels.hashing import SIGNATURE_BITS, SIGNATURE_WORDS
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.kernels.lists import gather
from tagmatch.model.parallel import even_ranges, run_rows
from tagmatch.model.tables import KeyTable
from tagmatch_bench.systems.signatures import SignatureMatcher, SignatureTable, signature_table

#: Rows of a leaf at most. Measured at 200,000 and 1,000,000 Twitter-like sets: 256 and 1024 are somewhat slower, 1 is
#: three and nine times as slow.
LEAF_ROWS = 512

# Rows of a leaf that are tested together before any is tested alone
_BLOCK_ROWS = 32

_U = np.uint64
_LOW32 = np.uint64(0xFFFFFFFF)
_EMPTY_LEAF = (1 << 32) | 1


@dataclass(frozen=True, slots=True)
class SignatureTree:
    """A Patricia tree over distinct signatures in lexicographic order."""

    words: tuple[U64Array, ...]  # the signatures, column by column
    # [m, 4]: three words of the prefix that the node's rows have in common, zeros behind it; then a number
    # whose upper half is the first of two adjacent children and whose lower half is 0 or, of a leaf, the first row and
    # the end. Node 0 is the root, node 1 an empty leaf, so that it has a neighbour as well
    nodes: U64Array
    prefix_lengths: U8Array  # bits of those prefixes
    # where given, a query with fewer one-bits behind the node's prefix does not go into
    # the node
    fewest_ones: U8Array | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        limits = 0 if self.fewest_ones is None else self.fewest_ones.nbytes
        return sum(word.nbytes for word in self.words) + self.nodes.nbytes + self.prefix_lengths.nbytes + limits

    def contained_rows(self, queries: U64Array) -> Lists:
        """Find the rows, uint32, whose one-bits each query, uint64[q, 3], has."""
        ends = np.zeros(len(queries) + 1, np.int64)
        rows = _match(queries, self.words, self.nodes, self.prefix_lengths, self.fewest_ones, ends)
        return Lists(ends, rows)


def build_tree(signatures: U64Array, *, leaf_rows: int = LEAF_ROWS, limit_ones: bool = False) -> SignatureTree:
    """Build the tree in one pass, its time linear in the rows."""
    if leaf_rows < 1:
        raise ValueError(f"leaf_rows must be at least 1, not {leaf_rows}")
    words = tuple(frozen(np.ascontiguousarray(signatures[:, w])) for w in range(SIGNATURE_WORDS))
    nodes, prefix_lengths = _build(*words, leaf_rows)
    if not limit_ones:
        return SignatureTree(words, nodes, prefix_lengths)
    fewest = np.zeros(len(nodes), np.uint8)
    _fewest_ones(nodes, _ones(signatures), fewest)
    return SignatureTree(words, nodes, prefix_lengths, fewest - _ones(nodes[:, :SIGNATURE_WORDS]))


def _ones(signatures: U64Array) -> U8Array:
    """Count the one-bits of each signature."""
    counts: U8Array = np.bitwise_count(signatures).sum(axis=1, dtype=np.uint8)
    return counts


@inlined
def _leading_zeros(word):
    """Count the zeros before the first one-bit of a word that is not 0."""
    zeros = 0
    for step in (32, 16, 8, 4, 2, 1):
        if word >> _U(64 - step) == _U(0):
            zeros += step
            word <<= _U(step)
    return zeros


@inlined
def _common_length(words, row, other):
    """Count the bits before the first in which two rows differ."""
    for w in range(SIGNATURE_WORDS):
        different = words[w][row] ^ words[w][other]
        if different != _U(0):
            return 64 * w + _leading_zeros(different)
    return SIGNATURE_BITS


@inlined
def _first_with_bit(word, bit, row, end):
    """First of the rows from `row` to `end` that has the bit of the word; those that have it come last."""
    while row < end:
        middle = (row + end) >> 1
        if (word[middle] >> _U(63 - bit)) & _U(1) == _U(0):
            row = middle + 1
        else:
            end = middle
    return row


@kernel
def _build(first, second, third, leaf_rows):
    """Nodes, the length of each one's prefix; depth first, so that a subtree's nodes are close in memory."""
    words = (first, second, third)
    room = 2 * (len(first) + 1)
    nodes = np.empty((room, SIGNATURE_WORDS + 1), np.uint64)
    prefix_lengths = np.zeros(room, np.uint8)
    nodes[:2, :SIGNATURE_WORDS] = ~_U(0)
    nodes[:2, SIGNATURE_WORDS] = _U(_EMPTY_LEAF)
    # A path has at most 192 splits and each leaves one node waiting: (node, first row, end).
    waiting = np.empty((SIGNATURE_BITS + 1, 3), np.int64)
    waiting[0, 0], waiting[0, 1], waiting[0, 2] = 0, 0, len(first)
    left, used = min(len(first), 1), 2
    while left > 0:
        left -= 1
        node, row, end = waiting[left]
        length = _common_length(words, row, end - 1)
        prefix_lengths[node] = length
        for w in range(SIGNATURE_WORDS):
            bits = min(max(length - 64 * w, 0), 64)
            nodes[node, w] = words[w][row] & (~_U(0) << _U(64 - bits)) if bits else _U(0)
        if end - row <= leaf_rows:
            nodes[node, SIGNATURE_WORDS] = (_U(row) << _U(32)) | _U(end)
            continue
        middle = _first_with_bit(words[length >> 6], length & 63, row, end)
        nodes[node, SIGNATURE_WORDS] = _U(used) << _U(32)
        waiting[left, 0], waiting[left, 1], waiting[left, 2] = used + 1, middle, end
        waiting[left + 1, 0], waiting[left + 1, 1], waiting[left + 1, 2] = used, row, middle
        left += 2
        used += 2
    return nodes[:used].copy(), prefix_lengths[:used].copy()


@kernel
def _fewest_ones(nodes, row_ones, out):
    """Fewest one-bits of any row of each node; children, which come after their parents, are done first."""
    for node in range(len(nodes) - 1, -1, -1):
        first, end = nodes[node, SIGNATURE_WORDS] >> _U(32), nodes[node, SIGNATURE_WORDS] & _LOW32
        fewest = np.uint8(SIGNATURE_BITS)
        if end == _U(0):
            fewest = min(out[first], out[first + _U(1)])
        for row in range(first, end):
            fewest = min(fewest, row_ones[row])
        out[node] = fewest


@inlined
def _count_ones_from(query, out):
    """Write to `out[p]` how many one-bits the query has from bit `p` on."""
    for bit in range(SIGNATURE_BITS - 1, -1, -1):
        out[bit] = out[bit + 1] + np.uint8((query[bit >> 6] >> _U(63 - (bit & 63))) & _U(1))


@inlined
def _navigate(zeros, nodes, prefix_lengths, fewest_ones, ones_from, inner, leaves):
    """Write to `leaves` the rows of all leaves that the query with these zeros goes into; returns how many."""
    a, b, c = zeros
    inner[0] = 0
    done, inner_count, leaf_count = _U(0), _U(1), _U(0)
    while done < inner_count:
        children = _U(inner[done])
        done += _U(1)
        for node in range(children, children + _U(2)):
            below = nodes[node, _U(3)]
            enter = _U((nodes[node, _U(0)] & a) | (nodes[node, _U(1)] & b) | (nodes[node, _U(2)] & c) == _U(0))
            if fewest_ones is not None:
                enter &= _U(ones_from[prefix_lengths[node]] >= fewest_ones[node])
            is_leaf = _U(below & _LOW32 != _U(0))
            inner[inner_count] = below >> _U(32)
            inner_count += enter & (is_leaf ^ _U(1))
            leaves[leaf_count] = below
            leaf_count += enter & is_leaf
    return leaf_count


@inlined
def _is_contained(row, zeros, words):
    (a, b, c), (first, second, third) = zeros, words
    return _U((first[row] & a) | (second[row] & b) | (third[row] & c) == _U(0))


@inlined
def _scan(row, end, zeros, words, out, used):
    """Append those of the rows from `row` to `end` that the query contains; returns how many there are then."""
    (_, b, c), (_, second, third) = zeros, words
    for begin in range(row, end, _U(_BLOCK_ROWS)):
        stop = min(begin + _U(_BLOCK_ROWS), end)
        # Most blocks have none, which the compiler finds out for several rows with one instruction. The last two words
        # tell it: much of the first is the leaf's prefix, and unread rows need not come from memory.
        count = _U(0)
        for i in range(begin, stop):
            count += _U((second[i] & b) | (third[i] & c) == _U(0))
        if count != _U(0):
            for i in range(begin, stop):
                out[used] = i
                used += _is_contained(i, zeros, words)
    return used


@kernel
def _match(queries, words, nodes, prefix_lengths, fewest_ones, ends):
    """Rows contained in each query, and in `ends` where each query's end."""
    inner = np.empty(len(nodes) + 1, np.uint32)
    leaves = np.empty(len(nodes) + 1, np.uint64)
    ones_from = np.zeros(SIGNATURE_BITS + 1, np.uint8)
    out = np.empty(1024, np.uint32)
    used = _U(0)
    for query in range(len(queries)):
        zeros = ~queries[query, 0], ~queries[query, 1], ~queries[query, 2]
        if fewest_ones is not None:
            _count_ones_from(queries[query], ones_from)
        leaf_count = _navigate(zeros, nodes, prefix_lengths, fewest_ones, ones_from, inner, leaves)
        for leaf in range(leaf_count):
            row, end = leaves[leaf] >> _U(32), leaves[leaf] & _LOW32
            if used + (end - row) > _U(len(out)):
                out = np.concatenate((out, np.empty(len(out) + np.int64(end - row), np.uint32)))
            used = _scan(row, end, zeros, words, out, used)
        ends[query + 1] = used
    return out[:used]


class PrefixTree(SignatureMatcher):
    """A Patricia tree over signatures that each query navigates. Inexact: some sets only seem to match.

    The *prefix tree* that the TagMatch paper compares with (§4.1), like the trie of PTSJ in Y. Luo, G. Fletcher,
    J. Hidders, P. De Bra, "Efficient and Scalable Trie-Based Algorithms for Computing Set Containment Relations",
    ICDE 2015. The paper's own code is not used; nodes, leaves and the order of navigation are this module's
    (`tagmatch_bench.systems.trees`). Simplified: the tree is built once, from all sets, and then never changed.
    """

    def __init__(self, sets: pa.Table, *, threads: int = 1, leaf_rows: int = LEAF_ROWS) -> None:
        table = signature_table(sets, threads=threads)
        super().__init__(table.keys, threads=threads)
        self._tree = build_tree(table.signatures, leaf_rows=leaf_rows)

    def match_rows(self, queries: U64Array) -> Lists:
        """Find the rows whose signature is contained in each query's."""
        return self._tree.contained_rows(queries)

    def nbytes(self) -> int | None:
        """Bytes of memory."""
        return self._keys.nbytes + self._tree.nbytes


class IcnTree(PrefixTree):
    """A prefix tree over signatures with reordered bits and limits on one-bits. Inexact: some sets only seem to match.

    After the description of M. Papalini, K. Khazaei, A. Carzaniga, D. Rogora, "High Throughput Forwarding for ICN with
    Descriptors and Locators", ANCS 2016, that the TagMatch paper gives as its *ICN matcher* (§4.1, §5): a prefix tree
    over Bloom filters, rearranged and compressed by heuristics. Written without that paper's code and, beyond what the
    TagMatch paper says of them, without its heuristics. What this adds to `PrefixTree`:

    - Bits come in the order of how many sets have them, rarest first, so that a prefix with a one-bit turns away most
      queries. (Measured at 200,000 and 1,000,000 Twitter-like sets: a query goes through 5 to 9 % fewer nodes and
      scans 12 to 14 % fewer rows than in the bits' own order; with popular bits first it scans twice as many.)
    - A query does not go into a subtree whose sets all have more one-bits left than the query. (On these queries,
      which have half as many one-bits again as a set, this turns away next to nothing.)

    Simplified: descriptors only, no locators and no forwarding; the tree is built once and then never changed.
    """

    def __init__(self, sets: pa.Table, *, threads: int = 1, leaf_rows: int = LEAF_ROWS) -> None:
        table = signature_table(sets, threads=threads)
        self._places = _rarest_first(table.signatures)
        table = _reordered(table, self._places, threads)
        SignatureMatcher.__init__(self, table.keys, threads=threads)
        self._tree = build_tree(table.signatures, leaf_rows=leaf_rows, limit_ones=True)

    def prepare(self, queries: pa.ListArray) -> U64Array:
        """Compute the queries' signatures, uint64[n, 3], with their bits in the tree's order."""
        return _with_bits_at(super().prepare(queries), self._places, self._threads)

    def nbytes(self) -> int | None:
        """Bytes of memory."""
        return (super().nbytes() or 0) + self._places.nbytes


@kernel
def _count_bits(signatures, out):
    for row in range(len(signatures)):
        for bit in range(SIGNATURE_BITS):
            out[bit] += np.int64((signatures[row, bit >> 6] >> _U(63 - (bit & 63))) & _U(1))


def _rarest_first(signatures: U64Array) -> I64Array:
    """Return the new place of each bit, int64[192]."""
    counts = np.zeros(SIGNATURE_BITS, np.int64)
    _count_bits(signatures, counts)
    places = np.empty(SIGNATURE_BITS, np.int64)
    places[np.argsort(counts, kind="stable")] = np.arange(SIGNATURE_BITS)
    return places


@kernel
def _move_bits(signatures, places, first, last, out):
    for row in range(first, last):
        out[row, :] = _U(0)
        for bit in range(SIGNATURE_BITS):
            place = places[bit]
            one = (signatures[row, bit >> 6] >> _U(63 - (bit & 63))) & _U(1)
            out[row, place >> 6] |= one << _U(63 - (place & 63))


def _with_bits_at(signatures: U64Array, places: I64Array, threads: int) -> U64Array:
    """Return signatures with bit `i` of each moved to `places[i]`."""
    out = np.empty_like(signatures)
    run_rows(lambda a, b: _move_bits(signatures, places, a, b, out), even_ranges(len(out), threads), threads)
    return out


def _reordered(table: SignatureTable, places: I64Array, threads: int) -> SignatureTable:
    """Return the table with the bits of each signature moved, and rows in their new order."""
    words = _with_bits_at(table.signatures, places, threads)
    order = np.lexsort((words[:, 2], words[:, 1], words[:, 0])).astype(np.uint32)
    return SignatureTable(words[order], KeyTable(gather(table.keys.keys, order, threads=threads)))
