"""Stage 4 on the CPU, merge: each query's keys ascending and each once (§3.4), as they are looked up or afterwards.

The keys of a set ascend, so that a query's are runs; a few runs have most keys. These are merged, many keys at once,
the shortest runs first. Keys of many sets are marked in a bitmap of all keys, if these are dense; else they are sorted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tagmatch.model.arrays import BoolArray, I64Array, Lists, U64Array, UIntArray, pooled
from tagmatch.model.kernels.intrinsics import ones, trailing_zeros
from tagmatch.model.kernels.jit import copy, kernel
from tagmatch.model.kernels.lanes import LANES, in_order, is_alike, load, store
from tagmatch.model.kernels.lists import sort_values
from tagmatch.model.tables import KeyTable
from tagmatch.pipeline.tags import Space, key_ends, no_space

_U = np.uint64

# Fewer runs are merged even where their keys are dense
_FEW_RUNS = 8
# More runs are not merged
_MOST_RUNS = 64
# Up to this many keys, comparing them beats all else
_FEW_KEYS = 24
# Words of a bitmap that take as long to read as a key takes to be merged or sorted
_WORDS_A_KEY = 2


@kernel
def _insert(few, at_few, end_few, keys, at, end, out, used):
    """Write some of `few`, a few keys, and some of `keys`, both ascending, together ascending; returns their end."""
    while at_few < end_few:
        key = few[at_few]
        while at + LANES <= end and keys[at + LANES - 1] < key:
            store(out, used, load(keys, at))
            at += LANES
            used += LANES
        while at < end and keys[at] < key:
            out[used] = keys[at]
            at += 1
            used += 1
        out[used] = key
        at_few += 1
        used += 1
    return copy(keys, at, end, out, used)


@kernel
def _merge(keys, first, second, few, out, used):
    """Write two runs of `keys`, between these places, as one; returns its end.

    `few` has room for three times the keys that are merged at once.
    """
    (i, i_end), (j, j_end) = first, second
    merged = 0
    if i + LANES <= i_end and j + LANES <= j_end:
        low, high = in_order(load(keys, i), load(keys, j))
        i, j = i + LANES, j + LANES
        store(out, used, low)
        used += LANES
        while i + LANES <= i_end and j + LANES <= j_end:
            if keys[i] < keys[j]:
                place = i
                i += LANES
            else:
                place = j
                j += LANES
            low, high = in_order(high, load(keys, place))
            store(out, used, low)
            used += LANES
        store(few, 0, high)
        merged = LANES
    if i_end - i > j_end - j:
        i, i_end, j, j_end = j, j_end, i, i_end
    if merged:
        merged = _insert(few, 0, LANES, keys, i, i_end, few, LANES)
        return _insert(few, LANES, merged, keys, j, j_end, out, used)
    return _insert(keys, i, i_end, keys, j, j_end, out, used)


@kernel
def _merge_runs(keys, runs, count, few, out, used):
    """Write `count` runs of keys as one; `keys` has room behind them. The runs are changed."""
    end = 0
    for run in range(count):
        end = max(end, runs[run, 1])
    # The longest first, so that the shortest are last
    for run in range(1, count):
        begin, stop, at = runs[run, 0], runs[run, 1], run
        while at > 0 and runs[at - 1, 1] - runs[at - 1, 0] < stop - begin:
            runs[at, 0], runs[at, 1] = runs[at - 1, 0], runs[at - 1, 1]
            at -= 1
        runs[at, 0], runs[at, 1] = begin, stop
    while count > 2:
        first, second = (runs[count - 1, 0], runs[count - 1, 1]), (runs[count - 2, 0], runs[count - 2, 1])
        stop = _merge(keys, first, second, few, keys, end)
        count, at = count - 1, count - 2
        while at > 0 and runs[at - 1, 1] - runs[at - 1, 0] < stop - end:
            runs[at, 0], runs[at, 1] = runs[at - 1, 0], runs[at - 1, 1]
            at -= 1
        runs[at, 0], runs[at, 1] = end, stop
        end = stop
    if count == 1:
        return copy(keys, runs[0, 0], runs[0, 1], out, used)
    return _merge(keys, (runs[1, 0], runs[1, 1]), (runs[0, 0], runs[0, 1]), few, out, used)


@kernel
def _mark(keys, begin, end, low, words):
    for i in range(_U(begin), _U(end)):
        above = _U(keys[i]) - low
        words[above >> _U(6)] |= _U(1) << (above & _U(63))


@kernel
def _read_words(words, ends, at_once, low, out, used):
    """Write the keys of some words of a bitmap, which become 0; of each word, `at_once` without a branch.

    Returns the end of the keys, and at which word there is too little room for that.
    """
    place, last = ends
    while place < last and used + _U(64) <= _U(len(out)):
        word, first = words[place], low + (place << _U(6))
        words[place] = _U(0)
        at, behind = used, used + ones(word)
        for _ in range(at_once):  # of a word with fewer keys, the rest is overwritten
            out[at] = first + trailing_zeros(word)
            word &= word - _U(1)
            at += _U(1)
        while word != _U(0):
            out[at] = first + trailing_zeros(word)
            word &= word - _U(1)
            at += _U(1)
        used = behind
        place += _U(1)
    return used, place


@kernel
def _read(words, count, low, out, used):
    """Write, ascending, the keys, at most `count`, of a bitmap which begins at `low`, and is 0 afterwards."""
    place, last = _U(0), _U(len(words))
    if count >= 2 * len(words):
        used, place = _read_words(words, (place, last), 8, low, out, _U(used))
    else:
        used, place = _read_words(words, (place, last), 3, low, out, _U(used))
    while place < last:
        word = words[place]
        words[place] = _U(0)
        while word != _U(0):
            out[used] = low + (place << _U(6)) + trailing_zeros(word)
            word &= word - _U(1)
            used += _U(1)
        place += _U(1)
    return np.int64(used)


@kernel
def _sort(keys, swap, count):
    """Sort the first keys in place, least significant byte first; bytes that all have in common take no time."""
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
        copy(source, 0, count, keys, 0)


@kernel
def _each_once(keys, first, last):
    """Keep each of ascending keys once; returns their end."""
    at, used = first, first
    before = ~keys[first] if first < last else keys[0]  # another key
    while at + LANES <= last:
        several = load(keys, at)
        highest = keys[at + LANES - 1]
        if is_alike(before, several):
            used = _few_once(keys, before, (at, at + LANES), used)
        else:
            store(keys, used, several)
            used += LANES
        at, before = at + LANES, highest
    return _few_once(keys, before, (at, last), used)


@kernel
def _few_once(keys, before, ends, used):
    place = _U(used)
    for i in range(_U(ends[0]), _U(ends[1])):
        key = keys[i]
        keys[place] = key
        place += _U(key != before)
        before = key
    return np.int64(place)


class Memory(NamedTuple):
    """What it takes to bring the keys of the longest answer in order."""

    keys: UIntArray  # Its keys, and behind them merged runs
    few: UIntArray
    runs: I64Array  # From and to where each run is
    words: U64Array  # A bitmap of keys: zeros


@kernel
def memory_for(longest, words, key):
    """Memory for answers of at most a number of keys of a type, and bitmaps of a number of words."""
    # If runs are equally long, each key is merged four times, the last time to its final place
    keys, few = np.empty(6 * longest, key), np.empty(3 * LANES, key)
    return Memory(keys, few, np.empty((_MOST_RUNS, 2), np.int64), np.zeros(words, np.uint64))


@kernel
def _ascending(memory, count, runs, out, used):
    """Write the first keys of the memory, which are `runs` runs, ascending; returns their end."""
    if runs <= _MOST_RUNS:
        return _merge_runs(memory.keys, memory.runs, runs, memory.few, out, used)
    _sort(memory.keys, memory.keys[count : 2 * count], count)
    return copy(memory.keys, 0, count, out, used)


@kernel
def _look_up(matches, table, span, most_ends, new_ends, out):
    """Write the keys of each query's sets ascending and each once; returns how many there are.

    Query `i` has the keys up to `most_ends[i + 1]`, some of them several times, unless no set has one of another's.
    """
    (ends, set_ids), (offsets, keys), (low, most_words, are_distinct) = matches, table, span
    longest, used = 0, 0
    for query in range(len(ends) - 1):
        longest = max(longest, most_ends[query + 1] - most_ends[query])
    memory = memory_for(longest, most_words if most_words <= _WORDS_A_KEY * longest else 0, keys.dtype)
    words = memory.words
    for query in range(len(ends) - 1):
        first_set, last_set, begun = ends[query], ends[query + 1], used
        count = most_ends[query + 1] - most_ends[query]
        if last_set - first_set <= 1 or count <= _FEW_KEYS:
            for i in range(first_set, last_set):
                used = copy(keys, offsets[set_ids[i]], offsets[set_ids[i] + np.uint32(1)], out, used)
            if last_set - first_set > 1:
                sort_values(out, begun, used)
        elif 0 < len(words) <= (_WORDS_A_KEY * count if last_set - first_set > _MOST_RUNS else count):
            for i in range(first_set, last_set):
                _mark(keys, offsets[set_ids[i]], offsets[set_ids[i] + np.uint32(1)], low, words)
            used = _read(words, count, low, out, used)
        else:
            end, runs = 0, 0
            for i in range(first_set, last_set):
                begin = end
                end = copy(keys, offsets[set_ids[i]], offsets[set_ids[i] + np.uint32(1)], memory.keys, begin)
                if runs < _MOST_RUNS:
                    memory.runs[runs, 0], memory.runs[runs, 1] = begin, end
                runs += 1
            used = _ascending(memory, count, runs, out, used)
        if not are_distinct and last_set - first_set > 1:
            used = _each_once(out, begun, used)
        new_ends[query + 1] = used
    return used


def look_up_once(matches: Lists, table: KeyTable, space: Space = no_space) -> Lists:
    """Keys, uint64, of each query's set ids, ascending and each once; in `space` if their number is known before."""
    span = table.span
    most_ends, ends = np.zeros(len(matches) + 1, np.int64), np.zeros(len(matches) + 1, np.int64)
    key_ends(matches.offsets, matches.values, table.keys.offsets, most_ends)
    count = int(most_ends[-1])
    keys = space(count, at_most=not span.are_distinct)
    if keys is None:
        keys = pooled(count, np.uint64)
    sets, of_sets = (matches.offsets, matches.values), (table.keys.offsets, table.keys.values)
    used = _look_up(sets, of_sets, tuple(span), most_ends, ends, keys)
    return Lists(ends, keys[:used])


@kernel
def _natural_runs(keys, first, last, runs):
    """Write where ascending keys begin and end, for as many runs as there is room for; returns how many there are."""
    count = 0
    runs[0, 0] = 0
    for i in range(first + 1, last):
        if keys[i] < keys[i - 1]:
            runs[count, 1] = i - first
            count += 1
            if count == len(runs):
                return count + 1
            runs[count, 0] = i - first
    runs[count, 1] = last - first
    return count + 1


@kernel
def once_each(keys, first, last, memory, out, used):
    """Write some of the keys ascending and each once; returns their end."""
    begun, count = used, last - first
    if count <= _FEW_KEYS:
        used = copy(keys, first, last, out, used)
        if count > 1:
            sort_values(out, begun, used)
            used = _each_once(out, begun, used)
        return used
    runs = _natural_runs(keys, first, last, memory.runs)
    if runs > _FEW_RUNS:
        low, high = keys[first], keys[first]
        for i in range(first, last):
            low, high = min(low, keys[i]), max(high, keys[i])
        # With more words than keys, most of them empty, sorting is faster
        spanned = ((_U(high) - _U(low)) >> _U(6)) + _U(1)
        if spanned <= _U(min(count, len(memory.words))):
            _mark(keys, first, last, _U(low), memory.words)
            return _read(memory.words[: np.int64(spanned)], count, _U(low), out, used)
    copy(keys, first, last, memory.keys, 0)
    return _each_once(out, begun, _ascending(memory, count, runs, out, used))


@kernel
def unique_keys(ends, keys, wanted, new_ends, out):
    """Write the keys, those of wanted queries ascending and each once; returns how many there are."""
    longest, used = 0, 0
    for query in range(len(ends) - 1):
        if wanted[query]:
            longest = max(longest, ends[query + 1] - ends[query])
    memory = memory_for(longest, longest, keys.dtype)
    for query in range(len(ends) - 1):
        if wanted[query]:
            used = once_each(keys, ends[query], ends[query + 1], memory, out, used)
        else:
            used = copy(keys, ends[query], ends[query + 1], out, used)
        new_ends[query + 1] = used
    return used


def merge_unique(answers: Lists, wanted: BoolArray, space: Space = no_space) -> Lists:
    """Each wanted query's keys ascending, each once (the merge stage of `match-unique`); others' keys as they are."""
    ends, most = np.zeros(len(answers) + 1, np.int64), len(answers.values)
    out: UIntArray | None = space(most, at_most=True)
    if out is None:
        out = pooled(most, answers.values.dtype)
    used = unique_keys(answers.offsets, answers.values, wanted, ends, out)
    return Lists(ends, out[:used])


def merge_all(answers: Lists, space: Space = no_space) -> Lists:
    """`merge_unique` where the keys of all queries are wanted once."""
    return merge_unique(answers, np.ones(len(answers), np.bool_), space)
