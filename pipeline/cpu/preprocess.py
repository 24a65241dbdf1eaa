"""Stage 1, preprocess: a query's tags become ascending ranks; tags that no stored set has are dropped."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import TagLists, U64Array
from tagmatch.model.kernels.rows import ascending_known
from tagmatch.model.kernels.tag_table import build_slots, find_all
from tagmatch.model.kernels.xxh64 import hash_strings
from tagmatch.model.tables import Vocabulary
from tagmatch.pipeline.matcher import QueryBatch


class TagIndex:
    """Looks up the ranks of tags.

    Attributes
    ----------
    vocabulary : Vocabulary
        Says which rank a tag has.
    slots : uint64 array
        Where tags are looked up: as of `build_slots`.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.slots: U64Array = build_slots(vocabulary.tags, vocabulary.hashes)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.slots.nbytes

    def ranks(self, queries: TagLists, first: int, last: int) -> QueryBatch:
        """Queries `first` to `last` as ranks."""
        tags, known = queries.tags, self.vocabulary.tags
        begin, end = int(queries.offsets[first]), int(queries.offsets[last])
        hashes = hash_strings(tags, seed=self.vocabulary.seed, first=begin, last=end)
        numbers = np.empty(end - begin, np.uint32)
        find_all(hashes, tags.offsets, tags.data, begin, self.slots, known.offsets, known.data, numbers)
        offsets = np.zeros(last - first + 1, np.int64)
        known_tags = ascending_known(queries.offsets, first, numbers, offsets)
        return QueryBatch(offsets, numbers[:known_tags])
