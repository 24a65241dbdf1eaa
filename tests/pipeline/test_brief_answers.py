"""Brief queries are answered by the thread that asks, also those of `submit` and `amatch`; others go through stages."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agreement import loaded
from support.pipelines import IN_PACKET, TAGS, TIMEOUT, Gate, figures, our_threads, small, together, watched

from tagmatch import ClosedError, Overloaded, PipelineOptions, TagMatch

tag_sets = st.lists(st.sampled_from(["a", "b", "c", "", "é"]), max_size=5)
queries = st.lists(
    st.one_of(
        tag_sets,
        tag_sets.map(lambda tags: [*tags, IN_PACKET]),
        tag_sets.map(lambda tags: [*tags, *(f"unknown {i}" for i in range(70))]),
    ),
    max_size=30,
)


async def within(waiting: Any) -> Any:
    return await asyncio.wait_for(waiting, TIMEOUT)


def counted(tm: TagMatch[Any]) -> tuple[int, ...]:
    stats = figures(tm)
    assert stats["queries_in_flight"] == stats["result_bytes_in_flight"] == 0
    return tuple(stats[name] for name in ("queries", "matches", "verified", "rejected"))


@given(
    pairs=st.lists(st.tuples(tag_sets, st.sampled_from([1, 2, 2**40])), min_size=1),
    asked=st.lists(st.tuples(queries, st.booleans()), max_size=3),
    shape=st.sampled_from([list, tuple, frozenset, iter]),
)
def test_answers_and_counts_are_those_of_the_oracle(
    layout: str, pairs: list[Any], asked: list[Any], shape: Callable[[list[str]], Any]
) -> None:
    """Whichever way queries go that are asked together."""
    tm, oracle = watched(pairs, layout=layout, threads=2, max_partition_size=2), loaded(pairs)[1]

    async def ask(tags: list[list[str]], unique: bool) -> Any:
        return await within(asyncio.gather(*(tm.amatch(shape(each), unique=unique) for each in tags)))

    matches = 0
    for tags, unique in asked:
        expected = [oracle.match(each) for each in tags]
        expected = [sorted(set(keys)) for keys in expected] if unique else expected
        futures = [tm.submit(shape(each), unique=unique) for each in tags]
        for found in ([future.result(TIMEOUT) for future in futures], asyncio.run(ask(tags, unique))):
            assert all(type(keys) is (set if unique else list) for keys in found)
            assert [sorted(keys) for keys in found] == expected
            matches += sum(map(len, expected))
    tm.close()
    assert counted(tm)[:2] == (sum(2 * len(tags) for tags, _ in asked), matches)


@pytest.mark.parametrize("more", [0, 1])
def test_answers_with_many_keys_go_through_the_stages(more: int) -> None:
    """On both sides of the bound, counted once."""
    keys = 4096 + more
    with watched([(["a"], key) for key in range(keys)], layout="rarest", threads=2) as tm:
        future = tm.submit(["a"])
        assert sorted(future.result(TIMEOUT)) == list(range(keys))
        assert sorted(asyncio.run(tm.amatch(["a"]))) == list(range(keys))
        assert bool(our_threads()) == bool(more)
        tm.close()
        assert counted(tm) == (2, 2 * keys, 2, 0)


def test_nobody_is_woken_for_brief_queries() -> None:
    async def ask(tm: TagMatch) -> list[Any]:
        return await asyncio.gather(*(tm.amatch([tag, "x"]) for tag in TAGS))

    with small() as tm:
        futures = [tm.submit([tag]) for tag in TAGS]
        assert all(future.done() and not future.cancel() for future in futures)
        assert [future.result(0) for future in futures] == [[i] for i in range(50)] == asyncio.run(ask(tm))
        assert not our_threads()
        assert counted(tm)[0] == 100


def test_a_task_that_asks_again_and_again_lets_others_go_on() -> None:
    async def ask(tm: TagMatch) -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        waiting = asyncio.ensure_future(other())
        for asked in range(100):
            assert await tm.amatch(["t1"]) == [1]
            assert turns >= asked
        waiting.cancel()

    with small() as tm:
        asyncio.run(within(ask(tm)))


def test_tasks_that_are_cancelled() -> None:
    """Before they ask, and with the answer there already."""

    async def ask(tm: TagMatch) -> list[Any]:
        before = [asyncio.ensure_future(tm.amatch([tag])) for tag in TAGS]
        for task in before[::2]:
            task.cancel()
        await asyncio.sleep(0)
        for task in before[1::4]:
            task.cancel()
        return await within(asyncio.gather(*before, return_exceptions=True))

    with small() as tm:
        found = asyncio.run(ask(tm))
        assert [isinstance(each, asyncio.CancelledError) for each in found] == [
            i % 2 == 0 or i % 4 == 1 for i in range(50)
        ]
        assert found[3::4] == [[i] for i in range(3, 50, 4)]
        assert counted(tm)[0] == 25


def test_a_loop_that_is_closed_before_answers_are_taken() -> None:
    with small() as tm:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # which would tell of tasks that are left
        left = [loop.create_task(tm.amatch([tag])) for tag in TAGS]
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert not any(task.done() for task in left)
        loop.close()
        assert asyncio.run(within(tm.amatch(["t2"]))) == [2]
        assert counted(tm)[0] == 51


@pytest.mark.parametrize("drain", [True, False])
def test_answers_that_are_there_survive_close(drain: bool) -> None:
    async def ask(tm: TagMatch) -> list[Any]:
        asked = [asyncio.ensure_future(tm.amatch([tag])) for tag in TAGS]
        await asyncio.sleep(0)
        tm.close(drain=drain)
        with pytest.raises(ClosedError):
            await tm.amatch(["t1"])
        return await within(asyncio.gather(*asked))

    tm = small()
    future = tm.submit(["t1"])
    assert asyncio.run(ask(tm)) == [[i] for i in range(50)]
    assert future.result(0) == [1]
    with pytest.raises(ClosedError):
        tm.submit(["t1"])
    assert counted(tm)[0] == 51


def test_brief_queries_need_no_room(gate: Gate) -> None:
    """Others are refused, or wait, as without them."""
    with small(pipeline=PipelineOptions(max_queries=1)) as tm:
        first = tm.submit(["t1", IN_PACKET])
        assert gate.entered.wait(TIMEOUT)
        assert tm.submit(["t2"], block=False).result(0) == [2]
        assert asyncio.run(within(tm.amatch(["t3"]))) == [3]
        with pytest.raises(Overloaded):
            tm.submit(["t2", IN_PACKET], block=False)
        with pytest.raises(Overloaded):
            asyncio.run(within(tm.amatch(["t3", IN_PACKET])))
        gate.open()
        assert first.result(TIMEOUT) == [1]
        tm.close()
        assert counted(tm)[0] == 3


@pytest.mark.parametrize("tags", [["t1"], ["t1", IN_PACKET]])
def test_callbacks_that_ask_on_and_on(caplog: pytest.LogCaptureFixture, layout: str, tags: list[str]) -> None:
    """More often than Python's functions may call each other."""
    count, ended = itertools.count(1), threading.Event()
    found: list[Any] = []

    def called(future: Future[Any]) -> None:
        found.append(future.result())
        if next(count) == 3000:
            ended.set()
        else:
            tm.submit(tags).add_done_callback(called)

    with small(layout=layout) as tm:
        tm.submit(tags).add_done_callback(called)
        assert ended.wait(TIMEOUT)
        tm.close()
        assert counted(tm)[0] == 3000
    assert found == [[1]] * 3000
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_loops_and_threads_ask_at_once(layout: str) -> None:
    async def gathered(tm: TagMatch, first: int) -> None:
        wanted = [(first + i) % 50 for i in range(300)]
        tags = [[TAGS[i], *([IN_PACKET] if i % 3 == 0 else [])] for i in wanted]
        found = await within(
            asyncio.gather(*(tm.amatch(each, unique=i % 2 == 0) for i, each in zip(wanted, tags, strict=True)))
        )
        assert found == [{i} if i % 2 == 0 else [i] for i in wanted]

    def submitted(tm: TagMatch, first: int) -> None:
        futures = {(first + i) % 50: tm.submit([TAGS[(first + i) % 50]]) for i in range(300)}
        assert all(future.result(TIMEOUT) == [i] for i, future in futures.items())

    with small(layout=layout) as tm:
        jobs = [lambda i=i: asyncio.run(gathered(tm, i)) for i in range(4)]
        with together([*jobs, *(lambda i=i: submitted(tm, i) for i in range(4))]):
            pass
        tm.close()
        assert counted(tm)[:2] == (8 * 300, 8 * 300)
