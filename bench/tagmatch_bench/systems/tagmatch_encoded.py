"""tagmatch as the systems that match constraints are asked: messages encoded, one after the other in one kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Lists, U32Array
from tagmatch.model.columns import key_values, tag_lists
from tagmatch.model.input.messages import messages_in
from tagmatch.model.input.subscriptions import columns_of, with_conditions
from tagmatch.model.kernels.jit import copy, inlined, kernel, with_room
from tagmatch.model.options import LayoutOptions
from tagmatch.model.tables import Segment
from tagmatch.partitioner.consolidation import StagedChanges
from tagmatch.partitioner.local import segment_after
from tagmatch.pipeline.filters.finder import TOO_MANY, match_few, room_for_few
from tagmatch.pipeline.filters.index import Path, filter_index
from tagmatch.pipeline.filters.lines import match_in_lines
from tagmatch.pipeline.filters.messages import messages_of
from tagmatch.pipeline.filters.trie import match_in_trie
from tagmatch.pipeline.tags import TagIndex
from tagmatch.pipeline.unique import memory_for, once_each
from tagmatch_bench.systems.matcher import Plain, list_array

# Keys of a message for which there is room at first
_KEYS = 256


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Messages as ranks of tags, and codes of attributes."""

    rank_offsets: I64Array
    ranks: U32Array
    offsets: I64Array
    attributes: U32Array
    codes: U32Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice) -> Encoded:
        first, last, _ = rows.indices(len(self))
        ends = slice(first, max(first, last) + 1)
        return Encoded(self.rank_offsets[ends], self.ranks, self.offsets[ends], self.attributes, self.codes)

    @property
    def arrays(self) -> tuple[I64Array, U32Array, I64Array, U32Array, U32Array]:
        """As the kernels take them."""
        return self.rank_offsets, self.ranks, self.offsets, self.attributes, self.codes


class TagmatchEncoded(Plain):
    """Our kernels without our pipeline: one thread has one message after the other, all in one call of a kernel.

    Each message is matched and verified, its keys are looked up and, where that is wanted, merged, before the next one
    is begun: the work of `match` without the call and without the encoding of the message.
    """

    def __init__(self, subscriptions: pa.Table, *, path: Path, threads: int = 1) -> None:
        columns = columns_of(subscriptions)
        rows, _ = with_conditions(tag_lists(columns["tags"], "tags"), columns, plane=False, threads=threads)
        staged = StagedChanges(threads)
        staged.extend(rows, key_values(columns["key"]), removed=False)
        self._index(segment_after([], staged.changes(), LayoutOptions(), threads=threads)[0], path)

    @classmethod
    def of(cls, segment: Segment, path: Path) -> TagmatchEncoded:
        """The same for sets that are stored already and not deleted."""
        system = cls.__new__(cls)
        system._index(segment, path)
        return system

    def _index(self, segment: Segment, path: Path) -> None:
        self._segment = segment
        self._filters, self._tags = filter_index(segment, path=path), TagIndex(segment.vocabulary)
        # What asks for nothing has no place in the index
        others = np.ones(len(segment), np.bool_)
        for part in self._filters.parts.values():
            others[part.sets.rows] = False
        self._always = np.flatnonzero(others).astype(np.uint32)
        if np.diff(segment.tagsets.ranks.offsets)[others].any():
            raise ValueError("a subscription has tags and no constraints; the index of filters has none such")

    def prepare(self, messages: pa.Table) -> Encoded:
        """Encode messages."""
        if not len(messages):
            nothing, ends = np.zeros(0, np.uint32), np.zeros(1, np.int64)
            return Encoded(ends, nothing, ends, nothing, nothing)
        (rows,) = messages_in(messages.combine_chunks().to_batches())
        return Encoded(*messages_of(self._tags.ranks(rows, 0, len(rows)), rows, 0, len(rows), self._filters.attributes))

    def match_many(self, messages: Encoded, *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the subscriptions that each message satisfies."""
        ((path, part),) = self._filters.parts.items()
        keys, ends = self._segment.keys.keys, np.zeros(len(messages) + 1, np.int64)
        first_codes = np.zeros(self._filters.attributes.count, np.uint32)
        match = _down_the_trie if path == "trie" else _along_lines
        found = match(messages.arrays, part.arrays, first_codes, self._always, keys.offsets, keys.values, unique, ends)
        return list_array(Lists(ends, found))

    def nbytes(self) -> int:
        """Bytes of memory, without the stored rows, with their keys."""
        keys = self._segment.keys.keys
        return self._filters.nbytes + keys.offsets.nbytes + keys.values.nbytes


@inlined
def _space_for(count, keys):
    """Memory for `count` keys of a message, and for sorting them."""
    return np.empty(count, keys.dtype), memory_for(count, count, keys.dtype)


@inlined
def _add_keys(sets, key_offsets, keys, unique, found, used, space):
    """Put the keys of a message's sets behind the first `used` ones, and how many there are then."""
    count = 0
    for each in sets:
        count += key_offsets[each + 1] - key_offsets[each]
    if used + count > len(found):
        found = with_room(found, used, count)
    if count > len(space[0]):
        space = _space_for(2 * count, keys)
    own, memory = space
    at = 0
    for each in sets:
        for place in range(key_offsets[each], key_offsets[each + 1]):
            own[at] = keys[place]
            at += 1
    used = once_each(own, 0, count, memory, found, used) if unique else copy(own, 0, count, found, used)
    return found, used, space


@kernel
def _down_the_trie(messages, index, first_codes, always, key_offsets, keys, unique, ends):
    """Keys of the sets that each message satisfies, and where each message's end."""
    rank_offsets, ranks, offsets, attributes, codes = messages
    cells, trie, sets = index
    found, used, room, own_ends = np.empty(len(ends), keys.dtype), 0, room_for_few(), np.zeros(2, np.int64)
    space = _space_for(_KEYS, keys)
    for message in range(len(ends) - 1):
        one = (
            attributes, codes, offsets[message], offsets[message + 1],
            ranks, rank_offsets[message], rank_offsets[message + 1],
        )  # fmt: skip
        count, _ = match_few(one, cells, trie, sets, first_codes, room)
        if count == TOO_MANY:
            alone = rank_offsets[message : message + 2], ranks, offsets[message : message + 2], attributes, codes
            matched, _ = match_in_trie(alone, cells, trie, sets, first_codes, own_ends)
        else:
            matched = room[-1][:count]
        if len(always):
            matched = np.append(always, matched)
        if len(matched):
            found, used, space = _add_keys(matched, key_offsets, keys, unique, found, used, space)
        ends[message + 1] = used
    return found[:used]


@kernel
def _along_lines(messages, index, first_codes, always, key_offsets, keys, unique, ends):
    """As `_down_the_trie`."""
    rank_offsets, ranks, offsets, attributes, codes = messages
    cut, blocks, sets = index
    found, used, own_ends = np.empty(len(ends), keys.dtype), 0, np.zeros(2, np.int64)
    space = _space_for(_KEYS, keys)
    buckets = np.empty((len(cut[1]) - 1, 1), np.uint8)
    for message in range(len(ends) - 1):
        alone = rank_offsets[message : message + 2], ranks, offsets[message : message + 2], attributes, codes
        matched, _, _ = match_in_lines(alone, cut, blocks, sets, first_codes, buckets, own_ends)
        if len(always):
            matched = np.append(always, matched)
        found, used, space = _add_keys(matched, key_offsets, keys, unique, found, used, space)
        ends[message + 1] = used
    return found[:used]
