"""Attributes of many messages as maps from names to values, for messages that have few of many attributes each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import I64Array, frozen
from tagmatch.model.arrow_input import plain_strings, strings_in
from tagmatch.model.conditions.attribute_columns import check_attribute_values, flat_values, row_of_place
from tagmatch.model.conditions.typed_values import elements, is_sound, value_column
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.filters.values import ATTRIBUTE, RESERVED, check_name
from tagmatch.model.kernels.value_columns import Column


def entries_of(maps: pa.MapArray) -> tuple[I64Array, pa.Array, pa.Array]:
    """Where the entries of each row begin, and the names and the values of all."""
    kind = maps.type
    lists = maps.cast(pa.list_(pa.struct([pa.field("name", kind.key_type), pa.field("value", kind.item_type)])))
    rows, entries = elements(lists)
    return rows, *entries.flatten()


def map_column(name: str, maps: pa.MapArray, first_row: int = 0) -> Column | None:
    """The entries of all maps of a column, each with a name of its own; `None` if they have no value at all.

    Parameters
    ----------
    name : str
        The column's.
    maps : pyarrow.MapArray
    first_row : int
        Number of the first row, in messages of errors.

    Raises
    ------
    InvalidTypeError
        Names are no strings, or values of a type that no attribute has.
    InvalidValueError
        A name or an integer is none that an attribute can have. Both name the column, and the row if there is one.
    """
    label, kind = f"column {name!r}", maps.type
    rows, names, entries = entries_of(maps)
    names = plain_strings(names, f"{label} is of {kind}, but the names of attributes are strings: cast them")

    def row_at(entry: int) -> int:
        return first_row + row_of_place(entry, rows)

    _check_names(label, names, row_at)
    if not is_sound(kind.item_type):
        check_attribute_values(label, kind, entries, row_at)
    values, values_of = flat_values(entries)
    if len(values_of):
        names, rows = names.take(pa.array(np.repeat(np.arange(len(names)), np.diff(values_of)))), values_of[rows]
    begin, end, between = (pa.scalar(text, pa.large_string()) for text in (ATTRIBUTE, RESERVED, ""))
    prefixes = strings_in(pc.binary_join_element_wise(begin, names.cast(pa.large_string()), end, between))
    column = value_column(values, rows, prefix=prefixes.data)
    return None if column is None else column._replace(prefix_offsets=frozen(prefixes.offsets.astype(np.int64)))


def _check_names(label: str, names: pa.Array, row_at: Callable[[int], int]) -> None:
    """See that all are names that attributes can have."""
    bad = pc.or_(pc.equal(pc.binary_length(names), 0), pc.match_substring(names, RESERVED))
    if pc.any(bad).as_py():
        at = pc.index(bad, True).as_py()
        try:
            check_name(names[at].as_py())
        except InvalidValueError as error:
            raise InvalidValueError(f"{label}: row {row_at(at)}: {error}") from None
