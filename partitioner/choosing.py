"""Snapshots of only some keys of another one, which follow it at a cost that follows its changes.

A segment that has few other keys keeps its tables, and rows without chosen keys are deleted. What else is chosen is
laid out in its own segment: so an answer takes as long as that of an index that has only these keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np

from tagmatch.model.arrays import BoolArray, I64Array, Lists, list_offsets, offsets_of
from tagmatch.model.layouts import empty_segment
from tagmatch.model.options import LayoutOptions
from tagmatch.model.tables import Segment, Snapshot, if_any
from tagmatch.partitioner.consolidation import rows_with
from tagmatch.partitioner.local import held_in, no_changes, only_names_of, segment_after
from tagmatch.partitioner.replacing import with_records

# With fewer of its rows, a segment's tables answer at less than 0.9 times the rate of those of these rows alone
_ENOUGH = 0.9

#: Which keys of a segment are chosen, by their places in the key table
Choose: TypeAlias = Callable[[Segment], BoolArray]


class Chosen(NamedTuple):
    """A segment, and the segments of its chosen keys."""

    source: Segment
    segments: tuple[Segment, ...]


def chosen_of(
    snapshot: Snapshot, choose: Choose, options: LayoutOptions, earlier: Sequence[Chosen], *, now: int, threads: int
) -> tuple[Snapshot, list[Chosen]]:
    """The snapshot of the chosen keys; `earlier` has what an earlier call returned for the same choice."""
    found = []
    for segment in snapshot.segments:
        known = next((each for each in earlier if each.source.tagsets is segment.tagsets), None)
        after = None if known is None else _after_deletions(known, segment)
        found.append(after or Chosen(segment, _segments_of(segment, choose(segment), options, now, threads)))
    segments = tuple(own for each in found for own in each.segments if own.live)
    return Snapshot(segments or (empty_segment(options, snapshot.key_type),), number=snapshot.number), found


def _after_deletions(known: Chosen, segment: Segment) -> Chosen | None:
    """The chosen keys of the same tables with more rows deleted; `None` if some are there again."""
    before, after = known.source.deletions, segment.deletions
    if before is after:
        return known
    if after is None or (before is not None and not before.are_within(after)):
        return None
    gone = after.rows()
    if before is not None:
        gone = np.delete(gone, before.among(gone))
    sets, left = segment.sets(gone.astype(np.uint32)), []
    rows = Lists(sets.offsets, np.arange(len(sets.tags), dtype=np.uint32))
    for own in known.segments:
        if own.tagsets is segment.tagsets:
            deleted = gone if own.deletions is None else np.delete(gone, own.deletions.among(gone))
        else:
            deleted = rows_with(own, sets.tags, rows).astype(np.int64)
        left.append(own.without(deleted))
    return Chosen(segment, tuple(left))


def _segments_of(
    segment: Segment, kept: BoolArray, options: LayoutOptions, now: int, threads: int
) -> tuple[Segment, ...]:
    """The segments of the keys at some places of a segment's key table."""
    offsets = segment.keys.keys.offsets
    before = offsets_of(kept)
    counts = before[offsets[1:]] - before[offsets[:-1]]
    live = segment.live_rows(0, len(segment))
    are_whole = counts[live] == np.diff(offsets)[live]
    if are_whole.all():
        return (segment,)
    some, whole = live[(counts[live] > 0) & ~are_whole], live[are_whole]
    if len(whole) < _ENOUGH * len(segment):
        return (_laid_out(segment, np.sort(np.append(some, whole)), kept, options, now, threads),)
    rest = segment.without(live[~are_whole])
    return (rest, _laid_out(segment, some, kept, options, now, threads)) if len(some) else (rest,)


def _laid_out(
    segment: Segment, rows: I64Array, kept: BoolArray, options: LayoutOptions, now: int, threads: int
) -> Segment:
    """A segment of some rows with those of their keys that are kept."""
    lengths = segment.keys.keys.lengths()[rows]
    begins = segment.keys.keys.offsets[rows].astype(np.int64) - offsets_of(lengths)[:-1]
    own = kept[np.repeat(begins, lengths) + np.arange(int(lengths.sum()))]
    held = held_in(segment, rows.astype(np.uint32))
    ends = offsets_of(own)[offsets_of(lengths)]
    times = None if held.keys.expires is None else if_any(held.keys.expires[own])
    keys = Lists(list_offsets(np.diff(ends)), held.keys.keys.values[own])
    table = only_names_of(replace(held.keys, keys=keys, expires=times))
    new, _ = segment_after([replace(held, keys=table)], no_changes(), options, now=now, threads=threads)
    return with_records(Snapshot((segment,)), no_changes(), new, now)
