"""Messages as matchers take them: tags, attributes and places, of one message or of the rows of a table."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import BoolArray, F64Array, Strings, TagLists, frozen, offsets_of
from tagmatch.model.arrow import from_tag_lists
from tagmatch.model.arrow_input import as_table
from tagmatch.model.columns import repeated, shown, tag_list, tag_lists
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, NullError
from tagmatch.model.input.attributes import AttributeColumns, Messages, check_columns, map_column, rows_of_columns
from tagmatch.model.input.conditions import shapes_in
from tagmatch.model.input.places import Locations
from tagmatch.model.input.values import NO_BYTES, TAG, Column, places
from tagmatch.model.kernels.sphere import BOX, CIRCLE, areas_have
from tagmatch.model.names import MESSAGE_COLUMNS, check_names
from tagmatch.model.where.areas import MAX_LAT, MAX_LON, Box, out_of_range
from tagmatch.model.where.values import attribute_tags

LOCATION, WITHIN = "location", "within"
_NAMES = {True: ("x", "y"), False: ("lon", "lat")}


def coordinates(lon: Any, lat: Any, count: int, *, plane: bool) -> tuple[F64Array, F64Array]:
    """Where `count` clients are to be; NaN in both, or a null of Arrow, is nowhere."""
    columns = []
    for name, given in zip(_NAMES[plane], (lon, lat), strict=True):
        values = np.asarray(_plain(given, name), np.float64)
        if values.ndim == 0:
            values = np.full(count, values)
        if values.shape != (count,):
            raise InvalidValueError(f"{name} must have a number for each of the {count} clients, not {values.shape}")
        wrong = np.isinf(values)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InvalidValueError(f"row {row}: {name} must be finite, not {float(values[row])!r}")
        columns.append(values + 0.0)
    if not plane:
        _reject_out_of_range(columns[0], columns[1], "row", 0)
    half = np.isnan(columns[0]) != np.isnan(columns[1])
    if half.any():
        raise InvalidValueError(f"{' and '.join(_NAMES[plane])}: row {int(np.argmax(half))} has only one of both")
    return columns[0], columns[1]


def area_has(area: Any, lon: F64Array, lat: F64Array, *, plane: bool) -> BoolArray:
    """Whether a circle or a box has each of some places."""
    kinds = np.full(len(lon), BOX if isinstance(area, Box) else CIRCLE, np.uint8)
    numbers = (*astuple(area), 0.0)[:4]
    return areas_have(kinds, np.tile(numbers, (len(lon), 1)), lon, lat, plane=plane)


def _plain(given: Any, name: str) -> Any:
    """Numbers as NumPy takes them, NaN for nulls."""
    values = given if isinstance(given, pa.Array | pa.ChunkedArray) else np.asarray(np.nan if given is None else given)
    if isinstance(values, np.ndarray) and values.dtype == object and values.ndim == 1:
        with contextlib.suppress(pa.ArrowException, OverflowError):  # some may be `None`
            values = pa.array(given)
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "iuf":
            raise InvalidTypeError(f"{name} must be numbers, not {shown(given)}")
        return values
    kind = values.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise InvalidTypeError(f"{name} must be numbers, not {kind if values is given else shown(given)}")
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return values.cast(pa.float64()).to_numpy(zero_copy_only=False)


def locations_of_table(table: pa.Table | pa.RecordBatch, *, plane: bool, first_row: int = 0) -> list[Locations] | None:
    """Where the messages of each batch of a table are; `None` if no column says it.

    A column `location` or `within` that is no struct and no list is an attribute of that name.
    """
    if not any(is_place_column(table.schema, name) for name in (LOCATION, WITHIN)):
        return None
    batches, found = [table] if isinstance(table, pa.RecordBatch) else table.to_batches(), []
    for batch in batches:
        lon = lat = np.full(len(batch), np.nan)
        if is_place_column(batch.schema, LOCATION):
            lon, lat = places_in(batch.column(LOCATION), f"column {LOCATION!r}", plane=plane, first_row=first_row)
        kinds, values = np.zeros(0, np.uint8), np.zeros((0, 4))
        if is_place_column(batch.schema, WITHIN):
            kinds, values = shapes_in(batch.column(WITHIN), f"column {WITHIN!r}", plane=plane, first_row=first_row)
        found.append(Locations(lon, lat, kinds, values))
        first_row += len(batch)
    return found


def without_locations(table: pa.Table | pa.RecordBatch) -> pa.Table | pa.RecordBatch:
    """The table without the columns that `locations_of_table` reads."""
    return table.drop_columns([name for name in (LOCATION, WITHIN) if is_place_column(table.schema, name)])


def names_of_places(*, plane: bool) -> tuple[str, str]:
    """What both numbers of a place are called."""
    return _NAMES[plane]


def is_place_column(schema: pa.Schema, name: str) -> bool:
    """Whether there is a column of this name that says where messages are."""
    place = schema.get_field_index(name)
    return place >= 0 and (pa.types.is_struct(schema.types[place]) or _is_list(schema.types[place]))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def places_in(column: pa.Array, name: str, *, plane: bool, first_row: int) -> tuple[F64Array, F64Array]:
    """Places of rows, NaN where there are none; messages of errors begin with `name`."""
    names, places = _NAMES[plane], np.full((2, len(column)), np.nan)
    lon, lat = places
    if pa.types.is_null(column.type):
        return lon, lat
    there = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_struct(column.type):
        fields = [column.type.field(i).name for i in range(column.type.num_fields)]
        if sorted(fields) != sorted(names):
            raise InvalidTypeError(f"{name} must have the fields {' and '.join(names)}, not {fields}")
        parts = [column.field(field).filter(there) for field in names]
        numbers = np.stack(
            [_numbers(part, f"{name}: {field}") for part, field in zip(parts, names, strict=True)], axis=1
        )
    else:
        wrong = there & (pc.list_value_length(column).fill_null(2).to_numpy() != 2)
        if wrong.any():
            raise InvalidValueError(
                f"{name}: row {first_row + int(np.argmax(wrong))} must have two numbers, {' and '.join(names)}"
            )
        parts = [pc.list_flatten(column)]
        numbers = _numbers(parts[0], f"{name}: {names[0]}").reshape(-1, 2)
    if not np.isfinite(numbers).all():
        at, field = divmod(int(np.argmax(~np.isfinite(numbers))), 2)
        row, number = first_row + int(np.flatnonzero(there)[at]), numbers[at, field]
        is_null = not (parts[field][at] if len(parts) == 2 else parts[0][2 * at + field]).is_valid
        if is_null:
            raise NullError(f"{name}: row {row} has no {names[field]}")
        raise InvalidValueError(f"{name}: row {row}: {names[field]} must be finite, not {number}")
    places[:, there] = numbers.T
    if not plane:
        _reject_out_of_range(lon, lat, f"{name}: row", first_row)
    return lon, lat


def _numbers(values: pa.Array, name: str) -> F64Array:
    """Numbers as float64, NaN for nulls."""
    kind = values.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise InvalidTypeError(f"{name} must be numbers, not {kind}")
    numbers: F64Array = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return numbers


def _reject_out_of_range(lon: F64Array, lat: F64Array, label: str, first_row: int) -> None:
    """Raise `InvalidValueError` for the first place, of those that are not NaN, that is not on the sphere."""
    wrong = (np.abs(lon) > MAX_LON) | (np.abs(lat) > MAX_LAT)
    if wrong.any():
        row = int(np.argmax(wrong))
        numbers = {"lon": float(lon[row]), "lat": float(lat[row])}
        name, other = ("lon", "lat") if abs(numbers["lon"]) > MAX_LON else ("lat", "lon")
        problem = out_of_range(name, numbers[name], other, numbers[other])
        raise InvalidValueError(f"{label} {first_row + row}: {problem}")


#: The columns of a message's tags, of its attributes by their names, and of what it is called
TAGS, ATTRIBUTES, ID = "tags", "attributes", "id"

_NO_STRINGS = Strings(np.zeros(1, np.int64), NO_BYTES)


@dataclass(frozen=True, slots=True, eq=False)
class Queries:
    """Many messages, checked once and made what matchers take; `TagMatch.match_many` takes them as they are."""

    chunks: Sequence[TagLists]

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    @property
    def have_areas(self) -> bool:
        """Whether one is for clients within an area."""
        return any(rows.locations is not None and rows.locations.kinds.any() for rows in self.chunks)


def queries_of(given: Any, *, plane: bool, threads: int = 1) -> Queries:
    """The messages that a caller of `Index.match_many` gives: a table, rows of tags, or `Queries`."""
    if isinstance(given, Queries):
        return given
    table = as_table(given)
    rows = tag_lists(given, "queries") if table is None else queries_in(table, plane=plane, threads=threads)
    return Queries(rows)


def message(tags: object, attributes: object) -> list[str]:
    r"""The tags of one message, and those that stand for its attributes; InvalidTypeError, InvalidValueError.

    >>> message(["fr"], {"new": True})
    ['fr', '\x00=new\x00b1']
    """
    if not isinstance(attributes, Mapping):
        raise InvalidTypeError(f"attributes must be a mapping from names to values, not {shown(attributes)}")
    return [*tag_list(tags), *attribute_tags(attributes)]


def queries_in(
    table: pa.Table | pa.RecordBatch, *, plane: bool, first_row: int = 0, threads: int = 1
) -> list[TagLists]:
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
    places = None
    if len(set(names)) == len(names):  # else `messages_in` says which there is twice
        places = locations_of_table(table, plane=plane, first_row=first_row)
        table = with_own_columns(without_locations(table))
    chunks = messages_in(table, first_row=first_row, threads=threads)
    if places is None:
        return chunks
    return [Messages.of(rows, rows.attributes, each) for rows, each in zip(chunks, places, strict=True)]


def messages_in(table: pa.Table | pa.RecordBatch, *, first_row: int = 0, threads: int = 1) -> list[TagLists]:
    """The rows of a table with columns `tags`, which may be missing, and one for each attribute, as messages.

    >>> [rows] = messages_in(pa.table({"tags": [["fr"]], "new": [True]}))
    >>> len(rows), bytes(rows.tags.data), [column.name for column in rows.attributes.columns]
    (1, b'fr', [b'new'])
    """
    names, kinds = table.schema.names, table.schema.types
    if twice := repeated(names):
        raise InvalidValueError(f"there must be one column {twice[0]!r}, not {twice[1]}; lists have several values")
    batches = [table] if isinstance(table, pa.RecordBatch) else table.to_batches()
    if TAGS in names:
        # Together, as chunks often share a dictionary
        tags = pa.chunked_array([batch.column(TAGS) for batch in batches], table.schema.field(TAGS).type)
        parts = tag_lists(tags, f"column {TAGS!r}", first_row=first_row)
    else:
        parts = [TagLists(np.zeros(len(batch) + 1, np.int64), _NO_STRINGS) for batch in batches]
    others = [number for number, name in enumerate(names) if name != TAGS]
    maps = [number for number in others if pa.types.is_map(kinds[number])]
    numbers = [number for number in others if not pa.types.is_map(kinds[number])]
    attributes, found = [names[number] for number in numbers], []
    for batch, rows in zip(batches, parts, strict=True):
        check_columns(batch, numbers, first_row)
        if maps:
            of_maps = (map_column(names[number], batch.column(number), first_row) for number in maps)
            rows = rows_of_columns([_tags(rows), *(each for each in of_maps if each is not None)], len(rows), threads)
        found.append(Messages.of(rows, AttributeColumns(batch, numbers, attributes), None) if numbers else rows)
        first_row += len(batch)
    return found


def with_own_columns(table: pa.Table | pa.RecordBatch) -> pa.Table | pa.RecordBatch:
    """The table with a column for each field of its column `attributes`, and without `id`.

    InvalidTypeError or InvalidValueError if `attributes` is neither a struct nor a map, or a field has a column's name.
    """
    if ID in table.schema.names:
        table = table.drop_columns([ID])
    if ATTRIBUTES not in table.schema.names:
        return table
    given, kind = table.column(ATTRIBUTES), table.schema.field(ATTRIBUTES).type
    if pa.types.is_map(kind):
        return table
    table = table.drop_columns([ATTRIBUTES])
    if pa.types.is_null(kind):
        return table
    if not pa.types.is_struct(kind):
        raise InvalidTypeError(
            f"column {ATTRIBUTES!r} must be a struct with a field for each attribute, or a map, not {kind}"
        )
    names, columns = [field.name for field in kind], table.schema.names
    if taken := {TAGS, *columns}.intersection(names):
        name = next(name for name in names if name in taken)
        raise InvalidValueError(f"column {ATTRIBUTES!r} must have no field {name[:60]!r}, as a column is called so")
    return type(table).from_arrays([*table.columns, *given.flatten()], names=[*columns, *names])


def joined(chunks: Sequence[TagLists]) -> TagLists:
    """The rows of several chunks of one schema as one chunk, since each chunk is some work of its own.

    >>> few = [queries_in(pa.table({"tags": [["fr"]], "new": [new]}), plane=False)[0] for new in (True, False)]
    >>> rows = joined(few)
    >>> len(rows), rows.attributes.batch["new"].to_pylist()
    (2, [True, False])
    """
    if len(chunks) == 1:
        return chunks[0]
    rows = _joined_tags(chunks)
    first: AttributeColumns | None = chunks[0].attributes
    attributes = None
    if first is not None:
        batch = pa.concat_batches([each.attributes.batch for each in chunks])
        attributes = AttributeColumns(batch, first.numbers, first.names)
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
    return Locations(lon, lat, kinds, values)


def side_by_side(parts: list[TagLists], threads: int = 1) -> TagLists:
    r"""Rows with all that rows of the same number have in each part, as tags.

    >>> parts = messages_in(pa.table({"tags": [["fr"]], "new": [True]}))
    >>> bytes(side_by_side(parts).tags.data)
    b'fr\x00=new\x00b1'
    """
    columns = [column for part in parts for column in (_tags(part), *_attributes(part))]
    return rows_of_columns(columns, len(parts[0]), threads)


# -- columns -----------------------------------------------------------------------------------------------------------


def _tags(rows: TagLists) -> Column:
    """Tags as they are; what has an index that is not in its dictionary is none."""
    begins, ends = places(rows.tags)
    first, last = int(rows.offsets[0]), int(rows.offsets[-1])
    validity = NO_BYTES
    if rows.indices is None:
        begins, ends = begins[first:last], ends[first:last]
    else:
        indices = rows.indices[first:last].astype(np.int64)
        valid = indices < len(begins)
        validity = np.packbits(valid, bitorder="little")
        indices = np.where(valid, indices, 0)
        # Without a string there is no place to point to either
        begins, ends = (np.append(places, 0)[indices] for places in (begins, ends))
    offsets = rows.offsets.astype(np.int64) - first
    column = Column(TAG, NO_BYTES, frozen(offsets), frozen(validity))
    return column._replace(begins=frozen(begins), ends=frozen(ends), text=rows.tags.data)


def _attributes(rows: TagLists) -> Sequence[Column]:
    """The attributes of rows that `messages_in` has made."""
    return () if rows.attributes is None else rows.attributes.columns
