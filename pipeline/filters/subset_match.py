"""Stage 2, subset match, for sets with constraints: down the trie or along the lines, and then exact verification."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import Lists
from tagmatch.model.kernels.jit import inlined, kernel, with_room
from tagmatch.model.kernels.lists import trailing_zeros
from tagmatch.pipeline.filters.asked import keep_verified
from tagmatch.pipeline.filters.lines import ABSENT, BLOCK, SEVERAL, WORDS, LineIndex, bucket_of, in_box, with_value
from tagmatch.pipeline.filters.messages import MessageTable
from tagmatch.pipeline.filters.trie import TrieIndex, descend, write_tokens
from tagmatch.pipeline.segment import RowsFound

# Messages that go down the trie together: fewer at first, and where they have many candidates
_FEWEST, _MOST, _MANY = 16, 512, 1 << 18


@kernel
def match_in_trie(messages, cells, trie, fewest, sets, first_codes, ends):
    """Rows that each message satisfies, and where each message's end; how many candidates were turned away."""
    tokens, out = np.empty(0, np.uint32), np.empty(16 * len(ends), np.uint32)
    at_most = min(_MOST, len(ends) - 1)
    token_ends, signatures = np.zeros(at_most + 1, np.int64), np.empty(at_most, np.uint64)
    first, at_once, total, candidates = 0, _FEWEST, 0, 0
    while first < len(ends) - 1:
        last = min(first + at_once, len(ends) - 1)
        tokens = write_tokens(first, last, messages, cells, tokens, token_ends, signatures)
        owners, found, used, _ = descend(tokens, token_ends[: last - first + 1], signatures, trie, fewest)
        out = with_room(out, total, used)
        total, _ = keep_verified(first, last, (owners, found, used), messages, sets, first_codes, (out, total, ends))
        candidates += used
        first, at_once = last, min(2 * at_once, _MOST) if used < _MANY else max(at_once // 2, 1)
    return out[:total], candidates - total


def match_filters(index: TrieIndex, messages: MessageTable) -> RowsFound:
    """Rows of the segment whose tags and constraints each message satisfies."""
    ends = np.zeros(len(messages.offsets), np.int64)
    first_codes = np.zeros(index.attributes.count, np.uint32)
    rows, rejected = match_in_trie(messages, *index.arrays, first_codes, ends)
    return RowsFound(Lists(ends, rows), int(rejected))


# Messages for which the lines of a block are used while they are in the cache; and candidates of these at first
_BATCH, _CANDIDATES = 256, 4096

_U = np.uint64
_U8 = np.uint8
_U32 = np.uint32


@kernel
def _bucketed(offsets, attributes, codes, first, count, buckets, cut):
    """Write which line of its column each attribute of some messages has."""
    numbers, edge_offsets, edges = cut
    buckets[:, :] = ABSENT
    for message in range(count):
        for i in range(offsets[first + message], offsets[first + message + 1]):
            attribute = np.int64(numbers[attributes[i]])
            if attribute < 0:
                continue
            bucket = bucket_of(codes[i], edges, edge_offsets[attribute], edge_offsets[attribute + 1])
            buckets[attribute, message] = with_value(buckets[attribute, message], bucket)


@inlined
def _in_boxes(boxes, first, last, buckets, live):
    """Write which messages have values in all boxes."""
    live[:] = 1
    for box in range(first, last):
        of_attribute, low, span = buckets[boxes[box, 0]], _U8(boxes[box, 1]), _U8(boxes[box, 2])
        for message in range(len(live)):
            live[message] &= in_box(of_attribute[message], low, span)


@inlined
def _meet(left, lines, line):
    """Sets that are left, and in a line."""
    return (
        left[0] & lines[line, 0],
        left[1] & lines[line, 1],
        left[2] & lines[line, 2],
        left[3] & lines[line, 3],
        left[4] & lines[line, 4],
        left[5] & lines[line, 5],
        left[6] & lines[line, 6],
        left[7] & lines[line, 7],
    )


@inlined
def _is_empty(left):
    return ((left[0] | left[1]) | (left[2] | left[3])) | ((left[4] | left[5]) | (left[6] | left[7])) == _U(0)


@kernel
def _meet_several(left, attribute, line, attributes, codes, lines, cut, union):
    """Sets that are left, and in the line of any of the values that a message has of an attribute."""
    numbers, edge_offsets, edges = cut
    union[0, :] = lines[line + SEVERAL]
    for i in range(len(attributes)):
        if numbers[attributes[i]] == attribute:
            bucket = bucket_of(codes[i], edges, edge_offsets[attribute], edge_offsets[attribute + 1])
            for word in range(WORDS):
                union[0, word] |= lines[line + bucket, word]
    return _meet(left, union, _U32(0))


@kernel
def _candidates(messages, some, buckets, cut, blocks, sets, found, by):
    """Sets that the lines leave for some messages, so many from one on, and for which of these; how many."""
    _, _, offsets, attributes, codes = messages
    first, count = some
    column_offsets, columns, box_offsets, boxes, lines = blocks
    live, union, used = np.empty(count, np.uint8), np.empty((1, WORDS), np.uint64), 0
    every = ~_U(0)
    for block in range(len(column_offsets) - 1):
        _in_boxes(boxes, box_offsets[block], box_offsets[block + 1], buckets, live)
        for message in range(len(live)):
            if live[message] == 0:
                continue
            left = (every, every, every, every, every, every, every, every)
            for column in range(column_offsets[block], column_offsets[block + 1]):
                attribute, line = columns[column, 0], columns[column, 1]
                bucket = buckets[attribute, message]
                if bucket != SEVERAL:
                    left = _meet(left, lines, line + _U32(bucket))
                else:
                    begin, end = offsets[first + message], offsets[first + message + 1]
                    left = _meet_several(
                        left, np.int64(attribute), line, attributes[begin:end], codes[begin:end], lines, cut, union
                    )
                if _is_empty(left):
                    break
            if _is_empty(left):
                continue
            if used + BLOCK > len(found):
                found, by = with_room(found, used, BLOCK), with_room(by, used, BLOCK)
            for word in range(WORDS):
                rest = left[word]
                while rest != _U(0):
                    place = block * BLOCK + 64 * word + np.int64(trailing_zeros(rest))
                    rest &= rest - _U(1)
                    found[used], by[used] = place, message
                    used += place < sets  # a block without columns, the last one, has fewer sets than bits
    return used, found, by


@kernel
def match_in_lines(messages, cut, blocks, sets, first_codes, buckets, ends):
    """Rows that each message satisfies, and where each message's end; how many candidates were turned away."""
    _, _, offsets, attributes, codes = messages
    total, rejected, touched = 0, 0, _U32(0)
    out = np.empty(16 * len(ends), np.uint32)
    found, by = np.empty(_CANDIDATES, np.uint32), np.empty(_CANDIDATES, np.uint8)
    for first in range(0, len(ends) - 1, _BATCH):
        count = min(_BATCH, len(ends) - 1 - first)
        _bucketed(offsets, attributes, codes, first, count, buckets, cut)
        used, found, by = _candidates(messages, (first, count), buckets, cut, blocks, len(sets[1]), found, by)
        out = with_room(out, total, used)
        left, last = (by, found, used), first + count
        total, touch = keep_verified(first, last, left, messages, sets, first_codes, (out, total, ends))
        touched ^= touch
        rejected += used
    return out[:total], rejected - total, touched


def match_lines(index: LineIndex, messages: MessageTable) -> RowsFound:
    """Rows of the segment whose tags and constraints each message satisfies."""
    ends = np.zeros(len(messages.offsets), np.int64)
    first_codes = np.zeros(index.attributes.count, np.uint32)
    buckets = np.empty((len(index.buckets), min(_BATCH, len(ends) - 1)), np.uint8)
    rows, rejected, _ = match_in_lines(messages, *index.arrays, first_codes, buckets, ends)
    return RowsFound(Lists(ends, rows), int(rejected))
