"""Subscriptions: tags and `where` expressions, as the rows of tags that are stored for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Strings, TagLists, U64Array, offsets_of
from tagmatch.model.arrow import from_strings
from tagmatch.model.arrow_input import plain_strings, strings_in
from tagmatch.model.columns import NO_SEQUENCES, arrow_chunks, rows_of_tags, shown, stored_tag_list
from tagmatch.model.errors import FilterError, InvalidTypeError, InvalidValueError
from tagmatch.model.filters.language import rows_of
from tagmatch.model.filters.where import Where

#: Rows of tags, each of which stands for a conjunction
Alternatives = list[list[str]]


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


class Conditions(NamedTuple):
    """What the rows of a table ask for beside their tags.

    Attributes
    ----------
    number : int64 array
        Of each row, which of the alternatives it has.
    rows : list of Alternatives
        Of different rows, the tags that each conjunction adds.
    """

    number: I64Array
    rows: list[Alternatives]


def conditions_of(where: Any, count: int, name: str = "where", *, first_row: int = 0) -> Conditions:
    """The conditions of `count` rows: a column of expressions, null where there is none, or one expression for all.

    Each different text is read once.

    Raises
    ------
    InvalidTypeError, InvalidValueError, FilterError
        The message names the row, counted from `first_row`; or the length is another.
    """
    if isinstance(where, str):
        return Conditions(np.zeros(count, np.int64), [_read(where)])
    chunks = arrow_chunks(where, name)
    if chunks is None:
        if isinstance(where, NO_SEQUENCES) or not isinstance(where, Iterable):
            raise InvalidTypeError(f"{name} must be a text, or one for each row, not {shown(where)}")
        listed = list(where)
        for row, text in enumerate(listed):
            if not (text is None or isinstance(text, str)):
                raise InvalidTypeError(f"{name}: row {first_row + row} must be a text, not {shown(text)}")
        try:
            chunks = [pa.array(listed, pa.large_string())]
        except UnicodeEncodeError as error:
            raise InvalidValueError(
                f"{name}: {shown(error.object)} has a lone surrogate and so no UTF-8 form"
            ) from None
    texts = pa.chunked_array(
        [plain_strings(chunk, f"{name} must be texts, not {chunk.type}").cast(pa.large_string()) for chunk in chunks],
        pa.large_string(),
    ).combine_chunks()
    if len(texts) != count:
        raise InvalidValueError(f"{name} must have a text or a null for each of the {count} sets, not {len(texts)}")
    encoded = texts.dictionary_encode()
    codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy().astype(np.int64)
    found: list[Alternatives] = []
    for number, text in enumerate(encoded.dictionary.to_pylist()):
        try:
            found.append(_read(text))
        except FilterError as error:
            row = first_row + int(np.argmax(codes == number))
            raise FilterError(f"{name}: row {row}: {str(error).removeprefix('where: ')}") from None
    return Conditions(codes, [*found, [[]]])


def _read(text: str) -> Alternatives:
    return [[*row.tags, *row.constraints] for row in rows_of(text)]


class Expanded(NamedTuple):
    """Rows as they are stored.

    Attributes
    ----------
    tags : list of TagLists
    sources : int64 array
        The row that each comes from.
    """

    tags: list[TagLists]
    sources: I64Array


def with_conditions(chunks: list[TagLists], conditions: Conditions) -> Expanded:
    """The rows of all chunks with the tags that their conditions add: as many of each as it has alternatives."""
    counts = np.array([len(rows) for rows in conditions.rows], np.int64)
    firsts = offsets_of(counts)
    added = rows_of_tags([tags for rows in conditions.rows for tags in rows])
    parts, sources, first = [], [], 0
    for chunk in chunks:
        numbers = conditions.number[first : first + len(chunk)]
        rows = np.repeat(np.arange(len(chunk)), counts[numbers])
        within = np.arange(len(rows)) - np.repeat(offsets_of(counts[numbers])[:-1], counts[numbers])
        parts.append(_joined(chunk, rows, added, np.repeat(firsts[numbers], counts[numbers]) + within))
        sources.append(first + rows)
        first += len(chunk)
    return Expanded(parts, np.concatenate([np.zeros(0, np.int64), *sources]))


def _joined(left: TagLists, left_rows: I64Array, right: TagLists, right_rows: I64Array) -> TagLists:
    """Rows with the tags of one of these rows and one of those, by number, in one dictionary of both."""
    lefts = _places(left, left_rows)
    rights = _places(right, right_rows)
    lengths = np.empty(2 * len(left_rows), np.int64)
    lengths[0::2], lengths[1::2] = np.diff(lefts.offsets), np.diff(rights.offsets)
    ends = offsets_of(lengths)
    of_left = np.repeat(np.arange(len(lengths)) % 2 == 0, lengths)
    indices = np.empty(int(ends[-1]), np.uint32)
    indices[of_left] = lefts.values
    indices[~of_left] = rights.values + np.uint32(len(left.tags))
    strings = pa.concat_arrays([from_strings(each.tags).cast(pa.large_string()) for each in (left, right)])
    return TagLists(ends[::2], strings_in(strings), indices)


class _Places(NamedTuple):
    offsets: I64Array
    values: U64Array


def _places(rows: TagLists, numbers: I64Array) -> _Places:
    """The numbers of the strings that these rows have."""
    begins = rows.offsets[:-1][numbers].astype(np.int64)
    lengths = rows.offsets[1:][numbers] - begins
    offsets = offsets_of(lengths)
    places = np.arange(int(offsets[-1])) + np.repeat(begins - offsets[:-1], lengths)
    return _Places(offsets, (places if rows.indices is None else rows.indices[places]).astype(np.uint32))


def keys_of(keys: U64Array | Strings, rows: I64Array) -> U64Array | Strings:
    """The keys of these rows."""
    if isinstance(keys, Strings):
        return strings_in(from_strings(keys).cast(pa.large_string()).take(pa.array(rows)))
    return keys[rows]


#: The columns that a table of subscriptions may have
_COLUMNS = ("key", "tags", "where", "expires")


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
