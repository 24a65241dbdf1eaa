"""Partitions cut into blocks of rows, which are turned away by the bits that all their signatures share (§3.3)."""

from __future__ import annotations

import numpy as np

from tagmatch.model.arrays import I64Array, U64Array, frozen, offsets_of
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.signature import SIGNATURE_WORDS
from tagmatch.model.parallel import even_ranges, run_rows
from tagmatch.model.tables import Segment

_U = np.uint64


@kernel
def _common_bits(words, first_rows, first_blocks, block_rows, masks, first, last):
    for partition in range(first, last):
        for block in range(first_blocks[partition], first_blocks[partition + 1]):
            begin = first_rows[partition] + (block - first_blocks[partition]) * block_rows
            end = min(begin + block_rows, first_rows[partition + 1])
            for w in range(SIGNATURE_WORDS):
                masks[block, w] = ~_U(0)
            for row in range(begin, end):
                masks[block, 0] &= words[0][row]
                masks[block, 1] &= words[1][row]
                masks[block, 2] &= words[2][row]


class Blocks:
    """Partitions cut into blocks of rows, with the bits that all sets of a block have.

    Attributes
    ----------
    firsts : int64 array, partitions + 1
        First block of each partition.
    masks : uint64 array, blocks x 3
    """

    def __init__(self, words: tuple[U64Array, ...], first_rows: I64Array, rows: int, *, threads: int = 1) -> None:
        self._first_rows, self._rows = first_rows, rows
        self.firsts: I64Array = offsets_of(-(-np.diff(first_rows) // rows))
        self.masks: U64Array = np.empty((int(self.firsts[-1]), SIGNATURE_WORDS), np.uint64)
        run_rows(
            lambda first, last: _common_bits(words, first_rows, self.firsts, rows, self.masks, first, last),
            even_ranges(len(first_rows) - 1, threads),
            threads,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.firsts.nbytes + self.masks.nbytes

    def first_rows(self) -> I64Array:
        """First row of each block, and the end of the last."""
        counts = np.diff(self.firsts)
        numbers = np.arange(len(self.masks)) - np.repeat(self.firsts[:-1], counts)
        return np.append(np.repeat(self._first_rows[:-1], counts) + self._rows * numbers, self._first_rows[-1])


def signature_words(segment: Segment) -> tuple[U64Array, ...]:
    """The three words of all signatures, a column each."""
    signatures = segment.tagsets.signatures
    assert signatures is not None
    return tuple(frozen(np.ascontiguousarray(signatures[:, w])) for w in range(SIGNATURE_WORDS))
