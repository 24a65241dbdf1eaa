"""A snapshot whose rows are read as needed: of a store, only the parts of tables that they need are fetched.

A table is a file of this machine that is as long, and is filled by and by. Arrays have their places in it, as the first
and the last bytes of the table tell; before their values are looked at, the blocks that have them are fetched. They
stay for the other processes of an executor: a file next to it says which ones are there.
"""

from __future__ import annotations

import bisect
import contextlib
import mmap
import os
import shutil
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import BoolArray, I64Array, IntArray, Lists, Strings, UIntArray, offsets_of
from tagmatch.model.errors import IndexCorruptError, IndexNotFoundError, TagMatchError
from tagmatch.model.kernels.lists import gather_strings
from tagmatch.model.parallel import ask_many, threads_of_arrow
from tagmatch.model.storage.byte_store import ByteStore, in_a_line
from tagmatch.model.storage.files import ADVICE, Entry
from tagmatch.model.storage.format import CONSTRAINTS, DELETED_PREFIX, RECORDS, Manifest, number_of, parts_of
from tagmatch.model.storage.tables import OpenFile, checked_columns, reject_reserved, segments_of
from tagmatch.model.tables import LONG_AGO, Segment, Snapshot

#: Fetched as a whole: what a store gives in the time that it takes to answer at all
BLOCK_BYTES = 1 << 18

# The most bytes of one request
_REQUEST_BYTES = 1 << 24

# An Arrow file begins with 8 bytes and a message, the schema; in a second one stands where the columns are. Each has 4
# bytes before its length. At the end of the file are its footer, the length of that, and 6 bytes.
_FIRST_MESSAGE, _BEFORE_MESSAGE, _BEHIND_FOOTER = 8, 8, 10

_ADDRESS = attrgetter("address")


def gone(index: object, name: str) -> IndexNotFoundError:
    """The error that an index no longer has the snapshot of that name."""
    return IndexNotFoundError(f"the index {index} no longer has {name}: a newer snapshot was saved; ask again")


class SparseTable:
    """The file of a table, or its parts one behind the other, as one file of this machine that is filled by and by."""

    def __init__(self, store: ByteStore, file: Path, parts: dict[str, int]) -> None:
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
        place = self._behind_message(self._behind_message(_FIRST_MESSAGE))
        self._fetch_bytes(0, place)
        end = self.size - _BEHIND_FOOTER
        self._fetch_bytes(end - self._length(end), self.size)
        with threads_of_arrow():
            return checked_columns(name, pa.ipc.open_file(pa.BufferReader(self._mapped)).read_all())

    def no_rows(self, name: str) -> dict[str, pa.Array]:
        """The columns without any values."""
        end = self._behind_message(_FIRST_MESSAGE)
        self._fetch_bytes(0, end)
        return checked_columns(name, pa.ipc.read_schema(self._mapped[_FIRST_MESSAGE:end]).empty_table())

    def _behind_message(self, place: int) -> int:
        """Where the message that begins at a place ends."""
        return place + _BEFORE_MESSAGE + self._length(place + _BEFORE_MESSAGE - 4)

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
            ask_many(self._fetch_run, _runs(missing))

    def _fetch_run(self, run: tuple[int, int]) -> None:
        """Fetch consecutive blocks; only these are marked, as other processes may read it then."""
        first, last = run
        begin, end = first * BLOCK_BYTES, min(last * BLOCK_BYTES, self.size)
        for number in range(int(np.searchsorted(self._starts, begin, "right")) - 1, len(self._names)):
            start, stop = int(self._starts[number]), int(self._starts[number + 1])
            if start >= end:
                break
            here, there = max(begin, start), min(end, stop)
            found = self._store.read(self._names[number], here - start, there - start)
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
    """A file of some length, open; new bytes are zeros. Several processes may make it at once."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, size)
    return descriptor


def _write(descriptor: int, found: bytes, place: int) -> None:
    view = memoryview(found)
    while view:
        written = os.pwrite(descriptor, view, place)
        view, place = view[written:], place + written


@dataclass(frozen=True, slots=True)
class _Tables:
    """Tables of a store, as they are on this machine."""

    store: ByteStore
    snapshot: str  # the name of the snapshot
    current: Callable[[], Manifest]  # gives the one that the index has now
    folder: Path  # of this machine, for fetched parts
    has_records: bool  # whether tasks look at records, so that all of these are fetched
    _sorted: list[SparseTable] = field(default_factory=list)

    def table(self, name: str, path: str, files: dict[str, Entry]) -> tuple[dict[str, pa.Array], list[OpenFile]]:
        """See `Read`: only the places of columns are known yet, and no values; only we write the files.

        Where no task looks at records, only the types of their columns are known.
        """
        parts = {part: files[part]["bytes"] for part in parts_of(files, path)}
        with self.errors():
            table = SparseTable(self.store, self.folder / path, parts)
            if name == RECORDS and not self.has_records:
                return table.no_rows(name), []
            if name == RECORDS:
                table.fetch(np.array([0]), np.array([table.size]))
            columns = table.columns(name)
        bisect.insort(self._sorted, table, key=_ADDRESS)
        return columns, []

    def fetch(self, array: Any, firsts: I64Array, lasts: I64Array) -> None:
        """Fetch the elements `firsts[i]` to `lasts[i]` of an array."""
        if (firsts < 0).any() or (lasts < firsts).any() or (lasts > len(array)).any():
            raise IndexCorruptError(f"{self.store} is damaged: a table points beyond its data; {ADVICE}")
        some = lasts > firsts
        if not some.any():
            return
        address, width = array.__array_interface__["data"][0], array.strides[0]
        place = bisect.bisect_right(self._sorted, address, key=_ADDRESS) - 1
        table = self._sorted[max(place, 0)]
        start = address - table.address
        if not 0 <= start < table.size:
            return  # made in memory, where a table has no rows
        with self.errors():
            table.fetch(start + firsts[some] * width, start + lasts[some] * width)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Say of errors what they mean, as `InPlace` does."""
        try:
            yield
        except (FileNotFoundError, IndexCorruptError, ValueError) as error:
            if self.current()["snapshot"] != self.snapshot:
                raise gone(self.store, self.snapshot) from None
            if isinstance(error, FileNotFoundError):
                raise IndexCorruptError(f"{self.store} lacks a file: {in_a_line(error)}; {ADVICE}") from None
            raise IndexCorruptError(f"{self.store} is damaged: {in_a_line(error)}") from None
        except OSError as error:
            raise TagMatchError(
                f"cannot keep parts of {self.store} on this machine: {in_a_line(error)}; the variable TMPDIR says in "
                "which folder"
            ) from error


@dataclass(frozen=True, slots=True, eq=False)
class InPlace:
    """A snapshot whose tables are not looked at before they are fetched.

    All calls raise IndexCorruptError, TagMatchError, and IndexNotFoundError if the index has another snapshot by now.
    """

    snapshot: Snapshot
    manifest: Manifest  # which names it
    tables: _Tables | None = None  # that things are fetched from; `None`: all of them are here already

    def is_constrained(self, number: int) -> bool:
        """Whether some sets of a segment have constraints."""
        return CONSTRAINTS in self.manifest["segments"][number]

    def fetch(self, array: Any, firsts: Any, lasts: Any) -> None:
        """Fetch the elements `firsts[i]` to `lasts[i]` of an array of a table."""
        if self.tables is not None:
            self.tables.fetch(array, np.asarray(firsts, np.int64), np.asarray(lasts, np.int64))

    def fetch_all(self, *arrays: Any) -> None:
        """Fetch arrays of tables as a whole."""
        for array in arrays:
            self.fetch(array, [0], [len(array)])

    def fetch_sets(self, segment: Segment, first: int, last: int) -> None:
        """Fetch the ranks of the sets of some consecutive rows, and which of these are deleted."""
        if self.tables is None:
            return
        if segment.deletions is not None:
            self.fetch(segment.deletions.bits, [first >> 3], [(last + 7) >> 3])
        self._fetch_lists(segment.tagsets.ranks, first, last)

    def fetch_rows(self, segment: Segment, first: int, last: int) -> None:
        """Fetch what some consecutive rows have: as `fetch_sets`, and their keys and tags, with the hashes of these."""
        if self.tables is None:
            return
        self.fetch_sets(segment, first, last)
        vocabulary, keys = segment.vocabulary, segment.keys
        ranks = _values(segment.tagsets.ranks, first, last)
        self.fetch(vocabulary.hashes, ranks, ranks + 1)
        self._fetch_strings(vocabulary.tags, ranks)
        if not self.is_constrained(self.snapshot.segments.index(segment)):
            reject_reserved(gather_strings(vocabulary.tags, ranks.astype(np.uint32)), self.tables.store)
        self._fetch_lists(keys.keys, first, last)
        if keys.expires is not None:
            self.fetch(keys.expires, keys.keys.offsets[[first]], keys.keys.offsets[[last]])
        if keys.names is not None:
            self._fetch_strings(keys.names, _values(keys.keys, first, last))

    def _fetch_lists(self, lists: Lists, first: int, last: int) -> None:
        self.fetch(lists.offsets, [first], [last + 1])
        self.fetch(lists.values, lists.offsets[first:last], lists.offsets[first + 1 : last + 1])

    def _fetch_strings(self, strings: Strings, numbers: I64Array) -> None:
        self.fetch(strings.offsets, numbers, numbers + 2)
        self.fetch(strings.data, strings.offsets[numbers], strings.offsets[numbers + 1])


def _values(lists: Lists, first: int, last: int) -> I64Array:
    """The different values that some consecutive lists have."""
    values: UIntArray = np.unique(lists.values[lists.offsets[first] : lists.offsets[last]])
    return values.astype(np.int64)


def fetched_from(
    store: ByteStore, manifest: Manifest, current: Callable[[], Manifest], folder: Path, *, records: bool
) -> InPlace:
    """The snapshot of a store that a manifest names, with the `records` of its keys or without; errors as `InPlace`.

    `current` gives the manifest that the index has now; parts of others in `folder` are removed.
    """
    tables = _Tables(store, manifest["snapshot"], current, folder, records)
    with tables.errors():
        folder.mkdir(exist_ok=True)
        names = {entry["name"] for entry in manifest["segments"]}
        for name in os.listdir(folder):
            if name not in names and not name.startswith(DELETED_PREFIX):
                shutil.rmtree(folder / name, ignore_errors=True)
    # Some keys may have expired: to know, all times would have to be fetched
    segments = segments_of(manifest, tables.table, LONG_AGO + 1)
    return InPlace(Snapshot(segments, tables.snapshot, number_of(manifest)), manifest, tables)
