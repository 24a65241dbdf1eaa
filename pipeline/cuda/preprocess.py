"""Stage 1, preprocess, on the device: tags become ascending ranks by the same rules as on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba.cuda
import numpy as np

from tagmatch.model.arrays import TagLists
from tagmatch.model.kernels.rows import ascending_row
from tagmatch.model.kernels.tag_table import build_slots, find
from tagmatch.model.kernels.xxh64 import xxh64
from tagmatch.model.tables import Vocabulary
from tagmatch.pipeline.cuda.jit import kernel
from tagmatch.pipeline.cuda.memory import Workspace, grid, to_device

cuda: Any = numba.cuda

_BLOCK = 128


@kernel
def _look_up(tags, starts, data, seed, slots, known_offsets, known_data, numbers):
    i = cuda.grid(1)
    if i < tags:
        start, stop = starts[i], starts[i + 1]
        tag_hash = xxh64(data, start, stop, seed)
        numbers[i] = find(tag_hash, data, start, stop, slots, known_offsets, known_data)[2]


@kernel
def _sort(queries, offsets, ranks, counts, owners):
    """One thread a query: its ranks become ascending, in place; `owners` names the query of each place."""
    i = cuda.grid(1)
    if i < queries:
        counts[i] = ascending_row(ranks, offsets[i], offsets[i + 1], offsets[i]) - offsets[i]
        for at in range(offsets[i], offsets[i + 1]):
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
        self._tables = tuple(map(to_device, (build_slots(tags, vocabulary.hashes), tags.offsets, tags.data)))
        self.nbytes = sum(table.nbytes for table in self._tables)

    def ranks(self, tags: TagLists, first: int, last: int, workspace: Workspace) -> DeviceQueries:
        """Copy queries `first` to `last` to the device and look their tags up."""
        begin, end = int(tags.offsets[first]), int(tags.offsets[last])
        begin_data, end_data = int(tags.tags.offsets[begin]), int(tags.tags.offsets[end])
        places, queries = end - begin, last - first
        host_offsets = workspace.pinned("offsets", np.int32, queries + 1)
        np.subtract(tags.offsets[first : last + 1], begin, out=host_offsets, casting="unsafe")
        host_starts = workspace.pinned("starts", np.int32, places + 1)
        np.subtract(tags.tags.offsets[begin : end + 1], begin_data, out=host_starts, casting="unsafe")
        host_data = workspace.pinned("data", np.uint8, end_data - begin_data)
        host_data[:] = tags.tags.data[begin_data:end_data]
        offsets, starts = workspace.upload("offsets", host_offsets), workspace.upload("starts", host_starts)
        data = workspace.upload("data", host_data)
        ranks = workspace.device("ranks", np.uint32, places)
        owners = workspace.device("owners", np.uint32, places)
        counts = workspace.device("counts", np.int32, queries)
        stream = workspace.stream
        if places:
            _look_up[(*grid(places, _BLOCK), stream)](places, starts, data, self._seed, *self._tables, ranks)
        _sort[(*grid(queries, _BLOCK), stream)](queries, offsets, ranks, counts, owners)
        return DeviceQueries(workspace, queries, places, offsets, counts, ranks, owners)
