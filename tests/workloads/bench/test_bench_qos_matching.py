"""Orders of channels driven with real matching: each message is answered once or dropped, and with the right answer."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from support.content import matching_keys

from tagmatch import Channel
from tagmatch.workloads.qos.brokers import BROKERS
from tagmatch.workloads.qos.channels import NANOSECONDS, Flow
from tagmatch.workloads.qos.driving import Channels, Driven, run_threads, run_virtual
from tagmatch.workloads.qos.driving_dds import run_dds
from tagmatch.workloads.qos.kernels import DROPPED, EXACT, Messages
from tagmatch.workloads.qos.matching import Matching, check, times_of
from tagmatch.workloads.qos.simulator import arrivals, count_results
from tagmatch.workloads.qos.subscriptions import ATTRIBUTES, PREDICATES, events, subscriptions

pytestmark = pytest.mark.nightly

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


def test_subscriptions_are_of_the_papers_predicates() -> None:
    rows = subscriptions(4000, seed=7).to_pylist()
    predicates = {tuple(constraint.values()) for row in rows for constraint in row["constraints"]}
    assert len(predicates) == PREDICATES == 1504
    assert len({attribute for attribute, *_ in predicates}) == ATTRIBUTES == 238
    # Each place of an operand has one operator
    assert len({(attribute, operand) for attribute, _, operand, _ in predicates}) == PREDICATES
    assert all(len({constraint["attr"] for constraint in row["constraints"]}) == 5 for row in rows)
    assert subscriptions(10, seed=7).equals(subscriptions(10, seed=7))
    assert not subscriptions(10, seed=7).equals(subscriptions(10, seed=8))
    table = events(50, seed=7)
    assert (table.num_columns, sum(column.null_count for column in table.columns)) == (ATTRIBUTES, 0)


def test_tasks_find_what_brute_force_finds(right: list[list[list[int]]]) -> None:
    for matching, due in zip(MATCHINGS, right, strict=True):
        assert [sorted(matching.answer(row)) for row in range(ROWS)] == due
        assert sum(map(len, due)) > 0
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
        assert (found[Fraction(1)], found[Fraction(3)]) == (once, 3 * once)
        assert 0 < found[Fraction(1, 2)] < once
        assert found[Fraction(3, 2)] == once + found[Fraction(1, 2)]
    tasks = MATCHINGS[1].tasks(Fraction(3, 2), whole=False)
    assert [task for task, _ in tasks] == [-1, 0, 1, 2, 3]
    assert MATCHINGS[1].tasks(Fraction(3, 2), whole=True) == [(-2, sum(units for _, units in tasks))]
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


@pytest.mark.parametrize(("policy", "workers"), [*((policy, 2) for policy in BROKERS), ("EDF", 1), ("DDS", 1)])
def test_threads_count_every_message_once(policy: str, workers: int) -> None:
    offered = channels(0.002, 30)
    messages = arrivals(offered.flows, 0.2, seed=1, poisson=True)
    if policy == "DDS":
        pytest.importorskip("cyclonedds")
    driven = Driven(messages, offered, BROKERS.get(policy, BROKERS["QoS-ignorant"]), workers)
    (run_dds if policy == "DDS" else run_threads)(driven)
    results = count_results(messages, offered.flows, driven.ends)
    assert [each.in_time + each.late + each.dropped for each in results] == [each.offered for each in results]
    assert results[1].in_time == results[1].offered > 50
    assert policy == "DDS" or len(driven.order) == 0


def test_errors_of_threads_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("none left")

    monkeypatch.setattr(Matching, "perform", fail)
    offered = channels(10, 10)
    driven = Driven(arrivals(offered.flows, 0.02, seed=1, poisson=False), offered, BROKERS["EDF"], 2)
    with pytest.raises(MemoryError, match="none left"):
        run_threads(driven)
