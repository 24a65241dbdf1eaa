"""What keys are put with, one by one or in columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import Strings, TagLists, U8Array
from tagmatch.model.arrow import from_strings, from_tag_lists, plain_array, plain_strings, reject_no_utf8
from tagmatch.model.asked import AS_GIVEN, DATA, Asked, AskedRows
from tagmatch.model.change_counts import ALSO_PUT, PUT
from tagmatch.model.clock import is_missing
from tagmatch.model.columns import shown, stored_tag_list, tag_lists
from tagmatch.model.data_types import (
    Schema,
    as_json,
    family_of,
    plain_type,
    reject_other_years,
    text_of_type,
    unknown_column,
    zone_wanted,
)
from tagmatch.model.errors import InvalidTypeError, NullError
from tagmatch.model.input.places import area_column, area_rows, area_tag, is_area
from tagmatch.model.input.subscriptions import RowsToStore, alternatives, rows_to_store, texts_of
from tagmatch.model.options import KeyType
from tagmatch.model.where.constraints import Where
from tagmatch.model.where.declared import Declared


def to_put(
    tags: object,
    where: object,
    area: object,
    data: object,
    schema: Schema,
    *,
    plane: bool,
    declared: Declared | None = None,
) -> tuple[list[list[str]], Asked | None]:
    """The rows to store for one key that is put, and its record if it needs one; errors as `alternatives`."""
    reject_nothing(tags, where, area)
    given = [] if tags is None else stored_tag_list(tags)
    rows = alternatives(given, where, area, plane=plane, declared=declared)
    values = {} if data is None else _data(data, schema)
    if where is None and not values:
        return rows, None
    if where is None:
        return rows, Asked(None, None, None, values)
    plain = [tag for tag in given if not isinstance(tag, Where)]
    texts = [f"({tag})" for tag in given if isinstance(tag, Where)]
    text = " and ".join([*texts, f"({where})"]) if texts else str(where)
    own = None if area is None else area_tag(area, plane=plane)
    return rows, Asked(plain, text, own, values)


def reject_nothing(tags: object, where: object, area: object) -> None:
    """See that a key that is put has something that it asks for."""
    if tags is None and where is None and area is None:
        raise NullError(
            "put needs tags, where or area, as it replaces all that the key had: to change its data alone, give these "
            "again, as `get` has them; tags=[] is for a key that every message gets"
        )


def _data(data: object, schema: Schema) -> dict[str, tuple[str, Any]]:
    if not isinstance(data, Mapping):
        raise InvalidTypeError(f"data must map names of columns to values, not {shown(data)}")
    return {name: as_json(name, value, schema) for name, value in data.items() if not is_missing(value)}


def kinds_of_put(rows: int) -> U8Array:
    """What each of the rows does for which one key is put."""
    kinds = np.full(rows, ALSO_PUT, np.uint8)
    kinds[0] = PUT
    return kinds


class RowsToPut(NamedTuple):
    """What is stored for many keys that are put."""

    rows: RowsToStore
    kinds: U8Array  # what each row does
    records: AskedRows


def rows_to_put(
    columns: Mapping[str, Any],
    data: Mapping[str, Any],
    key_type: KeyType,
    schema: Schema,
    *,
    plane: bool,
    threads: int,
    declared: Declared | None = None,
) -> RowsToPut:
    """Columns as `rows_to_store` takes them, and columns of data; errors as there.

    The rows of a key are alternatives; its record goes with the first of them.
    """
    rows = rows_to_store(columns, key_type, plane=plane, threads=threads, declared=declared)
    keys = from_strings(rows.keys) if isinstance(rows.keys, Strings) else pa.array(rows.keys)
    codes = keys.dictionary_encode().indices.to_numpy()
    firsts = np.unique(codes, return_index=True)[1]
    kinds = np.full(len(codes), ALSO_PUT, np.uint8)
    kinds[firsts] = PUT
    # In the order of the rows, as are the records
    firsts = np.flatnonzero(kinds == PUT)
    sources = np.arange(len(codes)) if rows.sources is None else rows.sources
    given = sources[firsts]
    # Of each key, in how many rows of the table it is
    of_table = codes[np.flatnonzero(np.diff(sources, prepend=-1))]
    is_alone = np.bincount(of_table, minlength=1)[codes[firsts]] == 1 if len(codes) else np.zeros(0, np.bool_)
    table = _as_given(columns, len(of_table), plane=plane).take(pa.array(given))
    not_alone = pa.array(~is_alone)
    for place, field in enumerate(AS_GIVEN):
        table = table.set_column(place, field, pc.if_else(not_alone, pa.scalar(None, field.type), table.column(place)))
    for name, values in data.items():
        table = table.append_column(DATA + name, data_column(name, values, schema).take(pa.array(given)))
    needed = np.zeros(len(table), np.bool_)
    for name in table.column_names:
        if name == "where" or name.startswith(DATA):
            needed |= plain_array(table.column(name).is_valid()).to_numpy(zero_copy_only=False)
    if not needed.any():
        return RowsToPut(rows, kinds, AskedRows())
    records = np.full(len(codes), -1)
    records[firsts[needed]] = np.arange(int(needed.sum()))
    return RowsToPut(rows, kinds, AskedRows(records, table.filter(pa.array(needed)).combine_chunks()))


def _as_given(columns: Mapping[str, Any], count: int, *, plane: bool) -> pa.Table:
    """Tags, expression and area of each row, as they were given; null where an expression does not say all."""
    none = pa.table([pa.nulls(count, field.type) for field in AS_GIVEN], AS_GIVEN)
    where = columns.get("where")
    if where is None or columns.get("constraints") is not None:
        return none
    texts = pa.array([where] * count) if isinstance(where, str) else texts_of(where, count)
    chunks = tag_lists(columns["tags"], "tags", stored=True)
    tags = pa.chunked_array([from_tag_lists(chunk) for chunk in chunks], pa.large_list(pa.large_string()))
    areas: Any = columns.get("area")
    if areas is None:
        own = pa.nulls(count, pa.string())
    elif is_area(areas):
        own = pa.array([area_tag(areas, plane=plane)] * count)
    else:
        column = area_column(areas, count)
        own = _only_tags(area_rows(column, first_row=0, plane=plane))
    has_text = texts.is_valid()
    given = [tags, texts, own]
    return pa.table(
        [
            pc.if_else(has_text, plain_array(values).cast(field.type), pa.scalar(None, field.type))
            for values, field in zip(given, AS_GIVEN, strict=True)
        ],
        AS_GIVEN,
    )


def _only_tags(rows: TagLists) -> pa.Array:
    """The tag of each row, null if it has no tag."""
    lists = from_tag_lists(rows)
    places = np.where(np.diff(rows.offsets) > 0, rows.offsets[:-1] - rows.offsets[0], -1)
    return lists.flatten().take(pa.array(places, mask=places < 0))


def data_column(name: str, values: Any, schema: Schema, first_row: int = 0) -> pa.Array:
    """A column of data in its type; InvalidTypeError, InvalidValueError, which counts rows from `first_row`."""
    kind = schema.get(name)
    if kind is None:
        raise unknown_column(name, schema)
    column = plain_array(values)
    plain = plain_type(kind)
    wanted = f"takes values of {text_of_type(kind)}"
    if pa.types.is_timestamp(plain) and pa.types.is_timestamp(column.type) and bool(plain.tz) != bool(column.type.tz):
        wanted = zone_wanted(plain)
    refusal = f"data: column {name!r} {wanted}, not {column.type}"
    if pa.types.is_string(plain):
        column = plain_strings(column, refusal)
        reject_no_utf8(column, f"data: column {name!r}", first_row, len(column))
    elif pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_null(column.type) or family_of(column.type) == family_of(plain):
        if pa.types.is_floating(column.type) and pa.types.is_decimal(plain):
            column = column.cast(pa.string())  # which Arrow reads with all digits: it rounds a double
        try:
            found = column.cast(plain)
        except pa.ArrowException as error:
            raise InvalidTypeError(f"{refusal}: {error}") from None
        if pa.types.is_temporal(plain):
            reject_other_years(name, found, first_row)
        return found.cast(kind)
    raise InvalidTypeError(refusal)
