"""The offline job as a function of a DataFrame, and the join: the keys of all stored sets that sets contain."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.functions import col
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from tagmatch.model import clock
from tagmatch.model.clock import times_in
from tagmatch.model.data_types import data_schema, family_of, text_of_type
from tagmatch.model.errors import IndexExistsError, InvalidTypeError, InvalidValueError
from tagmatch.model.input.messages import TAGS
from tagmatch.model.input.places import LOCATION, WITHIN, area_rows
from tagmatch.model.input.subscriptions import COLUMNS, constraint_rows
from tagmatch.model.names import check_names as check_column_names
from tagmatch.model.names import misspelt
from tagmatch.model.options import Layout, check_one_of
from tagmatch.model.storage.byte_store import folder_of_this_process
from tagmatch.model.storage.format import declared_in, files_nbytes
from tagmatch.model.storage.repository import Repository
from tagmatch.model.where.constraints import in_backquotes
from tagmatch.partitioner.spark import Partitioned, merge_segments, partition_sets
from tagmatch.partitioner.spark.shards import REMOVED, Stored, check_removed
from tagmatch.spark.answers import Answers, How, Output, check_equal
from tagmatch.spark.columns import (
    AskedColumns,
    arrow_schema,
    arrow_type,
    check_types,
    column_type,
    errors_of_workers,
    key_type_in,
    spark_name,
)
from tagmatch.spark.session import (
    NEWEST,
    SnapshotChoice,
    Strategy,
    WorkerDevice,
    check_workers,
    location_in,
    warn_of_memory,
    with_settings,
)
from tagmatch.spark.ship import Shipped, ship_join
from tagmatch.spark.shuffle import BUCKET_SETS, shuffle_join

#: What happens to an index that is there
Mode = Literal["overwrite", "append", "error"]

# What a worker has in memory for each set of a task of a job, and of a bucket
_SET_NBYTES, _BUCKET_SET_NBYTES = 500, 300


def check_strings(kind: DataType, name: str) -> None:
    """See that a column holds arrays of strings."""
    if not (isinstance(kind, ArrayType) and isinstance(kind.elementType, StringType)):
        raise InvalidTypeError(f"{name} must be array<string>, not {kind.simpleString()}")


def check_names(names: list[str], taken: tuple[str, ...]) -> None:
    """See that no column that is left aside would be missed: one that sets may have, or one that is misspelt."""
    check_column_names(names, taken, "or drop it")


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
    expires: str | None = None,
    removed: str | None = None,
    data: Mapping[str, str] | None = None,
    plane: bool = False,
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
        through Arrow (`s3a://…`, `gs://…`, `abfss://…`, `hdfs://…`; see docs/howto/spark_deployment.md).
    mode : {"overwrite", "append", "error"}
        What happens to an index that is there already. `overwrite`: it is replaced. `append`: the rows are added to it,
        or to a new one, as `add_sets` and `consolidate` would; one segment is made of them, of the stored keys of their
        sets, and of small segments. That takes as long as there are rows, and reads the files of the index once. A key
        that comes again has the time of the rows, or none, others keep theirs, and those that have expired go. What a
        program has staged stays staged; its next `consolidate` raises `IndexChangedError`, after which it calls
        `reload`. `error`: that is an error.
    layout, max_partition_size
        As in `TagMatch`. Where rows are appended, the index has its own.
    tags, key : str
        Columns: an array of strings, and an integer from 0 to 2**64 - 1 (as which Spark has decimal(20, 0)) or a
        string. Strings make an index with `key_type="string"`; they are compared as bytes.
    where : str, optional
        Column of expressions, what the attributes of a query must be as well (see `TagMatch.add_set`); null where a
        set has none. Each different one is read once in a batch. Default: `where`, if there is such a column. Columns
        `constraints` and `area`, arrays of structs and structs, are those of `TagMatch.add_subscriptions`.
    expires : str, optional
        Column of timestamps at which keys stop being answers of their sets; null: never. Rows have no order: of several
        with one set and one key, the latest time counts. Default: `expires`, if there is such a column.
    removed : str, optional
        With `append`: column of bools, whether the row's key is removed from its set. Removals come after the other
        rows, as by `remove_sets`; a null removes nothing. Default: `removed`, if there is such a column.
    data : dict, optional
        Columns of data that keys have, as `TagMatch` has them: names of columns by their types, such as
        `{"email": "string"}`. Each key is put, as by `TagMatch.put_many`, into an index that is new; rows are read
        twice, and one task has the data of all keys in memory. The rows of a key should have the same data: rows have
        no order, so the least one counts. Default: none; where rows are appended, the keys of the index keep theirs.
    plane : bool
        Whether areas are on the plane, as in `TagMatch`. Default: on the sphere.
    sets_per_task : int
        Sets that a task has in memory, about; 500 bytes each. The result does not depend on it. Default: 2**20.
    skip_invalid : bool
        Leave out rows with a null, with an invalid key or with a mistake in the expression, and tell how many;
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
        For an option, for a misspelt column, for a URI that Arrow does not know, for settings of its store that Arrow
        has nothing for, for a time, a constraint or an area, and for rows that cannot be stored: how many, and why.
        With `append`, for keys or a layout that the index does not have.
    FilterError
        For a mistake in an expression.
    NullError
        For a constraint or an area that lacks something.
    IndexExistsError
        The path holds something that is not an index or, with `error`, one.
    IndexChangedError
        Another program has saved to the index during this. The index is as that program left it; call this again.
    IndexLockedError
        Another job works on the index; it is named.
    IndexCorruptError
        The index to append to is damaged.
    SparkUnavailableError
        The Python of Spark's workers lacks tagmatch or Arrow, as a small job finds, once in a session.
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
    check_one_of("mode", mode, get_args(Mode))
    if not isinstance(sets, DataFrame):
        raise InvalidTypeError(f"sets must be a Spark DataFrame, as of spark.read.parquet, not {type(sets).__name__}")
    spark = sets.sparkSession
    if mode != "append":  # an index has its own
        layout, max_partition_size = with_settings(spark, layout=layout, max_partition_size=max_partition_size)
    sets_per_task, skip_invalid = with_settings(spark, sets_per_task=sets_per_task, skip_invalid=skip_invalid)
    if where is None and "where" in sets.columns:
        where = "where"
    if expires is None and "expires" in sets.columns:
        expires = "expires"
    if removed is None and REMOVED in sets.columns:
        removed = REMOVED
    check_strings(column_type(sets.schema, tags), f"column {tags!r}")
    key_type, kind = key_type_in(sets.schema, key), sets.schema[key].dataType
    named = [tags, key, where or "where", expires or "expires", removed or REMOVED]
    schema = data_schema(data, [*COLUMNS, *named])
    known = (*schema, *named, "constraints", "area")
    check_names(sets.columns, known)
    # Without a collation, as keys are compared as bytes; Spark reads unsigned longs as decimals
    plain = "string" if key_type == "string" else "long"
    cast = kind.simpleString() if isinstance(kind, DecimalType) else plain
    sets_per_task = _checked_sets(sets_per_task)
    columns = [col(in_backquotes(tags)).alias("tags"), col(in_backquotes(key)).cast(cast).alias("key")]
    if where is not None:
        if not isinstance(kind := column_type(sets.schema, where), StringType):
            raise InvalidTypeError(f"column {where!r} must be string, not {kind.simpleString()}")
        columns.append(col(in_backquotes(where)).cast("string").alias("where"))
    if expires is not None:
        times_in(pa.array([], arrow_type(column_type(sets.schema, expires))), f"column {expires!r}", 0)
        columns.append(col(in_backquotes(expires)).alias("expires"))
    if removed is not None:
        check_removed(arrow_type(column_type(sets.schema, removed)), append=mode == "append" and not schema)
        columns.append(col(in_backquotes(removed)).alias(REMOVED))
    for name, check in (("constraints", constraint_rows), ("area", partial(area_rows, plane=plane))):
        if name in sets.columns:
            check(pa.array([], arrow_type(column_type(sets.schema, name))), f"column {name!r}")
            columns.append(col(name))
    for name, wanted in schema.items():
        plain = wanted.value_type if pa.types.is_dictionary(wanted) else wanted
        given = arrow_type(column_type(sets.schema, name))
        if family_of(given) != family_of(plain):
            raise InvalidTypeError(f"data: column {name!r} is {spark_name(given)}, which is no {text_of_type(wanted)}")
        columns.append(col(in_backquotes(name)))
    rows = sets.select(*columns)
    location, append = location_in(spark, index, "index"), mode == "append"
    if location.has_index() and mode == "error":
        raise IndexExistsError(f"there is an index at {location} already; choose another mode, or another path")
    stored = Stored.at(location) if append else Stored(location, now=clock.now_us())
    if schema and append and stored.manifest is not None:
        raise InvalidValueError(
            f"data goes with a new index, and there is one at {location}: replace it (mode), append rows "
            "without data, or give them by put_many of TagMatch"
        )
    stored.check_keys(key_type)
    options = stored.options(layout, max_partition_size)
    if options.attributes or options.strict:
        raise InvalidValueError(
            f"{location} has declared attributes, which partition() does not know: add sets with TagMatch, "
            "or by the data source `tagmatch`"
        )
    if others := [name for name in sets.columns if name not in known]:
        raise InvalidValueError(
            f"columns without a meaning: {', '.join(map(repr, others))}; name those that are data of keys in data=, "
            "and drop the others"
        )
    check_workers(spark)
    warn_of_memory(spark, sets_per_task * _SET_NBYTES)
    with errors_of_workers():
        return partition_sets(
            rows,
            stored,
            options,
            append=append,
            data=schema,
            plane=plane,
            sets_per_task=sets_per_task,
            skip_invalid=skip_invalid,
        )


def optimize(spark: SparkSession, index: str | os.PathLike[str], *, sets_per_task: int | None = None) -> None:
    """Merge the segments of an index into one, as `TagMatch.consolidate(full=True)` does: the very files of that.

    Rows that are appended, by batches and streams, leave segments, and each makes each query slower. A `TagMatch`
    that changes an index merges them in the background; where only Spark writes, call this now and then. Deleted rows
    and keys that have expired go. Staged changes stay staged. With one segment, nothing is done.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect.
    index : str or path
        Of an index, as `partition` takes it.
    sets_per_task : int
        As for `partition`.

    Raises
    ------
    IndexNotFoundError
        There is no index.
    InvalidValueError
        For `sets_per_task`, or a URI that Arrow does not know.
    IndexChangedError
        Another program has saved to the index during this. The index is as that program left it; call this again.
    IndexLockedError
        Another job works on the index; it is named.
    IndexCorruptError
        The index is damaged.

    Examples
    --------
    >>> optimize(spark, "interests.index")  # doctest: +SKIP
    """
    sets_per_task = _checked_sets(*with_settings(spark, sets_per_task=sets_per_task))
    location = location_in(spark, index, "index")
    stored = replace(Stored.at(location), manifest=location.manifest())  # IndexNotFoundError
    check_workers(spark)
    warn_of_memory(spark, sets_per_task * _SET_NBYTES)
    with errors_of_workers():
        merge_segments(spark, stored, stored.options(None, None), sets_per_task)


def _checked_sets(sets_per_task: Any) -> int:
    if isinstance(sets_per_task, bool) or not isinstance(sets_per_task, int) or sets_per_task < 1:
        raise InvalidValueError(f"sets_per_task must be an integer from 1 on, not {sets_per_task!r}")
    return sets_per_task


def subset_join(
    queries: DataFrame,
    index: str | os.PathLike[str] | DataFrame,
    *,
    unique: bool = False,
    strategy: Strategy | None = None,
    output: Output = "rows",
    how: How = "inner",
    on: str | Sequence[str] = (),
    tags: str | Column = "tags",
    attributes: str | Column | Sequence[str | Column] = (),
    location: str | Column | None = None,
    within: str | Column | None = None,
    only: str | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    order_by: str | None = None,
    score: str | None = None,
    explain: bool = False,
    plane: bool = False,
    skip_invalid: bool | None = None,
    ship_limit: int | None = None,
    device: WorkerDevice | None = None,
    folder: str | os.PathLike[str] | None = None,
    snapshot: SnapshotChoice = None,
) -> DataFrame:
    """Join queries with the stored sets that they contain; the same answers as those of `TagMatch.match_many`.

    With `ship`, only the columns given here go through Python: Spark reads the columns selected after the join, and
    the rows that conditions on columns of the queries leave. A stream keeps its event-time watermark.

    Columns are given by name, by Spark's rules: in any case of letters, unless `spark.sql.caseSensitive` is set, and
    `a.b` for a field of a struct, if no column is called so; or as expressions. Other columns are carried along.

    Parameters
    ----------
    queries : DataFrame
        One row for each query; batch or streaming.
    index : str, Path or DataFrame
        Of an index: a folder that the driver and all workers mount under this path, or a URI of a store. From that,
        `ship` copies the index once to each executor, and `shuffle` reads what it needs. Or interests, columns `tags`
        and `key`; this call makes an index of them.
    unique : bool
        Give a key once for a query, not once for each matching set that carries it.
    strategy : {"auto", "ship", "shuffle"}
        `ship`: every worker opens the whole index, memory-mapped, and leaves out keys that have expired when it matches
        a batch. `shuffle`: sets and queries meet in buckets, and a worker has one at a time, without keys that have
        expired by this call. `auto`, the default: `ship` for a stream, with `cuda`, and where the files of the index
        have at most `ship_limit` bytes or attributes are declared.
    output : {"rows", "lists", "counts", "exists"}
        `rows`: the columns of the queries and `key`, a row for each matching key; queries without a match have none.
        `lists`: the columns of the queries and `keys`, an array, a row for each query. Keys are long, or string where
        the index has keys that are strings. `counts`: a row for each query, too, with `count`, how many keys it has,
        without making them; if `unique`, how many different ones. `exists`: with `exists`, whether it has any.
    how : {"inner", "left", "semi", "anti"}
        With `rows`, as joins of Spark. `left`: queries without a match have one row, with null as the key. `semi` and
        `anti`: the columns of the queries alone, once, of those that have a match, or none.
    on : str or sequence of str
        Columns of the queries that must be equal to columns of data of a key, which are called the same, and are of the
        same type, or integers of any width; a null is equal to nothing.
    tags : str or Column
        Column of the queries with their tags, an array of strings.
    attributes : str or Column, or sequence of these
        Columns of the queries that are attributes, as those of a table are to `match_many`: bools, numbers, strings,
        dates or timestamps, or arrays of these, called as their column (`alias` gives another name); or structs or
        maps, with an attribute for each field or entry. Other columns are not attributes, so without any, sets with
        conditions match nothing.
    location, within : str or Column, optional
        Columns of the queries, as those of a table are to `match_many`: where a message is, structs of `lon` and `lat`,
        arrays of these two numbers, or arrays of such places; and structs as the column `area` of `add_subscriptions`,
        circles or boxes in which clients must be. As there, without a location no area has a message. Clients are where
        `save_positions` had left them in the index's folder when a task began or, with `shuffle`, a bucket; on a store
        they are nowhere.
    only : str, optional
        As for `TagMatch.match`: which keys, by their data.
    columns : sequence of str, optional
        Columns of data to come with each key, also with the best ones: with `rows` as their own columns, null where the
        key has no value; with `lists`, `keys` has structs of `key` and these.
    limit, order_by, score
        The best keys of each query, as those of `TagMatch.match_best`; with `lists`, the best first. Without `order_by`
        and `score`, the least ones. With `on`, of the keys that are equal there; `score` does not go with `on`.
    explain : bool
        Give with each key, as `set`, its set's tags and tests, which all held: a struct of `tags` and `tests`, arrays
        of strings, as `TagMatch.match_highlights` has them.
    plane : bool
        Whether areas are on the plane, as for `TagMatch.open`; places are then structs of `x` and `y`. An index does
        not say: where its areas, or places of clients, are not as asked, tasks fail with `InvalidValueError`.
    skip_invalid : bool
        A query whose tags are null, or have a null, has no match, and null in place of `keys`, `count` or `exists`;
        else, the default, it is an error.
    ship_limit : int
        In bytes. Default: 8 GiB. Like `strategy`, `skip_invalid` and `device`, it may be among the session's settings
        (`spark.tagmatch.…`).
    device : {"cpu", "cuda"}
        Where workers match, with `ship`. `cuda`: on the GPUs that Spark gives their task
        (`spark.task.resource.gpu.amount`), and on all of the machine if it gives none; each worker copies the index to
        its own. A batch of few queries is matched on the CPU, and so is a join by `shuffle`, which is an error if this
        is an argument. Default: `cpu`.
    folder : str or Path, optional
        Where the index of interests is made, and stays. By default a temporary folder of this machine, which goes when
        this process ends: for Spark in local mode.
    snapshot : int or "newest", optional
        Number of the snapshot that is asked, of those that the index keeps (`keep_snapshots` of `TagMatch`), as a job
        needs during which others save; or, with `ship`, `newest`: each task asks the one that is current when it
        begins. Default: the one that is current at this call; of a stream, `newest`, so that it follows the index
        without a restart.

    Returns
    -------
    DataFrame
        Nothing is matched before it is asked for. Its tasks fail with `NullError` for a null in the tags, with
        `InvalidValueError` for an answer with a key above 2**63 - 1, or where the index was replaced by one with
        keys of the other type, and with `IndexChangedError` where the index no longer has the snapshot.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        An argument, a setting, or a column of the queries, cannot be used.
    FilterError
        There is a mistake in `only` or `score`.
    IndexNotFoundError, IndexCorruptError, IndexVersionError
        For the files at `index`.
    SparkUnavailableError
        The Python of Spark's workers lacks tagmatch or Arrow, as a small job finds, once in a session.
    TagMatchError
        The store does not answer, or does not take the credentials.
    """
    if not isinstance(queries, DataFrame):
        raise InvalidTypeError(f"queries must be a Spark DataFrame, not {type(queries).__name__}")
    check_workers(queries.sparkSession)
    is_by_name = device == "cuda"
    given = {"strategy": strategy, "ship_limit": ship_limit, "skip_invalid": skip_invalid, "device": device}
    strategy, ship_limit, skip_invalid, device = with_settings(queries.sparkSession, **given)
    check_one_of("strategy", strategy, get_args(Strategy))
    check_one_of("device", device, get_args(WorkerDevice))
    asked = _asked(queries, tags, _listed(attributes), location, within, _listed(on), plane=plane)
    if isinstance(index, DataFrame):
        if index.isStreaming:
            raise InvalidValueError(
                "index: a join cannot index a stream of interests; write that to an index, by "
                'interests.writeStream.format("tagmatch"), and give its path: a stream of queries follows the index'
            )
        if snapshot not in (None, NEWEST):
            raise InvalidValueError(f"snapshot {snapshot!r} is one of an index, and index is a DataFrame: leave it out")
        folder = folder_of_this_process() if folder is None else folder
        partition(index, folder, plane=plane)
        place = location_in(index.sparkSession, folder, "folder")
    elif folder is not None:
        raise InvalidValueError("folder is where the index of interests is made; index names one that is there")
    else:
        place = location_in(queries.sparkSession, index, "index", snapshot)
    manifest = place.manifest()
    options = {"only": only, "columns": columns, "limit": limit, "order_by": order_by, "score": score}
    options |= {"explain": explain, "plane": plane}
    join: Any = {"how": how, "skip_invalid": skip_invalid, "on": [each.name for each in asked if each.of == ON]}
    answers = Answers.of(place, manifest, output=output, unique=unique, **options, **join)
    answers.check_names(queries.columns)
    for wanted, own in zip(answers.on, (each for each in asked if each.of == ON), strict=True):
        check_equal(wanted, own.kind)
    is_declared = declared_in(manifest) != ((), False)
    if strategy == "auto":
        is_small = files_nbytes(manifest) <= ship_limit
        ships = queries.isStreaming or is_small or is_declared or device == "cuda"
        strategy = "ship" if ships else "shuffle"
    if strategy == "ship":
        warn_of_memory(queries.sparkSession, files_nbytes(manifest))
        shipped = Shipped.of(place, manifest, snapshot, plane=plane, follows=queries.isStreaming, device=device)
        names = _different([each.name for each in asked])
        columns_asked = [_packed(each).alias(name) for each, name in zip(asked, names, strict=True)]
        return ship_join(queries, shipped, asked=_numbered(asked), columns=columns_asked, answers=answers)
    if is_by_name:
        raise InvalidValueError("strategy 'shuffle' matches on the CPU, not on 'cuda'; use 'ship'")
    if is_declared:
        raise InvalidValueError(f"strategy 'shuffle' cannot join {place}, which has declared attributes; use 'ship'")
    if answers.limit is not None and any(getattr(answers.data[name], "unit", "us") == "ns" for name in answers.by):
        raise InvalidValueError(
            "strategy 'shuffle' cannot order by times of nanoseconds, as Spark has microseconds; use 'ship'"
        )
    if queries.isStreaming:
        raise InvalidValueError("strategy 'shuffle' cannot join a stream; use 'ship', or join within foreachBatch")
    warn_of_memory(queries.sparkSession, BUCKET_SETS * _BUCKET_SET_NBYTES)
    return _shuffled(queries, place, asked, answers)


#: What a column of the queries is asked for, besides as tags, location or within
ATTRIBUTE, ON = "attributes", "on"


class _Asked(NamedTuple):
    """A column of the queries that is asked for."""

    of: str  # The argument that names it
    column: Column
    name: str  # As Spark has it
    kind: DataType
    is_own: bool  # Whether it is a column as it stands
    called: str  # In messages of errors


def _listed(given: str | Column | Sequence[str | Column]) -> tuple[str | Column, ...]:
    return (given,) if isinstance(given, (str, Column)) else tuple(given)


def _asked(
    queries: DataFrame,
    tags: str | Column,
    attributes: Sequence[str | Column],
    location: str | Column | None,
    within: str | Column | None,
    on: Sequence[str | Column],
    *,
    plane: bool,
) -> list[_Asked]:
    """The columns that are asked for, tags first, which are of types that they can have."""
    places = [(of, given) for of, given in ((LOCATION, location), (WITHIN, within)) if given is not None]
    given = [(TAGS, tags), *((ATTRIBUTE, each) for each in attributes), *places, *((ON, each) for each in on)]
    found = [_column(queries, of, each) for of, each in given]
    try:
        fields = queries.select(*(column for column, _ in found)).schema.fields
    except AnalysisException as error:
        raise InvalidValueError(f"queries: Spark finds no such column: {str(error).strip().splitlines()[0]}") from None
    asked = [
        _Asked(of, column, field.name, field.dataType, is_own, each if isinstance(each, str) else field.name)
        for (of, each), (column, is_own), field in zip(given, found, fields, strict=True)
    ]
    check_strings(asked[0].kind, f"column {asked[0].called!r} of the queries")
    if attributes or places:
        kinds = [each.kind if not _is_wrapped(each) else StructType().add(each.name, each.kind) for each in asked]
        schema = StructType([StructField(str(number), kind) for number, kind in enumerate(kinds)])
        called = {each.of: f"{each.of}: column {each.called!r}" for each in asked}
        check_types(_numbered(asked), arrow_schema(schema), called, plane=plane)
    return asked


def _column(queries: DataFrame, of: str, given: str | Column) -> tuple[Column, bool]:
    """A column of the queries by its name or as an expression, and whether it is one as it stands."""
    if isinstance(given, Column):
        return given, False
    if not isinstance(given, str):
        raise InvalidTypeError(f"{of} must be the name of a column of the queries, or a Column, not {given!r:.80}")
    columns = queries.columns
    found = [name for name in columns if name == given]
    if not found and str(queries.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() != "true":
        found = [name for name in columns if name.lower() == given.lower()]
    if len(found) == 1:
        return col(in_backquotes(found[0])), True
    if "." in given and not found:
        return col(given), False
    near = misspelt(columns, [given])
    hint = f"; is {near[0]!r} meant?" if near else ""
    names = ", ".join(map(repr, columns)) or "none"
    raise InvalidValueError(f"{of}: queries must have one column {given!r}; its columns are {names}{hint}")


def _is_wrapped(asked: _Asked) -> bool:
    """Whether it is a single attribute, which a struct gives its name."""
    return asked.of == ATTRIBUTE and not isinstance(asked.kind, (StructType, MapType))


def _packed(asked: _Asked) -> Column:
    return functions.struct(asked.column) if _is_wrapped(asked) else asked.column


def _different(names: Sequence[str]) -> list[str]:
    """Names of columns in a struct of Arrow's, where each is there once: those that are there again are numbered."""
    counts = Counter(names)
    return [name if counts[name] == 1 else f"tagmatch {number} {name}" for number, name in enumerate(names)]


def _numbered(asked: Sequence[_Asked], numbers: Sequence[int] | None = None) -> AskedColumns:
    """The same by the numbers of columns."""
    by_use: dict[str, list[int]] = {}
    for each, number in zip(asked, numbers or range(len(asked)), strict=True):
        by_use.setdefault(each.of, []).append(number)
    (own,), attributes, on = by_use.pop(TAGS), by_use.pop(ATTRIBUTE, ()), by_use.pop(ON, ())
    places = {of: number for of, (number,) in by_use.items()}
    return AskedColumns(own, tuple(attributes), places, tuple(on), asked[0].called)


def _shuffled(queries: DataFrame, place: Repository, asked: Sequence[_Asked], answers: Answers) -> DataFrame:
    """The join by a shuffle; the queries' tags, attributes and places become columns of the queries."""
    names, numbers, more = queries.columns, list[int](), list[Column]()
    for each in asked:
        numbers.append(names.index(each.name) if each.is_own else len(names) + len(more))
        if not each.is_own:
            more.append(_packed(each).alias(f"tagmatch asks {len(more)}"))
    valid = functions.coalesce(functions.forall(asked[0].column, lambda tag: tag.isNotNull()), functions.lit(False))
    whole = queries.select("*", *more) if more else queries
    whole = whole.where(valid) if answers.skip_invalid else whole
    names, different = whole.columns, _different(whole.columns)
    found = shuffle_join(
        whole if different == names else whole.toDF(*different),
        place,
        asked=_numbered(asked, numbers),
        answers=answers,
        bucket_sets=BUCKET_SETS,
    )
    found = found if different == names else found.toDF(*names, *found.columns[len(names) :])
    found = found.drop(*(f"tagmatch asks {number}" for number in range(len(more)))) if more else found
    keeps = answers.output != "rows" and answers.how != "semi"
    if not answers.skip_invalid or not (keeps or answers.how == "left"):
        return found
    added = [] if answers.how == "anti" else [*answers.fields]
    nulls = (functions.lit(None).cast(each.dataType).alias(each.name) for each in added)
    return found.union(queries.where(~valid).select("*", *nulls))
