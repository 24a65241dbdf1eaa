"""How this process makes segments, other than it would: they stay, are cut, or have all sets in one path."""

import mmap
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from unittest.mock import patch

from tagmatch.pipeline.filters.index import Path, filter_index


@contextmanager
def segments_stay(few: int = 0) -> Iterator[None]:
    """Each consolidation of more than `few` sets makes a segment, and none are merged but where a test says so."""
    with patch("tagmatch.partitioner.consolidation.FEW_SETS", few), patch("tagmatch.changing.Changing._begin_merging"):
        yield


def cut_every(nbytes: int = mmap.PAGESIZE) -> AbstractContextManager[object]:
    """Tables written inside this context are cut into parts of this number of bytes."""
    return patch("tagmatch.model.storage.tables.PART_BYTES", nbytes)


def all_in(path: Path) -> AbstractContextManager[object]:
    """Segments indexed inside this context have all their sets with constraints in one path."""
    return patch("tagmatch.pipeline.filters.index.filter_index", partial(filter_index, path=path))
