"""The partition queues and the results table against lists and sets, and when a batch leaves them."""

import itertools
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from support.pipelines import TIMEOUT, Gate, small, together
from support.places import lists_of, rows_of
from support.waiting import wait_until

from tagmatch import PipelineOptions
from tagmatch.model.arrays import Lists
from tagmatch.pipeline.balanced import BalancedSubsetMatch
from tagmatch.pipeline.run import batches as partition_queues
from tagmatch.pipeline.run.batches import Batcher, Completed, PartitionQueues, Taken
from tagmatch.pipeline.run.callers import Caller
from tagmatch.pipeline.run.packets import Packet
from tagmatch.pipeline.segment import Batches, Found
from tagmatch.pipeline.tags import QueryBatch

PARTITIONS = 6
CELL_BYTES = 8

Group = tuple[int, frozenset[int]]


class FakeMatcher:
    """Has partitions, and nothing in them."""

    def __init__(self, batch_size: int = 4, *, has_empty: bool = False) -> None:
        finder = SimpleNamespace(partitions=PARTITIONS, batch_size=batch_size, has_empty=has_empty)
        self.by_partition: Any = SimpleNamespace(finder=finder, matched=lambda sets: sets)


def ranks_of(number: int) -> list[int]:
    return list(range(number, number + number % 7))


def signature_of(number: int) -> tuple[int, ...]:
    return number, 2**64 - 1 - number, number << 60 & 2**64 - 1


def routed(queries: dict[int, set[int]]) -> Batches:
    """As `BalancedSubsetMatch.route`: partitions in order, each with its queries in order, which are numbers here."""
    queued = lists_of([[i for i, own in enumerate(queries.values()) if p in own] for p in range(PARTITIONS)], np.int64)
    ranks, signatures = lists_of(list(map(ranks_of, queries))), np.array(list(map(signature_of, queries)), np.uint64)
    batch = QueryBatch(ranks.offsets, ranks.values)
    return Batches(batch, signatures.reshape(-1, 3), np.arange(PARTITIONS), queued.offsets, queued.values)


class Machine(RuleBasedStateMachine):
    """Queries come in and batches leave and are finished in any order; lists and sets must always say the same."""

    @initialize(batch_size=st.sampled_from([1, 2, 3, 7, 256]), has_empty=st.booleans(), abandons=st.booleans())
    def create(self, batch_size, has_empty, abandons):
        self.queues = PartitionQueues(FakeMatcher(batch_size, has_empty=has_empty))
        self.batch_size, self.has_empty, self.abandons = batch_size, has_empty, abandons
        self.now, self.most_cells, self.numbers = 0.0, 1, itertools.count()
        self.waiting: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.since = [float("inf")] * PARTITIONS
        #: In which partitions each still waits, and what it has found
        self.outstanding: dict[int, set[int]] = {}
        self.results: dict[int, list[int]] = {}
        self.left: list[tuple[Taken, list[Group]]] = []

    @rule(queries=st.lists(st.sets(st.integers(0, PARTITIONS - 1)), max_size=12), parts=st.integers(1, 4))
    def add(self, queries, parts):
        new = dict(zip(self.numbers, queries, strict=False))
        self.outstanding |= {number: set(partitions) for number, partitions in new.items()}
        self.results |= {number: [0] * self.has_empty for number in new}
        cells = sum(len(ranks_of(number)) + len(partitions) + 1 for number, partitions in new.items())
        self.most_cells = max(self.most_cells, self.queues.nbytes // CELL_BYTES + cells)
        full = []
        for p, number in itertools.product(range(PARTITIONS), new):
            if p in new[number]:
                self.since[p] = min(self.since[p], self.now)
                self.waiting[p].append(number)
                if len(self.waiting[p]) == self.batch_size:
                    full.append(self.leave(p))
        taken, completed = self.queues.add(routed(new), list(new), self.now, parts)
        assert len(taken) <= parts
        self.check_taken(taken, full)
        self.check_completed(completed, new)

    @rule(seconds=st.sampled_from([0.5, 1.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule(ago=st.none() | st.sampled_from([0.0, 0.5, 1.0, 2.0]), most=st.none() | st.integers(1, 20))
    def take(self, ago, most):
        """All that are old enough, or the oldest queues that make up as many as are wanted."""
        until = float("inf") if ago is None else self.now - ago
        due = sorted((p for p in range(PARTITIONS) if self.since[p] <= until), key=self.since.__getitem__)
        due = [p for p in due if self.waiting[p]]
        if most is not None:
            before = itertools.accumulate((len(self.waiting[p]) for p in due), initial=0)
            due = [p for p, count in zip(due, before, strict=False) if count < most]
        taken = self.queues.take(until=until, most=most)
        assert len(taken) == bool(due)
        self.check_taken(taken, [self.leave(p) for p in due])

    @precondition(lambda self: self.left)
    @rule(data=st.data(), sets=st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=3), max_size=5))
    def finish(self, data, sets):
        self.end(data.draw(st.integers(0, len(self.left) - 1)), sets)

    def end(self, place: int, sets: list[list[int]]) -> None:
        """Finish batches; without any sets they have failed."""
        taken, groups = self.left.pop(place)
        callers, pairs = self.queues.callers(taken), []
        for partition, number in ((p, n) for p, members in groups for n in members):
            self.outstanding[number].remove(partition)
            found = sets[(number + partition) % len(sets)] if sets else []
            self.results[number] += found
            pairs += [(callers.index(number), each) for each in found]
        self.most_cells = max(self.most_cells, self.queues.nbytes // CELL_BYTES + len(pairs))
        columns = np.array(pairs, np.uint32).reshape(-1, 2)
        completed = self.queues.finish(taken, Found(columns[:, 0].copy(), columns[:, 1].copy(), 0) if sets else None)
        self.check_completed(completed, set().union(*(members for _, members in groups)))

    @invariant()
    def same(self):
        if not hasattr(self, "queues"):
            return
        assert self.queues.waiting == sum(map(len, self.waiting))
        assert self.queues.in_flight == len(self.outstanding)
        assert self.queues.oldest == min(self.since)
        lists = sum(len(ranks_of(number)) + len(found) for number, found in self.results.items())
        assert self.queues.nbytes == CELL_BYTES * (lists + self.queues.waiting)
        # What is free is used again
        assert self.queues.nbytes <= self.queues.room <= 2 * CELL_BYTES * self.most_cells

    def teardown(self):
        if not hasattr(self, "queues"):
            return
        if self.abandons:
            assert sorted(self.queues.abandon()) == sorted(self.outstanding)
            assert not any(self.queues.finish(taken, None).callers for taken, _ in self.left)
            assert self.queues.abandon() == []
        else:
            self.take(None, None)
            while self.left:
                self.end(0, [])
            assert (self.queues.nbytes, self.queues.oldest) == (0, float("inf"))
        assert (self.queues.waiting, self.queues.in_flight) == (0, 0)

    def leave(self, partition: int) -> Group:
        members, self.waiting[partition] = frozenset(self.waiting[partition]), []
        self.since[partition] = float("inf")
        return partition, members

    def check_taken(self, taken: Sequence[Taken], expected: list[Group]) -> None:
        found = [self.groups_of(each) for each in taken]
        assert Counter(itertools.chain(*found)) == Counter(expected)
        self.left += zip(taken, found, strict=True)

    def groups_of(self, taken: Taken) -> list[Group]:
        """The batches as partitions with queries, whose ranks and signatures must be those that were added."""
        batches, callers = taken.batches, self.queues.callers(taken)
        assert len(set(callers)) == len(callers)
        assert rows_of(Lists(batches.queries.offsets, batches.queries.ranks)) == list(map(ranks_of, callers))
        assert batches.signatures.tolist() == [list(signature_of(number)) for number in callers]
        queued = rows_of(Lists(batches.offsets, batches.queued))
        members = [[callers[i] for i in row] for row in queued]
        assert sum(map(len, queued)) == sum(len(set(row)) for row in members) == len(taken)
        return list(zip(batches.partitions.tolist(), map(frozenset, members), strict=True))

    def check_completed(self, completed: Completed, touched: Iterable[int]) -> None:
        assert sorted(completed.callers) == [number for number in sorted(touched) if not self.outstanding[number]]
        for number, found in zip(completed.callers, rows_of(completed.sets), strict=True):
            assert sorted(found) == sorted(self.results.pop(number))
            del self.outstanding[number]


def test_any_order_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables begin with a single place, so that they grow all the time."""
    monkeypatch.setattr(partition_queues, "_FIRST_CELLS", 1)
    monkeypatch.setattr(partition_queues, "_FIRST_SLOTS", 1)
    run_machine(Machine, settings=settings(stateful_step_count=80))


def test_two_batches_of_a_query_that_fail_at_once() -> None:
    """Each thread may find the future without an answer, and give it its error."""
    both_looked = threading.Barrier(2)

    class Slow(Future[Any]):
        def done(self) -> bool:
            done = super().done()
            both_looked.wait(TIMEOUT)
            return done

    caller = Caller(Slow(), False)
    caller.future.set_running_or_notify_cancel()
    with together([lambda: caller.fail(RuntimeError("injected"))] * 2):
        pass


class Clock:
    """Stands still until it is set."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("tagmatch.pipeline.run.batches.time", clock)
    return clock


class Batching:
    """A batch stage whose threads never come for anything; every query is of the first partition."""

    def __init__(self, flush_timeout: float | None, hand_over: int = 0) -> None:
        self.announced: list[bool] = []
        self.batcher = Batcher(
            flush_timeout, 1, hand_over, announce=lambda: self.announced.append(True), held=lambda _: None,
            lost=lambda _callers, _error: None,
        )  # fmt: skip

    def add(self, matcher: FakeMatcher, count: int = 1) -> list[int]:
        """Add `count` queries; returns how many are in each piece that leaves at once."""
        batches = routed({number: {0} for number in range(count)})
        callers = [Caller(Future(), False) for _ in range(count)]
        packet = Packet(matcher=matcher, callers=callers)
        leaving, through = self.batcher.add(packet, batches)
        assert len(through) == 0
        return list(map(len, leaving))

    def queued(self) -> int:
        queued: int = self.batcher.stats()["queued"]
        return queued


@pytest.mark.parametrize("flush_timeout", [0.01, 1e300])
def test_only_what_has_waited_for_the_flush_timeout_is_due(clock: Clock, flush_timeout: float) -> None:
    stage, older, younger = Batching(flush_timeout), FakeMatcher(), FakeMatcher()
    for begin in (0.0, 5.0):
        clock.now = begin
        assert stage.add(older) == []
        clock.now = begin + 0.006
        assert stage.add(younger) == []
        for later, matcher in ((0.012, older), (0.017, younger)):
            assert stage.batcher.take_due() is None, "by the clock no time has passed"
            clock.now = begin + later
            taken = stage.batcher.take_due()
            assert (taken is None) == (flush_timeout > 1)
            taken = taken or stage.batcher.take()
            assert taken is not None
            assert (taken.queues.matcher, len(taken)) == (matcher, 1)
            assert len(stage.batcher.finish(taken, None)) == 1
        assert stage.queued() == 0


def test_full_batch_does_not_wait() -> None:
    stage, matcher = Batching(None), FakeMatcher()
    assert [stage.add(matcher) for _ in range(4)] == [[], [], [], [4]]
    assert stage.batcher.stats() == {"queued": 0, "batches": 1, "fill": 1.0}
    assert stage.add(matcher, 9) == [8]
    assert stage.batcher.stats() == {"queued": 1, "batches": 3, "fill": 1.0}
    # The last waits for a thread
    assert stage.announced
    taken = stage.batcher.take()
    assert taken is not None
    assert len(taken) == 1
    assert stage.batcher.take() is None


@pytest.mark.parametrize("options", [(0,), (None, 3)], ids=["no timeout", "small packet"])
def test_no_query_waits_where_none_should(options: tuple[Any, ...]) -> None:
    stage = Batching(*options)
    assert stage.add(FakeMatcher(), 2) == [2]
    assert stage.queued() == 0


@pytest.mark.parametrize("flush_timeout", [1e-9, None])
def test_what_has_waited_goes_before_what_is_full(monkeypatch: pytest.MonkeyPatch, flush_timeout: float | None) -> None:
    """Queries wait in the batch stage while all threads are busy, and full batches before the next one."""
    gate, matched = Gate(monkeypatch, BalancedSubsetMatch, "match"), list[int]()
    pipeline = PipelineOptions(hand_over_queries=0)
    with small(layout="balanced", threads=1, batch_size=2, flush_timeout=flush_timeout, pipeline=pipeline) as tm:
        first = tm.submit(["t1"])
        assert gate.entered.wait(TIMEOUT)
        futures = [tm.submit(["t2"]) for _ in range(3)]
        wait_until(lambda: [tm.stats()["stages"][name]["queued"] for name in ("batch", "subset_match")] == [1, 1])
        assert not any(future.done() for future in futures)
        for i, future in enumerate(futures):
            future.add_done_callback(lambda _, i=i: matched.append(i))
        gate.open()
        assert [future.result(TIMEOUT) for future in (first, *futures)] == [[1], [2], [2], [2]]
    assert matched.index(2) == (0 if flush_timeout else 2)
