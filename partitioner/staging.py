"""Staged changes: additions and removals not yet consolidated, kept as columns of tag numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from partitioner.local import MAX_ROWS, Changes
from tagmatch.arrays import BoolArray, IntArray, Lists, Strings, TagLists, U32Array, U64Array, list_offsets, offsets_of
from tagmatch.columns import tag_lists
from tagmatch.errors import InvalidValueError
from tagmatch.kernels.rows import ascending_known
from tagmatch.kernels.tag_table import TagInterner
from tagmatch.kernels.xxh64 import hash_strings
from tagmatch.parallel import run

# Single changes wait as Python objects until there are this many
_FLUSH_ROWS = 4096

# Rows of a bulk change that are hashed and numbered together, which bounds the memory that takes
_BLOCK_ROWS = 65_536


class _Blocks:
    """A column that grows block by block and is joined once, letting go of each block as it is copied."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = dtype
        self._blocks: list[npt.NDArray[Any]] = []

    def append(self, block: npt.NDArray[Any]) -> None:
        self._blocks.append(block)

    def take(self, threads: int) -> npt.NDArray[Any]:
        starts = offsets_of(np.array([len(block) for block in self._blocks], np.int64))
        joined = np.empty(int(starts[-1]), self._dtype)
        blocks: list[npt.NDArray[Any] | None] = [*self._blocks]
        self._blocks = []

        def copy(i: int) -> None:
            joined[starts[i] : starts[i + 1]] = blocks[i]
            blocks[i] = None

        run(copy, range(len(blocks)), threads)
        return joined


class StagedChanges:
    """A log of changes, oldest first. Not thread-safe: its owner holds a lock."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._start()

    def _start(self) -> None:
        self._interner = TagInterner()
        self._lengths = _Blocks(np.uint32)
        self._numbers = _Blocks(np.uint32)
        self._keys = _Blocks(np.uint64)
        self._removed = _Blocks(np.bool_)
        self._logged = 0
        self._single: list[tuple[list[str], int, bool]] = []

    def __len__(self) -> int:
        return self._logged + len(self._single)

    def append(self, tags: list[str], key: int, *, removed: bool) -> None:
        """Log one change of a validated set and key."""
        self._single.append((tags, key, removed))
        if len(self._single) >= _FLUSH_ROWS:
            self._flush()

    def extend(self, chunks: list[TagLists], keys: U64Array, *, removed: bool) -> None:
        """Log a change for each row of all chunks; `keys` has one key for each."""
        if len(self) + len(keys) > MAX_ROWS:
            raise InvalidValueError(f"more than {MAX_ROWS} staged changes; call consolidate() before adding more")
        self._flush()
        first = 0
        for chunk in chunks:
            last = first + len(chunk)
            self._log(chunk, keys[first:last], np.full(last - first, removed))
            first = last

    def take(self) -> Changes:
        """The log as one table; the object is left empty."""
        self._flush()
        tags = self._interner.strings()
        del self._interner
        lengths = self._lengths.take(self._threads)
        rows = Lists(list_offsets(lengths), self._numbers.take(self._threads))
        keys, removed = self._keys.take(self._threads), self._removed.take(self._threads)
        self._start()
        return Changes(tags, rows, keys, removed)

    def put_back(self, changes: Changes) -> None:
        """Log again, before all changes logged since, what `take` returned."""
        later = self.take()
        for part in (changes, later):
            self._log_numbers(part.tags, part.rows, part.keys, part.removed)

    def _flush(self) -> None:
        if self._single:
            tags, keys, removed = zip(*self._single, strict=True)
            self._single = []
            (chunk,) = tag_lists(tags, "tags")
            self._log(chunk, np.array(keys, np.uint64), np.array(removed, np.bool_))

    def _log(self, chunk: TagLists, keys: U64Array, removed: BoolArray) -> None:
        for first in range(0, len(chunk), _BLOCK_ROWS):
            last = min(first + _BLOCK_ROWS, len(chunk))
            begin, end = int(chunk.offsets[first]), int(chunk.offsets[last])
            hashes = hash_strings(chunk.tags, first=begin, last=end, threads=self._threads)
            numbers = self._interner.intern(chunk.tags, hashes, begin, threads=self._threads)
            self._log_block(chunk.offsets, first, numbers, keys[first:last], removed[first:last])

    def _log_numbers(self, tags: Strings, rows: Lists, keys: U64Array, removed: BoolArray) -> None:
        numbers = self._interner.intern(tags, hash_strings(tags, threads=self._threads))
        self._log_block(rows.offsets, 0, numbers[rows.values], keys, removed)

    def _log_block(self, offsets: IntArray, first: int, numbers: U32Array, keys: U64Array, removed: BoolArray) -> None:
        """Log `len(keys)` rows of numbers, whose lengths are those of the rows of `offsets` from `first` on."""
        new_offsets = np.zeros(len(keys) + 1, np.int64)
        used = ascending_known(offsets, first, numbers, new_offsets)
        self._lengths.append(np.diff(new_offsets).astype(np.uint32))
        self._numbers.append(numbers[:used].copy() if used < len(numbers) else numbers)
        self._keys.append(keys.copy())
        self._removed.append(removed)
        self._logged += len(keys)
