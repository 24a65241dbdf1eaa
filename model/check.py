"""Verifies the invariants of a segment's tables: those that keep reading within memory, or all of them.

Files may be a stranger's, with checksums that are right. `check_bounds` looks at all offsets and at the largest number
of each column, and takes a fraction of the time that checksums do; all other invariants tell wrong answers, no crashes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import IntArray, Lists, Strings, UIntArray
from tagmatch.model.arrow import from_strings
from tagmatch.model.kernels.hashing import hash_strings, signatures_of
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.layouts import check_layout, fail, require
from tagmatch.model.tables import NEVER, ClusterTable, Segment, TagsetTable, Vocabulary, grouped_by_hash

# So many values are compared at once, while they are in the cache
_BLOCK = 1 << 16

# Of UTF-8: bytes below are characters by themselves; the first two bits of those that go on with a character
_ASCII, _LEADING, _CONTINUED = 0x80, 0xC0, 0x80

# -- bounds ------------------------------------------------------------------------------------------------------------


def check_bounds(segment: Segment, rows: int, tags: int) -> None:
    """See that no number in the tables of a segment with so many rows and tags points out of them."""
    vocabulary, tagsets, keys = segment.vocabulary, segment.tagsets, segment.keys
    _check_length("vocabulary", "hashes", vocabulary.hashes, tags)
    _check_length("vocabulary", "frequencies", vocabulary.frequencies, tags)
    _check_strings("vocabulary", vocabulary.tags, tags)
    _check_offsets("tagset table", tagsets.ranks, rows)
    _check_largest("tagset table", tagsets.ranks.values, tags)
    if tagsets.signatures is not None:
        _check_length("tagset table", "signatures", tagsets.signatures, rows)
    _check_offsets("key table", keys.keys, rows)
    if keys.names is not None:
        _check_strings("key names", keys.names, len(keys.names))
        _check_largest("key table", keys.keys.values, len(keys.names))
    if keys.expires is not None:
        _check_length("times at which keys expire", "times", keys.expires, len(keys.keys.values))
    _check_partitions(segment, rows, tags)
    if segment.deletions is not None:
        _check_deletions(segment, rows)


def _check_partitions(segment: Segment, rows: int, tags: int) -> None:
    table, name = segment.partitions, "partition table"
    partitions = tags if isinstance(table, ClusterTable) else len(table.masks)
    _check_length(name, "first rows", table.first_rows, partitions + 1)
    _check_ascending(name, table.first_rows)
    first = int(segment.tagsets.has_empty_set)
    if table.first_rows[0] != first or table.first_rows[-1] != rows:
        fail(name, None, "does not span the tagset table")


def _check_deletions(segment: Segment, rows: int) -> None:
    name, deletions = "deletions", segment.deletions
    assert deletions is not None
    _check_length(name, "bytes", deletions.bits, -(-rows // 8))
    if rows % 8 and deletions.bits[-1] >> (rows % 8):
        fail(name, rows, "is not a row")
    count = sum(
        int(np.bitwise_count(deletions.bits[first : first + _BLOCK]).sum())
        for first in range(0, len(deletions.bits), _BLOCK)
    )
    if count != deletions.count:
        fail(name, None, f"are {count} rows, not {deletions.count}")


def _check_length(table: str, what: str, array: npt.NDArray[np.generic], length: int) -> None:
    if len(array) != length:
        fail(table, None, f"has {len(array)} {what} instead of {length}")


def _check_offsets(table: str, of: Strings | Lists, length: int) -> None:
    """See that the offsets of a table's column are those of so many rows, ascend, and span its values."""
    offsets, values = of.offsets, of.data if isinstance(of, Strings) else of.values
    _check_length(table, "rows", offsets[1:], length)
    if offsets[0] != 0 or offsets[-1] != len(values):
        fail(table, None, "offsets do not span the values")
    _check_ascending(table, offsets)


def _check_strings(table: str, strings: Strings, length: int) -> None:
    _check_offsets(table, strings, length)
    data, starts = strings.data[: strings.offsets[-1]], strings.offsets[:-1]
    if not len(data) or int(data.max()) < _ASCII:
        return
    try:
        # All of them as one: to look at each by itself takes six times as long
        from_strings(Strings(np.array([0, len(data)]), data)).validate(full=True)
    except pa.ArrowInvalid:
        fail(table, None, "not all strings are UTF-8")
    for first in range(0, length, _BLOCK):
        some = starts[first : first + _BLOCK]
        some = some[some < len(data)]
        if (data[some] & _LEADING == _CONTINUED).any():
            fail(table, None, "a string begins within a character")


def _check_ascending(table: str, offsets: IntArray) -> None:
    for first in range(0, len(offsets) - 1, _BLOCK):
        some = offsets[first : first + _BLOCK + 1]
        falls = some[1:] < some[:-1]
        if falls.any():
            fail(table, first + int(np.argmax(falls)), "offsets descend")


def _check_largest(table: str, numbers: UIntArray, limit: int) -> None:
    if len(numbers) and int(numbers.max()) >= limit:
        fail(table, None, f"has the number {int(numbers.max())}, of {limit}")


# -- all invariants ----------------------------------------------------------------------------------------------------


def check_segment(segment: Segment, *, threads: int = 1) -> None:
    """Verify the invariants of all tables (design: `tagmatch.model.tables`)."""
    check_bounds(segment, len(segment), len(segment.vocabulary))
    _check_vocabulary(segment.vocabulary, segment.tagsets.ranks, threads)
    _check_tagsets(segment.tagsets, segment.vocabulary, threads)
    _check_keys(segment)
    check_layout(segment)


def _check_vocabulary(vocabulary: Vocabulary, ranks: Lists, threads: int) -> None:
    name = "vocabulary"
    tags, hashes, frequencies = vocabulary.tags, vocabulary.hashes, vocabulary.frequencies
    require(hash_strings(tags, seed=vocabulary.seed, threads=threads) == hashes, name, "hash is not XXH64 of the tag")
    order, repeated = grouped_by_hash(tags, hashes)
    if repeated.any():
        fail(name, int(order[np.argmax(repeated)]), "the tag stands in another row, too")
    # Equal hashes: the order of the bytes, which is settled
    place_by_hash = np.empty(len(order), np.uint32)
    place_by_hash[order] = np.arange(len(order), dtype=np.uint32)
    rising = frequencies[1:] > frequencies[:-1]
    tied = (frequencies[1:] == frequencies[:-1]) & (place_by_hash[1:] > place_by_hash[:-1])
    require(rising | tied, name, "tags are not in order of frequency, hash and bytes", 1)
    counted = np.bincount(ranks.values, minlength=len(tags))
    require(counted == frequencies, name, "frequency is not the number of sets that contain the tag")
    require(frequencies > 0, name, "no set contains the tag")


@kernel
def _first_not_ascending(offsets, values):
    for row in range(len(offsets) - 1):
        for i in range(offsets[row] + 1, offsets[row + 1]):
            if values[i] <= values[i - 1]:
                return row
    return -1


def _check_tagsets(tagsets: TagsetTable, vocabulary: Vocabulary, threads: int) -> None:
    name, ranks = "tagset table", tagsets.ranks
    row = _first_not_ascending(ranks.offsets, ranks.values)
    if row >= 0:
        fail(name, row, "ranks do not ascend")
    require(ranks.lengths()[1:] > 0, name, "only row 0 may be the empty set", 1)
    if tagsets.signatures is None:
        return
    expected = signatures_of(ranks, vocabulary.hashes, threads=threads)
    require((expected == tagsets.signatures).all(axis=1), name, "signature is not that of the set's tags")


def _check_keys(segment: Segment) -> None:
    name, keys = "key table", segment.keys.keys
    require(keys.lengths() > 0, name, "set without a key")
    row = _first_not_ascending(keys.offsets, keys.values)
    if row >= 0:
        fail(name, row, "keys do not ascend")
    if keys.values.dtype == np.uint64 and len(keys.values) and int(keys.values.max()) < 2**32:
        fail(name, None, "keys fit into 32 bits but are stored in 64")
    _check_times(segment)
    if segment.keys.names is not None:
        _check_key_names(segment.keys.names, keys)


def _check_times(segment: Segment) -> None:
    name, keys, expires = "times at which keys expire", segment.keys.keys, segment.keys.expires
    if expires is None:
        return
    if (expires == NEVER).all():
        fail(name, None, "are there, though no key expires")
    rows = np.repeat(np.arange(len(keys)), keys.lengths())
    overlooked = rows[expires < segment.earliest]
    if segment.deletions is not None:
        overlooked = np.delete(overlooked, segment.deletions.among(overlooked))
    if len(overlooked):
        fail(name, int(overlooked[0]), "is before the earliest")


def _check_key_names(names: Strings, keys: Lists) -> None:
    name, texts = "key names", from_strings(names)
    require(pc.less(texts[:-1], texts[1:]).to_numpy(zero_copy_only=False), name, "is not after the name before it", 1)
    require(np.bincount(keys.values, minlength=len(names)) > 0, name, "no set has the key")
