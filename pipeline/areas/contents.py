"""What sets with areas ask beside them: few different contents, each of which many areas share.

A message first finds the contents that it has, and then, of each of these, the areas that have its place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import BoolArray, I64Array, Lists, Strings, U32Array, frozen, offsets_of
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.tag_table import TagInterner
from tagmatch.model.kernels.xxh64 import hash_strings
from tagmatch.pipeline.filters.asked import Asked
from tagmatch.pipeline.filters.parsing import Parsed


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """The different contents of some sets.

    Attributes
    ----------
    count : int
    numbers : int64 array
        The content of each set.
    asked : Asked
        What each content asks, but for the one that asks nothing; its `rows` are their numbers.
    of_nothing : int
        The content that asks nothing; -1 if no set has it.
    """

    count: int
    numbers: I64Array
    asked: Asked
    of_nothing: int


@kernel
def _without(ranks, offsets, rows, left_out, ends, out):
    """Write the ranks of some rows that are not left out; where those of each end."""
    used = 0
    for i in range(len(rows)):
        for place in range(offsets[rows[i]], offsets[rows[i] + 1]):
            if not left_out[ranks[place]]:
                out[used] = ranks[place]
                used += 1
        ends[i + 1] = used
    return used


def contents_of(ranks: Lists, rows: I64Array, is_area: BoolArray, found: Parsed, is_constraint: BoolArray) -> Contents:
    """The contents of some rows, without areas.

    Parameters
    ----------
    ranks : Lists
        Of all rows of a segment.
    rows : int64 array
    is_area, is_constraint : bool arrays
        Of each rank; areas are constraints, too.
    found : Parsed
        The other constraints.
    """
    ends = np.zeros(len(rows) + 1, np.int64)
    left = np.empty(int((ranks.offsets[rows + 1] - ranks.offsets[rows]).sum()), np.uint32)
    left = left[: _without(ranks.values, ranks.offsets, frozen(rows), frozen(is_area), ends, left)]
    # Lists of ranks are different if their bytes are
    whole = Strings(4 * ends, left.view(np.uint8))
    interner = TagInterner()
    numbers = interner.intern(whole, hash_strings(whole)).astype(np.int64)
    different = interner.strings()
    ends_of = different.offsets.astype(np.int64)
    sizes = (ends_of[1:] - ends_of[:-1]) // 4
    owners = np.repeat(np.arange(len(sizes)), sizes)
    values: U32Array = different.data.copy().view(np.uint32)
    number_of = np.full(len(is_constraint), -1, np.int64)
    number_of[found.ranks] = np.arange(len(found))
    unknown = is_constraint[values] & (number_of[values] < 0)
    has_way = np.ones(len(different), np.bool_)
    # What only begins like a constraint never holds
    has_way[owners[unknown]] = False
    asks = has_way & (sizes > 0)
    all_asked = Asked(np.arange(len(sizes)), owners, values, number_of[values])
    empty = np.flatnonzero(sizes == 0)
    return Contents(len(sizes), numbers, all_asked.only(asks), int(empty[0]) if len(empty) else -1)


def rows_by_content(contents: I64Array, count: int, rows: U32Array) -> Lists:
    """The rows of each content, of some that have these contents."""
    order = np.argsort(contents, kind="stable")
    return Lists(offsets_of(np.bincount(contents, minlength=count)), rows[order])
