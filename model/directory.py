"""Where keys are: the sets of a segment that have them, at a cost that follows the keys that are asked for."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tagmatch.model.arrays import I64Array, IntArray, Strings, U64Array, UIntArray
from tagmatch.model.arrow import from_strings
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import gather_strings
from tagmatch.model.tables import KeyTable, Segment

#: Keys that are integers, or strings
Keys = U64Array | Strings


class Found(NamedTuple):
    """Where keys are in a segment: columns with an entry for each of their sets that is not deleted."""

    wanted: I64Array  # the place of the key among those asked for, ascending
    rows: I64Array
    pairs: I64Array  # places in the values of the key table


def found_in(segment: Segment, keys: Keys) -> Found:
    """The sets of a segment that have some keys."""
    numbers = numbers_of(segment.keys, keys)
    firsts, lasts = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
    table, directory = segment.keys.keys, segment.keys.directory
    _find(directory.keys, numbers, firsts, lasts)
    counts = lasts - firsts
    wanted = np.repeat(np.arange(len(numbers)), counts)
    within = np.arange(len(wanted)) - np.repeat(np.cumsum(counts) - counts, counts)
    pairs = directory.places[np.repeat(firsts, counts) + within].astype(np.int64)
    # Of the offsets' own type, else the search in them would convert them all
    rows = np.searchsorted(table.offsets, pairs.astype(table.offsets.dtype), side="right").astype(np.int64) - 1
    found = Found(wanted, rows, pairs)
    if segment.deletions is None:
        return found
    deleted = segment.deletions.among(rows)
    return Found(*(np.delete(column, deleted) for column in found))


def numbers_of(table: KeyTable, keys: Keys) -> IntArray | UIntArray:
    """The keys as a key table has them: as they are, or of strings their places among its names, -1 if not there."""
    if not isinstance(keys, Strings):
        return keys
    assert table.names is not None
    numbers = np.empty(len(keys), np.int64)
    _find_names(table.names.offsets, table.names.data, keys.offsets.astype(np.int64, copy=False), keys.data, numbers)
    return numbers


def keys_at(names: Strings | None, numbers: IntArray | UIntArray) -> Keys:
    """The keys that tables have by these numbers: the same, or those names."""
    if names is not None:
        return gather_strings(names, numbers.astype(np.uint32))
    keys: U64Array = numbers.astype(np.uint64)
    return keys


def listed(keys: Keys) -> list[Any]:
    """The keys as Python has them."""
    every: list[Any] = from_strings(keys).to_pylist() if isinstance(keys, Strings) else keys.tolist()
    return every


def some_keys(keys: Keys, places: I64Array) -> Keys:
    """The keys at these places."""
    return gather_strings(keys, places.astype(np.uint32)) if isinstance(keys, Strings) else keys[places]


@kernel
def _find(keys, wanted, firsts, lasts):
    """Where each wanted key begins and ends among keys in order."""
    for i in range(len(wanted)):
        key = wanted[i]
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) >> 1
            if keys[middle] < key:
                low = middle + 1
            else:
                high = middle
        firsts[i] = low
        while low < len(keys) and keys[low] == key:
            low += 1
        lasts[i] = low


@kernel
def _find_names(offsets, data, wanted_offsets, wanted_data, out):
    """The place of each wanted string among strings in the order of their bytes."""
    for i in range(len(out)):
        begin, length = wanted_offsets[i], wanted_offsets[i + 1] - wanted_offsets[i]
        low, high, found = 0, len(offsets) - 1, -1
        while low < high:
            middle = (low + high) >> 1
            first = offsets[middle]
            other = offsets[middle + 1] - first
            at = 0
            while at < length and at < other and data[first + at] == wanted_data[begin + at]:
                at += 1
            if at < length and at < other:
                order = np.int64(data[first + at]) - np.int64(wanted_data[begin + at])
            else:
                order = other - length
            if order == 0:
                found = middle
                break
            if order < 0:
                low = middle + 1
            else:
                high = middle
        out[i] = found
