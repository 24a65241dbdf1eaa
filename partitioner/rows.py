"""Rows of tag numbers (and strings): relabelling, gathering, and which keys are left after a sequence of changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tagmatch.arrays import (
    BoolArray,
    I64Array,
    IntArray,
    Lists,
    Strings,
    U32Array,
    U64Array,
    UIntArray,
    list_offsets,
    offsets_of,
)
from tagmatch.kernels.jit import kernel
from tagmatch.kernels.rows import sort_values
from tagmatch.parallel import even_ranges, even_work, run_rows

# Rows whose cache misses are waited for together
_BATCH_ROWS = 256


@kernel
def _relabel(offsets, values, labels, first, last, out):
    for begin in range(first, last, _BATCH_ROWS):
        end = min(begin + _BATCH_ROWS, last)
        # A loop of its own, so that many cache misses are waited for at once
        for i in range(offsets[begin], offsets[end]):
            out[i] = labels[values[i]]
        for row in range(begin, end):
            sort_values(out, offsets[row], offsets[row + 1])


def relabel(rows: Lists, labels: U32Array, *, threads: int = 1) -> Lists:
    """Rows with `labels[v]` for each value `v`, every row ascending."""
    out = np.empty(len(rows.values), np.uint32)
    ranges = even_work(rows.offsets, threads)
    run_rows(lambda a, b: _relabel(rows.offsets, rows.values, labels, a, b, out), ranges, threads)
    return Lists(rows.offsets, out)


@kernel
def _gather_lengths(offsets, order, first, last, out):
    for i in range(first, last):
        out[i] = offsets[order[i] + 1] - offsets[order[i]]


@kernel
def _gather(offsets, values, order, new_offsets, new_values, first, last):
    begins = np.empty(_BATCH_ROWS, np.int64)
    touched = values[:1].sum()
    for batch in range(first, last, _BATCH_ROWS):
        end = min(batch + _BATCH_ROWS, last)
        # Loops of their own, so that many cache misses are waited for at once
        for i in range(batch, end):
            begins[i - batch] = offsets[order[i]]
        for i in range(batch, end):
            touched ^= values[min(begins[i - batch], len(values) - 1)]
        for i in range(batch, end):
            at = begins[i - batch]
            for j in range(new_offsets[i], new_offsets[i + 1]):
                new_values[j] = values[at]
                at += 1
    return touched


def _gathered(
    offsets: IntArray, values: UIntArray, order: UIntArray, threads: int
) -> tuple[IntArray, npt.NDArray[np.unsignedinteger[Any]]]:
    ranges = even_ranges(len(order), threads)
    lengths = np.empty(len(order), np.uint32)
    run_rows(lambda a, b: _gather_lengths(offsets, order, a, b, lengths), ranges, threads)
    new_offsets = list_offsets(lengths)
    new_values = np.empty(int(new_offsets[-1]), values.dtype)
    if len(new_values):
        run_rows(lambda a, b: _gather(offsets, values, order, new_offsets, new_values, a, b), ranges, threads)
    return new_offsets, new_values


def gather(rows: Lists, order: UIntArray, *, threads: int = 1) -> Lists:
    """Rows in the order given; `order` may leave rows out."""
    return Lists(*_gathered(rows.offsets, rows.values, order, threads))


def gather_strings(strings: Strings, order: UIntArray, *, threads: int = 1) -> Strings:
    """Strings in the order given; `order` may leave strings out."""
    offsets, data = _gathered(strings.offsets, strings.data, order, threads)
    return Strings(offsets, data.astype(np.uint8, copy=False))


@kernel
def _keys_left(first_pairs, order, keys, removed, first, last, out, counts):
    """For each group the keys whose last change is an addition, ascending, written from the group's place on."""
    for group in range(first, last):
        begin, end = first_pairs[group], first_pairs[group + 1]
        if end - begin == 1:
            pair = order[begin]
            out[begin] = keys[pair]
            counts[group] = 0 if removed[pair] else 1
            continue
        pairs = order[begin:end]
        group_keys = np.empty(end - begin, np.uint64)
        for i in range(end - begin):
            group_keys[i] = keys[pairs[i]]
        by_key = np.argsort(group_keys, kind="mergesort")  # stable: changes of one key stay in time order
        at = begin
        for i in range(end - begin):
            is_last = i + 1 == end - begin or group_keys[by_key[i]] != group_keys[by_key[i + 1]]
            if is_last and not removed[pairs[by_key[i]]]:
                out[at] = group_keys[by_key[i]]
                at += 1
        counts[group] = at - begin


@kernel
def _close_gaps(first_pairs, counts, keys, offsets, out, first, last):
    for group in range(first, last):
        for i in range(counts[group]):
            out[offsets[group] + i] = keys[first_pairs[group] + i]


def keys_left(
    first_pairs: I64Array, order: U32Array, keys: U64Array, removed: BoolArray, *, threads: int = 1
) -> tuple[I64Array, U64Array]:
    """Keys of each group after its changes, applied in order.

    Parameters
    ----------
    first_pairs, order
        Changes grouped by set, oldest first, as `group_by` returns them.
    keys : uint64 array
        Key of each change.
    removed : bool array
        Whether the change removes the key (else it adds it).

    Returns
    -------
    offsets : int64 array, length groups + 1
    keys : uint64 array
        Ascending within each group, each key once; a group may have none left.
    """
    loose = np.empty(len(keys), np.uint64)
    counts = np.empty(len(first_pairs) - 1, np.int64)
    ranges = even_work(first_pairs, threads)
    run_rows(lambda a, b: _keys_left(first_pairs, order, keys, removed, a, b, loose, counts), ranges, threads)
    offsets = offsets_of(counts)
    if offsets[-1] == len(loose):
        return offsets, loose
    tight = np.empty(int(offsets[-1]), np.uint64)
    run_rows(lambda a, b: _close_gaps(first_pairs, counts, loose, offsets, tight, a, b), ranges, threads)
    return offsets, tight


@kernel
def _count_values(values, counts):
    for value in values:
        counts[value] += np.uint32(1)


def count_values(values: UIntArray, count: int) -> U32Array:
    """How often each number below `count` occurs."""
    counts = np.zeros(count, np.uint32)
    _count_values(values, counts)
    return counts


@kernel
def _count_firsts(offsets, values, counts):
    for row in range(len(offsets) - 1):
        if offsets[row] < offsets[row + 1]:
            counts[values[offsets[row]]] += 1


def count_firsts(rows: Lists, count: int) -> I64Array:
    """How many rows begin with each number below `count`."""
    counts = np.zeros(count, np.int64)
    _count_firsts(rows.offsets, rows.values, counts)
    return counts
