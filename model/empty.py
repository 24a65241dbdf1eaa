"""The segment that holds no set."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import Lists, Strings, U64Array
from tagmatch.model.layouts import rules_of
from tagmatch.model.options import KeyType, LayoutOptions
from tagmatch.model.tables import KeyTable, Segment, TagsetTable, Vocabulary


def empty_segment(options: LayoutOptions, key_type: KeyType = "integer") -> Segment:
    """The segment that holds no set."""
    no_offsets = np.zeros(1, np.int32)
    no_hashes: U64Array = np.zeros(0, np.uint64)
    no_ranks = Lists(no_offsets, np.zeros(0, np.uint32))
    strings = Strings(no_offsets, np.zeros(0, np.uint8))
    rules = rules_of(options)
    return Segment(
        options,
        Vocabulary(strings, no_hashes, np.zeros(0, np.uint32)),
        TagsetTable(rules.no_signatures(), no_ranks),
        KeyTable(no_ranks, Strings(np.zeros(1, np.int64), strings.data) if key_type == "string" else None),
        rules.no_partitions(),
    )
