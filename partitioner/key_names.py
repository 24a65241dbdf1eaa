"""Keys that are strings: a segment numbers its own in the order of their bytes, and a new one numbers them anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import Lists, Strings, U32Array
from tagmatch.model.arrow import from_strings, in_order, to_strings
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
    places, numbers = in_order(strings)
    names = gather_strings(to_strings(strings), places, threads=threads)
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
