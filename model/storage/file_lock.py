"""Locks between processes: one at a time holds the lock of a file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from tagmatch.model.storage.plain_files import plain_file

# Who only looks holds a lock for a moment
_PATIENCE_S, _PAUSE_S = 10.0, 0.001

# Of the modes of files, what those may do who do not own them
_READ, _WRITE = 0o044, 0o022


@contextlib.contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock of a file below a folder, which is made if need be.

    Who holds it, in this process or another, is waited for. The lock goes with the process that holds it, however it
    ends; the file stays.

    Raises
    ------
    IndexCorruptError
        It is a link, or no plain file.
    OSError
        The file cannot be written, or its file system has no locks.
    """
    with _opened(folder, name) as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def lock_at_once(folder: Path, name: str) -> FileIO | None:
    """Take the lock of a file below a folder, which is made if need be; None if it is taken.

    It is held until the file that this returns is closed.

    Errors as `locked`.
    """
    opened = _opened(folder, name)
    try:
        end = time.monotonic() + _PATIENCE_S
        while not _lock(opened, fcntl.LOCK_EX):
            # The lock that many can have at once is that of those who look, as `is_locked` does
            if not _lock(opened, fcntl.LOCK_SH) or time.monotonic() > end:
                opened.close()
                return None
            fcntl.flock(opened, fcntl.LOCK_UN)
            time.sleep(_PAUSE_S)
    except BaseException:
        opened.close()
        raise
    return opened


def is_locked(folder: Path, name: str) -> bool:
    """Whether a program holds the lock of a file; keeps no other from taking it. FileNotFoundError, and as `locked`."""
    with plain_file(folder, name) as opened:
        return not _lock(opened, fcntl.LOCK_SH)


def _lock(opened: FileIO, kind: int) -> bool:
    """Take a lock at once, if it can be had."""
    try:
        fcntl.flock(opened, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _opened(folder: Path, name: str) -> FileIO:
    """A lock's file, closed to users without the right to write it: to open a file is enough to lock it."""
    opened = plain_file(folder, name, "ab")
    try:
        found = os.fstat(opened.fileno())
        mode = stat.S_IMODE(found.st_mode)
        readers = _READ & ~((mode & _WRITE) << 1)
        if mode & readers and found.st_nlink == 1:
            with contextlib.suppress(OSError):  # of another user
                os.fchmod(opened.fileno(), mode & ~readers)
        return opened
    except BaseException:
        opened.close()
        raise
