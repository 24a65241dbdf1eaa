"""The vocabulary of a snapshot: which seed, which order."""

from __future__ import annotations

import numpy as np

from tagmatch.arrays import I64Array, Strings, U32Array, U64Array, narrow_offsets, offsets_of
from tagmatch.kernels.jit import kernel
from tagmatch.kernels.xxh64 import hash_strings, tag_seeds
from tagmatch.parallel import even_ranges, run_rows
from tagmatch.tables import Vocabulary


@kernel
def _gather_strings(offsets, data, order, new_offsets, new_data, first, last):
    for i in range(first, last):
        at = new_offsets[i]
        for j in range(offsets[order[i]], offsets[order[i] + 1]):
            new_data[at] = data[j]
            at += 1


def gather_strings(strings: Strings, order: I64Array, *, threads: int = 1) -> Strings:
    """Strings in the order given."""
    offsets = offsets_of(np.diff(strings.offsets)[order])
    data = np.empty(int(offsets[-1]), np.uint8)

    def work(first: int, last: int) -> None:
        _gather_strings(strings.offsets, strings.data, order, offsets, data, first, last)

    run_rows(work, even_ranges(len(order), threads), threads)
    return Strings(narrow_offsets(offsets), data)


def distinct_hashes(tags: Strings, *, threads: int = 1) -> tuple[U64Array, int]:
    """Hashes of different tags under the first of `tag_seeds` that keeps them all apart; and that seed."""
    for seed in tag_seeds():
        hashes = hash_strings(tags, seed=seed, threads=threads)
        ascending = np.sort(hashes)
        if not np.any(ascending[1:] == ascending[:-1]):
            return hashes, seed
    raise AssertionError("unreachable")


def rank_tags(tags: Strings, frequencies: U32Array, *, threads: int = 1) -> tuple[Vocabulary, U32Array]:
    """Rank the tags that occur.

    Parameters
    ----------
    tags : Strings
        Different tags, in any order.
    frequencies : uint32 array
        Sets that contain each tag; tags with 0 get no rank.

    Returns
    -------
    vocabulary : Vocabulary
    ranks : uint32 array
        Rank of each of `tags`; meaningless for those with frequency 0.
    """
    present = np.flatnonzero(frequencies)
    if len(present) < len(tags):
        tags = gather_strings(tags, present, threads=threads)
    hashes, seed = distinct_hashes(tags, threads=threads)
    order = np.lexsort((hashes, frequencies[present]))
    ranks = np.zeros(len(frequencies), np.uint32)
    ranks[present[order]] = np.arange(len(order), dtype=np.uint32)
    ranked = gather_strings(tags, order, threads=threads)
    return Vocabulary(ranked, hashes[order], frequencies[present][order], seed), ranks
