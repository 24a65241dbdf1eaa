"""TagMatch's own pipeline on CPU and GPU, as its §3 describes it. Imports `numba.cuda`."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import numba.cuda
import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import Lists, U32Array, U64Array, bytes_of
from tagmatch.model.kernels.hashing import SIGNATURE_WORDS
from tagmatch.model.kernels.intrinsics import WAIT, give
from tagmatch.model.kernels.jit import inlined as host_inlined
from tagmatch.model.kernels.jit import kernel as host_kernel
from tagmatch.model.kernels.jit import with_room
from tagmatch.model.kernels.lists import group_by
from tagmatch.model.options import LayoutOptions
from tagmatch.partitioner.balanced_partitioning import balanced_partitions
from tagmatch.pipeline.balanced import PartitionIndex, relevant_to
from tagmatch.pipeline.cuda import on_device
from tagmatch.pipeline.cuda.device import Workspace, grid, inlined, kernel, sent, typed
from tagmatch.pipeline.cuda.streams import Stream, check
from tagmatch_bench.systems.gpu_scan import BATCH_SIZE, Stored
from tagmatch_bench.systems.launched import Commands, changing, download_some, give_with, recorded
from tagmatch_bench.systems.matcher import CallSize, UnavailableError
from tagmatch_bench.systems.signatures import SignatureMatcher, signature_table

cuda: Any = numba.cuda

_DEVICE = 0
_U = np.uint64

#: Rows of a block of threads, which share a prefix
_BLOCK = 256
#: Streams of a thread
_STREAMS = 4
#: Queries that a thread takes from a call at most; with fewer, more batches are not full
_PACKET = 1 << 16
_FIRST_ROOM = 1 << 16

# A buffer of results, in words of 32 bits: a length, which begins a line of memory, and then groups of four pairs, each
# of four query numbers of 8 bits and four set ids (§3.3.1)
_HEAD, _GROUP = 8, 5
# Cycles of a stream whose query numbers are kept
_CYCLES = 4

#: A buffer of results on the device, as words and as bytes
_Results = namedtuple("_Results", "words bytes")

#: The partition table (§3.2), and where the rows of each partition begin
_Table = namedtuple("_Table", "first_masks masks partitions first_rows")

#: The streams of a thread. A row each, or one for the even and one for the odd cycles: commands, and the places of
#: numbers in them (see `launched.Commands`); queries on their way to the device; results on their way back. Of the last
#: cycles: query numbers, and lengths of results. And how many cycles there were
_Lanes = namedtuple("_Lanes", "words at of driver streams queries results bytes numbers lengths cycles room")

#: Pairs that were found
_Pairs = namedtuple("_Pairs", "queries rows")


class Hybrid(SignatureMatcher):
    """TagMatch: Rogora et al., EuroSys 2017, §3, with one GPU. Inexact: sets whose signature a query has come, too.

    Each thread takes queries, finds the partitions whose mask a query has (Algorithm 2), and queues it there. A queue
    of 256 queries is a batch, for which the thread takes its next stream, copies the queries, launches a kernel on the
    partition (Algorithms 3 and 4) and copies results back, whose length has come with the cycle before (§3.3.2, even
    and odd buffers). It then looks up the keys of the results of the cycle before that. All of it is compiled code.

    Differs: a thread has its own queues, so that no atomic operations are needed, and no timeout: the end of a packet
    sends the rest of the queues, which packets of many queries make rare. Keys are looked up at the end of a packet.
    """

    def __init__(
        self,
        sets: pa.Table,
        *,
        threads: int = 1,
        max_partition_size: int = LayoutOptions().max_partition_size,
        streams: int = _STREAMS,
        room: int = _FIRST_ROOM,
    ) -> None:
        if not cuda.is_available():
            raise UnavailableError("needs an NVIDIA GPU that numba.cuda can use")
        table = signature_table(sets, threads=threads)
        super().__init__(table.keys, threads=threads)
        self.call_size = CallSize(threads, threads * _PACKET)
        #: A row without bits, which each query has
        self._empty = len(table) > 0 and not table.signatures[0].any()
        signatures = table.signatures.copy()
        partitions, self._rows, ordered = balanced_partitions(
            signatures, int(self._empty), max_partition_size, threads=threads
        )
        self._index = PartitionIndex(partitions)
        self._table = _Table(self._index.first_masks, self._index.masks, self._index.partitions, partitions.first_rows)
        self._streams, self._room = streams, room
        self._free: SimpleQueue[_Streams] = SimpleQueue()
        with on_device(_DEVICE):
            self._stored = sent(Stored(len(table), *(np.ascontiguousarray(word) for word in ordered.T)))
            for _ in range(threads):
                self._free.put(_Streams(self._stored, streams, room))

    def match_many(self, queries: U64Array, *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the stored sets that match or seem to, for each query in order."""
        size = max(1, min(_PACKET, -(-len(queries) // self._threads)))
        packets = [(first, min(first + size, len(queries))) for first in range(0, len(queries), size)]
        return self.keys_of_packets(queries, packets, unique=unique)

    def match_rows(self, queries: U64Array) -> Lists:
        """Find the rows whose signature is contained in each query's."""
        with self._alone() as streams:
            of, places = streams.match(queries, self._table, self._index)
        rows = self._rows[places]
        if self._empty:
            of = np.concatenate([np.arange(len(queries), dtype=np.uint32), of])
            rows = np.concatenate([np.zeros(len(queries), np.uint32), rows])
        starts, order = group_by(of, len(queries))
        return Lists(starts, rows[order])

    @contextmanager
    def _alone(self) -> Iterator[_Streams]:
        """Streams that no other thread has; after an error others take their place."""
        streams = self._free.get()
        try:
            with on_device(_DEVICE):
                yield streams
        except BaseException:
            streams = _Streams(self._stored, self._streams, self._room)
            raise
        finally:
            self._free.put(streams)

    def nbytes(self) -> int | None:
        """Bytes of host and device memory."""
        return self._keys.nbytes + bytes_of(self._stored, self._rows, *self._table)


class _Streams:
    """Streams of one thread, with their buffers."""

    def __init__(self, stored: Any, streams: int, room: int) -> None:
        self._stored, self._streams = stored, streams
        self._begin_anew(room)

    def _begin_anew(self, room: int) -> None:
        """Make buffers with room for this number of pairs; no copy is under way."""
        self._workspaces = [Workspace() for _ in range(self._streams)]
        words = _HEAD + _GROUP * -(-room // 4)
        empty = np.zeros(words, np.uint32)
        self._results = [[cuda.to_device(empty) for _ in range(2)] for _ in self._workspaces]
        self._queries = [cuda.device_array(BATCH_SIZE * SIGNATURE_WORDS, np.uint64) for _ in self._workspaces]
        self._room = room
        self._lanes = self._recorded(words) if isinstance(self._workspaces[0].stream, Stream) else None

    def _launch(self, lane: int, odd: int, blocks: Any, rows: tuple[Any, Any], count: Any) -> None:
        """Launch the kernel of an even or odd cycle."""
        stream, buffers = self._workspaces[lane].stream, self._results[lane]
        results = typed(_Results(buffers[odd], buffers[odd].view(np.uint8)))
        _match[blocks, _BLOCK, stream](
            self._stored, *rows, self._queries[lane], count, np.uint32(self._room), results, buffers[1 - odd]
        )

    def _recorded(self, words: int) -> _Lanes:
        lanes = len(self._workspaces)
        queries = cuda.pinned_array((lanes, BATCH_SIZE * SIGNATURE_WORDS), np.uint64)
        results = cuda.pinned_array((2 * lanes, words), np.uint32)
        results[:] = 0
        commands = []
        for lane, workspace in enumerate(self._workspaces):
            stream = workspace.stream
            for odd in range(2):
                stream.upload(self._queries[lane], queries[lane])
                rows = changing(0, np.uint32), changing(1, np.uint32)
                self._launch(lane, odd, changing(2), rows, changing(3, np.uint32))
                download_some(stream, results[2 * lane + 1 - odd], self._results[lane][1 - odd], 4)
                commands.append(recorded(stream))
        first = commands[0]
        return _Lanes(
            np.stack([each.words for each in commands]), first.at, first.of, first.driver,
            np.array([each.stream for each in commands[::2]], np.uint64), queries, results, results.view(np.uint8),
            np.zeros((lanes, _CYCLES, BATCH_SIZE), np.uint32), np.zeros((lanes, _CYCLES), np.int64),
            np.zeros(lanes, np.int64), self._room,
        )  # fmt: skip

    def match(self, queries: U64Array, table: _Table, index: PartitionIndex) -> tuple[U32Array, U32Array]:
        """Match queries; returns pairs of a query and a place in the tagset table."""
        if not len(index.masks):
            return np.zeros(0, np.uint32), np.zeros(0, np.uint32)
        if self._lanes is None:
            return self._simulated(queries, table, index)
        while True:
            of, places, most, *given = _match_all(queries, table, self._lanes)
            check(*given)
            if most <= self._room:
                return of, places
            self._begin_anew(2 * most)

    def _simulated(self, queries: U64Array, table: _Table, index: PartitionIndex) -> tuple[U32Array, U32Array]:
        """The same, where Python launches kernels itself, for Numba's simulator."""
        offsets, queued = index.relevant(queries)
        found = [(np.zeros(0, np.uint32), np.zeros(0, np.uint32))]
        stream, (results, lengths) = self._workspaces[0].stream, self._results[0]
        batches = [
            (partition, queued[first : min(first + BATCH_SIZE, offsets[partition + 1])])
            for partition in range(len(offsets) - 1)
            for first in range(offsets[partition], offsets[partition + 1], BATCH_SIZE)
        ]
        at = 0
        while at < len(batches):
            partition, batch = batches[at]
            begin, end = table.first_rows[partition : partition + 2].tolist()
            lengths.copy_to_device(np.zeros(len(lengths), np.uint32))
            stream.upload(self._queries[0], np.resize(queries[batch].reshape(-1), BATCH_SIZE * SIGNATURE_WORDS))
            self._launch(0, 0, grid(end - begin, _BLOCK)[0], (np.uint32(begin), np.uint32(end)), np.uint32(len(batch)))
            count, words = int(lengths.copy_to_host()[0]), results.copy_to_host()
            if count > self._room:
                self._begin_anew(2 * count)
                results, lengths = self._results[0]
                continue
            pairs = _Pairs(np.empty(count, np.uint32), np.empty(count, np.uint32))
            _take(words, words.view(np.uint8), batch.astype(np.uint32), count, pairs, 0)
            found.append(pairs)
            at += 1
        of, places = (np.concatenate(column) for column in zip(*found, strict=True))
        return of, places


@host_inlined
def _take(words, bytes_, numbers, count, pairs, used):
    """Write the pairs of a buffer behind those that are there."""
    for i in range(count):
        group, of = _HEAD + _GROUP * (i >> 2), i & 3
        pairs.queries[used + i] = numbers[bytes_[4 * group + of]]
        pairs.rows[used + i] = words[group + 1 + of]


@host_kernel
def _match_all(queries, table, lanes):
    """Match queries; returns pairs, the most that one batch has, and what `give` returns.

    If a batch has more pairs than there is room for, some are missing.
    """
    partitions = len(table.first_rows) - 1
    queued, sizes = np.empty((partitions, BATCH_SIZE), np.uint32), np.zeros(partitions, np.int64)
    relevant = np.empty(partitions, np.int64)
    pairs, used, most, lane = _Pairs(np.empty(1024, np.uint32), np.empty(1024, np.uint32)), 0, 0, 0
    error, function = np.int32(0), np.int64(0)
    # After all queries, the queues' rest; then two cycles without queries for each stream, which bring the last results
    for step in range(len(queries) + partitions + 2 * len(lanes.streams)):
        if step < len(queries):
            number = relevant_to(queries[step], table.first_masks, table.masks, table.partitions, relevant)
        else:
            relevant[0], number = min(step - len(queries), partitions - 1), 1
        for partition in relevant[:number]:
            if step < len(queries):
                queued[partition, sizes[partition]] = step
                sizes[partition] += 1
                if sizes[partition] < BATCH_SIZE:
                    continue
            elif step < len(queries) + partitions and sizes[partition] == 0:
                continue
            of_batch = queued[partition, : sizes[partition]]
            sizes[partition] = 0
            where = lanes, lane, table, partition
            pairs, used, most, error, function = _cycle(where, of_batch, queries, pairs, used, most)
            if error != 0:
                return pairs.queries[:0], pairs.rows[:0], most, error, function
            lane = (lane + 1) % len(lanes.streams)
    return pairs.queries[:used], pairs.rows[:used], most, error, function


@host_kernel
def _cycle(where, of_batch, queries, pairs, used, most):
    """Take what the cycle before has brought, and begin the next one of a stream, with a batch for a partition.

    Returns pairs, how many there are, the most that one batch has, and what `give` returns.
    """
    lanes, lane, table, partition = where
    cycle = lanes.cycles[lane]
    lanes.cycles[lane] += 1
    error, function = give(np.array([WAIT], np.uint64), lanes.driver, lanes.streams[lane])
    if error != 0:
        return pairs, used, most, error, function
    row = 2 * lane + (cycle & 1)
    length = np.int64(lanes.results[row, 0])
    lengths, numbers = lanes.lengths[lane], lanes.numbers[lane]
    lengths[(cycle - 1) % _CYCLES] = length
    most = max(most, length)
    come = min(lengths[(cycle - 2) % _CYCLES], np.int64(lanes.room))
    pairs = _Pairs(with_room(pairs.queries, used, come), with_room(pairs.rows, used, come))
    _take(lanes.results[row], lanes.bytes[row], numbers[(cycle - 2) % _CYCLES], come, pairs, used)
    used += come

    lengths[cycle % _CYCLES] = 0
    here = lanes.queries[lane]
    for i in range(len(of_batch)):
        numbers[cycle % _CYCLES, i] = of_batch[i]
        for word in range(SIGNATURE_WORDS):
            here[i * SIGNATURE_WORDS + word] = queries[of_batch[i], word]
    begin = table.first_rows[partition]
    end = table.first_rows[partition + 1] if len(of_batch) else begin
    groups = (min(length, np.int64(lanes.room)) + 3) // 4
    changes = np.array([begin, end, max(1, -(-(end - begin) // _BLOCK)), len(of_batch), 4 * (_HEAD + _GROUP * groups)])
    commands = Commands(lanes.words[row], lanes.at, lanes.of, lanes.driver, lanes.streams[lane])
    error, function = give_with(commands, changes)
    return pairs, used, most, error, function


@inlined
def _in_prefix(first, last, bits):
    """A word of the first row, as far as the last one has it, too, and whether that is all of it; if `bits`, else 0."""
    differ = first ^ last
    if not bits:
        return _U(0), False
    if differ == _U(0):
        return first, True
    return first & ~(~_U(0) >> _U(cuda.clz(differ))), False


@kernel
def _match(stored, begin, end, queries, count, room, results, lengths):
    """A batch of queries and the rows of a partition; pairs go to `results`, their number is added to `lengths`."""
    prefix = cuda.shared.array(SIGNATURE_WORDS, np.uint64)
    passed = cuda.shared.array(1, np.int32)
    ids = cuda.shared.array(BATCH_SIZE, np.uint8)
    x = cuda.shared.array(BATCH_SIZE, np.uint64)
    y = cuda.shared.array(BATCH_SIZE, np.uint64)
    z = cuda.shared.array(BATCH_SIZE, np.uint64)
    thread, first = cuda.threadIdx.x, begin + cuda.blockIdx.x * cuda.blockDim.x
    if thread == 0:
        passed[0] = 0
        if cuda.blockIdx.x == 0:
            results.words[0] = 0  # of the next cycle
        if first < end:
            last = min(first + cuda.blockDim.x, end) - 1
            prefix[0], more = _in_prefix(stored.first[first], stored.first[last], True)
            prefix[1], more = _in_prefix(stored.second[first], stored.second[last], more)
            prefix[2], more = _in_prefix(stored.third[first], stored.third[last], more)
    cuda.syncthreads()
    # Algorithm 4
    for i in range(thread, count, cuda.blockDim.x):
        a, b, c = ~queries[3 * i], ~queries[3 * i + 1], ~queries[3 * i + 2]
        if (prefix[0] & a) | (prefix[1] & b) | (prefix[2] & c) == _U(0):
            at = cuda.atomic.add(passed, 0, 1)
            ids[at] = i
            x[at], y[at], z[at] = a, b, c
    cuda.syncthreads()
    # Algorithm 3
    row = first + thread
    if row >= end:
        return
    a, b, c = stored.first[row], stored.second[row], stored.third[row]
    number = np.uint32(0)
    while number < np.uint32(passed[0]):  # unsigned, as an index that cannot be negative takes fewer instructions
        if (x[number] & a) | (y[number] & b) | (z[number] & c) == _U(0):
            at = cuda.atomic.add(lengths, 0, np.uint32(1))
            if at < room:
                group = _HEAD + _GROUP * (at >> 2)
                results.bytes[4 * group + (at & 3)] = ids[number]
                results.words[group + 1 + (at & 3)] = row
        number += np.uint32(1)
