"""How the snapshot that answers becomes another: by a consolidation, a merge, another program, or as keys expire."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from tagmatch.background import renew_in_forks
from tagmatch.current import Answering, Current
from tagmatch.expiring import Expiring
from tagmatch.following import Following
from tagmatch.merging import Merging
from tagmatch.model import clock
from tagmatch.model.change_counts import ChangeCounts
from tagmatch.model.errors import IndexNotFoundError, InvalidValueError
from tagmatch.model.options import LayoutOptions, MatchOptions
from tagmatch.model.storage.format import Entry
from tagmatch.model.storage.history import Commit
from tagmatch.model.storage.location import Location, open_with
from tagmatch.model.tables import Segment, Snapshot
from tagmatch.partitioner.consolidation import (
    consolidated,
    in_layout,
    merged,
    rebuilt,
    rest_before_all,
    to_merge,
    with_merged,
)
from tagmatch.pipeline.areas.positions import Clients
from tagmatch.pipeline.devices import parts_for
from tagmatch.staging import Staging


class Changing:
    """Changes what answers and, where there is one, the index on disk. Any number of threads may share it.

    Threads in the background merge segments, drop keys that have expired and take over newer snapshots; they end with
    this object, which must not be part of a cycle of references.

    Parameters
    ----------
    location : Location, optional
        Of the index.
    snapshot : Snapshot
        That was opened there, or of no sets.
    staging : Staging
        What is staged for the index.
    layout_options : LayoutOptions
        The layout that the sets are to have.
    options : MatchOptions
    keep : int, optional
        As of `Commit`.
    clients : Clients
        Where clients are.

    Attributes
    ----------
    current : Current
        What answers.
    merging : Merging
    following : Following
    became : ChangeCounts
        What became of all changes so far.
    """

    def __init__(
        self,
        location: Location | None,
        snapshot: Snapshot,
        staging: Staging,
        layout_options: LayoutOptions,
        options: MatchOptions,
        keep: int | None,
        clients: Clients,
    ) -> None:
        self._location, self._staging, self._keep = location, staging, keep
        self._layout_options, self._options = layout_options, options
        self.became = ChangeCounts()
        # Of the snapshots of the index on disk, those that are contained in the one in memory
        self._known: set[str] = set() if snapshot.name is None else {snapshot.name}
        self._consolidating = threading.Lock()
        renew_in_forks(self, "_consolidating")
        self.current = Current(self._laid_out(snapshot), layout_options, options, staging, clients)
        self.merging = Merging(self.merge, self.merge_all)
        self._expiring = Expiring(self.expire)
        self.following = Following(self.follow, options.auto_reload)
        self._expiring.expect(self.current.snapshot.earliest)

    def consolidate(self, *, full: bool) -> ChangeCounts:
        """Make staged changes take effect; what became of them."""
        with self._consolidating:
            current = self.current.held
            changes, log = self._staging.take()
            snapshot, became, is_changed = current.snapshot, ChangeCounts(), len(changes) > 0 or full
            with snapshot.verified():
                if is_changed:
                    change = rebuilt if full else consolidated
                    now, threads = clock.now_us(), self._options.threads
                    snapshot, became = change(snapshot, changes, self._layout_options, now=now, threads=threads)
                else:
                    snapshot = self.current.without_expired(snapshot)
            if is_changed or self._is_laid_out_anew or self._can_be_changed:
                snapshot = self._saved(snapshot, log=log)

            def drop() -> None:
                # Should this be interrupted before, the changes come once more, which changes nothing
                self._staging.drop(changes, log)
                self.became = self.became.and_also(became)

            current = self._take_over(self.current.prepared(snapshot, current), drop)
            if self._can_be_changed and rest_before_all(current.snapshot) is not None:
                self.merging.begin()
            return became

    def merge(self) -> bool:
        """Merge segments, if there are some that are best merged; returns whether there were. One thread may at a time.

        Only the last step holds up who consolidates.
        """
        return self._merge(to_merge)

    def merge_all(self, rested: float) -> float | None:
        """Merge everything, if nothing has changed for long enough, in seconds; returns how long it still has to be."""
        rest = rest_before_all(self.current.snapshot)
        if rest is None or rested < rest:
            return None if rest is None else rest - rested
        self._merge(lambda snapshot: list(snapshot.segments))
        return None

    def expire(self) -> int:
        """Drop keys that have expired, in memory; returns when the next do, or a time before."""
        if (earliest := self.current.snapshot.earliest) > clock.now_us():
            return earliest
        snapshot = self.current.replace().snapshot
        if self._location is None and to_merge(snapshot):
            self.merging.begin()
        return snapshot.earliest

    def reload(self) -> bool:
        """Take over the snapshot that is on disk; whether there was another one."""
        with self._consolidating:
            before = self.current.held
            if self._location is None:
                raise InvalidValueError(
                    "there is nothing to reload: this TagMatch is in memory only; open it with a path"
                )
            self._location.check_reloadable()
            if self._known == {self._location.manifest()["snapshot"]} and before.snapshot.is_sound:
                return False
            snapshot = open_with(self._location, before.snapshot.key_type).with_tables_of(before.snapshot)
            assert snapshot.name is not None
            known = {snapshot.name}

            def know() -> None:
                self._known = known

            opened = self.current.without_expired(self._laid_out(snapshot))
            self._take_over(self.current.prepared(opened, before), know)
            return True

    def follow(self) -> bool:
        """`reload`, but where nothing has been saved yet, nothing is to be taken over."""
        try:
            return self.reload()
        except IndexNotFoundError:
            if self._known:
                raise
            return False

    def end(self) -> None:
        """End the threads in the background, and have nothing answer any more."""
        self.merging.end()
        self.following.end()
        self._expiring.end()
        self.current.end()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _laid_out(self, snapshot: Snapshot) -> Snapshot:
        """A snapshot that was opened, in the layout that the sets are to have."""
        with snapshot.verified():
            laid_out = in_layout(snapshot, self._layout_options, now=clock.now_us(), threads=self._options.threads)
        # Until that is saved
        self._is_laid_out_anew = laid_out is not snapshot
        return laid_out

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

    def _take_over(self, ready: Answering, also: Callable[[], None] = lambda: None) -> Answering:
        """Have another snapshot answer; in the same step, `also` is called."""
        ready = self.current.replace(ready, also)
        self._expiring.expect(ready.snapshot.earliest)
        return ready

    def _merge(self, choose: Callable[[Snapshot], list[Segment]]) -> bool:
        before = self.current.held
        segments = [] if self._is_laid_out_anew else choose(before.snapshot)
        if not segments:
            return False
        with before.snapshot.verified():
            new = merged(segments, self._layout_options, now=clock.now_us())
        with contextlib.ExitStack() as stack:
            ahead = []
            if self._location is not None:
                ahead.append(stack.enter_context(self._location.written_ahead(new)))
                new = replace(new, name=ahead[0]["name"])
            ready = parts_for(Snapshot((new,)), self._options, before.parts, self.current.clients)
            stack.enter_context(self._consolidating)
            current = self.current.held
            current = current._replace(parts=[*current.parts, *ready])
            saved = self._saved(with_merged(current.snapshot, segments, new), ahead)
            self._take_over(self.current.prepared(saved, current))
        return True
