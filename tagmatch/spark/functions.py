"""Functions for SQL and columns: the keys of all stored sets that a set of tags contains."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.functions import udtf
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from tagmatch.locations import LOCATION
from tagmatch.messages import TAGS
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, SparkUnavailableError
from tagmatch.model.options import KeyType
from tagmatch.model.storage.format import key_type_of
from tagmatch.model.storage.location import Location
from tagmatch.spark.answers import KEY_TYPES, reject_nulls, signed
from tagmatch.spark.offline import check_strings
from tagmatch.spark.ship import QUERIES, current_index
from tagmatch.spark.source import TagMatchSource
from tagmatch.spark.stores import StoreSettings, location_in

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
        ) -> _Found:
            return _analyzed(settings, tags, index, attributes, location)

    spark.dataSource.register(Source)
    spark.udtf.register(MATCH, udtf(Match))  # type: ignore[arg-type]


def match_udf(index: str | os.PathLike[str], *, unique: bool = False) -> Any:
    """A function of columns that gives the keys of an index for each row: an array, in no particular order.

    Spark calls it with thousands of rows at once, so it is much faster than `tagmatch_match`, which gets them one by
    one. Each task answers from the snapshot that is current when it begins.

    Parameters
    ----------
    index : str or Path
        Of an index: a folder that the driver and all workers mount under this path, or a URI of a store.
    unique : bool
        Give a key once, not once for each matching set that carries it.

    Returns
    -------
    function
        Of a column of tags, an array of strings without nulls; and, where they are wanted, of a struct of attributes,
        as of `TagMatch.match_many`, and of a struct of `lon` and `lat`, where the message is. Its tasks fail with
        `NullError` and `InvalidValueError` as those of `subset_join`.

    Raises
    ------
    InvalidTypeError, InvalidValueError, IndexNotFoundError, IndexCorruptError, IndexVersionError
        For `index`, and for what stands there.
    SparkUnavailableError
        This is PySpark 4.0, which has no such functions.

    Examples
    --------
    >>> queries.select("id", explode(match_udf("/data/interests.index")("tags")))  # doctest: +SKIP
    >>> spark.udf.register("interests_of", match_udf("/data/interests.index"))  # doctest: +SKIP
    """
    try:
        from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]
    except ImportError:
        raise SparkUnavailableError("match_udf needs PySpark 4.1 or newer; use subset_join") from None
    location = location_in(SparkSession.getActiveSession(), index, "index")
    key_type = key_type_of(location.manifest())
    answers = ArrayType(KEY_TYPES[key_type], containsNull=False)

    # By the type hints Spark knows that one call is for all batches of a task, as tuples if there are several columns
    def tagmatch_match(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        held = current_index(location, key_type)
        for batch in batches:
            queries = _messages(batch if isinstance(batch, tuple) else (batch,))
            parts = [
                _lists(held.match_many(queries.slice(first, QUERIES), unique=unique), answers)
                for first in range(0, len(queries), QUERIES)
            ]
            yield pa.concat_arrays(parts) if parts else pa.array([], _arrow_type(answers))

    return arrow_udf(tagmatch_match, answers)


def _messages(columns: tuple[pa.Array, ...]) -> pa.RecordBatch:
    """What `TagMatch.match_many` is asked, of tags, attributes and where messages are."""
    tags, attributes, locations = (*columns, None, None)[:3]
    reject_nulls(tags, TAGS)
    found = {TAGS: tags}
    if attributes is not None:
        found |= dict(zip((field.name for field in attributes.type), attributes.flatten(), strict=True))
    if locations is not None:
        found[LOCATION] = locations
    return pa.record_batch(found)


def _arrow_type(answers: ArrayType) -> pa.DataType:
    return pa.list_(pa.string() if isinstance(answers.elementType, StringType) else pa.int64())


def _lists(found: pa.ListArray, answers: ArrayType) -> pa.Array:
    """Answers as Spark has them."""
    values = found.values
    values = signed(values) if pa.types.is_integer(values.type) else values
    return pa.ListArray.from_arrays(found.offsets, values).cast(_arrow_type(answers))


# -- the table function ----------------------------------------------------------------------------------------------


@dataclass
class _Found(AnalyzeResult):
    """What Spark hands from `analyze` to its workers: where the index is for them."""

    index: Location | None = None
    key_type: KeyType = "integer"


class _Match:
    """The table function, of which each row is asked by itself: Spark wants its answers before it gives the next."""

    def __init__(self, found: _Found | None = None) -> None:
        assert found is not None
        assert found.index is not None
        self._index = current_index(found.index, found.key_type)

    def eval(self, tags: Any, index: str, attributes: Any = None, location: Any = None) -> Iterator[tuple[Any]]:
        """The keys of one set of tags."""
        del index  # where it is for workers, `analyze` has found
        if tags is None or None in tags:
            raise InvalidValueError(f"{MATCH}: the tags have a null; leave such rows out, or array_compact(tags)")
        place = None if location is None else tuple(location)
        found = self._index.match(tags, _mapping(attributes), location=place)
        return zip(_as_long(found), strict=True)


def _analyzed(
    stores: StoreSettings,
    tags: AnalyzeArgument,
    index: AnalyzeArgument,
    attributes: AnalyzeArgument | None,
    location: AnalyzeArgument | None,
) -> _Found:
    """The columns of the answer, and where workers find the index."""
    check_strings(tags.dataType, f"{MATCH}: argument tags")
    if not index.isConstantExpression or not isinstance(index.value, str):
        raise InvalidTypeError(f"{MATCH}: argument index must be a constant string, the path or URI of an index")
    if attributes is not None:
        _check_type(attributes.dataType, (StructType, MapType), "attributes must be a struct or a map")
    if location is not None:
        _check_type(location.dataType, (StructType, ArrayType), "location must be a struct or an array of lon, lat")
    place = stores.location(index.value, "index")
    key_type = key_type_of(place.manifest())
    schema = StructType([StructField("key", KEY_TYPES[key_type], nullable=False)])
    return _Found(schema, index=place, key_type=key_type)


def _check_type(kind: DataType, allowed: tuple[type[DataType], ...], must: str) -> None:
    if not isinstance(kind, allowed):
        raise InvalidTypeError(f"{MATCH}: argument {must}, not {kind.simpleString()}")


def _mapping(attributes: Any) -> Mapping[str, Any] | None:
    if attributes is None or isinstance(attributes, Mapping):
        return attributes
    found: dict[str, Any] = attributes.asDict()
    return found


def _as_long(keys: list[Any]) -> Iterable[Any]:
    if keys and isinstance(keys[0], int) and max(keys) >= 2**63:
        signed(pa.array(keys, pa.uint64()))
    return keys
