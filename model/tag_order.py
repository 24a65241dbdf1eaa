"""The order of tags by hash, and by their bytes where hashes are equal."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import BoolArray, Strings, U32Array, U64Array
from tagmatch.model.arrow import from_strings


def by_hash(tags: Strings, hashes: U64Array) -> U32Array:
    """Places of different tags in ascending order of their hashes, equal hashes in the order of the tags' bytes."""
    order = np.argsort(hashes).astype(np.uint32)
    places = np.flatnonzero(with_equal_hash(hashes[order]))
    if len(places):
        some = order[places]
        table = pa.table({"hash": pa.array(hashes[some]), "tag": tags_at(tags, some)})
        order[places] = some[pc.sort_indices(table, [("hash", "ascending"), ("tag", "ascending")]).to_numpy()]
    return order


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
