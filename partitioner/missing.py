"""Which removals are of nothing, neither stored nor staged. What this takes follows them, and what is staged."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import I64Array, Strings, TagLists, U64Array
from tagmatch.model.tables import Snapshot
from tagmatch.partitioner.consolidation import rows_with
from tagmatch.partitioner.keys_left import MISSING
from tagmatch.partitioner.local import distinct_sets, held_in
from tagmatch.partitioner.staging import StagedChanges


def missing_rows(
    snapshot: Snapshot,
    staged: StagedChanges,
    chunks: list[TagLists],
    keys: U64Array | Strings,
    *,
    now: int,
    threads: int = 1,
) -> I64Array:
    """Which of these rows, if they were removed one after the other, would remove nothing.

    Parameters
    ----------
    snapshot : Snapshot
        What is stored.
    staged : StagedChanges
        What is staged since, in order.
    chunks, keys
        The rows, and the key of each.
    now : int
        Keys that have expired then are not there.
    """
    changed = staged.of_keys(keys)
    before = len(changed)
    changed.extend(chunks, keys, removed=True)
    changes = changed.changes()
    # No sets, but they say of what type keys are
    held = [held_in(snapshot.segments[0], np.zeros(0, np.uint32))]
    held += [
        held_in(segment, rows_with(segment, changes.tags, changes.rows, threads=threads))
        for segment in snapshot.segments
    ]
    became = distinct_sets(held, changes, now=now, threads=threads).became
    return np.flatnonzero(became[before:] == MISSING)
