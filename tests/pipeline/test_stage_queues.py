"""In which order a stage takes what waits before it: first in, first out, or as another queue says."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tagmatch.model.columns import tag_lists
from tagmatch.model.options import LayoutOptions, MatchOptions, PipelineOptions
from tagmatch.model.tables import Snapshot
from tagmatch.partitioner.local import build_segment
from tagmatch.partitioner.staging import StagedChanges
from tagmatch.pipeline.devices import matcher_of, parts_for
from tagmatch.pipeline.service import Pipeline
from tagmatch.pipeline.stages.queues import Fifo, QueuePolicy, Waiting
from tagmatch.pipeline.stages.stage import Stage

TIMEOUT = 60


class LongestFirst:
    """The longest piece of work first."""

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []

    def put(self, waiting: Waiting) -> None:
        self._waiting.append(waiting)
        self._waiting.sort(key=lambda each: len(each.work))

    def take(self) -> Waiting:
        return self._waiting.pop()

    def __len__(self) -> int:
        return len(self._waiting)


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize(
    ("queue", "expected"), [(Fifo, ["first", "aa", "b", "cccc"]), (LongestFirst, ["first", "cccc", "aa", "b"])]
)
def test_a_stage_takes_work_in_the_order_of_its_queue(queue: QueuePolicy, expected: list[str], stopped: bool) -> None:
    """What waits when it stops fails."""
    done: list[str] = []
    failed: list[str] = []
    entered, release = threading.Event(), threading.Event()

    def do(work: str) -> tuple[()]:
        entered.set()
        assert release.wait(TIMEOUT)
        done.append(work)
        return ()

    stage: Stage[str] = Stage("any", do, lambda work, _: failed.append(work), threads=1, bound=3, queue=queue)
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
    assert done == expected[: 1 if stopped else 4]
    assert sorted(failed) == (["aa", "b", "cccc"] if stopped else [])


@pytest.mark.usefixtures("through_stages")
def test_every_stage_of_a_pipeline_has_the_queue_asked_for(layout: str) -> None:
    made: list[LongestFirst] = []

    def queue() -> LongestFirst:
        made.append(LongestFirst())
        return made[-1]

    staged = StagedChanges(1)
    tags = [[f"t{number % 7}"] for number in range(50)]
    staged.extend(tag_lists(tags, "tags", stored=True), np.arange(50, dtype=np.uint64), removed=False)
    options = LayoutOptions(layout)
    segment = build_segment([], staged.changes(), options, threads=1)
    one_by_one = PipelineOptions(packet_queries=1, hand_over_queries=0)
    answering = MatchOptions(device="cpu", threads=2, pipeline=one_by_one)
    pipeline, matcher = Pipeline(answering, queue), matcher_of(parts_for(Snapshot((segment,)), answering))
    assert len(made) == 4
    futures = [pipeline.submit(matcher, row, unique=False, timeout=None) for row in tags]
    for number, future in enumerate(futures):
        assert sorted(future.result(TIMEOUT)) == list(range(number % 7, 50, 7))
    pipeline.close()
    assert not any(map(len, made))
