"""Keys in databases whose integers are signed: 2⁶³ … 2⁶⁴ - 1 are stored as -2⁶³ … -1, the same 64 bits."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tagmatch.model.arrays import U64Array


def to_signed(keys: list[int]) -> list[int]:
    """Return the signed integers that have the same bits."""
    signed: list[int] = np.array(keys, np.uint64).view(np.int64).tolist()
    return signed


def from_signed(lists: Iterable[Iterable[int]], *, unique: bool) -> U64Array:
    """Return the keys of all lists of signed integers, `unique` ones once each."""
    keys = np.fromiter(chain.from_iterable(lists), np.int64).view(np.uint64)
    return np.unique(keys) if unique else keys
