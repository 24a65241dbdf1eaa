"""The join where no worker has more than a part of the index: sets and queries meet in buckets.

A set goes to a bucket by its rarest tag, a query to the buckets of all its tags, once to each: every set meets the
queries that may contain it in one bucket only. Buckets are found by the hashes of tags, so that no worker needs the
vocabulary; within a bucket a `TagMatch` of the bucket's sets answers, exactly.

What goes through the shuffle are not single sets and queries but *packs* of them, Arrow record batches as bytes, which
Spark sorts by bucket, those of sets first. So a worker has the sets of one bucket at a time, and queries pass by.

Each query also has a *home*, a bucket with nothing but the empty set, if that is stored. It goes there where the empty
set is stored, and where the answers of all buckets have to be merged: then only the query at home has all columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions
from pyspark.sql.types import LongType, StructField, StructType

from partitioner.rows import gather, gather_strings
from pipeline.key_lookup import look_up_keys
from tagmatch.arrays import I64Array, Lists, UIntArray, offsets_of
from tagmatch.arrow import from_lists, from_strings, to_lists
from tagmatch.columns import tag_lists
from tagmatch.engine import TagMatch
from tagmatch.kernels.xxh64 import hash_strings
from tagmatch.places import Place
from tagmatch.spark.answers import ANSWER_FIELDS, Output, reject_nulls, with_keys
from tagmatch.spark.buckets import Buckets, buckets_for
from tagmatch.storage import open_unverified
from tagmatch.tables import KeyTable, Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Stored sets that a bucket has, about
BUCKET_SETS = 500_000

# Spark hands 10,000 rows at once to a worker, as one Arrow array of bytes, which can have 2 GiB
_PACK_BYTES = 1 << 16

_PACKS = "bucket int, queries boolean, pack binary"
_PACK_NAMES = ["bucket", "queries", "pack"]


@dataclass(frozen=True, slots=True)
class Shuffle:
    """What all tasks of a join have to agree on.

    Attributes
    ----------
    index : Place
    snapshot : str
        Name of the snapshot.
    seed : int
        Of the hashes of tags.
    buckets : Buckets
    labels : int64 array, 2 x buckets
        The numbers by which Spark knows the buckets and, in the second row, the homes of queries.
    """

    index: Place
    snapshot: str
    seed: int
    buckets: Buckets
    labels: I64Array


def shuffle_join(
    queries: DataFrame, index: Place, *, tags: str, unique: bool, output: Output, bucket_sets: int
) -> DataFrame:
    """Join queries with the snapshot that the index has now, in buckets of about `bucket_sets` sets.

    A newer snapshot replaces the files of this one, and tasks that still need them fail.
    """
    spark = queries.sparkSession
    name = index.manifest()["snapshot"]
    snapshot = open_unverified(index.local_index(), name)
    parallelism = int(spark.conf.get("spark.default.parallelism", None) or 1)
    buckets = buckets_for(snapshot, bucket_sets, at_least=parallelism)
    plan = Shuffle(index, name, snapshot.vocabulary.seed, buckets, _labels(spark, buckets.count))
    column, schema = queries.columns.index(tags), queries.schema
    merged = unique or output == "lists"
    at_home = merged or snapshot.tagsets.has_empty_set

    def sets_of(chunks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return packed_sets(chunks, plan, bucket_sets)

    def queries_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return packed_queries(batches, plan, column=column, merged=merged, at_home=at_home)

    def match(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if merged:
            return matched_in_part(batches)
        return matched(batches, column)

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
    count = max(1, -(-len(snapshot) // bucket_sets))
    chunks = spark.range(0, count, 1, count)
    packs = chunks.mapInArrow(sets_of, _PACKS).union(numbered.mapInArrow(queries_of, _PACKS))
    met = packs.repartition(buckets.count, "bucket").sortWithinPartitions("bucket", "queries")
    if not merged:
        return met.mapInArrow(match, StructType([*schema.fields, ANSWER_FIELDS[output]]))
    part = StructType([StructField("id", LongType()), StructField("query", schema), ANSWER_FIELDS["lists"]])
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


def _labels(spark: SparkSession, count: int) -> I64Array:
    """Two different numbers for each of `count` partitions that `repartition(count, number)` brings there.

    Buckets by other numbers would not be spread evenly: of two buckets, both come to one partition half of the time.
    """
    # With so many numbers, fewer than two for a partition are out of the question. Spark answers this without a job.
    text = f"SELECT transform(sequence(0, {64 * count}), number -> pmod(hash(number), {count})) AS partitions"
    partitions = np.array(spark.sql(text).first()["partitions"])  # type: ignore[index]
    order = np.argsort(partitions, kind="stable")
    firsts = np.searchsorted(partitions[order], np.arange(count))
    return np.stack([order[firsts], order[firsts + 1]])


# -- packs -----------------------------------------------------------------------------------------------------------


class _Packer:
    """Collects packs for some buckets."""

    def __init__(self, *, queries: bool) -> None:
        self._queries = queries
        self._labels: list[int] = []
        self._packs: list[bytes] = []

    def add(self, label: int, records: pa.RecordBatch) -> None:
        """Pack records for the bucket with this label, some at a time."""
        step = max(1, _PACK_BYTES * len(records) // max(1, records.nbytes))
        for first in range(0, len(records), step):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, records.schema) as writer:
                writer.write_batch(records.slice(first, step))
            self._labels.append(label)
            self._packs.append(sink.getvalue().to_pybytes())

    def take(self) -> pa.RecordBatch:
        """All packs, as rows."""
        columns = [
            pa.array(self._labels, pa.int32()),
            pa.array([self._queries] * len(self._labels), pa.bool_()),
            pa.array(self._packs, pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, names=_PACK_NAMES)


def _unpacked(pack: pa.BinaryScalar) -> pa.RecordBatch:
    with pa.ipc.open_stream(pack.as_buffer()) as reader:
        return reader.read_next_batch()


# -- sets ------------------------------------------------------------------------------------------------------------


def packed_sets(chunks: Iterable[pa.RecordBatch], plan: Shuffle, chunk_sets: int) -> Iterator[pa.RecordBatch]:
    """One task: numbers of chunks, each of `chunk_sets` rows of the tagset table; gives packs of their sets."""
    snapshot = open_unverified(plan.index.local_index(), plan.snapshot)
    for batch in chunks:
        for chunk in batch.column(0).to_pylist():
            packer = _Packer(queries=False)
            first = chunk * chunk_sets
            last = min(first + chunk_sets, len(snapshot))
            if first == 0 and snapshot.tagsets.has_empty_set:
                empty = _sets(snapshot, np.zeros(1, np.uint32))
                for label in plan.labels[1].tolist():
                    packer.add(label, empty)
                first = 1
            rows = np.arange(first, last, dtype=np.uint32)
            ranks = snapshot.tagsets.ranks
            hashes = snapshot.vocabulary.hashes[ranks.values[ranks.offsets[first:last]]]
            buckets = plan.buckets.of_sets(hashes, rows)
            order = np.argsort(buckets, kind="stable")
            sets = _sets(snapshot, rows[order])
            for bucket, begin, end in _groups(buckets[order]):
                packer.add(int(plan.labels[0, bucket]), sets.slice(begin, end - begin))
            yield packer.take()


def _sets(snapshot: Snapshot, rows: UIntArray) -> pa.RecordBatch:
    """Tags, as strings, and keys of these rows."""
    ranks = gather(snapshot.tagsets.ranks, rows)
    tags = from_strings(gather_strings(snapshot.vocabulary.tags, ranks.values))
    kind = pa.ListArray if ranks.offsets.dtype == np.int32 else pa.LargeListArray
    keys = gather(snapshot.keys.keys, rows)
    return pa.RecordBatch.from_arrays(
        [kind.from_arrays(pa.array(ranks.offsets), tags), from_lists(keys)], names=["tags", "keys"]
    )


def _groups(buckets: I64Array) -> Iterator[tuple[int, int, int]]:
    """Each bucket of an ascending array, and where it begins and ends."""
    edges = np.flatnonzero(np.diff(buckets, prepend=-1, append=-1)).tolist()
    for begin, end in pairwise(edges):
        yield int(buckets[begin]), begin, end


# -- queries ---------------------------------------------------------------------------------------------------------


def packed_queries(
    batches: Iterable[pa.RecordBatch], plan: Shuffle, *, column: int, merged: bool, at_home: bool
) -> Iterator[pa.RecordBatch]:
    """One task: queries, as structs, with a hash and a number; gives packs of them for their buckets and homes."""
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
        packer = _Packer(queries=True)
        buckets, queries = _buckets_of_queries(tags, plan)
        routed = elsewhere.take(pa.array(queries))
        for bucket, begin, end in _groups(buckets):
            packer.add(int(plan.labels[0, bucket]), routed.slice(begin, end - begin))
        if at_home:
            homes = spread.to_numpy() % plan.buckets.count
            order = np.argsort(homes, kind="stable")
            routed = at_homes.take(pa.array(order))
            for home, begin, end in _groups(homes[order]):
                packer.add(int(plan.labels[1, home]), routed.slice(begin, end - begin))
        yield packer.take()


def _buckets_of_queries(tags: pa.Array, plan: Shuffle) -> tuple[I64Array, I64Array]:
    """Pairs of a bucket and a query that has one of its tags, each once, in ascending order."""
    (lists,) = tag_lists(tags, "tags")
    hashes = hash_strings(lists.tags, seed=plan.seed)
    owners = np.repeat(np.arange(len(lists)), np.diff(lists.offsets))
    places, buckets = plan.buckets.of_tags(hashes)
    pairs = np.unique(buckets * len(lists) + owners[places])
    return tuple(np.divmod(pairs, len(lists)))  # type: ignore[return-value]


# -- buckets ---------------------------------------------------------------------------------------------------------


class _Bucket:
    """The sets of a bucket. `TagMatch` gives their numbers, as a set may have many keys."""

    def __init__(self, packs: list[pa.RecordBatch]) -> None:
        self._index = TagMatch(threads=1, device="cpu")
        counts, keys = [np.zeros(0, np.int64)], [np.zeros(0, np.uint32)]
        first = 0
        for pack in packs:
            self._index.add_sets(pack.column("tags"), np.arange(first, first + len(pack)))
            first += len(pack)
            lists = to_lists(pack.column("keys"))
            counts.append(lists.lengths())
            keys.append(lists.values)
        self._index.consolidate()
        self._keys = KeyTable(Lists(offsets_of(np.concatenate(counts)), np.concatenate(keys)))

    def answers(self, tags: pa.Array) -> pa.ListArray:
        """Keys, uint64, of each query."""
        found = self._index.match_many(tags)
        sets = Lists(found.offsets.to_numpy(), found.values.to_numpy().astype(np.uint32))
        return from_lists(look_up_keys(sets, self._keys))

    def close(self) -> None:
        self._index.close()


def answered(batches: Iterable[pa.RecordBatch], column: int | str) -> Iterator[tuple[pa.RecordBatch, pa.ListArray]]:
    """One task: packs by bucket, those of sets first; gives each pack of queries and its answers."""
    label, packs, bucket = None, list[pa.RecordBatch](), None
    for batch in batches:
        for of_label, queries, pack in zip(*(batch.column(name) for name in _PACK_NAMES), strict=True):
            if of_label != label:
                if bucket is not None:
                    bucket.close()
                label, packs, bucket = of_label, [], None
            records = _unpacked(pack)
            if not queries.as_py():
                packs.append(records)
                continue
            if bucket is None:
                bucket, packs = _Bucket(packs), []
            yield records, bucket.answers(records.column(column))


def matched(batches: Iterable[pa.RecordBatch], column: int) -> Iterator[pa.RecordBatch]:
    """One task: packs by bucket; gives rows of the outcome."""
    for queries, answers in answered(batches, column):
        yield from with_keys("rows", queries, answers)


def matched_in_part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One task: packs by bucket; gives the answers that each query has there, and the queries that are at home."""
    for queries, answers in answered(batches, "tags"):
        wanted = pc.or_(pc.greater(pc.list_value_length(answers), 0), queries.column("query").is_valid())
        yield from with_keys("lists", queries.select(["id", "query"]).filter(wanted), answers.filter(wanted))
