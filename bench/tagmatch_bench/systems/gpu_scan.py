"""Plain scans of all signatures on a GPU, the paper's *GPU-only* systems (Table 1). Imports `numba.cuda`."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numba.cuda
import numpy as np
import pyarrow as pa

from tagmatch import CudaOptions
from tagmatch.model.arrays import Lists, U64Array, bytes_of
from tagmatch.model.kernels.hashing import SIGNATURE_WORDS
from tagmatch.model.kernels.lists import group_by
from tagmatch.pipeline.cuda import on_device
from tagmatch.pipeline.cuda.device import Workspace, grid, kernel, sent, typed
from tagmatch_bench.systems.matcher import CallSize, UnavailableError
from tagmatch_bench.systems.signatures import SignatureMatcher, signature_table

cuda: Any = numba.cuda

#: Queries of one batch, as in the paper: their numbers fit 8 bits (§3.3.1)
BATCH_SIZE = 256

#: Batches that go to the device together, and whose results come back together
PACKET_BATCHES = 4

# Of a call that is large enough
_PACKETS_PER_STREAM = 4

_DEVICE = 0
_BLOCK_THREADS = 256
_FIRST_ROOM = 1 << 20

#: Signatures on the device, by words
Stored = namedtuple("Stored", "rows first second third")

#: What a packet finds on the device: the number of a query in its batch, and a row
_Pairs = namedtuple("_Pairs", "queries rows")


@kernel
def _scan(stored, queries, begin, end, batch, counts, room, pairs):
    """Append (query, row) for a batch, behind the pairs of earlier batches; one thread a row."""
    inverted = cuda.shared.array((SIGNATURE_WORDS, BATCH_SIZE), np.uint64)
    for query in range(begin + cuda.threadIdx.x, end, cuda.blockDim.x):
        for word in range(SIGNATURE_WORDS):
            inverted[word, query - begin] = ~queries[query * SIGNATURE_WORDS + word]
    cuda.syncthreads()
    row = cuda.grid(1)
    if row < stored.rows:
        x, y, z = stored.first[row], stored.second[row], stored.third[row]
        number, many = np.uint32(0), np.uint32(end - begin)
        while number < many:  # unsigned, as an index that cannot be negative takes fewer instructions
            if x & inverted[0, number] == 0 and y & inverted[1, number] == 0 and z & inverted[2, number] == 0:
                at = cuda.atomic.add(counts, batch, 1)
                for earlier in range(batch):
                    at += counts[earlier]
                if at < room:
                    pairs.queries[at] = number
                    pairs.rows[at] = row
            number += np.uint32(1)


class GpuBatchScan(SignatureMatcher):
    """One kernel launch for each batch of 256 queries, *GPU-only, plain with batching*. Inexact: wrong sets come, too.

    Source: Table 1 of the TagMatch paper, which names the system but does not describe it; the test is that of its
    Algorithm 3. Every thread of the device keeps one signature in registers and tests all queries of the batch, which
    are in shared memory. What `tagmatch` has on the device this has, too: several streams, so that copies and kernels
    of different packets overlap, pinned host memory, buffers that stay, and as many threads that look keys up.
    """

    #: Queries of a launch
    batch_size = BATCH_SIZE

    def __init__(
        self,
        sets: pa.Table,
        *,
        threads: int = 1,
        streams: int = CudaOptions().streams,
        block_threads: int = _BLOCK_THREADS,
        room: int = _FIRST_ROOM,
    ) -> None:
        if not cuda.is_available():
            raise UnavailableError("needs an NVIDIA GPU that numba.cuda can use")
        table = signature_table(sets, threads=threads)
        super().__init__(table.keys, threads=threads)
        packet = PACKET_BATCHES * self.batch_size
        self.call_size = CallSize(streams * packet, _PACKETS_PER_STREAM * streams * packet)
        self.rows = len(table)
        self.grid = grid(self.rows, block_threads)
        self.room = room
        self._free: SimpleQueue[Workspace] = SimpleQueue()
        with on_device(_DEVICE):
            self.stored = sent(Stored(self.rows, *(np.ascontiguousarray(word) for word in table.signatures.T)))
            for _ in range(streams):
                self._free.put(Workspace())

    def match_many(self, queries: U64Array, *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the stored sets that match or seem to, for each query in order."""
        return self.keys_of_packets(queries, self.packet_ranges(len(queries)), unique=unique)

    def packet_ranges(self, queries: int) -> list[tuple[int, int]]:
        """Cut queries into packets, all but the last of whole batches."""
        size = PACKET_BATCHES * self.batch_size
        return [(first, min(first + size, queries)) for first in range(0, queries, size)]

    def match_rows(self, queries: U64Array) -> Lists:
        """Find the rows whose signature is contained in each query's."""
        with self.packet(queries) as packet:
            packet.subset_match()
            return packet.found()

    @contextmanager
    def packet(self, queries: U64Array) -> Iterator[ScannedPacket]:
        """Copy the signatures of a packet's queries to the device, which keeps them until the end of the block."""
        workspace = self._free.get()
        try:
            with on_device(_DEVICE):
                yield ScannedPacket(self, workspace, len(queries), workspace.send("queries", queries.reshape(-1)))
        finally:
            self._free.put(workspace)

    def nbytes(self) -> int | None:
        """Bytes of host and device memory."""
        return self._keys.nbytes + bytes_of(self.stored)


class GpuScan(GpuBatchScan):
    """One kernel launch for each query, *GPU-only, plain*; else as `GpuBatchScan`."""

    batch_size = 1


@dataclass(slots=True, eq=False)
class ScannedPacket:
    """Queries' signatures in device memory, and then the rows that are found for them."""

    scan: GpuBatchScan
    workspace: Workspace
    queries: int
    signatures: Any  # three words a query
    counts: Any = None  # pairs of each batch

    def subset_match(self) -> None:
        """Find (query, row) pairs, which stay in device memory; once more, if there was too little room."""
        scan, workspace = self.scan, self.workspace
        batches = range(0, self.queries, scan.batch_size)
        launch = _scan[(*scan.grid, workspace.stream)]
        while True:
            room = scan.room
            columns = workspace.device("pair queries", np.uint8, room), workspace.device("pair rows", np.uint32, room)
            pairs = typed(_Pairs(*columns))
            counts = workspace.send("counts", np.zeros(len(batches), np.int64))
            for batch, first in enumerate(batches):
                last = min(first + scan.batch_size, self.queries)
                launch(scan.stored, self.signatures, first, last, batch, counts, room, pairs)
            self.counts = workspace.download("counts", counts, len(batches))
            workspace.stream.synchronize()
            found = int(self.counts.sum())
            if found <= room:
                return
            scan.room = max(scan.room, found + found // 8)

    def found(self) -> Lists:
        """Copy the pairs to the host, and group them by query."""
        workspace, found = self.workspace, int(self.counts.sum())
        numbers, rows = (
            workspace.download(name, workspace.device(name, dtype, found), found)
            for name, dtype in (("pair queries", np.uint8), ("pair rows", np.uint32))
        )
        workspace.stream.synchronize()
        firsts = np.arange(len(self.counts), dtype=np.uint32) * np.uint32(self.scan.batch_size)
        starts, order = group_by(np.repeat(firsts, self.counts) + numbers, self.queries)
        return Lists(starts, rows[order])
