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
def _relevant(queries, first_masks, masks, partitions, counts, places, out):
    """Algorithm 2. Counts each partition's queries in `counts`; with `places`, writes them to `out` instead."""
    for i in range(len(queries)):
        for bit in range(SIGNATURE_BITS):
            if (queries[i, bit >> 6] >> _U(63 - (bit & 63))) & _U(1) == _U(0):
                continue
            for m in range(first_masks[bit], first_masks[bit + 1]):
                if contains(queries[i], masks[m]):
                    partition = partitions[m]
                    if len(places):
                        out[places[partition]] = i
                        places[partition] += 1
                    else:
                        counts[partition] += 1


class PartitionIndex:
    """The partition table as 192 vectors of masks, by the mask's leftmost one-bit (§3.2)."""

    def __init__(self, table: PartitionTable) -> None:
        leftmost = np.empty(len(table), np.int64)
        _leftmost_bits(table.masks, leftmost)
        self._partitions: I64Array = np.argsort(leftmost, kind="stable")
        self._masks: U64Array = table.masks[self._partitions]
        self._first_masks = offsets_of(np.bincount(leftmost, minlength=SIGNATURE_BITS))

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._partitions.nbytes + self._masks.nbytes + self._first_masks.nbytes

    def route(self, queries: QueryBatch, hashes: U64Array) -> Batches:
        """Queries, with a batch for each partition in which there may be sets that they contain.

        Parameters
        ----------
        queries : QueryBatch
        hashes : uint64 array
            Those of the vocabulary's tags.
        """
        signatures = signatures_of(Lists(queries.offsets, queries.ranks), hashes)
        return Batches(queries, signatures, np.arange(len(self._masks)), *self.relevant(signatures))

    def relevant(self, signatures: U64Array) -> tuple[I64Array, I64Array]:
        """Queries to be matched within each partition, as list offsets and query numbers."""
        counts = np.zeros(len(self._masks), np.int64)
        none = np.empty(0, np.int64)
        tables = (signatures, self._first_masks, self._masks, self._partitions)
        _relevant(*tables, counts, none, none)
        offsets = offsets_of(counts)
        queued = np.empty(int(offsets[-1]), np.int64)
        if len(queued):
            _relevant(*tables, counts, offsets[:-1].copy(), queued)
        return offsets, queued
