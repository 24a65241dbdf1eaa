"""Messages as codes of attributes: stage 1 for sets with constraints.

A message's attributes come as tags: U+0000, `=`, the name, U+0000, and the key of the value
(`tagmatch.model.filters.values`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import I64Array, TagLists, U32Array
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.tag_table import UNKNOWN, find
from tagmatch.model.kernels.xxh64 import xxh64
from tagmatch.pipeline.filters.codes import code_of
from tagmatch.pipeline.filters.index import Attributes
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


@kernel
def _number_of(data, start, stop, slots, offsets, heap):
    if len(offsets) == 1:
        return UNKNOWN
    return find(xxh64(data, start, stop, _SEED), data, start, stop, slots, offsets, heap)[2]


@kernel
def _longer(array):
    longer = np.empty(2 * len(array), np.uint32)
    longer[: len(array)] = array
    return longer


@kernel
def _add_patterns(data, start, stop, name, patterns, attributes, codes, used):
    """Add the patterns that a text contains or ends with."""
    roots, edges, children, fails, outputs, firsts, nexts, only_at_end, of_pattern = patterns
    root = roots[name]
    node = root
    for at in range(start, stop + 1):
        if at > start:
            node = step(node, root, data[at - 1], edges, children, fails)
        place = outputs[node]
        while place != 0:
            pattern = firsts[place]
            while pattern >= 0:
                if at == stop or not only_at_end[pattern]:
                    if used == len(attributes):
                        attributes, codes = _longer(attributes), _longer(codes)
                    attributes[used], codes[used] = of_pattern[pattern], 1
                    used += 1
                pattern = nexts[pattern]
            place = outputs[fails[place]] if place != root else 0
    return attributes, codes, used


@kernel
def _encode(rows, indices, offsets, data, first, last, names, absent, first_tag, constants, patterns, ends):
    room = np.int64(rows[last]) - np.int64(rows[first]) + 1
    attributes, codes = np.empty(room, np.uint32), np.empty(room, np.uint32)
    used = 0
    number_starts, doubles, rests, text_starts, text_offsets, texts = constants
    for row in range(first, last):
        for place in range(rows[row], rows[row + 1]):
            string = np.int64(indices[place]) if len(indices) else np.int64(place)
            if string >= len(offsets) - 1:  # beyond its dictionary
                continue
            start, stop = np.int64(offsets[string]), np.int64(offsets[string + 1])
            end = start + 2
            if stop - start < 2 or data[start] != 0 or data[start + 1] != _EQUALS:
                number = _number_of(data, start, stop, *absent)
                code = 1
            else:
                while end < stop and data[end] != 0:
                    end += 1
                number = _number_of(data, start + 2, end, *names)
                code = 0
            if number == UNKNOWN:
                continue
            if code == 0:
                code = code_of(
                    data, end + 1, stop, np.int64(number),
                    number_starts, doubles, rests, text_starts, text_offsets, texts,
                )  # fmt: skip
                if code == 0:
                    continue
            else:
                number = np.uint32(first_tag + number)
            if used == len(attributes):
                attributes, codes = _longer(attributes), _longer(codes)
            attributes[used], codes[used] = number, code
            used += 1
            if code > 1 and patterns[0][number] != 0 and data[end + 1] == _TEXT:
                attributes, codes, used = _add_patterns(
                    data, end + 2, stop, np.int64(number), patterns, attributes, codes, used
                )
        ends[row + 1 - first] = used
    return attributes[:used], codes[:used]


def messages_of(tags: TagLists, first: int, last: int, known: Attributes) -> Messages:
    """The attributes of messages `first` to `last`."""
    ends = np.zeros(last - first + 1, np.int64)
    attributes, codes = _encode(
        tags.offsets, _NO_INDICES if tags.indices is None else tags.indices, tags.tags.offsets, tags.tags.data,
        first, last, known.names.arrays, known.absent_tags.arrays, known.first_tag, known.constants.arrays,
        known.patterns.arrays, ends,
    )  # fmt: skip
    return Messages(ends, attributes, codes)
