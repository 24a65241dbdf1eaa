"""The best keys of each message, by a column of data, without making all of its keys.

The keys of a snapshot are put in order once for a column. Then a message's best keys are those with the least ranks
among its rows: a kernel keeps them in a heap.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.contents import tags_and_tests, take_lists
from tagmatch.highlights import Whereabouts, metres_of, of_sets_found
from tagmatch.model.arrays import BoolArray, I64Array, Lists, TagLists, U32Array, frozen, offsets_of
from tagmatch.model.asked import DATA
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.kernels.tag_table import has_reserved
from tagmatch.model.names import near_match
from tagmatch.model.options import MatchOptions
from tagmatch.model.tables import Segment, Snapshot
from tagmatch.pipeline.areas.positions import Clients
from tagmatch.pipeline.best import Best
from tagmatch.pipeline.segment import Matcher

#: Most keys of a message that can be asked for
MAX_LIMIT = 10_000
# Messages of a packet
_MESSAGES = 256


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """The keys of a snapshot in order, the best first."""

    keys: pa.Array
    ranks: Sequence[U32Array]  # Of each segment, the rank of the key at each place of the key table
    offsets: Sequence[I64Array]  # Of each segment, the places of each row's keys


def ranking(snapshot: Snapshot, name: str, order: str, kind: pa.DataType) -> Ranking:
    """The order by a column of data, keys without a value last, equal ones by key."""
    numbers, columns, values = [], [], []
    for segment in snapshot.segments:
        keys = segment.keys.keys
        live = keys.values
        if segment.deletions is not None:
            rows = segment.live_rows(0, len(segment))
            live = take_lists(keys, rows).flatten().to_numpy()
        numbers.append(np.unique(live))
        columns.append(segment.keys.column(numbers[-1]))
        values.append(_values(segment, numbers[-1], name))
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    table = pa.table(
        {"key": pa.chunked_array(columns), "value": pa.chunked_array([each.cast(kind) for each in values])}
    )
    places = pc.sort_indices(table, [("value", order), ("key", "ascending")]).to_numpy()
    ordered = table["key"].combine_chunks().take(pa.array(places))
    is_new = np.ones(len(places), np.bool_)
    if len(places):
        is_new[1:] = pc.not_equal(ordered[1:], ordered[:-1]).to_numpy(zero_copy_only=False)
    ranks = np.empty(len(places), np.uint32)
    ranks[places] = np.cumsum(is_new) - 1
    ends = offsets_of(np.array(list(map(len, numbers))))
    parts = [ranks[first:last] for first, last in pairwise(ends)]
    by_place = [
        _at(own, known, segment.keys.keys.values)
        for own, known, segment in zip(parts, numbers, snapshot.segments, strict=True)
    ]
    offsets = [frozen(segment.keys.keys.offsets.astype(np.int64, copy=False)) for segment in snapshot.segments]
    return Ranking(ordered.filter(pa.array(is_new)), by_place, offsets)


def _asked_order(columns: Iterable[str], order_by: object) -> tuple[str, str]:
    """The column, and whether it is ascending or descending; errors."""
    if not isinstance(order_by, str):
        raise InvalidTypeError(f'order_by must be a str such as "priority desc", not {type(order_by).__name__}')
    name, _, way = order_by.strip().rpartition(" ")
    if way.lower() not in ("asc", "desc") or not name:
        name, way = order_by, "asc"
    name, known = name.strip(), [*columns]
    if name not in known:
        raise InvalidValueError(
            f"order_by: the index has no column of data {name[:60]!r}{near_match(name, known)}; "
            'give one, as in "priority desc"'
        )
    return name, "descending" if way.lower() == "desc" else "ascending"


def _values(segment: Segment, numbers: U32Array, name: str) -> pa.Array:
    """The value of each key, null if it has none."""
    records = segment.records
    if records is None or DATA + name not in records.columns.column_names:
        return pa.nulls(len(numbers))
    places = records.places_of(numbers)
    column = records.columns.column(DATA + name).combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.take(pa.array(places, mask=places < 0))


def _at(ranks: U32Array, numbers: U32Array, values: U32Array) -> U32Array:
    """The rank at each place of a key table; any, for a key that only deleted rows have."""
    if not len(numbers):
        return np.zeros(len(values), np.uint32)
    return ranks[np.minimum(np.searchsorted(numbers, values), len(numbers) - 1)]


class Rankings:
    """The orders that were asked for of the current snapshot."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: tuple[Snapshot | None, dict[tuple[str, str], Ranking]] = (None, {})

    def of(self, snapshot: Snapshot, schema: Mapping[str, pa.DataType], order_by: object) -> Ranking:
        """The order of a snapshot with these columns, made when it is first asked for; errors are those of its name."""
        name, order = asked = _asked_order(schema, order_by)
        with self._lock:
            if self._known[0] is not snapshot:
                self._known = (snapshot, {})
            known = self._known[1]
            if asked not in known:
                known[asked] = ranking(snapshot, name, order, schema[name])
            return known[asked]


def limit_of(limit: object) -> int:
    """How many keys are wanted at most; errors."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise InvalidTypeError(f"limit must be an int, not {type(limit).__name__}")
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidValueError(f"limit must be from 1 to {MAX_LIMIT:,}, not {limit}")
    return limit


def best_of(
    snapshot: Snapshot,
    matcher: Matcher,
    clients: Clients,
    chunks: Sequence[TagLists],
    options: MatchOptions,
    wanted: tuple[Ranking, int],
) -> pa.ListArray:
    """The best keys of each message, each once, the best first: by which order, and how many at most."""
    order, limit = wanted

    def some(ids: Lists, asked: Whereabouts | None) -> Lists:
        return _best(snapshot, ids, asked, order, limit)

    found = of_sets_found(some, matcher, clients, chunks, options, _MESSAGES)
    ranks = np.concatenate([np.zeros(0, np.uint32), *(each.values for each in found)])
    ends = offsets_of(np.concatenate([np.zeros(0, np.int64), *(each.lengths() for each in found)])).astype(np.int32)
    keys = order.keys.take(pa.array(ranks))
    return pa.ListArray.from_arrays(pa.array(ends), keys, type=pa.list_(keys.type))


def _best(snapshot: Snapshot, ids: Lists, asked: Whereabouts | None, order: Ranking, limit: int) -> Lists:
    """The ranks of the best keys of each message."""
    best, messages, first = Best(len(ids), limit), np.repeat(np.arange(len(ids)), ids.lengths()), 0
    for segment, ranks, offsets in zip(snapshot.segments, order.ranks, order.offsets, strict=True):
        own = ids
        if len(snapshot.segments) > 1:
            own = _some(ids, messages, (ids.values >= first) & (ids.values < first + len(segment)), first)
        first += len(segment)
        if asked is not None:
            own, ranks = _asked(segment, own, ranks, asked)
            offsets = frozen(np.arange(len(ranks) + 1))
        best.add(own, offsets, ranks)
    return best.lists()


def _some(ids: Lists, messages: I64Array, chosen: BoolArray, first: int) -> Lists:
    """Of the ids of each message, those that are chosen, as rows from `first` on."""
    ends = offsets_of(np.bincount(messages[chosen], minlength=len(ids)))
    return Lists(ends, (ids.values[chosen] - first).astype(np.uint32))


def _asked(segment: Segment, ids: Lists, ranks: U32Array, asked: Whereabouts) -> tuple[Lists, U32Array]:
    """The places of keys whose clients are where they must be, of each message, and the rank at each."""
    rows = ids.values.astype(np.int64)
    lengths = segment.keys.keys.lengths()[rows]
    messages = np.repeat(np.repeat(np.arange(len(ids)), ids.lengths()), lengths)
    begins = segment.keys.keys.offsets[rows].astype(np.int64)
    places = np.repeat(begins - offsets_of(lengths)[:-1], lengths) + np.arange(int(lengths.sum()))
    different, own = np.unique(rows, return_inverse=True)
    _, tests = tags_and_tests(segment, different, has_conditions=has_reserved(segment.vocabulary.tags))
    metres = np.full(len(different), np.inf) if tests is None else metres_of(tests)
    keys = segment.keys.column(segment.keys.keys.values[places])
    kept = asked.kept(messages, keys, metres[np.repeat(own, lengths)]) if len(places) else np.zeros(0, np.bool_)
    ends = offsets_of(np.bincount(messages[kept], minlength=len(ids)))
    chosen = ranks[places[kept]]
    return Lists(ends, np.arange(len(chosen), dtype=np.uint32)), chosen
