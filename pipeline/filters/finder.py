"""Finds the sets of a segment that have constraints; and those of one message, to their keys, by one call of a kernel.

`tagmatch.pipeline.one` says why one message goes alone; the kernels of packets are called here, too. Only the trie has
another way down: `match_in_trie` takes many messages at once, so that the processor waits for many cache misses at a
time. Its arrays and calls take two microseconds, too many for one message alone; the code here takes a tenth of
that. Messages that come by many nodes have their own cache misses, and are left to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tagmatch.model.kernels.intrinsics import arrays_at, own_array_at
from tagmatch.model.kernels.jit import apart, inlined, kernel, lent
from tagmatch.model.tables import Segment
from tagmatch.pipeline.entered import entry_of
from tagmatch.pipeline.filters.asked import count_messages, verified
from tagmatch.pipeline.filters.index import FilterIndex
from tagmatch.pipeline.filters.lines import match_in_lines
from tagmatch.pipeline.filters.messages import MessageTable, encode_one
from tagmatch.pipeline.filters.trie import INNER, home_of, match_in_trie, most_room, tokens_of
from tagmatch.pipeline.one import (
    ALL,
    LAYOUT,
    LAYOUT_SCALAR,
    OneQuery,
    hashes_of,
    kernels_of,
    live_of,
    prepare,
    ranks_of,
    scalar,
)
from tagmatch.pipeline.segment import Finder, RowsFound, SegmentMessages
from tagmatch.pipeline.tags import TagIndex

# Tokens for which there is room, nodes that may wait, nodes that are visited, and candidates, at most
_TOKENS, _WAITING, _VISITED, _CANDIDATES = 4096, 1024, 64, 256
#: What is said of a message for which that is not enough
TOO_MANY = -1

_U = np.uint64


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
def _candidates(tokens, count, signature, trie, waiting, nexts, found):
    """Write the rows at the ends of all paths of the tokens, whose signature fits; how many, or `TOO_MANY`."""
    roots, nodes, edges, children, row_signatures, fewest = trie
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
def match_few(message, cells, trie, sets, first_codes, room):
    """Write into the last of `room` which rows a message satisfies."""
    attributes, codes, begin, end, _, ranks_begin, ranks_end = message
    constraints, rows, record_offsets, records = sets
    tokens, waiting, nexts, begins, ends, found = room
    if most_room(ranks_end - ranks_begin, end - begin) > len(tokens):
        return np.int64(TOO_MANY), np.int64(0)
    count, signature = tokens_of(message, cells, tokens, np.int64(0))
    used = _candidates(tokens, count, signature, trie, waiting, nexts, found)
    if used <= 0:
        return used, np.int64(0)
    # Each miss of the cache in its own loop, as in `keep_verified`
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
        total += np.int64(verified(begins[i], ends[i], records, message, first_codes, several, constraints))
    for i in range(begin, end):
        first_codes[attributes[i]] = 0
    return total, used - total


_I32, _I64, _U8, _U16, _U32, _U64, _BOOL = np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.bool_

# The arrays of an index, in the order in which they are prepared
_OF_NAMES = (_U64, _I64, _U8)
_OF_CONSTANTS = (_I64, (_U32, _U64), _U16, _I64, _I64, _U8)
_OF_PATTERNS = (_I64, _U64, _I64, _I64, _I64, _I64, _I64, _BOOL, _I64)
_OF_ATTRIBUTES = (_OF_NAMES, _OF_NAMES, _OF_CONSTANTS, _OF_PATTERNS)
_OF_CONSTRAINTS = (_I64, _BOOL, _I64, _U32, _U32)
_OF_SEEN = (_I64, _I64)
_OF_SETS = (_U32, _I64, _U32)
_OF_TRIE = ((_I64, _I64, _U64, _U32), (_I32, _U32, _U64, _I32, _U64, _U8), _OF_SETS)
_OF_LINES = ((_I32, _I64, _U32), (_I64, _U32, _I64, _U32, _U64), _OF_SETS)


def flat(tree: Any) -> list[Any]:
    """What is in tuples in a tuple, one after the other."""
    leaves: list[Any] = []
    for each in tree:
        if isinstance(each, tuple):
            leaves += flat(each)
        else:
            leaves.append(each)
    return leaves


_GROUPS = (_OF_ATTRIBUTES, _OF_CONSTRAINTS, _OF_SEEN, _OF_TRIE, _OF_LINES)
_PLACES = [LAYOUT + len(flat(_GROUPS[:place])) for place in range(len(_GROUPS) + 1)]
_KNOWN, _CONSTRAINTS, _SEEN, _TRIE, _LINES, _ = _PLACES
_DTYPES = [np.dtype(each) for each in flat(_GROUPS)]
_ATTRIBUTES, _FIRST_ABSENT, _HAS_TRIE, _FIRST_TAG, _HAS_LINES = range(LAYOUT_SCALAR, LAYOUT_SCALAR + 5)

#: Places of the first array, and of the first scalar, behind those of an index
BEHIND, SCALAR_BEHIND = _PLACES[-1], LAYOUT_SCALAR + 5

# The seed with which names, and tags that must not be there, are hashed
_SEED = 0


@kernel
def read(rest):
    """Packed attributes."""
    return np.frombuffer(rest[0], np.uint8)


@kernel
def _encoded(tables, tags, attributes):
    """Attributes and codes of the message, which is counted."""
    names, absent, constants, patterns = arrays_at(tables, _KNOWN, _OF_ATTRIBUTES)
    known = names, absent, scalar(tables, _FIRST_ABSENT), constants, patterns
    attributes, codes = encode_one(tags.offsets, hashes_of(tags, _SEED), tags.data, attributes, known)
    count_messages(1, attributes, own_array_at(tables, _SEEN, np.int64), own_array_at(tables, _SEEN + 1, np.int64))
    return attributes, codes


@inlined
def _sets(constraints, arrays):
    """As `Sets`."""
    rows, record_offsets, records = arrays
    return constraints, rows, record_offsets, records.reshape((-1, 3))


@kernel
def _from_trie(tables, messages, constraints, first_codes, ends, most):
    (first_cells, bits, levels, known), of_trie, of_sets = arrays_at(tables, _TRIE, _OF_TRIE)
    cells = (first_cells, bits, levels, known, scalar(tables, _FIRST_TAG))
    roots, nodes, edges, children, signatures, fewest = of_trie
    trie = (roots, nodes.reshape((-1, 2)), edges, children, signatures, fewest)
    sets, room = _sets(constraints, of_sets), room_for_few()
    _, ranks, _, attributes, codes = messages
    message = (attributes, codes, np.int64(0), np.int64(len(attributes)), ranks, np.int64(0), np.int64(len(ranks)))
    count, rejected = match_few(message, cells, trie, sets, first_codes, room)
    if count != TOO_MANY:
        return room[-1][:count], rejected
    if most < ALL:
        return room[-1][:0], TOO_MANY
    return match_in_trie(messages, cells, trie, sets, first_codes, ends)


@kernel
def _from_lines(tables, messages, constraints, first_codes, ends, most):
    buckets, (column_offsets, columns, box_offsets, boxes, lines), of_sets = arrays_at(tables, _LINES, _OF_LINES)
    if len(columns) > most:  # a line of each column is read for every message
        return np.empty(0, np.uint32), TOO_MANY
    blocks = (column_offsets, columns.reshape((-1, 2)), box_offsets, boxes.reshape((-1, 3)), lines.reshape((-1, 8)))
    of_message = np.empty((len(buckets[1]) - 1, 1), np.uint8)
    sets = _sets(constraints, of_sets)
    found, rejected, _ = match_in_lines(messages, buckets, blocks, sets, first_codes, of_message, ends)
    return found, rejected


@kernel
def constraints_in(tables):
    """The constraints that are more than an interval, as `verified` takes them."""
    return arrays_at(tables, _CONSTRAINTS, _OF_CONSTRAINTS)


@kernel
def no_codes(tables):
    """A zero for each attribute."""
    return np.zeros(scalar(tables, _ATTRIBUTES), np.uint32)


@kernel
def table_of_one(ranks, attributes, codes):
    """One message as a table."""
    return MessageTable(np.array([0, len(ranks)]), ranks, np.array([0, len(attributes)]), attributes, codes)


@apart
def encoded_in(tables, tags, attributes, tag_offset):
    """A message as the index of `tables` knows it; it is counted."""
    ranks = ranks_of(tables, tags, tag_offset)
    known, codes = _encoded(tables, tags, attributes)
    return table_of_one(ranks, known, codes)


@apart
def rows_for(tables, messages, most):
    """Rows of an index that the encoded message satisfies; how many candidates were turned away.

    That is `TOO_MANY` where to look at no more than `most`, or at fewer nodes, is not enough.
    """
    constraints, first_codes, ends = constraints_in(tables), no_codes(tables), np.zeros(2, np.int64)
    sets, rejected = np.empty(0, np.uint32), 0
    if scalar(tables, _HAS_TRIE):
        sets, rejected = _from_trie(tables, messages, constraints, first_codes, ends, most)
    if scalar(tables, _HAS_LINES) and rejected != TOO_MANY:
        more, turned_away = _from_lines(tables, messages, constraints, first_codes, ends, most)
        if turned_away == TOO_MANY:
            return more, TOO_MANY
        sets, rejected = np.append(sets, more) if len(sets) else more, rejected + turned_away
    return sets, rejected


@apart
def _in_segment(tables, tags, beside, _, most, dtypes):
    """Sets of a segment that the message satisfies and that are not deleted; the rest (see `rows_for`)."""
    messages = encoded_in(tables, tags, beside, dtypes[0])
    sets, rejected = rows_for(tables, messages, most)
    return live_of(tables, sets), rejected


def arrays_of(index: FilterIndex | None) -> tuple[list[Any], list[int]]:
    """Arrays and scalars of an index, as `rows_for` needs them; for `None` as many, which are not used."""
    if index is None:
        return _none_of(_GROUPS), [0] * (SCALAR_BEHIND - LAYOUT_SCALAR)
    attributes, trie, lines = index.attributes, index.trie, index.lines
    names, absent, first_absent, *known = attributes.known
    arrays = flat((names, absent, *known, index.constraints.arrays, index.seen.arrays))
    arrays += _none_of(_OF_TRIE) if trie is None else flat((trie.cells[:-1], trie.trie, trie.sets[1:]))
    arrays += _none_of(_OF_LINES) if lines is None else flat((lines.buckets, lines.blocks, lines.sets[1:]))
    assert [array.dtype for array in arrays] == _DTYPES
    first_tag = 0 if trie is None else trie.cells.first_tag
    return arrays, [attributes.count, first_absent, trie is not None, first_tag, lines is not None]


def _none_of(dtypes: Any) -> list[Any]:
    return [np.zeros(0, dtype) for dtype in flat(dtypes)]


class ConstraintFinder(Finder):
    """Finds sets with constraints, by the trie and the lines of an index."""

    def __init__(self, index: FilterIndex) -> None:
        self.index = index

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        """As `Finder` says."""
        return self.index.nbytes

    def prepare(self, messages: SegmentMessages) -> MessageTable:
        """Ranks and codes of messages."""
        return self.index.encoded(messages)

    def find(self, prepared: MessageTable) -> RowsFound:
        """As `Finder` says."""
        return self.index.rows_found(prepared)

    def one_query(self, segment: Segment, tags: TagIndex) -> OneQuery:
        """As `Finder` says."""
        prepared, dtypes = prepare(segment, tags, *arrays_of(self.index))
        # How wide the offsets of ranks are does not matter
        dtypes = dtypes._replace(rank_offset=np.int64)
        entry = entry_of(_in_segment, dtypes, read)
        return OneQuery([prepared], kernels_of(_in_segment, dtypes, read, entry))
