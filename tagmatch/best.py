"""The best keys of each message, and how many keys have each value of a column of data, without making all keys.

The keys of a snapshot are put in order once for a column, or for a score of data alone. Then a message's best keys are
those with the least ranks among its rows: a kernel keeps them in a heap. If messages have a part in a score, it is
evaluated for the keys of some messages at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.contents import take_lists
from tagmatch.highlights import KeyPlaces, lists_of
from tagmatch.model.arrays import (
    F64Array,
    Lists,
    TagLists,
    U32Array,
    frozen,
    offsets_of,
)
from tagmatch.model.data_types import Schema, count_type, some_columns
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.input.messages import attribute_numbers, may_have, names_of
from tagmatch.model.input.places import locations_of
from tagmatch.model.input.values import as_doubles
from tagmatch.model.kernels.lists import gather
from tagmatch.model.names import near_match
from tagmatch.model.tables import Snapshot
from tagmatch.pipeline.best import best_keys, counts_in, each_once, least_of_each
from tagmatch.pipeline.segment import Part
from tagmatch.records import data_beside
from tagmatch.scores import Score, check_columns, score_of

Result = TypeVar("Result")

#: Most keys of a message that can be asked for
MAX_LIMIT = 10_000
# Messages of a packet, and of one whose keys all have their own scores
_MESSAGES, _SCORED = 256, 32


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """The keys of a snapshot in order, the best first."""

    keys: pa.Array
    ranks: U32Array  # Of the key at each place
    places: KeyPlaces

    def by(self, values: pa.Array, order: str) -> Ranking:
        """The same keys by these values of theirs, those without one last, equal ones in this order."""
        table = pa.table({"value": values, "rank": np.arange(len(self.keys), dtype=np.uint32)})
        places = pc.sort_indices(table, [("value", order), ("rank", "ascending")])
        ranks = np.empty(len(places), np.uint32)
        ranks[places.to_numpy()] = np.arange(len(places))
        return replace(self, keys=self.keys.take(places), ranks=ranks[self.ranks] if len(ranks) else self.ranks)


def keys_in_order(places: KeyPlaces) -> Ranking:
    """The keys of a snapshot in their own order."""
    numbers, columns, segments = [], [], places.snapshot.segments
    for segment in segments:
        keys = segment.keys.keys
        live = keys.values
        if segment.deletions is not None:
            rows = segment.live_rows(0, len(segment))
            live = take_lists(keys, rows).flatten().to_numpy()
        numbers.append(np.unique(live))
        columns.append(segment.keys.column(numbers[-1]))
    every = pa.chunked_array(columns).unique()
    every = every.take(pc.sort_indices(every))
    ranks = [
        _at(pc.index_in(column, every).to_numpy().astype(np.uint32), known, segment.keys.keys.values)
        for column, known, segment in zip(columns, numbers, segments, strict=True)
    ]
    return Ranking(every, np.concatenate(ranks), places)


class Groups(NamedTuple):
    """The keys of a snapshot by their values in a column of data."""

    of_ranks: U32Array  # of each key, by its rank in the keys' own order, the number of its value
    values: pa.Array  # in order, and null


class Scored(NamedTuple):
    """A score that messages have a part in, and the columns of data that it needs, of the keys in their own order."""

    score: Score
    columns: Mapping[str, F64Array]


def asked_order(columns: Iterable[str], order_by: object) -> tuple[str, str]:
    """The column, and whether it is ascending or descending; errors."""
    if not isinstance(order_by, str):
        raise InvalidTypeError(f'order_by must be a str such as "priority desc", not {type(order_by).__name__}')
    name, _, way = order_by.strip().rpartition(" ")
    if way.lower() not in ("asc", "desc") or not name:
        name, way = order_by, "asc"
    name, known = name.strip(), [*columns]
    if name not in known:
        raise InvalidValueError(f"order_by: the index has no column of data {name[:60]!r}{near_match(name, known)}")
    return name, "descending" if way.lower() == "desc" else "ascending"


def _at(ranks: U32Array, numbers: U32Array, values: U32Array) -> U32Array:
    """The rank at each place of a key table; any, for a key that only deleted rows have."""
    if not len(numbers):
        return np.zeros(len(values), np.uint32)
    return ranks[np.minimum(np.searchsorted(numbers, values), len(numbers) - 1)]


class Rankings:
    """The orders and groups that were asked for of the current snapshot, made when they are first asked for."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._snapshot: Snapshot | None = None
        self._known: dict[tuple[str, ...], Any] = {}

    def _once(self, snapshot: Snapshot, asked: tuple[str, ...], make: Callable[[], Result]) -> Result:
        with self._lock:
            if self._snapshot is not snapshot:
                self._snapshot, self._known = snapshot, {}
            if asked not in self._known:
                self._known[asked] = make()
            found: Result = self._known[asked]
            return found

    def places(self, snapshot: Snapshot) -> KeyPlaces:
        """Where the keys are."""
        return self._once(snapshot, ("places",), lambda: KeyPlaces.of(snapshot))

    def _keys(self, snapshot: Snapshot) -> Ranking:
        return self._once(snapshot, ("keys",), lambda: keys_in_order(self.places(snapshot)))

    def _column(self, snapshot: Snapshot, schema: Schema, name: str) -> pa.Array:
        found = data_beside(snapshot, self._keys(snapshot).keys, [name], schema).field(name)
        return found.cast(found.type.value_type) if pa.types.is_dictionary(found.type) else found

    def _numbers(self, snapshot: Snapshot, schema: Schema, name: str) -> F64Array:
        """A column of data as doubles."""
        return self._once(snapshot, ("numbers", name), lambda: as_doubles(self._column(snapshot, schema, name)))

    def best(
        self, snapshot: Snapshot, schema: Schema, order_by: object, score: object
    ) -> tuple[Ranking, Scored | None]:
        """By what the best keys are found; errors are those of names, and of the expression."""
        check_best(schema, order_by, score)
        if score is None and order_by is None:
            return self._keys(snapshot), None
        if score is None:
            name, order = asked_order(schema, order_by)
            return self._once(
                snapshot,
                ("order", name, order),
                lambda: self._keys(snapshot).by(self._column(snapshot, schema, name), order),
            ), None
        read = score_of(score)
        columns = {name: self._numbers(snapshot, schema, name) for name in read.names if name in schema}
        keys = self._keys(snapshot)
        if len(columns) < len(read.names):
            return keys, Scored(read, columns)

        def in_order() -> Ranking:
            values = read.values(len(keys.keys), columns.__getitem__)
            return keys.by(pa.array(values, mask=np.isnan(values)), "descending")

        return self._once(snapshot, ("score", read.text), in_order), None

    def groups(self, snapshot: Snapshot, schema: Schema, name: object) -> tuple[Ranking, Groups]:
        """The keys by their values in a column; InvalidValueError if there is no such column."""
        if not isinstance(name, str):
            raise InvalidTypeError(f"count_by must be the name of a column of data, not {type(name).__name__}")
        some_columns([name], schema, "count_by")

        def make() -> Groups:
            column = self._column(snapshot, schema, name)
            if pa.types.is_floating(column.type):
                column = pc.add(column, pa.scalar(0, column.type))  # 0 in place of -0, which Arrow tells apart
            encoded = column.dictionary_encode()
            order = pc.sort_indices(encoded.dictionary)
            numbers = np.full(len(order) + 1, len(order), np.uint32)
            numbers[order.to_numpy()] = np.arange(len(order))
            of_ranks = numbers[encoded.indices.fill_null(len(order)).to_numpy()]
            return Groups(
                of_ranks, pa.concat_arrays([encoded.dictionary.take(order), pa.nulls(1, encoded.type.value_type)])
            )

        return self._keys(snapshot), self._once(snapshot, ("groups", name), make)


def check_best(schema: Schema, order_by: object, score: object) -> None:
    """See by what the best keys are asked for; errors are those of names, and of the expression."""
    if order_by is not None and score is not None:
        raise InvalidValueError("the best keys are those by order_by or by score: give one of the two")
    if order_by is not None:
        asked_order(schema, order_by)
    if score is not None:
        check_columns(score_of(score), schema)


def limit_of(limit: object) -> int:
    """How many keys are wanted at most; errors."""
    if limit is None:
        raise InvalidValueError(f"order_by and score need limit: how many keys are wanted, from 1 to {MAX_LIMIT:,}")
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise InvalidTypeError(f"limit must be an int, not {type(limit).__name__}")
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidValueError(f"limit must be from 1 to {MAX_LIMIT:,}, not {limit}")
    return limit


#: What is made of the sets with certain ids of some messages, and how many messages at a time at most
Maker = tuple[Callable[[Part, Lists], Lists], int]
#: The places of the keys, of sets with certain ids, that are answers to some messages (see `KeyPlaces`)
Answers = Callable[[Part, Lists], Lists]


def best_of(answers: Answers, limit: int, order: Ranking, scored: Scored | None) -> Maker:
    """What makes the ranks of the best keys of each message, each once, the best first: how many, and by what."""

    def some(part: Part, ids: Lists) -> Lists:
        if scored is not None:
            ranks = each_once(_ranks_of(answers, order, part, ids), len(order.keys))
            return _best_scored(part, ranks, scored, limit)
        if locations_of(*part) is None:
            return best_keys(ids, order.places.offsets, order.ranks, limit)
        ranks = _ranks_of(answers, order, part, ids)
        alone = np.arange(len(ranks.values) + 1)  # each key is a row
        return best_keys(Lists(ranks.offsets, alone[:-1].astype(np.uint32)), frozen(alone), ranks.values, limit)

    return some, _MESSAGES if scored is None else _SCORED


def counts_of(answers: Answers, order: Ranking, groups: Groups, *, unique: bool) -> Maker:
    """What makes, of each message, the numbers of its keys' groups, and of each how many keys there are."""

    def some(part: Part, ids: Lists) -> Lists:
        ranks = _ranks_of(answers, order, part, ids)
        return counts_in(each_once(ranks, len(order.keys)) if unique else ranks, groups.of_ranks, len(groups.values))

    return some, _MESSAGES


def as_counts(found: Lists, groups: Groups) -> pa.ListArray:
    """What `counts_of` has made, as it is returned."""
    numbers, counts = found.values.reshape(-1, 2).T
    kind = count_type(groups.values.type)
    arrays = [groups.values.take(pa.array(numbers)), pa.array(counts)]
    return lists_of(found.offsets // 2, pa.StructArray.from_arrays(arrays, fields=list(kind.value_type)))


def _ranks_of(answers: Answers, order: Ranking, part: Part, ids: Lists) -> Lists:
    """The rank of each key of each message, as often as it is one."""
    if locations_of(*part) is None:
        each = gather(Lists(order.places.offsets, order.ranks), ids.values.astype(np.uint64))
        return Lists(each.offsets[ids.offsets], each.values)
    places = answers(part, ids)
    return Lists(places.offsets, order.ranks[places.values])


def check_attributes(chunks: Sequence[TagLists], scored: Scored) -> None:
    """InvalidValueError for a name that no message has."""
    some = [rows for rows in chunks if len(rows)]
    for name in scored.score.names:
        if some and name not in scored.columns and not any(may_have(rows, name) for rows in some):
            known = [*scored.columns, *(each for rows in chunks for each in names_of(rows))]
            raise InvalidValueError(
                f"score: {name[:60]!r} is no column of data and no attribute of these messages{near_match(name, known)}"
            )


def _best_scored(part: Part, ranks: Lists, scored: Scored, limit: int) -> Lists:
    """Of the ranks of each message, which differ, those with the greatest scores."""
    owners, numbers = np.repeat(np.arange(len(ranks)), ranks.lengths()), ranks.values
    attributes = {name: attribute_numbers(*part, name) for name in scored.score.names if name not in scored.columns}

    def of(name: str) -> F64Array:
        return attributes[name][owners] if name in attributes else scored.columns[name][numbers]

    # As integers, the greatest first and NaN last
    scores = scored.score.values(len(numbers), of)
    least = (0.0 - scores).view(np.int64)
    least[least < 0] ^= 2**63 - 1
    least[np.isnan(scores)] = 2**63 - 1
    chosen = least_of_each(ranks, least, limit)
    owners, numbers = owners[chosen], numbers[chosen]
    order = np.lexsort((numbers, least[chosen], owners))
    return Lists(offsets_of(np.bincount(owners, minlength=len(ranks))), numbers[order])
