"""Functions for SQL and columns: the keys of all stored sets that a set of tags contains."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import arrow_udf, udtf  # type: ignore[attr-defined]
from pyspark.sql.types import ArrayType, NullType, StructField, StructType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from tagmatch.embedded import TagMatch
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, TagMatchError
from tagmatch.model.input.messages import ATTRIBUTES, TAGS
from tagmatch.model.input.places import KIND, LOCATION, WITHIN, names_of_places, shapes_in
from tagmatch.model.kernels.sphere import BOX
from tagmatch.model.where.areas import Box, Circle
from tagmatch.spark.columns import (
    KEY_TYPES,
    AskedColumns,
    arrow_schema,
    arrow_type,
    check_types,
    reject_nulls,
    signed,
    spark_name,
)
from tagmatch.spark.join import QUERIES, Shipped, check_strings
from tagmatch.spark.session import NEWEST, SnapshotChoice, StoreSettings, located, location_in
from tagmatch.spark.source import TagMatchSource

#: What the table function is called in SQL
MATCH = "tagmatch_match"


def register(spark: SparkSession) -> None:
    """Let a session have the table function `tagmatch_match` and the data source `tagmatch`.

    Spark finds the data source by itself where the package is on the driver, but not what was sent by `addArtifacts`.
    Only what this call registers knows the session's settings for stores, as they are now.

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

    # Spark sends both classes to processes of its own, with what they have
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
            snapshot: AnalyzeArgument | None = None,
        ) -> _Found:
            given = {TAGS: tags, ATTRIBUTES: attributes, LOCATION: location, WITHIN: within}
            return _analyzed(
                settings, index, {name: each for name, each in given.items() if each is not None}, snapshot
            )

    spark.dataSource.register(Source)
    spark.udtf.register(MATCH, udtf(Match))  # type: ignore[arg-type]


def match_udf(index: str | os.PathLike[str], *, unique: bool = False, snapshot: SnapshotChoice = None) -> Any:
    """A function of columns that gives the keys of an index for each row: an array, in no particular order.

    Spark calls it with thousands of rows at once, so it is much faster than `tagmatch_match`, which gets them one by
    one.

    Parameters
    ----------
    index : str or Path
        Of an index: a folder that the driver and all workers mount under this path, or a URI of a store.
    unique : bool
        Give a key once, not once for each matching set that carries it.
    snapshot : int or "newest", optional
        See `subset_join`. Default: the one that is current at this call; columns of a stream follow the index with
        `newest`.

    Returns
    -------
    function
        Of a column of tags, an array of strings without nulls; and, where they are wanted, of columns `attributes`, a
        struct of which each field is one, or a map, and `location` and `within` (see `subset_join`). All but the tags
        may be given by name. A null is none. Its tasks fail with `NullError`, `InvalidValueError` and
        `IndexChangedError` as those of `subset_join`, and with these and `InvalidTypeError` for columns that cannot be
        used.

    Raises
    ------
    InvalidTypeError, InvalidValueError, IndexNotFoundError, IndexCorruptError, IndexVersionError
        For `index`, and for what stands there.

    Examples
    --------
    >>> queries.select("id", explode(match_udf("/data/interests.index")("tags")))  # doctest: +SKIP
    >>> queries.select(match_udf("/data/alerts.index")("tags", location="place", within="region"))  # doctest: +SKIP
    >>> spark.udf.register("interests_of", match_udf("/data/interests.index"))  # doctest: +SKIP
    >>> spark.sql("SELECT interests_of(tags, location => struct(lon, lat)) FROM queries")  # doctest: +SKIP
    """
    shipped = Shipped.of(location_in(SparkSession.getActiveSession(), index, "index", snapshot), snapshot)
    answers = ArrayType(KEY_TYPES[shipped.key_type], containsNull=False)

    opened: list[TagMatch[Any]] = []  # each task has a copy of its own, which is empty at first

    # By the type hints Spark knows that it gives a batch at a time; by their names it gives columns to parameters
    def tagmatch_match(
        tags: pa.Array, attributes: pa.Array = None, location: pa.Array = None, within: pa.Array = None
    ) -> pa.Array:
        if not opened:
            opened.append(shipped.open())
        queries = _messages({TAGS: tags, ATTRIBUTES: attributes, LOCATION: location, WITHIN: within})
        parts = [
            _lists(opened[0].match_many(queries.slice(first, QUERIES), unique=unique), answers)
            for first in range(0, len(queries), QUERIES)
        ]
        return pa.concat_arrays(parts) if parts else pa.array([], arrow_type(answers))

    return arrow_udf(tagmatch_match, answers)


def _messages(arguments: Mapping[str, Any]) -> pa.RecordBatch:
    """What `TagMatch.match_many` is asked, of a batch of arguments, of which some are `None` or only nulls."""
    given = {
        name: values
        for name, values in arguments.items()
        if name == TAGS or not (values is None or pa.types.is_null(values.type))
    }
    reject_nulls(given[TAGS], TAGS)
    batch = pa.record_batch(given)
    return _asked("match_udf", batch.schema).messages(batch)


def _asked(function: str, schema: pa.Schema, *, by_row: bool = False) -> AskedColumns:
    """The arguments of a function that are given, as columns; by row, attributes are looked at when they come."""
    number = {name: place for place, name in enumerate(schema.names)}
    kind = schema.field(ATTRIBUTES).type if ATTRIBUTES in number else None
    if not (kind is None or pa.types.is_struct(kind) or pa.types.is_map(kind)):
        raise InvalidTypeError(f"{function}: argument {ATTRIBUTES} must be a struct or a map, not {spark_name(kind)}")
    attributes = () if kind is None or by_row else (number[ATTRIBUTES],)
    places = {name: number[name] for name in (LOCATION, WITHIN) if name in number}
    asked = AskedColumns(number[TAGS], attributes, places)
    check_types(asked, schema, {name: f"{function}: argument {name}" for name in places})
    return asked


def _lists(found: pa.ListArray, answers: ArrayType) -> pa.Array:
    """Answers as Spark has them."""
    values = found.values
    values = signed(values) if pa.types.is_integer(values.type) else values
    return pa.ListArray.from_arrays(found.offsets, values).cast(arrow_type(answers))


# -- the table function ----------------------------------------------------------------------------------------------


@dataclass
class _Found(AnalyzeResult):
    """What Spark hands from `analyze` to its workers."""

    index: Shipped | None = None


class _Match:
    """The table function, of which each row is asked by itself: Spark wants its answers before it gives the next."""

    def __init__(self, found: _Found | None = None) -> None:
        assert found is not None
        assert found.index is not None
        self._index = found.index.open()

    def eval(
        self,
        tags: Any,
        index: str,
        attributes: Any = None,
        location: Any = None,
        within: Any = None,
        snapshot: int | str | None = None,
    ) -> Iterator[tuple[Any]]:
        """The keys of one set of tags."""
        del index, snapshot  # where they are for workers, `analyze` has found
        if tags is None or None in tags:
            raise InvalidValueError(f"{MATCH}: the tags have a null; leave such rows out, or array_compact(tags)")
        found = self._index.match(
            tags,
            attributes.asDict() if isinstance(attributes, Row) else attributes,
            location=_place_of(location),
            within=within and _area_of(within),
        )
        if found and isinstance(found[0], int) and max(found) >= 2**63:
            signed(pa.array(found, pa.uint64()))  # an error
        return zip(found, strict=True)


def _analyzed(
    stores: StoreSettings,
    index: AnalyzeArgument,
    arguments: Mapping[str, AnalyzeArgument],
    snapshot: AnalyzeArgument | None,
) -> _Found:
    """The columns of the answer, and where workers find the index."""
    types = {name: each.dataType for name, each in arguments.items() if not isinstance(each.dataType, NullType)}
    check_strings(arguments[TAGS].dataType, f"{MATCH}: argument tags")
    if not index.isConstantExpression or not isinstance(index.value, str):
        raise InvalidTypeError(f"{MATCH}: argument index must be a constant string, the path or URI of an index")
    _asked(MATCH, arrow_schema(StructType([StructField(name, kind) for name, kind in types.items()])), by_row=True)
    if snapshot is not None and not snapshot.isConstantExpression:
        raise InvalidTypeError(f"{MATCH}: argument snapshot must be a constant, the number of a snapshot or {NEWEST!r}")
    chosen = None if snapshot is None else snapshot.value
    shipped = Shipped.of(located(stores, index.value, "index", chosen), chosen)
    return _Found(StructType([StructField("key", KEY_TYPES[shipped.key_type], nullable=False)]), index=shipped)


def _place_of(location: Any) -> tuple[Any, ...] | None:
    """Where a message is, of a struct of `lon` and `lat` in any order, or of an array."""
    if location is None:
        return None
    numbers = (location[name] for name in names_of_places(plane=False)) if isinstance(location, Row) else location
    return tuple(float(number) if isinstance(number, Decimal) else number for number in numbers)


def _area_of(within: Row) -> Circle | Box:
    """The area of a struct."""
    fields = {name: value if name == KIND or value is None else float(value) for name, value in within.asDict().items()}
    kind = pa.struct([(name, pa.string() if name == KIND else pa.float64()) for name in fields])
    try:
        (letter,), (numbers,) = shapes_in(pa.array([fields], kind), "", plane=False)
    except TagMatchError as error:
        raise type(error)(f"{MATCH}: argument {WITHIN}{str(error).removeprefix(': row 0')}") from None
    return Box(*numbers) if letter == BOX else Circle(*numbers[:3])
