"""Launches for channels are bounded as tasks of the CPU are: by what packets are learned to take."""

from __future__ import annotations

import numba.cuda
import pytest

from tagmatch import Channel, CudaOptions, TagMatch
from tagmatch.pipeline.channels.scheduled import Scheduled
from tagmatch.pipeline.stages.packets import Packet

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*(Grid size|Host array)")]


def test_packets_for_a_device_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which each query takes 1 ms: a launch may take half of the 20 ms that an alarm has, less its own."""
    assert numba.cuda.is_available()
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
