"""The cuts of constraints become constants of attributes, in order, and codes (`tagmatch.pipeline.filters.codes`)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import I64Array, Strings, U8Array, U16Array, U32Array, U64Array
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import gather_strings
from tagmatch.model.kernels.sorting import radix_sort
from tagmatch.pipeline.filters.codes import (
    BOOL,
    EXACT,
    NAN,
    NUMBER,
    NUMBER_KEY,
    NUMBERS,
    ONE,
    PLACE_BEFORE_NUMBERS,
    PLACE_FALSE,
    PLACE_NAN,
    TEXT,
    Constants,
    double_in,
    rest_in,
)
from tagmatch.pipeline.filters.parsing import parts_of

_AFTER_NUMBERS, _AFTER_TEXTS = tuple(b"ot")

# Sides of cuts that are not just before a key
_AFTER, _AFTER_PREFIX = tuple(b"]^")

# What a cut is by: a place that each attribute has, one of its numbers or texts, or a place behind them
_FIXED, _BY_NUMBER, _BY_TEXT, _BEHIND_NUMBERS, _BEHIND_TEXTS = range(5)

_U32 = np.uint32
_LOW32 = np.uint64(0xFFFFFFFF)


@kernel
def _classify(data, keys, sides, kinds, doubles, rests, places):
    """Write by what each cut is, its number, and the place of what each attribute has."""
    for i in range(len(sides)):
        start, stop = keys[i, 0], keys[i, 1]
        if start == stop:
            continue
        kind = data[start]
        if kind == NUMBER and stop - start == NUMBER_KEY:
            kinds[i] = _BY_NUMBER
            doubles[i], rests[i] = double_in(data, start), rest_in(data, start)
        elif kind == NUMBER:
            places[i] = PLACE_BEFORE_NUMBERS
        elif kind == _AFTER_NUMBERS:
            kinds[i] = _BEHIND_NUMBERS
        elif kind == _AFTER_TEXTS or (kind == TEXT and sides[i] == _AFTER_PREFIX and stop - start == 1):
            kinds[i] = _BEHIND_TEXTS
        elif kind == NAN:
            places[i] = PLACE_NAN
        elif kind == BOOL:
            places[i] = PLACE_FALSE + (stop - start == 2 and data[start + 1] == ONE)
        elif kind == TEXT:
            kinds[i] = _BY_TEXT


@kernel
def _sort_numbers(cuts, attributes, doubles, starts, words, order):
    """Write the doubles of these cuts, each attribute's ascending and equal ones as they come, and their cuts."""
    nexts = starts.copy()
    for i in range(len(cuts)):
        cut = cuts[i]
        at = nexts[attributes[cut]]
        nexts[attributes[cut]] = at + 1
        words[at], order[at] = doubles[cut], cut
    most = 0
    for attribute in range(len(starts) - 1):
        most = max(most, starts[attribute + 1] - starts[attribute])
    words_swap, order_swap = np.empty(most, np.uint64), np.empty(most, np.uint32)
    for attribute in range(len(starts) - 1):
        begin, end = starts[attribute], starts[attribute + 1]
        radix_sort(words[begin:end], order[begin:end], 0, end - begin, words_swap, order_swap)


@kernel
def _place_numbers(starts, words, order, rests, number_starts, of_numbers, places):
    """Write the place of each number's cut, and bring the different numbers to the front; how many there are.

    `rests`, by cut, is copied to `of_numbers`.
    """
    used = 0
    for attribute in range(len(starts) - 1):
        number_starts[attribute] = used
        for i in range(starts[attribute], starts[attribute + 1]):
            same = i > starts[attribute] and words[i] == words[used - 1]
            if not same or (len(rests) and rests[order[i]] != rests[order[i - 1]]):
                words[used] = words[i]
                if len(rests):
                    of_numbers[used] = rests[order[i]]
                used += 1
            places[order[i]] = NUMBERS + used - 1 - number_starts[attribute]
    number_starts[len(starts) - 1] = used
    return used


def _numbers(
    cuts: U32Array, attributes: I64Array, count: int, doubles: U64Array, rests: U16Array, places: U32Array
) -> tuple[I64Array, U64Array, U16Array]:
    """Where the numbers of each attribute begin, and these, after their places were written; rests are all, or none."""
    if len(rests):
        cuts = cuts[np.argsort(rests[cuts], kind="stable")]
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(attributes[cuts], minlength=count))])
    words, order, number_starts = np.empty(len(cuts), np.uint64), np.empty(len(cuts), np.uint32), np.empty_like(starts)
    _sort_numbers(cuts, attributes, doubles, starts, words, order)
    of_numbers = np.empty(len(cuts) if len(rests) else 0, np.uint16)
    used = _place_numbers(starts, words, order, rests, number_starts, of_numbers, places)
    return number_starts, words[:used], of_numbers[:used].copy()


def codes_of_cuts(
    data: U8Array, keys: I64Array, sides: U8Array, attributes: I64Array, count: int
) -> tuple[Constants, U32Array]:
    """The constants of `count` attributes, and the first code at or after each cut.

    Parameters
    ----------
    data : uint8 array
        In which the keys are written.
    keys : int64[n, 2] array
        Where the key of each cut begins and ends.
    sides : uint8 array
        As they are written.
    attributes : int64 array
        Of each cut.
    """
    cuts = len(sides)
    kinds, places = np.zeros(cuts, np.uint8), np.zeros(cuts, np.uint32)
    doubles, rests = np.zeros(cuts, np.uint64), np.full(cuts, EXACT)
    _classify(data, keys, sides, kinds, doubles, rests, places)

    exact = rests[:0] if (rests == EXACT).all() else rests
    by_number = np.flatnonzero(kinds == _BY_NUMBER).astype(np.uint32)
    number_starts, numbers, rests = _numbers(by_number, attributes, count, doubles, exact, places)

    text = np.flatnonzero(kinds == _BY_TEXT)
    texts = _texts(data, keys[text], sides[text] == _AFTER_PREFIX)
    ranks = _ranks_of(texts)
    by_rank = np.lexsort((ranks, attributes[text]))
    in_order = text[by_rank]
    is_new, text_place = _distinct(attributes[in_order], ranks[by_rank])
    distinct = by_rank[is_new]
    text_starts = np.searchsorted(attributes[text[distinct]], np.arange(count + 1))
    places[in_order] = text_place - text_starts[attributes[in_order]]

    for kind, first in ((_BY_TEXT, NUMBERS + 1), (_BEHIND_NUMBERS, NUMBERS), (_BEHIND_TEXTS, NUMBERS + 1)):
        some = np.flatnonzero(kinds == kind)
        places[some] += (first + np.diff(number_starts)[attributes[some]]).astype(np.uint32)
    places[some] += np.diff(text_starts)[attributes[some]].astype(np.uint32)
    codes = _U32(2) * (places + _U32(1)) + (sides == _AFTER)
    halves = (numbers >> np.uint64(32)).astype(np.uint32)
    if (numbers & _LOW32).any():
        halves = halves[:0]
    else:
        numbers = numbers[:0]
    constants = Constants(
        number_starts,
        halves.copy(),
        numbers.copy(),
        rests,
        text_starts,
        gather_strings(texts, distinct.astype(np.uint32)),
    )
    return constants, codes


def _texts(data: U8Array, keys: I64Array, are_prefixes: np.ndarray) -> Strings:
    """Texts without the letter that they have as keys; instead of a prefix, what comes after all that begin with it."""
    found = parts_of(data, keys + np.array([1, 0]))
    after = found.data.copy()
    after[found.offsets[1:][are_prefixes] - 1] += 1  # UTF-8 has no byte 255
    return Strings(found.offsets, after)


def _distinct(*columns: np.ndarray) -> tuple[np.ndarray, I64Array]:
    """Which rows of sorted columns differ from the one before, and how many of these come before each row's own."""
    is_new = np.ones(len(columns[0]), np.bool_)
    if len(is_new):
        is_new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return is_new, np.cumsum(is_new) - 1


def _ranks_of(texts: Strings) -> I64Array:
    """The place that each text has in the order of bytes; equal ones have the same."""
    offsets = pa.py_buffer(texts.offsets.astype(np.int64))
    column = pa.Array.from_buffers(pa.large_binary(), len(texts), [None, offsets, pa.py_buffer(texts.data)])
    ranks: I64Array = pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)
    return ranks
