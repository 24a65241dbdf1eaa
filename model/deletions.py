"""Rows of a segment that are deleted: the tables stay as they are, and a bitmap says which of their rows count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import I64Array, U8Array, frozen
from tagmatch.model.kernels.jit import inlined

Rows: TypeAlias = npt.NDArray[np.integer[Any]]

_U = np.uint64


@dataclass(frozen=True, slots=True, eq=False)
class Deletions:
    """Deleted rows of a table.

    Attributes
    ----------
    bits : uint8 array, read-only
        Row `r` is deleted where bit `r % 8` of `bits[r // 8]` is 1, as in an Arrow bitmap; those behind the last row
        are 0.
    count : int
        How many rows are deleted.
    """

    bits: U8Array
    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", frozen(self.bits))

    @classmethod
    def of(cls, rows: Rows, table_rows: int) -> Deletions:
        """Some rows, each once, of a table with `table_rows` rows."""
        flags = np.zeros(table_rows, np.bool_)
        flags[rows] = True
        return cls(np.packbits(flags, bitorder="little"), len(rows))

    def and_also(self, rows: Rows) -> Deletions:
        """These and more rows, each once, none of which was deleted."""
        bits = self.bits.copy()
        np.bitwise_or.at(bits, rows >> 3, np.left_shift(1, rows & 7).astype(np.uint8))
        return Deletions(bits, self.count + len(rows))

    def among(self, rows: Rows) -> I64Array:
        """The places in `rows` of those that are deleted."""
        return np.flatnonzero((self.bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1)

    def are_within(self, others: Deletions | None) -> bool:
        """Whether all of these are among others of the same table."""
        return self.count == 0 if others is None else not np.any(self.bits & ~others.bits)

    def rows(self) -> I64Array:
        """Deleted rows, ascending."""
        return np.flatnonzero(np.unpackbits(self.bits, bitorder="little"))

    def live_rows(self, first: int, last: int) -> I64Array:
        """Rows from `first` to `last` that are not deleted, ascending."""
        return first + np.flatnonzero(self._flags(first, last) == 0)

    def part(self, first: int, last: int) -> Deletions:
        """Those of rows `first` to `last`, counted from the first."""
        flags = self._flags(first, last)
        return Deletions(np.packbits(flags, bitorder="little"), int(np.count_nonzero(flags)))

    def _flags(self, first: int, last: int) -> U8Array:
        """For each row from `first` to `last`, 1 if it is deleted, else 0."""
        begin = first >> 3
        flags = np.unpackbits(self.bits[begin : (last + 7) >> 3], bitorder="little")
        return flags[first - 8 * begin : last - 8 * begin]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.bits.nbytes


@inlined
def is_deleted(bits, row):
    """1 if a bitmap has the row, 0 if not, or if it is too short: a number, as adding that takes no branch."""
    place = _U(row) >> _U(3)
    if place >= _U(len(bits)):
        return _U(0)
    return (_U(bits[place]) >> (_U(row) & _U(7))) & _U(1)
