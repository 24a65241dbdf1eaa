"""A snapshot of several segments answers as one index of all their sets does."""

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import Oracle
from support.agreement import index_of
from support.pipelines import TIMEOUT
from support.places import rows_of

from tagmatch.model.columns import tag_lists
from tagmatch.model.input.messages import Message
from tagmatch.model.options import MatchOptions, Wanted
from tagmatch.model.tables import Snapshot
from tagmatch.pipeline.devices import matcher_of, parts_for
from tagmatch.pipeline.one import alone
from tagmatch.pipeline.service import Pipeline


@pytest.mark.slow
@pytest.mark.usefixtures("through_stages")
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), tags=st.integers(1, 3000), shared=st.floats(0, 1))
def test_ranks_in_a_large_segment_become_those_in_small_ones(layout: Any, seed: int, tags: int, shared: float) -> None:
    """Small segments have some tags of the large one and some others; queries have still others."""
    rng = np.random.default_rng(seed)
    names = [f"tag {i}" for i in range(3 * tags)]

    def some(count: int, first: int, last: int, most: int) -> list[list[str]]:
        return [[names[i] for i in rng.integers(first, last, rng.integers(0, most))] for _ in range(count)]

    own = round(tags * (1 - shared))
    parts = [some(50, 0 + own, tags + own, 3), some(500, 0, tags, 3), some(100, tags // 2, tags + own + 1, 3)]
    queries = some(100, 0, 3 * tags, 40) + [part[0] + part[-1] for part in parts]
    sets, oracle = [each for part in parts for each in part], Oracle()
    ends = np.cumsum([0, *map(len, parts)]).tolist()
    oracle.add_sets(sets, range(len(sets)))
    oracle.consolidate()
    options = MatchOptions(device="cpu")
    segments = []
    for first, last in pairwise(ends):
        with index_of(sets[first:last], range(first, last), layout=layout, max_partition_size=2) as tm:
            segments.append(tm.snapshot.only)
    matcher, pipeline = matcher_of(parts_for(Snapshot(tuple(segments)), options)), Pipeline(options)
    try:
        for unique in (False, True):
            expected = [sorted(set(keys)) if unique else keys for keys in map(oracle.match, queries)]
            wanted = Wanted.unique if unique else Wanted.keys
            found = pipeline.match_many(matcher, tag_lists(queries, "queries"), wanted=wanted)
            assert list(map(sorted, rows_of(found))) == expected
            futures = [
                pipeline.submit(
                    matcher, alone(matcher.one_query, query), partial(Message, query), unique=unique, timeout=None
                )
                for query in queries
            ]
            assert [sorted(future.result(TIMEOUT)) for future in futures] == expected
    finally:
        pipeline.close()
