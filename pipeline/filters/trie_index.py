"""Sets that are reached by the least likely tokens of each.

A set's tokens, least likely first, are a path in a static trie; what is at its end is scanned by signature and then
verified.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tagmatch.model.arrays import I64Array, U32Array, offsets_of
from tagmatch.pipeline.filters.asked import Asked, Tests, records_of
from tagmatch.pipeline.filters.attributes import Attributes, Constraints
from tagmatch.pipeline.filters.tokens import Cells, Likelihoods, cells_of
from tagmatch.pipeline.filters.trie import Trie, trie_of

#: Tokens of a set at most by which it is reached, and so the depth of the trie
DEEPEST = 8


@dataclass(frozen=True, slots=True, eq=False)
class TrieIndex:
    """Sets with constraints, in a trie."""

    attributes: Attributes  # See the classes; the constraints are those that are more than an interval
    constraints: Constraints
    cells: Cells
    trie: Trie  # Over the tokens of each set
    rows: U32Array  # The segment's row of each set, in the order of the trie
    record_offsets: I64Array  # int64 and uint32[n, 3] arrays: what a set asks of a message, as of `Records`
    records: U32Array

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def arrays(self) -> tuple[Any, ...]:
        """As `match_in_trie` takes them."""
        cells, trie = self.cells, self.trie
        return (
            (cells.first_cells, cells.bits, cells.levels, cells.tokens, cells.first_tag), trie.arrays, trie.fewest,
            self.constraints.arrays, self.rows, self.record_offsets, self.records,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of memory, without those of attributes and constraints."""
        arrays = (self.rows, self.record_offsets, self.records)
        return sum(array.nbytes for array in arrays) + self.cells.nbytes + self.trie.nbytes


def trie_index(
    asked: Asked,
    attributes: Attributes,
    constraints: Constraints,
    tests: Tests,
    likely: Likelihoods,
    ranks: int,
) -> TrieIndex:
    """The trie of some sets; `likely` is of what they ask, and the vocabulary has so many ranks."""
    cells, tokens, count = cells_of(asked, constraints, likely, attributes.count, ranks)
    trie, order = trie_of(_paths(tokens, asked.owners[likely.has_token], len(asked)), count)
    records = records_of(asked, tests, likely.chances, order)
    rows = asked.rows[order].astype(np.uint32)
    return TrieIndex(attributes, tests.complexes, cells, trie, rows, records.offsets, records.values)


def _paths(tokens: U32Array, owners: I64Array, count: int) -> U32Array:
    """The tokens of each set, least likely first, each once, and zeros after them."""
    order = np.lexsort((tokens, owners))
    tokens, owners = tokens[order], owners[order]
    keep = np.ones(len(tokens), np.bool_)
    keep[1:] = (tokens[1:] != tokens[:-1]) | (owners[1:] != owners[:-1])
    tokens, owners = tokens[keep], owners[keep]
    starts = offsets_of(np.bincount(owners, minlength=count))
    place = np.arange(len(tokens)) - starts[owners]
    paths = np.zeros((count, DEEPEST), np.uint32)
    few = place < DEEPEST
    paths[owners[few], place[few]] = tokens[few]
    return paths
