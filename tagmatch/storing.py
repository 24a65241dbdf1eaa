"""Columns of subscriptions as the rows that are stored for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tagmatch.model import clock
from tagmatch.model.arrays import I64Array, Strings, TagLists, U64Array
from tagmatch.model.columns import KEY_CHECKS, tag_lists
from tagmatch.model.conditions.rows import (
    conditions_of,
    keys_of,
    located_conditions,
    with_areas,
    with_conditions,
    with_constraints,
)
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.expiry import expiry_times
from tagmatch.model.options import KeyType


@dataclass(frozen=True, slots=True, eq=False)
class RowsToStore:
    """What is stored for subscriptions: one row for each conjunction that the expression of one becomes.

    Attributes
    ----------
    chunks : list of TagLists
        Tags of the rows, among them those that stand for conditions.
    keys : uint64 array or Strings
        Of each row.
    expires : int64 array, optional
        When each row's key expires, in microseconds since 1970; `None` where none does.
    sources : int64 array, optional
        The subscription of each row; `None` where each has one.
    """

    chunks: list[TagLists]
    keys: U64Array | Strings
    expires: I64Array | None
    sources: I64Array | None


def rows_to_store(columns: Mapping[str, Any], key_type: KeyType, *, plane: bool, threads: int) -> RowsToStore:
    """The rows that are stored for columns as of `TagMatch.add_subscriptions`.

    Parameters
    ----------
    columns : mapping
        `tags` and `key`; `where`, `constraints`, `area` and `expires` may be `None` or missing.
    key_type : {"integer", "string"}
    plane : bool
        Whether areas are on the plane.
    threads : int

    Raises
    ------
    InvalidTypeError, InvalidValueError, FilterError
        A row cannot be stored, which is named; or there are not as many keys as sets.
    """
    chunks = tag_lists(columns["tags"], "tags", stored=True)
    keys, sources = KEY_CHECKS[key_type].many(columns["key"], "keys"), None
    rows = sum(map(len, chunks))
    if rows != len(keys):
        raise InvalidValueError(f"tags and keys must have the same length; there are {rows} sets, {len(keys)} keys")
    times = expiry_times(columns.get("expires"), rows, clock.now_us())
    if (constraints := columns.get("constraints")) is not None:
        chunks = with_constraints(chunks, constraints, threads=threads)
    if (area := columns.get("area")) is not None:
        chunks = with_areas(chunks, area, plane=plane, threads=threads)
    if (where := columns.get("where")) is not None:
        conditions = located_conditions(conditions_of(where, rows), plane=plane)
        chunks, sources = with_conditions(chunks, conditions)
        keys, times = keys_of(keys, sources), None if times is None else times[sources]
    return RowsToStore(chunks, keys, times, sources)
