"""The simulator of brokers with deadlines: when it answers each message, beside one that goes on by the nanosecond."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import qos
from support.qos import Asked, Sent

from tagmatch.model.errors import InvalidValueError
from tagmatch.workloads.qos import SCENARIOS, Channel, QosOptions
from tagmatch.workloads.qos.channels import Flow
from tagmatch.workloads.qos.kernels import EXACT, Messages, Work
from tagmatch.workloads.qos.simulator import Policy, arrivals, count_results, run, work_of

pytestmark = pytest.mark.nightly

Scenario = tuple[list[Sent], list[Asked]]


#: Scenarios of an example, all alike: what tells policies apart is rare in each
EACH = 10


@st.composite
def scenarios(draw: st.DrawFn) -> list[Scenario]:
    """What scenarios are like is drawn; their numbers are random, so that few of them are small."""
    random = draw(st.randoms(use_true_random=False, note_method_calls=False))
    most_channels, most_tasks = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    longest_gap, exact, expiry = draw(st.integers(0, 12)), draw(st.booleans()), draw(st.sampled_from([0, 0, 5, 30]))
    found = []
    for _ in range(EACH):
        channels = []
        for _ in range(random.randint(1, most_channels)):
            alone = [random.randint(1, 6) for _ in range(random.randint(1, most_tasks))]
            deadline = sum(alone) + random.randint(-1, 40)
            tasks = tuple((each, random.randint(1, each)) for each in alone)
            channels.append(Asked(deadline, deadline + expiry, random.randint(0, 1), random.randint(1, 15), tasks))
        sent, now = [], 0
        for _ in range(random.randint(0, 30)):
            now += random.randint(0, longest_gap)
            pace = EXACT if exact else random.randint(EXACT // 2, 2 * EXACT)
            sent.append(Sent(now, random.randint(0, len(channels) - 1), Fraction(pace, EXACT)))
        found.append((sent, channels))
    return found


def messages_of(sent: list[Sent]) -> Messages:
    columns = [(each.arrival, each.channel, int(each.pace * EXACT)) for each in sent]
    return Messages(*np.array(columns, np.int64).reshape(-1, 3).T.copy())


def work_with(channels: list[Asked], *, indivisible: bool = False) -> Work:
    tasks = [((each.alone(), 1),) if indivisible else each.tasks for each in channels]
    rest = [sum(alone for alone, _ in each[i:]) for each in tasks for i in range(len(each))]
    columns = [
        [each.deadline for each in channels],
        [each.expiry for each in channels],
        [each.priority for each in channels],
        np.cumsum([0, *map(len, tasks)]),
        [channel for channel, each in enumerate(tasks) for _ in each],
        [alone for each in tasks for alone, _ in each],
        [more for each in tasks for _, more in each],
        [each.longest for each, its in zip(channels, tasks, strict=True) for _ in its],
        rest,
    ]
    return Work(*(np.array(column, np.int64) for column in columns))


@given(alike=scenarios(), cores=st.integers(1, 3))
def test_fifo(alike: list[Scenario], cores: int) -> None:
    for sent, channels in alike:
        ends = run(messages_of(sent), work_with(channels), cores, Policy("fifo"))
        assert ends.tolist() == qos.fifo(sent, channels, cores)


@given(alike=scenarios(), cores=st.integers(1, 3), most=st.integers(1, 4))
def test_edf(alike: list[Scenario], cores: int, most: int) -> None:
    for sent, channels in alike:
        ends = run(messages_of(sent), work_with(channels), cores, Policy("edf", most=most))
        assert ends.tolist() == qos.edf(sent, channels, cores, most)


@given(
    alike=scenarios(),
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


def test_dfgs_with_a_queue_longer_than_its_first_room() -> None:
    channels = [Asked(10_000, 10_000, 0, 1, ((1, 1),) * 9), Asked(500, 500, 0, 1, ((2, 1),))]
    sent = [Sent(i // 4, int(i % 5 == 4), Fraction(1)) for i in range(90)]
    ways = [[True, False], [True, True]]
    ends = run(messages_of(sent), work_with(channels), 2, Policy("dfgs"), np.array(ways))
    assert ends.tolist() == qos.dfgs(sent, channels, ways, fine=True, smart=True, keep_head=False)
    assert qos.NEVER not in ends


def test_ways_of_another_shape_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"ways must have a row for each channel .* \(1, 2\)"):
        run(messages_of([]), work_with([Asked(1, 1, 0, 1, ((1, 1),))]), 2, Policy("dfgs"), np.ones((2, 2), np.bool_))


# -- whole scenarios ---------------------------------------------------------------------------------------------------


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


def test_arrivals() -> None:
    flows = QosOptions().flows
    periodic = arrivals(flows, 1.0, 3, poisson=False)
    assert (np.diff(periodic.arrival) >= 0).all()
    for channel, flow in enumerate(flows):
        at = periodic.arrival[periodic.channel == channel]
        assert abs(np.diff(at) - flow.period * 1e9).max() <= 1
        assert at[0] <= flow.period * 1e9
        assert at[-1] >= 1e9 - flow.period * 1e9
    assert (periodic.pace == EXACT).all()
    poisson = arrivals(flows, 20.0, 3, poisson=True, error=0.25)
    for channel, flow in enumerate(flows):
        at = poisson.arrival[poisson.channel == channel]
        assert len(at) == pytest.approx(20 / flow.period, rel=0.05)
        gaps = np.diff(at) / (flow.period * 1e9)
        assert gaps.std() == pytest.approx(1.0, rel=0.05)
    assert 0.75 * EXACT <= poisson.pace.min() < 0.76 * EXACT < 1.24 * EXACT < poisson.pace.max() <= 1.25 * EXACT
    again = arrivals(flows, 20.0, 3, poisson=True, error=0.25)
    assert all((one == other).all() for one, other in zip(poisson, again, strict=True))
    assert len(arrivals(flows, 20.0, 4, poisson=True).arrival) != len(again.arrival)


# -- channels ----------------------------------------------------------------------------------------------------------


def test_tasks_share_out_a_message() -> None:
    """And batches leave time for every channel."""
    first, second = QosOptions().flows
    assert first.tasks == (9_800, 60_200)
    assert second.tasks == (39_000, *[126_100] * 10)
    assert Flow(Channel("c", 1.0), 1.0, 10e-9, parts=3).tasks == (3, 3, 4)
    work = work_of(replace(QosOptions(), shared=0.5).flows)
    assert work.longest.tolist() == [70_000, 430_000, 180_000, *[430_000] * 10]
    assert work.more[:2].tolist() == [4_900, 30_100]
    assert work.rest[1:4].tolist() == [60_200, 1_300_000, 1_261_000]


def test_scenarios_and_options() -> None:
    assert SCENARIOS["table2"].utilisation == pytest.approx(1 / 3 + 0.52)
    assert SCENARIOS["figure11"].flows[1].processing == 0.0026
    faster = SCENARIOS["figure8"].faster(2)
    assert (faster.period1, faster.period2, faster.cores) == (0.000_021, 0.001_25, 7)
    with pytest.raises(InvalidValueError, match=r"processing2 must be at most deadline2, 0\.006"):
        QosOptions(processing2=0.007)
    with pytest.raises(InvalidValueError, match=r"h_share1 must be from 0 to 0\.99, not 1\.0"):
        QosOptions(h_share1=1.0)
