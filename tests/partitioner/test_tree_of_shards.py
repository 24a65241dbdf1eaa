"""The splits of Algorithm 1 from histograms of shards, against the algorithm on all sets in plain Python."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tagmatch.model.arrow import from_words
from tagmatch.model.storage.shared_files import FolderFiles
from tagmatch.partitioner.spark import tree
from tagmatch.partitioner.spark.scratch import Scratch

Bits = frozenset[int]

# Few bits, so that sets are equal, and pivots are tied
SETS = st.lists(st.frozensets(st.sampled_from([0, 1, 2, 63, 64, 100, 191]), min_size=1), min_size=1, max_size=40)


def words_of(sets: Sequence[Bits]) -> Any:
    numbers = [sum(1 << (191 - bit) for bit in bits) for bits in sets]
    words = [[number >> shift & (2**64 - 1) for shift in (128, 64, 0)] for number in numbers]
    return np.array(words, np.uint64).reshape(-1, 3)


def algorithm_1(sets: Sequence[Bits], most: int, size: int, mask: Bits = frozenset(), used: Bits = frozenset()) -> Any:
    """Halves of halves down to `size` sets: the leaves in order, each as its sets."""
    if len(sets) <= size or (len(sets) <= most and mask):
        return [sorted(map(sorted, sets))]
    counts = {bit: sum(bit in bits for bits in sets) for bit in {*range(192)} - used}
    pivot = min(counts, key=lambda bit: (abs(2 * counts[bit] - len(sets)), bit))
    if counts[pivot] in (0, len(sets)):
        return [sorted(map(sorted, sets))]
    without, having = ([bits for bits in sets if (pivot in bits) == has] for has in (False, True))
    used |= {pivot}
    return [*algorithm_1(without, most, size, mask, used), *algorithm_1(having, most, size, mask | {pivot}, used)]


class Counted:
    """What Spark makes of work on shards; `passes` has how many rows came each time."""

    passes: list[int]

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self.batches = [*batches]
        Counted.passes.append(sum(map(len, self.batches)))

    def repartition(self, _: str) -> Counted:
        return self

    def mapInArrow(self, work: Callable[[Any], Iterable[pa.RecordBatch]], _: str) -> Counted:
        return SimpleNamespace(toArrow=lambda: pa.Table.from_batches([*work(self.batches)]))  # type: ignore[return-value]

    def toArrow(self) -> pa.Table:
        return pa.Table.from_batches(self.batches)


def leaves_of(shards: Sequence[Sequence[Bits]], most: int, size: int, at_once: int) -> Any:
    """The sets of each leaf, in order."""
    everything = [bits for sets in shards for bits in sets]
    Counted.passes = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        scratch = Scratch(FolderFiles(Path(folder)))
        for number, sets in enumerate(shards):
            scratch.write("ranked", number, signatures=from_words(words_of(sets)))
        patch.setattr(tree, "_HISTOGRAMS_AT_ONCE", at_once)
        patch.setattr(
            tree,
            "for_each",
            lambda _, numbers, work, __: Counted(batch for number in numbers for batch in work(number)),
        )
        grown = tree.grow_tree(None, scratch, range(len(shards)), len(everything), most, size)  # type: ignore[arg-type]
    nodes = grown.splits().nodes(words_of(everything))
    found: dict[int, list[list[int]]] = {}
    for node, bits in zip(nodes.tolist(), everything, strict=True):
        found.setdefault(node, []).append(sorted(bits))
    assert {leaf: grown.nodes[leaf].size for leaf in found} == {leaf: len(sets) for leaf, sets in found.items()}
    assert grown.leaves() == [leaf for leaf in grown.leaves() if leaf in found]
    return [sorted(found[leaf]) for leaf in grown.leaves()]


@given(SETS, st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.sampled_from([0, 3, 40, 4096]))
@example([frozenset([0])] * 3 + [frozenset([1])] * 3, 2, 2, 1, 4096)  # shards have pivots of their own
@example([frozenset([0, 1])] * 9, 2, 4, 2, 4096)  # no pivot splits these
def test_leaves_are_those_of_algorithm_1(sets: list[Bits], shards: int, most: int, size: int, at_once: int) -> None:
    parts = [sets[i::shards] for i in range(shards)]
    assert leaves_of(parts, most, size, at_once) == algorithm_1(sets, most, size)
    if at_once == 0:
        assert all(rows % shards == 0 for rows in Counted.passes)  # none but the wanted nodes


def test_one_pass_is_enough_where_shards_are_alike(rng: random.Random) -> None:
    sets = [frozenset({191, *(10 * i for i in range(4) if rng.random() < 0.5 / 2**i)}) for _ in range(2000)]
    leaves = leaves_of([sets] * 4, 10, 1000, 4096)
    assert leaves == algorithm_1(sets * 4, 10, 1000)
    assert len(leaves) > 4
    assert len(Counted.passes) == 1


def test_no_more_histograms_than_may_come_at_once(rng: random.Random) -> None:
    sets = [frozenset(bit for bit in range(192) if rng.random() < 0.3) for _ in range(400)]
    leaves = leaves_of([sets[i::4] for i in range(4)], 1, 10, 100)
    assert leaves == algorithm_1(sets, 1, 10)
    assert max(Counted.passes) <= 100
