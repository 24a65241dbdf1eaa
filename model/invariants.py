"""What the checks of all tables say: the table, the row and the invariant that is broken."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import numpy.typing as npt

from tagmatch.model.errors import InvariantError
from tagmatch.model.kernels.jit import kernel


def fail(table: str, row: int | None, invariant: str) -> NoReturn:
    """Raise `InvariantError`."""
    place = table if row is None else f"{table}, row {row}"
    raise InvariantError(f"{place}: {invariant}; build the index again from its source")


def require(good: npt.NDArray[np.bool_], table: str, invariant: str, first_row: int = 0) -> None:
    """See that each row is good, or `fail` with the first that is not."""
    if not good.all():
        fail(table, first_row + int(np.argmin(good)), invariant)


@kernel
def _compare_rows(offsets, values, a, b):
    """-1, 0 or 1 as list `a` is before, equal to or after list `b` in lexicographic order."""
    shared = min(offsets[a + 1] - offsets[a], offsets[b + 1] - offsets[b])
    for i in range(shared):
        x, y = values[offsets[a] + i], values[offsets[b] + i]
        if x != y:
            return -1 if x < y else 1
    return np.sign((offsets[a + 1] - offsets[a]) - (offsets[b + 1] - offsets[b]))


@kernel
def first_out_of_order(signatures, offsets, values, first, last):
    """First row from `first + 1` on that is not after the row before it by words and ranks, -1 if there is none."""
    for row in range(first + 1, last):
        order = 0
        for w in range(signatures.shape[1]):
            if signatures[row - 1, w] != signatures[row, w]:
                order = -1 if signatures[row - 1, w] < signatures[row, w] else 1
                break
        if order == 0:
            order = _compare_rows(offsets, values, row - 1, row)
        if order >= 0:
            return row
    return -1
