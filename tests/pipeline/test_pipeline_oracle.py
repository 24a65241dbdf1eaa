"""Whatever is asked, fails, is cancelled or consolidated at once: each query gets the oracle's answer or its error."""

import asyncio
import gc
import queue
import random
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from oracle import Oracle
from support import pipelines
from support.pipelines import IN_PACKET, TAGS, TIMEOUT, end, held_packet, our_threads, small, together, watched

from tagmatch import Overloaded, PipelineOptions, TagMatch
from tagmatch.pipeline.balanced import BalancedSubsetMatch
from tagmatch.pipeline.run.packets import Packet
from tagmatch.pipeline.segment import SegmentQueries, SegmentSets
from tagmatch.pipeline.tags import TagIndex

# Compiling may take minutes where others use the machine too: that is no test's time
pytestmark = [pytest.mark.usefixtures("compiled"), pytest.mark.timeout(func_only=True)]


class InjectedError(Exception):
    """An error that none of our code raises."""


@dataclass
class Workload:
    """Overlapping sets, among them the empty one, with keys in common; queries, many of them equal."""

    pairs: list[tuple[list[str], int]]
    queries: list[list[str]]
    answers: list[list[int]]

    @classmethod
    def drawn(cls, rng: random.Random) -> Any:
        tags = [f"t{i}" for i in range(25)]
        pairs = [(rng.choices(tags, k=rng.randint(1, 4)), rng.randrange(60) << rng.choice((0, 40))) for _ in range(300)]
        pairs += [([], 7), ([], 8)] if rng.random() < 0.5 else []
        queries = [rng.choices([*tags, "unknown", IN_PACKET], k=rng.randint(1, 12)) for _ in range(30)]
        queries += [rng.choice(pairs)[0] for _ in range(10)] + [tags, [], ["unknown"], ["nothing", "of", "these"]]
        queries += queries[:1] * 20
        oracle = Oracle()
        oracle.add_sets(*zip(*pairs, strict=True))
        oracle.consolidate()
        return cls(pairs, queries, [oracle.match(query) for query in queries])


def in_packet_or_not(rng: random.Random, query: list[str]) -> list[str]:
    """The query, or one with the same answer that goes through the stages."""
    return [*query, IN_PACKET] if rng.random() < 0.5 else query


class Asker:
    """Asks in all ways, compares with the oracle and counts how each query ended."""

    def __init__(self, tm: TagMatch, workload: Workload, seed: float) -> None:
        self.tm, self.queries, self.answers = tm, workload.queries, workload.answers
        self.rng = random.Random(seed)
        self.ended: Counter[str] = Counter()
        self.asked = 0

    def ask_in_turn(self, rounds: int) -> None:
        for _ in range(rounds):
            self.rng.choice((self.match, self.match_many, self.submit, self.submit))()

    def match(self) -> None:
        number, unique = self._drawn()
        with self._counting():
            ask = self.tm.match_unique if unique else self.tm.match
            self._compare(number, unique, ask(self.queries[number]))

    def match_many(self) -> None:
        """If it fails, some may have been answered in their own packet."""
        drawn = [self._drawn() for _ in range(self.rng.randint(0, 20))]
        with self._counting(len(drawn), "failed together"):
            unique = self.rng.random() < 0.5
            found = self.tm.match_many([self.queries[number] for number, _ in drawn], unique=unique).to_pylist()
            for (number, _), answer in zip(drawn, found, strict=True):
                self._compare(number, unique, set(answer) if unique else answer)
                assert not unique or sorted(set(answer)) == answer

    def submit(self) -> None:
        waiting = []
        for _ in range(self.rng.randint(1, 30)):
            number, unique = self._drawn()
            how = self.rng.choice(({}, {}, {"timeout": TIMEOUT}, {"block": False}, {"timeout": 0.001}))
            try:
                future = self.tm.submit(in_packet_or_not(self.rng, self.queries[number]), unique=unique, **how)
            except Overloaded:
                assert how
                self.ended["told"] += 1
            else:
                waiting.append((number, unique, future))
                if self.rng.random() < 0.1:
                    future.cancel()
        for number, unique, future in waiting:
            with self._counting():
                self._compare(number, unique, future.result(TIMEOUT))

    def ask_in_a_loop(self, rounds: int) -> None:
        """With asyncio."""

        async def one() -> None:
            number, unique = self._drawn()
            asking = self.tm.amatch(in_packet_or_not(self.rng, self.queries[number]), unique=unique)
            task = asyncio.ensure_future(asking)
            if self.rng.random() < 0.1:
                await asyncio.sleep(0)
                task.cancel()
            with self._counting():
                self._compare(number, unique, await asyncio.wait_for(task, TIMEOUT))

        async def many() -> None:
            for _ in range(rounds):
                await asyncio.gather(*(one() for _ in range(self.rng.randint(1, 20))))

        asyncio.run(many())

    def _drawn(self) -> tuple[int, bool]:
        self.asked += 1
        return self.rng.randrange(len(self.queries)), self.rng.random() < 0.5

    @contextmanager
    def _counting(self, count: int = 1, failed: str = "failed") -> Iterator[None]:
        how = "right"
        try:
            yield
        except (CancelledError, asyncio.CancelledError):
            how = "cancelled"
        except InjectedError:
            how = failed
        except Overloaded:
            how = "told"
        self.ended[how] += count

    def _compare(self, number: int, unique: bool, answer: Any) -> None:
        assert isinstance(answer, set if unique else list)
        expected = self.answers[number]
        assert sorted(answer) == (sorted(set(expected)) if unique else expected)


def inject_failures(monkeypatch: pytest.MonkeyPatch, rng: random.Random, share: float) -> None:
    """Let every step of the stages fail now and then."""

    def failing(do: Callable[..., Any]) -> Callable[..., Any]:
        def sometimes(*arguments: Any, **keywords: Any) -> Any:
            if rng.random() < share:
                raise InjectedError
            return do(*arguments, **keywords)

        return sometimes

    steps = {TagIndex: "numbers", SegmentQueries: "subset_match", SegmentSets: "key_lookup", Packet: "merge"}
    for owner, name in [*steps.items(), (BalancedSubsetMatch, "route"), (BalancedSubsetMatch, "match")]:
        monkeypatch.setattr(owner, name, failing(getattr(owner, name)))


@pytest.mark.slow
@pytest.mark.parametrize(  # only `balanced` has queues of partitions, in which queries wait
    ("layout", "flush_timeout"), [("rarest", 0), ("balanced", 0), ("balanced", 0.001), ("balanced", None)]
)
@pytest.mark.parametrize("share", [0, 0.05], ids=["", "failing"])
@pytest.mark.parametrize(("times", "threads"), [(1, 24), pytest.param(3, 64, marks=pytest.mark.nightly)])
def test_every_query_gets_its_own_answer(
    monkeypatch: pytest.MonkeyPatch, rng: random.Random, layout: str, flush_timeout: float | None, share: float,
    times: int, threads: int,
) -> None:  # fmt: skip
    """Of many threads with other options each time, which the output shows."""
    before = set(our_threads())
    for _ in range(times):
        workload, options = Workload.drawn(rng), pipelines.random_options(rng, layout)
        print(options)
        tm = watched(workload.pairs, **options, flush_timeout=flush_timeout)
        askers = [Asker(tm, workload, rng.random()) for _ in range(threads)]
        with monkeypatch.context() as patched:
            inject_failures(patched, random.Random(rng.random()), share)
            jobs = [lambda asker=asker: asker.ask_in_turn(6) for asker in askers[:-4]]
            jobs += [lambda asker=asker: asker.ask_in_a_loop(6) for asker in askers[-4:]]
            with together(jobs):
                pass
            stats = end(tm)
        ended = sum((asker.ended for asker in askers), Counter())
        assert sum(ended.values()) == sum(asker.asked for asker in askers)
        assert ended["right"] > 0
        assert share > 0 or ended["failed"] + ended["failed together"] == 0
        # Of one that is cancelled in a loop the matching may have begun
        assert 0 <= stats["queries"] - ended["right"] <= ended["cancelled"] + ended["failed together"]
        assert set(our_threads()) <= before


@pytest.mark.parametrize("hand_over", [0, 1024])
@pytest.mark.usefixtures("through_stages")
def test_old_snapshots_are_let_go(layout: str, hand_over: int) -> None:
    with TagMatch(layout=layout, threads=2, pipeline=PipelineOptions(hand_over_queries=hand_over)) as tm:
        old = []
        for version in range(1, 6):
            tm.remove_set(["t"], version - 1)
            tm.add_set(["t"], version)
            tm.consolidate()
            assert tm.submit(["t", IN_PACKET]).result(TIMEOUT) == [version]
            old.append(weakref.ref(tm.snapshot.only.keys.keys.values))
        with together([lambda: tm.submit(["t"]).result(TIMEOUT)] * 8):  # no thread is still at an old packet
            pass
        gc.collect()
        assert [version for version, ref in enumerate(old, 1) if ref() is not None] in ([5], [4, 5])


@pytest.mark.parametrize("hand_over", [0, 2, 1024])
@pytest.mark.parametrize("threads", [1, 2])
def test_callbacks_ask_while_others_do(layout: str, threads: int, hand_over: int, rng: random.Random) -> None:
    """Callbacks of callbacks ask more than may be on its way, while others wait for the same room."""
    options = PipelineOptions(max_queries=3, max_result_bytes=50, queued_packets=1, hand_over_queries=hand_over)
    tm = small(layout=layout, threads=threads, max_partition_size=20, pipeline=options)
    query, expected, depth = TAGS[:5], list(range(5)), 3
    right: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def ask_again(left: int) -> Callable[[Future[Any]], None]:
        def called(future: Future[Any]) -> None:
            answers = [future.result(), tm.match(query), tm.match([*query, IN_PACKET]), tm.match_unique(query)]
            answers += tm.match_many([query]).to_pylist()
            for _ in range(2 if left else 0):
                tm.submit(in_packet_or_not(rng, query)).add_done_callback(ask_again(left - 1))
            right.put(all(sorted(answer) == expected for answer in answers))

        return called

    def ask() -> None:
        for _ in range(5):
            tm.submit(in_packet_or_not(rng, query)).add_done_callback(ask_again(depth))
            assert sorted(tm.match(query)) == sorted(tm.match([*query, IN_PACKET])) == expected

    with together([ask] * 4):
        pass
    for _ in range(4 * 5 * (2 ** (depth + 1) - 1)):
        assert right.get(timeout=TIMEOUT)
    end(tm)


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.usefixtures("through_stages")
def test_callback_that_raises_disturbs_nobody(
    monkeypatch: pytest.MonkeyPatch, layout: str, error: type[BaseException]
) -> None:
    def called(_: Future[Any]) -> None:
        raise error

    tm = small(layout=layout, threads=1)
    futures, let_go = held_packet(monkeypatch, tm, [["t1"], ["t2"], ["t3"]])
    futures[0].add_done_callback(called)
    let_go()
    assert [future.result(TIMEOUT) for future in futures] == [[1], [2], [3]]
    assert tm.submit(["t1"]).result(TIMEOUT) == [1], "the pipeline stays up"
    end(tm)
