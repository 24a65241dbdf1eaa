"""The same system, asked with queries whose tags are in a dictionary."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

    from tagmatch_bench.systems.matcher import Answers, Matcher


def dictionary_encoded(queries: pa.ListArray) -> pa.ListArray:
    """Put the tags of queries in a dictionary that has no others."""
    offsets = pc.subtract(queries.offsets, queries.offsets[0])
    return pa.ListArray.from_arrays(offsets, pc.dictionary_encode(queries.flatten()))


class EncodedQueries:
    """Queries of which any slice comes with a dictionary of its own, made when it is first asked for."""

    def __init__(self, queries: pa.ListArray) -> None:
        self._first: Callable[[int], pa.ListArray] = cache(lambda count: dictionary_encoded(queries[:count]))

    def __getitem__(self, some: slice) -> pa.ListArray:
        """Return the first queries."""
        assert some.start in (None, 0)
        assert some.step is None
        return self._first(some.stop)


class DictionaryEncoded:
    """An index that others use, too, with a form of queries of its own."""

    def __init__(self, matcher: Matcher[pa.ListArray]) -> None:
        self.exact = matcher.exact
        self._matcher = matcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)

    def prepare(self, queries: pa.ListArray) -> EncodedQueries:
        """Put their tags in a dictionary."""
        return EncodedQueries(queries)

    def match_many(self, queries: pa.ListArray, *, unique: bool = False) -> Answers:
        """Return the keys of the stored sets that match, for each query in order."""
        return self._matcher.match_many(queries, unique=unique)

    def close(self) -> None:
        """Leave the index open, which is not this one's."""
