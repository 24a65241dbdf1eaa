"""Brokers with deadlines: simulated, against one that goes on by the nanosecond, with real matching, and by command."""

import math
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import qos
from support.bench import Found, at, measured
from support.qos import Asked, Scenario, Sent, scenarios
from support.systems import matching_keys

from tagmatch import Channel
from tagmatch.model.errors import InvalidValueError
from tagmatch_bench.figures import published
from tagmatch_bench.figures.figure import PARTS
from tagmatch_bench.qos.driving import BROKERS, Channels, Driven, run_virtual
from tagmatch_bench.qos.kernels import DROPPED, EXACT, Messages, Work
from tagmatch_bench.qos.matching import Matching, events, subscriptions, times_of
from tagmatch_bench.qos.simulator import (
    NANOSECONDS,
    SCENARIOS,
    Flow,
    Policy,
    QosOptions,
    arrivals,
    count_results,
    run,
    work_of,
)


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
    """Both with this deadline in seconds; messages come as often as keeps one worker busy for half of the time."""
    flows = [Flow(Channel("channel 1", first), 4e-4, 1e-5), Flow(Channel("channel 2", second), 2e-3, 1e-5)]
    longest = [each.h_seconds + each.parts * each.part_seconds for each in MATCHINGS]
    return Channels(flows, MATCHINGS, [Fraction(times)] * 2, longest)


def test_tasks_find_what_brute_force_finds(right: list[list[list[int]]]) -> None:
    for matching, due in zip(MATCHINGS, right, strict=True):
        assert [sorted(matching.answer(row)) for row in range(ROWS)] == due
        assert [sorted(matching.whole_answer(row)) for row in range(ROWS)] == due


def test_the_published_estimate_is_the_longest_time_that_was_measured() -> None:
    """A message whose longest time is past its deadline is deserted, however brief messages are; learning takes it."""
    messages = Messages(np.arange(20) * NANOSECONDS, np.zeros(20, np.int64), np.full(20, EXACT))
    slow = replace(channels(1, 1), longest=[1.5, 0.0])
    for name, answered in (
        ("DFGS + Smart Dispatch", 0),
        ("DFGS", 0),
        ("DFGS + Smart Dispatch, learned", 20),
        ("EDF", 20),
    ):
        driven = Driven(messages, slow, BROKERS[name], 2)
        run_virtual(driven)
        assert np.count_nonzero(driven.ends != DROPPED) == answered, name


@pytest.mark.parametrize("name", ["DFGS + Smart Dispatch", "DFGS", "Smart Dispatch"])
def test_a_channel_that_takes_long_at_times_is_no_reason_to_desert_another(name: str) -> None:
    """The longest time of one channel says nothing of the other, also where messages of both wait in one line."""
    messages = Messages(np.arange(20) * NANOSECONDS, np.ones(20, np.int64), np.full(20, EXACT))
    driven = Driven(messages, replace(channels(2, 1), longest=[1.5, 0.5]), BROKERS[name], 2)
    run_virtual(driven)
    assert (driven.ends != DROPPED).all()


def test_longer_messages_go_round_again(right: list[list[list[int]]]) -> None:
    """The work of a message is in proportion to its time."""
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
    results = count_results(messages, offered.flows, driven.ends)  # fails if one is lost
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
    assert driven.spent.taking > 0 or tight  # then all may be refused


CHANNELS = ("channel 1", "channel 2")
THREE = ("QoS-ignorant", "DFGS + Smart Dispatch", "EDF")
FIVE = ("QoS-ignorant", "DFGS", "Smart Dispatch", "DFGS + Smart Dispatch", "EDF")
ARRIVALS = ("periodic", "Poisson")


def found_in(command: str, folder: Path, *parts: str, more: tuple[object, ...] = ()) -> Found:
    words = [word for part in parts for word in ("--part", part)]
    return measured(command, folder, "--seeds", 2, *words, *more)


def simulated(folder: Path, *parts: str) -> Found:
    found = found_in("qos", folder, *parts, more=("--messages", 400))
    for title, panel in found.panels.items():
        for value in panel["values"]:
            assert value["value"] == pytest.approx(sum(value["samples"]) / 2) or title.startswith("Table 1")
            assert 0 <= value["value"] <= 100 or panel["unit"] == "messages/s"
    return found


def test_tables(tmp_path: Path) -> None:
    found = simulated(tmp_path, "table1", "table2")
    alone, printed = found.values("Table 1: a message alone"), found.published("Table 1: a message alone")
    times = {"6,000": 0.034, "60,000": 0.15, "600,000": 0.81}
    assert {place: alone["EDF", place] for _, place in alone} == times
    assert all(alone[system, place] == printed["a message", place] for system in THREE for _, place in printed)
    for way in ARRIVALS:
        failed = found.values(f"Table 2, 1 core, {way}")
        assert failed.keys() == {(system, channel) for system in THREE for channel in (*CHANNELS, "all")}
        assert failed["QoS-ignorant", "channel 1"] > 10
        lateness = found.values(f"Table 2, 1 core, {way}: answers by lateness")
        shares = {place: share for (of, place), share in lateness.items() if of == "QoS-ignorant, channel 1"}
        assert math.isclose(sum(shares.values()), 100), "it drops nothing"
        late = sum(share for place, share in shares.items() if "+" in place and place != "to +0")
        assert late == pytest.approx(failed["QoS-ignorant", "channel 1"])


def test_failure_rates(tmp_path: Path) -> None:
    found = simulated(tmp_path, *(part for part in PARTS["qos"] if part[0] == "f" and part != "figure12"))
    titles = {
        "Figure 6, 1 core": (THREE, 7), "Figure 7, 1 core": (THREE, 6), "Figure 8, 7 cores": (THREE, 9),
        "Figure 9, 7 cores": (FIVE, 9), "Figure 10": (THREE, 7),
        "Figure 11, 7 cores, channel 2 takes twice as long": (FIVE, 7),
    }  # fmt: skip
    assert found.panels.keys() == {f"{title}, {way}" for title in titles for way in ARRIVALS}
    for name in found.panels:
        policies, places = titles[name.rpartition(", ")[0]]
        systems = {f"{policy}, {channel}" for policy in policies for channel in (*CHANNELS, "all")}
        assert found.places(name).keys() == systems
        assert len(found.values(name)) == places * len(systems)
    assert found.published("Figure 10, periodic") == {("QoS-ignorant, all, at least", 7): 5.0}


@pytest.mark.parametrize("command", ["qos", "qos-real"])
def test_most_messages(tmp_path: Path, command: str) -> None:
    found = (
        simulated(tmp_path, "figure12") if command == "qos" else matched(tmp_path, "figure12", more=("--messages", 30))
    )
    for way in ARRIVALS:
        on_each, of_all = (
            found.values(f"Figure 12, {way}: under 1 % {fail}") for fail in ("fail on each channel", "of all fail")
        )
        assert on_each.keys() == of_all.keys()
        assert all(on_each[place] <= of_all[place] for place in of_all)
        if command == "qos":
            assert on_each["EDF", 1] > 3 * on_each["QoS-ignorant", 1]
            assert on_each["EDF, batches", 7] > on_each["EDF", 7] > 3 * on_each["EDF", 1]
    assert found.value("Figure 12, paper: its QoS-aware system against QoS-ignorant, at least") == 10


def test_no_ratio_is_given_where_every_message_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that is busy otherwise: the rates are 0."""
    monkeypatch.setattr("tagmatch_bench.figures.qos.percent_failed", lambda _: {"all": 100.0})
    found = simulated(tmp_path, "figure12")
    for way in ARRIVALS:
        assert {*found.values(f"Figure 12, {way}: under 1 % fail on each channel").values()} == {0.0}
    assert not [what for what in found.lines if " against " in what and "paper" not in what]


MESSAGES = 50
LEARNED = "DFGS + Smart Dispatch, learned"


def matched(folder: Path, *parts: str, more: tuple[object, ...] = ()) -> Found:
    small = ("--messages", MESSAGES, "--subscriptions1", 300, "--subscriptions2", 3000)
    found = found_in("qos-real", folder, *parts, more=(*small, *more))
    (answers,) = found.answers
    assert answers["keys"] > 0
    return found


def test_real_failure_rates(tmp_path: Path) -> None:
    found = matched(tmp_path, "table2", "figure8", "figure9", "figure10")
    for name in ARRIVALS:
        failed = found.values(f"Table 2, 1 core, {name}")
        assert failed.keys() == {(policy, channel) for policy in (*THREE, LEARNED) for channel in (*CHANNELS, "all")}
        assert all(0 <= value <= 100 for value in failed.values())
        # What both figures have is run once
        both = [found.values(f"Figure {number}, 7 cores, {name}") for number in (8, 9)]
        assert both[0].items() <= both[1].items()
    # 4 policies of Table 2, 6 at 9 places, 4 at 7; each periodic and Poisson, with two seeds
    offered = (4 + 6 * 9 + 4 * 7) * 2 * 2 * MESSAGES
    assert found.value("messages offered, each of them answered or dropped") == pytest.approx(offered, rel=0.1)
    assert all(found.value(f"{policy}: a message's CPU time without matching") > 0 for policy in (*FIVE, LEARNED))


@pytest.mark.parametrize("dds", [True, False])
def test_on_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dds: bool) -> None:
    policies = {*THREE, LEARNED, "FIFO"}
    if not dds:
        monkeypatch.delitem(sys.modules, "tagmatch_bench.qos.dds", raising=False)
        monkeypatch.setitem(sys.modules, "cyclonedds.core", None)
        found = matched(tmp_path, "dds", more=("--messages", 20))
        assert "needs the Python package cyclonedds" in found.unavailable["CycloneDDS"]
        return
    assert published.QOS_TABLE1.keys() == {6_000, 60_000, 600_000}
    monkeypatch.setattr(published, "QOS_TABLE1", {600: (0.034, 65.0), 6_000: (0.15, 14.0)})  # which takes less
    found = matched(tmp_path, "table1", "threads", "dds")
    printed = found.published("Table 1: a message alone")
    assert printed == {("a message", "600"): 0.034, ("a message", "6,000"): 0.15}
    assert found.values("Table 1: a message alone").keys() == {("H and C phases", place) for _, place in printed}
    shares = found.values("Table 1: share of the H phase")
    assert 100 > shares["H and C phases", "600"] > shares["H and C phases", "6,000"] > 0
    for name in ARRIVALS:
        failed = found.places(f"Table 2, all times × 8, threads on the wall clock, {name}")
        clocks = ("", ", virtual clocks")
        systems = {f"{each}, {channel}{clock}" for each in policies for channel in CHANNELS for clock in clocks}
        assert failed == at(systems, {"1", "2"})
        there = found.places(f"Table 2, all times × 8, one thread on the wall clock, and CycloneDDS, {name}").keys()
        assert there - {"CycloneDDS"} == policies
        assert ("CycloneDDS" in there) == ("CycloneDDS" not in found.unavailable)


def test_pipeline(tmp_path: Path) -> None:
    options = ("--pipeline-threads", 2, "--load", 0.5, "--load", 1.2, "--calls", 30, "--pipeline-seeds", 3)
    found = matched(tmp_path, "pipeline", more=(*options, "--sets", 3000))
    for rate in ("1", "2.4"):
        failed = found.values(f"TagMatch, 2 threads, Table 2's rates × {rate}, Poisson")
        assert failed.keys() == {(order, channel) for order in ("fifo", "edf", "dfgs") for channel in CHANNELS}
        for channel in CHANNELS:
            what = f"TagMatch, 2 threads, rates × {rate}, {channel}: edf fails more than dfgs by"
            difference = failed["edf", channel] - failed["dfgs", channel]
            assert math.isclose(found.value(what), difference, abs_tol=1e-9)
            low, high = (found.value(f"{what}, 95 % confidence, {end}") for end in ("from", "to"))
            assert low <= difference <= high
