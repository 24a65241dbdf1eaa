"""The pipeline between `submit` and its future: what fails, waits, is cancelled or is left reaches who asked."""

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from support.pipelines import TAGS, TIMEOUT, Gate, figures, our_threads, small, together
from support.waiting import wait_until

from tagmatch import Overloaded, PipelineOptions, TagMatch
from tagmatch.model.options import MatchOptions
from tagmatch.pipeline.run.callers import Caller
from tagmatch.pipeline.run.packets import Intake
from tagmatch.pipeline.run.stage import Stage
from tagmatch.pipeline.segment import CpuMatcher, tag_finder

pytestmark = pytest.mark.usefixtures("through_stages")


@pytest.mark.parametrize(
    ("step", "ask"),
    [
        ("segment.SegmentQueries.subset_match", lambda tm: tm.match_many([["t1"]] * 5000)),
        ("run.packets.rows_of_messages", lambda tm: tm.submit(["t1"]).result(TIMEOUT)),
    ],
    ids=["many queries", "before the first stage"],
)
def test_a_failure_reaches_who_asked(
    monkeypatch: pytest.MonkeyPatch, step: str, ask: Callable[[TagMatch[Any]], Any]
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("injected")

    with small() as tm:
        with monkeypatch.context() as patched:
            patched.setattr(f"tagmatch.pipeline.{step}", fail)
            with pytest.raises(MemoryError, match="injected"):
                ask(tm)
        assert tm.match_many([["t1"], ["t2", "t3"]]).to_pylist() == [[1], [2, 3]]
        assert tm.submit(["t1"]).result(TIMEOUT) == [1]
        assert tm.stats()["queries_in_flight"] == 0


@pytest.mark.slow
def test_more_than_a_packet_is_announced() -> None:
    announced, dropped = list[bool](), list[Caller]()
    intake = Intake(8192, announce=lambda: announced.append(True), dropped=dropped.extend)
    with small() as tm:
        matcher = CpuMatcher(tm.snapshot.only, [tag_finder(tm.snapshot.only, MatchOptions())])
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
    """Ctrl-C comes at the end of any Python code that enters a lock, before the block that gives it back begins."""

    def interrupt(*arguments: Any) -> Any:
        if arguments[1] == "return":
            raise KeyboardInterrupt
        return interrupt

    with small(pipeline=PipelineOptions(hand_over_queries=0)) as tm:
        future = tm.submit(["t1"])
        traced = sys.gettrace()
        sys.settrace(lambda frame, *_: interrupt if frame.f_code.co_name == "__enter__" else None)
        try:
            future.result(TIMEOUT)
        except KeyboardInterrupt:
            sys.settrace(traced)
        assert sys.gettrace() is traced
        gate.open()
        assert tm.submit(["t2", "t3"]).result(TIMEOUT) == [2, 3]
        assert future.result(TIMEOUT) == [1]


def test_overload_is_told_at_once(gate: Gate) -> None:
    with small(pipeline=PipelineOptions(max_queries=3)) as tm:
        futures = [tm.submit(["t1"]) for _ in range(3)]
        for how in ({"block": False}, {"timeout": 0.01}):
            with pytest.raises(Overloaded, match="max_queries"):
                tm.submit(["t1"], **how)
        gate.open()
        assert [future.result(TIMEOUT) for future in futures] == [[1]] * 3
        assert tm.submit(["t2"], timeout=TIMEOUT).result(TIMEOUT) == [2]


@pytest.mark.parametrize("timeout", [None, 1e10])
def test_submit_waits_for_its_turn(gate: Gate, timeout: float | None) -> None:
    """For ages if asked to."""
    with small(pipeline=PipelineOptions(max_queries=1)) as tm:
        first = tm.submit(["t1"])
        with together([lambda: tm.submit(["t2"], timeout=timeout).result(TIMEOUT)]) as (second,):
            assert gate.entered.wait(TIMEOUT)
            assert not second.done()
            gate.open()
        assert (first.result(TIMEOUT), second.result(0)) == ([1], [2])


@pytest.mark.parametrize("stopped", [False, True])
def test_a_stage_takes_work_in_the_order_in_which_it_comes(stopped: bool) -> None:
    """What waits when it stops fails."""
    done, failed, entered, release = [], [], threading.Event(), threading.Event()

    def do(work: str) -> tuple[()]:
        entered.set()
        assert release.wait(TIMEOUT)
        done.append(work)
        return ()

    stage: Stage[str] = Stage("any", do, lambda work, _: failed.append(work), threads=1, bound=3)
    stage.start()
    stage.put("first")
    assert entered.wait(TIMEOUT)
    for work in ("aa", "b", "cccc"):
        stage.put(work)
    assert stage.stats()["queued"] == 3
    if stopped:
        stage.stop()
    release.set()
    while len(done) < 4 and not stopped:
        stage.nudge()
    stage.stop()
    stage.join()
    assert done == ["first", "aa", "b", "cccc"][: 1 if stopped else 4]
    assert sorted(failed) == (["aa", "b", "cccc"] if stopped else [])


def test_threads_end_where_close_is_forgotten() -> None:
    tm = small()
    assert tm.submit(["t1"]).result(TIMEOUT) == [1]
    assert our_threads()
    del tm
    gc.collect()
    wait_until(lambda: not our_threads())


SCRIPT = """
import os
from tagmatch import Channel, TagMatch
tm = TagMatch(threads=2, channels=[Channel("alarm")], order="edf")
tm.add_set(["a"], 1)
tm.consolidate()
futures = [tm.submit(["a", "in a packet\\0"]) for _ in range(1000)]
assert futures[-1].result() == tm.submit(["a"], channel="alarm").result() == [1]
if child := os.fork():
    _, status = os.waitpid(child, 0)
    assert status == 0
    print(tm.match_many([["a"]] * 5).to_pylist())
else:
    ok = tm.submit(["a", "in a packet\\0"]).result() == tm.submit(["a"], channel="alarm").result() == [1]
    ok = ok and tm.match_many([["a"], []]).to_pylist() == [[1], []] and tm.stats()["channels"]["alarm"]["offered"] == 1
    tm.close()
    os._exit(not ok)
"""


@pytest.mark.slow
def test_a_forked_child_answers_too_and_the_interpreter_ends_without_close() -> None:
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[[1], [1], [1], [1], [1]]\n", "")


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
            assert (stage["threads"], stage["queued"]) == (2, 0)
            assert stage["service"]["count"] == 3  # two packets of 500 queries and one of one
            assert 0 <= stage["service"]["median"] <= stage["service"]["p99"] <= stage["service"]["max"]


def test_stage_threads() -> None:
    stages = {"preprocess_threads": 1, "subset_match_threads": 3, "key_lookup_threads": 2, "merge_threads": 1}
    options = PipelineOptions(**stages, hand_over_queries=0)
    before = set(threading.enumerate())
    with small(pipeline=options, threads=4) as tm:
        assert tm.submit(["t1"]).result(TIMEOUT) == [1]
        stages = tm.stats()["stages"]
        assert [stage.get("threads") for stage in stages.values()] == [1, None, 3, 2, 1]
        assert len(set(our_threads()) - before) == 7
