"""Many threads ask and change at once: each answer is that of one snapshot, and nothing gets lost."""

from __future__ import annotations

import functools
import itertools
import random
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress

import pytest
from support import moving_keys
from support.agreement import assert_keys

from tagmatch import ClosedError, IndexChangedError, StagedChangesWarning, TagMatch
from tagmatch.partitioner.consolidation import FEW_SETS

pytestmark = pytest.mark.slow

VERSIONS = range(1, 16)
TIMEOUT = 120


@pytest.fixture(autouse=True)
def short_turns() -> Iterator[None]:
    """Threads take turns after half a millisecond, not 5: who changes the index waits for those who only ask."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-4)
    yield
    sys.setswitchinterval(before)


@contextmanager
def in_background(*jobs: Callable[[], object]) -> Iterator[list[Future[object]]]:
    """Start all jobs at the same moment; when the block ends, wait for them and raise what they raised."""
    start = threading.Barrier(len(jobs) + 1)

    def started(job: Callable[[], object]) -> object:
        start.wait(TIMEOUT)
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = [pool.submit(started, job) for job in jobs]
        start.wait(TIMEOUT)
        yield futures
        for future in futures:
            future.result(TIMEOUT)


@pytest.fixture
def tm(layout: str) -> Iterator[TagMatch]:
    with TagMatch(layout=layout, threads=4, max_partition_size=7) as tm:
        moving_keys.store_first(tm)
        yield tm


def consolidate_after_all(tm: TagMatch) -> None:
    """While another object merges segments, and so changes the files."""
    while True:
        tm.reload()
        with suppress(IndexChangedError):
            tm.consolidate()
            return


@pytest.mark.parametrize(
    ("layout", "few"),
    [
        ("rarest", 0),
        ("balanced", FEW_SETS),
        pytest.param("rarest", FEW_SETS, marks=pytest.mark.nightly),
        pytest.param("balanced", 0, marks=pytest.mark.nightly),
    ],
)
def test_each_answer_is_of_one_snapshot(tmp_path, layout, rng, few, monkeypatch):
    """Threads ask while two objects consolidate an index, merge its segments in the background, and reload.

    With `few` as 0, there are several segments.
    """
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", few)
    finished, segments = threading.Event(), set()
    with (
        TagMatch(tmp_path / "index", layout=layout, threads=4) as tm,
        TagMatch(tmp_path / "index", layout=layout, threads=2) as other,
    ):
        moving_keys.store_first(tm)

        def reader(seed: int) -> None:
            for _ in moving_keys.ask(tm, random.Random(seed)):
                if finished.is_set():
                    return

        with in_background(*(functools.partial(reader, rng.random()) for _ in range(3))):
            try:
                for version in VERSIONS:
                    writer = rng.choice([tm, other])
                    writer.reload()
                    try:
                        moving_keys.move_to(writer, version, full=version % 5 == 0)
                    except IndexChangedError:
                        consolidate_after_all(writer)
                    tm.reload()
                    segments.add(tm.stats()["segments"])
            finally:
                finished.set()
        tm.check()
        assert dict(tm) == moving_keys.contents(VERSIONS[-1])
    assert few or len(segments) > 1, segments


@pytest.mark.parametrize("durability", ["fsync", "none"])
def test_no_change_is_lost(tmp_path, layout, durability):
    """Four threads stage additions and removals while two others consolidate; the last changes may be in a log."""
    rounds, path = 60, tmp_path / "index"
    done = threading.Event()
    tm = TagMatch(path, layout=layout, threads=4, max_partition_size=7, durability=durability)

    def writer(number: int) -> None:
        for i in range(rounds):
            key = 1_000 * number + i
            tm.add_set(["x", f"x{key}"], key)
            tm.add_sets([["y", f"y{key}"], ["gone", f"gone{key}"]], [key, key])
            tm.remove_set(["gone", f"gone{key}"], key)

    def consolidator() -> None:
        while not done.is_set():
            tm.consolidate()

    with in_background(consolidator, consolidator):
        try:
            with in_background(*(lambda number=number: writer(number) for number in range(4))):
                pass
        finally:
            done.set()
    with tm:
        if durability == "none":
            tm.consolidate()
        shutil.copytree(path, tmp_path / "copy")
        tm.consolidate()
    keys = sorted(1_000 * number + i for number in range(4) for i in range(rounds))
    for place in (path, tmp_path / "copy"):
        with TagMatch(place) as tm:
            tm.consolidate()
            tm.check()
            for letter in "xy":
                assert_keys(tm.match_many([[letter, *(f"{letter}{key}" for key in keys)]]), [keys])
            assert tm.match(["gone", *(f"gone{key}" for key in keys)]) == []
            assert len(tm) == 2 * len(keys)


def until_closed(job: Callable[[], object]) -> Callable[[], None]:
    """A loop that must end with `ClosedError`."""

    def loop() -> None:
        while True:
            job()

    def expect_closed() -> None:
        with pytest.raises(ClosedError):
            loop()

    return expect_closed


@pytest.mark.parametrize("way", moving_keys.WAYS)
def test_close_while_others_ask(tm, way, seed):
    answered = threading.Semaphore(0)

    def read() -> None:
        assert way(tm, random.Random(seed)) == 0
        answered.release()

    with in_background(*[until_closed(read)] * 3):
        try:
            for _ in range(6):
                assert answered.acquire(timeout=TIMEOUT)
        finally:
            tm.close()


def test_close_says_how_many_changes_of_others_are_lost(layout, tmp_path):
    keys, staged, consolidated = itertools.count(), [], threading.Semaphore(0)
    tm = TagMatch(tmp_path, layout=layout, durability="none")

    def stage() -> None:
        key = next(keys)
        tm.add_set(["a"], key)
        staged.append(key)

    def consolidate() -> None:
        stage()
        tm.consolidate()
        consolidated.release()

    with warnings.catch_warnings(record=True) as given_warnings:
        warnings.simplefilter("always", StagedChangesWarning)
        with in_background(*map(until_closed, [stage, consolidate, consolidate])):
            try:
                for _ in range(6):
                    assert consolidated.acquire(timeout=TIMEOUT)
            finally:
                tm.close()
    said = sum(int(str(each.message).split()[0]) for each in given_warnings)
    with TagMatch.open(tmp_path) as tm:
        saved = tm.match(["a"])
    assert set(saved) <= set(staged)
    # A call of consolidate() that close() overtook may have saved some of these
    assert len(staged) - len(saved) <= said <= len(staged)


def test_close_answers_what_was_submitted(tm):
    futures = [tm.submit(["the version"], unique=True) for _ in range(500)]
    tm.close()
    assert not wait(futures, TIMEOUT).not_done
    for future in futures:
        error = future.exception()
        assert isinstance(error, ClosedError) or future.result() == {10**6}
    with pytest.raises(ClosedError):
        tm.submit([]).result(TIMEOUT)
