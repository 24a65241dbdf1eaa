"""Columns of queries, types of Spark and of Arrow, and errors of tasks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema, to_arrow_type
from pyspark.sql.types import DataType, DecimalType, IntegralType, StringType, StructType

import tagmatch.model.errors
from tagmatch.model.errors import (
    InvalidTypeError,
    InvalidValueError,
    NullError,
    TagMatchError,
)
from tagmatch.model.input.messages import ATTRIBUTES, TAGS, messages_in, with_own_columns
from tagmatch.model.input.places import LOCATION, WITHIN, is_place_column, locations_of_rows, names_of_places, shapes_in
from tagmatch.model.options import KeyType


@dataclass(frozen=True, slots=True)
class AskedColumns:
    """Which columns of the queries are asked for."""

    tags: int  # Number of the column of tags
    attributes: tuple[int, ...] = ()  # Numbers of those that are attributes, or structs of them
    # Numbers of those that say where messages are, and for which clients: of `location` and `within`
    places: Mapping[str, int] = field(default_factory=dict)
    on: tuple[int, ...] = ()  # Numbers of those that data of keys has to be equal to
    name_of_tags: str = TAGS  # In messages of errors

    def messages(self, queries: pa.RecordBatch) -> pa.RecordBatch:
        """What is asked, as `TagMatch.match_many` takes it."""
        names, columns, own = [TAGS], [queries.column(self.tags)], queries.schema.names
        fields: list[str] = []
        values: list[pa.Array] = []
        for number in self.attributes:
            column, name = queries.column(number), own[number]
            if pa.types.is_struct(column.type):
                fields += [field.name for field in column.type]
                values += column.flatten()
            elif pa.types.is_map(column.type):
                names.append(f"{ATTRIBUTES} of {name}")
                columns.append(column)
            else:
                fields.append(name)
                values.append(column)
        if fields:  # under any names
            names.append(ATTRIBUTES)
            columns.append(pa.StructArray.from_arrays(values, fields))
        names += self.places
        columns += [_in_doubles(queries.column(place)) for place in self.places.values()]
        return pa.RecordBatch.from_arrays(columns, names=names)


def reject_nulls(tags: pa.Array, name: str) -> None:
    """See that every query has tags, and every tag is one."""
    if tags.null_count:
        raise NullError(
            f"column {name!r} of the queries holds a null where a set of tags must be; "
            f"leave such queries out, as in queries.where(col({name!r}).isNotNull())"
        )
    if tags.flatten().null_count:
        raise NullError(
            f"column {name!r} of the queries holds a null where a tag must be; "
            f"leave such tags out, as in queries.withColumn({name!r}, array_compact({name!r}))"
        )


def without_invalid(tags: pa.Array) -> pa.Array:
    """The tags of queries, null if one of them is null."""
    tag = tags.flatten()
    if not tag.null_count:
        return tags
    rows = pc.list_parent_indices(tags).filter(tag.is_null()).unique()
    return pc.if_else(pc.is_in(pa.array(np.arange(len(tags))), rows), None, tags)


def column_type(schema: StructType, column: str) -> DataType:
    """Return the type of a column."""
    if column not in schema.names:
        raise InvalidTypeError(
            f"there is no column {column!r}; there are {', '.join(map(repr, schema.names)) or 'none'}"
        )
    return schema[column].dataType


def key_type_in(schema: StructType, column: str) -> KeyType:
    """What the keys are in a column."""
    kind = column_type(schema, column)
    if isinstance(kind, StringType):
        return "string"
    if isinstance(kind, IntegralType) or (isinstance(kind, DecimalType) and kind.scale == 0):
        return "integer"
    raise InvalidTypeError(
        f"column {column!r} must be a string, an integer or a decimal of scale 0, not {kind.simpleString()}; "
        "make strings of such keys, as by hex or to_json"
    )


def check_types(asked: AskedColumns, schema: pa.Schema, called: Mapping[str, str], *, plane: bool) -> None:
    """See that columns have types with which they can be asked, and attributes have their own names."""
    messages = asked.messages(pa.RecordBatch.from_pylist([], schema=schema))
    places = asked.places
    there = messages.schema.get_field_index(ATTRIBUTES)
    given = [field.name for field in messages.schema.types[there]] if there >= 0 else []
    if len({*given, TAGS, *places}) < len(given) + 1 + len(places):
        taken = ", ".join(map(repr, [TAGS, *places]))
        raise InvalidValueError(f"attributes must have different names, none of them {taken}")
    if LOCATION in places:
        if not is_place_column(messages.schema, LOCATION):
            kind, names = spark_name(schema.types[places[LOCATION]]), ", ".join(names_of_places(plane=plane))
            raise InvalidTypeError(f"{called[LOCATION]} must be a struct or an array of {names}, not {kind}")
        locations_of_rows(messages.column(LOCATION), called[LOCATION], plane=plane, first_row=0)
    if WITHIN in places:
        shapes_in(messages.column(WITHIN), called[WITHIN], plane=plane)
    messages_in([with_own_columns(messages.drop_columns(list(places)))])


def spark_name(kind: pa.DataType) -> str:
    """What Spark calls a type."""
    found: str = from_arrow_type(kind).simpleString()
    return found


def _in_doubles(column: pa.Array) -> pa.Array:
    """The column with decimals, which SQL has for numbers with a point, as the nearest doubles."""
    kinds = [_without_decimals(column.type, kind) for kind in (pa.string(), pa.float64())]
    # From text, as Arrow's cast of decimals is not to the nearest
    return column if kinds[0] == column.type else column.cast(kinds[0]).cast(kinds[1])


def _without_decimals(kind: pa.DataType, instead: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        return instead
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_decimals(field.type, instead)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_decimals(kind.value_type, instead)))
    return kind


_RAISED = re.compile(r"^(?:.*\s)?tagmatch\.(\w+): (.+)$", re.MULTILINE)


@contextlib.contextmanager
def errors_of_workers() -> Iterator[None]:
    """Raise an error of tagmatch from a task as itself, instead of Spark's error, which has it in its message.

    Spark's error, with the traces of its tasks, is the cause of it. Other errors stay as they are.

    Raises
    ------
    TagMatchError
        The one that a task has raised.

    Examples
    --------
    >>> with errors_of_workers():
    ...     found = subset_join(queries, "interests.index").collect()  # doctest: +SKIP
    """
    try:
        yield
    except PySparkException as error:
        raised = _RAISED.search(str(error))
        kind = getattr(tagmatch.model.errors, raised[1], None) if raised else None
        if raised is None or not (isinstance(kind, type) and issubclass(kind, TagMatchError)):
            raise
        raise kind(raised[2].strip()) from error


# PySpark 4.1 has no such parameter: there the zone of timestamps is UTC anyway
_ZONE: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}


def arrow_type(kind: DataType) -> pa.DataType:
    """The type of a column; timestamps are in UTC."""
    return to_arrow_type(kind, **_ZONE)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The types of columns, as `arrow_type` has them."""
    return to_arrow_schema(schema, **_ZONE)
