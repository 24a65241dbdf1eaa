"""Step 2: the vocabulary of all shards, ranked, and with it the sets of each shard as ranks.

A task adds up the frequencies of the tags whose hashes are in a range of its own. Ranks go by frequency, and then by
hash; so how many tags of each frequency each task has is enough to tell all ranks, and the driver knows that. No tag is
sent a second time, and none looked up: a task says of each shard where the tags are that it has sent, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Lists, U64Array, offsets_of
from tagmatch.model.arrow import from_lists, from_strings, to_lists, to_numbers, to_strings
from tagmatch.model.errors import TagMatchError
from tagmatch.model.kernels.lists import gather_strings, relabel
from tagmatch.model.storage.format import Entry
from tagmatch.model.storage.tables import kinds_of
from tagmatch.model.tag_order import grouped_by_hash
from tagmatch.partitioner.spark.joined import write_files
from tagmatch.partitioner.spark.ranks import Ranks, vocabulary_file
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.serialized import (
    SERIALIZED,
    Serializer,
    deserialized,
    groups_by_hash,
    labels_for_all,
)
from tagmatch.partitioner.spark.shards import Shards
from tagmatch.partitioner.spark.tasks import Batches, for_each, number_of_task, one_row
from tagmatch.partitioner.vocabulary import by_frequency

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOTALS = "totals"
_TOTAL = (
    "task long, bytes long, first_group long, last_group long, kinds string, "
    "frequencies array<long>, counts array<long>"
)
_COLUMNS = ["strings", "hashes", "frequencies"]


@dataclass(frozen=True, slots=True)
class Tags:
    """The vocabulary of a job, whose files are those that the segment will have; tasks memory-map them.

    Attributes
    ----------
    count : int
    files : dict
        What manifests say of the files, by their names.
    kinds : dict
        What `kinds_of` says of the tags.
    ranks : Ranks
        Of the tags of each task, in whose tables it also is where those of each shard are.
    """

    scratch: Scratch
    count: int
    files: dict[str, Entry]
    kinds: Entry
    ranks: Ranks

    def hashes(self) -> U64Array:
        """The hash of each tag, by rank."""
        hashes: U64Array = to_numbers(self.scratch.read_table("vocabulary", self.files)["hash"])
        return hashes

    def rank_sets(self, shard: int) -> Lists:
        """The sets of a shard as ascending ranks."""
        found = [np.zeros(0, np.uint32)]
        for task, ranked in self.ranks.of_tasks():
            shards, places = (self.scratch.read(_TOTALS, task, name, keep=True) for name in ("shards", "places"))
            row = int(np.searchsorted(to_numbers(shards), shard))
            if row < len(shards) and shards[row].as_py() == shard:
                of_shard = to_lists(places)
                found.append(ranked.of(of_shard.values[of_shard.offsets[row] : of_shard.offsets[row + 1]]))
        return relabel(to_lists(self.scratch.read("shard", shard, "ranks")), np.concatenate(found))


def build_vocabulary(spark: SparkSession, scratch: Scratch, shards: Shards) -> Tags:
    """Leave the vocabulary in the scratch folder, and where the tags of each shard are in it."""
    labels = labels_for_all(spark)
    sent = for_each(spark, shards.numbers, partial(_tags_of_shard, scratch, labels), SERIALIZED).repartition("label")
    added = sent.mapInArrow(partial(_add_up, scratch, len(labels)), _TOTAL).collect()
    totals = sorted(added, key=lambda row: row.first_group)
    if any(lower.last_group >= upper.first_group for lower, upper in pairwise(totals)):
        raise TagMatchError(
            "Spark has put partitions of a shuffle together that are not neighbours, so tags cannot be ranked; please "
            "report this, with the version of Spark and its settings"
        )
    ranks = Ranks.of(scratch, totals)
    (files,) = write_files(spark, scratch, [vocabulary_file(scratch, _TOTALS, ranks, sum(row.bytes for row in totals))])
    kinds: Entry = {name: value for row in totals for name, value in json.loads(row.kinds).items()}
    return Tags(scratch, ranks.count, files, kinds, ranks)


def _tags_of_shard(scratch: Scratch, labels: I64Array, shard: int) -> Iterator[pa.RecordBatch]:
    """Send a shard's tags, which come by their hashes, and their frequencies to the tasks of these hashes."""
    columns = [scratch.read("shard", shard, name) for name in ("tags", "hashes", "frequencies")]
    groups = groups_by_hash(to_numbers(columns[1]), len(labels))
    firsts = np.searchsorted(groups, np.arange(len(labels) + 1))
    serializer = Serializer()
    serializer.add_groups(firsts, labels, np.full(len(labels), shard), pa.record_batch(columns, _COLUMNS))
    yield from serializer.take()


def _add_up(scratch: Scratch, groups: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Add the frequencies of each tag up: all occurrences of a tag meet in one task.

    Leaves the tags in the order of a vocabulary and, for each shard, the places of those that it has sent.
    """
    shards, firsts, records = _received(batches)
    if not shards:
        return
    received, (hashes, frequencies) = to_strings(records.column(0)), map(to_numbers, records.columns[1:])
    order, repeated = grouped_by_hash(received, hashes)
    different = np.flatnonzero(~repeated)
    sums = np.add.reduceat(frequencies[order], different)
    ranked = by_frequency(sums, np.arange(len(sums), dtype=np.uint32))
    place_of = np.empty(len(ranked), np.uint32)
    place_of[ranked] = np.arange(len(ranked), dtype=np.uint32)
    places = np.empty(len(order), np.uint32)
    places[order] = np.repeat(place_of, np.diff(different, append=len(order)))
    chosen, task = order[different[ranked]], number_of_task()
    tags = gather_strings(received, chosen)
    scratch.write(
        _TOTALS,
        task,
        strings=from_strings(tags),
        hashes=pa.array(hashes[chosen]),
        frequencies=pa.array(sums[ranked]),
        shards=pa.array(shards),
        places=from_lists(Lists(firsts, places)),
    )
    found, counts = np.unique(sums, return_counts=True)
    first_group, last_group = groups_by_hash(hashes[order[[0, -1]]], groups).tolist()
    yield one_row(
        task=task,
        bytes=int(tags.offsets[-1]),
        first_group=first_group,
        last_group=last_group,
        kinds=json.dumps(kinds_of(tags)),
        frequencies=found.astype(np.int64),
        counts=counts,
    )


def _received(batches: Batches) -> tuple[list[int], I64Array, pa.RecordBatch]:
    """What shards have sent, one after the other, each in the order in which it had it.

    Returns
    -------
    shards : list of int
        Ascending.
    firsts : int64 array
        Where what each has sent begins, and the end.
    records : RecordBatch
    """
    by_shard: dict[int, list[pa.RecordBatch]] = {}
    for shard, records in deserialized(batches):
        # Large strings, as those of many batches come together
        by_shard.setdefault(shard, []).append(records.set_column(0, "strings", records[0].cast(pa.large_string())))
    shards = sorted(by_shard)
    firsts = offsets_of(np.array([sum(map(len, by_shard[shard])) for shard in shards], np.int64))
    # A task's twin gets batches in another order
    parts = [records for shard in shards for records in sorted(by_shard[shard], key=_first_tag)]
    return shards, firsts, pa.concat_batches(parts) if parts else pa.record_batch({})


def _first_tag(records: pa.RecordBatch) -> tuple[int, bytes]:
    return records["hashes"][0].as_py(), records["strings"][0].as_buffer().to_pybytes()
