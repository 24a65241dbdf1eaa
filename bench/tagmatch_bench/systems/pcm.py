"""The tables of PCM, which OCM has on the CPU and CCM on a device.

A. Margara, G. Cugola, "High-Performance Publish-Subscribe Matching Using Parallel Hardware", IEEE TPDS 25(1), 2014, §3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tagmatch.model.arrays import offsets_of
from tagmatch.model.kernels.jit import inlined, kernel

if TYPE_CHECKING:
    import numpy.typing as npt

    from tagmatch.model.arrays import I64Array, U8Array, U32Array, U64Array
    from tagmatch_bench.systems.content_matcher import Filters

#: Bits of a NameVector, of which the paper says that it is small
_VECTOR_BITS = 16

_U = np.uint64
# Odd numbers, by which an attribute's number is multiplied: the highest bits are two hashes of it
_HASHES = _U(0x9E3779B97F4A7C15), _U(0xC2B2AE3D27D4EB4F)
_BLOOM_SHIFT = _U(58)


class Tables(NamedTuple):
    """The paper's Filters tables, which have the filters of equal NameVectors, and what is known of all filters.

    Table `t` has NameVector `vectors[t]`, and `table_of` that vector is `t`; it is -1 where there is none. It has a row
    for each attribute that it has constraints on: `maps[t * n + attribute]`, of `n` attributes, -1 where it has none.
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
    """Write the tables whose NameVector is contained in a message's; returns how many.

    Its subsets are looked up one by one, or where there are more of them than tables, the tables. The table of no
    attribute has no rows.
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
def find_row(tables, table, attribute):
    """Return the row of a table with the constraints on an attribute, -1 if there is none."""
    return np.int64(tables.maps[table * len(tables.name_blooms) + attribute])


@kernel
def input_lines(offsets, attributes, values, tables, blooms):
    """Write CCM's table Input, a line for each of the tables' rows that messages are for, and their Bloom filters.

    Returns how many lines there are, and of each, the attribute's value, the row's first constraint, how many it has,
    and the message.
    """
    room = 1024
    x, starts = np.empty(room, values.dtype), np.empty(room, np.int64)
    lengths, owners = np.empty(room, np.int64), np.empty(room, np.uint32)
    chosen = np.empty(len(tables.vectors), np.int64)
    lines = 0
    for message in range(len(offsets) - 1):
        begin, end = offsets[message], offsets[message + 1]
        vector, bloom = name_vector(attributes, begin, end, tables)
        blooms[message] = bloom
        for j in range(select_tables(vector, tables, chosen)):
            for i in range(begin, end):
                row = find_row(tables, chosen[j], attributes[i])
                if row < 0:
                    continue
                if lines == len(x):
                    x, starts = np.concatenate((x, x)), np.concatenate((starts, starts))
                    lengths, owners = np.concatenate((lengths, lengths)), np.concatenate((owners, owners))
                x[lines], starts[lines] = values[i], tables.rows[row]
                lengths[lines], owners[lines] = tables.rows[row + 1] - tables.rows[row], message
                lines += 1
    return lines, x, starts, lengths, owners
