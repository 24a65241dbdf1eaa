"""Systems on disk with the rows that each should hold, and the files that they write."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from tagmatch_bench.harness.reference import right_answers
from tagmatch_bench.harness.results import Result
from tagmatch_bench.harness.timing import Samples, seconds_of
from tagmatch_bench.systems.matcher import answers_to_pylist
from tagmatch_bench.systems.on_disk import OnDisk


class Stored:
    """A system at a path, and the rows that it holds: those of a table from one place to another."""

    def __init__(self, name: str, path: Path, open_at: Callable[[Path], OnDisk], rows: pa.Table) -> None:
        self.name, self.path = name, path
        self.system = open_at(path)
        self._open_at, self._rows = open_at, rows
        self._first = self._last = 0

    @property
    def contents(self) -> pa.Table:
        """The rows that the system should hold."""
        return self._rows[self._first : self._last]

    @property
    def place(self) -> tuple[int, int]:
        """Where these are in the table; systems at the same place hold the same rows."""
        return self._first, self._last

    def next_rows(self, count: int) -> pa.Table:
        """The rows to add next."""
        found = self._rows[self._last : self._last + count]
        if len(found) < count:
            raise ValueError(f"{self.name}: {count} rows are asked for; the workload has {len(found)} more")
        return found

    def newest(self, count: int) -> pa.ListArray:
        """The sets of the rows that were added last."""
        sets: pa.ListArray = self._rows["tags"][max(self._first, self._last - count) : self._last].combine_chunks()
        return sets

    def sees_newest(self) -> bool:
        """Whether the set that was added last is found."""
        key = self._rows["key"][self._last - 1].as_py()
        return key in answers_to_pylist(self.system.match_many(self.system.prepare(self.newest(1))))[0]

    def elsewhere(self, path: Path, more: int = 0) -> Stored:
        """Make another system of the same kind with what this one holds, and with the next rows."""
        made = Stored(self.name, path, self._open_at, self._rows[self._first : self._last + more])
        made.change(self._last - self._first + more)
        return made

    def change(self, added: int, removed: int = 0) -> float:
        """Add the next rows and remove the first; returns the seconds until that is visible."""
        new = self.next_rows(added)
        seconds = seconds_of(lambda: self.system.change(new, self.contents[:removed]))
        self.count(added)
        self._first += removed
        return seconds

    def move_to(self, first: int, last: int) -> None:
        """Change the stored rows to those of the table from one place to another; both are further on."""
        self.change(last - self._last, first - self._first)

    def count(self, added: int) -> None:
        """Count the next rows as stored, which another program has added."""
        self._last += added

    def open(self, open_at: Callable[[Path], OnDisk] | None = None) -> None:
        """Open the system again, by default as at first."""
        self.system = (open_at or self._open_at)(self.path)

    def close(self) -> None:
        """Close the system."""
        self.system.close()


class Comparison:
    """Compares answers with those of brute force."""

    def __init__(self, result: Result, queries: pa.ListArray, threads: int) -> None:
        self._result, self._queries, self._threads = result, queries, threads

    def __call__(self, where: str, systems: Iterable[Stored], queries: int, newest: int) -> None:
        """Ask each system some of the queries, and the sets that were added last as queries."""
        right: dict[tuple[int, int], list[list[int]]] = {}
        for each in systems:
            asked = pa.concat_arrays([self._queries[:queries], each.newest(newest)])
            if each.place not in right:
                right[each.place] = right_answers(each.contents, asked, threads=self._threads)
            answers = each.system.match_many(each.system.prepare(asked))
            self._result.compare(where, each.name, answers, right[each.place], exact=each.system.exact)


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
        except FileNotFoundError:  # it has just been removed
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
