"""From a snapshot and changes to the next snapshot, at a cost that follows the changes: large segments stay.

A log-structured merge: changed sets go, with all keys that they have then, to a new segment, and their rows in other
segments are marked as deleted. So each set is in one segment, and each segment answers by itself. Small segments are
taken into the new one at once; others are merged by size (`to_merge`), so that there are few.

Keys that have expired go the same way: `now`, in microseconds since 1970, UTC, says which these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tagmatch.model.arrays import I64Array, Lists, Strings, TagLists, U32Array, U64Array, offsets_of
from tagmatch.model.kernels.lists import gather, relabel
from tagmatch.model.kernels.tag_table import UNKNOWN
from tagmatch.model.layouts import empty_segment, has_tables_for, rules_of
from tagmatch.model.options import LayoutOptions
from tagmatch.model.tables import NEVER, ChangeCounts, Segment, Snapshot
from tagmatch.partitioner.local import (
    MISSING,
    Changes,
    distinct_sets,
    held_by,
    held_in,
    no_changes,
    ranks_of,
    segment_after,
)
from tagmatch.partitioner.staged import StagedChanges

#: Sets of a segment that is always taken into the new one: to lay these out anew takes some ten milliseconds
FEW_SETS = 1 << 14

# Sets that one thread lays out: more would gain little, and take the processors from those that answer queries
_ALONE_SETS = 1 << 16

# Segments of a snapshot at most, as each makes every query slower
_MOST_SEGMENTS = 8

# Seconds without changes after which everything is merged: at least, and for each set
_REST_S, _REST_A_SET_S = 30.0, 30e-6

# A segment is merged with all smaller ones if these have more than one set for this many of the segment
_RATIO = 8


def consolidated(
    snapshot: Snapshot, changes: Changes, options: LayoutOptions, *, now: int, threads: int = 1
) -> tuple[Snapshot, ChangeCounts]:
    """The snapshot after the changes, and their results; segments that were not small keep their tables."""
    live = [segment.live for segment in snapshot.segments]
    small = [snapshot.segments[place] for place in to_take_in(live, len(changes))]
    if len(changes) + sum(segment.live for segment in small) <= _ALONE_SETS:
        threads = 1
    held, kept = [held_by(segment, threads=threads) for segment in small], []
    for segment in snapshot.segments:
        if segment in small:
            continue
        due, rest = without_due(segment, now)
        changed = np.concatenate([due, rows_with(rest, changes.tags, changes.rows, threads=threads)])
        if len(changed):
            held.append(held_in(segment, changed))
        if segment.live > len(changed):
            kept.append(rest.without(changed[len(due) :]))
    if not held:  # no sets, which say of what type keys are
        held.append(held_in(snapshot.segments[0], np.zeros(0, np.uint32)))
    new, became = segment_after(held, changes, options, now=now, threads=threads)
    return _with(kept, new), became


def without_expired(snapshot: Snapshot, options: LayoutOptions, *, now: int, threads: int = 1) -> Snapshot:
    """The snapshot without keys that have expired.

    It keeps its number and, if no key has expired, its name.
    """
    if snapshot.earliest > now:
        return snapshot
    parts = [(segment, *without_due(segment, now)) for segment in snapshot.segments]
    segments = tuple(rest for _, _, rest in parts)
    if not any(len(due) for _, due, _ in parts):
        return replace(snapshot, segments=segments)
    if any(have_more_keys(segment, due, now) for segment, due, _ in parts):
        rest, _ = consolidated(snapshot, no_changes(), options, now=now, threads=threads)
        return replace(rest, number=snapshot.number)
    live = tuple(segment for segment in segments if segment.live)
    return Snapshot(live or (empty_segment(options, snapshot.key_type),), number=snapshot.number)


def rebuilt(
    snapshot: Snapshot, changes: Changes, options: LayoutOptions, *, now: int, threads: int = 1
) -> tuple[Snapshot, ChangeCounts]:
    """As `consolidated`, as one segment without deletions; the same snapshot if nothing changes."""
    is_as_wanted = snapshot.is_whole and snapshot.only.options == options
    if len(changes) == 0 and is_as_wanted and snapshot.earliest > now:
        return snapshot, ChangeCounts()
    held = [held_by(segment, threads=threads) for segment in snapshot.segments]
    new, became = segment_after(held, changes, options, now=now, threads=threads)
    return Snapshot((new,)), became


def merged(segments: Sequence[Segment], options: LayoutOptions, *, now: int, threads: int = 1) -> Segment:
    """One segment of the sets of some segments of a snapshot, in the layout of `options`."""
    return rebuilt(Snapshot(tuple(segments)), no_changes(), options, now=now, threads=threads)[0].only


def in_layout(snapshot: Snapshot, options: LayoutOptions, *, now: int, threads: int = 1) -> Snapshot:
    """The snapshot in the layout of `options`: itself if it has that; one segment if all must be laid out anew."""
    segments = snapshot.segments
    if all(segment.options == options for segment in segments):
        return snapshot
    if all(has_tables_for(segment.options, options) for segment in segments):
        return Snapshot(tuple(replace(segment, options=options) for segment in segments))
    return Snapshot((merged(segments, options, now=now, threads=threads),))


def with_merged(snapshot: Snapshot, segments: Sequence[Segment], new: Segment) -> Snapshot:
    """The snapshot with a segment instead of those, of an earlier snapshot, that were merged to it.

    What has been deleted in these since, is deleted in the new one.
    """
    for segment in segments:
        now = next((each for each in snapshot.segments if each.tagsets is segment.tagsets), None)
        rows = segment.live_rows(0, len(segment)).astype(np.uint32)
        if now is not None:
            rows = rows[now.deletions.among(rows)] if now.deletions is not None else rows[:0]
        if len(rows):
            gone = held_in(segment, rows)
            new = new.without(rows_with(new, gone.vocabulary.tags, gone.ranks))
    tables = [segment.tagsets for segment in segments]
    kept = [each for each in snapshot.segments if not any(each.tagsets is table for table in tables)]
    return _with(kept, new)


def _with(segments: Sequence[Segment], new: Segment) -> Snapshot:
    """The snapshot of segments and a new one, which is left out if it has no sets and is not the only one."""
    return Snapshot((*segments, new) if new.live or not segments else tuple(segments))


def to_merge(snapshot: Snapshot) -> list[Segment]:
    """The segments that are best merged now, or none: each other one has `_RATIO` times the sets of all smaller ones.

    Rows that are deleted count as sets that the segment lacks: a segment with many of them is laid out anew, too.
    """
    by_size = sorted(snapshot.segments, key=lambda segment: segment.live)
    sets, wanted = 0, 0
    for place, segment in enumerate(by_size):
        if segment.live < _RATIO * (sets + len(segment) - segment.live):
            wanted = place + 1
        sets += segment.live
    alone_and_whole = wanted == 1 and by_size[0].deletions is None
    return [] if alone_and_whole else by_size[:wanted]


def rest_before_all(snapshot: Snapshot) -> float | None:
    """Seconds without changes after which all segments are best laid out anew as one; `None` if that is what there is.

    Some ten times what that takes, so that it takes no more than a tenth of the time of an index that changes now and
    then.
    """
    if snapshot.is_whole:
        return None
    return max(_REST_S, _REST_A_SET_S * len(snapshot))


def count_tags(snapshot: Snapshot, *, threads: int = 1) -> int:
    """How many different tags there are; those of deleted rows count, until their segment is merged."""
    first, *others = sorted((segment.vocabulary for segment in snapshot.segments), key=len, reverse=True)
    seen, count = [first], len(first)
    for vocabulary in others:
        new = np.ones(len(vocabulary), np.bool_)
        for known in seen:
            new &= ranks_of(vocabulary.tags, known, threads=threads) == UNKNOWN
        seen.append(vocabulary)
        count += int(np.count_nonzero(new))
    return count


def rows_with(segment: Segment, tags: Strings, sets: Lists, *, threads: int = 1) -> U32Array:
    """Rows of a segment, ascending and not deleted, that have one of these sets: lists of places in `tags`."""
    return rows_with_ranks(segment, ranks_of(tags, segment.vocabulary, threads=threads), sets)


def rows_with_ranks(segment: Segment, ranks: U32Array, sets: Lists) -> U32Array:
    """`rows_with`, where the rank of each tag in the segment is known; UNKNOWN if it has none."""
    unknown = offsets_of(ranks[sets.values] == UNKNOWN)
    possible = np.flatnonzero(unknown[sets.offsets[1:]] == unknown[sets.offsets[:-1]]).astype(np.uint32)
    rows = rules_of(segment.options).rows_of(segment, relabel(gather(sets, possible), ranks))
    found = np.unique(rows[rows >= 0]).astype(np.uint32)
    return found if segment.deletions is None else np.delete(found, segment.deletions.among(found))


def to_take_in(live: Sequence[int], changes: int) -> list[int]:
    """Places of the segments, with these sets each, that go into a new one: the small ones, and those too many."""
    by_size = sorted(range(len(live)), key=lambda place: live[place])
    few = max(FEW_SETS, changes)
    small = sum(sets <= few for sets in live)
    return by_size[: max(small, len(by_size) - _MOST_SEGMENTS + 1)]


def missing_rows(
    snapshot: Snapshot,
    staged: StagedChanges,
    chunks: list[TagLists],
    keys: U64Array | Strings,
    *,
    now: int,
    threads: int = 1,
) -> I64Array:
    """Which of these rows, if they were removed one after the other, would remove nothing."""
    changed = staged.of_keys(keys)
    before = len(changed)
    changed.extend(chunks, keys, removed=True)
    changes = changed.changes()
    held = [
        held_in(segment, rows_with(segment, changes.tags, changes.rows, threads=threads))
        for segment in snapshot.segments
    ]
    became = distinct_sets(held, changes, now=now, threads=threads).became
    return np.flatnonzero(became[before:] == MISSING)


# -- keys that have expired --------------------------------------------------------------------------------------------


def without_due(segment: Segment, now: int) -> tuple[U32Array, Segment]:
    """The rows, ascending, of sets with a key that has expired, and the segment without these sets."""
    if segment.earliest > now:
        return np.zeros(0, np.uint32), segment
    rows = due_rows(segment, now, 0, len(segment))
    times = segment.keys.expires
    assert times is not None
    following = int(times.min(initial=NEVER, where=times > now))
    return rows, replace(segment.without(rows), earliest=following)


def due_rows(segment: Segment, now: int, first: int, last: int) -> U32Array:
    """The rows from `first` to `last` of sets with a key that has expired."""
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
