"""Keys whose conditions an older version stored in another form than today, and the changes that store them anew."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import BoolArray, I64Array, Lists, Strings, TagLists, U8Array, U64Array, offsets_of
from tagmatch.model.arrow import from_tag_lists, plain_array
from tagmatch.model.asked import AS_GIVEN, NOTHING_ASKED, AskedRows, end_to_end
from tagmatch.model.change_counts import ADD, PUT, REMOVE
from tagmatch.model.columns import KEY_CHECKS, rows_of_tags
from tagmatch.model.errors import TagMatchError
from tagmatch.model.input.putting import kinds_of_put
from tagmatch.model.input.subscriptions import alternatives
from tagmatch.model.kernels.hashing import hash_strings
from tagmatch.model.kernels.lists import gather
from tagmatch.model.kernels.tag_table import constraints_among
from tagmatch.model.tables import NEVER, RecordTable, Segment, Snapshot
from tagmatch.model.where.constraints import NO_TAG, PARTS, Constraint
from tagmatch.model.where.declared import Declared
from tagmatch.model.where.values import is_reserved
from tagmatch.partitioner.normal_form import Tags, in_normal_form, products, were_read_so
from tagmatch.partitioner.replacing import number_of_rows, number_of_sets

# Most records that are Python objects at once
_AT_ONCE = 1 << 12
# Numbers that a double may not have as they are written
_LONG = r"[0-9.]{16}|[0-9.][eE][+-]?[0-9]{3}"


@dataclass(frozen=True, slots=True)
class Upgraded:
    """What happened to an index.

    Attributes
    ----------
    number : int
        Of its snapshot.
    sets_before, sets : int
        Stored sets, before and now.
    rewritten : int
        Keys whose conditions are stored in another form than before.
    """

    number: int
    sets_before: int
    sets: int
    rewritten: int


class Rewriting(NamedTuple):
    """Changes after which sets have the conditions of today: columns with an entry for each key of a set."""

    rows: TagLists
    keys: U64Array | Strings
    kinds: U8Array  # what each does
    expires: I64Array
    records: AskedRows
    rewritten: int  # how many keys have other sets then


class _Changes(NamedTuple):
    """What is changed, row by row; keys that are put come first."""

    rows: list[list[str]]
    keys: list[Any]
    kinds: list[int]
    expires: list[int]
    records: list[int]  # of each row that of its key's record in all tables together, else -1
    tables: list[pa.Table]  # of records

    def append(self, key: Any, tags: list[str], kind: int, expires: int, record: int = -1) -> None:
        self.rows.append(tags)
        self.keys.append(key)
        self.kinds.append(kind)
        self.expires.append(expires)
        self.records.append(record)


class _Pairs(NamedTuple):
    """Keys of sets with conditions, and of all sets of keys that were put with the text of a condition: columns."""

    keys: U64Array  # the key, or the hash of its name
    plain: U64Array  # a number made of the plain tags
    sets: U64Array  # a number made of all tags
    put: U64Array  # a number made of the sets that the key was put into with a text, else 0
    has_conditions: BoolArray
    may_differ: BoolArray  # whether conditions of the set, or the text, may be stored otherwise today
    expires: I64Array
    segments: I64Array
    rows: I64Array
    places: I64Array  # in the values of the key table
    records: I64Array  # the record of the key in the segment, or -1

    def some(self, chosen: BoolArray) -> _Pairs:
        columns: Any = (column[chosen] for column in self)
        return _Pairs(*columns)


def rewriting(snapshot: Snapshot, declared: Declared, *, plane: bool) -> Rewriting | None:
    """The sets to rewrite; `None` if all have the form of today.

    A key that was put gets what its text becomes today. Of other keys, sets with the same plain tags are alternatives.
    """
    found = [_pairs(number, segment, declared) for number, segment in enumerate(snapshot.segments)]
    pairs = _Pairs(*map(np.concatenate, zip(*found, strict=True)))
    are_put, changes = _are_as_put(pairs), _Changes([], [], [], [], [], [])
    _put_again(snapshot, pairs.some(are_put), declared, changes, plane=plane)
    _store_again(snapshot, pairs.some(~are_put & pairs.has_conditions), changes)
    if not changes.rows:
        return None
    return Rewriting(
        rows_of_tags(changes.rows),
        KEY_CHECKS[snapshot.key_type].many(changes.keys, "keys"),
        np.array(changes.kinds, np.uint8),
        np.array(changes.expires),
        AskedRows(np.array(changes.records), end_to_end(changes.tables)) if changes.tables else NOTHING_ASKED,
        len(set(changes.keys)),
    )


# -- keys that were put ------------------------------------------------------------------------------------------------


def _are_as_put(pairs: _Pairs) -> BoolArray:
    """Whether the key was put with a text, its sets are those that it was put into, and they expire at one time."""
    _, firsts, of_key = np.unique(pairs.keys, return_index=True, return_inverse=True)
    sums = np.zeros(len(firsts), np.uint64)
    np.add.at(sums, of_key, pairs.sets)
    others = (pairs.put == 0) | (sums[of_key] != pairs.put) | (pairs.expires != pairs.expires[firsts][of_key])
    are_put = np.ones(len(firsts), np.bool_)
    are_put[of_key[others]] = False
    return are_put[of_key]


def _put_again(snapshot: Snapshot, pairs: _Pairs, declared: Declared, changes: _Changes, *, plane: bool) -> None:
    """Put keys as their records say, if that is stored otherwise today."""
    _, firsts, of_key, counts = np.unique(pairs.keys, return_index=True, return_inverse=True, return_counts=True)
    may_differ = counts > 1
    may_differ[of_key[pairs.may_differ]] = True
    again: list[tuple[int, str, list[list[str]]]] = []
    for own, records in _records_of(snapshot, pairs, firsts[may_differ]):
        given = (each for batch in records.select(AS_GIVEN.names).to_batches(_AT_ONCE) for each in batch.to_pylist())
        for pair, record in zip(own.tolist(), given, strict=True):
            area = None if record["area"] is None else Constraint.of_tag(record["area"]).area
            with suppress(TagMatchError):  # what cannot be read today stays
                rows = alternatives(record["tags"], record["where"], area, plane=plane, declared=declared)
                if number_of_rows(map(frozenset, rows)) != pairs.put[pair]:
                    again.append((pair, record["where"], rows))
    found = [pair for pair, *_ in again]
    stored = _stored(snapshot, pairs, np.flatnonzero(np.isin(of_key, of_key[found])))
    put: list[int] = []
    for pair, text, rows in again:
        [key] = _listed(snapshot.segments[pairs.segments[pair]], pairs.places[[pair]])
        if were_read_so(stored[key], text, declared):
            for tags, kind in zip(rows, kinds_of_put(len(rows)).tolist(), strict=True):
                changes.append(key, tags, kind, int(pairs.expires[pair]), len(put) if kind == PUT else -1)
            put.append(pair)
    if put:
        changes.tables.extend(own for _, own in _records_of(snapshot, pairs, np.array(put)))


def _records_of(snapshot: Snapshot, pairs: _Pairs, chosen: I64Array) -> Iterator[tuple[I64Array, pa.Table]]:
    """Some pairs, those of a segment together, and as what their keys were put."""
    for number, segment in enumerate(snapshot.segments):
        own = chosen[pairs.segments[chosen] == number]
        if segment.records is not None and len(own):
            yield own, segment.records.columns.drop_columns("sets").take(pa.array(pairs.records[own]))


# -- other keys --------------------------------------------------------------------------------------------------------


def _store_again(snapshot: Snapshot, pairs: _Pairs, changes: _Changes) -> None:
    """Store sets of a key whose conditions are alternatives as one, as far as there is a form for all of them."""
    order = np.lexsort((pairs.plain, pairs.keys))
    keys, plain = pairs.keys[order], pairs.plain[order]
    begins = np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]) | (plain[1:] != plain[:-1]))[: len(order)])
    counts = np.diff(np.append(begins, len(order)))
    may_differ = np.add.reduceat(pairs.may_differ[order].astype(np.int64), begins) > 0 if len(begins) else False
    chosen = np.sort(order[np.repeat((counts > 1) | may_differ, counts)])
    for key, stored in _stored(snapshot, pairs, chosen).items():
        by_time: dict[int, set[Tags]] = defaultdict(set)
        for tags, expires in stored.items():
            by_time[expires].add(tags)
        for expires, own in by_time.items():
            new = _in_form_of_today(own, expires, stored)
            for kind, some in ((REMOVE, own - new), (ADD, new - own)):
                for tags in sorted(some, key=sorted):
                    changes.append(key, sorted(tags), kind, NEVER if kind == REMOVE else expires)


def _in_form_of_today(sets: set[Tags], expires: int, stored: dict[Tags, int]) -> set[Tags]:
    """The sets of a key that expire at one time, of those that are `stored`."""
    known = {_plain(tags) for tags in stored}

    def may_stay(made: set[Tags]) -> bool:
        """Whether none of these sets may be stored for the key until another time."""
        return all(
            stored.get(tags, expires) == expires and (expires == NEVER or tags > _plain(tags) in known) for tags in made
        )

    for own, made in products(sets):
        if may_stay(made):
            sets = sets - own | made
    by_plain: dict[Tags, set[Tags]] = defaultdict(set)
    for tags in sets:
        by_plain[_plain(tags)].add(tags)
    found = set[Tags]()
    for plain, own in by_plain.items():
        made = own if plain in own else {plain | each for each in in_normal_form({tags - plain for tags in own})}
        found |= made if may_stay(made) else own
    return found


def _plain(tags: Tags) -> Tags:
    return frozenset(tag for tag in tags if not is_reserved(tag))


# -- what there is -----------------------------------------------------------------------------------------------------


def _stored(snapshot: Snapshot, pairs: _Pairs, chosen: I64Array) -> dict[Any, dict[Tags, int]]:
    """The keys of some pairs; of each its sets, and when it expires there."""
    found: dict[Any, dict[Tags, int]] = defaultdict(dict)
    for number, segment in enumerate(snapshot.segments):
        own = chosen[pairs.segments[chosen] == number]
        sets = from_tag_lists(segment.sets(pairs.rows[own].astype(np.uint32))).to_pylist()
        for key, tags, time in zip(_listed(segment, pairs.places[own]), sets, pairs.expires[own].tolist(), strict=True):
            found[key][frozenset(tags)] = time
    return found


def _listed(segment: Segment, places: I64Array) -> list[Any]:
    return segment.keys.listed(segment.keys.keys.values[places])


def _pairs(number: int, segment: Segment, declared: Declared) -> _Pairs:
    tags, table, records = segment.vocabulary.tags, segment.keys, segment.records
    is_condition = constraints_among(tags)
    rows = segment.live_rows(0, len(segment))
    ranks = gather(segment.tagsets.ranks, rows.astype(np.uint32))
    has_conditions = np.diff(offsets_of(is_condition[ranks.values])[ranks.offsets]) > 0
    if records is None:
        rows, has_conditions = rows[has_conditions], has_conditions[has_conditions]
        ranks = gather(segment.tagsets.ranks, rows.astype(np.uint32))
    # Seeds of segments differ, if old versions wrote them
    hashes = hash_strings(tags)
    plain = np.where(is_condition, np.uint64(0), hashes)
    plain, sets = (number_of_sets(each[ranks.values], ranks.offsets) for each in (plain, hashes))
    may_differ = _may_shrink(segment, ranks, is_condition)
    lengths = table.keys.lengths()[rows]
    of_row = np.repeat(np.arange(len(rows)), lengths)
    firsts = table.keys.offsets[rows].astype(np.int64) - offsets_of(lengths)[:-1]
    places = firsts[of_row] + np.arange(len(of_row))
    values = table.keys.values[places]
    at = np.full(len(values), -1) if records is None else records.places_of(values)
    put, is_long = _texts_of(records, declared)
    pairs = _Pairs(
        values.astype(np.uint64) if table.names is None else hash_strings(table.names)[values],
        plain[of_row],
        sets[of_row],
        put[at],
        has_conditions[of_row],
        may_differ[of_row] | is_long[at],
        np.full(len(places), NEVER) if table.expires is None else table.expires[places],
        np.full(len(places), number),
        rows[of_row],
        places,
        at,
    )
    return pairs.some(pairs.has_conditions | (pairs.put != 0))


def _texts_of(records: RecordTable | None, declared: Declared) -> tuple[U64Array, BoolArray]:
    """Of each record with a text, a number made of its sets, else 0; and whether a double may shorten a decimal there.

    The last entries are those of keys without a record.
    """
    put, is_long = np.zeros(1, np.uint64), np.zeros(1, np.bool_)
    if records is not None:
        texts, sets = (plain_array(records.columns.column(name)) for name in ("where", "sets"))
        own = pc.if_else(texts.is_valid(), sets, pa.scalar(0, sets.type)).to_numpy(zero_copy_only=False)
        put = np.concatenate([own, put])
        long = pc.match_substring_regex(texts, _LONG).fill_null(fill_value=False).to_numpy(zero_copy_only=False)
        is_long = np.concatenate([long & bool(declared.decimals), is_long])
    return put, is_long


def _may_shrink(segment: Segment, ranks: Lists, is_condition: BoolArray) -> BoolArray:
    """Whether two conditions of each row are about the same attribute, or one has parts, or rules others out alone."""
    attributes: dict[str, int] = {}
    about, is_enough = np.full(len(is_condition), -1), np.zeros(len(is_condition), np.bool_)
    numbers = np.flatnonzero(is_condition).astype(np.uint32)
    vocabulary = TagLists(np.array([0, len(numbers)]), segment.vocabulary.tags, numbers)
    for rank, tag in zip(numbers.tolist(), from_tag_lists(vocabulary).to_pylist()[0], strict=True):
        about[rank] = attributes.setdefault(tag[2:].partition("\0")[0], len(attributes))
        is_enough[rank] = tag[2] in (PARTS, NO_TAG) or tag.endswith("\0")
    own, of_row = about[ranks.values], np.repeat(np.arange(len(ranks)), ranks.lengths())
    order = np.lexsort((own, of_row))
    same = (own[order][1:] == own[order][:-1]) & (of_row[order][1:] == of_row[order][:-1]) & (own[order][1:] >= 0)
    found = np.zeros(len(ranks), np.bool_)
    found[of_row[order][1:][same]] = True
    found[of_row[is_enough[ranks.values]]] = True
    return found
