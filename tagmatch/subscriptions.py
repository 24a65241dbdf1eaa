"""Subscriptions: tags and `where` expressions, as the rows of tags that are stored for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tagmatch.model.columns import shown, stored_tag_list
from tagmatch.model.conditions.rows import Alternatives
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.filters.language import rows_of
from tagmatch.model.filters.where import Where


def alternatives(tags: object, where: object) -> Alternatives:
    r"""The rows that are stored for one subscription: one for each conjunction that its expression becomes.

    Entries of `tags` that are `Where`, as iteration gives them, are conditions, too.

    Raises
    ------
    InvalidTypeError, InvalidValueError, FilterError
        As `stored_tag_list`, and as `rows_of` for the expression.

    Examples
    --------
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
        rows = [[*row, *other.tags, *other.constraints] for other in rows_of(condition) for row in rows]
    return rows


#: The columns that a table of subscriptions may have
_COLUMNS = ("key", "tags", "where", "constraints", "expires")


def columns_of(table: Any) -> dict[str, Any]:
    """The columns of a table of subscriptions, by name; without a column `tags`, each row has no tags.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        It is no table, has no column `key`, or has a column that subscriptions do not have, or one twice.
    """
    if not isinstance(table, pa.Table | pa.RecordBatch):
        raise InvalidTypeError(f"subscriptions must be an Arrow table or record batch, not {shown(table)}")
    names = table.schema.names
    for name in names:
        if name not in _COLUMNS or names.count(name) > 1:
            raise InvalidValueError(f"subscriptions have columns {', '.join(_COLUMNS)}, each once, not {name!r}")
    if "key" not in names:
        raise InvalidValueError(f"subscriptions need a column 'key'; there is {', '.join(map(repr, names)) or 'none'}")
    no_tags = pa.ListArray.from_arrays(pa.array(np.zeros(len(table) + 1, np.int32)), pa.array([], pa.string()))
    return {"tags": no_tags, **{name: table.column(name) for name in names}}
