"""From how many queries on a device is faster than the CPU, by clocks that are made up."""

from collections.abc import Callable
from typing import Any

import pytest
from support.agreement import index_of

from tagmatch.model.arrays import TagLists
from tagmatch.pipeline import devices


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


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.time, "perf_counter", lambda: Clocked.now)


@pytest.mark.parametrize(
    ("cpu", "device", "expected"), [(1.0, 8.5, 16), (1.0, 8.0, 8), (1.0, 0.5, 1), (1.0, 3.0, 4), (1e-9, 1.0, 4096)]
)
def test_first_power_of_two_at_which_the_device_is_faster(cpu: float, device: float, expected: int) -> None:
    on_cpu, on_device = Clocked(lambda queries: cpu * queries), Clocked(lambda _: device)
    with index_of([["a"], ["b", "c"], []], [1, 2, 3], layout="rarest", device="cpu") as tm:
        assert devices.break_even(on_device, on_cpu, tm.snapshot.only) == expected  # type: ignore[arg-type]
    # Nothing larger than the first packet for which it has been decided
    assert max(on_cpu.packets) <= expected


def test_an_index_without_sets() -> None:
    with index_of([[]], [1], layout="balanced", device="cpu") as tm:
        tm.remove_set([], 1)
        tm.consolidate()
        both = Clocked(lambda _: 2.0), Clocked(lambda _: 1.0)
        assert devices.break_even(*both, tm.snapshot.only) >= 1  # type: ignore[arg-type]
