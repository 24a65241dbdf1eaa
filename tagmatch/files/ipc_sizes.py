"""Bytes of values when they are written out: what is in a dictionary, in runs or in views may be there many times."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import I64Array, offsets_of

#: Where a value is that is a view; if it is short, it is in the place of the last three
VIEW = np.dtype([("size", "<i4"), ("prefix", "<i4"), ("buffer", "<i4"), ("offset", "<i4")])

_is = pa.types


def sizes_of(array: pa.Array) -> I64Array:
    """Bytes of each value of a sound array, or a few more, without those that say what is null.

    Examples
    --------
    >>> sizes_of(pa.array([["a", "bcd"], None, []])).tolist()
    [4, 0, 0]
    >>> sizes_of(pa.array(["abc", "d", "abc"]).dictionary_encode()).tolist()
    [3, 1, 3]
    """
    kind, length = array.type, len(array)
    sizes: I64Array
    if isinstance(kind, pa.BaseExtensionType):
        sizes = sizes_of(array.storage)
    elif _is.is_dictionary(kind):
        values, places = sizes_of(array.dictionary), array.indices.fill_null(0).to_numpy()
        sizes = values[places] if len(values) else np.zeros(length, np.int64)
    elif _is.is_run_end_encoded(kind):
        sizes = np.repeat(sizes_of(array.values), runs_of(array.run_ends, length))
    elif _is.is_struct(kind) or _is.is_union(kind):
        fields = [sizes_of(array.field(i)) for i in range(kind.num_fields)]
        whole = [each if len(each) == length else np.full(length, each.max(initial=0)) for each in fields]
        sizes = np.sum(whole, axis=0, dtype=np.int64) if whole else np.zeros(length, np.int64)
    elif _is.is_string_view(kind) or _is.is_binary_view(kind):
        sizes = np.frombuffer(array.buffers()[1], VIEW, length)["size"].astype(np.int64)
    elif _is.is_nested(kind):
        sizes = _sizes_of_lists(array)
    elif _is.is_string(kind) or _is.is_large_string(kind) or _is.is_binary(kind) or _is.is_large_binary(kind):
        sizes = pc.binary_length(array).fill_null(0).to_numpy().astype(np.int64)
    else:
        sizes = np.full(length, 0 if _is.is_null(kind) else (kind.bit_width + 7) // 8)
    return sizes


def runs_of(ends: pa.Array, length: int) -> I64Array:
    """How many values there are of each run."""
    runs: I64Array = np.diff(np.minimum(ends.to_numpy(), length).astype(np.int64), prepend=0)
    return runs


def _sizes_of_lists(array: pa.Array) -> I64Array:
    kind, begins = array.type, offsets_of(sizes_of(array.values))
    if _is.is_fixed_size_list(kind):
        first = np.arange(len(array)) * kind.list_size
        last = first + kind.list_size
    elif _is.is_list_view(kind) or _is.is_large_list_view(kind):
        first = array.offsets.to_numpy().astype(np.int64)
        last = first + array.sizes.to_numpy()
    else:
        offsets = array.offsets.to_numpy() if len(array) else np.zeros(1, np.int64)
        first, last = offsets[:-1], offsets[1:]
    sizes: I64Array = begins[last] - begins[first]
    return sizes
