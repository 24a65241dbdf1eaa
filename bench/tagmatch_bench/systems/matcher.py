"""What every compared system looks like, and what they share: how answers are compared, and keys looked up.

A matcher is built from a table with columns `tags` (list of string) and `key` (uint64); a set may occur with several
keys, and a (set, key) pair more than once, which counts as once. It takes queries in a form of its own; `prepare`
converts an Arrow array of queries to it, so that benchmarks need not time that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import Lists, U64Array
from tagmatch.model.kernels.lists import join_lists
from tagmatch.model.parallel import even_ranges, run_rows
from tagmatch.model.tables import KeyTable
from tagmatch.pipeline.tags import look_up_keys, merge_unique

Queries = TypeVar("Queries")

#: The keys of each query: Arrow lists of uint64, or a Python sequence of lists or arrays
Answers: TypeAlias = "pa.ListArray | Sequence[Sequence[int] | U64Array]"


class Matcher(Protocol[Queries]):
    """A subset matcher that takes its queries as `Queries`, which can be sliced: `queries[:100]`."""

    exact: bool  # whether the answers are right. What is not exact gives all right keys and may give wrong ones too

    def prepare(self, queries: pa.ListArray) -> Queries:
        """Convert an Arrow array of queries to the form that this matcher takes."""

    def match_many(self, queries: Queries, *, unique: bool = False) -> Answers:
        """Return the keys of the stored sets that match, for each query in order."""

    def nbytes(self) -> int | None:
        """Bytes of memory or disk that the stored sets take, `None` where that is unknown."""

    def close(self) -> None:
        """Stop what was started and free what was taken."""


class Plain:
    """What most systems have: exact answers to queries as they are, an unknown size, and nothing started."""

    exact: bool = True

    def prepare(self, queries: pa.ListArray) -> Any:
        """Queries are taken as they are."""
        return queries

    def nbytes(self) -> int | None:
        """Unknown."""
        return None

    def close(self) -> None:
        """Nothing was started."""


@dataclass(frozen=True, slots=True)
class CallSize:
    """How many queries a call should have."""

    whole: int = 1  # a multiple of so many, which are whole batches for all that work at once
    full: int = 1  # with so many, batches are as large as they can be
    most: int = 2**63 - 1  # not more


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
    more = np.add.reduceat(np.where(order < len(given), 1, -1), np.flatnonzero(first_of_equals(queries, keys)))
    return int(more[more > 0].sum()), -int(more[more < 0].sum())


def _query_and_key(answers: Answers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """Of each key of all queries, the number of the query, and the key."""
    lists = answers if isinstance(answers, pa.Array) else pa.array(answers_to_pylist(answers), pa.list_(pa.uint64()))
    return pc.list_parent_indices(lists).to_numpy(), lists.flatten().to_numpy().astype(np.uint64, copy=False)


def first_of_equals(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which rows of sorted columns differ from the row before."""
    first = np.ones(len(columns[0]), np.bool_)
    first[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return first


def rows_of(sets: pa.Table) -> list[tuple[frozenset[str], list[int]]]:
    """Return the distinct sets as Python objects, each with its distinct keys, ascending."""
    keys_of: dict[frozenset[str], set[int]] = {}
    for tags, key in zip(sets["tags"].to_pylist(), sets["key"].to_pylist(), strict=True):
        keys_of.setdefault(frozenset(tags), set()).add(key)
    return [(tags, sorted(keys)) for tags, keys in keys_of.items()]


def unique_lists(answers: list[list[Any]]) -> list[list[Any]]:
    """Return each list with equal elements once, ascending."""
    return [sorted(set(keys)) for keys in answers]


@contextmanager
def needed(package: str) -> Iterator[None]:
    """Run an import; says how to get the Python package `package` if it is missing."""
    try:
        yield
    except ImportError as error:
        message = f"needs the Python package {package} (pip install ./bench): {error}"
        raise UnavailableError(message) from error


Made = TypeVar("Made")

# Results of each function
_MOST = 8


def kept(make: Callable[..., Made]) -> Callable[..., Made]:
    """Have a function keep what it has made of its last few arguments, tables by identity."""
    found: OrderedDict[tuple[Any, ...], tuple[tuple[Any, ...], Made]] = OrderedDict()

    @wraps(make)
    def get(*arguments: Any, **named: Any) -> Made:
        key = tuple(id(each) if isinstance(each, pa.Table | pa.Array) else each for each in arguments)
        if key not in found:
            found[key] = arguments, make(*arguments, **named)  # with the arguments, whose identities stay theirs
        found.move_to_end(key)
        if len(found) > _MOST:
            found.popitem(last=False)
        return found[key][1]

    return get


# More tasks than threads, as some take longer
_TASKS_PER_THREAD = 8


def keys_of_matches(
    match: Callable[[int, int], Lists], queries: int, keys: KeyTable, *, unique: bool, threads: int
) -> pa.ListArray:
    """Match queries, `count` of them, and look up their keys, all in tasks over threads."""

    def work(first: int, last: int) -> Lists:
        return keys_of(match(first, last), keys, unique=unique)

    tasks = 1 if threads == 1 else _TASKS_PER_THREAD * threads
    parts = run_rows(work, even_ranges(queries, tasks), threads)
    return list_array(join_lists(parts, np.dtype(np.uint64), threads))


def keys_of(matches: Lists, keys: KeyTable, *, unique: bool) -> Lists:
    """Look up the keys of each query's rows, uint32; `unique` ones once each."""
    found = look_up_keys(matches, keys)
    return merge_unique(found, np.ones(len(found), np.bool_)) if unique else found


def list_array(answers: Lists) -> pa.ListArray:
    """Keys of queries as an Arrow array."""
    return pa.ListArray.from_arrays(pa.array(answers.offsets, pa.int32()), pa.array(answers.values))
