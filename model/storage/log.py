"""Staged changes that last: a log of them in the place of an index.

One program at a time has the log, which is the file `staged-<generation>.log`, or several that follow each other.
`log_files` has the format of the files and `log_records` that of the records in them.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import starmap

from tagmatch.model.errors import ClosedError, IndexLockedError, InvalidValueError, TagMatchError
from tagmatch.model.storage.byte_store import ChangeableStore, Lock, Log
from tagmatch.model.storage.format import WRITER, Manifest, first_log_of
from tagmatch.model.storage.log_files import (
    LOG_HEADER_BYTES,
    LogFile,
    LogHeader,
    failing,
    log_name,
    records_of,
    remove_logs,
    whole_logs,
)
from tagmatch.model.storage.log_records import HEADER_BYTES, Logged, Record, decoded


class LogWriter:
    """A log to which records are appended; its owner holds a lock, except while it is synced."""

    # Ctrl-C may come after each call of C. A record is in the log from the assignment on that moves the end of the log
    # behind it; until then, bytes beyond the end are waste, which is cut before the next record is written.

    def __init__(self, file: Log, log: LogFile) -> None:
        assert log.header is not None
        self._file, self._log, self.header = file, log, log.header
        self.records, self.end = log.records, log.end
        #: So many bytes are known to be on disk
        self.on_disk = LOG_HEADER_BYTES
        # Where the last record begins, if it was appended here and not taken back
        self._last = log.end
        self._has_waste = False
        self._is_in_doubt = False

    @classmethod
    def create(cls, files: ChangeableStore, generation: int, before: int, version: int) -> LogWriter:
        """Begin a log of a format version, which is on disk then; so are `before` bytes of the one before."""
        name, header = log_name(generation), LogHeader(generation, secrets.randbits(64), before, version)
        file = None
        try:
            file = files.log(name, new=True)
            file.put([header.packed()], 0, LOG_HEADER_BYTES)
            file.sync()
            files.sync()
            return cls(file, LogFile(files, name, header, end=LOG_HEADER_BYTES))
        except BaseException:
            if file is not None:
                file.close()
            files.remove(name)
            raise

    @classmethod
    def reopen(cls, log: LogFile) -> LogWriter:
        """Go on with a log, which has a header and no torn tail."""
        return cls(log.files.log(log.name), log)

    def __str__(self) -> str:
        return str(self._log)

    @property
    def is_usable(self) -> bool:
        """Whether records can be appended, as far as is known."""
        return not (self._is_in_doubt or self._has_waste)

    @property
    def has_last(self) -> bool:
        """Whether the last record can be taken back."""
        return self._last < self.end

    def contents(self) -> LogFile:
        """What the log has now."""
        return replace(self._log, records=self.records, end=self.end)

    def append(self, record: Record) -> None:
        """Write a record wholly, or not at all: OSError, or TagMatchError if the log takes no more records."""
        self._reject_if_in_doubt()
        self._cut_waste()
        pieces = [record.sealed(self.header.id, self.records, self.on_disk), *record.body]
        records, last, end = self.records + 1, self.end, self.end + HEADER_BYTES + record.nbytes
        self._has_waste = True
        try:
            self._file.put(pieces, self.end, end - self.end)
        except BaseException:
            self.try_to_cut_waste()
            raise
        self.records, self.end, self._last, self._has_waste = records, end, last, False

    def take_back(self) -> None:
        """Turn the last record into waste; see `has_last`."""
        on_disk = min(self.on_disk, self._last)
        self.records, self.end, self.on_disk, self._has_waste = self.records - 1, self._last, on_disk, True

    def try_to_cut_waste(self) -> None:
        """Cut the waste beyond the end, or leave that to the next call of `append`."""
        with suppress(OSError):
            self._cut_waste()

    def sync(self, end: int) -> None:
        """Put the log on disk up to a byte: OSError; TagMatchError if it failed before."""
        # A log that the disk did not take wholly is not gone on with. Linux tells an error once, and may then hold the
        # pages that were not written for clean: a later sync that succeeds says nothing about them.
        self._reject_if_in_doubt()
        done: list[object] = []
        calls = starmap(self._file.sync, [()])
        try:
            done.extend(calls)  # in one step: Ctrl-C comes before the sync, or after its outcome is known
        finally:
            self._is_in_doubt = not done
        self.on_disk = end

    def close(self, *, remove: bool) -> None:
        """Let go of the file, and remove it if wanted; waste at its end is cut if that can be done."""
        if remove:
            self._log.files.remove(self._log.name)
        else:
            self.try_to_cut_waste()
        self._file.close()

    def abandon(self) -> None:
        """Let go of the file, and leave it as it is."""
        self._file.close()

    def _cut_waste(self) -> None:
        if self._has_waste:
            self._file.cut(self.end)
            self._has_waste = False

    def _reject_if_in_doubt(self) -> None:
        if self._is_in_doubt:
            raise TagMatchError(
                f"{self} takes no more changes, as the disk has failed to take some and does not say which; those "
                "that are staged are still in memory: consolidate() saves them and begins another log"
            )


# Changes within this many nanoseconds may have one time
_CLOCK_NS = 50_000_000


class Journal:
    """The log of an index, for the one program that may write it; its threads share it.

    `write` gives the order of the changes, `sync` waits for the disk: threads that wait while that is busy form a
    group, and the first one syncs for all.
    """

    def __init__(self, files: ChangeableStore, lock: Lock, generation: int, logs: list[LogFile]) -> None:
        self._files, self._lock = files, lock
        self._generation = generation
        # Before the one that is written to
        self._older = logs
        self._log: LogWriter | None = None
        # The state of the folder when its manifest counted these logs
        self._seen: tuple[int, int] | None = None
        # The format version of logs: what one record has needed, later ones may need, too
        self._version = 1
        self._is_open = True
        # Records are counted from 1 on: written so far, on disk, and those that never will be for sure
        self._written = 0
        self._on_disk = 0
        self._in_doubt: list[range] = []
        # Locks are taken in this order; the leader of the group that forms now has the first
        self._group = threading.Lock()
        self._syncing = threading.Lock()
        self._writing = threading.Lock()
        _JOURNALS.add(self)

    @classmethod
    def acquire(cls, files: ChangeableStore, first: int | Callable[[], int]) -> Journal:
        """Take the log of an index, whose logs count from generation `first` on; older ones are removed.

        A function is asked for `first` once no other program can change it any more. A torn tail is cut, with a
        `StagedChangesWarning`; IndexLockedError if a program has the log, perhaps this one; errors as `scan`.
        """
        with failing(f"cannot write the index {files}"):
            files.prepare()
            lock = files.lock_at_once(WRITER)
            if lock is None:
                raise IndexLockedError(
                    f"another program, or another object of this one, has changes staged for the index {files}; "
                    "consolidate or close it there first"
                )
            try:
                generation = first if isinstance(first, int) else first()
                remove_logs(files, generation)
                logs = whole_logs(files, generation)
                journal = cls(files, lock, generation, logs[:-1])
                if logs:
                    journal._log = LogWriter.reopen(logs[-1])
                    journal._generation = logs[-1].generation
                    journal._version = journal._log.header.version
                return journal
            except BaseException:
                lock.close()
                raise

    # -- writing -------------------------------------------------------------------------------------------------------

    @property
    def is_there(self) -> bool:
        """Whether the folder still is the one whose lock this journal holds."""
        return self._lock.is_there

    def counts(self, manifest: Callable[[], Manifest]) -> bool:
        """Whether the next program finds records written now: the folder is this one, its manifest counts the logs."""
        state = self._files.state()
        if state is None or state == self._seen:  # nothing has come into the folder since, or has gone
            return state is not None
        first = self._older[0].generation if self._older else self._generation
        if not (self.is_there and first <= first_log_of(manifest()) <= self._generation):
            return False
        if time.time_ns() - state[1] > _CLOCK_NS:
            self._seen = state
        return True

    @property
    def refuses(self) -> bool:
        """Whether nothing can be written until `rotate`, as the disk has failed to take something."""
        return self._log is not None and not self._log.is_usable

    @property
    def position(self) -> int:
        """How many records have been written."""
        return self._written

    def write(self, record: Record) -> int:
        """Write a record behind all others, or not: TagMatchError; returns the position up to which to `sync`."""
        self._version = max(self._version, record.version)
        if self._log is not None and self._log.header.version < record.version:
            self.rotate()
        with self._writing:
            self._reject_if_closed()
            written = self._written + 1
            try:
                if self._log is None:
                    self._log = LogWriter.create(self._files, self._generation, 0, self._version)
                self._log.append(record)
                self._written = written
            except OSError as error:
                raise TagMatchError(
                    f"cannot stage changes of the index {self._files}: {error.strerror or error}"
                ) from error
            return written

    def sync(self, position: int) -> None:
        """Wait until all records up to a position are on disk; TagMatchError: they may not be, `rotate` comes next."""
        while not self._is_on_disk(position):
            group = self._group
            with group:
                if group is self._group:
                    self._sync_all(position)

    def _is_on_disk(self, position: int) -> bool:
        on_disk = self._on_disk  # which `rotate` raises after it has said what is in doubt
        if any(position in lost for lost in self._in_doubt):
            raise TagMatchError(
                f"the disk has failed to take a staged change of the index {self._files}; it is still staged in "
                "memory: consolidate() saves it"
            )
        return position <= on_disk

    def _sync_all(self, position: int) -> None:
        """Put all records on disk that are written once the disk is free, unless this one is by then."""
        with self._syncing:
            # Threads that come from now on are too late for this group
            self._group = threading.Lock()
            if self._is_on_disk(position):
                return
            with self._writing:
                self._reject_if_closed()
                log, written = self._log, self._written
                end = 0 if log is None else log.end
            if log is not None:
                with failing(f"{log} may not be on disk"):
                    log.sync(end)
            self._on_disk = written

    def back_to(self, position: int) -> None:
        """Take back the record that a call wrote which failed then; InvalidValueError if it wrote more."""
        with self._syncing, self._writing:
            if self._written == position:
                return
            log = self._log
            if self._written != position + 1 or log is None or not log.has_last:
                raise InvalidValueError(f"from position {self._written}, the log cannot go back to {position}")
            on_disk = min(self._on_disk, position)
            log.take_back()
            # Ctrl-C comes before both, or after
            self._written, self._on_disk = position, on_disk
            log.try_to_cut_waste()

    # -- generations ---------------------------------------------------------------------------------------------------

    def rotate(self) -> int:
        """Begin another generation for later records, unless this one has none; returns the one that there is then."""
        with self._syncing, self._writing:
            self._reject_if_closed()
            log = self._log
            if log is None or (log.is_usable and log.records == 0 and log.header.version == self._version):
                return self._generation
            with suppress(TagMatchError, OSError):
                # Else a crash could leave a torn tail in this log, and the next one whole
                log.sync(log.end)
                self._on_disk = self._written
            generation = self._generation + 1
            older = [*self._older, log.contents()]
            in_doubt = [*self._in_doubt, range(self._on_disk + 1, self._written + 1)]
            with failing(f"cannot begin another log of staged changes of the index {self._files}"):
                self._log = LogWriter.create(self._files, generation, log.on_disk, self._version)
                self._generation, self._older = generation, older
                self._in_doubt, self._on_disk = in_doubt, self._written
            log.close(remove=False)
            return generation

    def drop(self, before: int) -> None:
        """Remove the logs of generations before this one, except that which is written to."""
        with self._writing:
            self._reject_if_closed()
            before = min(before, self._generation)
            self._older = [log for log in self._older if log.generation >= before]
            with suppress(TagMatchError):  # what stays no longer counts, and goes with the next
                remove_logs(self._files, before)

    # -- reading -------------------------------------------------------------------------------------------------------

    def replay(self) -> Iterator[Logged]:
        """The changes logged until now, in order; IndexCorruptError if a log has changed since, TagMatchError."""
        with self._writing:
            self._reject_if_closed()
            logs = [*self._older, *([] if self._log is None else [self._log.contents()])]
        with failing(f"cannot read the staged changes of the index {self._files}"):
            yield from decoded((record for log in logs for record in records_of(log)), self._files)

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the log; one without records is removed."""
        with self._syncing, self._writing:
            if not self._is_open:
                return
            self._is_open = False
            try:
                if self._log is not None:
                    self._log.close(remove=self._log.records == 0)
            finally:
                self._lock.close()

    def abandon(self) -> None:
        """Let go of the log in the child of a fork: it is the parent's, which holds the lock and writes on."""
        self._group, self._syncing, self._writing = threading.Lock(), threading.Lock(), threading.Lock()
        if not self._is_open:
            return
        self._is_open = False
        if self._log is not None:
            self._log.abandon()
        self._lock.close()

    def _reject_if_closed(self) -> None:
        if not self._is_open:
            raise ClosedError


_JOURNALS: weakref.WeakSet[Journal] = weakref.WeakSet()


def _abandon_all() -> None:
    for journal in list(_JOURNALS):
        journal.abandon()


os.register_at_fork(after_in_child=_abandon_all)
