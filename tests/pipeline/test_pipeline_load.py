"""More than can be answered; and the end of it, at any moment."""

import gc
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, as_completed, wait
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from support import pipelines
from support.pipelines import IN_PACKET, TAGS, TIMEOUT, Gate, end, held_packet, our_threads, small, together

from tagmatch import ClosedError, Overloaded, PipelineOptions, TagMatch
from tagmatch.pipeline.balanced import BalancedSubsetMatch
from tagmatch.pipeline.run.batches import Batcher

# Compiling may take minutes where others use the machine too: that is no test's time
pytestmark = [
    pytest.mark.usefixtures("compiled", "through_stages"),
    pytest.mark.timeout(func_only=True),
    pytest.mark.slow,
]

KEYS = list(range(50))
ANSWER_BYTES = 8 * len(KEYS)

#: More queries than a thread submits in the time that others of a busy machine wait to run
MANY_QUERIES = 1 << 18


def index(**options: Any) -> TagMatch:
    """Set {t_i} has key i; there are many partitions."""
    return small(**{"max_partition_size": 5} | options)


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    before = set(our_threads())
    yield
    for thread in set(our_threads()) - before:
        thread.join(TIMEOUT)
        assert not thread.is_alive(), pipelines.stacks()


@pytest.mark.parametrize("rounds", [20, pytest.param(500, marks=pytest.mark.nightly)])
def test_far_more_is_asked_than_can_be_answered(layout: str, rounds: int) -> None:
    """Calls that do not wait get an answer or are told; no more than allowed are ever on their way."""
    most, counts, counting = 50, Counter[str](), threading.Lock()
    more = {"balanced": {"hand_over_queries": 0}}.get(layout, {})
    options = PipelineOptions(max_queries=most, packet_queries=10, **more)
    tm = index(layout=layout, flush_timeout=0.01, pipeline=options)

    def count(what: str) -> None:
        with counting:
            counts[what] += 1
        stats = tm.stats()
        assert stats["queries_in_flight"] <= most
        assert stats["result_bytes_in_flight"] <= most * ANSWER_BYTES

    def ask_without_waiting() -> None:
        """More at once than may be on their way, again and again."""
        for _ in range(rounds):
            waiting = []
            for _ in range(2 * most):
                try:
                    waiting.append(tm.submit(TAGS, block=False))
                except Overloaded:
                    count("told")
            for future in waiting:
                assert sorted(future.result(TIMEOUT)) == KEYS
                count("answered")

    def ask_in_turn() -> None:
        """Wait for room, and for each answer."""
        ways = (tm.match, lambda tags: tm.match([*tags, IN_PACKET]), lambda tags: tm.submit(tags).result(TIMEOUT))
        for ask in itertools.islice(itertools.cycle(ways), rounds):
            assert sorted(ask(TAGS)) == KEYS
            count("answered")

    with together([ask_without_waiting] * 2 + [ask_in_turn] * 8):
        pass
    assert counts["told"] > 0
    assert counts["answered"] == end(tm)["queries"] > 0


def ask_for_too_many_bytes(tm: TagMatch) -> list[Future[Any]]:
    """Ask until the bytes of results, rather than the number of queries, forbid more."""
    waiting: list[Future[Any]] = []
    with pytest.raises(Overloaded, match="max_result_bytes"):
        waiting.extend(tm.submit(TAGS, timeout=0.01) for _ in itertools.count())  # which keeps earlier ones
    return waiting


def test_bytes_of_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """While no answer leaves, only queries that were being matched already add to them."""
    packet, most = 20, 4 * ANSWER_BYTES  # the answers of four packets at least are there when nothing goes on
    room = {"max_queries": MANY_QUERIES, "max_result_bytes": most}
    stages = {"packet_queries": packet, "hand_over_queries": 0, "queued_packets": 1, "merge_threads": 1}
    tm = index(pipeline=PipelineOptions(**room, **stages))
    merging = threading.Event()

    def merge(_: Any) -> None:
        assert merging.wait(2 * TIMEOUT)

    monkeypatch.setattr("tagmatch.pipeline.run.packets.Packet.merge", merge)
    waiting = ask_for_too_many_bytes(tm)
    ahead = 2 + 1 + 2 + 1 + 1  # packets of two matching threads, a queue, two threads, a queue and a thread
    assert most <= tm.stats()["result_bytes_in_flight"] <= most + ahead * packet * ANSWER_BYTES
    merging.set()
    assert all(sorted(future.result(TIMEOUT)) == KEYS for future in waiting)
    end(tm)


def test_what_waits_in_partition_queues_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    options = PipelineOptions(max_queries=MANY_QUERIES, max_result_bytes=2000, hand_over_queries=0)
    tm = index(layout="balanced", threads=1, flush_timeout=None, pipeline=options)
    assert sorted(tm.submit(TAGS).result(TIMEOUT)) == KEYS
    gate = Gate(monkeypatch, BalancedSubsetMatch, "match")
    waiting = [tm.submit(TAGS)]
    assert gate.entered.wait(TIMEOUT)
    waiting += ask_for_too_many_bytes(tm)
    gate.open()
    assert all(sorted(future.result(TIMEOUT)) == KEYS for future in waiting)
    end(tm)


@pytest.mark.parametrize("lives", [40, pytest.param(200, marks=pytest.mark.nightly)])
def test_nothing_is_left_of_many_lives(layout: str, lives: int) -> None:
    options = PipelineOptions(hand_over_queries=0, queued_packets=1)

    def our_objects() -> int:
        return sum(str(type(each).__module__).startswith("tagmatch") for each in gc.get_objects())

    def live(number: int) -> None:
        tm = index(layout=layout, flush_timeout=(None, 0, 0.001)[number % 3], batch_size=2, pipeline=options)
        futures = [tm.submit(TAGS) for _ in range(10)]
        assert sorted(tm.match(TAGS)) == sorted(tm.match([*TAGS, IN_PACKET])) == KEYS
        tm.close(drain=number % 2 == 0)
        assert number % 2 or all(sorted(future.result(0)) == KEYS for future in futures)
        assert all(future.done() for future in futures)

    for number in range(6):
        live(number)
    gc.collect()
    before, objects = threading.active_count(), our_objects()
    for number in range(lives):
        live(number)
    gc.collect()
    assert threading.active_count() == before
    assert our_objects() < objects + lives


def ended(future: Future[Any], expected: list[int]) -> str:
    """How a query ended whose index was closed."""
    try:
        answer = future.result(TIMEOUT)
    except CancelledError:
        return "cancelled"
    except ClosedError:
        return "failed"
    assert sorted(answer) == expected
    return "right"


@pytest.mark.parametrize("times", [5, pytest.param(25, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("drain", [True, False])
def test_close_at_any_moment(rng: random.Random, layout: str, drain: bool, times: int) -> None:
    """While others ask, each time with other options, which the output shows."""
    for _ in range(times):
        options = pipelines.random_options(rng, layout) | {"flush_timeout": rng.choice((0, 0.001, None))}
        print(options)
        tm, futures, asked = index(**options), list[Future[Any]](), threading.Semaphore(0)

        def submit(tm: TagMatch = tm, futures: list[Future[Any]] = futures) -> None:
            futures.append(tm.submit(TAGS))
            if len(futures) % 50 == 0:
                assert not wait(futures, TIMEOUT).not_done

        def match(tm: TagMatch = tm) -> None:
            assert sorted(tm.match([*TAGS, IN_PACKET])) == sorted(tm.match(TAGS)) == KEYS

        def match_many(tm: TagMatch = tm) -> None:
            assert tm.match_many([["t3"]] * 300).to_pylist() == [[3]] * 300

        def ask_on(way: Callable[[], None], asked: threading.Semaphore = asked) -> None:
            with suppress(ClosedError, CancelledError):
                while True:
                    way()
                    asked.release()

        with together([partial(ask_on, way) for way in (match, submit, match_many)] * 3):
            for _ in range(rng.randint(1, 60)):
                assert asked.acquire(timeout=TIMEOUT)
            tm.close(drain=drain)
        counts = Counter(ended(future, KEYS) for future in futures)
        assert not drain or counts.keys() <= {"right"}
        end(tm)


def test_who_waits_for_many_futures_sees_that_they_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, stop = threading.Event(), Batcher.stop
    monkeypatch.setattr(Batcher, "stop", lambda batcher: (stop(batcher), stopped.set()))
    tm = index(threads=1)
    futures, let_go = held_packet(monkeypatch, tm, [["t1"], ["t2"]])
    assert futures[1].cancel()
    with together([lambda: tm.close(drain=False)]):
        assert stopped.wait(TIMEOUT)  # all stages are to end
        let_go()
    assert all(future.cancelled() for future in futures)
    assert not wait(futures, TIMEOUT).not_done
    assert set(as_completed(futures, TIMEOUT)) == set(futures)


@pytest.mark.parametrize("hand_over", [0, 1024])
@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
def test_callback_closes(
    monkeypatch: pytest.MonkeyPatch, layout: str, threads: int, drain: bool, hand_over: int
) -> None:
    """Two at once, perhaps; no other thread answers the others."""
    options = PipelineOptions(hand_over_queries=hand_over, packet_queries=2, queued_packets=1)
    tm, closed = index(layout=layout, threads=threads, pipeline=options), threading.Semaphore(0)
    futures, let_go = held_packet(monkeypatch, tm, [["t1"]] * 20)
    for future in futures[3:8:4]:
        future.add_done_callback(lambda _: (tm.close(drain=drain), closed.release()))
    let_go()
    for _ in range(2):
        assert closed.acquire(timeout=TIMEOUT), pipelines.stacks()
    for future in futures:
        ended(future, [1])
    end(tm)


def test_a_callback_that_takes_long(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """`match` does not wait for it, but `close` does, which comes after all answers."""
    tm = index(layout=layout, threads=1)
    futures, let_go = held_packet(monkeypatch, tm, [["t1"], ["t2"]])
    called, release = threading.Event(), threading.Event()
    futures[0].add_done_callback(lambda _: (called.set(), release.wait(TIMEOUT)))
    let_go()
    try:
        assert called.wait(TIMEOUT)
        with together([lambda: tm.match(["t4", IN_PACKET])]) as asking:
            assert asking[0].result(TIMEOUT / 2) == [4]
        with together([tm.close]) as closing:
            threading.Timer(0.2, release.set).start()
            assert closing[0].exception(TIMEOUT) is None
            assert all(future.done() for future in futures)
    finally:
        release.set()
    end(tm)
