"""Stage 2, subset match, for sets with constraints: down the trie, and then exact verification."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import Lists
from tagmatch.model.kernels.jit import kernel, with_room
from tagmatch.pipeline.filters.asked import keep_verified
from tagmatch.pipeline.filters.descent import descend
from tagmatch.pipeline.filters.message_tokens import write_tokens
from tagmatch.pipeline.filters.messages import Messages
from tagmatch.pipeline.filters.trie_index import TrieIndex
from tagmatch.pipeline.matcher import QueryBatch
from tagmatch.pipeline.tags import Matches

# Messages that go down the trie together: fewer at first, and where they have many candidates
_FEWEST, _MOST, _MANY = 16, 512, 1 << 18


@kernel
def match_in_trie(
    rank_offsets, ranks, message_offsets, attributes, codes, cells, trie, fewest, constraints,
    rows, record_offsets, records, first_codes, ends,
):  # fmt: skip
    """Rows that each message satisfies, and where each message's end; how many candidates were turned away."""
    first_cells, bits, levels, known, first_tag = cells
    tokens, out = np.empty(0, np.uint32), np.empty(16 * len(ends), np.uint32)
    at_most = min(_MOST, len(ends) - 1)
    token_ends, signatures = np.zeros(at_most + 1, np.int64), np.empty(at_most, np.uint64)
    first, at_once, total, candidates = 0, _FEWEST, 0, 0
    while first < len(ends) - 1:
        last = min(first + at_once, len(ends) - 1)
        tokens = write_tokens(
            first, last, rank_offsets, ranks, message_offsets, attributes, codes,
            first_cells, bits, levels, known, first_tag, tokens, token_ends, signatures,
        )  # fmt: skip
        owners, found, used, _ = descend(tokens, token_ends[: last - first + 1], signatures, trie, fewest)
        out = with_room(out, total, used)
        total, _ = keep_verified(
            first, last, owners, found, used, rank_offsets, ranks, message_offsets, attributes, codes,
            constraints, rows, record_offsets, records, first_codes, out, total, ends,
        )  # fmt: skip
        candidates += used
        first, at_once = last, min(2 * at_once, _MOST) if used < _MANY else max(at_once // 2, 1)
    return out[:total], candidates - total


def match_filters(index: TrieIndex, queries: QueryBatch, messages: Messages) -> Matches:
    """Rows of the segment whose tags and constraints each message satisfies."""
    ends = np.zeros(len(messages) + 1, np.int64)
    rows, rejected = match_in_trie(
        queries.offsets, queries.ranks, messages.offsets, messages.attributes, messages.codes,
        *index.arrays, np.zeros(index.attributes.count, np.uint32), ends,
    )  # fmt: skip
    return Matches(Lists(ends, rows), int(rejected))
