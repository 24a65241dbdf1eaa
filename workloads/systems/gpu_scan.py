"""Plain scans of all signatures on a GPU, the paper's *GPU-only* systems (Table 1). Imports `numba.cuda`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba.cuda
import numpy as np

from tagmatch.model.arrays import Lists, offsets_of
from tagmatch.workloads.systems.matcher import UnavailableError
from tagmatch.workloads.systems.signatures import SignatureMatcher, signature_table

if TYPE_CHECKING:
    import pyarrow as pa

    from tagmatch.model.arrays import U32Array, U64Array

cuda: Any = numba.cuda

#: Queries of one batch, as in the paper: their numbers fit 8 bits (§3.3.1)
BATCH_SIZE = 256

_BLOCK_THREADS = 256
_FIRST_ROOM = 1 << 20


@cuda.jit
def _scan(words, not_query, found, count):
    """Append the rows that the complement of one query does not meet; one thread a row."""
    row = cuda.grid(1)
    if row < words.shape[1]:
        rest = (words[0, row] & not_query[0]) | (words[1, row] & not_query[1]) | (words[2, row] & not_query[2])
        if rest == 0:
            at = cuda.atomic.add(count, 0, 1)
            if at < len(found):
                found[at] = row


@cuda.jit
def _scan_batch(words, not_queries, found_queries, found, count):
    """Append (query, row) for a batch; one thread a row, which is loaded once for all queries."""
    batch = cuda.shared.array((BATCH_SIZE, 3), np.uint64)
    for query in range(cuda.threadIdx.x, len(not_queries), cuda.blockDim.x):
        for word in range(3):
            batch[query, word] = not_queries[query, word]
    cuda.syncthreads()
    row = cuda.grid(1)
    if row < words.shape[1]:
        first, second, third = words[0, row], words[1, row], words[2, row]
        for query in range(len(not_queries)):
            if (first & batch[query, 0]) | (second & batch[query, 1]) | (third & batch[query, 2]) == 0:
                at = cuda.atomic.add(count, 0, 1)
                if at < len(found):
                    found_queries[at] = query
                    found[at] = row


class _GpuMatcher(SignatureMatcher):
    """Signatures on the device, column by column, and a buffer of results that grows when it was too small.

    Parameters
    ----------
    threads : int
        Threads of the CPU that compute signatures and sort them.
    block_threads : int
        Threads of a block.
    room : int
        Results that the buffer holds at first.

    Raises
    ------
    UnavailableError
        There is no CUDA device.
    """

    def __init__(
        self, sets: pa.Table, *, threads: int = 1, block_threads: int = _BLOCK_THREADS, room: int = _FIRST_ROOM
    ) -> None:
        if not cuda.is_available():
            raise UnavailableError("needs an NVIDIA GPU that numba.cuda can use")
        table = signature_table(sets, threads=threads)
        super().__init__(table.keys, threads=1)
        self._words = cuda.to_device(np.ascontiguousarray(table.signatures.T))
        self._block_threads = block_threads
        self._blocks = -(-len(table) // block_threads)
        self._reserve(room)

    def _reserve(self, room: int) -> None:
        self._found = cuda.device_array(room, np.uint32)

    def _launch(self, kernel: Any, queries: U64Array) -> int:
        """Run a kernel until its results fit the buffers; returns how many there are."""
        not_queries = cuda.to_device(~queries)
        while True:
            count = cuda.to_device(np.zeros(1, np.uint64))
            kernel[self._blocks, self._block_threads](self._words, not_queries, *self._buffers(), count)
            results = int(count.copy_to_host()[0])
            if results <= len(self._found):
                return results
            self._reserve(2 * results)

    def _buffers(self) -> tuple[Any, ...]:
        return (self._found,)

    def nbytes(self) -> int | None:
        """Bytes of host and device memory."""
        return self._keys.nbytes + int(self._words.nbytes)


class GpuScan(_GpuMatcher):
    """One kernel launch for each query, *GPU-only, plain*. Inexact: some sets only seem to match.

    Source: Table 1 of the TagMatch paper, which names the system but does not describe it; the test is that of its
    Algorithm 3. Simplified: no streams, so copies and kernels take turns.
    """

    def match_rows(self, queries: U64Array) -> Lists:
        """Find the rows whose signature is contained in each query's."""
        found = [np.zeros(0, np.uint32)]
        for query in queries:
            count = self._launch(_scan, query) if self._blocks else 0
            found.append(self._found[:count].copy_to_host() if count else found[0])
        return Lists(offsets_of(np.array([len(rows) for rows in found[1:]], np.int64)), np.concatenate(found))


class GpuBatchScan(_GpuMatcher):
    """One kernel launch for each batch of 256 queries, *GPU-only, plain with batching*. Inexact as `GpuScan`.

    Source: Table 1 of the TagMatch paper. Every thread keeps one signature in registers and tests all queries of the
    batch, which are in shared memory. Simplified as `GpuScan`.
    """

    def _reserve(self, room: int) -> None:
        super()._reserve(room)
        self._found_queries = cuda.device_array(room, np.uint8)

    def _buffers(self) -> tuple[Any, ...]:
        return (self._found_queries, self._found)

    def match_rows(self, queries: U64Array) -> Lists:
        """Find the rows whose signature is contained in each query's."""
        lengths = np.zeros(len(queries), np.int64)
        found = [np.zeros(0, np.uint32)]
        for first in range(0, len(queries) if self._blocks else 0, BATCH_SIZE):
            batch = queries[first : first + BATCH_SIZE]
            count = self._launch(_scan_batch, batch)
            if count:
                numbers = self._found_queries[:count].copy_to_host()
                found.append(_by_query(numbers, self._found[:count].copy_to_host()))
                lengths[first : first + len(batch)] = np.bincount(numbers, minlength=len(batch))
        return Lists(offsets_of(lengths), np.concatenate(found))


def _by_query(numbers: np.ndarray[tuple[int], np.dtype[np.uint8]], rows: U32Array) -> U32Array:
    return rows[np.argsort(numbers, kind="stable")]
