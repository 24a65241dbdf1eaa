"""`amatch` and `submit`: brief queries are answered by the thread that asks, others go through the stages."""

import asyncio
import itertools
import operator
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agreement import loaded
from support.pipelines import IN_PACKET, TAGS, TIMEOUT, Gate, end, our_threads, small, watched
from support.segments import all_in

from tagmatch import Box, Circle, ClosedError, Near, Overloaded, PipelineOptions, TagMatch

staged = pytest.mark.usefixtures("through_stages")

tag_sets = st.lists(st.sampled_from(["a", "b", "c", "", "é"]), max_size=5)
#: Some of them in a packet, some of too many tags to be brief
more_tags = st.sampled_from([[], [IN_PACKET], list(map(str, range(70)))])
queries = st.lists(st.builds(operator.add, tag_sets, more_tags), max_size=30)


async def within(waiting: Any) -> Any:
    return await asyncio.wait_for(waiting, TIMEOUT)


async def gathered(*waiting: Any) -> Any:
    return await within(asyncio.gather(*waiting, return_exceptions=True))


async def asking(tm: TagMatch, tags: list[str], gate: Gate | None = None) -> list[asyncio.Future[Any]]:
    """Tasks that have asked; the first is held up at the gate."""
    tasks = [asyncio.ensure_future(tm.amatch([tag])) for tag in tags]
    await asyncio.sleep(0)
    if gate is not None:
        assert await asyncio.to_thread(gate.entered.wait, TIMEOUT)
    return tasks


def counted(tm: TagMatch[Any]) -> tuple[int, ...]:
    stats = end(tm)
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
        return await gathered(*(tm.amatch(shape(each), unique=unique) for each in tags))

    matches = 0
    for tags, unique in asked:
        expected = [oracle.match(each) for each in tags]
        expected = [sorted(set(keys)) for keys in expected] if unique else expected
        futures = [tm.submit(shape(each), unique=unique) for each in tags]
        for found in ([future.result(TIMEOUT) for future in futures], asyncio.run(ask(tags, unique))):
            assert all(type(keys) is (set if unique else list) for keys in found)
            assert [sorted(keys) for keys in found] == expected
            matches += sum(map(len, expected))
    assert counted(tm)[:2] == (sum(2 * len(tags) for tags, _ in asked), matches)


@pytest.mark.parametrize("more", [0, 1])
def test_answers_with_many_keys_go_through_the_stages(more: int) -> None:
    """On both sides of the bound, counted once."""
    keys = 4096 + more
    with watched([(["a"], key) for key in range(keys)], layout="rarest", threads=2) as tm:
        assert sorted(tm.submit(["a"]).result(TIMEOUT)) == list(range(keys))
        assert sorted(asyncio.run(tm.amatch(["a"]))) == list(range(keys))
        assert bool(our_threads()) == bool(more)
        assert counted(tm) == (2, 2 * keys, 2, 0)


EARTH, HOME = Box(-180, -90, 180, 90), (9.0, 45.0)
#: What a set asks for, and a message that has it
MESSAGES = {
    "trie": ({"where": "price < 5 and size > 2"}, {"attributes": {"price": 4, "size": 3}}),
    "lines": ({"where": "price < 5"}, {"attributes": {"price": 4}}),
    "an area": ({"area": Circle(*HOME, 10)}, {"location": HOME}),
    "an area and a condition": (
        {"where": "price < 5 and within circle(9, 45, 10)"}, {"attributes": {"price": 4}, "location": HOME}
    ),
    "clients": ({"area": Near(10)}, {"location": HOME}),
    "clients within an area": ({}, {"within": EARTH}),
}  # fmt: skip


@pytest.mark.parametrize("keys", [1000, 5000])
@pytest.mark.parametrize("asks", MESSAGES)
def test_messages_are_brief_as_queries_are(asks: str, keys: int) -> None:
    """Those with attributes and places, too; with many keys they go through the stages. All are counted once."""
    wanted, message = MESSAGES[asks]
    with all_in("lines" if asks == "lines" else "trie"), TagMatch(layout="rarest", threads=2) as tm:
        tm.add_sets([["a"]] * keys, range(keys), **wanted)
        tm.consolidate()
        tm.move(range(keys), *HOME)
        future = tm.submit(["a", "b"], **message)
        assert future.done() == (keys == 1000)
        assert sorted(future.result(TIMEOUT)) == list(range(keys))
        assert sorted(asyncio.run(tm.amatch(["a"], unique=True, **message))) == list(range(keys))
        assert bool(our_threads()) == (keys == 5000)
        assert [tm.stats()[name] for name in ("queries", "matches")] == [2, 2 * keys]


def test_messages_that_come_by_many_nodes_go_through_the_stages() -> None:
    """Of the trie: to follow many paths takes long, also if none has an end."""
    where = [f"a{number} = 1 and b{number} = 1" for number in range(100)]
    with all_in("trie"), TagMatch(layout="rarest", threads=2) as tm:
        tm.add_sets([[]] * 100, range(100), where=where)
        tm.consolidate()
        for names in (10, 100):
            future = tm.submit([], {f"a{number}": 1 for number in range(names)} | {"b7": 1})
            assert future.done() == (names == 10)
            assert future.result(TIMEOUT) == [7]


def test_long_messages_go_through_the_stages() -> None:
    """Of many bytes of attributes, which take long to read."""
    with TagMatch(layout="rarest", threads=2) as tm:
        tm.add_set([], 1, where='text contains "x"')
        tm.consolidate()
        for size in (4000, 5000):
            future = tm.submit([], {"text": "a" * size + "x"})
            assert future.done() == (size == 4000)
            assert future.result(TIMEOUT) == [1]


def test_brief_queries_wake_nobody_and_let_others_go_on() -> None:
    async def ask(tm: TagMatch) -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        waiting = asyncio.ensure_future(other())
        for asked in range(100):
            assert await tm.amatch(["t1", "x"]) == [1]
            assert turns >= asked
        waiting.cancel()

    with small() as tm:
        futures = [tm.submit([tag]) for tag in TAGS]
        assert all(future.done() and not future.cancel() for future in futures)
        assert [future.result(0) for future in futures] == [[i] for i in range(50)]
        asyncio.run(within(ask(tm)))
        assert not our_threads()
        assert counted(tm)[0] == 150


@pytest.mark.parametrize("wrong", ["t1", None, ["t1", 3]])
def test_tags_that_are_wrong(wrong: Any) -> None:
    with small() as tm, pytest.raises(TypeError, match="tags"):
        asyncio.run(tm.amatch(wrong))


@pytest.mark.parametrize("drain", [True, False])
def test_brief_answers_that_are_there_survive_close(drain: bool) -> None:
    async def ask(tm: TagMatch) -> list[Any]:
        asked = await asking(tm, TAGS)
        tm.close(drain=drain)
        for ask in (tm.submit, lambda tags: asyncio.create_task(tm.amatch(tags))):
            with pytest.raises(ClosedError):
                await ask(["t1"])
        return await gathered(*asked)

    tm = small()
    assert asyncio.run(ask(tm)) == [[i] for i in range(50)]
    assert counted(tm)[0] == 50


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
            asyncio.run(within(tm.amatch(["t3", IN_PACKET, *map(str, range(1100))])))
        gate.open()
        assert first.result(TIMEOUT) == [1]
        assert counted(tm)[0] == 3


@pytest.mark.parametrize("tags", [["t1"], pytest.param(["t1", IN_PACKET], marks=pytest.mark.slow)])
@pytest.mark.slow
def test_callbacks_that_ask_on_and_on(caplog: pytest.LogCaptureFixture, layout: str, tags: list[str]) -> None:
    """More often than Python's functions may call each other."""
    count, ended = itertools.count(1), threading.Event()

    def called(future: Any) -> None:
        assert future.result() == [1]
        if next(count) == 3000:
            ended.set()
        else:
            tm.submit(tags).add_done_callback(called)

    with small(layout=layout) as tm:
        tm.submit(tags).add_done_callback(called)
        assert ended.wait(TIMEOUT)
        assert counted(tm)[0] == 3000
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.slow
@staged
def test_a_loop_is_woken_for_many_answers_at_once(gate: Gate) -> None:
    count, woken = 5_000, []

    async def ask(tm: TagMatch) -> None:
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe
        first = await asking(tm, ["t1"], gate)
        loop.call_soon_threadsafe = lambda *arguments, **options: (  # type: ignore[method-assign]
            woken.append(1), wake(*arguments, **options)
        )[1]  # fmt: skip
        others = await asking(tm, ["t2"] * count)
        gate.open()
        assert await gathered(*first, *others) == [[1], *[[2]] * count]

    with small() as tm:
        asyncio.run(ask(tm))
    assert 0 < len(woken) < count / 5


@staged
def test_what_a_task_no_longer_wants_is_not_matched(gate: Gate) -> None:
    async def ask(tm: TagMatch) -> None:
        first = await asking(tm, ["t1"], gate)
        others = await asking(tm, TAGS)
        for task in [*others[::2], *first]:  # the first has begun
            task.cancel()
        await asyncio.sleep(0)
        gate.open()
        found = await gathered(*first, *others)
        assert [isinstance(each, asyncio.CancelledError) for each in found] == [True, *[True, False] * 25]
        assert found[2::2] == [[i] for i in range(1, 50, 2)]

    with small(threads=1) as tm:
        asyncio.run(ask(tm))
        assert counted(tm)[0] == 26


@staged
def test_close_without_draining_cancels_what_nobody_has_begun(gate: Gate) -> None:
    async def ask(tm: TagMatch) -> list[Any]:
        asked = [*await asking(tm, ["t1"], gate), *await asking(tm, ["t2"] * 30)]
        threading.Timer(0.2, gate.open).start()
        return await gathered(*asked, asyncio.to_thread(tm.close, drain=False))

    tm = small(threads=1)
    first, *others, _ = asyncio.run(ask(tm))
    assert isinstance(first, ClosedError) or first == [1]
    assert all(isinstance(each, asyncio.CancelledError) for each in others)
    assert counted(tm)


@staged
def test_a_loop_that_is_gone_does_not_disturb_others(gate: Gate) -> None:
    with small(threads=1) as tm:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # which would tell of tasks that are left
        left = loop.run_until_complete(asking(tm, ["t1"] * 30, gate))
        loop.close()
        other = tm.submit(["t2"])
        gate.open()
        assert other.result(TIMEOUT) == [2]
        assert counted(tm)
    assert not any(task.done() for task in left)


@staged
@pytest.mark.parametrize("in_another_thread", [False, True])
def test_close_answers_what_has_been_asked_in_the_same_turn_of_the_loop(in_another_thread: bool) -> None:
    async def ask(tm: TagMatch) -> list[Any]:
        asked = await asking(tm, TAGS)
        await asyncio.to_thread(tm.close) if in_another_thread else tm.close()
        return await gathered(*asked)

    tm = small()
    assert asyncio.run(ask(tm)) == [[i] for i in range(len(TAGS))]
    assert counted(tm)
