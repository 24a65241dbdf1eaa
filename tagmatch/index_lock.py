"""One writer of an index at a time."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

LOCK = "LOCK"


@contextlib.contextmanager
def write_lock(path: Path) -> Iterator[None]:
    """Hold the lock of the index folder `path`, once no other writer holds it, in this process or another.

    The lock goes with the process that holds it, however it ends; the file stays. Readers need no lock.

    Raises
    ------
    OSError
        The file cannot be written, or its file system has no locks.
    """
    with (path / LOCK).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
