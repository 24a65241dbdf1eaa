"""What is wanted of an index for each query, and the columns that answers add to queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, Self, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, functions
from pyspark.sql.pandas.types import from_arrow_type
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

from tagmatch.best import asked_order, check_best, limit_of
from tagmatch.contents import schema_of_data
from tagmatch.embedded import TagMatch
from tagmatch.model.arrays import F64Array, I64Array, offsets_of
from tagmatch.model.data_types import Schema, some_columns
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, ResultTooLargeError
from tagmatch.model.input.messages import attribute_numbers, queries_of
from tagmatch.model.input.values import as_doubles
from tagmatch.model.options import KeyType, check_one_of
from tagmatch.model.storage.format import Manifest, key_type_of
from tagmatch.model.storage.repository import Repository
from tagmatch.only import DataTest
from tagmatch.pipeline.tags import at_most_keys
from tagmatch.scores import score_of
from tagmatch.spark.columns import arrow_type

Output = Literal["rows", "lists", "counts", "exists"]

#: Which queries have rows, as SQL's joins say
How = Literal["inner", "left", "semi", "anti"]

#: Name of the column that each output adds
_NAMES: dict[Output, str] = {"rows": "key", "lists": "keys", "counts": "count", "exists": "exists"}

#: What a column is called that goes before the end
PARTS = "tagmatch answers"

#: What Spark has for keys
KEY_TYPES = {"integer": LongType(), "string": StringType()}

_TEXTS = ArrayType(StringType(), containsNull=False)
# The conditions of a set, all of them held
_SET = StructType([StructField("tags", _TEXTS, nullable=False), StructField("tests", _TEXTS, nullable=False)])

_BATCH_KEYS = 1 << 16

#: Queries that are asked together, and the keys that these may have, if they are more than one: 16 MiB of numbers
QUERIES, MOST_KEYS = 4096, 1 << 21


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What is wanted of an index for each query, as the arguments of `subset_join` say."""

    output: Output = "rows"
    unique: bool = False
    only: str | None = None
    columns: tuple[str, ...] = ()  # Of data, besides keys
    limit: int | None = None  # Of the best keys of each query, by one of the next two, or the least
    order_by: str | None = None
    score: str | None = None
    how: How = "inner"
    # Columns of data, as Spark has them, that have to be equal to those of the queries
    on: tuple[StructField, ...] = ()
    explain: bool = False  # Whether each key comes with the tags and tests of its set
    skip_invalid: bool = False
    plane: bool = False  # Whether areas and places are on the plane
    key_type: KeyType = "integer"
    fields: tuple[StructField, ...] = ()  # The columns that are added
    data: Schema = field(default_factory=dict)  # All columns of data that answers are found by, or have
    by: tuple[str, ...] = ()  # Those of them that say which keys are the best

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
        if asked.is_wide and asked.is_number:
            option = "explain" if asked.explain else "columns"
            raise InvalidValueError(f"{option} comes with keys, not with output {asked.output!r}; leave one out")
        if asked.explain and (asked.columns or on or asked.unique or best):
            other = "columns" if asked.columns else "on" if on else "limit" if best else "unique"
            raise InvalidValueError(f"explain does not go with {other}; leave one out")
        if best and asked.output in ("counts", "exists"):
            raise InvalidValueError(f"limit goes with keys, not with output {asked.output!r}; leave one out")
        if on and asked.score is not None:
            raise InvalidValueError("score does not go with on; leave one out, or order by a column")
        schema: Schema = {}
        if asked.columns or on or best or asked.only is not None:
            schema = schema_of_data(index.in_place(manifest["snapshot"]).snapshot)  # of a store, the ends of tables
        of_only = [] if asked.only is None else DataTest(asked.only, schema).names
        if best:
            limit_of(asked.limit)
            check_best(schema, asked.order_by, asked.score)
            asked = replace(asked, by=asked._best_by(schema))
        some_columns(asked.columns, schema)
        equal = tuple(StructField(name, type_of_data(kind)) for name, kind in some_columns(on, schema, "on").items())
        needed = {name: schema[name] for name in (*asked.columns, *on, *asked.by, *of_only)}
        asked = replace(asked, on=equal, data=needed)
        return replace(asked, fields=asked._fields())

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
    def is_number(self) -> bool:
        """Whether an answer is one number, or whether there is any key."""
        return self.output in ("counts", "exists")

    @property
    def of_part(self) -> Self:
        """What is asked of parts of the sets, if what these answer is put together."""
        if self.output == "exists" or (self.output == "counts" and not self.unique):
            return self
        part = replace(self, output="lists", columns=tuple(dict.fromkeys((*self.columns, *self.by))))
        return replace(part, fields=(StructField(PARTS, part._fields()[0].dataType, nullable=False),))

    def _best_by(self, schema: Schema) -> tuple[str, ...]:
        """The columns of data by which keys are the best."""
        if self.order_by is not None:
            return asked_order(schema, self.order_by)[:1]
        return () if self.score is None else tuple(name for name in score_of(self.score).names if name in schema)

    def _fields(self) -> tuple[StructField, ...]:
        called = _NAMES[self.output]
        if self.is_number:
            return (StructField(called, LongType() if self.output == "counts" else BooleanType(), nullable=False),)
        key = StructField("key", KEY_TYPES[self.key_type], nullable=False)
        own = (key, *(StructField(name, type_of_data(self.data[name])) for name in self.columns))
        if self.explain:
            own = (key, StructField("set", _SET, nullable=False))
        if self.output == "rows":
            return own
        kind = ArrayType(StructType([*own]) if len(own) > 1 else key.dataType, containsNull=False)
        return (StructField(called, kind, nullable=False),)

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
            return index.match_best(
                messages,
                limit=self.limit,
                order_by=self.order_by,
                score=self.score,
                only=self.only,
                columns=self.columns or None,
            )
        return index.match_many(messages, unique=self.unique, only=self.only, columns=self.columns or None)

    def _ask_on(self, index: TagMatch[Any], messages: pa.RecordBatch, on: Sequence[pa.Array]) -> pa.Array:
        """The same of keys whose data is equal to these columns; a null is equal to nothing."""
        names = dict.fromkeys([*(each.name for each in self.on), *self.columns, *self.by])
        found = index.match_many(messages, unique=self.unique, only=self.only, columns=list(names))
        of_query, keys = pc.list_parent_indices(found), found.flatten()
        for own, wanted in zip(self.on, on, strict=True):
            value = as_spark(keys.field(own.name), own.dataType)
            if value.type != wanted.type:  # integers of any width, or strings and times in another form
                kind = value.type
                if isinstance(own.dataType, IntegralType | DecimalType):
                    kind = pa.decimal256(76, getattr(own.dataType, "scale", 0))
                value, wanted = value.cast(kind), wanted.cast(kind)
            equal = pc.fill_null(pc.equal(value, wanted.take(of_query)), fill_value=False)
            of_query, keys = of_query.filter(equal), keys.filter(equal)
        counts = np.bincount(of_query.to_numpy(), minlength=len(messages))
        if self.is_number:
            return pa.array(counts if self.output == "counts" else counts > 0)
        lists = pa.ListArray.from_arrays(offsets_of(counts).astype(np.int32), keys)
        return self._with_columns(lists) if self.limit is None else self.best_of(messages, lists)

    def best_of(self, messages: pa.RecordBatch, found: pa.ListArray) -> pa.ListArray:
        """The best keys of each message, each once, of structs of keys and of the data by which they are the best."""
        owners, structs = pc.list_parent_indices(found).to_numpy().astype(np.int64), found.flatten()
        keys = structs.field("key") if pa.types.is_struct(structs.type) else structs
        by = pa.table({"owner": owners, "value": self._values(messages, owners, structs), "key": keys})
        way = "ascending" if self.order_by is None else asked_order(self.by, self.order_by)[1]
        if self.score is not None:
            way = "descending"
        order = pc.sort_indices(by, [("owner", "ascending"), ("value", way), ("key", "ascending")]).to_numpy()
        owners, numbers = owners[order], keys.dictionary_encode().indices.to_numpy()[order]
        is_new = np.ones(len(order), np.bool_)
        is_new[1:] = (owners[1:] != owners[:-1]) | (numbers[1:] != numbers[:-1])
        order, owners = order[is_new], owners[is_new]
        assert self.limit is not None
        is_best = np.arange(len(order)) - np.searchsorted(owners, owners) < self.limit
        offsets = offsets_of(np.bincount(owners[is_best], minlength=len(found))).astype(np.int32)
        return self._with_columns(pa.ListArray.from_arrays(offsets, structs.take(pa.array(order[is_best]))))

    def _values(self, messages: pa.RecordBatch, owners: I64Array, structs: pa.Array) -> pa.Array:
        """By what keys of messages, which own some each, are in order."""
        if self.score is None:
            values = structs.field(self.by[0]) if self.by else pa.nulls(len(structs), pa.int8())
            return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values

        def of(name: str) -> F64Array:
            if name in self.by:
                return as_doubles(structs.field(name))
            (rows,) = queries_of(messages, plane=self.plane).chunks
            return attribute_numbers(rows, 0, len(messages), name)[owners]

        values = score_of(self.score).values(len(structs), of)
        return pa.array(values, mask=np.isnan(values))

    def _with_columns(self, found: pa.ListArray) -> pa.ListArray:
        """Keys, or structs of them and of the columns that come with each, of structs that may have more."""
        structs = found.values
        if pa.types.is_struct(structs.type):
            names = ["key", *self.columns]
            own = [structs.field(name) for name in names]
            structs = pa.StructArray.from_arrays(own, names) if self.columns else own[0]
        return pa.ListArray.from_arrays(found.offsets, structs)

    def count(self, index: TagMatch[Any], messages: pa.RecordBatch) -> pa.Array:
        """How many keys some messages have, before those are left out that are not wanted once more."""
        return index.match_counts(messages, only=self.only)

    def spread(self, found: Column) -> Column:
        """A row for each key of the lists that answer queries, as Spark itself makes them."""
        outer = "_outer" if self.how == "left" else ""
        spread: Column = getattr(functions, f"{'inline' if self.is_wide else 'explode'}{outer}")(found)
        return spread if self.is_wide else spread.alias(self.fields[0].name)

    def joined_to(self, queries: pa.RecordBatch, numbers: I64Array, found: pa.Array) -> Iterator[pa.RecordBatch]:
        """A row for each answer, with the query that has this number, in batches of bounded size."""
        (own,) = self.fields
        answers = as_spark(found, own.dataType)
        schema = queries.schema.append(pa.field(own.name, answers.type, nullable=False))
        for some in few_keys(found):
            columns = queries.take(pa.array(numbers[some])).columns
            yield pa.RecordBatch.from_arrays([*columns, answers[some]], schema=schema)


def _explained(found: pa.ListArray) -> pa.ListArray:
    """Keys with the tags and tests of their sets, in one struct each."""
    keys, *own = found.values.flatten()
    sets = pa.StructArray.from_arrays(own, _SET.names)
    return pa.ListArray.from_arrays(found.offsets, pa.StructArray.from_arrays([keys, sets], ["key", "set"]))


def type_of_data(kind: pa.DataType) -> DataType:
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


def in_short_lists(found: pa.ListArray) -> tuple[I64Array, pa.ListArray]:
    """The keys in lists that are neither empty nor long, and the number of the list that each is a part of."""
    offsets = found.offsets.to_numpy()
    edges = np.unique(np.concatenate([offsets, np.arange(offsets[0], offsets[-1], _BATCH_KEYS, dtype=offsets.dtype)]))
    numbers = np.searchsorted(offsets, edges[:-1], side="right") - 1
    return numbers, pa.ListArray.from_arrays(edges, found.values)


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


def check_equal(data: StructField, own: DataType) -> None:
    """See that a column of data and one of the queries can be equal."""
    integers = (IntegralType, DecimalType)
    if own != data.dataType and not (isinstance(own, IntegralType) and isinstance(data.dataType, integers)):
        raise InvalidTypeError(
            f"on: column {data.name!r} of the queries is {own.simpleString()}, and the index has "
            f"{data.dataType.simpleString()}; cast one"
        )
