"""Changes that are staged: in memory and, of an index in a folder, in its log, which outlasts the program."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import numpy as np

from tagmatch.background import renew_in_forks
from tagmatch.model.arrays import I64Array, Strings, TagLists, U64Array
from tagmatch.model.errors import ClosedError, IndexChangedError, IndexNotFoundError, InvalidValueError
from tagmatch.model.kernels.area_shapes import check_geometry, shapes_of
from tagmatch.model.kernels.tag_table import areas_among
from tagmatch.model.options import Durability, KeyType, StagingOptions
from tagmatch.model.storage.format import Manifest, first_log_of, staged_of
from tagmatch.model.storage.log import Journal
from tagmatch.model.storage.log_files import changes_in, left_behind
from tagmatch.model.storage.log_records import Record, bulk_record, single_record
from tagmatch.model.storage.repository import Repository
from tagmatch.model.tables import NEVER
from tagmatch.partitioner.local import Changes
from tagmatch.partitioner.staged import StagedChanges

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
        self._folder: Path | None = None if location is None else location.log_folder
        self._threads, self._plane, self._changes = threads, plane, StagedChanges(threads)
        self._journal: Journal | None = None
        self._closed = False
        # How many changes another program has left, if that is not taken yet
        self._left = self._left_behind()

    def __len__(self) -> int:
        return len(self._changes) + (self._left or 0)

    @property
    def lost_at_the_end(self) -> int:
        """Changes that are lost when this program ends."""
        lasts = self._folder is not None and self._options.durability != "none"
        return 0 if lasts else len(self._changes)

    def append(self, tags: list[str], key: int | str, *, removed: bool, expires: int = NEVER) -> None:
        """Stage one change of a validated set and key, which expires at a time as in `Changes`."""
        if self._folder is None:  # there is no log
            with self.lock:
                if self._closed:
                    raise ClosedError
                self._changes.append(tags, key, removed=removed, expires=expires)
            return
        self._stage(
            self._of_single,
            lambda: single_record(tags, key, removed=removed, expires=expires),
            lambda: self._changes.append(tags, key, removed=removed, expires=expires),
        )

    def extend(
        self,
        chunks: list[TagLists],
        keys: U64Array | Strings,
        *,
        removed: bool,
        expires: I64Array | None = None,
        is_single: bool = False,
        check: Check | None = None,
    ) -> None:
        """Stage a change for each row of all chunks; `keys` has one for each, as have times.

        With `is_single`, all of them together are as durable as a single change. A check gets the earlier staged
        changes; if it raises an error, nothing is staged.
        """
        self._stage(
            self._of_single if is_single else self._of_many,
            lambda: bulk_record(chunks, keys, removed=removed, expires=expires),
            lambda: self._changes.extend(chunks, keys, removed=removed, expires=expires),
            check,
        )

    def take(self) -> tuple[Changes, int | None]:
        """All changes, which stay staged until `drop`, and the number of the log that later ones go to."""
        with self.lock:
            if self._journal is None:
                self._left = self._left_behind()
            elif not self._journal.is_there:
                # Somebody has removed the folder, which is about to be made again
                journal, self._journal = self._journal, None
                journal.close()
            if self._left is not None:
                self._acquire()
            changes = self._changes.changes()
            return changes, None if self._journal is None else self._journal.rotate()

    def drop(self, changes: Changes, log: int | None) -> None:
        """Drop the changes that `take` returned, which have taken effect; the caller holds the lock."""
        self._changes.drop(changes)
        if self._journal is not None and log is not None:
            self._journal.drop(log)
            if len(self._changes) == 0:
                journal, self._journal = self._journal, None
                journal.close()

    def close(self) -> None:
        """Let go of the log, which keeps its changes."""
        with self.lock:
            self._closed = True
            journal, self._journal = self._journal, None
            if journal is not None:
                journal.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _stage(
        self,
        durability: Durability,
        record: Callable[[], Record],
        stage: Callable[[], None],
        check: Check | None = None,
    ) -> None:
        """Log a change and stage it, or neither; returns when it is as durable as the options say."""
        logged = record() if durability != "none" and self._folder is not None else None
        with self.lock:
            if self._closed:
                raise ClosedError
            if self._left is not None or (self._journal is None and logged is not None):
                self._acquire()
            if check is not None:
                check(self._changes)
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
        assert self._folder is not None
        if not journal.counts(self._manifest):
            raise IndexChangedError(
                f"the folder {self._folder} was moved, removed or replaced while this program had changes staged for "
                "the index in it: nothing was staged now; earlier staged changes are in memory, and consolidate() "
                "saves them to the folder that is there then, after reload() if that has another snapshot"
            )

    def _acquire(self) -> None:
        """Take the log, and stage its changes before all others."""
        assert self._folder is not None
        left = StagedChanges(self._threads)
        journal = Journal.acquire(self._folder, lambda: first_log_of(self._manifest()))
        try:
            came_with_it = changes_in(self._folder, staged_of(self._manifest()))
            for chunks, keys, removed, expires in chain(came_with_it, journal.replay()):
                if isinstance(keys, Strings) != (self._key_type == "string"):
                    other = "string" if isinstance(keys, Strings) else "integer"
                    raise InvalidValueError(
                        f'the changes that are staged in {self._folder} have keys of key_type "{other}", and this '
                        f'index has key_type "{self._key_type}": open it with key_type="{other}", or restore it from a '
                        "copy if it was consolidated with these keys"
                    )
                for chunk in chunks:
                    places = np.flatnonzero(areas_among(chunk.tags)).astype(np.uint32)
                    check_geometry(
                        shapes_of(chunk.tags, places).kinds,
                        f"the changes that are staged in {self._folder} have areas",
                        plane=self._plane,
                    )
                left.extend(chunks, keys, removed=removed, expires=expires)
            if len(left):
                self._changes.stage_before(left)
        except BaseException:
            journal.close()
            raise
        self._journal, self._left = journal, None

    def _left_behind(self) -> int | None:
        return None if self._folder is None else left_behind(self._folder, self._manifest)

    def _manifest(self) -> Manifest:
        """What the index says of staged changes."""
        assert self._location is not None
        try:
            return self._location.manifest()
        except IndexNotFoundError:
            return {}
