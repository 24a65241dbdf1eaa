"""Tasks that run twice, in turn or side by side, leave the same files: batches come in another order each time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from support.collisions import colliding_tags
from support.strategies import COMMON_NAMES

from tagmatch.model.options import Layout, LayoutOptions
from tagmatch.model.storage.format import Entry
from tagmatch.model.storage.shared_files import FolderFiles
from tagmatch.model.storage.table_files import TableFile
from tagmatch.partitioner.spark import joined, keys, ranks, shards, slices, vocabulary
from tagmatch.partitioner.spark import numbered as numbers
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
        sorted_names = list(keys._write(scratch, in_pieces(pa.record_batch({"name": names}), rng)))
        key_names = written(scratch, keys._file(scratch, told(sorted_names)))
        strings = partial(keys._strings, scratch, [*key_names])
        of_job = replace(of_job, names=keys.Names(key_names, numbered(scratch, "names", strings, len(names), rng)))
        sent = [batch for shard in range(4) for batch in vocabulary._tags_of_shard(scratch, LABELS, shard)]
        totals = told(vocabulary._add_up(scratch, len(LABELS), rows_of(sent, rng)))
        of_tasks = ranks.Ranks.of(scratch, totals)
        files = written(scratch, ranks.vocabulary_file(scratch, "totals", of_tasks, totals[0].bytes))
        tags = vocabulary.Tags(scratch, of_tasks.count, files, {}, of_tasks)
        sent = []
        for shard in range(4):
            list(slices._rank(scratch, options, tags, shard))
            route = RankRanges(np.zeros((0, 2), np.uint64))
            sent += slices._route(scratch, of_job, route, LABELS[:1], shard)
        list(slices._lay_out(of_job, tags, options, {}, 0, records_of(0, rows_of(sent, rng))))
        found.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert found[0] == found[1] == found[2]


def told(batches: Iterable[pa.RecordBatch]) -> list[SimpleNamespace]:
    return [SimpleNamespace(**row) for batch in batches for row in batch.to_pylist()]


def written(scratch: Scratch, file: TableFile) -> dict[str, Entry]:
    parts = [(0, number) for number in range(file.parts)]
    (row,) = told(joined._write(scratch, [file], parts, [range(len(parts))], 0))
    return {file.name: json.loads(row.entry)}


def numbered(scratch: Scratch, name: str, strings: Any, count: int, rng: random.Random) -> numbers.Numbers:
    """With slots of three groups of hashes; the strings come from two tasks."""
    tables, chunks = [numbers.Known(name, strings, count)], [(0, 0, count // 2), (0, count // 2, count)]
    groups = [(0, group) for group in range(len(LABELS))]
    sent = [batch for chunk in range(2) for batch in numbers._send(tables, chunks, groups, LABELS, chunk)]
    for group in range(len(LABELS)):
        list(numbers._build(scratch, tables, groups, KEY, group, records_of(group, rows_of(sent, rng))))
    return numbers.Numbers(scratch, name, len(LABELS), frozenset(range(len(LABELS))))


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
