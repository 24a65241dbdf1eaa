"""What lies in a folder, when nothing changes there any more, and how long a disk takes to save."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tagmatch_bench.harness.timing import Samples, seconds_of

#: Of each file: what tells another file, or another content, from it
State: TypeAlias = dict[Path, tuple[int, int, int]]

#: Share of a processor that a process takes which does nothing
_IDLE = 0.05

_SYNCS = 20
_SYNCED_BYTES = 4096


def state_of(folder: Path) -> State:
    """Return the number, size and time of change of all files in a folder and those below."""
    found = {}
    for path in folder.rglob("*"):
        try:
            facts = path.stat()
        except FileNotFoundError:  # removed meanwhile
            continue
        if path.is_file():
            found[path] = facts.st_ino, facts.st_size, facts.st_mtime_ns
    return found


def changed_files(before: State, after: State) -> int:
    """Count the files that were written, changed or removed."""
    return len({path for path, _ in before.items() ^ after.items()})


def wait_until_quiet(
    folder: Path, *, done: Callable[[], bool] = lambda: True, quiet: float = 1.0, at_most: float = 1800.0
) -> float:
    """Wait until work in the background has ended; returns the seconds that this took.

    It has ended when it is `done` and for `quiet` seconds no file in the folder has changed and this process took no
    processor.

    Raises
    ------
    TimeoutError
        It has not ended after `at_most` seconds.
    """
    start = time.perf_counter()
    while (waited := time.perf_counter() - start) < at_most:
        files, used = state_of(folder), time.process_time()
        time.sleep(quiet)
        if done() and state_of(folder) == files and time.process_time() - used < _IDLE * quiet:
            return round(waited, 3)
    raise TimeoutError(f"after {at_most:g} seconds, something still works in the background, at {folder}")


def sync_seconds(folder: Path) -> Samples:
    """Measure how long it takes until a few bytes appended to a file are on the disk of a folder."""
    path = folder / "synced"
    with path.open("wb", buffering=0) as file:

        def append() -> None:
            file.write(b"\0" * _SYNCED_BYTES)
            os.fsync(file.fileno())

        taken = tuple(seconds_of(append) for _ in range(_SYNCS))
    path.unlink()
    return Samples(taken)
