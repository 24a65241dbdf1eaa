"""The offline job as a function of a DataFrame, and the join: the keys of all stored sets that sets contain.

The join where every worker has the whole index is here: it is opened once, memory-mapped, and asked batch by batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import pyarrow as pa
from pyspark.sql import DataFrame, functions
from pyspark.sql.functions import col
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from tagmatch.embedded import TagMatch
from tagmatch.model.errors import IndexChangedError, IndexExistsError, InvalidTypeError, InvalidValueError
from tagmatch.model.input.places import LOCATION, WITHIN, area_rows
from tagmatch.model.input.subscriptions import constraint_rows
from tagmatch.model.names import check_names as check_column_names
from tagmatch.model.names import misspelt
from tagmatch.model.options import KeyType, Layout, check_one_of
from tagmatch.model.storage.byte_store import folder_of_this_process
from tagmatch.model.storage.format import Manifest, declared_in, files_nbytes, key_type_of
from tagmatch.model.storage.repository import Repository
from tagmatch.partitioner.spark import Partitioned, key_type_of_rows, partition_sets
from tagmatch.partitioner.spark.shards import Stored
from tagmatch.spark.columns import (
    Answers,
    AskedColumns,
    Output,
    arrow_schema,
    arrow_type,
    check_types,
    errors_of_workers,
    on_plane,
    quoted,
    reject_nulls,
)
from tagmatch.spark.session import NEWEST, SnapshotChoice, Strategy, location_in, with_settings
from tagmatch.spark.shuffle import BUCKET_SETS, shuffle_join

#: What becomes of an index that is there
Mode = Literal["overwrite", "append", "error"]

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)


def column_type(frame: DataFrame, column: str) -> DataType:
    """Return the type of a column."""
    if column not in frame.columns:
        raise InvalidTypeError(
            f"there is no column {column!r}; there are {', '.join(map(repr, frame.columns)) or 'none'}"
        )
    return frame.schema[column].dataType


def check_strings(kind: DataType, name: str) -> None:
    """See that a column holds arrays of strings."""
    if not (isinstance(kind, ArrayType) and isinstance(kind.elementType, StringType)):
        raise InvalidTypeError(f"{name} must be array<string>, not {kind.simpleString()}")


def check_names(names: list[str], taken: tuple[str, ...]) -> None:
    """See that no column that is left aside would be missed: one that sets may have, or one that is misspelt."""
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
        Column of expressions, what the attributes of a query must be as well (see `TagMatch.add_set`); null where a
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
    IndexLockedError
        Another job works on the index; it is named.
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
    check_one_of("mode", mode, get_args(Mode))
    spark = sets.sparkSession
    if mode != "append":  # an index has its own
        layout, max_partition_size = with_settings(spark, layout=layout, max_partition_size=max_partition_size)
    sets_per_task, skip_invalid = with_settings(spark, sets_per_task=sets_per_task, skip_invalid=skip_invalid)
    if where is None and "where" in sets.columns:
        where = "where"
    check_strings(column_type(sets, tags), f"column {tags!r}")
    kind = column_type(sets, key)
    check_names(sets.columns, (tags, key, where or "where", "constraints", "area"))
    if isinstance(kind, StringType):
        cast = "string"  # without a collation: keys are compared as bytes
    elif isinstance(kind, DecimalType) and kind.scale == 0:
        cast = kind.simpleString()  # as which Spark reads unsigned longs
    elif isinstance(kind, _INTEGERS):
        cast = "long"
    else:
        raise InvalidTypeError(
            f"column {key!r} must be a string, an integer or a decimal of scale 0, not {kind.simpleString()}"
        )
    if isinstance(sets_per_task, bool) or not isinstance(sets_per_task, int) or sets_per_task < 1:
        raise InvalidValueError(f"sets_per_task must be an integer from 1 on, not {sets_per_task!r}")
    columns = [col(quoted(tags)).alias("tags"), col(quoted(key)).cast(cast).alias("key")]
    if where is not None:
        if not isinstance(kind := column_type(sets, where), StringType):
            raise InvalidTypeError(f"column {where!r} must be string, not {kind.simpleString()}")
        columns.append(col(quoted(where)).cast("string").alias("where"))
    for name, check in (("constraints", constraint_rows), ("area", partial(area_rows, plane=False))):
        if name in sets.columns:
            check(pa.array([], arrow_type(column_type(sets, name))), f"column {name!r}")
            columns.append(col(name))
    rows = sets.select(*columns)
    location, append = location_in(spark, index, "index"), mode == "append"
    if location.has_index() and mode == "error":
        raise IndexExistsError(f"there is an index at {location} already; choose another mode, or another path")
    stored = Stored.at(location) if append else Stored(location)
    stored.check_keys(key_type_of_rows(rows))
    options = stored.options(layout, max_partition_size)
    if options.attributes or options.strict:
        raise InvalidValueError(
            f"{location} has declared attributes, which partition() does not know: add sets with TagMatch, "
            "or by the data source `tagmatch`"
        )
    with errors_of_workers():
        return partition_sets(
            rows, stored, options, append=append, sets_per_task=sets_per_task, skip_invalid=skip_invalid
        )


def subset_join(
    queries: DataFrame,
    index: str | os.PathLike[str] | DataFrame,
    *,
    unique: bool = False,
    strategy: Strategy | None = None,
    output: Output = "rows",
    tags: str = "tags",
    attributes: str | Sequence[str] = (),
    location: str | None = None,
    within: str | None = None,
    only: str | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    order_by: str | None = None,
    score: str | None = None,
    ship_limit: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    snapshot: SnapshotChoice = None,
) -> DataFrame:
    """Join queries with the stored sets that they contain; the same answers as those of `TagMatch.match_many`.

    All columns of the queries go through Python, so select those that are wanted first. The event-time watermark of
    a stream gets lost, as in `mapInArrow`: set it after the join.

    Parameters
    ----------
    queries : DataFrame
        One row for each query; batch or streaming. Without nulls in its tags.
    index : str, Path or DataFrame
        Of an index: a folder that the driver and all workers mount under this path, or a URI of a store, from which
        each executor copies the index once. Or interests, columns `tags` and `key`, of which this call makes an index.
    unique : bool
        Give a key once for a query, not once for each matching set that carries it.
    strategy : {"auto", "ship", "shuffle"}
        `ship`: every worker opens the whole index, memory-mapped. `shuffle`: sets and queries meet in buckets, of which
        a worker has one at a time, without keys that have expired by this call. `auto`, the default: `ship` for a
        stream, where the files of the index have at most `ship_limit` bytes or attributes are declared, and for
        `only`, `columns` and `limit`.
    output : {"rows", "lists", "counts", "exists"}
        `rows`: the columns of the queries and `key`, a row for each matching key; queries without a match have none.
        `lists`: the columns of the queries and `keys`, an array, a row for each query. Keys are long, or string where
        the index has keys that are strings. `counts`: a row for each query, too, with `count`, how many keys it has,
        without making them; if `unique`, how many different ones. `exists`: with `exists`, whether it has any.
    tags : str
        Column of the queries with their tags, an array of strings.
    attributes : str or sequence of str
        Columns of the queries that are attributes, as those of a table are to `match_many`: bools, integers, floats or
        strings, or arrays of these; or structs, of which each field is an attribute. Others are none.
    location, within : str, optional
        Columns of the queries, as those of a table are to `match_many`: structs of `lon` and `lat`, or arrays of these
        two numbers, where a message is; and structs as the column `area` of `add_subscriptions`, circles or boxes in
        which clients must be. As there, without a location no area has a message. Areas are on the sphere: tasks fail
        for an index on the plane. Clients are where the index's folder says.
    only : str, optional
        As for `TagMatch.match`: which keys, by their data.
    columns : sequence of str, optional
        Columns of data to come with each key: with `rows` as columns of their own, null where the key has no value;
        with `lists`, `keys` has structs of `key` and these.
    limit, order_by, score
        The best keys of each query, as those of `TagMatch.match_best`; with `lists`, the best first.
    ship_limit : int
        In bytes. Default: 8 GiB. Like `strategy`, it may be among the session's settings (`spark.tagmatch.…`).
    folder : str or Path, optional
        Where the index of interests is made, and stays. By default a temporary folder of this machine, which goes when
        this process ends: for Spark in local mode.
    snapshot : int or "newest", optional
        Number of the snapshot that is asked, of those that the index keeps; or, with `ship`, `newest`: each task asks
        the one that is current when it begins. Default: the one that is current at this call; of a stream, `newest`,
        so that it follows the index without a restart.

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
        For what stands at `index`.
    TagMatchError
        The store does not answer, or does not take the credentials.
    """
    if not isinstance(queries, DataFrame):
        raise InvalidTypeError(f"queries must be a Spark DataFrame, not {type(queries).__name__}")
    strategy, ship_limit = with_settings(queries.sparkSession, strategy=strategy, ship_limit=ship_limit)
    check_one_of("strategy", strategy, get_args(Strategy))
    names = (attributes,) if isinstance(attributes, str) else tuple(attributes)
    asked = _asked(queries, tags, names, location, within)
    if isinstance(index, DataFrame):
        folder = folder_of_this_process() if folder is None else folder
        partition(index, folder)
        place = location_in(index.sparkSession, folder, "folder")
    elif folder is not None:
        raise InvalidValueError("folder is where the index of interests is made; index names one that is there")
    else:
        place = location_in(queries.sparkSession, index, "index", snapshot)
    manifest = place.manifest()
    options = {"only": only, "columns": columns, "limit": limit, "order_by": order_by, "score": score}
    answers = Answers.of(place, manifest, output=output, unique=unique, **options)
    answers.check_names(queries.columns)
    is_declared = declared_in(manifest) != ((), False)
    if strategy == "auto":
        is_small = files_nbytes(manifest) <= ship_limit
        ships = queries.isStreaming or is_small or is_declared or answers.needs_data
        strategy = "ship" if ships else "shuffle"
    if strategy == "ship":
        shipped = Shipped.of(place, manifest, snapshot, follows=queries.isStreaming)
        return ship_join(queries, shipped, asked=asked, answers=answers)
    if is_declared:
        raise InvalidValueError(f"strategy 'shuffle' cannot join {place}, which has declared attributes; use 'ship'")
    if answers.needs_data:
        raise InvalidValueError("strategy 'shuffle' has no data of keys for only, columns and limit; use 'ship'")
    if queries.isStreaming:
        raise InvalidValueError("strategy 'shuffle' cannot join a stream; use 'ship', or join within foreachBatch")
    return shuffle_join(queries, place, asked=asked, answers=answers, bucket_sets=BUCKET_SETS)


def _asked(
    queries: DataFrame, tags: str, attributes: tuple[str, ...], location: str | None, within: str | None
) -> AskedColumns:
    """The columns by number, which are of types that they can have."""
    columns = queries.columns

    def number(of: str, name: str) -> int:
        if columns.count(name) != 1:
            near = misspelt(columns, [name])
            hint = f"; is {near[0]!r} meant?" if near else ""
            names = ", ".join(map(repr, columns)) or "none"
            raise InvalidValueError(f"{of}: queries must have one column {name!r}; its columns are {names}{hint}")
        return columns.index(name)

    own = number("tags", tags)
    check_strings(queries.schema.fields[own].dataType, f"column {tags!r} of the queries")
    places = {of: name for of, name in ((LOCATION, location), (WITHIN, within)) if name is not None}
    of_attributes = tuple(number("attributes", name) for name in attributes)
    asked = AskedColumns(own, of_attributes, {of: number(of, name) for of, name in places.items()})
    if attributes or places:
        check_types(asked, arrow_schema(queries.schema), {of: f"{of}: column {places[of]!r}" for of in places})
    return asked


# -- every worker has the whole index ----------------------------------------------------------------------------------

#: Queries answered together, so that what they have in common, the memory of their answers, stays bounded
QUERIES = 1024

# The indexes that this worker has opened, by where they are, with what was asked for: for each store or folder the last
# one, as credentials may change. A worker runs one task at a time.
_opened: dict[str, tuple[Shipped, TagMatch[Any]]] = {}


@dataclass(frozen=True, slots=True)
class Shipped:
    """What all tasks ask: a snapshot of an index, or for each task the one that is current when it begins."""

    location: Repository
    key_type: KeyType
    snapshot: str | None  # The name of the snapshot; `None`: the current one

    @classmethod
    def of(
        cls, location: Repository, manifest: Manifest, snapshot: SnapshotChoice, *, follows: bool = False
    ) -> Shipped:
        """The index with this manifest or, if it is asked for or `follows`, as it will be."""
        name = None if snapshot == NEWEST or (follows and snapshot is None) else str(manifest["snapshot"])
        return cls(location, key_type_of(manifest), name)

    def open(self) -> TagMatch[Any]:
        """The index; opened where this worker has not opened it, or another snapshot of it."""
        try:
            return self._opened()
        except InvalidValueError:
            found = key_type_of(self.location.manifest())
            if found == self.key_type:
                _reject_plane(self.location, self.key_type)
                raise
            raise InvalidValueError(
                f'the index {self.location} had key_type "{self.key_type}" when the join began, and has "{found}" now; '
                "begin it anew"
            ) from None

    def _opened(self) -> TagMatch[Any]:
        asked, held = _opened.get(str(self.location), (self, None))
        if held is not None and asked == self:
            if self.snapshot is None:
                held.reload()
            return held
        self._check_snapshot()
        index = _open(self.location, self.key_type)
        self._check_snapshot()
        _opened[str(self.location)] = self, index
        if held is not None:
            held.close()
        return index

    def _check_snapshot(self) -> None:
        """IndexChangedError if the index has another snapshot now than the one to ask."""
        if self.snapshot not in (None, self.location.manifest()["snapshot"]):
            raise IndexChangedError(
                f"the index {self.location} has another snapshot than when the join, or the function, was made, so "
                "that tasks would answer from different ones; make it again, give as `snapshot` the number of one that "
                f"the index keeps, or {NEWEST!r}, for each task to answer from the one that is current when it begins"
            )


def ship_join(queries: DataFrame, index: Shipped, *, asked: AskedColumns, answers: Answers) -> DataFrame:
    """Join queries, which may be a stream, with an index that all workers reach.

    Answers depend on the query and the snapshot alone: of one snapshot, and while none of its keys expires, a task that
    is run again gives the same rows.
    """

    def tagmatch_ship(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opened = index.open()
        for structs in batches:
            batch = pa.RecordBatch.from_struct_array(structs.column(0))
            reject_nulls(batch.column(asked.tags), batch.schema.names[asked.tags])
            for first in range(0, len(batch), QUERIES):
                some = batch.slice(first, QUERIES)
                yield from answers.beside(some, answers.ask(opened, asked.messages(some)))

    # As structs, since `mapInArrow` does not find columns with a dot in their names
    structs = queries.select(functions.struct("*").alias("query"))
    return structs.mapInArrow(tagmatch_ship, StructType([*queries.schema.fields, *answers.fields]))


def _open(location: Repository, key_type: KeyType, *, plane: bool = False) -> TagMatch[Any]:
    # With the location's credentials, which no address has
    found: Any = location
    return TagMatch.open(found, threads=1, device="cpu", key_type=key_type, plane=plane)


def _reject_plane(location: Repository, key_type: KeyType) -> None:
    """InvalidValueError if an index that cannot be opened on the sphere is one on the plane."""
    try:
        _open(location, key_type, plane=True).close()
    except InvalidValueError:
        return
    raise on_plane(location) from None
