"""Columns of Parquet files that tasks read by themselves.

Spark makes rows of lists of strings, and of these Arrow again, one string after the other, which takes a task three
times as long as Arrow takes to read them. So where rows are nothing but columns of files that all machines see, tasks
read the files. All else, such as a condition, a cast, a column of a partition or a store, is left to Spark, and so is
all that one of the files turns out not to be.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from tagmatch.partitioner.spark.batches import Batches, for_each, grouped, tasks_at_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PLANS = "org.apache.spark.sql.catalyst.plans.logical."
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
_SOURCES = "org.apache.spark.sql.execution.datasources."

# Bytes of files for a task, as Spark has them, and of rows at a time
_MOST_BYTES, _FEWEST_BYTES, _READ_BYTES, _READ_ROWS = 1 << 27, 1 << 22, 1 << 24, 1 << 16


class UnreadError(Exception):
    """A file has not the expected columns, and is left to Spark."""


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a file: the row groups whose middle is from one byte to another."""

    file: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Scan:
    """Rows of files, some of them a task."""

    parts: tuple[tuple[Split, ...], ...]
    columns: dict[str, str]  # what columns of the files are called, by the names of those of the rows
    keys_are_strings: bool

    @classmethod
    def of(cls, rows: DataFrame) -> Scan | None:
        """The files whose columns are the rows, `tags` and `key`; `None` if rows are anything else."""
        from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

        types = dict(rows.dtypes)
        is_plain = [*types] == ["tags", "key"] and types["key"] in ("bigint", "string")
        if not is_plain or not isinstance(rows, ClassicFrame):
            return None
        found = _relation(rows._jdf.queryExecution().optimizedPlan())
        if found is None:
            return None
        columns, relation = found
        urls = [urlsplit(url) for url in relation.location().inputFiles()]
        if not urls or any(url.scheme != "file" for url in urls):
            return None
        files = [unquote(url.path) for url in urls]
        try:
            sizes = [os.path.getsize(file) for file in files]
        except OSError:
            return None
        most = min(_MOST_BYTES, max(_FEWEST_BYTES, -(-sum(sizes) // tasks_at_once(rows.sparkSession))))
        splits = [
            Split(file, first, min(first + most, size))
            for file, size in zip(files, sizes, strict=True)
            for first in range(0, size, most)
        ]
        parts = grouped(splits, [split.last - split.first for split in splits], most)
        return cls(tuple(map(tuple, parts)), columns, types["key"] == "string")

    def map(self, rows: DataFrame, work: Callable[[Batches], Batches], schema: str) -> DataFrame:
        """As `mapInArrow` of the rows; tasks raise `UnreadError`, too."""
        return for_each(rows.sparkSession, range(len(self.parts)), partial(self._work, work), schema)

    def _work(self, work: Callable[[Batches], Batches], part: int) -> Batches:
        return work(self._batches(self.parts[part]))

    def _batches(self, splits: Sequence[Split]) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        names = [*self.columns.values()]
        for split in splits:
            try:
                with pq.ParquetFile(split.file) as file:
                    self._check(file.schema_arrow, split.file)
                    every = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
                    groups = [number for number, group in enumerate(every) if _is_in(group, split)]
                    size = sum(every[number].total_byte_size for number in groups)
                    rows = sum(every[number].num_rows for number in groups)
                    step = max(1, min(_READ_ROWS, _READ_BYTES * rows // max(1, size)))
                    for batch in file.iter_batches(step, groups, columns=names, use_threads=False):
                        yield batch.select(names).rename_columns([*self.columns])
            except (OSError, pa.ArrowException) as error:
                raise UnreadError(f"{split.file}: {error}") from error

    def _check(self, schema: pa.Schema, file: str) -> None:
        tags, key = (schema.field(name).type if name in schema.names else None for name in self.columns.values())
        wanted = pa.string() if self.keys_are_strings else pa.int64()
        if key != wanted or tags is None or not pa.types.is_list(tags) or tags.value_type != pa.string():
            raise UnreadError(f"{file} has tags of type {tags} and keys of type {key}")


def _is_in(group: Any, split: Split) -> bool:
    column = group.column(0)
    first = column.data_page_offset
    if column.has_dictionary_page:
        first = min(first, column.dictionary_page_offset)
    size = sum(group.column(number).total_compressed_size for number in range(group.num_columns))
    middle: int = first + size // 2
    return split.first <= middle < split.last


def _relation(plan: Any) -> tuple[dict[str, str], Any] | None:
    """Names of columns in files, by those of a plan's rows, and Spark's relation with the files."""
    columns: dict[str, str] = {}
    listed = plan.output()
    if _class_of(plan) == f"{_PLANS}Project":
        listed, plan = plan.projectList(), plan.child()
    for number in range(listed.size()):
        own = listed.apply(number)
        of = own.child() if _class_of(own) == f"{_EXPRESSIONS}Alias" else own
        if _class_of(of) != f"{_EXPRESSIONS}AttributeReference":
            return None
        columns[own.name()] = of.name()
    if _class_of(plan) != f"{_SOURCES}LogicalRelation":
        return None
    relation = plan.relation()
    if _class_of(relation) != f"{_SOURCES}HadoopFsRelation":
        return None
    kinds = _class_of(relation.fileFormat()), _class_of(relation.location())
    if kinds != (f"{_SOURCES}parquet.ParquetFileFormat", f"{_SOURCES}InMemoryFileIndex"):
        return None
    options = relation.options().keySet().mkString("\n").split("\n")
    if not {*options} <= {"", "path", "paths"} or {*relation.partitionSchema().fieldNames()} & {*columns.values()}:
        return None
    return {name: columns[name] for name in ("tags", "key")}, relation


def _class_of(thing: Any) -> str:
    found: str = thing.getClass().getName()
    return found
