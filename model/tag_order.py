"""The order of tags by hash, and by their bytes where hashes are equal."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import BoolArray, Strings, U8Array, U32Array, U64Array, frozen
from tagmatch.model.arrow import from_strings
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import sort_hashes

# What a tag is to the one before it
_OTHER_HASH, _SAME_TAG, _SAME_HASH = 0, 1, 2


def by_hash(tags: Strings, hashes: U64Array) -> U32Array:
    """Places of tags in ascending order of their hashes, equal hashes in the order of the tags' bytes."""
    return grouped_by_hash(tags, hashes)[0]


def grouped_by_hash(tags: Strings, hashes: U64Array) -> tuple[U32Array, BoolArray]:
    """Order tags, of which some may be equal."""
    order = sort_hashes(frozen(hashes))
    found = _compared(tags, hashes, order)
    if (found == _SAME_HASH).any():
        # Tags that share a hash with another one, and with how many it may be: anybody can make these
        twins = np.flatnonzero(np.isin(hashes[order], hashes[order[found == _SAME_HASH]]))
        some = order[twins]
        table = pa.table({"hash": pa.array(hashes[some]), "tag": tags_at(tags, some)})
        order[twins] = some[pc.sort_indices(table, [("hash", "ascending"), ("tag", "ascending")]).to_numpy()]
        found = _compared(tags, hashes, order)
    return order, found == _SAME_TAG


def _compared(tags: Strings, hashes: U64Array, order: U32Array) -> U8Array:
    found = np.zeros(len(order), np.uint8)
    _compare(tags.offsets, tags.data, hashes[order], order, found)
    return found


@kernel
def _compare(offsets, data, hashes, order, out):
    for i in range(1, len(order)):
        if hashes[i] != hashes[i - 1]:
            continue
        first, other = offsets[order[i]], offsets[order[i - 1]]
        length = offsets[order[i] + 1] - first
        same = length == offsets[order[i - 1] + 1] - other
        at = 0
        while same and at < length:
            same = data[first + at] == data[other + at]
            at += 1
        out[i] = _SAME_TAG if same else _SAME_HASH


def with_equal_hash(ascending: U64Array) -> BoolArray:
    """Whether each of these hashes, which are in order, equals a neighbour."""
    found = np.zeros(len(ascending), np.bool_)
    equal = ascending[1:] == ascending[:-1]
    found[1:] = equal
    found[:-1] |= equal
    return found


def tags_at(tags: Strings, places: U32Array) -> pa.LargeStringArray:
    """The tags at these places; there may be more of their text than a `string` array holds."""
    return from_strings(tags).cast(pa.large_string()).take(pa.array(places))
