from __future__ import annotations

from pathlib import Path

import pytest
from faults.memory import build_library


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library under which allocations fail, for the environment of a process."""
    return build_library(tmp_path_factory.mktemp("failing_malloc"))
