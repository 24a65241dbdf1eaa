"""What every compared system looks like.

A matcher is built from a table with columns `tags` (list of string) and `key` (uint64); a set may occur with several
keys, and a (set, key) pair more than once, which counts as once. It takes queries in a form of its own; `prepare`
converts an Arrow array of queries to it, so that benchmarks need not time that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import numpy.typing as npt

    from tagmatch.model.arrays import U64Array

Queries = TypeVar("Queries")

#: The keys of each query: Arrow lists of uint64, or a Python sequence of lists or arrays
Answers: TypeAlias = "pa.ListArray | Sequence[Sequence[int] | U64Array]"


class Matcher(Protocol[Queries]):
    """A subset matcher that takes its queries as `Queries`, which can be sliced: `queries[:100]`.

    Attributes
    ----------
    exact : bool
        Whether the answers are right. What is not exact gives all right keys and may give wrong ones too.
    """

    exact: bool

    def prepare(self, queries: pa.ListArray) -> Queries:
        """Convert an Arrow array of queries to the form that this matcher takes."""

    def match_many(self, queries: Queries, *, unique: bool = False) -> Answers:
        """Return the keys of the stored sets that match, for each query in order.

        Parameters
        ----------
        queries
            What `prepare` returned, or a slice of it.
        unique
            Give each key of a query once, instead of once for each matching set that carries it.
        """

    def nbytes(self) -> int | None:
        """Bytes of memory or disk that the stored sets take, `None` where that is unknown."""

    def close(self) -> None:
        """Stop what was started and free what was taken."""


@dataclass(frozen=True, slots=True)
class CallSize:
    """How many queries a call should have.

    Attributes
    ----------
    whole : int
        A multiple of so many, which are whole batches for all that work at once.
    full : int
        With so many, batches are as large as they can be.
    most : int
        Not more.
    """

    whole: int = 1
    full: int = 1
    most: int = 2**63 - 1


def call_size_of(matcher: object) -> CallSize | None:
    """How many queries a call should have, where a matcher says: one that is faster the more a call has does."""
    size: CallSize | None = getattr(matcher, "call_size", None)
    return size


class UnavailableError(Exception):
    """A system cannot run on this machine; says what is missing."""


def answers_to_pylist(answers: Answers) -> list[list[int]]:
    """Return the keys of each query as Python lists."""
    if isinstance(answers, pa.Array):
        return answers.to_pylist()  # type: ignore[no-any-return]
    return [list(map(int, keys)) for keys in answers]


def count_keys(answers: Answers) -> int:
    """Count the keys of all queries."""
    if isinstance(answers, pa.Array):
        return len(answers.flatten())
    return sum(map(len, answers))


def wrong_and_missing(answers: Answers, right: Answers) -> tuple[int, int]:
    """Count the keys, of all queries, that answers have beyond the right ones, and those that they lack."""
    if len(answers) != len(right):
        raise ValueError(f"answers to {len(answers)} queries cannot be compared with those to {len(right)}")
    (given_of, given), (due_of, due) = map(_query_and_key, (answers, right))
    queries, keys = np.concatenate([given_of, due_of]), np.concatenate([given, due])
    if not len(keys):
        return 0, 0
    order = np.lexsort((keys, queries))
    queries, keys = queries[order], keys[order]
    is_first = np.append(True, (queries[1:] != queries[:-1]) | (keys[1:] != keys[:-1]))
    more = np.add.reduceat(np.where(order < len(given), 1, -1), np.flatnonzero(is_first))
    return int(more[more > 0].sum()), -int(more[more < 0].sum())


def _query_and_key(answers: Answers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """Of each key of all queries, the number of the query, and the key."""
    lists = answers if isinstance(answers, pa.Array) else pa.array(answers_to_pylist(answers), pa.list_(pa.uint64()))
    return pc.list_parent_indices(lists).to_numpy(), lists.flatten().to_numpy().astype(np.uint64, copy=False)


def rows_of(sets: pa.Table) -> list[tuple[frozenset[str], list[int]]]:
    """Return the distinct sets as Python objects, each with its distinct keys, ascending."""
    keys_of: dict[frozenset[str], set[int]] = {}
    for tags, key in zip(sets["tags"].to_pylist(), sets["key"].to_pylist(), strict=True):
        keys_of.setdefault(frozenset(tags), set()).add(key)
    return [(tags, sorted(keys)) for tags, keys in keys_of.items()]


def unique_lists(answers: list[list[Any]]) -> list[list[Any]]:
    """Return each list with equal elements once, ascending."""
    return [sorted(set(keys)) for keys in answers]
