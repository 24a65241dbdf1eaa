"""The files of a log of staged changes: their names and headers, and which of their records count after a crash.

A log of generation 7 is the file `staged-00000007.log`: a header of 40 bytes, and records (see `records`) one
behind the other. Numbers are unsigned and little-endian. The header ::

    offset  bytes
         0      4  `TMl1`
         4      4  format version: 3 if sets in the log may have constraints, else 2 if keys may expire, else 1
         8      8  generation
        16      8  id, a random number
        24      8  how many bytes of the log before this one were on disk when this one began
        32      8  XXH3-64 of the 32 bytes before, the most significant byte first

It is on disk, as is its name, before the first record is written. Generations follow each other without gaps.

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
import shutil
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

import xxhash

from tagmatch.model.errors import IndexCorruptError, IndexVersionError, StagedChangesWarning, TagMatchError
from tagmatch.model.options import KeyType
from tagmatch.model.storage.files import Entry, checksum_in, is_locked, plain_file, sync
from tagmatch.model.storage.format import (
    CHANGES_PREFIX,
    STAGED_PREFIX,
    WRITER,
    Manifest,
    first_log_of,
    staged_of,
)
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
    """The header of a log: its generation, its id, and how many bytes of the one before were on disk.

    Its records need this format version at most.
    """

    generation: int
    id: int
    before: int
    version: int = 1

    def packed(self) -> bytes:
        """The header as bytes of the file."""
        fields = _FIELDS.pack(_MAGIC, self.version, self.generation, self.id, self.before)
        return fields + xxhash.xxh3_64_digest(fields)


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log that has been looked through."""

    path: Path
    header: LogHeader | None  # none of a file that was not begun wholly
    records: int = 0  # that count
    rows: int = 0  # changes in these
    end: int = 0  # of the last one: bytes of the file that count
    torn_bytes: int = 0  # that come after
    torn_records: int = 0  # that can still be told there
    key_type: KeyType | None = None  # of the keys in the records that count

    @property
    def generation(self) -> int:
        """As the header says, or 0 without one."""
        return self.header.generation if self.header else 0


def log_path(folder: Path, generation: int) -> Path:
    """The file of a generation."""
    return folder / f"{STAGED_PREFIX}{generation:08d}.log"


def generations_in(folder: Path) -> list[int]:
    """The generations that have a file, ascending; none if there is no folder."""
    if not folder.is_dir():
        return []
    found = (_NAME.fullmatch(entry.name) for entry in folder.iterdir())
    return sorted(int(match[1]) for match in found if match)


def scan(folder: Path, first: int) -> list[LogFile]:
    """Look through all logs from generation `first` on, in order; IndexVersionError, OSError.

    IndexCorruptError: a log is missing or damaged.
    """
    generations = [generation for generation in generations_in(folder) if generation >= first]
    for expected, generation in enumerate(generations, first):
        if generation != expected:
            raise _damaged(log_path(folder, expected), 0, "is missing, though there is a later log")
    paths = [log_path(folder, generation) for generation in generations]
    headers = [_read_header(path, generation) for path, generation in zip(paths, generations, strict=True)]
    for path, header in zip(paths[:-1], headers[:-1], strict=True):
        if header is None:
            raise _damaged(path, 0, "has no header, though there is a later log")
    following = pairwise([*headers, None])
    return [
        _scan_log(path, header, after.before if after else 0)
        for path, (header, after) in zip(paths, following, strict=True)
    ]


def records_of(log: LogFile) -> Iterator[tuple[Header, bytes]]:
    """The records of a log that count, with their bodies; errors as `scan`."""
    if log.header is None:
        return
    with _opened(log.path) as file:
        yield from _sound_records(file, log.header, log.end)
        if file.tell() < log.end:
            raise _damaged(log.path, file.tell(), "has changed since it was opened")


def records_in(path: Path) -> Iterator[tuple[Header, bytes]]:
    """The records of a file that counts wholly, under any name; errors as `scan`."""
    header = _read_header(path)
    if header is None:
        raise _damaged(path, 0, "has no header")
    with _opened(path) as file:
        size = file.seek(0, os.SEEK_END)
    yield from records_of(LogFile(path, header, end=size))


def _opened(path: Path) -> BufferedReader:
    return BufferedReader(plain_file(path.parent, path.name), _BUFFER_BYTES)


def _read_header(path: Path, generation: int | None = None) -> LogHeader | None:
    """The header of a file, or None of one that was not begun wholly."""
    with _opened(path) as file:
        data = file.read(LOG_HEADER_BYTES + 1)
    fields = data[: _FIELDS.size]
    is_sound = data.startswith(_MAGIC) and xxhash.xxh3_64_digest(fields) == data[_FIELDS.size : LOG_HEADER_BYTES]
    if not is_sound:
        if len(data) <= LOG_HEADER_BYTES:
            return None
        raise _damaged(path, 0, "does not have the checksum that it was begun with")
    _, version, generation_there, number, before = _FIELDS.unpack(fields)
    if version > LOG_VERSION:
        raise IndexVersionError(
            f"{path} has format {version}, this version of tagmatch reads up to {LOG_VERSION}; upgrade tagmatch"
        )
    header = LogHeader(generation_there, number, before, version)
    if generation not in (None, header.generation):
        raise _damaged(path, 0, f"is the log of generation {header.generation}, under another name")
    return header


def _scan_log(path: Path, header: LogHeader | None, on_disk: int) -> LogFile:
    with _opened(path) as file:
        size = file.seek(0, 2)
        if header is None:
            return LogFile(path, None, torn_bytes=size)
        records = rows = 0
        end = LOG_HEADER_BYTES
        key_type: KeyType | None = None
        for record, body in _sound_records(file, header, size):
            if record.rows > len(body):  # a stranger's: each change has bytes, and the sum of all is a length
                raise _damaged(path, end, "has a record with more changes than bytes")
            key_type = record.key_type
            records, rows, end = records + 1, rows + record.rows, end + HEADER_BYTES + len(body)
        if end < on_disk:
            raise _damaged(path, end, "does not have a sound record where one was on disk")
        if end == size:
            return LogFile(path, header, records, rows, end, key_type=key_type)
        file.seek(end)
        torn_records = _torn_records(path, file.read(), header.id, records, end)
        return LogFile(path, header, records, rows, end, size - end, torn_records, key_type)


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


def _torn_records(path: Path, tail: bytes, log: int, number: int, begin: int) -> int:
    """How many records can still be told in a torn tail, after the last sound one; IndexCorruptError of damage."""
    found = []
    place = tail.find(MAGIC)
    while place >= 0:
        header = header_in(tail[place : place + HEADER_BYTES], log)
        if header:
            found.append((place, header))
        place = tail.find(MAGIC, place + 1)
    later = [(place, header) for place, header in found if place > 0 or header.number != number]
    if later:
        has_been_on_disk = any(header.on_disk > begin for _, header in later)
        if has_been_on_disk or not _has_empty_block(tail[: later[0][0]], begin):
            raise _damaged(path, begin, "does not have a sound record before a later one")
    return len(found)


def _has_empty_block(data: bytes, begin: int) -> bool:
    """Whether the data, from byte `begin` of a file on, has an empty block, or the empty last part of one."""
    first = -begin % _BLOCK_BYTES
    if _EMPTY_BYTES <= first <= len(data) and not any(data[:first]):
        return True
    empty = bytes(_BLOCK_BYTES)
    return any(data.startswith(empty, place) for place in range(first, len(data) - _BLOCK_BYTES + 1, _BLOCK_BYTES))


def _damaged(path: Path, offset: int, what: str) -> IndexCorruptError:
    return IndexCorruptError(
        f"{path} {what} (byte {offset}); restore the index from a copy, or give up the changes that were staged from "
        "there on: cut the file at that byte and remove the logs after it"
    )


def key_type_of_logs(folder: Path) -> KeyType | None:
    """What the keys are of all that is staged in a folder without an index; `None` if nothing is; errors as `scan`."""
    return next((log.key_type for log in _scan_unlocked(folder, 1) if log.key_type is not None), None)


def left_behind(folder: Path, manifest: Callable[[], Manifest]) -> int | None:
    """How many changes programs that have ended, or a copy, have left staged in an index; `None` if there are no logs.

    Nothing that this program can take over is left where another one has the log, or where this user may not write.
    Takes no lock: the last call of a program may still be written. Errors as `scan`.
    """
    with failing(f"cannot read the staged changes of the index {folder}"):
        if not generations_in(folder) and not staged_of(manifest()):
            return None
        try:
            if is_locked(folder, WRITER):
                return None
        except FileNotFoundError:  # no one can have it, then
            pass
        except PermissionError:
            return None
        current = manifest()
        logged = sum(log.rows for log in _scan_unlocked(folder, first_log_of(current)))
        copied: int = sum(entry["changes"] for entry in staged_of(current))
        return logged + copied


def _scan_unlocked(folder: Path, first: int) -> list[LogFile]:
    """Look through logs that a program may be removing, as it does when it has saved a newer snapshot."""
    with failing(f"cannot read the staged changes of the index {folder}"):
        while True:
            before = generations_in(folder)
            try:
                return scan(folder, first)
            except (FileNotFoundError, TagMatchError):
                if generations_in(folder) == before:
                    raise


def whole_logs(folder: Path, first: int) -> list[LogFile]:
    """All logs from generation `first` on, after their torn tails have been cut, with a warning; errors as `scan`."""
    logs = scan(folder, first)
    for log in logs:
        if log.torn_bytes or log.header is None:
            _cut_torn_tail(log)
    return [log for log in logs if log.header is not None]


def remove_logs(folder: Path, before: int) -> None:
    """Remove logs that no longer count, oldest first; one that stays makes no difference."""
    for generation in generations_in(folder):
        if generation < before:
            with suppress(OSError):
                log_path(folder, generation).unlink()


def _cut_torn_tail(log: LogFile) -> None:
    if log.header is None:
        log.path.unlink()
        sync(log.path.parent)
    else:
        with plain_file(log.path.parent, log.path.name, "r+b") as file:
            os.ftruncate(file.fileno(), log.end)
            os.fsync(file.fileno())
    some = f" of {log.torn_records} calls or more" if log.torn_records else ""
    warnings.warn(
        f"{log.path} ended with {log.torn_bytes} bytes that were not written wholly, as the program or the machine "
        f"stopped meanwhile; they are cut, and the staged changes{some} that were in them are lost",
        StagedChangesWarning,
        stacklevel=5,
    )


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Tell what could not be done when the system says no."""
    try:
        yield
    except OSError as error:
        raise told(what, error) from error


def told(what: str, error: OSError) -> TagMatchError:
    """The error that something could not be done, with the system's reason."""
    return TagMatchError(f"{what}: {error.strerror or error}")


def logs_as_files(
    logs: Iterable[str], fetch: Callable[[str, Path], None], first: int, folder: Path, index: object
) -> list[Entry]:
    """Write and sync files in a folder that have the changes of logs; returns what manifests say of them, in order.

    `logs` are names of those from generation `first` on, which `fetch` copies; programs may be writing to the last
    one. Each file never changes; when its changes are saved, the manifest does not name it any more. Errors as `scan`.
    """
    copies = folder / "logs"
    copies.mkdir()
    for name in logs:
        fetch(name, copies / name)
    try:
        found = [log for log in scan(copies, first) if log.records]
    except IndexCorruptError as error:
        raise IndexCorruptError(str(error).replace(str(copies), str(index))) from None
    entries = []
    for log in found:
        with log.path.open("r+b") as file:
            file.truncate(log.end)  # what comes after is being written, or was not written wholly
            os.fsync(file.fileno())
        checksum = checksum_in(copies, log.path.name)
        name = f"{CHANGES_PREFIX}{checksum}.log"
        log.path.rename(folder / name)
        entries.append({"name": name, "changes": log.rows, "bytes": log.end, "xxh3_64": checksum})
    shutil.rmtree(copies)
    return entries


def changes_in(folder: Path, entries: Iterable[Entry]) -> Iterator[Logged]:
    """What the files of an index that came with a copy have logged, by what its manifest says; errors as `scan`."""
    with failing(f"cannot read the staged changes of the index {folder}"):
        yield from decoded((record for entry in entries for record in records_in(folder / entry["name"])), folder)
