"""Staged changes, and from a snapshot and changes to the next snapshot, at a cost that follows the changes.

Changes that are not yet consolidated are kept as columns of tag numbers. When they are, large segments stay.
A log-structured merge: changed sets go, with all keys that they have then, to a new segment, and their rows in other
segments are marked as deleted. So each set is in one segment, and each segment answers by itself. Small segments are
taken into the new one at once; others are merged by size (`to_merge`), so that few remain.

Keys that have expired go the same way: `now`, in microseconds since 1970, UTC, says which these are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import (
    BoolArray,
    I64Array,
    IntArray,
    Lists,
    Strings,
    TagLists,
    U8Array,
    U32Array,
    U64Array,
    list_offsets,
    offsets_of,
)
from tagmatch.model.arrow import from_strings
from tagmatch.model.asked import NOTHING_ASKED, Asked, AskedRows, joined
from tagmatch.model.change_counts import DELETE, PUT, REMOVE, ChangeCounts
from tagmatch.model.columns import rows_of_tags, strings_of
from tagmatch.model.directory import Keys, keys_at, some_keys
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.kernels.hashing import hash_strings
from tagmatch.model.kernels.lists import ascending_known, gather, gather_strings, relabel
from tagmatch.model.kernels.tag_table import UNKNOWN, TagInterner
from tagmatch.model.layouts import empty_segment, has_tables_for, rules_of
from tagmatch.model.options import LayoutOptions
from tagmatch.model.tables import NEVER, Segment, Snapshot, if_any
from tagmatch.partitioner.local import (
    MAX_ROWS,
    MISSING,
    Changes,
    deletes_without_sets,
    distinct_sets,
    held_by,
    held_in,
    no_changes,
    ranks_of,
    segment_after,
)
from tagmatch.partitioner.replacing import no_tags, resolved, with_records

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
    snapshot: Snapshot, changes: Changes, options: LayoutOptions, *, now: int, threads: int = 1, full: bool = False
) -> tuple[Snapshot, ChangeCounts]:
    """The snapshot after the changes, and their results; segments that were not small keep their tables.

    A `full` one has one segment without deletions; it is the same snapshot if nothing changes.
    """
    changes = resolved(snapshot, changes, _after_removals)
    live = [segment.live for segment in snapshot.segments]
    small = list(snapshot.segments)
    if not full:
        small = [small[place] for place in to_take_in(live, len(changes))]
        if len(changes) + sum(segment.live for segment in small) <= _ALONE_SETS:
            threads = 1
    elif (
        not len(changes)
        and changes.deletes is None
        and snapshot.is_whole
        and snapshot.only.options == options
        and snapshot.earliest > now
    ):
        return snapshot, ChangeCounts()
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
    return _with(kept, with_records(snapshot, changes, new, now)), became


def without_expired(snapshot: Snapshot, options: LayoutOptions, *, now: int, threads: int = 1) -> Snapshot:
    """The snapshot without keys that have expired; it keeps its number and, if none has, its name."""
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


def merged(segments: Sequence[Segment], options: LayoutOptions, *, now: int, threads: int = 1) -> Segment:
    """One segment of the sets of some segments of a snapshot, in the layout of `options`."""
    snapshot = Snapshot(tuple(segments))
    return consolidated(snapshot, no_changes(), options, now=now, threads=threads, full=True)[0].only


def in_layout(snapshot: Snapshot, options: LayoutOptions, *, now: int, threads: int = 1) -> Snapshot:
    """The snapshot in the layout of `options`: itself if it has that; one segment if all must be laid out anew."""
    segments = snapshot.segments
    if all(segment.options == options for segment in segments):
        return snapshot
    if all(has_tables_for(segment.options, options) for segment in segments):
        return Snapshot(tuple(replace(segment, options=options) for segment in segments))
    return Snapshot((merged(segments, options, now=now, threads=threads),))


def with_merged(snapshot: Snapshot, segments: Sequence[Segment], new: Segment) -> Snapshot:
    """The snapshot with `new` in place of the segments merged to it, without rows deleted in these since then."""
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
    """The segments to merge now, or none: each other one has `_RATIO` times the sets of all smaller ones."""
    # Deleted rows count as sets that the segment lacks: one with many of them is laid out anew, too
    by_size = sorted(snapshot.segments, key=lambda segment: segment.live)
    sets, wanted = 0, 0
    for place, segment in enumerate(by_size):
        if segment.live < _RATIO * (sets + len(segment) - segment.live):
            wanted = place + 1
        sets += segment.live
    alone_and_whole = wanted == 1 and by_size[0].deletions is None
    return [] if alone_and_whole else by_size[:wanted]


def rest_before_all(snapshot: Snapshot) -> float | None:
    """Seconds without changes after which all segments are best laid out as one; `None` if they are one."""
    # Some ten times what that takes, so that it takes a tenth of the time of an index that changes now and then
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
    changed.extend(chunks, keys, removed=True)
    _, became = _outcome(snapshot, changed, now, threads)
    return np.flatnonzero(became[len(became) - len(keys) :] == MISSING)


def keys_without_sets(
    snapshot: Snapshot, staged: StagedChanges, keys: U64Array | Strings, *, now: int, threads: int = 1
) -> I64Array:
    """The places of keys which, if they were deleted one after the other, would have no sets."""
    changed = staged.of_keys(keys)
    changed.extend([no_tags(len(keys))], keys, removed=DELETE)
    changes, became = _outcome(snapshot, changed, now, threads)
    without = deletes_without_sets(changes, became)
    assert changes.deletes is not None
    places = without - (len(changes.deletes) - len(keys))
    return places[places >= 0]


def _outcome(snapshot: Snapshot, changed: StagedChanges, now: int, threads: int) -> tuple[Changes, U8Array]:
    """Staged changes, of one set each, and what would happen to them."""
    changes = resolved(snapshot, changed.changes(), _after_removals)
    held = [
        held_in(segment, rows_with(segment, changes.tags, changes.rows, threads=threads))
        for segment in snapshot.segments
    ]
    return changes, distinct_sets(held, changes, now=now, threads=threads).became


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


# -- staged changes ----------------------------------------------------------------------------------------------------

# Single changes wait as Python objects until there are this many
_SINGLE_CHANGES = 4096

# Rows of a bulk change that are hashed and numbered together, which bounds the memory that takes
_BLOCK_ROWS = 65_536


class _Block(NamedTuple):
    """Some changes, in columns."""

    lengths: U32Array  # how many tags each change's set has
    numbers: U32Array  # the numbers of these tags, ascending within a set
    keys: U64Array  # or the numbers of keys that are strings
    kinds: U8Array
    expires: I64Array | None  # as in `Changes`
    records: I64Array | None
    asked: pa.Table | None
    end: int  # changes up to the end of the block


class _Staged(NamedTuple):
    """Changes, oldest first: those that `StagedChanges.changes` has given, and later ones."""

    given: Changes | None
    tags: TagInterner  # which numbers the tags of the blocks
    names: TagInterner  # which numbers their keys, if these are strings
    blocks: list[_Block]
    single: list[tuple[list[str], int | str, int, int, Asked | None]]  # single changes, after the blocks

    @classmethod
    def after(cls, given: Changes | None) -> _Staged:
        """Nothing but changes that were given."""
        return cls(given, TagInterner(), TagInterner(), [], [])

    @property
    def later(self) -> int:
        """How many later changes there are."""
        return (self.blocks[-1].end if self.blocks else 0) + len(self.single)

    def changes_of(self, block: _Block) -> Changes:
        """The changes of a block."""
        rows = Lists(list_offsets(block.lengths), block.numbers)
        names = self.names.strings()
        return Changes(
            self.tags.strings(), rows, block.keys, block.kinds, names, block.expires, block.records, block.asked
        )


class StagedChanges:
    """Additions and removals not yet consolidated. Not thread-safe: its owner holds a lock.

    Whatever fails, or is interrupted at any moment, stages a call's changes all or not at all: they are made ready
    first, and staged in one step, which is one operation on a list or one assignment.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._staged = _Staged.after(None)

    def __len__(self) -> int:
        staged = self._staged
        return staged.later if staged.given is None else len(staged.given) + staged.later

    def append(
        self, tags: list[str], key: int | str, *, removed: int, expires: int = NEVER, asked: Asked | None = None
    ) -> None:
        """Stage one change of a validated set and key; all keys are integers, or all are strings.

        `removed` is whether the change removes the key, or what it does otherwise, as a kind of change; with `asked`,
        it puts the key, whose record that is.
        """
        if len(self._staged.single) >= _SINGLE_CHANGES:
            self._reject_more_than_fit(_SINGLE_CHANGES)
            self._pack()
        self._staged.single.append((tags, key, removed, expires, asked))

    def extend(
        self,
        chunks: list[TagLists],
        keys: Keys,
        *,
        removed: int | BoolArray | U8Array,
        expires: I64Array | None = None,
        records: AskedRows = NOTHING_ASKED,
    ) -> None:
        """Stage a change for each row of all chunks; `keys` has one for each, as have others that are arrays."""
        self._reject_more_than_fit(len(keys))
        self._pack()
        self._staged.blocks.extend(self._blocks_of(chunks, keys, removed, expires, records, self._staged.later))

    def changes(self) -> Changes:
        """All changes as one table. They stay staged until `drop` lets go of them."""
        self._pack()
        staged = self._staged
        if staged.given is None or staged.blocks:
            later = no_changes() if not staged.blocks else staged.changes_of(_joined(staged.blocks))
            whole = later if staged.given is None else self._after_all_of(staged.given, later)
            self._staged = _Staged.after(whole)
            return whole
        return staged.given

    def of_keys(self, keys: Keys) -> StagedChanges:
        """Those of these changes that are of some keys, in order, without records."""
        found, staged = StagedChanges(self._threads), self._staged
        if staged.given is not None:
            found.extend_some(staged.given, keys)
        for block in staged.blocks:
            found.extend_some(staged.changes_of(block), keys)
        if staged.single:
            for place in np.flatnonzero(_are_among(_column([key for _, key, *_ in staged.single]), keys)):
                row, key, removed, expires, _ = staged.single[place]
                found.append(row, key, removed=removed, expires=expires)
        return found

    def puts_of(self, keys: Keys) -> Iterator[tuple[Keys, I64Array | None, pa.Table | None]]:
        """Those of these changes that put some keys: these keys, and of each the row of a table of records, or -1."""
        staged = self._staged
        parts = [] if staged.given is None else [staged.given]
        for changes in (*parts, *(staged.changes_of(block) for block in staged.blocks)):
            own = keys_at(changes.names if isinstance(keys, Strings) else None, changes.keys)
            chosen = np.flatnonzero((changes.kinds == PUT) & _are_among(own, keys))
            yield some_keys(own, chosen), None if changes.records is None else changes.records[chosen], changes.asked
        single = [(key, asked) for _, key, kind, _, asked in staged.single if kind == PUT]
        if single:
            records, table = AskedRows.of([asked for _, asked in single])
            own = _column([key for key, _ in single])
            chosen = np.flatnonzero(_are_among(own, keys))
            yield some_keys(own, chosen), None if records is None else records[chosen], table

    def extend_some(self, changes: Changes, keys: Keys) -> None:
        """Stage those of other changes that are of some keys."""
        if isinstance(keys, Strings):
            chosen = np.flatnonzero(_are_among(changes.names, keys)[changes.keys]).astype(np.uint32)
            own: Keys = gather_strings(changes.names, changes.keys[chosen])
        else:
            chosen = np.flatnonzero(_are_among(changes.keys, keys)).astype(np.uint32)
            own = changes.keys[chosen]
        rows = gather(changes.rows, chosen)
        times = None if changes.expires is None else changes.expires[chosen]
        chunk = TagLists(rows.offsets, gather_strings(changes.tags, rows.values))
        self.extend([chunk], own, removed=changes.kinds[chosen], expires=times)

    def stage_before(self, earlier: StagedChanges) -> None:
        """Stage other changes before all of these."""
        self._staged = _Staged.after(self._after_all_of(earlier.changes(), self.changes()))

    def drop(self, changes: Changes) -> None:
        """Let go of the table that `changes` returned, which has taken effect; later changes stay."""
        if self._staged.given is changes:
            self._staged = self._staged._replace(given=None)

    def _after_all_of(self, earlier: Changes, later: Changes) -> Changes:
        whole = StagedChanges(self._threads)
        for changes in (earlier, later):
            staged, tags = whole._staged, changes.tags
            numbers = staged.tags.intern(tags, hash_strings(tags, threads=self._threads), threads=self._threads)
            keys = whole._numbers(changes.names)[changes.keys] if len(changes.names) else changes.keys
            rows = changes.rows
            block = _block_of(rows.offsets, numbers[rows.values], keys, changes.kinds, changes.expires, staged.later)
            staged.blocks.append(block._replace(records=changes.records, asked=changes.asked))
        return whole.changes()

    def _pack(self) -> None:
        """Make a block of the single changes."""
        staged = self._staged
        if staged.single:
            tags, keys, kinds, expires, asked = zip(*staged.single, strict=True)
            times, begin = np.array(expires, np.int64), staged.later - len(staged.single)
            chunks, records = [rows_of_tags(tags)], AskedRows.of(asked)
            packed = self._blocks_of(chunks, _column(keys), np.array(kinds, np.uint8), times, records, begin)
            self._staged = staged._replace(blocks=[*staged.blocks, *packed], single=[])

    def _blocks_of(
        self,
        chunks: list[TagLists],
        keys: Keys,
        removed: int | BoolArray | U8Array,
        expires: I64Array | None,
        records: AskedRows,
        begin: int,
    ) -> list[_Block]:
        """Blocks of rows that come after `begin` others."""
        blocks, done = list[_Block](), 0
        numbers_of_keys, kinds = self._numbers(keys), np.full(len(keys), removed, np.uint8)
        for chunk in chunks:
            for first in range(0, len(chunk), _BLOCK_ROWS):
                offsets = chunk.offsets[first : first + _BLOCK_ROWS + 1]
                ends = int(offsets[0]), int(offsets[-1])
                numbers = self._staged.tags.intern_tags(chunk, *ends, threads=self._threads)
                some = slice(done, done + len(offsets) - 1)
                times = None if expires is None else expires[some]
                block = _block_of(offsets, numbers, numbers_of_keys[some], kinds[some], times, begin + done)
                own, asked = records.part(some)
                blocks.append(block._replace(records=own, asked=asked))
                done = some.stop
        return blocks

    def _numbers(self, keys: Keys) -> U64Array:
        """Keys that are integers as they are, the numbers of those that are strings."""
        if not isinstance(keys, Strings):
            return keys
        hashes = hash_strings(keys, threads=self._threads)
        return self._staged.names.intern(keys, hashes, threads=self._threads).astype(np.uint64)

    def _reject_more_than_fit(self, rows: int) -> None:
        if len(self) + rows > MAX_ROWS:
            raise InvalidValueError(f"more than {MAX_ROWS} staged changes; call consolidate() before adding more")


def _after_removals(removals: list[tuple[TagLists, Keys]], changes: Changes) -> Changes:
    """Removals of keys from sets, and then changes, as one table."""
    before = StagedChanges()
    for sets, keys in removals:
        before.extend([sets], keys, removed=REMOVE)
    return before._after_all_of(before.changes(), changes)


def _joined(blocks: list[_Block]) -> _Block:
    """All blocks as one."""
    if len(blocks) == 1:
        return blocks[0]
    *columns, times, records, asked, ends = zip(*blocks, strict=True)
    lengths, numbers, keys, kinds = map(np.concatenate, columns)
    expires = None
    if any(each is not None for each in times):
        parts = [np.full(len(each.keys), NEVER) if each.expires is None else each.expires for each in blocks]
        expires = np.concatenate(parts)
    own = joined([AskedRows(*each) for each in zip(records, asked, strict=True)], [len(each) for each in columns[0]])
    return _Block(lengths, numbers, keys, kinds, expires, *own, ends[-1])


def _block_of(
    offsets: IntArray, numbers: U32Array, keys: U64Array, kinds: U8Array, expires: I64Array | None, begin: int
) -> _Block:
    """A block of rows of numbers, which are sorted in place; `begin` changes come before it."""
    new_offsets = np.zeros(len(keys) + 1, np.int64)
    used = ascending_known(offsets, 0, numbers, new_offsets)
    return _Block(
        np.diff(new_offsets).astype(np.uint32),
        numbers[:used].copy() if used < len(numbers) else numbers,
        keys.copy(),
        kinds,
        None if expires is None else if_any(expires.copy()),
        *NOTHING_ASKED,
        begin + len(keys),
    )


def _are_among(some: Keys, keys: Keys) -> BoolArray:
    """Which of some keys are among others."""
    if isinstance(some, Strings):
        assert isinstance(keys, Strings)
        found = pc.is_in(from_strings(some), from_strings(keys))
        return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)
    assert not isinstance(keys, Strings)
    return np.isin(some, keys)


def _column(keys: Sequence[int | str]) -> Keys:
    return strings_of(map(str, keys)) if isinstance(keys[0], str) else np.array(keys, np.uint64)
