"""A scan of all signatures with NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tagmatch.model.arrays import Lists, offsets_of
from tagmatch_bench.systems.signatures import SignatureMatcher, signature_table

if TYPE_CHECKING:
    import pyarrow as pa

    from tagmatch.model.arrays import U64Array


class SignatureScan(SignatureMatcher):
    """A NumPy scan of all signatures for each query. Inexact: some sets only seem to match.

    The test is the inner loop of Algorithm 3 of the TagMatch paper. Simplified: no partitions, no prefix filter, no
    batches.
    """

    def __init__(self, sets: pa.Table, *, threads: int = 1) -> None:
        table = signature_table(sets, threads=threads)
        super().__init__(table.keys, threads=threads)
        self._words = np.ascontiguousarray(table.signatures.T)

    def match_rows(self, queries: U64Array) -> Lists:
        """Find the rows whose signature is contained in each query's."""
        first, second, third = self._words
        left, right = np.empty_like(first), np.empty_like(first)
        found = [np.zeros(0, np.uint32)]
        for a, b, c in ~queries:
            np.bitwise_and(first, a, out=left)
            left |= np.bitwise_and(second, b, out=right)
            left |= np.bitwise_and(third, c, out=right)
            found.append(np.flatnonzero(left == 0).astype(np.uint32))
        lengths = np.array([len(rows) for rows in found[1:]], np.int64)
        return Lists(offsets_of(lengths), np.concatenate(found))

    def nbytes(self) -> int | None:
        """Bytes of memory."""
        return self._keys.nbytes + self._words.nbytes
