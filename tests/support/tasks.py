"""Spark's part without a JVM: frames in partitions, whose tasks are called with batches of Arrow, one after the other.

It knows what tagmatch asks of Spark. What Spark leaves open is drawn: how rows are cut into batches, in which order
they come through a shuffle, which partitions of it are put together, and which jobs run once more.
"""

from __future__ import annotations

import random
import re
import sys
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate, chain, pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row
from pyspark.sql import types as t
from pyspark.sql.conversion import ArrowTableToRowsConversion, LocalDataToArrowConversion
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema, to_arrow_type

from tagmatch.model.where.constraints import in_backquotes
from tagmatch.partitioner.spark import batches as serialized
from tagmatch.spark import answers, join, ship, shuffle
from tagmatch.spark.source import TagMatchSource

_SIMPLE: dict[str, t.DataType] = {
    "string": t.StringType(), "long": t.LongType(), "bigint": t.LongType(), "int": t.IntegerType(),
    "short": t.ShortType(), "double": t.DoubleType(), "boolean": t.BooleanType(), "binary": t.BinaryType(),
    "timestamp": t.TimestampType(), "timestamp_ntz": t.TimestampNTZType(), "date": t.DateType(), "void": t.NullType(),
}  # fmt: skip
_NESTED: dict[str, Any] = {"array": t.ArrayType, "map": t.MapType}
_SETTINGS = {"spark.sql.shuffle.partitions": "4", "spark.sql.adaptive.coalescePartitions.enabled": "true"}


def type_of(ddl: str) -> t.DataType:
    parts = _parts(ddl)
    fields = [re.fullmatch(r"(`(?:[^`]|``)+`|[^\s:<(]+)(?:: *|\s+)(.+)", part, re.DOTALL) for part in parts]
    if all(fields):
        return t.StructType([t.StructField(_name(field[1]), type_of(field[2])) for field in fields])
    name, inner = re.fullmatch(r"(\w+)(?:[<(](.*)[>)])?", *parts).groups()
    if name in _SIMPLE:
        return _SIMPLE[name]
    if name == "decimal":
        return t.DecimalType(*map(int, _parts(inner)))
    return type_of(inner) if name == "struct" else _NESTED[name](*map(type_of, _parts(inner)))


def _name(quoted: str) -> str:
    if not quoted.startswith("`"):
        return quoted
    assert "`" not in quoted[1:-1].replace("``", ""), f"Spark cannot read {quoted}"
    return quoted[1:-1].replace("``", "`")


def _parts(ddl: str) -> list[str]:
    """What commas separate, but those within brackets."""
    depth = list(accumulate((letter in "<(") - (letter in ">)") for letter in ddl))
    cuts = [-1, *(place for place, letter in enumerate(ddl) if letter == "," and not depth[place]), len(ddl)]
    return [ddl[first + 1 : last].strip() for first, last in pairwise(cuts)]


def _arrow_schema(schema: t.StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


class Column(NamedTuple):
    """A selected column: of a partition, and of its number; or, to be exploded, lists of its rows."""

    name: str
    of: Callable[[pa.Table, int], pa.Array]
    exploded: str = ""  # How: by `explode`, `inline`, `explode_outer`, `inline_outer`

    def __invert__(self) -> Column:
        return self._replace(of=lambda table, number: pc.invert(self.of(table, number)))

    def isNotNull(self) -> Column:
        return self._replace(of=lambda table, number: self.of(table, number).is_valid())

    def alias(self, name: str) -> Column:
        return self._replace(name=name)

    def cast(self, to: str | t.DataType) -> Column:
        kind = to_arrow_type(type_of(to) if isinstance(to, str) else to)
        return self._replace(of=lambda table, number: self.of(table, number).cast(kind))


def _made(name: str, of: Callable[[pa.Table], pa.Array]) -> Column:
    return Column(name, lambda table, _: of(table))


def col(name: str) -> Column:
    name = _name(name)
    return _made(name, lambda table: table.column(name).combine_chunks())


def _struct_of(table: pa.Table) -> pa.Array:
    return table.combine_chunks().to_struct_array().combine_chunks()


def _selected(rows: pa.Table, number: int, names: tuple[Any, ...]) -> pa.Table:
    """Columns of a table, by name or as they are made; Spark wants names to differ within a struct."""
    if names == ("*",):
        return rows
    columns = [col(each) if isinstance(each, str) else each for each in names]
    return pa.table([each.of(rows, number) for each in columns], [each.name for each in columns])


def _hash(row: Any) -> int:
    return zlib.crc32(repr(row).encode())


def _one_list(column: Column, values: Callable[[pa.Array], pa.Array]) -> Column:
    """One list, of the values that are made of a column."""

    def of(table: pa.Table, number: int) -> pa.Array:
        found = values(column.of(table, number))
        return pa.ListArray.from_arrays([0, len(found)], found)

    return column._replace(of=of)


def _distinct(values: pa.Array) -> pa.Array:
    if not pa.types.is_struct(values.type):
        return values.unique()
    firsts = {repr(value): place for place, value in reversed([*enumerate(values.to_pylist())])}
    return values.take(pa.array(sorted(firsts.values()), pa.int64()))


def _exploded(how: str) -> Callable[[str | Column], Column]:
    return lambda lists: (col(lists) if isinstance(lists, str) else lists)._replace(name="col", exploded=how)


def _outer(lists: pa.Array) -> pa.Array:
    """A null instead of lists that are empty, or null."""
    empty = pc.fill_null(pc.equal(pc.list_value_length(lists), 0), fill_value=True)
    return pc.if_else(empty, pa.array([[None]], lists.type).take(pa.array(np.zeros(len(lists), np.int64))), lists)


def _forall(lists: Column, holds: Callable[[Column], Column]) -> Column:
    def one(row: list[Any] | None) -> bool | None:
        if row is None:
            return None
        held = holds(Column("tag", lambda *_: pa.array(row, pa.string()))).of(pa.table({}), 0)
        return all(held.to_pylist())

    def of(table: pa.Table, number: int) -> pa.Array:
        return pa.array(map(one, lists.of(table, number).to_pylist()), pa.bool_())

    return Column("forall", of)


def _array(column: Column) -> Column:
    def of(table: pa.Table, number: int) -> pa.Array:
        values = column.of(table, number)
        return pa.ListArray.from_arrays(np.arange(len(values) + 1, dtype=np.int32), values)

    return column._replace(of=of)


def arrow_udf(function: Any, kind: t.DataType) -> Any:
    """One that gets batches and gives arrays, cut as it likes; each partition is a task."""

    def called(column: Column) -> Column:
        pickled, arrow = cloudpickle.dumps(function), to_arrow_type(kind, timezone="UTC")

        def of(table: pa.Table, number: int) -> pa.Array:
            with task_of(number):
                rows = column.of(table, number)
                batches = [rows[first : first + 100] for first in range(0, len(rows), 100)]
                found = [each.cast(arrow) for each in cloudpickle.loads(pickled)(iter(batches))] if batches else []
            assert sum(map(len, found)) == len(rows)
            return pa.concat_arrays(found) if found else pa.array([], arrow)

        return Column("udf", of)

    return called


def _aggregated(name: str, aggregate: Callable[[Any], pa.Scalar]) -> Column:
    return _made(name, lambda rows: pa.array([aggregate(rows.column(name)).as_py()], rows.column(name).type))


#: Those of `pyspark.sql.functions`
FUNCTIONS = SimpleNamespace(
    struct=lambda *names: Column("struct", lambda rows, number: _struct_of(_selected(rows, number, names))),
    arrow_udf=arrow_udf,
    array=_array,
    forall=_forall,
    coalesce=lambda column, default: column._replace(
        of=lambda table, number: pc.coalesce(column.of(table, number), default.of(table, number))
    ),
    lit=lambda value: _made("lit", lambda rows: pa.array([value] * len(rows), pa.scalar(value).type)),
    xxhash64=lambda name: _made(
        "hash", lambda rows: pa.array(map(_hash, col(name).of(rows, 0).to_pylist()), pa.int64())
    ),
    monotonically_increasing_id=lambda: Column("id", lambda rows, task: pa.array(np.arange(len(rows)) + (task << 33))),
    collect_list=lambda name: _one_list(col(name), lambda array: array),
    flatten=lambda lists: _one_list(lists, lambda array: array.flatten().flatten()),
    array_distinct=lambda lists: _one_list(lists, lambda array: _distinct(array.flatten())),
    first=lambda name, **_: _made(name, lambda rows: rows.column(name).combine_chunks().drop_null()[:1]),
    **{how: _exploded(how) for how in ("explode", "inline", "explode_outer", "inline_outer")},
    size=lambda lists: lists._replace(of=lambda table, number: pc.list_value_length(lists.of(table, number))),
    sum=lambda name: _aggregated(name, pc.sum),
    max=lambda name: _aggregated(name, pc.max),
    col=col,
)


class Frame(DataFrame):
    """Partitions, which are made each time that they are asked for."""

    isStreaming = False  # noqa: N815
    sparkSession = schema = columns = dtypes = write = None  # noqa: N815

    def __new__(cls, *_: Any) -> Frame:
        return object.__new__(cls)

    def __init__(self, spark: Session, schema: t.StructType, parts: Callable[[], list[pa.Table]]) -> None:
        self.sparkSession, self.schema, self.parts = spark, schema, parts
        self.columns, self.dtypes = schema.names, [(field.name, field.dataType.simpleString()) for field in schema]
        self.write = _Ways(self._save)

    def _after(self, change: Callable[[list[pa.Table]], list[pa.Table]], schema: t.StructType | None = None) -> Frame:
        return Frame(self.sparkSession, schema or self.schema, lambda: change(self.parts()))

    def _each(self, change: Callable[[pa.Table, int], pa.Table]) -> Frame:
        """The frame whose partitions are made of this one's."""
        schema = from_arrow_schema(change(_arrow_schema(self.schema).empty_table(), 0).schema)
        return self._after(lambda parts: [change(part, number) for number, part in enumerate(parts)], schema)

    def select(self, *names: str | Column) -> Frame:
        columns = list(chain(*map(self._columns, names)))

        def selected(table: pa.Table, number: int) -> pa.Table:
            arrays = [column.of(table, number) for column in columns]
            names = [column.name for column in columns]
            for place, column in enumerate(columns):
                if column.exploded:
                    lists = _outer(arrays[place]) if column.exploded.endswith("outer") else arrays[place]
                    rows, spread = pc.list_parent_indices(lists), lists.flatten()
                    # Spark copies no lists that are dropped afterwards: each would be as long as they are many
                    arrays = [
                        pa.nulls(len(rows), each.type) if at == place or name == answers.PARTS else each.take(rows)
                        for at, (name, each) in enumerate(zip(names, arrays, strict=True))
                    ]
                    inline = column.exploded.startswith("inline")
                    arrays[place : place + 1] = spread.flatten() if inline else [spread]
                    names[place : place + 1] = spread.type.names if inline else [column.name]
            return pa.table(arrays, names)

        return self._each(selected)

    def where(self, condition: Column) -> Frame:
        return self._each(lambda table, number: table.filter(condition.of(table, number)))

    def drop(self, *names: str) -> Frame:
        return self._each(lambda table, _: table.drop_columns([*names]))

    def _columns(self, name: str | Column) -> list[Column]:
        if isinstance(name, Column):
            return [name]
        if name == "*":
            return [col(in_backquotes(own)) for own in self.columns]
        if not name.endswith(".*"):
            return [col(name)]
        struct = col(name[:-2])
        return [
            Column(field, lambda table, number, place=place: struct.of(table, number).flatten()[place])
            for place, field in enumerate(self.schema[name[:-2]].dataType.names)
        ]

    def mapInArrow(self, task: Any, schema: Any) -> Frame:
        schema = schema if isinstance(schema, t.StructType) else type_of(schema)
        pickled, kinds, spark = cloudpickle.dumps(task), _arrow_schema(schema), self.sparkSession

        def made(parts: list[pa.Table]) -> list[pa.Table]:
            spark.begins_stage(len(parts))
            found = []
            for number, part in enumerate(parts):
                with task_of(number):
                    batches = list(cloudpickle.loads(pickled)(spark.batches(part)))
                assert all(batch.schema.names == kinds.names for batch in batches)
                found.append(pa.Table.from_batches([batch.cast(kinds) for batch in batches], kinds))
            return found

        return Frame(spark, schema, lambda: made(self.parts()))

    def union(self, other: Any) -> Frame:
        kinds = _arrow_schema(self.schema)  # types of Arrow also say which values may be null
        return self._after(lambda parts: [part.cast(kinds) for part in parts + other.parts()])

    def repartition(self, count: int | str, column: str | None = None) -> Frame:
        by = count if isinstance(count, str) else column
        spark, together = self.sparkSession, self.sparkSession.rng.randint(1, 4)

        def places(part: pa.Table, groups: int) -> Any:
            rows = range(len(part)) if by is None else part.column(by).to_pylist()
            return [(row if isinstance(row, int) else _hash(row)) % groups for row in rows]

        return self._after(lambda parts: spark.shuffled(parts, places, None if count == by else count, together))

    def coalesce(self, count: int) -> Frame:
        assert count == 1
        return self._after(lambda parts: [pa.concat_tables(parts)])

    def repartitionByRange(self, name: str) -> Frame:
        def rows_of(part: pa.Table) -> list[bytes]:
            return part.column(name).cast(pa.binary()).to_pylist()

        def ranged(parts: list[pa.Table]) -> list[pa.Table]:
            rows = sorted(row for part in parts for row in rows_of(part))
            bounds = rows[:: max(1, len(rows) // 3)][1:4]
            places = lambda part, _: [sum(bound <= row for bound in bounds) for row in rows_of(part)]  # noqa: E731
            return self.sparkSession.shuffled(parts, places, len(bounds) + 1)

        return self._after(ranged)

    def sortWithinPartitions(self, name: str) -> Frame:
        def in_order(part: pa.Table, _: int) -> pa.Table:
            return part.take(pc.array_sort_indices(part.column(name).combine_chunks()))

        return self._each(in_order)

    def distinct(self) -> Frame:
        (name,) = self.columns
        return self.repartition(name)._each(lambda part, _: part.group_by(name).aggregate([]))

    def groupBy(self, name: str) -> Any:
        def agg(*columns: Column) -> Frame:
            columns = (Column(name, lambda table, _: table.column(name).combine_chunks()[:1]), *columns)

            def whole(part: pa.Table, _: int) -> pa.Table:
                groups = [part.filter(pc.field(name) == row) for row in part.column(name).unique()] or [part[:0]]
                names = [each.name for each in columns]
                return pa.concat_tables(
                    pa.table([each.of(some, 0)[: len(some)] for each in columns], names) for some in groups
                )

            return self.repartition(name)._each(whole)

        return SimpleNamespace(agg=agg)

    def toArrow(self) -> pa.Table:
        found = self.parts()
        if self.sparkSession.loses_tasks():
            found = self.parts()
        self.sparkSession.begins_stage(len(found))
        return pa.concat_tables(found or [_arrow_schema(self.schema).empty_table()])

    def collect(self) -> list[Row]:
        return ArrowTableToRowsConversion.convert(self.toArrow(), self.schema)

    def _save(self, way: _Ways) -> None:
        spark = self.sparkSession
        spark.write(self, spark.source(way.given).writer(self.schema, way.get("mode") == "overwrite"))


class _Ways(dict[str, Any]):
    """What `read` or `write` is told, and then does."""

    def __init__(self, act: Callable[[_Ways], Any]) -> None:
        self._act, self.given = act, dict[str, str]()

    def options(self, **given: object) -> _Ways:
        self.given |= {name: str(value) for name, value in given.items()}
        return self

    def option(self, name: str, value: object) -> _Ways:
        return self.options(**{name: value})

    def load(self, path: str = "") -> Any:
        return self._act(self.options(path=path))

    save = load

    def __getattr__(self, name: str) -> Callable[[str], _Ways]:
        """`format`, `mode` and `schema`."""
        return lambda value: self.update({name: value}) or self  # type: ignore[func-returns-value]


@contextmanager
def task_of(number: int, **properties: str) -> Iterator[None]:
    """The task that makes a partition; its errors come as Spark tells them."""
    context = TaskContext._getOrCreate()
    context._partitionId, context._localProperties, context._resources = number, properties, {}
    try:
        yield
    except Exception:
        raise PythonException(f"An exception was thrown from the Python worker:\n{traceback.format_exc()}") from None
    finally:
        TaskContext._setTaskContext(None)


class Session:
    """A session; `rng` draws what Spark leaves open."""

    read = property(lambda self: _Ways(self._load))

    def __init__(self, rng: random.Random) -> None:
        self.rng, settings, functions = rng, dict(_SETTINGS), dict[str, Any]()
        self.loses_tasks, self.stages = lambda: rng.random() < 0.1, list[tuple[str | None, int]]()
        self.conf = SimpleNamespace(
            get=settings.get, set=settings.__setitem__, unset=lambda name: settings.pop(name, None), getAll=settings
        )
        self.sparkContext = SimpleNamespace(defaultParallelism=2, master="local[2]", pythonExec=sys.executable)
        self._sc = self.sparkContext
        self.source, self.functions = TagMatchSource, functions
        self.dataSource = SimpleNamespace(register=lambda found: setattr(self, "source", found))
        self.udtf = SimpleNamespace(register=lambda name, found: functions.update({name: found.func}))

    def createDataFrame(self, rows: Iterable[Any], schema: str) -> Frame:
        kinds, rows = type_of(schema), list(rows)
        table = _arrow_schema(kinds).empty_table()
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
        count = int(re.search(r"pmod\(hash\(number\), (\d+)\)", text)[1])
        return SimpleNamespace(first=lambda: {"partitions": [number % count for number in range(64 * count + 1)]})

    def save_epoch(self, frame: Frame, epoch: int, path: str, **given: str) -> None:
        writer = self.source({**given, "path": path}).streamWriter(frame.schema, False)
        self.write(frame, writer, epoch, **{"sql.streaming.queryId": "query"})

    def write(self, frame: Frame, writer: Any, *epoch: int, **properties: str) -> None:
        kinds, written = _arrow_schema(frame.schema), []
        try:
            for number, part in enumerate(frame.parts()):
                with task_of(number, **properties):
                    task = cloudpickle.loads(cloudpickle.dumps(writer))
                    # Spark may run a task twice, and takes one
                    written += self.rng.sample([task.write(self.batches(part.cast(kinds))) for _ in range(2)], 1)
        except PythonException:
            writer.abort(written, *epoch)
            raise
        writer.commit(cloudpickle.loads(cloudpickle.dumps(written)), *epoch)

    def begins_stage(self, tasks: int) -> None:
        self.stages += [(self.conf.get("spark.job.description"), tasks)] if tasks else []

    def batches(self, part: pa.Table) -> Iterator[pa.RecordBatch]:
        """A partition cut anywhere; each batch comes in its own message, as to a worker."""
        part, first = part.combine_chunks(), 0
        while first < len(part):
            count = self.rng.choice([1, 100, 10_000])
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, part.schema) as stream:
                stream.write_table(part.slice(first, count))
            yield from pa.ipc.open_stream(sink.getvalue())
            first += count

    def shuffled(
        self, parts: list[pa.Table], places: Any, count: int | None = None, together: int = 1
    ) -> list[pa.Table]:
        """Rows in their partitions, in blocks of one task for each; some neighbours may be put together."""
        groups = int(count or self.conf.get("spark.sql.shuffle.partitions"))
        found = [(part, np.array(places(part, groups), np.int64)) for part in parts]
        if count or self.conf.get("spark.sql.adaptive.coalescePartitions.enabled") == "false":
            together = 1
        blocks = [[part.filter(of_rows == group) for part, of_rows in found] for group in range(groups) if parts]
        joined = [list(chain(*blocks[first : first + together])) for first in range(0, len(blocks), together)]
        return [pa.concat_tables(self.rng.sample(some, len(some))) for some in joined]

    def _load(self, way: _Ways) -> Frame:
        source = self.source(way.given)
        schema = type_of(way["schema"]) if "schema" in way else source.schema()
        kinds = _arrow_schema(schema)

        def parts() -> list[pa.Table]:
            reader, found = source.reader(schema), list[pa.Table]()
            for number, part in enumerate(reader.partitions() or [InputPartition(None)]):  # as Spark does
                with task_of(number):
                    task, some = cloudpickle.loads(cloudpickle.dumps((reader, part)))
                    found.append(pa.Table.from_batches(task.read(some), kinds))
            return found

        return Frame(self, schema, parts)


@contextmanager
def session(seed: int) -> Iterator[Session]:
    """One whose functions tagmatch calls in place of Spark's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join, "col", col)
        for module in (answers, join, ship, shuffle):
            patch.setattr(module, "functions", FUNCTIONS)
        patch.setattr(serialized, "_partitions", {})
        patch.setattr(ship, "_opened", {})
        yield Session(random.Random(seed))
        for _, opened in ship._opened.values():
            opened.close()
