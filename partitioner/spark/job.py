"""The offline job (§3.1) on Spark: from a DataFrame of sets to the snapshot that the local partitioner would make.

Steps, each of one or a few Spark jobs ::

    keys        where keys are strings: the different ones, sorted; a file that tasks memory-map
    shards      rows by a hash of their set; a task makes its sets distinct, as the local partitioner does
    stored      where rows are appended: the keys that these sets have in the index already; its small segments
    vocabulary  frequencies added up over shards, ranked; a file that tasks memory-map
    slices      sets as ranks; Algorithm 1 by histograms where a subtree is too large for one task; each slice laid out
    index       the slices one after the other, in files of which each task writes some parts

At last the driver names these files in a new manifest, in one step; what is appended, beside the segments that stay.

Nothing comes to the driver but counts, histograms, masks, some hundred sets' first ranks of each shard, and the strings
by which Spark sets the bounds of their ranges. What tasks leave for others lies in a folder beside the index's
snapshots, which readers do not look at, and which is removed afterwards.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tagmatch.model.errors import InvalidValueError
from tagmatch.model.options import KeyType, LayoutOptions
from tagmatch.model.storage.byte_store import Written
from tagmatch.model.storage.files import Entry
from tagmatch.model.storage.repository import Repository
from tagmatch.model.storage.tables import manifest_of
from tagmatch.partitioner.local import MAX_ROWS
from tagmatch.partitioner.spark.batches import Scratch
from tagmatch.partitioner.spark.keys import ShardKeys, number_names
from tagmatch.partitioner.spark.shards import Shards, make_shards
from tagmatch.partitioner.spark.slices import lay_out_slices, write_slices
from tagmatch.partitioner.spark.stored import Kept, Stored, take_in
from tagmatch.partitioner.spark.vocabulary import build_vocabulary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A session hands its settings on to its jobs, in all threads, as their properties; this one is shown on Spark's pages
_DESCRIPTION = "spark.job.description"
_OURS = "tagmatch: "

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How the job goes about it; the snapshot does not depend on these."""

    sets_per_task: int = 1 << 20  # Sets that one task lays out, about; it has them in memory, some 500 bytes each
    skip_invalid: bool = False  # Leave rows out that cannot be stored, and tell how many; else they are an error


@dataclass(frozen=True, slots=True)
class Partitioned:
    """What a job has made."""

    # Distinct sets, pairs of a set and a key, different tags, and partitions (clusters, in the layout `rarest`): of the
    # segment that it has made, which is the whole index, or what was added to it
    sets: int
    keys: int
    tags: int
    partitions: int
    skipped: dict[str, int]  # Rows that were left out, by what is wrong with them


def partition_sets(rows: DataFrame, index: Repository, layout: LayoutOptions, options: JobOptions) -> Partitioned:
    """Make the sets of a DataFrame, columns `tags`, `key` and perhaps `where`, the snapshot of an index.

    The index has keys that are strings where `key` has.
    What a job that was killed has left at the index's place goes; so only one job at a time may work on an index.
    """
    index.has_index()
    with index.scratch() as files:
        job = _Job(rows.sparkSession, ShardKeys(Scratch(files), key_type_of_rows(rows)), layout, options)
        made, entry = job.written(job.shards(rows))
        index.replace(manifest_of([entry], layout, job.keys.type), Written(files, _names(entry)))
        return made


def append_sets(rows: DataFrame, stored: Stored, layout: LayoutOptions, options: JobOptions) -> Partitioned:
    """Add the sets of a DataFrame, columns `tags` and `key`, to an index, as a segment of their own.

    The segment also has what `consolidated` takes in. Keys that have expired go.
    """
    spark = rows.sparkSession
    with stored.index.scratch() as files:
        keys = ShardKeys(Scratch(files), key_type_of_rows(rows), stored.some_expire)
        job = _Job(spark, keys, layout, options)
        shards, kept = job.shards(rows), Kept()
        if stored.manifest is not None:
            if not shards.rows:
                return Partitioned(0, 0, 0, 0, shards.problems)
            with job.step("stored"):
                shards, kept = take_in(spark, keys, stored, shards, options.sets_per_task)
        made, entry = job.written(shards)
        manifest = manifest_of([*kept.entries, entry], layout, keys.type)
        # Once, whereas tasks may run twice
        stored.index.switch(manifest, stored.name, Written(files, kept.written | _names(entry)))
        return made


def _names(segment: Entry) -> dict[str, str]:
    """The names of a segment's files in the scratch folder, by their paths in the index."""
    return {f"{segment['name']}/{name}": name for name in segment["files"]}


@dataclass(frozen=True, slots=True)
class _Job:
    spark: SparkSession
    keys: ShardKeys
    layout: LayoutOptions
    options: JobOptions

    def shards(self, rows: DataFrame) -> Shards:
        """The rows' sets; errors as `partition_sets`."""
        with self.step("shards"):
            shards = make_shards(rows, self.keys, skip_invalid=self.options.skip_invalid)
        if shards.problems:
            problems = ", ".join(f"{problem}: {count}" for problem, count in shards.problems.items())
            if not self.options.skip_invalid:
                raise InvalidValueError(
                    f"there are rows that cannot be stored: {problems}; "
                    "filter them, or have them skipped (skip_invalid)"
                )
            _log.warning("skipped rows: %s", problems)
        return shards

    def written(self, shards: Shards) -> tuple[Partitioned, Entry]:
        """Have the sets of shards written as a segment; and what manifests say of it."""
        if (rows := shards.sets + shards.other_rows) > MAX_ROWS:
            raise InvalidValueError(
                f"an index holds at most {MAX_ROWS} sets, not {rows}; split the rows by a hash of their tags"
            )
        spark, keys, layout, sets_per_task = self.spark, self.keys, self.layout, self.options.sets_per_task
        scratch = keys.scratch
        if keys.type == "string":
            with self.step("keys"):
                keys = replace(keys, names=number_names(spark, scratch, shards.numbers, sets_per_task))
        with self.step("vocabulary"):
            tags = build_vocabulary(spark, scratch, shards)
        with self.step("slices"):
            slices = lay_out_slices(spark, scratch, shards.numbers, layout, sets_per_task, keys, tags)
        with self.step("index"):
            partitions, entry = write_slices(spark, scratch, layout, slices, keys, tags)
        return Partitioned(shards.sets, int(slices.keys.sum()), tags.count, partitions, shards.problems), entry

    def step(self, name: str) -> AbstractContextManager[None]:
        """Name the Spark jobs of a step."""
        return _step(self.spark, name)


def key_type_of_rows(rows: DataFrame) -> KeyType:
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
