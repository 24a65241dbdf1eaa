"""Which sessions follow a key: pairs of both in sorted columns, which are looked up for many keys at once."""

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
        self._codes = np.zeros(0, np.uint64)
        self._sessions = np.zeros(0, np.int64)
        # Pairs that were added since the columns were sorted
        self._added: list[tuple[Any, Any]] = []

    def __len__(self) -> int:
        with self._lock:
            self._settle()
            return len(self._codes)

    def follow(self, session: int, keys: pa.Array) -> None:
        """Add pairs, none of which there is yet."""
        with self._lock:
            codes = self._new_codes(keys)
            self._added.append((codes, np.full(len(codes), session, np.int64)))

    def unfollow(self, session: int, keys: pa.Array) -> None:
        """Remove pairs; those that there are not stay away."""
        with self._lock:
            self._settle()
            self._keep(~((self._sessions == session) & np.isin(self._codes, self._known_codes(keys))))

    def forget(self, session: int) -> None:
        """Remove all pairs of a session."""
        with self._lock:
            self._settle()
            self._keep(self._sessions != session)

    def lookup(self, keys: pa.Array) -> tuple[I64Array, I64Array]:
        """Who follows these keys.

        Returns
        -------
        places, sessions : I64Array
            Places in `keys`, ascending, each as often as there are sessions that follow the key there, and these.
        """
        with self._lock:
            self._settle()
            sorted_codes, sessions = self._codes, self._sessions
            codes = self._known_codes(keys)
        begins = np.searchsorted(sorted_codes, codes, "left")
        found = np.flatnonzero(begins < len(sorted_codes))
        found = found[sorted_codes[begins[found]] == codes[found]]
        begins = begins[found]
        counts = np.searchsorted(sorted_codes, codes[found], "right") - begins
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        rows = np.arange(total) + np.repeat(begins - (ends - counts), counts)
        return np.repeat(found, counts), sessions[rows]

    def _keep(self, wanted: Any) -> None:
        self._codes, self._sessions = self._codes[wanted], self._sessions[wanted]
        if len(self._names) > 2 * len(self._codes) + _SPARE_NAMES:
            followed = np.unique(self._codes)
            names = list(self._names)
            # Codes are places among the names, in the order in which these came
            self._names = {names[code]: place for place, code in enumerate(followed.tolist())}
            self._codes = np.searchsorted(followed, self._codes).astype(np.uint64)

    def _settle(self) -> None:
        """Have pairs that were added in the sorted columns; others keep those that they have seen."""
        if self._added:
            codes = np.concatenate([self._codes, *(codes for codes, _ in self._added)])
            sessions = np.concatenate([self._sessions, *(sessions for _, sessions in self._added)])
            order = np.argsort(codes, kind="stable")
            self._codes, self._sessions, self._added = codes[order], sessions[order], []

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
