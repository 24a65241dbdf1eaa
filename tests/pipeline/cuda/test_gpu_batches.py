"""Algorithms 2, 3 and 4 on the device: routing, the prefilter, and batches of partitions."""

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Any

import numba.cuda
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.agreement import index_of, loaded
from support.hashes import integers_of, signatures, words_of
from support.places import lists_of
from support.simulator import EXAMPLES, SIMULATED

from tagmatch import CudaOptions
from tagmatch.model.columns import tag_lists
from tagmatch.model.options import MatchOptions
from tagmatch.model.tables import Segment
from tagmatch.pipeline.balanced import BalancedSubsetMatch
from tagmatch.pipeline.cuda import balanced, pairs
from tagmatch.pipeline.cuda.device import Workspace
from tagmatch.pipeline.cuda.matcher import CudaMatcher
from tagmatch.pipeline.segment import Batches, Found
from tagmatch.pipeline.tags import QueryBatch, TagIndex

# Small tables make small grids on purpose
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*(Grid size|Host array)")]

cuda: Any = numba.cuda


TAGS = [f"t{i}" for i in range(60)]

some_tags = st.lists(st.sampled_from(TAGS[:6]), max_size=4)
# All tags together set enough bits that sets of other tags seem to be contained
query_tags = st.lists(st.sampled_from(TAGS[:8]), max_size=8) | st.sampled_from([TAGS, TAGS[:4] + TAGS[8:]])


def stored(sets: Sequence[Sequence[str]], **options: Any) -> Segment:
    """A snapshot of these sets and one of all tags, so that the vocabulary lacks none."""
    with index_of([*sets, TAGS], [1] * (len(sets) + 1), layout="balanced", device="cpu", **options) as tm:
        return tm.snapshot.only


def asked(segment: Segment, queries: Sequence[Sequence[str]]) -> QueryBatch:
    (lists,) = tag_lists(queries, "queries")
    return TagIndex(segment.vocabulary).ranks(lists, 0, len(queries))


def found_pairs(found: Found) -> Counter[tuple[int, int]]:
    assert found.queries.dtype == found.sets.dtype == np.uint32
    return Counter(zip(found.queries.tolist(), found.sets.tolist(), strict=True))


def chosen(batches: Batches, rng: random.Random) -> Batches:
    """Some of the batches, in another order, with some of their queries, also in another order."""
    partitions = rng.sample(range(len(batches.partitions)), rng.randint(0, len(batches.partitions)))
    queued = [batches.queued[batches.offsets[p] : batches.offsets[p + 1]].tolist() for p in partitions]
    queued = lists_of([rng.sample(queries, rng.randint(0, len(queries))) for queries in queued], np.int64)
    return Batches(batches.queries, batches.signatures, np.array(partitions, np.int64), queued.offsets, queued.values)


def on_device(segment: Segment, *, exact: bool = True) -> CudaMatcher:
    return CudaMatcher(segment, MatchOptions(device="cuda", exact=exact))


def routed(segment: Segment, queries: QueryBatch) -> Batches:
    return BalancedSubsetMatch(segment, exact=True, batch_size=7).route(queries)


def assert_as_on_cpu(segment: Segment, batches: Batches, *, exact: bool = True) -> Found:
    found = on_device(segment, exact=exact).match_batches(batches)
    expected = BalancedSubsetMatch(segment, exact=exact, batch_size=7).match(batches)
    assert found_pairs(found) == found_pairs(expected)
    assert found.rejected == expected.rejected
    return found


@EXAMPLES
@given(
    sets=st.lists(some_tags, max_size=8),
    asked_tags=st.lists(query_tags, min_size=1, max_size=5),
    exact=st.booleans(),
    size=st.sampled_from([1, 3, 200]),
    rng=st.randoms(use_true_random=False),
)
def test_any_tables_and_batches(
    sets: list[list[str]], asked_tags: list[list[str]], exact: bool, size: int, rng: random.Random
) -> None:
    segment = stored(sets, max_partition_size=size)
    batches = routed(segment, asked(segment, asked_tags))
    for some in (batches, chosen(batches, rng)):
        assert_as_on_cpu(segment, some, exact=exact)


@pytest.mark.parametrize("exact", [True, False])
def test_a_query_with_all_bits(exact: bool) -> None:
    """It has even those of threads that have no row, which are all."""
    many = [f"t{i}" for i in range(300)]
    with index_of([["t0"], ["t1"], many], [1, 2, 3], layout="balanced", device="cpu") as tm:
        segment = tm.snapshot.only
    batches = routed(segment, asked(segment, [many, ["t1"]]))
    assert (batches.signatures[0] == 2**64 - 1).all()
    found = assert_as_on_cpu(segment, batches, exact=exact)
    assert sorted(found.sets[found.queries == 0].tolist()) == [0, 1, 2]


@pytest.mark.parametrize("queries", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 127, 128, 257)), 129])
def test_so_many_queries_a_batch(queries: int) -> None:
    segment = stored([["t0"], ["t0", "t1"]])
    batch = asked(segment, [["t0", f"t{i % 3}"] if i % 5 else ["t2"] for i in range(queries)])
    assert assert_as_on_cpu(segment, routed(segment, batch))


@pytest.mark.parametrize("room", [1, 6, 1000])
@pytest.mark.parametrize("exact", [True, False])
def test_more_candidates_than_can_wait(monkeypatch: pytest.MonkeyPatch, exact: bool, room: int) -> None:
    """Some wait for verification, some find no room to, and results have no room at first."""
    monkeypatch.setattr(balanced, "_FIRST_ROOM", room)
    tags = TAGS[:4]
    sets = [list(some) for count in (1, 2, 3) for some in itertools.combinations(tags, count)]
    segment = stored(sets)
    queries = asked(segment, [tags, tags[:3], TAGS, tags])
    assert_as_on_cpu(segment, routed(segment, queries), exact=exact)


@pytest.mark.parametrize(("flush_timeout", "fewest"), [(0.0, 0), (0.05, 0), (None, 4)])
def test_queries_wait_in_the_queues_of_partitions(rng: random.Random, flush_timeout: float | None, fewest: int) -> None:
    """Until a batch is full, or has waited for the flush timeout; small batches are the CPU's."""
    sets = [(rng.sample(TAGS[:8], rng.randint(1, 4)), key) for key in range(20)]
    options = {"layout": "balanced", "device": "cuda", "threads": 1, "max_partition_size": 3, "batch_size": 2 + fewest}
    tm, oracle = loaded(sets, **options, flush_timeout=flush_timeout, cuda=CudaOptions(fewest_queries=fewest))
    with tm:
        asked_tags = [rng.sample(TAGS[:8], rng.randint(0, 8)) for _ in range(12 + 8 * fewest)]
        futures = [tm.submit(tags) for tags in asked_tags]
        assert [sorted(future.result(60)) for future in futures] == [oracle.match(tags) for tags in asked_tags]
        assert tm.stats()["stages"]["batch"]["batches"] > 0
        assert fewest or tm.stats()["matched_by"]["cpu"] == 0 < tm.stats()["matched_by"]["cuda"]


@EXAMPLES
@given(
    masks=st.lists(signatures, min_size=1, max_size=6),
    queries=st.lists(signatures, min_size=1, max_size=7),
    item_queries=st.integers(1, 4),
)
@example(masks=[0b11, 0b1, 0b10], queries=[0b1, 0b10], item_queries=1)
def test_routing_gives_each_run_the_queries_with_its_mask(
    masks: list[int], queries: list[int], item_queries: int
) -> None:
    queries = [*queries, masks[0], masks[-1] | queries[0]]
    workspace = Workspace()
    count, made = balanced.route(
        len(queries), cuda.to_device(~words_of(queries)), len(masks), cuda.to_device(words_of(masks)),
        item_queries, workspace,
    )  # fmt: skip
    workspace.stream.synchronize()
    runs, firsts, sizes, queued = (array.copy_to_host().tolist() for array in made)
    found: dict[int, list[int]] = {run: [] for run in range(len(masks))}
    for run, first, size in zip(runs[:count], firsts, sizes, strict=False):
        assert 1 <= size <= item_queries
        found[run] += queued[first : first + size]
    expected = {run: [q for q, query in enumerate(queries) if mask & ~query == 0] for run, mask in enumerate(masks)}
    assert {run: sorted(numbers) for run, numbers in found.items()} == expected
    assert count == sum(-(-len(numbers) // item_queries) for numbers in expected.values())


@pytest.mark.parametrize("count", [1, 9, 60 if SIMULATED else 3000])
def test_queries_pass_the_prefilter_by_the_bits_that_a_block_shares(
    monkeypatch: pytest.MonkeyPatch, rng: random.Random, count: int
) -> None:
    """As many as have, by an independent count, all bits that are common to the rows of a block of their partition."""
    counted: list[int] = []
    kernel = balanced.match_items

    class Counted:
        def __getitem__(self, configuration: Any) -> Any:
            def launch(*arguments: Any) -> None:
                counters, stream = arguments[-1].counters, configuration[-1]
                stream.synchronize()  # for its earlier work
                before = counters.copy_to_host()
                kernel[configuration](*arguments)
                stream.synchronize()
                counted.append(int(counters.copy_to_host()[pairs.PASSED] - before[pairs.PASSED]))

            return launch

    monkeypatch.setattr(balanced, "match_items", Counted())
    segment = stored(
        [rng.sample(TAGS[:20], rng.randint(1, 5)) for _ in range(count)], max_partition_size=count // 3 + 1
    )
    queries = asked(segment, [rng.sample(TAGS[:20], rng.randint(0, 20)) for _ in range(9)])
    batches = routed(segment, queries)
    device = on_device(segment)
    counted.clear()
    device.match_batches(batches)
    assert segment.tagsets.signatures is not None
    rows, asked_signatures = integers_of(segment.tagsets.signatures), integers_of(batches.signatures)
    first_rows, expected = segment.partitions.first_rows.tolist(), 0
    run_rows = balanced._RUN_BLOCKS * balanced.BLOCK_ROWS
    for partition, (first, last) in zip(batches.partitions, itertools.pairwise(batches.offsets), strict=True):
        begin, end = first_rows[partition : partition + 2]
        for run in range(begin, end, run_rows):
            for block in range(run, min(run + run_rows, end), balanced.BLOCK_ROWS):
                common = reduce(and_, rows[block : min(block + balanced.BLOCK_ROWS, run + run_rows, end)])
                expected += sum(common & ~asked_signatures[q] == 0 for q in batches.queued[first:last])
    # Each launch, as there may have been too little room for the results of the first
    assert set(counted) == {expected}
