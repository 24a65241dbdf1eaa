"""The files of a log of staged changes: their names and headers, and which of their records count after a crash.

A log of generation 7 is the file `staged-00000007.log`: a header and records, as `docs/format.md` has them.

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
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import xxhash

from tagmatch.model.errors import IndexCorruptError, IndexVersionError, StagedChangesWarning, TagMatchError
from tagmatch.model.options import KeyType
from tagmatch.model.storage.byte_store import ByteStore, ChangeableStore
from tagmatch.model.storage.files import Entry, remove
from tagmatch.model.storage.format import (
    CHANGES_PREFIX,
    STAGED_PREFIX,
    WRITER,
    Manifest,
    first_log_of,
    staged_of,
)
from tagmatch.model.storage.local_folder import LocalFolder
from tagmatch.model.storage.log_records import HEADER_BYTES, MAGIC, Header, Logged, decoded, header_in

#: The newest that is read
LOG_VERSION = 4
LOG_HEADER_BYTES = 40

_MAGIC = b"TMl1"
_FIELDS = struct.Struct("<4sIQQQ")
_NAME = re.compile(rf"{STAGED_PREFIX}([0-9]{{8,19}})\.log")

_BUFFER_BYTES = 1 << 20
# File systems write blocks of this size, or of a multiple
_BLOCK_BYTES = 512
# The least that is taken for the rest of an empty block: a record's header has no so many zeros, even if damaged
_EMPTY_BYTES = 16


class LogHeader(NamedTuple):
    """The header of a log."""

    generation: int
    id: int
    before: int  # how many bytes of the log before were on disk
    version: int = 1  # that its records need at most

    def packed(self) -> bytes:
        """The header as bytes of the file."""
        fields = _FIELDS.pack(_MAGIC, self.version, self.generation, self.id, self.before)
        return fields + xxhash.xxh3_64_digest(fields)


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log that has been looked through."""

    files: ChangeableStore  # where it is
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

    @property
    def generation(self) -> int:
        """As the header says, or 0 without one."""
        return self.header.generation if self.header else 0


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
    following = pairwise([*(log.header for log in logs), None])
    return [_scan_log(log, after.before if after else 0) for log, (_, after) in zip(logs, following, strict=True)]


def records_of(log: LogFile) -> Iterator[tuple[Header, bytes]]:
    """The records of a log that count, with their bodies; errors as `scan`."""
    if log.header is None:
        return
    with _opened(log) as file:
        yield from _sound_records(file, log.header, log.end)
        if file.tell() < log.end:
            raise _damaged(log, file.tell(), "has changed since it was opened")


def _records_in(files: ChangeableStore, entry: Entry) -> Iterator[tuple[Header, bytes]]:
    """The records of a file that counts wholly, under any name; errors as `scan`."""
    log = _begun(files, entry["name"])
    if log.header is None:
        raise _damaged(log, 0, "has no header")
    yield from records_of(log)


@contextmanager
def _opened(log: LogFile) -> Iterator[BufferedReader]:
    with log.files.open(log.name) as file:
        yield BufferedReader(file, _BUFFER_BYTES)


def _begun(files: ChangeableStore, name: str, generation: int | None = None) -> LogFile:
    """A file with its header, and all behind that."""
    log = LogFile(files, name, None)
    with _opened(log) as file:
        data = file.read(LOG_HEADER_BYTES + 1)
        size = file.seek(0, os.SEEK_END)
    fields = data[: _FIELDS.size]
    is_sound = data.startswith(_MAGIC) and xxhash.xxh3_64_digest(fields) == data[_FIELDS.size : LOG_HEADER_BYTES]
    if not is_sound:
        if len(data) <= LOG_HEADER_BYTES:
            return replace(log, torn_bytes=size)
        raise _damaged(log, 0, "does not have the checksum that it was begun with")
    _, version, generation_there, number, before = _FIELDS.unpack(fields)
    if version > LOG_VERSION:
        raise IndexVersionError(
            f"{log} has format {version}, this version of tagmatch reads up to {LOG_VERSION}; upgrade tagmatch"
        )
    header = LogHeader(generation_there, number, before, version)
    if generation not in (None, header.generation):
        raise _damaged(log, 0, f"is the log of generation {header.generation}, under another name")
    return replace(log, header=header, end=size)


def _scan_log(log: LogFile, on_disk: int) -> LogFile:
    if log.header is None:
        return log
    records = rows = 0
    end = LOG_HEADER_BYTES
    key_type: KeyType | None = None
    with _opened(log) as file:
        for record, body in _sound_records(file, log.header, log.end):
            if record.rows > len(body):  # a stranger's: each change has bytes, and the sum of all is a length
                raise _damaged(log, end, "has a record with more changes than bytes")
            key_type = record.key_type
            records, rows, end = records + 1, rows + record.rows, end + HEADER_BYTES + len(body)
        if end < on_disk:
            raise _damaged(log, end, "does not have a sound record where one was on disk")
        file.seek(end)
        tail = file.read(log.end - end)
    torn_records = _torn_records(log, tail, records, end)
    return LogFile(log.files, log.name, log.header, records, rows, end, len(tail), torn_records, key_type)


def _sound_records(file: BinaryIO, log: LogHeader, size: int) -> Iterator[tuple[Header, bytes]]:
    """Records up to the first that is not sound, or the size; the file is then where the last one ends."""
    end = LOG_HEADER_BYTES
    number = 0
    file.seek(end)
    while header := header_in(file.read(HEADER_BYTES), log.id):
        next_end = end + HEADER_BYTES + header.nbytes
        if header.number != number or next_end > size:
            break
        body = file.read(header.nbytes)
        if xxhash.xxh3_64_digest(body) != header.checksum:
            break
        yield header, body
        end = next_end
        number += 1
    file.seek(end)


def _torn_records(log: LogFile, tail: bytes, number: int, begin: int) -> int:
    """How many records can still be told in a torn tail, after the last sound one; IndexCorruptError of damage."""
    assert log.header is not None
    found = []
    place = tail.find(MAGIC)
    while place >= 0:
        header = header_in(tail[place : place + HEADER_BYTES], log.header.id)
        if header:
            found.append((place, header))
        place = tail.find(MAGIC, place + 1)
    later = [(place, header) for place, header in found if place > 0 or header.number != number]
    if later:
        has_been_on_disk = any(header.on_disk > begin for _, header in later)
        if has_been_on_disk or not _has_empty_block(tail[: later[0][0]], begin):
            raise _damaged(log, begin, "does not have a sound record before a later one")
    return len(found)


def _has_empty_block(data: bytes, begin: int) -> bool:
    """Whether the data, from byte `begin` of a file on, has an empty block, or the empty last part of one."""
    first = -begin % _BLOCK_BYTES
    if _EMPTY_BYTES <= first <= len(data) and not any(data[:first]):
        return True
    empty = bytes(_BLOCK_BYTES)
    return any(data.startswith(empty, place) for place in range(first, len(data) - _BLOCK_BYTES + 1, _BLOCK_BYTES))


def _damaged(log: object, offset: int, what: str) -> IndexCorruptError:
    return IndexCorruptError(
        f"{log} {what} (byte {offset}); restore the index from a copy, or give up the changes that were staged from "
        "there on: cut the file at that byte and remove the logs after it"
    )


def key_type_of_logs(files: ChangeableStore) -> KeyType | None:
    """What the keys are of all that is staged where there is no index; `None` if nothing is; errors as `scan`."""
    return next((log.key_type for log in _scan_unlocked(files, 1) if log.key_type is not None), None)


def left_behind(files: ChangeableStore, manifest: Callable[[], Manifest]) -> int | None:
    """How many changes programs that have ended, or a copy, have left staged for this one to take; `None` if no logs.

    Takes no lock: the last call of a program may still be written. Errors as `scan`.
    """
    with failing(f"cannot read the staged changes of the index {files}"):
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


def _scan_unlocked(files: ChangeableStore, first: int) -> list[LogFile]:
    """Look through logs that a program may be removing, as it does when it has saved a newer snapshot."""
    with failing(f"cannot read the staged changes of the index {files}"):
        while True:
            before = generations_in(files)
            try:
                return scan(files, first)
            except (FileNotFoundError, TagMatchError):
                if generations_in(files) == before:
                    raise


def whole_logs(files: ChangeableStore, first: int) -> list[LogFile]:
    """All logs from generation `first` on, after their torn tails have been cut, with a warning; errors as `scan`."""
    logs = scan(files, first)
    for log in logs:
        if log.torn_bytes or log.header is None:
            _cut_torn_tail(log)
    return [log for log in logs if log.header is not None]


def remove_logs(files: ByteStore, before: int) -> None:
    """Remove logs that no longer count, oldest first; one that stays makes no difference."""
    for generation in generations_in(files):
        if generation < before:
            files.remove(log_name(generation))


def _cut_torn_tail(log: LogFile) -> None:
    if log.header is None:
        log.files.remove(log.name)
        log.files.sync()
    else:
        _cut(log)
    some = f" of {log.torn_records} calls or more" if log.torn_records else ""
    warnings.warn(
        f"{log} ended with {log.torn_bytes} bytes that were not written wholly, as the program or the machine "
        f"stopped meanwhile; they are cut, and the staged changes{some} that were in them are lost",
        StagedChangesWarning,
        stacklevel=5,
    )


def _cut(log: LogFile) -> None:
    """Cut, and sync, what does not count of a log."""
    with closing(log.files.log(log.name)) as file:
        file.cut(log.end)
        file.sync()


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Tell what could not be done when the system says no."""
    try:
        yield
    except OSError as error:
        raise TagMatchError(f"{what}: {error.strerror or error}") from error


def logs_as_files(
    logs: Iterable[str], fetch: Callable[[str, Path], Any], first: int, folder: Path, index: object
) -> list[Entry]:
    """Write and sync files in a folder that have the changes of logs; returns what manifests say of them, in order.

    `logs` are names of those from generation `first` on, which `fetch` copies; programs may be writing to the last one.
    """
    copies = LocalFolder(folder / "logs")
    copies.place.mkdir()
    for name in logs:
        fetch(name, copies.place / name)
    try:
        found = [log for log in scan(copies, first) if log.records]
    except IndexCorruptError as error:
        raise IndexCorruptError(str(error).replace(str(copies), str(index))) from None
    entries = []
    for log in found:
        _cut(log)  # what comes after is being written, or was not written wholly
        checksum = copies.checksum(log.name)
        name = f"{CHANGES_PREFIX}{checksum}.log"
        (copies.place / log.name).rename(folder / name)
        entries.append({"name": name, "changes": log.rows, "bytes": log.end, "xxh3_64": checksum})
    remove(copies.place)
    return entries


def changes_in(files: ChangeableStore, entries: Iterable[Entry]) -> Iterator[Logged]:
    """What the files of an index that came with a copy have logged, by what its manifest says; errors as `scan`."""
    with failing(f"cannot read the staged changes of the index {files}"):
        yield from decoded((record for entry in entries for record in _records_in(files, entry)), files)
