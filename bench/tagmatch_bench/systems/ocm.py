"""PCM's algorithm on the CPU: filters in tables by their attributes, whose constraints are evaluated one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch_bench.systems.barrier import Meeting, exchange, wait
from tagmatch_bench.systems.content_matcher import ContentMatcher, Filters, Messages, holds, narrow_sizes
from tagmatch_bench.systems.pcm import Tables, find_row, name_vector, select_tables, tables_of

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from tagmatch.model.arrays import I64Array, U8Array, U32Array


class _Shared(NamedTuple):
    """What threads that share a message have together: counters of filters, marks of interfaces, where they meet."""

    counts: npt.NDArray[Any]
    marked: U8Array
    state: I64Array


class Ocm(ContentMatcher):
    """OCM: A. Margara, G. Cugola, "High-Performance Publish-Subscribe Matching Using Parallel Hardware", §3. Exact.

    Filters are in tables by their NameVector, a bit for each attribute, modulo 16. A message's tables are those whose
    NameVector its own contains; in each, the constraints on its attributes are evaluated, but for those of filters
    whose 64-bit Bloom filter of attributes has a bit that the message's has not. Counters are cleared for each message,
    all at once.

    The paper leaves open how long a NameVector is, how names get their bits, how the tables of a message are found, and
    how OpenMP shares them out. Simplified: a table's row is found by the number of the attribute, in an array; the
    paper's maps, trees of strings, take longer.

    Parameters
    ----------
    subscriptions : pyarrow.Table
    threads : int
    share : "messages" or "tables"
        What threads share out: a call's messages, each thread with counters of its own, or as published, the tables of
        one message after the other. Then each thread takes as many consecutive tables as the others, and clears as many
        counters, and all wait for the last.
    """

    def __init__(
        self, subscriptions: pa.Table, *, threads: int = 1, share: Literal["messages", "tables"] = "messages"
    ) -> None:
        super().__init__(subscriptions, threads=threads if share == "messages" else 1)
        self._parts = threads if share == "tables" else 1

    def _build(self, filters: Filters) -> Tables:
        return tables_of(filters, narrow_sizes(filters.sizes))

    def _find(self, messages: Messages, *, unique: bool, ends: I64Array) -> U32Array:
        meeting, parts = Meeting(self._parts), self._parts
        counts = np.zeros_like(self._tables.sizes)
        shared = _Shared(counts, np.zeros(len(self._keys), np.uint8), meeting.state)
        found = [np.zeros(0, np.uint32)] * parts
        ends_of = [ends] if parts == 1 else [np.zeros_like(ends) for _ in range(parts)]

        def work(part: int) -> None:
            columns = messages.offsets, messages.attributes, messages.values
            found[part] = _count(*columns, self._tables, shared, part, parts, unique, ends_of[part])

        if parts == 1:
            work(0)
            return found[0]
        meeting.run(work)
        for each in ends_of:
            ends += each
        message_of = [np.repeat(np.arange(len(each) - 1), np.diff(each)) for each in ends_of]
        joined: U32Array = np.concatenate(found)[np.argsort(np.concatenate(message_of), kind="stable")]
        return joined


@inlined
def _add(found, used, interface, marked, unique):
    """Write the interface of a filter that matches, with `unique` if no thread has; returns what is written to."""
    if unique and (marked[interface] or exchange(marked, interface, np.uint8(1))):
        return found, used
    if used == len(found):
        found = np.concatenate((found, found))
    found[used] = interface
    return found, used + 1


@inlined
def _clear(array, part, parts):
    array[len(array) * part // parts : len(array) * (part + 1) // parts] = 0


@kernel
def _count(offsets, attributes, values, tables, shared, part, parts, unique, ends):
    """Interfaces of filters that match each message, of a part of its tables; in `ends` where each message's end."""
    found = np.empty(1024, np.uint32)
    used, due = 0, 0
    counts, marked = shared.counts, shared.marked
    chosen = np.empty(len(tables.vectors), np.int64)
    for message in range(len(ends) - 1):
        _clear(counts, part, parts)
        _clear(marked, part, parts)
        if parts > 1:
            due += parts
            if not wait(shared.state, due):
                break
        for i in range(len(tables.always) * part // parts, len(tables.always) * (part + 1) // parts):
            found, used = _add(found, used, tables.interfaces[tables.always[i]], marked, unique)
        begin, end = offsets[message], offsets[message + 1]
        vector, bloom = name_vector(attributes, begin, end, tables)
        count = select_tables(vector, tables, chosen)
        for j in range(count * part // parts, count * (part + 1) // parts):
            for i in range(begin, end):
                row = find_row(tables, chosen[j], attributes[i])
                if row < 0:
                    continue
                for c in range(tables.rows[row], tables.rows[row + 1]):
                    if tables.blooms[c] & ~bloom != np.uint64(0):
                        continue
                    if holds(tables.operators[c], values[i], tables.values[c], tables.uppers[c]):
                        of = tables.filters[c]
                        counts[of] += 1
                        if counts[of] == tables.sizes[of]:
                            found, used = _add(found, used, tables.interfaces[of], marked, unique)
        ends[message + 1] = used
        if parts > 1:
            due += parts
            if not wait(shared.state, due):
                break
    return found[:used]
