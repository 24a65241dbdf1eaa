"""Which sets of a segment have keys that have expired."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tagmatch.model.arrays import U32Array
from tagmatch.model.tables import NEVER, Segment


def without_due(segment: Segment, now: int) -> tuple[U32Array, Segment]:
    """Find the sets that have a key which has expired.

    Parameters
    ----------
    now : int
        Microseconds since 1970, UTC.

    Returns
    -------
    rows : uint32 array
        Rows of these sets, ascending.
    segment : Segment
        The same with these rows deleted, whatever other keys they have; the very same where none expires by now.
    """
    if segment.earliest > now:
        return np.zeros(0, np.uint32), segment
    rows = due_rows(segment, now, 0, len(segment))
    times = segment.keys.expires
    assert times is not None
    following = int(times.min(initial=NEVER, where=times > now))
    return rows, replace(segment.without(rows), earliest=following)


def due_rows(segment: Segment, now: int, first: int, last: int) -> U32Array:
    """The rows of these sets from `first` to `last`."""
    times, offsets = segment.keys.expires, segment.keys.keys.offsets[first : last + 1]
    assert times is not None
    times = times[offsets[0] : offsets[-1]]
    # Of the offsets' own type, else each search in them would convert them all
    due = (offsets[0] + np.flatnonzero((times >= segment.earliest) & (times <= now))).astype(offsets.dtype)
    rows = (first + np.unique(np.searchsorted(offsets, due, side="right") - 1)).astype(np.uint32)
    return rows if segment.deletions is None else np.delete(rows, segment.deletions.among(rows))


def have_more_keys(segment: Segment, rows: U32Array, now: int) -> bool:
    """Whether some of these sets have keys that have not expired."""
    expires = segment.keys.of_sets(rows).expires
    return len(rows) > 0 and (expires is None or bool((expires > now).any()))
