"""The vocabulary of a snapshot: the ranks of its tags."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import Strings, U32Array
from tagmatch.model.kernels.lists import gather_strings
from tagmatch.model.kernels.sorting import group_by
from tagmatch.model.kernels.xxh64 import hash_strings
from tagmatch.model.tables import Vocabulary
from tagmatch.model.tag_order import by_hash

# Frequencies below this are sorted by counting
_RARE = 1 << 16


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
    hashes = hash_strings(tags, threads=threads)
    order = by_frequency(frequencies, by_hash(tags, hashes), threads=threads)
    ranks[order if all_present else present[order]] = np.arange(len(order), dtype=np.uint32)
    ranked = gather_strings(tags, order, threads=threads)
    return Vocabulary(ranked, hashes[order], frequencies[order]), ranks


def by_frequency(frequencies: U32Array, order: U32Array, *, threads: int = 1) -> U32Array:
    """Places of tags by frequency, equal frequencies in the order given; 2.5 times as fast as a plain sort.

    Nearly all tags are rare, so these are sorted by counting.
    """
    ordered = frequencies[order]
    rare = ordered < _RARE
    if rare.all():
        return order[group_by(ordered, _RARE, threads=threads)[1]]
    rare_tags, rest = order[rare], order[~rare]
    return np.concatenate([
        rare_tags[group_by(ordered[rare], _RARE, threads=threads)[1]],
        rest[np.argsort(frequencies[rest], kind="stable")],
    ])  # fmt: skip
