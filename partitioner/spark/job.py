"""The offline job (§3.1) on Spark: from a DataFrame of sets to the snapshot that the local partitioner would make.

Steps, each of one or a few Spark jobs ::

    keys        where keys are strings: the different ones, sorted; a file that tasks memory-map
    shards      rows by a hash of their set; a task makes its sets distinct, as the local partitioner does
    vocabulary  frequencies added up over shards, ranked; a file that tasks memory-map
    slices      sets as ranks; Algorithm 1 by histograms where a subtree is too large for one task; each slice laid out
    index       the slices one after the other, saved in one step

Nothing comes to the driver but counts, histograms, masks, some hundred sets' first ranks of each shard, and the strings
by which Spark sets the bounds of their ranges. What tasks leave for others lies in a folder beside the index's
snapshots, which readers do not look at, and which is removed afterwards.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tagmatch.model.errors import InvalidValueError
from tagmatch.model.options import LayoutOptions
from tagmatch.model.storage.location import Location
from tagmatch.partitioner.local import MAX_ROWS
from tagmatch.partitioner.spark.assemble import save_slices
from tagmatch.partitioner.spark.keys import IntegerKeys, Keys, number_keys
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.shards import make_shards
from tagmatch.partitioner.spark.slices import lay_out_slices
from tagmatch.partitioner.spark.vocabulary import build_vocabulary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A session hands its settings on to its jobs, in all threads, as their properties; this one is shown on Spark's pages
_DESCRIPTION = "spark.job.description"
_OURS = "tagmatch: "

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How the job goes about it; the snapshot does not depend on these.

    Attributes
    ----------
    sets_per_task : int
        Sets that one task lays out, about; it has them in memory, some 500 bytes each.
    skip_invalid : bool
        Leave rows out that cannot be stored, and tell how many; else they are an error.
    """

    sets_per_task: int = 1 << 20
    skip_invalid: bool = False


@dataclass(frozen=True, slots=True)
class Partitioned:
    """What a job has made.

    Attributes
    ----------
    sets, keys, tags, partitions : int
        Distinct sets, pairs of a set and a key, different tags, and partitions (clusters, in the layout `rarest`).
    skipped : dict of str to int
        Rows that were left out, by what is wrong with them.
    """

    sets: int
    keys: int
    tags: int
    partitions: int
    skipped: dict[str, int]


def partition_sets(rows: DataFrame, index: Location, layout: LayoutOptions, options: JobOptions) -> Partitioned:
    """Make the sets of a DataFrame, columns `tags` and `key`, the snapshot of an index.

    The index has keys that are strings where `key` has.
    What a job that was killed has left at the index's place goes; so only one job at a time may work on an index.

    Raises
    ------
    InvalidValueError
        Rows cannot be stored, and are not to be skipped; tells how many there are of each kind. Or there are more
        sets than an index can hold.
    IndexExistsError
        The path holds something that is not an index.
    """
    spark = rows.sparkSession
    index.has_index()
    with index.scratch() as files:
        scratch = Scratch(files)
        keys: Keys = IntegerKeys()
        if dict(rows.dtypes)["key"] == "string":
            with _step(spark, "keys"):
                keys = number_keys(rows, scratch)
        with _step(spark, "shards"):
            shards = make_shards(rows, scratch, keys)
        if shards.problems:
            problems = ", ".join(f"{problem}: {count}" for problem, count in shards.problems.items())
            if not options.skip_invalid:
                raise InvalidValueError(
                    f"there are rows that cannot be stored: {problems}; "
                    "filter them, or have them skipped (skip_invalid)"
                )
            _log.warning("skipped rows: %s", problems)
        if shards.sets > MAX_ROWS:
            raise InvalidValueError(
                f"an index holds at most {MAX_ROWS} sets, not {shards.sets}; split the rows by a hash of their tags"
            )
        with _step(spark, "vocabulary"):
            tags = build_vocabulary(spark, scratch, shards, options.sets_per_task)
        with _step(spark, "slices"):
            slices = lay_out_slices(spark, scratch, shards.numbers, layout, options.sets_per_task)
        with _step(spark, "index"):
            partitions = save_slices(spark, scratch, index, layout, slices, keys)
    pairs = sum(row["keys"] for row in slices)
    return Partitioned(shards.sets, pairs, tags, partitions, shards.problems)


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
