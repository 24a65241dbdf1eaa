"""Stages 1 and 3 on the CPU: tags become ranks, and set ids become keys (§3).

Tags that no stored set has are dropped. What was looked up in one segment need not be looked up in all others: ranks in
one become ranks in another.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from tagmatch.model.arrays import I64Array, Lists, Strings, TagLists, U32Array, U64Array, UIntArray, pooled
from tagmatch.model.errors import ResultTooLargeError
from tagmatch.model.kernels.jit import copy, inlined, kernel, lent
from tagmatch.model.kernels.known_tags import look_up
from tagmatch.model.kernels.lanes import LANES, load, store
from tagmatch.model.kernels.lists import ascending_known, gather_strings, spread
from tagmatch.model.kernels.tag_table import UNKNOWN
from tagmatch.model.options import Wanted
from tagmatch.model.parallel import even_ranges
from tagmatch.model.tables import Deletions, KeyTable, Vocabulary, is_deleted

_U = np.uint64

# Of a dictionary, which threads look up together
_STRINGS_A_PIECE = 16_384


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """Queries as ranks: query `i` has `ranks[offsets[i]:offsets[i + 1]]`, ascending, each rank once."""

    offsets: I64Array  # int64 array, length n + 1
    ranks: U32Array

    def __len__(self) -> int:
        return len(self.offsets) - 1


class TagIndex:
    """Looks up the ranks of tags."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.known = tuple(vocabulary.known[0])  # a named tuple's type takes longer to find
        self._translating = threading.Lock()
        self._translation: Translation | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(each.nbytes for each in self.known)

    def ranks(self, queries: TagLists, first: int, last: int) -> QueryBatch:
        """Queries `first` to `last` as ranks; each string of a dictionary is looked up once, for all of its queries."""
        return self.batch(queries, first, last, self.numbers(queries, first, last))

    def numbers(self, queries: TagLists, first: int, last: int) -> U32Array:
        """The rank of each tag of queries `first` to `last`; UNKNOWN if it has none."""
        begin, end = int(queries.offsets[first]), int(queries.offsets[last])
        numbers = pooled(end - begin, np.uint32)
        if queries.indices is None:
            self._look_up(queries.tags, begin, numbers)
        else:
            spread(self._of_dictionary(queries), queries.indices, begin, numbers)
        return numbers

    def batch(self, queries: TagLists, first: int, last: int, numbers: U32Array) -> QueryBatch:
        """Queries `first` to `last`, whose tags have these ranks; `numbers` becomes part of it."""
        offsets = np.zeros(last - first + 1, np.int64)
        known_tags = ascending_known(queries.offsets, first, numbers, offsets)
        return QueryBatch(offsets, numbers[:known_tags])

    def looked_up(self, tags: Strings) -> U32Array:
        """The rank of each tag; UNKNOWN if it has none."""
        numbers = np.empty(len(tags), np.uint32)
        self._look_up(tags, 0, numbers)
        return numbers

    def translation(self, source: TagIndex) -> Translation:
        """From the ranks of a large segment to these; made when it is first needed, and kept."""
        with self._translating:
            if self._translation is None or self._translation.source is not source:
                self._translation = Translation(source, self)
            return self._translation

    def _of_dictionary(self, queries: TagLists) -> U32Array:
        """Ranks of a dictionary's strings; threads look up some each."""
        tags = queries.tags

        def begin() -> tuple[U32Array, list[tuple[int, int]]]:
            pieces = even_ranges(len(tags), 1 + len(tags) // _STRINGS_A_PIECE)
            return np.empty(len(tags), np.uint32), pieces

        def look_up(ranks: U32Array, ends: tuple[int, int]) -> None:
            first, last = ends
            self._look_up(tags, first, ranks[first:last])

        return queries.memo.together(self, begin, look_up)

    def _look_up(self, tags: Strings, first: int, numbers: U32Array) -> None:
        """Write the ranks of as many tags, from `first` on, as there is room for."""
        known = self.vocabulary.tags
        look_up(tags.offsets, tags.data, first, self.known, known.offsets, known.data, numbers)


_FREE = _U(0xFFFFFFFFFFFFFFFF)
# The golden ratio's bits spread consecutive ranks (Knuth, The Art of Computer Programming, 6.4)
_GOLDEN = _U(0x9E3779B97F4A7C15)
# A slot has a rank of the one segment above that of the other
_HALF = _U(32)


@inlined
def _home(rank, shift):
    return (_U(rank) * _GOLDEN) >> shift


@kernel
def _place(ranks, slots, shift):
    """Enter where tag `i` of one segment has the rank `ranks[i]` in the other, if it has one."""
    last = _U(len(slots) - 1)
    for i in range(len(ranks)):
        if ranks[i] != UNKNOWN:
            place = _home(ranks[i], shift)
            while slots[place] != _FREE:
                place = (place + _U(1)) & last
            slots[place] = (_U(ranks[i]) << _HALF) | _U(i)


@kernel
def _translate(ranks, slots, shift, out):
    """Write the ranks in the other segment; UNKNOWN, which a free slot has, for tags that it lacks."""
    last = _U(len(slots) - 1)
    # Most are settled by the first slot, in a loop without a branch on the data
    unsettled = np.empty(len(ranks), np.uint32)
    used = _U(0)
    for i in range(_U(len(ranks))):
        slot = slots[_home(ranks[i], shift)]
        found = slot >> _HALF == _U(ranks[i])
        out[i] = np.uint32(slot) if found else UNKNOWN
        unsettled[used] = i
        used += _U((not found) & (slot != _FREE))
    for k in range(used):
        i = unsettled[k]
        place = (_home(ranks[i], shift) + _U(1)) & last
        while slots[place] != _FREE and slots[place] >> _HALF != _U(ranks[i]):
            place = (place + _U(1)) & last
        out[i] = np.uint32(slots[place])


class Translation:
    """From ranks in a large segment to those in one with fewer tags; is as large as that one's vocabulary is long."""

    def __init__(self, source: TagIndex, target: TagIndex) -> None:
        self.source = source
        self._target = target
        ranks = source.looked_up(target.vocabulary.tags)
        in_both = int(np.count_nonzero(ranks != UNKNOWN))
        self._has_more = in_both < len(ranks)
        bits = max(1, (4 * in_both).bit_length())
        self._shift = _U(64 - bits)
        self._slots: U64Array = np.full(1 << bits, _FREE)
        _place(ranks, self._slots, self._shift)

    def numbers(self, queries: TagLists, first: int, numbers: U32Array) -> U32Array:
        """The tags of queries from `first` on, with these numbers in the large segment, as ranks of the other."""
        own = np.empty(len(numbers), np.uint32)
        _translate(numbers, self._slots, self._shift, own)
        if self._has_more and len(new := np.flatnonzero(numbers == UNKNOWN).astype(np.uint64)):
            tags = gather_strings(queries.tags, np.uint64(queries.offsets[first]) + new)
            own[new] = self._target.looked_up(tags)
        return own


@kernel
def key_ends(ends, set_ids, key_offsets, out):
    """Write where each query's keys end, from `out[1]` on."""
    total = _U(0)
    for query in range(len(ends) - 1):
        for i in range(_U(ends[query]), _U(ends[query + 1])):
            total += _U(key_offsets[set_ids[i] + np.uint32(1)]) - _U(key_offsets[set_ids[i]])
        out[query + 1] = total


@lent
def _copy_of(set_id, table, out, at):
    """Write the keys of a set; returns their end. Most sets have one; starting a copy of several takes longer."""
    key_offsets, keys = table
    begin, end = _U(key_offsets[set_id]), _U(key_offsets[set_id + np.uint32(1)])
    if end - begin == _U(1):
        out[at] = keys[begin]
        return at + _U(1)
    return copy(keys, begin, end, out, at)


# Keys a set in the mean, of sets that nearly all have one
_MOST_ALONE = 1.125


@kernel
def copy_keys(set_ids, key_offsets, keys, out):
    """Write the keys of the sets, one set's after the other's.

    If some sets have more than one key, several are copied of each set, and then overwritten: to branch on their number
    takes longer.
    """
    at, table = _U(0), (key_offsets, keys)
    several = _U(LANES) if _MOST_ALONE * len(set_ids) < len(out) else _U(0)
    for i in range(_U(len(set_ids))):
        begin = _U(key_offsets[set_ids[i]])
        count = _U(key_offsets[set_ids[i] + np.uint32(1)]) - begin
        if count <= several and begin + several <= _U(len(keys)) and at + several <= _U(len(out)):
            store(out, at, load(keys, begin))
            at += count
        else:
            at = _copy_of(set_ids[i], table, out, at)


@kernel
def keep_live(ends, set_ids, deleted, new_ends, out):
    """Write the sets of each query that a bitmap does not have as deleted; returns how many there are."""
    used = _U(0)
    for query in range(len(ends) - 1):
        for i in range(_U(ends[query]), _U(ends[query + 1])):
            out[used] = set_ids[i]
            used += _U(1) - is_deleted(deleted, set_ids[i])
        new_ends[query + 1] = used
    return used


def live_sets(matches: Lists, deletions: Deletions | None) -> Lists:
    """The sets of each query that are not deleted."""
    if deletions is None:
        return matches
    ends, out = np.zeros(len(matches) + 1, np.int64), np.empty(len(matches.values) + 1, np.uint32)
    used = keep_live(matches.offsets, matches.values, deletions.bits, ends, out)
    return Lists(ends, out[:used])


class Space(Protocol):
    """Gives memory for a number of keys, not initialized, or `None`; the caller then writes them all."""

    def __call__(self, count: int, *, at_most: bool = False) -> U64Array | None:
        """The memory; with `at_most`, the caller may write fewer, the first ones."""


_most_keys: ContextVar[int | None] = ContextVar("most_keys", default=None)


@contextmanager
def at_most_keys(count: int) -> Iterator[None]:
    """Within, a packet of more keys is a ResultTooLargeError before it has memory for them; for calls of one thread."""
    token = _most_keys.set(count)
    try:
        yield
    finally:
        _most_keys.reset(token)


def no_space(count: int, *, at_most: bool = False) -> None:  # noqa: ARG001 - as `Space`
    """No shared memory for keys; ResultTooLargeError for more than `at_most_keys` allows."""
    most = _most_keys.get()
    if most is not None and count > most:
        raise ResultTooLargeError(f"a packet has {count} keys, more than {most}; ask with fewer queries at a time")


@kernel
def _only_keys(set_ids, keys, out):
    for i in range(len(set_ids)):
        out[i] = keys[set_ids[i]]


def look_up_keys(matches: Lists, table: KeyTable, space: Space = no_space) -> Lists:
    """Keys of each query's set ids, as wide as the table's if not in `space`; a key once for each set that has it."""
    if len(table.keys.values) == len(table):  # one key a set
        keys = _memory(len(matches.values), table, space)
        _only_keys(matches.values, table.keys.values, keys)
        return Lists(matches.offsets, keys)
    ends = np.zeros(len(matches) + 1, np.int64)
    key_ends(matches.offsets, matches.values, table.keys.offsets, ends)
    keys = _memory(int(ends[-1]), table, space)
    copy_keys(matches.values, table.keys.offsets, table.keys.values, keys)
    return Lists(ends, keys)


def key_counts(matches: Lists, table: KeyTable) -> I64Array:
    """How many keys each query's set ids have; a key counts once for each set that has it."""
    if len(table.keys.values) == len(table):
        return matches.lengths()
    ends = np.zeros(len(matches) + 1, np.int64)
    key_ends(matches.offsets, matches.values, table.keys.offsets, ends)
    return np.diff(ends)


def as_numbers(counts: I64Array, wanted: Wanted) -> Lists:
    """Answers of one number each, from how many keys each query has."""
    numbers = counts > 0 if wanted is Wanted.exists else counts
    return Lists(np.arange(len(counts) + 1), numbers.astype(np.uint64))


def _memory(count: int, table: KeyTable, space: Space) -> UIntArray:
    keys = space(count)
    return pooled(count, table.keys.values.dtype) if keys is None else keys


@kernel
def _copy_at(matches, table, first_key, places, out):
    """Write the keys of each query's sets where its place is, which is then behind them."""
    ends, set_ids = matches
    for query in range(len(places)):
        at = _U(places[query])
        for i in range(_U(ends[query]), _U(ends[query + 1])):
            begun = at
            at = _copy_of(set_ids[i], table, out, at)
            if first_key:
                for place in range(begun, at):
                    out[place] += first_key
        places[query] = at


#: Sets of each query in a segment, the segment's keys, and what these are counted from
KeysOf: TypeAlias = tuple[Lists, KeyTable, int]


def look_up_in_all(parts: Sequence[KeysOf], space: Space) -> Lists:
    """Keys, uint64, of each query's set ids in all segments; each is written once, to its final place."""
    ends = np.zeros(len(parts[0][0]) + 1, np.int64)
    for matches, table, _ in parts:
        of_part = np.zeros_like(ends)
        key_ends(matches.offsets, matches.values, table.keys.offsets, of_part)
        ends += of_part
    count, places = int(ends[-1]), ends[:-1].copy()
    keys = space(count)
    if keys is None:
        keys = pooled(count, np.uint64)
    for matches, table, first_key in parts:
        sets, of_sets = (matches.offsets, matches.values), (table.keys.offsets, table.keys.values)
        _copy_at(sets, of_sets, np.uint64(first_key), places, keys)
    return Lists(ends, keys)


# Up to this many of the query's ranks walking beats galloping
_FEW_RANKS = 16


@kernel
def seek(query, at, end, rank):
    """First place from `at` on, below `end`, whose rank is not below `rank`; else `end`. Galloping search.

    Its time grows with the logarithm of the distance, so that checking many sets against a query of thousands of
    tags does not walk the query each time.
    """
    step = 1
    while at + step <= end and query[at + step - 1] < rank:
        at += step
        step *= 2
    low, high = at, min(at + step - 1, end)
    while low < high:
        middle = (low + high) >> 1
        if query[middle] < rank:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def contains_ranks(query, at, end, ranks, begin, stop):
    """Whether all of `ranks[begin:stop]` are in `query[at:end]`; both ascending."""
    if end - at > _FEW_RANKS:
        for i in range(begin, stop):
            at = seek(query, at, end, ranks[i])
            if at == end or query[at] != ranks[i]:
                return False
            at += 1
        return True
    for i in range(begin, stop):
        while at < end and query[at] < ranks[i]:
            at += 1
        if at == end or query[at] != ranks[i]:
            return False
        at += 1
    return True
