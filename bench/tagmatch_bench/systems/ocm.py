"""PCM's tables, which CCM has on a device, and its algorithm on the CPU, whose threads may share a message.

A. Margara, G. Cugola, "High-Performance Publish-Subscribe Matching Using Parallel Hardware", IEEE TPDS 25(1), 2014, §3.
"""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba.core import types
from numba.extending import intrinsic

from tagmatch.model.arrays import I64Array, U8Array, U32Array, U64Array, offsets_of
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.parallel import join, start
from tagmatch_bench.systems.content_matcher import ContentMatcher, Filters, Messages, holds, narrow_sizes

#: Looks at the others before the processor is offered to other threads; to spin for long is of use only where every
#: thread has its own processor
_SPINS = 2000
_ARRIVED, _BROKEN = 0, 1

_sched_yield: Any = types.ExternalFunction("sched_yield", types.int32())


def _in_one_step(operation: str) -> Any:
    def typed(typing: Any, array: Any, place: Any, value: Any) -> Any:  # noqa: ARG001
        signature = array.dtype(array, types.intp, array.dtype)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            target = context.make_array(signature.args[0])(context, builder, arguments[0])
            at = builder.gep(target.data, [arguments[1]])
            return builder.atomic_rmw(operation, at, arguments[2], "seq_cst")

        return signature, generate

    return intrinsic(typed)


def _read(typing: Any, array: Any, place: Any) -> Any:  # noqa: ARG001
    signature = array.dtype(array, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target = context.make_array(signature.args[0])(context, builder, arguments[0])
        at = builder.gep(target.data, [arguments[1]])
        return builder.load_atomic(at, "acquire", context.get_abi_sizeof(context.get_data_type(signature.return_type)))

    return signature, generate


_load: Any = intrinsic(_read)
_add_in_one_step = _in_one_step("add")

#: In a kernel, `exchange(array, place, value)`: in one step, with any other threads; returns the value before
exchange = _in_one_step("xchg")


class Meeting:
    """Where a number of threads meet in a kernel again and again."""

    def __init__(self, threads: int) -> None:
        self.state: I64Array = np.zeros(2, np.int64)
        self._threads = threads

    def run(self, work: Callable[[int], None]) -> None:
        """Run `work(0)`, `work(1)`, ... in threads at the same time; raises the first error of one."""
        # No thread is the caller's, which Ctrl-C may take away while others wait, nor one that all share
        errors: list[BaseException] = []
        all_there = threading.Barrier(self._threads)

        def take_part(number: int) -> None:
            with suppress(threading.BrokenBarrierError):
                all_there.wait()
                try:
                    work(number)
                except BaseException as error:
                    errors.append(error)
                    self.state[_BROKEN] = 1

        threads = [
            threading.Thread(target=take_part, args=[number], name=f"meeting-{number}", daemon=True)
            for number in range(self._threads)
        ]
        try:
            for thread in threads:
                start(thread)
        except BaseException:
            all_there.abort()
            raise
        for thread in threads:
            join(thread)
        if errors:
            raise errors[0]


@inlined
def wait(state, due):
    """Wait until there have been `due` calls of this in all; False if a thread has failed and none will come."""
    spins = 0
    _add_in_one_step(state, _ARRIVED, 1)
    while _load(state, _ARRIVED) < due:
        if _load(state, _BROKEN):
            return False
        spins += 1
        if spins > _SPINS:
            _sched_yield()
    return True


#: Bits of a NameVector, which the paper calls small
_VECTOR_BITS = 16

_U = np.uint64
# Odd numbers, by which an attribute's number is multiplied: the highest bits are two hashes of it
_HASHES = _U(0x9E3779B97F4A7C15), _U(0xC2B2AE3D27D4EB4F)
_BLOOM_SHIFT = _U(58)


class Tables(NamedTuple):
    """The paper's Filters tables, which have the filters of equal NameVectors, and facts about all filters.

    Table `t` has NameVector `vectors[t]`, and `table_of` that vector is `t`; it is -1 without a table. It has a row
    for each attribute that it has constraints on: `maps[t * n + attribute]`, of `n` attributes, -1 if it has none.
    The constraints of row `i` are from `rows[i]` to `rows[i + 1]`: `operators`, `values`, `uppers`, `filters` and
    `blooms` have something of each. `always` are the filters without constraints.
    """

    vectors: I64Array
    table_of: npt.NDArray[np.int32]
    maps: npt.NDArray[np.int32]
    rows: I64Array
    operators: U8Array
    values: npt.NDArray[Any]
    uppers: npt.NDArray[Any]
    filters: U32Array
    blooms: U64Array
    name_blooms: U64Array
    sizes: npt.NDArray[Any]
    interfaces: U32Array
    always: U32Array


def tables_of(filters: Filters, sizes: npt.NDArray[Any]) -> Tables:
    """Lay filters out; `sizes`, of each filter, is in the type that the kernel wants."""
    names = len(filters.names)
    numbers = np.arange(names, dtype=np.uint64)
    first, second = (_U(1) << ((numbers * factor) >> _BLOOM_SHIFT) for factor in _HASHES)
    name_blooms = first | second
    starts = offsets_of(filters.sizes)[:-1][filters.sizes > 0]
    bits = np.int64(1) << (filters.attributes.astype(np.int64) % _VECTOR_BITS)
    vector_of, bloom_of = np.zeros(len(filters.sizes), np.int64), np.zeros(len(filters.sizes), np.uint64)
    if len(starts):
        vector_of[filters.sizes > 0] = np.bitwise_or.reduceat(bits, starts)
        bloom_of[filters.sizes > 0] = np.bitwise_or.reduceat(name_blooms[filters.attributes], starts)
    vectors, tables = np.unique(vector_of, return_inverse=True)
    table_of = np.full(1 << _VECTOR_BITS, -1, np.int32)
    table_of[vectors] = np.arange(len(vectors))
    places, row_of = np.unique(tables[filters.filters] * names + filters.attributes, return_inverse=True)
    maps = np.full(len(vectors) * names, -1, np.int32)
    maps[places] = np.arange(len(places))
    order = np.argsort(row_of, kind="stable")
    return Tables(
        vectors,
        table_of,
        maps,
        offsets_of(np.bincount(row_of, minlength=len(places))),
        filters.operators[order],
        filters.values[order],
        filters.uppers[order],
        filters.filters[order],
        bloom_of[filters.filters[order]],
        name_blooms,
        sizes,
        filters.interfaces,
        np.flatnonzero(filters.sizes == 0).astype(np.uint32),
    )


@inlined
def name_vector(attributes, begin, end, tables):
    """Return the NameVector of a message, and the Bloom filter of its attributes."""
    vector, bloom = np.int64(0), _U(0)
    for i in range(begin, end):
        vector |= np.int64(1) << (np.int64(attributes[i]) % _VECTOR_BITS)
        bloom |= tables.name_blooms[attributes[i]]
    return vector, bloom


@inlined
def select_tables(vector, tables, chosen):
    """Write the tables whose NameVector is contained in a message's; returns how many."""
    count, subsets, rest = 0, 1, vector
    while rest:
        subsets <<= 1
        rest &= rest - 1
    if subsets > len(tables.vectors):
        for table in range(len(tables.vectors)):
            if tables.vectors[table] & ~vector == 0:
                chosen[count] = table
                count += 1
        return count
    subset = vector
    while subset:
        if tables.table_of[subset] >= 0:
            chosen[count] = tables.table_of[subset]
            count += 1
        subset = (subset - 1) & vector
    return count


@inlined
def find_row(tables, table, attribute):
    """Return the row of a table with the constraints on an attribute, -1 without any."""
    return np.int64(tables.maps[table * len(tables.name_blooms) + attribute])


#: CCM's table Input: a line's value, where its row of constraints is, how many these are, and its message; and the
#: Bloom filter of each message
Input = namedtuple("Input", "xs starts lengths owners blooms")


@inlined
def write_lines(columns, first, last, tables, chosen, lines):
    """Write a line for each of the tables' rows that messages are for; returns how many there are.

    Of lines for which there is no room, none is written.
    """
    offsets, attributes, values = columns
    count = 0
    for message in range(first, last):
        begin, end = offsets[message], offsets[message + 1]
        vector, bloom = name_vector(attributes, begin, end, tables)
        lines.blooms[message - first] = bloom
        for j in range(select_tables(vector, tables, chosen)):
            for i in range(begin, end):
                row = find_row(tables, chosen[j], attributes[i])
                if row < 0:
                    continue
                if count < len(lines.xs):
                    lines.xs[count], lines.starts[count] = values[i], tables.rows[row]
                    lines.lengths[count] = tables.rows[row + 1] - tables.rows[row]
                    lines.owners[count] = message - first
                count += 1
    return count


@kernel
def input_lines(columns, tables):
    """Return the table of all messages, with room for more, and how many lines it has."""
    messages, room = len(columns[0]) - 1, 1024
    chosen = np.empty(len(tables.vectors), np.int64)
    while True:
        numbers = np.empty((2, room), np.int64)
        xs, owners = np.empty(room, columns[2].dtype), np.empty(room, np.uint32)
        lines = Input(xs, numbers[0], numbers[1], owners, np.empty(messages, np.uint64))
        count = write_lines(columns, 0, messages, tables, chosen, lines)
        if count <= room:
            return count, lines
        room = count


class _Shared(NamedTuple):
    """The common state of threads that share a message: counters of filters, marks of interfaces, and their barrier."""

    counts: npt.NDArray[Any]
    marked: U8Array
    state: I64Array


class Ocm(ContentMatcher):
    """OCM: A. Margara, G. Cugola, "High-Performance Publish-Subscribe Matching Using Parallel Hardware", §3. Exact.

    Filters are in tables by their NameVector, a bit for each attribute, modulo 16. A message's tables are those whose
    NameVector its own contains; in each, the constraints on its attributes are evaluated, except those of filters
    whose 64-bit Bloom filter of attributes has a bit that the message's has not. Counters are cleared for each message,
    all at once.

    The paper leaves open how long a NameVector is, how names get their bits, how the tables of a message are found, and
    how OpenMP shares them out. Simplified: a table's row is found by the number of the attribute, in an array; the
    paper's maps, trees of strings, take longer.
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
            found[part] = _count(messages.columns, self._tables, shared, (part, parts), unique, ends_of[part])

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
    """Write the interface of a filter that matches, with `unique` if no thread has; returns the array."""
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
def _count(messages, tables, shared, share, unique, ends):
    """Interfaces of filters that match each message, of a part of its tables; in `ends` where each message's end."""
    (offsets, attributes, values), (part, parts) = messages, share
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
