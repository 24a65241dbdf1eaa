"""The join where no worker has more than a part of the index: sets and queries meet in buckets.

A set is met by its rarest tag. One without tags, but with conditions, is met by an attribute that a message must have
for one of them to hold: only a negated condition holds without. Of an area that is a place, which counts as an
attribute. What is left has no tags, and only conditions that are negated, if any; it is met by nothing. A query goes to
the buckets of its tags and attributes, once to each: every set meets the queries that may satisfy it in one bucket
only. Buckets are found by hashes, so that no worker needs the vocabulary; within a bucket an index of the bucket's sets
answers, exactly. Tags and attributes by which no set is met send a query nowhere: a Bloom filter of the others tells
nearly all of these, as long as it stays small.

What goes through the shuffle are batches of sets and of queries, which Spark sorts by bucket, those of sets first. So a
worker has the sets of one bucket at a time, and queries pass by. It gives a row for a query and a bucket, with an array
of keys, which Spark spreads over rows: so Python and Arrow have the query's columns once there, not once for each key.

Each query also has a *home*, a bucket with nothing but the sets that are met by nothing; each home has all of them. A
query goes there if such sets are stored, and if the answers of all buckets have to be merged: then only the query at
home has all columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions
from pyspark.sql.types import LongType, StructField, StructType

from tagmatch.embedded import TagMatch
from tagmatch.engine import LocalEngine
from tagmatch.model.arrays import BoolArray, I64Array, Lists, U8Array, U32Array, U64Array, UIntArray
from tagmatch.model.arrow import from_strings, in_order, to_lists, to_strings
from tagmatch.model.asked import DATA
from tagmatch.model.clock import now_us
from tagmatch.model.columns import strings_of, tag_lists
from tagmatch.model.data_types import Schema
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.input.messages import TAGS, entries_of, with_own_columns
from tagmatch.model.input.places import LOCATION, WITHIN, is_place_column, without_locations
from tagmatch.model.kernels.hashing import hash_strings, hash_tags
from tagmatch.model.kernels.lists import gather, gather_strings, group_by
from tagmatch.model.kernels.tag_table import areas_among, constraints_among
from tagmatch.model.layouts import rules_of
from tagmatch.model.options import KeyType, LayoutOptions, MatchOptions, StagingOptions
from tagmatch.model.storage.partial import InPlace
from tagmatch.model.storage.positions import Positions, open_positions
from tagmatch.model.storage.repository import Repository
from tagmatch.model.tables import ClusterTable, KeyTable, RecordTable, Segment, Snapshot
from tagmatch.model.where.constraints import in_backquotes
from tagmatch.model.where.tag_columns import parsed, parts_of, shapes_of
from tagmatch.model.where.values import ATTRIBUTE
from tagmatch.partitioner.consolidation import StagedChanges
from tagmatch.partitioner.local import segment_after
from tagmatch.partitioner.spark.batches import (
    SERIALIZED,
    chunks_of,
    deserialized,
    for_each,
    gathered,
    groups_by_hash,
    in_groups,
    labels_for,
    serialized,
    sets_at,
    sorted_by_number,
    tasks_of_shuffle,
)
from tagmatch.spark.answers import PARTS, Answers, as_spark, in_parts, in_short_lists
from tagmatch.spark.columns import AskedColumns, reject_nulls

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: What the place of a message is called as an attribute, as no other can be
PLACE = ""


@dataclass(frozen=True, slots=True)
class Meeting:
    """What meets the sets of a segment: a *place* for each tag and each attribute."""

    # For each place; those of tags come first. The place after all of them is for sets that nothing meets.
    hashes: U64Array
    names: tuple[str, ...] = ()  # Of the attributes, those that fewest sets ask for first
    # Of each rank, the place of the tag, or of the attribute that its condition needs: a set is met by the least place
    # of its ranks. `None` without conditions: by its first rank.
    places: I64Array | None = None

    def of_sets(self, sets: Lists, rows: U32Array) -> I64Array:
        """The place by which each of these sets is met."""
        begins = sets.offsets[rows]
        some = np.flatnonzero(sets.offsets[rows + np.uint32(1)] > begins)
        found = np.full(len(rows), len(self.hashes))
        if self.places is None:
            found[some] = sets.values[begins[some]]
        elif len(some):
            ranks = gather(sets, rows[some])
            found[some] = np.minimum.reduceat(self.places[ranks.values], ranks.offsets[:-1])
        return found


def meeting_of(index: InPlace, number: int) -> Meeting:
    """What the sets of a segment are met by; without constraints, only hashes of fetched ranks can be looked at."""
    segment = index.snapshot.segments[number]
    if not index.is_constrained(number):
        return Meeting(hashes_of(index, segment))
    tags, frequencies = segment.vocabulary.tags, segment.frequencies
    index.fetch_all(tags.offsets, tags.data, segment.vocabulary.hashes, frequencies)
    hashes = hashes_of(index, segment)
    is_constraint = constraints_among(tags)
    conditions = parsed(tags, is_constraint)
    needed = ~conditions.negated
    areas = np.flatnonzero(areas_among(tags)).astype(np.uint32)
    areas = areas[~shapes_of(tags, areas).negated]
    ranks = np.concatenate([conditions.ranks[needed], areas])
    # That of areas is empty, as `PLACE` is
    where_names = np.concatenate([conditions.names[needed], np.zeros((len(areas), 2), np.int64)])
    encoded = from_strings(parts_of(tags.data, where_names)).dictionary_encode()
    numbers = encoded.indices.to_numpy()
    sets = np.zeros(len(encoded.dictionary), np.int64)
    np.add.at(sets, numbers, frequencies[ranks])
    order = np.argsort(sets, kind="stable")
    places = np.arange(len(hashes))
    places[is_constraint] = len(hashes) + len(order)
    places[ranks] = len(hashes) + np.argsort(order)[numbers]
    names = tuple(encoded.dictionary.take(order).to_pylist())
    return Meeting(np.concatenate([hashes, hashes_of_attributes(names)]), names, places)


def hashes_of_attributes(names: Iterable[str]) -> U64Array:
    """Hashes of attributes, as those of tags that no set has."""
    return hash_strings(strings_of(ATTRIBUTE + name for name in names))


@dataclass(frozen=True, slots=True)
class ShuffleBuckets:
    """A bucket for each hash of a tag or an attribute, and several for one that very many sets are met by."""

    count: int
    salted: U64Array  # Hashes of the tags and attributes whose sets are spread over several buckets, ascending
    spreads: I64Array  # Over how many, for each of them
    names: frozenset[str]  # Attributes that sets are met by
    has_others: bool  # Whether there are sets that are met by nothing

    def of_sets(self, hashes: U64Array, rows: UIntArray) -> I64Array:
        """The bucket of each set, given the hash of what it is met by, and its row."""
        return (self._first(hashes) + rows.astype(np.int64) % self._spread(hashes)) % self.count

    def of_hashes(self, hashes: U64Array) -> tuple[I64Array, I64Array]:
        """The buckets with sets that tags or attributes with these hashes meet."""
        spreads = self._spread(hashes)
        places = np.repeat(np.arange(len(hashes)), spreads)
        nth = np.arange(len(places)) - np.repeat(np.cumsum(spreads) - spreads, spreads)
        return places, (self._first(hashes)[places] + nth) % self.count

    def _first(self, hashes: U64Array) -> I64Array:
        return groups_by_hash(hashes, self.count).astype(np.int64)

    def _spread(self, hashes: U64Array) -> I64Array:
        spreads = np.ones(len(hashes), np.int64)
        if len(self.salted):
            at = np.minimum(np.searchsorted(self.salted, hashes), len(self.salted) - 1)
            salted: BoolArray = self.salted[at] == hashes
            spreads[salted] = self.spreads[at[salted]]
        return spreads


def hashes_of(index: InPlace, segment: Segment) -> U64Array:
    """XXH64 of each tag of a segment with seed 0, which vocabularies of older versions may not have."""
    known = segment.vocabulary
    if known.seed == 0:
        return known.hashes
    index.fetch_all(known.tags.offsets, known.tags.data)
    return hash_strings(known.tags)


#: Different tags, at most, for a `MetFilter`, and its bits for each of these
FILTERED, _BITS_OF_EACH = 1 << 24, 8


@dataclass(frozen=True, slots=True, eq=False)
class MetFilter:
    """A Bloom filter of hashes by which sets are met, of 16 MiB at most; it tells 19 of 20 others."""

    bits: U8Array

    @classmethod
    def of(cls, hashes: Sequence[U64Array]) -> MetFilter:
        """That of these hashes."""
        count = max(1, sum(map(len, hashes)))
        flags = np.zeros(1 << (_BITS_OF_EACH * count - 1).bit_length(), np.bool_)
        for some in hashes:
            for places in _places_of(some, len(flags)):
                flags[places] = True
        return cls(np.packbits(flags, bitorder="little"))

    def among(self, hashes: U64Array) -> BoolArray:
        """Which of some hashes may be among those of the filter."""
        found = np.ones(len(hashes), np.uint8)
        for places in _places_of(hashes, 8 * len(self.bits)):
            found &= self.bits[places >> np.uint64(3)] >> (places & np.uint64(7)).astype(np.uint8)
        return found.view(np.bool_)


def _places_of(hashes: U64Array, bits: int) -> tuple[U64Array, U64Array]:
    """The two bits of each hash, in a filter with this number of bits, a power of two."""
    return hashes & np.uint64(bits - 1), hashes >> np.uint64(32) & np.uint64(bits - 1)


#: How many sets of a segment are met by what, of places by which many are: their hashes, and sets; attributes by which
#: some are, and whether some are by nothing; and hashes of all places by which some are
_Met: TypeAlias = tuple[U64Array, I64Array, tuple[str, ...], bool, U64Array]


def buckets_for(
    index: InPlace, bucket_sets: int, *, at_least: int = 1, filtered: int = FILTERED
) -> tuple[ShuffleBuckets, MetFilter | None]:
    """As many buckets as a snapshot needs, of about `bucket_sets` sets each; a filter if it has few enough tags."""
    segments = index.snapshot.segments
    # What is less in every segment is less than too much in all of them
    few = bucket_sets // len(segments)
    is_filtered = sum(len(segment.vocabulary) for segment in segments) <= filtered
    met = [_count_met(index, number, few, bucket_sets, is_filtered=is_filtered) for number in range(len(segments))]
    of_segments, counts, names, others, of_filter = zip(*met, strict=True)
    hashes, numbers = np.unique(np.concatenate(of_segments), return_inverse=True)
    sets = np.zeros(len(hashes), np.int64)
    np.add.at(sets, numbers, np.concatenate(counts))
    salted = sets > bucket_sets
    count = max(at_least, -(-sum(map(len, segments)) // bucket_sets), 1)
    spreads = -(-sets[salted] // bucket_sets)
    buckets = ShuffleBuckets(count, hashes[salted], spreads, frozenset().union(*names), any(others))
    return buckets, MetFilter.of(of_filter) if is_filtered else None


def _count_met(index: InPlace, number: int, few: int, at_once: int, *, is_filtered: bool) -> _Met:
    """Count the sets of a segment by what they are met by, where those are more than `few`."""
    segment, meeting = index.snapshot.segments[number], meeting_of(index, number)
    if meeting.places is None:
        return _count_by_tags(index, segment, meeting, few, is_filtered=is_filtered)
    met = np.zeros(len(meeting.hashes) + 1, np.int64)
    for _, first, last in chunks_of([(number, len(segment))], at_once):
        index.fetch_sets(segment, first, last)
        rows = segment.live_rows(first, last).astype(np.uint32)
        places, sets = np.unique(meeting.of_sets(segment.tagsets.ranks, rows), return_counts=True)
        met[places] += sets
    many = np.flatnonzero(met[:-1] > few)
    of_names = met[len(meeting.hashes) - len(meeting.names) : -1].tolist()
    names = tuple(name for name, sets in zip(meeting.names, of_names, strict=True) if sets)
    return meeting.hashes[many], met[many], names, bool(met[-1]), meeting.hashes[met[:-1] > 0]


def _count_by_tags(index: InPlace, segment: Segment, meeting: Meeting, few: int, *, is_filtered: bool) -> _Met:
    """The same without constraints. A tag meets no more sets than have it."""
    index.fetch_sets(segment, 0, min(1, len(segment)))
    has_empty = segment.tagsets.has_empty_set and 0 in segment.live_rows(0, 1)
    index.fetch_all(segment.frequencies)
    met: UIntArray | I64Array = segment.frequencies
    if met.max(initial=0) > few or (is_filtered and isinstance(segment.partitions, ClusterTable)):
        met = rules_of(segment.options).sets_by_rarest_tag(segment, index.fetch_all)
    many, some = np.flatnonzero(met > few), np.flatnonzero(met) if is_filtered else np.zeros(0, np.int64)
    wanted = np.union1d(many, some)
    index.fetch(meeting.hashes, wanted, wanted + 1)
    return meeting.hashes[many], met[many].astype(np.int64), (), has_empty, meeting.hashes[some]


# Of queries that are asked together: a shuffle's batches are smaller, and each costs half a millisecond
_GATHERED_BYTES = 1 << 22

#: Stored sets that a bucket has, about, and at least where tags are so frequent that their sets are spread over buckets
BUCKET_SETS, FEWEST_SETS = 500_000, 10_000


@dataclass(frozen=True, slots=True)
class Shuffle:
    """What all tasks of a join have to agree on."""

    index: Repository
    snapshot: str  # Name of the snapshot
    now: int  # Keys that have expired at this time, in microseconds since 1970, are no answers
    buckets: ShuffleBuckets
    labels: I64Array  # Labels of batches for the buckets and, behind them, for the homes of queries
    asked: AskedColumns
    answers: Answers  # Of buckets

    @property
    def numbers(self) -> I64Array:
        """Numbers of batches of sets for the buckets and the homes; those of queries, one more, come later."""
        return 2 * np.arange(len(self.labels))


def shuffle_join(
    queries: DataFrame, index: Repository, *, asked: AskedColumns, answers: Answers, bucket_sets: int
) -> DataFrame:
    """Join queries with the snapshot that the index has now, in buckets of about `bucket_sets` sets.

    A bucket is a task, which asks all queries that come to it; so there are at least `tasks_of_shuffle`.
    """
    spark = queries.sparkSession
    name = index.manifest()["snapshot"]
    there = index.in_place(name)
    snapshot = there.snapshot
    parallelism = tasks_of_shuffle(spark)
    bucket_sets = min(bucket_sets, max(FEWEST_SETS, -(-len(snapshot) // parallelism)))
    buckets, met_filter = buckets_for(there, bucket_sets, at_least=parallelism)
    labels = labels_for(spark, buckets.count, 2).reshape(-1)
    merged = answers.unique or answers.limit is not None or answers.output != "rows" or answers.how == "left"
    schema = queries.schema
    part = answers.of_part
    plan = Shuffle(index, name, now_us(), buckets, labels, asked, part)
    at_home = merged or buckets.has_others

    def tagmatch_send_queries(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return sent_queries(batches, plan, met_filter, merged=merged, at_home=at_home)

    def tagmatch_match_buckets(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return matched(batches, plan, merged=merged)

    # Where answers are not merged, a row of the outcome depends on one query and the snapshot alone, so it does not
    # matter when Spark runs a task again. Else the numbers of queries decide how rows are merged. They are made once,
    # before the shuffle, and count rows as they come: should Spark lose the output of a task, and rows come in another
    # order when it runs again, answers would get mixed up. Rows of files come in the same order, those of a shuffle may
    # not; `checkpoint` such queries where executors get lost.
    numbered = queries.select(
        functions.struct("*").alias("query"),
        functions.xxhash64(in_backquotes(queries.columns[asked.tags])).alias("spread"),
        functions.monotonically_increasing_id().alias("id"),
    )
    chunks = range(len(chunks_of(enumerate(map(len, snapshot.segments)), bucket_sets)))
    sent = for_each(spark, chunks, partial(sent_sets, plan, bucket_sets), SERIALIZED)
    sent = sent.union(numbered.mapInArrow(tagmatch_send_queries, SERIALIZED))
    met = sorted_by_number(sent, buckets.count)
    if not merged:
        found = met.mapInArrow(tagmatch_match_buckets, StructType([*schema.fields, *part.fields]))
        return found.select("*", answers.spread(functions.col(PARTS))).drop(PARTS)
    of_part = StructType([StructField("id", LongType()), StructField("query", schema), *part.fields])
    whole = (
        met.mapInArrow(tagmatch_match_buckets, of_part)
        .groupBy("id")
        .agg(functions.first("query", ignorenulls=True).alias("query"), _together(answers).alias("answer"))
    )
    if answers.how in ("semi", "anti"):
        answer = functions.col("answer")
        return whole.where(answer if answers.how == "semi" else ~answer).select("query.*")
    if answers.limit is not None:
        # By the type hints Spark knows that it may give answers in other batches than queries
        def tagmatch_best(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
            for structs in batches:
                queries, found = structs.flatten()
                messages = asked.messages(pa.RecordBatch.from_struct_array(queries))
                yield as_spark(answers.best_of(messages, found), answers.of_query)

        best = functions.arrow_udf(tagmatch_best, answers.of_query)  # type: ignore[attr-defined]
        whole = whole.select("query", best(functions.struct("query", "answer")).alias("answer"))
    if answers.output == "rows":
        return whole.select("query.*", answers.spread(functions.col("answer")))
    return whole.select("query.*", functions.col("answer").alias(answers.fields[0].name))


def _together(answers: Answers) -> Column:
    """The answer to a query, from those of parts."""
    if answers.output == "exists":
        return functions.max("exists")
    if answers.output == "counts" and not answers.unique:
        return functions.sum("count")
    keys = functions.flatten(functions.collect_list(PARTS))
    keys = functions.array_distinct(keys) if answers.unique and answers.limit is None else keys
    return functions.size(keys).cast("long") if answers.output == "counts" else keys


# -- sets ------------------------------------------------------------------------------------------------------------


def sent_sets(plan: Shuffle, chunk_sets: int, chunk: int) -> Iterator[pa.RecordBatch]:
    """One task: batches of the sets of a chunk, of `chunk_sets` rows of the tagset table, for buckets and homes."""
    data = plan.answers.data
    index = plan.index.in_place(plan.snapshot, records=bool(data))
    chunks = chunks_of(enumerate(map(len, index.snapshot.segments)), chunk_sets)
    homes = [*zip(plan.labels.tolist(), plan.numbers.tolist(), strict=True)][plan.buckets.count :]
    for number, first, last in chunks[chunk : chunk + 1]:
        segment, meeting = index.snapshot.segments[number], meeting_of(index, number)
        index.fetch_rows(segment, first, last)
        rows = segment.keys.lasting(segment.live_rows(first, last).astype(np.uint32), plan.now)
        places = meeting.of_sets(segment.tagsets.ranks, rows)
        is_met = places < len(meeting.hashes)
        homeless = sets_at(segment, rows[~is_met], plan.now, data)
        yield from serialized((label, number, homeless) for label, number in homes)
        rows = rows[is_met]
        buckets = plan.buckets.of_sets(meeting.hashes[places[is_met]], rows).astype(np.uint32)
        firsts, order = group_by(buckets, len(plan.labels))
        yield from in_groups(firsts, plan.labels, plan.numbers, sets_at(segment, rows[order], plan.now, data))


# -- queries ---------------------------------------------------------------------------------------------------------


def sent_queries(
    batches: Iterable[pa.RecordBatch], plan: Shuffle, met_filter: MetFilter | None, *, merged: bool, at_home: bool
) -> Iterator[pa.RecordBatch]:
    """One task: queries, as structs, with a hash and a number; gives batches of them for their buckets and homes."""
    for batch in batches:
        structs, spread, ids = batch.columns
        at_homes = elsewhere = pa.RecordBatch.from_struct_array(structs)
        reject_nulls(at_homes.column(plan.asked.tags), plan.asked.name_of_tags)
        messages = plan.asked.messages(at_homes)
        without_locations(messages, plane=plan.answers.plane)  # also of those that meet no set
        if merged:
            names = ["id", "query", "message", *(f"on {number}" for number in range(len(plan.asked.on)))]
            own = [messages.to_struct_array(), *(at_homes.column(number) for number in plan.asked.on)]
            at_homes = pa.RecordBatch.from_arrays([ids, structs, *own], names=names)
            elsewhere = pa.RecordBatch.from_arrays([ids, pa.nulls(len(ids), structs.type), *own], names=names)
        buckets, queries = _buckets_of_queries(messages, plan.buckets, met_filter)
        firsts, order = group_by(buckets, len(plan.labels))
        yield from in_groups(firsts, plan.labels, plan.numbers + 1, elsewhere.take(queries[order]))
        if at_home:
            homes = (spread.to_numpy() % plan.buckets.count + plan.buckets.count).astype(np.uint32)
            firsts, order = group_by(homes, len(plan.labels))
            yield from in_groups(firsts, plan.labels, plan.numbers + 1, at_homes.take(order))


def _buckets_of_queries(
    messages: pa.RecordBatch, buckets: ShuffleBuckets, met_filter: MetFilter | None
) -> tuple[U32Array, I64Array]:
    """Pairs of a bucket and a query that has one of its tags or attributes, each once."""
    (lists,) = tag_lists(messages.column(TAGS), TAGS)
    owners, hashes = np.repeat(np.arange(len(lists)), np.diff(lists.offsets)), hash_tags(lists)
    if buckets.names:
        columns = with_own_columns(messages)
        by_name = [_with_values(columns, buckets.names), *_with_values_in_maps(columns, buckets.names)]
        owners = np.concatenate([owners, *(some for some, _ in by_name)])
        hashes = np.concatenate([hashes, *(some for _, some in by_name)])
    if met_filter is not None:
        may_meet = met_filter.among(hashes)
        owners, hashes = owners[may_meet], hashes[may_meet]
    places, numbers = buckets.of_hashes(hashes)
    pairs = np.unique(owners[places] * buckets.count + numbers)
    queries, numbers = np.divmod(pairs, buckets.count)
    return numbers.astype(np.uint32), queries


def _with_values(messages: pa.RecordBatch, names: frozenset[str]) -> tuple[I64Array, U64Array]:
    """Pairs of a query and the hash of one of these attributes that it has a value of."""
    schema = messages.schema
    found = [(name, name) for name in schema.names if name in names and not pa.types.is_map(schema.field(name).type)]
    if PLACE in names:
        found += [
            (PLACE, name) for name in (LOCATION, WITHIN) if name in schema.names and is_place_column(schema, name)
        ]
    owners = [np.flatnonzero(_have_values(messages.column(column))) for _, column in found]
    hashes = np.repeat(hashes_of_attributes([name for name, _ in found]), list(map(len, owners)))
    return np.concatenate([np.zeros(0, np.int64), *owners]), hashes


def _with_values_in_maps(messages: pa.RecordBatch, names: frozenset[str]) -> Iterator[tuple[I64Array, U64Array]]:
    """The same of the entries of each column of maps, be the value null or not."""
    wanted = sorted(names)
    for column in messages.columns:
        if pa.types.is_map(column.type):
            rows, entries, _ = entries_of(column)
            number = pc.index_in(entries.cast(pa.large_string()), pa.array(wanted, pa.large_string()))
            places = np.flatnonzero(number.is_valid().to_numpy(zero_copy_only=False))
            owners = np.searchsorted(rows, places, side="right") - 1
            yield owners, hashes_of_attributes(wanted)[number.drop_null().to_numpy()]


def _have_values(values: pa.Array) -> BoolArray:
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        values = pc.list_value_length(values)
        values = pc.if_else(pc.greater(values, 0), values, None)
    valid: BoolArray = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


# -- buckets ---------------------------------------------------------------------------------------------------------


class _Bucket(TagMatch[Any]):
    """An index of the sets of a bucket, with their conditions and areas. Clients are where the index's folder says."""

    def __init__(self, batches: list[pa.RecordBatch], plan: Shuffle) -> None:
        staged, first = StagedChanges(), 0
        for batch in batches:
            # Rows as they are stored, with conditions as tags. By number, as a set may have many keys
            numbers = np.arange(first, first + len(batch), dtype=np.uint64)
            staged.extend(tag_lists(batch.column("tags"), "tags"), numbers, removed=False)
            first += len(batch)
        numbered, _ = segment_after([], staged.changes(), LayoutOptions())
        every = _key_table([batch.column("keys") for batch in batches], plan.answers.key_type)
        keys, records = every.of_sets(numbered.keys.keys.values), None
        if plan.answers.data:
            records = _records(every, [batch.column("data").flatten() for batch in batches], plan.answers.data)
        snapshot = Snapshot((replace(numbered, keys=keys, records=records),))
        options = MatchOptions(device="cpu", plane=plan.answers.plane)
        try:
            self._engine = LocalEngine(None, snapshot, LayoutOptions(), StagingOptions(), options)
            self._place_clients(keys, plan)
        except InvalidValueError as error:  # of areas and places alone
            raise InvalidValueError(f"the index {plan.index}: {error}") from None

    def _place_clients(self, keys: KeyTable, plan: Shuffle) -> None:
        """Put the clients of these keys where the folder says, if a message asks for that."""
        folder, answers = plan.index.changeable, plan.answers
        if folder is None or not plan.asked.places:
            return
        saved = open_positions(folder, answers.key_type, plane=answers.plane)
        if saved is not None:
            here = pc.is_in(saved.keys, keys.column(keys.keys.values))
            some = here.to_numpy(zero_copy_only=False)
            self._engine.clients.place(Positions(saved.keys.filter(here), saved.lon[some], saved.lat[some]))


def _key_table(lists: list[pa.Array], key_type: KeyType) -> KeyTable:
    """The keys of a bucket's sets."""
    kind = pa.large_list(pa.uint64() if key_type == "integer" else pa.large_string())
    keys = pa.concat_arrays([pa.array([], kind), *(some.cast(kind) for some in lists)])
    if key_type == "integer":
        return KeyTable(to_lists(keys))
    places, numbers = in_order(keys.values)
    return KeyTable(Lists(keys.offsets.to_numpy(), numbers), gather_strings(to_strings(keys.values), places))


def _records(table: KeyTable, structs: list[pa.Array], data: Schema) -> RecordTable:
    """Records of all keys of a bucket, with their data, which comes as often as they do."""
    numbers, places = np.unique(table.keys.values, return_index=True)
    columns = pa.concat_arrays(structs).take(pa.array(places)).flatten() if structs else []
    named = {DATA + name: column for name, column in zip(data, columns, strict=False)}
    empty = {DATA + name: pa.array([], kind) for name, kind in data.items()}
    return RecordTable(numbers, pa.table(named or empty))


def matched(batches: Iterable[pa.RecordBatch], plan: Shuffle, *, merged: bool) -> Iterator[pa.RecordBatch]:
    """One task: batches by bucket, sets first; gives rows of the outcome, or rows to merge to them."""
    place, sets = -1, list[pa.RecordBatch]()
    for number, some in groupby(deserialized(batches), itemgetter(0)):
        of_number = (records for _, records in some)
        if number % 2 == 0:
            place, sets = number // 2, list(of_number)
            continue
        bucket, sets = _Bucket(sets if number // 2 == place else [], plan), []
        for records in gathered(of_number, _GATHERED_BYTES):
            yield from _rows(bucket, records, plan, merged=merged)
        bucket.close()


def _rows(bucket: TagMatch[Any], records: pa.RecordBatch, plan: Shuffle, *, merged: bool) -> Iterator[pa.RecordBatch]:
    """Rows of the answers of a bucket to queries."""
    for some, answers in _answers(bucket, records, plan, merged=merged):
        if merged:
            found = answers if plan.answers.is_number else pc.list_value_length(answers)
            wanted = pc.or_(found.cast(pa.bool_()), some.column("query").is_valid())
            numbers, answers = np.flatnonzero(wanted), answers.filter(wanted)
            some = some.select(["id", "query"])
        else:
            numbers, answers = in_short_lists(answers)
        yield from plan.answers.joined_to(some, numbers, answers)


def _answers(
    bucket: TagMatch[Any], records: pa.RecordBatch, plan: Shuffle, *, merged: bool
) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    """Some of the queries of a batch after the other, with the answers of a bucket."""

    def messages(some: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_struct_array(some.column("message")) if merged else plan.asked.messages(some)

    def ask(some: pa.RecordBatch) -> pa.Array:
        on = some.columns[3:] if merged else [some.column(number) for number in plan.asked.on]
        return plan.answers.ask(bucket, messages(some), on)

    return in_parts(records, ask, lambda some: plan.answers.count(bucket, messages(some)))
