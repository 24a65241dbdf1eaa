"""One log of staged changes while it is written: whole records at its end, or none."""

from __future__ import annotations

import contextlib
import os
import secrets
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

from tagmatch.model.errors import TagMatchError
from tagmatch.model.storage.durable import remove, sync
from tagmatch.model.storage.journal.records import HEADER_BYTES, Record
from tagmatch.model.storage.journal.scan import LOG_HEADER_BYTES, LogFile, LogHeader, log_path
from tagmatch.model.storage.plain_files import open_plain

# Linux takes so many pieces at once
_MOST_PIECES = 1024


class LogWriter:
    """A log to which records are appended. Its owner holds a lock, except while it is synced.

    Ctrl-C may come at any moment at which the interpreter looks for it, which it does after calls of functions that are
    written in C. A record is in the log from the assignment on that moves the log's end behind it, and until then,
    whatever is beyond the end counts as waste, which is cut before the next record is written.
    """

    def __init__(self, file: FileIO, log: LogFile, header: LogHeader) -> None:
        self._header = header
        self.path = log.path
        self.records = log.records
        self.end = log.end
        #: So many bytes are known to be on disk
        self.on_disk = LOG_HEADER_BYTES
        self._file = file
        # Where the last record begins, if it was appended here and not taken back
        self._last = log.end
        self._has_waste = False
        self._is_in_doubt = False

    @classmethod
    def create(cls, folder: Path, generation: int, before: int, version: int) -> LogWriter:
        """Begin a log, which is on disk then, as is its name; `before` bytes of the log before it are.

        It takes records that need this format version, or an older one.
        """
        path = log_path(folder, generation)
        header = LogHeader(generation, secrets.randbits(64), before, version)
        file = None
        try:
            # Whatever has the name goes, and is not written to: it may be a link
            remove(path)
            file = FileIO(path, "x+")
            _write(file.fileno(), [header.packed()], 0)
            os.fsync(file.fileno())
            sync(folder)
            return cls(file, LogFile(path, header, end=LOG_HEADER_BYTES), header)
        except BaseException:
            if file is not None:
                file.close()
            with contextlib.suppress(OSError):
                path.unlink()
            raise

    @classmethod
    def reopen(cls, log: LogFile) -> LogWriter:
        """Go on with a log, which has a header and no torn tail."""
        assert log.header is not None
        return cls(FileIO(log.path.name, "r+", opener=partial(open_plain, log.path.parent)), log, log.header)

    @property
    def is_usable(self) -> bool:
        """Whether records can be appended, as far as is known."""
        return not (self._is_in_doubt or self._has_waste)

    @property
    def version(self) -> int:
        """The format version that records may need."""
        return self._header.version

    @property
    def has_last(self) -> bool:
        """Whether the last record can be taken back."""
        return self._last < self.end

    def contents(self) -> LogFile:
        """What the log has now."""
        return LogFile(self.path, self._header, records=self.records, end=self.end)

    def append(self, record: Record) -> None:
        """Write a record wholly, or not at all.

        Raises
        ------
        OSError
            It was not written.
        TagMatchError
            The log takes no more records.
        """
        self._reject_if_in_doubt()
        self._cut_waste()
        pieces: list[Any] = [record.sealed(self._header.id, self.records, self.on_disk), *record.body]
        records, last, end = self.records + 1, self.end, self.end + HEADER_BYTES + record.nbytes
        self._has_waste = True
        try:
            _write(self._file.fileno(), pieces, self.end)
        except BaseException:
            self.try_to_cut_waste()
            raise
        self.records, self.end, self._last, self._has_waste = records, end, last, False

    def take_back(self) -> None:
        """Have the last record be waste; see `has_last`."""
        on_disk = min(self.on_disk, self._last)
        self.records, self.end, self.on_disk, self._has_waste = self.records - 1, self._last, on_disk, True

    def try_to_cut_waste(self) -> None:
        """Cut what is beyond the end, or leave that to the next call of `append`."""
        with contextlib.suppress(OSError):
            self._cut_waste()

    def sync(self, end: int) -> None:
        """Have the log on disk up to a byte.

        A log that the disk did not take wholly is not gone on with. Linux tells an error once, and may then hold the
        pages that were not written for clean: a later sync that succeeds says nothing about them. Nor could it be
        repaired by writing the records again, as the same disk has just failed, and what is in memory is staged in any
        case: to consolidate it writes all of it to new files.

        Raises
        ------
        OSError
            The disk did not take it.
        TagMatchError
            It has not taken it before.
        """
        self._reject_if_in_doubt()
        done: list[None] = []
        calls = map(os.fsync, (self._file.fileno(),))
        try:
            done.extend(calls)  # in one step: Ctrl-C comes before the sync, or after its outcome is known
        finally:
            if not done:
                self._is_in_doubt = True
        self.on_disk = end

    def close(self, *, remove: bool) -> None:
        """Let go of the file, and remove it if wanted; waste at its end is cut if that can be done."""
        if remove:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)
        else:
            self.try_to_cut_waste()
        self._file.close()

    def abandon(self) -> None:
        """Let go of the file, and leave it as it is."""
        self._file.close()

    def _cut_waste(self) -> None:
        if self._has_waste:
            os.ftruncate(self._file.fileno(), self.end)
            self._has_waste = False

    def _reject_if_in_doubt(self) -> None:
        if self._is_in_doubt:
            raise TagMatchError(
                f"{self.path} takes no more changes, as the disk has failed to take some and does not say which; those "
                "that are staged are still in memory: consolidate() saves them and begins another log"
            )


def _write(descriptor: int, pieces: list[Any], offset: int) -> None:
    while pieces:
        written = os.pwritev(descriptor, pieces[:_MOST_PIECES], offset)
        if written == 0:
            raise OSError("the file takes no more bytes")
        offset += written
        pieces = _rest(pieces, written)


def _rest(pieces: list[Any], count: int) -> list[Any]:
    """Pieces without their first bytes."""
    for i, piece in enumerate(pieces):
        view = memoryview(piece)
        if count < view.nbytes:
            return [view.cast("B")[count:], *pieces[i + 1 :]]
        count -= view.nbytes
    return []
