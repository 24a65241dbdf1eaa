"""PCM's algorithm on a CUDA device: a thread for each constraint on an attribute of a message. Imports `numba.cuda`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba.cuda
import numpy as np

from tagmatch.pipeline.cuda.device import device_array, grid, kernel
from tagmatch_bench.systems.content_matcher import Filters, Messages, holds
from tagmatch_bench.systems.device_content import MOST_ROWS, MarkingMatcher
from tagmatch_bench.systems.pcm import Tables, input_lines, tables_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    import pyarrow as pa

    from tagmatch.model.arrays import U8Array

cuda: Any = numba.cuda

_BLOCK = 256
_BITS = 32

# What the device has, in the order in which the kernel takes it
_COLUMNS = ("operators", "values", "uppers", "blooms", "filters", "sizes")
# Of table Input, the column with how many constraints a line has
_LENGTHS = 2


class Ccm(MarkingMatcher):
    """CCM: A. Margara, G. Cugola, "High-Performance Publish-Subscribe Matching Using Parallel Hardware", §3.3. Exact.

    The CPU makes table Input, a line for each row of constraints, as OCM would evaluate them: the row, and the
    attribute's value. On the device, a thread evaluates one constraint, and counts for its filter in one step. One
    kernel has several messages, each with counters and marks of its own (§4.2). Copies and kernels are on one stream,
    and the CPU waits once, for the marks, while the device goes on to clear them for the next messages by a kernel.

    Counters are half-bytes of 32 bits, of which every message uses the next one: they are cleared for every eighth. The
    paper leaves open what becomes of filters with more than 15 constraints. Here all counters then have 8 bits, of
    which there are four in 32, or 16, or 32.

    Simplified: Input is in global memory, not in constant memory, of which Numba only knows what is compiled in, and
    which would hold too few lines for several messages. A line has a row's number, not five pointers, and no type, as
    an attribute has one type. An attribute is a number in the tables' maps.

    Parameters
    ----------
    subscriptions : pyarrow.Table
    at_once : int
        Messages of a kernel, each of which takes four bytes a filter and one an interface; with 1, one by one as in
        §4.1.
    threads : int
        All but one wait for the device, or look keys up.

    Raises
    ------
    UnavailableError
        There is no CUDA device.
    """

    def __init__(self, subscriptions: pa.Table, *, at_once: int = 64, threads: int = 1) -> None:
        super().__init__(subscriptions, at_once=at_once, threads=threads)
        largest = int(self._tables.sizes.max(initial=0))
        self._bits = next(bits for bits in (4, 8, 16, 32) if largest < 1 << bits)
        # Only the maps stay on the host, and what answers need
        self._tables = self._tables._replace(**{name: getattr(self._tables, name)[:0] for name in _COLUMNS[:-1]})

    def _build(self, filters: Filters) -> Tables:
        return tables_of(filters, filters.sizes.astype(np.uint32))

    def _columns(self, tables: Tables) -> Mapping[str, npt.NDArray[Any]]:
        return {name: getattr(tables, name) for name in _COLUMNS}

    def _begin_anew(self) -> None:
        self._counts = device_array(np.uint32, self._at_once * len(self._tables.sizes))
        self._marked: dict[bool, Any] = {}
        self._stage = 0

    def _cleared(self, unique: bool) -> Any:
        """Return marks, of which none is set; all counters are cleared before the first stage."""
        if unique not in self._marked:
            self._marked[unique] = device_array(np.uint8, self._at_once * self._marks[unique])
            self._clear(self._marked[unique], 0 if self._stage else len(self._counts))
        return self._marked[unique]

    def _clear(self, marked: Any, counts: int) -> None:
        launch = _clear[(*grid(max(counts, len(marked)), _BLOCK), self._workspace.stream)]
        launch(counts, self._counts, len(marked), marked)

    def _mark(self, messages: Messages, *, unique: bool) -> U8Array:
        workspace, marked, marks = self._workspace, self._cleared(unique), len(messages) * self._marks[unique]
        blooms = np.zeros(len(messages), np.uint64)
        lines, *table = input_lines(messages.offsets, messages.attributes, messages.values, self._tables, blooms)
        if not lines:
            return np.zeros(marks, np.uint8)
        table = [column[:lines] for column in table]
        sent = [workspace.send(f"input {i}", column) for i, column in enumerate([*table, blooms])]
        blocks, threads = grid(int(table[_LENGTHS].max()), _BLOCK)
        _evaluate[(blocks, min(lines, MOST_ROWS)), threads, workspace.stream](
            lines,
            *sent,
            *(self._on_device[name] for name in _COLUMNS),
            np.uint32(self._stage * self._bits),
            len(self._tables.sizes),
            self._counts,
            self._on_device[f"places {unique}"],
            self._marks[unique],
            marked,
        )
        found = workspace.download("marks", marked, marks)
        copied = cuda.event()
        copied.record(workspace.stream)
        self._stage = (self._stage + 1) % (_BITS // self._bits)
        self._clear(marked, 0 if self._stage else len(self._counts))
        copied.synchronize()
        return found


@kernel
def _evaluate(
    lines, xs, starts, lengths, owners, input_blooms, operators, values, uppers, blooms, filter_of, sizes,
    shift, filters, counts, places, marks, marked,
):  # fmt: skip
    """Algorithm 1: evaluate constraint `x` of each line, with a block's second dimension over lines."""
    x = cuda.grid(1)
    for y in range(cuda.blockIdx.y, lines, cuda.gridDim.y):
        if x >= lengths[y]:
            continue
        owner, at = np.int64(owners[y]), starts[y] + x
        if blooms[at] & ~input_blooms[owner] != 0:
            continue
        if not holds(operators[at], xs[y], values[at], uppers[at]):
            continue
        of = filter_of[at]
        before = cuda.atomic.add(counts, owner * filters + of, np.uint32(1) << shift)
        if (before >> shift) + 1 == sizes[of]:  # those of later stages are 0
            marked[owner * marks + places[of]] = 1


@kernel
def _clear(count, counts, marks, marked):
    """Clear the first counters, and marks."""
    i = cuda.grid(1)
    if i < count:
        counts[i] = 0
    if i < marks:
        marked[i] = 0
