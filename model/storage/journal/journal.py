"""Staged changes that last: a log of them in the folder of an index.

One program at a time has the log, which is the file `staged-<generation>.log`, or several that follow each other.
`scan` has the format of the files and `records` that of the records in them.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path

from tagmatch.model.errors import ClosedError, IndexLockedError, InvalidValueError, TagMatchError
from tagmatch.model.options import Durability
from tagmatch.model.storage.durable import make_folder
from tagmatch.model.storage.file_lock import lock_at_once
from tagmatch.model.storage.format import WRITER, Manifest, first_log_of
from tagmatch.model.storage.journal.folder import remove_logs, telling_errors, told, whole_logs
from tagmatch.model.storage.journal.log import LogWriter
from tagmatch.model.storage.journal.records import Logged, Record, decoded
from tagmatch.model.storage.journal.scan import LogFile, records_of

# Changes within this many nanoseconds may have one time
_CLOCK_NS = 50_000_000


class Journal:
    """The log of an index, for the one program that may write it.

    Threads may share it: `write` gives the order of the changes, `sync` waits for the disk. Group commit: threads that
    wait while the disk is busy form a group, of which the first syncs for all.

    Examples
    --------
    >>> import tempfile
    >>> from tagmatch.model.storage.journal.folder import peek
    >>> from tagmatch.model.storage.journal.records import single_record
    >>> folder = Path(tempfile.mkdtemp())
    >>> journal = Journal.acquire(folder, first=1)
    >>> journal.append(single_record(["a", "b"], 7, removed=False), "fsync")
    >>> journal.close()
    >>> peek(folder, first=1).changes
    1
    >>> journal = Journal.acquire(folder, first=1)
    >>> [logged.keys.tolist() for logged in journal.replay()]
    [[7]]
    >>> journal.close()
    """

    def __init__(self, folder: Path, lock: FileIO, generation: int, logs: list[LogFile]) -> None:
        self._folder = folder
        self._lock = lock
        self._path = os.fspath(folder)
        self._generation = generation
        # Before the one that is written to
        self._older = logs
        self._log: LogWriter | None = None
        # Inode and time of the folder when its manifest counted these logs
        self._seen: tuple[int, int] | None = None
        # The format version of logs: what one record has needed, later ones may need, too
        self._version = 1
        self._is_open = True
        # Records are counted from 1 on: written so far, on disk, and those that never will be for sure
        self._written = 0
        self._on_disk = 0
        self._in_doubt: list[range] = []
        # Who takes several takes them in this order; of the group that forms now, who leads it has the first
        self._group = threading.Lock()
        self._syncing = threading.Lock()
        self._writing = threading.Lock()
        _JOURNALS.add(self)

    @classmethod
    def acquire(cls, folder: Path, first: int | Callable[[], int]) -> Journal:
        """Take the log of an index, whose logs count from generation `first` on; older ones are removed.

        A function is asked for `first` once nobody else can change it any more.

        A torn tail, which a program or machine leaves that ended while it wrote, is cut, with a `StagedChangesWarning`.

        Raises
        ------
        IndexLockedError
            A program has it, perhaps this one.
        IndexCorruptError
            A log is missing or damaged.
        IndexVersionError
            A log was written by a newer version.
        TagMatchError
            The folder cannot be written.
        """
        with telling_errors(f"cannot write the index {folder}"):
            make_folder(folder)
            lock = lock_at_once(folder, WRITER)
            if lock is None:
                raise IndexLockedError(
                    f"another program, or another object of this one, has changes staged for the index {folder}; "
                    "consolidate or close it there first"
                )
            try:
                generation = first if isinstance(first, int) else first()
                remove_logs(folder, generation)
                logs = whole_logs(folder, generation)
                journal = cls(folder, lock, generation, logs[:-1])
                if logs:
                    journal._log = LogWriter.reopen(logs[-1])
                    journal._generation = logs[-1].generation
                    journal._version = journal._log.version
                return journal
            except BaseException:
                lock.close()
                raise

    # -- writing -----------------------------------------------------------------------------------------------------

    @property
    def is_there(self) -> bool:
        """Whether the folder still is the one whose lock this journal holds."""
        try:
            return os.path.samestat(os.fstat(self._lock.fileno()), (self._folder / WRITER).stat())
        except OSError:
            return False

    def counts(self, manifest: Callable[[], Manifest]) -> bool:
        """Whether the next program finds records written now: the folder is this one, and its manifest counts the logs.

        That is looked at if anything has come into the folder since, or has gone.
        """
        try:
            folder = os.stat(self._path)
        except OSError:
            return False
        if self._seen == (folder.st_ino, folder.st_mtime_ns):
            return True
        first = self._older[0].generation if self._older else self._generation
        if not (self.is_there and first <= first_log_of(manifest()) <= self._generation):
            return False
        if time.time_ns() - folder.st_mtime_ns > _CLOCK_NS:
            self._seen = folder.st_ino, folder.st_mtime_ns
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
        """Write a record behind all others; returns the position behind it, up to which `sync` waits for the disk.

        Raises
        ------
        ClosedError
            The journal is closed.
        TagMatchError
            The record was not written; what was before, was.
        """
        self._version = max(self._version, record.version)
        if self._log is not None and self._log.version < record.version:
            self.rotate()
        with self._writing:
            self._reject_if_closed()
            written = self._written + 1
            try:
                if self._log is None:
                    self._log = LogWriter.create(self._folder, self._generation, 0, self._version)
                self._log.append(record)
                self._written = written
            except OSError as error:
                raise told(f"cannot stage changes of the index {self._folder}", error) from error
            return written

    def sync(self, position: int) -> None:
        """Wait until all records up to a position are on disk.

        Raises
        ------
        ClosedError
            The journal is closed.
        TagMatchError
            They may not be; they count as written, but nothing more is until `rotate` has begun another log.
        """
        while not self._is_on_disk(position):
            group = self._group
            with group:
                if group is self._group:
                    self._sync_all(position)

    def _is_on_disk(self, position: int) -> bool:
        on_disk = self._on_disk  # which `rotate` raises after it has said what is in doubt
        if any(position in lost for lost in self._in_doubt):
            raise TagMatchError(
                f"the disk has failed to take a staged change of the index {self._folder}; it is still staged in "
                "memory: consolidate() saves it"
            )
        return position <= on_disk

    def _sync_all(self, position: int) -> None:
        """Have all records on disk that are written once the disk is free, unless this one is by then."""
        with self._syncing:
            # Who comes from now on is too late for this group
            self._group = threading.Lock()
            if self._is_on_disk(position):
                return
            with self._writing:
                self._reject_if_closed()
                log, written = self._log, self._written
                end = 0 if log is None else log.end
            if log is not None:
                with telling_errors(f"{log.path} may not be on disk"):
                    log.sync(end)
            self._on_disk = written

    def append(self, record: Record, durability: Durability) -> None:
        """Write a record, and wait for the disk if that is wanted; errors as `write` and `sync`."""
        position = self.write(record)
        if durability == "fsync":
            self.sync(position)

    def back_to(self, position: int) -> None:
        """Take back the last record, if one was written since the journal had this position, and none was since.

        For a call that wrote a record and then failed, or was interrupted.

        Raises
        ------
        InvalidValueError
            More than one record was written.
        """
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

    # -- generations -------------------------------------------------------------------------------------------------

    def rotate(self) -> int:
        """Have later records go to another generation than all until now, which is returned.

        It is the one that there is if that has no records.

        Raises
        ------
        ClosedError
            The journal is closed.
        TagMatchError
            No log could be begun; the one that there is stays.
        """
        with self._syncing, self._writing:
            self._reject_if_closed()
            log = self._log
            if log is None or (log.is_usable and log.records == 0 and log.version == self._version):
                return self._generation
            with suppress(TagMatchError, OSError):
                # Else a crash could leave a torn tail in this log, and the next one whole
                log.sync(log.end)
                self._on_disk = self._written
            generation = self._generation + 1
            older = [*self._older, log.contents()]
            in_doubt = [*self._in_doubt, range(self._on_disk + 1, self._written + 1)]
            try:
                self._log = LogWriter.create(self._folder, generation, log.on_disk, self._version)
                self._generation, self._older = generation, older
                self._in_doubt, self._on_disk = in_doubt, self._written
            except OSError as error:
                what = f"cannot begin another log of staged changes of the index {self._folder}"
                raise told(what, error) from error
            log.close(remove=False)
            return generation

    def drop(self, before: int) -> None:
        """Remove the logs of generations before this one, except that which is written to."""
        with self._writing:
            self._reject_if_closed()
            before = min(before, self._generation)
            self._older = [log for log in self._older if log.generation >= before]
            with suppress(OSError):  # what stays no longer counts, and goes with the next
                remove_logs(self._folder, before)

    # -- reading -----------------------------------------------------------------------------------------------------

    def replay(self) -> Iterator[Logged]:
        """What has been logged until now, in order.

        Raises
        ------
        ClosedError
            The journal is closed.
        IndexCorruptError
            A log has changed meanwhile.
        TagMatchError
            A log cannot be read.
        """
        with self._writing:
            self._reject_if_closed()
            logs = [*self._older, *([] if self._log is None else [self._log.contents()])]
        with telling_errors(f"cannot read the staged changes of the index {self._folder}"):
            yield from decoded((record for log in logs for record in records_of(log)), self._folder)

    # -- the end -----------------------------------------------------------------------------------------------------

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
