"""The functions for SQL and of columns, called as Spark calls them, by itself or by `support/tasks.py`; settings."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import types as t
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.udtf import AnalyzeArgument
from support.tasks import FUNCTIONS, Column, Frame, col, task_of

from tagmatch.spark import match_udf


def called(
    way: str,
    frame: Any,
    index: object,
    *,
    unique: bool = False,
    only: str | None = None,
    plane: bool = False,
    skip_invalid: bool = False,
    **arguments: str | Sequence[str] | None,
) -> dict[Any, list[Any]]:
    """The keys that a function gives for each row, by its first column.

    `way` is "sql", by `tagmatch_match`, or "column", by `match_udf`. An argument is a column, several as a struct, or
    NULL.
    """
    names, call = {"tags": "tags", **arguments}, _by_tasks if isinstance(frame, Frame) else _by_spark
    found = {row[0]: list[Any]() for row in frame.select(frame.columns[0]).collect()}
    wanted = {"unique": unique, "only": only, "plane": plane, "skip_invalid": skip_invalid}
    for first, key in call(way, frame, str(index), wanted, names):
        found[first].append(key)
    return {first: sorted(keys) for first, keys in found.items()}


def _by_spark(way: str, frame: Any, index: str, wanted: Mapping[str, Any], names: Mapping[str, Any]) -> list[Any]:
    def text(given: Any) -> str:
        return given if isinstance(given, str) else f"struct({', '.join(given)})" if given else "NULL"

    frame.createOrReplaceTempView("asked")
    given = "".join(f", {name} => {text(each)}" for name, each in names.items())
    first, spark = frame.columns[0], frame.sparkSession
    if way == "sql":
        given += "" if wanted["only"] is None else f", only => '{wanted['only']}'"
        given += f", plane => {wanted['plane']!r}" if wanted["plane"] else ""
        query = f"SELECT {first}, m.key FROM asked, LATERAL tagmatch_match(index => '{index}'{given}) m"
    else:
        spark.udf.register("keys_of", match_udf(index, **wanted))
        query = f"SELECT {first}, explode(keys_of({given[2:]})) FROM asked"
    return [tuple(row) for row in spark.sql(query).collect()]


def _by_tasks(
    way: str, frame: Frame, index: str, wanted: Mapping[str, Any], names: Mapping[str, Any]
) -> Iterator[tuple[Any, Any]]:
    def column_of(each: Any) -> Column:
        if isinstance(each, str):
            return col(each)
        return FUNCTIONS.struct(*each) if each else Column("null", lambda table, _: pa.nulls(len(table)))

    spark = frame.sparkSession
    asked = frame.select(frame.columns[0], *(column_of(each).alias(name) for name, each in names.items()))
    if way == "column":
        match = match_udf(index, **wanted)
        pickled = cloudpickle.dumps(match.func)
    else:
        given = {field.name: AnalyzeArgument(field.dataType, None, False, False) for field in asked.schema[1:]}
        function, of_index = spark.functions["tagmatch_match"], AnalyzeArgument(t.StringType(), index, False, True)
        for name, kind in (("only", t.StringType()), ("plane", t.BooleanType())):
            given[name] = AnalyzeArgument(kind, wanted[name], False, True)
        pickled = cloudpickle.dumps((function, function.analyze(index=of_index, **given)))
    for number, part in enumerate(asked.parts()):
        with task_of(number):
            task = cloudpickle.loads(pickled)
            if way == "sql":
                task = task[0](task[1])
                for first, *values in ArrowTableToRowsConversion.convert(part, asked.schema):
                    for (key,) in task.eval(index=index, **dict(zip(names, values, strict=True))):
                        yield first, key
                continue
            for batch in spark.batches(part):
                lists = task(**dict(zip(names, batch.columns[1:], strict=True))).cast(to_arrow_type(match.returnType))
                for first, keys in zip(batch.column(0).to_pylist(), lists.to_pylist(), strict=True):
                    yield from ((first, key) for key in keys or ())


@contextmanager
def settings_of(spark: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """Set some for a while. Those that the tests' configuration has would else be as Spark has them."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)
