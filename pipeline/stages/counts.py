"""What has come out of the pipeline."""

from __future__ import annotations

import threading

import numpy as np

from tagmatch.model.arrays import I64Array

_NAMES = ("queries", "matches", "verified", "rejected")


class Counts:
    """Counts queries, keys, and sets that were found or turned away; many threads may add.

    Attributes
    ----------
    of_kernels : int64[4] array
        The same counts, of queries that kernels have counted; these add in one step, whatever other threads do.
    """

    def __init__(self) -> None:
        self.of_kernels: I64Array = np.zeros(len(_NAMES), np.int64)
        self._lock = threading.Lock()
        self._sums = dict.fromkeys(_NAMES, 0)

    def add(self, **counts: int) -> None:
        """Count what a packet has given."""
        with self._lock:
            for name, count in counts.items():
                self._sums[name] += count

    def stats(self) -> dict[str, int]:
        """Return the sums by name."""
        of_kernels = dict(zip(_NAMES, self.of_kernels.tolist(), strict=True))
        return {name: count + of_kernels[name] for name, count in self._sums.items()}
