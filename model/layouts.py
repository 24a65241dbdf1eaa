"""Layouts: how stored sets are ordered and grouped; and the invariants of a segment's tables.

`rarest` has sets by their ranks, rarest tag first; those that share their rarest tag are a cluster. `balanced` has
partitions with a mask each, as Algorithm 1 makes them, in which sets come by signature.

Files may be a stranger's, with checksums that are right. `check_bounds` looks at all offsets and at the largest number
of each column, and takes a fraction of the time that checksums do; all other invariants tell wrong answers, no crashes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import I64Array, IntArray, Lists, Strings, U64Array, UIntArray
from tagmatch.model.arrow import from_strings, from_words, to_numbers, to_words
from tagmatch.model.errors import InvariantError
from tagmatch.model.kernels.hashing import SIGNATURE_WORDS, contains, hash_strings, signatures_of
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import compare_to, count_firsts
from tagmatch.model.options import KeyType, Layout, LayoutOptions
from tagmatch.model.tables import (
    NEVER,
    ClusterTable,
    KeyTable,
    Partitions,
    PartitionTable,
    RecordTable,
    Segment,
    TagsetTable,
    Vocabulary,
    grouped_by_hash,
)

# So many values are compared at once, while they are in the cache
_BLOCK = 1 << 16

# Of UTF-8: bytes below are characters by themselves; the first two bits of those that go on with a character
_ASCII, _LEADING, _CONTINUED = 0x80, 0xC0, 0x80


def fail(table: str, row: int | None, invariant: str) -> NoReturn:
    """Raise `InvariantError`."""
    place = table if row is None else f"{table}, row {row}"
    raise InvariantError(f"{place}: {invariant}; build the index again from its source")


def require(good: npt.NDArray[np.bool_], table: str, invariant: str, first_row: int = 0) -> None:
    """See that each row is good, or `fail` with the first that is not."""
    if not good.all():
        fail(table, first_row + int(np.argmin(good)), invariant)


@kernel
def _compare_rows(offsets, values, a, b):
    """-1, 0 or 1 as list `a` is before, equal to or after list `b` in lexicographic order."""
    shared = min(offsets[a + 1] - offsets[a], offsets[b + 1] - offsets[b])
    for i in range(shared):
        x, y = values[offsets[a] + i], values[offsets[b] + i]
        if x != y:
            return -1 if x < y else 1
    return np.sign((offsets[a + 1] - offsets[a]) - (offsets[b + 1] - offsets[b]))


@kernel
def first_out_of_order(signatures, offsets, values, first, last):
    """First row from `first + 1` on that is not after the row before it by words and ranks, -1 without one."""
    for row in range(first + 1, last):
        order = 0
        for w in range(signatures.shape[1]):
            if signatures[row - 1, w] != signatures[row, w]:
                order = -1 if signatures[row - 1, w] < signatures[row, w] else 1
                break
        if order == 0:
            order = _compare_rows(offsets, values, row - 1, row)
        if order >= 0:
            return row
    return -1


@dataclass(frozen=True, slots=True)
class Implementations:
    """Where the layers above have what they do for a layout: names as `pkgutil.resolve_name` takes them.

    By name, as imports run one way, and as some need what may not be installed.
    """

    lay_out: str  # Brings sets into the layout: `LayOut` of `tagmatch.partitioner.local`
    plan: str  # Says how the Spark job does: a class of `tagmatch.partitioner.spark.slices`
    subset_match: str  # Makes the subset match of a segment: its `Finder`, with options
    cuda: str  # Makes that of a segment on a CUDA device: `MakeLayoutMatch` of `tagmatch.pipeline.cuda.matcher`


class Rules(Protocol):
    """A layout: the order of sets in the tagset table, and the table of partitions."""

    table: type[Any]  # Of its table of partitions
    has_sizes: bool  # Whether its tables depend on sizes among the options
    compares_tags: bool  # Whether answers are exact also without `exact`
    implementations: Implementations  # What lays sets out, and matches them

    def of_nothing(self) -> tuple[U64Array | None, Partitions]:
        """Signatures of no sets, `None` if snapshots in memory need none, and the table for these sets."""

    def to_arrow(self, table: Any) -> dict[str, pa.Array]:
        """Columns of the table, as `partitions.arrow` has them."""

    def from_arrow(self, columns: dict[str, pa.Array], sets: int) -> Partitions:
        """The table of these columns, of a snapshot with `sets` sets."""

    def of_rows(self, table: Any, edges: IntArray) -> Partitions:
        """The table of some consecutive sets; `edges` are `first_rows`, clipped to these and counted from the first."""

    def sets_by_rarest_tag(self, segment: Segment, look_at: Callable[..., object]) -> I64Array:
        """How many sets have the tag of each rank as their rarest; calls `look_at` with the columns that say so."""

    def rows_of(self, segment: Segment, sets: Lists) -> I64Array:
        """The row of each set, given as the ascending ranks of its tags; -1 where no row has it."""

    def check(self, segment: Segment) -> None:
        """Verify the order of sets and the table; raises `InvariantError`."""


class Rarest(Rules):
    """Sets by their rarest tags."""

    table = ClusterTable
    has_sizes = False
    compares_tags = True
    implementations = Implementations(
        lay_out="tagmatch.partitioner.local:by_rarest_tag",
        plan="tagmatch.partitioner.spark.slices:RankRanges",
        subset_match="tagmatch.pipeline.rarest:RarestSubsetMatch.of",
        cuda="tagmatch.pipeline.cuda.rarest:CudaRarest.of",
    )

    def of_nothing(self) -> tuple[None, ClusterTable]:
        return None, ClusterTable(np.zeros(1, np.int32))

    def to_arrow(self, table: ClusterTable) -> dict[str, pa.Array]:
        return {"first_row": pa.array(table.first_rows)}

    def from_arrow(self, columns: dict[str, pa.Array], sets: int) -> ClusterTable:  # noqa: ARG002
        return ClusterTable(to_numbers(columns["first_row"]))

    def of_rows(self, table: ClusterTable, edges: IntArray) -> ClusterTable:
        return ClusterTable(edges.astype(table.first_rows.dtype))

    def sets_by_rarest_tag(self, segment: Segment, look_at: Callable[..., object]) -> I64Array:
        look_at(segment.partitions.first_rows)
        return np.diff(segment.partitions.first_rows).astype(np.int64)

    def rows_of(self, segment: Segment, sets: Lists) -> I64Array:
        rows = np.empty(len(sets), np.int64)
        ranks = segment.tagsets.ranks
        _rows_of_clusters(ranks.offsets, ranks.values, segment.partitions.first_rows, sets.offsets, sets.values, rows)
        return rows

    def check(self, segment: Segment) -> None:
        tagsets, table, tags = segment.tagsets, segment.partitions, len(segment.vocabulary)
        name = "partition table"
        first_rows, ranks = table.first_rows, tagsets.ranks
        if len(first_rows) != tags + 1 or first_rows[0] != int(tagsets.has_empty_set) or first_rows[-1] != len(tagsets):
            fail(name, None, "clusters do not span the tagset table")
        require(np.diff(first_rows) >= 0, name, "first rows descend")
        rarest = ranks.values[ranks.offsets[first_rows[0] : -1]]
        expected = np.repeat(np.arange(tags, dtype=np.uint32), np.diff(first_rows))
        require(rarest == expected, "tagset table", "set is not in the cluster of its rarest tag", int(first_rows[0]))
        row = first_out_of_order(np.zeros((len(tagsets), 0), np.uint64), ranks.offsets, ranks.values, 0, len(tagsets))
        if row >= 0:
            fail("tagset table", row, "is not after the row before it in rank order")


@kernel
def _rows_of_clusters(offsets, values, first_rows, set_offsets, set_ranks, rows):
    """Binary search for each set in the cluster of its rarest tag; the empty set can only be row 0."""
    for i in range(len(rows)):
        first, last = set_offsets[i], set_offsets[i + 1]
        if first == last:
            rows[i] = 0 if first_rows[0] > 0 else -1
            continue
        low, end = first_rows[set_ranks[first]], first_rows[set_ranks[first] + 1]
        high = end
        while low < high:
            middle = (low + high) // 2
            if compare_to(offsets, values, middle, set_ranks, first, last) < 0:
                low = middle + 1
            else:
                high = middle
        found = low < end and compare_to(offsets, values, low, set_ranks, first, last) == 0
        rows[i] = low if found else -1


class Balanced(Rules):
    """Sets in partitions with a mask each."""

    table = PartitionTable
    has_sizes = True
    compares_tags = False
    implementations = Implementations(
        lay_out="tagmatch.partitioner.local:by_signature",
        plan="tagmatch.partitioner.spark.slices:Subtrees",
        subset_match="tagmatch.pipeline.balanced:BalancedSubsetMatch.of",
        cuda="tagmatch.pipeline.cuda.balanced:CudaBalanced.of",
    )

    def of_nothing(self) -> tuple[U64Array, PartitionTable]:
        none = np.zeros((0, SIGNATURE_WORDS), np.uint64)
        return none, PartitionTable(none, np.zeros(1, np.int64))

    def to_arrow(self, table: PartitionTable) -> dict[str, pa.Array]:
        return {
            "mask": from_words(table.masks),
            "first_row": pa.array(table.first_rows[:-1]),
            "rows": pa.array(np.diff(table.first_rows)),
        }

    def from_arrow(self, columns: dict[str, pa.Array], sets: int) -> PartitionTable:
        return PartitionTable(to_words(columns["mask"]), np.append(to_numbers(columns["first_row"]), sets))

    def of_rows(self, table: PartitionTable, edges: IntArray) -> PartitionTable:
        used = np.flatnonzero(np.diff(edges))
        return PartitionTable(table.masks[used], np.append(edges[used], edges[-1]))

    def sets_by_rarest_tag(self, segment: Segment, look_at: Callable[..., object]) -> I64Array:
        ranks = segment.tagsets.ranks
        look_at(ranks.offsets, ranks.values)
        return count_firsts(ranks, len(segment.vocabulary))

    def rows_of(self, segment: Segment, sets: Lists) -> I64Array:
        rows = np.empty(len(sets), np.int64)
        table, ranks, signatures = segment.partitions, segment.tagsets.ranks, segment.tagsets.signatures
        assert isinstance(table, PartitionTable)
        assert signatures is not None
        asked = _Signed(signatures_of(sets, segment.vocabulary.hashes), sets.offsets, sets.values)
        known = _Signed(signatures, ranks.offsets, ranks.values)
        _rows_of_partitions(known, table.masks, table.first_rows, asked, rows)
        return rows

    def check(self, segment: Segment) -> None:
        tagsets, table, max_size = segment.tagsets, segment.partitions, segment.options.max_partition_size
        assert isinstance(table, PartitionTable)
        name = "partition table"
        first_rows, masks = table.first_rows, table.masks
        if len(first_rows) != len(masks) + 1 or masks.shape != (len(masks), SIGNATURE_WORDS):
            fail(name, None, "columns differ in length")
        if first_rows[0] != int(tagsets.has_empty_set) or first_rows[-1] != len(tagsets):
            fail(name, None, "partitions do not span the tagset table")
        sizes = np.diff(first_rows)
        require(sizes > 0, name, "partition without sets")
        require((masks != 0).any(axis=1), name, "mask is empty")
        signatures = tagsets.signatures
        if signatures is None:
            fail("tagset table", None, "has no signatures")
        row = _first_without_mask(signatures, masks, first_rows)
        if row >= 0:
            fail("tagset table", row, "signature lacks a bit of its partition's mask")
        ranks = tagsets.ranks
        for partition, (first, last) in enumerate(zip(first_rows[:-1].tolist(), first_rows[1:].tolist(), strict=True)):
            row = first_out_of_order(signatures, ranks.offsets, ranks.values, first, last)
            if row >= 0:
                fail("tagset table", row, "is not after the row before it in signature order")
            if last - first > max_size and (signatures[first] != signatures[last - 1]).any():
                fail(name, partition, f"has {last - first} sets, more than {max_size}, and their signatures differ")


@kernel
def _first_without_mask(signatures, masks, first_rows):
    for partition in range(len(masks)):
        for row in range(first_rows[partition], first_rows[partition + 1]):
            for w in range(SIGNATURE_WORDS):
                if masks[partition, w] & ~signatures[row, w] != np.uint64(0):
                    return row
    return -1


class _Signed(NamedTuple):
    """Sets as signatures and ranks."""

    signatures: U64Array
    offsets: IntArray | UIntArray
    ranks: UIntArray


@kernel
def _is_before(known, row, asked, i):
    """Whether a row is before a set by signature, and by ranks where the signatures are equal."""
    for w in range(SIGNATURE_WORDS):
        if known.signatures[row, w] != asked.signatures[i, w]:
            return known.signatures[row, w] < asked.signatures[i, w]
    return compare_to(known.offsets, known.ranks, row, asked.ranks, asked.offsets[i], asked.offsets[i + 1]) < 0


@kernel
def _rows_of_partitions(known, masks, first_rows, asked, rows):
    """Binary search for each set in the partitions whose mask its signature contains; the empty set is row 0."""
    for i in range(len(rows)):
        first, last = asked.offsets[i], asked.offsets[i + 1]
        rows[i] = 0 if first == last and first_rows[0] > 0 else -1
        for partition in range(len(masks) if first < last else 0):
            if not contains(asked.signatures[i], masks[partition]):
                continue
            low, end = first_rows[partition], first_rows[partition + 1]
            high = end
            while low < high:
                middle = (low + high) // 2
                if _is_before(known, middle, asked, i):
                    low = middle + 1
                else:
                    high = middle
            if low < end and compare_to(known.offsets, known.ranks, low, asked.ranks, first, last) == 0:
                rows[i] = low
                break


LAYOUTS: dict[Layout, Rules] = {"rarest": Rarest(), "balanced": Balanced()}


def rules_of(options: LayoutOptions) -> Rules:
    """The layout that these options name."""
    return LAYOUTS[options.layout]


def implementations_of(options: LayoutOptions) -> Implementations:
    """Where the layers above have what they do for the layout that these options name."""
    return rules_of(options).implementations


def has_tables_for(have: LayoutOptions, want: LayoutOptions) -> bool:
    """Whether a snapshot with these options has the tables that one with those would have."""
    sizes = have.max_partition_size == want.max_partition_size
    return have.layout == want.layout and (sizes or not rules_of(have).has_sizes)


def empty_segment(options: LayoutOptions, key_type: KeyType = "integer") -> Segment:
    """The segment that holds no set."""
    no_offsets = np.zeros(1, np.int32)
    no_ranks = Lists(no_offsets, np.zeros(0, np.uint32))
    strings = Strings(no_offsets, np.zeros(0, np.uint8))
    signatures, partitions = rules_of(options).of_nothing()
    return Segment(
        options,
        Vocabulary(strings),
        TagsetTable(signatures, no_ranks),
        KeyTable(no_ranks, Strings(np.zeros(1, np.int64), strings.data) if key_type == "string" else None),
        partitions,
    )


# -- bounds ------------------------------------------------------------------------------------------------------------


def check_bounds(segment: Segment, rows: int, tags: int, *, tables: bool = True) -> None:
    """Check that no number of a segment points out of its tables (`rows`, `tags`); or only those of its deletions."""
    if segment.deletions is not None:
        _check_deletions(segment, rows)
    if not tables:
        return
    vocabulary, tagsets, keys = segment.vocabulary, segment.tagsets, segment.keys
    if vocabulary.kept_hashes is not None:
        _check_length("vocabulary", "hashes", vocabulary.kept_hashes, tags)
    if vocabulary.frequencies is not None:
        _check_length("vocabulary", "frequencies", vocabulary.frequencies, tags)
    _check_strings("vocabulary", vocabulary.tags, tags)
    _check_offsets("tagset table", tagsets.ranks, rows)
    _check_largest("tagset table", tagsets.ranks.values, tags)
    if tagsets.signatures is not None:
        _check_length("tagset table", "signatures", tagsets.signatures, rows)
    _check_offsets("key table", keys.keys, rows)
    if keys.names is not None:
        _check_strings("key names", keys.names, len(keys.names))
        _check_largest("key table", keys.keys.values, len(keys.names))
    if keys.expires is not None:
        _check_length("times at which keys expire", "times", keys.expires, len(keys.keys.values))
    _check_partitions(segment, rows, tags)
    if segment.records is not None:
        _check_records(segment.records, None if keys.names is None else len(keys.names))


def _check_records(records: RecordTable, names: int | None) -> None:
    _check_length("records", "rows", records.keys, len(records.columns))
    require(records.keys[1:] > records.keys[:-1], "records", "keys do not ascend", 1)
    if names is not None:
        _check_largest("records", records.keys, names)
    try:
        records.columns.validate(full=True)
    except pa.ArrowInvalid as error:
        fail("records", None, str(error)[:200])


def _check_partitions(segment: Segment, rows: int, tags: int) -> None:
    table, name = segment.partitions, "partition table"
    partitions = tags if isinstance(table, ClusterTable) else len(table.masks)
    _check_length(name, "first rows", table.first_rows, partitions + 1)
    _check_ascending(name, table.first_rows)
    first = int(segment.tagsets.has_empty_set)
    if table.first_rows[0] != first or table.first_rows[-1] != rows:
        fail(name, None, "does not span the tagset table")


def _check_deletions(segment: Segment, rows: int) -> None:
    name, deletions = "deletions", segment.deletions
    assert deletions is not None
    _check_length(name, "bytes", deletions.bits, -(-rows // 8))
    if rows % 8 and deletions.bits[-1] >> (rows % 8):
        fail(name, rows, "is not a row")
    count = sum(
        int(np.bitwise_count(deletions.bits[first : first + _BLOCK]).sum())
        for first in range(0, len(deletions.bits), _BLOCK)
    )
    if count != deletions.count:
        fail(name, None, f"are {count} rows, not {deletions.count}")


def _check_length(table: str, what: str, array: npt.NDArray[np.generic], length: int) -> None:
    if len(array) != length:
        fail(table, None, f"has {len(array)} {what} instead of {length}")


def _check_offsets(table: str, of: Strings | Lists, length: int) -> None:
    """Check that the offsets of a table's column have this length, ascend, and span its values."""
    offsets, values = of.offsets, of.data if isinstance(of, Strings) else of.values
    _check_length(table, "rows", offsets[1:], length)
    if offsets[0] != 0 or offsets[-1] != len(values):
        fail(table, None, "offsets do not span the values")
    _check_ascending(table, offsets)


def _check_strings(table: str, strings: Strings, length: int) -> None:
    _check_offsets(table, strings, length)
    data, starts = strings.data[: strings.offsets[-1]], strings.offsets[:-1]
    if not len(data) or int(data.max()) < _ASCII:
        return
    try:
        # All of them as one: to look at each by itself takes six times as long
        from_strings(Strings(np.array([0, len(data)]), data)).validate(full=True)
    except pa.ArrowInvalid:
        fail(table, None, "not all strings are UTF-8")
    for first in range(0, length, _BLOCK):
        some = starts[first : first + _BLOCK]
        some = some[some < len(data)]
        if (data[some] & _LEADING == _CONTINUED).any():
            fail(table, None, "a string begins within a character")


def _check_ascending(table: str, offsets: IntArray) -> None:
    for first in range(0, len(offsets) - 1, _BLOCK):
        some = offsets[first : first + _BLOCK + 1]
        falls = some[1:] < some[:-1]
        if falls.any():
            fail(table, first + int(np.argmax(falls)), "offsets descend")


def _check_largest(table: str, numbers: UIntArray, limit: int) -> None:
    if len(numbers) and int(numbers.max()) >= limit:
        fail(table, None, f"has the number {int(numbers.max())}, of {limit}")


# -- all invariants ----------------------------------------------------------------------------------------------------


def check_segment(segment: Segment, *, threads: int = 1) -> None:
    """Verify the invariants of all tables (design: `tagmatch.model.tables`)."""
    check_bounds(segment, len(segment), len(segment.vocabulary))
    _check_vocabulary(segment, threads)
    _check_tagsets(segment.tagsets, segment.vocabulary, threads)
    _check_keys(segment)
    rules = rules_of(segment.options)
    if not isinstance(segment.partitions, rules.table):
        found = next(name for name, each in LAYOUTS.items() if isinstance(segment.partitions, each.table))
        fail("partition table", None, f"is of layout {found}, the snapshot of layout {segment.options.layout}")
    rules.check(segment)


def _check_vocabulary(segment: Segment, threads: int) -> None:
    name, vocabulary, ranks = "vocabulary", segment.vocabulary, segment.tagsets.ranks
    tags, frequencies = vocabulary.tags, segment.frequencies
    hashes = hash_strings(tags, seed=vocabulary.seed, threads=threads)
    require(hashes == vocabulary.hashes, name, "hash is not XXH64 of the tag")
    order, repeated = grouped_by_hash(tags, hashes)
    if repeated.any():
        fail(name, int(order[np.argmax(repeated)]), "another row has the same tag")
    # Equal hashes: the order of the bytes, which is settled
    place_by_hash = np.empty(len(order), np.uint32)
    place_by_hash[order] = np.arange(len(order), dtype=np.uint32)
    rising = frequencies[1:] > frequencies[:-1]
    tied = (frequencies[1:] == frequencies[:-1]) & (place_by_hash[1:] > place_by_hash[:-1])
    require(rising | tied, name, "tags are not in order of frequency, hash and bytes", 1)
    counted = np.bincount(ranks.values, minlength=len(tags))
    require(counted == frequencies, name, "frequency is not the number of sets that contain the tag")
    require(frequencies > 0, name, "no set contains the tag")


@kernel
def _first_not_ascending(offsets, values):
    for row in range(len(offsets) - 1):
        for i in range(offsets[row] + 1, offsets[row + 1]):
            if values[i] <= values[i - 1]:
                return row
    return -1


def _check_tagsets(tagsets: TagsetTable, vocabulary: Vocabulary, threads: int) -> None:
    name, ranks = "tagset table", tagsets.ranks
    row = _first_not_ascending(ranks.offsets, ranks.values)
    if row >= 0:
        fail(name, row, "ranks do not ascend")
    require(ranks.lengths()[1:] > 0, name, "only row 0 may be the empty set", 1)
    if tagsets.signatures is None:
        return
    expected = signatures_of(ranks, vocabulary.hashes, threads=threads)
    require((expected == tagsets.signatures).all(axis=1), name, "signature is not that of the set's tags")


def _check_keys(segment: Segment) -> None:
    name, keys = "key table", segment.keys.keys
    require(keys.lengths() > 0, name, "set without a key")
    row = _first_not_ascending(keys.offsets, keys.values)
    if row >= 0:
        fail(name, row, "keys do not ascend")
    if keys.values.dtype == np.uint64 and len(keys.values) and int(keys.values.max()) < 2**32:
        fail(name, None, "keys fit into 32 bits but are stored in 64")
    _check_times(segment)
    if segment.keys.names is not None:
        _check_key_names(segment.keys.names, keys)


def _check_times(segment: Segment) -> None:
    name, keys, expires = "times at which keys expire", segment.keys.keys, segment.keys.expires
    if expires is None:
        return
    if (expires == NEVER).all():
        fail(name, None, "are there, though no key expires")
    rows = np.repeat(np.arange(len(keys)), keys.lengths())
    overlooked = rows[expires < segment.earliest]
    if segment.deletions is not None:
        overlooked = np.delete(overlooked, segment.deletions.among(overlooked))
    if len(overlooked):
        fail(name, int(overlooked[0]), "is before the earliest")


def _check_key_names(names: Strings, keys: Lists) -> None:
    name, texts = "key names", from_strings(names)
    require(pc.less(texts[:-1], texts[1:]).to_numpy(zero_copy_only=False), name, "is not after the name before it", 1)
    require(np.bincount(keys.values, minlength=len(names)) > 0, name, "no set has the key")
