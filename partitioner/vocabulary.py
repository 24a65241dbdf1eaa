"""The vocabulary of a snapshot: which seed, which order."""

from __future__ import annotations

import numpy as np

from partitioner.rows import gather_strings
from partitioner.sorting import group_by
from tagmatch.arrays import Strings, U32Array, U64Array
from tagmatch.kernels.xxh64 import hash_strings, tag_seeds
from tagmatch.tables import Vocabulary

# Frequencies below this are sorted by counting
_RARE = 1 << 16


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
    present = np.flatnonzero(frequencies).astype(np.uint32)
    all_present = len(present) == len(tags)
    ranks = np.zeros(len(frequencies), np.uint32)
    if not all_present:
        tags = gather_strings(tags, present, threads=threads)
        frequencies = frequencies[present]
    hashes, seed = distinct_hashes(tags, threads=threads)
    order = _by_frequency_and_hash(frequencies, hashes, threads)
    ranks[order if all_present else present[order]] = np.arange(len(order), dtype=np.uint32)
    ranked = gather_strings(tags, order, threads=threads)
    return Vocabulary(ranked, hashes[order], frequencies[order], seed), ranks


def _by_frequency_and_hash(frequencies: U32Array, hashes: U64Array, threads: int) -> U32Array:
    """`np.lexsort((hashes, frequencies))` for hashes that differ, 2.5 times as fast: nearly all tags are rare."""
    by_hash = np.argsort(hashes).astype(np.uint32)
    ordered = frequencies[by_hash]
    rare = ordered < _RARE
    if rare.all():
        return by_hash[group_by(ordered, _RARE, threads=threads)[1]]
    rare_tags = by_hash[rare]
    rest = by_hash[~rare]
    return np.concatenate([
        rare_tags[group_by(ordered[rare], _RARE, threads=threads)[1]],
        rest[np.argsort(frequencies[rest], kind="stable")],
    ])  # fmt: skip
