"""Columns of queries, the options of a join, and the columns of keys that answers add."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from itertools import pairwise
from typing import Any, Literal, Self, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    IntegralType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

import tagmatch.model.errors
from tagmatch.best import check_best, limit_of
from tagmatch.embedded import TagMatch
from tagmatch.model.arrays import IntArray
from tagmatch.model.data_types import Schema, some_columns
from tagmatch.model.errors import (
    InvalidTypeError,
    InvalidValueError,
    NullError,
    ResultTooLargeError,
    TagMatchError,
)
from tagmatch.model.input.messages import ATTRIBUTES, TAGS, messages_in, with_own_columns
from tagmatch.model.input.places import LOCATION, WITHIN, is_place_column, locations_of_rows, shapes_in
from tagmatch.model.options import KeyType, Wanted, check_one_of
from tagmatch.model.storage.format import Manifest, key_type_of
from tagmatch.model.storage.repository import Repository
from tagmatch.only import DataTest
from tagmatch.pipeline.tags import at_most_keys
from tagmatch.records import schema_of_data

Output = Literal["rows", "lists", "counts", "exists"]

#: Which queries have rows, as SQL's joins say
How = Literal["inner", "left", "semi", "anti"]

#: Name of the column that each output adds
_NAMES: dict[Output, str] = {"rows": "key", "lists": "keys", "counts": "count", "exists": "exists"}

#: What Spark has for keys
KEY_TYPES = {"integer": LongType(), "string": StringType()}

_TEXTS = ArrayType(StringType(), containsNull=False)
# The conditions of a set, all of them held
_SET = StructType([StructField("tags", _TEXTS, nullable=False), StructField("tests", _TEXTS, nullable=False)])

_BATCH_KEYS = 1 << 16
_BATCH_BYTES = 1 << 30

#: Queries that are asked together, and the keys that these may have, if they are more than one: 16 MiB of numbers
QUERIES, MOST_KEYS = 1024, 1 << 21


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What is wanted of an index for each query, as the arguments of `subset_join` say."""

    output: Output = "rows"
    unique: bool = False
    only: str | None = None
    columns: tuple[str, ...] = ()  # Of data, besides keys
    limit: int | None = None  # With one of the next two
    order_by: str | None = None
    score: str | None = None
    how: How = "inner"
    on: tuple[
        StructField, ...
    ] = ()  # Columns of data, as Spark has them, that have to be equal to those of the queries
    explain: bool = False  # Whether each key comes with the tags and tests of its set
    skip_invalid: bool = False
    key_type: KeyType = "integer"
    fields: tuple[StructField, ...] = ()  # The columns that are added

    @classmethod
    def of(cls, index: Repository, manifest: Manifest, **given: Any) -> Self:
        """What is wanted of an index that has this manifest; errors are those of arguments."""
        check_one_of("output", given["output"], get_args(Output))
        columns, on = given.pop("columns"), tuple(given.pop("on", ()))
        if isinstance(columns, str):
            raise InvalidTypeError(f"columns must be names of columns of data, such as [{columns!r}], not a str")
        asked = cls(columns=tuple(columns or ()), key_type=key_type_of(manifest), **given)._of_join()
        best = asked.limit is not None
        if not best and not (asked.order_by is None and asked.score is None):
            raise InvalidValueError("order_by and score say which keys are the best: give limit, too")
        option = "explain" if asked.explain else "columns"
        if (asked.columns or asked.explain) and (best or asked.is_number):
            what = "limit" if best else f"output {asked.output!r}"
            raise InvalidValueError(f"{option} may come with all keys of a query, not with {what}; leave one out")
        if asked.explain and (asked.columns or on or asked.unique):
            other = "columns" if asked.columns else "on" if on else "unique"
            raise InvalidValueError(f"explain does not go with {other}; leave one out")
        if best and asked.output in ("counts", "exists"):
            raise InvalidValueError(f"limit goes with keys, not with output {asked.output!r}; leave one out")
        if on and best:
            raise InvalidValueError("limit does not go with on; leave one out, or say by only which keys are wanted")
        schema: Schema = {}
        if asked.needs_data or on:
            schema = schema_of_data(index.in_place(manifest["snapshot"]).snapshot)  # of a store, the ends of tables
        if asked.only is not None:
            DataTest(asked.only, schema)
        if best:
            limit_of(asked.limit)
            check_best(schema, asked.order_by, asked.score)
        equal = tuple(StructField(name, _type_of_data(kind)) for name, kind in some_columns(on, schema, "on").items())
        return replace(asked, on=equal, fields=asked._fields(some_columns(asked.columns, schema)))

    def _of_join(self) -> Self:
        """The options without those that a join of this kind does not need; errors are those of `how`."""
        check_one_of("how", self.how, get_args(How))
        if self.how == "inner":
            return self
        if self.output != "rows":
            raise InvalidValueError(
                f"output {self.output!r} has a row for each query, so how must be 'inner', not {self.how!r}"
            )
        if self.how == "left":
            return self
        if self.columns or self.explain or any(each is not None for each in (self.limit, self.order_by, self.score)):
            raise InvalidValueError(
                f"how={self.how!r} gives columns of the queries alone; leave columns, explain and limit out"
            )
        return replace(self, output="exists", unique=False)

    @property
    def of_query(self) -> DataType:
        """The type of all that answers a query."""
        if self.output != "rows":
            return self.fields[0].dataType
        return ArrayType(StructType([*self.fields]) if self.is_wide else self.fields[0].dataType, containsNull=False)

    @property
    def is_wide(self) -> bool:
        """Whether something comes with each key."""
        return self.explain or bool(self.columns)

    @property
    def needs_data(self) -> bool:
        """Whether the answers have a part of whole sets or of the data of keys, which buckets lack."""
        return self.is_wide or bool(self.on) or self.only is not None or self.limit is not None

    @property
    def is_number(self) -> bool:
        """Whether an answer is one number, or whether there is any key."""
        return self.output in ("counts", "exists")

    @property
    def of_part(self) -> Self:
        """What is asked of parts of the sets, if what these answer is put together."""
        part = self if self.output == "exists" or (self.output == "counts" and not self.unique) else None
        own = part or replace(self, output="lists")
        return replace(own, fields=own._fields({}))

    @property
    def wanted(self) -> Wanted:
        """The same to an engine, except for data."""
        found = {"counts": Wanted.counts, "exists": Wanted.exists}
        return found.get(self.output, Wanted.keys)

    def _fields(self, data: Schema) -> tuple[StructField, ...]:
        name = _NAMES[self.output]
        if self.is_number:
            return (StructField(name, LongType() if self.output == "counts" else BooleanType(), nullable=False),)
        key = StructField("key", KEY_TYPES[self.key_type], nullable=False)
        own = (key, *(StructField(column, _type_of_data(kind)) for column, kind in data.items()))
        if self.explain:
            own = (key, StructField("set", _SET, nullable=False))
        if self.output == "rows":
            return own
        kind = ArrayType(StructType([*own]) if len(own) > 1 else key.dataType, containsNull=False)
        return (StructField(name, kind, nullable=False),)

    def check_names(self, names: list[str]) -> None:
        """See that no column of the queries is called as one that is added."""
        added = [] if self.how in ("semi", "anti") else [each.name.lower() for each in self.fields]
        clashing = next((name for name in names if name.lower() in added), None)
        if clashing is not None:
            raise InvalidValueError(f"queries has a column {clashing!r} already, which the join is to add; rename it")

    def ask(self, index: TagMatch[Any], messages: pa.RecordBatch, on: Sequence[pa.Array] = ()) -> pa.Array:
        """Those to some messages: lists of keys, or of structs with columns of data, or numbers."""
        if self.on:
            return self._ask_on(index, messages, on)
        if self.output == "counts":
            return index.match_counts(messages, unique=self.unique, only=self.only)
        if self.output == "exists":
            return index.match_exists_many(messages, only=self.only)
        if self.explain:
            return _explained(index.match_highlights(messages, only=self.only))
        if self.limit is not None:
            best = {"limit": self.limit, "order_by": self.order_by, "score": self.score}
            return index.match_best(messages, only=self.only, **best)  # type: ignore[arg-type]
        return index.match_many(messages, unique=self.unique, only=self.only, columns=self.columns or None)

    def _ask_on(self, index: TagMatch[Any], messages: pa.RecordBatch, on: Sequence[pa.Array]) -> pa.Array:
        """The same of keys whose data is equal to these columns; a null is equal to nothing."""
        names = dict.fromkeys([*(each.name for each in self.on), *self.columns])
        found = index.match_many(messages, unique=self.unique, only=self.only, columns=list(names))
        of_query, keys = pc.list_parent_indices(found), found.flatten()
        for own, wanted in zip(self.on, on, strict=True):
            value = as_spark(keys.field(own.name), own.dataType)
            if value.type != wanted.type:  # integers of any width
                value, wanted = (each.cast(pa.decimal128(20, 0)) for each in (value, wanted))
            equal = pc.fill_null(pc.equal(value, wanted.take(of_query)), fill_value=False)
            of_query, keys = of_query.filter(equal), keys.filter(equal)
        counts = np.bincount(of_query.to_numpy(), minlength=len(messages))
        if self.is_number:
            return pa.array(counts if self.output == "counts" else counts > 0)
        kept = ["key", *self.columns]
        values = (
            pa.StructArray.from_arrays([keys.field(name) for name in kept], kept) if self.columns else keys.field(0)
        )
        return pa.ListArray.from_arrays(np.append(0, np.cumsum(counts)).astype(np.int32), values)

    def count(self, index: TagMatch[Any], messages: pa.RecordBatch) -> pa.Array:
        """How many keys some messages have, before those are left out that are not wanted once more."""
        return index.match_counts(messages, only=self.only)

    def joined_to(self, queries: pa.RecordBatch, found: pa.Array) -> Iterator[pa.RecordBatch]:
        """The queries and their answers, in batches of bounded size."""
        if self.output == "rows":
            keys = as_spark(found.values, self.fields[0].dataType)
            yield from _key_by_key(queries, found.offsets.to_numpy(), self._schema(queries), keys)
            return
        (own,) = self.fields
        answers = as_spark(found, own.dataType)
        for some in few_keys(found):
            yield pa.RecordBatch.from_arrays([*queries[some].columns, answers[some]], schema=self._schema(queries))

    def _schema(self, queries: pa.RecordBatch) -> pa.Schema:
        added = [pa.field(each.name, arrow_type(each.dataType), nullable=each.nullable) for each in self.fields]
        return pa.schema([*queries.schema, *added])


def _explained(found: pa.ListArray) -> pa.ListArray:
    """Keys with the tags and tests of their sets, in one struct each."""
    keys, *own = found.values.flatten()
    sets = pa.StructArray.from_arrays(own, _SET.names)
    return pa.ListArray.from_arrays(found.offsets, pa.StructArray.from_arrays([keys, sets], ["key", "set"]))


def _type_of_data(kind: pa.DataType) -> DataType:
    """What Spark has for values of a column of data: for unsigned integers, the next larger type."""
    if pa.types.is_dictionary(kind):
        return StringType()
    if pa.types.is_unsigned_integer(kind):
        of_bits = {8: ShortType(), 16: from_arrow_type(pa.int32()), 32: LongType(), 64: DecimalType(20, 0)}
        return of_bits[kind.bit_width]
    return from_arrow_type(kind)


def as_spark(values: pa.Array, kind: DataType) -> pa.Array:
    """Values of an answer as Spark has them; InvalidValueError for a key that is no `long`."""
    if isinstance(kind, ArrayType):
        own = as_spark(values.values, kind.elementType)
        return pa.ListArray.from_arrays(values.offsets, own).cast(arrow_type(kind))
    if isinstance(kind, StructType):
        fields = zip(values.flatten(), kind.fields, strict=True)
        return pa.StructArray.from_arrays([as_spark(each, own.dataType) for each, own in fields], kind.names)
    if isinstance(kind, LongType) and values.type == pa.uint64():
        return signed(values)
    return values.cast(arrow_type(kind), safe=False)  # Spark's times have microseconds


def signed(keys: pa.Array) -> pa.Array:
    """Keys, uint64, as Spark's `long`; InvalidValueError for a key that is too large."""
    signed = keys.view(pa.int64())
    values = signed.to_numpy()
    if len(values) and values.min() < 0:
        key = int(values.view(np.uint64).max())
        raise InvalidValueError(
            f"key {key} of the index is above 2**63 - 1, the greatest `long` of Spark; give such sets smaller keys"
        )
    return signed


def _key_by_key(
    queries: pa.RecordBatch, offsets: IntArray, schema: pa.Schema, keys: pa.Array
) -> Iterator[pa.RecordBatch]:
    rows = np.repeat(np.arange(len(queries)), np.diff(offsets))
    # Few enough for Arrow's 32-bit offsets even if all of them repeat one query that has all the bytes
    step = max(1, min(_BATCH_KEYS, _BATCH_BYTES // max(1, queries.nbytes)))
    for first in range(0, len(rows), step):
        repeated = queries.take(pa.array(rows[first : first + step]))
        yield pa.RecordBatch.from_arrays([*repeated.columns, keys.slice(first, step)], schema=schema)


def few_keys(found: pa.Array) -> Iterator[slice]:
    """Some of the queries after the other, with about as many keys; numbers are few."""
    if not pa.types.is_list(found.type):
        return iter([slice(0, len(found))])
    offsets = found.offsets.to_numpy()
    marks = np.arange(0, int(offsets[-1]), _BATCH_KEYS)
    edges = np.unique(np.concatenate([[0], np.searchsorted(offsets, marks, side="right") - 1, [len(found)]]))
    return (slice(first, last) for first, last in pairwise(edges.tolist()))


def in_parts(
    queries: pa.RecordBatch,
    ask: Callable[[pa.RecordBatch], pa.Array],
    count: Callable[[pa.RecordBatch], pa.Array],
) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    """Some of the queries after the other, with their answers; at most `MOST_KEYS` keys are in memory at once.

    Where they have more keys, which is known before these are looked up, they are counted, and asked in parts.
    """
    for first in range(0, len(queries), QUERIES):
        some = queries.slice(first, QUERIES)
        try:
            with at_most_keys(MOST_KEYS):
                found = ask(some)
        except ResultTooLargeError:
            pass
        else:
            yield some, found
            continue
        ends = np.cumsum(count(some).to_numpy().astype(np.int64))
        edges = [0, *(np.flatnonzero(np.diff(ends // MOST_KEYS)) + 1).tolist(), len(some)]
        for begin, end in pairwise(edges):
            part = some.slice(begin, end - begin)
            yield part, ask(part)


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


def check_types(asked: AskedColumns, schema: pa.Schema, called: Mapping[str, str]) -> None:
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
            kind = spark_name(schema.types[places[LOCATION]])
            raise InvalidTypeError(f"{called[LOCATION]} must be a struct or an array of lon, lat, not {kind}")
        locations_of_rows(messages.column(LOCATION), called[LOCATION], plane=False, first_row=0)
    if WITHIN in places:
        shapes_in(messages.column(WITHIN), called[WITHIN], plane=False)
    messages_in([with_own_columns(messages.drop_columns(list(places)))])


def check_equal(data: StructField, own: DataType) -> None:
    """See that a column of data and one of the queries can be equal."""
    integers = (IntegralType, DecimalType)
    if own != data.dataType and not (isinstance(own, IntegralType) and isinstance(data.dataType, integers)):
        raise InvalidTypeError(
            f"on: column {data.name!r} of the queries is {own.simpleString()}, and the index has "
            f"{data.dataType.simpleString()}; cast one"
        )


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
