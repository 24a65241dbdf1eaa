"""Changes of all sets of a key, as changes of one set each; and the records of keys that are put."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash

from tagmatch.model.arrays import BoolArray, I64Array, Strings, TagLists, U64Array
from tagmatch.model.asked import AS_GIVEN, end_to_end
from tagmatch.model.change_counts import ALSO_PUT, DELETE, PUT, REMOVE
from tagmatch.model.directory import Keys, found_in, keys_at, numbers_of, some_keys
from tagmatch.model.kernels.hashing import hash_strings
from tagmatch.model.kernels.lists import gather
from tagmatch.model.tables import NEVER, RecordTable, Segment, Snapshot
from tagmatch.partitioner.local import Changes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_MIX, _ALL_BITS = np.uint64(0x9E3779B97F4A7C15), 2**64 - 1


def no_tags(rows: int) -> TagLists:
    """So many rows without tags."""
    return TagLists(np.zeros(rows + 1, np.int64), Strings(np.zeros(1, np.int64), np.zeros(0, np.uint8)))


def resolved(
    snapshot: Snapshot, changes: Changes, staged: Callable[[list[tuple[TagLists, Keys]], Changes], Changes]
) -> Changes:
    """Changes of one set each that do the same, in order.

    For a change of all sets of a key, each set that the key may have then is removed: those that are stored, before the
    first such change, and those that it was added to since the one before. `staged` gives the changes that remove keys
    from these rows of sets, and then the given ones, as one table.
    """
    clears = np.flatnonzero((changes.kinds == DELETE) | (changes.kinds == PUT))
    if not len(clears):
        return changes
    owner_at = np.zeros(len(changes), np.int64)
    owner_at[clears] = np.arange(1, len(clears) + 1)
    cleared, firsts = np.unique(changes.keys[clears], return_index=True)
    removals: list[tuple[TagLists, Keys]] = []
    places = []  # of each stored set that goes, the change that removes it
    keys = _keys_of(changes, cleared)
    for segment in snapshot.segments:
        found = found_in(segment, keys)
        if len(found.rows):
            removals.append((segment.sets(found.rows.astype(np.uint32)), some_keys(keys, found.wanted)))
            places.append(clears[firsts[found.wanted]])
    whole = staged(removals, changes) if removals else changes
    stored = np.concatenate([np.zeros(0, np.int64), *places])
    added, ends = _added_since(changes, cleared)
    # What there is in order: what a change removes comes right before it
    every, count = np.arange(len(changes)), len(stored)
    order = np.argsort(np.concatenate([2 * stored, 2 * ends, 2 * every + 1]), kind="stable")
    source = np.concatenate([np.arange(count), count + added, count + every])[order]
    kinds = np.concatenate([np.full(count + len(added), REMOVE, np.uint8), changes.kinds])[order]
    owners = np.concatenate([owner_at[stored], owner_at[ends], -_put_with(changes, owner_at)])[order]
    kept = np.flatnonzero(kinds != DELETE)
    source, kinds, owners = source[kept], kinds[kept], owners[kept]
    expires = whole.expires if whole.expires is None else np.where(kinds == REMOVE, NEVER, whole.expires[source])
    records = whole.records
    if records is not None:  # changes before the last one of all sets of its key do not count
        lasts = clears[len(clears) - 1 - np.unique(changes.keys[clears][::-1], return_index=True)[1]]
        records = np.where(np.isin(source, count + lasts) & (kinds == PUT), records[source], -1)
    return Changes(
        whole.tags, gather(whole.rows, source.astype(np.uint32)), whole.keys[source], kinds, whole.names, expires,
        records, whole.asked, owners, owner_at[clears][changes.kinds[clears] == DELETE],
    )  # fmt: skip


def _keys_of(changes: Changes, numbers: U64Array) -> Keys:
    return keys_at(changes.names if len(changes.names) else None, numbers)


def _put_with(changes: Changes, owner_at: I64Array) -> I64Array:
    """Of each change that puts a key, the number of the first one that it goes with; of others 0."""
    puts = (changes.kinds == PUT) | (changes.kinds == ALSO_PUT)
    found = np.zeros(len(changes), np.int64)
    of_puts = np.flatnonzero(puts)
    by_key = of_puts[np.argsort(changes.keys[of_puts], kind="stable")]
    own = owner_at[by_key]
    begins = np.flatnonzero(changes.kinds[by_key] == PUT)
    found[by_key] = np.repeat(own[begins], np.diff(np.append(begins, len(by_key))))
    return found


def _added_since(changes: Changes, cleared: U64Array) -> tuple[I64Array, I64Array]:
    """Additions of keys all of whose sets go later, and the next change by which they go, of each addition."""
    some = np.flatnonzero(np.isin(changes.keys, cleared))
    by_key = some[np.argsort(changes.keys[some], kind="stable")]
    kinds, keys = changes.kinds[by_key], changes.keys[by_key]
    is_clear = (kinds == DELETE) | (kinds == PUT)
    at = np.flatnonzero(is_clear)
    following = np.searchsorted(at, np.arange(len(by_key)), side="right")
    has_next = following < len(at)
    after = at[np.minimum(following, len(at) - 1)]
    chosen = has_next & (keys[after] == keys) & (kinds != REMOVE) & (kinds != DELETE)
    return by_key[chosen], by_key[after[chosen]]


# -- records -----------------------------------------------------------------------------------------------------------


def with_records(snapshot: Snapshot, changes: Changes, new: Segment, now: int) -> Segment:
    """A segment with the sets of a snapshot, after changes of one set each, and the records of its keys.

    The record of a key went with the last of its sets, also where that has expired by now.
    """
    old = [(segment, segment.records) for segment in snapshot.segments if segment.records is not None]
    if not old and changes.asked is None:
        return new
    numbers = np.unique(new.keys.keys.values)
    keys = keys_at(new.keys.names, numbers)
    places, tables, rows = np.full(len(numbers), -1), list[pa.Table](), 0
    replaced = np.zeros(len(numbers), np.bool_)
    if changes.owners is not None:
        put, table = _put(changes)
        own, _ = _places_among(numbers, new, changes, changes.owners != 0)
        replaced[own] = True
        if table is not None:
            own, which = _places_among(numbers, new, changes, put)
            places[own] = which
            tables.append(table)
            rows = len(table)
    for segment, records in old:
        wanted = np.flatnonzero(~replaced & (places < 0))
        of_segment = numbers_of(segment.keys, some_keys(keys, wanted))
        found = records.places_of(of_segment)
        wanted, found = wanted[found >= 0], found[found >= 0]
        sets = found_in(segment, some_keys(keys, wanted))
        lasts = sets.wanted if segment.keys.expires is None else sets.wanted[segment.keys.expires[sets.pairs] > now]
        has_sets = np.unique(lasts)
        places[wanted[has_sets]] = rows + found[has_sets]
        tables.append(records.columns)
        rows += len(records)
    have = np.flatnonzero(places >= 0)
    if not len(have):
        return new
    taken = end_to_end(tables).take(pa.array(places[have])).combine_chunks()
    return replace(new, records=RecordTable(numbers[have], _encoded_anew(taken)))


def records_put(empty: Segment, changes: Changes) -> tuple[Keys, pa.Table | None]:
    """The keys put by changes of an index without sets, and their records; `None` without such keys."""
    changes = resolved(Snapshot((empty,)), changes, lambda _, given: given)
    put, table = _put(changes)
    return _keys_of(changes, changes.keys[put]), table


def records_at(segment: Segment, keys: Keys, tables: list[pa.Table]) -> RecordTable | None:
    """Records of keys, those of the keys that a segment has; the records are in several tables, in order."""
    numbers = np.unique(segment.keys.keys.values)
    own = numbers_of(segment.keys, keys)
    places = np.flatnonzero(np.isin(own, numbers))
    if not len(places):
        return None
    places = places[np.argsort(own[places])]
    taken = end_to_end(tables).take(pa.array(places)).combine_chunks()
    return RecordTable(own[places].astype(numbers.dtype), _encoded_anew(taken))


def _places_among(numbers: U64Array, new: Segment, changes: Changes, chosen: BoolArray) -> tuple[I64Array, I64Array]:
    """Of those keys of chosen changes that a segment has, the place among these, and which of the chosen it is.

    The last of a key counts.
    """
    keys = changes.keys[chosen]
    own = numbers_of(new.keys, _keys_of(changes, keys)).astype(np.int64 if len(changes.names) else np.uint64)
    places = np.searchsorted(numbers, own.astype(numbers.dtype) if len(numbers) else own)
    places[places == len(numbers)] = 0
    is_there = (numbers[places] == own) if len(numbers) else np.zeros(len(own), np.bool_)
    return places[is_there], np.flatnonzero(is_there)


def _put(changes: Changes) -> tuple[BoolArray, pa.Table | None]:
    """Which changes put a key with a record, and the records of these, in order."""
    if changes.records is None or changes.asked is None:
        return np.zeros(len(changes), np.bool_), None
    chosen = changes.records >= 0
    table = changes.asked.take(pa.array(changes.records[chosen]))
    sets = _numbers_of_sets(changes)
    return chosen, table.add_column(len(AS_GIVEN), "sets", pa.array(sets[chosen], pa.uint64()))


def _numbers_of_sets(changes: Changes) -> U64Array:
    """Of each change that puts a key, a number made of the sets that it is put into; of others, 0."""
    assert changes.owners is not None
    of_rows = number_of_sets(hash_strings(changes.tags)[changes.rows.values], changes.rows.offsets)
    put = np.flatnonzero(changes.owners < 0)
    put = put[np.lexsort((of_rows[put], changes.owners[put]))]
    same = (changes.owners[put][1:] == changes.owners[put][:-1]) & (of_rows[put][1:] == of_rows[put][:-1])
    put = put[np.append(True, ~same)] if len(put) else put
    sums = np.zeros(int(-changes.owners.min(initial=0)) + 1, np.uint64)
    np.add.at(sums, -changes.owners[put], of_rows[put])
    return np.where(changes.owners < 0, sums[np.maximum(-changes.owners, 0)], np.uint64(0))


def number_of_sets(hashes: U64Array, offsets: I64Array) -> U64Array:
    """A number made of the hashes of the tags of each set; those of several sets are added."""
    sums = np.append(np.uint64(0), np.cumsum(hashes, dtype=np.uint64))
    own = sums[offsets[1:]] - sums[offsets[:-1]]
    mixed: U64Array = (own ^ (own >> np.uint64(33))) * _MIX + np.uint64(1)
    return mixed ^ (mixed >> np.uint64(29))


def number_of_set(hashes: Iterable[int]) -> int:
    """The same of one set."""
    own = sum(hashes) & _ALL_BITS
    mixed = ((own ^ (own >> 33)) * int(_MIX) + 1) & _ALL_BITS
    return mixed ^ (mixed >> 29)


def number_of_rows(rows: Iterable[Iterable[str]]) -> int:
    """The number that a record has of the sets that its key was put into, each tag once."""
    return sum(number_of_set(xxhash.xxh64_intdigest(tag.encode()) for tag in tags) for tags in rows) & _ALL_BITS


def _encoded_anew(table: pa.Table) -> pa.Table:
    """A table whose dictionaries have no strings that are not used."""
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            column = table.column(place).cast(field.type.value_type).combine_chunks().dictionary_encode()
            table = table.set_column(place, field, column)
    return table
