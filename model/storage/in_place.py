"""A snapshot of which only some rows are read: of a store, the parts of its tables that these need are fetched."""

from __future__ import annotations

import bisect
import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Lists, Strings, UIntArray
from tagmatch.model.errors import IndexCorruptError, TagMatchError
from tagmatch.model.kernels.lists import gather_strings
from tagmatch.model.storage.format import (
    ADVICE,
    CONSTRAINTS,
    DELETED_PREFIX,
    Entry,
    Manifest,
    gone,
    number_of,
    parts_of,
)
from tagmatch.model.storage.segment_files import reject_reserved, segments_of
from tagmatch.model.storage.sparse_table import SparseTable
from tagmatch.model.storage.store_folder import StoreFolder, in_a_line
from tagmatch.model.tables import LONG_AGO, Segment, Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class InPlace:
    """A snapshot of whose tables nothing is looked at before it is fetched; here all of them are there already.

    All calls raise ::

        IndexCorruptError   A file is missing or cut short, or says what cannot be.
        IndexNotFoundError  The index has another snapshot by now, and files of this one are gone.
        TagMatchError       The store does not answer, or this machine has no room.

    Attributes
    ----------
    snapshot : Snapshot
    constrained : tuple of bool
        Of each segment, whether some of its sets have constraints.
    """

    snapshot: Snapshot
    constrained: tuple[bool, ...]

    def fetch(self, array: Any, firsts: Any, lasts: Any) -> None:
        """Fetch the elements `firsts[i]` to `lasts[i]` of an array of a table."""

    def fetch_all(self, *arrays: Any) -> None:
        """Fetch arrays of tables as a whole."""

    def fetch_sets(self, segment: Segment, first: int, last: int) -> None:
        """Fetch the ranks of the sets of some consecutive rows, and which of these are deleted."""

    def fetch_rows(self, segment: Segment, first: int, last: int) -> None:
        """Fetch what some consecutive rows have: as `fetch_sets`, and their keys and tags, with the hashes of these."""


def constrained(manifest: Manifest) -> tuple[bool, ...]:
    """Of each segment that a manifest names, whether some of its sets have constraints."""
    return tuple(CONSTRAINTS in entry for entry in manifest["segments"])


@dataclass(frozen=True, slots=True)
class _Tables:
    """Tables of a store, as they are on this machine.

    Attributes
    ----------
    store : StoreFolder
    manifest, current
        Of the snapshot, and what gives that which the index has now.
    folder : Path
        Of this machine, for what is fetched.
    """

    store: StoreFolder
    manifest: Manifest
    current: Callable[[], Manifest]
    folder: Path
    _sorted: list[SparseTable] = field(default_factory=list)

    def table(self, name: str, path: str, files: dict[str, Entry]) -> dict[str, pa.Array]:
        """The columns of a table. Only their places are known yet, and no values; see `Read` of segments."""
        parts = {part: files[part]["bytes"] for part in parts_of(files, path)}
        with self.errors():
            table = SparseTable(self.store, self.folder / path, parts)
            columns = table.columns(name)
        bisect.insort(self._sorted, table, key=_address)
        return columns

    def verifying(self) -> Callable[[], None]:
        """See `Read`: only we write these files."""
        return lambda: None

    def fetch(self, array: Any, firsts: I64Array, lasts: I64Array) -> None:
        """Fetch some elements of an array, `firsts[i]` less than `lasts[i]`."""
        address, width = array.__array_interface__["data"][0], array.strides[0]
        place = bisect.bisect_right(self._sorted, address, key=_address) - 1
        table = self._sorted[max(place, 0)]
        start = address - table.address
        if not 0 <= start < table.size:
            return  # made in memory, where a table has no rows
        with self.errors():
            table.fetch(start + firsts * width, start + lasts * width)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Say of errors what they mean, as `InPlace` does."""
        try:
            yield
        except (FileNotFoundError, IndexCorruptError, ValueError) as error:
            if self.current()["snapshot"] != self.manifest["snapshot"]:
                raise gone(self.store, self.manifest["snapshot"]) from None
            if isinstance(error, FileNotFoundError):
                raise IndexCorruptError(f"{self.store} lacks a file: {in_a_line(error)}; {ADVICE}") from None
            raise IndexCorruptError(f"{self.store} is damaged: {in_a_line(error)}") from None
        except OSError as error:
            raise TagMatchError(
                f"cannot keep parts of {self.store} on this machine: {in_a_line(error)}; the variable TMPDIR says in "
                "which folder"
            ) from error


def _address(table: SparseTable) -> int:
    return table.address


@dataclass(frozen=True, slots=True, eq=False)
class _Fetched(InPlace):
    """One on a store."""

    tables: _Tables

    def fetch(self, array: Any, firsts: Any, lasts: Any) -> None:
        """As `InPlace` says."""
        firsts, lasts = np.asarray(firsts, np.int64), np.asarray(lasts, np.int64)
        if (firsts < 0).any() or (lasts < firsts).any() or (lasts > len(array)).any():
            raise IndexCorruptError(f"{self.tables.store} is damaged: a table points to what is not there; {ADVICE}")
        some = lasts > firsts
        if some.any():
            self.tables.fetch(array, firsts[some], lasts[some])

    def fetch_all(self, *arrays: Any) -> None:
        """As `InPlace` says."""
        for array in arrays:
            self.fetch(array, [0], [len(array)])

    def fetch_sets(self, segment: Segment, first: int, last: int) -> None:
        """As `InPlace` says."""
        if segment.deletions is not None:
            self.fetch(segment.deletions.bits, [first >> 3], [(last + 7) >> 3])
        self._lists(segment.tagsets.ranks, first, last)

    def fetch_rows(self, segment: Segment, first: int, last: int) -> None:
        """As `InPlace` says."""
        self.fetch_sets(segment, first, last)
        vocabulary, keys = segment.vocabulary, segment.keys
        ranks = _values(segment.tagsets.ranks, first, last)
        self.fetch(vocabulary.hashes, ranks, ranks + 1)
        self._strings(vocabulary.tags, ranks)
        if not self.constrained[self.snapshot.segments.index(segment)]:
            reject_reserved(gather_strings(vocabulary.tags, ranks.astype(np.uint32)), self.tables.store)
        self._lists(keys.keys, first, last)
        if keys.expires is not None:
            self.fetch(keys.expires, keys.keys.offsets[[first]], keys.keys.offsets[[last]])
        if keys.names is not None:
            self._strings(keys.names, _values(keys.keys, first, last))

    def _lists(self, lists: Lists, first: int, last: int) -> None:
        """Fetch some consecutive lists."""
        self.fetch(lists.offsets, [first], [last + 1])
        self.fetch(lists.values, lists.offsets[first:last], lists.offsets[first + 1 : last + 1])

    def _strings(self, strings: Strings, numbers: I64Array) -> None:
        """Fetch the strings with these numbers."""
        self.fetch(strings.offsets, numbers, numbers + 2)
        self.fetch(strings.data, strings.offsets[numbers], strings.offsets[numbers + 1])


def _values(lists: Lists, first: int, last: int) -> I64Array:
    """The different values that some consecutive lists have."""
    values: UIntArray = np.unique(lists.values[lists.offsets[first] : lists.offsets[last]])
    return values.astype(np.int64)


def fetched_from(store: StoreFolder, manifest: Manifest, current: Callable[[], Manifest], folder: Path) -> InPlace:
    """The snapshot of a store that a manifest names; errors as `InPlace`.

    Parameters
    ----------
    current
        Gives the manifest that the index has now.
    folder : Path
        Of this machine, for what is fetched. What it has of other snapshots is removed.
    """
    tables = _Tables(store, manifest, current, folder)
    with tables.errors():
        folder.mkdir(exist_ok=True)
        names = {entry["name"] for entry in manifest["segments"]}
        for name in os.listdir(folder):
            if name not in names and not name.startswith(DELETED_PREFIX):
                shutil.rmtree(folder / name, ignore_errors=True)
    # Some keys may have expired: to know, all times would have to be fetched
    segments = tuple(segments_of(manifest, tables, LONG_AGO + 1))
    snapshot = Snapshot(segments, str(manifest["snapshot"]), number_of(manifest))
    return _Fetched(snapshot, constrained(manifest), tables)
