import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agreement import index_of
from support.strategies import tag_sets

from tagmatch import TagMatch
from tagmatch.model.storage.segment_files import tables_of


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
    monkeypatch.setattr("tagmatch.partitioner.vocabulary._RARE", rare)
    rng = random.Random(4)
    sets = [
        frozenset(f"t{min(rng.randrange(30), rng.randrange(30))}" for _ in range(rng.randrange(9))) for _ in range(3000)
    ]
    with index_of(sets, range(len(sets))) as tm:
        segment = tm.snapshot.only
    vocabulary = segment.vocabulary
    text = vocabulary.tags.data.tobytes()
    ends = vocabulary.tags.offsets.tolist()
    tags = [text[a:b].decode() for a, b in itertools.pairwise(ends)]
    counts = {tag: sum(tag in one for one in set(sets)) for tag in set().union(*sets)}
    assert dict(zip(tags, vocabulary.frequencies.tolist(), strict=True)) == counts
    order = list(zip(vocabulary.frequencies.tolist(), vocabulary.hashes.tolist(), strict=True))
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
