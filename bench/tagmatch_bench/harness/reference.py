"""The right answers, by brute force: Arrow finds the sets that can match, NumPy tests each of them with each query.

Nothing here hashes, indexes or signs tags, and no compared system is asked, so that each can be found wrong.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import offsets_of
from tagmatch.model.parallel import run
from tagmatch_bench.systems.matcher import rows_of

if TYPE_CHECKING:
    from tagmatch.model.arrays import BoolArray, I64Array


def right_answers(sets: pa.Table, queries: pa.ListArray, *, unique: bool = False, threads: int = 1) -> list[list[int]]:
    """Return the keys of the stored sets that are contained in each query.

    Parameters
    ----------
    sets : pyarrow.Table
        Columns `tags` and `key`, as every matcher takes them.
    queries : pyarrow.ListArray
        Not many: each is tested with every set whose tags all occur in some query.
    unique : bool
        Give each key of a query once.
    """
    asked = queries.flatten().unique()
    possible = run(lambda batch: batch.filter(_all_tags_in(batch["tags"], asked)), sets.to_batches(), threads)
    stored = rows_of(pa.Table.from_batches(possible, sets.schema))
    number = {tag: i for i, tag in enumerate(asked.to_pylist())}
    numbers = np.array([number[tag] for tag in chain.from_iterable(tags for tags, _ in stored)], np.int64)
    offsets = offsets_of(np.array([len(tags) for tags, _ in stored], np.int64))
    answers = []
    for query in queries.to_pylist():
        present = np.zeros(len(number), np.bool_)
        present[[number[tag] for tag in query]] = True
        keys = [key for row in np.flatnonzero(all_true(present[numbers], offsets)) for key in stored[row][1]]
        answers.append(sorted(set(keys)) if unique else keys)
    return answers


def _all_tags_in(sets: pa.ListArray, tags: pa.Array) -> pa.Array:
    known = pc.is_in(sets.flatten(), value_set=tags).to_numpy(zero_copy_only=False)
    return pa.array(all_true(known, offsets_of(sets.value_lengths().to_numpy())))


def all_true(flags: BoolArray, offsets: I64Array) -> BoolArray:
    """Whether all flags of each list are set; those of list `i` are `flags[offsets[i]:offsets[i + 1]]`."""
    unset = offsets_of((~flags).astype(np.int64))
    every: BoolArray = unset[offsets[1:]] == unset[offsets[:-1]]
    return every
