"""The join where no worker has more than a part of the index: sets and queries meet in buckets.

A set goes to a bucket by its rarest tag, a query to the buckets of all its tags, once to each: every set meets the
queries that may contain it in one bucket only. Buckets are found by the hashes of tags, so that no worker needs the
vocabulary; within a bucket a `TagMatch` of the bucket's sets answers, exactly.

What goes through the shuffle are batches of sets and of queries, which Spark sorts by bucket, those of sets first. So a
worker has the sets of one bucket at a time, and queries pass by.

Each query also has a *home*, a bucket with nothing but the empty set, if that is stored. It goes there where the empty
set is stored, and where the answers of all buckets have to be merged: then only the query at home has all columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions
from pyspark.sql.types import LongType, StructField, StructType

from tagmatch.interface import TagMatch
from tagmatch.model.arrays import I64Array, Lists, U32Array, offsets_of
from tagmatch.model.arrow import to_strings
from tagmatch.model.clock import now_us
from tagmatch.model.columns import tag_lists
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.kernels.reserved import has_reserved
from tagmatch.model.kernels.xxh64 import hash_tags
from tagmatch.model.options import KeyType
from tagmatch.model.storage.location import Location
from tagmatch.model.tables import KeyTable, Segment, Snapshot
from tagmatch.partitioner.spark.records import lists_of, sets_at
from tagmatch.partitioner.spark.serialized import SERIALIZED, Serializer, deserialized, labels_for, sorted_by_number
from tagmatch.pipeline.cpu.key_lookup import look_up_keys
from tagmatch.spark.answers import Output, answer_field, reject_nulls, with_keys
from tagmatch.spark.buckets import Buckets, buckets_for, hashes_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Stored sets that a bucket has, about
BUCKET_SETS = 500_000


@dataclass(frozen=True, slots=True)
class Shuffle:
    """What all tasks of a join have to agree on.

    Attributes
    ----------
    index : Location
    snapshot : str
        Name of the snapshot.
    now : int
        Keys that have expired at this time, in microseconds since 1970, are no answers.
    key_type : {"integer", "string"}
    buckets : Buckets
    labels : int64 array, 2 x buckets
        Labels of batches for the buckets and, behind them, for the homes of queries.
    """

    index: Location
    snapshot: str
    now: int
    key_type: KeyType
    buckets: Buckets
    labels: I64Array

    @property
    def numbers(self) -> I64Array:
        """Numbers of batches of sets for the buckets and the homes; those of queries, one more, come later."""
        return 2 * np.arange(len(self.labels))


def shuffle_join(
    queries: DataFrame, index: Location, *, tags: str, unique: bool, output: Output, bucket_sets: int
) -> DataFrame:
    """Join queries with the snapshot that the index has now, in buckets of about `bucket_sets` sets.

    A newer snapshot replaces the files of this one, and tasks that still need them fail.
    """
    spark = queries.sparkSession
    name = index.manifest()["snapshot"]
    snapshot = index.open_unverified(name)
    if any(has_reserved(segment.vocabulary.tags) for segment in snapshot.segments):
        raise InvalidValueError(
            f"strategy 'shuffle' cannot join the index {index}, whose sets have conditions on attributes; use 'ship'"
        )
    parallelism = int(spark.conf.get("spark.default.parallelism", None) or 1)
    buckets = buckets_for(snapshot, bucket_sets, at_least=parallelism)
    labels = labels_for(spark, buckets.count, 2).reshape(-1)
    plan = Shuffle(index, name, now_us(), snapshot.key_type, buckets, labels)
    column, schema = queries.columns.index(tags), queries.schema
    merged = unique or output == "lists"
    at_home = merged or any(map(_has_empty_set, snapshot.segments))

    def sets_of(chunks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return sent_sets(chunks, plan, bucket_sets)

    def queries_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return sent_queries(batches, plan, column=column, merged=merged, at_home=at_home)

    def match(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if merged:
            return matched_in_part(batches, plan.key_type)
        return matched(batches, plan.key_type, column)

    # Where answers are not merged, a row of the outcome depends on one query and the snapshot alone, so it does not
    # matter when Spark runs a task again. Else the numbers of queries decide what is merged. They are made once, before
    # the shuffle, and count rows as they come: should Spark lose the output of a task, and the rows come in another
    # order when it runs again, answers would get mixed up. Rows of files come in the same order, those of a shuffle may
    # not; `checkpoint` such queries where executors get lost.
    numbered = queries.select(
        functions.struct("*").alias("query"),
        functions.xxhash64(_quoted(tags)).alias("spread"),
        functions.monotonically_increasing_id().alias("id"),
    )
    count = max(1, len(_chunks(snapshot, bucket_sets)))
    chunks = spark.range(0, count, 1, count)
    sent = chunks.mapInArrow(sets_of, SERIALIZED).union(numbered.mapInArrow(queries_of, SERIALIZED))
    met = sorted_by_number(sent, buckets.count)
    if not merged:
        return met.mapInArrow(match, StructType([*schema.fields, answer_field(output, plan.key_type)]))
    found = answer_field("lists", plan.key_type)
    part = StructType([StructField("id", LongType()), StructField("query", schema), found])
    keys = functions.flatten(functions.collect_list("keys"))
    whole = (
        met.mapInArrow(match, part)
        .groupBy("id")
        .agg(
            functions.first("query", ignorenulls=True).alias("query"),
            (functions.array_distinct(keys) if unique else keys).alias("keys"),
        )
    )
    return whole.select("query.*", "keys" if output == "lists" else functions.explode("keys").alias("key"))


def _quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


# -- sets ------------------------------------------------------------------------------------------------------------


def sent_sets(chunks: Iterable[pa.RecordBatch], plan: Shuffle, chunk_sets: int) -> Iterator[pa.RecordBatch]:
    """One task: numbers of chunks, each of `chunk_sets` rows of the tagset table; gives batches of their sets."""
    snapshot = plan.index.open_unverified(plan.snapshot)
    parts = _chunks(snapshot, chunk_sets)
    for batch in chunks:
        for segment, first, last in [parts[chunk] for chunk in batch.column(0).to_pylist() if chunk < len(parts)]:
            serializer = Serializer()
            rows = segment.live_rows(first, last).astype(np.uint32)
            if first == 0 and _has_empty_set(segment):
                empty = sets_at(segment, rows[:1], plan.now)
                homes = slice(plan.buckets.count, None)
                for label, number in zip(plan.labels[homes].tolist(), plan.numbers[homes].tolist(), strict=True):
                    serializer.add(label, number, empty)
                rows = rows[1:]
            ranks = segment.tagsets.ranks
            hashes = hashes_of(segment)[ranks.values[ranks.offsets[rows]]]
            buckets = plan.buckets.of_sets(hashes, rows).astype(np.uint32)
            serializer.scatter(buckets, plan.labels, plan.numbers, partial(_sets_at, segment, plan.now, rows))
            yield from serializer.take()


def _chunks(snapshot: Snapshot, most: int) -> list[tuple[Segment, int, int]]:
    """Consecutive rows of segments, `most` at most in each chunk: the segment, the first of its rows and the last."""
    return [
        (segment, first, min(first + most, len(segment)))
        for segment in snapshot.segments
        for first in range(0, len(segment), most)
    ]


def _has_empty_set(segment: Segment) -> bool:
    return segment.tagsets.has_empty_set and 0 in segment.live_rows(0, 1)


def _sets_at(segment: Segment, now: int, rows: U32Array, places: U32Array) -> pa.RecordBatch:
    return sets_at(segment, rows[places], now)


# -- queries ---------------------------------------------------------------------------------------------------------


def sent_queries(
    batches: Iterable[pa.RecordBatch], plan: Shuffle, *, column: int, merged: bool, at_home: bool
) -> Iterator[pa.RecordBatch]:
    """One task: queries, as structs, with a hash and a number; gives batches of them for their buckets and homes."""
    for batch in batches:
        structs, spread, ids = batch.columns
        tags = structs.field(column)
        reject_nulls(tags, structs.type.field(column).name)
        if merged:
            names = ["id", "tags", "query"]
            at_homes = pa.RecordBatch.from_arrays([ids, tags, structs], names=names)
            elsewhere = pa.RecordBatch.from_arrays([ids, tags, pa.nulls(len(ids), structs.type)], names=names)
        else:
            at_homes = elsewhere = pa.RecordBatch.from_struct_array(structs)
        serializer = Serializer()
        buckets, queries = _buckets_of_queries(tags, plan)
        serializer.scatter(buckets, plan.labels, plan.numbers + 1, partial(_queries_at, elsewhere, queries))
        if at_home:
            homes = (spread.to_numpy() % plan.buckets.count + plan.buckets.count).astype(np.uint32)
            serializer.scatter(homes, plan.labels, plan.numbers + 1, at_homes.take)
        yield from serializer.take()


def _queries_at(records: pa.RecordBatch, queries: I64Array, places: U32Array) -> pa.RecordBatch:
    return records.take(queries[places])


def _buckets_of_queries(tags: pa.Array, plan: Shuffle) -> tuple[U32Array, I64Array]:
    """Pairs of a bucket and a query that has one of its tags, each once."""
    (lists,) = tag_lists(tags, "tags")
    hashes = hash_tags(lists)
    owners = np.repeat(np.arange(len(lists)), np.diff(lists.offsets))
    places, buckets = plan.buckets.of_tags(hashes)
    pairs = np.unique(owners[places] * plan.buckets.count + buckets)
    queries, buckets = np.divmod(pairs, plan.buckets.count)
    return buckets.astype(np.uint32), queries


# -- buckets ---------------------------------------------------------------------------------------------------------


class _Bucket:
    """The sets of a bucket. `TagMatch` gives their numbers, as a set may have many keys."""

    def __init__(self, batches: list[pa.RecordBatch], key_type: KeyType) -> None:
        self._index = TagMatch(threads=1, device="cpu")
        first = 0
        for batch in batches:
            self._index.add_sets(batch.column("tags"), np.arange(first, first + len(batch)))
            first += len(batch)
        self._index.consolidate()
        self._keys = _key_table([batch.column("keys") for batch in batches], key_type)

    def answers(self, tags: pa.Array) -> pa.ListArray:
        """Keys, uint64 or large_string, of each query."""
        found = self._index.match_many(tags)
        sets = Lists(found.offsets.to_numpy(), found.values.to_numpy().astype(np.uint32))
        keys = look_up_keys(sets, self._keys)
        return lists_of(keys.offsets, self._keys.column(keys.values))

    def close(self) -> None:
        self._index.close()


def _key_table(lists: list[pa.Array], key_type: KeyType) -> KeyTable:
    """The keys of a bucket's sets. Of strings, each that a set has is a name of its own, whatever others have."""
    counts = [pc.list_value_length(some).to_numpy() for some in lists]
    offsets = offsets_of(np.concatenate([np.zeros(0, np.int64), *counts]))
    values = [some.flatten() for some in lists]
    if key_type == "integer":
        return KeyTable(Lists(offsets, np.concatenate([np.zeros(0, np.uint32), *(some.to_numpy() for some in values)])))
    names = to_strings(pa.concat_arrays([pa.array([], pa.large_string()), *values]))
    return KeyTable(Lists(offsets, np.arange(len(names), dtype=np.uint32)), names)


def answered(
    batches: Iterable[pa.RecordBatch], key_type: KeyType, column: int | str
) -> Iterator[tuple[pa.RecordBatch, pa.ListArray]]:
    """One task: batches by bucket, those of sets first; gives each batch of queries and its answers."""
    current, sets, bucket = None, list[pa.RecordBatch](), None
    for number, records in deserialized(batches):
        place, queries = divmod(number, 2)
        if place != current:
            if bucket is not None:
                bucket.close()
            current, sets, bucket = place, [], None
        if not queries:
            sets.append(records)
            continue
        if bucket is None:
            bucket, sets = _Bucket(sets, key_type), []
        yield records, bucket.answers(records.column(column))


def matched(batches: Iterable[pa.RecordBatch], key_type: KeyType, column: int) -> Iterator[pa.RecordBatch]:
    """One task: batches by bucket; gives rows of the outcome."""
    for queries, answers in answered(batches, key_type, column):
        yield from with_keys("rows", queries, answers)


def matched_in_part(batches: Iterable[pa.RecordBatch], key_type: KeyType) -> Iterator[pa.RecordBatch]:
    """One task: batches by bucket; gives the answers that each query has there, and the queries that are at home."""
    for queries, answers in answered(batches, key_type, "tags"):
        wanted = pc.or_(pc.greater(pc.list_value_length(answers), 0), queries.column("query").is_valid())
        yield from with_keys("lists", queries.select(["id", "query"]).filter(wanted), answers.filter(wanted))
