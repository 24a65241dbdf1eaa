"""Messages as tokens: the numbers by which the trie knows names of attributes, cells of values, and tags."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import I64Array
from tagmatch.model.kernels.jit import inlined, kernel, with_room
from tagmatch.model.kernels.lists import sort_values
from tagmatch.pipeline.filters.tokens import Cells
from tagmatch.pipeline.filters.trie import bit_of

_U = np.uint64

# Tokens of a value at most: its attribute's, and two for each level
_A_VALUE = 1 + 2 * 64


def most_tokens(cells: Cells) -> I64Array:
    """Of each attribute, how many tokens a value of it has at most: the attribute's, and two for each level."""
    return 1 + 2 * np.bitwise_count(cells.levels).astype(np.int64)


@inlined
def most_room(ranks, values):
    """Tokens of a message with so many ranks and values, at most, and before each is there once."""
    return ranks + _A_VALUE * values


@inlined
def tokens_of(
    ranks, ranks_begin, ranks_end, attributes, codes, values_begin, values_end,
    first_cells, bits, levels, known, first_tag, tokens, begin,
):  # fmt: skip
    """Write the tokens of a message from `begin` on, ascending and each once; where they end, and their signature.

    There must be room for one for each rank, and for `most_tokens` of each attribute. The CPU and CUDA have this rule.
    """
    used = begin
    for place in range(ranks_begin, ranks_end):
        token = known[first_tag + ranks[place]]
        tokens[used] = token
        used += np.int64(token != 0)
    for place in range(values_begin, values_end):
        attribute, code = attributes[place], np.int64(codes[place])
        token = known[attribute]
        tokens[used] = token
        used += np.int64(token != 0)
        left, level = levels[attribute], np.int64(0)
        while left != _U(0):
            if left & _U(1):
                # A set's cell is at least as wide as its interval and holds the lower end of that
                cell = code >> (bits[attribute] - level)
                for back in range(1 if level == bits[attribute] else 2):
                    if cell >= back:
                        token = known[first_cells[attribute] + (np.int64(1) << level) + cell - back]
                        tokens[used] = token
                        used += np.int64(token != 0)
            left >>= _U(1)
            level += 1
    sort_values(tokens, begin, used)
    different, signature = begin, _U(0)
    for place in range(begin, used):
        token = tokens[place]
        signature |= bit_of(token)
        tokens[different] = token
        different += np.int64(place + 1 == used or token != tokens[place + 1])
    return different, signature


@kernel
def write_tokens(
    first, last, rank_offsets, ranks, message_offsets, attributes, codes,
    first_cells, bits, levels, known, first_tag, tokens, ends, signatures,
):  # fmt: skip
    """Write the tokens of messages `first` to `last`: of each ascending and each once, with their signature.

    Those of message `first + i` end at `ends[i + 1]`. Returns `tokens`, or what is larger.
    """
    used = np.int64(0)
    for message in range(first, last):
        ranks_begin, ranks_end = rank_offsets[message], rank_offsets[message + 1]
        values_begin, values_end = message_offsets[message], message_offsets[message + 1]
        more = most_room(ranks_end - ranks_begin, values_end - values_begin)
        if used + more > len(tokens):
            tokens = with_room(tokens, used, more)
        used, signatures[message - first] = tokens_of(
            ranks, ranks_begin, ranks_end, attributes, codes, values_begin, values_end,
            first_cells, bits, levels, known, first_tag, tokens, used,
        )  # fmt: skip
        ends[message + 1 - first] = used
    return tokens
