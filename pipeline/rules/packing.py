"""How pairs go back to the host: four 8-bit query ids, then four 32-bit set ids (§3.3.1).

A record has the number of an item, the number of its pairs, and these pairs: their query ids count within the item.
"""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import I64Array, U32Array
from tagmatch.model.kernels.jit import kernel

#: Words, of 32 bits, with which a record begins
RECORD_HEADER = 2

#: Pairs of a group, and the words and bytes that it takes
GROUP = 4
GROUP_WORDS = GROUP + 1
GROUP_BYTES = 4 * GROUP_WORDS


@kernel
def packed_words(pairs):
    """How many 32-bit words the pairs of a record take."""
    return pairs + (pairs + GROUP - 1) // GROUP


@kernel
def _unpack(words, firsts, queued, queries, sets):
    used = 0
    at = 0
    while at < len(words):
        first, count = firsts[words[at]], np.int64(words[at + 1])
        at += RECORD_HEADER
        for i in range(count):
            group, place = at + GROUP_WORDS * (i // GROUP), i % GROUP
            queries[used] = queued[first + ((words[group] >> np.uint32(8 * place)) & np.uint32(255))]
            sets[used] = words[group + 1 + place]
            used += 1
        at += packed_words(count)


def unpack(words: U32Array, pairs: int, firsts: I64Array, queued: I64Array) -> tuple[U32Array, U32Array]:
    """Query numbers and set ids, `pairs` of each, of the items whose queries begin at `firsts` in `queued`."""
    queries, sets = np.empty(pairs, np.uint32), np.empty(pairs, np.uint32)
    _unpack(words, firsts, queued, queries, sets)
    return queries, sets
