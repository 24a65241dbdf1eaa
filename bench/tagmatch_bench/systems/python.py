"""What a Python user could write instead of using an index, on Python's own types."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import chain
from typing import TYPE_CHECKING, cast

from tagmatch_bench.systems.matcher import rows_of, unique_lists

if TYPE_CHECKING:
    import pyarrow as pa


class RarestTagDict:
    """A dict from each tag to the sets whose rarest tag it is, which are tested one by one. Exact.

    This is the ranked key method of T. Yan and H. García-Molina, "Index Structures for Selective Dissemination
    of Information Under the Boolean Model", ACM TODS 19(2), 1994, on Python's own types. Simplified: a candidate
    is tested as a whole, by `frozenset.issuperset`, instead of one word after the other.

    Parameters
    ----------
    threads : int
        Not used: Python runs one at a time.
    """

    exact = True

    def __init__(self, sets: pa.Table, *, threads: int = 1) -> None:  # noqa: ARG002
        rows = rows_of(sets)
        frequency = Counter(chain.from_iterable(tags for tags, _ in rows))
        self._clusters: dict[str, list[tuple[frozenset[str], list[int]]]] = defaultdict(list)
        self._keys_of_empty_set: list[int] = []
        for tags, keys in rows:
            if tags:
                self._clusters[min(tags, key=frequency.__getitem__)].append((tags, keys))
            else:
                self._keys_of_empty_set = keys

    def prepare(self, queries: pa.ListArray) -> list[list[str]]:
        """Convert to lists of strings."""
        return cast("list[list[str]]", queries.to_pylist())

    def match_many(self, queries: list[list[str]], *, unique: bool = False) -> list[list[int]]:
        """Return the keys of the stored sets that match, for each query in order."""
        cluster_of = self._clusters.get
        answers = []
        for query in map(frozenset, queries):
            contains = query.issuperset
            keys = self._keys_of_empty_set.copy()
            for cluster in map(cluster_of, query):
                if cluster:
                    for candidate, candidate_keys in cluster:
                        if contains(candidate):
                            keys += candidate_keys
            answers.append(keys)
        return unique_lists(answers) if unique else answers

    def match(self, query: list[str]) -> list[int]:
        """Return the keys of the stored sets that match one query."""
        return self.match_many([query])[0]

    def nbytes(self) -> int | None:
        """Not known: Python's objects share parts."""
        return None

    def close(self) -> None:
        """Nothing was started."""
