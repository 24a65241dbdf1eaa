"""Segments, deleted sets, keys that expire, and channels while the device matches."""

from __future__ import annotations

from typing import Any

import pytest
from oracle import Oracle
from support.agreement import assert_agree, change_all
from support.expiring import set_clock
from support.waiting import wait_until

from tagmatch import Channel, CudaOptions, TagMatch
from tagmatch.pipeline.channels.scheduled import Scheduled
from tagmatch.pipeline.stages.packets import Packet

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*(Grid size|Host array)")]

ALL = ["a", "b", "c", "d", "e"]
QUERIES = [[], ["a"], ["a", "b"], ["c", "d", "e"], ALL]


def test_deleted_sets_and_other_segments(engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", 0)
    monkeypatch.setattr("tagmatch.merging.Merging.begin", lambda _: None)
    rounds = [
        [*((True, [tag], key) for key, tag in enumerate(ALL)), (True, ["a", "b"], 12), (True, [], 13), (True, ALL, 14)],
        [(False, ["a"], 0), (True, ["a", "b"], 16), (False, [], 13), (True, ["e", "a"], 17)],
        [(True, [], 18), (False, ALL, 14), (False, ["e", "a"], 17)],
    ]
    oracle = Oracle()
    with TagMatch(**engine) as tm:
        for changes in rounds:
            change_all(changes, tm, oracle)
            assert_agree(tm, oracle, QUERIES)
        assert (tm.stats()["segments"], tm.stats()["deleted"]) == (2, 4)


@pytest.mark.parametrize("few", [0, 100], ids=["marked", "laid out anew"])
def test_keys_that_expire(engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """Sets without other keys are marked as deleted, and those with some go to another segment, or all are laid out."""
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", few)
    monkeypatch.setattr("tagmatch.merging.Merging.begin", lambda _: None)
    clock = set_clock(monkeypatch)
    oracle = Oracle(clock.tell)
    with TagMatch(**engine) as tm:
        for database in (tm, oracle):
            for key, tag in enumerate(ALL):
                database.add_set([tag], key, expires=None if key == 3 else clock.after(key + 1))
            database.add_set(["a"], 10)
            database.add_set([], 11, expires=clock.after(4))
            database.add_set(ALL, 12)
            database.consolidate()
        for _ in range(5):
            wait_until(lambda: dict(tm) == dict(oracle))
            assert_agree(tm, oracle, QUERIES)
            clock.pass_by(1)
        assert len(oracle.times()) == 3


def test_packets_of_channels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which each query takes 1 ms: a launch may take half of the 20 ms that an alarm has, less its own."""
    sizes: list[int] = []
    now, perform, begin = [0.0], Scheduled._perform, Scheduled.__init__

    def timed(self: Scheduled, packet: Packet) -> None:
        sizes.append(len(packet))
        now[0] += 0.001 * len(packet)
        perform(self, packet)

    monkeypatch.setattr(Scheduled, "_perform", timed)
    monkeypatch.setattr(Scheduled, "__init__", lambda self, *arguments: begin(self, *arguments, lambda: now[0]))
    channels = [Channel("alarm", 0.02), Channel("bulk", 60)]
    with TagMatch(device="cuda", threads=1, cuda=CudaOptions(fewest_queries=0), channels=channels, order="edf") as tm:
        tm.add_sets([["a"], ["b"], ["a", "b"]], [1, 2, 3])
        tm.consolidate()
        for _ in range(2):
            found = tm.match_many([["a"], ["a", "b"]] * 20, channel="bulk").to_pylist()
            assert [sorted(keys) for keys in found] == [[1], [1, 2, 3]] * 20
        # Nothing is known of alarms yet, which take no time then
        tm.submit(["a", "b", "c"], channel="alarm").result(60)
        assert tm.stats()["matched_by"]["cuda"] >= 80
    assert sum(sizes) >= 80
    assert 4 <= max(sizes) <= 10
