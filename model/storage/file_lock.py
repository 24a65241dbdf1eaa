"""Locks between processes: one at a time holds the lock of a file."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from io import FileIO
from pathlib import Path


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock of a file, which is made if need be, once nobody else holds it, in this process or another.

    The lock goes with the process that holds it, however it ends; the file stays.

    Raises
    ------
    OSError
        The file cannot be written, or its file system has no locks.
    """
    with file.open("ab") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def lock_at_once(file: Path, mode: str = "a") -> FileIO | None:
    """Take the lock of a file until what is returned is closed; None if somebody has it.

    With the mode "a" it is made if need be, "r" does with a file that can only be read.

    Errors as `locked`.
    """
    opened = FileIO(file, mode)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        opened.close()
        return None
    except BaseException:
        opened.close()
        raise
    return opened
