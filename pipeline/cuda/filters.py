"""Stage 2, subset match, of the sets of a segment that have constraints, on the device."""

from __future__ import annotations

from typing import Any

from tagmatch.pipeline.cuda.lines import CudaLines
from tagmatch.pipeline.cuda.messages import DeviceMessages
from tagmatch.pipeline.cuda.preprocess import DeviceQueries
from tagmatch.pipeline.cuda.trie import CudaTrie
from tagmatch.pipeline.filters.index import FilterIndex


class CudaFilters:
    """Those that the trie has, and those that lines have, in device memory."""

    def __init__(self, index: FilterIndex) -> None:
        trie = None if index.trie is None else CudaTrie(index.trie)
        lines = None if index.lines is None else CudaLines(index.lines)
        self._parts = [part for part in (trie, lines) if part is not None]
        self.nbytes = sum(part.nbytes for part in self._parts)

    def launch(self, messages: DeviceQueries, *results: Any) -> None:
        """Append the matches of all messages to `results`, as `pairs.append` takes them."""
        assert isinstance(messages, DeviceMessages)
        for part in self._parts:
            part.launch(messages, *results)
