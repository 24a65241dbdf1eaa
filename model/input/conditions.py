"""Conditions of many subscriptions in columns, and the rows of tags that are stored for sets with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import BoolArray, I64Array, Strings, TagLists, U32Array, U64Array, offsets_of
from tagmatch.model.arrow import from_strings
from tagmatch.model.arrow_input import plain_strings, reject_no_utf8, strings_in
from tagmatch.model.columns import NO_SEQUENCES, arrow_chunks, rows_of_tags, shown
from tagmatch.model.errors import FilterError, InvalidTypeError, InvalidValueError
from tagmatch.model.input.areas import area_column, area_rows, area_tag, is_area, listed_areas
from tagmatch.model.input.constraints import constraint_rows
from tagmatch.model.where.language import stored_rows


class Conditions(NamedTuple):
    """What the rows of a table ask for beside their tags."""

    number: I64Array  # of each row, which of the alternatives it has
    rows: list[list[list[str]]]  # of different rows, the tags that each conjunction adds


def conditions_of(where: Any, count: int, name: str = "where", *, first_row: int = 0, plane: bool) -> Conditions:
    """The conditions of `count` rows: a column of expressions, null where there is none, or one expression for all.

    Each different text is read once. InvalidTypeError, InvalidValueError and FilterError name the row, counted from
    `first_row`; or the length is another.
    """
    if isinstance(where, str):
        return Conditions(np.zeros(count, np.int64), [stored_rows(where, plane=plane)])
    texts = texts_of(where, count, name, first_row=first_row)
    encoded = texts.dictionary_encode()
    codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy().astype(np.int64)
    found: list[list[list[str]]] = []
    for number, text in enumerate(encoded.dictionary.to_pylist()):
        try:
            found.append(stored_rows(text, plane=plane))
        except FilterError as error:
            row = first_row + int(np.argmax(codes == number))
            raise FilterError(f"{name}: row {row}: {str(error).removeprefix('where: ')}") from None
    return Conditions(codes, [*found, [[]]])


def texts_of(where: Any, count: int, name: str = "where", *, first_row: int = 0) -> pa.Array:
    """A column of `count` expressions, null where there is none; InvalidTypeError, InvalidValueError."""
    texts = pa.chunked_array(_texts(where, name, first_row), pa.large_string()).combine_chunks()
    if len(texts) != count:
        raise InvalidValueError(f"{name} must have a text or a null for each of the {count} sets, not {len(texts)}")
    reject_no_utf8(texts, name, first_row, count)
    return texts


def _texts(where: Any, name: str, first_row: int) -> list[pa.Array]:
    """The chunks of a column of expressions."""
    chunks = arrow_chunks(where, name)
    if chunks is not None:
        return [
            plain_strings(chunk, f"{name} must be texts, not {chunk.type}").cast(pa.large_string()) for chunk in chunks
        ]
    if isinstance(where, NO_SEQUENCES) or not isinstance(where, Iterable):
        raise InvalidTypeError(f"{name} must be a text, or one for each row, not {shown(where)}")
    listed = list(where)
    for row, text in enumerate(listed):
        if not (text is None or isinstance(text, str)):
            raise InvalidTypeError(f"{name}: row {first_row + row} must be a text, not {shown(text)}")
    try:
        return [pa.array(listed, pa.large_string())]
    except UnicodeEncodeError as error:
        raise InvalidValueError(f"{name}: {shown(error.object)} has a lone surrogate and so no UTF-8 form") from None


def reject_mistakes(where: pa.Array, *, plane: bool) -> None:
    """Raise FilterError for the first expression that cannot be read, or whose areas are out of the geometry."""
    for text in _different(where).to_pylist():
        mistake = _mistake_in(text, plane)
        if mistake:
            raise FilterError(f"where: {shown(text.decode(errors='replace'))}: {mistake}")


def have_mistakes(where: pa.Array, *, plane: bool) -> BoolArray:
    """Of each expression, whether `reject_mistakes` rejects it."""
    texts = _different(where)
    bad = [text for text in texts.to_pylist() if _mistake_in(text, plane)]
    found: BoolArray = pc.is_in(where.cast(texts.type), pa.array(bad, texts.type)).to_numpy(zero_copy_only=False)
    return found


def _different(where: pa.Array) -> pa.Array:
    """The different expressions, in bytes, as they may be no UTF-8."""
    return pc.unique(where.drop_null().cast(pa.large_binary()))


def _mistake_in(text: bytes, plane: bool) -> str:
    """What is wrong with an expression, or nothing."""
    try:
        stored_rows(text.decode(), plane=plane)
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} is no UTF-8"
    except FilterError as error:
        return str(error).removeprefix("where: ")
    return ""


def with_conditions(
    chunks: list[TagLists], columns: Mapping[str, Any], *, plane: bool, threads: int = 1
) -> tuple[list[TagLists], I64Array | None]:
    """The rows of all chunks with the tags of their columns `constraints`, `area` and `where`, those that there are.

    A row comes as often as its expression has alternatives: from which row each comes, `None` if each comes once.
    InvalidTypeError, InvalidValueError, NullError and FilterError name the row.
    """
    rows, sources = sum(map(len, chunks)), None
    constraints, areas, where = (columns.get(name) for name in ("constraints", "area", "where"))
    if constraints is not None:
        chunks = _with_rows(
            chunks,
            lambda first, count: constraint_rows(
                _slice(constraints, first, count), "constraints", first_row=first, threads=threads
            ),
        )
    if is_area(areas):
        one = rows_of_tags([[area_tag(areas, plane=plane)]])
        chunks = [_joined(chunk, np.arange(len(chunk)), one, np.zeros(len(chunk), np.int64)) for chunk in chunks]
    elif areas is not None:
        column = area_column(areas, rows)
        chunks = _with_rows(
            chunks,
            lambda first, count: (
                listed_areas(column[first : first + count], first_row=first, plane=plane)
                if isinstance(column, list)
                else area_rows(_slice(column, first, count), first_row=first, plane=plane, threads=threads)
            ),
        )
    if where is not None:
        chunks, sources = _with_alternatives(chunks, conditions_of(where, rows, plane=plane))
    return chunks, sources


def _with_alternatives(chunks: list[TagLists], conditions: Conditions) -> tuple[list[TagLists], I64Array]:
    """The rows of all chunks with the tags that their conditions add: as many of each as it has alternatives."""
    counts = np.array([len(rows) for rows in conditions.rows], np.int64)
    firsts = offsets_of(counts)
    added = rows_of_tags([tags for rows in conditions.rows for tags in rows])
    parts, sources, first = [], [np.zeros(0, np.int64)], 0
    for chunk in chunks:
        numbers = conditions.number[first : first + len(chunk)]
        rows = np.repeat(np.arange(len(chunk)), counts[numbers])
        within = np.arange(len(rows)) - np.repeat(offsets_of(counts[numbers])[:-1], counts[numbers])
        parts.append(_joined(chunk, rows, added, np.repeat(firsts[numbers], counts[numbers]) + within))
        sources.append(first + rows)
        first += len(chunk)
    return parts, np.concatenate(sources)


def _slice(column: pa.Array | pa.ChunkedArray, first: int, count: int) -> pa.Array:
    some = column.slice(first, count)
    return some.combine_chunks() if isinstance(some, pa.ChunkedArray) else some


def _with_rows(chunks: list[TagLists], others: Callable[[int, int], TagLists]) -> list[TagLists]:
    """The rows of all chunks, each with the tags of another one, of those that are given from a number on."""
    parts, first = [], 0
    for chunk in chunks:
        rows = np.arange(len(chunk))
        parts.append(_joined(chunk, rows, others(first, len(chunk)), rows))
        first += len(chunk)
    return parts


def _joined(left: TagLists, left_rows: I64Array, right: TagLists, right_rows: I64Array) -> TagLists:
    """Rows with the tags of one of these rows and one of those, by number, in one dictionary of both."""
    left_offsets, lefts = _places(left, left_rows)
    right_offsets, rights = _places(right, right_rows)
    lengths = np.empty(2 * len(left_rows), np.int64)
    lengths[0::2], lengths[1::2] = np.diff(left_offsets), np.diff(right_offsets)
    ends = offsets_of(lengths)
    of_left = np.repeat(np.arange(len(lengths)) % 2 == 0, lengths)
    indices = np.empty(int(ends[-1]), np.uint32)
    indices[of_left] = lefts
    indices[~of_left] = rights + np.uint32(len(left.tags))
    strings = pa.concat_arrays([from_strings(each.tags).cast(pa.large_string()) for each in (left, right)])
    return TagLists(ends[::2], strings_in(strings), indices)


def _places(rows: TagLists, numbers: I64Array) -> tuple[I64Array, U32Array]:
    """The numbers of the strings that these rows have, and where those of each begin."""
    begins = rows.offsets[:-1][numbers].astype(np.int64)
    lengths = rows.offsets[1:][numbers] - begins
    offsets = offsets_of(lengths)
    places = np.arange(int(offsets[-1])) + np.repeat(begins - offsets[:-1], lengths)
    return offsets, (places if rows.indices is None else rows.indices[places]).astype(np.uint32)


def keys_of(keys: U64Array | Strings, rows: I64Array) -> U64Array | Strings:
    """The keys of these rows."""
    if isinstance(keys, Strings):
        return strings_in(from_strings(keys).cast(pa.large_string()).take(pa.array(rows)))
    return keys[rows]
