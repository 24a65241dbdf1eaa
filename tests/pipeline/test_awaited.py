"""`amatch`: answers come to the loop that waits for them, many at once, whatever becomes of the others."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from support.pipelines import TAGS, TIMEOUT, Gate, figures, small

from tagmatch import ClosedError, Overloaded, PipelineOptions, TagMatch
from tagmatch.pipeline.cpu.matcher import Ranked

pytestmark = pytest.mark.usefixtures("through_stages")


async def within(waiting: Any) -> Any:
    return await asyncio.wait_for(waiting, TIMEOUT)


async def entered(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.entered.wait, TIMEOUT)


def test_a_loop_is_woken_for_many_answers_at_once(gate: Gate) -> None:
    count, woken = 5_000, 0

    async def ask(tm: TagMatch) -> None:
        nonlocal woken
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe

        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal woken
            woken += 1
            return wake(*arguments, **options)

        first = asyncio.ensure_future(tm.amatch(["t1"]))
        await entered(gate)
        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        others = [asyncio.ensure_future(tm.amatch(["t2"])) for _ in range(count)]
        await asyncio.sleep(0)
        gate.open()
        assert await within(asyncio.gather(first, *others)) == [[1], *[[2]] * count]

    with small() as tm:
        asyncio.run(ask(tm))
    assert 0 < woken < count / 5


def test_what_a_task_no_longer_wants_is_not_matched(gate: Gate) -> None:
    async def ask(tm: TagMatch) -> None:
        first = asyncio.ensure_future(tm.amatch(["t1"]))
        await entered(gate)
        others = [asyncio.ensure_future(tm.amatch([tag])) for tag in TAGS]
        await asyncio.sleep(0)
        for task in others[::2]:
            task.cancel()
        await asyncio.sleep(0)
        first.cancel()  # which has begun
        gate.open()
        found = await within(asyncio.gather(first, *others, return_exceptions=True))
        assert [isinstance(each, asyncio.CancelledError) for each in found] == [True, *[True, False] * 25]
        assert found[2::2] == [[i] for i in range(1, 50, 2)]

    with small(threads=1) as tm:
        asyncio.run(ask(tm))
        tm.close()
        assert figures(tm)["queries"] == 26
        assert figures(tm)["queries_in_flight"] == 0


def test_failures_reach_the_tasks_that_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("injected")

    async def ask(tm: TagMatch) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Ranked, "subset_match", fail)
            found = await within(asyncio.gather(*(tm.amatch(["t1"]) for _ in range(20)), return_exceptions=True))
        assert [str(each) for each in found] == ["injected"] * 20
        assert await within(tm.amatch(["t1"])) == [1]
        for wrong in ("t1", None, ["t1", 3]):
            with pytest.raises(TypeError, match="tags"):
                await tm.amatch(wrong)  # type: ignore[arg-type]

    with small() as tm:
        asyncio.run(ask(tm))
        assert tm.stats()["queries_in_flight"] == 0
    with pytest.raises(ClosedError):
        asyncio.run(tm.amatch(["t1"]))


def test_close_without_draining_cancels_what_nobody_has_begun(gate: Gate) -> None:
    async def ask(tm: TagMatch) -> list[Any]:
        first = asyncio.ensure_future(tm.amatch(["t1"]))
        await entered(gate)
        others = [asyncio.ensure_future(tm.amatch(["t2"])) for _ in range(30)]
        await asyncio.sleep(0)
        closing = asyncio.to_thread(tm.close, drain=False)
        threading.Timer(0.2, gate.open).start()
        found = await within(asyncio.gather(closing, first, *others, return_exceptions=True))
        return found[1:]

    tm = small(threads=1)
    first, *others = asyncio.run(ask(tm))
    assert isinstance(first, ClosedError) or first == [1]
    assert all(isinstance(each, asyncio.CancelledError) for each in others)
    assert figures(tm)["queries_in_flight"] == 0


def test_a_loop_that_is_gone_does_not_disturb_others(gate: Gate) -> None:
    left: list[asyncio.Task[Any]] = []

    async def leave(tm: TagMatch) -> None:
        left.extend(asyncio.ensure_future(tm.amatch(["t1"])) for _ in range(30))
        await asyncio.sleep(0)
        await entered(gate)

    with small(threads=1) as tm:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # which would tell of tasks that are left
        loop.run_until_complete(leave(tm))
        loop.close()
        other = tm.submit(["t2"])
        gate.open()
        assert other.result(TIMEOUT) == [2]
        tm.close()
        assert figures(tm)["queries_in_flight"] == 0


@pytest.mark.parametrize("in_another_thread", [False, True])
def test_close_answers_what_has_been_asked_in_the_same_turn_of_the_loop(in_another_thread: bool) -> None:
    async def ask(tm: TagMatch) -> list[Any]:
        asked = [asyncio.ensure_future(tm.amatch([tag])) for tag in TAGS]
        await asyncio.sleep(0)
        if in_another_thread:
            await asyncio.to_thread(tm.close)
        else:
            tm.close()
        return await within(asyncio.gather(*asked))

    tm = small()
    assert asyncio.run(ask(tm)) == [[i] for i in range(len(TAGS))]
    assert figures(tm)["queries_in_flight"] == 0


def test_tasks_that_ask_together_are_let_in_while_there_is_room(gate: Gate) -> None:
    async def ask(tm: TagMatch) -> list[Any]:
        asked = [asyncio.ensure_future(tm.amatch([tag])) for tag in TAGS]
        await entered(gate)
        gate.open()
        return await within(asyncio.gather(*asked, return_exceptions=True))

    with small(pipeline=PipelineOptions(max_queries=20)) as tm:
        found = asyncio.run(ask(tm))
        assert found[:20] == [[i] for i in range(20)]
        assert all(isinstance(each, Overloaded) and "20 queries" in str(each) for each in found[20:])
        assert figures(tm)["queries_in_flight"] == 0
