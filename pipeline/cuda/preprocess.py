"""Stage 1, preprocess, on the device: tags become ascending ranks by the same rules as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numba.cuda
import numpy as np

from tagmatch.model.arrays import IntArray, Strings, TagLists
from tagmatch.model.kernels.rows import ascending_row
from tagmatch.model.kernels.tag_table import UNKNOWN, find
from tagmatch.model.kernels.xxh64 import xxh64
from tagmatch.model.parallel import even_ranges
from tagmatch.model.tables import Vocabulary
from tagmatch.pipeline.cuda.jit import kernel
from tagmatch.pipeline.cuda.memory import Workspace, device_array, grid, to_device

cuda: Any = numba.cuda

_BLOCK = 128

# Of a dictionary, which threads copy and look up together
_STRINGS_A_PIECE = 1 << 19


@kernel
def _look_up(tags, starts, base, data, seed, slots, known_offsets, known_data, numbers):
    """One thread a tag, whose first byte is at `starts[i] - base`."""
    i = cuda.grid(1)
    if i < tags:
        start, stop = starts[i] - base, starts[i + 1] - base
        tag_hash = xxh64(data, start, stop, seed)
        numbers[i] = find(tag_hash, data, start, stop, slots, known_offsets, known_data)[2]


@kernel
def _spread(places, strings, known, indices, ranks):
    """One thread a place: the rank of its string of the dictionary."""
    i = cuda.grid(1)
    if i < places:
        index = indices[i]
        ranks[i] = known[index] if index < strings else UNKNOWN


@kernel
def _sort(queries, starts, base, ranks, offsets, counts, owners):
    """One thread a query: its ranks become ascending, in place; `owners` names the query of each place."""
    i = cuda.grid(1)
    if i < queries:
        first, last = starts[i] - base, starts[i + 1] - base
        offsets[i] = first
        counts[i] = ascending_row(ranks, first, last, first) - first
        for at in range(first, last):
            owners[at] = i


@dataclass(slots=True, eq=False)
class DeviceQueries:
    """Queries as ranks on the device.

    Attributes
    ----------
    workspace : Workspace
    count, places : int
        Of queries, and of all their tags, the unknown ones included.
    offsets, counts : int32 device arrays
        Query `i` has the ranks `ranks[offsets[i]:offsets[i] + counts[i]]`, ascending, each once.
    ranks, owners : uint32 device arrays
        `owners` has the query of each place.
    """

    workspace: Workspace
    count: int
    places: int
    offsets: Any
    counts: Any
    ranks: Any
    owners: Any


class CudaTagIndex:
    """Looks up the ranks of tags on the device."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._seed = np.uint64(vocabulary.seed)
        tags = vocabulary.tags
        self._tables = tuple(map(to_device, (vocabulary.slots_of_queries, tags.offsets, tags.data)))
        self.nbytes = sum(table.nbytes for table in self._tables)

    def prepare(self, tags: TagLists, first: int, last: int) -> Callable[[Workspace], DeviceQueries]:
        """Do the CPU's part of stage 1 for queries `first` to `last`; what is left needs a workspace."""
        return partial(self.ranks, tags, first, last)

    def ranks(self, tags: TagLists, first: int, last: int, workspace: Workspace) -> DeviceQueries:
        """Copy queries `first` to `last` to the device and look their tags up; strings of a dictionary for all queries.

        Of these, packets then copy indices only.
        """
        begin, end = int(tags.offsets[first]), int(tags.offsets[last])
        places, queries, stream = end - begin, last - first, workspace.stream
        if tags.indices is None:
            ranks = workspace.device("ranks", np.uint32, places)
            self._look_up(tags.tags, begin, end, workspace, ranks)
        else:
            known = self._looked_up(tags, workspace)
            ranks = workspace.device("ranks", np.uint32, places)
            indices = workspace.send("indices", tags.indices[begin:end])
            if places:
                _spread[(*grid(places, _BLOCK), stream)](places, len(tags.tags), known, indices, ranks)
        starts, base = _sent("starts of queries", tags.offsets[first : last + 1], workspace)
        offsets = workspace.device("offsets", np.int32, queries)
        counts = workspace.device("counts", np.int32, queries)
        owners = workspace.device("owners", np.uint32, places)
        _sort[(*grid(queries, _BLOCK), stream)](queries, starts, base, ranks, offsets, counts, owners)
        return DeviceQueries(workspace, queries, places, offsets, counts, ranks, owners)

    def _looked_up(self, tags: TagLists, workspace: Workspace) -> Any:
        """Ranks of a dictionary's strings in memory of the device; threads copy and look up some each."""
        strings = tags.tags

        def begin() -> tuple[Any, list[tuple[int, int]]]:
            pieces = even_ranges(len(strings), 1 + len(strings) // _STRINGS_A_PIECE)
            return device_array(np.uint32, len(strings)), pieces

        def look_up(ranks: Any, ends: tuple[int, int]) -> None:
            first, last = ends
            self._look_up(strings, first, last, workspace, ranks[first:last])
            workspace.stream.synchronize()  # the others have streams of their own

        return tags.memo.of(self, begin, look_up)

    def _look_up(self, tags: Strings, first: int, last: int, workspace: Workspace, ranks: Any) -> None:
        """Copy strings `first` to `last` to the device, and write their ranks."""
        begin, end = int(tags.offsets[first]), int(tags.offsets[last])
        data = workspace.send("data", tags.data[begin:end])
        starts, base = _sent("starts of tags", tags.offsets[first : last + 1], workspace)
        if first < last:
            _look_up[(*grid(last - first, _BLOCK), workspace.stream)](
                last - first, starts, base, data, self._seed, *self._tables, ranks
            )


def _sent(name: str, offsets: IntArray, workspace: Workspace) -> tuple[Any, int]:
    """Offsets, int32, in memory of the device, and what is to be subtracted from each, so that the first is 0.

    As they are, if they have 32 bits: to subtract on the host takes longer than to copy.
    """
    base, raw = int(offsets[0]), offsets.dtype == np.int32
    pinned = workspace.pinned(name, np.int32, len(offsets))
    pinned[:] = offsets if raw else offsets - base
    return workspace.upload(name, pinned), base if raw else 0
