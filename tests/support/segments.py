"""Segments of an index that stay as they were made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def segments_stay(few: int = 0) -> Iterator[None]:
    """Each consolidation of more than `few` sets makes a segment, and none are merged but where a test says so."""
    with patch("tagmatch.partitioner.consolidation.FEW_SETS", few), patch("tagmatch.merging.Merging.begin"):
        yield
