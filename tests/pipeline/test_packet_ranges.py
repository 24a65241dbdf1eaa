"""How a call with many queries is cut into packets."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmatch.model.columns import tag_lists
from tagmatch.pipeline.matcher import PacketSize
from tagmatch.pipeline.stages.inline import packet_ranges


def ranges(sizes: list[int], size: PacketSize, threads: int = 1) -> list[tuple[int, int]]:
    (chunk,) = tag_lists([[f"t{i}" for i in range(tags)] for tags in sizes], "queries")
    return packet_ranges(chunk, size, threads)


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    queries=st.integers(1, 40),
    tags=st.integers(1, 40),
    fewest=st.integers(1, 40),
    threads=st.integers(1, 4),
)
def test_all_queries_once_and_in_no_packet_too_many(
    sizes: list[int], queries: int, tags: int, fewest: int, threads: int
) -> None:
    found = ranges(sizes, PacketSize(queries, tags, fewest), threads)
    assert list(itertools.chain(*(range(first, last) for first, last in found))) == list(range(len(sizes)))
    for first, last in found:
        assert 0 < last - first <= queries
        assert sum(sizes[first:last]) - max(sizes[first:last]) <= tags


@pytest.mark.parametrize("without_tags", [0, 1, 3])
def test_queries_without_tags_make_no_packet_of_their_own(without_tags: int) -> None:
    sizes = [0] * without_tags + [1, 2, 0, 1]
    assert ranges(sizes, PacketSize(100, 100, fewest=100)) == [(0, len(sizes))]
