from __future__ import annotations

import pytest

from tagmatch.pipeline.areas import chunks


@pytest.fixture(params=[True, None], ids=["vector", "loops"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are tested by vector code, and by loops, whatever this processor is."""
    monkeypatch.setattr(chunks, "_VECTOR_CODE", request.param is True)
