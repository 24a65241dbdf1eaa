"""Subscriptions as callers give them, one by one or in columns, and the rows of tags that are stored for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tagmatch.model import clock
from tagmatch.model.arrays import I64Array, Strings, TagLists, U64Array
from tagmatch.model.arrow_input import as_table, without_null_lists
from tagmatch.model.clock import expiry_times
from tagmatch.model.columns import KEY_CHECKS, shown, stored_tag_list, tag_lists
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, NullError
from tagmatch.model.input.conditions import area_tag, keys_of, with_conditions
from tagmatch.model.names import check_names
from tagmatch.model.options import KeyType
from tagmatch.model.where.areas import Near
from tagmatch.model.where.constraints import Where
from tagmatch.model.where.language import rows_of, stored_rows

#: The columns of a table of subscriptions that have constraints
WHERE, AREA = "where", "area"
CONDITIONS = (WHERE, "constraints", AREA)

#: The columns that a table of subscriptions may have
COLUMNS = ("key", "tags", *CONDITIONS, "expires")


def alternatives(tags: object, where: object, area: object = None, *, plane: bool = False) -> list[list[str]]:
    """The rows that are stored for one subscription: one for each conjunction that its expression becomes.

    Entries of `tags` that are `Where`, as iteration gives them, are conditions, too. InvalidTypeError,
    InvalidValueError and FilterError name the mistake.

    >>> alternatives(["fr"], 'tags {"new"} or tags {"sale"}')
    [['fr', 'new'], ['fr', 'sale']]
    """
    plain = stored_tag_list(tags)
    conditions: list[Any] = [] if where is None else [where]
    if Where in map(type, plain):
        conditions += [tag for tag in plain if isinstance(tag, Where)]
        plain = [tag for tag in plain if not isinstance(tag, Where)]
    rows = [plain]
    for condition in conditions:
        rows = [[*row, *other] for other in stored_rows(condition, plane=plane) for row in rows]
    if area is not None:
        own = area_tag(area, plane=plane)
        rows = [[*row, own] for row in rows]
    return rows


def nears_of(stored: Iterable[str]) -> list[float]:
    """The metres of each `Near` among the conditions of a set, as users see it.

    >>> nears_of(["fr", Where("within near(500)"), Where("x = 1")])
    [500.0]
    """
    conditions = [row for each in stored if isinstance(each, Where) for row in rows_of(each)]
    areas = [constraint.area for row in conditions for constraint in row.constraints]
    return [area.metres for area in areas if isinstance(area, Near)]


@dataclass(frozen=True, slots=True, eq=False)
class RowsToStore:
    """What is stored for subscriptions: one row for each conjunction that the expression of one becomes."""

    chunks: list[TagLists]  # tags of the rows, with the tags of conditions
    keys: U64Array | Strings  # the key of each row
    expires: I64Array | None  # when each row's key expires, in microseconds since 1970; `None` if none does
    sources: I64Array | None  # the subscription of each row; `None` where each has one


def rows_to_store(columns: Mapping[str, Any], key_type: KeyType, *, plane: bool, threads: int) -> RowsToStore:
    """The rows that are stored for columns `tags` and `key`, and perhaps others of `COLUMNS`.

    InvalidTypeError, InvalidValueError and FilterError name the row that cannot be stored.
    """
    chunks = tag_lists(columns["tags"], "tags", stored=True)
    keys = KEY_CHECKS[key_type].many(columns["key"], "keys")
    rows = sum(map(len, chunks))
    if rows != len(keys):
        raise InvalidValueError(f"tags and keys must have the same length; there are {rows} sets, {len(keys)} keys")
    times = expiry_times(columns.get("expires"), rows, clock.now_us())
    chunks, sources = with_conditions(chunks, columns, plane=plane, threads=threads)
    if sources is not None:
        keys, times = keys_of(keys, sources), None if times is None else times[sources]
    return RowsToStore(chunks, keys, times, sources)


def columns_of(given: Any, *, match_all: bool = False) -> dict[str, Any]:
    """The columns of a table of subscriptions, as `Index.add_subscriptions` takes it, by name; errors as there.

    Without a column `tags`, or where that is null, a row has no tags if it has a condition, or with `match_all`.
    """
    table = as_table(given)
    if table is None:
        raise InvalidTypeError(
            f"subscriptions must be a table of Arrow or a DataFrame of pandas, polars or DuckDB, not {shown(given)}"
        )
    names = table.schema.names
    check_names(names, COLUMNS, f"subscriptions have columns {', '.join(COLUMNS)}")
    for name in names:
        if name not in COLUMNS or names.count(name) > 1:
            raise InvalidValueError(f"subscriptions have columns {', '.join(COLUMNS)}, each once, not {name!r}")
    if "key" not in names:
        raise InvalidValueError(f"subscriptions need a column 'key'; there is {', '.join(map(repr, names)) or 'none'}")
    if not match_all and {"tags", *CONDITIONS}.isdisjoint(names):
        raise InvalidValueError(
            f"subscriptions need one of the columns {', '.join(('tags', *CONDITIONS))}: without any, each would match "
            "every message; if that is meant, give match_all=True"
        )
    columns = {name: table.column(name) for name in names}
    if "tags" not in columns or columns["tags"].null_count:
        batches = table.to_batches() if isinstance(table, pa.Table) else [table]
        chunks = list(_every_tags(batches, match_all))
        columns["tags"] = pa.chunked_array(chunks, None if chunks else pa.list_(pa.string()))
    return columns


def _every_tags(batches: Iterable[pa.RecordBatch], match_all: bool) -> Iterator[pa.Array]:
    """The tags of all rows, none null; NullError."""
    row = 0
    for batch in batches:
        tags = tags_of(batch, CONDITIONS)
        if tags.null_count and not match_all:
            row += int(np.argmax(tags.is_null().to_numpy(zero_copy_only=False)))
            raise NullError(
                f"subscriptions: row {row} has no tags and no condition, and would match every message: give [] for no "
                "tags, or match_all=True"
            )
        yield without_null_lists(tags, np.ones(len(batch), np.bool_))
        row += len(batch)


def tags_of(batch: pa.RecordBatch, instead: Iterable[str]) -> pa.Array:
    """The column `tags`, whose nulls are empty lists in rows that have a value in one of some other columns."""
    names = batch.schema.names
    has_other = np.zeros(len(batch), np.bool_)
    for name in instead:
        if name in names:
            has_other |= batch.column(name).is_valid().to_numpy(zero_copy_only=False)
    tags = batch.column("tags") if "tags" in names else pa.nulls(len(batch), pa.list_(pa.string()))
    return without_null_lists(tags, has_other)
