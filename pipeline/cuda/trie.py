"""Stage 2, subset match, of sets with constraints in a trie: one thread for each token of each message."""

from __future__ import annotations

from typing import Any

import numba.cuda
import numpy as np

from tagmatch.pipeline.cuda.candidates import flush, new_stage, stage
from tagmatch.pipeline.cuda.jit import kernel
from tagmatch.pipeline.cuda.memory import grid, to_device
from tagmatch.pipeline.cuda.messages import DeviceMessages
from tagmatch.pipeline.filters.trie import child_of, rows_of_node
from tagmatch.pipeline.filters.trie_index import DEEPEST, TrieIndex

cuda: Any = numba.cuda

_U = np.uint64
_BLOCK = 128
# Sets without tokens, which no token leads to, that a thread looks at
_EACH = 64


@kernel
def match_trie(
    threads, token_places, token_offsets, token_counts, tokens, owners, signatures,
    offsets, counts, ranks, attribute_offsets, attributes, codes,
    tokenless, parts, roots, nodes, edges, children, row_signatures,
    rows, record_offsets, records, of_constraint, negated, interval_offsets, lows, highs,
    pair_queries, pair_sets, counters,
):  # fmt: skip
    """Append the sets whose constraints and tags a message has.

    A thread has a place of a message's tokens: it goes depth first to the sets whose least likely token stands there,
    and whose others come after it. Those that need no token are at the root; `parts` threads share them for a message.
    """
    waiting = new_stage()
    # Nodes on the way that have children, and where the search for these goes on; the deepest ones have none
    path = cuda.local.array((DEEPEST, 2), np.int64)
    asked = (record_offsets, records, (of_constraint, negated, interval_offsets, lows, highs))
    known = (offsets, counts, ranks, attribute_offsets, attributes, codes)
    thread = np.int64(cuda.grid(1))
    if thread < token_places:
        message = np.int64(owners[thread])
        last = token_offsets[message] + token_counts[message]
        missing = ~signatures[message]
        node, place, depth = np.int64(0), thread, 0
        if place < last:
            node = np.int64(roots[tokens[place]])
        while node != 0 or depth > 0:
            if node != 0:
                row, end, has_children = rows_of_node(node, nodes)
                for candidate in range(row, end):
                    if row_signatures[candidate] & missing == _U(0):
                        stage(message, candidate, waiting, rows, asked, known, pair_queries, pair_sets, counters)
                if has_children:
                    path[depth, 0], path[depth, 1] = node, place + 1
                    depth += 1
                node = np.int64(0)
            else:
                place = path[depth - 1, 1]
                if place < last:
                    path[depth - 1, 1] = place + 1
                    node = child_of(path[depth - 1, 0], tokens[place], edges, children)
                else:
                    depth -= 1
    elif thread < threads:
        message = (thread - token_places) // parts
        # Neighbours look at neighbouring rows
        for candidate in range((thread - token_places) % parts, tokenless, parts):
            stage(message, candidate, waiting, rows, asked, known, pair_queries, pair_sets, counters)
    flush(waiting, rows, asked, known, pair_queries, pair_sets, counters)


class CudaTrie:
    """The sets of a trie, in device memory."""

    def __init__(self, index: TrieIndex) -> None:
        self._sets = len(index)
        self._tokenless = index.trie.tokenless
        tables = (*index.trie.arrays, index.rows, index.record_offsets, index.records, *index.constraints.arrays)
        self._tables = tuple(map(to_device, tables))
        self.nbytes = sum(int(table.nbytes) for table in self._tables)

    def launch(self, messages: DeviceMessages, *results: Any) -> None:
        """Append the matches of all messages to `results`, as `pairs.append` takes them."""
        tokens = messages.tokens
        assert tokens is not None
        parts = -(-self._tokenless // _EACH)
        threads = tokens.places + messages.count * parts
        if not self._sets or not threads:
            return
        match_trie[(*grid(threads, _BLOCK), messages.workspace.stream)](
            threads, tokens.places, tokens.offsets, tokens.counts, tokens.values, tokens.owners, tokens.signatures,
            messages.offsets, messages.counts, messages.ranks,
            messages.attribute_offsets, messages.attributes, messages.codes,
            self._tokenless, parts, *self._tables, *results,
        )  # fmt: skip
