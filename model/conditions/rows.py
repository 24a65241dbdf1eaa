"""Expressions and constraints in columns, and the rows of tags that are stored for sets with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import BoolArray, I64Array, Strings, TagLists, U64Array, offsets_of
from tagmatch.model.arrow import from_strings
from tagmatch.model.arrow_input import plain_strings, reject_no_utf8, strings_in
from tagmatch.model.columns import NO_SEQUENCES, arrow_chunks, rows_of_tags, shown
from tagmatch.model.conditions.areas import area_column, area_rows, area_tag, is_area, listed_areas
from tagmatch.model.conditions.located import Alternatives, located
from tagmatch.model.conditions.structured import constraint_rows
from tagmatch.model.errors import FilterError, InvalidTypeError, InvalidValueError
from tagmatch.model.filters.language import rows_of

#: As many expressions as a batch of a file has: each is read as the batch is checked, and again as its sets are staged
_REMEMBERED = 1 << 16


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
    reject_no_utf8(texts, name, first_row, count)
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


def reject_mistakes(where: pa.Array, *, plane: bool) -> None:
    """See that all expressions can be read, and their areas can be on the plane or on the sphere.

    Raises
    ------
    FilterError
        The message shows the expression, and says what is wrong with it.
    """
    for text in _different(where).to_pylist():
        try:
            located(_read_bytes(text), plane=plane)
        except FilterError as error:
            shown_text = shown(text.decode(errors="replace"))
            raise FilterError(f"where: {shown_text}: {str(error).removeprefix('where: ')}") from None


def have_mistakes(where: pa.Array, *, plane: bool) -> BoolArray:
    """Of each expression, whether `reject_mistakes` rejects it."""
    texts = _different(where)
    bad = [text for text in texts.to_pylist() if _has_mistake(text, plane)]
    found: BoolArray = pc.is_in(where.cast(texts.type), pa.array(bad, texts.type)).to_numpy(zero_copy_only=False)
    return found


def _different(where: pa.Array) -> pa.Array:
    """The different expressions, in bytes, as they may be no UTF-8."""
    return pc.unique(where.drop_null().cast(pa.large_binary()))


def _read_bytes(text: bytes) -> Alternatives:
    try:
        return _read(text.decode())
    except UnicodeDecodeError as error:
        raise FilterError(f"byte {error.start + 1} is no UTF-8") from None


def _has_mistake(text: bytes, plane: bool) -> bool:
    try:
        located(_read_bytes(text), plane=plane)
    except FilterError:
        return True
    return False


@lru_cache(_REMEMBERED)
def _read(text: str) -> Alternatives:
    return [[*row.tags, *row.constraints] for row in rows_of(text)]


def located_conditions(conditions: Conditions, name: str = "where", *, plane: bool, first_row: int = 0) -> Conditions:
    """The conditions of many rows, each different one as `located` makes it; the message of an error names the row."""
    rows = []
    for number, each in enumerate(conditions.rows):
        try:
            rows.append(located(each, plane=plane))
        except FilterError as error:
            row = first_row + int(np.argmax(conditions.number == number))
            raise FilterError(f"{name}: row {row}: {str(error).removeprefix('where: ')}") from None
    return Conditions(conditions.number, rows)


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


def with_constraints(
    chunks: list[TagLists], constraints: pa.Array | pa.ChunkedArray, name: str = "constraints", *, threads: int = 1
) -> list[TagLists]:
    """The rows of all chunks with the tags of their constraints; arguments and errors as `constraint_rows`."""

    def added(first: int, count: int) -> TagLists:
        some = constraints.slice(first, count)
        if isinstance(some, pa.ChunkedArray):
            some = some.combine_chunks()
        return constraint_rows(some, name, first_row=first, threads=threads)

    return _with_rows(chunks, added)


def with_areas(
    chunks: list[TagLists], areas: Any, name: str = "area", *, plane: bool, threads: int = 1
) -> list[TagLists]:
    """The rows of all chunks with the tags of their areas.

    Parameters
    ----------
    areas
        One for all rows, or for each row one or none: a sequence, or structs as `area_rows` reads them.

    Raises
    ------
    InvalidTypeError, InvalidValueError, NullError
        The message names the row; or there are not as many as rows.
    """
    if is_area(areas):
        one = rows_of_tags([[area_tag(areas, name, plane=plane)]])
        return [_joined(chunk, np.arange(len(chunk)), one, np.zeros(len(chunk), np.int64)) for chunk in chunks]
    found = area_column(areas, sum(map(len, chunks)), name)
    if isinstance(found, list):
        listed = found
        return _with_rows(
            chunks,
            lambda first, count: listed_areas(listed[first : first + count], name, first_row=first, plane=plane),
        )
    column = found

    def added(first: int, count: int) -> TagLists:
        some = column.slice(first, count).combine_chunks()
        return area_rows(some, name, first_row=first, plane=plane, threads=threads)

    return _with_rows(chunks, added)


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
