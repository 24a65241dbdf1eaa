"""Staged changes: additions and removals not yet consolidated, kept as columns of tag numbers."""

from __future__ import annotations

import numpy as np

from partitioner.local import Changes
from tagmatch.arrays import BoolArray, I64Array, Lists, TagLists, U32Array, U64Array, offsets_of
from tagmatch.columns import tag_lists
from tagmatch.errors import InvalidValueError
from tagmatch.kernels.rows import ascending_known
from tagmatch.kernels.tag_table import TagInterner
from tagmatch.kernels.xxh64 import hash_strings

MAX_CHANGES = 2**32 - 2

# Single changes wait as Python objects until there are this many
_FLUSH_ROWS = 4096


class StagedChanges:
    """A log of changes, oldest first. Not thread-safe: its owner holds a lock."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._interner = TagInterner()
        self._rows: list[tuple[I64Array, U32Array]] = []  # (lengths, tag numbers)
        self._keys: list[U64Array] = []
        self._removed: list[BoolArray] = []
        self._count = 0
        self._single: list[tuple[list[str], int, bool]] = []

    def __len__(self) -> int:
        return self._count + len(self._single)

    def append(self, tags: list[str], key: int, *, removed: bool) -> None:
        """Log one change of a validated set and key."""
        self._single.append((tags, key, removed))
        if len(self._single) >= _FLUSH_ROWS:
            self._flush()

    def extend(self, chunks: list[TagLists], keys: U64Array, *, removed: bool) -> None:
        """Log a change for each row of all chunks; `keys` has one key for each."""
        if len(self) + len(keys) > MAX_CHANGES:
            raise InvalidValueError(f"more than {MAX_CHANGES} staged changes; call consolidate() before adding more")
        self._flush()
        self._extend(chunks, keys, np.full(len(keys), removed))

    def followed_by(self, later: StagedChanges) -> StagedChanges:
        """These changes and, after them, `later`'s (which must not be used any more)."""
        changes = later.freeze()
        tags = changes.tags
        numbers = self._interner.intern(tags, hash_strings(tags))
        self._flush()
        rows = changes.rows
        values = numbers[rows.values]
        offsets = np.zeros(len(rows) + 1, np.int64)
        ascending_known(rows.offsets, 0, values, offsets)
        self._log(offsets, values, changes.keys, changes.removed)
        return self

    def freeze(self) -> Changes:
        """The log as one table; the log goes on holding the same arrays."""
        self._flush()
        lengths = np.concatenate([np.zeros(0, np.int64), *(lengths for lengths, _ in self._rows)])
        values = np.concatenate([np.zeros(0, np.uint32), *(values for _, values in self._rows)])
        self._rows = [(lengths, values)]
        self._keys = [np.concatenate([np.zeros(0, np.uint64), *self._keys])]
        self._removed = [np.concatenate([np.zeros(0, np.bool_), *self._removed])]
        return Changes(self._interner.strings(), Lists(offsets_of(lengths), values), self._keys[0], self._removed[0])

    def _flush(self) -> None:
        if self._single:
            tags, keys, removed = zip(*self._single, strict=True)
            self._single = []
            self._extend(tag_lists(tags, "tags"), np.array(keys, np.uint64), np.array(removed, np.bool_))

    def _extend(self, chunks: list[TagLists], keys: U64Array, removed: BoolArray) -> None:
        first = 0
        for chunk in chunks:
            begin, end = int(chunk.offsets[0]), int(chunk.offsets[-1])
            hashes = hash_strings(chunk.tags, first=begin, last=end, threads=self._threads)
            numbers = self._interner.intern(chunk.tags, hashes, begin)
            offsets = np.zeros(len(chunk) + 1, np.int64)
            used = ascending_known(chunk.offsets, 0, numbers, offsets)
            last = first + len(chunk)
            self._log(
                offsets,
                numbers[:used].copy() if used < len(numbers) else numbers,
                keys[first:last],
                removed[first:last],
            )
            first = last

    def _log(
        self,
        offsets: I64Array,
        numbers: U32Array,
        keys: U64Array,
        removed: BoolArray,
    ) -> None:
        self._rows.append((np.diff(offsets), numbers))
        self._keys.append(keys)
        self._removed.append(removed)
        self._count += len(keys)
