"""Any order of changes, consolidations, questions and reopenings."""

from __future__ import annotations

import tempfile
from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, rule, run_state_machine_as_test
from support import strategies
from support.agreement import assert_agree, assert_keys
from support.oracle import Oracle

from tagmatch import TagMatch
from tagmatch.model.options import Layout
from tagmatch.partitioner.consolidation import FEW_SETS

LAYOUTS = st.sampled_from(get_args(Layout))
SIZES = st.sampled_from([1, 7, 200_000])
PAIRS = st.lists(strategies.pairs, max_size=8)


class Index(RuleBasedStateMachine):
    """An index on disk and the oracle, which have seen the same changes."""

    pairs = Bundle("pairs")

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout = layout
        self.folder = tempfile.TemporaryDirectory()
        self.path = f"{self.folder.name}/index"
        self.oracle = Oracle()

    @initialize(size=SIZES, threads=st.sampled_from([1, 4]))
    def create(self, size, threads):
        self.tm = TagMatch(self.path, layout=self.layout, max_partition_size=size, threads=threads)

    @rule(target=pairs, pair=strategies.pairs)
    def add_set(self, pair):
        for database in (self.tm, self.oracle):
            database.add_set(*pair)
        return pair

    @rule(pair=pairs | strategies.pairs)
    def remove_set(self, pair):
        for database in (self.tm, self.oracle):
            database.remove_set(*pair)

    @rule(target=pairs, added=PAIRS)
    def add_sets(self, added):
        for database in (self.tm, self.oracle):
            database.add_sets([tags for tags, _ in added], [key for _, key in added])
        return multiple(*added)

    @rule(removed=st.lists(pairs, max_size=8))
    def remove_sets(self, removed):
        for database in (self.tm, self.oracle):
            database.remove_sets([tags for tags, _ in removed], [key for _, key in removed])

    @rule(full=st.booleans())
    def consolidate(self, full=False):
        self.tm.consolidate(full=full)
        self.oracle.consolidate()
        self.tm.check()
        assert not full or self.tm.stats()["segments"] == 1

    @rule(query=strategies.queries, stored=pairs)
    def match(self, query, stored):
        assert_agree(self.tm, self.oracle, [query + stored[0]])

    @rule(queries=strategies.query_lists, unique=st.booleans())
    def match_many(self, queries, unique):
        expected = map(self.oracle.match_unique if unique else self.oracle.match, queries)
        assert_keys(self.tm.match_many(queries, unique=unique), list(map(sorted, expected)))

    @rule(threads=st.sampled_from([1, 4]))
    def reopen(self, threads):
        self.consolidate()
        self.tm.close()
        self.tm = TagMatch.open(self.path, threads=threads)
        assert self.tm.stats()["layout"] == self.layout
        self.tm.check()

    @rule(layout=LAYOUTS, size=SIZES)
    def reopen_in_another_layout(self, layout, size):
        self.consolidate()
        self.tm.close()
        self.layout = layout
        self.tm = TagMatch(self.path, layout=layout, max_partition_size=size)
        self.consolidate()

    def teardown(self):
        if hasattr(self, "tm"):
            self.consolidate()
            assert_agree(self.tm, self.oracle, [list(strategies.COMMON_TAGS + strategies.NUMBERED_TAGS)])
            self.tm.close()
        self.folder.cleanup()


@pytest.mark.parametrize("few", [0, 4, FEW_SETS])
def test_any_order_of_calls(layout, few, monkeypatch):
    """With segments of any size, which are merged in the background meanwhile."""
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", few)
    run_state_machine_as_test(lambda: Index(layout), settings=settings(stateful_step_count=20))
