"""Numbered strings, the tags or the keys of all shards, in the scratch folder, where tasks look them up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import Strings, U32Array, U64Array
from tagmatch.model.arrow import from_strings, to_numbers, to_strings
from tagmatch.model.kernels.tag_table import build_slots, find_all
from tagmatch.model.kernels.xxh64 import hash_strings
from tagmatch.partitioner.spark.scratch import Scratch


def join_numbered(
    scratch: Scratch, source: str, numbers: Sequence[int], name: str, key: U64Array, **columns: pa.Array
) -> int:
    """Join tables of different strings to one, which tasks memory-map; a string's place there is its number.

    Parameters
    ----------
    source, numbers
        Name and numbers of the tables, in order; with the columns `strings` and `hashes`.
    name : str
        Of the joined table, whose number is 0.
    key : uint64[2] array
        Of the slots: the same for a task's twin, so that it writes the same file.
    columns
        More columns of the joined table.

    Returns
    -------
    int
        How many strings there are.
    """
    strings = Strings(*scratch.joined_lists(source, numbers, "strings", np.uint8))
    hashes = scratch.joined(source, numbers, "hashes", to_numbers, np.uint64)
    slots = build_slots(strings, hashes, key)
    scratch.write(name, 0, strings=from_strings(strings), hashes=pa.array(hashes), slots=pa.array(slots), **columns)
    return len(hashes)


def numbers_of(scratch: Scratch, name: str, strings: Strings) -> U32Array:
    """The number of each string, UNKNOWN if it has none."""
    known = to_strings(scratch.read(name, 0, "strings", keep=True))
    slots = to_numbers(scratch.read(name, 0, "slots", keep=True))
    numbers = np.empty(len(strings), np.uint32)
    find_all(hash_strings(strings), strings.offsets, strings.data, 0, slots, known.offsets, known.data, numbers)
    return numbers
