"""The records of keys, read from the segments of a snapshot."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.contents import tags_of_rows, take_lists
from tagmatch.model.arrays import Strings
from tagmatch.model.arrow import from_strings, plain_array, to_strings
from tagmatch.model.asked import DATA
from tagmatch.model.data_types import Schema, Value, no_value, some_columns, value_reader
from tagmatch.model.directory import Keys, found_in, keys_at, listed, numbers_of, some_keys
from tagmatch.model.errors import IndexCorruptError
from tagmatch.model.records import Alternative, Record, plain_record
from tagmatch.model.tables import NEVER, Segment, Snapshot
from tagmatch.model.where.constraints import AREA_TAGS, Constraint, Where
from tagmatch.model.where.declared import decimals_of
from tagmatch.model.where.types import EPOCH
from tagmatch.model.where.values import RESERVED, is_reserved
from tagmatch.partitioner.replacing import number_of_rows

_AT_ONCE = 1 << 12
# So many of a segment's tags are kept as Python has them
_TAGS_KEPT = 1 << 14


#: The tags of a stored set that a key has, and when the key expires there; a plain tuple, which is made sooner
_Stored: TypeAlias = tuple[list[str], int]


def records_of(snapshot: Snapshot, keys: Keys) -> list[Record[Any] | None]:
    """The records of some keys, each given once, in order; `None` for a key without sets."""
    stored: dict[int, list[_Stored]] = defaultdict(list)
    put: dict[int, tuple[_AsGiven, dict[str, Any]]] = {}
    for segment in snapshot.segments:
        found = found_in(segment, keys)
        if not len(found.rows):
            continue
        times, wanted = segment.keys.expires, found.wanted.tolist()
        expires = [NEVER] * len(wanted) if times is None else times[found.pairs].tolist()
        for place, tags, time in zip(wanted, tags_of_rows(segment, found.rows), expires, strict=True):
            stored[place].append((tags, time))
        if segment.records is not None:
            places = segment.records.places_of(numbers_of(segment.keys, keys)).tolist()
            columns = segment.records.columns
            for place in set(wanted):
                if places[place] >= 0:
                    (row,) = columns.slice(places[place], 1).to_pylist()
                    given = _AsGiven(*(row.pop(name) for name in _AsGiven._fields))
                    data = {name.removeprefix(DATA): value for name, value in row.items() if value is not None}
                    put[place] = given, data
    named = listed(keys)
    decimals = decimals_of(snapshot.segments[0].options.attributes)
    return [
        _record(key, stored[place], put.get(place), decimals) if place in stored else None
        for place, key in enumerate(named)
    ]


class _AsGiven(NamedTuple):
    """The part of a record as it was given for a subscription; without `where`, all except `sets` are `None`."""

    tags: list[str] | None
    where: str | None
    area: str | None  # a tag
    sets: int  # the number of the sets that were put


_NOTHING_GIVEN = _AsGiven(None, None, None, 0)


class _Tags(dict[int, str]):
    """Tags of a segment by their ranks, as Python has them: few are in most sets.

    A cache that knows which was asked for last would touch three more for each.
    """

    def __init__(self, tags: Strings) -> None:
        super().__init__()
        self._ends, self._text = tags.offsets.data, tags.data.data

    def __missing__(self, rank: int) -> str:
        if len(self) >= _TAGS_KEPT:
            self.clear()
        tag = self[rank] = str(self._text[self._ends[rank] : self._ends[rank + 1]], "utf-8")
        return tag


class Reader:
    """Reads the records of single keys from a segment, in a small part of the time of `records_of`.

    For a few bytes, calls of NumPy and Arrow take much longer than reading them.
    """

    def __init__(self, segment: Segment) -> None:
        table, tags, deletions = segment.keys, segment.vocabulary.tags, segment.deletions
        directory = table.directory
        self.decimals = decimals_of(segment.options.attributes)
        self._keys, self._places = directory.keys.data, directory.places.data
        self._offsets, self._more = table.keys.offsets.data, len(table.keys.values) - len(segment)
        self._deleted = None if deletions is None else deletions.bits.data
        self._times = None if table.expires is None else table.expires.data
        self._ends, self._ranks = segment.tagsets.ranks.offsets.data, segment.tagsets.ranks.values.data
        self._tag = _Tags(tags).__getitem__
        self._names = None if table.names is None else (table.names.offsets.data, table.names.data.data)
        self._numbers, self._data = None, list[tuple[str, Value]]()
        self._tags_given: Value = no_value
        if segment.records is not None:
            self._numbers, columns = segment.records.keys.data, segment.records.columns
            values = {name: value_reader(plain_array(columns.column(name))) for name in columns.column_names}
            self._tags_given, *self._given = (values.pop(name) for name in _AsGiven._fields)
            self._data = [(name.removeprefix(DATA), value) for name, value in values.items() if value is not no_value]

    def read(self, asked: int | str, found: list[_Stored]) -> tuple[_AsGiven, dict[str, Any]] | None:
        """Append the stored sets of a key to those that are found; what it was put with, if it has a set here."""
        key = asked if isinstance(asked, int) else self._number_of(asked.encode())
        keys, deleted, ends, has_some = self._keys, self._deleted, self._ends, False
        count = len(keys)
        first = key - keys[0] if count else 0  # of numbers without gaps, that have a set each
        if not 0 <= first < count or keys[first] != key or keys[first - 1] == key:
            first = bisect_left(keys, key)
        at = first
        while at < count and keys[at] == key:
            row = place = self._places[at]
            at += 1
            if self._more:  # each row has a key
                row = bisect_right(self._offsets, place, place - self._more if place > self._more else 0) - 1
            if deleted is None or not deleted[row >> 3] >> (row & 7) & 1:
                has_some = True
                tags = [*map(self._tag, self._ranks[ends[row] : ends[row + 1]])]
                found.append((tags, NEVER if self._times is None else self._times[place]))
        if not has_some or self._numbers is None:
            return None
        numbers, row = self._numbers, first
        if row >= len(numbers) or numbers[row] != key:  # not every key has one set and a record
            row = bisect_left(numbers, key)
            if row == len(numbers) or numbers[row] != key:
                return None
        own_tags, data = self._tags_given(row), {}
        given = _NOTHING_GIVEN if own_tags is None else _AsGiven(own_tags, *(value(row) for value in self._given))
        for name, value in self._data:  # a comprehension is one more call
            if (own := value(row)) is not None:
                data[name] = own
        return given, data

    def _number_of(self, name: bytes) -> int:
        """The number of a key that is a string; -1 if it has none."""
        assert self._names is not None
        ends, text = self._names
        found = bisect_left(range(len(ends) - 1), name, key=lambda at: bytes(text[ends[at] : ends[at + 1]]))
        return found if found < len(ends) - 1 and text[ends[found] : ends[found + 1]] == name else -1


def record_of(readers: Sequence[Reader], key: int | str) -> Record[Any] | None:
    """The record of one key, from the segments of a snapshot."""
    stored: list[_Stored] = []  # `list[_Stored]()` takes a tenth of the time of all this
    put = None
    for reader in readers:
        put = reader.read(key, stored) or put
    return _record(key, stored, put, readers[0].decimals) if stored else None


def data_beside(snapshot: Snapshot, keys: pa.Array, names: Sequence[str], schema: Schema) -> pa.StructArray:
    """Structs of keys, as `key`, and of columns of data; InvalidValueError for an unknown column."""
    types = some_columns(names, schema)
    encoded = keys.dictionary_encode()
    different: Keys = to_strings(encoded.dictionary) if _are_texts(keys) else encoded.dictionary.to_numpy()
    places, tables, rows = np.full(len(encoded.dictionary), -1), list[pa.Table](), 0
    for segment in snapshot.segments:
        if segment.records is None:
            continue
        of_records = segment.records.places_of(numbers_of(segment.keys, different))
        wanted = np.flatnonzero((of_records >= 0) & (places < 0))
        wanted = wanted[np.unique(found_in(segment, some_keys(different, wanted)).wanted)]
        places[wanted] = rows + of_records[wanted]
        there = segment.records.columns
        tables.append(there.select([name for name in there.column_names if name.removeprefix(DATA) in names]))
        rows += len(there)
    table = pa.concat_tables(tables, promote_options="default") if tables else pa.table({})
    at = pa.array(places, mask=places < 0).take(encoded.indices)
    fields, columns = [pa.field("key", keys.type)], [keys]
    for name, kind in types.items():
        is_there = f"{DATA}{name}" in table.column_names
        column = table.column(f"{DATA}{name}").take(at) if is_there else pa.nulls(len(keys), kind)
        fields.append(pa.field(name, kind))
        columns.append(plain_array(column))
    return pa.StructArray.from_arrays(columns, fields=fields)


def _are_texts(keys: pa.Array) -> bool:
    return bool(pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type))


def _record(
    key: Any, stored: list[_Stored], put: tuple[_AsGiven, dict[str, Any]] | None, decimals: frozenset[str]
) -> Record[Any]:
    given, data = put or (_NOTHING_GIVEN, {})
    if given.tags is not None and _are_as_put(stored, given):
        area = None if given.area is None else Constraint.of_tag(given.area).area
        return Record(key, (Alternative(frozenset(given.tags), given.where, area, _time(stored[0][1])),), data)
    if len(stored) == 1:
        tags, expires = stored[0]
        if RESERVED not in "".join(tags):
            return plain_record(key, frozenset(tags), None if expires == NEVER else _time(expires), data)
        return Record(key, (_alternative(tags, expires, decimals),), data)
    every = [_alternative(*each, decimals) for each in stored]
    every.sort(key=lambda each: (sorted(each.tags), each.where or "", str(each.area)))
    return Record(key, tuple(every), data)


def _are_as_put(stored: list[_Stored], given: _AsGiven) -> bool:
    """Whether the sets of a key are those that were put, which expire at one time."""
    return len({time for _, time in stored}) == 1 and number_of_rows(tags for tags, _ in stored) == given.sets


def _alternative(tags: list[str], expires: int, decimals: frozenset[str]) -> Alternative:
    """A stored set as one would put it."""
    if RESERVED not in "".join(tags) or not any(map(is_reserved, tags)):
        return Alternative(frozenset(tags), None, None, _time(expires))
    plain = [tag for tag in tags if not is_reserved(tag)]
    conditions = [tag for tag in tags if is_reserved(tag)]
    areas, area = [tag for tag in conditions if tag.startswith(AREA_TAGS[0])], None
    if len(areas) == 1:
        conditions.remove(areas[0])
        area = Constraint.of_tag(areas[0]).area
    where = " and ".join(sorted(Where.of_tag(tag, decimals) for tag in conditions)) or None
    return Alternative(frozenset(plain), where, area, _time(expires))


def _time(expires: int) -> datetime | None:
    try:
        return None if expires == NEVER else EPOCH + timedelta(microseconds=expires)
    except OverflowError:
        raise IndexCorruptError(f"a key expires {expires} µs after 1970, which is beyond the year 9999") from None


def have_sets(snapshot: Snapshot, keys: Keys) -> bool:
    """Whether each of some keys has a set."""
    found = [found_in(segment, keys).wanted for segment in snapshot.segments]
    return len(np.unique(np.concatenate(found))) == len(keys)


def every_key(snapshot: Snapshot) -> Iterator[Keys]:
    """All keys that have sets, each once, some at a time."""
    for place, segment in enumerate(snapshot.segments):
        every, first = segment.keys.directory.keys, 0
        while first < len(every):
            last = min(first + _AT_ONCE, len(every))
            while last < len(every) and every[last] == every[last - 1]:  # the sets of a key together
                last += 1
            keys = keys_at(segment.keys.names, np.unique(every[first:last]))
            keys = some_keys(keys, np.unique(found_in(segment, keys).wanted))
            for earlier in snapshot.segments[:place]:
                there = np.unique(found_in(earlier, keys).wanted)
                keys = some_keys(keys, np.setdiff1d(np.arange(len(keys)), there))
            if len(keys):
                yield keys
            first = last


def every_record(snapshot: Snapshot) -> Iterator[Record[Any]]:
    """The records of all keys."""
    for keys in every_key(snapshot):
        for record in records_of(snapshot, keys):
            assert record is not None
            yield record


def records_after(
    snapshot: Snapshot,
    after: int | str | None,
    at_once: int,
    *,
    tag: str | None = None,
    at_least: str | None = None,
) -> Iterator[Record[Any]]:
    """The records of keys behind one, or of all, in the order of keys; of texts, that of their bytes in UTF-8.

    With a tag, those of keys that have a stored set with it, or had one; no key is less than `at_least`.
    """
    has_more = True
    every_of = [
        segment.keys.directory.keys if tag is None else _keys_with(segment, tag) for segment in snapshot.segments
    ]
    while has_more:
        found: set[Any] = set()
        ends: list[int | str] = []  # up to which keys of each segment are there that has more
        for segment, every in zip(snapshot.segments, every_of, strict=True):
            names = segment.keys.names
            first = 0 if after is None else _place_behind(every, names, after)
            if at_least is not None:
                first = max(first, _place_behind(every, names, at_least, or_at=True))
            last = min(first + at_once, len(every))
            while first < last < len(every) and every[last] == every[last - 1]:
                last += 1
            some = listed(keys_at(names, np.unique(every[first:last])))
            found.update(some)
            if last < len(every):
                ends.append(some[-1])
        has_more = bool(ends)
        end = min(ends, key=_in_order, default=None)
        keys = sorted((key for key in found if end is None or _in_order(key) <= _in_order(end)), key=_in_order)
        if keys:
            after, at_once = keys[-1], min(2 * at_once, _AT_ONCE)
            asked = (
                to_strings(pa.array(keys, pa.large_string())) if isinstance(after, str) else np.array(keys, np.uint64)
            )
            yield from (record for record in records_of(snapshot, asked) if record is not None)


def _in_order(key: Any) -> Any:
    return key.encode() if isinstance(key, str) else key


def _keys_with(segment: Segment, tag: str) -> Any:
    """The keys of stored sets with a tag, as the directory has them, ascending."""
    ranks = segment.tagsets.ranks
    rank = pc.index(from_strings(segment.vocabulary.tags), pa.scalar(tag, pa.large_string())).as_py()
    if rank < 0:
        return segment.keys.directory.keys[:0]
    places = np.flatnonzero(ranks.values == rank).astype(ranks.offsets.dtype)
    rows = np.searchsorted(ranks.offsets, places, side="right") - 1
    return np.unique(take_lists(segment.keys.keys, rows).values.to_numpy())


def _place_behind(keys: Any, names: Strings | None, after: int | str, *, or_at: bool = False) -> int:
    """Where the keys begin that are greater, or with `or_at` equal."""
    if isinstance(after, int):
        return int(np.searchsorted(keys, np.uint64(after), side="right"))
    assert names is not None
    ends, text, name = names.offsets, names.data, after.encode()
    find = bisect_left if or_at else bisect_right
    number = find(range(len(ends) - 1), name, key=lambda at: bytes(text[ends[at] : ends[at + 1]]))
    return int(np.searchsorted(keys, number))


def listed_keys(snapshot: Snapshot) -> Iterator[Any]:
    """All keys, each once."""
    for keys in every_key(snapshot):
        yield from listed(keys)
