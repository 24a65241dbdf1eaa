"""Moves of clients that a copy of their positions elsewhere has yet to make."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from tagmatch.model.arrays import F64Array, I64Array, U32Array


class Moves(NamedTuple):
    """Clients with where each is to be, one after the other."""

    clients: I64Array
    lon: F64Array
    lat: F64Array
    x: F64Array
    y: F64Array
    z: F64Array


class Points(NamedTuple):
    """Clients with the point where each is to be, one after the other; `x` is NaN for one that is to be nowhere."""

    clients: U32Array
    x: F64Array
    y: F64Array
    z: F64Array


class MoveLog:
    """Moves that were made, in their order, for one who makes them, too, and takes them whenever that is needed.

    Who falls too far behind has to copy all positions instead.

    Parameters
    ----------
    most : int
        So many moves are kept.
    """

    def __init__(self, most: int) -> None:
        self._most, self._count = most, 0
        self._lock = threading.Lock()
        # `None` until all positions have been copied
        self._moves: list[Points] | None = None

    def begin(self) -> None:
        """Keep moves from now on: who has this copies positions, and nobody moves meanwhile."""
        with self._lock:
            self._moves, self._count = [], 0

    def forget(self) -> None:
        """Keep nothing until all positions have been copied."""
        with self._lock:
            self._moves, self._count = None, 0

    def add(self, moves: Moves) -> None:
        """Have moves that were made, whose clients and places may be in the memory of who has asked for them."""
        with self._lock:
            if self._moves is None:
                return
            self._count += len(moves.clients)
            try:
                if self._count <= self._most:
                    nowhere = np.isnan(moves.lon) | np.isnan(moves.lat)
                    x = np.where(nowhere, np.nan, moves.x)
                    self._moves.append(Points(moves.clients.astype(np.uint32), x, moves.y, moves.z))
                    return
            except MemoryError:
                """Then all have to be copied, too."""
            self._moves = None

    def take(self) -> list[Points] | None:
        """The moves since this was last called; `None` if all positions have to be copied."""
        with self._lock:
            moves = self._moves
            if moves is not None:
                self._moves, self._count = [], 0
            return moves
