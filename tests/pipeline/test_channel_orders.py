"""The orders of channels against brokers in plain Python that go on by the moment; and learned times of tasks."""

import math
import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import qos
from support.qos import NEVER, Asked, Scenario, Sent, scenarios

from tagmatch import Channel
from tagmatch.pipeline.run.counts import CostModel
from tagmatch.pipeline.run.orders import Class, Dfgs, Edf, Entry, Fifo, Order, longest_task

#: Entries that may share a task are of one matcher
ANY_MATCHER = object()


class Everything(Edf):
    """Without admission: all messages wait, as in the published brokers."""

    def _refuses(self, entries: Sequence[Entry], now: float) -> bool:  # noqa: ARG002
        return False


def known_cost(once: float, each: float) -> CostModel:
    cost = CostModel()
    cost.once, cost.each, cost.largest = once, each, 1 << 20
    return cost


def classes_of(channels: list[Asked], *, whole: bool) -> list[Class]:
    """Channels whose costs are known; where messages are in tasks, each has as many messages as it takes."""
    found = []
    for number, each in enumerate(channels):
        alone, more = each.tasks[0]
        channel = Channel(str(number), each.deadline, each.priority, expiry=each.expiry)
        found.append(Class(channel, known_cost(alone - more, more) if whole else known_cost(0, 1)))
    return found


@dataclass(eq=False)
class Message:
    """A call whose tasks are packets."""

    over: bool = False


def run(
    order: Order, classes: list[Class], sent: list[Sent], channels: list[Asked], cores: int, *, whole: bool = True
) -> list[int]:
    """When each message is answered, moment by moment, as the threads of the pipeline would have it."""
    ends: list[int | None] = [None] * len(sent)
    left = [0] * len(sent)
    running: list[tuple[list[Entry], int] | None] = [None] * cores

    def take_all(wanted: bool) -> None:
        for core in range(cores if wanted else 0):
            while running[core] is None and (turn := order.take(core, now)) is not None:
                for entry in turn.dropped:
                    ends[entry.work] = NEVER
                    if isinstance(entry.call, Message):
                        entry.call.over = True
                if turn.entries:
                    first = turn.entries[0]
                    expected = first.of.cost.seconds(sum(entry.count for entry in turn.entries))
                    running[core] = (turn.entries, now + sent[first.work].takes(int(expected)))

    now = 0
    while None in ends:
        for core, job in enumerate(running):
            if job is not None and job[1] == now:
                for entry in job[0]:
                    left[entry.work] -= 1
                    if not left[entry.work]:
                        ends[entry.work] = now
                running[core] = None
        take_all(isinstance(order, Dfgs))
        for m, message in enumerate(sent):
            if message.arrival != now:
                continue
            of, due = classes[message.channel], now + channels[message.channel].deadline
            if not whole:
                call, tasks = Message(), channels[message.channel].tasks
                entries = [Entry(of, now, due, alone, m, call=call) for alone, _ in tasks]
            else:
                entries = [Entry(of, now, due, 1, m, ANY_MATCHER)]  # type: ignore[arg-type]
            left[m] = len(entries)
            if order.put(entries, now) is not None:
                ends[m] = NEVER
            else:
                take_all(isinstance(order, Dfgs))
        take_all(True)
        now += 1
    assert len(order) == 0
    return [end for end in ends if end is not None]


@given(alike=scenarios(1), cores=st.integers(1, 3), most=st.integers(1, 4))
def test_edf(alike: list[Scenario], cores: int, most: int) -> None:
    """One by one, or in batches."""
    for sent, channels in alike:
        if most > 1:
            channels = [replace(each, expiry=each.deadline) for each in channels]
        classes = classes_of(channels, whole=True)
        longest = math.floor(longest_task(classes)) if most > 1 else 0
        wanted = qos.edf(sent, [replace(each, longest=longest) for each in channels], cores, most)
        assert run(Everything(classes, cores, most), classes, sent, channels, cores) == wanted


@given(alike=scenarios(4))
def test_edf_of_calls_in_packets(alike: list[Scenario]) -> None:
    """What cannot end in time is dropped as a whole. On one core, as more may have packets of a call at one time."""
    for sent, channels in alike:
        classes = classes_of(channels, whole=False)
        wanted = qos.edf(sent, channels, 1, 1)
        assert run(Everything(classes, 1, 1 << 20), classes, sent, channels, 1, whole=False) == wanted


@given(alike=scenarios(4), cores=st.integers(1, 3))
def test_dfgs_with_smart_dispatch(alike: list[Scenario], cores: int) -> None:
    for sent, channels in alike:
        plain = [replace(each, expiry=10_000) for each in channels]
        classes = classes_of(plain, whole=False)
        ways = [[True] * cores for _ in channels]
        wanted = qos.dfgs(sent, channels, ways, fine=True, smart=True, keep_head=False)
        assert run(Dfgs(classes, cores, 1 << 20), classes, sent, channels, cores, whole=False) == wanted


@given(alike=scenarios(1), cores=st.integers(1, 3))
def test_fifo_answers_all_in_order(alike: list[Scenario], cores: int) -> None:
    for given_sent, channels in alike:
        sent = [replace(each, pace=Fraction(1)) for each in given_sent]
        plain = [replace(each, expiry=10_000) for each in channels]
        classes = classes_of(plain, whole=True)
        free, wanted = [0] * cores, []
        for message in sent:
            core = min(range(cores), key=free.__getitem__)
            free[core] = max(free[core], message.arrival) + channels[message.channel].alone()
            wanted.append(free[core])
        assert run(Fifo(classes, cores, 1), classes, sent, channels, cores) == wanted


def test_the_higher_priority_goes_first_where_deadlines_are_equal() -> None:
    classes = [known(str(priority), 10, priority=priority) for priority in (0, 2, 1)]
    order = Edf(classes, 1, 1)
    assert [put(order, of, 1) for of in classes] == [1, 1, 1]
    begun = [taken(order, float(now))[1][0] for now in range(3)]
    assert [each.of.channel.priority for each in begun] == [2, 1, 0]


def known(name: str, deadline: float, once: float = 0, each: float = 1, **options: Any) -> Class:
    return Class(Channel(name, deadline, **options), known_cost(once, each))


def entry(of: Class, since: float, count: int = 1) -> Entry:
    return Entry(of, since, since + of.channel.due, count, None, ANY_MATCHER)  # type: ignore[arg-type]


def put(order: Order, of: Class, count: int, now: float = 0.0) -> int:
    """How many of `count` messages are let in."""
    return [order.put([entry(of, now)], now) for _ in range(count)].count(None)


def taken(order: Order, now: float) -> tuple[list[Entry], list[Entry]]:
    """What is dropped and what begins."""
    turn = order.take(0, now)
    assert turn is not None
    return turn.dropped, turn.entries


def test_a_latency_budget_is_waited_for() -> None:
    of = known("bulk", 10, 1, 0.25, latency_budget=2)
    order, first, second = Edf([of], 1, 4), entry(of, 0.0), entry(of, 1.0)
    assert order.put([first], 0.0) is None
    assert order.take(0, 0.0) is None
    assert order.ready_in(0, 0.5) == 1.5
    order.put([second], 1.0)
    assert taken(order, 2.0) == ([], [first, second])
    # As many as a task may have wait for no more; nor does one that would be late
    assert put(order, of, 4, 3.0) == 4
    assert order.ready_in(0, 3.0) == -math.inf
    late = known("late", 3, 1, 0, latency_budget=2.5)
    order = Edf([late], 1, 4)
    put(order, late, 1)
    assert order.ready_in(0, 0.0) == 2.0


def test_what_could_not_be_in_time_is_refused() -> None:
    bulk, alarm = known("bulk", 10), known("alarm", 2)
    order = Edf([alarm, bulk], 1, 1)
    assert put(order, bulk, 20) == 10
    # More urgent messages do not wait behind them
    assert put(order, alarm, 3) == 2
    # A thread that is at work begins later
    order = Edf([alarm, bulk], 1, 1)
    assert put(order, bulk, 1) == 1
    assert taken(order, 0.0)
    assert put(order, bulk, 20) == 9
    # Two threads answer twice as many
    assert put(Edf([alarm, bulk], 2, 1), bulk, 40) == 20


@pytest.mark.parametrize(
    ("priority", "now", "admitted"),
    [(0, 0.0, 2), (0, 5.0, 4), (1, 0.0, 4)],
    ids=["less important", "earlier messages are lost already", "as important"],
)
def test_what_is_more_important_keeps_its_place(priority: int, now: float, admitted: int) -> None:
    """With a later deadline it would be too late after the messages that have come since and go first."""
    bulk, other = known("bulk", 10, priority=1), known("other", 4, priority=priority)
    order = Edf([bulk, other], 1, 1)
    assert put(order, bulk, 8) == 8
    assert put(order, other, 4, now) == admitted


@pytest.mark.parametrize("make", [Edf, Dfgs])
@pytest.mark.parametrize(("deadline", "seconds", "packets", "at_least"), [(0.01, 10.0, 1, 11), (0.1, 0.02, 10, 6)])
def test_an_estimate_that_lets_nothing_in_is_forgotten(
    make: Callable[..., Order], deadline: float, seconds: float, packets: int, at_least: int
) -> None:
    """The first task may have compiled a kernel, or something made the machine slow: a channel must not stay shut.

    Also where each of several packets could be in time, but not all.
    """
    of = Class(Channel("alarm", deadline))
    of.cost.learn(packets, seconds)
    assert packets > 1 or put(make([of], 1, 64), of, 1) == 1  # nothing is known yet
    for _ in range(20):
        of.cost.learn(packets, seconds)
    order = make([of], 1, 10)
    refused = [order.put([entry(of, 0.0, packets) for _ in range(packets)], 0.0) for _ in range(100)]
    assert at_least <= refused.index(None)


@pytest.mark.parametrize("make", [Edf, Dfgs])
def test_what_comes_late_says_nothing_of_the_estimate(make: Callable[..., Order]) -> None:
    of = known("alarm", 1, 0.5, 0)
    order = make([of], 1, 64)
    assert not any(order.put([entry(of, -0.75)], 0.0) is None for _ in range(50))
    assert of.cost.once == 0.5


@pytest.mark.parametrize("make", [Edf, Dfgs])
def test_packets_do_not_take_longer_to_begin_than_to_match(make: Callable[..., Order]) -> None:
    """If a task begins too slowly for an urgent message, smaller tasks would only take longer in all."""
    alarm, bulk = known("alarm", 0.001, 0, 1e-6), known("bulk", 1, 0.002, 1e-5)
    assert make([alarm, bulk], 1, 4096).packet(bulk, 4096) == 200
    constant = known("bulk", 1, 0.002, 0)
    assert make([alarm, constant], 1, 4096).packet(constant, 4096) == 4096


@pytest.mark.parametrize("make", [Edf, Dfgs])
def test_a_channel_that_is_believed_to_be_late_leaves_packets_of_others_large(make: Callable[..., Order]) -> None:
    """Else its estimate, which nothing corrects while it has no messages, keeps the others from being in time, too."""
    alarm, bulk = known("alarm", 0.01, 0, 0.02), known("bulk", 1, 0, 1e-6)
    assert make([alarm, bulk], 7, 4096).packet(bulk, 4096) == 1000
    waiting = known("bulk", 1, 0, 1)
    waiting.learn_own(64, 64e-6)
    assert make([alarm, waiting], 7, 4096).packet(waiting, 4096) == 1000


@pytest.mark.parametrize("make", [Fifo, Edf, Dfgs])
def test_what_has_expired_is_not_matched(make: Callable[..., Order]) -> None:
    of = known("news", 1, 0, 0.5, expiry=3)
    order = make([of], 1, 1)
    kept, expired = entry(of, 1.0), entry(of, 0.0)
    order.put([expired], 0.0)
    order.put([kept], 1.0)
    assert taken(order, 3.25) == ([expired], [kept])


@pytest.mark.parametrize("make", [Fifo, Edf, Dfgs])
def test_what_is_taken_is_let_go(make: Callable[..., Order]) -> None:
    """A call holds the memory of its queries and answers; the next ones want it."""
    of, call = known("bulk", 100), Message()
    order = make([of], 1, 64)
    for _ in range(3):
        assert order.put([Entry(of, 0.0, 100.0, 1, None, call=call)], 0.0) is None
    held = weakref.ref(call)
    del call
    for now in range(3):
        assert held() is not None
        assert len(taken(order, float(now))[1]) == 1
    assert held() is None


@given(once=st.floats(0, 1e-2), each=st.floats(1e-6, 1e-3), rng=st.randoms(use_true_random=False))
def test_costs_are_learned(once: float, each: float, rng: random.Random) -> None:
    cost = CostModel()
    for size in [1, 5000] * 4 + [size for _ in range(50) for size in (rng.randint(1, 5000), 1, 5000)]:
        cost.learn(size, (once + each * size) * rng.uniform(0.95, 1.05))
    for size in (1, 5000):
        true = once + each * size
        assert 0.8 * true <= cost.once + cost.each * size <= min(1.25 * true, cost.seconds(size))
    limit = rng.randint(1, 5000)
    most = cost.most(cost.seconds(limit), 1 << 20)
    assert 1 <= most <= 10_000
    assert cost.seconds(most) <= cost.seconds(limit) * (1 + 1e-9)


def test_costs_follow_and_no_pause_spoils_them() -> None:
    cost = CostModel()
    cost.learn(1, 8.0)  # as where a kernel is compiled
    for _ in range(20):
        cost.learn(1, 0.001)
    assert cost.seconds(1) < 0.02
    for _ in range(200):
        cost.learn(10, 0.01)
    before = cost.seconds(10)
    cost.learn(10, 30.0)
    assert cost.seconds(10) < 1.3 * before
    for _ in range(300):
        cost.learn(10, 1.0)
    assert 0.8 < cost.once + 10 * cost.each < 1.2
