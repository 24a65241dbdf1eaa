"""Any order of changes, consolidations, merges, questions, reopenings and crashes; another object reads meanwhile.

`STEPS=1000 pytest tests/interface/test_state_machine.py --hypothesis-seed 7` is a long form: of each kind of index so
many calls, a hundred of one index.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, rule, run_state_machine_as_test
from support import strategies
from support.agreement import assert_agree, assert_keys
from support.oracle import Oracle

from tagmatch import StagedChangesWarning, TagMatch
from tagmatch.model.options import Durability, KeyType, Layout
from tagmatch.partitioner.consolidation import FEW_SETS

LAYOUTS = st.sampled_from(get_args(Layout))
SIZES = st.sampled_from([1, 7, 200_000])
THREADS = st.sampled_from([1, 4])
DURABILITIES = st.sampled_from([None, *get_args(Durability)])
EVERYTHING = list(strategies.COMMON_TAGS + strategies.NUMBERED_TAGS)
#: Calls of an index; in the long form, of an index and of all of a kind
CALLS, MANY_CALLS, CALLS_OF_A_KIND = 20, 100, int(os.environ.get("STEPS", "0"))


class Index(RuleBasedStateMachine):
    """An index on disk and the oracle, which have seen the same changes.

    A new kind of change is a rule here, and a method of the oracle, such as one that lets time pass.
    """

    pairs = Bundle("pairs")

    def __init__(self, layout, key_type):
        super().__init__()
        self.layout, self.key_type = layout, key_type
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name, "index")
        self.oracle = Oracle()
        # Of the changes that are staged, so many outlast the object
        self.lasting = 0
        self.crashes = 0
        self.reader, self.read = None, {}

    @initialize(size=SIZES, threads=THREADS, durability=DURABILITIES)
    def create(self, size, threads, durability):
        self.open(size, threads, durability)

    def open(self, size, threads, durability):
        """Open the index with what lasts of it."""
        self.durability = durability
        self.oracle.forget_staged(self.lasting)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StagedChangesWarning)
            self.tm = TagMatch(
                self.path, key_type=self.key_type, layout=self.layout, max_partition_size=size, threads=threads,
                durability=durability, device="cpu",
            )  # fmt: skip
        self.agree()

    def agree(self):
        assert self.tm.stats()["staged"] == self.oracle.staged
        assert dict(self.tm) == dict(self.oracle)

    def change(self, name, *arguments):
        for database in (self.tm, self.oracle):
            getattr(database, name)(*arguments)
        if self.durability != "none":
            self.lasting = self.oracle.staged

    def key(self, key):
        """Keys are drawn as integers, and some integers are equal, so that some names are."""
        return str(key) if self.key_type == "string" else key

    def named(self, pairs):
        return [tags for tags, _ in pairs], [self.key(key) for _, key in pairs]

    @rule(target=pairs, pair=strategies.pairs)
    def add_set(self, pair):
        self.change("add_set", pair[0], self.key(pair[1]))
        return pair

    @rule(pair=pairs | strategies.pairs)
    def remove_set(self, pair):
        self.change("remove_set", pair[0], self.key(pair[1]))

    @rule(target=pairs, added=st.lists(strategies.pairs, max_size=8))
    def add_sets(self, added):
        self.change("add_sets", *self.named(added))
        return multiple(*added)

    @rule(removed=st.lists(pairs, max_size=8))
    def remove_sets(self, removed):
        self.change("remove_sets", *self.named(removed))

    @rule(full=st.booleans())
    def consolidate(self, full=False):
        self.tm.consolidate(full=full)
        self.oracle.consolidate()
        self.lasting = 0
        self.tm.check()
        assert not full or self.tm.stats()["segments"] == 1

    @rule()
    def merge(self):
        """In this thread, if the one in the background has not done it yet."""
        self.tm._engine.changing.merge()
        self.tm.check()
        self.agree()

    @rule(query=strategies.queries, stored=pairs)
    def match(self, query, stored):
        assert_agree(self.tm, self.oracle, [query + stored[0]])

    @rule(queries=strategies.query_lists, unique=st.booleans())
    def match_many(self, queries, unique):
        expected = map(self.oracle.match_unique if unique else self.oracle.match, queries)
        assert_keys(self.tm.match_many(queries, unique=unique), list(map(sorted, expected)), self.key_type)

    @rule(size=SIZES, threads=THREADS, durability=DURABILITIES)
    def reopen(self, size, threads, durability):
        self.close()
        self.open(size, threads, durability)

    @rule(layout=LAYOUTS, size=SIZES, durability=DURABILITIES)
    def reopen_in_another_layout(self, layout, size, durability):
        self.close()
        self.layout = layout
        self.open(size, 1, durability)

    @rule(size=SIZES, threads=THREADS, durability=DURABILITIES)
    def crash(self, size, threads, durability):
        """Go on with the files as they are; the object is left alone."""
        self.tm._engine.changing.merging.wait()
        self.crashes += 1
        before, self.path = self.path, Path(self.folder.name, f"index after {self.crashes} crashes")
        if before.exists():
            shutil.copytree(before, self.path)
        self.close_reader()
        self.open(size, threads, durability)

    @rule()
    def reload(self):
        """Another object reads the index: what it had until it reloads, and then what there is."""
        if self.reader is not None:
            assert dict(self.reader) == self.read
            self.reader.reload()
        elif (self.path / "MANIFEST.json").exists():
            self.reader = TagMatch.open(self.path, device="cpu", threads=1)
        if self.reader is not None:
            self.reader.check()
            self.read = dict(self.oracle)
            assert dict(self.reader) == self.read
            assert sorted(self.reader.match(EVERYTHING)) == self.oracle.match(EVERYTHING)

    def close_reader(self):
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    def close(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StagedChangesWarning)
            self.tm.close()

    def teardown(self):
        if hasattr(self, "tm"):
            self.consolidate()
            assert_agree(self.tm, self.oracle, [EVERYTHING])
            self.tm.close()
            self.close_reader()
        self.folder.cleanup()


@pytest.mark.parametrize("few", [0, 4, FEW_SETS])
@pytest.mark.parametrize("key_type", get_args(KeyType))
def test_any_order_of_calls(layout, key_type, few, monkeypatch):
    """With segments of any size, which are merged in the background meanwhile."""
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", few)
    chosen = settings(stateful_step_count=CALLS)
    if CALLS_OF_A_KIND:
        examples = CALLS_OF_A_KIND // MANY_CALLS
        chosen = settings(
            stateful_step_count=MANY_CALLS, max_examples=examples, suppress_health_check=list(HealthCheck)
        )
    run_state_machine_as_test(lambda: Index(layout, key_type), settings=chosen)
