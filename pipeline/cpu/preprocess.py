"""Stage 1, preprocess: a query's tags become ascending ranks; tags that no stored set has are dropped."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import Strings, TagLists, U32Array, U64Array
from tagmatch.model.kernels.rows import ascending_known, spread
from tagmatch.model.kernels.tag_table import find_all
from tagmatch.model.kernels.xxh64 import hash_strings
from tagmatch.model.parallel import even_ranges
from tagmatch.model.tables import Vocabulary
from tagmatch.pipeline.matcher import QueryBatch

# Of a dictionary, which threads look up together
_STRINGS_A_PIECE = 16_384


class TagIndex:
    """Looks up the ranks of tags.

    Attributes
    ----------
    vocabulary : Vocabulary
        Says which rank a tag has.
    slots : uint64 array
        Where tags are looked up: those of the vocabulary, without the tags of constraints.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.slots: U64Array = vocabulary.slots_of_queries

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.slots.nbytes

    def ranks(self, queries: TagLists, first: int, last: int) -> QueryBatch:
        """Queries `first` to `last` as ranks; each string of a dictionary is looked up once, for all of its queries."""
        return self.batch(queries, first, last, self.numbers(queries, first, last))

    def numbers(self, queries: TagLists, first: int, last: int) -> U32Array:
        """The rank of each tag of queries `first` to `last`; UNKNOWN where it has none."""
        begin, end = int(queries.offsets[first]), int(queries.offsets[last])
        numbers = np.empty(end - begin, np.uint32)
        if queries.indices is None:
            self._look_up(queries.tags, begin, numbers)
        else:
            spread(self._of_dictionary(queries), queries.indices, begin, numbers)
        return numbers

    def batch(self, queries: TagLists, first: int, last: int, numbers: U32Array) -> QueryBatch:
        """Queries `first` to `last`, whose tags have these ranks; `numbers` becomes part of it."""
        offsets = np.zeros(last - first + 1, np.int64)
        known_tags = ascending_known(queries.offsets, first, numbers, offsets)
        return QueryBatch(offsets, numbers[:known_tags])

    def looked_up(self, tags: Strings) -> U32Array:
        """The rank of each tag; UNKNOWN where it has none."""
        numbers = np.empty(len(tags), np.uint32)
        self._look_up(tags, 0, numbers)
        return numbers

    def _of_dictionary(self, queries: TagLists) -> U32Array:
        """Ranks of a dictionary's strings; threads look up some each."""
        tags = queries.tags

        def begin() -> tuple[U32Array, list[tuple[int, int]]]:
            pieces = even_ranges(len(tags), 1 + len(tags) // _STRINGS_A_PIECE)
            return np.empty(len(tags), np.uint32), pieces

        def look_up(ranks: U32Array, ends: tuple[int, int]) -> None:
            first, last = ends
            self._look_up(tags, first, ranks[first:last])

        return queries.memo.of(self, begin, look_up)

    def _look_up(self, tags: Strings, first: int, numbers: U32Array) -> None:
        """Write the ranks of as many tags, from `first` on, as there is room for."""
        known = self.vocabulary.tags
        hashes = hash_strings(tags, seed=self.vocabulary.seed, first=first, last=first + len(numbers))
        find_all(hashes, tags.offsets, tags.data, first, self.slots, known.offsets, known.data, numbers)
