"""The tables of CLCB, which has them on a CUDA device; `clcb.py` has them on the CPU.

CLCB: G. Cugola, A. Margara, "High-Performance Location-Aware Publish-Subscribe on GPUs", Middleware 2012, §4.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.arrays import offsets_of
from tagmatch.workloads.shards import mix
from tagmatch_bench.systems.circles import Circles, Found
from tagmatch_bench.systems.content_matcher import ContentMatcher, Filters, Messages

if TYPE_CHECKING:
    from tagmatch.model.arrays import F64Array, I64Array, U8Array, U32Array

#: CLCB has 32-bit floats (§4.3, FPos)
F32Array = npt.NDArray[np.float32]

_U32, _U64 = np.uint32, np.uint64
# Of a 64-bit hash, the five highest bits, and the next five, are two hashes of 32 values
_HASH_SHIFTS, _HASH_MASK = (_U64(59), _U64(54)), _U64(31)


class Tables(NamedTuple):
    """The paper's vectors, and CCM's constraints by name.

    `centres` is FPos, [filters, 2]; `squares` SqDist, the squares of radii; `blooms` BF, the Bloom filter of the names
    of each filter's constraints. The constraints on attribute `i` are from `starts[i]` on, `lengths[i]` of them:
    `operators`, `values`, `uppers` and `filters`. `sizes` is how many constraints a filter has, `always` are the
    filters that have none, and `name_blooms` has the bits of each attribute.

    A Bloom filter has two bits a name. The paper does not say so, but that 32 bits are enough for 10 % of false
    positives with six names: with two bits, (1 - exp(-2 * 6 / 32)) ** 2 is 9.8 %; with one it is 17 %, with three 8 %.
    """

    centres: F32Array
    squares: F32Array
    blooms: U32Array
    starts: I64Array
    lengths: I64Array
    operators: U8Array
    values: npt.NDArray[Any]
    uppers: npt.NDArray[Any]
    filters: U32Array
    sizes: U32Array
    interfaces: U32Array
    always: U32Array
    name_blooms: U32Array


def name_blooms(count: int) -> U32Array:
    """The bits of attributes by number."""
    hashes = np.array([mix(_U64(number)) for number in range(count)], _U64)
    first, second = (_U32(1) << ((hashes >> shift) & _HASH_MASK).astype(_U32) for shift in _HASH_SHIFTS)
    blooms: U32Array = first | second
    return blooms


def tables_of(filters: Filters, circles: Circles) -> Tables:
    """Lay filters out, each with its circle."""
    of_names = name_blooms(len(filters.names))
    blooms = np.zeros(len(filters.sizes), _U32)
    starts = offsets_of(filters.sizes)[:-1][filters.sizes > 0]
    if len(starts):
        blooms[filters.sizes > 0] = np.bitwise_or.reduceat(of_names[filters.attributes], starts)
    order = np.argsort(filters.attributes, kind="stable")
    lengths = np.bincount(filters.attributes, minlength=len(filters.names))
    return Tables(
        _centres(circles.x, circles.y),
        (circles.radius.astype(np.float32) ** 2).astype(np.float32),
        blooms,
        offsets_of(lengths)[:-1],
        lengths,
        filters.operators[order],
        filters.values[order],
        filters.uppers[order],
        filters.filters[order],
        filters.sizes.astype(_U32),
        filters.interfaces,
        np.flatnonzero(filters.sizes == 0).astype(_U32),
        of_names,
    )


def _centres(x: F64Array, y: F64Array) -> F32Array:
    return np.stack([x, y], axis=1).astype(np.float32)


@dataclass(frozen=True, slots=True)
class LocatedMessages(Messages):
    """Messages with positions, `places`, [messages, 2]."""

    places: F32Array

    def __getitem__(self, rows: slice) -> LocatedMessages:
        first, last, _ = rows.indices(len(self))
        some = self.offsets[first : max(first, last) + 1]
        return LocatedMessages(some, self.attributes, self.values, self.places[first : max(first, last)])


class LocatedMatcher(ContentMatcher):
    """A matcher of filters with an area beside their constraints, and of messages with a position.

    Subscriptions have a column `area`, a struct of `x`, `y` and `radius`, and messages `location`, of `x` and `y`.
    """

    def __init__(self, subscriptions: pa.Table, **options: Any) -> None:
        self._circles: Circles | None = Circles.of(subscriptions)
        super().__init__(subscriptions, **options)
        self._circles = None

    def _build(self, filters: Filters) -> Tables:
        assert self._circles is not None
        return tables_of(filters, self._circles)

    def prepare(self, messages: pa.Table | pa.RecordBatch) -> LocatedMessages:
        """Convert messages, a column for each attribute, null where a message does not have it, and `location`.

        Raises
        ------
        ValueError
            As for messages without positions; or a position is null.
        """
        content = super().prepare(messages)
        location = pa.chunked_array(pa.table([messages["location"]], ["location"])["location"]).combine_chunks()
        parts = dict(zip((field.name for field in location.type), location.flatten(), strict=True))
        if parts["x"].null_count or parts["y"].null_count:
            raise ValueError("a message has no position")
        places = _centres(parts["x"].to_numpy(), parts["y"].to_numpy())
        return LocatedMessages(content.offsets, content.attributes, content.values, places)

    def move(self, ids: U32Array, x: F64Array, y: F64Array) -> None:
        """Give filters, by their rows, new centres, each filter once; not while messages are matched."""
        self._tables.centres[ids] = _centres(x, y)


class AreasAlone:
    """A `LocatedMatcher` of filters without constraints, as a `CircleSystem`."""

    def __init__(self, matcher: LocatedMatcher) -> None:
        self._matcher = matcher
        self.move = matcher.move
        self.nbytes = matcher.nbytes
        self.close = matcher.close

    def stab(self, x: F64Array, y: F64Array) -> Found:
        """Return the circles that have each point, all in single precision."""
        nothing = np.zeros(0, np.uint32)
        messages = LocatedMessages(np.zeros(len(x) + 1, np.int64), nothing, nothing.astype(np.int64), _centres(x, y))
        found = self._matcher.match_many(messages)
        return Found(found.offsets.to_numpy().astype(np.int64), found.values.to_numpy().astype(np.uint32))


def without_constraints(circles: Circles) -> pa.Table:
    """Subscriptions of nothing but a circle each, whose row is the key."""
    struct = pa.struct({"attr": pa.string(), "op": pa.string(), "value": pa.int64(), "upper": pa.int64()})
    columns = (pa.array(column) for column in (circles.x, circles.y, circles.radius))
    area = pa.StructArray.from_arrays(list(columns), ["x", "y", "radius"])
    nothing = pa.ListArray.from_arrays(pa.array(np.zeros(len(circles) + 1, np.int32)), pa.array([], struct))
    return pa.table({"key": np.arange(len(circles), dtype=np.uint64), "constraints": nothing, "area": area})
