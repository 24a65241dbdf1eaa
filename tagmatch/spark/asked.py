"""What is asked of an index: columns of tags and attributes, and of where messages are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

from tagmatch.locations import LOCATION, WITHIN, is_place_column, places_in
from tagmatch.messages import TAGS, messages_in
from tagmatch.model.conditions.areas import shapes_in
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, NullError
from tagmatch.queries import ATTRIBUTES, with_own_columns

#: What `TagMatch.match_many` is asked: a column of tags, or a table of these and attributes
Messages: TypeAlias = pa.Array | pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Asked:
    """Which columns of the queries are asked for.

    Attributes
    ----------
    tags : int
        Number of the column of tags.
    attributes : tuple of int
        Numbers of those that are attributes, or structs of them.
    location, within : int, optional
        Numbers of those that say where messages are, and for which clients.
    """

    tags: int
    attributes: tuple[int, ...] = ()
    location: int | None = None
    within: int | None = None

    @property
    def is_located(self) -> bool:
        """Whether a column says where messages are, or for which clients."""
        return self.location is not None or self.within is not None

    def messages(self, queries: pa.RecordBatch) -> Messages:
        """What is asked; a column where there are only tags."""
        tags = queries.column(self.tags)
        if not self.attributes and not self.is_located:
            return tags
        names, columns, own = [TAGS], [tags], queries.schema.names
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
        if fields:  # whatever they are called
            names.append(ATTRIBUTES)
            columns.append(pa.StructArray.from_arrays(values, fields))
        for name, place in ((LOCATION, self.location), (WITHIN, self.within)):
            if place is not None:
                names.append(name)
                columns.append(_in_doubles(queries.column(place)))
        return pa.RecordBatch.from_arrays(columns, names=names)


def reject_nulls(tags: pa.Array, name: str) -> None:
    """See that every query has tags, and every tag is one.

    Raises
    ------
    NullError
        Names the column and how to leave the nulls out.
    """
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


def check_types(asked: Asked, schema: pa.Schema, called: Mapping[str, str]) -> None:
    """See that columns have types with which they can be asked, and attributes have names of their own.

    Parameters
    ----------
    asked : Asked
    schema : pyarrow.Schema
        Of the queries.
    called : mapping
        What messages of errors call the columns `location` and `within`.

    Raises
    ------
    InvalidTypeError, InvalidValueError
    """
    messages = asked.messages(pa.RecordBatch.from_pylist([], schema=schema))
    if not isinstance(messages, pa.RecordBatch):
        return
    places = {of: number for of, number in ((LOCATION, asked.location), (WITHIN, asked.within)) if number is not None}
    there = messages.schema.get_field_index(ATTRIBUTES)
    given = [field.name for field in messages.schema.types[there]] if there >= 0 else []
    if len({*given, TAGS, *places}) < len(given) + 1 + len(places):
        taken = ", ".join(map(repr, [TAGS, *places]))
        raise InvalidValueError(f"attributes must have different names, none of them {taken}")
    if LOCATION in places:
        if not is_place_column(messages.schema, LOCATION):
            kind = spark_name(schema.types[places[LOCATION]])
            raise InvalidTypeError(f"{called[LOCATION]} must be a struct or an array of lon, lat, not {kind}")
        places_in(messages.column(LOCATION), called[LOCATION], plane=False, first_row=0)
    if WITHIN in places:
        shapes_in(messages.column(WITHIN), called[WITHIN], plane=False)
    messages_in(with_own_columns(messages.drop_columns(list(places))))


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
