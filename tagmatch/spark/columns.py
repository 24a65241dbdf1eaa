"""Columns of queries, what is asked of an index by them, and the columns of keys that answers add."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema, to_arrow_type
from pyspark.sql.types import ArrayType, DataType, LongType, StringType, StructField, StructType

import tagmatch.model.errors
from tagmatch.model.arrays import IntArray
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, NullError, TagMatchError
from tagmatch.model.input.messages import ATTRIBUTES, TAGS, messages_in, with_own_columns
from tagmatch.model.input.places import LOCATION, WITHIN, is_place_column, places_in, shapes_in
from tagmatch.model.options import KeyType
from tagmatch.model.storage.repository import Repository

Output = Literal["rows", "lists"]

#: Name of the column that each output adds
ANSWER_NAMES: dict[Output, str] = {"rows": "key", "lists": "keys"}

#: What Spark has for keys
KEY_TYPES = {"integer": LongType(), "string": StringType()}

_BATCH_KEYS = 1 << 16
_BATCH_BYTES = 1 << 30


def answer_field(output: Output, key_type: KeyType) -> StructField:
    """The column that an output adds, for an index with such keys."""
    key = KEY_TYPES[key_type]
    kind = key if output == "rows" else ArrayType(key, containsNull=False)
    return StructField(ANSWER_NAMES[output], kind, nullable=False)


def with_keys(output: Output, queries: pa.RecordBatch, answers: pa.ListArray) -> Iterator[pa.RecordBatch]:
    """Add the answers as `output` says, in batches of bounded size."""
    offsets, keys = answers.offsets.to_numpy(), answers.values
    if pa.types.is_integer(keys.type):
        keys = signed(keys)
    if output == "rows":
        return _key_by_key(queries, offsets, keys)
    return _query_by_query(queries, offsets, keys)


def signed(keys: pa.Array) -> pa.Array:
    """Keys, uint64, as Spark's `long`; InvalidValueError for one that is none."""
    signed = keys.view(pa.int64())
    values = signed.to_numpy()
    if len(values) and values.min() < 0:
        key = int(values.view(np.uint64).max())
        raise InvalidValueError(
            f"key {key} of the index is above 2**63 - 1, the greatest `long` of Spark; give such sets smaller keys"
        )
    return signed


def _key_by_key(queries: pa.RecordBatch, offsets: IntArray, keys: pa.Array) -> Iterator[pa.RecordBatch]:
    rows = np.repeat(np.arange(len(queries)), np.diff(offsets))
    # Few enough for Arrow's 32-bit offsets even if all of them repeat one query that has all the bytes
    step = max(1, min(_BATCH_KEYS, _BATCH_BYTES // max(1, queries.nbytes)))
    schema = queries.schema.append(pa.field("key", keys.type, nullable=False))
    for first in range(0, len(rows), step):
        repeated = queries.take(pa.array(rows[first : first + step]))
        yield pa.RecordBatch.from_arrays([*repeated.columns, keys.slice(first, step)], schema=schema)


def _query_by_query(queries: pa.RecordBatch, offsets: IntArray, keys: pa.Array) -> Iterator[pa.RecordBatch]:
    marks = np.arange(0, int(offsets[-1]), _BATCH_KEYS)
    edges = np.unique(np.concatenate([[0], np.searchsorted(offsets, marks, side="right") - 1, [len(queries)]]))
    lists = pa.ListArray.from_arrays(pa.array(offsets), keys)
    schema = queries.schema.append(pa.field("keys", lists.type, nullable=False))
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        some = slice(first, last)
        yield pa.RecordBatch.from_arrays([*queries[some].columns, lists[some]], schema=schema)


@dataclass(frozen=True, slots=True)
class AskedColumns:
    """Which columns of the queries are asked for."""

    tags: int  # Number of the column of tags
    attributes: tuple[int, ...] = ()  # Numbers of those that are attributes, or structs of them
    # Numbers of those that say where messages are, and for which clients: of `location` and `within`
    places: Mapping[str, int] = field(default_factory=dict)

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
        if fields:  # whatever they are called
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


def check_types(asked: AskedColumns, schema: pa.Schema, called: Mapping[str, str]) -> None:
    """See that columns have types with which they can be asked, and attributes have names of their own."""
    messages = asked.messages(pa.RecordBatch.from_pylist([], schema=schema))
    places = asked.places
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
    messages_in([with_own_columns(messages.drop_columns(list(places)))])


def quoted(column: str) -> str:
    """A name of a column as Spark reads it, with any characters."""
    return "`" + column.replace("`", "``") + "`"


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
    """Raise an error of tagmatch, which Spark has made part of the message of its own, instead of Spark's."""
    try:
        yield
    except PySparkException as error:
        raised = _RAISED.search(str(error))
        kind = getattr(tagmatch.model.errors, raised[1], None) if raised else None
        if raised is None or not (isinstance(kind, type) and issubclass(kind, TagMatchError)):
            raise
        raise kind(raised[2].strip()) from error


def on_plane(index: Repository) -> InvalidValueError:
    """What is wrong with an index that is on the plane."""
    return InvalidValueError(
        f"the index {index} is on the plane, but on Spark locations and areas are lon and lat in degrees; "
        "ask it by match_many of TagMatch.open(index, plane=True)"
    )


# PySpark 4.1 has no such parameter: there the zone of timestamps is UTC anyway
_ZONE: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}


def arrow_type(kind: DataType) -> pa.DataType:
    """The type of a column; timestamps are in UTC."""
    return to_arrow_type(kind, **_ZONE)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The types of columns, as `arrow_type` has them."""
    return to_arrow_schema(schema, **_ZONE)
