"""The vocabulary of shards, which tasks add up by hash: ranks and files against counts and a sort in plain Python."""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st
from support.collisions import colliding_tags
from support.places import lists_of, rows_of

from tagmatch.model.arrow import from_lists
from tagmatch.model.storage.segment_files import table_of
from tagmatch.model.storage.shared_files import FolderFiles
from tagmatch.model.storage.table_files import TableFile
from tagmatch.partitioner.spark import vocabulary
from tagmatch.partitioner.spark.ranks import Ranks, vocabulary_file
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.serialized import groups_by_hash

ONE_HASH = colliding_tags(4)
SETS = st.frozensets(st.sampled_from([*ONE_HASH, "", "a", "b", "c", "é"]) | st.text(max_size=2), max_size=4)
SHARDS = st.lists(st.lists(SETS, max_size=6), max_size=4)
TASKS = st.lists(st.integers(0, 5), min_size=6, max_size=6).map(sorted)


def place(tag: str) -> tuple[int, bytes]:
    """By hash, and then by bytes."""
    return xxhash.xxh64_intdigest(tag.encode()), tag.encode()


def write_shard(scratch: Scratch, number: int, sets: list[frozenset[str]]) -> None:
    counts = Counter(tag for tags in sets for tag in tags)
    tags = sorted(counts, key=place)
    rows = [sorted(tags.index(tag) for tag in some) for some in sets]
    scratch.write(
        "shard",
        number,
        tags=pa.array(tags, pa.string()),
        hashes=pa.array([place(tag)[0] for tag in tags], pa.uint64()),
        frequencies=pa.array([counts[tag] for tag in tags], pa.uint32()),
        ranks=from_lists(lists_of(rows)),
    )


def added_up(scratch: Scratch, numbers: list[int], tasks: list[int], rng: random.Random) -> list[SimpleNamespace]:
    """What the tasks say that get the batches of all shards, in any order; `tasks` has that of each group of hashes."""
    labels = np.arange(len(tasks))
    sent = [batch for number in numbers for batch in vocabulary._tags_of_shard(scratch, labels, number)]
    rows = [batch.slice(i, 1) for batch in sent for i in range(len(batch))]
    totals = []
    for task in sorted({*tasks}):
        own = [row for row in rows if tasks[row["label"][0].as_py()] == task]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(vocabulary, "number_of_task", lambda task=task: task)
            totals += vocabulary._add_up(scratch, len(tasks), rng.sample(own, len(own)))
    return [SimpleNamespace(**row) for batch in totals for row in batch.to_pylist()]


def bytes_of(file: TableFile) -> bytes:
    return b"".join(bytes(piece.read(0, len(piece))) for piece in file.pieces)


@pytest.mark.slow
@given(SHARDS, TASKS, st.randoms(use_true_random=False))
@example(
    [[frozenset(ONE_HASH)], [frozenset(ONE_HASH[:2])], [frozenset(["a", ""])]], [0, 0, 1, 2, 2, 5], random.Random(1)
)
@example([[frozenset()]], [0] * 6, random.Random(1))
def test_ranks_and_files_are_those_of_all_sets(
    shards: list[list[frozenset[str]]], tasks: list[int], rng: random.Random
) -> None:
    counts = Counter(tag for sets in shards for tags in sets for tag in tags)
    expected = sorted(counts, key=lambda tag: (counts[tag], place(tag)))
    numbers = [3 * number for number in range(len(shards))]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Scratch(FolderFiles(Path(folder)))
        for number, sets in zip(numbers, shards, strict=True):
            write_shard(scratch, number, sets)
        totals = added_up(scratch, numbers, tasks, rng)
        for total in totals:
            groups = groups_by_hash(scratch.read("totals", total.task, "hashes").to_numpy(), len(tasks))
            assert (total.first_group, total.last_group) == (groups.min(), groups.max())
            assert {tasks[group] for group in groups} == {total.task}
            assert json.loads(total.kinds) == {}
        ranks = Ranks.of(scratch, totals)
        assert ranks.count == len(expected)
        file = vocabulary_file(scratch, "totals", ranks, sum(total.bytes for total in totals))
        table = table_of(
            tag=pa.array(expected, pa.string()),
            hash=pa.array([place(tag)[0] for tag in expected], pa.uint64()),
            frequency=pa.array([counts[tag] for tag in expected], pa.uint32()),
        )
        assert bytes_of(file) == bytes_of(TableFile.of("vocabulary", table))
        tags = vocabulary.Tags(scratch, ranks.count, {}, {}, ranks)
        for number, sets in zip(numbers, shards, strict=True):
            found = tags.rank_sets(number)
            assert rows_of(found) == [sorted(expected.index(tag) for tag in some) for some in sets]
