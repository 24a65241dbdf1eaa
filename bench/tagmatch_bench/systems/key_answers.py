"""From the rows that a columnar system finds to the keys of each query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tagmatch.model.kernels.lists import join_lists
from tagmatch.model.parallel import even_ranges, run_rows
from tagmatch.pipeline.tags import look_up_keys, merge_unique

if TYPE_CHECKING:
    from collections.abc import Callable

    from tagmatch.model.arrays import Lists
    from tagmatch.model.tables import KeyTable

# More tasks than threads, as some take longer
_TASKS_PER_THREAD = 8


def keys_of_matches(
    match: Callable[[int, int], Lists], queries: int, keys: KeyTable, *, unique: bool, threads: int
) -> pa.ListArray:
    """Match queries, `count` of them, and look up their keys, all in tasks over threads.

    Parameters
    ----------
    match
        Finds the rows, uint32, of queries `first` to `last`; called by several threads at once.
    keys : KeyTable
        Keys of each row.
    unique : bool
        Give each key of a query once.

    Returns
    -------
    pyarrow.ListArray of uint64
    """

    def work(first: int, last: int) -> Lists:
        return keys_of(match(first, last), keys, unique=unique)

    tasks = 1 if threads == 1 else _TASKS_PER_THREAD * threads
    parts = run_rows(work, even_ranges(queries, tasks), threads)
    return list_array(join_lists(parts, np.dtype(np.uint64), threads))


def keys_of(matches: Lists, keys: KeyTable, *, unique: bool) -> Lists:
    """Look up the keys of each query's rows, uint32; `unique` ones once each."""
    found = look_up_keys(matches, keys)
    return merge_unique(found, np.ones(len(found), np.bool_)) if unique else found


def list_array(answers: Lists) -> pa.ListArray:
    """Keys of queries as an Arrow array."""
    return pa.ListArray.from_arrays(pa.array(answers.offsets, pa.int32()), pa.array(answers.values))
