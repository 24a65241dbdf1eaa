"""Algorithm 1 of the paper, written down literally, against ours and Spark's; and what the local partitioner makes."""

import itertools
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import hashes
from support.agreement import index_of
from support.strategies import tag_sets

from tagmatch import TagMatch
from tagmatch.model.arrow import from_words
from tagmatch.model.options import LayoutOptions
from tagmatch.model.storage.folders import LocalFolder
from tagmatch.model.storage.tables import tables_of
from tagmatch.partitioner.balanced_partitioning import balanced_partitions
from tagmatch.partitioner.spark import slices
from tagmatch.partitioner.spark.batches import Scratch
from tagmatch.partitioner.spark.tables import Job

Bits = frozenset[int]


def algorithm_1(sets: Sequence[Bits], most: int, size: int = 0, mask: Bits = frozenset(), used: Bits = frozenset()):
    """Masks and sets of partitions: halves of halves, with the pivot bit clear first; or down to `size` sets."""
    unused = sorted({*range(192)} - used)
    if not sets:
        return []
    if len(sets) <= size or (len(sets) <= most and mask) or not unused:
        return [(mask, list(sets))]
    counts = Counter(itertools.chain(*sets))
    pivot = min(unused, key=lambda bit: (abs(2 * counts[bit] - len(sets)), bit))
    without, having = ([bits for bits in sets if (pivot in bits) == has] for has in (False, True))
    used |= {pivot}
    return [*algorithm_1(without, most, size, mask, used), *algorithm_1(having, most, size, mask | {pivot}, used)]


def words_of(sets: Sequence[Bits]) -> Any:
    return hashes.words_of([sum(1 << (191 - bit) for bit in bits) for bits in sets])


SIGNATURES = st.frozensets(st.integers(0, 191), min_size=1, max_size=40) | st.frozensets(
    st.sampled_from([0, 1, 63, 64, 190, 191]), min_size=1
)


def compare(sets: list[Bits], most: int, threads: int) -> None:
    matrix = words_of([frozenset(), *sets])
    table, order, found = balanced_partitions(matrix.copy(), 1, most, threads=threads)
    assert order[0] == 0
    assert (found == matrix[order]).all()
    assert sorted(order.tolist()) == list(range(len(sets) + 1))
    rows, ends = matrix[order].tolist(), table.first_rows.tolist()
    assert ends[0] == 1
    got = [(mask, rows[a:b]) for mask, (a, b) in zip(table.masks.tolist(), itertools.pairwise(ends), strict=True)]
    wanted = [(mask, sorted(words_of(own).tolist())) for mask, own in algorithm_1(sets, most)]
    assert got == [(*words_of([mask]).tolist(), own) for mask, own in wanted]
    ties = list(zip(rows, order.tolist(), strict=True))
    assert all(ties[a:b] == sorted(ties[a:b]) for a, b in itertools.pairwise(ends))


@given(st.lists(SIGNATURES, max_size=60), st.sampled_from([1, 2, 7, 200_000]), st.sampled_from([1, 4]))
@example([frozenset({0})] * 5, 1, 1)  # sets that share all bits end in one partition
@example([frozenset({5, 70, 191})] * 5, 4, 1)
@example([frozenset(range(192))] * 5, 10, 1)
def test_partitions_are_those_of_algorithm_1(sets: list[Bits], most: int, threads: int) -> None:
    compare(sets, most, threads)


@pytest.mark.parametrize("most", [1, 5, 100])
@pytest.mark.parametrize("threads", [1, 4])
def test_large_nodes_are_split_by_all_threads_together(most: int, threads: int) -> None:
    rng = np.random.default_rng(11)
    compare([frozenset(rng.integers(0, 192, 12).tolist()) for _ in range(400)], most, threads)


class Counted:
    """What Spark makes of work on shards; `passes` has how many rows came each time."""

    passes: list[int]

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self.batches = [*batches]
        Counted.passes.append(sum(map(len, self.batches)))

    def repartition(self, _: str) -> Any:
        return self

    def mapInArrow(self, work: Callable[[Any], Iterable[pa.RecordBatch]], _: str) -> Any:
        return SimpleNamespace(toArrow=lambda: pa.Table.from_batches([*work(self.batches)]))

    def toArrow(self) -> pa.Table:
        return pa.Table.from_batches(self.batches)


def assert_split(shards: Sequence[Sequence[Bits]], most: int, size: int, at_once: int) -> int:
    """The leaves have the sets that they have by Algorithm 1, in order; returns how many leaves there are."""
    everything = [*itertools.chain(*shards)]
    Counted.passes = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        scratch = Scratch(LocalFolder(Path(folder)))
        for number, sets in enumerate(shards):
            scratch.write("ranked", number, signatures=from_words(words_of(sets)))
        patch.setattr(slices, "_HISTOGRAMS_AT_ONCE", at_once)
        patch.setattr(slices, "for_each", lambda _, numbers, work, __: Counted(itertools.chain(*map(work, numbers))))
        job = Job(scratch, "integer", LayoutOptions("balanced", most), size)
        grown = slices.grow_tree(None, job, range(len(shards)), len(everything))  # type: ignore[arg-type]
    nodes = slices.nodes_of(words_of(everything), grown.splits())
    found = defaultdict[int, list[list[int]]](list)
    for node, bits in zip(nodes.tolist(), everything, strict=True):
        found[node].append(sorted(bits))
    assert {leaf: grown.nodes[leaf].size for leaf in found} == {leaf: len(sets) for leaf, sets in found.items()}
    assert sorted(grown.leaves()) == sorted(found)
    wanted = [sorted(map(sorted, sets)) for _, sets in algorithm_1(everything, most, size)]
    assert [sorted(found[leaf]) for leaf in grown.leaves()] == wanted
    return len(wanted)


# Few bits, so that sets are equal, and pivots are tied
SETS = st.lists(st.frozensets(st.sampled_from([0, 1, 2, 63, 64, 100, 191]), min_size=1), min_size=1, max_size=40)


@given(SETS, st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.sampled_from([0, 3, 40, 4096]))
@example([frozenset([0])] * 3 + [frozenset([1])] * 3, 2, 2, 1, 4096)  # shards have their own pivots
@example([frozenset([0, 1])] * 9, 2, 4, 2, 4096)  # no pivot splits these
def test_leaves_are_those_of_algorithm_1(sets: list[Bits], shards: int, most: int, size: int, at_once: int) -> None:
    assert_split([sets[i::shards] for i in range(shards)], most, size, at_once)
    if at_once == 0:
        assert all(rows % shards == 0 for rows in Counted.passes)  # none but the wanted nodes


def test_no_more_histograms_than_may_come_at_once(rng: random.Random) -> None:
    sets = [frozenset(bit for bit in range(192) if rng.random() < 0.3) for _ in range(400)]
    assert_split([sets[i::4] for i in range(4)], 1, 10, 100)
    assert max(Counted.passes) <= 100


def snapshot_tables(sets, keys, layout, *, threads=1, max_partition_size=7, steps=1):
    with TagMatch(layout=layout, threads=threads, max_partition_size=max_partition_size) as tm:
        for step in range(steps):
            tm.add_sets(sets[step::steps], keys[step::steps])
            tm.consolidate()
        tm.check()
        return dict(tables_of(tm.snapshot.only))


@given(data=st.data())
def test_the_snapshot_depends_on_its_contents_alone(layout, data):
    sets = data.draw(st.lists(tag_sets, max_size=30))
    keys = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=len(sets), max_size=len(sets)))
    pairs = data.draw(st.permutations(list(zip(sets, keys, strict=True))))
    expected = snapshot_tables(sets, keys, layout)
    again = [list(column) for column in zip(*pairs, strict=True)] or [[], []]
    for threads, steps in ((1, 1), (4, 1), (1, 3)):
        assert snapshot_tables(*again, layout, threads=threads, steps=steps) == expected


def test_large_clusters_are_sorted_alike_by_any_number_of_threads(layout):
    rng = random.Random(3)
    sets = [{"all", *(f"t{int(rng.paretovariate(0.4)) % 40}" for _ in range(rng.randrange(12)))} for _ in range(30_000)]
    keys = list(range(len(sets)))
    one = snapshot_tables(sets, keys, layout, threads=1, max_partition_size=500)
    four = snapshot_tables(sets[::-1], keys[::-1], layout, threads=4, max_partition_size=500)
    assert one == four


@pytest.mark.parametrize("rare", [1, 400, 1 << 16])
def test_rows_of_the_rarest_layout_are_in_lexicographic_rank_order(monkeypatch, rare):
    monkeypatch.setattr("tagmatch.partitioner.local._RARE", rare)
    rng = random.Random(4)
    sets = [
        frozenset(f"t{min(rng.randrange(30), rng.randrange(30))}" for _ in range(rng.randrange(9))) for _ in range(3000)
    ]
    with index_of(sets, range(len(sets))) as tm:
        segment = tm.snapshot.only
    vocabulary = segment.vocabulary
    assert vocabulary.kept_hashes is None  # 12 bytes a tag fewer in memory
    assert vocabulary.frequencies is None
    text = vocabulary.tags.data.tobytes()
    ends = vocabulary.tags.offsets.tolist()
    tags = [text[a:b].decode() for a, b in itertools.pairwise(ends)]
    counts = {tag: sum(tag in one for one in set(sets)) for tag in set().union(*sets)}
    assert dict(zip(tags, segment.frequencies.tolist(), strict=True)) == counts
    order = list(zip(segment.frequencies.tolist(), vocabulary.hashes.tolist(), strict=True))
    assert order == sorted(order)
    ranks = segment.tagsets.ranks
    rows = [values.tolist() for values in np.split(ranks.values, ranks.offsets[1:-1])]
    assert rows == sorted(sorted(tags.index(tag) for tag in one) for one in set(sets))
    first = segment.partitions.first_rows.tolist()
    assert [row[0] for row in rows[1:]] == [r for r in range(len(tags)) for _ in range(first[r + 1] - first[r])]


def test_keys_are_stored_in_32_bits_where_all_fit():
    for key, dtype in ((2**32 - 1, np.uint32), (2**32, np.uint64)):
        with index_of([["a"], ["b"]], [1, key]) as tm:
            assert tm.snapshot.only.keys.keys.values.dtype == dtype
            assert tm.match(["b"]) == [key]
