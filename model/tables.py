"""The data model: a snapshot has segments, each of four tables: vocabulary, tagset, key and partition table.

Rows of a segment that are deleted: the tables stay as they are, and a bitmap says which of their rows count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import (
    BoolArray,
    I64Array,
    IntArray,
    Lists,
    Strings,
    TagLists,
    U8Array,
    U32Array,
    U64Array,
    UIntArray,
    frozen,
    offsets_of,
)
from tagmatch.model.arrow import from_strings
from tagmatch.model.errors import TagMatchError
from tagmatch.model.kernels.hashing import hash_strings
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.kernels.known_tags import KnownTags, known_tags
from tagmatch.model.kernels.lists import count_values, gather, gather_strings, group_by, sort_hashes
from tagmatch.model.kernels.tag_table import build_slots, constraints_among
from tagmatch.model.options import KeyType, LayoutOptions

Rows: TypeAlias = npt.NDArray[np.integer[Any]]

_U = np.uint64
_NO_BITS = frozen(np.zeros(0, np.uint8))


class Table:
    """A data class whose arrays are read-only, and which says how many bytes of memory they and its tables take."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            if isinstance(value := getattr(self, each.name), np.ndarray):
                value.setflags(write=False)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(getattr(getattr(self, each.name), "nbytes", 0) for each in fields(self))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, eq=False)
class Deletions(Table):
    """Deleted rows of a table."""

    # uint8 array: row `r` is deleted where bit `r % 8` of `bits[r // 8]` is 1, as in an Arrow bitmap; those behind the
    # last row are 0
    bits: U8Array
    count: int  # How many rows are deleted

    @classmethod
    def of(cls, rows: Rows, table_rows: int) -> Deletions:
        """Some rows, each once, of a table with `table_rows` rows."""
        return cls(np.zeros((table_rows + 7) // 8, np.uint8), 0).and_also(rows)

    def and_also(self, rows: Rows) -> Deletions:
        """These and more rows; each is given once, and was not deleted before."""
        bits = self.bits.copy()
        np.bitwise_or.at(bits, rows >> 3, np.left_shift(1, rows & 7).astype(np.uint8))
        return Deletions(bits, self.count + len(rows))

    def among(self, rows: Rows) -> I64Array:
        """The places in `rows` of those that are deleted."""
        return np.flatnonzero((self.bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1)

    def are_within(self, others: Deletions | None) -> bool:
        """Whether all of these are among others of the same table."""
        return self.count == 0 if others is None else not np.any(self.bits & ~others.bits)

    def rows(self) -> I64Array:
        """Deleted rows, ascending."""
        return np.flatnonzero(np.unpackbits(self.bits, bitorder="little"))

    def live_rows(self, first: int, last: int) -> I64Array:
        """Rows from `first` to `last` that are not deleted, ascending."""
        return first + np.flatnonzero(self._flags(first, last) == 0)

    def part(self, first: int, last: int) -> Deletions:
        """Those of rows `first` to `last`, counted from the first."""
        flags = self._flags(first, last)
        return Deletions(np.packbits(flags, bitorder="little"), int(np.count_nonzero(flags)))

    def _flags(self, first: int, last: int) -> U8Array:
        """For each row from `first` to `last`, 1 if it is deleted, else 0."""
        begin = first >> 3
        flags = np.unpackbits(self.bits[begin : (last + 7) >> 3], bitorder="little")
        return flags[first - 8 * begin : last - 8 * begin]


@inlined
def is_deleted(bits, row):
    """1 if a bitmap has the row, 0 if not, or if it is too short: a number, as adding that takes no branch."""
    place = _U(row) >> _U(3)
    if place >= _U(len(bits)):
        return _U(0)
    return (_U(bits[place]) >> (_U(row) & _U(7))) & _U(1)


#: When a key expires that never does
NEVER = 2**63 - 1
#: Before any key expires
LONG_AGO = -(2**63)


@dataclass(frozen=True, slots=True)
class Vocabulary(Table):
    """Every stored tag; the row number is the tag's *rank*: rarest first, equal frequencies by hash, then by bytes."""

    tags: Strings  # Tag strings, UTF-8
    # XXH64 of each tag with `seed`. Different tags may have one hash: they differ in their bytes. `None` in a segment
    # that was built in the layout `rarest`, which does not match by them; they are made when it is saved.
    kept_hashes: U64Array | None = None
    # Stored sets that contain the tag; ascending, never 0. `None` in a segment that was built (`Segment.frequencies`)
    frequencies: UIntArray | None = None
    seed: int = 0  # 0, except for indexes of older versions, which took another seed where tags had one hash
    _slots: list[U64Array] = field(default_factory=list, init=False, repr=False, compare=False)
    _slots_of_queries: list[U64Array] = field(default_factory=list, init=False, repr=False, compare=False)
    _known: list[tuple[KnownTags, bool]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.tags)

    @property
    def hashes(self) -> U64Array:
        """The hash of each tag, made if none is kept."""
        return hash_strings(self.tags, seed=self.seed) if self.kept_hashes is None else self.kept_hashes

    def hashes_of(self, ranks: U32Array) -> U64Array:
        """The hashes of some tags."""
        if self.kept_hashes is None:
            return hash_strings(gather_strings(self.tags, ranks), seed=self.seed)
        return self.kept_hashes[ranks]

    @property
    def known(self) -> tuple[KnownTags, bool]:
        """Where queries look tags up on the CPU, and whether all are there, which those of constraints are not.

        No query has these, and where each differs they are nearly all. Made when first asked for, and kept.
        """
        if not self._known:
            numbers = np.flatnonzero(~constraints_among(self.tags)).astype(np.uint32)
            self._known.append((known_tags(self.tags, numbers), len(numbers) == len(self)))
        return self._known[0]

    @property
    def slots(self) -> U64Array:
        """Where tags are looked up (see `build_slots`): made when first asked for, and kept."""
        if not self._slots:
            self._slots.append(build_slots(self.tags, self.hashes))
        return self._slots[0]

    @property
    def slots_of_queries(self) -> U64Array:
        """The same, without the tags of constraints: no query has these, and where each differs they are nearly all."""
        if not self._slots_of_queries:
            is_constraint = constraints_among(self.tags)
            others = np.flatnonzero(~is_constraint).astype(np.uint32)
            some = is_constraint.any()
            self._slots_of_queries.append(
                build_slots(self.tags, self.hashes_of(others), numbers=others) if some else self.slots
            )
        return self._slots_of_queries[0]


@dataclass(frozen=True, slots=True)
class TagsetTable(Table):
    """One row per distinct stored set, in layout order; the row number is the *set id*.

    The empty set, when stored, is row 0 and belongs to no partition.
    """

    # uint64[n, 3] array, or None: signature of each set (`tagmatch.model.kernels.hashing`), in any memory order. The
    # `rarest` layout does not match by signature, so a segment built in that layout has none in memory; they are
    # derived when it is saved.
    signatures: U64Array | None
    ranks: Lists  # Ranks of each set's tags, ascending

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def has_empty_set(self) -> bool:
        """Whether row 0 is the empty set."""
        return len(self) > 0 and self.ranks.offsets[1] == self.ranks.offsets[0]


class KeySpan(NamedTuple):
    """Between which keys those of a table are, and whether each is there once."""

    low: np.uint64
    words: int  # Of a bitmap of all keys from the lowest to the highest
    are_distinct: bool  # Also `False` if the bitmap would have more words than keys: it is not needed then


@kernel
def _are_distinct(keys, low, words):
    for key in keys:
        above = _U(key) - low
        bit = _U(1) << (above & _U(63))
        if words[above >> _U(6)] & bit:
            return False
        words[above >> _U(6)] |= bit
    return True


class Directory(NamedTuple):
    """The keys of a table in order, and their places: 8 bytes a key of a set, 12 for keys wider than 32 bits."""

    keys: UIntArray  # `KeyTable.keys.values`, ascending
    places: U32Array  # of each, its place there; of equal ones ascending


@dataclass(frozen=True, slots=True)
class KeyTable(Table):
    """Keys of each set id."""

    # Keys of each set, ascending, at least one; 32-bit if all keys of the segment fit. Of keys that are strings,
    # their places in `names`.
    keys: Lists
    # The keys of the segment that are strings, each once, in the order of their bytes, with offsets of 64 bits; `None`
    # if keys are integers
    names: Strings | None = None
    # When each of `keys.values` stops being an answer of its set, in microseconds since 1970, UTC; `NEVER` if it does
    # not. `None` if none does.
    expires: I64Array | None = None
    _span: list[KeySpan] = field(default_factory=list, init=False, repr=False, compare=False)
    _directory: list[Directory] = field(default_factory=list, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.keys)

    def lasting(self, rows: UIntArray, now: int) -> UIntArray:
        """Those of these sets that have a key which has not expired."""
        table = self if self.expires is None else self.of_sets(rows)
        if table.expires is None:
            return rows
        lasts: BoolArray = np.diff(offsets_of(table.expires > now)[table.keys.offsets]) > 0
        return rows[lasts]

    @property
    def span(self) -> KeySpan:
        """Between which keys these are, and whether each is there once: made when first asked for, and kept."""
        if not self._span:
            keys = self.keys.values
            low, high = (keys.min(), keys.max()) if len(keys) else (0, 0)
            words = ((int(high) - int(low)) >> 6) + 1
            is_dense = words <= len(keys)
            are_distinct = is_dense and bool(_are_distinct(keys, np.uint64(low), np.zeros(words, np.uint64)))
            self._span.append(KeySpan(np.uint64(low), words, are_distinct))
        return self._span[0]

    @property
    def directory(self) -> Directory:
        """Where keys are: made when first asked for, and kept."""
        if not self._directory:
            values = self.keys.values
            if self.names is None:
                places = sort_hashes(frozen(values.astype(np.uint64, copy=False)))
            else:
                places = group_by(values, len(self.names))[1]
            self._directory.append(Directory(values[places], places))
        return self._directory[0]

    @property
    def directory_bytes(self) -> int:
        """Bytes of the directory, once it is made."""
        return sum(each.nbytes for directory in self._directory for each in directory)

    @property
    def type(self) -> KeyType:
        """What the keys are."""
        return "integer" if self.names is None else "string"

    def of_sets(self, rows: UIntArray, *, threads: int = 1) -> KeyTable:
        """The keys of some sets, in the order given."""
        keys = gather(self.keys, rows, threads=threads)
        if self.expires is None:
            return replace(self, keys=keys)
        times = gather(Lists(self.keys.offsets, self.expires.view(np.uint64)), rows, threads=threads).values
        return replace(self, keys=keys, expires=if_any(times.view(np.int64)))

    def listed(self, keys: UIntArray) -> list[int] | list[str]:
        """Keys as Python has them."""
        if self.names is None:
            return keys.tolist()  # type: ignore[no-any-return]
        return self.column(keys).to_pylist()  # type: ignore[no-any-return]

    def column(self, keys: UIntArray) -> pa.Array:
        """Keys as Arrow has them: uint64, or large strings."""
        if self.names is None:
            return pa.array(keys.astype(np.uint64, copy=False))
        return from_strings(self.names).take(pa.array(keys))

    def answers(self, keys: Lists, *, unique: bool) -> tuple[Lists, pa.Array]:  # noqa: ARG002
        """Answers to queries: their final lists, and the lists' values as Arrow has them."""
        return keys, self.column(keys.values)


def if_any(expires: I64Array) -> I64Array | None:
    """When keys expire; `None` if none does."""
    return expires if (expires != NEVER).any() else None


@dataclass(frozen=True, slots=True, eq=False)
class RecordTable(Table):
    """The records of keys: the texts and data that they were put with.

    A key that has a record has it in each segment that has a set of the key which is not deleted. Records of keys
    without such a set there do not count.
    """

    keys: UIntArray  # The keys, as in `KeyTable.keys`, ascending
    # For each, `sets`, a number made of the tags of the sets that were put; `tags`, `where` and `area` as they were
    # given, if there is `where`; and the columns of data
    columns: pa.Table

    def __len__(self) -> int:
        return len(self.keys)

    def places_of(self, keys: UIntArray | IntArray) -> I64Array:
        """Of each key, the row of its record; -1 if it has none."""
        places = np.searchsorted(self.keys, keys.astype(self.keys.dtype, copy=False))
        places[places == len(self.keys)] = 0
        found: I64Array = np.where(self.keys[places] == keys, places, -1) if len(self.keys) else places - 1
        return found


@dataclass(frozen=True, slots=True)
class PartitionTable(Table):
    """Partitions of the `balanced` layout: contiguous runs of rows of the tagset table (§3.1, Figure 1)."""

    masks: U64Array  # uint64[p, 3] array: bits that all signatures of the partition share by construction; never empty
    first_rows: I64Array  # int64 array, length p + 1: partition `i` has rows `first_rows[i]` to `first_rows[i + 1]`

    def __len__(self) -> int:
        return len(self.masks)


@dataclass(frozen=True, slots=True)
class ClusterTable(Table):
    """Clusters of the `rarest` layout: the sets whose rarest tag has rank `r` are adjacent rows."""

    # int32 or int64 array, length vocabulary + 1: cluster `r` has rows `first_rows[r]` to `first_rows[r + 1]`; it may
    # be empty
    first_rows: IntArray

    def __len__(self) -> int:
        return int(np.count_nonzero(np.diff(self.first_rows)))


def _nothing() -> None:
    """Tables in memory are as they were."""


#: Of the layouts `balanced` and `rarest`
Partitions = PartitionTable | ClusterTable


@dataclass(frozen=True, slots=True, eq=False)
class Segment(Table):
    """Stored sets in their own tables; immutable."""

    options: LayoutOptions  # The layout the tables are in
    vocabulary: Vocabulary
    tagsets: TagsetTable
    keys: KeyTable
    partitions: Partitions  # `PartitionTable` in the `balanced` layout, `ClusterTable` in the `rarest` layout
    # Rows whose sets do not count: a newer segment of the snapshot has the set with other keys, or it is gone
    deletions: Deletions | None = None
    name: str | None = None  # Of the tables as they were saved; `None` if they are in memory only
    # No key of a row that is not deleted expires before; `NEVER` if none does. Without it, all times are looked at.
    earliest: int = LONG_AGO
    # Raises `IndexCorruptError` if the files that the tables are mapped from are not as they were any more
    verify: Callable[[], None] = _nothing
    records: RecordTable | None = None  # `None` if no key has a record

    def __post_init__(self) -> None:
        expires = self.keys.expires
        if expires is None:
            object.__setattr__(self, "earliest", NEVER)
        elif self.earliest == LONG_AGO:
            object.__setattr__(self, "earliest", int(expires.min(initial=NEVER)))

    def __len__(self) -> int:
        """Rows of the tables, deleted ones too."""
        return len(self.tagsets)

    @property
    def live(self) -> int:
        """Rows that are not deleted."""
        return len(self) - (0 if self.deletions is None else self.deletions.count)

    @property
    def deleted(self) -> U8Array:
        """The bits of rows that are deleted (see `Deletions`); none if no row is."""
        return _NO_BITS if self.deletions is None else self.deletions.bits

    @property
    def frequencies(self) -> UIntArray:
        """How many sets of the tables contain each tag."""
        counted = self.vocabulary.frequencies
        return count_values(self.tagsets.ranks.values, len(self.vocabulary)) if counted is None else counted

    @property
    def live_keys(self) -> int:
        """Keys of rows that are not deleted."""
        offsets = self.keys.keys.offsets
        deleted = self.deletions.rows() if self.deletions is not None else np.zeros(0, np.int64)
        return int(offsets[-1]) - int((offsets[deleted + 1] - offsets[deleted]).sum(dtype=np.int64))

    @property
    def is_sound(self) -> bool:
        """Whether `verify` finds nothing."""
        try:
            self.verify()
        except TagMatchError:
            return False
        return True

    def live_rows(self, first: int, last: int) -> I64Array:
        """Rows from `first` to `last` that are not deleted, ascending."""
        return np.arange(first, last) if self.deletions is None else self.deletions.live_rows(first, last)

    def without(self, rows: UIntArray | IntArray) -> Segment:
        """The segment with more rows deleted, each given once and not deleted before."""
        if not len(rows):
            return self
        known = self.deletions
        return replace(self, deletions=Deletions.of(rows, len(self)) if known is None else known.and_also(rows))

    def sets(self, rows: UIntArray) -> TagLists:
        """The tags of the sets with these ids."""
        ranks = gather(self.tagsets.ranks, rows)
        return TagLists(ranks.offsets, gather_strings(self.vocabulary.tags, ranks.values))


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """One immutable consolidated index: the sets of its segments, whose rows are numbered one after the other."""

    # At least one. No two have the same set in rows that are not deleted. Each numbers keys that are strings in its own
    # way.
    segments: tuple[Segment, ...]
    name: str | None = None  # Of the snapshot as it was saved; `None` if it is in memory only
    number: int | None = None  # Which one of its index it is; `None` if it is in memory only

    def __len__(self) -> int:
        """How many sets are stored."""
        return sum(segment.live for segment in self.segments)

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(segment.nbytes for segment in self.segments)

    @property
    def key_type(self) -> KeyType:
        """What the keys are."""
        return self.segments[0].keys.type

    @property
    def earliest(self) -> int:
        """No key expires before; `NEVER` if none does."""
        return min(segment.earliest for segment in self.segments)

    def verify(self) -> None:
        """See that the files that tables are mapped from are as they were; else an `IndexCorruptError`."""
        for segment in self.segments:
            segment.verify()

    @property
    def is_mapped(self) -> bool:
        """Whether tables are mapped from files, which `verify` looks at."""
        return any(segment.verify is not _nothing for segment in self.segments)

    @contextlib.contextmanager
    def verified(self) -> Iterator[None]:
        """Make something of the tables in the block; `verify` before, and afterwards, also if that fails."""
        self.verify()
        try:
            yield
        finally:
            self.verify()

    @property
    def is_sound(self) -> bool:
        """Whether `verify` finds nothing."""
        return all(segment.is_sound for segment in self.segments)

    @property
    def is_whole(self) -> bool:
        """Whether all rows are in one segment without deletions."""
        return len(self.segments) == 1 and self.segments[0].deletions is None

    @property
    def only(self) -> Segment:
        """The segment of a snapshot that has one."""
        (segment,) = self.segments
        return segment


# -- the order of tags: by hash, and by their bytes where hashes are equal ---------------------------------------------

# What a tag is to the one before it
_OTHER_HASH, _SAME_TAG, _SAME_HASH = 0, 1, 2


def grouped_by_hash(tags: Strings, hashes: U64Array) -> tuple[U32Array, BoolArray]:
    """Places of tags by their hashes, equal hashes in the order of the tags' bytes; whether each equals the last."""
    order = sort_hashes(frozen(hashes))
    found = _compared(tags, hashes, order)
    if (found == _SAME_HASH).any():
        # Tags that share a hash with another one, and with how many it may be: anybody can make these
        twins = np.flatnonzero(np.isin(hashes[order], hashes[order[found == _SAME_HASH]]))
        some = order[twins]
        # There may be more of their text than a `string` array holds
        texts = from_strings(tags).cast(pa.large_string()).take(pa.array(some))
        table = pa.table({"hash": pa.array(hashes[some]), "tag": texts})
        order[twins] = some[pc.sort_indices(table, [("hash", "ascending"), ("tag", "ascending")]).to_numpy()]
        found = _compared(tags, hashes, order)
    return order, found == _SAME_TAG


def _compared(tags: Strings, hashes: U64Array, order: U32Array) -> U8Array:
    found = np.zeros(len(order), np.uint8)
    _compare(tags.offsets, tags.data, hashes[order], order, found)
    return found


@kernel
def _compare(offsets, data, hashes, order, out):
    for i in range(1, len(order)):
        if hashes[i] != hashes[i - 1]:
            continue
        first, other = offsets[order[i]], offsets[order[i - 1]]
        length = offsets[order[i] + 1] - first
        same = length == offsets[order[i - 1] + 1] - other
        at = 0
        while same and at < length:
            same = data[first + at] == data[other + at]
            at += 1
        out[i] = _SAME_TAG if same else _SAME_HASH
