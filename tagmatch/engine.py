"""What `TagMatch` does: staged changes, consolidation, matching."""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar, get_args

import numpy as np
import pyarrow as pa

from tagmatch.background import renew_in_forks
from tagmatch.contents import every_set, is_among, pairs, schema_of, sets_at
from tagmatch.expiring import Expiring
from tagmatch.following import Following
from tagmatch.merging import Merging
from tagmatch.model import clock
from tagmatch.model.arrays import Lists, UIntArray
from tagmatch.model.check import check_segment
from tagmatch.model.columns import KEY_CHECKS, one_row, tag_list, tag_lists
from tagmatch.model.empty import empty_segment
from tagmatch.model.errors import (
    ClosedError,
    IndexNotFoundError,
    InvalidValueError,
    ResultTooLargeError,
    StagedChangesWarning,
)
from tagmatch.model.expiry import expiry_time, expiry_times
from tagmatch.model.layouts import has_tables_for, rules_of
from tagmatch.model.options import KeyType, Layout, LayoutOptions, MatchOptions, StagingOptions
from tagmatch.model.storage.format import Entry
from tagmatch.model.storage.history import Commit
from tagmatch.model.storage.location import Location, location_of
from tagmatch.model.tables import Segment, Snapshot
from tagmatch.partitioner.consolidation import (
    consolidated,
    count_tags,
    merged,
    rebuilt,
    rest_before_all,
    to_merge,
    with_merged,
    without_expired,
)
from tagmatch.pipeline.devices import Part, matcher_of, parts_for
from tagmatch.pipeline.matcher import Keys, Matcher, alone
from tagmatch.pipeline.service import Pipeline
from tagmatch.staging import Staging

#: Keys that one call of `match_many` can give
MAX_KEYS = 2**31 - 1

P = ParamSpec("P")
R = TypeVar("R")


def _interrupted_plainly(method: Callable[P, R]) -> Callable[P, R]:
    """The method, which raises `KeyboardInterrupt` also where Ctrl-C comes as a kernel is called.

    Numba goes on as if nothing had happened, and Python makes a `SystemError` of that, or of that another one.
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except SystemError as error:
            cause: BaseException | None = error
            while isinstance(cause, SystemError):
                cause = cause.__cause__
            if isinstance(cause, KeyboardInterrupt):
                raise cause from None
            raise

    return call


class _Answering(NamedTuple):
    """A snapshot, and what answers from it: from each segment, and from all of them."""

    snapshot: Snapshot
    parts: list[Part]
    matcher: Matcher


class Engine:
    """A snapshot, changes to it, and the pipeline that answers from it; `TagMatch` says what each method does."""

    def __init__(
        self,
        location: Location | None,
        snapshot: Snapshot,
        layout_options: LayoutOptions,
        staging: StagingOptions,
        options: MatchOptions,
    ) -> None:
        self._location = location
        self._layout_options = layout_options
        self._options = options
        self._keep = staging.keep_snapshots
        # Of the snapshots of the index on disk, those that are contained in the one in memory
        self._known: set[str] = set() if snapshot.name is None else {snapshot.name}
        self._key_type = snapshot.key_type
        opened = self._opened(snapshot)
        self._current: _Answering | None = self._answering(opened)
        # Is held while a snapshot takes the place of another, so that none brings back keys that were dropped before
        self._replacing = threading.Lock()
        self._staging = Staging(location, self._key_type, staging, options.threads)
        self._consolidating = threading.Lock()
        renew_in_forks(self, "_replacing", "_consolidating")
        self._pipeline = Pipeline(options)
        self._merging = Merging(self.merge, self.merge_all)
        self._expiring = Expiring(self.expire)
        # Its threads end with this object, also where `close` is forgotten
        self._finalizer: weakref.finalize[Any, Any] = weakref.finalize(self, self._pipeline.abandon)
        self._finalizer.atexit = False
        self._warning: weakref.finalize[Any, Any] = weakref.finalize(self, _end_staging, self._staging, location)
        self._following = Following(self.follow, options.auto_reload)
        self._expiring.expect(opened.earliest)

    @classmethod
    def new(
        cls,
        path: object,
        key_type: KeyType | None,
        layout_options: LayoutOptions,
        staging: StagingOptions,
        options: MatchOptions,
    ) -> Self:
        """The engine of a new index, or of the one at `path`, in the layout given."""
        _check_key_type(key_type)
        location = None if path is None else location_of(path, "path")
        if location is None and options.auto_reload is not None:
            raise InvalidValueError("auto_reload needs a path: nobody else can change what is in memory only")
        snapshot = Snapshot((empty_segment(layout_options, key_type or "integer"),))
        if location is not None:
            location.check_writable()
            if location.has_index():
                snapshot = _open_with(location, key_type)
        return cls(location, snapshot, layout_options, staging, options)

    @classmethod
    def open(
        cls,
        path: object,
        key_type: KeyType | None,
        layout: Layout | None,
        max_partition_size: int | None,
        number: int | None,
        staging: StagingOptions,
        options: MatchOptions,
    ) -> Self:
        """The engine of an index that exists, or of a snapshot of it, in its own layout unless another is given."""
        _check_key_type(key_type)
        location = location_of(path, "path", number)
        if options.auto_reload is not None:
            location.check_reloadable()
        snapshot = _open_with(location, key_type)
        saved = snapshot.segments[0].options
        layout_options = LayoutOptions(
            saved.layout if layout is None else layout,
            saved.max_partition_size if max_partition_size is None else max_partition_size,
        )
        return cls(location, snapshot, layout_options, staging, options)

    def _opened(self, snapshot: Snapshot) -> Snapshot:
        """A snapshot that was opened, in the layout that this object is to have, without keys that have expired."""
        laid_out = self._laid_out(snapshot)
        # Until that is saved
        self._is_laid_out_anew = laid_out is not snapshot
        return self._without_expired(laid_out)

    def _without_expired(self, snapshot: Snapshot) -> Snapshot:
        return without_expired(snapshot, self._layout_options, now=clock.now_us(), threads=self._options.threads)

    def _laid_out(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot in the layout that this object is to have."""
        segments, options = snapshot.segments, self._layout_options
        if all(segment.options == options for segment in segments):
            return snapshot
        if all(has_tables_for(segment.options, options) for segment in segments):
            return Snapshot(tuple(replace(segment, options=options) for segment in segments))
        return Snapshot((merged(segments, options, now=clock.now_us(), threads=self._options.threads),))

    def _answering(self, snapshot: Snapshot, earlier: _Answering | None = None) -> _Answering:
        """What answers from a snapshot; about tables that an earlier one has, too, what did so before."""
        if earlier is not None and snapshot is earlier.snapshot:
            return earlier
        parts = parts_for(snapshot, self._options, () if earlier is None else earlier.parts)
        return _Answering(snapshot, parts, matcher_of(parts))

    @property
    def current(self) -> _Answering:
        """The snapshot that answers now, and its matcher."""
        current = self._current
        if current is None:
            raise ClosedError
        return current

    @property
    def snapshot(self) -> Snapshot:
        """The tables that answer now."""
        return self.current.snapshot

    @property
    def matcher(self) -> Matcher:
        """What answers now."""
        return self.current.matcher

    # -- changes -----------------------------------------------------------------------------------------------------

    def _check_writable(self) -> None:
        """Refuse changes that could not be saved now, not when they are to be."""
        if self._location is not None:
            self._location.check_writable()

    @_interrupted_plainly
    def stage_one(self, tags: Iterable[str], key: object, *, removed: bool, expires: object = None) -> None:
        """Stage one change."""
        self._check_writable()
        row, value = tag_list(tags), KEY_CHECKS[self._key_type].one(key, "key")
        self._staging.append(row, value, removed=removed, expires=expiry_time(expires, clock.now_us()))

    @_interrupted_plainly
    def stage_many(self, tags: Any, keys: Any, *, removed: bool, expires: object = None) -> None:
        """Stage many changes, or none if one of them cannot be."""
        self._check_writable()
        chunks, values = tag_lists(tags, "tags", stored=True), KEY_CHECKS[self._key_type].many(keys, "keys")
        rows = sum(map(len, chunks))
        if rows != len(values):
            raise InvalidValueError(
                f"tags and keys must have the same length; there are {rows} sets, {len(values)} keys"
            )
        times = expiry_times(expires, rows, clock.now_us())
        self._staging.extend(chunks, values, removed=removed, expires=times)

    @_interrupted_plainly
    def consolidate(self, *, full: bool) -> None:
        """Make staged changes take effect."""
        with self._consolidating:
            current = self.current
            changes, log = self._staging.take()
            snapshot, is_changed = current.snapshot, len(changes) > 0 or full
            if is_changed:
                change = rebuilt if full else consolidated
                now, threads = clock.now_us(), self._options.threads
                snapshot = change(snapshot, changes, self._layout_options, now=now, threads=threads)
            else:
                snapshot = self._without_expired(snapshot)
            if is_changed or self._is_laid_out_anew or self._can_be_changed:
                snapshot = self._saved(snapshot, log=log)

            def drop() -> None:
                # Should this be interrupted before, the changes come once more, which changes nothing
                self._staging.drop(changes, log)

            current = self._replace(self._answering(snapshot, current), drop)
            if self._can_be_changed and rest_before_all(current.snapshot) is not None:
                self._merging.begin()

    @property
    def _can_be_changed(self) -> bool:
        """Whether this is no index on a store, of which keys that have expired are dropped in memory alone."""
        return self._location is None or self._location.log_folder is not None

    def _saved(self, snapshot: Snapshot, ahead: Sequence[Entry] = (), log: int | None = None) -> Snapshot:
        """A snapshot, saved if it is to be."""
        if self._location is None or snapshot.name is not None:
            return snapshot
        snapshot = self._location.update(snapshot, self._known, Commit(ahead, log, self._keep))
        assert snapshot.name is not None
        self._known, self._is_laid_out_anew = {snapshot.name}, False
        return snapshot

    def _replace(self, by: _Answering | None = None, also: Callable[[], None] = lambda: None) -> _Answering:
        """Have a snapshot answer, or the one that does, but for keys that have expired by now.

        In the same step, `also` is called.
        """
        with self._replacing:
            ready = self.current if by is None else by
            ready = self._answering(self._without_expired(ready.snapshot), ready)
            with self._staging.lock:
                if self._current is not None:
                    self._current = ready
                also()
        if by is not None:
            self._expiring.expect(ready.snapshot.earliest)
        return ready

    def expire(self) -> int:
        """Drop keys that have expired, in memory; returns when the next do, or a time before."""
        if (earliest := self.snapshot.earliest) > clock.now_us():
            return earliest
        snapshot = self._replace().snapshot
        if self._location is None and to_merge(snapshot):
            self._merging.begin()
        return snapshot.earliest

    def merge(self) -> bool:
        """Merge segments, if there are some that are best merged; returns whether there were. One thread may at a time.

        Only the last step holds up who consolidates.
        """
        return self._merge(to_merge)

    def merge_all(self, rested: float) -> float | None:
        """Merge everything, if nothing has changed for long enough, in seconds; returns how long it still has to be."""
        rest = rest_before_all(self.snapshot)
        if rest is None or rested < rest:
            return None if rest is None else rest - rested
        self._merge(lambda snapshot: list(snapshot.segments))
        return None

    def _merge(self, choose: Callable[[Snapshot], list[Segment]]) -> bool:
        before = self._current
        if before is None or self._is_laid_out_anew:
            return False
        segments = choose(before.snapshot)
        if not segments:
            return False
        new = merged(segments, self._layout_options, now=clock.now_us())
        with contextlib.ExitStack() as stack:
            ahead = []
            if self._location is not None:
                ahead.append(stack.enter_context(self._location.written_ahead(new)))
                new = replace(new, name=ahead[0]["name"])
            ready = parts_for(Snapshot((new,)), self._options, before.parts)
            stack.enter_context(self._consolidating)
            current = self.current
            current = current._replace(parts=[*current.parts, *ready])
            saved = self._saved(with_merged(current.snapshot, segments, new), ahead)
            self._replace(self._answering(saved, current))
        return True

    @_interrupted_plainly
    def reload(self) -> bool:
        """Take over the snapshot that is on disk."""
        with self._consolidating:
            _ = self.current
            if self._location is None:
                raise InvalidValueError(
                    "there is nothing to reload: this TagMatch is in memory only; open it with a path"
                )
            self._location.check_reloadable()
            if self._known == {self._location.manifest()["snapshot"]}:
                return False
            before = self.current
            snapshot = _open_with(self._location, self._key_type).with_tables_of(before.snapshot)
            assert snapshot.name is not None
            known = {snapshot.name}

            def know() -> None:
                self._known = known

            self._replace(self._answering(self._opened(snapshot), before), know)
            return True

    def follow(self) -> bool:
        """`reload`, but where nothing has been saved yet, nothing is to be taken over."""
        try:
            return self.reload()
        except IndexNotFoundError:
            if self._known:
                raise
            return False

    # -- queries -----------------------------------------------------------------------------------------------------

    @_interrupted_plainly
    def match(self, tags: Iterable[str], *, unique: bool) -> Any:
        """Keys of one query."""
        return self._pipeline.match(self.matcher, tags, unique=unique)

    @_interrupted_plainly
    def match_many(self, queries: Any, *, unique: bool) -> pa.ListArray:
        """Keys of many queries."""
        matcher = self.matcher
        answers = self._pipeline.match_many(matcher, tag_lists(queries, "queries"), unique=unique)
        return _list_array(answers, matcher.keys, unique=unique)

    @_interrupted_plainly
    def submit(self, tags: Iterable[str], *, unique: bool, timeout: float | None) -> Future[Any]:
        """Keys of one query, in the future."""
        return self._pipeline.submit(self.matcher, tags, unique=unique, timeout=timeout)

    @_interrupted_plainly
    def awaited(self, tags: Iterable[str], *, unique: bool) -> Awaitable[Any]:
        """Keys of one query, for a task of the running event loop."""
        return self._pipeline.awaited(self.matcher, tags, unique=unique)

    @_interrupted_plainly
    def explain(self, tags: Iterable[str]) -> list[Any]:
        """Matching sets with their keys."""
        snapshot, _, matcher = self.current
        return list(sets_at(snapshot, _set_ids(matcher, tags)))

    # -- contents ----------------------------------------------------------------------------------------------------

    def every_set(self) -> Iterator[Any]:
        """Stored sets with their keys."""
        return every_set(self.snapshot)

    @_interrupted_plainly
    def contains(self, tags: Any) -> bool:
        """Whether exactly this set is stored."""
        snapshot, _, matcher = self.current
        query = tag_list(tags)
        return is_among(snapshot, _set_ids(matcher, query), frozenset(query))

    def to_arrow(self) -> pa.Table:
        """Stored sets and keys as columns."""
        snapshot = self.snapshot
        return pa.Table.from_batches(pairs(snapshot), schema_of(snapshot))

    # -- the object --------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Figures."""
        snapshot, _, matcher = self.current
        segments, options = snapshot.segments, snapshot.segments[0].options
        return {
            "sets": len(snapshot),
            "keys": sum(segment.live_keys for segment in segments),
            "key_type": snapshot.key_type,
            "tags": count_tags(snapshot, threads=self._options.threads),
            "partitions": sum(len(segment.partitions) for segment in segments),
            "segments": len(segments),
            "deleted": sum(len(segment) - segment.live for segment in segments),
            "to_merge": len(to_merge(snapshot)),
            "staged": len(self._staging),
            "layout": options.layout,
            "max_partition_size": options.max_partition_size,
            "exact": self._options.exact or rules_of(options).compares_tags,
            "device": matcher.devices[0].partition(":")[0],
            "devices": list(matcher.devices),
            "device_notes": list(matcher.notes),
            "matched_by": matcher.matched_by,
            "threads": self._options.threads,
            "number": snapshot.number,
            "seed": segments[0].vocabulary.seed,
            "index_bytes": snapshot.nbytes + matcher.nbytes,
            "key_bytes": sum(segment.keys.nbytes for segment in segments),
            "path": None if self._location is None else str(self._location),
            "reload_error": self._following.error,
            **self._pipeline.stats(),
        }

    @_interrupted_plainly
    def check(self) -> None:
        """Verify every invariant of the snapshot."""
        for segment in self.snapshot.segments:
            check_segment(segment, threads=self._options.threads)

    @_interrupted_plainly
    def save(self, path: object, keep_snapshots: int | None) -> None:
        """Save the snapshot elsewhere."""
        keep = StagingOptions(keep_snapshots=keep_snapshots).keep_snapshots
        location_of(path, "path").save(self.snapshot, keep)

    def close(self, *, drain: bool = True) -> None:
        """End all threads and let go of all memory; warn of changes that are lost."""
        self._close(drain=drain)
        self._warning()

    def _close(self, *, drain: bool = True) -> None:
        self._merging.end()
        self._following.end()
        self._expiring.end()
        with self._staging.lock:
            self._current = None
        self._staging.close()
        self._pipeline.close(drain=drain)
        self._finalizer.detach()

    def enter(self) -> None:
        """Begin a `with` block."""
        _ = self.current

    def leave(self, *, failed: bool) -> None:
        """End a `with` block."""
        self._close()
        if not failed:
            self._warning()
        else:  # the error tells that the work was not finished
            self._warning.detach()

    def described(self) -> str:
        """What `repr` gives."""
        current = self._current
        if current is None:
            return "<TagMatch, closed>"
        where = "in memory" if self._location is None else f"at {str(self._location)!r}"
        staged = f", {len(self._staging)} staged changes" if len(self._staging) else ""
        return f"<TagMatch {where}, {len(current.snapshot)} sets{staged}, layout {self._layout_options.layout}>"


def _check_key_type(key_type: object) -> None:
    if key_type not in (None, *get_args(KeyType)):
        raise InvalidValueError(f'key_type must be "integer" or "string", not {key_type!r}')


def _open_with(location: Location, key_type: KeyType | None) -> Snapshot:
    """`Location.open`, but for keys of the type that is wanted."""
    snapshot = location.open()
    if key_type not in (None, found := snapshot.key_type):
        raise InvalidValueError(
            f'the keys of the index {location} have key_type "{found}", not "{key_type}"; open it anew as it is'
        )
    return snapshot


def _end_staging(staging: Staging, location: Location | None) -> None:
    staging.close()
    if count := staging.lost_at_the_end:
        where = "" if location is None else f" of the index {location}"
        warnings.warn(
            f"{count} staged {'change' if count == 1 else 'changes'}{where} {'is' if count == 1 else 'are'} lost; "
            "call consolidate() before closing",
            StagedChangesWarning,
            stacklevel=5,
        )


def _set_ids(matcher: Matcher, tags: Iterable[str]) -> UIntArray:
    """Ids of the sets that one query contains."""
    asked = alone(matcher, tags)
    if asked is None:
        return matcher.set_ids(one_row(tag_list(tags)), 0, 1).values
    one, text, count = asked
    return one.set_ids(text, count)


def _list_array(answers: Lists, keys: Keys, *, unique: bool) -> pa.ListArray:
    if len(answers.values) > MAX_KEYS:
        raise ResultTooLargeError(
            f"{len(answers)} queries have {len(answers.values)} keys, more than one Arrow list array can hold "
            f"({MAX_KEYS}); ask with fewer queries at a time"
        )
    answers, values = keys.answers(answers, unique=unique)
    offsets = answers.offsets.astype(np.int32, copy=False)
    return pa.Array.from_buffers(pa.list_(values.type), len(answers), [None, pa.py_buffer(offsets)], children=[values])
