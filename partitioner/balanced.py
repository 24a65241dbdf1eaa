"""Layout `balanced`: the paper's Algorithm 1 (§3.1), with rows in lexicographic signature order in each partition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partitioner.sorting import sort_groups
from tagmatch.arrays import I64Array, U32Array, U64Array
from tagmatch.kernels.jit import inlined, kernel
from tagmatch.kernels.signature import SIGNATURE_BITS, SIGNATURE_WORDS
from tagmatch.parallel import even_ranges, run
from tagmatch.tables import PartitionTable

_U = np.uint64
_ONES = np.uint64(0x0101010101010101)


@inlined
def _has_bit(signature, bit):
    return (signature[bit >> 6] >> _U(63 - (bit & 63))) & _U(1) != _U(0)


@inlined
def _set_bit(signature, bit):
    signature[bit >> 6] |= _U(1) << _U(63 - (bit & 63))


@kernel
def _count_bits(signatures, order, begin, end, counts):
    """Add to `counts`, int64[192], how many of the sets have each bit."""
    # Eight counters of eight bits in a word: `bytes_[w, s]` counts the bits of word w whose place from the right is
    # s modulo 8. A counter holds 255 sets.
    bytes_ = np.zeros((SIGNATURE_WORDS, 8), np.uint64)
    while begin < end:
        stop = min(begin + 255, end)
        bytes_[:] = _U(0)
        for i in range(begin, stop):
            row = order[i]
            for w in range(SIGNATURE_WORDS):
                word = signatures[row, w]
                for s in range(8):
                    bytes_[w, s] += (word >> _U(s)) & _ONES
        for w in range(SIGNATURE_WORDS):
            for place in range(64):
                counts[64 * w + 63 - place] += (bytes_[w, place & 7] >> _U(8 * (place >> 3))) & _U(255)
        begin = stop


@kernel
def _scatter(signatures, order, begin, end, pivot, zeros_at, ones_at, out):
    """Copy sets without the pivot bit to `out[zeros_at:]` and the others to `out[ones_at:]`, each in order."""
    for i in range(begin, end):
        row = order[i]
        if _has_bit(signatures[row], pivot):
            out[ones_at] = row
            ones_at += 1
        else:
            out[zeros_at] = row
            zeros_at += 1


@kernel
def _choose(counts, size, max_size, mask, used):
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
def _partition_subtree(signatures, order, swap, begin, end, mask, used, max_size):
    """Algorithm 1 on `order[begin:end]`; returns the leaves' masks and ends, in row order."""
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
        _count_bits(signatures, order, begin, end, counts)
        pivot = _choose(counts, end - begin, max_size, masks[waiting], useds[waiting])
        if pivot < 0:
            if leaves == len(leaf_ends):
                leaf_masks = np.concatenate((leaf_masks, leaf_masks))
                leaf_ends = np.concatenate((leaf_ends, leaf_ends))
            leaf_masks[leaves], leaf_ends[leaves] = masks[waiting], end
            leaves += 1
            continue
        middle = end - counts[pivot]
        _scatter(signatures, order, begin, end, pivot, begin, middle, swap)
        order[begin:end] = swap[begin:end]
        # The half without the pivot bit is taken first, so that leaves come out in row order.
        _set_bit(useds[waiting], pivot)
        masks[waiting + 1], useds[waiting + 1] = masks[waiting], useds[waiting]
        _set_bit(masks[waiting], pivot)
        bounds[waiting + 1, 0], bounds[waiting + 1, 1] = begin, middle
        bounds[waiting, 0] = middle
        waiting += 2
    return leaf_masks[:leaves], leaf_ends[:leaves]


@dataclass(frozen=True)
class _Node:
    """A set of rows, `order[begin:end]`, that Algorithm 1 has still to split or to make a partition."""

    begin: int
    end: int
    mask: U64Array
    used: U64Array

    @property
    def size(self) -> int:
        return self.end - self.begin


def _split(
    node: _Node, signatures: U64Array, order: U32Array, swap: U32Array, max_size: int, threads: int
) -> list[_Node]:
    """The halves of a large node, every thread working on a part of its rows; the node itself if it is a leaf."""
    ranges = [(node.begin + a, node.begin + b) for a, b in even_ranges(node.size, threads)]
    counts = np.zeros((len(ranges), SIGNATURE_BITS), np.int64)
    run(lambda i: _count_bits(signatures, order, *ranges[i], counts[i]), range(len(ranges)), threads)
    mask, used = node.mask.copy(), node.used.copy()
    pivot = _choose(counts.sum(axis=0), node.size, max_size, mask, used)
    if pivot < 0:
        return [node]
    ones = counts[:, pivot]
    zeros = np.array([b - a for a, b in ranges]) - ones
    middle = node.begin + int(zeros.sum())
    zeros_at = node.begin + np.cumsum(zeros) - zeros
    ones_at = middle + np.cumsum(ones) - ones

    def scatter(i: int) -> None:
        _scatter(signatures, order, *ranges[i], pivot, zeros_at[i], ones_at[i], swap)

    run(scatter, range(len(ranges)), threads)
    order[node.begin : node.end] = swap[node.begin : node.end]
    bit = np.zeros(SIGNATURE_WORDS, np.uint64)
    bit[pivot // 64] = 1 << (63 - pivot % 64)
    return [
        _Node(node.begin, middle, mask, used | bit),
        _Node(middle, node.end, mask | bit, used | bit),
    ]


def balanced_partitions(
    signatures: U64Array, first_row: int, max_partition_size: int, *, threads: int = 1
) -> tuple[PartitionTable, U32Array]:
    """Algorithm 1 on the rows from `first_row` on, none of which may have a zero signature.

    Parameters
    ----------
    signatures : uint64[n, 3] array
        In the canonical (lexicographic rank) order, which settles equal signatures.
    max_partition_size : int
        `MAX_P`.

    Returns
    -------
    partitions : PartitionTable
    order : uint32 array
        The row that goes to each place of the tagset table.
    """
    count = len(signatures)
    order = np.arange(count, dtype=np.uint32)
    swap = np.empty_like(order)
    empty = np.zeros(SIGNATURE_WORDS, np.uint64)

    # Nodes too large for one thread's fair share are split by all threads together, the others one to a thread.
    share = max(max_partition_size, (count - first_row) // (4 * threads))
    large = [_Node(first_row, count, empty, empty)] if count > first_row else []
    subtrees: list[_Node] = []
    while large:
        node = large.pop()
        halves = [node] if threads == 1 or node.size <= share else _split(
            node, signatures, order, swap, max_partition_size, threads
        )  # fmt: skip
        if len(halves) == 1:
            subtrees += halves
        large += [half for half in halves if half is not node and half.size]
    subtrees.sort(key=lambda node: node.begin)

    def finish(node: _Node) -> tuple[U64Array, I64Array]:
        found: tuple[U64Array, I64Array] = _partition_subtree(
            signatures, order, swap, node.begin, node.end, node.mask, node.used, max_partition_size
        )
        return found

    leaves = run(finish, subtrees, threads)
    masks = np.concatenate([np.zeros((0, SIGNATURE_WORDS), np.uint64), *(masks for masks, _ in leaves)])
    first_rows = np.concatenate([np.array([first_row], np.int64), *(ends for _, ends in leaves)])
    sort_groups(signatures, order, first_rows, threads=threads)
    return PartitionTable(masks, first_rows), order
