from __future__ import annotations

import pytest
from support.finders import Finders

from tagmatch.pipeline.areas import chunks


@pytest.fixture(params=[True, None], ids=["vector", "loops"])
def finders(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Finders:
    """Chunks are tested by vector code, and by loops, whatever this processor is."""
    monkeypatch.setattr(chunks, "_VECTOR_CODE", request.param is True)
    return Finders()
