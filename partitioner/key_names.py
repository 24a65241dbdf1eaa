"""Keys that are strings: a snapshot numbers them in the order of their bytes, and changes of it number them anew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from partitioner.rows import count_values, gather_strings
from tagmatch.arrays import Lists, Strings, U32Array
from tagmatch.arrow import from_strings, to_strings
from tagmatch.tables import KeyTable


@dataclass(frozen=True, slots=True)
class Names:
    """Strings, some of them more than once, and the numbers that they have in common.

    Attributes
    ----------
    strings : Strings
    places : uint32 array
        Of the different strings, in the order of their bytes: a place in `strings` where each stands. Its place here
        is its number.
    """

    strings: Strings
    places: U32Array

    def only_used(self, keys: Lists, *, threads: int = 1) -> KeyTable:
        """The key table of lists of numbers, with the names that occur in them, numbered in the same order."""
        used = np.flatnonzero(count_values(keys.values, len(self.places)))
        numbers = np.zeros(len(self.places), np.uint32)
        numbers[used] = np.arange(len(used), dtype=np.uint32)
        names = gather_strings(self.strings, self.places[used], threads=threads)
        return KeyTable(Lists(keys.offsets, numbers[keys.values]), Strings(names.offsets.astype(np.int64), names.data))


def in_common(first: Strings, second: Strings) -> tuple[Names, U32Array, U32Array]:
    """The strings of both, and the number that each of the first, and each of the second, has among them."""
    strings = pa.concat_arrays([from_strings(part).cast(pa.large_string()) for part in (first, second)])
    order = pc.sort_indices(strings).to_numpy().astype(np.uint32)
    ordered = strings.take(pa.array(order))
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = pc.not_equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
    numbers = np.empty(len(order), np.uint32)
    numbers[order] = np.cumsum(is_new, dtype=np.int64) - 1
    return Names(to_strings(strings), order[is_new]), numbers[: len(first)], numbers[len(first) :]
