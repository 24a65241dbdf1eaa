"""Indexes whose segments stay as they are."""

from pathlib import Path

import pytest


@pytest.fixture
def segments_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each consolidation makes a segment, however small, and none are merged but where a test says so."""
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", 0)
    monkeypatch.setattr("tagmatch.merging.Merging.begin", lambda _: None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where there may be an index."""
    return tmp_path / "index"
