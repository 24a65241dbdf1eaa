"""What every compared system looks like, and what they share: how answers are compared, and keys looked up.

A matcher is built from a table with columns `tags` (list of string) and `key` (uint64); a set may occur with several
keys, and a (set, key) pair more than once, which counts as once. It takes queries in its own form; `prepare`
converts an Arrow array of queries to it, so that benchmarks need not time that.
"""

from __future__ import annotations

import operator
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import Lists, U64Array, list_offsets
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import join_lists
from tagmatch.model.parallel import even_ranges, run_rows
from tagmatch.model.tables import KeyTable
from tagmatch.pipeline.tags import look_up_keys
from tagmatch.pipeline.unique import merge_unique
from tagmatch.workloads.numbers import mix

Queries = TypeVar("Queries")

#: How numbers are compared, of constraints that have one operand
COMPARED: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}

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
        """Stop all threads and processes, and free all memory."""


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


class ListsOfStrings(Plain):
    """The same, of systems that take queries as Python has them."""

    def prepare(self, queries: pa.ListArray) -> list[list[str]]:
        """Convert to lists of strings."""
        found: list[list[str]] = queries.to_pylist()
        return found


@dataclass(frozen=True, slots=True)
class CallSize:
    """How many queries a call should have."""

    whole: int = 1  # a multiple of this, which makes whole batches for all that work at once
    full: int = 1  # with this many, batches are as large as they can be
    most: int = 2**63 - 1  # not more


#: Of databases that find all queries of a call by one statement, so that a query costs less in a large call
ONE_STATEMENT = CallSize(full=10_000)


def call_size_of(matcher: object) -> CallSize | None:
    """How many queries a call should have, where a matcher says: one that is faster the more a call has does."""
    size: CallSize | None = getattr(matcher, "call_size", None)
    return size


class UnavailableError(Exception):
    """A system cannot run on this machine; names the missing part."""


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


def wrong_and_missing(
    answers: Any, right: Any, may_differ: Callable[[int, int], bool] | None = None
) -> tuple[int, int]:
    """Count the keys, of all queries, that answers have beyond the right ones, and those that they lack.

    A query's key is neither if `may_differ` says that it may be there or not.
    """
    given, due = lists_in(answers), lists_in(right)
    if len(given) != len(due):
        raise ValueError(f"answers to {len(given)} queries cannot be compared with those to {len(due)}")
    # Most are equal, which numbers of keys and sums of their hashes tell, in any order
    sums = [np.zeros(len(due), np.uint64) for _ in range(2)]
    for lists, found in zip((given, due), sums, strict=True):
        _sum_hashes(lists.offsets, lists.values, found)
    differ = (given.lengths() != due.lengths()) | (sums[0] != sums[1])
    of = [np.repeat(np.arange(len(lists)), lists.lengths()) for lists in (given, due)]
    some = [differ[queries] for queries in of]
    queries = np.concatenate([of[0][some[0]], of[1][some[1]]])
    if not len(queries):
        return 0, 0
    keys = np.concatenate([given.values[some[0]], due.values[some[1]]])
    order = np.lexsort((keys, queries))
    first = np.flatnonzero(first_of_equals(queries[order], keys[order]))
    more = np.add.reduceat(np.where(order < np.count_nonzero(some[0]), 1, -1), first)
    if may_differ is not None:
        places = order[first[more != 0]]
        off = [not may_differ(int(queries[place]), int(keys[place])) for place in places]
        more = more[more != 0][off]
    return int(more[more > 0].sum()), -int(more[more < 0].sum())


def lists_in(answers: Any) -> Lists:
    """The keys of all queries: of Arrow lists, of `Lists`, or of a sequence."""
    if isinstance(answers, pa.Array):
        lengths = pc.list_value_length(answers).to_numpy(zero_copy_only=False)
        return Lists(list_offsets(lengths), answers.flatten().to_numpy().astype(np.uint64, copy=False))
    if isinstance(answers, Lists):
        return Lists(answers.offsets, answers.values.astype(np.uint64, copy=False))
    keys = [np.asarray(each, np.uint64) for each in answers]
    return Lists(list_offsets(np.array([*map(len, keys)], np.int64)), np.concatenate([np.zeros(0, np.uint64), *keys]))


@kernel
def _sum_hashes(offsets, keys, sums):
    """The sum of the hashes of each list's keys."""
    for i in range(len(sums)):
        for j in range(offsets[i], offsets[i + 1]):
            sums[i] += mix(keys[j])


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


def table_of_rows(rows: Iterable[tuple[frozenset[str], list[int]]]) -> pa.Table:
    """Return a row for each pair of a set and a key."""
    pairs = [(list(tags), key) for tags, keys in rows for key in keys]
    tags, keys = [tags for tags, _ in pairs], [key for _, key in pairs]
    return pa.table({"tags": pa.array(tags, pa.list_(pa.string())), "key": pa.array(keys, pa.uint64())})


def rarest_of(sets: Iterable[Collection[str]]) -> list[str | None]:
    """Return the rarest tag of each set, None for the empty one."""
    every = list(sets)
    frequency = Counter(chain.from_iterable(every))
    return [min(tags, key=frequency.__getitem__, default=None) for tags in every]


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
    """Keep a function's results for its last few arguments, tables by identity."""
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
    match: Callable[[int, int], Lists], queries: int, keys: KeyTable, *, unique: bool, threads: int, whole: int = 1
) -> pa.ListArray:
    """Match queries, and look up their keys, all in tasks over threads, of `whole` queries or a multiple of that."""

    def work(first: int, last: int) -> Lists:
        return keys_of(match(first, last), keys, unique=unique)

    tasks = 1 if threads == 1 else _TASKS_PER_THREAD * threads
    ranges = [(whole * first, min(whole * last, queries)) for first, last in even_ranges(-(-queries // whole), tasks)]
    parts = run_rows(work, ranges, threads)
    return list_array(join_lists(parts, np.dtype(np.uint64), threads))


def keys_of(matches: Lists, keys: KeyTable, *, unique: bool) -> Lists:
    """Look up the keys of each query's rows, uint32; `unique` ones once each."""
    found = look_up_keys(matches, keys)
    return merge_unique(found, np.ones(len(found), np.bool_)) if unique else found


def lists_by_query(asked: npt.NDArray[Any], keys: npt.NDArray[Any], queries: int) -> pa.ListArray:
    """Pairs of a query and a key as an Arrow array of lists, one for each of `queries` queries."""
    order = np.argsort(asked, kind="stable")
    return list_array(Lists(list_offsets(np.bincount(asked, minlength=queries)), keys[order]))


def list_array(answers: Lists) -> pa.ListArray:
    """Keys of queries as an Arrow array."""
    return pa.ListArray.from_arrays(pa.array(answers.offsets, pa.int32()), pa.array(answers.values))
