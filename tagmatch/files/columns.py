"""The columns that files have, and how their values are checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from tagmatch.columns import key_value, key_values, tag_list, tag_lists
from tagmatch.errors import InvalidTypeError


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a file and how its values are checked.

    Attributes
    ----------
    name : str
    kinds : tuple of pyarrow.DataType
        Types that the column may have in a file without types; the first that fits some rows is taken for them.
    check : callable
        `check(array, name, first_row)` raises a `TagMatchError` for values that cannot be used.
    check_one : callable
        The same for one Python value, `check_one(value, name)`.
    """

    name: str
    kinds: tuple[pa.DataType, ...]
    check: Callable[[pa.Array, str, int], object]
    check_one: Callable[[Any, str], object]

    def label(self, path: str) -> str:
        """What messages call the column of a file."""
        return f"{path}: column {self.name!r}"


class Rows(NamedTuple):
    """Rows of a file that follow each other.

    Attributes
    ----------
    batch : pyarrow.RecordBatch
        Their columns.
    first : int
        The number of the first among all rows of the file or folder, also those that cannot be used.
    """

    batch: pa.RecordBatch
    first: int


def _check_ids(ids: pa.Array, name: str, _: int) -> None:
    kind = ids.type
    if not (
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
    ):
        raise InvalidTypeError(f"{name} must be integers or strings, not {kind}")


def _check_id(value: object, name: str) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | str)):
        raise InvalidTypeError(f"{name} must be an integer or a string, not {value!r}")


STORED_TAGS = Column(
    "tags",
    (pa.list_(pa.string()),),
    lambda array, name, row: tag_lists(array, name, first_row=row, stored=True),
    tag_list,
)
QUERY_TAGS = Column(
    "tags", (pa.list_(pa.string()),), lambda array, name, row: tag_lists(array, name, first_row=row), tag_list
)
KEY = Column("key", (pa.uint64(),), lambda array, name, row: key_values(array, name, first_row=row), key_value)
#: The one column that a file need not have, nor a row of it
ID = Column("id", (pa.int64(), pa.uint64(), pa.string()), _check_ids, _check_id)
