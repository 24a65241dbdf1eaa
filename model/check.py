"""Verifies every invariant of a snapshot's tables."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from tagmatch.model.arrays import Lists, Strings
from tagmatch.model.arrow import from_strings
from tagmatch.model.errors import InvariantError
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.signature import SIGNATURE_WORDS, signatures_of
from tagmatch.model.kernels.xxh64 import hash_strings
from tagmatch.model.tables import ClusterTable, PartitionTable, Snapshot, TagsetTable, Vocabulary
from tagmatch.model.tag_order import by_hash, tags_at, with_equal_hash


def check_snapshot(snapshot: Snapshot, *, threads: int = 1) -> None:
    """Verify the invariants of all tables (design: `tagmatch.model.tables`).

    Raises
    ------
    InvariantError
        Names the table, the row and the invariant that is broken.
    """
    _check_vocabulary(snapshot.vocabulary, snapshot.tagsets.ranks, threads)
    _check_tagsets(snapshot.tagsets, snapshot.vocabulary, threads)
    _check_keys(snapshot)
    if isinstance(snapshot.partitions, PartitionTable):
        _check_layout_name(snapshot, "balanced")
        _check_partitions(snapshot.tagsets, snapshot.partitions, snapshot.options.max_partition_size)
    else:
        _check_layout_name(snapshot, "rarest")
        _check_clusters(snapshot.tagsets, snapshot.partitions, len(snapshot.vocabulary))


def _fail(table: str, row: int | None, invariant: str) -> NoReturn:
    place = table if row is None else f"{table}, row {row}"
    raise InvariantError(f"{place}: {invariant}; build the index again from its source")


def _require(good: npt.NDArray[np.bool_], table: str, invariant: str, first_row: int = 0) -> None:
    if not good.all():
        _fail(table, first_row + int(np.argmin(good)), invariant)


def _check_lists(lists: Lists, table: str) -> None:
    offsets = lists.offsets
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(lists.values):
        _fail(table, None, "list offsets do not span the values")
    _require(np.diff(offsets) >= 0, table, "list offsets descend")


def _check_vocabulary(vocabulary: Vocabulary, ranks: Lists, threads: int) -> None:
    name = "vocabulary"
    tags, hashes, frequencies = vocabulary.tags, vocabulary.hashes, vocabulary.frequencies
    if not len(tags) == len(hashes) == len(frequencies):
        _fail(name, None, "columns differ in length")
    _check_strings(tags, name)
    _require(
        hash_strings(tags, seed=vocabulary.seed, threads=threads) == hashes,
        name,
        "hash is not XXH64 of the tag",
    )
    twins = np.flatnonzero(with_equal_hash(hashes[order := by_hash(tags, hashes)]))
    texts = tags_at(tags, order[twins])
    repeated = pc.equal(texts[1:], texts[:-1]).to_numpy(zero_copy_only=False)
    if repeated.any():
        _fail(name, int(order[twins[np.argmax(repeated) + 1]]), "the tag stands in another row, too")
    # Equal hashes: the order of the bytes, which `by_hash` has settled
    place_by_hash = np.empty(len(order), np.uint32)
    place_by_hash[order] = np.arange(len(order), dtype=np.uint32)
    rising = frequencies[1:] > frequencies[:-1]
    tied = (frequencies[1:] == frequencies[:-1]) & (place_by_hash[1:] > place_by_hash[:-1])
    _require(rising | tied, name, "tags are not in order of frequency, hash and bytes", 1)
    _check_lists(ranks, "tagset table")
    if len(ranks.values) and int(ranks.values.max()) >= len(tags):
        row = int(np.searchsorted(ranks.offsets, int(np.argmax(ranks.values)), side="right")) - 1
        _fail("tagset table", row, "a rank is outside the vocabulary")
    counted = np.bincount(ranks.values, minlength=len(tags))
    _require(counted == frequencies, name, "frequency is not the number of sets that contain the tag")
    _require(frequencies > 0, name, "no set contains the tag")


@kernel
def _first_not_ascending(offsets, values):
    for row in range(len(offsets) - 1):
        for i in range(offsets[row] + 1, offsets[row + 1]):
            if values[i] <= values[i - 1]:
                return row
    return -1


@kernel
def _compare_rows(offsets, values, a, b):
    """-1, 0 or 1 as list `a` is before, equal to or after list `b` in lexicographic order."""
    shared = min(offsets[a + 1] - offsets[a], offsets[b + 1] - offsets[b])
    for i in range(shared):
        x, y = values[offsets[a] + i], values[offsets[b] + i]
        if x != y:
            return -1 if x < y else 1
    return np.sign((offsets[a + 1] - offsets[a]) - (offsets[b + 1] - offsets[b]))


@kernel
def _first_out_of_order(signatures, offsets, values, first, last):
    """First row from `first + 1` on that is not after the row before it by words and ranks, -1 if there is none."""
    for row in range(first + 1, last):
        order = 0
        for w in range(signatures.shape[1]):
            if signatures[row - 1, w] != signatures[row, w]:
                order = -1 if signatures[row - 1, w] < signatures[row, w] else 1
                break
        if order == 0:
            order = _compare_rows(offsets, values, row - 1, row)
        if order >= 0:
            return row
    return -1


@kernel
def _first_without_mask(signatures, masks, first_rows):
    for partition in range(len(masks)):
        for row in range(first_rows[partition], first_rows[partition + 1]):
            for w in range(SIGNATURE_WORDS):
                if masks[partition, w] & ~signatures[row, w] != np.uint64(0):
                    return row
    return -1


def _check_tagsets(tagsets: TagsetTable, vocabulary: Vocabulary, threads: int) -> None:
    name = "tagset table"
    ranks = tagsets.ranks
    row = _first_not_ascending(ranks.offsets, ranks.values)
    if row >= 0:
        _fail(name, row, "ranks do not ascend")
    _require(ranks.lengths()[1:] > 0, name, "only row 0 may be the empty set", 1)
    if tagsets.signatures is None:
        return
    if tagsets.signatures.shape != (len(ranks), SIGNATURE_WORDS):
        _fail(name, None, "columns differ in length")
    expected = signatures_of(ranks, vocabulary.hashes, threads=threads)
    _require((expected == tagsets.signatures).all(axis=1), name, "signature is not that of the set's tags")


def _check_strings(strings: Strings, table: str) -> None:
    if strings.offsets[0] != 0 or strings.offsets[-1] != len(strings.data):
        _fail(table, None, "string offsets do not span the data")
    _require(np.diff(strings.offsets) >= 0, table, "string offsets descend")


def _check_keys(snapshot: Snapshot) -> None:
    name = "key table"
    keys = snapshot.keys.keys
    _check_lists(keys, name)
    if len(keys) != len(snapshot.tagsets):
        _fail(name, None, f"has {len(keys)} rows for {len(snapshot.tagsets)} sets")
    _require(keys.lengths() > 0, name, "set without a key")
    row = _first_not_ascending(keys.offsets, keys.values)
    if row >= 0:
        _fail(name, row, "keys do not ascend")
    if keys.values.dtype == np.uint64 and len(keys.values) and int(keys.values.max()) < 2**32:
        _fail(name, None, "keys fit into 32 bits but are stored in 64")
    if snapshot.keys.names is not None:
        _check_key_names(snapshot.keys.names, keys)


def _check_key_names(names: Strings, keys: Lists) -> None:
    name = "key names"
    _check_strings(names, name)
    texts = from_strings(names)
    _require(pc.less(texts[:-1], texts[1:]).to_numpy(zero_copy_only=False), name, "is not after the name before it", 1)
    if len(keys.values) and int(keys.values.max()) >= len(names):
        row = int(np.searchsorted(keys.offsets, int(np.argmax(keys.values)), side="right")) - 1
        _fail("key table", row, "a key has no name")
    _require(np.bincount(keys.values, minlength=len(names)) > 0, name, "no set has the key")


def _check_layout_name(snapshot: Snapshot, layout: str) -> None:
    if snapshot.options.layout != layout:
        _fail(
            "partition table",
            None,
            f"is of layout {layout}, the snapshot of layout {snapshot.options.layout}",
        )


def _check_partitions(tagsets: TagsetTable, table: PartitionTable, max_size: int) -> None:
    name = "partition table"
    first_rows, masks = table.first_rows, table.masks
    if len(first_rows) != len(masks) + 1 or masks.shape != (len(masks), SIGNATURE_WORDS):
        _fail(name, None, "columns differ in length")
    if first_rows[0] != int(tagsets.has_empty_set) or first_rows[-1] != len(tagsets):
        _fail(name, None, "partitions do not span the tagset table")
    sizes = np.diff(first_rows)
    _require(sizes > 0, name, "partition without sets")
    _require((masks != 0).any(axis=1), name, "mask is empty")
    signatures = tagsets.signatures
    if signatures is None:
        _fail("tagset table", None, "has no signatures")
    row = _first_without_mask(signatures, masks, first_rows)
    if row >= 0:
        _fail("tagset table", row, "signature lacks a bit of its partition's mask")
    ranks = tagsets.ranks
    for partition, (first, last) in enumerate(zip(first_rows[:-1].tolist(), first_rows[1:].tolist(), strict=True)):
        row = _first_out_of_order(signatures, ranks.offsets, ranks.values, first, last)
        if row >= 0:
            _fail("tagset table", row, "is not after the row before it in signature order")
        if last - first > max_size and (signatures[first] != signatures[last - 1]).any():
            _fail(name, partition, f"has {last - first} sets, more than {max_size}, and their signatures differ")


def _check_clusters(tagsets: TagsetTable, table: ClusterTable, tags: int) -> None:
    name = "partition table"
    first_rows, ranks = table.first_rows, tagsets.ranks
    if len(first_rows) != tags + 1 or first_rows[0] != int(tagsets.has_empty_set) or first_rows[-1] != len(tagsets):
        _fail(name, None, "clusters do not span the tagset table")
    _require(np.diff(first_rows) >= 0, name, "first rows descend")
    rarest = ranks.values[ranks.offsets[first_rows[0] : -1]]
    expected = np.repeat(np.arange(tags, dtype=np.uint32), np.diff(first_rows))
    _require(rarest == expected, "tagset table", "set is not in the cluster of its rarest tag", int(first_rows[0]))
    row = _first_out_of_order(np.zeros((len(tagsets), 0), np.uint64), ranks.offsets, ranks.values, 0, len(tagsets))
    if row >= 0:
        _fail("tagset table", row, "is not after the row before it in rank order")
