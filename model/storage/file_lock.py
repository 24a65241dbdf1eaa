"""Locks between processes: one at a time holds the lock of a file."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
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
