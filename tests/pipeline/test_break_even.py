"""From how many queries on a device is faster than the CPU, by clocks that are made up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.agreement import loaded

from tagmatch.model.arrays import TagLists
from tagmatch.model.tables import Segment
from tagmatch.pipeline import break_even


class Clocked:
    """A matcher whose packets take as long as a function of their queries says."""

    now = 0.0

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.seconds = seconds
        self.packets: list[int] = []

    def preprocess(self, tags: TagLists, first: int, last: int) -> Any:
        assert first == 0 < last <= len(tags)
        self.packets.append(last)
        return self

    def subset_match(self) -> Any:
        return self

    def key_lookup(self) -> None:
        Clocked.now += self.seconds(self.packets[-1])


@pytest.fixture
def segment() -> Segment:
    tm, _ = loaded([(["a"], 1), (["b", "c"], 2), ([], 3)], layout="rarest", device="cpu")
    with tm:
        return tm.snapshot.only


@pytest.mark.parametrize(
    ("cpu", "device", "expected"),
    [(1.0, 8.5, 16), (1.0, 8.0, 8), (1.0, 0.5, 1), (1.0, 3.0, 4), (1e-9, 1.0, 4096)],
)
def test_first_power_of_two_at_which_the_device_is_faster(
    monkeypatch: pytest.MonkeyPatch, segment: Segment, cpu: float, device: float, expected: int
) -> None:
    monkeypatch.setattr(break_even.time, "perf_counter", lambda: Clocked.now)
    on_cpu, on_device = Clocked(lambda queries: cpu * queries), Clocked(lambda _: device)
    assert break_even.break_even(on_device, on_cpu, segment) == expected  # type: ignore[arg-type]
    # Nothing larger than the first packet for which it has been decided
    assert max(on_cpu.packets) <= expected


def test_an_index_without_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(break_even.time, "perf_counter", lambda: Clocked.now)
    tm, _ = loaded([([], 1)], layout="balanced", device="cpu")
    with tm:
        tm.remove_set([], 1)
        tm.consolidate()
        empty = tm.snapshot.only
    found = break_even.break_even(Clocked(lambda _: 2.0), Clocked(lambda _: 1.0), empty)  # type: ignore[arg-type]
    assert found >= 1
