"""Layout `balanced`: the paper's Algorithm 1 (§3.1), with rows in lexicographic signature order in each partition."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tagmatch.model.arrays import I64Array, U32Array, U64Array
from tagmatch.model.kernels.hashing import SIGNATURE_BITS, SIGNATURE_WORDS
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.kernels.lists import sort_groups
from tagmatch.model.parallel import even_ranges, run, run_rows
from tagmatch.model.tables import PartitionTable

_U = np.uint64
_ONES = np.uint64(0x0101010101010101)


@inlined
def _has_bit(signature, bit):
    return (signature[bit >> 6] >> _U(63 - (bit & 63))) & _U(1) != _U(0)


@inlined
def _set_bit(signature, bit):
    signature[bit >> 6] |= _U(1) << _U(63 - (bit & 63))


@kernel
def count_bits(signatures, begin, end, counts):
    """Add to `counts`, int64[192], how many of the sets from `begin` to `end` have each bit."""
    # Eight counters of eight bits in a word: `bytes_[w, s]` counts the bits of word w whose place from the right is
    # s modulo 8. A counter holds 255 sets.
    bytes_ = np.zeros((SIGNATURE_WORDS, 8), np.uint64)
    while begin < end:
        stop = min(begin + 255, end)
        bytes_[:] = _U(0)
        for row in range(begin, stop):
            for w in range(SIGNATURE_WORDS):
                word = signatures[row, w]
                for s in range(8):
                    bytes_[w, s] += (word >> _U(s)) & _ONES
        for w in range(SIGNATURE_WORDS):
            for place in range(64):
                counts[64 * w + 63 - place] += (bytes_[w, place & 7] >> _U(8 * (place >> 3))) & _U(255)
        begin = stop


class _Rows(NamedTuple):
    """Signatures and row numbers, which move together."""

    signatures: U64Array
    order: U32Array


@kernel
def _scatter(rows, swap, begin, end, pivot, zeros_at, ones_at):
    """Move sets without the pivot bit to `zeros_at` of the other rows and the others to `ones_at`, each in order."""
    (signatures, order), (swap_signatures, swap_order) = rows, swap
    for row in range(begin, end):
        # No branch: the pivot splits evenly, so a branch would be guessed wrongly every other time.
        bit = np.int64((signatures[row, pivot >> 6] >> _U(63 - (pivot & 63))) & _U(1))
        at = ones_at if bit else zeros_at
        swap_order[at] = order[row]
        for w in range(SIGNATURE_WORDS):
            swap_signatures[at, w] = signatures[row, w]
        ones_at += bit
        zeros_at += 1 - bit


@kernel
def _move_back(rows, swap, begin, end):
    rows.signatures[begin:end] = swap.signatures[begin:end]
    rows.order[begin:end] = swap.order[begin:end]


@kernel
def choose_pivot(counts, size, max_size, mask, used):
    """The pivot that splits a node, or -1 when the node is a leaf; may complete the leaf's mask.

    The pivot is the unused bit whose frequency is closest to 50 %, ties to the lowest bit.

    Termination: a split uses up one of the 192 bits, so a path of the recursion has at most 192 splits. Where every
    unused bit is in all sets of the node or in none, a split moves the node whole to one side. Algorithm 1 would go
    on so with the unused bits in turn, lowest first, until the node is small enough with a non-empty mask or no bit
    is left; the second branch writes down where that ends without making the moves. It ends with a non-empty mask:
    the mask is empty only as long as all used bits are 0 in all sets of the node, and no stored signature is zero.
    A node of more than `max_size` sets that ends there holds sets of one and the same signature.
    """
    if size <= max_size and (mask[0] | mask[1] | mask[2]) != _U(0):
        return -1
    pivot, closest = -1, size
    for bit in range(SIGNATURE_BITS):
        distance = abs(2 * counts[bit] - size)
        if distance < closest and not _has_bit(used, bit):
            pivot, closest = bit, distance
    if pivot < 0:
        for bit in range(SIGNATURE_BITS):
            if counts[bit] == size and not _has_bit(used, bit):
                _set_bit(mask, bit)
                if size <= max_size:
                    break
    return pivot


@kernel
def _partition_subtree(rows, swap, begin, end, mask, used, max_size):
    """Algorithm 1 on the sets from `begin` to `end`; returns the leaves' masks and ends, in row order."""
    # A path has at most 192 splits and each leaves one node waiting.
    bounds = np.empty((SIGNATURE_BITS + 1, 2), np.int64)
    masks = np.empty((SIGNATURE_BITS + 1, SIGNATURE_WORDS), np.uint64)
    useds = np.empty((SIGNATURE_BITS + 1, SIGNATURE_WORDS), np.uint64)
    bounds[0, 0], bounds[0, 1] = begin, end
    masks[0], useds[0] = mask, used
    waiting = 1
    leaf_masks = np.empty((16, SIGNATURE_WORDS), np.uint64)
    leaf_ends = np.empty(16, np.int64)
    leaves = 0
    counts = np.empty(SIGNATURE_BITS, np.int64)
    while waiting > 0:
        waiting -= 1
        begin, end = bounds[waiting]
        counts[:] = 0
        count_bits(rows.signatures, begin, end, counts)
        pivot = choose_pivot(counts, end - begin, max_size, masks[waiting], useds[waiting])
        if pivot < 0:
            if leaves == len(leaf_ends):
                leaf_masks = np.concatenate((leaf_masks, leaf_masks))
                leaf_ends = np.concatenate((leaf_ends, leaf_ends))
            leaf_masks[leaves], leaf_ends[leaves] = masks[waiting], end
            leaves += 1
            continue
        middle = end - counts[pivot]
        _scatter(rows, swap, begin, end, pivot, begin, middle)
        _move_back(rows, swap, begin, end)
        # The half without the pivot bit is taken first, so that leaves come out in row order.
        _set_bit(useds[waiting], pivot)
        masks[waiting + 1], useds[waiting + 1] = masks[waiting], useds[waiting]
        _set_bit(masks[waiting], pivot)
        bounds[waiting + 1, 0], bounds[waiting + 1, 1] = begin, middle
        bounds[waiting, 0] = middle
        waiting += 2
    return leaf_masks[:leaves], leaf_ends[:leaves]


@dataclass(frozen=True, eq=False)
class Root:
    """Where Algorithm 1 begins: with all sets, or with those that some splits have left together."""

    # Both uint64[3]: the pivots whose bit the sets have, and all pivots
    mask: U64Array = field(default_factory=lambda: np.zeros(SIGNATURE_WORDS, np.uint64))
    used: U64Array = field(default_factory=lambda: np.zeros(SIGNATURE_WORDS, np.uint64))

    def pivot(self, counts: I64Array, size: int, max_size: int) -> int:
        """Where `size` sets of this root, by these counts of bits, int64[192], are split; -1: they stay together."""
        return int(choose_pivot(counts, size, max_size, self.mask.copy(), self.used.copy()))

    def halves(self, pivot: int) -> tuple[Root, Root]:
        """Where it goes on with the sets without a pivot, and with those with it."""
        bit = np.zeros(SIGNATURE_WORDS, np.uint64)
        bit[pivot // 64] = 1 << (63 - pivot % 64)
        return Root(self.mask, self.used | bit), Root(self.mask | bit, self.used | bit)


class _Node(NamedTuple):
    """Sets, rows `begin` to `end`, that Algorithm 1 has still to split or to make a partition."""

    begin: int
    end: int
    root: Root


def _split(rows: _Rows, swap: _Rows, node: _Node, max_size: int, threads: int) -> list[_Node]:
    """The halves of a large node, every thread working on a part of its rows; none if it is a leaf."""
    size = node.end - node.begin
    ranges = [(node.begin + a, node.begin + b) for a, b in even_ranges(size, threads)]
    counts = np.zeros((len(ranges), SIGNATURE_BITS), np.int64)
    run(lambda i: count_bits(rows.signatures, *ranges[i], counts[i]), range(len(ranges)), threads)
    pivot = node.root.pivot(counts.sum(axis=0), size, max_size)
    if pivot < 0:
        return []
    ones = counts[:, pivot]
    zeros = np.array([b - a for a, b in ranges]) - ones
    middle = node.begin + int(zeros.sum())
    zeros_at = node.begin + np.cumsum(zeros) - zeros
    ones_at = middle + np.cumsum(ones) - ones
    run(lambda i: _scatter(rows, swap, *ranges[i], pivot, zeros_at[i], ones_at[i]), range(len(ranges)), threads)
    run(lambda i: _move_back(rows, swap, *ranges[i]), range(len(ranges)), threads)
    without, having = node.root.halves(pivot)
    return [
        half for half in (_Node(node.begin, middle, without), _Node(middle, node.end, having)) if half.end > half.begin
    ]


def _leaves(
    rows: _Rows, swap: _Rows, first_row: int, root: Root, max_size: int, threads: int
) -> tuple[U64Array, I64Array]:
    """Masks and first rows (and the end) of all leaves, in row order."""
    # Nodes too large for one thread's fair share are split by all threads together, the others one to a thread.
    count = len(rows.order)
    share = max(max_size, (count - first_row) // (4 * threads))
    waiting = [_Node(first_row, count, root)] if count > first_row else []
    subtrees: list[_Node] = []
    while waiting:
        node = waiting.pop()
        is_small = threads == 1 or node.end - node.begin <= share
        if not is_small and (halves := _split(rows, swap, node, max_size, threads)):
            waiting += halves
        else:
            subtrees.append(node)
    subtrees.sort(key=lambda node: node.begin)

    def finish(node: _Node) -> tuple[U64Array, I64Array]:
        mask, used = node.root.mask, node.root.used
        leaves: tuple[U64Array, I64Array] = _partition_subtree(rows, swap, node.begin, node.end, mask, used, max_size)
        return leaves

    leaves = run(finish, subtrees, threads)
    masks = np.concatenate([np.zeros((0, SIGNATURE_WORDS), np.uint64), *(masks for masks, _ in leaves)])
    return masks, np.concatenate([np.array([first_row], np.int64), *(ends for _, ends in leaves)])


def balanced_partitions(
    signatures: U64Array, first_row: int, max_partition_size: int, *, root: Root | None = None, threads: int = 1
) -> tuple[PartitionTable, U32Array, U64Array]:
    """Algorithm 1 (`MAX_P`) on the rows from `first_row` on, which have no zero signature.

    Signatures come in the canonical (lexicographic rank) order, which settles equal ones, and are overwritten. Gives
    the row that goes to each place of the tagset table, and signatures in that order; each word's column is contiguous.
    """
    count = len(signatures)
    order = np.arange(count, dtype=np.uint32)
    swap = _Rows(np.empty_like(signatures), np.empty_like(order))
    masks, first_rows = _leaves(_Rows(signatures, order), swap, first_row, root or Root(), max_partition_size, threads)
    # The swap array's memory, no longer needed, takes the result: fresh memory would have to be cleared first.
    columns = swap.signatures.reshape(SIGNATURE_WORDS, count).T
    del swap
    within = np.arange(count, dtype=np.uint32)
    sort_groups(signatures, within, first_rows, threads=threads)
    return PartitionTable(masks, first_rows), order[within], _columnwise(signatures, within, columns, threads)


def _columnwise(signatures: U64Array, order: U32Array, out: U64Array, threads: int) -> U64Array:
    """Signatures in the order given, the words of a column side by side in memory: `out`, uint64[n, 3]."""

    def work(first: int, last: int) -> None:
        for word in range(SIGNATURE_WORDS):
            out[first:last, word] = signatures[order[first:last], word]

    run_rows(work, even_ranges(len(order), 8 * threads), threads)
    return out
