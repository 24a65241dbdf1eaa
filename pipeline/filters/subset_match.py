"""Stage 2, subset match, for sets with constraints: down the trie by the tokens that a message has."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import Lists
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.rows import sort_values
from tagmatch.pipeline.cpu.subset_match import Matches
from tagmatch.pipeline.filters.index import FilterIndex
from tagmatch.pipeline.filters.messages import Messages
from tagmatch.pipeline.filters.trie import INNER, bit_of, home_of
from tagmatch.pipeline.filters.verify import verified
from tagmatch.pipeline.matcher import QueryBatch

_U = np.uint64
_U32 = np.uint32

# Tokens and nodes that there is room for at first
_TOKENS, _NODES = 1024, 4096
# Tokens of a value at most: its attribute's, and two for each level
_A_VALUE = 1 + 2 * 64


@kernel
def _room(array, used, more):
    """The array, or a copy with room for `more` after the first `used`."""
    if used + more <= len(array):
        return array
    bigger = np.empty(max(2 * len(array), used + more), array.dtype)
    bigger[:used] = array[:used]
    return bigger


@kernel
def _tokens(ranks, attributes, codes, first_cells, bits, levels, tokens, first_tag, is_constraint, out):
    """The tokens of a message, ascending, each once; how many, and their signature."""
    count = 0
    for rank in ranks:
        token = tokens[first_tag + rank]
        if token != 0 and not is_constraint[rank]:
            out[count] = token
            count += 1
    for i in range(len(attributes)):
        attribute = attributes[i]
        if tokens[attribute] != 0:
            out[count] = tokens[attribute]
            count += 1
        left, level = levels[attribute], 0
        while left != _U(0):
            if left & _U(1):
                # A set's cell is at least as wide as its interval and holds the lower end of that
                cell = np.int64(codes[i]) >> (bits[attribute] - level)
                for back in range(1 if level == bits[attribute] else 2):
                    if cell >= back:
                        token = tokens[first_cells[attribute] + (np.int64(1) << level) + cell - back]
                        if token != 0:
                            out[count] = token
                            count += 1
            left >>= _U(1)
            level += 1
    sort_values(out, 0, count)
    different, signature = 0, _U(0)
    for i in range(count):
        if i == 0 or out[i] != out[i - 1]:
            out[different] = out[i]
            different += 1
            signature = signature | bit_of(out[i])
    return different, signature


@kernel
def _candidates(tokens, signature, trie, stack, places, homes, found):
    """Rows at the ends of all paths of the tokens, whose signature fits; how many."""
    roots, nodes, edges, children, signatures = trie
    mask = _U(len(edges) - 1)
    count, used, depth = len(tokens), np.int64(0), 1
    stack[0], places[0] = 0, 0
    while depth > 0:
        depth -= 1
        node, place = stack[depth], places[depth]
        row, end = np.int64(nodes[node, 0]), np.int64(nodes[node, 1] & ~INNER)
        if used + end - row > len(found):
            found = _room(found, used, end - row)
        for candidate in range(row, end):
            found[used] = candidate
            used += np.int64(signatures[candidate] & ~signature == _U(0))
        if nodes[node, 1] & INNER == _U32(0):
            continue
        if depth + count > len(stack):
            stack, places = _room(stack, depth, count), _room(places, depth, count)
        if node == 0:
            for i in range(count):
                stack[depth], places[depth] = roots[tokens[i]], i + 1
                depth += roots[tokens[i]] != 0
            continue
        # Each miss of the cache in a loop of its own, without a branch: the processor then waits for many at once
        for i in range(place, count):
            homes[i] = home_of(node, tokens[i]) & mask
        touched = 0
        for i in range(place, count):
            touched |= children[homes[i]]
        if touched == 0:
            continue
        for i in range(place, count):
            at = homes[i]
            child = children[at]
            edge = (_U(node) << _U(32)) | _U(tokens[i])
            while child != 0 and edges[at] != edge:
                at = (at + _U(1)) & mask
                child = children[at]
            if child != 0:
                stack[depth], places[depth] = child, i + 1
                depth += 1
    return used, stack, places, found


@kernel
def _match(
    rank_offsets, all_ranks, message_offsets, all_attributes, all_codes, cells, is_constraint, trie, constraints,
    rows, record_offsets, records, first_codes, ends,
):  # fmt: skip
    first_cells, bits, levels, tokens, first_tag = cells
    out, total, rejected = np.empty(16 * len(ends), np.uint32), 0, 0
    own, homes = np.empty(_TOKENS, np.uint32), np.empty(_TOKENS, np.uint64)
    stack, places = np.empty(_NODES, np.int64), np.empty(_NODES, np.int64)
    found, at = np.empty(_NODES, np.int64), np.empty(_NODES, np.int64)
    touched = _U32(0)
    for message in range(len(ends) - 1):
        ranks = all_ranks[rank_offsets[message] : rank_offsets[message + 1]]
        first, last = message_offsets[message], message_offsets[message + 1]
        attributes, codes = all_attributes[first:last], all_codes[first:last]
        room = len(ranks) + _A_VALUE * len(attributes)
        if room > len(own):
            own, homes = np.empty(room, np.uint32), np.empty(room, np.uint64)
        count, signature = _tokens(
            ranks, attributes, codes, first_cells, bits, levels, tokens, first_tag, is_constraint, own
        )
        used, stack, places, found = _candidates(own[:count], signature, trie, stack, places, homes, found)
        several = False
        for i in range(len(attributes)):
            several |= first_codes[attributes[i]] != 0
            first_codes[attributes[i]] = codes[i]
        if used > len(at):
            at = _room(at, 0, used)
        # Each miss of the cache in a loop of its own: the processor then waits for many at once
        for i in range(used):
            at[i] = record_offsets[found[i]]
        for i in range(used):
            touched ^= records[at[i], 0]
        if total + used > len(out):
            out = _room(out, total, used)
        before = total
        for i in range(used):
            if verified(
                at[i],
                record_offsets[found[i] + 1],
                records,
                first_codes,
                ranks,
                attributes,
                codes,
                constraints,
                several,
            ):
                out[total] = rows[found[i]]
                total += 1
        rejected += used - (total - before)
        for i in range(len(attributes)):
            first_codes[attributes[i]] = 0
        ends[message + 1] = total
    return out[:total], rejected, touched


def match_filters(index: FilterIndex, queries: QueryBatch, messages: Messages) -> Matches:
    """Rows of the segment whose tags and constraints each message satisfies."""
    cells = index.cells
    ends = np.zeros(len(messages) + 1, np.int64)
    rows, rejected, _ = _match(
        queries.offsets, queries.ranks, messages.offsets, messages.attributes, messages.codes,
        (cells.first_cells, cells.bits, cells.levels, cells.tokens, cells.first_tag), index.is_constraint,
        index.trie.arrays, index.constraints.arrays, index.rows, index.record_offsets, index.records,
        np.zeros(index.attributes.count, np.uint32), ends,
    )  # fmt: skip
    return Matches(Lists(ends, rows), int(rejected))
