"""PCM's algorithm on the CPU: filters in tables by their attributes, whose constraints are evaluated one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tagmatch.model.arrays import offsets_of
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.workloads.systems.counting import (
    EQUAL,
    GREATER,
    LESS,
    UNEQUAL,
    CountingMatcher,
    Filters,
    Messages,
    add_match,
    narrow_sizes,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from tagmatch.model.arrays import BoolArray, I64Array, U8Array, U32Array, U64Array

#: Bits of a NameVector, of which the paper says that it is small
_VECTOR_BITS = 16

_U = np.uint64
# Odd numbers, by which an attribute's number is multiplied: the highest bits are two hashes of it
_HASHES = _U(0x9E3779B97F4A7C15), _U(0xC2B2AE3D27D4EB4F)
_BLOOM_SHIFT = _U(58)


class _Tables(NamedTuple):
    """The paper's Filters tables, which have the filters of equal NameVectors, and what is known of all filters.

    Table `t` has NameVector `vectors[t]`, and `table_of` that vector is `t`; it is -1 where there is none. It has a
    row of constraints for each of `names` attributes: those of row `i = t * names + attribute` are from `rows[i]` to
    `rows[i + 1]`.
    `operators`, `values`, `uppers`, `filters` and `blooms` are of each constraint. `unmarked` is not marked anywhere.
    """

    names: int
    vectors: I64Array
    table_of: npt.NDArray[np.int32]
    rows: I64Array
    operators: U8Array
    values: npt.NDArray[Any]
    uppers: npt.NDArray[Any]
    filters: U32Array
    blooms: U64Array
    name_blooms: U64Array
    sizes: npt.NDArray[Any]
    interfaces: U32Array
    unmarked: BoolArray
    always: U32Array


class Ocm(CountingMatcher):
    """OCM: A. Margara, G. Cugola, "High-Performance Publish-Subscribe Matching Using Parallel Hardware", §3. Exact.

    Filters are in tables by their NameVector, a bit for each attribute, modulo 16. A message's tables are those whose
    NameVector its own contains; in each, the constraints on its attributes are evaluated, but for those of filters
    whose 64-bit Bloom filter of attributes has a bit that the message's has not. Counters are cleared for each message,
    all at once. Simplified: threads take messages, not a message's tables; a row of a table is found by its number,
    not in a map of names.
    """

    @staticmethod
    def _build(filters: Filters) -> _Tables:
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
        row_of = tables[filters.filters] * names + filters.attributes
        order = np.argsort(row_of, kind="stable")
        return _Tables(
            names,
            vectors,
            table_of,
            offsets_of(np.bincount(row_of, minlength=len(vectors) * names)),
            filters.operators[order],
            filters.values[order],
            filters.uppers[order],
            filters.filters[order],
            bloom_of[filters.filters[order]],
            name_blooms,
            narrow_sizes(filters.sizes),
            filters.interfaces,
            np.zeros(len(filters.keys), np.bool_),
            np.flatnonzero(filters.sizes == 0).astype(np.uint32),
        )

    def _count(self, messages: Messages, *, unique: bool, ends: I64Array) -> U32Array:
        found: U32Array = _count(messages.offsets, messages.attributes, messages.values, self._tables, unique, ends)
        return found


@inlined
def _select(vector, tables, chosen):
    """Write the tables whose NameVector is contained in a message's; returns how many.

    Its subsets are looked up one by one, or where there are more of them than tables, the tables.
    """
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
def _holds(operator, x, value, upper):
    if operator == EQUAL:
        return x == value
    if operator == UNEQUAL:
        return x != value
    if operator == LESS:
        return x < value
    if operator == GREATER:
        return x > value
    return value <= x <= upper


@kernel
def _count(offsets, attributes, values, tables, unique, ends):
    """Interfaces of the filters that match each message, and in `ends` where each message's end."""
    found = np.empty(1024, np.uint32)
    used = 0
    counts, marked = np.zeros_like(tables.sizes), np.zeros_like(tables.unmarked)
    chosen = np.empty(len(tables.vectors), np.int64)
    for message in range(len(ends) - 1):
        counts[:] = 0
        marked[:] = False
        for of in tables.always:
            found, used = add_match(found, used, tables.interfaces[of], marked, unique)
        begin, end = offsets[message], offsets[message + 1]
        vector, bloom = np.int64(0), _U(0)
        for i in range(begin, end):
            vector |= np.int64(1) << (np.int64(attributes[i]) % _VECTOR_BITS)
            bloom |= tables.name_blooms[attributes[i]]
        for j in range(_select(vector, tables, chosen)):
            for i in range(begin, end):
                row = chosen[j] * tables.names + np.int64(attributes[i])
                for c in range(tables.rows[row], tables.rows[row + 1]):
                    if tables.blooms[c] & ~bloom != _U(0):
                        continue
                    if _holds(tables.operators[c], values[i], tables.values[c], tables.uppers[c]):
                        of = tables.filters[c]
                        counts[of] += 1
                        if counts[of] == tables.sizes[of]:
                            found, used = add_match(found, used, tables.interfaces[of], marked, unique)
        ends[message + 1] = used
    return found[:used]
