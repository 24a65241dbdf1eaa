"""Places of indexes."""

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where there may be an index."""
    return tmp_path / "index"
