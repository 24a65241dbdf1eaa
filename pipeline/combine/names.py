"""Keys that are strings, of several segments, each of which numbers its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import Lists, Strings, UIntArray, offsets_of
from tagmatch.model.arrow import from_strings, in_order
from tagmatch.pipeline.cpu.key_lookup import merge_unique


class NamesOfSegments:
    """Strings by number, where each segment's numbers follow those of the one before it; a string may have several.

    Parameters
    ----------
    names : sequence of Strings
        Of each segment.

    Attributes
    ----------
    first_numbers : int64 array
        The number of each segment's first string.
    """

    def __init__(self, names: Sequence[Strings]) -> None:
        self._names = [from_strings(each) for each in names]
        self.first_numbers = offsets_of(np.array([len(each) for each in names]))[:-1]

    def column(self, keys: UIntArray) -> pa.Array:
        """As of `KeyTable`."""
        segments = np.searchsorted(self.first_numbers, keys.astype(np.int64), side="right") - 1
        taken, places = [], []
        for segment, names in enumerate(self._names):
            of_segment = np.flatnonzero(segments == segment)
            places.append(of_segment)
            taken.append(names.take(pa.array(keys[of_segment] - np.uint64(self.first_numbers[segment]))))
        order = np.empty(len(keys), np.int64)
        order[np.concatenate(places)] = np.arange(len(keys))
        return pa.concat_arrays(taken).take(pa.array(order))

    def listed(self, keys: UIntArray) -> list[str]:
        """As of `KeyTable`."""
        return self.column(keys).to_pylist()  # type: ignore[no-any-return]

    def answers(self, keys: Lists, *, unique: bool) -> tuple[Lists, pa.Array]:
        """As of `KeyTable`: what has several numbers is found by its bytes."""
        if not unique:
            return keys, self.column(keys.values)
        used, numbers = np.unique(keys.values, return_inverse=True)
        names = self.column(used)
        places, in_common = in_order(names)
        of_names = Lists(keys.offsets, in_common[numbers].astype(np.uint64))
        once = merge_unique(of_names, np.ones(len(keys), np.bool_))
        return once, names.take(pa.array(places)).take(pa.array(once.values))
