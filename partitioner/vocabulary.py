"""The vocabulary of a snapshot: the ranks of its tags."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from tagmatch.model.arrays import Strings, U32Array, U64Array
from tagmatch.model.kernels.hashing import hash_strings
from tagmatch.model.kernels.lists import gather_strings
from tagmatch.model.kernels.sorting import group_by
from tagmatch.model.tables import Vocabulary
from tagmatch.model.tag_order import by_hash

# Frequencies below this are sorted by counting
_RARE = 1 << 16

#: Gets different tags, their hashes and frequencies, and the number of threads; gives their places in an order
TagOrder: TypeAlias = Callable[[Strings, U64Array, U32Array, int], U32Array]


def rarest_first(tags: Strings, hashes: U64Array, frequencies: U32Array, threads: int) -> U32Array:
    """The order of a `Vocabulary`."""
    return by_frequency(frequencies, by_hash(tags, hashes), threads=threads)


def rank_tags(
    tags: Strings, frequencies: U32Array, *, order: TagOrder = rarest_first, threads: int = 1
) -> tuple[Vocabulary, U32Array]:
    """Rank the tags that occur.

    Parameters
    ----------
    tags : Strings
        Different tags, in any order.
    frequencies : uint32 array
        Sets that contain each tag; tags with 0 get no rank.
    order : TagOrder
        In which they are ranked.

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
    places = order(tags, hashes, frequencies, threads)
    ranks[places if all_present else present[places]] = np.arange(len(places), dtype=np.uint32)
    ranked = gather_strings(tags, places, threads=threads)
    return Vocabulary(ranked, hashes[places], frequencies[places]), ranks


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
