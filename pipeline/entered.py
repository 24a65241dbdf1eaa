"""One query, from the objects that Python has of it to those that it gets, by one call of compiled code.

To make bytes of tags, an array of keys, and a list of that takes longer than the matching of most queries. Here a
kernel reads the strings and makes the list. It holds the interpreter lock, for which others wait, so its work is short.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tagmatch.model.arrays import U32Array
from tagmatch.model.kernels.entry import (
    Entry,
    ask_others,
    bound_to,
    bytes_in,
    forgotten,
    new_bytes,
    new_list,
    new_number,
    number_in,
    objects,
    put_number,
    put_text,
    set_of,
    table_in,
    texts_in,
)
from tagmatch.model.kernels.intrinsics import array_at, on_stack, own_array_at
from tagmatch.model.kernels.jit import kernel, lent
from tagmatch.model.kernels.known_tags import SHORT
from tagmatch.pipeline.one import (
    BYTES,
    COUNT,
    FEW,
    FEW_BYTES,
    FEW_TAGS,
    FIRST_KEY,
    NAME_OFFSETS,
    NAMES,
    UNIQUE,
    DTypes,
    QueryTags,
    add_keys,
    count_answer,
    only_tags,
)

# Most bytes of the tags of a query, with what must follow them, and keys for which there is room at first
_TAG_BYTES, _FEW_KEYS = 2048, 256
#: Sets of a query for which there is room at first
ROOM_FOR_SETS = 256
_ENDS, _ONE_ARRAY = FEW_TAGS + 1, 2


class Room(NamedTuple):
    """Memory for what one segment after the other has of a query."""

    ranks: U32Array  # For `FEW_TAGS`
    sets: U32Array  # For `ROOM_FOR_SETS`


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


@cache
def entry_of(few_in: Any, dtypes: DTypes, read: Any = only_tags) -> Entry:
    """What answers a query of few tags, candidates and keys; gets what `AnswersOne.enter` gets.

    `few_in` finds sets as `sets_in` of `kernels_of` does, and gets `Room`, too, in front of `most`.
    """
    *_, key_offset, key = dtypes

    @kernel
    def answered(words, given):
        offsets, data = on_stack(np.int64, _ENDS), on_stack(np.uint8, _TAG_BYTES)
        count, wanted = texts_in(given[0], words, offsets, data, SHORT), number_in(given[1])
        rest = on_stack(np.uint64, _ONE_ARRAY)
        bytes_in(given[3], rest)
        attributes = array_at(rest, 0, np.uint8)
        if count < 0 or len(attributes) > FEW_BYTES:
            return ask_others(words)
        tags, beside = QueryTags(offsets[: count + 1], data), read((attributes,))
        room = Room(on_stack(np.uint32, FEW_TAGS), on_stack(np.uint32, ROOM_FOR_SETS))
        found, used, verified, rejected = on_stack(np.uint64, _FEW_KEYS), 0, 0, 0
        (tables, width), begin = table_in(words), 0
        while begin < len(tables):
            table = tables[begin : begin + width]
            sets, more = few_in(table, tags, beside, room, FEW, dtypes)
            if more < 0:
                return ask_others(words)
            found, used = add_keys(table, sets, FEW, found, used, key_offset, key)
            if used < 0:
                return ask_others(words)
            verified, rejected, begin = verified + len(sets), rejected + more, begin + width
        found = found[:used]
        if wanted == COUNT:
            made = new_number(used)
        elif wanted == BYTES:
            made = new_bytes(found)
        else:
            made = _listed(tables, width, found)
            if wanted == UNIQUE:
                made, used = set_of(made)
        if made != 0:
            rest[0], rest[1] = number_in(given[2]), 4
            count_answer(own_array_at(rest, 0, np.int64), used, verified, rejected)
        return made

    def enter(bound, arguments, count):
        words = bound_to(bound)
        try:
            return answered(words, objects(arguments, count))
        except Exception:  # there is too little memory
            return ask_others(words)

    return Entry(enter)
