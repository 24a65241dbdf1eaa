"""Tables whose columns lie in runs: the parts of their files have the bytes of the whole table, wherever it is cut."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import Row
from support.places import lists_of
from support.strategies import fewer

from tagmatch.model.arrays import Lists, Strings, U32Array, offsets_of
from tagmatch.model.arrow import from_lists, from_strings, from_words, to_strings
from tagmatch.model.kernels.lists import count_firsts
from tagmatch.model.kernels.xxh64 import hash_strings
from tagmatch.model.options import LayoutOptions
from tagmatch.model.storage.segment_files import table_of
from tagmatch.model.storage.shared_files import FolderFiles
from tagmatch.model.storage.table_files import TableFile
from tagmatch.partitioner.spark import joined
from tagmatch.partitioner.spark.numbered import Known, Numbers, _build, _send
from tagmatch.partitioner.spark.plan import Slices
from tagmatch.partitioner.spark.rank_ranges import RarestPlan
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.serialized import deserialized
from tagmatch.partitioner.spark.tasks import grouped

UNKNOWN = 2**32 - 1


def strings_of(strings: Sequence[str]) -> Strings:
    return to_strings(pa.array(strings, pa.string()))


def written(scratch: Scratch, file: TableFile) -> bytes:
    """The file, of which each part is written by a task of its own, in any order."""
    parts = [(0, number) for number in range(file.parts)]
    groups = [[number] for number in range(file.parts)]
    random.Random(1).shuffle(groups)
    for group in range(len(groups)):
        (batch,) = joined._write(scratch, [file], parts, groups, group)
        (row,) = batch.to_pylist()
        assert json.loads(row["entry"])["bytes"] == file.part_size(row["part"])
    return b"".join(scratch.files.kept(file.part_name(number)).read_bytes() for number in range(file.parts))


RUNS = st.lists(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=3), max_size=5), max_size=5)


@pytest.mark.slow
@fewer(2)
@given(RUNS, st.integers(1, 700))
def test_parts_have_the_bytes_of_the_whole_table(runs: Any, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        scratch = Scratch(FolderFiles(Path(folder)))
        names = [[str(row) for row in rows] for rows in runs]
        sets, values = [len(rows) for rows in runs], [sum(map(len, rows)) for rows in runs]
        words = [np.arange(3 * count, dtype=np.uint64).reshape(-1, 3) + count for count in sets]
        for number, rows in enumerate(runs):
            lists, strings = lists_of(rows), strings_of(names[number])
            columns = {"words": from_words(words[number]), "numbers": pa.array(lists.values)}
            scratch.write("run", 2 * number, a=from_lists(lists), b=from_strings(strings), **columns)
        table = joined.JoinedTable(scratch, "run", [2 * number for number in range(len(runs))])
        nbytes = [sum(len(name) for name in some) for some in names]
        file = table.file(
            "whole",
            a=table.lists("a", sets, values, np.uint64),
            b=table.strings("b", sets, nbytes),
            c=table.words("words", sets),
        )
        all_rows = lists_of([*chain(*runs)])
        all_names = strings_of([*chain(*names)])
        expected = table_of(
            a=from_lists(Lists(all_rows.offsets, all_rows.values.astype(np.uint64))),
            b=from_strings(Strings(all_names.offsets.astype(np.int64), all_names.data)),
            c=from_words(np.concatenate([np.zeros((0, 3), np.uint64), *words])),
        )
        cut = TableFile(file.name, file.pieces, size)
        whole = TableFile.of("whole", expected)
        assert written(scratch, cut) == b"".join(bytes(piece.read(0, len(piece))) for piece in whole.pieces)


@given(
    st.lists(st.lists(st.sampled_from([0, 1, 2, 9, 30]), min_size=1, unique=True).map(sorted), unique_by=tuple),
    st.booleans(),
    st.lists(st.integers(0, 60), max_size=4),
    st.integers(1, 12),
)
@example([[0], [0, 1], [0, 1, 2], [9]], True, [2, 3], 3)
def test_clusters_of_slices_are_those_of_all_sets(rows: Any, has_empty: bool, cuts: list[int], step: int) -> None:
    """Also of tags that no set has as its rarest, and where a cluster is in several slices, or the cut is in none."""
    rows, plan = [*[[]] * has_empty, *sorted(rows)], RarestPlan()
    edges = sorted({0, len(rows), *(cut % (len(rows) + 1) for cut in cuts)})
    with tempfile.TemporaryDirectory() as folder:
        scratch, slices = Scratch(FolderFiles(Path(folder))), []
        for number, (first, last) in enumerate(pairwise(edges)):
            lists = lists_of(rows[first:last])
            laid_out = plan.lay_out(lists, np.zeros((len(lists), 3), np.uint64), LayoutOptions(), None)
            scratch.write("slice", number, **laid_out.columns)
            found = {"groups": laid_out.groups, "first_tag": laid_out.first_tag, "last_tag": laid_out.last_tag}
            empty = int(has_empty and first == 0)
            slices.append({"slice": number, "sets": last - first, "empty": empty, "ranks": 0, "keys": 0, **found})
        reported = [Row(**row, greatest_key="0", some_expire=False) for row in slices]
        file, count = plan.partitions(scratch, Slices(reported), 31)
        counts = count_firsts(lists_of(rows), 31)
        expected = (int(has_empty) + offsets_of(counts)).astype(np.int32).tobytes()
        (piece,) = [piece for piece in file.pieces if isinstance(piece, joined.Joined)]
        pieces = [bytes(piece.read(at, min(at + step, len(piece)))) for at in range(0, len(piece), step)]
        assert b"".join(pieces) == expected
        assert count == np.count_nonzero(counts)


@given(st.lists(st.text(max_size=3), unique=True), st.lists(st.text(max_size=3)), st.integers(1, 4), st.integers(0, 1))
def test_numbers_are_places(known: list[str], asked: list[str], count: int, seed: int) -> None:
    strings, labels, groups = strings_of(known), np.arange(count), [(0, group) for group in range(count)]
    table = Known("slots", lambda: strings, len(known), seed)
    chunks = [(0, first, min(first + 3, len(known))) for first in range(0, len(known), 3)]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Scratch(FolderFiles(Path(folder)))
        sent = [batch for chunk in range(len(chunks)) for batch in _send([table], chunks, groups, labels, chunk)]
        received = list(deserialized(sent))
        made = set()
        for group in {number for number, _ in received}:
            own = [records for number, records in received if number == group]
            list(_build(scratch, [table], groups, np.arange(2, dtype=np.uint64), group, own))
            made.add(group)
        numbers: U32Array = Numbers(scratch, "slots", count, frozenset(made), seed).of(strings_of(asked), strings)
    assert numbers.tolist() == [known.index(each) if each in known else UNKNOWN for each in asked]
    assert len(made) <= len(np.unique(hash_strings(strings, seed=seed)))


@given(st.lists(st.integers(1, 9)), st.integers(1, 20))
def test_groups_are_consecutive_and_as_large_as_may_be(sizes: list[int], size: int) -> None:
    groups = grouped(range(len(sizes)), sizes, size)
    assert [place for group in groups for place in group] == list(range(len(sizes)))
    totals = [sum(sizes[place] for place in group) for group in groups]
    assert all(total <= size or len(group) == 1 for total, group in zip(totals, groups, strict=True))
    assert all(total + sizes[group[0]] > size for total, group in zip(totals, groups[1:], strict=False))
