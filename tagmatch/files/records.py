"""Rows whose values have been read one by one, as columns: of whatever type a value may have in each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from tagmatch.files.areas import area_structs
from tagmatch.files.columns import ATTRIBUTE_TAGS, ATTRIBUTES, CONSTRAINTS, attribute_lists
from tagmatch.files.constraints import constraint_lists
from tagmatch.files.places import locations_of_json
from tagmatch.locations import LOCATION, WITHIN
from tagmatch.model.expiry import TIME
from tagmatch.subscriptions import AREA

#: Columns whose values may be of any type in each row, as Arrow's readers do not have them, and what makes them of JSON
OBJECTS: dict[str, Callable[[list[Any]], pa.Array]] = {
    ATTRIBUTES.name: attribute_lists,
    CONSTRAINTS.name: constraint_lists,
    AREA: area_structs,
    WITHIN: area_structs,
}


def is_attribute(field: pa.Field) -> bool:
    """Whether a column of this type has the values of one attribute."""
    return bool(field.type == ATTRIBUTE_TAGS) and field.name != ATTRIBUTES.name


def is_object(field: pa.Field) -> bool:
    """Whether a column has objects, or lists of them."""
    return field.name in (*OBJECTS, LOCATION) and not is_attribute(field)


def objects_of(values: list[Any], field: pa.Field) -> pa.Array:
    """A column of `OBJECTS` or of locations, of what JSON has."""
    return locations_of_json(values, field.type) if field.name == LOCATION else OBJECTS[field.name](values)


def columns_of(records: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """The columns of rows, by name; a row may lack some.

    Raises
    ------
    pyarrow.ArrowException, TagMatchError, OverflowError
        A value does not have the type of its column.
    """
    columns = [_column([row.get(field.name) for row in records], field) for field in schema]
    return pa.record_batch(columns, schema=schema)


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    if is_attribute(field):
        return attribute_lists([{field.name: value} for value in values])
    if is_object(field):
        return objects_of(values, field)
    if field.type == TIME:
        return pa.array(values, pa.string()).cast(TIME)
    return pa.array(values, field.type)
