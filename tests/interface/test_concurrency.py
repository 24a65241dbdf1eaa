"""Many threads ask, change and move clients at once: each answer is that of one snapshot, and nothing gets lost."""

import functools
import random
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from support import moving_keys
from support.agreement import assert_keys, index_of
from support.waiting import wait_until

from tagmatch import Box, Circle, ClosedError, IndexChangedError, Near, TagMatch
from tagmatch.partitioner.consolidation import FEW_SETS
from tagmatch.pipeline.areas.clients import ClientCells

pytestmark = pytest.mark.slow

VERSIONS = range(1, 16)
TIMEOUT = 300


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

    One asks a third object, which reloads by itself. With `few` as 0, there are several segments.
    """
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", few)
    finished, segments, seen, path = threading.Event(), set(), set(), tmp_path / "index"
    with (
        TagMatch(path, layout=layout, threads=4) as tm,
        TagMatch(path, layout=layout, threads=2) as other,
        TagMatch(path, threads=2, auto_reload=0.005) as follower,
    ):
        moving_keys.store_first(tm)
        wait_until(lambda: len(follower) == len(tm))

        def reader(seed: int, tm: TagMatch) -> None:
            asked = moving_keys.ask(tm, random.Random(seed))
            while not finished.is_set():
                found = next(asked)
                seen.update([found] if tm is follower else [])

        def move(writer: TagMatch, version: int) -> None:
            writer.reload()
            with suppress(IndexChangedError):
                return moving_keys.move_to(writer, version, full=version % 5 == 0)
            while True:  # the other object merges segments during this, and so changes the files
                writer.reload()
                with suppress(IndexChangedError):
                    return writer.consolidate()

        with in_background(*(functools.partial(reader, rng.random(), each) for each in (tm, tm, tm, follower))):
            try:
                for version in VERSIONS:
                    move(rng.choice([tm, other]), version)
                    tm.reload()
                    segments.add(tm.stats()["segments"])
            finally:
                finished.set()
        wait_until(lambda: dict(follower) == moving_keys.contents(VERSIONS[-1]))
        assert follower.stats()["reload_error"] is None
        assert len(seen) > 1
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


# -- clients that move -------------------------------------------------------------------------------------------------

# Two far places on the equator, and one between them; a search this near finds the places' messages
LEFT, RIGHT, BETWEEN = (0.0, 0.0), (20.0, 0.0), (10.0, 0.0)
METRES = 2e6
BOTH = Box(-5, -5, 25, 5)
AROUND = {LEFT: Box(-5, -5, 5, 5), RIGHT: Circle(*RIGHT, 500_000)}


class Jumping:
    """Clients of several threads, which jump between two places; all have two sets, and one of them asks for `near`.

    Keys from `count` on come and go; those before are stored all the time, in one segment or another.
    """

    def __init__(self, tm: TagMatch, count: int, movers: int, seed: int) -> None:
        self.tm, self.count, self.movers, self.seed = tm, count, movers, seed
        self.asked, self.stored_anew = set[str](), set[bool]()
        self.stop = threading.Event()
        self.at = np.zeros(count, np.bool_)
        for keys in np.array_split(np.arange(count), 3):
            self._change(tm.add_sets, keys.tolist())
            tm.consolidate()
        tm.move(range(count), *LEFT)

    def _change(self, change: Callable[..., object], keys: list[int]) -> None:
        change([["near"]] * len(keys), keys, area=Near(METRES))
        change([["plain"]] * len(keys), keys)

    def move(self, number: int, moves: int, batch: int) -> None:
        """Move clients of this thread alone; a later search finds them there, and not at their old places."""
        rng = np.random.default_rng([self.seed, number])
        own = np.arange(number, self.count, self.movers)
        for _ in range(0, moves, batch):
            clients, is_right = rng.choice(own, batch), rng.random(batch) < 0.5
            self.tm.move(clients, np.where(is_right, RIGHT[0], LEFT[0]), np.zeros(batch))
            self.at[clients] = is_right  # NumPy, too, has the last of several count
            self.check_where(own)

    def check_where(self, own: Any) -> None:
        for place, tag in ((LEFT, "near"), (RIGHT, "plain")):
            found = np.array(self.tm.match([tag], within=AROUND[place]), np.int64)
            expected = own[self.at[own] == (place == RIGHT)]
            assert sorted(found[np.isin(found, own)].tolist()) == expected.tolist(), "a move is lost"

    def change(self) -> None:
        """Store some clients anew, which gives their sets to another segment; others come and go."""
        rng = np.random.default_rng([self.seed, 99])
        while not self.stop.is_set():
            full = bool(rng.random() < 0.3)
            some = rng.choice(self.count, self.count // 3, replace=False).tolist()
            others = list(range(self.count, self.count + int(rng.integers(1, 20))))
            self._change(self.tm.remove_sets, some)
            self._change(self.tm.add_sets, [*some, *others])
            self.tm.move(others, *LEFT)
            self.tm.consolidate(full=full)
            self._change(self.tm.remove_sets, others)
            self.tm.consolidate()
            self.tm._engine.changing.merge()
            self.stored_anew.add(full)

    def ask(self, name: str) -> None:
        while not self.stop.is_set():
            for keys in WAYS[name](self.tm):
                assert len(keys) == len(set(keys)), f"{name}: twice"
                assert sum(key < self.count for key in keys) == self.count, f"{name}: nowhere"
                self.asked.add(name)

    def run(self, moves: int, batch: int) -> None:
        movers = [functools.partial(self.move, number, moves // self.movers, batch) for number in range(self.movers)]
        with in_background(*movers, *(functools.partial(self.ask, name) for name in WAYS), self.change) as begun:
            try:
                done, others = begun[: self.movers], begun[self.movers :]
                wait_until(lambda: all(map(Future.done, done)) or any(map(Future.done, others)), TIMEOUT)
                both = (WAYS.keys(), {False, True})
                wait_until(lambda: (self.asked, self.stored_anew) == both or any(map(Future.done, others)))
            finally:
                self.stop.set()
        self.tm.check()
        self.check_where(np.arange(self.count))
        assert len(self.tm.match(["near", "plain"], location=BETWEEN)) == 2 * self.count


def _table() -> pa.Table:
    """Messages that find each client by one of its two sets, and in each way once."""
    area = {"kind": "box", "west": BOTH.west, "south": BOTH.south, "east": BOTH.east, "north": BOTH.north}
    rows = [(["near"], list(BETWEEN), None), (["near"], None, area), (["plain"], None, area),
            (["near"], list(BETWEEN), area), (["plain"], list(LEFT), area)]  # fmt: skip
    tags, location, within = zip(*rows * 5, strict=True)
    return pa.table({"tags": tags, "location": pa.array(location, pa.list_(pa.float64(), 2)), "within": within})


TABLE = _table()
WITHIN = TABLE.filter(TABLE["within"].is_valid()).drop_columns(["location"])
WAYS: dict[str, Callable[[TagMatch], Iterator[list[int]]]] = {
    "match_many": lambda tm: iter(tm.match_many(TABLE).to_pylist()),
    "match_many within": lambda tm: iter(tm.match_many(WITHIN).to_pylist()),
    "match": lambda tm: iter([tm.match(["near"], location=BETWEEN)]),
    "match within": lambda tm: iter([tm.match(["near"], within=BOTH)]),
    "match plain within": lambda tm: iter([tm.match(["plain"], within=BOTH)]),
    "match near and within": lambda tm: iter([tm.match(["near"], location=BETWEEN, within=BOTH)]),
    "submit": lambda tm: iter([tm.submit(["near"], location=BETWEEN).result(TIMEOUT)]),
    "explain": lambda tm: (list(keys) for _, keys in tm.explain(["near"], within=BOTH)),
}

NIGHTLY = pytest.param(1000, 8, 4_000_000, 10_000, marks=pytest.mark.nightly)


@pytest.mark.parametrize("few", [0, FEW_SETS])
@pytest.mark.parametrize(("clients", "movers", "moves", "batch"), [(30, 2, 4_000, 400), NIGHTLY])
def test_each_client_is_found_once_wherever_it_jumps(
    seed: int, layout: Any, few: int, clients: int, movers: int, moves: int, batch: int, monkeypatch: Any, tmp_path: Any
) -> None:
    """With `few` as 0, sets stay in their segments until these are merged in the background."""
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", few)
    with TagMatch(tmp_path / "index", device="cpu", layout=layout, threads=2) as tm:
        Jumping(tm, clients, movers, seed).run(moves, batch)


@pytest.mark.parametrize("full", [False, True])
def test_no_move_is_lost_while_cells_are_taken_over(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move that comes as soon as new cells are built waits until they follow it."""
    built, moved = threading.Event(), threading.Event()
    make = ClientCells.__init__

    def slow(*arguments: Any, **options: Any) -> None:
        make(*arguments, **options)
        built.set()
        moved.wait(0.3)  # in vain, as the mover has to wait

    with index_of([["a"], ["b"]], [1, 2], area=Near(10), device="cpu") as tm:
        tm.move([1, 2], *LEFT)
        tm.add_set(["c"], 1, area=Near(10))
        monkeypatch.setattr(ClientCells, "__init__", slow)
        thread = threading.Thread(target=tm.consolidate, kwargs={"full": full})
        thread.start()
        assert built.wait(TIMEOUT)
        tm.move([1, 2], *RIGHT)
        moved.set()
        thread.join()
        assert tm.match(["a", "b", "c"], location=LEFT) == []
        assert sorted(tm.match(["a", "b", "c"], location=RIGHT)) == [1, 1, 2]


ERRORS = pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])


@ERRORS
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.usefixtures("segments_stay")
def test_moves_that_fail_in_the_midst_are_made_wholly(error: type[BaseException], number: int) -> None:
    with TagMatch(device="cpu") as tm:
        tm.add_sets([["other", str(key)] for key in range(50)], range(50))  # else the second segment takes it in
        for tag in ("a", "b"):
            tm.add_set([tag], 1, area=Near(10))
            tm.consolidate()
        assert tm.stats()["segments"] == 2
        tm.move([1], *LEFT)
        calls, make = iter(range(100)), ClientCells.make

        def failing(cells: ClientCells, moves: Any) -> None:
            if next(calls) == number:
                raise error
            make(cells, moves)

        with patch.object(ClientCells, "make", failing), pytest.raises(error):
            tm.move([1], *RIGHT)
        assert tm.match(["a", "b"], location=LEFT) == []
        assert tm.match(["a", "b"], location=RIGHT) == tm.match(["a", "b"], within=AROUND[RIGHT]) == [1, 1]


@ERRORS
def test_moves_for_which_there_is_no_memory_are_not_made(error: Any) -> None:
    with index_of([["a"]], [1], area=Near(10), device="cpu") as tm:
        tm.move([1], *LEFT)
        concatenate = "tagmatch.pipeline.areas.positions.np.concatenate"
        for failing, clients in ((patch.object(ClientCells, "ready", side_effect=error), [1, 2]),
                                 (patch(concatenate, side_effect=error), range(5000))):  # fmt: skip
            with failing, pytest.raises(error):
                tm.move(clients, *RIGHT)
        assert tm.match(["a"], location=LEFT) == tm.match(["a"], within=AROUND[LEFT]) == [1]
        assert tm._engine.clients.where(np.array([4999], np.uint64))[0].tolist() != [RIGHT[0]]
        tm.move(range(5000), *RIGHT)
        assert tm.stats()["positions"] == 5000
        assert tm.match(["a"], location=RIGHT) == [1]
