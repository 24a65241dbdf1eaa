"""The local partitioner: from stored sets and a sequence of changes to a segment, on one machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import TypeAlias, cast

import numpy as np

from tagmatch.model.arrays import (
    BoolArray,
    I64Array,
    IntArray,
    Lists,
    Strings,
    U8Array,
    U32Array,
    U64Array,
    list_offsets,
    narrow_offsets,
    offsets_of,
)
from tagmatch.model.change_counts import ChangeCounts
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.kernels.hashing import hash_strings, signatures_of
from tagmatch.model.kernels.lists import count_values, gather, gather_strings, relabel
from tagmatch.model.kernels.sorting import equal_to_previous, group_by, sort_rows
from tagmatch.model.kernels.tag_table import UNKNOWN, find_all
from tagmatch.model.layouts import implementations_of
from tagmatch.model.options import LayoutOptions
from tagmatch.model.parallel import even_ranges, run_rows
from tagmatch.model.tables import LONG_AGO, NEVER, ClusterTable, KeyTable, Segment, TagsetTable, Vocabulary
from tagmatch.partitioner.balanced_partitioning import balanced_partitions
from tagmatch.partitioner.key_names import in_common, only_these, only_used
from tagmatch.partitioner.keys_left import keys_left
from tagmatch.partitioner.vocabulary import TagOrder, rank_tags, rarest_first

MAX_ROWS = 2**32 - 2


@dataclass(frozen=True, slots=True)
class Changes:
    """Additions and removals of one key of one set each, oldest first.

    Attributes
    ----------
    tags : Strings
        Different tags; a tag's place is its number.
    rows : Lists of uint32
        Tag numbers of each change's set, ascending and different within a row.
    keys : uint64 array
        Of keys that are strings, their places in `names`.
    removed : bool array
        Whether the change removes the key (else it adds it).
    names : Strings
        Different strings; none where keys are integers.
    expires : int64 array, optional
        When each change's key expires, as of `KeyTable`; an addition replaces the time that the key had.
    """

    tags: Strings
    rows: Lists
    keys: U64Array
    removed: BoolArray
    names: Strings
    expires: I64Array | None = None

    def __len__(self) -> int:
        return len(self.rows)


def no_changes() -> Changes:
    """Changes that change nothing."""
    none, no_strings = np.zeros(1, np.int32), Strings(np.zeros(1, np.int32), np.zeros(0, np.uint8))
    rows = Lists(none, np.zeros(0, np.uint32))
    return Changes(no_strings, rows, np.zeros(0, np.uint64), np.zeros(0, np.bool_), no_strings)


@dataclass(frozen=True, slots=True)
class Held:
    """Stored sets, each once, with their keys.

    Attributes
    ----------
    vocabulary : Vocabulary
        Has all of their tags, and may have more.
    ranks : Lists of uint32
        Ranks of each set's tags, ascending.
    keys : KeyTable
        Keys of each set.
    """

    vocabulary: Vocabulary
    ranks: Lists
    keys: KeyTable

    def __len__(self) -> int:
        return len(self.ranks)


def held_by(segment: Segment, *, threads: int = 1) -> Held:
    """All sets of a segment that are not deleted."""
    table, keys = segment.tagsets.ranks, segment.keys
    if segment.deletions is None:
        return Held(segment.vocabulary, table, keys)
    rows = segment.live_rows(0, len(segment)).astype(np.uint32)
    return Held(segment.vocabulary, gather(table, rows, threads=threads), keys.of_sets(rows, threads=threads))


def held_in(segment: Segment, rows: U32Array) -> Held:
    """The sets in some rows of a segment, with only the tags and names that they have: takes as long as these are."""
    ranks, known = gather(segment.tagsets.ranks, rows), segment.vocabulary
    used, numbers = np.unique(ranks.values, return_inverse=True)
    tags = Vocabulary(gather_strings(known.tags, used), known.hashes[used], known.frequencies[used], known.seed)
    return Held(tags, Lists(ranks.offsets, numbers.astype(np.uint32)), only_these(segment.keys.of_sets(rows)))


def build_segment(
    held: Sequence[Held], changes: Changes, options: LayoutOptions, *, now: int = LONG_AGO, threads: int = 1
) -> Segment:
    """The segment of what these sets are after the changes, in the layout of `options`. Held twice, a set has all keys.

    Keys that have expired `now`, in microseconds since 1970, are not in it.
    The result depends on the sets and keys it holds and on the options alone, not on the order in which they came
    nor on `threads`.
    """
    return segment_after(held, changes, options, now=now, threads=threads)[0]


def segment_after(
    held: Sequence[Held], changes: Changes, options: LayoutOptions, *, now: int, threads: int
) -> tuple[Segment, ChangeCounts]:
    """As `build_segment`, and what became of the changes, of whose sets all that are stored are held."""
    rows = distinct_sets(held, changes, now=now, threads=threads)
    lay_out: LayOut = resolve_name(implementations_of(options).lay_out)
    return lay_out(options, rows, threads), ChangeCounts(*np.bincount(rows.became, minlength=4).tolist())


def distinct_sets(
    held: Sequence[Held], changes: Changes, *, order: TagOrder = rarest_first, now: int = LONG_AGO, threads: int = 1
) -> Rows:
    """What these sets are after the changes, as of `build_segment`, not laid out yet; tags ranked in an order."""
    held = [each for each in held if len(each) or each.keys.names is not None]
    names = None
    if any(each.keys.names is not None for each in held):
        held, changes, names = _with_names_in_common(held, changes, threads)
    tags, rows, rows_of_pairs, keys, removed = _join(held, changes, threads)
    expires = _times([each.keys for each in held], changes)
    if expires is not None:
        removed = removed | (expires <= now)
    vocabulary, rows, first_rows, row_order = _rank(tags, rows, order, threads)

    repeated = equal_to_previous(rows, threads=threads)
    firsts = np.flatnonzero(~repeated)
    group_of_row = np.empty(len(row_order), np.uint32)
    group_of_row[row_order] = np.cumsum(~repeated, dtype=np.int64) - 1
    del repeated, row_order
    pair_groups = group_of_row if rows_of_pairs is None else group_of_row[rows_of_pairs]
    del group_of_row, rows_of_pairs
    first_pairs, by_group = group_by(pair_groups, len(firsts), threads=threads)
    del pair_groups
    key_offsets, keys, expires, became = keys_left(
        first_pairs, by_group, keys, removed, expires, len(keys) - len(changes), threads=threads
    )
    del first_pairs, by_group, removed
    alive = np.flatnonzero(np.diff(key_offsets))
    if len(alive) < len(firsts):
        key_offsets = list_offsets(np.diff(key_offsets)[alive])
    table = KeyTable(Lists(key_offsets, keys), names, expires)
    if len(alive) < len(rows):
        # With rows gone, tags are rarer than they were when the rows were ranked.
        rows = gather(rows, firsts[alive].astype(np.uint32), threads=threads)
        vocabulary, rows, first_rows, row_order = _rank(vocabulary.tags, rows, order, threads)
        table = table.of_sets(row_order, threads=threads)
        del row_order
    del firsts, alive, keys, key_offsets, expires
    table = _narrow(table) if names is None else only_used(table, names, threads=threads)
    return Rows(vocabulary, rows, table, first_rows, became)


def _with_names_in_common(held: Sequence[Held], changes: Changes, threads: int) -> tuple[list[Held], Changes, Strings]:
    """All with the same numbers for the same keys, which are strings; and these, by number."""
    known = [each.keys.names for each in held if each.keys.names is not None]
    names, numbers = in_common([*known, changes.names], threads=threads)

    def renumbered(table: KeyTable, numbers: U32Array) -> KeyTable:
        return replace(table, keys=Lists(table.keys.offsets, numbers[table.keys.values]), names=names)

    return (
        [replace(each, keys=renumbered(each.keys, new)) for each, new in zip(held, numbers, strict=False)],
        replace(changes, keys=numbers[-1][changes.keys].astype(np.uint64)),
        names,
    )


def _join(
    held: Sequence[Held], changes: Changes, threads: int
) -> tuple[Strings, Lists, U32Array | None, U64Array, BoolArray]:
    """Rows of the held sets followed by those of the changes, under one numbering of tags; and all (set, key) pairs.

    Returns
    -------
    tags : Strings
    rows : Lists of uint32
    rows_of_pairs : uint32 array, or None when pair `i` is of row `i`
    keys, removed
        Of each pair.
    """
    tables = [each.keys.keys for each in held]
    if not any(len(each) for each in held):
        return changes.tags, changes.rows, None, changes.keys, changes.removed
    sets, pairs = sum(map(len, held)), sum(len(table.values) for table in tables)
    total = sets + len(changes)
    if total > MAX_ROWS or pairs + len(changes) > MAX_ROWS:
        raise InvalidValueError(f"an index holds at most {MAX_ROWS} sets and changes; split the data over several")
    tags, numbers = _number_tags([each.vocabulary for each in held], changes.tags, threads)
    parts = [*(each.ranks for each in held), changes.rows]
    values = [
        part.values if of_tags is None else of_tags[part.values] for part, of_tags in zip(parts, numbers, strict=True)
    ]
    rows = Lists(_end_to_end([part.offsets for part in parts]), np.concatenate(values))
    lengths = np.concatenate([*(table.lengths() for table in tables), np.ones(len(changes), np.int64)])
    rows_of_pairs = np.repeat(np.arange(total, dtype=np.uint32), lengths)
    all_keys = np.concatenate([*(table.values for table in tables), changes.keys], dtype=np.uint64)
    removed = np.concatenate([np.zeros(pairs, np.bool_), changes.removed])
    return tags, rows, rows_of_pairs, all_keys, removed


def _times(tables: Sequence[KeyTable], changes: Changes) -> I64Array | None:
    """When the key of each (set, key) pair of `_join` expires; `None` if none does."""
    columns = [(table.expires, len(table.keys.values)) for table in tables] + [(changes.expires, len(changes))]
    if all(times is None for times, _ in columns):
        return None
    return np.concatenate([np.full(count, NEVER) if times is None else times for times, count in columns])


def _number_tags(known: Sequence[Vocabulary], more: Strings, threads: int) -> tuple[Strings, list[U32Array | None]]:
    """One numbering of the tags of vocabularies and of more tags.

    Returns
    -------
    tags : Strings
        By number.
    numbers : list of uint32 array or None
        For each vocabulary and for the others, the number of each tag; `None` where it is the place.
    """
    tags, numbers = [known[0].tags], [cast("U32Array | None", None)]
    count = len(known[0])
    for part in (*(vocabulary.tags for vocabulary in known[1:]), more):
        of_part = np.full(len(part), UNKNOWN)
        for vocabulary, of_vocabulary in zip(known, numbers, strict=False):
            places = ranks_of(part, vocabulary, threads=threads)
            found = np.flatnonzero((places != UNKNOWN) & (of_part == UNKNOWN))
            of_part[found] = places[found] if of_vocabulary is None else of_vocabulary[places[found]]
        new = np.flatnonzero(of_part == UNKNOWN).astype(np.uint32)
        of_part[new] = count + np.arange(len(new), dtype=np.uint32)
        count += len(new)
        tags.append(gather_strings(part, new, threads=threads))
        numbers.append(of_part)
    return Strings(_end_to_end([each.offsets for each in tags]), np.concatenate([each.data for each in tags])), numbers


def ranks_of(tags: Strings, vocabulary: Vocabulary, *, threads: int = 1) -> U32Array:
    """The rank of each tag in a vocabulary; UNKNOWN where it has none."""
    ranks = np.empty(len(tags), np.uint32)
    known, slots = vocabulary.tags, vocabulary.slots

    def look_up(first: int, last: int) -> None:
        hashes = hash_strings(tags, seed=vocabulary.seed, first=first, last=last)
        find_all(hashes, tags.offsets, tags.data, first, slots, known.offsets, known.data, ranks[first:last])

    run_rows(look_up, even_ranges(len(tags), threads), threads)
    return ranks


def _end_to_end(offsets: Sequence[IntArray]) -> I64Array:
    """The offsets of columns of lists, or of strings, that are put one after the other."""
    ends = offsets_of(np.array([each[-1] for each in offsets]))
    return np.concatenate([np.zeros(1, np.int64), *(each[1:] + end for each, end in zip(offsets, ends, strict=False))])


def _rank(tags: Strings, rows: Lists, order: TagOrder, threads: int) -> tuple[Vocabulary, Lists, I64Array, U32Array]:
    """The vocabulary of the rows and the rows as ascending ranks, sorted; the rest as `sort_rows` returns it."""
    vocabulary, ranks = rank_tags(tags, count_values(rows.values, len(tags)), order=order, threads=threads)
    return vocabulary, *sort_rows(relabel(rows, ranks, threads=threads), len(vocabulary), threads=threads)


def _narrow(table: KeyTable) -> KeyTable:
    """The key table, 32-bit where all keys fit."""
    keys = table.keys
    if len(keys.values) == 0 or int(keys.values.max()) < 2**32:
        return replace(table, keys=Lists(keys.offsets, keys.values.astype(np.uint32)))
    return table


@dataclass(frozen=True, slots=True)
class Rows:
    """Distinct sets in the order of their ranks, with their keys; `first_rows` as `sort_rows` returns them.

    `became` is as `keys_left` returns it.
    """

    vocabulary: Vocabulary
    ranks: Lists
    keys: KeyTable
    first_rows: I64Array
    became: U8Array


def by_rarest_tag(options: LayoutOptions, rows: Rows, threads: int) -> Segment:  # noqa: ARG001
    """Lay sets out in the layout `rarest`, in whose order they are."""
    clusters = ClusterTable(narrow_offsets(rows.first_rows[1:]))
    return Segment(options, rows.vocabulary, TagsetTable(None, rows.ranks), rows.keys, clusters)


def by_signature(options: LayoutOptions, rows: Rows, threads: int) -> Segment:
    """Lay sets out in the layout `balanced` (Algorithm 1)."""
    partitions, order, signatures = balanced_partitions(
        signatures_of(rows.ranks, rows.vocabulary.hashes, threads=threads),
        int(rows.first_rows[1]),
        options.max_partition_size,
        threads=threads,
    )
    return Segment(
        options,
        rows.vocabulary,
        TagsetTable(signatures, gather(rows.ranks, order, threads=threads)),
        rows.keys.of_sets(order, threads=threads),
        partitions,
    )


#: Gets options, sets, and the number of threads
LayOut: TypeAlias = Callable[[LayoutOptions, Rows, int], Segment]
