"""Which keys of a set are left after a sequence of changes."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import BoolArray, I64Array, U32Array, U64Array, offsets_of
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.parallel import even_work, run_rows
from tagmatch.model.tables import if_any


@kernel
def _keys_left(first_pairs, order, keys, removed, expires, first, last, out, out_expires, counts):
    """For each group the keys whose last change is an addition, ascending, written from the group's place on.

    When they expire, too, unless `expires` is empty.
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
            continue
        pairs = order[begin:end]
        group_keys = np.empty(end - begin, np.uint64)
        for i in range(end - begin):
            group_keys[i] = keys[pairs[i]]
        by_key = np.argsort(group_keys, kind="mergesort")  # stable: changes of one key stay in time order
        at = begin
        for i in range(end - begin):
            is_last = i + 1 == end - begin or group_keys[by_key[i]] != group_keys[by_key[i + 1]]
            if is_last and not removed[pairs[by_key[i]]]:
                out[at] = group_keys[by_key[i]]
                if has_times:
                    out_expires[at] = expires[pairs[by_key[i]]]
                at += 1
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
    *,
    threads: int = 1,
) -> tuple[I64Array, U64Array, I64Array | None]:
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

    Returns
    -------
    offsets : int64 array, length groups + 1
    keys : uint64 array
        Ascending within each group, each key once; a group may have none left.
    expires : int64 array, optional
        When each of them does; `None` if none does.
    """
    times = np.zeros(0, np.int64) if expires is None else expires
    loose, loose_times = np.empty(len(keys), np.uint64), np.empty(len(times), np.int64)
    counts = np.empty(len(first_pairs) - 1, np.int64)
    ranges = even_work(first_pairs, threads)
    run_rows(
        lambda a, b: _keys_left(first_pairs, order, keys, removed, times, a, b, loose, loose_times, counts),
        ranges,
        threads,
    )
    offsets = offsets_of(counts)

    def without_gaps(column: U64Array) -> U64Array:
        if offsets[-1] == len(column):
            return column
        tight = np.empty(int(offsets[-1]), np.uint64)
        run_rows(lambda a, b: _close_gaps(first_pairs, counts, column, offsets, tight, a, b), ranges, threads)
        return tight

    left = without_gaps(loose)
    return offsets, left, None if expires is None else if_any(without_gaps(loose_times.view(np.uint64)).view(np.int64))
