"""The pipeline between `submit` and its future: nothing is lost, doubled or swapped, whatever fails, waits or ends."""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from typing import Any

import pytest
from support.pipelines import IN_PACKET, Gate, figures, our_threads, watched

from tagmatch import ClosedError, Overloaded, PipelineOptions, TagMatch
from tagmatch.model.options import MatchOptions
from tagmatch.pipeline.cpu.matcher import CpuMatcher, Ranked
from tagmatch.pipeline.stages.intake import Intake
from tagmatch.pipeline.stages.packets import Caller

pytestmark = pytest.mark.usefixtures("through_stages")

TIMEOUT = 60
TAGS = [f"t{i}" for i in range(50)]


def small(**options: Any) -> TagMatch:
    """Set {t_i} has key i."""
    return watched([([tag], i) for i, tag in enumerate(TAGS)], **{"threads": 2} | options)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def test_many_threads_with_cancellations_and_failures(
    monkeypatch: pytest.MonkeyPatch, layout: str, rng: random.Random
) -> None:
    """Every query is counted in and out: answered rightly, cancelled, or failed with the error of its own packet."""
    subset_match = Ranked.subset_match
    failing = random.Random(rng.random())

    def sometimes(queries: Ranked) -> Any:
        if failing.random() < 0.1:
            raise RuntimeError("injected")
        return subset_match(queries)

    tm = small(layout=layout)
    monkeypatch.setattr(Ranked, "subset_match", sometimes)
    seeds = [rng.random() for _ in range(64)]

    def ask(seed: float) -> dict[str, int]:
        mine = random.Random(seed)
        counts = dict.fromkeys(("right", "cancelled", "failed"), 0)
        for _ in range(10):
            futures: list[tuple[set[int], bool, Future[Any]]] = []
            for _ in range(mine.randint(1, 20)):
                wanted = {mine.randrange(len(TAGS)) for _ in range(mine.randint(0, 6))}
                unique = mine.random() < 0.5
                future = tm.submit([TAGS[i] for i in wanted], unique=unique)
                if mine.random() < 0.1:
                    future.cancel()
                futures.append((wanted, unique, future))
            for wanted, unique, future in futures:
                try:
                    answer = future.result(TIMEOUT)
                except CancelledError:
                    counts["cancelled"] += 1
                except RuntimeError:
                    counts["failed"] += 1
                else:
                    assert isinstance(answer, set if unique else list)
                    assert sorted(answer) == sorted(wanted)
                    counts["right"] += 1
            counts["asked"] = counts.get("asked", 0) + len(futures)
        return counts

    with tm, ThreadPoolExecutor(64) as pool:
        totals = {"right": 0, "cancelled": 0, "failed": 0, "asked": 0}
        for counts in pool.map(ask, seeds):
            for name, count in counts.items():
                totals[name] += count
        assert totals["right"] + totals["cancelled"] + totals["failed"] == totals["asked"]
        assert totals["right"] > 0
        assert tm.stats()["queries"] == totals["right"]
        monkeypatch.undo()
        assert tm.submit(TAGS[:1]).result(TIMEOUT) == [0], "the pipeline stays up"
    stats = figures(tm)
    assert stats["queries_in_flight"] == stats["result_bytes_in_flight"] == 0


def test_failure_of_a_call_with_many_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("injected")

    with small() as tm:
        with monkeypatch.context() as patched:
            patched.setattr(Ranked, "subset_match", fail)
            with pytest.raises(RuntimeError, match="injected"):
                tm.match_many([["t1"]] * 5000)
        assert tm.match_many([["t1"], ["t2", "t3"]]).to_pylist() == [[1], [2, 3]]
        assert tm.stats()["queries_in_flight"] == 0


def test_more_than_a_packet_is_announced() -> None:
    announced: list[bool] = []
    dropped: list[Caller] = []
    intake = Intake(8192, announce=lambda: announced.append(True), dropped=dropped.extend)
    with small() as tm:
        matcher = CpuMatcher(tm.snapshot.only, MatchOptions())
        callers = [Caller(Future(), False) for _ in range(20_000)]
        for i, caller in enumerate(callers):
            assert intake.extend(matcher, [(TAGS[:1], caller)]) == (i == 0)
            if 8192 <= i < 2 * 8192:  # all of the second packet
                caller.future.cancel()
        assert not announced
        packets = list(iter(intake.take, None))
        assert [len(packet) for packet in packets] == [8192, 20_000 - 2 * 8192]
        assert [caller for packet in packets for caller in packet.callers] == callers[:8192] + callers[2 * 8192 :]
    assert len(announced) == 1
    assert len(dropped) == 8192


def test_ctrl_c_of_one_who_waits_leaves_no_lock_taken(gate: Gate) -> None:
    """Ctrl-C comes at the end of whatever Python code enters a lock, before the block that gives it back begins."""

    def interrupt(*arguments: Any) -> Any:
        if arguments[1] == "return":
            raise KeyboardInterrupt
        return interrupt

    def wait_interrupted(future: Future[Any]) -> None:
        sys.settrace(lambda frame, *_: interrupt if frame.f_code.co_name == "__enter__" else None)
        try:
            future.result(TIMEOUT)
        finally:
            sys.settrace(None)

    with small(pipeline=PipelineOptions(hand_over_queries=0)) as tm:
        future = tm.submit(["t1"])
        with pytest.raises(KeyboardInterrupt):
            wait_interrupted(future)
        gate.open()
        assert tm.submit(["t2", "t3"]).result(TIMEOUT) == [2, 3]
        assert future.result(TIMEOUT) == [1]


def test_failure_before_the_first_stage_reaches_its_future(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise MemoryError("injected")

    with small() as tm:
        with monkeypatch.context() as patched:
            patched.setattr("tagmatch.pipeline.stages.packets.rows_of_tags", fail)
            with pytest.raises(MemoryError, match="injected"):
                tm.submit(["t1"]).result(TIMEOUT)
        assert tm.submit(["t1"]).result(TIMEOUT) == [1]
        assert tm.stats()["queries_in_flight"] == 0


def test_overload_is_told_at_once(gate: Gate) -> None:
    with small(pipeline=PipelineOptions(max_queries=3)) as tm:
        futures = [tm.submit(["t1"]) for _ in range(3)]
        with pytest.raises(Overloaded, match="max_queries"):
            tm.submit(["t1"], block=False)
        before = time.monotonic()
        with pytest.raises(Overloaded):
            tm.submit(["t1"], timeout=0.05)
        assert time.monotonic() - before >= 0.05
        gate.open()
        assert [future.result(TIMEOUT) for future in futures] == [[1]] * 3
        assert tm.submit(["t2"], timeout=TIMEOUT).result(TIMEOUT) == [2]


def test_submit_waits_for_its_turn(gate: Gate) -> None:
    with small(pipeline=PipelineOptions(max_queries=1)) as tm, ThreadPoolExecutor(1) as pool:
        first = tm.submit(["t1"])
        second = pool.submit(lambda: tm.submit(["t2"]).result(TIMEOUT))
        assert gate.entered.wait(TIMEOUT)
        assert not second.done()
        gate.open()
        assert (first.result(TIMEOUT), second.result(TIMEOUT)) == ([1], [2])


def test_more_queries_than_may_be_on_their_way() -> None:
    with small(pipeline=PipelineOptions(max_queries=7, max_result_bytes=1)) as tm:
        queries = [[TAGS[i % 50], TAGS[(i + 1) % 50]] for i in range(3000)]
        answers = tm.match_many(queries).to_pylist()
        assert [sorted(keys) for keys in answers] == [sorted({i % 50, (i + 1) % 50}) for i in range(3000)]


def test_ten_times_too_much_for_a_while() -> None:
    """Calls that do not wait either get an answer or are told; no more than allowed are ever on their way."""
    most, told, answered = 50, 0, 0
    with small(pipeline=PipelineOptions(max_queries=most)) as tm:
        ends = time.monotonic() + 3
        waiting: list[Future[Any]] = []
        while time.monotonic() < ends:
            try:
                waiting.append(tm.submit(TAGS, block=False))
            except Overloaded:
                told += 1
            assert tm.stats()["queries_in_flight"] <= most
        answered = sum(sorted(future.result(TIMEOUT)) == list(range(50)) for future in waiting)
        assert answered == len(waiting) == tm.stats()["queries"]
    assert told > 0


def test_close_answers_what_was_submitted(gate: Gate) -> None:
    tm = small()
    futures = [tm.submit([tag]) for tag in TAGS]
    closing = threading.Thread(target=tm.close)
    closing.start()
    gate.open()
    closing.join(TIMEOUT)
    assert not closing.is_alive()
    assert [future.result(0) for future in futures] == [[i] for i in range(50)]
    assert not our_threads()
    with pytest.raises(ClosedError):
        tm.submit(["t1"])


def test_close_without_draining_ends_everything(gate: Gate) -> None:
    tm = small()
    futures = [tm.submit([tag]) for tag in TAGS]
    assert gate.entered.wait(TIMEOUT)
    with ThreadPoolExecutor(2) as pool:
        many = pool.submit(tm.match_many, [["t1"]] * 20_000)
        one = pool.submit(lambda: tm.close(drain=False))
        time.sleep(0.05)
        gate.open()
        one.result(TIMEOUT)
        error = many.exception(TIMEOUT)
        assert error is None or isinstance(error, ClosedError)
    assert not wait(futures, TIMEOUT).not_done
    for i, future in enumerate(futures):
        if future.cancelled():
            continue
        error = future.exception()
        assert isinstance(error, ClosedError) if error is not None else future.result() == [i]
    assert not our_threads()


@pytest.mark.parametrize("drain", [True, False])
def test_close_during_load(drain: bool) -> None:
    tm = small()
    stop = threading.Event()

    def ask() -> int:
        answers = 0
        while not stop.is_set():
            try:
                assert tm.match(["t3", "t4", IN_PACKET]) in ([3, 4], [4, 3])
                assert tm.match(["t3", "t4"]) in ([3, 4], [4, 3])
                assert tm.submit(["t3", "t4"]).result(TIMEOUT) in ([3, 4], [4, 3])
                answers += 1
            except (ClosedError, CancelledError):
                break
        return answers

    with ThreadPoolExecutor(16) as pool:
        asking = [pool.submit(ask) for _ in range(16)]
        time.sleep(0.2)
        tm.close(drain=drain)
        stop.set()
        assert sum(future.result(TIMEOUT) for future in asking) > 0
    tm.close()
    assert not our_threads()


@pytest.mark.slow
def test_nothing_is_left_of_many_lives() -> None:
    def live() -> None:
        with TagMatch(threads=2) as tm:
            tm.add_set(["a"], 1)
            tm.consolidate()
            assert tm.submit(["a"]).result(TIMEOUT) == [1]

    live()
    gc.collect()
    before, objects = threading.active_count(), len(gc.get_objects())
    for _ in range(200):
        live()
    gc.collect()
    assert threading.active_count() == before
    assert len(gc.get_objects()) < objects + 2000


def test_threads_end_where_close_is_forgotten() -> None:
    tm = small()
    assert tm.submit(["t1"]).result(TIMEOUT) == [1]
    assert our_threads()
    del tm
    gc.collect()
    ends = time.monotonic() + TIMEOUT
    while our_threads() and time.monotonic() < ends:
        time.sleep(0.01)
    assert not our_threads()


@pytest.mark.slow
def test_interpreter_ends_where_close_is_forgotten() -> None:
    script = """
from tagmatch import TagMatch
tm = TagMatch()
tm.add_set(["a"], 1)
tm.consolidate()
futures = [tm.submit(["a", "in a packet\\0"]) for _ in range(1000)]
print(futures[-1].result())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1]\n", "")


@pytest.mark.slow
def test_forked_child_answers_too() -> None:
    script = """
import os
from tagmatch import TagMatch
tm = TagMatch(threads=2)
tm.add_set(["a"], 1)
tm.consolidate()
assert tm.submit(["a", "in a packet\\0"]).result() == [1]
if child := os.fork():
    _, status = os.waitpid(child, 0)
    assert status == 0
    print(tm.match_many([["a"]] * 5).to_pylist())
else:
    ok = tm.submit(["a", "in a packet\\0"]).result() == [1] and tm.match_many([["a"], []]).to_pylist() == [[1], []]
    tm.close()
    os._exit(not ok)
"""
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[[1], [1], [1], [1], [1]]\n", "")


def test_asyncio() -> None:
    async def ask(tm: TagMatch) -> list[Any]:
        return await asyncio.gather(*(tm.amatch([tag], unique=i % 2 == 0) for i, tag in enumerate(TAGS)))

    with small() as tm:
        assert asyncio.run(ask(tm)) == [{i} if i % 2 == 0 else [i] for i in range(50)]


def test_asyncio_does_not_wait_outside(gate: Gate) -> None:
    async def ask(tm: TagMatch) -> None:
        first = asyncio.ensure_future(tm.amatch(["t1"]))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await tm.amatch(["t2"])
        gate.open()
        assert await first == [1]

    with small(pipeline=PipelineOptions(max_queries=1)) as tm:
        asyncio.run(ask(tm))


def test_cancelled_queries_are_not_matched(gate: Gate) -> None:
    with small(threads=1) as tm:
        first = tm.submit(["t1"])
        assert gate.entered.wait(TIMEOUT)
        # the threads are busy or have nothing to do before the gate opens, but some packets may be on their way already
        futures = [tm.submit(["t2"]) for _ in range(100)]
        cancelled = [future.cancel() for future in futures]
        gate.open()
        assert first.result(TIMEOUT) == [1]
        for future, was_cancelled in zip(futures, cancelled, strict=True):
            assert future.cancelled() if was_cancelled else future.result(TIMEOUT) == [2]
        tm.close()
        assert figures(tm)["queries"] == 101 - sum(cancelled)
        assert figures(tm)["queries_in_flight"] == 0


def test_stats() -> None:
    with small() as tm:
        tm.match_many([["t1"], ["t2"]] * 500)
        tm.submit(["t1", "t2"]).result(TIMEOUT)
        tm.match(["t3"])
        stats = tm.stats()
        assert (stats["queries"], stats["matches"], stats["verified"], stats["rejected"]) == (1002, 1003, 1003, 0)
        tm.close()
        stages = figures(tm)["stages"]
        assert list(stages) == ["preprocess", "batch", "subset_match", "key_lookup", "merge"]
        assert stages.pop("batch") == {"queued": 0, "batches": 0, "fill": 0.0}
        for stage in stages.values():
            assert stage["threads"] == 2
            assert stage["queued"] == 0
            assert stage["service"]["count"] == 3  # two packets of 500 queries and one of one
            assert 0 <= stage["service"]["median"] <= stage["service"]["p99"] <= stage["service"]["max"]


def test_stats_of_batches() -> None:
    with small(layout="balanced", batch_size=4, flush_timeout=0) as tm:
        futures = [tm.submit(["t1"]) for _ in range(100)]  # in the one partition whose mask the tag has
        assert all(future.result(TIMEOUT) == [1] for future in futures)
        batch = tm.stats()["stages"]["batch"]
        assert batch["queued"] == 0
        assert 25 <= batch["batches"] <= 100
        assert batch["fill"] == 100 / (4 * batch["batches"])


def test_stage_threads() -> None:
    options = PipelineOptions(
        preprocess_threads=1, subset_match_threads=3, key_lookup_threads=2, merge_threads=1, hand_over_queries=0
    )
    with small(pipeline=options, threads=4) as tm:
        assert tm.submit(["t1"]).result(TIMEOUT) == [1]
        stages = tm.stats()["stages"]
        assert [stage.get("threads") for stage in stages.values()] == [1, None, 3, 2, 1]
        assert len(our_threads()) == 7


@pytest.mark.parametrize("threads", [1, 2])
def test_callbacks_may_ask(layout: str, threads: int) -> None:
    """A thread of the pipeline must not wait for itself."""
    options = PipelineOptions(max_queries=1, max_result_bytes=1)
    with small(layout=layout, threads=threads, pipeline=options) as tm:
        answers: list[Any] = []
        asked = threading.Event()

        def ask(_: Future[Any]) -> None:
            answers.append(tm.match(["t2", IN_PACKET]))
            answers.append(tm.match(["t2"]))
            answers.append(tm.match_unique(["t3"]))
            answers.append(tm.match_many([["t4"]]).to_pylist())
            following = tm.submit(["t5"])
            following.add_done_callback(lambda done: (answers.append(done.result()), asked.set()))

        tm.submit(["t1"]).add_done_callback(ask)
        assert asked.wait(TIMEOUT)
        assert answers == [[2], [2], {3}, [[4]], [5]]
