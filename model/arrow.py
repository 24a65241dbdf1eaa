"""Columns of tables as Arrow arrays, and back; both share the memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import Lists, Strings, TagLists, U32Array, U64Array, UIntArray
from tagmatch.model.kernels.hashing import SIGNATURE_WORDS


def from_strings(strings: Strings) -> pa.Array:
    """An Arrow string or large string array that shares the memory."""
    kind = pa.string() if strings.offsets.dtype == np.int32 else pa.large_string()
    buffers = [None, pa.py_buffer(strings.offsets), pa.py_buffer(strings.data)]
    return pa.Array.from_buffers(kind, len(strings), buffers)


def from_lists(lists: Lists) -> pa.Array:
    """An Arrow list or large list array that shares the memory."""
    values = pa.array(lists.values)
    kind = (pa.list_ if lists.offsets.dtype == np.int32 else pa.large_list)(values.type)
    return pa.Array.from_buffers(kind, len(lists), [None, pa.py_buffer(lists.offsets)], children=[values])


def from_tag_lists(rows: TagLists) -> pa.Array:
    """An Arrow large list array of rows of tags, not in a dictionary."""
    tags = from_strings(rows.tags).cast(pa.large_string())
    if rows.indices is not None:
        tags = tags.take(pa.array(rows.indices))
    return pa.LargeListArray.from_arrays(pa.array(rows.offsets.astype(np.int64)), tags)


def from_words(words: U64Array) -> pa.Array:
    """An Arrow array of fixed-size lists, of signatures or masks, uint64[n, 3]."""
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(words).reshape(-1)), SIGNATURE_WORDS)


def numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    """The NumPy type of numbers of an Arrow type; Arrow's own `to_pandas_dtype` needs pandas before version 26."""
    return pa.nulls(0, kind).to_numpy(zero_copy_only=False).dtype  # type: ignore[no-any-return]


def to_numbers(array: pa.Array) -> Any:
    """The NumPy array that shares the memory."""
    return array.to_numpy()


def to_words(array: pa.Array) -> U64Array:
    """Signatures or masks, uint64[n, 3]."""
    words: UIntArray = array.flatten().to_numpy()
    return words.reshape(-1, SIGNATURE_WORDS)


def to_lists(array: pa.Array) -> Lists:
    """Lists that share the memory of an Arrow list array, which must not be a slice."""
    offsets = array.offsets.to_numpy() if len(array) else np.zeros(1, np.int32)
    return Lists(offsets, array.values.to_numpy())


def to_strings(values: pa.Array) -> Strings:
    """Strings that share the memory of an Arrow `string` or `large_string` array without nulls."""
    width: type[np.signedinteger[Any]] = np.int32 if pa.types.is_string(values.type) else np.int64
    _, offset_buffer, data_buffer = values.buffers()
    if offset_buffer is None or len(values) == 0:
        return Strings(np.zeros(1, width), np.zeros(0, np.uint8))
    offsets = np.frombuffer(offset_buffer, width)[values.offset : values.offset + len(values) + 1]
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return Strings(np.require(offsets, requirements="A"), data)


def in_order(strings: pa.Array) -> tuple[U32Array, U32Array]:
    """Number the different strings of an Arrow array in the order of their bytes."""
    order = pc.sort_indices(strings).to_numpy().astype(np.uint32)
    ordered = strings.take(pa.array(order))
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = pc.not_equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
    numbers = np.empty(len(order), np.uint32)
    numbers[order] = np.cumsum(is_new, dtype=np.int64) - 1
    return order[is_new], numbers
