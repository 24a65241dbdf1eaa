"""Which keys of a set are left after a sequence of changes."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import BoolArray, I64Array, U8Array, U32Array, U64Array, offsets_of
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.parallel import even_work, run_rows
from tagmatch.model.tables import if_any

#: Places of what became of changes: a key that was added, one to add that was there, one that was removed, and one to
#: remove that was not there
ADDED, ALREADY_THERE, REMOVED, MISSING = range(4)


@kernel
def _keys_left(first_pairs, order, keys, removed, expires, held, first, last, out, out_expires, counts, became):
    """For each group the keys whose last change is an addition, ascending, written from the group's place on.

    When they expire, too, unless `expires` is empty. `became` has what became of each pair from `held` on.
    """
    has_times = len(expires) > 0
    for group in range(first, last):
        begin, end = first_pairs[group], first_pairs[group + 1]
        if end - begin == 1:
            pair = order[begin]
            out[begin] = keys[pair]
            if has_times:
                out_expires[begin] = expires[pair]
            counts[group] = 0 if removed[pair] else 1
            if pair >= held:
                became[pair - held] = MISSING if removed[pair] else ADDED
            continue
        pairs = order[begin:end]
        group_keys = np.empty(end - begin, np.uint64)
        for i in range(end - begin):
            group_keys[i] = keys[pairs[i]]
        by_key = np.argsort(group_keys, kind="mergesort")  # stable: changes of one key stay in time order
        at, is_there = begin, False
        for i in range(end - begin):
            pair = pairs[by_key[i]]
            if pair < held:
                is_there |= not removed[pair]
            elif removed[pair]:
                became[pair - held] = REMOVED if is_there else MISSING
                is_there = False
            else:
                became[pair - held] = ALREADY_THERE if is_there else ADDED
                is_there = True
            if i + 1 < end - begin and group_keys[by_key[i]] == group_keys[by_key[i + 1]]:
                continue
            if not removed[pair]:
                out[at] = group_keys[by_key[i]]
                if has_times:
                    out_expires[at] = expires[pair]
                at += 1
            is_there = False
        counts[group] = at - begin


@kernel
def _close_gaps(first_pairs, counts, keys, offsets, out, first, last):
    for group in range(first, last):
        for i in range(counts[group]):
            out[offsets[group] + i] = keys[first_pairs[group] + i]


def keys_left(
    first_pairs: I64Array,
    order: U32Array,
    keys: U64Array,
    removed: BoolArray,
    expires: I64Array | None,
    held: int,
    *,
    threads: int = 1,
) -> tuple[I64Array, U64Array, I64Array | None, U8Array]:
    """Keys of each group after its changes, applied in order.

    Parameters
    ----------
    first_pairs, order
        Changes grouped by set, oldest first, as `group_by` returns them.
    keys : uint64 array
        Key of each change.
    removed : bool array
        Whether the change removes the key (else it adds it).
    expires : int64 array, optional
        When the key expires that the change adds.
    held : int
        So many of these come first that are no changes, but keys that there were.

    Returns
    -------
    offsets : int64 array, length groups + 1
    keys : uint64 array
        Ascending within each group, each key once; a group may have none left.
    expires : int64 array, optional
        When each of them does; `None` if none does.
    became : uint8 array
        Of each change: `ADDED`, `ALREADY_THERE`, `REMOVED` or `MISSING`.
    """
    times = np.zeros(0, np.int64) if expires is None else expires
    loose, loose_times = np.empty(len(keys), np.uint64), np.empty(len(times), np.int64)
    counts = np.empty(len(first_pairs) - 1, np.int64)
    became = np.empty(len(keys) - held, np.uint8)
    ranges = even_work(first_pairs, threads)
    run_rows(
        lambda a, b: _keys_left(
            first_pairs, order, keys, removed, times, held, a, b, loose, loose_times, counts, became
        ),
        ranges,
        threads,
    )  # fmt: skip
    offsets = offsets_of(counts)

    def without_gaps(column: U64Array) -> U64Array:
        if offsets[-1] == len(column):
            return column
        tight = np.empty(int(offsets[-1]), np.uint64)
        run_rows(lambda a, b: _close_gaps(first_pairs, counts, column, offsets, tight, a, b), ranges, threads)
        return tight

    left = without_gaps(loose)
    times_left = None if expires is None else if_any(without_gaps(loose_times.view(np.uint64)).view(np.int64))
    return offsets, left, times_left, became
