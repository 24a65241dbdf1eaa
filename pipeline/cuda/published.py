"""Stage 2, subset match, of the `balanced` layout on the device as the paper has it: batch by batch (§3.3).

One launch matches a batch of up to 256 queries with one partition. A call takes a stream and does its batches in
cycles on it. Each cycle uploads a batch, launches the kernel and transfers the results of the cycle before, whose
number came with the transfer before (§3.3.2): a stream has two result buffers, which cycles use in turn, and each
carries the counters of the other's results.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numba.cuda
import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import I64Array, U32Array, U64Array
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.kernels.signature import SIGNATURE_WORDS
from tagmatch.model.tables import PartitionTable, Segment
from tagmatch.pipeline.cpu.balanced import grouped_by_query
from tagmatch.pipeline.cpu.blocks import signature_words
from tagmatch.pipeline.cpu.partition_index import PartitionIndex
from tagmatch.pipeline.cpu.subset_match import Matches
from tagmatch.pipeline.cuda.memory import Workspace, grid, to_device
from tagmatch.pipeline.cuda.published_kernels import (
    COUNTERS,
    FOUND,
    MOST_QUERIES,
    QUERY_WORDS,
    REJECTED,
    match_batch,
    packed_words,
    unpack,
)
from tagmatch.pipeline.cuda.support import on_device
from tagmatch.pipeline.matcher import Batches, Found, QueryBatch

cuda: Any = numba.cuda

_BLOCK_THREADS = 256

# Results of one batch that a buffer has room for at first, 1.25 MiB
_FIRST_ROOM = 1 << 18

# Words of the counters with which a result buffer begins
_HEADER = 2 * COUNTERS


@dataclass(slots=True, eq=False)
class _Batch:
    """Queries, by their number in the call, to be matched within a partition, and how many results are known of."""

    partition: int
    numbers: I64Array
    found: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Partitions:
    """The stored sets on the device, and how batches are matched with them."""

    first_rows: list[int]
    tables: tuple[Any, ...]
    exact: bool
    block_threads: int

    def launch(self, partition: int, stream: Any, *arguments: Any) -> None:
        """Launch the kernel for the rows of one partition."""
        begin, end = self.first_rows[partition : partition + 2]
        blocks, threads = grid(end - begin, self.block_threads)
        match_batch[blocks, threads, stream](begin, end, *self.tables, self.exact, *arguments)


class _Results:
    """One of the two result buffers of a stream, on the device, and on the host what was transferred last.

    Attributes
    ----------
    room : int
        How many results fit.
    counters : int64 device array
        Those of the results in the other buffer.
    ids, sets : uint8 and uint32 device arrays
        The results, packed; the same memory.
    """

    def __init__(self, name: str, room: int, workspace: Workspace) -> None:
        self._name = name
        self._workspace = workspace
        self._zeros = workspace.pinned("zeros", np.int64, COUNTERS)
        self._zeros[:] = 0
        self._allocate(room)

    def _allocate(self, room: int) -> None:
        self._memory = cuda.device_array(_HEADER + packed_words(room), np.uint32)
        self.room = room
        self.counters = self._memory[:_HEADER].view(np.int64)
        self.sets = self._memory[_HEADER:]
        self.ids = self.sets.view(np.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return int(self._memory.nbytes)

    def clear(self) -> None:
        """Set the counters to zero."""
        self.counters.copy_to_device(self._zeros, stream=self._workspace.stream)

    def reserve(self, results: int) -> None:
        """Have room for `count` results; if there was too little, what the buffer holds is lost."""
        if results > self.room:
            self._workspace.stream.synchronize()
            self._allocate(results + results // 8)

    def transfer(self, results: int) -> None:
        """Begin to copy the counters and `count` results to the host."""
        self._host = self._workspace.download(self._name, self._memory, _HEADER + packed_words(results))

    def transferred_counters(self) -> tuple[int, int]:
        """Results and rejected candidates of the other buffer's batch."""
        counters = self._host[:_HEADER].view(np.int64)
        return int(counters[FOUND]), int(counters[REJECTED])

    def transferred(self, batch: _Batch) -> tuple[U32Array, U32Array]:
        """Numbers of queries and set ids, the results of the batch."""
        ids, sets = unpack(self._host[_HEADER:], batch.found)
        return batch.numbers[ids].astype(np.uint32), sets


class _Stream:
    """A stream with its buffers; one call at a time."""

    def __init__(self, partitions: _Partitions, room: int) -> None:
        self._partitions = partitions
        self._workspace = Workspace()
        self._results = tuple(_Results(f"{name} results", room, self._workspace) for name in ("even", "odd"))
        self._transferred = cuda.event()

    @property
    def nbytes(self) -> int:
        """Bytes of device memory for results."""
        return sum(results.nbytes for results in self._results)

    def match(self, batches: Batches, todo: deque[_Batch]) -> Found:
        """Match batches in cycles; one whose results had no room is matched once more, with enough."""
        stream = self._workspace.stream
        stream.synchronize()  # a call that failed may have left something behind
        queries = (
            self._upload_for_verification("offsets", batches.queries.offsets),
            self._upload_for_verification("ranks", batches.queries.ranks),
        )
        pairs = [(np.empty(0, np.uint32), np.empty(0, np.uint32))]
        rejected = 0
        # The batches of the cycle before, and of the one before that
        ran: _Batch | None = None
        came: _Batch | None = None
        here, there = self._results
        there.clear()
        while todo or ran or came:
            runs = todo.popleft() if todo else None
            if runs is None:
                here.clear()
            else:
                self._launch(runs, batches.signatures, queries, here, there)
            # What the cycle before transferred, from the buffer that is this cycle's again
            self._transferred.synchronize()
            if ran is not None:
                ran.found, turned_away = here.transferred_counters()
                if ran.found > there.room:
                    todo.append(ran)
                    ran = None
                else:
                    rejected += turned_away
            there.transfer(0 if ran is None else ran.found)
            self._transferred.record(stream)
            if came is not None:
                pairs.append(here.transferred(came))
            ran, came = runs, ran
            here, there = there, here
        found_queries, found_sets = zip(*pairs, strict=True)
        return Found(np.concatenate(found_queries), np.concatenate(found_sets), rejected)

    def _upload_for_verification(self, name: str, values: npt.NDArray[Any]) -> Any:
        """Copy to the device what only verification reads."""
        host = self._workspace.pinned(name, values.dtype, len(values) if self._partitions.exact else 0)
        host[:] = values[: len(host)]
        return self._workspace.upload(name, host)

    def _launch(
        self, batch: _Batch, signatures: U64Array, queries: tuple[Any, Any], here: _Results, there: _Results
    ) -> None:
        """Upload a batch and match it, with results in `here` and their counters in `there`."""
        here.reserve(batch.found)
        workspace, size = self._workspace, len(batch.numbers)
        name = "even batch" if here is self._results[0] else "odd batch"
        host = workspace.pinned(name, np.uint64, QUERY_WORDS * size)
        words = host.reshape(size, QUERY_WORDS)
        np.invert(signatures[batch.numbers], out=words[:, :SIGNATURE_WORDS])
        words[:, SIGNATURE_WORDS] = batch.numbers
        self._partitions.launch(
            batch.partition, workspace.stream, workspace.upload(name, host), size, *queries,
            there.counters, here.counters, here.ids, here.sets,
        )  # fmt: skip


class PublishedSubsetMatch:
    """The paper's subset match over a snapshot in the `balanced` layout, in device memory. Any thread may call it.

    Parameters
    ----------
    snapshot : Snapshot
    exact : bool
        Verify candidates on ranks; else what matches by signature is found, as published.
    batch_size : int
        Queries of a full batch, 1 to 256.
    streams : int
        Calls of `match` at the same time; others wait.
    block_threads : int
        Threads, and so rows of a partition, of a block.
    result_room : int
        Results of a batch for which a buffer has room at first. Two buffers a stream, 5 bytes a result.
    device : int
        Number of the CUDA device.

    Raises
    ------
    InvalidValueError
        `batch_size` is not in 1 ... 256.
    DeviceError
        From `match` as well: the device has failed; `DeviceMemoryError`, if it is out of memory.
    """

    def __init__(
        self,
        segment: Segment,
        *,
        exact: bool,
        batch_size: int = MOST_QUERIES,
        streams: int = 10,
        block_threads: int = _BLOCK_THREADS,
        result_room: int = _FIRST_ROOM,
        device: int = 0,
    ) -> None:
        if not 1 <= batch_size <= MOST_QUERIES:
            raise InvalidValueError(f"batch_size must be in 1 ... {MOST_QUERIES}, not {batch_size}")
        table = segment.partitions
        assert isinstance(table, PartitionTable)
        self.partitions = len(table)
        self.batch_size = batch_size
        self.has_empty = segment.tagsets.has_empty_set
        self._hashes = segment.vocabulary.hashes
        self._index = PartitionIndex(table)
        self._device = device
        self._free: queue.SimpleQueue[_Stream] = queue.SimpleQueue()
        ranks = segment.tagsets.ranks
        with on_device(device):
            self._tables = tuple(map(to_device, (*signature_words(segment), ranks.offsets, ranks.values)))
            stored = _Partitions(table.first_rows.tolist(), self._tables, exact, block_threads)
            self._streams = [_Stream(stored, result_room) for _ in range(streams)]
        for stream in self._streams:
            self._free.put(stream)
        if self.partitions:
            self._compile()

    @property
    def nbytes(self) -> int:
        """Bytes beside the snapshot: device memory, but for what batches take on their way to it, and the index."""
        return sum(int(each.nbytes) for each in (*self._tables, *self._streams, self._index))

    def route(self, queries: QueryBatch) -> Batches:
        """Find the partitions in which sets may be that a query contains (Algorithm 2), on the CPU."""
        return self._index.route(queries, self._hashes)

    def match(self, batches: Batches) -> Found:
        """Match batches with their partitions (Algorithm 3)."""
        stream = self._free.get()
        try:
            with on_device(self._device):
                return stream.match(batches, deque(self._cut(batches)))
        finally:
            self._free.put(stream)

    def __call__(self, queries: QueryBatch) -> Matches:
        """Sets that each query contains."""
        return grouped_by_query(self.match(self.route(queries)), len(queries), self.has_empty)

    def _cut(self, batches: Batches) -> Iterator[_Batch]:
        """Cut batches so that none has more than `batch_size` queries."""
        firsts = batches.offsets.tolist()
        for partition, first, last in zip(batches.partitions.tolist(), firsts[:-1], firsts[1:], strict=True):
            for at in range(first, last, self.batch_size):
                yield _Batch(partition, batches.queued[at : min(at + self.batch_size, last)])

    def _compile(self) -> None:
        """Match a query without tags, as threads that compile a kernel at the same time disturb each other."""
        no_tags = QueryBatch(np.zeros(2, np.int64), np.empty(0, np.uint32))
        first, offsets = np.zeros(1, np.int64), np.arange(2)
        self.match(Batches(no_tags, np.zeros((1, SIGNATURE_WORDS), np.uint64), first, offsets, first))
