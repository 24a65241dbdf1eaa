"""What has come out of the pipeline."""

from __future__ import annotations

import threading


class Counts:
    """Counts queries, keys, and sets that were found or turned away; many threads may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries = self._matches = self._verified = self._rejected = 0

    def add(self, *, queries: int = 0, matches: int = 0, verified: int = 0, rejected: int = 0) -> None:
        """Count what a packet has given."""
        with self._lock:
            self._queries += queries
            self._matches += matches
            self._verified += verified
            self._rejected += rejected

    def stats(self) -> dict[str, int]:
        """Return the sums by name."""
        return {
            "queries": self._queries,
            "matches": self._matches,
            "verified": self._verified,
            "rejected": self._rejected,
        }
