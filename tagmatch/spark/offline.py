"""The offline job as a function of a DataFrame."""

from __future__ import annotations

import os
from functools import partial
from typing import Literal, get_args

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import col
from pyspark.sql.types import ArrayType, ByteType, DataType, DecimalType, IntegerType, LongType, ShortType, StringType

from tagmatch.model.conditions.areas import area_rows
from tagmatch.model.conditions.structured import constraint_rows
from tagmatch.model.errors import IndexExistsError, InvalidTypeError, InvalidValueError
from tagmatch.model.names import check_names as check_column_names
from tagmatch.model.options import LAYOUT_DEFAULTS, Layout, LayoutOptions
from tagmatch.partitioner.spark.job import JobOptions, Partitioned, append_sets, key_type_of_rows, partition_sets
from tagmatch.partitioner.spark.stored import Stored
from tagmatch.spark.errors import errors_of_workers
from tagmatch.spark.options import Settings
from tagmatch.spark.schemas import arrow_type
from tagmatch.spark.stores import location_in

#: What becomes of an index that is there
Mode = Literal["overwrite", "append", "error"]

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)


def column_type(frame: DataFrame, column: str) -> DataType:
    """Return the type of a column.

    Raises
    ------
    InvalidTypeError
        There is no such column.
    """
    if column not in frame.columns:
        raise InvalidTypeError(
            f"there is no column {column!r}; there are {', '.join(map(repr, frame.columns)) or 'none'}"
        )
    return frame.schema[column].dataType


def check_strings(kind: DataType, name: str) -> None:
    """See that a column holds arrays of strings.

    Raises
    ------
    InvalidTypeError
        It does not; `name` says which column.
    """
    if not (isinstance(kind, ArrayType) and isinstance(kind.elementType, StringType)):
        raise InvalidTypeError(f"{name} must be array<string>, not {kind.simpleString()}")


def check_names(names: list[str], taken: tuple[str, ...]) -> None:
    """See that no column that is left aside would be missed: one that sets may have, or one that is misspelt.

    Raises
    ------
    InvalidValueError
        One would be; the message names it.
    """
    if "expires" in names and "expires" not in taken:
        raise InvalidValueError(
            "column 'expires': keys that `partition` stores never expire; save such rows with Spark's data source, "
            'df.write.format("tagmatch"), or with `tagmatch build`; or drop the column'
        )
    check_column_names(names, (*taken, "expires"), "or drop it, on the command line with --ignore-columns")


def partition(
    sets: DataFrame,
    index: str | os.PathLike[str],
    *,
    mode: Mode = "overwrite",
    layout: Layout | None = None,
    max_partition_size: int | None = None,
    tags: str = "tags",
    key: str = "key",
    where: str | None = None,
    sets_per_task: int | None = None,
    skip_invalid: bool | None = None,
) -> Partitioned:
    """Make an index of the sets of a DataFrame, or add them to one: the very files of the local partitioner.

    An index that is there already becomes another one in one step, at the end; until then, and if the job fails or is
    killed, it stays as it was. A job that runs again makes the same index. What of `layout`, `max_partition_size`,
    `sets_per_task` and `skip_invalid` is left out may be among the session's settings (`spark.tagmatch.…`).

    Parameters
    ----------
    sets : DataFrame
        A set and a key a row; equal sets come together, and a set holds each key once.
    index : str or path
        Of the index: a folder that the driver and all workers mount under the same path, or a URI that they reach
        through Arrow (`s3a://…`, `gs://…`, `abfss://…`, `hdfs://…`; see docs/spark.md).
    mode : {"overwrite", "append", "error"}
        What becomes of an index that is there already. `overwrite`: it is replaced. `append`: the rows are added to it,
        as `add_sets` and `consolidate` would; one segment is made of them, of what is stored already of their sets, and
        of small segments. That takes as long as there are rows, and reads the files of the index once. Keys
        that expire keep their times, and those that have expired go; keys of the rows never expire. What a program has
        staged stays staged. `error`: that is an error.
    layout, max_partition_size
        As of `TagMatch`. Where rows are appended, the index has its own.
    tags, key : str
        Columns: an array of strings, and an integer from 0 to 2**64 - 1 (as which Spark has decimal(20, 0)) or a
        string. Strings make an index with `key_type="string"`; they are compared as bytes.
    where : str, optional
        Column of expressions, what the attributes of a query must be as well, as of `TagMatch.add_set`; null where a
        set has none. Each different one is read once in a batch. Default: `where`, if there is such a column. Columns
        `constraints` and `area`, arrays of structs and structs, are those of `TagMatch.add_subscriptions`. Areas are on
        the sphere.
    sets_per_task : int
        Sets that a task has in memory, about; 500 bytes each. The result does not depend on it. Default: 2**20.
    skip_invalid : bool
        Leave out rows with a null, with a key that is none or with a mistake in the expression, and tell how many;
        else, the default, they are an error. Constraints and areas that cannot be used always are.

    Returns
    -------
    Partitioned
        What the segment has that was made, and how many rows were left out for what reason.

    Raises
    ------
    InvalidTypeError
        A column is not there or of another type; it is named.
    InvalidValueError
        For an option, for a column `expires`, for a misspelt column, for a URI that Arrow does not know, for settings
        of its store that Arrow has nothing for, for a constraint or an area, and for rows that cannot be stored: how
        many, and why. With `append`, for keys or a layout that the index does not have.
    FilterError
        For a mistake in an expression.
    NullError
        For a constraint or an area that lacks something.
    IndexExistsError
        The path holds something that is not an index or, with `error`, one.
    IndexChangedError
        Another program has saved to the index while rows were being appended, which are not in it.
    IndexCorruptError
        The index to append to is damaged.
    TagMatchError
        The index cannot be written.

    Examples
    --------
    >>> people = spark.createDataFrame([(["cat", "fr"], "ana"), (["cat"], "bo")], "tags array<string>, key string")
    >>> partition(people, "people.index").sets
    2
    >>> more = spark.createDataFrame([(["dog"], "ana"), (["cat"], "cy")], "tags array<string>, key string")
    >>> partition(more, "people.index", mode="append").sets
    3
    """
    if mode not in get_args(Mode):
        raise InvalidValueError(f"mode must be one of {', '.join(map(repr, get_args(Mode)))}, not {mode!r}")
    settings = Settings.of(sets.sparkSession)
    if mode != "append":  # an index has its own
        layout = settings.layout if layout is None else layout
        max_partition_size = settings.max_partition_size if max_partition_size is None else max_partition_size
    sets_per_task = settings.sets_per_task if sets_per_task is None else sets_per_task
    skip_invalid = settings.skip_invalid if skip_invalid is None else skip_invalid
    if where is None and "where" in sets.columns:
        where = "where"
    check_strings(column_type(sets, tags), f"column {tags!r}")
    kind = column_type(sets, key)
    check_names(sets.columns, (tags, key, where or "where", "constraints", "area"))
    if isinstance(kind, StringType):
        cast = "string"  # without a collation: keys are compared as bytes
    elif isinstance(kind, DecimalType) and kind.scale == 0:
        cast = "decimal(20, 0)"  # as which Spark reads unsigned longs
    elif isinstance(kind, _INTEGERS):
        cast = "long"
    else:
        raise InvalidTypeError(
            f"column {key!r} must be a string, an integer or a decimal of scale 0, not {kind.simpleString()}"
        )
    if isinstance(sets_per_task, bool) or not isinstance(sets_per_task, int) or sets_per_task < 1:
        raise InvalidValueError(f"sets_per_task must be an integer from 1 on, not {sets_per_task!r}")
    columns = [col(f"`{tags}`").alias("tags"), col(f"`{key}`").cast(cast).alias("key")]
    if where is not None:
        if not isinstance(kind := column_type(sets, where), StringType):
            raise InvalidTypeError(f"column {where!r} must be string, not {kind.simpleString()}")
        columns.append(col(f"`{where}`").cast("string").alias("where"))
    for name, check in (("constraints", constraint_rows), ("area", partial(area_rows, plane=False))):
        if name in sets.columns:
            check(pa.array([], arrow_type(column_type(sets, name))), f"column {name!r}")
            columns.append(col(f"`{name}`"))
    rows = sets.select(*columns)
    location = location_in(sets.sparkSession, index, "index")
    options = JobOptions(sets_per_task, skip_invalid)
    if mode == "append":
        stored = Stored.at(location)
        stored.check_keys(key_type_of_rows(rows))
        with errors_of_workers():
            return append_sets(rows, stored, stored.options(layout, max_partition_size), options)
    if mode == "error" and location.has_index():
        raise IndexExistsError(f"there is an index at {location} already; choose another mode, or another path")
    layout_options = LayoutOptions(
        LAYOUT_DEFAULTS.layout if layout is None else layout,
        LAYOUT_DEFAULTS.max_partition_size if max_partition_size is None else max_partition_size,
    )
    with errors_of_workers():
        return partition_sets(rows, location, layout_options, options)
