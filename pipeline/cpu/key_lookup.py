"""Stages 3 and 4: key lookup turns set ids into keys, merge makes each query's keys unique (§3)."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import BoolArray, Lists, UIntArray, pooled
from tagmatch.model.deletions import Deletions, is_deleted
from tagmatch.model.kernels.bits import trailing_zeros
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.rows import sort_values
from tagmatch.model.tables import KeyTable
from tagmatch.pipeline.matcher import Space, no_space

_U = np.uint64

# Up to this many keys comparing them beats counting their bytes
_FEW_KEYS = 32


@kernel
def key_ends(ends, set_ids, key_offsets, out):
    """Write where each query's keys end, from `out[1]` on."""
    total = 0
    for query in range(len(ends) - 1):
        for i in range(ends[query], ends[query + 1]):
            total += key_offsets[set_ids[i] + 1] - key_offsets[set_ids[i]]
        out[query + 1] = total


@kernel
def copy_keys(set_ids, key_offsets, keys, out):
    """Write the keys of the sets, one set's after the other's."""
    at = 0
    for set_id in set_ids:
        for i in range(key_offsets[set_id], key_offsets[set_id + 1]):
            out[at] = keys[i]
            at += 1


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


def _memory(count: int, table: KeyTable, space: Space) -> UIntArray:
    keys = space(count)
    return pooled(count, table.keys.values.dtype) if keys is None else keys


@kernel
def _sort_keys(keys, swap):
    """Sort keys in place, least significant byte first; bytes that all have in common take no time."""
    count = len(keys)
    if count <= _FEW_KEYS:
        sort_values(keys, 0, count)
        return
    varying = _U(0)
    for i in range(1, count):
        varying |= keys[i] ^ keys[0]
    source, target = keys, swap
    ends = np.empty(257, np.int64)
    for byte in range(8):
        shift = _U(8 * byte)
        if (varying >> shift) & _U(255) == _U(0):
            continue
        ends[:] = 0
        for i in range(count):
            ends[((source[i] >> shift) & _U(255)) + _U(1)] += 1
        for digit in range(1, 256):
            ends[digit] += ends[digit - 1]
        for i in range(count):
            digit = (source[i] >> shift) & _U(255)
            target[ends[digit]] = source[i]
            ends[digit] += 1
        source, target = target, source
    if varying != _U(0):
        keys[:] = source[:count]


@kernel
def _each_once(keys, out):
    """Write ascending keys, each once; returns how many there are."""
    used = 0
    for i in range(len(keys)):
        if i == 0 or keys[i] != keys[i - 1]:
            out[used] = keys[i]
            used += 1
    return used


@kernel
def _by_bits(keys, low, words, out):
    """Write the keys, which begin at `low`, ascending and each once: a bit for each is set in `words`; how many."""
    words[:] = _U(0)
    for key in keys:
        above = _U(key) - low
        words[above >> _U(6)] |= _U(1) << (above & _U(63))
    used = 0
    for place in range(len(words)):
        word = words[place]
        while word != _U(0):
            out[used] = low + (_U(place) << _U(6)) + trailing_zeros(word)
            word &= word - _U(1)
            used += 1
    return used


@kernel
def ascending_unique(keys, words, swap, out):
    """Write keys ascending and each once; returns how many there are. `words` and `swap` are as long."""
    ascending, low, high = True, keys[0], keys[0]
    for i in range(1, len(keys)):
        ascending &= keys[i] >= keys[i - 1]
        low, high = min(low, keys[i]), max(high, keys[i])
    if ascending:
        return _each_once(keys, out)
    # With more words than keys, most of them empty, sorting is faster
    spanned = ((_U(high) - _U(low)) >> _U(6)) + _U(1)
    if spanned <= _U(len(keys)):
        return _by_bits(keys, _U(low), words[: np.int64(spanned)], out)
    out[:] = keys
    _sort_keys(out, swap)
    return _each_once(out, out)


@kernel
def unique_keys(ends, keys, wanted, new_ends, out):
    """Write the keys, those of wanted queries ascending and each once; returns how many there are."""
    longest = 0
    for query in range(len(ends) - 1):
        if wanted[query]:
            longest = max(longest, ends[query + 1] - ends[query])
    words, swap = np.empty(longest, np.uint64), np.empty(longest, keys.dtype)
    used = 0
    for query in range(len(ends) - 1):
        begin, end = ends[query], ends[query + 1]
        if end - begin <= 1:  # to slice arrays would take most of the time of queries without an answer
            for i in range(begin, end):
                out[used] = keys[i]
                used += 1
        elif wanted[query]:
            found, count = keys[begin:end], end - begin
            used += ascending_unique(found, words[:count], swap[:count], out[used : used + count])
        else:
            out[used : used + end - begin] = keys[begin:end]
            used += end - begin
        new_ends[query + 1] = used
    return used


def merge_unique(answers: Lists, wanted: BoolArray) -> Lists:
    """Each wanted query's keys ascending, each once (the merge stage of `match-unique`); others' keys as they are."""
    ends = np.zeros(len(answers) + 1, np.int64)
    out = pooled(len(answers.values), answers.values.dtype)
    used = unique_keys(answers.offsets, answers.values, wanted, ends, out)
    return Lists(ends, out[:used])


def merge_all(answers: Lists) -> Lists:
    """`merge_unique` where the keys of all queries are wanted once."""
    return merge_unique(answers, np.ones(len(answers), np.bool_))
