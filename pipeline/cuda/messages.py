"""Stage 1 for sets with constraints: messages as tags, codes of attributes and tokens on the device.

Their tokens are made on the device, where the ranks of tags and the codes of values are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numba.cuda
import numpy as np

from tagmatch.model.arrays import TagLists
from tagmatch.model.tables import Vocabulary
from tagmatch.pipeline.cuda.jit import kernel
from tagmatch.pipeline.cuda.memory import Workspace, grid, to_device
from tagmatch.pipeline.cuda.preprocess import CudaTagIndex, DeviceQueries
from tagmatch.pipeline.cuda.scan import prefix_sums
from tagmatch.pipeline.cuda.values import CudaValueIndex, GivenValues
from tagmatch.pipeline.filters.index import FilterIndex
from tagmatch.pipeline.filters.message_tokens import most_tokens, tokens_of
from tagmatch.pipeline.filters.tokens import Cells

cuda: Any = numba.cuda

_BLOCK = 128


@kernel
def _room(messages, places, offsets, attribute_offsets, attributes, most, rooms):
    """One thread a message: how many tokens it can have, one for each tag and `most` for each attribute."""
    i = cuda.grid(1)
    if i < messages:
        room = (offsets[i + 1] if i + 1 < messages else places) - offsets[i]
        for at in range(attribute_offsets[i], attribute_offsets[i + 1]):
            room += most[attributes[at]]
        rooms[i] = room


@kernel
def _tokenize(
    messages, offsets, counts, ranks, attribute_offsets, attributes, codes,
    first_cells, bits, levels, known, first_tag,
    token_offsets, token_counts, tokens, owners, signatures,
):  # fmt: skip
    """One thread a message: its tokens go to its places, of which there may be more; `owners` names their message."""
    i = cuda.grid(1)
    if i < messages:
        begin = offsets[i]
        place = token_offsets[i]
        end, signature = tokens_of(
            ranks, begin, begin + counts[i], attributes, codes, attribute_offsets[i], attribute_offsets[i + 1],
            first_cells, bits, levels, known, first_tag, tokens, place,
        )  # fmt: skip
        token_counts[i] = end - place
        signatures[i] = signature
        for at in range(place, token_offsets[i + 1]):
            owners[at] = i


@dataclass(slots=True, eq=False)
class DeviceTokens:
    """Tokens of messages on the device.

    Attributes
    ----------
    places : int
        Of all messages.
    offsets : int64 device array
    counts : int32 device array
    values, owners : uint32 device arrays
        Message `i` has the tokens `values[offsets[i]:offsets[i] + counts[i]]`, ascending, each once. The owners name
        the message of each place.
    signatures : uint64 device array
        Of each message's tokens.
    """

    places: int
    offsets: Any
    counts: Any
    values: Any
    owners: Any
    signatures: Any


@dataclass(slots=True, eq=False)
class DeviceMessages(DeviceQueries):
    """Queries with attributes on the device.

    Attributes
    ----------
    attribute_offsets : int64 device array
    attributes, codes : uint32 device arrays
        As of `tagmatch.pipeline.filters.messages.Messages`.
    tokens : DeviceTokens, optional
        For a trie, if there is one.
    """

    attribute_offsets: Any
    attributes: Any
    codes: Any
    tokens: DeviceTokens | None = None


class CudaMessageIndex(CudaTagIndex):
    """Looks up the ranks of tags on the device, the codes of values, and the tokens of messages."""

    def __init__(self, vocabulary: Vocabulary, index: FilterIndex) -> None:
        super().__init__(vocabulary)
        self._values = CudaValueIndex(index)
        self._tokens = None if index.trie is None else _TokenIndex(index.trie.cells)
        self.nbytes += self._values.nbytes + (0 if self._tokens is None else self._tokens.nbytes)

    def prepare(self, tags: TagLists, first: int, last: int) -> Callable[[Workspace], DeviceQueries]:
        """Do the CPU's part of stage 1 for messages `first` to `last`; what is left needs a workspace."""
        return partial(self._on_device, tags, first, last, self._values.given(tags, first, last))

    def _on_device(
        self, tags: TagLists, first: int, last: int, given: GivenValues, workspace: Workspace
    ) -> DeviceMessages:
        """Look up the tags of messages, the codes of their values, and make their tokens."""
        queries = self.ranks(tags, first, last, workspace)
        values = self._values.encode(given, workspace)
        on_device = DeviceMessages(
            workspace, queries.count, queries.places, queries.offsets, queries.counts, queries.ranks, queries.owners,
            values.offsets, values.attributes, values.codes,
        )  # fmt: skip
        if self._tokens is not None:
            on_device.tokens = self._tokens.tokens_of(on_device, given)
        return on_device


class _TokenIndex:
    """Makes the tokens of messages."""

    def __init__(self, cells: Cells) -> None:
        self._most, self._first_tag = most_tokens(cells), cells.first_tag
        tables: tuple[np.ndarray, ...] = (cells.first_cells, cells.bits, cells.levels, cells.tokens)
        self._cells = tuple(map(to_device, tables))
        self._most_there = to_device(self._most)
        self.nbytes = sum(int(table.nbytes) for table in (*self._cells, self._most_there))

    def tokens_of(self, there: DeviceMessages, given: GivenValues) -> DeviceTokens:
        """The tokens of messages that are on the device."""
        workspace, messages = there.workspace, (*grid(there.count, _BLOCK), there.workspace.stream)
        # Room for as many as there can be, as they are not counted before
        rooms = workspace.device("rooms for tokens", np.int32, there.count)
        _room[messages](
            there.count, there.places, there.offsets, there.attribute_offsets, there.attributes, self._most_there, rooms
        )
        places = there.places + int(given.sizes @ self._most[given.columns] + self._most[given.attributes].sum())
        tokens = DeviceTokens(
            places,
            prefix_sums("token offsets", rooms, there.count, workspace),
            workspace.device("token counts", np.int32, there.count),
            workspace.device("tokens", np.uint32, places),
            workspace.device("token owners", np.uint32, places),
            workspace.device("token signatures", np.uint64, there.count),
        )
        _tokenize[messages](
            there.count, there.offsets, there.counts, there.ranks,
            there.attribute_offsets, there.attributes, there.codes,
            *self._cells, self._first_tag,
            tokens.offsets, tokens.counts, tokens.values, tokens.owners, tokens.signatures,
        )  # fmt: skip
        return tokens
