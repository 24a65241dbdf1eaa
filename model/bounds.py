"""Whether the tables of a segment keep to each other's bounds, so that nothing that reads them leaves their memory.

Files may be a stranger's, with checksums that are right. These checks look at all offsets and at the largest number of
each column, and take a fraction of the time that checksums do; `check` has all other invariants, which tell wrong
answers, no crashes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.arrays import IntArray, Lists, Strings, UIntArray
from tagmatch.model.arrow import from_strings
from tagmatch.model.invariants import fail
from tagmatch.model.tables import ClusterTable, Segment

# So many values are compared at once, while they are in the cache
_BLOCK = 1 << 16

# Of UTF-8: bytes below are characters by themselves; the first two bits of those that go on with a character
_ASCII, _LEADING, _CONTINUED = 0x80, 0xC0, 0x80


def check_bounds(segment: Segment, rows: int, tags: int) -> None:
    """See that no number in the tables of a segment points out of them."""
    vocabulary, tagsets, keys = segment.vocabulary, segment.tagsets, segment.keys
    _check_length("vocabulary", "hashes", vocabulary.hashes, tags)
    _check_length("vocabulary", "frequencies", vocabulary.frequencies, tags)
    _check_strings("vocabulary", vocabulary.tags, tags)
    check_offsets("tagset table", tagsets.ranks, rows)
    _check_largest("tagset table", tagsets.ranks.values, tags)
    if tagsets.signatures is not None:
        _check_length("tagset table", "signatures", tagsets.signatures, rows)
    check_offsets("key table", keys.keys, rows)
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
    if isinstance(table, ClusterTable):
        _check_length(name, "first rows", table.first_rows, tags + 1)
    else:
        _check_length(name, "first rows", table.first_rows, len(table.masks) + 1)
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


def check_offsets(table: str, of: Strings | Lists, length: int) -> None:
    """See that the offsets of a table's column are those of so many rows, ascend, and span its values."""
    offsets, values = of.offsets, of.data if isinstance(of, Strings) else of.values
    _check_length(table, "rows", offsets[1:], length)
    if offsets[0] != 0 or offsets[-1] != len(values):
        fail(table, None, "offsets do not span the values")
    _check_ascending(table, offsets)


def _check_strings(table: str, strings: Strings, length: int) -> None:
    check_offsets(table, strings, length)
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
