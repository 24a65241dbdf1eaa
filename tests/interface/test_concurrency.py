"""Many threads ask and change at once: each answer is that of one snapshot, and nothing gets lost."""

import functools
import random
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress

import pytest
from support import moving_keys
from support.agreement import assert_keys

from tagmatch import ClosedError, IndexChangedError, TagMatch
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


@pytest.mark.parametrize(
    ("layout", "few"),
    [
        ("rarest", 0), ("balanced", FEW_SETS), pytest.param("rarest", FEW_SETS, marks=pytest.mark.nightly),
        pytest.param("balanced", 0, marks=pytest.mark.nightly),
    ],
)  # fmt: skip
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
            asked = moving_keys.ask(tm, random.Random(seed))
            while not finished.is_set():
                next(asked)

        def move(writer: TagMatch, version: int) -> None:
            writer.reload()
            with suppress(IndexChangedError):
                return moving_keys.move_to(writer, version, full=version % 5 == 0)
            while True:  # the other object merges segments meanwhile, and so changes the files
                writer.reload()
                with suppress(IndexChangedError):
                    return writer.consolidate()

        with in_background(*(functools.partial(reader, rng.random()) for _ in range(3))):
            try:
                for version in VERSIONS:
                    move(rng.choice([tm, other]), version)
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
            with in_background(*(functools.partial(writer, number) for number in range(4))):
                pass
        finally:
            done.set()
    with tm:
        if durability == "none":
            tm.consolidate()
        shutil.copytree(path, tmp_path / "copy")
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


@pytest.mark.filterwarnings("ignore::tagmatch.StagedChangesWarning")
def test_close_while_others_change(tm):
    def write() -> None:
        tm.add_set(["a"], 1)
        tm.add_sets([["a"], ["b"]], [1, 2])
        tm.consolidate()

    with in_background(*[until_closed(write)] * 3):
        tm.close()


def test_close_answers_what_was_submitted(tm):
    futures = [tm.submit(["the version"], unique=True) for _ in range(500)]
    tm.close()
    assert not wait(futures, TIMEOUT).not_done
    for future in futures:
        error = future.exception()
        assert isinstance(error, ClosedError) or future.result() == {10**6}
    with pytest.raises(ClosedError):
        tm.submit([]).result(TIMEOUT)
