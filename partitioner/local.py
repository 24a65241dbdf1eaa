"""The local partitioner: from stored sets and a sequence of changes to a segment, on one machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa

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
from tagmatch.model.arrow import from_strings, in_order, to_strings
from tagmatch.model.change_counts import REMOVE, ChangeCounts
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.kernels.hashing import hash_strings, signatures_of
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.known_tags import look_up
from tagmatch.model.kernels.lists import (
    count_values,
    equal_to_previous,
    gather,
    gather_strings,
    group_by,
    relabel,
    sort_rows,
)
from tagmatch.model.kernels.tag_table import UNKNOWN, find_all
from tagmatch.model.layouts import implementations_of
from tagmatch.model.options import LayoutOptions
from tagmatch.model.parallel import even_work, run_evenly, run_rows
from tagmatch.model.tables import (
    LONG_AGO,
    NEVER,
    ClusterTable,
    KeyTable,
    Segment,
    TagsetTable,
    Vocabulary,
    grouped_by_hash,
    if_any,
)
from tagmatch.partitioner.balanced_partitioning import balanced_partitions

MAX_ROWS = 2**32 - 2

# Frequencies below this are sorted by counting
_RARE = 1 << 16

#: Outcomes of changes: a key was added; one to add was there already; one was removed; one to remove was
#: missing; or nothing, for a change that is only a part of a change of its key and is not counted
ADDED, ALREADY_THERE, REMOVED, MISSING, NOTHING = range(5)


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of one key of one set each, or of all sets of the key, oldest first."""

    tags: Strings  # different tags; a tag's place is its number
    rows: Lists  # the tag numbers of each change's set, ascending and different within a row
    keys: U64Array  # if keys are strings, their places in `names`
    kinds: U8Array  # what each change does, as `tagmatch.model.change_counts` has it
    names: Strings  # different strings; none where keys are integers
    # when each change's key expires, as in `KeyTable`; an addition replaces the time that the key had
    expires: I64Array | None = None
    records: I64Array | None = None  # of each `PUT`, the row of `asked` that the key has as its record; -1 if none
    asked: pa.Table | None = None
    # If all sets of keys go, each is removed by its own change, with a number that these changes share; the sets
    # then put have the same number, negative; other changes have 0
    owners: I64Array | None = None
    deletes: I64Array | None = None  # numbers, among these, of changes that delete the key

    def __len__(self) -> int:
        return len(self.rows)


def no_changes() -> Changes:
    """Changes that change nothing."""
    none, no_strings = np.zeros(1, np.int32), Strings(np.zeros(1, np.int32), np.zeros(0, np.uint8))
    rows = Lists(none, np.zeros(0, np.uint32))
    return Changes(no_strings, rows, np.zeros(0, np.uint64), np.zeros(0, np.uint8), no_strings)


@dataclass(frozen=True, slots=True)
class HeldSets:
    """Stored sets, each once, with their keys."""

    vocabulary: Vocabulary  # has all of their tags, and may have more
    ranks: Lists  # the ranks of each set's tags, ascending
    keys: KeyTable

    def __len__(self) -> int:
        return len(self.ranks)


def held_by(segment: Segment, *, threads: int = 1) -> HeldSets:
    """All sets of a segment that are not deleted."""
    table, keys = segment.tagsets.ranks, segment.keys
    if segment.deletions is None:
        return HeldSets(segment.vocabulary, table, keys)
    rows = segment.live_rows(0, len(segment)).astype(np.uint32)
    return HeldSets(segment.vocabulary, gather(table, rows, threads=threads), keys.of_sets(rows, threads=threads))


def held_in(segment: Segment, rows: U32Array) -> HeldSets:
    """The sets in some rows of a segment, with only the tags and names that they have: takes as long as these are."""
    ranks, known = gather(segment.tagsets.ranks, rows), segment.vocabulary
    used, numbers = np.unique(ranks.values, return_inverse=True)
    tags = Vocabulary(gather_strings(known.tags, used), seed=known.seed)
    return HeldSets(tags, Lists(ranks.offsets, numbers.astype(np.uint32)), only_names_of(segment.keys.of_sets(rows)))


def by_frequency(frequencies: U32Array, order: U32Array, *, threads: int = 1) -> U32Array:
    """Places of tags by frequency, equal frequencies in the order given; the rare ones, nearly all, by counting."""
    ordered = frequencies[order]
    rare, most = ordered < _RARE, int(ordered.max(initial=0))
    if rare.all():
        return order[group_by(ordered, most + 1, threads=threads)[1]]
    rare_tags, rest = order[rare], order[~rare]
    return np.concatenate([
        rare_tags[group_by(ordered[rare], _RARE, threads=threads)[1]],
        rest[np.argsort(frequencies[rest], kind="stable")],
    ])  # fmt: skip


def segment_after(
    held: Sequence[HeldSets], changes: Changes, options: LayoutOptions, *, now: int = LONG_AGO, threads: int = 1
) -> tuple[Segment, ChangeCounts]:
    """The segment of what these sets are after the changes, in the layout of `options`, and their outcome.

    Held twice, a set has all keys. Keys that have expired `now`, in microseconds since 1970, are not in it. The segment
    depends on the sets and keys it holds and on the options alone, not on the order in which they came nor on
    `threads`. What happened to changes is told as far as the stored ones of their sets are held.
    """
    rows = distinct_sets(held, changes, now=now, threads=threads)
    lay_out: LayOut = resolve_name(implementations_of(options).lay_out)
    added, already_there, removed, missing = np.bincount(rows.became, minlength=NOTHING)[:NOTHING].tolist()
    missing += len(deletes_without_sets(changes, rows.became))
    return lay_out(options, rows, threads), ChangeCounts(added, already_there, removed, missing)


def deletes_without_sets(changes: Changes, became: U8Array) -> I64Array:
    """The changes that delete a key, but deleted no sets."""
    if changes.deletes is None or changes.owners is None:
        return np.zeros(0, np.int64)
    return np.flatnonzero(~np.isin(changes.deletes, changes.owners[became == REMOVED]))


def distinct_sets(
    held: Sequence[HeldSets], changes: Changes, *, rarest_first: bool = True, now: int = LONG_AGO, threads: int = 1
) -> Rows:
    """As `segment_after`, not laid out yet, with tags as in a `Vocabulary`, or else just by their hashes."""
    held = [each for each in held if len(each) or each.keys.names is not None]
    names = None
    if any(each.keys.names is not None for each in held):
        held, changes, names = _with_names_in_common(held, changes, threads)
    tags, rows, rows_of_pairs, keys, removed = _join(held, changes, threads)
    expires = _times([each.keys for each in held], changes)
    if expires is not None:
        removed = removed | (expires <= now)
    vocabulary, rows, first_rows, row_order = _rank(tags, rows, threads, rarest_first=rarest_first)

    repeated = equal_to_previous(rows, threads=threads)
    firsts = np.flatnonzero(~repeated)
    group_of_row = np.empty(len(row_order), np.uint32)
    group_of_row[row_order] = np.cumsum(~repeated, dtype=np.int64) - 1
    del repeated, row_order
    pair_groups = group_of_row if rows_of_pairs is None else group_of_row[rows_of_pairs]
    del group_of_row, rows_of_pairs
    first_pairs, by_group = group_by(pair_groups, len(firsts), threads=threads)
    del pair_groups
    times = np.zeros(0, np.int64) if expires is None else expires
    owners = np.zeros(0, np.int64) if changes.owners is None else changes.owners
    pairs = _Pairs(first_pairs, by_group, keys, removed, times, owners, len(keys) - len(changes))
    key_offsets, keys, expires, became = _keys_of_groups(pairs, threads)
    del pairs, times
    del first_pairs, by_group, removed
    alive = np.flatnonzero(np.diff(key_offsets))
    if len(alive) < len(firsts):
        key_offsets = list_offsets(np.diff(key_offsets)[alive])
    table = KeyTable(Lists(key_offsets, keys), names, expires)
    if len(alive) < len(rows):
        # With rows gone, tags are rarer than they were when the rows were ranked.
        rows = gather(rows, firsts[alive].astype(np.uint32), threads=threads)
        vocabulary, rows, first_rows, row_order = _rank(vocabulary.tags, rows, threads, rarest_first=rarest_first)
        table = table.of_sets(row_order, threads=threads)
        del row_order
    del firsts, alive, keys, key_offsets, expires
    return Rows(vocabulary, rows, _tight(table, threads), first_rows, became)


def _with_names_in_common(
    held: Sequence[HeldSets], changes: Changes, threads: int
) -> tuple[list[HeldSets], Changes, Strings]:
    """All with the same numbers for the same keys, which are strings; and these, by number."""
    parts = [*(each.keys.names for each in held if each.keys.names is not None), changes.names]
    strings = pa.concat_arrays([from_strings(part).cast(pa.large_string()) for part in parts])
    places, all_numbers = in_order(strings)
    names = gather_strings(to_strings(strings), places, threads=threads)
    numbers = np.split(all_numbers, np.cumsum([len(part) for part in parts[:-1]]))

    def renumbered(table: KeyTable, numbers: U32Array) -> KeyTable:
        return replace(table, keys=Lists(table.keys.offsets, numbers[table.keys.values]), names=names)

    return (
        [replace(each, keys=renumbered(each.keys, new)) for each, new in zip(held, numbers, strict=False)],
        replace(changes, keys=numbers[-1][changes.keys].astype(np.uint64)),
        names,
    )


def _join(
    held: Sequence[HeldSets], changes: Changes, threads: int
) -> tuple[Strings, Lists, U32Array | None, U64Array, BoolArray]:
    """Rows of the held sets followed by those of the changes, under one numbering of tags; and all (set, key) pairs."""
    tables = [each.keys.keys for each in held]
    if not any(len(each) for each in held):
        return changes.tags, changes.rows, None, changes.keys, changes.kinds == REMOVE
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
    removed = np.concatenate([np.zeros(pairs, np.bool_), changes.kinds == REMOVE])
    return tags, rows, rows_of_pairs, all_keys, removed


def _times(tables: Sequence[KeyTable], changes: Changes) -> I64Array | None:
    """When the key of each (set, key) pair of `_join` expires; `None` if none does."""
    columns = [(table.expires, len(table.keys.values)) for table in tables] + [(changes.expires, len(changes))]
    if all(times is None for times, _ in columns):
        return None
    return np.concatenate([np.full(count, NEVER) if times is None else times for times, count in columns])


def _number_tags(known: Sequence[Vocabulary], more: Strings, threads: int) -> tuple[Strings, list[U32Array | None]]:
    """One numbering of the tags of vocabularies and of more tags: of each its number; `None` if that is its place."""
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
    """The rank of each tag in a vocabulary; UNKNOWN for a tag that it lacks."""
    ranks = np.empty(len(tags), np.uint32)
    known, (table, has_all) = vocabulary.tags, vocabulary.known

    def look_some_up(first: int, last: int) -> None:
        some = ranks[first:last]
        if has_all:
            look_up(tags.offsets, tags.data, first, tuple(table), known.offsets, known.data, some)
        else:
            hashes = hash_strings(tags, seed=vocabulary.seed, first=first, last=last)
            find_all(hashes, tags.offsets, tags.data, first, vocabulary.slots, known.offsets, known.data, some)

    if not has_all:
        vocabulary.slots  # noqa: B018, made once before threads take it
    run_evenly(look_some_up, len(tags), threads)
    return ranks


def _end_to_end(offsets: Sequence[IntArray]) -> I64Array:
    """The offsets of columns of lists, or of strings, that are put one after the other."""
    ends = offsets_of(np.array([each[-1] for each in offsets]))
    return np.concatenate([np.zeros(1, np.int64), *(each[1:] + end for each, end in zip(offsets, ends, strict=False))])


def _rank(
    tags: Strings, rows: Lists, threads: int, *, rarest_first: bool
) -> tuple[Vocabulary, Lists, I64Array, U32Array]:
    """The vocabulary of the rows and the rows as ascending ranks, sorted; the rest as `sort_rows` returns it."""
    frequencies = count_values(rows.values, len(tags))
    ranks = np.zeros(len(frequencies), np.uint32)  # of tags that occur
    present = np.flatnonzero(frequencies).astype(np.uint32)
    if len(present) < len(tags):
        tags = gather_strings(tags, present, threads=threads)
        frequencies = frequencies[present]
    hashes = hash_strings(tags, threads=threads)
    places, _ = grouped_by_hash(tags, hashes)
    if rarest_first:
        places = by_frequency(frequencies, places, threads=threads)
    ranks[present[places]] = np.arange(len(places), dtype=np.uint32)
    vocabulary = Vocabulary(gather_strings(tags, places, threads=threads), hashes[places], frequencies[places])
    return vocabulary, *sort_rows(relabel(rows, ranks, threads=threads), len(vocabulary), threads=threads)


@dataclass(frozen=True, slots=True)
class Rows(HeldSets):
    """Distinct sets in the order of their ranks, with their keys."""

    first_rows: I64Array  # as `sort_rows` returns them
    became: U8Array  # what happened to each change, as `_keys_of_groups` says it


def by_rarest_tag(options: LayoutOptions, rows: Rows, threads: int) -> Segment:  # noqa: ARG001
    """Lay sets out in the layout `rarest`, in whose order they are."""
    clusters = ClusterTable(narrow_offsets(rows.first_rows[1:]))
    vocabulary = Vocabulary(rows.vocabulary.tags, seed=rows.vocabulary.seed)
    return Segment(options, vocabulary, TagsetTable(None, rows.ranks), rows.keys, clusters)


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
        replace(rows.vocabulary, frequencies=None),
        TagsetTable(signatures, gather(rows.ranks, order, threads=threads)),
        rows.keys.of_sets(order, threads=threads),
        partitions,
    )


#: Gets options, sets, and the number of threads
LayOut: TypeAlias = Callable[[LayoutOptions, Rows, int], Segment]


# -- keys --------------------------------------------------------------------------------------------------------------


class _Pairs(NamedTuple):
    """Pairs of a group and a key, oldest first in a group; those from `held` on are changes."""

    first_pairs: I64Array  # where the pairs of each group begin in `order`
    order: U32Array
    keys: U64Array
    removed: BoolArray
    expires: I64Array  # empty if no key expires
    owners: I64Array  # of changes, as in `Changes`; empty without such changes
    held: int


class _Left(NamedTuple):
    """The keys that are left of each group, written from the group's place on."""

    keys: U64Array
    expires: I64Array
    counts: I64Array  # how many of each group
    became: U8Array  # what happened to each change


@kernel
def _keys_left(known, first, last, out):
    """For each group of `_Pairs` the keys whose last change is an addition, ascending, to `_Left`."""
    first_pairs, order, keys, removed, expires, owners, held = known
    out_keys, out_expires, counts, became = out
    has_times, has_owners = len(expires) > 0, len(owners) > 0
    for group in range(first, last):
        begin, end = first_pairs[group], first_pairs[group + 1]
        if end - begin == 1:
            pair = order[begin]
            out_keys[begin] = keys[pair]
            if has_times:
                out_expires[begin] = expires[pair]
            counts[group] = 0 if removed[pair] else 1
            if pair >= held:
                became[pair - held] = MISSING if removed[pair] else ADDED
            continue
        pairs = order[begin:end]
        group_keys = np.empty(end - begin, np.uint64)
        for i in range(end - begin):
            group_keys[i] = keys[pairs[i]]
        by_key = np.argsort(group_keys, kind="mergesort")  # stable: changes of one key stay in time order
        at, is_there, cleared = begin, False, -1
        for i in range(end - begin):
            pair = pairs[by_key[i]]
            owner = owners[pair - held] if has_owners and pair >= held else 0
            if owner < 0 and cleared >= 0 and owners[cleared] == -owner:  # it stays in its segment
                became[cleared] = NOTHING
                is_there = True
            if owner <= 0:
                cleared = -1
            if pair < held:
                is_there |= not removed[pair]
            elif owner > 0:
                became[pair - held] = REMOVED if is_there else NOTHING
                if is_there:
                    cleared = pair - held
                is_there = False
            elif removed[pair]:
                became[pair - held] = REMOVED if is_there else MISSING
                is_there = False
            else:
                became[pair - held] = ALREADY_THERE if is_there else ADDED
                is_there = True
            if i + 1 < end - begin and group_keys[by_key[i]] == group_keys[by_key[i + 1]]:
                continue
            if not removed[pair]:
                out_keys[at] = group_keys[by_key[i]]
                if has_times:
                    out_expires[at] = expires[pair]
                at += 1
            is_there, cleared = False, -1
        counts[group] = at - begin


@kernel
def _close_gaps(first_pairs, counts, keys, offsets, out, first, last):
    for group in range(first, last):
        for i in range(counts[group]):
            out[offsets[group] + i] = keys[first_pairs[group] + i]


def _keys_of_groups(pairs: _Pairs, threads: int) -> tuple[I64Array, U64Array, I64Array | None, U8Array]:
    """Keys left of each group, ascending, with their offsets and times, and what happened to each change."""
    first_pairs, counts = pairs.first_pairs, np.empty(len(pairs.first_pairs) - 1, np.int64)
    out = _Left(
        np.empty(len(pairs.keys), np.uint64),
        np.empty(len(pairs.expires), np.int64),
        counts,
        np.empty(len(pairs.keys) - pairs.held, np.uint8),
    )
    ranges = even_work(first_pairs, threads)
    run_rows(lambda first, last: _keys_left(pairs, first, last, out), ranges, threads)
    offsets = offsets_of(counts)

    def without_gaps(column: U64Array) -> U64Array:
        if offsets[-1] == len(column):
            return column
        tight = np.empty(int(offsets[-1]), np.uint64)
        run_rows(lambda a, b: _close_gaps(first_pairs, counts, column, offsets, tight, a, b), ranges, threads)
        return tight

    times = if_any(without_gaps(out.expires.view(np.uint64)).view(np.int64)) if len(out.expires) else None
    return offsets, without_gaps(out.keys), times, out.became


def _tight(table: KeyTable, threads: int) -> KeyTable:
    """The key table, 32-bit if all keys fit, or without the names that do not occur in it."""
    offsets, values, names = table.keys.offsets, table.keys.values, table.names
    if names is None:
        fit = len(values) == 0 or int(values.max()) < 2**32
        return replace(table, keys=Lists(offsets, values.astype(np.uint32))) if fit else table
    used = np.flatnonzero(count_values(values, len(names)))
    values = values.astype(np.uint32, copy=False)
    if len(used) < len(names):
        numbers = np.zeros(len(names), np.uint32)
        numbers[used] = np.arange(len(used), dtype=np.uint32)
        values = numbers[values]
        names = gather_strings(names, used.astype(np.uint32), threads=threads)
    names = Strings(names.offsets.astype(np.int64, copy=False), names.data)
    return replace(table, keys=Lists(offsets, values), names=names)


def only_names_of(table: KeyTable) -> KeyTable:
    """A key table without the names that do not occur in it; takes as long as it is, however many names there are."""
    if table.names is None:
        return table
    used, numbers = np.unique(table.keys.values, return_inverse=True)
    names = gather_strings(table.names, used.astype(np.uint32))
    return replace(table, keys=Lists(table.keys.offsets, numbers.astype(np.uint32)), names=names)
