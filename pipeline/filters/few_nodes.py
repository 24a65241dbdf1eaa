"""Down the trie and exact verification for one message that comes by few nodes, as most do, without new memory.

`match_in_trie` takes many messages at once, so that the processor waits for many cache misses at a time. Its arrays and
calls take two microseconds, which one message alone has to itself; what is here takes a tenth of that. Messages that
come by many nodes have many cache misses of their own, and are left to it.
"""

from __future__ import annotations

import numpy as np

from tagmatch.model.kernels.jit import inlined, lent
from tagmatch.pipeline.filters.asked import verified
from tagmatch.pipeline.filters.message_tokens import most_room, tokens_of
from tagmatch.pipeline.filters.trie import INNER, home_of

# Tokens for which there is room, nodes that may wait, nodes that are visited, and candidates, at most
_TOKENS, _WAITING, _VISITED, _CANDIDATES = 4096, 1024, 64, 256
#: What is said of a message for which that is not enough
TOO_MANY = -1

_U = np.uint64
_U32 = np.uint32


@inlined
def room_for_few():
    """Memory for any number of messages, one after the other; the last of these arrays has the rows of each."""
    return (
        np.empty(_TOKENS, np.uint32), np.empty(_WAITING, np.uint32), np.empty(_WAITING, np.int32),
        np.empty(_CANDIDATES, np.int64), np.empty(_CANDIDATES, np.int64), np.empty(_CANDIDATES, np.uint32),
    )  # fmt: skip


@lent
def _fits(begin, end, used, row_signatures, absent, found):
    """Write the rows from `begin` to `end` whose signature fits behind the first `used`; how many there are then."""
    if used + end - begin > len(found):
        return np.int64(TOO_MANY)
    for row in range(begin, end):
        found[used] = row
        used += np.int64(row_signatures[row] & absent == _U(0))
    return used


@lent
def _candidates(tokens, count, signature, trie, fewest, waiting, nexts, found):
    """Write the rows at the ends of all paths of the tokens, whose signature fits; how many, or `TOO_MANY`."""
    roots, nodes, edges, children, row_signatures = trie
    mask, absent = _U(len(edges) - 1), ~signature
    used, top, visited = np.int64(0), np.int64(0), 0
    used = _fits(0, np.int64(nodes[0, 1] & ~INNER), used, row_signatures, absent, found)
    if used == TOO_MANY or count > len(waiting):
        return np.int64(TOO_MANY)
    for place in range(count):
        child = roots[tokens[place]]
        waiting[top], nexts[top] = child, place + 1
        if child != 0:
            top += np.int64(fewest[child] <= count - (place + 1))
    while top > 0:
        top -= 1
        visited += 1
        node, first = waiting[top], nexts[top]
        begin, end = np.int64(nodes[node, 0]), nodes[node, 1]
        used = _fits(begin, np.int64(end & ~INNER), used, row_signatures, absent, found)
        if used == TOO_MANY or visited > _VISITED or top + count > len(waiting):
            return np.int64(TOO_MANY)
        if end & INNER != _U32(0):
            for place in range(first, count):
                home = home_of(node, tokens[place]) & mask
                child = children[home]
                if child == 0:
                    continue
                edge = (_U(node) << _U(32)) | _U(tokens[place])
                while child != 0 and edges[home] != edge:
                    home = (home + _U(1)) & mask
                    child = children[home]
                if child != 0 and fewest[child] <= count - (place + 1):
                    waiting[top], nexts[top] = child, place + 1
                    top += 1
    return used


@lent
def match_few(
    ranks, ranks_begin, ranks_end, attributes, codes, begin, end, cells, trie, fewest, constraints,
    rows, record_offsets, records, first_codes, room,
):  # fmt: skip
    """Write into the last of `room` which rows a message satisfies."""
    first_cells, bits, levels, known, first_tag = cells
    tokens, waiting, nexts, begins, ends, found = room
    if most_room(ranks_end - ranks_begin, end - begin) > len(tokens):
        return np.int64(TOO_MANY), np.int64(0)
    count, signature = tokens_of(
        ranks, ranks_begin, ranks_end, attributes, codes, begin, end,
        first_cells, bits, levels, known, first_tag, tokens, np.int64(0),
    )  # fmt: skip
    used = _candidates(tokens, count, signature, trie, fewest, waiting, nexts, found)
    if used <= 0:
        return used, np.int64(0)
    # Each miss of the cache in a loop of its own, as in `keep_verified`
    for i in range(used):
        begins[i], ends[i] = record_offsets[found[i]], record_offsets[found[i] + 1]
    several = False
    for i in range(begin, end):
        several |= first_codes[attributes[i]] != 0
        first_codes[attributes[i]] = codes[i]
    total = np.int64(0)
    for i in range(used):
        row = rows[found[i]]
        found[total] = row
        total += np.int64(
            verified(
                begins[i], ends[i], records, first_codes, several, attributes, codes, begin, end,
                ranks, ranks_begin, ranks_end, constraints,
            )
        )  # fmt: skip
    for i in range(begin, end):
        first_codes[attributes[i]] = 0
    return total, used - total
