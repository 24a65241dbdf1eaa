"""The offline job (§3.1) on Spark: from a DataFrame of sets to the snapshot that the local partitioner would make.

Steps, each of one or a few Spark jobs ::

    shards      rows by a hash of their set; a task makes its sets distinct, as the local partitioner does
    stored      where rows are appended: the keys that these sets have in the index already; its small segments
    keys        where keys are strings: the different ones, sorted; a file that tasks memory-map
    vocabulary  frequencies added up over shards, ranked; a file that tasks memory-map
    slices      sets as ranks; Algorithm 1 by histograms if a subtree is too large for one task; each slice laid out
    index       the slices one after the other, in files; each task writes some parts of them

If all shards together have few sets and keys, one task does the remaining steps, by the local partitioner.

At last the driver names these files in a new manifest, in one step; an append also names the segments that stay.

Nothing comes to the driver but counts, histograms, masks, some hundred sets' first ranks of each shard, and the strings
by which Spark sets the bounds of their ranges. Files that tasks leave for others are in a folder next to the index's
snapshots, which readers do not look at, and which is removed afterwards.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tagmatch.model.data_types import Schema
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.options import KeyType, LayoutOptions
from tagmatch.model.storage.byte_store import Written
from tagmatch.model.storage.files import Entry
from tagmatch.model.storage.format import key_type_of
from tagmatch.model.storage.tables import manifest_of, write_segment_files
from tagmatch.model.tables import LONG_AGO
from tagmatch.partitioner.local import MAX_ROWS, no_changes, segment_after
from tagmatch.partitioner.spark.batches import Scratch, for_each, one_row
from tagmatch.partitioner.spark.records import Records, put_records
from tagmatch.partitioner.spark.shards import Appending, Shards, Stored, make_shards, no_sets, sets_of_shard
from tagmatch.partitioner.spark.slices import lay_out_slices, write_slices
from tagmatch.partitioner.spark.tables import Job, build_vocabulary, number_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A session hands its settings on to its jobs, in all threads, as their properties; this one is shown on Spark's pages
_DESCRIPTION = "spark.job.description"
_OURS = "tagmatch: "

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Partitioned:
    """What a job has made."""

    # Distinct sets, pairs of a set and a key, different tags, and partitions (clusters, in the layout `rarest`): of the
    # new segment, which is the whole index, or the rows added to it
    sets: int
    keys: int
    tags: int
    partitions: int
    skipped: dict[str, int]  # Rows that were left out, by their problem


def partition_sets(
    rows: DataFrame,
    stored: Stored,
    layout: LayoutOptions,
    *,
    append: bool,
    data: Schema,
    plane: bool,
    sets_per_task: int,
    skip_invalid: bool,
) -> Partitioned:
    """Make the sets of a DataFrame, whose columns are those that `partition` has, an index's snapshot, or a segment.

    The index has keys that are strings where `key` has. A segment also has what `consolidated` takes in; keys that have
    expired go. Each task has about `sets_per_task` sets in memory, some 500 bytes each; the outcome does not depend on
    it. What a job that was killed has left at the index's place goes; so only one job at a time may work on an index.
    """
    spark = rows.sparkSession
    with stored.index.scratch() as files:
        expire = "expires" in rows.columns or (append and bool(stored.expiring))
        replaced = None if append else stored.index.replaced_name()
        job = Job(Scratch(files), _key_type_of(rows), layout, sets_per_task, expire, plane=plane)
        # What has expired goes, but not before stored sets have had their keys' times replaced by it
        now = LONG_AGO if append and stored.manifest is not None else stored.now
        with _step(spark, "shards"):
            shards = make_shards(rows.drop(*data), job, now, skip_invalid=skip_invalid)
        _tell_problems(shards, skip_invalid=skip_invalid)
        entries, written = list[Entry](), dict[str, str]()
        if append and stored.manifest is not None:
            if not shards.rows:
                return Partitioned(0, 0, 0, 0, shards.problems)
            shards, entries, written = _take_in(spark, job, stored, shards)
        if (sets := shards.sets + sum(entry["rows"] for entry in entries)) > MAX_ROWS:
            raise InvalidValueError(
                f"an index holds at most {MAX_ROWS} sets, not {sets}; split the rows by a hash of their tags"
            )
        records = Records(stored) if append else Records(replace(stored, manifest=None))
        if data:
            with _step(spark, "records"):
                records = replace(records, put=put_records(rows, job, data))
        partitions, tags = 0, 0
        if shards.sets or not entries:  # else nothing but removals is left of the rows
            partitions, entry = _make(spark, job, shards, records)
            entries, written, tags = [*entries, entry], written | _paths(entry), entry["tags"]
        manifest, made = manifest_of(entries, layout, job.key_type), Written(files, written)
        # Once, whereas tasks may run twice
        if append:
            stored.index.switch(manifest, stored.name, made)
        else:
            stored.index.replace(manifest, replaced, made)
        return Partitioned(shards.sets, shards.keys, tags, partitions, shards.problems)


def merge_segments(spark: SparkSession, stored: Stored, layout: LayoutOptions, sets_per_task: int) -> None:
    """Make one segment of all sets of an index, without deleted or expired keys."""
    if stored.is_whole:
        return
    with stored.index.scratch() as files:
        job = Job(Scratch(files), key_type_of(stored.manifest or {}), layout, sets_per_task, bool(stored.expiring))
        shards, _, _ = _take_in(spark, job, stored, Shards((), 0, 0, 0, {}), every=True)
        _, entry = _make(spark, job, shards, Records(stored))
        stored.index.switch(manifest_of([entry], layout, job.key_type), stored.name, Written(files, _paths(entry)))


def _take_in(
    spark: SparkSession, job: Job, stored: Stored, shards: Shards, *, every: bool = False
) -> tuple[Shards, list[Entry], dict[str, str]]:
    """The shards with stored sets; the manifest's entries of segments that stay, and their new files by their paths."""
    with _step(spark, "stored"):
        appending = Appending(job, stored, shards)
        shards = appending.take_in(spark, every=every)
    return shards, appending.entries, appending.written


def _make(spark: SparkSession, job: Job, shards: Shards, records: Records) -> tuple[int, Entry]:
    """Leave the segment of shards in the scratch folder: how many partitions it has, and what manifests say of it."""
    # A set takes 500 bytes. Another key of it takes 22 as a number, and a string may take as much as a set
    more = shards.keys - shards.sets
    size = shards.sets + (more if job.key_type == "string" else more // 8)
    make = _make_in_one_task if size <= job.sets_per_task else _make_in_steps
    return make(spark, job, shards.numbers, records)


def _paths(entry: Entry) -> dict[str, str]:
    """The names of a segment's files in the scratch folder, by their paths in the index."""
    return {f"{entry['name']}/{name}": name for name in entry["files"]}


def _make_in_one_task(spark: SparkSession, job: Job, shards: Sequence[int], records: Records) -> tuple[int, Entry]:
    """As `_make`, by the local partitioner."""

    def make(_: int) -> Iterator[pa.RecordBatch]:
        held = [no_sets(job), *(sets_of_shard(job, shard) for shard in shards)]
        segment, _counts = segment_after(held, no_changes(), job.layout)
        segment = records.added_to(job, segment)
        entry = write_segment_files(segment, job.scratch.files.new)
        yield one_row(partitions=len(segment.partitions), entry=json.dumps(entry))

    with _step(spark, "index"):
        (made,) = for_each(spark, [0], make, "partitions long, entry string").collect()
    return made.partitions, json.loads(made.entry)


def _make_in_steps(spark: SparkSession, job: Job, shards: Sequence[int], records: Records) -> tuple[int, Entry]:
    """The same in many tasks, none with more sets than the limit."""
    if job.key_type == "string":
        with _step(spark, "keys"):
            job = replace(job, names=number_names(spark, job.scratch, shards))
    with _step(spark, "vocabulary"):
        tags = build_vocabulary(spark, job, shards)
    with _step(spark, "slices"):
        slices = lay_out_slices(spark, job, shards, tags)
    with _step(spark, "index"):
        return write_slices(spark, job, slices, tags, records)


def _tell_problems(shards: Shards, *, skip_invalid: bool) -> None:
    """Warn of rows that were left out; they are an error if they are not to be skipped."""
    if shards.problems:
        problems = ", ".join(f"{problem}: {count}" for problem, count in shards.problems.items())
        if not skip_invalid:
            raise InvalidValueError(
                f"there are rows that cannot be stored: {problems}; filter them, or have them skipped (skip_invalid)"
            )
        _log.warning("skipped rows: %s", problems)


def _key_type_of(rows: DataFrame) -> KeyType:
    """What the keys of an index of these rows are."""
    return "string" if dict(rows.dtypes)["key"] == "string" else "integer"


@contextlib.contextmanager
def _step(spark: SparkSession, name: str) -> Iterator[None]:
    """Name the Spark jobs of a step, in Spark's pages and in the log."""
    _log.info("%s", name)
    before = spark.conf.get(_DESCRIPTION, None)
    spark.conf.set(_DESCRIPTION, f"{_OURS}{name}")
    try:
        yield
    finally:
        if before is None or before.startswith(_OURS):  # by another job, in another thread of the session
            spark.conf.unset(_DESCRIPTION)
        else:
            spark.conf.set(_DESCRIPTION, before)
