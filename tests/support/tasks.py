"""Spark's part without a JVM: frames in partitions, whose tasks are called with batches of Arrow, one after the other.

It knows what tagmatch asks of Spark. What Spark leaves open is drawn: how rows are cut into batches, in which order
they come through a shuffle, which partitions of it are put together, and which jobs run once more.
"""

from __future__ import annotations

import random
import re
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row
from pyspark.sql import types as t
from pyspark.sql.conversion import ArrowTableToRowsConversion, LocalDataToArrowConversion
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema, to_arrow_type
from pyspark.sql.udtf import AnalyzeArgument

from tagmatch.partitioner.spark import serialized
from tagmatch.spark import match_udf, offline, ship, shuffle
from tagmatch.spark.source import TagMatchSource

_SIMPLE: dict[str, t.DataType] = {
    "string": t.StringType(), "long": t.LongType(), "bigint": t.LongType(), "int": t.IntegerType(),
    "short": t.ShortType(), "double": t.DoubleType(), "boolean": t.BooleanType(), "binary": t.BinaryType(),
    "timestamp": t.TimestampType(), "date": t.DateType(), "void": t.NullType(),
}  # fmt: skip
_SETTINGS = {"spark.sql.shuffle.partitions": "4", "spark.sql.adaptive.coalescePartitions.enabled": "true"}


def type_of(ddl: str) -> t.DataType:
    """A type as Spark writes it."""
    tokens = re.findall(r"`[^`]+`|[^\s<>(),:]+|[<>(),]", ddl)[::-1]

    def several(end: str, one: Callable[[], Any]) -> list[Any]:
        found = []
        while tokens and tokens[-1] != end:
            found.append(one())
            if tokens and tokens[-1] == ",":
                tokens.pop()
        if tokens:
            tokens.pop()
        return found

    def field() -> t.StructField:
        return t.StructField(tokens.pop().strip("`"), kind())

    def kind() -> t.DataType:
        name = tokens.pop()
        if name in _SIMPLE:
            return _SIMPLE[name]
        tokens.pop()
        if name == "struct":
            return t.StructType(several(">", field))
        if name == "decimal":
            return t.DecimalType(*several(")", lambda: int(tokens.pop())))
        return {"array": t.ArrayType, "map": t.MapType}[name](*several(">", kind))

    if " " not in re.sub(r"<.*>|\(.*\)|, ", "", ddl.strip()):
        return kind()
    return t.StructType(several("", field))


def _arrow_schema(schema: t.StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


# -- columns ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of what is selected: of a partition, and of its number; or, to be exploded, lists of its rows."""

    name: str
    of: Callable[[pa.Table, int], pa.Array]
    exploded: bool = False

    def alias(self, name: str) -> Column:
        return replace(self, name=name)

    def cast(self, ddl: str) -> Column:
        kind = to_arrow_type(type_of(ddl))
        return replace(self, of=lambda table, number: self.of(table, number).cast(kind))


def col(name: str) -> Column:
    name = name.strip("`")
    return Column(name, lambda table, _: table.column(name).combine_chunks())


def _over(column: Column, values: Callable[[pa.Array], pa.Array]) -> Column:
    """One list, of the values that are made of a column."""

    def of(table: pa.Table, number: int) -> pa.Array:
        found = values(column.of(table, number))
        return pa.ListArray.from_arrays([0, len(found)], found)

    return replace(column, of=of)


class Functions:
    """Those of `pyspark.sql.functions`."""

    @staticmethod
    def struct(*names: str) -> Column:
        def of(table: pa.Table, _: int) -> pa.Array:
            some = table if names == ("*",) else table.select(names)
            return some.combine_chunks().to_struct_array().combine_chunks()

        return Column("struct", of)

    @staticmethod
    def xxhash64(name: str) -> Column:
        def of(table: pa.Table, _: int) -> pa.Array:
            column = table.column(name.strip("`").replace("``", "`"))
            return pa.array([zlib.crc32(repr(row).encode()) - (1 << 31) for row in column.to_pylist()], pa.int64())

        return Column("hash", of)

    @staticmethod
    def monotonically_increasing_id() -> Column:
        return Column("id", lambda table, number: pa.array(np.arange(len(table)) + (number << 33)))

    @staticmethod
    def collect_list(name: str) -> Column:
        return _over(col(name), lambda array: array)

    @staticmethod
    def flatten(lists: Column) -> Column:
        return _over(lists, lambda array: array.flatten().flatten())

    @staticmethod
    def array_distinct(lists: Column) -> Column:
        return _over(lists, lambda array: array.flatten().unique())

    @staticmethod
    def first(name: str, *, ignorenulls: bool) -> Column:
        assert ignorenulls
        return Column(name, lambda table, _: table.column(name).combine_chunks().drop_null()[:1])

    @staticmethod
    def explode(name: str) -> Column:
        return replace(col(name), exploded=True)


# -- frames ----------------------------------------------------------------------------------------------------------


class Frame(DataFrame):
    """Partitions, which are made each time that they are asked for."""

    isStreaming = False  # noqa: N815

    def __new__(cls, *_: Any) -> Frame:
        return object.__new__(cls)

    def __init__(
        self, spark: Session, schema: t.StructType, parts: Callable[[], list[pa.Table]], plan: str = ""
    ) -> None:
        self._spark, self._schema, self._parts, self._plan = spark, schema, parts, plan

    sparkSession = property(lambda self: self._spark)  # noqa: N815
    schema = property(lambda self: self._schema)
    columns = property(lambda self: self._schema.names)
    dtypes = property(lambda self: [(field.name, field.dataType.simpleString()) for field in self._schema])
    write = property(lambda self: _Ways(save=self._save))

    def _after(self, change: Callable[[list[pa.Table]], list[pa.Table]], schema: t.StructType | None = None) -> Frame:
        return Frame(self._spark, schema or self._schema, lambda: change(self._parts()), self._plan)

    def select(self, *names: str | Column) -> Frame:
        columns = [column for name in names for column in self._columns(name)]

        def selected(table: pa.Table, number: int) -> pa.Table:
            arrays = [column.of(table, number) for column in columns]
            exploded = next((array for column, array in zip(columns, arrays, strict=True) if column.exploded), None)
            if exploded is not None:
                rows = pc.list_parent_indices(exploded)
                arrays = [
                    array.flatten() if column.exploded else array.take(rows)
                    for column, array in zip(columns, arrays, strict=True)
                ]
            return pa.table(arrays, [column.name for column in columns])

        schema = from_arrow_schema(selected(_arrow_schema(self._schema).empty_table(), 0).schema)
        return self._after(lambda parts: [selected(part, number) for number, part in enumerate(parts)], schema)

    def _columns(self, name: str | Column) -> list[Column]:
        if isinstance(name, Column):
            return [name]
        if not name.endswith(".*"):
            return [col(name)]
        struct = col(name[:-2])
        return [
            Column(field, lambda table, number, place=place: struct.of(table, number).flatten()[place])
            for place, field in enumerate(self._schema[name[:-2]].dataType.names)
        ]

    def withColumnRenamed(self, before: str, name: str) -> Frame:
        return self.select(*(col(each).alias(name if each == before else each) for each in self.columns))

    def drop(self, name: str) -> Frame:
        return self.select(*(each for each in self.columns if each != name))

    def mapInArrow(self, task: Any, schema: Any) -> Frame:
        schema = schema if isinstance(schema, t.StructType) else type_of(schema)
        pickled, kinds, spark = cloudpickle.dumps(task), _arrow_schema(schema), self._spark

        def made(parts: list[pa.Table]) -> list[pa.Table]:
            spark.begins_stage(len(parts))
            found = []
            for number, part in enumerate(parts):
                with task_of(number):
                    batches = list(cloudpickle.loads(pickled)(spark.batches(part)))
                assert all(batch.schema.names == kinds.names for batch in batches)
                found.append(pa.Table.from_batches([batch.cast(kinds) for batch in batches], kinds))
            return found

        name = getattr(task, "__name__", "") or getattr(task, "func", task).__name__
        return Frame(spark, schema, lambda: made(self._parts()), f"{self._plan} {name}")

    def union(self, other: Any) -> Frame:
        return Frame(self._spark, self._schema, lambda: self._parts() + other._parts(), self._plan + other._plan)

    def repartition(self, count: int | str, column: str | None = None) -> Frame:
        by = count if isinstance(count, str) else column
        together = self._spark.rng.randint(1, 4)

        def number_of(row: Any, groups: int) -> int:
            return (row if isinstance(row, int) else zlib.crc32(repr(row).encode())) % groups

        def places(part: pa.Table, groups: int) -> Any:
            if by is None:
                return [row % groups for row in range(len(part))]
            return [number_of(row, groups) for row in part.column(by).to_pylist()]

        return self._after(lambda parts: self._spark.shuffled(parts, places, None if count == by else count, together))

    def coalesce(self, count: int) -> Frame:
        assert count == 1
        return self._after(lambda parts: [pa.concat_tables(parts)])

    def repartitionByRange(self, name: str) -> Frame:
        bounds: list[bytes] = []

        def places(part: pa.Table, _: int) -> Any:
            return [sum(bound <= row for bound in bounds) for row in part.column(name).cast(pa.binary()).to_pylist()]

        def ranged(parts: list[pa.Table]) -> list[pa.Table]:
            rows = sorted(row for part in parts for row in part.column(name).cast(pa.binary()).to_pylist())
            bounds[:] = rows[:: max(1, len(rows) // 3)][1:4]
            return self._spark.shuffled(parts, places, len(bounds) + 1)

        return self._after(ranged)

    def sortWithinPartitions(self, name: str) -> Frame:
        def in_order(part: pa.Table) -> pa.Table:
            keys = part.column(name)
            keys = keys.cast(pa.binary()) if pa.types.is_string(keys.type) else keys
            return part.take(pc.array_sort_indices(keys.combine_chunks()))

        return self._after(lambda parts: [in_order(part) for part in parts])

    def distinct(self) -> Frame:
        (name,) = self.columns
        return self.repartition(name)._after(lambda parts: [part.group_by(name).aggregate([]) for part in parts])

    def groupBy(self, name: str) -> Any:
        def agg(*columns: Column) -> Frame:
            columns = (Column(name, lambda table, _: table.column(name).combine_chunks()[:1]), *columns)

            def whole(part: pa.Table) -> pa.Table:
                groups = [part.filter(pc.field(name) == row) for row in part.column(name).unique()] or [part[:0]]
                names = [each.name for each in columns]
                return pa.concat_tables(
                    pa.table([each.of(some, 0)[: len(some)] for each in columns], names) for some in groups
                )

            schema = from_arrow_schema(whole(_arrow_schema(self._schema).empty_table()).schema)
            return self.repartition(name)._after(lambda parts: [whole(part) for part in parts], schema)

        return SimpleNamespace(agg=agg)

    def toArrow(self) -> pa.Table:
        found = self._parts()
        if self._spark.loses_tasks():
            found = self._parts()
        if not self._plan:
            self._spark.begins_stage(len(found))
        return pa.concat_tables(found or [_arrow_schema(self._schema).empty_table()])

    def collect(self) -> list[Row]:
        return ArrowTableToRowsConversion.convert(self.toArrow(), self._schema)

    def count(self) -> int:
        return len(self.toArrow())

    def persist(self) -> Frame:
        return self

    def unpersist(self) -> None: ...

    def explain(self) -> None:
        print(self._plan)

    def _save(self, way: _Ways, path: str) -> None:
        source = self._spark.source({**way.given, "path": path})
        self._spark.write(self, source.writer(self._schema, way.how == "overwrite"))


class _Ways:
    """What `read` and `write` are told."""

    def __init__(self, **actions: Any) -> None:
        self.given, self.how, self.columns, self._actions = dict[str, str](), "error", None, actions

    def format(self, name: str) -> _Ways:
        assert name == "tagmatch"
        return self

    def mode(self, how: str) -> _Ways:
        self.how = how
        return self

    def options(self, **given: object) -> _Ways:
        self.given |= {name: str(value) for name, value in given.items()}
        return self

    def option(self, name: str, value: object) -> _Ways:
        return self.options(**{name: value})

    def schema(self, ddl: str) -> _Ways:
        self.columns = type_of(ddl)
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda path="": self._actions[name](self, path)


@contextmanager
def task_of(number: int, **properties: str) -> Iterator[None]:
    """The task that makes a partition; its errors come as Spark tells them."""
    context = TaskContext._getOrCreate()
    context._partitionId, context._localProperties = number, properties
    try:
        yield
    except Exception:
        raise PythonException(f"An exception was thrown from the Python worker:\n{traceback.format_exc()}") from None
    finally:
        TaskContext._setTaskContext(None)


class Session:
    """A session; `rng` draws what Spark leaves open."""

    read = property(lambda self: _Ways(load=self._load))

    def __init__(self, rng: random.Random) -> None:
        self.rng, settings, functions = rng, dict(_SETTINGS), dict[str, Any]()
        self.loses_tasks, self.stages = lambda: rng.random() < 0.1, list[tuple[str | None, int]]()
        self.conf = SimpleNamespace(
            get=settings.get, set=settings.__setitem__, unset=lambda name: settings.pop(name, None), getAll=settings
        )
        self.source: type[TagMatchSource] = TagMatchSource
        self.dataSource = SimpleNamespace(register=lambda found: setattr(self, "source", found))
        self.udtf = SimpleNamespace(register=lambda name, found: functions.update({name: found.func}))
        self.functions = functions

    def createDataFrame(self, rows: Iterable[Any], schema: str) -> Frame:
        kinds = type_of(schema)
        assert isinstance(kinds, t.StructType)
        table, rows = _arrow_schema(kinds).empty_table(), list(rows)
        if rows:
            table = LocalDataToArrowConversion.convert(rows, kinds, False).cast(table.schema)
        half = len(table) // 2
        return Frame(self, kinds, lambda: [table[:half], table[half:]])

    def range(self, first: int, last: int, step: int, count: int) -> Frame:
        numbers = np.arange(first, last, step)
        parts = [pa.table({"id": some}) for some in np.array_split(numbers, count) if last > first]
        return Frame(self, t.StructType([t.StructField("id", t.LongType())]), lambda: parts)

    def sql(self, text: str) -> Any:
        """The one that `labels_for` asks."""
        count = int(re.search(r"pmod\(hash\(number\), (\d+)\)", text)[1])  # type: ignore[index]
        return SimpleNamespace(first=lambda: {"partitions": [number % count for number in range(64 * count + 1)]})

    def save_epoch(self, frame: Frame, epoch: int, path: str, **given: str) -> None:
        """A micro-batch of a stream."""
        writer = self.source({**given, "path": path}).streamWriter(frame.schema, False)
        self.write(frame, writer, epoch, **{"sql.streaming.queryId": "query"})

    def write(self, frame: Frame, writer: Any, *epoch: int, **properties: str) -> None:
        kinds, written = _arrow_schema(frame.schema), []
        try:
            for number, part in enumerate(frame._parts()):
                with task_of(number, **properties):
                    task = cloudpickle.loads(cloudpickle.dumps(writer))
                    written.append(task.write(self.batches(part.cast(kinds))))
        except PythonException:
            writer.abort(written, *epoch)
            raise
        writer.commit(cloudpickle.loads(cloudpickle.dumps(written)), *epoch)

    def begins_stage(self, tasks: int) -> None:
        self.stages += [(self.conf.get("spark.job.description"), tasks)] if tasks else []

    def batches(self, part: pa.Table) -> Iterator[pa.RecordBatch]:
        """A partition cut anywhere; each batch comes in a message of its own, as to a worker."""
        part, first = part.combine_chunks(), 0
        while first < len(part):
            count = self.rng.choice([1, 100, 10_000])
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, part.schema) as stream:
                stream.write_table(part.slice(first, count))
            with pa.ipc.open_stream(sink.getvalue()) as stream:
                yield from stream
            first += count

    def shuffled(
        self, parts: list[pa.Table], places: Any, count: int | None = None, together: int = 1
    ) -> list[pa.Table]:
        """Rows where they belong, in blocks of one task for each partition; so many neighbours may be put together."""
        groups = int(count or self.conf.get("spark.sql.shuffle.partitions"))
        found = [(part, np.array(places(part, groups), np.int64)) for part in parts]
        if count or self.conf.get("spark.sql.adaptive.coalescePartitions.enabled") == "false":
            together = 1
        blocks = [[part.filter(of_rows == group) for part, of_rows in found] for group in range(groups) if parts]
        joined = [list(chain(*blocks[first : first + together])) for first in range(0, len(blocks), together)]
        return [pa.concat_tables(self.rng.sample(some, len(some))) for some in joined]

    def _load(self, way: _Ways, path: str) -> Frame:
        source = self.source({**way.given, "path": path})
        schema = way.columns or source.schema()

        def parts() -> list[pa.Table]:
            reader, found = source.reader(schema), list[pa.Table]()
            for number, part in enumerate(reader.partitions()):
                with task_of(number):
                    task, some = cloudpickle.loads(cloudpickle.dumps((reader, part)))
                    found.append(pa.Table.from_batches(task.read(some), _arrow_schema(schema)))
            return found or [_arrow_schema(schema).empty_table()]

        return Frame(self, schema, parts)


def called(
    way: str, frame: Any, index: object, *, unique: bool = False, **arguments: str | Sequence[str] | None
) -> dict[Any, list[Any]]:
    """The keys that a function gives for each row, by its first column.

    Parameters
    ----------
    way : {"sql", "column"}
        By `tagmatch_match` or by `match_udf`.
    **arguments : str, sequence of str or None
        A column, several as a struct, or NULL.
    """
    names, call = {"tags": "tags", **arguments}, _called if isinstance(frame, Frame) else _called_by_spark
    found = {row[0]: list[Any]() for row in frame.select(frame.columns[0]).collect()}
    for first, key in call(way, frame, str(index), unique, names):
        found[first].append(key)
    return {first: sorted(keys) for first, keys in found.items()}


def _called_by_spark(way: str, frame: Any, index: str, unique: bool, names: Mapping[str, Any]) -> list[Any]:
    def text(given: Any) -> str:
        return given if isinstance(given, str) else f"struct({', '.join(given)})" if given else "NULL"

    frame.createOrReplaceTempView("asked")
    given = "".join(f", {name} => {text(each)}" for name, each in names.items())
    first, spark = frame.columns[0], frame.sparkSession
    if way == "sql":
        match = f"tagmatch_match(index => '{index}'{given})"
        return [tuple(row) for row in spark.sql(f"SELECT {first}, m.key FROM asked, LATERAL {match} m").collect()]
    spark.udf.register("keys_of", match_udf(index, unique=unique))
    return [tuple(row) for row in spark.sql(f"SELECT {first}, explode(keys_of({given[2:]})) FROM asked").collect()]


def _called(way: str, frame: Frame, index: str, unique: bool, names: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    null = Column("null", lambda table, _: pa.nulls(len(table)))
    columns = {
        name: col(each) if isinstance(each, str) else Functions.struct(*each) if each else null
        for name, each in names.items()
    }
    asked = frame.select(frame.columns[0], *(column.alias(name) for name, column in columns.items()))
    (first, *fields) = asked.schema
    if way == "column":
        match = match_udf(index, unique=unique)

        def tagmatch_match(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                keys = match.func(**{name: batch.column(place) for place, name in enumerate(names, 1)})
                yield pa.record_batch([batch.column(0), keys], [first.name, "keys"])

        schema = t.StructType([first, t.StructField("keys", match.returnType)])
        for number, keys in asked.mapInArrow(tagmatch_match, schema).collect():
            yield from ((number, key) for key in keys)
        return
    given = {field.name: AnalyzeArgument(field.dataType, None, False, False) for field in fields}
    function = frame.sparkSession.functions["tagmatch_match"]
    analyzed = cloudpickle.dumps(function.analyze(index=AnalyzeArgument(t.StringType(), index, False, True), **given))
    for number, part in enumerate(asked._parts()):
        with task_of(number):
            task = function(cloudpickle.loads(analyzed))
            for place, *values in ArrowTableToRowsConversion.convert(part, asked.schema):
                for (key,) in list(task.eval(index=index, **dict(zip(given, values, strict=True)))):
                    yield place, key


@contextmanager
def session(seed: int) -> Iterator[Session]:
    """One whose functions tagmatch calls in the place of Spark's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offline, "col", col)
        for module in (ship, shuffle):
            patch.setattr(module, "functions", Functions)
        patch.setattr(serialized, "_partitions", {})
        patch.setattr(ship, "_opened", {})
        yield Session(random.Random(seed))
        for _, opened in ship._opened.values():
            opened.close()
