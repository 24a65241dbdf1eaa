"""The local partitioner: from a segment and a sequence of changes to the next segment, on one machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import TypeAlias

import numpy as np

from tagmatch.model.arrays import (
    BoolArray,
    I64Array,
    Lists,
    Strings,
    U32Array,
    U64Array,
    list_offsets,
    narrow_offsets,
)
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.kernels.lists import count_values, gather, gather_strings, relabel
from tagmatch.model.kernels.signature import signatures_of
from tagmatch.model.kernels.sorting import equal_to_previous, group_by, sort_rows
from tagmatch.model.kernels.tag_table import UNKNOWN, build_slots, find_all
from tagmatch.model.kernels.xxh64 import hash_strings
from tagmatch.model.layouts import implementations_of
from tagmatch.model.options import LayoutOptions
from tagmatch.model.tables import ClusterTable, KeyTable, Segment, TagsetTable, Vocabulary
from tagmatch.partitioner.balanced_partitioning import balanced_partitions
from tagmatch.partitioner.key_names import in_common, only_used
from tagmatch.partitioner.keys_left import keys_left
from tagmatch.partitioner.vocabulary import rank_tags

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
    """

    tags: Strings
    rows: Lists
    keys: U64Array
    removed: BoolArray
    names: Strings

    def __len__(self) -> int:
        return len(self.rows)


def build_segment(base: Segment, changes: Changes, options: LayoutOptions, *, threads: int = 1) -> Segment:
    """The segment that holds what `base` holds after the changes, in the layout of `options`.

    The result depends on the sets and keys it holds and on the options alone, not on the order in which they came
    nor on `threads`.
    """
    names = None
    if base.keys.names is not None:
        base, changes, names = _with_names_in_common(base, base.keys.names, changes, threads)
    tags, rows, rows_of_pairs, keys, removed = _join(base, changes, threads)
    vocabulary, rows, first_rows, order = _rank(tags, rows, threads)

    repeated = equal_to_previous(rows, threads=threads)
    firsts = np.flatnonzero(~repeated)
    group_of_row = np.empty(len(order), np.uint32)
    group_of_row[order] = np.cumsum(~repeated, dtype=np.int64) - 1
    del repeated, order
    pair_groups = group_of_row if rows_of_pairs is None else group_of_row[rows_of_pairs]
    del group_of_row, rows_of_pairs
    first_pairs, by_group = group_by(pair_groups, len(firsts), threads=threads)
    del pair_groups
    key_offsets, keys = keys_left(first_pairs, by_group, keys, removed, threads=threads)
    del first_pairs, by_group, removed
    alive = np.flatnonzero(np.diff(key_offsets))
    if len(alive) < len(firsts):
        key_offsets = list_offsets(np.diff(key_offsets)[alive])
    key_lists = Lists(key_offsets, keys)
    if len(alive) < len(rows):
        # With rows gone, tags are rarer than they were when the rows were ranked.
        rows = gather(rows, firsts[alive].astype(np.uint32), threads=threads)
        vocabulary, rows, first_rows, order = _rank(vocabulary.tags, rows, threads)
        key_lists = gather(key_lists, order, threads=threads)
        del order
    del firsts, alive, keys, key_offsets
    table = _narrow(key_lists) if names is None else only_used(key_lists, names, threads=threads)
    lay_out: LayOut = resolve_name(implementations_of(options).lay_out)
    return lay_out(options, Rows(vocabulary, rows, table, first_rows), threads)


def _with_names_in_common(
    base: Segment, held: Strings, changes: Changes, threads: int
) -> tuple[Segment, Changes, Strings]:
    """Both with the same numbers for the same keys, which are strings; and these, by number."""
    names, held_numbers, new_numbers = in_common(held, changes.names, threads=threads)
    keys = base.keys.keys
    return (
        replace(base, keys=KeyTable(Lists(keys.offsets, held_numbers[keys.values]), held)),
        replace(changes, keys=new_numbers[changes.keys].astype(np.uint64)),
        names,
    )


def _join(base: Segment, changes: Changes, threads: int) -> tuple[Strings, Lists, U32Array | None, U64Array, BoolArray]:
    """Rows of the base's sets followed by those of the changes, under one numbering of tags; and all (set, key) pairs.

    Returns
    -------
    tags : Strings
    rows : Lists of uint32
    rows_of_pairs : uint32 array, or None when pair `i` is of row `i`
    keys, removed
        Of each pair.
    """
    if len(base) == 0:
        return changes.tags, changes.rows, None, changes.keys, changes.removed
    total = len(base) + len(changes)
    if total > MAX_ROWS or len(base.keys.keys.values) + len(changes) > MAX_ROWS:
        raise InvalidValueError(f"an index holds at most {MAX_ROWS} sets and changes; split the data over several")
    known = base.vocabulary
    numbers = np.empty(len(changes.tags), np.uint32)
    hashes = hash_strings(changes.tags, seed=known.seed, threads=threads)
    find_all(
        hashes, changes.tags.offsets, changes.tags.data, 0,
        build_slots(known.tags, known.hashes), known.tags.offsets, known.tags.data, numbers,
    )  # fmt: skip
    new = np.flatnonzero(numbers == UNKNOWN).astype(np.uint32)
    numbers[new] = len(known) + np.arange(len(new), dtype=np.uint32)
    new_tags = gather_strings(changes.tags, new, threads=threads)
    tags = Strings(
        np.concatenate([known.tags.offsets, new_tags.offsets[1:].astype(np.int64) + len(known.tags.data)]),
        np.concatenate([known.tags.data, new_tags.data]),
    )
    held = base.tagsets.ranks
    rows = Lists(
        np.concatenate([held.offsets, changes.rows.offsets[1:].astype(np.int64) + len(held.values)]),
        np.concatenate([held.values, numbers[changes.rows.values]]),
    )
    keys = base.keys.keys
    rows_of_pairs = np.concatenate([
        np.repeat(np.arange(len(base), dtype=np.uint32), keys.lengths()),
        np.arange(len(base), total, dtype=np.uint32),
    ])  # fmt: skip
    all_keys = np.concatenate([keys.values, changes.keys], dtype=np.uint64)
    removed = np.concatenate([np.zeros(len(keys.values), np.bool_), changes.removed])
    return tags, rows, rows_of_pairs, all_keys, removed


def _rank(tags: Strings, rows: Lists, threads: int) -> tuple[Vocabulary, Lists, I64Array, U32Array]:
    """The vocabulary of the rows and the rows as ascending ranks, sorted; the rest as `sort_rows` returns it."""
    vocabulary, ranks = rank_tags(tags, count_values(rows.values, len(tags)), threads=threads)
    rows, first_rows, order = sort_rows(relabel(rows, ranks, threads=threads), len(vocabulary), threads=threads)
    return vocabulary, rows, first_rows, order


def _narrow(keys: Lists) -> KeyTable:
    """The key table, 32-bit where all keys fit."""
    if len(keys.values) == 0 or int(keys.values.max()) < 2**32:
        return KeyTable(Lists(keys.offsets, keys.values.astype(np.uint32)))
    return KeyTable(keys)


@dataclass(frozen=True, slots=True)
class Rows:
    """Distinct sets in the order of their ranks, with their keys; `first_rows` as `sort_rows` returns them."""

    vocabulary: Vocabulary
    ranks: Lists
    keys: KeyTable
    first_rows: I64Array


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
        replace(rows.keys, keys=gather(rows.keys.keys, order, threads=threads)),
        partitions,
    )


#: Gets options, sets, and the number of threads
LayOut: TypeAlias = Callable[[LayoutOptions, Rows, int], Segment]
