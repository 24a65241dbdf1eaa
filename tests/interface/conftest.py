"""Places of indexes, and ways to them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.service import remote


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where there may be an index."""
    return tmp_path / "index"


@pytest.fixture(params=["embedded", "remote"])
def reached(request: pytest.FixtureRequest) -> Iterator[Callable[[Any], Any]]:
    """Gives an index as it is, or over a connection; it is closed at the end."""
    with ExitStack() as stack:
        if request.param == "embedded":
            yield stack.enter_context
        else:
            yield lambda index: stack.enter_context(remote(index))[1]
