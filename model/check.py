"""Verifies every invariant of a segment's tables."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from tagmatch.model.arrays import Lists, Strings
from tagmatch.model.arrow import from_strings
from tagmatch.model.bounds import check_offsets
from tagmatch.model.invariants import fail, require
from tagmatch.model.kernels.hashing import SIGNATURE_WORDS, hash_strings, signatures_of
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.layouts import check_layout
from tagmatch.model.tables import NEVER, Segment, TagsetTable, Vocabulary
from tagmatch.model.tag_order import by_hash, tags_at, with_equal_hash


def check_segment(segment: Segment, *, threads: int = 1) -> None:
    """Verify the invariants of all tables (design: `tagmatch.model.tables`)."""
    _check_deletions(segment)
    _check_vocabulary(segment.vocabulary, segment.tagsets.ranks, threads)
    _check_tagsets(segment.tagsets, segment.vocabulary, threads)
    _check_keys(segment)
    check_layout(segment)


def _check_deletions(segment: Segment) -> None:
    name, deletions = "deletions", segment.deletions
    if deletions is None:
        return
    if len(deletions.bits) != -(-len(segment) // 8):
        fail(name, None, f"have {len(deletions.bits)} bytes for {len(segment)} rows")
    rows = deletions.rows()
    if len(rows) != deletions.count:
        fail(name, None, f"are {len(rows)} rows, not {deletions.count}")
    if len(rows) and rows[-1] >= len(segment):
        fail(name, int(rows[-1]), "is not a row")


def _check_vocabulary(vocabulary: Vocabulary, ranks: Lists, threads: int) -> None:
    name = "vocabulary"
    tags, hashes, frequencies = vocabulary.tags, vocabulary.hashes, vocabulary.frequencies
    if not len(tags) == len(hashes) == len(frequencies):
        fail(name, None, "columns differ in length")
    check_offsets(name, tags, len(tags))
    require(
        hash_strings(tags, seed=vocabulary.seed, threads=threads) == hashes,
        name,
        "hash is not XXH64 of the tag",
    )
    twins = np.flatnonzero(with_equal_hash(hashes[order := by_hash(tags, hashes)]))
    texts = tags_at(tags, order[twins])
    repeated = pc.equal(texts[1:], texts[:-1]).to_numpy(zero_copy_only=False)
    if repeated.any():
        fail(name, int(order[twins[np.argmax(repeated) + 1]]), "the tag stands in another row, too")
    # Equal hashes: the order of the bytes, which `by_hash` has settled
    place_by_hash = np.empty(len(order), np.uint32)
    place_by_hash[order] = np.arange(len(order), dtype=np.uint32)
    rising = frequencies[1:] > frequencies[:-1]
    tied = (frequencies[1:] == frequencies[:-1]) & (place_by_hash[1:] > place_by_hash[:-1])
    require(rising | tied, name, "tags are not in order of frequency, hash and bytes", 1)
    check_offsets("tagset table", ranks, len(ranks))
    if len(ranks.values) and int(ranks.values.max()) >= len(tags):
        row = int(np.searchsorted(ranks.offsets, int(np.argmax(ranks.values)), side="right")) - 1
        fail("tagset table", row, "a rank is outside the vocabulary")
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
    name = "tagset table"
    ranks = tagsets.ranks
    row = _first_not_ascending(ranks.offsets, ranks.values)
    if row >= 0:
        fail(name, row, "ranks do not ascend")
    require(ranks.lengths()[1:] > 0, name, "only row 0 may be the empty set", 1)
    if tagsets.signatures is None:
        return
    if tagsets.signatures.shape != (len(ranks), SIGNATURE_WORDS):
        fail(name, None, "columns differ in length")
    expected = signatures_of(ranks, vocabulary.hashes, threads=threads)
    require((expected == tagsets.signatures).all(axis=1), name, "signature is not that of the set's tags")


def _check_keys(segment: Segment) -> None:
    name = "key table"
    keys = segment.keys.keys
    check_offsets(name, keys, len(keys))
    if len(keys) != len(segment.tagsets):
        fail(name, None, f"has {len(keys)} rows for {len(segment.tagsets)} sets")
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
    if len(expires) != len(keys.values):
        fail(name, None, f"are {len(expires)}, of {len(keys.values)} keys")
    if (expires == NEVER).all():
        fail(name, None, "are there, though no key expires")
    rows = np.repeat(np.arange(len(keys)), keys.lengths())
    overlooked = rows[expires < segment.earliest]
    if segment.deletions is not None:
        overlooked = np.delete(overlooked, segment.deletions.among(overlooked))
    if len(overlooked):
        fail(name, int(overlooked[0]), "is before the earliest")


def _check_key_names(names: Strings, keys: Lists) -> None:
    name = "key names"
    check_offsets(name, names, len(names))
    texts = from_strings(names)
    require(pc.less(texts[:-1], texts[1:]).to_numpy(zero_copy_only=False), name, "is not after the name before it", 1)
    if len(keys.values) and int(keys.values.max()) >= len(names):
        row = int(np.searchsorted(keys.offsets, int(np.argmax(keys.values)), side="right")) - 1
        fail("key table", row, "a key has no name")
    require(np.bincount(keys.values, minlength=len(names)) > 0, name, "no set has the key")
