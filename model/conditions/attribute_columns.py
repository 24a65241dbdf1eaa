"""Attributes of many messages, as columns of Arrow, of which only those that somebody asks for are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Memo
from tagmatch.model.conditions.typed_values import check_values, elements, is_list, is_sound, value_column
from tagmatch.model.filters.values import ATTRIBUTE, RESERVED, check_name
from tagmatch.model.kernels.value_columns import NO_PLACES, Column


@dataclass(frozen=True, slots=True, eq=False)
class AttributeColumns:
    """Attributes that messages have beside their tags.

    Attributes
    ----------
    batch : pyarrow.RecordBatch
        A row for each message.
    numbers : sequence of int
        Those of its columns that are attributes, as `check_columns` lets them pass.
    names : sequence of str
        Theirs.
    memo : Memo
        What has been made of the columns.
    """

    batch: pa.RecordBatch
    numbers: Sequence[int]
    names: Sequence[str]
    memo: Memo = field(default_factory=Memo, repr=False)

    def given(self, place: int) -> pa.Array:
        """The values of an attribute, as they were given."""
        return self.batch.column(self.numbers[place])

    def column(self, place: int) -> Column | None:
        """An attribute, which is read once; `None` if it has no value at all."""
        return self.memo.of(place, lambda: (self._read(place), ()))

    def _read(self, place: int) -> Column | None:
        prefix = np.frombuffer(f"{ATTRIBUTE}{self.names[place]}{RESERVED}".encode(), np.uint8)
        return value_column(*flat_values(self.given(place)), prefix=prefix)

    @property
    def columns(self) -> list[Column]:
        """All attributes that have a value."""
        columns = (self.column(place) for place in range(len(self.names)))
        return [column for column in columns if column is not None]


def check_columns(batch: pa.RecordBatch, numbers: Sequence[int], first_row: int) -> None:
    """See that columns can be attributes; most only need their type looked at.

    Raises
    ------
    InvalidTypeError
        A column has another type.
    InvalidValueError
        A name or an integer is none that an attribute can have. Both name the column, and the row if there is one.
    """
    names, kinds = batch.schema.names, batch.schema.types
    for number in numbers:
        name = names[number]
        check_name(name)
        if not is_sound(kinds[number]):
            column = batch.column(number)
            check_attribute_values(f"column {name!r}", column.type, column, first_row.__add__)


def check_attribute_values(label: str, kind: pa.DataType, given: pa.Array, row_at: Callable[[int], int]) -> None:
    """See that values, or lists of them, are such as attributes have.

    Parameters
    ----------
    label : str
        What messages call the column.
    kind : pyarrow.DataType
        The column's type, for messages.
    given : pyarrow.Array
    row_at : callable
        The number, in messages, of the row of a value, or of a list of values.
    """
    values, lists = flat_values(given)
    check_values(
        values,
        lambda place: f"{label}: row {row_at(row_of_place(place, lists))}",
        f"{label} is of {kind}, but attributes are bools, integers, floats or strings, or lists of these: cast "
        "it, or leave it out",
    )


def flat_values(given: pa.Array) -> tuple[pa.Array, I64Array]:
    """All values, and where those of each list begin, if there are lists."""
    if not is_list(given.type):
        return given, NO_PLACES
    lists, flat = elements(given)
    return flat, lists


def row_of_place(place: int, rows: I64Array) -> int:
    """The row, or the list, of a value; `rows` is empty where that has the same number."""
    return int(np.searchsorted(rows, place, side="right")) - 1 if len(rows) else place
