"""Tasks that run twice, in turn or side by side, leave the same files: batches come in another order each time."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from support.collisions import colliding_tags
from support.strategies import COMMON_NAMES

from tagmatch.model.options import Layout, LayoutOptions
from tagmatch.model.storage.shared_files import FolderFiles
from tagmatch.partitioner.spark import keys, shards, slices, vocabulary
from tagmatch.partitioner.spark.rank_ranges import RankRanges
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.serialized import deserialized

KEY = np.arange(2, dtype=np.uint64)
LABELS = np.zeros(3, np.int64)  # all batches come to one task
NAMES = sorted(COMMON_NAMES, key=str.encode)


def rows_of(batches: Iterable[pa.RecordBatch], rng: random.Random) -> list[pa.RecordBatch]:
    """Each row in a batch of its own, in any order."""
    rows = [batch.slice(i, 1) for batch in batches for i in range(len(batch))]
    return rng.sample(rows, len(rows))


@pytest.mark.parametrize("layout", get_args(Layout))
def test_order_of_batches_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random, layout: str
) -> None:
    options = LayoutOptions(layout, 20)
    found = []
    for run in range(3):
        folder = tmp_path / str(run)
        folder.mkdir()
        scratch = Scratch(FolderFiles(folder))
        of_job = keys.Keys(scratch, "string")
        monkeypatch.setattr(keys, "number_of_task", lambda: 0)
        for shard in range(4):
            for module in (shards, vocabulary):
                monkeypatch.setattr(module, "number_of_task", lambda shard=shard: shard)
            make_shard(scratch, shard, rng)
        named = [batch for shard in range(4) for batch in keys._names_of_shard(scratch, shard)]
        names = sorted({name for batch in named for name in batch["name"].to_pylist()}, key=str.encode)
        assert names == NAMES
        list(keys._write(scratch, in_pieces(pa.record_batch({"name": names}), rng)))
        list(keys._join(scratch, [0], KEY, 0))
        sent = [batch for shard in range(4) for batch in vocabulary._tags_of_shard(scratch, LABELS, shard)]
        (total,) = vocabulary._add_up(scratch, rows_of(sent, rng))
        ranges = vocabulary.Ranges.of([SimpleNamespace(**total.to_pylist()[0])], 30)
        sent = list(vocabulary._tags_of_task(scratch, ranges, np.zeros(ranges.count, np.int64), 3))
        for number in range(ranges.count):
            list(vocabulary._sort(scratch, number, records_of(number, rows_of(sent, rng))))
        list(vocabulary._join(scratch, list(range(ranges.count)), KEY, 0))
        sent = []
        for shard in range(4):
            list(slices._rank(scratch, options, shard))
            route = RankRanges(np.zeros((0, 2), np.uint64))
            sent += slices._route(scratch, of_job, route, LABELS[:1], shard)
        list(slices._lay_out(of_job, options, {}, 0, records_of(0, rows_of(sent, rng))))
        found.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert found[0] == found[1] == found[2]


def in_pieces(batch: pa.RecordBatch, rng: random.Random) -> list[pa.RecordBatch]:
    """The rows as they come, in two batches."""
    cut = rng.randrange(len(batch) + 1)
    return [batch.slice(0, cut), batch.slice(cut)]


def records_of(number: int, batches: list[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    return [records for of_number, records in deserialized(batches) if of_number == number]


def make_shard(scratch: Scratch, shard: int, rng: random.Random) -> None:
    """Sets of shard 0, 1, … which have most tags in common with those of others."""
    fixed = random.Random(shard)
    tags = [*(f"t{i}" for i in range(60)), *colliding_tags(20)]
    rows = [([*fixed.sample(tags, fixed.randint(0, 4)), f"only in {shard}"], fixed.choice(NAMES)) for _ in range(100)]
    batches = [pa.record_batch({"tags": [some], "key": [key]}) for some, key in rng.sample(rows, len(rows))]
    cleaned = [batch for some in batches for batch in shards._clean(LABELS, [some])]
    list(shards._write_shard(keys.Keys(scratch, "string"), rows_of(cleaned, rng)))
