"""Queries of channels through `TagMatch`: all are counted in and out, urgent ones go first, late ones are dropped."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from support import pipelines
from support.pipelines import TAGS, TIMEOUT, Gate, figures
from support.waiting import wait_until

from tagmatch import Channel, ClosedError, DeadlineMissed, InvalidTypeError, InvalidValueError, Overloaded, TagMatch
from tagmatch.pipeline.run import channels
from tagmatch.pipeline.run.callers import Limits
from tagmatch.pipeline.run.channels import Channels
from tagmatch.pipeline.run.counts import OUTCOMES
from tagmatch.pipeline.segment import SegmentQueries

pytestmark = pytest.mark.usefixtures("through_stages")

ORDERS = ["fifo", "edf", "dfgs"]
ALARM, BULK = Channel("alarm", deadline=30, priority=1), Channel("bulk", deadline=60)


def small(**options: Any) -> TagMatch[Any]:
    return pipelines.small(**{"channels": [ALARM, BULK]} | options)


def outcomes(tm: TagMatch[Any], channel: str) -> Counter[str]:
    """The outcome of a channel's messages; each offered one is counted once."""
    found = figures(tm)["channels"][channel]
    counts = {name: found[name] for name in OUTCOMES}
    assert found["offered"] == sum(counts.values()) + found["in_flight"]
    return Counter({name: count for name, count in counts.items() if count})


@pytest.fixture
def packets_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "alone", lambda *_: None)


@pytest.mark.parametrize("order", ORDERS)
def test_answers(order: str, layout: str) -> None:
    with small(order=order, layout=layout) as tm:
        rows = [TAGS[i % 40 : i % 40 + 5] for i in range(300)]
        wanted = tm.match_many(rows).to_pylist()
        assert tm.match_many(rows, channel="bulk").to_pylist() == wanted
        assert tm.match_many(rows, unique=True, channel="bulk").to_pylist() == [sorted(keys) for keys in wanted]
        futures = [tm.submit(row, unique=i % 2 == 1, channel="alarm") for i, row in enumerate(rows)]
        found = [future.result(TIMEOUT) for future in futures]
        assert [sorted(keys) for keys in found] == [sorted(keys) for keys in wanted]
        assert {type(keys) for keys in found} == {list, set}

        async def ask() -> list[Any]:
            return list(await asyncio.gather(*(tm.amatch(row, channel="alarm") for row in rows)))

        assert [sorted(keys) for keys in asyncio.run(ask())] == [sorted(keys) for keys in wanted]
        assert tm.match_many([], channel="bulk").to_pylist() == []
        assert outcomes(tm, "alarm") == {"answered": 600}
        assert outcomes(tm, "bulk") == {"answered": 600}
        assert tm.stats()["queries_in_flight"] == 0


def test_brief_answers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with small(order="edf") as tm:
        assert tm.submit(["t3"], channel="alarm").done()
        assert asyncio.run(tm.amatch(["t3"], channel="alarm")) == [3]
        assert outcomes(tm, "alarm") == {"answered": 2}


@pytest.mark.usefixtures("packets_only")
@pytest.mark.parametrize("order", ORDERS)
def test_each_message_is_counted_once(order: str, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads submit to three channels and cancel; one's deadline nearly nothing keeps, and some packets fail."""
    subset_match, failing = SegmentQueries.subset_match, random.Random(rng.random())

    def sometimes(queries: SegmentQueries, wanted: Any) -> Any:
        if failing.random() < 0.2:
            raise RuntimeError("injected")
        return subset_match(queries, wanted)

    monkeypatch.setattr(SegmentQueries, "subset_match", sometimes)
    hasty = Channel("hasty", deadline=timedelta(microseconds=300))
    tm = small(order=order, channels=[ALARM, BULK, hasty])

    def outcome(ask: Callable[[], Any], wanted: list[int]) -> str:
        try:
            assert sorted(ask()) == wanted
        except CancelledError:
            return "cancelled"
        except Overloaded:
            return "refused"
        except DeadlineMissed as error:
            return "deserted" if "deserted" in str(error) else "dropped"
        except RuntimeError:
            return "failed"
        return "answered"

    def ask(seed: float) -> Counter[tuple[str, str]]:
        mine, found = random.Random(seed), Counter[tuple[str, str]]()
        for _ in range(15):
            asked = []
            for _ in range(20):
                first, channel = mine.randrange(45), mine.choice(["alarm", "bulk", "hasty"])
                future = tm.submit(TAGS[first : first + 4], channel=channel)
                if mine.random() < 0.1:
                    future.cancel()
                asked.append((channel, partial(future.result, TIMEOUT), [*range(first, first + 4)]))
            found.update((channel, outcome(ask, wanted)) for channel, ask, wanted in asked)
            many = outcome(lambda: tm.match_many([["t1"]] * 30, channel="bulk").to_pylist()[0], [1])
            found["bulk", many] += 30
        return found

    with tm, ThreadPoolExecutor(8) as pool:
        total = sum(pool.map(ask, [rng.random() for _ in range(8)]), Counter[tuple[str, str]]())
        for channel in ("alarm", "bulk", "hasty"):
            assert outcomes(tm, channel) == {what: count for (of, what), count in total.items() if of == channel}
        assert total["alarm", "answered"] > 0
        assert any(total[channel, "failed"] for channel in ("alarm", "bulk", "hasty"))
        late = tm.stats()["channels"]["hasty"]["late"]
        assert late + sum(total["hasty", what] for what in ("refused", "deserted", "dropped")) > 0
        assert tm.stats()["queries_in_flight"] == 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What channels take for the time."""
    now, begin = [0.0], Channels.__init__
    monkeypatch.setattr(Channels, "__init__", lambda self, *options: begin(self, *options, *2 * [lambda: now[0]]))
    return now


@pytest.mark.usefixtures("packets_only")
@pytest.mark.parametrize("order", ["fifo", "edf"])
def test_what_is_late_is_dropped_or_measured(gate: Gate, clock: list[float], order: str) -> None:
    drops = order == "edf"
    with small(threads=1, order=order, channels=[Channel("alarm", 2), Channel("bulk", 60)]) as tm:
        first = tm.submit(["t1"], channel="bulk")
        assert gate.entered.wait(TIMEOUT)
        late, in_time = tm.submit(["t1"], channel="alarm"), tm.submit(["t1"], channel="bulk")
        clock[0] = 3.0
        gate.open()
        assert first.result(TIMEOUT) == in_time.result(TIMEOUT) == [1]
        message = r"channel 'alarm', whose deadline is 2 seconds: dropped 3\.0+ seconds"
        with pytest.raises(DeadlineMissed, match=message) if drops else nullcontext():
            assert late.result(TIMEOUT) == [1]
    alarm, bulk = figures(tm)["channels"].values()
    assert [alarm[name] for name in ("dropped", "answered", "late")] == ([1, 0, 0] if drops else [0, 1, 1])
    assert drops or alarm["lateness"]["max"] == 1.0
    assert (bulk["answered"], bulk["late"]) == (2, 0)


@pytest.fixture
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> list[int]:
    """How many queries each packet has had so far; each takes 1 ms, or as long as is said."""
    found: list[int] = []
    perform, each = Channels._perform, getattr(request, "param", 0.001)

    def timed(self: Channels, packet: Any) -> None:
        found.append(len(packet))
        clock[0] += each * len(packet)
        perform(self, packet)

    monkeypatch.setattr(Channels, "_perform", timed)
    return found


def test_calls_are_matched_in_bounded_packets(sizes: list[int]) -> None:
    """A packet takes no longer than half of what the tightest channel has to spare."""
    with small(threads=1, order="edf", channels=[Channel("alarm", 0.1), Channel("bulk", 60)]) as tm:
        for _ in range(2):
            found = tm.match_many([["t1"]] * 700 + [["t2", "t3"]] * 300, channel="bulk")
            assert found.to_pylist() == [[1]] * 700 + [[2, 3]] * 300
        bulk = tm.stats()["channels"]["bulk"]
    assert sum(sizes) == bulk["answered"] == 2000
    assert 25 < max(sizes) <= 50
    assert bulk["cost"]["each"] == pytest.approx(0.001)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sizes", [1e-7], indirect=True)
def test_a_brief_call_is_one_packet(sizes: list[int], order: str) -> None:
    """With several, threads would wait for the interpreter lock longer than they would match."""
    with small(threads=4, order=order) as tm:
        for _ in range(20):
            tm.match_many([["t1"]] * 2000, channel="bulk")
    assert sum(sizes) == 20 * 2000
    assert sizes[-1] == 2000


@pytest.mark.usefixtures("packets_only")
def test_an_urgent_message_goes_between_packets(gate: Gate, sizes: list[int]) -> None:
    with small(threads=1, order="edf") as tm, ThreadPoolExecutor(1) as pool:
        many = pool.submit(tm.match_many, [["t1"]] * 500, channel="bulk")
        assert gate.entered.wait(TIMEOUT)
        alarm = tm.submit(["t1"], unique=True, channel="alarm")
        gate.open()
        assert alarm.result(TIMEOUT) == {1}
        assert many.result(TIMEOUT).to_pylist() == [[1]] * 500
    assert len(sizes) > 3
    assert sizes[1] == 1


@pytest.mark.usefixtures("packets_only")
@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_closing(gate: Gate, monkeypatch: pytest.MonkeyPatch, order: str, drain: bool) -> None:
    begun, close = threading.Event(), Limits.close
    monkeypatch.setattr(Limits, "close", lambda self: (begun.set(), close(self)))
    tm = small(threads=1, order=order)
    first = tm.submit(["t1"], channel="bulk")
    assert gate.entered.wait(TIMEOUT)
    waiting = [tm.submit(["t1"], channel="alarm") for _ in range(5)]
    with ThreadPoolExecutor(2) as pool:
        many = pool.submit(tm.match_many, [["t1"]] * 500, channel="bulk")
        if drain:  # else it may also come too late
            wait_until(lambda: tm.stats()["channels"]["bulk"]["offered"] == 501)
        closing = pool.submit(tm.close, drain=drain)
        assert begun.wait(TIMEOUT)
        for future in [] if drain else waiting:
            with pytest.raises(CancelledError):
                future.result(TIMEOUT)
        gate.open()
        closing.result(TIMEOUT)
        assert first.result(TIMEOUT) == [1]
        with nullcontext() if drain else pytest.raises(ClosedError):
            assert many.result(TIMEOUT).to_pylist() == [[1]] * 500
    assert outcomes(tm, "alarm") == {"answered" if drain else "cancelled": 5}
    assert not any(thread.name.startswith("tagmatch-channels") for thread in threading.enumerate())
    with pytest.raises(ClosedError):
        tm.submit(["t1"], channel="alarm")


def test_callbacks_may_ask_more() -> None:
    with small(threads=1, order="edf") as tm:
        found: Future[Any] = Future()

        def ask_more(_: Future[Any]) -> None:
            nested = tm.match_many([["t2"]] * 3, channel="bulk").to_pylist()
            tm.submit(["t3"], channel="alarm").add_done_callback(lambda last: found.set_result((nested, last.result())))

        tm.submit(["t1"], channel="alarm").add_done_callback(ask_more)
        assert found.result(TIMEOUT) == ([[2]] * 3, [3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": [ALARM, Channel("alarm")]}, "channels must have different names; two are 'alarm'"),
        ({"channels": [ALARM, "bulk"]}, "channels must be several Channel, as a list; one is 'bulk'"),
        ({"channels": ALARM}, "channels must be several Channel, as a list, not Channel"),
        ({"order": "lifo"}, "order must be one of 'fifo', 'edf', 'dfgs', not 'lifo'"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidValueError, InvalidTypeError)) as caught:
        TagMatch(**options)
    assert message in str(caught.value)


def test_durations_may_be_timedeltas() -> None:
    channel = Channel("alarm", timedelta(milliseconds=5), latency_budget=timedelta(milliseconds=1))
    assert channel == Channel("alarm", 0.005, latency_budget=0.001)
    assert [Channel("bulk").due, Channel("bulk").expires] == [float("inf")] * 2
    assert Channel("x", 1, expiry=2).expires == 2
    with pytest.raises(InvalidTypeError, match="deadline must be a number of seconds or a timedelta, not '5ms'"):
        Channel("alarm", "5ms")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="no colon, not 'a:b'"):
        Channel("a:b")
