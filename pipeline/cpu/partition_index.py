"""Which partitions may have sets that a query contains: Algorithm 2 (§3.2)."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import I64Array, Lists, U64Array, offsets_of
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.kernels.signature import SIGNATURE_BITS, contains, signatures_of
from tagmatch.model.tables import PartitionTable
from tagmatch.pipeline.matcher import Batches, QueryBatch

_U = np.uint64


@inlined
def _leftmost_bit(signature):
    for bit in range(SIGNATURE_BITS):
        if (signature[bit >> 6] >> _U(63 - (bit & 63))) & _U(1) != _U(0):
            return bit
    return SIGNATURE_BITS


@kernel
def _leftmost_bits(masks, out):
    for i in range(len(masks)):
        out[i] = _leftmost_bit(masks[i])


@kernel
def relevant_to(query, first_masks, masks, partitions, out):
    """Algorithm 2: write the partitions in which there may be sets that a query contains; returns how many."""
    found = 0
    for bit in range(SIGNATURE_BITS):
        if (query[bit >> 6] >> _U(63 - (bit & 63))) & _U(1) == _U(0):
            continue
        for m in range(first_masks[bit], first_masks[bit + 1]):
            if contains(query, masks[m]):
                out[found] = partitions[m]
                found += 1
    return found


@kernel
def _relevant(queries, first_masks, masks, partitions, counts, places, out):
    """Count each partition's queries in `counts`; with `places`, write them to `out` instead."""
    relevant = np.empty(len(masks), np.int64)
    for i in range(len(queries)):
        for partition in relevant[: relevant_to(queries[i], first_masks, masks, partitions, relevant)]:
            if len(places):
                out[places[partition]] = i
                places[partition] += 1
            else:
                counts[partition] += 1


class PartitionIndex:
    """The partition table as 192 vectors of masks, by the mask's leftmost one-bit (§3.2).

    Attributes
    ----------
    first_masks : int64[193] array
        Vector `b` has the masks `first_masks[b]` to `first_masks[b + 1]`.
    masks : uint64 array, partitions x 3
    partitions : int64 array
        The partition of each mask.
    """

    def __init__(self, table: PartitionTable) -> None:
        leftmost = np.empty(len(table), np.int64)
        _leftmost_bits(table.masks, leftmost)
        self.partitions: I64Array = np.argsort(leftmost, kind="stable")
        self.masks: U64Array = table.masks[self.partitions]
        self.first_masks: I64Array = offsets_of(np.bincount(leftmost, minlength=SIGNATURE_BITS))

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.partitions.nbytes + self.masks.nbytes + self.first_masks.nbytes

    def route(self, queries: QueryBatch, hashes: U64Array) -> Batches:
        """Queries, with a batch for each partition in which there may be sets that they contain.

        Parameters
        ----------
        queries : QueryBatch
        hashes : uint64 array
            Those of the vocabulary's tags.
        """
        signatures = signatures_of(Lists(queries.offsets, queries.ranks), hashes)
        return Batches(queries, signatures, np.arange(len(self.masks)), *self.relevant(signatures))

    def relevant(self, signatures: U64Array) -> tuple[I64Array, I64Array]:
        """Queries to be matched within each partition, as list offsets and query numbers."""
        counts = np.zeros(len(self.masks), np.int64)
        none = np.empty(0, np.int64)
        tables = (signatures, self.first_masks, self.masks, self.partitions)
        _relevant(*tables, counts, none, none)
        offsets = offsets_of(counts)
        queued = np.empty(int(offsets[-1]), np.int64)
        if len(queued):
            _relevant(*tables, counts, offsets[:-1].copy(), queued)
        return offsets, queued
