"""By which way messages get to sets with constraints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from unittest import mock

from tagmatch.pipeline.filters import index
from tagmatch.pipeline.filters.index import Path, filter_index


@contextlib.contextmanager
def all_in(path: Path) -> Iterator[None]:
    """Have segments that are indexed meanwhile have all their sets in one path, whatever they ask."""
    with mock.patch.object(index, "filter_index", partial(filter_index, path=path)):
        yield
