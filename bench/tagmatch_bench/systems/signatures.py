"""Signatures, 192-bit Bloom filters as in §3 and §4.1: a table of distinct ones and their keys, and a scan with NumPy.

Sets with equal signatures share a row. These systems are inexact, as published: some sets only seem to match.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import Lists, U64Array, offsets_of
from tagmatch.model.columns import key_values, tag_lists
from tagmatch.model.kernels.hashing import SIGNATURE_WORDS, hash_tags, signatures_of
from tagmatch.model.kernels.lists import group_by, join_lists, sort_groups
from tagmatch.model.parallel import run_rows
from tagmatch.model.tables import KeyTable
from tagmatch_bench.systems.matcher import Plain, first_of_equals, kept, keys_of, keys_of_matches, list_array

_LABELS = 1 << 16
_LABEL_SHIFT = np.uint64(48)


def signatures(sets: pa.Array | pa.ChunkedArray, *, threads: int = 1) -> U64Array:
    """Compute the signatures, uint64[n, 3], of rows of tags."""
    return _signatures_and_sums(sets, threads)[0]


def _signatures_and_sums(sets: pa.Array | pa.ChunkedArray, threads: int) -> tuple[U64Array, U64Array]:
    """Return signatures and the sums of the tags' hashes, which tell sets with equal signatures apart."""
    words, sums = [np.zeros((0, SIGNATURE_WORDS), np.uint64)], [np.zeros(0, np.uint64)]
    for chunk in tag_lists(sets, "tags"):
        hashes = hash_tags(chunk, threads=threads)
        rows = Lists(chunk.offsets, np.arange(len(hashes), dtype=np.uint32))
        words.append(signatures_of(rows, hashes, threads=threads))
        ends = np.concatenate([[np.uint64(0)], np.cumsum(hashes, dtype=np.uint64)])
        sums.append(ends[chunk.offsets[1:]] - ends[chunk.offsets[:-1]])
    return np.concatenate(words), np.concatenate(sums)


@dataclass(frozen=True, slots=True)
class SignatureTable:
    """The distinct signatures of stored sets and the keys of each."""

    signatures: U64Array  # [n, 3], all different, in lexicographic order; C-contiguous
    keys: KeyTable  # keys of each row; a key once for each set that carries it

    def __len__(self) -> int:
        return len(self.signatures)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.signatures.nbytes + self.keys.nbytes


@kept
def signature_table(sets: pa.Table, *, threads: int = 1) -> SignatureTable:
    """Build the table of a table with columns `tags` and `key`, or return the one that was built of it."""
    words, sums = _signatures_and_sums(sets["tags"], threads)
    keys = key_values(sets["key"], "key")
    columns = np.column_stack((words, sums, keys))
    # Grouped by the first bits, so that several threads can sort
    starts, order = group_by((words[:, 0] >> _LABEL_SHIFT).astype(np.uint32), _LABELS, threads=threads)
    sort_groups(columns, order, starts, threads=threads)
    words, sums, keys = words[order], sums[order], keys[order]
    new_row = first_of_equals(*words.T)
    new_pair = first_of_equals(*words.T, sums, keys)
    row_of_pair = np.cumsum(new_row, dtype=np.int64)[new_pair] - 1
    rows = np.ascontiguousarray(words[new_row])
    key_counts = np.bincount(row_of_pair, minlength=len(rows))
    return SignatureTable(rows, KeyTable(Lists(offsets_of(key_counts), keys[new_pair])))


class SignatureMatcher(Plain, ABC):
    """A matcher that finds rows of a `SignatureTable`; subclasses find them, this class looks up their keys."""

    exact = False

    def __init__(self, keys: KeyTable, *, threads: int) -> None:
        self._keys = keys
        self._threads = threads

    @abstractmethod
    def match_rows(self, queries: U64Array) -> Lists:
        """Find the rows whose signature is contained in each query's; called by several threads at once."""

    def prepare(self, queries: pa.ListArray) -> U64Array:
        """Compute the queries' signatures, uint64[n, 3]."""
        return signatures(queries, threads=self._threads)

    def match_many(self, queries: U64Array, *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the stored sets that match or seem to, for each query in order."""

        def match(first: int, last: int) -> Lists:
            return self.match_rows(queries[first:last])

        return keys_of_matches(match, len(queries), self._keys, unique=unique, threads=self._threads)

    def keys_of_packets(self, queries: U64Array, packets: list[tuple[int, int]], *, unique: bool) -> pa.ListArray:
        """As `match_many`, of queries that are cut into these packets; several threads take them."""

        def work(first: int, last: int) -> Lists:
            return keys_of(self.match_rows(queries[first:last]), self._keys, unique=unique)

        return list_array(join_lists(run_rows(work, packets, self._threads), np.dtype(np.uint64), self._threads))


class SignatureScan(SignatureMatcher):
    """A NumPy scan of all signatures for each query. Inexact: some sets only seem to match.

    The test is the inner loop of Algorithm 3 of the TagMatch paper. Simplified: no partitions, no prefix filter, no
    batches.
    """

    def __init__(self, sets: pa.Table, *, threads: int = 1) -> None:
        table = signature_table(sets, threads=threads)
        super().__init__(table.keys, threads=threads)
        self._words = np.ascontiguousarray(table.signatures.T)

    def match_rows(self, queries: U64Array) -> Lists:
        """Find the rows whose signature is contained in each query's."""
        first, second, third = self._words
        left, right = np.empty_like(first), np.empty_like(first)
        found = [np.zeros(0, np.uint32)]
        for a, b, c in ~queries:
            np.bitwise_and(first, a, out=left)
            left |= np.bitwise_and(second, b, out=right)
            left |= np.bitwise_and(third, c, out=right)
            found.append(np.flatnonzero(left == 0).astype(np.uint32))
        lengths = np.array([len(rows) for rows in found[1:]], np.int64)
        return Lists(offsets_of(lengths), np.concatenate(found))

    def nbytes(self) -> int | None:
        """Bytes of memory."""
        return self._keys.nbytes + self._words.nbytes
