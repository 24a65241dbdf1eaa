"""Indexes whose tables are cut into parts, small as they are."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def cut_every(nbytes: int = mmap.PAGESIZE) -> Iterator[None]:
    """Have what this process writes cut into parts of so many bytes."""
    with patch("tagmatch.model.storage.table_files.PART_BYTES", nbytes):
        yield
