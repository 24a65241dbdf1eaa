"""Makes queries of stored sets: each a random set with a few random tags more (§4.2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import offsets_of
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.parallel import run_rows
from tagmatch.workloads.shards import mix, position

if TYPE_CHECKING:
    from tagmatch.workloads.queries.stored import StoredSets

Draw = Literal["uniform", "frequency"]

_U = np.uint64
_QUERIES_PER_BLOCK = 65_536
# Draws in a row that may find tags which the query has already, before the tag after the last of them is taken
_DRAWS = 100


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """How stored sets are extended."""

    seed: int = 1
    min_extra: int = 2  # Tags that a query has besides its stored set; each number as often as any other
    max_extra: int = 4
    # Draw the tags in proportion to the number of stored sets that hold them, or each as often as any other
    draw: Draw = "frequency"

    def __post_init__(self) -> None:
        limits = {
            "seed": (0, 2**63 - 1),
            "min_extra": (0, 2**31 - 1),
            "max_extra": (self.min_extra, 2**31 - 1),
        }
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidTypeError(f"{name} must be an integer, not {value!r}")
            if not least <= value <= most:
                raise InvalidValueError(f"{name} must be from {least} to {most}, not {value}")
        if self.draw not in get_args(Draw):
            raise InvalidValueError(f"draw must be one of {', '.join(map(repr, get_args(Draw)))}, not {self.draw!r}")


@inlined
def _random_of_query(number, seed):
    return mix(_U(number) ^ mix(mix(seed) + _U(1)))


@kernel
def _pick(first, seed, sets, least, most, rows, extra):
    """Write each query's stored set and how many tags it has besides."""
    for i in range(len(rows)):
        random = _random_of_query(first + i, seed)
        rows[i] = mix(random) % _U(sets)
        extra[i] = least + np.int64(mix(random + _U(1)) % _U(most - least + 1))


@inlined
def _unseen(random, sums, seen, query):
    """Return a random tag that the query has not."""
    tags = _U(len(seen))
    number = _U(0)
    for draw in range(_DRAWS):
        at = mix(random + _U(draw))
        number = position(sums, np.int64(at % _U(sums[-1]))) if len(sums) > 0 else at % tags
        if seen[number] != query:
            return number
    while seen[number] == query:
        number = (number + _U(1)) % tags
    return number


@kernel
def _extend(first, seed, stored_offsets, stored, sums, rows, extra, seen, offsets, out):
    """Write the tags of queries, none twice; returns the first that wants more tags than there are, -1 if none does."""
    at = 0
    for i in range(len(rows)):
        begin, query = at, np.uint32(i + 1)
        for j in range(stored_offsets[rows[i]], stored_offsets[rows[i] + 1]):
            if seen[stored[j]] != query:
                seen[stored[j]] = query
                out[at] = stored[j]
                at += 1
        if at - begin + extra[i] > len(seen):
            return i
        random = mix(_random_of_query(first + i, seed) + _U(2))
        for j in range(extra[i]):
            number = _unseen(random + _U(_DRAWS) * _U(j), sums, seen, query)
            seen[number] = query
            out[at] = number
            at += 1
        offsets[i + 1] = at
    return -1


class Extender:
    """Makes queries of stored sets; each depends on the sets, the options and its number alone."""

    def __init__(self, stored: StoredSets, options: QueryOptions) -> None:
        if not len(stored):
            raise InvalidValueError("there are no stored sets that queries could extend")
        if options.max_extra > len(stored.tags):
            raise InvalidValueError(
                f"max_extra is {options.max_extra}, but all sets have only {len(stored.tags)} different tags together; "
                "ask for fewer (--max-extra)"
            )
        self._stored, self._options = stored, options
        self._seed = np.uint64(options.seed)
        self._sums = np.cumsum(stored.frequencies if options.draw == "frequency" else np.zeros(0, np.int64))

    def queries(self, first: int, count: int, *, threads: int = 1) -> pa.ListArray:
        """Make queries `first` to `first + count`, lists of strings."""
        edges = [*range(first, first + count, _QUERIES_PER_BLOCK), first + count]
        return pa.concat_arrays(run_rows(self._block, list(pairwise(edges)), threads) or [self._block(first, first)])

    def _block(self, first: int, last: int) -> pa.ListArray:
        stored, options = self._stored, self._options
        rows, extra = np.empty(last - first, np.int64), np.empty(last - first, np.int64)
        _pick(first, self._seed, len(stored), options.min_extra, options.max_extra, rows, extra)
        offsets = offsets_of(np.diff(stored.offsets)[rows] + extra)
        numbers = np.empty(offsets[-1], np.uint32)
        seen = np.zeros(len(stored.tags), np.uint32)
        failed = _extend(
            first, self._seed, stored.offsets, stored.numbers, self._sums, rows, extra, seen, offsets, numbers
        )
        if failed >= 0:
            raise InvalidValueError(
                f"query {first + failed} is to have {extra[failed]} tags besides those of a stored set, but all sets "
                f"have only {len(stored.tags)} different tags together; lower max_extra (--max-extra)"
            )
        tags = stored.tags.take(pa.array(numbers[: offsets[-1]])).cast(pa.string())
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), tags)
