"""CLCB on the CPU: what its CUDA kernels do, as loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch_bench.systems.clcb_tables import AreasAlone, LocatedMatcher, without_constraints
from tagmatch_bench.systems.content_matcher import holds, narrow_sizes

if TYPE_CHECKING:
    from tagmatch.model.arrays import I64Array, U32Array
    from tagmatch_bench.systems.circles import Circles
    from tagmatch_bench.systems.clcb_tables import LocatedMessages


class Clcb(LocatedMatcher):
    """CLCB: G. Cugola, A. Margara, Middleware 2012, §4, on the CPU. Exact, but for what single precision rounds.

    Kernels Loc, Cont and Zip are loops over what each has a CUDA thread for: filters, constraints on attributes that a
    message has, and subscriptions. The paper has CLCB on CUDA only, as `clcb_cuda.py` has it, with what is said there;
    here threads share out messages, each with counters and marks of its own. As a CPU counts in bytes where a filter
    has fewer than 255 constraints, Loc sets all counters for each message, not once in four.

    Parameters
    ----------
    subscriptions : pyarrow.Table
    threads : int
    """

    def __init__(self, subscriptions, *, threads: int = 1) -> None:
        super().__init__(subscriptions, threads=threads)
        # Loc counts, too
        self._due = narrow_sizes(self._tables.sizes.astype(np.int64) + 1)

    def _find(self, messages: LocatedMessages, *, unique: bool, ends: I64Array) -> U32Array:  # type: ignore[override]
        tables = self._tables
        marks = tables.interfaces if unique else np.arange(len(tables.sizes), dtype=np.uint32)
        # Written to, as pages that never were make masked stores, which Zip has, take twenty times as long
        marked = np.full(len(self._keys) if unique else len(tables.sizes), 0, np.uint8)
        columns = messages.offsets, messages.attributes, messages.values, messages.places
        subs = np.empty(len(marked), np.uint32)
        found: U32Array = _match(*columns, tables, self._due, np.zeros_like(self._due), marks, marked, subs, ends)
        return found if unique else tables.interfaces[found]


def areas_alone(circles: Circles, *, threads: int = 1) -> AreasAlone:
    """CLCB on the CPU, of areas without constraints: only its kernels Loc and Zip do anything."""
    return AreasAlone(Clcb(without_constraints(circles), threads=threads))


@kernel
def _loc(missing, x, y, blooms, centres, squares, counts):
    """S1a and S1b: 1 for each filter whose names a message may all have, and whose area has it.

    Without branches, and as a kernel of its own, so that it becomes vector instructions.
    """
    for i in range(len(counts)):
        across, up = x - centres[i, 0], y - centres[i, 1]
        counts[i] = (blooms[i] & missing == 0) & (across * across + up * up <= squares[i])


@kernel
def _mark_always(always, counts, marks, marked):
    """Mark filters without constraints that Loc has not ruled out."""
    for i in range(len(always)):
        if counts[always[i]]:
            marked[marks[always[i]]] = 1


@inlined
def _cont(attribute, value, tables, due, counts, marks, marked):
    """S2: evaluate the constraints on an attribute, of filters that Loc has not ruled out."""
    for i in range(tables.starts[attribute], tables.starts[attribute] + tables.lengths[attribute]):
        of = tables.filters[i]
        if counts[of] and holds(tables.operators[i], value, tables.values[i], tables.uppers[i]):
            counts[of] += 1
            if counts[of] == due[of]:
                marked[marks[of]] = 1


@kernel
def _zip(marked, subs):
    """S2a: write what is marked, ascending, and clear it; returns how much that is."""
    count = 0
    for i in range(len(marked)):
        if marked[i]:
            marked[i] = 0
            subs[count] = i
            count += 1
    return count


@kernel
def _match(offsets, attributes, values, places, tables, due, counts, marks, marked, subs, ends):
    """What each message marks, ascending; in `ends` where each message's end."""
    found, used = np.empty(1024, np.uint32), 0
    for message in range(len(offsets) - 1):
        bloom = np.uint32(0)
        for i in range(offsets[message], offsets[message + 1]):
            bloom |= tables.name_blooms[attributes[i]]
        missing, x, y = np.uint32(~bloom), places[message, 0], places[message, 1]
        _loc(missing, x, y, tables.blooms, tables.centres, tables.squares, counts)
        _mark_always(tables.always, counts, marks, marked)
        for i in range(offsets[message], offsets[message + 1]):
            _cont(attributes[i], values[i], tables, due, counts, marks, marked)
        count = _zip(marked, subs)
        while used + count > len(found):
            found = np.concatenate((found, found))
        found[used : used + count] = subs[:count]
        used += count
        ends[message + 1] = used
    return found[:used]
