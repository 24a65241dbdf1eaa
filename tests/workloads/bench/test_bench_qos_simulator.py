"""Brokers with deadlines: simulated, beside one that goes on by the nanosecond, and with real matching."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import qos
from support.qos import Asked, Scenario, Sent, scenarios
from support.systems import matching_keys

from tagmatch.model.errors import InvalidValueError
from tagmatch.workloads.qos import SCENARIOS, Channel, QosOptions
from tagmatch.workloads.qos.brokers import BROKERS
from tagmatch.workloads.qos.channels import NANOSECONDS, Flow
from tagmatch.workloads.qos.driving import Channels, Driven, run_virtual
from tagmatch.workloads.qos.kernels import DROPPED, EXACT, Messages, Work
from tagmatch.workloads.qos.matching import Matching, check, times_of
from tagmatch.workloads.qos.simulator import Policy, arrivals, count_results, run, work_of
from tagmatch.workloads.qos.subscriptions import events, subscriptions


def messages_of(sent: list[Sent]) -> Messages:
    columns = [(each.arrival, each.channel, int(each.pace * EXACT)) for each in sent]
    return Messages(*np.array(columns, np.int64).reshape(-1, 3).T.copy())


def work_with(channels: list[Asked], *, indivisible: bool = False) -> Work:
    tasks = [((each.alone(), 1),) if indivisible else each.tasks for each in channels]
    rest = [sum(alone for alone, _ in each[i:]) for each in tasks for i in range(len(each))]
    columns = [
        [each.deadline for each in channels], [each.expiry for each in channels], [each.priority for each in channels],
        np.cumsum([0, *map(len, tasks)]), [channel for channel, each in enumerate(tasks) for _ in each],
        [alone for each in tasks for alone, _ in each], [more for each in tasks for _, more in each],
        [each.longest for each, its in zip(channels, tasks, strict=True) for _ in its], rest,
    ]  # fmt: skip
    return Work(*(np.array(column, np.int64) for column in columns))


@given(alike=scenarios(4), cores=st.integers(1, 3))
def test_fifo(alike: list[Scenario], cores: int) -> None:
    for sent, channels in alike:
        ends = run(messages_of(sent), work_with(channels), cores, Policy("fifo"))
        assert ends.tolist() == qos.fifo(sent, channels, cores)


@given(alike=scenarios(4), cores=st.integers(1, 3), most=st.integers(1, 4))
def test_edf(alike: list[Scenario], cores: int, most: int) -> None:
    for sent, channels in alike:
        ends = run(messages_of(sent), work_with(channels), cores, Policy("edf", most=most))
        assert ends.tolist() == qos.edf(sent, channels, cores, most)


@given(
    alike=scenarios(4),
    cores=st.integers(1, 3),
    no_ways=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=3),
    fine=st.booleans(),
    smart=st.booleans(),
    keep_head=st.booleans(),
)
def test_dfgs(
    alike: list[Scenario], cores: int, no_ways: set[tuple[int, int]], fine: bool, smart: bool, keep_head: bool
) -> None:
    policy = Policy("dfgs", fine=fine, smart=smart, keep_head=keep_head)
    for sent, channels in alike:
        ways = [[(channel, core) not in no_ways for core in range(cores)] for channel in range(len(channels))]
        ends = run(messages_of(sent), work_with(channels, indivisible=not fine), cores, policy, np.array(ways))
        assert ends.tolist() == qos.dfgs(sent, channels, ways, fine=fine, smart=smart, keep_head=keep_head)


def test_lateness() -> None:
    flow = Flow(Channel("only", 100e-9), 1.0, 1e-9)
    late_by = [-99, -75, -74, 0, 1, 25, 26, 1600, 1601]
    messages = Messages(*(np.array(column, np.int64) for column in ([5] * 10, [0] * 10, [EXACT] * 10)))
    ends = np.array([105 + late for late in late_by] + [qos.NEVER], np.int64)
    (result,) = count_results(messages, [flow], ends)
    assert (result.offered, result.in_time, result.late, result.dropped) == (10, 4, 5, 1)
    assert result.lateness == (2, 1, 0, 1, 2, 1, 0, 0, 0, 0, 1, 1)
    ends[3] = -2
    with pytest.raises(RuntimeError, match="only: the simulator lost 1 of 10 messages"):
        count_results(messages, [flow], ends)


@pytest.mark.parametrize("poisson", [False, True])
def test_arrivals(poisson: bool) -> None:
    flows = QosOptions().flows
    found, again = (arrivals(flows, 20.0, 3, poisson=poisson, error=0.25 * poisson) for _ in range(2))
    assert (np.diff(found.arrival) >= 0).all()
    for channel, flow in enumerate(flows):
        at = found.arrival[found.channel == channel]
        gaps = np.diff(at) / (flow.period * 1e9)
        assert len(at) == pytest.approx(20 / flow.period, rel=0.05)
        assert gaps.std() == pytest.approx(float(poisson), rel=0.05, abs=1e-4)
    least, most = (0.75, 1.25) if poisson else (1, 1)
    assert least * EXACT == pytest.approx(found.pace.min(), rel=0.01)
    assert most * EXACT == pytest.approx(found.pace.max(), rel=0.01)
    assert all((one == other).all() for one, other in zip(found, again, strict=True))
    assert not poisson or len(arrivals(flows, 20.0, 4, poisson=True).arrival) != len(again.arrival)


def test_scenarios_and_options() -> None:
    """Tasks share out a message, and batches leave time for every channel."""
    assert SCENARIOS["table2"].utilisation == pytest.approx(1 / 3 + 0.52)
    faster = SCENARIOS["figure8"].faster(2)
    assert (faster.period1, faster.period2, faster.cores) == (0.000_021, 0.001_25, 7)
    assert [flow.tasks for flow in QosOptions().flows] == [(9_800, 60_200), (39_000, *[126_100] * 10)]
    assert Flow(Channel("c", 1.0), 1.0, 10e-9, parts=3).tasks == (3, 3, 4)
    work = work_of(replace(QosOptions(), shared=0.5).flows)
    assert work.longest.tolist() == [70_000, 430_000, 180_000, *[430_000] * 10]
    assert (work.more[0], work.rest[2]) == (4_900, 1_300_000)
    with pytest.raises(InvalidValueError, match=r"processing2 must be at most deadline2, 0\.006"):
        QosOptions(processing2=0.007)
    ways = np.ones((2, 2), np.bool_)
    with pytest.raises(InvalidValueError, match=r"ways must have a row for each channel .* \(1, 2\)"):
        run(messages_of([]), work_with([Asked(1, 1, 0, 1, ((1, 1),))]), 2, Policy("dfgs"), ways)


ROWS = 12
#: Subscriptions and seeds of the two channels
SIZES = ((300, 3), (2000, 4))
MATCHINGS = (Matching(300, 1, ROWS, seed=3), Matching(2000, 4, ROWS, seed=4))


@pytest.fixture(scope="module")
def right() -> list[list[list[int]]]:
    """Of each channel's messages, by brute force."""
    return [
        matching_keys(subscriptions(count, seed).to_pylist(), events(ROWS, seed).to_pylist()) for count, seed in SIZES
    ]


def channels(first: float, second: float, times: Fraction | int = 1) -> Channels:
    """Both with so many seconds of deadline; messages come as often as keeps one worker busy for half of the time."""
    flows = [Flow(Channel("channel 1", first), 4e-4, 1e-5), Flow(Channel("channel 2", second), 2e-3, 1e-5)]
    return Channels(flows, MATCHINGS, [Fraction(times)] * 2)


def test_tasks_find_what_brute_force_finds(right: list[list[list[int]]]) -> None:
    for matching, due in zip(MATCHINGS, right, strict=True):
        assert [sorted(matching.answer(row)) for row in range(ROWS)] == due
    assert check(MATCHINGS, 100) == (sum(len(keys) for due in right for keys in due), 0, 0)


def test_longer_messages_go_round_again(right: list[list[list[int]]]) -> None:
    """Work of a message that takes so many times as long is so many times as much."""
    messages = Messages(np.arange(2 * ROWS) * NANOSECONDS, np.arange(2 * ROWS) % 2, np.full(2 * ROWS, EXACT))
    once = sum(len(right[number % 2][number % ROWS]) for number in range(2 * ROWS))
    for broker in BROKERS.values():
        found = {}
        for times in (Fraction(1), Fraction(1, 2), Fraction(3, 2), Fraction(3)):
            driven = Driven(messages, channels(1, 1, times), broker, 1)
            run_virtual(driven)
            assert (driven.ends != DROPPED).all()
            found[times] = driven.found
        half = found[Fraction(1, 2)]
        assert found == {Fraction(1): once, Fraction(1, 2): half, Fraction(3, 2): once + half, Fraction(3): 3 * once}
        assert 0 < half < once
    assert [times_of(value) for value in (0.25, 0.01, 1, 1.3, 4)] == [Fraction(n, 4) for n in (1, 1, 4, 5, 16)]


@pytest.mark.parametrize("policy", BROKERS)
@pytest.mark.parametrize(("workers", "tight"), [(1, False), (3, False), (1, True)])
def test_every_message_is_counted_once(right: list[list[list[int]]], policy: str, workers: int, tight: bool) -> None:
    offered = channels(*((4e-5, 1e-4) if tight else (10, 10)), times=4 if tight else 1)
    messages = arrivals(offered.flows, 0.1 if tight else 0.05, seed=workers, poisson=True)
    driven = Driven(messages, offered, BROKERS[policy], workers)
    run_virtual(driven)
    results = count_results(messages, offered.flows, driven.ends)  # fails where one is lost
    assert sum(each.offered for each in results) == len(messages.arrival) > 50
    assert all(each.in_time + each.late + each.dropped == each.offered for each in results)
    assert len(driven.order) == 0
    if tight:
        assert sum(each.late + each.dropped for each in results) > 0
        # These drop nothing
        assert policy not in ("QoS-ignorant", "FIFO") or sum(each.dropped for each in results) == 0
    else:
        assert all(each.in_time == each.offered for each in results)
        due = [len(right[channel][number % ROWS]) for number, channel in enumerate(messages.channel.tolist())]
        assert driven.found == sum(due)
    assert driven.spent.messages == len(messages.arrival)
    assert driven.spent.putting > 0
    assert driven.spent.taking > 0 or tight  # where all may be refused
