"""Staged changes: additions and removals not yet consolidated, kept as columns of tag numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from tagmatch.model.arrays import (
    BoolArray,
    I64Array,
    IntArray,
    Lists,
    Strings,
    TagLists,
    U32Array,
    U64Array,
    list_offsets,
    offsets_of,
)
from tagmatch.model.arrow import from_strings
from tagmatch.model.columns import rows_of_tags, strings_of
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.kernels.hashing import hash_strings
from tagmatch.model.kernels.lists import ascending_known, gather, gather_strings
from tagmatch.model.kernels.tag_table import TagInterner
from tagmatch.model.parallel import run
from tagmatch.model.tables import NEVER, if_any
from tagmatch.partitioner.local import MAX_ROWS, Changes

# Single changes wait as Python objects until there are this many
_SINGLE_CHANGES = 4096

# Rows of a bulk change that are hashed and numbered together, which bounds the memory that takes
_BLOCK_ROWS = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Some changes, in columns."""

    lengths: U32Array  # how many tags each change's set has
    numbers: U32Array  # the numbers of these tags, ascending within a set
    keys: U64Array  # or the numbers of keys that are strings
    removed: BoolArray
    end: int  # changes of the log up to the end of the block
    expires: I64Array | None = None  # as in `Changes`


class _Logged(NamedTuple):
    """What a log holds: blocks, oldest first, and after them single changes, as Python objects."""

    blocks: list[_Block]
    single: list[tuple[list[str], int | str, bool, int]]


class _Log:
    """Changes, oldest first, with numbers for tags, and for keys that are strings.

    Whatever fails, or is interrupted at any moment, logs a call's changes all or not at all: they are made ready
    outside the log and appended in one step, which is one operation on a list or one assignment.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._interner = TagInterner()
        self._names = TagInterner()
        self.logged = _Logged([], [])

    def __len__(self) -> int:
        blocks, single = self.logged
        return (blocks[-1].end if blocks else 0) + len(single)

    def extend(
        self,
        chunks: list[TagLists],
        keys: U64Array | Strings,
        *,
        removed: bool | BoolArray,
        expires: I64Array | None,
    ) -> None:
        self.pack()
        numbers, flags = self._numbers(keys), np.broadcast_to(removed, len(keys))
        blocks: list[_Block] = []
        first = 0
        for chunk in chunks:
            last = first + len(chunk)
            times = None if expires is None else expires[first:last]
            blocks += self._blocks_of(chunk, numbers[first:last], flags[first:last], times, len(self) + first)
            first = last
        self.logged.blocks.extend(blocks)

    def extend_by(self, changes: Changes) -> None:
        tags = changes.tags
        numbers = self._interner.intern(tags, hash_strings(tags, threads=self._threads), threads=self._threads)
        renumbered = numbers[changes.rows.values]
        keys = self._numbers(changes.names)[changes.keys] if len(changes.names) else changes.keys
        block = _block_of(changes.rows.offsets, 0, renumbered, keys, changes.removed, changes.expires, len(self))
        self.logged.blocks.append(block)

    def changes(self) -> Changes:
        """All changes as one table, whose memory is then that of the log."""
        self.pack()
        whole = self._joined()
        self.logged = _Logged([whole], [])
        return Changes(
            self._interner.strings(),
            Lists(list_offsets(whole.lengths), whole.numbers),
            whole.keys,
            whole.removed,
            self._names.strings(),
            whole.expires,
        )

    def add_to(self, other: StagedChanges, keys: U64Array | Strings) -> None:
        """Stage there those of these changes that are of some keys."""
        tags, names, (blocks, single) = self._interner.strings(), self._names.strings(), self.logged
        for block in blocks:
            rows = Lists(list_offsets(block.lengths), block.numbers)
            other.extend_some(Changes(tags, rows, block.keys, block.removed, names, block.expires), keys)
        if single:
            chosen = _are_among(_column(tuple(key for _, key, _, _ in single)), keys)
            for place in np.flatnonzero(chosen):
                row, key, removed, expires = single[place]
                other.append(row, key, removed=removed, expires=expires)

    def pack(self) -> None:
        """Make a block of the single changes."""
        blocks, single = self.logged
        if single:
            tags, keys, removed, expires = zip(*single, strict=True)
            numbers, flags, times = self._numbers(_column(keys)), np.array(removed), np.array(expires, np.int64)
            packed = self._blocks_of(rows_of_tags(tags), numbers, flags, times, len(self) - len(single))
            self.logged = _Logged([*blocks, *packed], [])

    def _blocks_of(
        self, chunk: TagLists, keys: U64Array, removed: BoolArray, expires: I64Array | None, begin: int
    ) -> Iterator[_Block]:
        for first in range(0, len(chunk), _BLOCK_ROWS):
            last = min(first + _BLOCK_ROWS, len(chunk))
            begin_tags, end_tags = int(chunk.offsets[first]), int(chunk.offsets[last])
            numbers = self._interner.intern_tags(chunk, begin_tags, end_tags, threads=self._threads)
            times = None if expires is None else expires[first:last]
            yield _block_of(chunk.offsets, first, numbers, keys[first:last], removed[first:last], times, begin + first)

    def _numbers(self, keys: U64Array | Strings) -> U64Array:
        """Keys that are integers as they are, the numbers of those that are strings."""
        if not isinstance(keys, Strings):
            return keys
        return self._names.intern(keys, hash_strings(keys, threads=self._threads), threads=self._threads).astype(
            np.uint64
        )

    def _joined(self) -> _Block:
        """All blocks as one."""
        blocks = self.logged.blocks
        if len(blocks) == 1:
            return blocks[0]
        if all(block.expires is None for block in blocks):
            times = None
        else:
            parts = [np.full(len(each.keys), NEVER) if each.expires is None else each.expires for each in blocks]
            times = _end_to_end(parts, np.int64, self._threads)
        kinds = {"lengths": np.uint32, "numbers": np.uint32, "keys": np.uint64, "removed": np.bool_}
        columns: dict[str, Any] = {}
        for name, kind in kinds.items():
            columns[name] = _end_to_end([getattr(each, name) for each in blocks], kind, self._threads)
        return _Block(**columns, end=len(self), expires=times)


def _end_to_end(parts: list[npt.NDArray[Any]], dtype: npt.DTypeLike, threads: int) -> npt.NDArray[Any]:
    starts = offsets_of(np.array([len(part) for part in parts], np.int64))
    whole = np.empty(int(starts[-1]), dtype)

    def copy(i: int) -> None:
        whole[starts[i] : starts[i + 1]] = parts[i]

    run(copy, range(len(parts)), threads)
    return whole


def _are_among(some: U64Array | Strings, keys: U64Array | Strings) -> BoolArray:
    """Which of some keys are among others."""
    if isinstance(some, Strings):
        assert isinstance(keys, Strings)
        found = pc.is_in(from_strings(some), from_strings(keys))
        return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)
    assert not isinstance(keys, Strings)
    return np.isin(some, keys)


def _column(keys: tuple[int | str, ...]) -> U64Array | Strings:
    return strings_of(map(str, keys)) if isinstance(keys[0], str) else np.array(keys, np.uint64)


def _block_of(
    offsets: IntArray,
    first: int,
    numbers: U32Array,
    keys: U64Array,
    removed: BoolArray,
    expires: I64Array | None,
    begin: int,
) -> _Block:
    """A block of `len(keys)` rows of numbers, whose lengths are those of the rows of `offsets` from `first` on.

    The numbers are put in order where they stand; before the block there are `begin` changes.
    """
    new_offsets = np.zeros(len(keys) + 1, np.int64)
    used = ascending_known(offsets, first, numbers, new_offsets)
    return _Block(
        np.diff(new_offsets).astype(np.uint32),
        numbers[:used].copy() if used < len(numbers) else numbers,
        keys.copy(),
        removed,
        begin + len(keys),
        None if expires is None else if_any(expires.copy()),
    )


class StagedChanges:
    """Additions and removals not yet consolidated. Not thread-safe: its owner holds a lock.

    Attributes are replaced in one step each, so that a call that fails changes nothing.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._parts: tuple[Changes | None, _Log] = (None, _Log(threads))

    def __len__(self) -> int:
        taken, log = self._parts
        return (0 if taken is None else len(taken)) + len(log)

    def append(self, tags: list[str], key: int | str, *, removed: bool, expires: int = NEVER) -> None:
        """Stage one change of a validated set and key; all keys are integers, or all are strings."""
        log = self._parts[1]
        if len(log.logged.single) >= _SINGLE_CHANGES:
            self._reject_more_than_fit(_SINGLE_CHANGES)
            log.pack()
        log.logged.single.append((tags, key, removed, expires))

    def extend(
        self,
        chunks: list[TagLists],
        keys: U64Array | Strings,
        *,
        removed: bool | BoolArray,
        expires: I64Array | None = None,
    ) -> None:
        """Stage a change for each row of all chunks; `keys` has one for each, as have others that are arrays."""
        self._reject_more_than_fit(len(keys))
        self._parts[1].extend(chunks, keys, removed=removed, expires=expires)

    def changes(self) -> Changes:
        """All changes as one table. They stay staged until `drop` lets go of them."""
        taken, log = self._parts
        if taken is None:
            changes = log.changes()
        elif len(log) == 0:
            return taken
        else:
            whole = _Log(self._threads)
            for part in (taken, log.changes()):
                whole.extend_by(part)
            changes = whole.changes()
        self._parts = (changes, _Log(self._threads))
        return changes

    def of_keys(self, keys: U64Array | Strings) -> StagedChanges:
        """Those of these changes that are of some keys, in order."""
        found = StagedChanges(self._threads)
        taken, log = self._parts
        if taken is not None:
            found.extend_some(taken, keys)
        log.add_to(found, keys)
        return found

    def extend_some(self, changes: Changes, keys: U64Array | Strings) -> None:
        """Stage those of other changes that are of some keys."""
        if isinstance(keys, Strings):
            chosen = np.flatnonzero(_are_among(changes.names, keys)[changes.keys]).astype(np.uint32)
            own: U64Array | Strings = gather_strings(changes.names, changes.keys[chosen])
        else:
            chosen = np.flatnonzero(_are_among(changes.keys, keys)).astype(np.uint32)
            own = changes.keys[chosen]
        rows = gather(changes.rows, chosen)
        times = None if changes.expires is None else changes.expires[chosen]
        chunk = TagLists(rows.offsets, gather_strings(changes.tags, rows.values))
        self.extend([chunk], own, removed=changes.removed[chosen], expires=times)

    def stage_before(self, earlier: StagedChanges) -> None:
        """Stage other changes before all of these."""
        whole = _Log(self._threads)
        for part in (earlier.changes(), self.changes()):
            whole.extend_by(part)
        self._parts = (whole.changes(), _Log(self._threads))

    def drop(self, changes: Changes) -> None:
        """Let go of what `changes` returned, which has taken effect; later changes stay."""
        taken, log = self._parts
        if taken is changes:
            self._parts = (None, log)

    def _reject_more_than_fit(self, rows: int) -> None:
        if len(self) + rows > MAX_ROWS:
            raise InvalidValueError(f"more than {MAX_ROWS} staged changes; call consolidate() before adding more")
