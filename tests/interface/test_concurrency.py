"""Many threads ask and change at once: each answer is that of one snapshot, and nothing gets lost."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress

import pyarrow as pa
import pytest
from support import moving_keys
from support.agreement import assert_keys, loaded
from support.pipelines import IN_PACKET

from tagmatch import ClosedError, IndexChangedError, StagedChangesWarning, TagMatch

pytestmark = pytest.mark.slow

TAGS = [f"a{i}" for i in range(40)]
VERSIONS = range(2, 27)
#: enough that the work is split
QUERIES = pa.chunked_array([[[tag, "unknown"] for tag in TAGS * 25]] * 3)
TIMEOUT = 120

Ask = Callable[[TagMatch], set[int]]


def by_match(tm: TagMatch) -> set[int]:
    keys = tm.match(TAGS)
    assert len(keys) == len(TAGS)
    return set(keys)


def by_explain(tm: TagMatch) -> set[int]:
    explained = tm.explain(TAGS)
    assert {tags for tags, _ in explained} == {frozenset([tag]) for tag in TAGS}
    return {key for _, keys in explained for key in keys}


def by_iteration(tm: TagMatch) -> set[int]:
    stored = list(tm)
    assert {tags for tags, _ in stored} == {frozenset([tag]) for tag in TAGS}
    return {key for _, keys in stored for key in keys}


def by_columns(tm: TagMatch) -> set[int]:
    table = tm.to_arrow()
    assert sorted(table["tags"].to_pylist()) == sorted([tag] for tag in TAGS)
    return set(table["key"].to_pylist())


def by_match_many(tm: TagMatch) -> set[int]:
    answers = tm.match_many(QUERIES)
    assert len(answers) == len(QUERIES)
    assert answers.value_lengths().unique().to_pylist() == [1]
    return set(answers.values.unique().to_pylist())


def by_submit(tm: TagMatch) -> set[int]:
    keys = tm.submit(TAGS).result(TIMEOUT)
    assert len(keys) == len(TAGS)
    return set(keys)


WAYS: dict[str, Ask] = {
    "match": by_match,
    "match_unique": lambda tm: tm.match_unique(TAGS),
    "match_many": by_match_many,
    "match_many unique": lambda tm: set(tm.match_many([TAGS], unique=True).values.to_pylist()),
    "submit": by_submit,
    "submit in a packet": lambda tm: tm.submit([*TAGS, IN_PACKET], unique=True).result(TIMEOUT),
    "amatch": lambda tm: asyncio.run(tm.amatch(TAGS, unique=True)),
    "amatch in a packet": lambda tm: asyncio.run(tm.amatch([*TAGS, IN_PACKET], unique=True)),
    "submit unique": lambda tm: tm.submit(TAGS, unique=True).result(TIMEOUT),
    "explain": by_explain,
    "iter": by_iteration,
    "to_arrow": by_columns,
}


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


def replace_version(tm: TagMatch, version: int) -> None:
    """Every one-tag set has its version as its only key."""
    rows = [[tag] for tag in TAGS]
    tm.remove_sets(rows, [version - 1] * len(rows))
    tm.add_sets(rows, [version] * len(rows))
    tm.consolidate()


@pytest.fixture
def tm(layout: str) -> Iterator[TagMatch]:
    with TagMatch(layout=layout, threads=4, max_partition_size=7) as tm:
        replace_version(tm, 1)
        yield tm


@pytest.mark.parametrize("ask", WAYS.values(), ids=WAYS)
def test_each_answer_is_of_one_snapshot(tm, ask):
    finished = threading.Event()

    def reader() -> None:
        last = 0
        while not finished.is_set():
            (version,) = ask(tm)
            assert last <= version <= VERSIONS[-1]
            last = version

    with in_background(reader, reader, reader):
        try:
            for version in VERSIONS:
                replace_version(tm, version)
                assert ask(tm) == {version}
        finally:
            finished.set()


def consolidate_after_all(tm: TagMatch) -> None:
    """While another object merges segments, and so changes the files."""
    while True:
        tm.reload()
        with suppress(IndexChangedError):
            tm.consolidate()
            return


def test_each_answer_is_of_one_snapshot_of_several_segments(tmp_path, layout, rng, monkeypatch):
    """Threads ask while two objects consolidate an index, merge its segments in the background, and reload."""
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", 0)
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
                        moving_keys.move_to(writer, version - 1, full=version % 10 == 0)
                    except IndexChangedError:
                        consolidate_after_all(writer)
                    tm.reload()
                    segments.add(tm.stats()["segments"])
            finally:
                finished.set()
        tm.check()
        assert dict(tm) == moving_keys.contents(VERSIONS[-1] - 1)
    assert len(segments) > 1, segments


def test_staged_changes_are_not_seen_while_others_ask(tm):
    def writer() -> None:
        for key in range(300):
            tm.add_set(TAGS, key)
            tm.remove_set([TAGS[0]], 1)

    with in_background(writer, writer) as writers:
        while not all(future.done() for future in writers):
            assert by_match(tm) == by_match_many(tm) == {1}
    with pytest.warns(StagedChangesWarning, match="1200 staged changes"):
        tm.close()


def test_no_change_is_lost(tm):
    """Four threads stage additions and removals while two others consolidate."""
    rounds = 60
    done = threading.Event()

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
    tm.consolidate()
    tm.check()
    keys = sorted(1_000 * number + i for number in range(4) for i in range(rounds))
    for letter in "xy":
        assert_keys(tm.match_many([[letter, *(f"{letter}{key}" for key in keys)]]), [keys])
    assert tm.match(["gone", *(f"gone{key}" for key in keys)]) == []
    assert len(tm) == len(TAGS) + 2 * len(keys)


def test_changes_of_one_thread_stay_in_order_across_consolidations(tm):
    rounds = 150

    def writer(number: int) -> None:
        for i in range(rounds):
            tm.add_set([f"w{number}"], i)
            if i:
                tm.remove_set([f"w{number}"], i - 1)

    with in_background(lambda: writer(0), lambda: writer(1)) as writers:
        while not all(future.done() for future in writers):
            tm.consolidate()
            for number in (0, 1):
                assert len(tm.match([f"w{number}"])) <= 2
    tm.consolidate()
    assert tm.match(["w0"]) == tm.match(["w1"]) == [rounds - 1]


def test_every_submitted_query_gets_its_own_answer(layout, rng):
    count = 2_000
    tm, _ = loaded([([f"a{i}"], i) for i in range(count)] + [([], count)], layout=layout, threads=4)
    asked = rng.choices(range(count), k=2_000)
    with ThreadPoolExecutor(4) as pool:
        futures = list(pool.map(lambda i: tm.submit([f"a{i}"], unique=i % 2 == 0), asked))
    assert all(isinstance(future, Future) for future in futures)
    done, pending = wait(futures, TIMEOUT)
    assert (len(done), len(pending)) == (len(set(futures)), 0) == (len(asked), 0)
    for i, future in zip(asked, futures, strict=True):
        answer = future.result()
        assert isinstance(answer, set if i % 2 == 0 else list)
        assert Counter(answer) == Counter([i, count])
    tm.close()


def test_bad_queries_do_not_disturb_others(tm):
    def good() -> None:
        for _ in range(100):
            assert tm.submit(TAGS, unique=True).result(TIMEOUT) == {1}

    def bad() -> None:
        for _ in range(100):
            with pytest.raises(TypeError, match=r"\btags\b"):
                tm.submit([*TAGS, None]).result(TIMEOUT)
            with pytest.raises(TypeError, match=r"\bqueries\b"):
                tm.match_many([TAGS, "a0"])

    with in_background(good, good, bad, bad):
        pass


def test_first_use_from_many_threads(layout):
    """Each thread builds and asks an index of its own."""

    def job(key: int) -> None:
        tm, _ = loaded([(["a", "b"], key), ([], 0)], layout=layout, threads=4)
        assert sorted(tm.match(["a", "b", "c"])) == [0, key]
        assert_keys(tm.match_many(pa.array([["a", "b"], ["a"]])), [[0, key], [0]])

    with in_background(*(lambda key=key: job(key) for key in range(1, 9))):
        pass


def until_closed(job: Callable[[], object]) -> Callable[[], None]:
    """A loop that must end with `ClosedError`."""

    def loop() -> None:
        while True:
            job()

    def expect_closed() -> None:
        with pytest.raises(ClosedError):
            loop()

    return expect_closed


@pytest.mark.parametrize("ask", WAYS.values(), ids=WAYS)
def test_close_while_others_ask(tm, ask):
    answered = threading.Semaphore(0)

    def read() -> None:
        assert ask(tm) == {1}
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
    futures = [tm.submit(TAGS, unique=True) for _ in range(500)]
    tm.close()
    assert not wait(futures, TIMEOUT).not_done
    for future in futures:
        error = future.exception()
        assert isinstance(error, ClosedError) or future.result() == {1}
    with pytest.raises(ClosedError):
        tm.submit(TAGS).result(TIMEOUT)


def test_saved_and_read_at_once(tmp_path, layout):
    """Whoever opens the index while another thread saves to it gets one whole snapshot."""
    path = tmp_path / "index"
    tm = TagMatch(path, layout=layout)
    replace_version(tm, 1)
    finished = threading.Event()

    def reader() -> None:
        last = 0
        while not finished.is_set():
            with TagMatch.open(path) as opened:
                (version,) = by_match(opened)
                opened.check()
            assert last <= version <= VERSIONS[-1]
            last = version

    with in_background(reader, reader):
        try:
            for version in VERSIONS:
                replace_version(tm, version)
        finally:
            finished.set()
    assert by_match(TagMatch.open(path)) == {VERSIONS[-1]}
