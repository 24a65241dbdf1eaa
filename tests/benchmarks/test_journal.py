"""What it costs to log staged changes: `pytest tests/benchmarks/test_journal.py --benchmark-only`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tagmatch.model.arrays import TagLists
from tagmatch.model.storage.journal.journal import Durability, Journal
from tagmatch.model.storage.journal.records import bulk_record, single_record

_CHANGE = single_record([f"tag{i}" for i in range(6)], 7, removed=False)
_ROWS = 100_000


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal.acquire(tmp_path, 1)
    yield opened
    opened.close()


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_single_change(benchmark: BenchmarkFixture, journal: Journal, durability: Durability) -> None:
    benchmark(lambda: journal.append(_CHANGE, durability))
    assert journal.position > 0


def test_bulk_change(benchmark: BenchmarkFixture, journal: Journal, stored: TagLists) -> None:
    """100,000 sets of the workload, encoded and handed to the system."""
    rows = TagLists(stored.offsets[: _ROWS + 1], stored.tags, stored.indices)
    keys = np.arange(_ROWS, dtype=np.uint64)

    def change() -> None:
        journal.append(bulk_record([rows], keys, removed=False), "os")
        journal.back_to(journal.position - 1)  # the file stays small

    benchmark(change)
    assert journal.position == 0


def test_replay(benchmark: BenchmarkFixture, journal: Journal) -> None:
    """100,000 single changes."""
    for _ in range(_ROWS):
        journal.append(_CHANGE, "os")
    assert benchmark(lambda: sum(len(logged.keys) for logged in journal.replay())) == _ROWS
