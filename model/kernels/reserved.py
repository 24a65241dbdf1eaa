"""Tags that no user may store: those that begin with U+0000 stand for constraints."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import BoolArray, Strings, TagLists
from tagmatch.model.kernels.jit import kernel


@kernel
def _first_reserved(offsets, data):
    for i in range(len(offsets) - 1):
        if offsets[i] < offsets[i + 1] and data[offsets[i]] == 0:
            return i
    return -1


def has_reserved(strings: Strings) -> bool:
    """Whether one of them begins with U+0000."""
    return bool(_first_reserved(strings.offsets, strings.data) >= 0)


def row_with_reserved(rows: TagLists) -> int | None:
    """The first row that has a tag that begins with U+0000; `None` if there is none.

    A dictionary may have one that is in no row.
    """
    place = int(_first_reserved(rows.tags.offsets, rows.tags.data))
    if place >= 0 and rows.indices is not None:
        used = reserved_among(rows.tags)[rows.indices[rows.offsets[0] : rows.offsets[-1]]]
        place = int(rows.offsets[0]) + int(np.argmax(used)) if used.any() else -1
    if not rows.offsets[0] <= place < rows.offsets[-1]:
        return None
    return int(np.searchsorted(rows.offsets, place, side="right")) - 1


def reserved_among(strings: Strings) -> BoolArray:
    """Of each string, whether it begins with U+0000."""
    starts = strings.offsets[:-1]
    reserved: BoolArray = np.append(strings.data, np.uint8(1))[starts] == 0
    return reserved & (starts < strings.offsets[1:])
