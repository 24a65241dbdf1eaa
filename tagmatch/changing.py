"""Changes of an index: staged, in memory and in its log, and made, when another snapshot takes the place of one."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from tagmatch.background import Background, renew_in_forks
from tagmatch.model import clock
from tagmatch.model.arrays import I64Array, Strings, TagLists, U8Array, U64Array
from tagmatch.model.asked import NOTHING_ASKED, Asked, AskedRows, data_of
from tagmatch.model.change_counts import ChangeCounts
from tagmatch.model.data_types import with_columns
from tagmatch.model.errors import (
    ClosedError,
    IndexChangedError,
    IndexCorruptError,
    IndexNotFoundError,
    InvalidValueError,
    TagMatchError,
)
from tagmatch.model.kernels.tag_table import areas_among
from tagmatch.model.options import Durability, KeyType, LayoutOptions, MatchOptions, StagingOptions
from tagmatch.model.storage.files import Entry
from tagmatch.model.storage.format import Commit, Manifest, first_log_of, staged_of
from tagmatch.model.storage.log import Journal, changes_in, left_behind
from tagmatch.model.storage.log_records import Record, bulk_record, single_record
from tagmatch.model.storage.repository import Repository, open_with
from tagmatch.model.tables import NEVER, Segment, Snapshot
from tagmatch.model.where.tag_columns import check_geometry, shapes_of
from tagmatch.partitioner.consolidation import (
    StagedChanges,
    consolidated,
    in_layout,
    merged,
    rest_before_all,
    to_merge,
    with_merged,
    without_expired,
)
from tagmatch.partitioner.local import Changes
from tagmatch.pipeline.areas.positions import Clients
from tagmatch.pipeline.devices import Part, matcher_of, parts_for
from tagmatch.pipeline.one import AnswersOne
from tagmatch.pipeline.segment import Matcher

#: Gets the staged changes, and may raise an error
Check: TypeAlias = Callable[[StagedChanges], None]


class Staging:
    """The staged changes of an index. Any number of threads may share it.

    The log, and with it the right to write, is taken for the first change, and let go of when nothing is staged any
    more. What a program that ended has left in the log is staged then, before that change.
    """

    def __init__(
        self,
        location: Repository | None,
        key_type: KeyType,
        options: StagingOptions,
        threads: int,
        *,
        plane: bool = False,
    ) -> None:
        self.lock = threading.Lock()
        renew_in_forks(self, "lock")
        self._location, self._key_type, self._options = location, key_type, options
        self._of_single, self._of_many = options.of_single, options.of_many
        self._files = None if location is None else location.changeable
        self._threads, self._plane, self._changes = threads, plane, StagedChanges(threads)
        self._journal: Journal | None = None
        self._closed = False
        self._schema: dict[str, pa.DataType] = {}
        # How many changes another program has left, if that is not taken yet
        self._left = self._left_behind()

    def __len__(self) -> int:
        return len(self._changes) + (self._left or 0)

    @property
    def lost_at_the_end(self) -> int:
        """Changes that are lost when this program ends."""
        lasts = self._files is not None and self._options.durability != "none"
        return 0 if lasts else len(self._changes)

    def schema(self) -> dict[str, pa.DataType]:
        """The columns of data that keys may have."""
        return self._schema

    def take_columns(self, more: Mapping[str, pa.DataType], where: str) -> None:
        """Let keys have more columns of data; InvalidTypeError if one has another type."""
        self._schema = with_columns(self._schema, more, where)

    def append(
        self, tags: list[str], key: int | str, *, removed: int, expires: int = NEVER, asked: Asked | None = None
    ) -> None:
        """Stage one change of a validated set and key, as `StagedChanges.append` takes it."""
        if self._files is None:  # there is no log
            with self.lock:
                if self._closed:
                    raise ClosedError
                self._changes.append(tags, key, removed=removed, expires=expires, asked=asked)
            return
        self._stage(
            self._of_single,
            lambda: single_record(tags, key, removed=removed, expires=expires, asked=asked),
            lambda: self._changes.append(tags, key, removed=removed, expires=expires, asked=asked),
        )

    def extend(
        self,
        chunks: list[TagLists],
        keys: U64Array | Strings,
        *,
        removed: int | U8Array,
        expires: I64Array | None = None,
        records: AskedRows = NOTHING_ASKED,
        is_single: bool = False,
        check: Check | None = None,
    ) -> None:
        """Stage a change for each row of all chunks; `keys` has one for each, as have times.

        With `is_single`, all of them together are as durable as a single change. A check gets the earlier staged
        changes; if it raises an error, nothing is staged.
        """
        self._stage(
            self._of_single if is_single else self._of_many,
            lambda: bulk_record(chunks, keys, removed=removed, expires=expires, records=records),
            lambda: self._changes.extend(chunks, keys, removed=removed, expires=expires, records=records),
            check,
        )

    def take(self) -> tuple[Changes, int | None]:
        """All changes, which stay staged until `drop`, and the number of the log that later ones go to."""
        with self.lock:
            if self._journal is None:
                self._left = self._left_behind()
            elif not self._journal.is_there:
                self._let_go()  # another program has removed the folder, which is about to be made again
            if self._left is not None:
                self._acquire()
            changes = self._changes.changes()
            return changes, None if self._journal is None else self._journal.rotate()

    def hold(self) -> None:
        """Reserve staging for this program until no changes are staged any more; IndexLockedError."""
        with self.lock:
            if self._files is not None and self._journal is None:
                self._acquire()

    def drop(self, changes: Changes, log: int | None) -> None:
        """Drop the changes that `take` returned, which have taken effect; the caller holds the lock."""
        self._changes.drop(changes)
        if self._journal is not None and log is not None:
            self._journal.drop(log)
            if len(self._changes) == 0:
                self._let_go()

    def close(self) -> None:
        """Let go of the log, which keeps its changes."""
        with self.lock:
            self._closed = True
            self._let_go()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()

    def _stage(
        self,
        durability: Durability,
        record: Callable[[], Record],
        stage: Callable[[], None],
        check: Check | None = None,
    ) -> None:
        """Log a change and stage it, or neither; returns when it is as durable as the options say."""
        logged = record() if durability != "none" and self._files is not None else None
        with self.lock:
            if self._closed:
                raise ClosedError
            if self._left is not None or (self._journal is None and logged is not None):
                self._acquire()
            if check is not None:
                try:
                    check(self._changes)
                except BaseException:
                    if len(self._changes) == 0:  # so that others can stage changes
                        self._let_go()
                    raise
            journal = self._journal
            if logged is None or journal is None:
                stage()
                return
            self._reject_if_replaced(journal)
            if journal.refuses:
                journal.rotate()
            before = journal.position
            try:
                position = journal.write(logged)
                stage()
            except BaseException:
                journal.back_to(before)
                raise
        if durability == "fsync":  # without the lock: threads that wait for the disk wait for it together
            journal.sync(position)

    def _reject_if_replaced(self, journal: Journal) -> None:
        """Raise IndexChangedError unless the next program finds this log at the path of the index."""
        assert self._files is not None
        if not journal.counts(self._manifest):
            raise IndexChangedError(
                f"the folder {self._files} was moved, removed or replaced while this program had changes staged for "
                "the index in it: nothing was staged now; earlier staged changes are in memory, and consolidate() "
                "saves them to the folder that is there then, after reload() if that has another snapshot"
            )

    def _acquire(self) -> None:
        """Take the log, and stage its changes before all others."""
        assert self._files is not None
        left = StagedChanges(self._threads)
        journal = Journal.acquire(self._files, lambda: first_log_of(self._manifest()))
        try:
            came_with_it = changes_in(self._files, staged_of(self._manifest()))
            for chunks, keys, removed, expires, records in chain(came_with_it, journal.replay()):
                if isinstance(keys, Strings) != (self._key_type == "string"):
                    other = "string" if isinstance(keys, Strings) else "integer"
                    raise InvalidValueError(
                        f'the changes that are staged in {self._files} have keys of key_type "{other}", and this '
                        f'index has key_type "{self._key_type}": open it with key_type="{other}", or restore it from a '
                        "copy if it was consolidated with these keys"
                    )
                for chunk in chunks:
                    places = np.flatnonzero(areas_among(chunk.tags)).astype(np.uint32)
                    check_geometry(
                        shapes_of(chunk.tags, places).kinds,
                        f"the changes that are staged in {self._files} have areas",
                        plane=self._plane,
                    )
                if records.table is not None:
                    self.take_columns(data_of(records.table), f"the changes that are staged in {self._files}")
                left.extend(chunks, keys, removed=removed, expires=expires, records=records)
            if len(left):
                self._changes.stage_before(left)
        except BaseException:
            journal.close()
            raise
        self._journal, self._left = journal, None

    def _left_behind(self) -> int | None:
        return None if self._files is None else left_behind(self._files, self._manifest)

    def _manifest(self) -> Manifest:
        """What the index says of staged changes."""
        assert self._location is not None
        try:
            return self._location.manifest()
        except IndexNotFoundError:
            return {}


# Seconds between looks whether files that are mapped are as they were: to ask the system takes as long as to answer
_FILES_LOOK_S = 0.05
# Of the seconds of `auto_reload`, those after which a snapshot is followed by a look for the next one
_SOON = 0.1
# Seconds between looks at the clock for keys that expire: it may have been set, and the machine may have slept
_LOOK_S = 1.0
# Seconds in which keys expire that are dropped together; at least this many times the time of the last drop
_REST_S, _REST_RATIO = 1.0, 3


class Ready:
    """What answers single messages now; of one type for all keys and for some, which Python so reads soonest."""

    __slots__ = ("__weakref__", "one")

    def __init__(self) -> None:
        #: `None` if that is not known, or depends on files, which may have changed
        self.one: AnswersOne | None = None


class Answering(NamedTuple):
    """A snapshot, and what answers from it: a part for each segment, and a matcher for all of them."""

    snapshot: Snapshot
    parts: list[Part]
    matcher: Matcher


class Changing:
    """The snapshot that answers now, and its changes, in memory and on disk if any; any number of threads may share it.

    The snapshot was opened at the location, or has no sets. `keep` is as in `Commit`. The staging's lock is held in the
    step in which one snapshot takes the place of another. Threads in the background merge segments, drop keys that have
    expired and take over newer snapshots; they end with this object, which must not be part of a cycle of references.
    """

    def __init__(
        self,
        location: Repository | None,
        snapshot: Snapshot,
        staging: Staging,
        layout_options: LayoutOptions,
        options: MatchOptions,
        keep: int | None,
        clients: Clients,
    ) -> None:
        self._location, self._staging, self._keep = location, staging, keep
        self.layout_options, self._options, self._clients = layout_options, options, clients
        self.ready = Ready()
        self._told: weakref.WeakSet[Ready] = weakref.WeakSet()
        self._telling = threading.Lock()
        self.became = ChangeCounts()  # the results of all changes so far
        # Of the snapshots of the index on disk, those that are contained in the one in memory
        self._known: set[str] = set() if snapshot.name is None else {snapshot.name}
        self._consolidating = threading.Lock()
        # Is held while a snapshot takes the place of another, so that none brings back keys that were dropped before
        self._replacing = threading.Lock()
        renew_in_forks(self, "_consolidating", "_replacing", "_telling")
        self._look_at = time.monotonic() + _FILES_LOOK_S
        self._answer_from(self.prepared(self._without_expired(self._laid_out(snapshot))))
        # When there was last something to merge, when what answers was last the newest, and when it was taken over
        self._changed = self._looked = self._taken = time.monotonic()
        self.merging = Background(self.merge_all, "tagmatch-merge", "segments are not merged")
        failed = "keys that have expired are not dropped yet"
        self._expiring = Background(self.expire, "tagmatch-expiry", failed, _REST_S, in_forks=True)
        failed, seconds = "a newer snapshot is not taken over", options.auto_reload
        self._pause = seconds or 0.0
        self.following = Background(self.follow, "tagmatch-reload", failed, seconds, in_forks=True)
        if seconds is not None:
            self.following.begin(after=seconds)
        self._expect(self.held.snapshot)

    # -- what answers ------------------------------------------------------------------------------------------------

    def _answer_from(self, answering: Answering | None) -> None:
        self._answering = answering
        self.ready.one = None if answering is None or answering.snapshot.is_mapped else answering.matcher.one_query
        with self._telling:
            told = [*self._told]
        for each in told:
            each.one = None

    def tell(self, each: Ready) -> None:
        """Take `one` from it whenever something else answers here, as long as it is there."""
        with self._telling:
            self._told.add(each)

    @property
    def held(self) -> Answering:
        """What answers now, even if its files have changed; ClosedError after `end`."""
        answering = self._answering
        if answering is None:
            raise ClosedError
        return answering

    @property
    def is_laid_out(self) -> bool:
        """Whether `answering` is there already."""
        return True

    @property
    def answering(self) -> Answering:
        """What answers now; IndexCorruptError if its files were cut short or overwritten, ClosedError after `end`."""
        answering = self._answering
        if answering is None:
            raise ClosedError
        if (now := time.monotonic()) > self._look_at:
            try:
                answering.snapshot.verify()
            except IndexCorruptError:
                raise
            except TagMatchError:  # the system cannot say
                pass
            self._look_at = now + _FILES_LOOK_S
        return answering

    @property
    def snapshot(self) -> Snapshot:
        """The tables that answer now; errors as `answering`."""
        return self.answering.snapshot

    def prepared(self, snapshot: Snapshot, earlier: Answering | None = None) -> Answering:
        """A snapshot with what answers from it; tables that an earlier one has, too, keep their parts."""
        if earlier is not None and snapshot is earlier.snapshot:
            return earlier
        parts = parts_for(snapshot, self._options, () if earlier is None else earlier.parts, self._clients)
        return Answering(snapshot, parts, matcher_of(parts))

    def _without_expired(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot without keys that have expired by now."""
        if snapshot.earliest > (now := clock.now_us()):
            return snapshot
        with snapshot.verified():
            return without_expired(snapshot, self.layout_options, now=now, threads=self._options.threads)

    def replace(self, by: Answering | None = None, also: Callable[[], None] = lambda: None) -> Answering:
        """Let a snapshot answer, or the one that does, without keys that have expired; calls `also` in that step."""
        with self._replacing:
            ready = self.held if by is None else by
            ready = self.prepared(self._without_expired(ready.snapshot), ready)
            with self._staging.lock:
                if self._answering is not None:
                    self._answer_from(ready)
                also()
        return ready

    # -- changes -----------------------------------------------------------------------------------------------------

    def consolidate(self, *, full: bool) -> ChangeCounts:
        """Make staged changes take effect; returns their results."""
        with self._consolidating:
            current = self.held
            changes, log = self._staging.take()
            snapshot, became, is_changed = current.snapshot, ChangeCounts(), len(changes) > 0 or full
            with snapshot.verified():
                if is_changed:
                    now, threads, options = clock.now_us(), self._options.threads, self.layout_options
                    snapshot, became = consolidated(snapshot, changes, options, now=now, threads=threads, full=full)
                else:
                    snapshot = self._without_expired(snapshot)
            if is_changed or self._is_laid_out_anew or self._can_be_changed:
                snapshot = self._saved(snapshot, log=log)

            def drop() -> None:
                # Should this be interrupted before, the changes come once more, which changes nothing
                self._staging.drop(changes, log)
                self.became = self.became.and_also(became)

            current = self._take_over(self.prepared(snapshot, current), drop)
            if self._can_be_changed and rest_before_all(current.snapshot) is not None:
                self._begin_merging()
            return became

    def keep_declared(self) -> None:
        """Save the snapshot that answers now, with later declarations; nothing staged takes effect."""
        with self._consolidating:
            current = self.held
            self._take_over(self.prepared(self._saved(current.snapshot), current))

    def merge(self) -> bool:
        """Merge the segments that are best merged; returns whether there were any. One thread at a time may."""
        return self._merge(to_merge)

    def merge_all(self) -> float | None:
        """Merge what there is to merge and, at rest, everything; returns how many seconds that one is off, if it is."""
        with contextlib.suppress(IndexChangedError):  # the program that stages changes is told
            while self.merge():
                pass
            rest, rested = rest_before_all(self.snapshot), time.monotonic() - self._changed
            if rest is not None and rested < rest:
                return rest - rested
            if rest is not None:
                self._merge(lambda snapshot: list(snapshot.segments))
        return None

    def expire(self) -> float | None:
        """Drop keys that have expired, in memory; returns the seconds until the next look, with a rest after a drop."""
        began, earliest = time.monotonic(), self.snapshot.earliest
        rest = 0.0
        if earliest <= clock.now_us():
            snapshot = self.replace().snapshot
            if self._location is None and to_merge(snapshot):
                self._begin_merging()
            earliest = snapshot.earliest
            rest = max(_REST_S, _REST_RATIO * (time.monotonic() - began))
        return None if earliest == NEVER else max(rest, min((earliest - clock.now_us()) / 1e6, _LOOK_S))

    @property
    def is_behind(self) -> bool:
        """Whether another program has saved a snapshot that is not taken over yet."""
        if self._location is None or not self._known:
            return False
        return self._known != {self._location.manifest()["snapshot"]}

    def reload(self) -> bool:
        """Take over the snapshot that is on disk; returns whether it is another one."""
        with self._consolidating:
            before = self.held
            if self._location is None:
                raise InvalidValueError(
                    "there is nothing to reload: this TagMatch is in memory only; open it with a path"
                )
            self._location.check_reloadable()
            looked = time.monotonic()
            manifest = self._location.manifest()
            if self._known == {manifest["snapshot"]} and before.snapshot.is_sound:
                self._looked = looked
                return False
            snapshot = open_with(self._location, before.snapshot.key_type, before.snapshot, manifest)
            assert snapshot.name is not None
            known = {snapshot.name}

            # What another program declares since
            options = snapshot.segments[0].options
            self.layout_options = replace(self.layout_options, attributes=options.attributes, strict=options.strict)

            def know() -> None:
                self._known = known

            opened = self._without_expired(self._laid_out(snapshot))
            self._take_over(self.prepared(opened, before), know)
            self._looked = looked
            self._taken = time.monotonic()
            return True

    def follow(self) -> float | None:
        """`reload`, also if nothing has been saved yet; returns the seconds until the next look."""
        usual = self._options.auto_reload
        try:
            found = self.reload()
        except IndexNotFoundError:
            if self._known:
                raise
            found = False
        if usual is not None:
            self._pause = usual * _SOON if found else min(2 * self._pause, usual)
        return usual and self._pause

    @property
    def lag(self) -> dict[str, float] | None:
        """With `auto_reload`: seconds since what answers was seen to be the newest, and since it was taken over."""
        now = time.monotonic()
        none = self._options.auto_reload is None
        return None if none else {"behind_seconds": now - self._looked, "snapshot_seconds": now - self._taken}

    def end(self) -> None:
        """End the threads in the background, and let nothing answer any more."""
        self.merging.end()
        self.following.end()
        self._expiring.end()
        with self._staging.lock:
            self._answer_from(None)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _laid_out(self, snapshot: Snapshot) -> Snapshot:
        """An opened snapshot in the layout that the caller asked for."""
        with snapshot.verified():
            laid_out = in_layout(snapshot, self.layout_options, now=clock.now_us(), threads=self._options.threads)
        # Until that is saved
        self._is_laid_out_anew = laid_out is not snapshot
        return laid_out

    @property
    def _can_be_changed(self) -> bool:
        """Whether this is no index on a store, whose keys that have expired are dropped in memory alone."""
        return self._location is None or self._location.changeable is not None

    def _saved(self, snapshot: Snapshot, ahead: Sequence[Entry] = (), log: int | None = None) -> Snapshot:
        """A snapshot, saved if the index has a location and this is not saved yet."""
        if self._location is None or snapshot.name is not None:
            return snapshot
        snapshot = self._location.save(snapshot, Commit(ahead, log, self._keep), self._known)
        assert snapshot.name is not None
        self._known, self._is_laid_out_anew = {snapshot.name}, False
        return snapshot

    def _take_over(self, ready: Answering, also: Callable[[], None] = lambda: None) -> Answering:
        """Let another snapshot answer, and call `also` in the same step."""
        ready = self.replace(ready, also)
        self._expect(ready.snapshot)
        return ready

    def _expect(self, snapshot: Snapshot) -> None:
        """Let keys of the snapshot, whose files are not looked at, be dropped when they expire."""
        if snapshot.earliest < NEVER:
            self._expiring.begin()

    def _begin_merging(self) -> None:
        self._changed = time.monotonic()
        self.merging.begin()

    def _merge(self, choose: Callable[[Snapshot], list[Segment]]) -> bool:
        """Merge the chosen segments; only the last step holds up who consolidates."""
        before = self.held
        segments = [] if self._is_laid_out_anew else choose(before.snapshot)
        if not segments:
            return False
        with before.snapshot.verified():
            new = merged(segments, self.layout_options, now=clock.now_us())
        with contextlib.ExitStack() as stack:
            ahead = []
            if self._location is not None:
                ahead.append(stack.enter_context(self._location.written_ahead(new)))
                new = replace(new, name=ahead[0]["name"])
            ready = parts_for(Snapshot((new,)), self._options, before.parts, self._clients)
            stack.enter_context(self._consolidating)
            current = self.held
            current = current._replace(parts=[*current.parts, *ready])
            saved = self._saved(with_merged(current.snapshot, segments, new), ahead)
            self._take_over(self.prepared(saved, current))
        return True
