"""The snapshot that answers now and what answers from it, until another takes its place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from tagmatch.background import renew_in_forks
from tagmatch.model import clock
from tagmatch.model.errors import ClosedError, IndexCorruptError, TagMatchError
from tagmatch.model.options import LayoutOptions, MatchOptions
from tagmatch.model.tables import Snapshot
from tagmatch.partitioner.consolidation import without_expired
from tagmatch.pipeline.areas.positions import Clients
from tagmatch.pipeline.devices import Part, matcher_of, parts_for
from tagmatch.pipeline.matcher import Matcher
from tagmatch.staging import Staging

# Seconds between looks whether files that are mapped are as they were: to ask the system takes as long as to answer
_LOOK_S = 0.05


class Answering(NamedTuple):
    """A snapshot, and what answers from it: from each segment, and from all of them."""

    snapshot: Snapshot
    parts: list[Part]
    matcher: Matcher


class Current:
    """What answers now. Any number of threads may share it.

    Parameters
    ----------
    snapshot : Snapshot
        In the layout of `layout_options`.
    layout_options : LayoutOptions
    options : MatchOptions
    staging : Staging
        Its lock is held in the step in which a snapshot takes the place of another.
    clients : Clients
        Where clients are.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        layout_options: LayoutOptions,
        options: MatchOptions,
        staging: Staging,
        clients: Clients,
    ) -> None:
        self.layout_options = layout_options
        self._options, self._staging, self.clients = options, staging, clients
        self._look_at = time.monotonic() + _LOOK_S
        self._answering: Answering | None = self.prepared(self.without_expired(snapshot))
        # Is held while a snapshot takes the place of another, so that none brings back keys that were dropped before
        self._replacing = threading.Lock()
        renew_in_forks(self, "_replacing")

    @property
    def held(self) -> Answering:
        """The snapshot that answers now, and its matcher, even if its files have changed; ClosedError after `end`."""
        answering = self._answering
        if answering is None:
            raise ClosedError
        return answering

    @property
    def answering(self) -> Answering:
        """The snapshot that answers now, and its matcher.

        Raises
        ------
        ClosedError
            `end` was called.
        IndexCorruptError
            Its files were cut short or overwritten.
        """
        answering = self.held
        if (now := time.monotonic()) > self._look_at:
            try:
                answering.snapshot.verify()
            except IndexCorruptError:
                raise
            except TagMatchError:  # the system cannot say
                pass
            self._look_at = now + _LOOK_S
        return answering

    @property
    def snapshot(self) -> Snapshot:
        """The tables that answer now; errors as `answering`."""
        return self.answering.snapshot

    @property
    def matcher(self) -> Matcher:
        """What answers now; errors as `answering`."""
        return self.answering.matcher

    def prepared(self, snapshot: Snapshot, earlier: Answering | None = None) -> Answering:
        """What answers from a snapshot; about tables that an earlier one has, too, what did so before."""
        if earlier is not None and snapshot is earlier.snapshot:
            return earlier
        parts = parts_for(snapshot, self._options, () if earlier is None else earlier.parts, self.clients)
        return Answering(snapshot, parts, matcher_of(parts))

    def without_expired(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot without keys that have expired by now."""
        with snapshot.verified():
            return without_expired(snapshot, self.layout_options, now=clock.now_us(), threads=self._options.threads)

    def replace(self, by: Answering | None = None, also: Callable[[], None] = lambda: None) -> Answering:
        """Have a snapshot answer, or the one that does, but for keys that have expired by now.

        In the same step, `also` is called.
        """
        with self._replacing:
            ready = self.held if by is None else by
            ready = self.prepared(self.without_expired(ready.snapshot), ready)
            with self._staging.lock:
                if self._answering is not None:
                    self._answering = ready
                also()
        return ready

    def end(self) -> None:
        """Have nothing answer any more, and let go of it."""
        with self._staging.lock:
            self._answering = None
