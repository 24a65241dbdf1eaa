"""`subset_join`: the keys of all stored sets that the sets of a Spark DataFrame contain."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import get_args

from pyspark.sql import DataFrame

from tagmatch.locations import LOCATION, WITHIN
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.names import misspelt
from tagmatch.model.storage.format import files_nbytes, key_type_of
from tagmatch.spark.answers import ANSWER_NAMES, Output
from tagmatch.spark.asked import Asked, check_types
from tagmatch.spark.interests import index_of
from tagmatch.spark.offline import check_strings
from tagmatch.spark.options import Settings, Strategy
from tagmatch.spark.schemas import arrow_schema
from tagmatch.spark.ship import ship_join
from tagmatch.spark.shuffle import BUCKET_SETS, shuffle_join
from tagmatch.spark.stores import location_in

__all__ = ["Strategy", "subset_join"]


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
    ship_limit: int | None = None,
    folder: str | os.PathLike[str] | None = None,
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
        `ship`: every worker opens the whole index, memory-mapped. Each task answers from the snapshot that is current
        when it begins, so a stream follows the index without a restart. `shuffle`: sets and queries meet in buckets,
        of which a worker has one at a time; from the snapshot that is current at this call, without keys that have
        expired by then. `auto`, the default: `ship` for a stream, and where the files of the index have at most
        `ship_limit` bytes.
    output : {"rows", "lists"}
        `rows`: the columns of the queries and `key`, a row for each matching key; queries without a match have none.
        `lists`: the columns of the queries and `keys`, an array, a row for each query. Keys are long, or string where
        the index has keys that are strings.
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
    ship_limit : int
        In bytes. Default: 8 GiB. Like `strategy`, it may be among the session's settings (`spark.tagmatch.…`).
    folder : str or Path, optional
        Where the index of interests is made, and stays. By default a temporary folder of this machine, which goes when
        this process ends: for Spark in local mode.

    Returns
    -------
    DataFrame
        Nothing is matched before it is asked for. Its tasks fail with `NullError` for a null in the tags, and with
        `InvalidValueError` for an answer with a key above 2**63 - 1, or where the index was replaced by one with
        keys of the other type.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        An argument, a setting, or a column of the queries, cannot be used.
    IndexNotFoundError, IndexCorruptError, IndexVersionError
        For what stands at `index`.
    TagMatchError
        The store does not answer, or does not take the credentials.
    """
    _check_choice("output", output, Output)
    _check_queries(queries, tags, output)
    settings = Settings.of(queries.sparkSession)
    strategy = settings.strategy if strategy is None else strategy
    ship_limit = settings.ship_limit if ship_limit is None else ship_limit
    _check_choice("strategy", strategy, Strategy)
    names = (attributes,) if isinstance(attributes, str) else tuple(attributes)
    asked = _asked(queries, tags, names, location, within)
    if isinstance(index, DataFrame):
        place = index_of(index, folder)
    elif folder is not None:
        raise InvalidValueError("folder is where the index of interests is made; index names one that is there")
    else:
        place = location_in(queries.sparkSession, index, "index")
    manifest = place.manifest()
    if strategy == "auto":
        strategy = "ship" if queries.isStreaming or files_nbytes(manifest) <= ship_limit else "shuffle"
    if strategy == "ship":
        return ship_join(queries, place, key_type=key_type_of(manifest), asked=asked, unique=unique, output=output)
    if queries.isStreaming:
        raise InvalidValueError("strategy 'shuffle' cannot join a stream; use 'ship', or join within foreachBatch")
    return shuffle_join(queries, place, asked=asked, unique=unique, output=output, bucket_sets=BUCKET_SETS)


def _check_choice(name: str, value: object, kind: object) -> None:
    if value not in (allowed := get_args(kind)):
        raise InvalidValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def _asked(
    queries: DataFrame, tags: str, attributes: tuple[str, ...], location: str | None, within: str | None
) -> Asked:
    """The columns by number, which are of types that they can have."""
    places = {LOCATION: location, WITHIN: within}
    of_places = {of: name for of, name in places.items() if name is not None}
    given = [*(("attributes", name) for name in attributes), *of_places.items()]
    columns = queries.columns
    counts, places_of = Counter(columns), {name: number for number, name in enumerate(columns)}
    for of, name in given:
        if counts[name] != 1:
            names = ", ".join(map(repr, columns))
            raise InvalidValueError(f"{of}: queries must have one column {name!r}; its columns are {names}")
    number = {name: places_of[name] for _, name in given}
    asked = Asked(
        columns.index(tags),
        tuple(number[name] for name in attributes),
        *(None if name is None else number[name] for name in places.values()),
    )
    if given:
        called = {of: f"{of}: column {name!r}" for of, name in of_places.items()}
        check_types(asked, arrow_schema(queries.schema), called)
    return asked


def _check_queries(queries: DataFrame, tags: str, output: Output) -> None:
    if not isinstance(queries, DataFrame):
        raise InvalidTypeError(f"queries must be a Spark DataFrame, not {type(queries).__name__}")
    fields = queries.schema.fields
    found = [field.dataType for field in fields if field.name == tags]
    if len(found) != 1:
        names = ", ".join(repr(field.name) for field in fields) or "none"
        count = "no column" if not found else f"{len(found)} columns"
        near = misspelt([field.name for field in fields], [tags])
        hint = f"is {near[0]!r} meant? Say" if near else "say"
        raise InvalidValueError(f"queries has {count} {tags!r}; its columns are {names}; {hint} which it is with tags=")
    check_strings(found[0], f"column {tags!r} of the queries")
    added = ANSWER_NAMES[output]
    clashing = next((field.name for field in fields if field.name.lower() == added), None)
    if clashing is not None:
        raise InvalidValueError(f"queries has a column {clashing!r} already, which the join is to add; rename it")
