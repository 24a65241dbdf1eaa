"""What tests of the pipeline share: its threads, its figures, jobs at once, and a packet that is held."""

import random
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from support.agreement import loaded

import tagmatch.engine
from tagmatch import PipelineOptions, TagMatch
from tagmatch.pipeline.segment import SegmentQueries
from tagmatch.pipeline.service import Pipeline
from tagmatch.pipeline.tags import TagIndex

#: Seconds after which something hangs
TIMEOUT = 60

TAGS = [f"t{i}" for i in range(50)]

#: A tag that no set has. A query with it goes through the pipeline, also of `match`, as all do where the matcher has no
#: other way for single ones.
IN_PACKET = "in a packet\0"

_PIPELINES: WeakKeyDictionary[TagMatch[Any], Pipeline] = WeakKeyDictionary()


def watched(pairs: Any, **options: Any) -> TagMatch[Any]:
    """An index with these (tags, key) pairs, which `figures` counts."""
    made: list[Pipeline] = []

    def make(*arguments: Any) -> Pipeline:
        made.append(Pipeline(*arguments))
        return made[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tagmatch.engine, "Pipeline", make)
        tm, _ = loaded(pairs, **options)
    (_PIPELINES[tm],) = made
    return tm


def small(**options: Any) -> TagMatch[Any]:
    """Set {t_i} has key i."""
    return watched([([tag], i) for i, tag in enumerate(TAGS)], **{"threads": 2} | options)


def figures(tm: TagMatch[Any]) -> dict[str, Any]:
    """What `stats` tells of the pipeline of a watched index, also of one that is closed."""
    return _PIPELINES[tm].stats()


def end(tm: TagMatch[Any], **how: bool) -> dict[str, Any]:
    """Close a watched index; nothing may be left on its way."""
    with together([lambda: tm.close(**how)]):
        pass
    stats = figures(tm)
    assert stats["queries_in_flight"] == stats["result_bytes_in_flight"] == 0
    assert all(stage["queued"] == 0 for stage in stats["stages"].values())
    return stats


class Gate:
    """Holds a method up until it is opened."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, owner: type = SegmentQueries, name: str = "subset_match"
    ) -> None:
        opened, self.entered = threading.Event(), threading.Event()
        self.open, do = opened.set, getattr(owner, name)

        def gated(*arguments: Any) -> Any:
            self.entered.set()
            assert opened.wait(TIMEOUT)
            return do(*arguments)

        monkeypatch.setattr(owner, name, gated)


def our_threads() -> list[threading.Thread]:
    stages = tuple(f"tagmatch-{stage}" for stage in ("preprocess", "batch", "subset_match", "key_lookup", "merge"))
    return [thread for thread in threading.enumerate() if thread.name.startswith(stages)]


def stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


@contextmanager
def together(jobs: Sequence[Callable[[], object]]) -> Iterator[list[Future[Any]]]:
    """Run all jobs in their own threads; after the block, wait for them and raise what they raised.

    Those that never end are shown when the test's own time is over, and do not keep the test run from ending.
    """
    outcomes: list[Future[Any]] = [Future() for _ in jobs]

    def run(job: Callable[[], object], outcome: Future[Any]) -> None:
        try:
            outcome.set_result(job())
        except BaseException as error:
            outcome.set_exception(error)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in zip(jobs, outcomes, strict=True)]
    for thread in threads:
        thread.start()
    yield outcomes
    for thread in threads:
        thread.join()
    for outcome in outcomes:
        outcome.result(0)


def random_options(rng: random.Random, layout: str) -> dict[str, Any]:
    """Options that must not change any answer."""
    few = (None, None, 1, 2, 3)
    return {
        "layout": layout,
        "threads": rng.choice((1, 2, 4)),
        "max_partition_size": rng.choice((1, 3, 20, 1000)),
        "batch_size": rng.choice((1, 2, 7, 256)),
        "pipeline": PipelineOptions(
            max_queries=rng.choice((1, 5, 100, 1 << 17)),
            max_result_bytes=rng.choice((1, 500, 1 << 29)),
            packet_queries=rng.choice((1, 3, 64, 8192)),
            hand_over_queries=rng.choice((0, 0, 2, 1024)),
            queued_packets=rng.choice((None, 1, 1, 3)),
            **{f"{each}_threads": rng.choice(few) for each in ("preprocess", "subset_match", "key_lookup", "merge")},
        ),
    }


def held_packet(monkeypatch: pytest.MonkeyPatch, tm: TagMatch, queries: Sequence[list[str]]) -> tuple[Any, Any]:
    """Futures of queries that are one packet, and a function that lets it go."""
    with monkeypatch.context() as patched:
        gate = Gate(patched, TagIndex, "numbers")
        tm.submit(["first"])
        assert gate.entered.wait(TIMEOUT)
    return [tm.submit(query) for query in queries], gate.open
