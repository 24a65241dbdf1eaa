"""CCM as it was first published: one table of constraints, one message at a time. Imports `numba.cuda`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numba.cuda
import numpy as np

# Not public: Numba has no function of `cuda` for it
from numba.cuda.cudadrv.driver import device_memset

from tagmatch.model.arrays import offsets_of
from tagmatch.pipeline.cuda.device import grid, kernel, to_device
from tagmatch_bench.systems.content_matcher import Filters, Messages, holds
from tagmatch_bench.systems.device_content import MarkingMatcher

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt
    import pyarrow as pa

    from tagmatch.model.arrays import I64Array, U8Array, U32Array

cuda: Any = numba.cuda

_BLOCK = 256

#: Of a message's way, in this order (the paper's Figure 5); what clears by memset is in the first one
PARTS = ("copy in", "kernel", "copy back")


class _Tables(NamedTuple):
    """The paper's tables.

    Row `i` of table Constraints has those on attribute `i`, from `starts[i]` on, `lengths[i]` of them (SizeC);
    `constraints` has them as structs of `value`, `upper`, `filter` and `operator`. Table Filters is `sizes` (SizeF) and
    `interfaces`. `always` are the filters without constraints.
    """

    starts: I64Array
    lengths: I64Array
    constraints: npt.NDArray[np.void]
    sizes: U32Array
    interfaces: U32Array
    always: U32Array


class Ccm2011(MarkingMatcher):
    """CCM: A. Margara, G. Cugola, "High Performance Content-Based Matching Using GPUs", DEBS 2011, §4. Exact.

    The CPU makes table Input, a line for each attribute of a message: its row of constraints, and its value. On the
    device, a thread evaluates one constraint, and counts for its filter in one step. Each message has a kernel.

    Simplified: rows of constraints follow one another, where the paper has a table as wide as its longest row; a line
    of Input has no type, as an attribute has one, and is an attribute's number, not a name to be looked up in a map.
    Constraints of a row are in any order: by operator and value, which the paper tried, too, it found no faster.

    Parameters
    ----------
    subscriptions : pyarrow.Table
    reset : "kernel" or "memset"
        How counters and marks are cleared (§4.3): there are two of each, of which a kernel uses one and clears the
        other; or two calls of memset come before each kernel, which the paper found to be slower.
    threads : int
        All but one wait for the device, or look keys up.

    Raises
    ------
    UnavailableError
        There is no CUDA device.
    """

    def __init__(
        self, subscriptions: pa.Table, *, reset: Literal["kernel", "memset"] = "kernel", threads: int = 1
    ) -> None:
        self._copies = 2 if reset == "kernel" else 1
        super().__init__(subscriptions, at_once=1, threads=threads)
        self._tables = self._tables._replace(constraints=self._tables.constraints[:0])

    def _build(self, filters: Filters) -> _Tables:
        kind = filters.values.dtype
        fields: list[tuple[str, Any]] = [
            ("value", kind),
            ("upper", kind),
            ("filter", np.uint32),
            ("operator", np.uint8),
        ]
        constraints = np.zeros(len(filters.values), np.dtype(fields, align=True))
        order = np.argsort(filters.attributes, kind="stable")
        columns: tuple[npt.NDArray[Any], ...] = (filters.values, filters.uppers, filters.filters, filters.operators)
        for (name, _), column in zip(fields, columns, strict=True):
            constraints[name] = column[order]
        lengths = np.bincount(filters.attributes, minlength=len(filters.names))
        return _Tables(
            offsets_of(lengths)[:-1],
            lengths,
            constraints,
            filters.sizes.astype(np.uint32),
            filters.interfaces,
            np.flatnonzero(filters.sizes == 0).astype(np.uint32),
        )

    def _columns(self, tables: _Tables) -> Mapping[str, npt.NDArray[Any]]:
        return {name: getattr(tables, name) for name in ("starts", "lengths", "constraints", "sizes")}

    def _begin_anew(self) -> None:
        #: Counters and marks, of which the first are for the next message
        self._pairs: dict[bool, list[tuple[Any, Any]]] = {}

    def _cleared(self, unique: bool) -> list[tuple[Any, Any]]:
        if unique not in self._pairs:
            counts, marked = np.zeros(len(self._tables.sizes), np.uint32), np.zeros(self._marks[unique], np.uint8)
            self._pairs[unique] = [(to_device(counts), to_device(marked)) for _ in range(self._copies)]
        return self._pairs[unique]

    def _mark(self, messages: Messages, *, unique: bool) -> U8Array:
        found = np.zeros(self._marks[unique], np.uint8)
        for found in self._parts(messages, unique=unique):  # noqa: B007
            pass
        self._workspace.stream.synchronize()
        return found

    def seconds_of_parts(self, messages: Messages) -> dict[str, float]:
        """Seconds a message of each of `PARTS`, in the mean, when each part is waited for; each key once."""
        taken = np.zeros(len(PARTS))
        with self._device_alone():
            for i in range(len(messages)):
                parts = self._parts(messages[i : i + 1], unique=True)
                for part in range(len(PARTS)):
                    start = time.perf_counter()
                    next(parts, None)
                    self._workspace.stream.synchronize()
                    taken[part] += time.perf_counter() - start
        return dict(zip(PARTS, (taken / max(len(messages), 1)).tolist(), strict=True))

    def _parts(self, messages: Messages, *, unique: bool) -> Iterator[U8Array]:
        """Begin each of `PARTS`, one when the next is asked for; the last gives the marks. None if nothing is asked."""
        workspace, device = self._workspace, self._on_device
        begin, end = messages.offsets
        if begin == end:
            return
        rows, values = messages.attributes[begin:end], messages.values[begin:end]
        sent = workspace.send("rows", rows), workspace.send("values", values)
        pairs = self._cleared(unique)
        if self._copies == 1:
            for array in pairs[0]:
                device_memset(array, 0, array.nbytes, stream=workspace.stream)
        nothing = np.zeros(0, np.uint8)
        yield nothing
        (counts, marked), (other_counts, other_marked) = pairs[0], pairs[-1]
        blocks, threads = grid(int(self._tables.lengths[rows].max()), _BLOCK)
        _evaluate[(blocks, len(rows)), threads, workspace.stream](
            *sent,
            *(device[name] for name in ("starts", "lengths", "constraints", "sizes")),
            counts,
            device[f"places {unique}"],
            marked,
            self._copies > 1,
            other_counts,
            other_marked,
        )
        yield nothing
        pairs.reverse()
        yield workspace.download("marks", marked, self._marks[unique])


@kernel
def _evaluate(
    rows, xs, starts, lengths, constraints, sizes, counts, places, marked, clears, other_counts, other_marked
):  # fmt: skip
    """Algorithm 1: evaluate constraint `x` of a block's line, its second number; clear what the next kernel uses."""
    row_and_length = cuda.shared.array(2, np.int64)
    if cuda.threadIdx.x == 0:
        row = rows[cuda.blockIdx.y]
        row_and_length[0], row_and_length[1] = starts[row], lengths[row]
    cuda.syncthreads()
    x = cuda.grid(1)
    if clears:
        all_threads = cuda.gridDim.x * cuda.gridDim.y * cuda.blockDim.x
        first = cuda.blockIdx.y * cuda.gridDim.x * cuda.blockDim.x + x
        for i in range(first, len(other_counts), all_threads):
            other_counts[i] = 0
        for i in range(first, len(other_marked), all_threads):
            other_marked[i] = 0
    if x >= row_and_length[1]:
        return
    constraint = constraints[row_and_length[0] + x]
    if not holds(constraint.operator, xs[cuda.blockIdx.y], constraint.value, constraint.upper):
        return
    of = constraint.filter
    if cuda.atomic.add(counts, of, np.uint32(1)) + 1 == sizes[of]:
        marked[places[of]] = 1
