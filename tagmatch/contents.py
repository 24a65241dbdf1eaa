"""What a snapshot holds, with tags as strings: in Arrow columns, a batch at a time, or set by set.

Batches are small even of large segments: one has many tags or bytes only if a single set has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import I64Array, Lists, Strings, TagLists, U64Array, UIntArray
from tagmatch.model.arrow import from_lists, from_strings, from_tag_lists, plain_array, to_strings
from tagmatch.model.asked import DATA, data_of
from tagmatch.model.clock import TIME
from tagmatch.model.data_types import Schema, with_columns
from tagmatch.model.directory import found_in
from tagmatch.model.errors import ResultTooLargeError
from tagmatch.model.input.subscriptions import COLUMNS
from tagmatch.model.kernels.tag_table import has_reserved, reserved_among
from tagmatch.model.tables import NEVER, Rows, Segment, Snapshot
from tagmatch.model.where.constraints import Where
from tagmatch.model.where.declared import decimals_of
from tagmatch.model.where.values import is_reserved

#: Most rows of a batch of columns, and most sets that are Python objects at once
_BATCH_ROWS, _SETS_AT_ONCE = 1 << 16, 1 << 12
#: Most tags, bytes of tags, and keys of a batch with more than one row
_BATCH_TAGS, _BATCH_BYTES, _BATCH_KEYS = 1 << 20, 1 << 24, 1 << 20

#: The type of the tags of sets
TAGS = pa.list_(pa.string())

#: With keys that are integers or strings
StoredSet = tuple[frozenset[str], tuple[Any, ...]]
#: Of rows of a segment, how messages get to them; `None` for those without conditions
Paths: TypeAlias = Callable[[Rows], Sequence[str | None]]


def schema_of_data(snapshot: Snapshot) -> dict[str, pa.DataType]:
    """The columns of data that keys of a snapshot have, by their names, as each segment has its order."""
    found: dict[str, pa.DataType] = {}
    for segment in snapshot.segments:
        if segment.records is not None:
            found = with_columns(found, data_of(segment.records.columns), "another segment")
    return dict(sorted(found.items()))


def schema_of(snapshot: Snapshot) -> pa.Schema:
    """The columns of `pairs`: `tags`, lists of strings; `key`, uint64 or large strings; and those that some rows need.

    These are `where`, the text of the set's conditions or null, and `expires`. Columns of data come last.
    """
    keys = ("key", snapshot.segments[0].keys.column(np.zeros(0, np.uint32)).type)
    where = [("where", pa.string())] if any(map(_has_conditions, snapshot.segments)) else []
    expires = [("expires", TIME)] if any(map(_has_times, snapshot.segments)) else []
    return pa.schema([("tags", TAGS), keys, *where, *expires, *schema_of_data(snapshot).items()])


def _has_conditions(segment: Segment) -> bool:
    """Whether a set that is not deleted has a condition."""
    tags, ranks = segment.vocabulary.tags, segment.tagsets.ranks
    if segment.deletions is None or not has_reserved(tags):
        return has_reserved(tags)
    places = np.flatnonzero(reserved_among(tags)[ranks.values])
    rows = np.searchsorted(ranks.offsets, places.astype(ranks.offsets.dtype), side="right") - 1
    return len(segment.deletions.among(rows)) < len(rows)


def _has_times(segment: Segment) -> bool:
    """Whether a key of a set that is not deleted expires."""
    expires = segment.keys.expires
    if expires is None or segment.deletions is None:
        return expires is not None
    offsets, deleted = segment.keys.keys.offsets, segment.deletions.rows()
    times = np.concatenate([np.zeros(1, np.int64), np.cumsum(expires != NEVER)])
    return bool(times[-1] > (times[offsets[deleted + 1]] - times[offsets[deleted]]).sum())


def pairs(snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
    """Batches with a row for each stored set and each of its keys, in the order of the tagset tables."""
    schema = schema_of(snapshot)
    for segment in snapshot.segments:
        yield from pairs_of(segment, schema, 0, len(segment))


def pairs_of(segment: Segment, schema: pa.Schema, first_row: int, last_row: int) -> Iterator[pa.RecordBatch]:
    """Batches as `pairs` has them, of the columns of `schema` only, of some rows of a segment's tagset table."""
    keys, names, has_conditions = segment.keys.keys, set(schema.names), _has_conditions(segment)
    first_key, last_key = int(keys.offsets[first_row]), int(keys.offsets[last_row])
    data = {field.name: field.type for field in schema if field.name not in COLUMNS}
    for first in range(first_key, last_key, _BATCH_ROWS):
        # Of the offsets' own type, else each search in them would convert them all
        numbers = np.arange(first, min(first + _BATCH_ROWS, last_key), dtype=keys.offsets.dtype)
        if segment.deletions is not None:
            numbers = np.delete(numbers, segment.deletions.among(_lists_of(keys, numbers)))
        for some in _parts(numbers, lambda some: _has_few_tags(segment, _lists_of(keys, some))):
            columns: dict[str, pa.Array] = {}
            if "key" in names:
                columns["key"] = segment.keys.column(keys.values[some])
            if "expires" in names:
                expires = segment.keys.expires
                times = np.full(len(some), NEVER) if expires is None else expires[some]
                columns["expires"] = pa.array(times, pa.int64(), mask=times == NEVER).cast(TIME)
            if not names.isdisjoint(("tags", "where")):
                columns["tags"], columns["where"] = _tags_and_where(
                    segment, _lists_of(keys, some), has_conditions=has_conditions
                )
            if data:
                columns |= _data_at(segment, keys.values[some], data)
            yield pa.record_batch([columns[name] for name in schema.names], schema=schema)


def _data_at(segment: Segment, keys: UIntArray, kinds: Schema) -> dict[str, pa.Array]:
    """Columns of data of keys that have a set in this segment, which has their records then."""
    if segment.records is None:
        return {name: pa.nulls(len(keys), kind) for name, kind in kinds.items()}
    places, table = segment.records.places_of(keys), segment.records.columns
    at, there = pa.array(places, mask=places < 0), data_of(table)
    return {
        name: plain_array(table.column(f"{DATA}{name}").take(at)) if name in there else pa.nulls(len(keys), kind)
        for name, kind in kinds.items()
    }


def _tags_and_where(segment: Segment, rows: Rows, *, has_conditions: bool) -> tuple[pa.ListArray, pa.Array]:
    """The plain tags of sets, and their conditions as one expression each, null for none."""
    tags, tests = tags_and_tests(segment, rows, has_conditions=has_conditions)
    if tests is None:
        return tags, pa.nulls(len(rows), pa.string())
    has_tests = pc.greater(pc.list_value_length(tests), 0)
    return tags, pc.if_else(has_tests, pc.binary_join(tests, " and "), pa.scalar(None, pa.string()))


def tags_and_tests(segment: Segment, rows: Rows, *, has_conditions: bool) -> tuple[pa.ListArray, pa.ListArray | None]:
    """The plain tags of sets, and their conditions as expressions; `None` if none of them has any."""
    try:
        tags = _tags(segment, rows).cast(TAGS)
        return _separated(tags, _decimals_of(segment)) if has_conditions else (tags, None)
    except pa.ArrowInvalid:
        raise ResultTooLargeError(
            f"stored set {rows[0]} has tags of 2**31 bytes or more, which one Arrow array of strings cannot hold; "
            "iterate over the sets instead"
        ) from None


def _decimals_of(segment: Segment) -> frozenset[str]:
    return decimals_of(segment.options.attributes)


def _separated(tags: pa.ListArray, decimals: frozenset[str]) -> tuple[pa.ListArray, pa.ListArray | None]:
    values = tags.flatten()
    reserved = pa.array(reserved_among(to_strings(values)))
    if not pc.any(reserved).as_py():
        return tags, None
    encoded = values.filter(reserved).dictionary_encode()
    texts = pa.array([Where.of_tag(tag, decimals) for tag in encoded.dictionary.to_pylist()], pa.string())
    before = np.append(0, np.cumsum(reserved.to_numpy(zero_copy_only=False)))
    offsets = tags.offsets.to_numpy() - tags.offsets[0].as_py()
    ends = before[offsets].astype(np.int32)
    plain = pa.ListArray.from_arrays(pa.array((offsets - ends).astype(np.int32)), values.filter(pc.invert(reserved)))
    return plain, pa.ListArray.from_arrays(pa.array(ends), texts.take(encoded.indices))


def every_set(snapshot: Snapshot) -> Iterator[StoredSet]:
    """Tags and keys, ascending, of each stored set, in the order of the tagset tables."""
    for segment in snapshot.segments:
        for first in range(0, len(segment), _SETS_AT_ONCE):
            yield from _sets_at(segment, segment.live_rows(first, min(first + _SETS_AT_ONCE, len(segment))))


def explained(snapshot: Snapshot, ids: Rows, paths: Sequence[Paths]) -> Iterator[StoredSet]:
    """The stored sets with these ids; conditions say how these were reached, as `paths` tells of rows of a segment."""
    first = 0
    for segment, paths_of in zip(snapshot.segments, paths, strict=True):
        rows = ids[(ids >= first) & (ids < first + len(segment))] - first
        first += len(segment)
        for (tags, keys), path in zip(_sets_at(segment, rows), paths_of(rows), strict=True):
            yield frozenset(Where(tag, path) if isinstance(tag, Where) else tag for tag in tags), keys


def sets_with(snapshot: Snapshot, keys: U64Array | Strings) -> Iterator[frozenset[str]]:
    """The tags of each stored set that has one of some keys."""
    for segment in snapshot.segments:
        yield from (tags for tags, _ in _sets_at(segment, np.unique(found_in(segment, keys).rows)))


def _sets_at(segment: Segment, rows: Rows) -> Iterator[StoredSet]:
    keys = segment.keys.keys
    for some in _parts(rows, lambda rows: _total(keys, rows) <= _BATCH_KEYS and _has_few_tags(segment, rows)):
        numbers = take_lists(keys, some)
        named = _with_values(numbers, segment.keys.column(numbers.values.to_numpy()))
        tags = _tags(segment, some)
        rows_of_tags = tags.to_pylist()
        if has_reserved(to_strings(tags.flatten())):
            where = partial(Where.of_tag, decimals=_decimals_of(segment))
            rows_of_tags = [[where(tag) if is_reserved(tag) else tag for tag in row] for row in rows_of_tags]
        yield from zip(map(frozenset, rows_of_tags), map(tuple, named.to_pylist()), strict=True)


def missing_text(chunks: list[TagLists], keys: U64Array | Strings, gone: I64Array, decimals: frozenset[str]) -> str:
    """The text of an error about rows that are not stored; it names the first. `decimals` are as in `Where.of_tag`."""
    place = first = int(gone[0])
    for chunk in chunks:
        if place < len(chunk):
            break
        place -= len(chunk)
    (row,) = from_tag_lists(replace(chunk, offsets=chunk.offsets[place : place + 2])).to_pylist()
    stored = str(sorted({tag for tag in row if not is_reserved(tag)}))
    if conditions := sorted({Where.of_tag(tag, decimals) for tag in row if is_reserved(tag)}):
        stored += f" where {' and '.join(conditions)}"
    key = from_strings(keys)[first].as_py() if isinstance(keys, Strings) else int(keys[first])
    others = f", nor are {len(gone) - 1} more of the rows to remove" if len(gone) > 1 else ""
    return (
        f"key {key!r:.80} is not stored with the set {stored:.300}{others}: nothing is removed; give tags "
        'and conditions as they were added, or the option missing as "ignore"'
    )


def absent_text(keys: U64Array | Strings, gone: I64Array) -> str:
    """The text of an error about keys that have no sets; it names the first."""
    first = int(gone[0])
    key = from_strings(keys)[first].as_py() if isinstance(keys, Strings) else int(keys[first])
    others = f", nor do {len(gone) - 1} more of these" if len(gone) > 1 else ""
    return f'key {key!r:.80} has no sets{others}: nothing is deleted; leave it out, or give missing as "ignore"'


def tags_of_rows(segment: Segment, rows: Rows) -> list[list[str]]:
    """The tags of few rows."""
    return _tags(segment, rows).to_pylist()  # type: ignore[no-any-return]


def _tags(segment: Segment, rows: Rows) -> pa.Array:
    ranks = take_lists(segment.tagsets.ranks, rows)
    return _with_values(ranks, from_strings(segment.vocabulary.tags).take(ranks.values))


def _parts(rows: Rows, is_small: Callable[[Rows], bool]) -> Iterator[Rows]:
    """The rows, in parts that are small or a single row."""
    if len(rows) <= 1 or is_small(rows):
        yield rows
    else:
        for half in np.array_split(rows, 2):
            yield from _parts(half, is_small)


def _has_few_tags(segment: Segment, rows: Rows) -> bool:
    ranks, offsets = segment.tagsets.ranks, segment.vocabulary.tags.offsets
    if _total(ranks, rows) > _BATCH_TAGS:
        return False
    tags = take_lists(ranks, rows).values.to_numpy()
    return int((offsets[tags + 1] - offsets[tags]).sum(dtype=np.int64)) <= _BATCH_BYTES


def _total(lists: Lists, rows: Rows) -> int:
    """How many values these lists have."""
    return int((lists.offsets[rows + 1] - lists.offsets[rows]).sum(dtype=np.int64))


def _lists_of(lists: Lists, values: Rows) -> Rows:
    """The lists that have the values with these numbers."""
    return np.searchsorted(lists.offsets, values, side="right") - 1


def take_lists(lists: Lists, rows: Rows) -> pa.Array:
    """Some of the lists, as Arrow has them."""
    return from_lists(lists).take(pa.array(rows))


def _with_values(lists: pa.Array, values: pa.Array) -> pa.Array:
    """Lists of the same lengths with other values."""
    return type(lists).from_arrays(lists.offsets, values)
