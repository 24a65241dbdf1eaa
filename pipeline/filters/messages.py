"""Messages as codes of attributes: stage 1 for sets with constraints.

A message's attributes come as tags: U+0000, `=`, the name, U+0000, and the key of the value
(`tagmatch.model.filters.values`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import I64Array, TagLists, U32Array
from tagmatch.model.kernels.growing import with_room
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.kernels.tag_table import UNKNOWN, find
from tagmatch.model.kernels.xxh64 import xxh64
from tagmatch.pipeline.filters.attributes import Attributes
from tagmatch.pipeline.filters.codes import code_of
from tagmatch.pipeline.filters.patterns import step

_EQUALS, _TEXT = tuple(b"=s")
_SEED = np.uint64(0)
_NO_INDICES = np.zeros(0, np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Attributes that sets ask for: message `i` has those from `offsets[i]` to `offsets[i + 1]`.

    Attributes
    ----------
    offsets : int64 array, length n + 1
    attributes, codes : uint32 arrays
        An attribute with several values is there as often.
    """

    offsets: I64Array
    attributes: U32Array
    codes: U32Array

    def __len__(self) -> int:
        return len(self.offsets) - 1


@inlined
def _number_of(data, start, stop, slots, offsets, heap):
    if len(offsets) == 1:
        return UNKNOWN
    return find(xxh64(data, start, stop, _SEED), data, start, stop, slots, offsets, heap)[2]


@kernel
def _encode(
    rows, indices, offsets, data, first, last, names, absent, first_tag, constants,
    attributes, codes, begins, stops, ends,
):  # fmt: skip
    """Write attributes and codes, and where the key of each value stands; returns how many there are."""
    name_slots, name_offsets, name_bytes = names
    absent_slots, absent_offsets, absent_bytes = absent
    number_starts, doubles, rests, text_starts, text_offsets, texts = constants
    used = 0
    for row in range(first, last):
        for place in range(rows[row], rows[row + 1]):
            string = np.int64(indices[place]) if len(indices) else np.int64(place)
            if string >= len(offsets) - 1:  # beyond its dictionary
                continue
            start, stop = np.int64(offsets[string]), np.int64(offsets[string + 1])
            if stop - start < 2 or data[start] != 0 or data[start + 1] != _EQUALS:
                number = _number_of(data, start, stop, absent_slots, absent_offsets, absent_bytes)
                if number != UNKNOWN:
                    attributes[used], codes[used] = first_tag + number, 1
                    used += 1
                continue
            end = start + 2
            while end < stop and data[end] != 0:
                end += 1
            number = _number_of(data, start + 2, end, name_slots, name_offsets, name_bytes)
            if number == UNKNOWN:
                continue
            code = code_of(
                data, end + 1, stop, np.int64(number),
                number_starts, doubles, rests, text_starts, text_offsets, texts,
            )  # fmt: skip
            if code != 0:
                attributes[used], codes[used] = number, code
                begins[used], stops[used] = end + 1, stop
                used += 1
        ends[row + 1 - first] = used
    return used


@kernel
def _with_patterns(attributes, codes, begins, stops, ends, data, patterns, new_ends):
    """The same, and after each text the patterns that it contains or ends with."""
    roots, edges, children, fails, outputs, firsts, nexts, only_at_end, of_pattern = patterns
    new_attributes, new_codes = np.empty(2 * len(attributes), np.uint32), np.empty(2 * len(attributes), np.uint32)
    used = 0
    for message in range(len(ends) - 1):
        for i in range(ends[message], ends[message + 1]):
            if used == len(new_attributes):
                new_attributes, new_codes = with_room(new_attributes, used, 1), with_room(new_codes, used, 1)
            new_attributes[used], new_codes[used] = attributes[i], codes[i]
            used += 1
            # Tags that must not be there have the numbers behind all names
            if attributes[i] >= len(roots) or roots[attributes[i]] == 0 or data[begins[i]] != _TEXT:
                continue
            root = node = roots[attributes[i]]
            start, stop = begins[i] + 1, stops[i]
            for at in range(start, stop + 1):
                if at > start:
                    node = step(node, root, data[at - 1], edges, children, fails)
                place = outputs[node]
                while place != 0:
                    pattern = firsts[place]
                    while pattern >= 0:
                        if at == stop or not only_at_end[pattern]:
                            if used == len(new_attributes):
                                new_attributes = with_room(new_attributes, used, 1)
                                new_codes = with_room(new_codes, used, 1)
                            new_attributes[used], new_codes[used] = of_pattern[pattern], 1
                            used += 1
                        pattern = nexts[pattern]
                    place = outputs[fails[place]] if place != root else 0
        new_ends[message + 1] = used
    return new_attributes[:used], new_codes[:used]


def messages_of(tags: TagLists, first: int, last: int, known: Attributes) -> Messages:
    """The attributes of messages `first` to `last`."""
    ends = np.zeros(last - first + 1, np.int64)
    room = int(tags.offsets[last]) - int(tags.offsets[first])
    attributes, codes = np.empty(room, np.uint32), np.empty(room, np.uint32)
    begins, stops = np.empty(room, np.int64), np.empty(room, np.int64)
    used = _encode(
        tags.offsets, _NO_INDICES if tags.indices is None else tags.indices, tags.tags.offsets, tags.tags.data,
        first, last, known.names.arrays, known.absent_tags.arrays, known.first_tag, known.constants.arrays,
        attributes, codes, begins, stops, ends,
    )  # fmt: skip
    if not len(known.patterns):
        return Messages(ends, attributes[:used], codes[:used])
    all_ends = np.zeros(len(ends), np.int64)
    return Messages(
        all_ends,
        *_with_patterns(
            attributes[:used], codes[:used], begins, stops, ends, tags.tags.data, known.patterns.arrays, all_ends
        ),
    )
