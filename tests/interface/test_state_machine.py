"""Any order of changes, merges, moves, questions, reopenings, crashes and backups, between which time passes.

Keys of sets expire as it does. Some sets have conditions, or areas, and messages attributes, or a place. Another object
reads at the same time.

`STEPS=1000 pytest tests/interface/test_state_machine.py -m nightly --hypothesis-seed 7` is a long form: each kind of
index has that number of calls, and one index a hundred of them.
"""

import asyncio
import os
import shutil
import tempfile
import threading
from copy import deepcopy
from datetime import timedelta
from itertools import chain, product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, get_args

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings, stateful
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, multiple, precondition, rule
from oracle import Oracle, Test, is_condition
from support import filters, strategies
from support.agreement import (
    assert_agree,
    assert_data,
    assert_highlights,
    assert_keys,
    assert_numbers,
    assert_only,
    assert_reasons,
    assert_records,
)
from support.areas import AREA, AREAS, PLACES, SHAPES, At, located_table, struct_of
from support.conditions import Expression, Message, in_tables
from support.expiring import BEGIN, set_clock, times_of
from support.waiting import wait_until

from tagmatch import NotStoredError, TagMatch, backup, restore
from tagmatch.changing import Changing
from tagmatch.model.options import Durability, KeyType, Layout
from tagmatch.partitioner.consolidation import FEW_SETS

LAYOUTS = st.sampled_from(get_args(Layout))
SIZES, THREADS = st.sampled_from([1, 7, 200_000]), st.sampled_from([1, 4])
IN_MEMORY = st.sampled_from([False, False, False, True])
DURABILITIES = st.sampled_from([None, *get_args(Durability)])
COMMON = list(strategies.COMMON_TAGS)
EVERYTHING = list(strategies.COMMON_TAGS + strategies.NUMBERED_TAGS)
#: Few, which are often drawn again
FEW_NAMES = {0: "ana", 1: "bo", 2: "", 2**64 - 1: "🦊"}
FEW_PAIRS = st.tuples(st.lists(st.sampled_from(COMMON[:6]), max_size=3), st.sampled_from([*FEW_NAMES]))
#: Half of all sets have conditions
WHERE = st.none() | st.builds(Expression.of, filters.trees, filters.spellings)
#: Columns of expressions
COLUMNS = st.sampled_from([
    list, lambda where: pa.array(where, pa.string()), lambda where: pa.array(where, pa.string()).dictionary_encode(),
])  # fmt: skip
#: Which keys alone are asked for, by their data
ONLY = st.builds(Expression.of, filters.data_trees, filters.spellings)
#: From now until a key expires; some have been past when they are added
SECONDS = st.none() | st.integers(-3, 12)
#: Set while threads in the background may drop keys; else they would hide that something else does not, as it has to
DROPPING = threading.Event()
#: While no program has the index open
AWAY = st.integers(0, 12)
UNITS = st.sampled_from(["s", "ms", "us", "ns"])
#: Calls of an index; in the long form, of an index and of all of a kind
CALLS, MANY_CALLS, CALLS_OF_A_KIND = 20, 100, int(os.environ.get("STEPS", "0"))
#: Where messages are, and clients that some are for
ATS = st.builds(At, st.none() | st.sampled_from(PLACES), st.none() | st.sampled_from(SHAPES))
#: Where clients go; some, nowhere
MOVES = st.lists(st.tuples(st.sampled_from([*FEW_NAMES]), st.none() | st.sampled_from(PLACES)), max_size=6)


class Subscription(NamedTuple):
    tags: list[str]
    key: int
    where: Expression | None
    area: Any


#: Columns of data, and values of some of them
DATA = {"name": pa.string(), "rank": pa.int64()}
VALUES = st.fixed_dictionaries({}, optional={"name": st.sampled_from(["ana", "", "é"]), "rank": st.integers(-2, 2)})
SOME_AREAS = st.none() | st.none() | st.sampled_from(AREAS)
NEW = st.builds(lambda pair, *others: Subscription(*pair, *others), FEW_PAIRS | strategies.pairs, WHERE, SOME_AREAS)


def message_for(data: st.DataObject, subscription: Subscription, query: list[str]) -> Message:
    """One with attributes that are near to what the condition says, and with the set's tags."""
    tags, attributes = data.draw(filters.messages(subscription.where and subscription.where.tree))
    return Message([*subscription.tags, *query, *tags], attributes)


class Index(stateful.RuleBasedStateMachine):
    """An index, in memory or on disk, and the oracle, which have seen the same changes.

    A new kind of change is a rule here, and a method of the oracle.
    """

    subscriptions = Bundle("subscriptions")

    def __init__(self, clock, layout, key_type):
        super().__init__()
        clock.now = BEGIN
        self.clock, self.layout, self.key_type = clock, layout, key_type
        self.folder = tempfile.TemporaryDirectory()
        self.oracle = Oracle(clock.tell)
        # The number of staged changes that outlast the object
        self.lasting = 0
        self.crashes = 0
        self.message, self.only = Message(COMMON, {}), Expression.of(Test("rank", ">=", (0,)), Random(0))
        self.tm, self.reader, self.read = None, None, None

    @stateful.initialize(
        target=subscriptions, in_memory=IN_MEMORY, size=SIZES, threads=THREADS, durability=DURABILITIES, one=NEW
    )
    def create(self, in_memory, size, threads, durability, one):
        self.path = None if in_memory else Path(self.folder.name, "index")
        self.open(size, threads, durability)
        return one

    def on_disk(self):
        return self.path is not None

    def open(self, size, threads, durability):
        self.durability = durability
        self.oracle.forget_staged(self.lasting)
        self.oracle.forget_positions()
        self.tm = TagMatch(
            self.path, key_type=self.key_type, layout=self.layout, max_partition_size=size, threads=threads,
            durability=durability, device="cpu", data=DATA,
        )  # fmt: skip

    @invariant()
    def agree(self):
        if self.tm is not None:
            times, stats = self.oracle.times(), self.tm.stats()
            assert (stats["staged"], stats["keys"]) == (self.oracle.staged, len(times))
            assert stats["positions"] == len(self.oracle.positions)
            assert times_of(self.tm) == times
            assert_records(self.tm, self.oracle)
            assert_data(self.tm, self.oracle, COMMON, ["rank", "name"])
            for message in (Message(COMMON, {}), self.message):  # also of the message before the last change
                assert_only(self.tm, self.oracle, self.only, message)
            columns = self.tm.to_arrow().schema.names
            assert ("expires" in columns) == any(at is not None for at in times.values())
            assert ("where" in columns) == any(map(is_condition, chain.from_iterable(row for row, _ in times)))
            assert_agree(self.tm, self.oracle, [COMMON, ["a", "b"], [], self.message])

    def change(self, name, *arguments, **options):
        of_index, of_oracle = (getattr(database, name)(*arguments, **options) for database in (self.tm, self.oracle))
        assert of_index == of_oracle
        self.note_lasting()

    def note_lasting(self):
        if self.durability != "none":
            self.lasting = self.oracle.staged

    def key(self, key):
        """Keys are drawn as integers, and some integers are equal, so that some names are."""
        return FEW_NAMES.get(key, str(key)) if self.key_type == "string" else key

    def columns(self, subscriptions: list[Subscription]) -> tuple[list[Any], ...]:
        tags, keys, where, area = map(list, zip(*subscriptions, strict=True)) if subscriptions else ([], [], [], [])
        return tags, list(map(self.key, keys)), where, area

    @rule(target=subscriptions, one=subscriptions | NEW, seconds=SECONDS, from_now=st.booleans())
    def add_set(self, one, seconds, from_now):
        at = None if seconds is None else self.clock.after(seconds)
        is_after = seconds is not None and seconds > 0
        expires = timedelta(seconds=seconds) if from_now and is_after else at
        self.change("add_set", one.tags, self.key(one.key), where=one.where, area=one.area, expires=expires)
        return one

    @rule(one=subscriptions | NEW)
    def remove_set(self, one):
        self.change("remove_set", one.tags, self.key(one.key), where=one.where, area=one.area)

    @rule(one=subscriptions | NEW)
    def remove_set_that_must_be_there(self, one):
        arguments = one.tags, self.key(one.key)
        after = self.oracle.staged_again()
        after.forget_staged()
        after.remove_set(*arguments, where=one.where, area=one.area)
        if not after.consolidate()[3]:
            assert self.tm.remove_set(*arguments, where=one.where, area=one.area, missing="error")
            self.oracle.remove_set(*arguments, where=one.where, area=one.area)
            self.note_lasting()
        else:
            with pytest.raises(NotStoredError, match="is not stored with the set"):
                self.tm.remove_sets([one.tags], [arguments[1]], where=one.where, area=one.area, missing="error")

    @rule(data=st.data())
    def remove_what_is_stored(self, data):
        """A set as iteration gives it, with conditions among its tags: of an expression, perhaps one alternative."""
        if stored := list(self.oracle):
            row, keys = data.draw(st.sampled_from(stored))
            (given,) = (each for each in self.tm if each[0] == row)
            self.tm.remove_set(given[0], keys[0])
            self.oracle.remove_set(row, keys[0])
            self.note_lasting()

    @rule(target=subscriptions, added=st.lists(st.tuples(subscriptions | NEW, SECONDS), max_size=8),
          unit=UNITS, column=COLUMNS, is_table=st.booleans())  # fmt: skip
    def add_sets(self, added, unit, column, is_table):
        """With columns of expressions and times, by themselves or in a table."""
        tags, keys, where, area = self.columns([one for one, _ in added])
        times = [None if seconds is None else self.clock.after(seconds) for _, seconds in added]
        expires = pa.array(times, pa.timestamp(unit, "Europe/Rome"))
        if is_table:
            kinds = pa.list_(pa.string()), {"integer": pa.uint64(), "string": pa.string()}[self.key_type]
            columns = {"tags": pa.array(tags, kinds[0]), "key": pa.array(keys, kinds[1])}
            columns |= {"where": pa.array(where, pa.string()), "area": pa.array(list(map(struct_of, area)), AREA)}
            self.tm.add_subscriptions(pa.table(columns | {"expires": expires}))
        else:
            self.tm.add_sets(tags, keys, where=column(where), area=area, expires=expires)
        self.oracle.add_sets(tags, keys, where=where, area=area, expires=times)
        self.note_lasting()
        return multiple(*(one for one, _ in added))

    @rule(target=subscriptions, added=st.lists(subscriptions | NEW, max_size=8), where=WHERE, area=SOME_AREAS,
          seconds=st.none() | st.integers(1, 12))  # fmt: skip
    def add_sets_alike(self, added, where, area, seconds):
        tags, keys, *_ = self.columns(added)
        expires = None if seconds is None else timedelta(seconds=seconds)
        self.change("add_sets", tags, keys, where=where, area=area, expires=expires)
        return multiple(*(one._replace(where=where, area=area) for one in added))

    @rule(removed=st.lists(subscriptions, max_size=8))
    def remove_sets(self, removed):
        tags, keys, where, area = self.columns(removed)
        self.change("remove_sets", tags, keys, where=where, area=area)

    @rule(target=subscriptions, one=subscriptions | NEW, seconds=SECONDS, values=VALUES)
    def put(self, one, seconds, values):
        at = None if seconds is None else self.clock.after(seconds)
        self.change("put", self.key(one.key), one.tags, where=one.where, area=one.area, expires=at, data=values)
        return one

    @rule(target=subscriptions, put=st.lists(st.tuples(subscriptions | NEW, SECONDS, VALUES), max_size=6))
    def put_many(self, put):
        tags, keys, where, area = self.columns([one for one, _, _ in put])
        times = [None if seconds is None else self.clock.after(seconds) for _, seconds, _ in put]
        kinds = pa.list_(pa.string()), {"integer": pa.uint64(), "string": pa.string()}[self.key_type]
        columns = {"tags": pa.array(tags, kinds[0]), "key": pa.array(keys, kinds[1])}
        columns |= {"where": pa.array(where, pa.string()), "area": pa.array(list(map(struct_of, area)), AREA)}
        columns |= {"expires": pa.array(times, pa.timestamp("us", "UTC"))}
        columns |= {name: pa.array([values.get(name) for _, _, values in put], kind) for name, kind in DATA.items()}
        values = [values for _, _, values in put]
        staged = self.oracle.put_many(zip(keys, tags, where, area, times, values, strict=True))
        assert self.tm.put_many(pa.table(columns)) == staged
        self.note_lasting()
        return multiple(*(one for one, _, _ in put))

    @rule(key=st.sampled_from([*FEW_NAMES]))
    def delete(self, key):
        self.change("delete", self.key(key))

    @rule(some=st.lists(subscriptions, max_size=4))
    def delete_many(self, some):
        self.change("delete_many", [self.key(one.key) for one in some])

    @rule(one=subscriptions | NEW)
    def delete_what_must_be_there(self, one):
        key, after = self.key(one.key), self.oracle.staged_again()
        after.forget_staged()
        if key in after.records():
            assert self.tm.delete(key, missing="error") == self.oracle.delete(key)
            self.note_lasting()
        else:
            with pytest.raises(NotStoredError, match="has no sets"):
                self.tm.delete_many([key], missing="error")

    @rule(moves=MOVES)
    def move(self, moves):
        clients, places = [self.key(key) for key, _ in moves], [place or (None, None) for _, place in moves]
        for database in (self.tm, self.oracle):
            database.move(clients, [lon for lon, _ in places], [lat for _, lat in places])

    @precondition(on_disk)
    @rule()
    def save_positions(self):
        for database in (self.tm, self.oracle):
            database.save_positions()

    @rule(some=st.lists(st.tuples(subscriptions, ATS), max_size=6), data=st.data(), unique=st.booleans())
    def ask_where(self, some, data, unique):
        """Of messages with places, and for clients within areas; in tables, they have no attributes."""
        table = located_table([(one.tags, at) for one, at in some])
        ask = self.oracle.match_unique if unique else self.oracle.match
        expected = [sorted(ask(one.tags, **at.options)) for one, at in some]
        assert_keys(self.tm.match_many(table, unique=unique), expected, self.key_type)
        assert self.tm.match_counts(table, unique=unique).to_pylist() == list(map(len, expected))
        every = [sorted(self.oracle.match(one.tags, **at.options)) for one, at in some]
        assert_highlights(self.tm, table, every, self.key_type)
        assert self.tm.match_exists_many(table).to_pylist() == list(map(bool, expected))
        for one, at in some:
            message = message_for(data, one, [])
            expected = self.oracle.match(*message, **at.options)
            assert sorted(self.tm.match(*message, **at.options)) == expected
            assert_numbers(self.tm, expected, *message, **at.options)
            assert_reasons(self.tm, self.oracle, expected, *message, **at.options)
            expected = self.oracle.match_unique(*message, **at.options)
            assert self.tm.match_unique(*message, **at.options) == expected
            assert self.tm.submit(*message, **at.options, unique=True).result(60) == expected
            assert dict(self.tm.explain(*message, **at.options)) == dict(self.oracle.explain(*message, **at.options))

    @rule(full=st.booleans())
    def consolidate(self, full=False):
        before = self.tm.stats()["changes"].values()
        became = self.tm.consolidate(full=full)
        assert became == self.oracle.consolidate()
        assert tuple(self.tm.stats()["changes"].values()) == tuple(map(sum, zip(before, became, strict=True)))
        self.lasting = 0
        assert not (self.on_disk() and list(self.path.glob("staged-*")))
        self.tm.check()
        assert not full or self.tm.stats()["segments"] == 1

    @rule()
    def merge(self):
        self.tm._engine.changing.merge()
        self.tm.check()

    @rule(seconds=st.integers(1, 12))
    def time_passes(self, seconds):
        """Whoever has the index open drops what expires."""
        self.clock.pass_by(seconds)
        DROPPING.set()
        for tm, oracle in ((self.tm, self.oracle), (self.reader, self.read)):
            wait_until(lambda tm=tm, oracle=oracle: tm is None or dict(tm) == dict(oracle))
        DROPPING.clear()

    @rule(queries=strategies.query_lists, query=strategies.queries, one=subscriptions, data=st.data())
    def match(self, queries, query, one, data):
        self.message = message_for(data, one, query)
        assert_agree(self.tm, self.oracle, [*queries, query + one.tags, self.message])

    @rule(only=ONLY, one=subscriptions, at=ATS)
    def ask_for_only_some(self, only, one, at):
        self.only = only
        assert_only(self.tm, self.oracle, only, Message([*COMMON, *one.tags], {}), **at._asdict())

    @rule(some=st.lists(subscriptions, max_size=4), data=st.data(), unique=st.booleans(), awaits=st.booleans())
    def submit(self, some, data, unique, awaits):
        """All at once, perhaps in one loop of events."""
        messages = [message_for(data, one, []) for one in some]

        async def answers():
            return await asyncio.gather(*(self.tm.amatch(*message, unique=unique) for message in messages))

        if awaits:
            found = asyncio.run(asyncio.wait_for(answers(), 60))
        else:
            futures = [self.tm.submit(*message, unique=unique) for message in messages]
            found = [future.result(60) for future in futures]
        expected = [(self.oracle.match_unique if unique else self.oracle.match)(*message) for message in messages]
        assert [keys if unique else sorted(keys) for keys in found] == expected

    @rule(some=st.lists(subscriptions, max_size=6), data=st.data(), unique=st.booleans(), ahead=st.integers(0, 2))
    def match_many_in_a_table(self, some, data, unique, ahead):
        """Tables of several messages, with a column for each attribute, in chunks with rows cut off."""
        messages = [message_for(data, one, []) for one in some]
        for numbers, table in in_tables(messages):
            ask = self.oracle.match_unique if unique else self.oracle.match
            expected = [sorted(ask(*messages[number])) for number in numbers]
            chunks = pa.concat_tables([table, table]).slice(min(ahead, len(table)))
            found = self.tm.match_many(chunks, unique=unique)
            assert_keys(found, (expected + expected)[min(ahead, len(table)) :], self.key_type)

    @precondition(on_disk)
    @rule(layout=st.none() | LAYOUTS, size=SIZES, threads=THREADS, durability=DURABILITIES, seconds=AWAY)
    def reopen(self, layout, size, threads, durability, seconds):
        self.close()
        self.time_passes(seconds)
        self.layout = layout or self.layout
        self.open(size, threads, durability)

    @precondition(on_disk)
    @rule(size=SIZES, threads=THREADS, durability=DURABILITIES, seconds=AWAY, is_copy=st.booleans())
    def crash(self, size, threads, durability, seconds, is_copy):
        """Go on with the files as they are at the time, or as a backup has them, which follows one of an earlier time.

        The object does not matter any more.
        """
        self.tm._engine.changing.merging.wait()
        self.crashes += 1
        before, self.path = self.path, Path(self.folder.name, f"index after {self.crashes} crashes")
        if is_copy and (before / "MANIFEST.json").exists():
            place = Path(self.folder.name, "backup")
            assert backup(before, place).staged == self.lasting
            with TagMatch.open(place, device="cpu") as tm:
                assert_agree(tm, self.oracle, [EVERYTHING, []])
            assert restore(place, self.path).staged == self.lasting
        elif before.exists():
            shutil.copytree(before, self.path)
        self.close()
        self.close_reader()
        self.time_passes(seconds)
        self.open(size, threads, durability)

    @precondition(on_disk)
    @rule()
    def reload(self):
        """Another object reads the index: what it had until it reloads, and then what there is."""
        if self.reader is not None:
            assert dict(self.reader) == dict(self.read)
            self.reader.reload()
        elif (self.path / "MANIFEST.json").exists():
            self.reader = TagMatch.open(self.path, device="cpu", threads=1)
        if self.reader is not None:
            self.reader.check()
            self.read = deepcopy(self.oracle)
            assert times_of(self.reader) == self.read.times()
            assert_agree(self.reader, self.read, [COMMON, ["a", "b"], []])
            assert sorted(self.reader.match(EVERYTHING)) == self.oracle.match(EVERYTHING)

    def close_reader(self):
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    def close(self):
        self.tm.close()
        self.tm = None

    def teardown(self):
        if self.tm is not None:
            self.consolidate()
            assert_agree(self.tm, self.oracle, [EVERYTHING])
            self.tm.close()
            self.close_reader()
        self.folder.cleanup()


KINDS = [*product(get_args(Layout), get_args(KeyType), [0, 4, FEW_SETS])]
#: Each layout, each type of keys and each `few` is in one of them
SOME = [("rarest", "string", 0), ("balanced", "integer", 4), ("rarest", "integer", FEW_SETS)]


@pytest.mark.filterwarnings("ignore::tagmatch.StagedChangesWarning")
@pytest.mark.parametrize(
    ("layout", "key_type", "few"),
    [pytest.param(*kind, marks=[] if kind in SOME and not CALLS_OF_A_KIND else pytest.mark.nightly) for kind in KINDS],
)
def test_any_order_of_calls(layout, key_type, few, monkeypatch):
    """With segments of any size, which are merged in the background.

    With `few` as 0, sets stay in their segments, and are marked as deleted when their keys expire.
    """
    clock, once = set_clock(monkeypatch), Changing.expire
    DROPPING.clear()
    monkeypatch.setattr(Changing, "expire", lambda own: once(own) if DROPPING.is_set() else 0.002)
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", few)
    most = settings().max_examples
    chosen = settings(stateful_step_count=CALLS, max_examples=min(most, 8) if (layout, key_type, few) in SOME else most)
    if CALLS_OF_A_KIND:
        examples = CALLS_OF_A_KIND // MANY_CALLS
        checks = list(HealthCheck)
        chosen = settings(stateful_step_count=MANY_CALLS, max_examples=examples, suppress_health_check=checks)
    stateful.run_state_machine_as_test(lambda: Index(clock, layout, key_type), settings=chosen)
