"""Which sessions follow a key: pairs of both in sorted columns, which are looked up for many keys at once.

The columns come in few runs, each more than twice as long as the next one: new pairs become a run, and runs of like
lengths are merged. So a change costs as much as it changes, however many pairs there are.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array
from tagmatch.model.options import KeyType

#: Code of a key that no session follows; no index of a name is as great
_NO_CODE = np.uint64(2**64 - 1)
#: Names that may be known although no session follows them any more, beside as many as are followed
_SPARE_NAMES = 1_024


class _Run:
    """Pairs in the order of their codes, then of their sessions; those that are no more are marked."""

    def __init__(self, codes: Any, sessions: Any) -> None:
        order = np.lexsort((sessions, codes))
        self.codes, self.sessions = codes[order], sessions[order]
        self.is_there = np.ones(len(codes), bool)
        self.count = len(codes)

    def __len__(self) -> int:
        return len(self.codes)

    def lookup(self, codes: Any) -> tuple[I64Array, I64Array]:
        begins = np.searchsorted(self.codes, codes, "left")
        found = np.flatnonzero(begins < len(self.codes))
        found = found[self.codes[begins[found]] == codes[found]]
        begins = begins[found]
        counts = np.searchsorted(self.codes, codes[found], "right") - begins
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        rows = np.arange(total) + np.repeat(begins - (ends - counts), counts)
        places, sessions, there = np.repeat(found, counts), self.sessions[rows], self.is_there[rows]
        return (places, sessions) if there.all() else (places[there], sessions[there])

    def remove(self, codes: Any, session: int) -> None:
        """Mark the pairs of these codes and a session as removed."""
        last = len(self.codes) - 1
        low, ends = (np.searchsorted(self.codes, codes, side) for side in ("left", "right"))
        high = ends.copy()
        for _ in range(int((high - low).max(initial=0)).bit_length()):
            middle, is_open = (low + high) // 2, low < high
            is_less = is_open & (self.sessions[np.minimum(middle, last)] < session)
            low, high = np.where(is_less, middle + 1, low), np.where(is_open & ~is_less, middle, high)
        found = np.unique(low[(low < ends) & (self.sessions[np.minimum(low, last)] == session)])
        self.count -= int(np.count_nonzero(self.is_there[found]))
        self.is_there[found] = False


def _merged(runs: list[_Run]) -> list[_Run]:
    """One run of the pairs in some, without those that are marked; or no run."""
    codes = np.concatenate([run.codes[run.is_there] for run in runs])
    sessions = np.concatenate([run.sessions[run.is_there] for run in runs])
    return [_Run(codes, sessions)] if len(codes) else []


class Routes:
    """Pairs of a key and the number of a session that follows it.

    Parameters
    ----------
    key_type : {"integer", "string"}

    Examples
    --------
    >>> routes = Routes("integer")
    >>> routes.follow(1, pa.array([7, 8], pa.uint64()))
    >>> routes.follow(2, pa.array([8], pa.uint64()))
    >>> places, sessions = routes.lookup(pa.array([8, 9], pa.uint64()))
    >>> places.tolist(), sessions.tolist()
    ([0, 0], [1, 2])
    """

    def __init__(self, key_type: KeyType) -> None:
        self._has_strings = key_type == "string"
        self._lock = threading.Lock()
        self._names: dict[Any, int] = {}
        self._runs: list[_Run] = []
        # What looking at several runs has cost since there were several
        self._looked_at = 0

    def __len__(self) -> int:
        with self._lock:
            return self._count()

    def _count(self) -> int:
        return sum(run.count for run in self._runs)

    def follow(self, session: int, keys: pa.Array) -> None:
        """Add pairs, none of which there is yet."""
        with self._lock:
            codes = self._new_codes(keys)
            if len(codes):
                self._runs.append(_Run(codes, np.full(len(codes), session, np.int64)))
                self._settle()

    def unfollow(self, session: int, keys: pa.Array) -> None:
        """Remove pairs; those that there are not stay away."""
        with self._lock:
            codes = self._known_codes(keys)
            for run in self._runs:
                run.remove(codes, session)
            kept = ([run] if 2 * run.count >= len(run) else _merged([run]) for run in self._runs)
            self._runs = [run for runs in kept for run in runs]
            if len(self._names) > 2 * self._count() + _SPARE_NAMES:
                self._forget_names()

    def lookup(self, keys: pa.Array) -> tuple[I64Array, I64Array]:
        """Who follows these keys.

        Returns
        -------
        places, sessions : I64Array
            Places in `keys`, ascending, each as often as there are sessions that follow the key there, and these.
        """
        with self._lock:
            codes = self._known_codes(keys)
            if len(self._runs) > 1:
                self._looked_at += len(codes) * len(self._runs)
                if self._looked_at > self._count():
                    self._runs, self._looked_at = _merged(self._runs), 0
            runs = self._runs[:]
        if not runs:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        parts = [run.lookup(codes) for run in runs]
        if len(parts) == 1:
            return parts[0]
        places, sessions = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.argsort(places, kind="stable")
        return places[order], sessions[order]

    def _settle(self) -> None:
        """Merge the last runs while they are of like lengths."""
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            self._runs[-2:] = _merged(self._runs[-2:])

    def _forget_names(self) -> None:
        """Forget those that no session follows; codes are places among the names, in the order in which these came."""
        self._runs = _merged(self._runs)
        followed = np.unique(np.concatenate([np.zeros(0, np.uint64), *(run.codes for run in self._runs)]))
        names = list(self._names)
        self._names = {names[code]: place for place, code in enumerate(followed.tolist())}
        self._runs = [_Run(np.searchsorted(followed, run.codes).astype(np.uint64), run.sessions) for run in self._runs]

    def _new_codes(self, keys: pa.Array) -> Any:
        if not self._has_strings:
            return keys.to_numpy(zero_copy_only=False)
        names = self._names
        return np.array([names.setdefault(key, len(names)) for key in keys.to_pylist()], np.uint64)

    def _known_codes(self, keys: pa.Array) -> Any:
        """Codes of keys; a name that is not known has one that nobody follows."""
        if not self._has_strings:
            return keys.to_numpy(zero_copy_only=False)
        encoded = keys.dictionary_encode()
        codes = np.array([self._names.get(key, _NO_CODE) for key in encoded.dictionary.to_pylist()], np.uint64)
        return codes[encoded.indices.to_numpy(zero_copy_only=False)]
