"""The data model: a snapshot has segments, each of four tables: vocabulary, tagset, key and partition table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, IntArray, Lists, Strings, TagLists, U64Array, UIntArray, frozen
from tagmatch.model.arrow import from_strings
from tagmatch.model.kernels.lists import gather, gather_strings
from tagmatch.model.options import KeyType, LayoutOptions


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Every stored tag; the row number is the tag's *rank*: rarest first, equal frequencies by hash, then by bytes.

    Attributes
    ----------
    tags : Strings
        Tag strings, UTF-8.
    hashes : uint64 array
        XXH64 of each tag with `seed`. Different tags may have one hash: they differ in their bytes.
    frequencies : uint32 array
        Stored sets that contain the tag; ascending, never 0.
    seed : int
        0, but for indexes of older versions, which took another seed where tags had one hash.
    """

    tags: Strings
    hashes: U64Array
    frequencies: UIntArray
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "hashes", frozen(self.hashes))
        object.__setattr__(self, "frequencies", frozen(self.frequencies))

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.tags.nbytes + self.hashes.nbytes + self.frequencies.nbytes


@dataclass(frozen=True, slots=True)
class TagsetTable:
    """One row per distinct stored set, in layout order; the row number is the *set id*.

    The empty set, when stored, is row 0 and belongs to no partition.

    Attributes
    ----------
    signatures : uint64[n, 3] array, or None
        Signature of each set (`tagmatch.model.kernels.signature`), in any memory order. The `rarest` layout does not
        match by signature, so a segment built in that layout has none in memory; they are derived when it is saved.
    ranks : Lists of uint32
        Ranks of each set's tags, ascending.
    """

    signatures: U64Array | None
    ranks: Lists

    def __post_init__(self) -> None:
        if self.signatures is not None:
            object.__setattr__(self, "signatures", frozen(self.signatures))

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def has_empty_set(self) -> bool:
        """Whether row 0 is the empty set."""
        return len(self) > 0 and self.ranks.offsets[1] == self.ranks.offsets[0]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.ranks.nbytes + (0 if self.signatures is None else self.signatures.nbytes)


@dataclass(frozen=True, slots=True)
class KeyTable:
    """Keys of each set id.

    Attributes
    ----------
    keys : Lists of uint32 or uint64
        Keys of each set, ascending, at least one; 32-bit where all keys of the segment fit. Of keys that are strings,
        their places in `names`.
    names : Strings, optional
        The keys of the segment that are strings, each once, in the order of their bytes, with offsets of 64 bits;
        `None` if keys are integers.
    """

    keys: Lists
    names: Strings | None = None

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def type(self) -> KeyType:
        """What the keys are."""
        return "integer" if self.names is None else "string"

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

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.keys.nbytes + (0 if self.names is None else self.names.nbytes)


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """Partitions of the `balanced` layout: contiguous runs of rows of the tagset table (§3.1, Figure 1).

    Attributes
    ----------
    masks : uint64[p, 3] array
        Bits that all signatures of the partition share by construction; never empty.
    first_rows : int64 array, length p + 1
        Partition `i` has rows `first_rows[i]` to `first_rows[i + 1]`.
    """

    masks: U64Array
    first_rows: I64Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "masks", frozen(self.masks))
        object.__setattr__(self, "first_rows", frozen(self.first_rows))

    def __len__(self) -> int:
        return len(self.masks)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.masks.nbytes + self.first_rows.nbytes


@dataclass(frozen=True, slots=True)
class ClusterTable:
    """Clusters of the `rarest` layout: the sets whose rarest tag has rank `r` are adjacent rows.

    Attributes
    ----------
    first_rows : int32 or int64 array, length vocabulary + 1
        Cluster `r` has rows `first_rows[r]` to `first_rows[r + 1]`; it may be empty.
    """

    first_rows: IntArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "first_rows", frozen(self.first_rows))

    def __len__(self) -> int:
        return int(np.count_nonzero(np.diff(self.first_rows)))

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.first_rows.nbytes


#: Of the layouts `balanced` and `rarest`
Partitions = PartitionTable | ClusterTable


@dataclass(frozen=True, slots=True)
class Segment:
    """Stored sets in tables of their own; immutable.

    Attributes
    ----------
    options : LayoutOptions
        The layout the tables are in.
    vocabulary, tagsets, keys
        See the classes.
    partitions : PartitionTable or ClusterTable
        `PartitionTable` in the `balanced` layout, `ClusterTable` in the `rarest` layout.
    """

    options: LayoutOptions
    vocabulary: Vocabulary
    tagsets: TagsetTable
    keys: KeyTable
    partitions: Partitions

    def __len__(self) -> int:
        return len(self.tagsets)

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return self.vocabulary.nbytes + self.tagsets.nbytes + self.keys.nbytes + self.partitions.nbytes

    def sets(self, rows: UIntArray) -> TagLists:
        """The tags of the sets with these ids."""
        ranks = gather(self.tagsets.ranks, rows)
        return TagLists(ranks.offsets, gather_strings(self.vocabulary.tags, ranks.values))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One immutable consolidated index. Its sets are those of its segments, and are numbered segment after segment.

    Attributes
    ----------
    segments : tuple of Segment
        At least one. Keys that are strings are numbered alike in all of them.
    name : str, optional
        Of the snapshot as it was saved; `None` if it is in memory only.
    """

    segments: tuple[Segment, ...]
    name: str | None = None

    def __len__(self) -> int:
        return sum(map(len, self.segments))

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return sum(segment.nbytes for segment in self.segments)

    @property
    def only(self) -> Segment:
        """The segment of a snapshot that has one, as all have that were consolidated."""
        (segment,) = self.segments
        return segment
