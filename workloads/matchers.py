"""Baseline matchers: what a Python user could write instead of using the index.

A matcher is built from a table with columns `tags` (list of string) and `key` (uint64). It takes queries in a
form of its own; `prepare` converts an Arrow array of queries to it, so that benchmarks need not time that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import numpy as np

from tagmatch.arrays import Lists, U64Array
from tagmatch.columns import tag_lists
from tagmatch.kernels.signature import SIGNATURE_WORDS, signatures_of
from tagmatch.kernels.xxh64 import hash_strings

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

Queries = TypeVar("Queries")


class Matcher(Protocol[Queries]):
    """A subset matcher that takes its queries as `Queries`."""

    def prepare(self, queries: pa.Array | pa.ChunkedArray) -> Queries:
        """Convert an Arrow array of queries to the form that this matcher takes."""

    def match_many(self, queries: Queries) -> Sequence[Sequence[int] | U64Array]:
        """Return the keys of the stored sets that match, for each query in order."""


class RarestTagDict:
    """A dict from each tag to the sets whose rarest tag it is, which are tested one by one. Exact.

    This is the ranked key method of T. Yan and H. García-Molina, "Index Structures for Selective Dissemination
    of Information Under the Boolean Model", ACM TODS 19(2), 1994, on Python's own types. Simplified: a candidate
    is tested as a whole, by `frozenset.issuperset`, instead of one word after the other.
    """

    def __init__(self, sets: pa.Table) -> None:
        keys_of: dict[frozenset[str], list[int]] = defaultdict(list)
        for tags, key in zip(sets["tags"].to_pylist(), sets["key"].to_pylist(), strict=True):
            keys_of[frozenset(tags)].append(key)
        frequency = Counter(chain.from_iterable(keys_of))
        self._clusters: dict[str, list[tuple[frozenset[str], list[int]]]] = defaultdict(list)
        self._keys_of_empty_set: list[int] = []
        for candidate, repeated in keys_of.items():
            keys = list(dict.fromkeys(repeated))
            if candidate:
                self._clusters[min(candidate, key=frequency.__getitem__)].append((candidate, keys))
            else:
                self._keys_of_empty_set = keys

    def prepare(self, queries: pa.Array | pa.ChunkedArray) -> list[list[str]]:
        """Convert to lists of strings."""
        return cast("list[list[str]]", queries.to_pylist())

    def match_many(self, queries: list[list[str]]) -> list[list[int]]:
        """Return the keys of the stored sets that match, for each query in order."""
        cluster_of = self._clusters.get
        answers = []
        for query in map(frozenset, queries):
            contains = query.issuperset
            keys = self._keys_of_empty_set.copy()
            for cluster in map(cluster_of, query):
                if cluster:
                    for candidate, candidate_keys in cluster:
                        if contains(candidate):
                            keys += candidate_keys
            answers.append(keys)
        return answers


class SignatureScan:
    """A NumPy scan of all signatures for each query. Inexact: some sets only seem to match.

    The signatures are those of §3 of the TagMatch paper, 192-bit Bloom filters with 7 hash functions, and the
    test is the inner loop of its Algorithm 3. Simplified: no partitions, no prefix filter, no batches, one
    processor. Sets with equal signatures share a row.
    """

    def __init__(self, sets: pa.Table) -> None:
        signatures = _signatures(sets["tags"])
        order = np.lexsort(signatures.T)
        ordered = signatures[order]
        starts = np.ones(len(ordered), np.bool_)
        starts[1:] = np.any(ordered[1:] != ordered[:-1], axis=1)
        self._words = np.ascontiguousarray(ordered[starts].T)
        self._key_ends = np.append(np.flatnonzero(starts), len(ordered))
        self._keys = sets["key"].to_numpy()[order]

    def prepare(self, queries: pa.Array | pa.ChunkedArray) -> U64Array:
        """Compute the queries' signatures."""
        return _signatures(queries)

    def match_many(self, queries: U64Array) -> list[U64Array]:
        """Return the keys of the stored sets that match or seem to, for each query in order."""
        first, second, third = self._words
        left, right = np.empty_like(first), np.empty_like(first)
        answers = []
        for a, b, c in ~queries:
            np.bitwise_and(first, a, out=left)
            left |= np.bitwise_and(second, b, out=right)
            left |= np.bitwise_and(third, c, out=right)
            answers.append(self._keys_of(np.flatnonzero(left == 0)))
        return answers

    def _keys_of(self, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> U64Array:
        ends = self._key_ends
        slices = [self._keys[ends[row] : ends[row + 1]] for row in rows.tolist()]
        return np.concatenate(slices) if slices else self._keys[:0]


def _signatures(sets: pa.Array | pa.ChunkedArray) -> U64Array:
    parts = [np.zeros((0, SIGNATURE_WORDS), np.uint64)]
    for chunk in tag_lists(sets, "tags"):
        tags = np.arange(len(chunk.tags), dtype=np.uint32)
        parts.append(signatures_of(Lists(chunk.offsets, tags), hash_strings(chunk.tags)))
    return np.concatenate(parts)
