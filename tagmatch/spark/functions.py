"""Functions for SQL and columns: the keys of all stored sets that a set of tags contains."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, cast, get_args

import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import arrow_udf, udtf  # type: ignore[attr-defined]
from pyspark.sql.types import DataType, DecimalType, NullType, StructField, StructType, TimestampNTZType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from tagmatch.embedded import TagMatch
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, ResultTooLargeError
from tagmatch.model.input.messages import ATTRIBUTES, TAGS
from tagmatch.model.input.places import LOCATION, WITHIN
from tagmatch.model.options import check_one_of
from tagmatch.model.storage.format import files_nbytes
from tagmatch.spark.answers import Answers, Output, signed
from tagmatch.spark.columns import (
    AskedColumns,
    arrow_schema,
    arrow_type,
    check_types,
    reject_nulls,
    spark_name,
)
from tagmatch.spark.join import check_strings
from tagmatch.spark.session import (
    NEWEST,
    SnapshotChoice,
    StoreSettings,
    WorkerDevice,
    check_workers,
    located,
    location_in,
    warn_of_memory,
)
from tagmatch.spark.ship import Shipped, answered
from tagmatch.spark.source import TagMatchSource

#: What the table function is called in SQL
MATCH = "tagmatch_match"

#: Bytes, at most, of the answers to rows that Spark gives `match_udf` at once; joined, they are there twice
MOST_BYTES = 1 << 29


def register(spark: SparkSession) -> None:
    """Let a session have the table function `tagmatch_match` and the data source `tagmatch`.

    Spark finds the data source by itself if the package is on the driver, but not a package sent by `addArtifacts`.
    Only what this call registers knows the session's settings for stores, as they are now.

    `tagmatch_match(tags, index)` gives a row with `key` for each match. `attributes`, `location` and `within` are
    as for `match_udf`; `only`, `columns`, `plane` and `snapshot`, which are constant, as for `subset_join`. All but the
    first two may be left out, and are then given by name: `tagmatch_match(tags, index, within => region)`. A null is no
    value, numbers may be decimals, and null tags give no row.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect.

    Examples
    --------
    >>> register(spark)
    >>> spark.sql(
    ...     "SELECT q.id, m.key FROM queries q, LATERAL tagmatch_match(q.tags, '/data/interests.index') m"
    ... )  # doctest: +SKIP
    """
    settings = StoreSettings.of(spark)

    # Spark sends both classes to its processes, with their attributes
    class Source(TagMatchSource):
        stores = settings

    class Match(_Match):
        @staticmethod
        def analyze(
            tags: AnalyzeArgument,
            index: AnalyzeArgument,
            attributes: AnalyzeArgument | None = None,
            location: AnalyzeArgument | None = None,
            within: AnalyzeArgument | None = None,
            only: AnalyzeArgument | None = None,
            columns: AnalyzeArgument | None = None,
            snapshot: AnalyzeArgument | None = None,
            plane: AnalyzeArgument | None = None,
        ) -> _Found:
            given = {TAGS: tags, ATTRIBUTES: attributes, LOCATION: location, WITHIN: within}
            constant = {"index": index, "only": only, "columns": columns, "snapshot": snapshot, "plane": plane}
            return _analyzed(
                settings,
                {name: each for name, each in given.items() if each is not None},
                {name: _constant(name, each) for name, each in constant.items() if each is not None},
            )

    spark.dataSource.register(Source)
    spark.udtf.register(MATCH, udtf(Match))  # type: ignore[arg-type]


def match_udf(
    index: str | os.PathLike[str],
    *,
    unique: bool = False,
    output: Output = "lists",
    only: str | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    order_by: str | None = None,
    score: str | None = None,
    explain: bool = False,
    plane: bool = False,
    skip_invalid: bool = False,
    device: WorkerDevice = "cpu",
    snapshot: SnapshotChoice = None,
) -> Any:
    """A function of columns that gives the keys of an index for each row: an array, in no particular order.

    Spark calls it with thousands of rows at once, so it is much faster than `tagmatch_match`, which gets them one by
    one.

    Parameters
    ----------
    index : str or Path
        Of an index: a folder that the driver and all workers mount under this path, or a URI of a store.
    unique : bool
        Give a key once, not once for each matching set that carries it.
    output : {"lists", "counts", "exists"}
        Keys; or, as `subset_join` has them, how many there are, or whether there are any.
    only, columns, limit, order_by, score, explain
        As for `subset_join`: which keys, and which columns come with them.
    plane : bool
        As for `subset_join`: areas are on the plane.
    skip_invalid : bool
        Tags that have a null give null, too; else they are an error.
    device : {"cpu", "cuda"}
        As for `subset_join`: where workers match.
    snapshot : int or "newest", optional
        See `subset_join`. Default: the one that is current at this call; columns of a stream follow the index with
        `newest`.

    Returns
    -------
    function
        Of a column of tags, an array of strings without nulls, or null, which gives null; and, optionally,
        of columns `attributes`, a struct with an attribute for each field, or a map, and `location` and `within` (see
        `subset_join`). All but the tags may be given by name. A null means no value. Its tasks fail with `NullError`,
        `InvalidValueError` and `IndexChangedError` as those of `subset_join`, and with these and `InvalidTypeError` for
        columns that cannot be used; and with `ResultTooLargeError` where the rows that Spark gives at once
        (`spark.sql.execution.arrow.maxRecordsPerBatch`) have keys of more than 512 MiB.

    Raises
    ------
    InvalidTypeError, InvalidValueError, FilterError, IndexNotFoundError, IndexCorruptError, IndexVersionError
        For `index`, for the files there, and for the options.

    Examples
    --------
    >>> queries.select("id", explode(match_udf("/data/interests.index")("tags")))  # doctest: +SKIP
    >>> queries.select(match_udf("/data/alerts.index")("tags", location="place", within="region"))  # doctest: +SKIP
    >>> spark.udf.register("interests_of", match_udf("/data/interests.index"))  # doctest: +SKIP
    >>> spark.sql("SELECT interests_of(tags, location => struct(lon, lat)) FROM queries")  # doctest: +SKIP
    >>> spark.udf.register("interest_count", match_udf("/data/interests.index", output="counts"))  # doctest: +SKIP
    >>> spark.udf.register("best", match_udf("/data/alerts.index", limit=3, order_by="bid desc"))  # doctest: +SKIP
    >>> queries.select(match_udf("/data/rooms.index", plane=True)("tags", location="spot"))  # doctest: +SKIP
    """
    check_one_of("device", device, get_args(WorkerDevice))
    place = location_in(SparkSession.getActiveSession(), index, "index", snapshot)
    if output == "rows":
        raise InvalidValueError("output: a function has one answer for each row, so 'lists'; explode these")
    options = {"only": only, "columns": columns, "limit": limit, "order_by": order_by, "score": score}
    options |= {"explain": explain, "plane": plane}
    manifest = place.manifest()
    wanted = Answers.of(place, manifest, output=output, unique=unique, skip_invalid=True, **options)
    (answer,) = wanted.fields
    check_workers(SparkSession.getActiveSession())
    warn_of_memory(SparkSession.getActiveSession(), files_nbytes(manifest))
    shipped = Shipped.of(place, manifest, snapshot, plane=plane, device=device)

    opened: list[TagMatch[Any]] = []  # each task has its own copy, which is empty at first

    # By the type hints Spark knows that it gives a batch at a time; by their names it gives columns to parameters
    def tagmatch_match(
        tags: pa.Array, attributes: pa.Array = None, location: pa.Array = None, within: pa.Array = None
    ) -> pa.Array:
        if not opened:
            opened.append(shipped.open())
        given = {ATTRIBUTES: attributes, LOCATION: location, WITHIN: within}
        there = {name: each for name, each in given.items() if not (each is None or pa.types.is_null(each.type))}
        queries = pa.record_batch({TAGS: tags, **there})
        if not skip_invalid:
            reject_nulls(tags.drop_null(), TAGS)
        asked = _asked("match_udf", queries.schema, plane=plane)
        return _together(answered(opened[0], queries, asked, wanted), arrow_type(answer.dataType), len(tags))

    return arrow_udf(tagmatch_match, answer.dataType)


def _together(parts: Iterable[pa.Array], kind: pa.DataType, rows: int) -> pa.Array:
    """The answers to all rows of a batch: of a function whose arguments have names, Spark wants them in one array."""
    found, nbytes = [pa.array([], kind)], 0
    for part in parts:
        found.append(part)
        nbytes += part.nbytes
        if nbytes > MOST_BYTES:
            raise ResultTooLargeError(
                f"match_udf: the keys of {rows} rows, which come at once, have more than {MOST_BYTES >> 20} MiB; "
                "use subset_join, or a smaller spark.sql.execution.arrow.maxRecordsPerBatch"
            )
    return pa.concat_arrays(found)


def _asked(function: str, schema: pa.Schema, *, plane: bool, by_row: bool = False) -> AskedColumns:
    """The arguments of a function that are given, as columns; by row, attributes are looked at when they come."""
    number = {name: place for place, name in enumerate(schema.names)}
    kind = schema.field(ATTRIBUTES).type if ATTRIBUTES in number else None
    if not (kind is None or pa.types.is_struct(kind) or pa.types.is_map(kind)):
        raise InvalidTypeError(f"{function}: argument {ATTRIBUTES} must be a struct or a map, not {spark_name(kind)}")
    attributes = () if kind is None or by_row else (number[ATTRIBUTES],)
    places = {name: number[name] for name in (LOCATION, WITHIN) if name in number}
    asked = AskedColumns(number[TAGS], attributes, places)
    check_types(asked, schema, {name: f"{function}: argument {name}" for name in places}, plane=plane)
    return asked


# -- the table function ----------------------------------------------------------------------------------------------


@dataclass
class _Found(AnalyzeResult):
    """What Spark hands from `analyze` to its workers."""

    index: Shipped | None = None
    wanted: Answers | None = None


class _Match:
    """The table function; it asks each row by itself: Spark wants its answers before it gives the next row."""

    def __init__(self, found: _Found | None = None) -> None:
        assert found is not None
        assert found.index is not None
        assert found.wanted is not None
        self._index, self._wanted = found.index.open(), found.wanted

    def eval(
        self,
        tags: Any,
        index: str,
        attributes: Any = None,
        location: Any = None,
        within: Any = None,
        only: str | None = None,
        columns: Any = None,
        snapshot: int | str | None = None,
        plane: bool | None = None,
    ) -> Iterator[tuple[Any, ...]]:
        """The keys of one set of tags, and what data they have."""
        del index, only, columns, snapshot, plane  # what `analyze` has found
        if tags is None:
            return iter(())
        if None in tags:
            raise InvalidValueError(f"{MATCH}: the tags have a null; leave such tags out by array_compact(tags)")
        names, opened = self._wanted.columns, cast(Any, self._index)
        found: list[Any] = opened.match(
            tags,
            _with_zones(attributes),
            location=_plain(location),
            within=_plain(within),
            only=self._wanted.only,
            columns=names or None,
        )
        keys = [row["key"] for row in found] if names else found
        if keys and isinstance(keys[0], int) and max(keys) >= 2**63:
            signed(pa.array(keys, pa.uint64()))  # an error
        if not names:
            return zip(keys, strict=True)
        return (tuple(map(_of_type, self._wanted.fields, row.values())) for row in found)


def _of_type(field: StructField, value: Any) -> Any:
    """A value of data as Spark takes it, which has decimals in place of the greatest integers."""
    return Decimal(value) if isinstance(value, int) and isinstance(field.dataType, DecimalType) else value


def _constant(name: str, given: AnalyzeArgument) -> Any:
    """The value of an argument that is the same for all rows."""
    kinds = {"index": " string, the path or URI of an index", "only": " string", "columns": " array of strings"}
    kinds |= {"snapshot": f", the number of a snapshot or {NEWEST!r}", "plane": ", true or false"}
    types: dict[str, Any] = {"index": str, "plane": bool | None}
    if not given.isConstantExpression or not isinstance(given.value, types.get(name, object)):
        raise InvalidTypeError(f"{MATCH}: argument {name} must be a constant{kinds[name]}")
    return given.value


def _analyzed(stores: StoreSettings, arguments: Mapping[str, AnalyzeArgument], constant: Mapping[str, Any]) -> _Found:
    """The columns of the answer, and where workers find the index."""
    types = {name: each.dataType for name, each in arguments.items() if not isinstance(each.dataType, NullType)}
    check_strings(arguments[TAGS].dataType, f"{MATCH}: argument tags")
    if ATTRIBUTES in types and _has_naive_times(types[ATTRIBUTES]):
        raise InvalidTypeError(f"{MATCH}: argument attributes has times without a time zone; cast them to timestamp")
    only, columns, snapshot, plane = map(constant.get, ("only", "columns", "snapshot", "plane"))
    plane = bool(plane)  # which may be NULL
    schema = arrow_schema(StructType([StructField(name, kind) for name, kind in types.items()]))
    _asked(MATCH, schema, plane=plane, by_row=True)
    place = located(stores, constant["index"], "index", snapshot)
    manifest = place.manifest()
    wanted = Answers.of(place, manifest, output="rows", only=only, columns=columns, plane=plane)
    shipped = Shipped.of(place, manifest, snapshot, plane=plane)
    return _Found(StructType([*wanted.fields]), index=shipped, wanted=wanted)


def _with_zones(attributes: Any) -> Any:
    """Attributes as `TagMatch.match` takes them: Spark gives times in the worker's zone, and does not name it."""
    if isinstance(attributes, Row):
        return _with_zones(attributes.asDict())
    if isinstance(attributes, dict):
        return {name: _with_zones(value) for name, value in attributes.items()}
    if isinstance(attributes, list):
        return [*map(_with_zones, attributes)]
    return attributes.astimezone() if isinstance(attributes, datetime) else attributes


def _has_naive_times(kind: DataType) -> bool:
    """Whether values of a type have times without a zone."""
    inner = [each.dataType for each in kind] if isinstance(kind, StructType) else []
    inner += [getattr(kind, name) for name in ("elementType", "valueType") if hasattr(kind, name)]
    return isinstance(kind, TimestampNTZType) or any(map(_has_naive_times, inner))


def _plain(place: Any) -> Any:
    """Places and areas as `TagMatch.match` takes them: structs as dicts, decimals as floats."""
    if isinstance(place, Row):
        return {name: _plain(value) for name, value in place.asDict().items()}
    if isinstance(place, list):
        return [*map(_plain, place)]
    return float(place) if isinstance(place, Decimal) else place
