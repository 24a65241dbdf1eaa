"""Columns of lists, joined one after the other and side by side."""

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tagmatch.model.arrays import Lists, offsets_of
from tagmatch.model.kernels.lists import join_lists, side_by_side

Rows = list[list[int]]
NUMBERS = {np.dtype(np.uint32): 2**32 - 1, np.dtype(np.uint64): 2**64 - 1}


def lists_of(rows: Rows, dtype: np.dtype[np.unsignedinteger]) -> Lists:
    return Lists(
        offsets_of(np.array([len(row) for row in rows], np.int64)), np.array(list(chain.from_iterable(rows)), dtype)
    )


def rows_of(lists: Lists) -> Rows:
    return [lists.values[a:b].tolist() for a, b in zip(lists.offsets, lists.offsets[1:], strict=False)]


@st.composite
def columns(draw: st.DrawFn, rows: int | None = None) -> tuple[Rows, np.dtype[np.unsignedinteger]]:
    dtype = draw(st.sampled_from(list(NUMBERS)))
    row = st.lists(st.integers(0, NUMBERS[dtype]), max_size=4)
    sizes = {} if rows is None else {"min_size": rows, "max_size": rows}
    return draw(st.lists(row, **sizes)), dtype


@given(st.lists(columns(), max_size=5), st.sampled_from([1, 3]))
def test_joined_lists_are_those_of_the_parts_which_are_let_go_of(parts, threads):
    lists = [lists_of(*part) for part in parts]
    joined = join_lists(lists, np.dtype(np.uint64), threads)
    assert rows_of(joined) == [row for rows, _ in parts for row in rows]
    assert joined.values.dtype == np.uint64
    assert lists == []


@given(st.integers(0, 4).flatmap(lambda rows: st.lists(columns(rows), min_size=1, max_size=3)))
def test_lists_side_by_side_have_what_the_parts_have(parts):
    """Also where some parts have numbers of 32 bits and others of 64."""
    found = rows_of(side_by_side([lists_of(*part) for part in parts]))
    assert found == [list(chain.from_iterable(rows)) for rows in zip(*(rows for rows, _ in parts), strict=True)]
