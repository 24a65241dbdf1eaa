"""Step 3: sets come together in slices, consecutive ranges of the tagset table, and one task lays out each.

A slice is a range of the order of rank lists in the layout `rarest`, a subtree of Algorithm 1 in `balanced`.

Step 4: the slices become the tables of one segment, of which many tasks write the files, each some parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, U32Array
from tagmatch.model.arrow import from_lists, from_words, to_lists
from tagmatch.model.kernels.hashing import signatures_of
from tagmatch.model.kernels.lists import gather, sort_groups
from tagmatch.model.layouts import implementations_of
from tagmatch.model.options import LayoutOptions
from tagmatch.model.storage.files import Entry
from tagmatch.model.storage.tables import segment_entry
from tagmatch.model.tables import KeyTable
from tagmatch.partitioner.balanced_partitioning import Root
from tagmatch.partitioner.spark.batches import (
    SERIALIZED,
    Scratch,
    Serializer,
    by_number,
    for_each,
    labels_for,
    lists_of,
    one_row,
    rows_at,
)
from tagmatch.partitioner.spark.joined import JoinedTable, write_files
from tagmatch.partitioner.spark.keys import ShardKeys
from tagmatch.partitioner.spark.plan import LayoutPlan, SliceRoutes, Slices
from tagmatch.partitioner.spark.vocabulary import ShardTags

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RANKED = "shard long, sets long, empty long, first array<long>, second array<long>"
_SLICE = (
    "slice long, sets long, empty long, ranks long, keys long, greatest_key string, some_expire boolean, "
    "groups long, first_tag long, last_tag long"
)


def plan_of(options: LayoutOptions) -> LayoutPlan:
    """How the job brings sets into a layout."""
    plan: LayoutPlan = resolve_name(implementations_of(options).plan)()
    return plan


def lay_out_slices(
    spark: SparkSession,
    scratch: Scratch,
    shards: Sequence[int],
    options: LayoutOptions,
    sets_per_task: int,
    keys: ShardKeys,
    tags: ShardTags,
) -> Slices:
    """Leave each slice in the scratch folder."""
    ranked = for_each(spark, shards, partial(_rank, scratch, options, tags), _RANKED).collect()
    plan = plan_of(options).plan(spark, scratch, shards, ranked, options, sets_per_task)
    route = partial(_route, scratch, keys, plan.routes, labels_for(spark, plan.slices)[0])
    routed = for_each(spark, shards, route, SERIALIZED)
    laid_out = by_number(routed, plan.slices, partial(_lay_out, keys, tags, options, plan.roots), _SLICE)
    return Slices(sorted(laid_out.collect(), key=lambda row: row.slice))


def _rank(scratch: Scratch, options: LayoutOptions, tags: ShardTags, shard: int) -> Iterator[pa.RecordBatch]:
    """Leave a shard's sets as ranks, and what they are routed by."""
    ranks = tags.rank_sets(shard)
    scratch.write("ranked", shard, ranks=from_lists(ranks))
    words = plan_of(options).prepare(scratch, shard, ranks)
    first, second = (np.ascontiguousarray(words[:, i]).view(np.int64) for i in range(2))
    empty = int(np.count_nonzero(ranks.lengths() == 0))
    yield one_row(shard=shard, sets=len(ranks), empty=empty, first=first, second=second)


def _route(
    scratch: Scratch, keys: ShardKeys, routes: SliceRoutes, labels: I64Array, shard: int
) -> Iterator[pa.RecordBatch]:
    """Send each set of a shard, and its keys, to the slice that it belongs to."""
    # Large lists, as those of many shards come together
    ranks = scratch.read("ranked", shard, "ranks").cast(pa.large_list(pa.uint32()))
    table = keys.as_numbers(shard)
    columns = {"ranks": ranks, "keys": from_lists(table.keys).cast(pa.large_list(pa.uint64()))}
    if table.expires is not None:
        times = lists_of(table.keys.offsets, pa.array(table.expires))
        columns["expires"] = times.cast(pa.large_list(pa.int64()))
    records = pa.record_batch(columns)
    serializer = Serializer()
    serializer.scatter(
        routes.slices(scratch, shard).astype(np.uint32), labels, np.arange(len(labels)), partial(rows_at, records)
    )
    yield from serializer.take()


def _lay_out(
    keys: ShardKeys,
    tags: ShardTags,
    options: LayoutOptions,
    roots: dict[int, Root],
    number: int,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Order the sets of one slice and leave them in the scratch folder."""
    ranks, numbers, *times = map(to_lists, pa.concat_batches(list(batches)).columns)
    table = KeyTable(numbers, expires=times[0].values.view(np.int64) if times else None)
    order: U32Array = np.arange(len(ranks), dtype=np.uint32)
    sort_groups((ranks.offsets, ranks.values), order, np.array([0, len(order)]))
    ranks, table = gather(ranks, order), table.of_sets(order)
    signatures = signatures_of(ranks, tags.hashes())
    laid_out = plan_of(options).lay_out(ranks, signatures, options, roots.get(number))
    if laid_out.order is not None:
        ranks, table = gather(ranks, laid_out.order), table.of_sets(laid_out.order)
    keys.scratch.write(
        "slice",
        number,
        ranks=from_lists(ranks),
        **keys.columns(table),
        signatures=from_words(laid_out.signatures),
        **laid_out.columns,
    )
    values = table.keys.values
    yield one_row(
        slice=number,
        sets=len(ranks),
        empty=int(np.count_nonzero(ranks.lengths() == 0)),
        ranks=len(ranks.values),
        keys=len(values),
        greatest_key=str(int(values.max())) if len(values) else "0",
        some_expire=table.expires is not None,
        groups=laid_out.groups,
        first_tag=laid_out.first_tag,
        last_tag=laid_out.last_tag,
    )


def write_slices(
    spark: SparkSession, scratch: Scratch, options: LayoutOptions, slices: Slices, keys: ShardKeys, tags: ShardTags
) -> tuple[int, Entry]:
    """Leave the files of a segment in the scratch folder, under the names that they have in the segment."""
    table = JoinedTable(scratch, "slice", slices.numbers)
    tagsets = table.file(
        "tagsets",
        signature=table.words("signatures", slices.sets),
        ranks=table.lists("ranks", slices.sets, slices.ranks, np.uint32),
    )
    table = JoinedTable(scratch, "slice", slices.numbers)
    kind = np.uint32 if slices.greatest_key < 2**32 else np.uint64
    files = [tagsets, table.file("keys", keys=table.lists("keys", slices.sets, slices.keys, kind))]
    if slices.some_expire:
        table = JoinedTable(scratch, "slice", slices.numbers)
        files.append(table.file("expires", expires=table.numbers("expires", slices.keys, np.int64)))
    partitions, count = plan_of(options).partitions(scratch, slices, tags.count)
    of_tagsets, of_keys, *others = write_files(spark, scratch, [*files, partitions])
    entries = tags.files | of_tagsets | of_keys
    # In the order of `tables_of`
    for some in ([] if keys.names is None else [keys.names.files]) + others:
        entries |= some
    return count, segment_entry(entries, int(slices.sets.sum()), tags.count, 0) | tags.kinds
