"""Tags that no user may store: those that begin as constraints, and values of attributes, are written."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import BoolArray, Strings, TagLists
from tagmatch.model.kernels.jit import inlined, kernel

_SIGNS = tuple(b"+-=")
_AREA = ord("a")


@inlined
def _is_reserved(data, start, stop):
    if stop - start < 2 or data[start] != 0:
        return False
    sign = data[start + 1]
    return sign == _SIGNS[0] or sign == _SIGNS[1] or sign == _SIGNS[2]


@kernel
def _are_constraints(offsets, data, out):
    for i in range(len(out)):
        at = offsets[i]
        out[i] = offsets[i + 1] - at > 3 and data[at] == 0 and (data[at + 1] == _SIGNS[0] or data[at + 1] == _SIGNS[1])


@kernel
def _are_areas(offsets, data, out):
    for i in range(len(out)):
        at = offsets[i]
        out[i] = (
            offsets[i + 1] - at > 4
            and data[at] == 0
            and (data[at + 1] == _SIGNS[0] or data[at + 1] == _SIGNS[1])
            and data[at + 2] == _AREA
            and data[at + 3] == 0
        )


@kernel
def _first_reserved(offsets, data):
    for i in range(len(offsets) - 1):
        if _is_reserved(data, offsets[i], offsets[i + 1]):
            return i
    return -1


@kernel
def _all_reserved(offsets, data, out):
    for i in range(len(out)):
        out[i] = _is_reserved(data, offsets[i], offsets[i + 1])


def has_reserved(strings: Strings) -> bool:
    """Whether one of them is reserved."""
    return bool(_first_reserved(strings.offsets, strings.data) >= 0)


def row_with_reserved(rows: TagLists) -> int | None:
    """The first row that has a tag that is reserved; `None` if there is none.

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
    """Of each string, whether it is reserved."""
    out = np.zeros(len(strings), np.bool_)
    _all_reserved(strings.offsets, strings.data, out)
    return out


def constraints_among(strings: Strings) -> BoolArray:
    """Of each string, whether it stands for a constraint, by how it begins."""
    out = np.zeros(len(strings), np.bool_)
    _are_constraints(strings.offsets, strings.data, out)
    return out


def areas_among(strings: Strings) -> BoolArray:
    """Of each string, whether it stands for a constraint that asks for an area, by how it begins."""
    out = np.zeros(len(strings), np.bool_)
    _are_areas(strings.offsets, strings.data, out)
    return out
