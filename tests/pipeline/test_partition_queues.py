"""The partition queues and the results table against lists and sets, and when a batch leaves them."""

from __future__ import annotations

import itertools
import queue
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from support.pipelines import TIMEOUT, Gate, small

from tagmatch import PipelineOptions
from tagmatch.model.arrays import offsets_of
from tagmatch.pipeline.cpu.balanced import BalancedSubsetMatch
from tagmatch.pipeline.matcher import Batches, Found, QueryBatch
from tagmatch.pipeline.stages import partition_queues
from tagmatch.pipeline.stages.batcher import Batcher
from tagmatch.pipeline.stages.packets import Caller, Submitted
from tagmatch.pipeline.stages.partition_queues import Completed, PartitionQueues, Taken
from tagmatch.pipeline.stages.stage import Stage

PARTITIONS = 6
CELL_BYTES = 8

Group = tuple[int, frozenset[int]]


class Query(NamedTuple):
    ranks: list[int]
    signature: tuple[int, int, int]
    partitions: list[int]


@dataclass
class Waiter:
    """A query on its way, which stands in the place of its caller."""

    query: Query
    outstanding: set[int]
    results: list[int] = field(default_factory=list)


class FakeMatcher:
    """Has partitions, and nothing in them."""

    def __init__(self, batch_size: int = 4, *, has_empty: bool = False) -> None:
        self.by_partition: Any = SimpleNamespace(
            partitions=PARTITIONS, batch_size=batch_size, has_empty=has_empty, matched=lambda sets: sets
        )


def routed(queries: Sequence[Query]) -> Batches:
    """As `BalancedSubsetMatch.route`: every partition in order, each with its queries in order."""
    queued = [[i for i, query in enumerate(queries) if p in query.partitions] for p in range(PARTITIONS)]
    return Batches(
        QueryBatch(
            offsets_of(np.array([len(query.ranks) for query in queries], np.int64)),
            np.array([rank for query in queries for rank in query.ranks], np.uint32),
        ),
        np.array([query.signature for query in queries], np.uint64).reshape(-1, 3),
        np.arange(PARTITIONS),
        offsets_of(np.array(list(map(len, queued)), np.int64)),
        np.array(list(itertools.chain(*queued)), np.int64),
    )


class Model:
    """The queues, and lists and sets that must always say the same."""

    def __init__(self, batch_size: int, has_empty: bool) -> None:
        self.batch_size, self.has_empty = batch_size, has_empty
        self.queues = PartitionQueues(FakeMatcher(batch_size, has_empty=has_empty))
        self.now = 0.0
        self.waiting: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.since = [float("inf")] * PARTITIONS
        self.waiters: dict[int, Waiter] = {}
        self.numbers = itertools.count()
        self.left: list[tuple[Taken, list[Group]]] = []

    def add(self, queries: Sequence[Query], parts: int) -> None:
        numbers = [next(self.numbers) for _ in queries]
        full: list[Group] = []
        for number, query in zip(numbers, queries, strict=True):
            self.waiters[number] = Waiter(query, set(query.partitions), [0] if self.has_empty else [])
        for p in range(PARTITIONS):
            for number, query in zip(numbers, queries, strict=True):
                if p in query.partitions:
                    self.since[p] = self.since[p] if self.waiting[p] else self.now
                    self.waiting[p].append(number)
                    if len(self.waiting[p]) == self.batch_size:
                        full.append(self._leave(p))
        taken, completed = self.queues.add(routed(queries), numbers, self.now, parts)
        assert len(taken) <= parts
        found = [self._checked(each) for each in taken]
        assert Counter(itertools.chain(*found)) == Counter(full)
        assert all(len(members) == self.batch_size for groups in found for _, members in groups)
        self.left += zip(taken, found, strict=True)
        self._check_completed(completed, {n for n in numbers if not self.waiters[n].outstanding})

    def take(self, *, until: float, most: int | None) -> None:
        due = [p for p in range(PARTITIONS) if self.waiting[p] and self.since[p] <= until]
        sizes = {p: len(self.waiting[p]) for p in due}
        since = dict(enumerate(self.since))
        arguments = {} if most is None else {"most": most}
        pieces = self.queues.take(until=until, **arguments)
        assert len(pieces) == bool(due)
        for piece in pieces:
            groups = self._checked(piece)
            chosen = [p for p, _ in groups]
            assert len(set(chosen)) == len(chosen)
            assert set(chosen) <= set(due)
            assert max(since[p] for p in chosen) <= min((since[p] for p in due if p not in chosen), default=np.inf)
            count = sum(sizes[p] for p in chosen)
            assert len(piece) == count
            if most is None or count < most:
                assert set(chosen) == set(due)
            elif set(chosen) != set(due):
                youngest = [sizes[p] for p in chosen if since[p] == max(since[p] for p in chosen)]
                assert count - max(youngest) < most, "fewer queues would have been enough"
            assert sorted(groups, key=repr) == sorted((self._leave(p) for p in chosen), key=repr)
            self.left.append((piece, groups))

    def finish(self, index: int, found: Callable[[int, int], list[int]] | None) -> None:
        """`found(query, partition)` gives the set ids of each pair; without it the batches have failed."""
        taken, groups = self.left.pop(index)
        callers = self.queues.callers(taken)
        pairs: list[tuple[int, int]] = []
        for partition, members in groups:
            for number in members:
                waiter = self.waiters[number]
                waiter.outstanding.remove(partition)
                if found is not None:
                    sets = found(number, partition)
                    waiter.results += sets
                    pairs += [(callers.index(number), each) for each in sets]
        columns = np.array(pairs, np.uint32).reshape(-1, 2)
        entered = None if found is None else Found(columns[:, 0].copy(), columns[:, 1].copy(), 0)
        members = set().union(*(members for _, members in groups))
        self._check_completed(
            self.queues.finish(taken, entered), {number for number in members if not self.waiters[number].outstanding}
        )

    def check(self) -> None:
        assert self.queues.waiting == sum(map(len, self.waiting))
        assert self.queues.in_flight == len(self.waiters)
        assert self.queues.oldest == min(self.since)
        lists = sum(len(waiter.query.ranks) + len(waiter.results) for waiter in self.waiters.values())
        assert self.queues.nbytes == CELL_BYTES * (lists + self.queues.waiting)
        assert self.queues.nbytes <= self.queues.room

    def _leave(self, partition: int) -> Group:
        members, self.waiting[partition] = self.waiting[partition], []
        self.since[partition] = float("inf")
        return partition, frozenset(members)

    def _checked(self, taken: Taken) -> list[Group]:
        """The batches as partitions with queries, whose ranks and signatures must be those that were added."""
        batches, callers = taken.batches, self.queues.callers(taken)
        assert len(set(callers)) == len(callers) == len(batches.queries) == len(batches.signatures)
        for i, number in enumerate(callers):
            query = self.waiters[number].query
            assert batches.queries.ranks[slice(*batches.queries.offsets[i : i + 2])].tolist() == query.ranks
            assert tuple(batches.signatures[i].tolist()) == query.signature
        groups = []
        for partition, first, last in zip(batches.partitions, batches.offsets[:-1], batches.offsets[1:], strict=True):
            members = [callers[i] for i in batches.queued[first:last]]
            assert len(set(members)) == len(members)
            groups.append((int(partition), frozenset(members)))
        assert len(taken) == len(batches.queued) == batches.offsets[-1]
        return groups

    def _check_completed(self, completed: Completed, expected: set[int]) -> None:
        assert sorted(completed.callers) == sorted(expected)
        offsets, values = completed.sets.offsets, completed.sets.values
        assert len(offsets) == len(expected) + 1
        for i, number in enumerate(completed.callers):
            assert sorted(values[offsets[i] : offsets[i + 1]].tolist()) == sorted(self.waiters.pop(number).results)


RANKS = st.sets(st.integers(0, 2**32 - 1) | st.integers(0, 9), max_size=6).map(sorted)
WORDS = st.integers(0, 2**64 - 1)
QUERIES = st.builds(
    Query,
    ranks=RANKS,
    signature=st.tuples(WORDS, WORDS, WORDS),
    partitions=st.sets(st.integers(0, PARTITIONS - 1), max_size=PARTITIONS).map(sorted),
)


class Machine(RuleBasedStateMachine):
    """Queries come in and batches leave and are finished in any order."""

    @initialize(batch_size=st.sampled_from([1, 2, 3, 7, 256]), has_empty=st.booleans())
    def create(self, batch_size, has_empty):
        self.model = Model(batch_size, has_empty)

    @rule(queries=st.lists(QUERIES, max_size=12), parts=st.integers(1, 4))
    def add(self, queries, parts):
        self.model.add(queries, parts)

    @rule(seconds=st.sampled_from([0.5, 1.0]))
    def wait(self, seconds):
        self.model.now += seconds

    @rule(ago=st.none() | st.sampled_from([0.0, 0.5, 1.0, 2.0]), most=st.none() | st.integers(1, 20))
    def take(self, ago, most):
        self.model.take(until=float("inf") if ago is None else self.model.now - ago, most=most)

    @precondition(lambda self: self.model.left)
    @rule(data=st.data(), sets=st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=3), min_size=1, max_size=5))
    def finish(self, data, sets):
        index = data.draw(st.integers(0, len(self.model.left) - 1))
        self.model.finish(index, lambda number, partition: sets[(number + partition) % len(sets)])

    @precondition(lambda self: self.model.left)
    @rule(data=st.data())
    def fail(self, data):
        self.model.finish(data.draw(st.integers(0, len(self.model.left) - 1)), None)

    @invariant()
    def same(self):
        if hasattr(self, "model"):
            self.model.check()

    def teardown(self):
        if hasattr(self, "model"):
            drain(self.model)


def drain(model: Model) -> None:
    model.take(until=float("inf"), most=None)
    while model.left:
        model.finish(-1, lambda number, _: [number])
    model.check()
    queues = model.queues
    assert (queues.waiting, queues.in_flight, queues.nbytes, queues.oldest) == (0, 0, 0, float("inf"))


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables begin with a single place, so that they grow all the time."""
    monkeypatch.setattr(partition_queues, "_FIRST_CELLS", 1)
    monkeypatch.setattr(partition_queues, "_FIRST_SLOTS", 1)


@pytest.mark.usefixtures("tight")
def test_any_order_of_calls() -> None:
    run_machine(Machine, settings=settings(stateful_step_count=80))


def random_query(rng: random.Random) -> Query:
    ranks = sorted(rng.sample(range(1000), rng.randint(0, 20)))
    partitions = sorted(rng.sample(range(PARTITIONS), rng.randint(0, PARTITIONS)))
    return Query(ranks, (rng.getrandbits(64), rng.getrandbits(64), rng.getrandbits(64)), partitions)


def test_what_is_free_in_the_tables_is_used_again(rng: random.Random) -> None:
    """More queries than the first tables have places for, half of them finished in between."""
    model = Model(7, has_empty=True)
    for _ in range(4):
        model.add([random_query(rng) for _ in range(600)], parts=3)
        for _ in range(len(model.left) // 2):
            model.finish(rng.randrange(len(model.left)), lambda number, partition: [number, partition, 2**32 - 1])
        model.check()
    drain(model)
    room = model.queues.room
    model.add([random_query(rng) for _ in range(600)], parts=1)
    drain(model)
    assert model.queues.room == room


def test_abandoned_queries_are_named_once(rng: random.Random) -> None:
    model = Model(4, has_empty=False)
    model.add([random_query(rng) for _ in range(30)], parts=2)
    model.take(until=float("inf"), most=5)
    queues = model.queues
    callers = queues.abandon()
    assert sorted(callers) == sorted(model.waiters)
    for taken, _ in model.left:
        assert queues.finish(taken, None).callers == []
    assert (queues.waiting, queues.in_flight) == (0, 0)
    assert queues.abandon() == []


def test_two_batches_of_a_query_that_fail_at_once() -> None:
    """Each thread may see that the future has no answer yet, and give it its error."""
    both_looked = threading.Barrier(2)

    class Slow(Future[Any]):
        def done(self) -> bool:
            done = super().done()
            both_looked.wait(TIMEOUT)
            return done

    caller = Caller(Slow(), False)
    caller.future.set_running_or_notify_cancel()
    with ThreadPoolExecutor(2) as pool:
        failing = [pool.submit(caller.fail, RuntimeError(f"injected {i}")) for i in range(2)]
        assert [each.exception(TIMEOUT) for each in failing] == [None, None]


# -- when a batch leaves -----------------------------------------------------------------------------------------------


class Clock:
    """Stands still until it is set; counts the looks at it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looks = 0
        self._looked = threading.Condition()

    def monotonic(self) -> float:
        with self._looked:
            self.looks += 1
            self._looked.notify_all()
        return self.now

    def wait_for_looks(self, total: int) -> None:
        with self._looked:
            assert self._looked.wait_for(lambda: self.looks >= total, TIMEOUT)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("tagmatch.pipeline.stages.batcher.time", clock)
    return clock


class Batching:
    """A batch stage whose threads never come for anything; every query is of the first partition."""

    def __init__(self, flush_timeout: float | None, hand_over: int = 0) -> None:
        self.due: queue.Queue[Taken] = queue.Queue()
        self.announced: list[bool] = []
        self.batcher = Batcher(
            flush_timeout,
            1,
            hand_over,
            announce=lambda: self.announced.append(True),
            due=self.due.put,
            held=lambda _: None,
            lost=lambda _callers, _error: None,
        )

    def add(self, matcher: FakeMatcher, count: int = 1) -> list[int]:
        """Add so many queries; returns how many are in each piece that leaves at once."""
        batches = routed([Query([rank], (0, 0, 0), [0]) for rank in range(count)])
        callers = [Caller(Future(), False) for _ in range(count)]
        leaving, through = self.batcher.add(
            Submitted(matcher=matcher, unique=np.zeros(count, bool), callers=callers), batches
        )
        assert len(through) == 0
        return list(map(len, leaving))

    @property
    def queued(self) -> int:
        queued: int = self.batcher.stats()["queued"]
        return queued


@pytest.fixture
def batching() -> Iterator[Callable[..., Batching]]:
    made: list[Batching] = []
    yield lambda *arguments: made.append(Batching(*arguments)) or made[-1]
    for each in made:
        each.batcher.stop()


Made = Callable[..., Batching]


def test_lone_query_waits_for_the_flush_timeout_and_no_longer(clock: Clock, batching: Made) -> None:
    stage, matcher = batching(0.01), FakeMatcher()
    for begin in (0.0, 5.0):
        clock.now = begin
        assert stage.add(matcher) == []
        clock.wait_for_looks(clock.looks + 5)
        assert stage.due.empty(), "by the clock no time has passed"
        clock.now = begin + 0.011
        taken = stage.due.get(timeout=TIMEOUT)
        assert (len(taken), stage.queued) == (1, 0)
        assert len(stage.batcher.finish(taken, None)) == 1


def test_only_what_is_old_enough_is_due(clock: Clock, batching: Made) -> None:
    stage, older, younger = batching(0.01), FakeMatcher(), FakeMatcher()
    stage.add(older)
    clock.now = 0.006
    stage.add(younger)
    clock.now = 0.012
    assert stage.due.get(timeout=TIMEOUT).queues.matcher is older
    clock.wait_for_looks(clock.looks + 5)
    assert stage.due.empty()
    assert stage.queued == 1
    clock.now = 0.017
    assert stage.due.get(timeout=TIMEOUT).queues.matcher is younger


def test_full_batch_does_not_wait(batching: Made) -> None:
    stage, matcher = batching(None), FakeMatcher()
    assert [stage.add(matcher) for _ in range(4)] == [[], [], [], [4]]
    assert stage.batcher.stats() == {"queued": 0, "batches": 1, "fill": 1.0}
    assert stage.add(matcher, 9) == [8]
    assert stage.batcher.stats() == {"queued": 1, "batches": 3, "fill": 1.0}
    assert stage.due.empty()


def test_without_a_timeout_a_query_waits_for_a_thread(batching: Made) -> None:
    stage = batching(None)
    assert stage.add(FakeMatcher(), 2) == []
    assert stage.announced
    taken = stage.batcher.take()
    assert taken is not None
    assert len(taken) == 2
    assert stage.batcher.take() is None
    assert len(stage.batcher.finish(taken, None)) == 2


@pytest.mark.parametrize("options", [(0,), (None, 3)], ids=["no timeout", "small packet"])
def test_no_query_waits_where_none_should(batching: Made, options: tuple[Any, ...]) -> None:
    stage = batching(*options)
    assert stage.add(FakeMatcher(), 2) == [2]
    assert stage.queued == 0


@pytest.mark.parametrize("flush_timeout", [1e10, 1e300])
def test_flush_timeout_longer_than_a_lock_can_wait(clock: Clock, batching: Made, flush_timeout: float) -> None:
    """pytest makes an error of an exception in the timer."""
    stage = batching(flush_timeout)
    stage.add(FakeMatcher())
    clock.wait_for_looks(2)  # this thread's and the timer's
    assert stage.queued == 1  # which comes after the timer has begun to wait
    stage.batcher.stop()


@pytest.mark.parametrize(
    ("flush_timeout", "owner", "name", "waiting"),
    [(0.01, Stage, "put", (0, 1)), (None, Batcher, "add", (1, 0))],
    ids=["the timer delivers", "without a timeout"],
)
def test_where_queries_wait_while_all_threads_are_busy(
    monkeypatch: pytest.MonkeyPatch, flush_timeout: float | None, owner: type, name: str, waiting: tuple[int, int]
) -> None:
    """In the batch stage, or, once they are due, before the next one."""
    gate, done, do = Gate(monkeypatch, BalancedSubsetMatch, "match"), threading.Event(), getattr(owner, name)

    def spied(*arguments: Any) -> Any:
        outcome = do(*arguments)
        if owner is Batcher or threading.current_thread().name == "tagmatch-batch-timer":
            done.set()
        return outcome

    pipeline = PipelineOptions(hand_over_queries=0)
    with small(layout="balanced", threads=1, flush_timeout=flush_timeout, pipeline=pipeline) as tm:
        first = tm.submit(["t1"])
        assert gate.entered.wait(TIMEOUT)
        monkeypatch.setattr(owner, name, spied)  # not before: the timer may have delivered the first query, too
        second = tm.submit(["t2"])
        assert done.wait(TIMEOUT)
        stages = tm.stats()["stages"]
        assert (stages["batch"]["queued"], stages["subset_match"]["queued"]) == waiting
        assert not second.done()
        gate.open()
        assert (first.result(TIMEOUT), second.result(TIMEOUT)) == ([1], [2])
