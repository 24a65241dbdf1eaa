"""Staged changes that last: a log of them instead of an index.

One program at a time has the log. It is the file `staged-00000007.log` of generation 7, or several that follow each
other; `log_records` has the format of their records.

What a crash leaves half-written is a torn tail, which is cut: a log ends before the first place that has no sound
record with the next number. It may be no tail but damage, which is an error:

- the log or the next one says of that place that it was on disk, or
- the header of a later record is sound, though no block of the disk in between is still empty, as one would be that the
  machine did not come to write before it crashed.

A last log that is no longer than its header counts as torn, too, if its header is not sound.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from io import BufferedReader
from itertools import starmap

from tagmatch.model.errors import (
    ClosedError,
    IndexCorruptError,
    IndexLockedError,
    IndexVersionError,
    InvalidValueError,
    StagedChangesWarning,
    TagMatchError,
)
from tagmatch.model.options import KeyType
from tagmatch.model.storage.byte_store import ByteStore, ChangeableStore, Lock, Log
from tagmatch.model.storage.files import Entry
from tagmatch.model.storage.format import STAGED_PREFIX, WRITER, Manifest, first_log_of, staged_of
from tagmatch.model.storage.log_records import (
    HEADER_BYTES,
    LOG_HEADER_BYTES,
    LOG_VERSION,
    MAGIC,
    Header,
    Logged,
    LogHeader,
    Record,
    decoded,
    has_empty_block,
    sound_records,
)

_NAME = re.compile(rf"{STAGED_PREFIX}([0-9]{{8,19}})\.log")

_BUFFER_BYTES = 1 << 20


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Tell what could not be done when the system says no."""
    try:
        yield
    except OSError as error:
        raise TagMatchError(f"{what}: {error.strerror or error}") from error


# -- logs, read --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log that has been looked through."""

    files: ChangeableStore  # its folder or store
    name: str
    header: LogHeader | None  # none of a file that was not begun wholly
    records: int = 0  # that count
    rows: int = 0  # changes in these
    end: int = 0  # of the last one: bytes of the file that count
    torn_bytes: int = 0  # that come after
    torn_records: int = 0  # that can still be told there
    key_type: KeyType | None = None  # of the keys in the records that count

    def __str__(self) -> str:
        return f"{self.files}/{self.name}"

    @contextmanager
    def opened(self) -> Iterator[BufferedReader]:
        """The file, to be read."""
        with self.files.open(self.name) as file:
            yield BufferedReader(file, _BUFFER_BYTES)

    def cut(self) -> None:
        """Cut, and sync, what does not count: without a header, all."""
        if self.header is None:
            self.files.remove(self.name)
            self.files.sync()
            return
        with closing(self.files.log(self.name)) as file:
            file.cut(self.end)
            file.sync()


def log_name(generation: int) -> str:
    """The file of a generation."""
    return f"{STAGED_PREFIX}{generation:08d}.log"


def generations_in(files: ByteStore) -> list[int]:
    """The generations that have a file, ascending; none if there is no folder."""
    return sorted(int(match[1]) for name in files.names() if (match := _NAME.fullmatch(name)))


def scan(files: ChangeableStore, first: int) -> list[LogFile]:
    """Look through all logs from generation `first` on, in order; IndexVersionError, IndexCorruptError, OSError."""
    generations = [generation for generation in generations_in(files) if generation >= first]
    for expected, generation in enumerate(generations, first):
        if generation != expected:
            raise _damaged(f"{files}/{log_name(expected)}", 0, "is missing, though there is a later log")
    logs = [_begun(files, log_name(generation), generation) for generation in generations]
    for log in logs[:-1]:
        if log.header is None:
            raise _damaged(log, 0, "has no header, though there is a later log")
    on_disk = [0 if log.header is None else log.header.before for log in logs[1:]]
    return [_looked_through(log, before) for log, before in zip(logs, [*on_disk, 0], strict=False)]


def _begun(files: ChangeableStore, name: str, generation: int | None = None) -> LogFile:
    """A file with its header, and all behind that."""
    log = LogFile(files, name, None)
    with log.opened() as file:
        data = file.read(LOG_HEADER_BYTES + 1)
        size = file.seek(0, os.SEEK_END)
    header = LogHeader.of(data)
    if header is None:
        if len(data) <= LOG_HEADER_BYTES:
            return replace(log, torn_bytes=size)
        raise _damaged(log, 0, "does not have the checksum that it was begun with")
    if header.version > LOG_VERSION:
        raise IndexVersionError(
            f"{log} has format {header.version}, this version of tagmatch reads up to {LOG_VERSION}; upgrade tagmatch"
        )
    if generation not in (None, header.generation):
        raise _damaged(log, 0, f"is the log of generation {header.generation}, under another name")
    return replace(log, header=header, end=size)


def _looked_through(log: LogFile, on_disk: int) -> LogFile:
    """A log that has begun, with `on_disk` bytes known to be on disk, and its valid records."""
    if log.header is None:
        return log
    records = rows = 0
    end = LOG_HEADER_BYTES
    key_type: KeyType | None = None
    with log.opened() as file:
        for record, body in sound_records(file, log.header, log.end):
            if record.rows > len(body):  # a stranger's: each change has bytes, and the sum of all is a length
                raise _damaged(log, end, "has a record with more changes than bytes")
            key_type = record.key_type
            records, rows, end = records + 1, rows + record.rows, end + HEADER_BYTES + len(body)
        if end < on_disk:
            raise _damaged(log, end, "has a damaged record in a place that was on disk")
        file.seek(end)
        tail = file.read(log.end - end)
    places = [match.start() for match in re.finditer(MAGIC, tail)]
    headers = [(place, Header.of(tail[place : place + HEADER_BYTES], log.header.id)) for place in places]
    told = [(place, header) for place, header in headers if header is not None]
    later = [(place, header) for place, header in told if place > 0 or header.number != records]
    if later:
        has_been_on_disk = any(header.on_disk > end for _, header in later)
        if has_been_on_disk or not has_empty_block(tail[: later[0][0]], end):
            raise _damaged(log, end, "does not have a sound record before a later one")
    return LogFile(log.files, log.name, log.header, records, rows, end, len(tail), len(told), key_type)


def _damaged(log: object, offset: int, what: str) -> IndexCorruptError:
    return IndexCorruptError(
        f"{log} {what} (byte {offset}); restore the index from a copy, or give up the changes that were staged from "
        "there on: cut the file at that byte and remove the logs after it"
    )


def _records_of(logs: Iterable[LogFile]) -> Iterator[tuple[Header, bytes]]:
    """The records of logs that count, with their bodies; errors as `scan`."""
    for log in logs:
        if log.header is None:
            raise _damaged(log, 0, "has no header")
        with log.opened() as file:
            yield from sound_records(file, log.header, log.end)
            if file.tell() < log.end:
                raise _damaged(log, file.tell(), "has changed since it was opened")


def _scan_unlocked(files: ChangeableStore, first: int) -> list[LogFile]:
    """Look through logs that a program may be removing, as it does when it has saved a newer snapshot."""
    with _reading(files):
        while True:
            before = generations_in(files)
            try:
                return scan(files, first)
            except (FileNotFoundError, TagMatchError):
                if generations_in(files) == before:
                    raise


def _reading(files: ChangeableStore) -> AbstractContextManager[None]:
    return failing(f"cannot read the staged changes of the index {files}")


def key_type_of_logs(files: ChangeableStore) -> KeyType | None:
    """The key type of the staged changes without an index; `None` if no changes are staged; errors as `scan`."""
    return next((log.key_type for log in _scan_unlocked(files, 1) if log.key_type is not None), None)


def left_behind(files: ChangeableStore, manifest: Callable[[], Manifest]) -> int | None:
    """How many changes programs that have ended, or a copy, have left staged for this one to take; `None` if no logs.

    Takes no lock: the last call of a program may still be written. Errors as `scan`.
    """
    with _reading(files):
        if not generations_in(files) and not staged_of(manifest()):
            return None
        try:
            if files.is_locked(WRITER):
                return None
        except FileNotFoundError:  # no one can have it, then
            pass
        except PermissionError:
            return None
    current = manifest()
    logged = sum(log.rows for log in _scan_unlocked(files, first_log_of(current)))
    copied: int = sum(entry["changes"] for entry in staged_of(current))
    return logged + copied


def changes_in(files: ChangeableStore, entries: Iterable[Entry]) -> Iterator[Logged]:
    """The changes in files of an index that came with a copy, by what its manifest says; errors as `scan`."""
    with _reading(files):
        yield from decoded(_records_of(_begun(files, entry["name"]) for entry in entries), files)


def remove_logs(files: ByteStore, before: int) -> None:
    """Remove logs that no longer count, oldest first; one that stays makes no difference."""
    for generation in generations_in(files):
        if generation < before:
            files.remove(log_name(generation))


# -- a log, written ----------------------------------------------------------------------------------------------------


class LogWriter:
    """A log to which records are appended; its owner holds a lock, except while it is synced."""

    # Ctrl-C may come after each call of C. A record is in the log from the assignment on that moves the end of the log
    # behind it; until then, bytes beyond the end are waste, which is cut before the next record is written.

    def __init__(self, log: LogFile, file: Log) -> None:
        assert log.header is not None
        self.file, self._log, self.header = file, log, log.header
        self.records, self.end = log.records, log.end
        self.on_disk = LOG_HEADER_BYTES  # this number of bytes is known to be
        self.last = log.end  # where the last record begins, if it was appended here and not taken back
        self._has_waste = self._is_in_doubt = False

    def __str__(self) -> str:
        return str(self._log)

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
            return cls(LogFile(files, name, header, end=LOG_HEADER_BYTES), file)
        except BaseException:
            if file is not None:
                file.close()
            files.remove(name)
            raise

    @property
    def is_usable(self) -> bool:
        """Whether records can be appended, as far as is known."""
        return not (self._is_in_doubt or self._has_waste)

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
            self.file.put(pieces, self.end, end - self.end)
        except BaseException:
            self.try_to_cut_waste()
            raise
        self.records, self.end, self.last, self._has_waste = records, end, last, False

    def take_back(self) -> None:
        """Turn the last record into waste, of one that was appended here."""
        on_disk = min(self.on_disk, self.last)
        self.records, self.end, self.on_disk, self._has_waste = self.records - 1, self.last, on_disk, True

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
        calls = starmap(self.file.sync, [()])
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
        self.file.close()

    def _cut_waste(self) -> None:
        if self._has_waste:
            self.file.cut(self.end)
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
        self._older = logs[:-1]
        self._log: LogWriter | None = None
        self._generation, self._version = generation, 1  # what one record has needed, later ones may need, too
        # The state of the folder when its manifest counted these logs
        self._seen: tuple[int, int] | None = None
        self._is_open = True
        # How many records were written, and are on disk; counted from 1 on, those that never will be for sure
        self.position = 0
        self._on_disk = 0
        self._in_doubt: list[range] = []
        # Locks are taken in this order; the leader of the group that forms now has the first
        self._group = threading.Lock()
        self._syncing = threading.Lock()
        self._writing = threading.Lock()
        _JOURNALS.add(self)
        if logs:  # last, as who is interrupted closes no file
            log = self._log = LogWriter(logs[-1], files.log(logs[-1].name))
            self._generation, self._version = log.header.generation, log.header.version

    @classmethod
    def acquire(cls, files: ChangeableStore, first: Callable[[], int]) -> Journal:
        """Take the log of an index, whose logs count from a generation on; older ones are removed.

        `first` gives that generation once no other program can change it any more. A torn tail is cut, with a
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
                generation = first()
                remove_logs(files, generation)
                logs = scan(files, generation)
                for log in logs:
                    if log.torn_bytes or log.header is None:
                        log.cut()
                        some = f" of {log.torn_records} calls or more" if log.torn_records else ""
                        warnings.warn(
                            f"{log} ended with {log.torn_bytes} bytes that were not written wholly, as the program or "
                            f"the machine stopped during it; they are cut, and the staged changes{some} that were in "
                            "them are lost",
                            StagedChangesWarning,
                            stacklevel=3,
                        )
                return cls(files, lock, generation, [log for log in logs if log.header is not None])
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
        first = self._generation - len(self._older)
        if not (self.is_there and first <= first_log_of(manifest()) <= self._generation):
            return False
        if time.time_ns() - state[1] > _CLOCK_NS:
            self._seen = state
        return True

    @property
    def refuses(self) -> bool:
        """Whether nothing can be written until `rotate`, as the disk has failed to take something."""
        return self._log is not None and not self._log.is_usable

    def write(self, record: Record) -> int:
        """Write a record behind all others, or not: TagMatchError; returns the position up to which to `sync`."""
        self._version = max(self._version, record.version)
        if self._log is not None and self._log.header.version < record.version:
            self.rotate()
        with self._writing:
            self._reject_if_closed()
            written = self.position + 1
            try:
                if self._log is None:
                    self._log = LogWriter.create(self._files, self._generation, 0, self._version)
                self._log.append(record)
                self.position = written
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
        on_disk = self._on_disk  # which `rotate` raises after it has recorded the doubt
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
                log, written = self._log, self.position
                end = 0 if log is None else log.end
            if log is not None:
                with failing(f"{log} may not be on disk"):
                    log.sync(end)
            self._on_disk = written

    def back_to(self, position: int) -> None:
        """Take back the record that a call wrote which failed then; InvalidValueError if it wrote more."""
        with self._syncing, self._writing:
            if self.position == position:
                return
            log = self._log
            if self.position != position + 1 or log is None or log.last == log.end:
                raise InvalidValueError(f"from position {self.position}, the log cannot go back to {position}")
            on_disk = min(self._on_disk, position)
            log.take_back()
            # Ctrl-C comes before both, or after
            self.position, self._on_disk = position, on_disk
            log.try_to_cut_waste()

    # -- generations ---------------------------------------------------------------------------------------------------

    def rotate(self) -> int:
        """Begin another generation for later records, unless this one is empty; returns the current one."""
        with self._syncing, self._writing:
            self._reject_if_closed()
            log = self._log
            if log is None or (log.is_usable and log.records == 0 and log.header.version == self._version):
                return self._generation
            with suppress(TagMatchError, OSError):
                # Else a crash could leave a torn tail in this log, and the next one whole
                log.sync(log.end)
                self._on_disk = self.position
            generation = self._generation + 1
            older = [*self._older, log.contents()]
            in_doubt = [*self._in_doubt, range(self._on_disk + 1, self.position + 1)]
            with failing(f"cannot begin another log of staged changes of the index {self._files}"):
                self._log = LogWriter.create(self._files, generation, log.on_disk, self._version)
                self._generation, self._older = generation, older
                self._in_doubt, self._on_disk = in_doubt, self.position
            log.close(remove=False)
            return generation

    def drop(self, before: int) -> None:
        """Remove the logs of generations before this one, except that which is written to."""
        with self._writing:
            self._reject_if_closed()
            before = min(before, self._generation)
            first = self._generation - len(self._older)
            self._older = self._older[max(before - first, 0) :]
            with suppress(TagMatchError):  # what stays no longer counts, and goes with the next
                remove_logs(self._files, before)

    # -- reading -------------------------------------------------------------------------------------------------------

    def replay(self) -> Iterator[Logged]:
        """The changes logged until now, in order; IndexCorruptError if a log has changed since, TagMatchError."""
        with self._writing:
            self._reject_if_closed()
            logs = [*self._older, *([] if self._log is None else [self._log.contents()])]
        with _reading(self._files):
            yield from decoded(_records_of(logs), self._files)

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
            self._log.file.close()
        self._lock.close()

    def _reject_if_closed(self) -> None:
        if not self._is_open:
            raise ClosedError


_JOURNALS: weakref.WeakSet[Journal] = weakref.WeakSet()


def _abandon_all() -> None:
    for journal in list(_JOURNALS):
        journal.abandon()


os.register_at_fork(after_in_child=_abandon_all)
