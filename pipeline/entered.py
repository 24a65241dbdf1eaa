"""One query, from the objects that Python has of it to those that it gets, by one call of compiled code.

To make bytes of tags, an array of keys, and a list of that takes longer than the matching of most queries. Here a
kernel reads the strings and makes the list. It holds the interpreter lock, for which others wait, so its work is short.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tagmatch.model.kernels.entry import (
    Entry,
    address_in,
    ask_others,
    bound_to,
    bytes_in,
    entering,
    find,
    finding,
    forgotten,
    new_bytes,
    new_list,
    new_number,
    number_in,
    put_number,
    put_text,
    set_of,
    table_in,
    texts_in,
    words_of,
)
from tagmatch.model.kernels.intrinsics import array_at, on_stack, own_array_at
from tagmatch.model.kernels.jit import kernel, lent
from tagmatch.model.kernels.known_tags import SHORT
from tagmatch.pipeline.one import (
    BITS_BYTES,
    BYTES,
    COUNT,
    FEW,
    FEW_BYTES,
    FEW_TAGS,
    FIND,
    FIRST_KEY,
    NAME_OFFSETS,
    NAMES,
    ROOM_FOR_SETS,
    UNIQUE,
    DTypes,
    QueryTags,
    Room,
    add_keys,
    count_answer,
    for_sets,
    only_tags,
)

# Most bytes of the tags of a query, with what must follow them
_TAG_BYTES = 32 * FEW_TAGS
_ENDS, _ONE_ARRAY = FEW_TAGS + 1, 2

# What a segment's kernel is asked: arrays by their places, and behind these two numbers, to which it adds
_ATTRIBUTES, _OFFSETS, _DATA, _ROW, _KEYS = range(5)
_VERIFIED, _REJECTED, _WORDS = 10, 11, 12


@lent
def _listed(tables, width, found):
    """A new list of keys as Python has them."""
    listed, names = new_list(len(found)), tables[:width]
    for i in range(len(found) if listed != 0 else 0):
        number, begin = found[i], 0
        while begin < len(tables) and tables[begin + width + FIRST_KEY] <= number:
            names = tables[begin : begin + width]
            begin += width
        offsets, is_put = array_at(names, NAME_OFFSETS, np.int64), False
        if len(offsets) == 0:
            is_put = put_number(listed, i, number)
        else:
            place = number - names[FIRST_KEY]
            begin, end = offsets[place], offsets[place + np.uint64(1)]
            is_put = put_text(listed, i, array_at(names, NAMES, np.uint8), begin, end)
        if not is_put:
            return forgotten(listed)
    return listed


@kernel
def _answered(words, given):
    offsets, data, found = on_stack(np.int64, _ENDS), on_stack(np.uint8, _TAG_BYTES), on_stack(np.uint64, FEW)
    count, wanted, asked = (
        texts_in(given[0], words, offsets, data, SHORT),
        number_in(given[1]),
        on_stack(np.uint64, _WORDS),
    )
    bytes_in(given[3], asked)
    if count < 0 or asked[2 * _ATTRIBUTES + 1] > FEW_BYTES:
        return ask_others(words)
    asked[2 * _OFFSETS], asked[2 * _OFFSETS + 1] = np.uint64(offsets.ctypes.data), np.uint64(count + 1)
    asked[2 * _DATA], asked[2 * _DATA + 1] = np.uint64(data.ctypes.data), np.uint64(len(data))
    asked[_VERIFIED] = asked[_REJECTED] = np.uint64(0)
    (tables, width), begin, used = table_in(words), 0, 0
    while begin < len(tables):
        table, room = tables[begin : begin + width], found[used:]
        asked[2 * _ROW], asked[2 * _ROW + 1] = np.uint64(table.ctypes.data), np.uint64(width)
        asked[2 * _KEYS], asked[2 * _KEYS + 1] = np.uint64(room.ctypes.data), np.uint64(len(room))
        more = find(table[FIND], asked)
        if more < 0:
            return ask_others(words)
        begin, used = begin + width, used + more
    found = found[:used]
    if wanted == COUNT:
        made = new_number(used)
    elif wanted == BYTES:
        made = new_bytes(found)
    else:
        made = _listed(tables, width, found)
        if wanted == UNIQUE:
            made, count = set_of(made)
            if count < used and made != 0 and tables[len(tables) + FIRST_KEY] != 0:
                forgotten(made)  # a string may have several numbers, which count
                return ask_others(words)
            used = count
    if made != 0:
        counts = on_stack(np.uint64, _ONE_ARRAY)
        counts[0], counts[1] = address_in(given[2]), 4
        count_answer(own_array_at(counts, 0, np.int64), used, asked[_VERIFIED], asked[_REJECTED])
    return made


def _enter(bound, arguments, count):
    return _answered(bound_to(bound), words_of(arguments, count))


_ENTER = entering(_enter)


@cache
def entry_of(sets_in: Any, dtypes: DTypes, read: Any = only_tags) -> Entry:
    """What answers a query of few tags, candidates and keys, about sets that `sets_in` finds (see `kernels_of`)."""
    *_, key_offset, key = dtypes
    dtypes = for_sets(dtypes)

    @kernel
    def found_in(words):
        tags = QueryTags(own_array_at(words, _OFFSETS, np.int64), own_array_at(words, _DATA, np.uint8))
        others = read((array_at(words, _ATTRIBUTES, np.uint8),))
        room = Room(on_stack(np.uint32, FEW_TAGS), on_stack(np.uint32, ROOM_FOR_SETS), on_stack(np.uint8, BITS_BYTES))
        table, keys = own_array_at(words, _ROW, np.uint64), own_array_at(words, _KEYS, np.uint64)
        sets, rejected = sets_in(table, tags, others, room, FEW, dtypes)
        if rejected < 0:
            return -1
        words[_VERIFIED] += np.uint64(len(sets))
        words[_REJECTED] += np.uint64(rejected)
        return add_keys(table, sets, len(keys), keys, 0, key_offset, key)[1]

    def find_keys(words):
        try:
            return np.int32(found_in(words_of(words, _WORDS)))
        except Exception:  # there is too little memory
            return np.int32(-1)

    return Entry(finding(find_keys), _ENTER)
