"""Messages as matchers take them, with attributes in columns of Arrow, a column for each or maps from names to values.

Only the attributes that some stored condition names are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import F64Array, I64Array, Memo, Strings, TagLists, offsets_of
from tagmatch.model.arrow import as_table, from_tag_lists, is_text, plain_strings, reject_no_utf8, rows_of, to_strings
from tagmatch.model.columns import repeated, rows_of_tags, tag_lists
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.input.places import NO_OUTLINES, Further, Locations, locations_in, without_locations
from tagmatch.model.input.typed import PARSED, TypedTexts, parsed
from tagmatch.model.input.values import (
    NO_BYTES,
    NO_PLACES,
    VALUES,
    Column,
    as_doubles,
    check_column_of_times,
    check_values,
    elements,
    is_list,
    is_packed,
    is_sound,
    packed_numbers,
    packed_rows,
    typed_numbers,
    unpacked,
    value_column,
)
from tagmatch.model.kernels.lists import gather_strings
from tagmatch.model.kernels.outlines import Outlines
from tagmatch.model.names import MESSAGE_COLUMNS, check_names
from tagmatch.model.where.comparisons import NOW
from tagmatch.model.where.values import RESERVED, check_name

#: The columns of a message's tags, of its attributes by their names, and of what it is called
TAGS, ATTRIBUTES, ID = "tags", "attributes", "id"

_NO_STRINGS = Strings(np.zeros(1, np.int64), NO_BYTES)
_NO_COLUMNS = pa.RecordBatch.from_arrays([], names=[])
# Most tables have columns of the same names
_check_column_name = lru_cache(1 << 14)(check_name)


class MapColumn(NamedTuple):
    """The entries of all maps of a column."""

    names: Strings  # the name of each value
    column: Column


@dataclass(frozen=True, slots=True, eq=False)
class AttributeColumns:
    """Attributes of messages, a row of the batch for each message."""

    batch: pa.RecordBatch
    numbers: Sequence[int]  # those of its columns that are an attribute each, as `attributes_in` lets them pass
    names: Sequence[str]  # theirs
    maps: Sequence[int]  # numbers of columns of maps from names to values
    packed: Strings | None = None  # those that came as bytes (see `packed` of `tagmatch.model.input.values`)
    memo: Memo = field(default_factory=Memo, repr=False)  # results that were computed from the columns

    def part(self, first: int, last: int) -> AttributeColumns:
        """Those of messages `first` to `last`."""
        packed = None if self.packed is None else Strings(self.packed.offsets[first : last + 1], self.packed.data)
        return AttributeColumns(self.batch.slice(first, last - first), self.numbers, self.names, self.maps, packed)

    def column(self, number: int) -> Column | None:
        """An attribute, which is read once; `None` if it has no value at all."""
        return self.memo.of(number, lambda: value_column(*_flat_values(self.batch.column(number))))

    def map_column(self, number: int, first_row: int = 0) -> MapColumn | None:
        """The same of a column of maps; errors (see `map_column`) count rows from `first_row`."""
        given, name = self.batch.column(number), self.batch.schema.names[number]
        return self.memo.of(number, lambda: map_column(name, given, first_row))


@dataclass(frozen=True, slots=True, eq=False)
class Messages(TagLists):
    """Tags of messages, and what they have besides, row by row."""

    attributes: AttributeColumns | None = None  # Only matchers of sets with constraints look at them
    locations: Locations | None = None  # Only matchers of sets with areas look at them

    @classmethod
    def of(cls, tags: TagLists, attributes: AttributeColumns | None, locations: Locations | None) -> TagLists:
        """Messages with these tags, attributes and locations."""
        if attributes is None and locations is None:
            return TagLists(tags.offsets, tags.tags, tags.indices, tags.memo)
        return cls(tags.offsets, tags.tags, tags.indices, tags.memo, attributes, locations)


class Message(NamedTuple):
    """One message that goes into a packet with others."""

    tags: list[str]
    attributes: bytes = b""  # See `packed`
    place: bytes = b""  # See `packed_place`


def rows_of_messages(messages: Sequence[Message]) -> TagLists:
    """Messages that have come one by one."""
    rows = rows_of_tags([each.tags for each in messages])
    attributes, locations, packed = None, None, [each.attributes for each in messages]
    if any(packed):
        offsets = offsets_of(np.array(list(map(len, packed))))
        strings = Strings(offsets, np.frombuffer(b"".join(packed), np.uint8))
        attributes = AttributeColumns(_NO_COLUMNS, (), (), (), strings)
    if any(each.place for each in messages):
        locations = locations_in(each.place for each in messages)
    return Messages.of(rows, attributes, locations)


def with_own_tags(rows: TagLists, first: int, last: int) -> tuple[TagLists, int, int]:
    """Messages `first` to `last`; of a dictionary, which is looked up as a whole, only the strings that they have."""
    if rows.indices is None:
        return rows, first, last
    offsets, count = rows.offsets[first : last + 1], last - first
    used, indices = np.unique(rows.indices[offsets[0] : offsets[-1]], return_inverse=True)
    used = used[used < len(rows.tags)]  # indices beyond the dictionary stay beyond it
    own = TagLists(offsets - offsets[0], gather_strings(rows.tags, used), indices.astype(np.uint32))
    return _with_part(own, rows, first, last), 0, count


def part_of(rows: TagLists, first: int, last: int) -> TagLists:
    """Messages `first` to `last`."""
    return _with_part(TagLists(rows.offsets[first : last + 1], rows.tags, rows.indices), rows, first, last)


def _with_part(tags: TagLists, rows: TagLists, first: int, last: int) -> TagLists:
    attributes = None if rows.attributes is None else rows.attributes.part(first, last)
    return Messages.of(tags, attributes, None if rows.locations is None else rows.locations.part(first, last))


def attributes_in(batch: pa.RecordBatch, first_row: int) -> AttributeColumns | None:
    """The columns of a batch as attributes; InvalidTypeError and InvalidValueError name the column and the row.

    A column of maps has attributes by name, and one of bytes packed ones; each other one is an attribute.
    """
    if not batch.num_columns:
        return None
    names, kinds, numbers, maps, packed = batch.schema.names, batch.schema.types, [], [], None
    for number, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        if pa.types.is_map(kind):
            maps.append(number)
            continue
        if name == ATTRIBUTES and is_packed(kind):
            packed = packed_rows(batch.column(number), f"column {name!r}", first_row)
            continue
        numbers.append(number)
        _check_column_name(name)
        if name == NOW:
            check_column_of_times(kind, f"column {name!r}")
        if not is_sound(kind):
            given = batch.column(number)
            column = _of_json(given, f"column {name!r}", first_row)
            if column is not given:
                batch = batch.set_column(number, name, column)
            _check_values(f"column {name!r}", column.type, column, first_row.__add__)
    found = AttributeColumns(batch, numbers, [names[number] for number in numbers], maps, packed)
    for number in maps:
        found.map_column(number, first_row)
    return found


def _of_json(given: pa.Array, label: str, first_row: int) -> pa.Array:
    """The values that a column writes as JSON does, in structs such as `{"version": "1.10.0"}`; other columns as is."""
    values, lists = _flat_values(given)
    if not (pa.types.is_struct(values.type) and values.type.num_fields == 1):
        return given
    field, (texts,) = values.type.field(0), values.flatten()
    if field.name not in PARSED or not is_text(field.type):
        return given
    reject_no_utf8(texts, label, first_row, len(given))
    found = parsed(texts, field.name, lambda place: f"{label}: row {first_row + _row_of_place(place, lists)}")
    return pa.LargeListArray.from_arrays(lists, found) if is_list(given.type) else found


def _check_values(label: str, kind: pa.DataType, given: pa.Array, row_at: Callable[[int], int]) -> None:
    """See that values, or lists of them, of a column of this type are such as attributes have.

    `row_at` gives the number, in messages, of the row of a value, or of a list of values.
    """
    values, lists = _flat_values(given)
    check_values(
        values,
        lambda place: f"{label}: row {row_at(_row_of_place(place, lists))}",
        f"{label} is of {kind}, but attributes are {VALUES}, or lists of these: cast it, or leave it out",
    )


def _flat_values(given: pa.Array) -> tuple[pa.Array, I64Array]:
    """All values, and where those of each list begin, if there are lists."""
    if not is_list(given.type):
        return given, NO_PLACES
    lists, flat = elements(given)
    return flat, lists


def _row_of_place(place: int, rows: I64Array) -> int:
    """The row, or the list, of a value; `rows` is empty where that has the same number."""
    return int(np.searchsorted(rows, place, side="right")) - 1 if len(rows) else place


def entries_of(maps: pa.MapArray) -> tuple[I64Array, pa.Array, pa.Array]:
    """Where the entries of each row begin, and the names and the values of all."""
    kind = maps.type
    lists = maps.cast(pa.list_(pa.struct([pa.field("name", kind.key_type), pa.field("value", kind.item_type)])))
    rows, entries = elements(lists)
    return rows, *entries.flatten()


def map_column(name: str, maps: pa.MapArray, first_row: int = 0) -> MapColumn | None:
    """The entries of all maps of a column; `None` if they have no value at all.

    InvalidTypeError and InvalidValueError name the column and the row, counted from `first_row`.
    """
    label, kind = f"column {name!r}", maps.type
    rows, names, entries = entries_of(maps)
    names = plain_strings(names, f"{label} is of {kind}, but the names of attributes are strings: cast them")

    def row_at(entry: int) -> int:
        return first_row + _row_of_place(entry, rows)

    _check_names(label, names, row_at)
    if pc.index(names, NOW).as_py() >= 0:
        check_column_of_times(kind.item_type, f"{label}: {NOW}")
    if not is_sound(kind.item_type):
        _check_values(label, kind, entries, row_at)
    values, values_of = _flat_values(entries)
    if len(values_of):
        names, rows = names.take(pa.array(np.repeat(np.arange(len(names)), np.diff(values_of)))), values_of[rows]
    column = value_column(values, rows)
    return None if column is None else MapColumn(to_strings(names), column)


def _check_names(label: str, names: pa.Array, row_at: Callable[[int], int]) -> None:
    """See that all are names that attributes can have."""
    bad = pc.or_(pc.equal(pc.binary_length(names), 0), pc.match_substring(names, RESERVED))
    if pc.any(bad).as_py():
        at = pc.index(bad, True).as_py()
        try:
            check_name(names[at].as_py())
        except InvalidValueError as error:
            raise InvalidValueError(f"{label}: row {row_at(at)}: {error}") from None


def names_of(rows: TagLists) -> Sequence[str]:
    """The attributes that are a column each."""
    return () if rows.attributes is None else rows.attributes.names


def may_have(rows: TagLists, name: str) -> bool:
    """Whether a message may have an attribute, as far as columns tell."""
    given = rows.attributes
    return given is not None and (name in given.names or bool(given.maps) or given.packed is not None)


# Messages whose attributes are looked at for their names
_LOOKED_AT = 100


def attributes_alone(chunks: Sequence[TagLists]) -> list[str]:
    """The names of attributes, if no message has tags or places, and attributes are no maps; else nothing."""
    names: dict[str, None] = {}
    for rows in chunks:
        given = rows.attributes
        if rows.offsets[-1] > rows.offsets[0] or rows.locations is not None or given is None or given.maps:
            return []
        names |= dict.fromkeys(given.names)
        if given.packed is not None:
            ends, data = given.packed.offsets[: _LOOKED_AT + 1].tolist(), given.packed.data
            names |= {name: None for begin, end in pairwise(ends) for name in unpacked(data[begin:end].tobytes())}
    return [*names]


def attribute_numbers(rows: TagLists, first: int, last: int, name: str) -> F64Array:
    """The number that is an attribute of each of some messages, the greatest of several; NaN without one.

    InvalidTypeError if the column of the attribute has none.
    """
    found, given = np.full(last - first, np.nan), rows.attributes
    if given is None:
        return found
    for number, own_name in zip(given.numbers, given.names, strict=True):
        if own_name != name:
            continue
        column = given.batch.column(number).slice(first, last - first)
        numbers, owners = _numbers_of(column)
        if numbers is None:
            raise InvalidTypeError(f"score: attribute {name!r} of messages is of {column.type}, and not a number")
        np.fmax.at(found, owners, numbers)
    for number in given.maps:
        offsets, names, values = entries_of(given.batch.column(number).slice(first, last - first))
        chosen = pc.indices_nonzero(pc.equal(names, name).fill_null(False))
        numbers, places = _numbers_of(values.take(chosen))
        if numbers is not None:
            owners = np.repeat(np.arange(len(found)), np.diff(offsets))[chosen.to_numpy()]
            np.fmax.at(found, owners[places], numbers)
    if given.packed is not None:
        own = Strings(given.packed.offsets[first : last + 1], given.packed.data)
        found = np.fmax(found, packed_numbers(own, name))
    return found


def _numbers_of(column: pa.Array) -> tuple[F64Array | None, I64Array]:
    """Numbers of rows, or of lists in these, and the row of each; `None` for values of another type."""
    values, lists = _flat_values(column)
    owners = np.repeat(np.arange(len(column)), np.diff(lists)) if len(lists) else np.arange(len(column))
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_null(values.type):
        return np.full(len(values), np.nan), owners
    if isinstance(values.type, TypedTexts):  # as they are declared
        return typed_numbers(values), owners
    return as_doubles(values) if _is_number(values.type) else None, owners


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


# -- at the door -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Queries:
    """Many messages, checked once and made what matchers take; `TagMatch.match_many` takes them as they are."""

    chunks: Sequence[TagLists]

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    @property
    def lack_tags(self) -> bool:
        """Whether they are of a table without a column of tags."""
        return all(rows.tags is _NO_STRINGS for rows in self.chunks)

    @property
    def have_areas(self) -> bool:
        """Whether one is for clients within an area."""
        return any(rows.locations is not None and rows.locations.kinds.any() for rows in self.chunks)


def queries_of(given: Any, *, plane: bool) -> Queries:
    """The messages that a caller of `Index.match_many` gives: a table, rows of tags, or `Queries`."""
    if isinstance(given, Queries):
        return given
    table = as_table(given)
    rows = tag_lists(given, "queries") if table is None else queries_in(table, plane=plane)
    return Queries(rows)


def queries_in(table: pa.Table | pa.RecordBatch, *, plane: bool, first_row: int = 0) -> list[TagLists]:
    """The rows of a table, as `Index.match_many` takes it, as messages; a chunk for each batch.

    Errors (InvalidTypeError, InvalidValueError, NullError) name the row, counted from `first_row`, and the column.

    >>> table = pa.table({"id": [7], "tags": [["fr"]], "attributes": [{"new": True}]})
    >>> [rows] = queries_in(table, plane=False)
    >>> len(rows), rows.attributes.names
    (1, ['new'])
    """
    names = table.schema.names
    if names == [TAGS]:
        return tag_lists(table.column(TAGS), f"column {TAGS!r}", first_row=first_row)
    check_names(names, MESSAGE_COLUMNS)
    _refuse_repeated(names)
    if isinstance(table, pa.RecordBatch):
        batches = [table]
    else:  # of an empty table, too, the columns are looked at
        nothing = [pa.nulls(0, kind) for kind in table.schema.types]
        batches = table.to_batches() or [pa.RecordBatch.from_arrays(nothing, schema=table.schema)]
    others, places, row = [], [], first_row
    for batch in batches:
        other, place = without_locations(batch, plane=plane, first_row=row)
        others.append(with_own_columns(other))
        places.append(place)
        row += len(batch)
    return messages_in(others, places, first_row=first_row)


def messages_in(
    batches: Sequence[pa.RecordBatch], places: Sequence[Locations | None] = (), *, first_row: int = 0
) -> list[TagLists]:
    """The rows of batches with columns `tags`, which may be missing, and those of attributes, as messages.

    >>> [rows] = messages_in([pa.record_batch({"tags": [["fr"]], "new": [True]})])
    >>> len(rows), bytes(rows.tags.data), rows.attributes.names
    (1, b'fr', ['new'])
    """
    names = batches[0].schema.names
    _refuse_repeated(names)
    if TAGS in names:
        # Together, as chunks often share a dictionary
        tags = [batch.column(TAGS) for batch in batches]
        parts = rows_of(tags, f"column {TAGS!r}", first_row, stored=False)
        batches = [batch.drop_columns([TAGS]) for batch in batches]
    else:
        parts = [TagLists(np.zeros(len(batch) + 1, np.int64), _NO_STRINGS) for batch in batches]
    found = []
    for batch, rows, place in zip_longest(batches, parts, places):
        found.append(Messages.of(rows, attributes_in(batch, first_row), place))
        first_row += len(batch)
    return found


def _refuse_repeated(names: Sequence[str]) -> None:
    """See that each column is there once."""
    if len(set(names)) < len(names) and (twice := repeated(names)):
        raise InvalidValueError(f"there must be one column {twice[0]!r}, not {twice[1]}; lists have several values")


def with_own_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with a column for each field of its column `attributes`, and without `id`.

    InvalidTypeError or InvalidValueError if `attributes` is neither a struct nor a map, or a field has a column's name.
    """
    schema = batch.schema
    if ID in schema.names:
        batch = batch.drop_columns([ID])
    if ATTRIBUTES not in schema.names:
        return batch
    given = batch.column(ATTRIBUTES)
    kind = given.type
    if pa.types.is_map(kind) or is_packed(kind):
        return batch
    batch = batch.drop_columns([ATTRIBUTES])
    if pa.types.is_null(kind):
        return batch
    if not pa.types.is_struct(kind):
        raise InvalidTypeError(
            f"column {ATTRIBUTES!r} must be a struct with a field for each attribute, or a map, not {kind}"
        )
    names, columns = [field.name for field in kind], batch.schema.names
    if taken := {TAGS, *columns}.intersection(names):
        name = next(name for name in names if name in taken)
        raise InvalidValueError(f"column {ATTRIBUTES!r} must have no field {name[:60]!r}, as a column is called so")
    return pa.RecordBatch.from_arrays([*batch.columns, *given.flatten()], names=[*columns, *names])


def joined(chunks: Sequence[TagLists]) -> TagLists:
    """The rows of several chunks of one schema as one chunk, as each chunk costs some fixed work.

    >>> few = [queries_in(pa.table({"tags": [["fr"]], "new": [new]}), plane=False)[0] for new in (True, False)]
    >>> rows = joined(few)
    >>> len(rows), rows.attributes.batch["new"].to_pylist()
    (2, [True, False])
    """
    if len(chunks) == 1:
        return chunks[0]
    rows = _joined_tags(chunks)
    attributes = None
    if chunks[0].attributes is not None:
        attributes = attributes_in(pa.concat_batches([each.attributes.batch for each in chunks]), 0)
    places = [each.locations for each in chunks if each.locations is not None]
    return Messages.of(rows, attributes, _joined_places(places) if places else None)


def _joined_tags(chunks: Sequence[TagLists]) -> TagLists:
    if any(each.indices is not None for each in chunks):
        [rows] = tag_lists(pa.concat_arrays([from_tag_lists(each) for each in chunks]), TAGS)
        return rows
    offsets = [each.tags.offsets[each.offsets[0] : each.offsets[-1] + 1] for each in chunks]
    data = np.concatenate([each.tags.data[ends[0] : ends[-1]] for each, ends in zip(chunks, offsets, strict=True)])
    tags = Strings(offsets_of(np.concatenate([np.diff(ends) for ends in offsets])), data)
    return TagLists(offsets_of(np.concatenate([np.diff(each.offsets) for each in chunks])), tags)


def _joined_places(parts: list[Locations]) -> Locations:
    if any(len(each.kinds) for each in parts):  # else no message is for an area
        parts = [
            each
            if len(each.kinds)
            else replace(each, kinds=np.zeros(len(each), np.uint8), values=np.zeros((len(each), 4)))
            for each in parts
        ]
    lon, lat, kinds, values = (
        np.concatenate([getattr(each, name) for each in parts]) for name in ("lon", "lat", "kinds", "values")
    )
    outlines = NO_OUTLINES
    if any(len(each.outlines.numbers) for each in parts):
        begins = offsets_of(np.array([len(each.outlines.numbers) for each in parts]))
        places = [
            begin + (each.outlines.places if len(each.outlines.places) else np.zeros(len(each), np.int64))
            for begin, each in zip(begins[:-1], parts, strict=True)
        ]
        outlines = Outlines(np.concatenate(places), np.concatenate([each.outlines.numbers for each in parts]))
    if not any(len(each.further.lon) for each in parts):
        return Locations(lon, lat, kinds, values, outlines)
    lengths = np.concatenate([each.further.lengths(len(each)) for each in parts])
    others = (np.concatenate([getattr(each.further, name) for each in parts]) for name in ("lon", "lat"))
    return Locations(lon, lat, kinds, values, outlines, Further.of(lengths, *others))
