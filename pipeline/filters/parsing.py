"""The constraint tags of a vocabulary, as columns (`tagmatch.model.filters.constraints` says how they are written)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tagmatch.model.arrays import BoolArray, I64Array, Strings, U8Array, U32Array, offsets_of
from tagmatch.model.kernels.jit import copy, kernel

#: Kinds of constraints: of values between cuts; the end of a text, or a part of it; a tag that must not be there
BETWEEN, SUFFIX, CONTAINS, WITHOUT_TAG = b"rsct"

_NEGATED = ord("-")
_COLON = ord(":")


@dataclass(frozen=True, slots=True, eq=False)
class Parsed:
    """Constraint tags of a vocabulary, by rank; places are those in the vocabulary's bytes.

    Attributes
    ----------
    ranks : uint32 array
    negated : bool array
    kinds : uint8 array
        `BETWEEN`, `SUFFIX`, `CONTAINS` or `WITHOUT_TAG`.
    names, payloads : int64[n, 2] arrays
        Where the name of the attribute begins and ends, and the payload.
    cut_offsets : int64 array, length n + 1
        Which cuts those of kind `BETWEEN` have.
    sides : uint8 array
        Of each cut, as it is written.
    keys : int64[cuts, 2] array
        Where the key of each cut begins and ends.
    """

    ranks: U32Array
    negated: BoolArray
    kinds: U8Array
    names: I64Array
    payloads: I64Array
    cut_offsets: I64Array
    sides: U8Array
    keys: I64Array

    def __len__(self) -> int:
        return len(self.ranks)


@kernel
def _count_cuts(data, at, end):
    """Cuts from a place on; -1 where they are not written as they should be."""
    count = 0
    while at < end:
        at += 1
        length = np.int64(0)
        while at < end and data[at] != _COLON:
            digit = np.int64(data[at]) - 48
            if digit < 0 or digit > 9 or length > end:
                return -1
            length = 10 * length + digit
            at += 1
        at += 1 + length
        count += 1
    return count if at == end and count % 2 == 0 else -1


@kernel
def _parse(offsets, data, ranks, negated, kinds, names, payloads, counts):
    for i in range(len(ranks)):
        start, end = offsets[ranks[i]], offsets[ranks[i] + np.uint32(1)]
        negated[i], kinds[i], counts[i] = data[start + 1] == _NEGATED, data[start + 2], 0
        at = start + 3
        names[i, 0] = at
        while at < end and data[at] != 0:
            at += 1
        names[i, 1] = at
        payloads[i, 0], payloads[i, 1] = min(at + 1, end), end
        if at == end:
            kinds[i] = 0
        if kinds[i] == BETWEEN:
            counts[i] = _count_cuts(data, at + 1, end)
            if counts[i] < 0:
                kinds[i], counts[i] = 0, 0


@kernel
def _cut(data, payloads, cut_offsets, sides, keys):
    for i in range(len(payloads)):
        at = payloads[i, 0]
        for cut in range(cut_offsets[i], cut_offsets[i + 1]):
            sides[cut] = data[at]
            at += 1
            length = np.int64(0)
            while data[at] != _COLON:
                length = 10 * length + np.int64(data[at]) - 48
                at += 1
            keys[cut, 0], keys[cut, 1] = at + 1, at + 1 + length
            at += 1 + length


def parsed(tags: Strings, is_constraint: BoolArray) -> Parsed:
    """The constraint tags of a vocabulary; what only begins like one is left out, and so never holds."""
    ranks = np.flatnonzero(is_constraint).astype(np.uint32)
    count = len(ranks)
    negated, kinds, counts = np.empty(count, np.bool_), np.empty(count, np.uint8), np.empty(count, np.int64)
    names, payloads = np.empty((count, 2), np.int64), np.empty((count, 2), np.int64)
    _parse(tags.offsets, tags.data, ranks, negated, kinds, names, payloads, counts)
    known = np.isin(kinds, (BETWEEN, SUFFIX, CONTAINS, WITHOUT_TAG))
    if not known.all():
        ranks, negated, kinds, counts = ranks[known], negated[known], kinds[known], counts[known]
        names, payloads = names[known], payloads[known]
    cut_offsets = offsets_of(counts)
    cuts = int(cut_offsets[-1])
    sides, keys = np.empty(cuts, np.uint8), np.empty((cuts, 2), np.int64)
    _cut(tags.data, payloads, cut_offsets, sides, keys)
    return Parsed(ranks, negated, kinds, names, payloads, cut_offsets, sides, keys)


@kernel
def _copy(data, places, offsets, out):
    for i in range(len(places)):
        copy(data, places[i, 0], places[i, 1], out, offsets[i])


def parts_of(data: U8Array, places: I64Array) -> Strings:
    """The strings between these places of some bytes."""
    offsets = offsets_of(places[:, 1] - places[:, 0])
    out = np.empty(int(offsets[-1]), np.uint8)
    _copy(data, places, offsets, out)
    return Strings(offsets, out)
