"""Keys that are strings: a segment numbers its own in the order of their bytes, and a new one numbers them anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import Lists, Strings, U32Array
from tagmatch.model.arrow import from_strings, to_strings
from tagmatch.model.kernels.lists import count_values, gather_strings
from tagmatch.model.tables import KeyTable


def in_common(parts: Sequence[Strings], *, threads: int = 1) -> tuple[Strings, list[U32Array]]:
    """The different strings of all parts, in the order of their bytes.

    Returns
    -------
    names : Strings
    numbers : list of uint32 array
        For each part, the place in `names` of each of its strings.
    """
    strings = pa.concat_arrays([from_strings(part).cast(pa.large_string()) for part in parts])
    order = pc.sort_indices(strings).to_numpy().astype(np.uint32)
    ordered = strings.take(pa.array(order))
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = pc.not_equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
    numbers = np.empty(len(order), np.uint32)
    numbers[order] = np.cumsum(is_new, dtype=np.int64) - 1
    names = gather_strings(to_strings(strings), order[is_new], threads=threads)
    return names, np.split(numbers, np.cumsum([len(part) for part in parts[:-1]]))


def only_used(table: KeyTable, names: Strings, *, threads: int = 1) -> KeyTable:
    """The key table, whose keys are places in `names`, without the names that do not occur in it.

    Where all names do, nothing is copied but what is of another type.
    """
    keys = table.keys
    used = np.flatnonzero(count_values(keys.values, len(names)))
    values = keys.values.astype(np.uint32, copy=False)
    if len(used) < len(names):
        numbers = np.zeros(len(names), np.uint32)
        numbers[used] = np.arange(len(used), dtype=np.uint32)
        values = numbers[values]
        names = gather_strings(names, used.astype(np.uint32), threads=threads)
    names = Strings(names.offsets.astype(np.int64, copy=False), names.data)
    return replace(table, keys=Lists(keys.offsets, values), names=names)


def only_these(table: KeyTable) -> KeyTable:
    """A key table without the names that do not occur in it; takes as long as it is, however many names there are."""
    if table.names is None:
        return table
    used, numbers = np.unique(table.keys.values, return_inverse=True)
    names = gather_strings(table.names, used.astype(np.uint32))
    return replace(table, keys=Lists(table.keys.offsets, numbers.astype(np.uint32)), names=names)
