"""A table of a store as a file of this machine that is as long, and is filled by and by with what is asked for.

Arrays have their places in it, as the first and the last bytes of the table tell; before what is in an array is looked
at, the blocks that have it are fetched. They stay for the other processes of an executor: a file beside says which ones
are there.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import BoolArray, IntArray, offsets_of
from tagmatch.model.errors import IndexCorruptError
from tagmatch.model.parallel import reject_given_up, threads_of_arrow
from tagmatch.model.storage.format import ADVICE
from tagmatch.model.storage.store_folder import StoreFolder
from tagmatch.model.storage.table_checks import columns_of

#: Fetched as a whole: what a store gives in the time that it takes to answer at all
BLOCK_BYTES = 1 << 18

# One request is for at most as much, and there are so many at once
_REQUEST_BYTES, _REQUESTS_AT_ONCE = 1 << 24, 16

# An Arrow file begins with 8 bytes and a message, the schema; in a second one stands where the columns are. Each has 4
# bytes before its length. At the end of the file are its footer, the length of that, and 6 bytes.
_FIRST_MESSAGE, _BEFORE_MESSAGE, _BEHIND_FOOTER = 8, 8, 10


class SparseTable:
    """The file of a table, or its parts one behind the other, as one file of this machine that is filled by and by."""

    def __init__(self, store: StoreFolder, file: Path, parts: dict[str, int]) -> None:
        self._store, self._names = store, [*parts]
        self._starts = offsets_of(np.array([*parts.values()], np.int64))
        self.size = int(self._starts[-1])
        file.parent.mkdir(exist_ok=True)
        self._descriptor = _sparse(file, self.size)
        weakref.finalize(self, os.close, self._descriptor)
        # Its address says where arrays are
        self._mapped = pa.memory_map(str(file)).read_buffer(self.size)
        marks = _sparse(file.with_name(f"{file.name}.blocks"), -(-self.size // BLOCK_BYTES))
        self._marks = np.frombuffer(mmap.mmap(marks, 0), np.uint8)
        os.close(marks)
        self.address: int = self._mapped.address

    def columns(self, name: str) -> dict[str, pa.Array]:
        """The columns, whose bytes are those of the mapped file, of the table of this name."""
        place = _FIRST_MESSAGE
        for _ in range(2):
            place += _BEFORE_MESSAGE
            place += self._length(place - 4)
        self._fetch_bytes(0, place)
        end = self.size - _BEHIND_FOOTER
        self._fetch_bytes(end - self._length(end), self.size)
        with threads_of_arrow():
            return columns_of(name, pa.ipc.open_file(pa.BufferReader(self._mapped)).read_all())

    def _length(self, place: int) -> int:
        """The length that stands there."""
        self._fetch_bytes(place, place + 4)
        return int(np.frombuffer(self._mapped[place : place + 4], "<i4")[0])

    def _fetch_bytes(self, first: int, last: int) -> None:
        if not 0 <= first <= last <= self.size:
            raise IndexCorruptError(f"{self._names[-1]} is no table; {ADVICE}")
        self.fetch(np.array([first]), np.array([last]))

    def fetch(self, firsts: IntArray, lasts: IntArray) -> None:
        """Fetch the blocks with these bytes, each to `lasts[i]` from `firsts[i]`, which is less, that are not there."""
        changes = np.zeros(len(self._marks) + 1, np.int64)
        np.add.at(changes, firsts // BLOCK_BYTES, 1)
        np.add.at(changes, (lasts - 1) // BLOCK_BYTES + 1, -1)
        missing: BoolArray = (np.cumsum(changes[:-1]) > 0) & (self._marks == 0)
        if missing.any():
            with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
                for done in [pool.submit(self._fetch_run, first, last) for first, last in _runs(missing)]:
                    done.result()

    def _fetch_run(self, first: int, last: int) -> None:
        """Fetch consecutive blocks; only what is there is marked, as other processes may read it then."""
        reject_given_up()
        begin, end = first * BLOCK_BYTES, min(last * BLOCK_BYTES, self.size)
        for number in range(int(np.searchsorted(self._starts, begin, "right")) - 1, len(self._names)):
            start, stop = int(self._starts[number]), int(self._starts[number + 1])
            if start >= end:
                break
            here, there = max(begin, start), min(end, stop)
            found = self._store.read_range(self._names[number], here - start, there - start)
            if len(found) != there - here:
                raise IndexCorruptError(f"{self._names[number]} is cut short; {ADVICE}")
            _write(self._descriptor, found, here)
        self._marks[first:last] = 1


def _runs(flags: BoolArray) -> Iterator[tuple[int, int]]:
    """Where flags are set: first and last of consecutive ones, as many as a request is for."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    most = max(1, _REQUEST_BYTES // BLOCK_BYTES)
    for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        for begin in range(first, last, most):
            yield begin, min(begin + most, last)


def _sparse(file: Path, size: int) -> int:
    """A file of some length, open; empty where it was not there. Several processes may make it at once."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, size)
    return descriptor


def _write(descriptor: int, found: bytes, place: int) -> None:
    view = memoryview(found)
    while view:
        written = os.pwrite(descriptor, view, place)
        view, place = view[written:], place + written
