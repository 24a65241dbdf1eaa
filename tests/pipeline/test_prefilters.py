"""Algorithm 2 and the masks of blocks, which turn queries away before sets are looked at, against plain integers."""

import itertools
from functools import reduce
from operator import and_

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hashes import integers_of, signatures, words_of

from tagmatch.model.kernels.hashing import SIGNATURE_WORDS
from tagmatch.model.tables import PartitionTable
from tagmatch.pipeline.balanced import Blocks, PartitionIndex

masks = signatures.filter(bool)


@given(stored=st.lists(masks, max_size=8), asked=st.lists(signatures, max_size=8))
def test_algorithm_2_finds_exactly_the_masks_within_a_query(stored: list[int], asked: list[int]) -> None:
    asked = [*asked, *stored[:2], *(mask | query for mask, query in zip(stored, asked, strict=False))]
    index = PartitionIndex(PartitionTable(words_of(stored), np.arange(len(stored) + 1)))
    offsets, queued = index.relevant(words_of(asked))
    found = [sorted(queued[first:last].tolist()) for first, last in itertools.pairwise(offsets)]
    assert found == [[q for q, query in enumerate(asked) if mask & ~query == 0] for mask in stored]


@pytest.mark.parametrize("threads", [1, 3])
@given(partitions=st.lists(st.lists(signatures, min_size=1, max_size=7), max_size=4), rows=st.integers(1, 4))
def test_masks_of_blocks_are_what_all_their_rows_share(partitions: list[list[int]], rows: int, threads: int) -> None:
    first_rows = np.array([0, *itertools.accumulate(map(len, partitions))], np.int64)
    words = words_of(list(itertools.chain(*partitions)))
    columns = tuple(np.ascontiguousarray(words[:, w]) for w in range(SIGNATURE_WORDS))
    blocks = Blocks(columns, first_rows, rows, threads=threads)
    pieces = [
        (first + at, partition[at : at + rows])
        for first, partition in zip(first_rows.tolist(), partitions, strict=False)
        for at in range(0, len(partition), rows)
    ]
    assert integers_of(blocks.masks) == [reduce(and_, piece) for _, piece in pieces]
    assert blocks.first_rows().tolist() == [*(first for first, _ in pieces), len(words)]
    counts = [len(range(0, len(partition), rows)) for partition in partitions]
    assert blocks.firsts.tolist() == [0, *itertools.accumulate(counts)]
