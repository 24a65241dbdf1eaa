"""What an index declares of attributes, as users give it, and messages in columns as values of these types.

Each different text is read and analysed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import I64Array, TagLists, offsets_of
from tagmatch.model.arrow import is_text, plain_strings, to_strings
from tagmatch.model.columns import shown
from tagmatch.model.data_types import known_type, text_of_type
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.input.messages import AttributeColumns, Messages, entries_of
from tagmatch.model.input.typed import TypedTexts, is_typed
from tagmatch.model.input.values import elements, is_list, packed, unpacked
from tagmatch.model.names import Attribute
from tagmatch.model.where.analyzers import Analyzer, analyzer_of
from tagmatch.model.where.constraints import PHRASES, phrase_text
from tagmatch.model.where.declared import NUMERIC, Declared, exact_decimal, value_in
from tagmatch.model.where.types import MARK
from tagmatch.model.where.values import check_name, key_of, quoted

_ONLY_HERE = ("version", "ip")

# -- as users give it --------------------------------------------------------------------------------------------------


def attributes_of(given: object, analyzers: object, before: tuple[Attribute, ...]) -> tuple[Attribute, ...]:
    """The attributes that an index had, and those that are given: names with types, and with analyzers.

    InvalidTypeError, InvalidValueError: what cannot be declared, or otherwise than before.
    """
    if isinstance(given, pa.Schema):
        given = {field.name: field.type for field in given}
    texts = {name: _type_of(name, kind) for name, kind in _items(given, "attributes")}
    found = {each.name: each for each in before}
    by_name = {name: str(analyzer_of(each)) for name, each in _items(analyzers, "analyzers")}
    for name in by_name:
        own = texts.get(name) or (found[name].type if name in found else None)
        if own != "string":
            said = f"is declared as {own}" if own else "is not declared"
            raise InvalidValueError(f"analyzers: {quoted(name)} {said}: declare it as string in attributes")
    for name in {**texts, **by_name}:
        had = found.get(name)
        new = Attribute(name, texts.get(name) or had.type, by_name.get(name, had.analyzer if had else ""))  # type: ignore[union-attr]
        if had not in (None, new):
            raise InvalidValueError(f"attributes: {quoted(name)} is {had} in this index, and cannot become {new}")
        found[name] = new
    return tuple(found[name] for name in sorted(found))


def _items(given: object, what: str) -> list[tuple[str, Any]]:
    if given is None:
        return []
    if not isinstance(given, Mapping):
        raise InvalidTypeError(f"{what} must map names of attributes, not be {shown(given)}")
    for name in given:
        check_name(name)
        if name.endswith(PHRASES):
            raise InvalidValueError(f"{what}: the name {quoted(name)} must not end with U+0001")
    return list(given.items())


def _type_of(name: str, kind: object) -> str:
    """A type as it is kept; InvalidTypeError, InvalidValueError."""
    if isinstance(kind, str) and kind in _ONLY_HERE:
        return kind
    try:
        text = kind if isinstance(kind, str) else text_of_type(kind) if isinstance(kind, pa.DataType) else None
        text = None if text is None else text_of_type(known_type(text))
    except InvalidValueError as error:
        said = str(error).replace("of data", "of attributes").replace("dictionary", ", ".join(_ONLY_HERE))
        raise InvalidValueError(f"attributes: {quoted(name)}: {said}") from None
    if text is None:
        raise InvalidTypeError(f"attributes: {quoted(name)} has no type of attributes: {shown(kind)}")
    if text.startswith("timestamp[") and "," not in text:
        raise InvalidValueError(f"attributes: {quoted(name)}: a timestamp needs a time zone, as in timestamp[ms, UTC]")
    return "string" if text == "dictionary" else text


# -- messages ----------------------------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """Where values come from, for messages of errors."""

    label: str
    row_of: Callable[[int], int]

    def error(self, kind: type[Exception], number: int, text: str) -> Exception:
        return kind(f"{self.label}: row {self.row_of(number)}: {text}")


def as_declared(chunks: Sequence[TagLists], declared: Declared, first_row: int = 0) -> list[TagLists]:
    """Messages with values of the declared types, and analysed; InvalidTypeError, InvalidValueError name the row."""
    found, row = [], first_row
    for rows in chunks:
        if rows.attributes is not None:
            rows = Messages.of(rows, _declared(rows.attributes, declared, row), rows.locations)
        found.append(rows)
        row += len(rows)
    return found


def _declared(given: AttributeColumns, declared: Declared, first_row: int) -> AttributeColumns:
    fields: list[tuple[str, pa.Array]] = []
    maps: list[tuple[str, pa.Array]] = []
    for number, name in zip(given.numbers, given.names, strict=True):
        values = given.batch.column(number)
        if declared[name] is None and values.null_count < len(values):
            row = first_row + int(np.argmax(np.asarray(values.is_valid())))
            _check_name(declared, name, f"column {name!r}: row {row}")
        fields += _as_declared(declared, name, values, f"column {name!r}", first_row.__add__)
    for number in given.maps:
        name = given.batch.schema.names[number]
        rest, own = _of_map(declared, given.batch.column(number), f"column {name!r}", first_row)
        maps.append((name, rest))
        fields += own
    packed_rows = given.packed
    if packed_rows is not None:
        packed_rows = to_strings(
            pa.array(_repacked(packed_rows, declared, first_row), pa.large_binary()).view(pa.large_string())
        )
    columns = [*fields, *maps]
    batch = pa.RecordBatch.from_arrays([values for _, values in columns], [name for name, _ in columns])
    names = [name for name, _ in fields]
    return AttributeColumns(batch, range(len(fields)), names, range(len(fields), len(columns)), packed_rows)


def _check_name(declared: Declared, name: str, label: str) -> None:
    try:
        declared.check_name(name)
    except InvalidValueError as error:
        raise InvalidValueError(f"{label}: {error}") from None


def _repacked(rows: Any, declared: Declared, first_row: int) -> Iterator[bytes]:
    """Attributes of messages that came packed."""
    data, is_alone = rows.data.tobytes(), not first_row and len(rows) == 1
    for row, (begin, end) in enumerate(zip(rows.offsets[:-1].tolist(), rows.offsets[1:].tolist(), strict=True)):
        try:
            yield packed(declared.message(unpacked(data[begin:end])))
        except (InvalidTypeError, InvalidValueError) as error:
            raise type(error)(f"{'' if is_alone else f'row {first_row + row}: '}{error}") from None


def _of_map(
    declared: Declared, maps: pa.MapArray, label: str, first_row: int
) -> tuple[pa.MapArray, list[tuple[str, pa.Array]]]:
    """A column of maps without declared attributes, and these as columns."""
    rows, names, values = entries_of(maps)
    owners = np.repeat(np.arange(len(rows) - 1), np.diff(rows))
    encoded = plain_strings(names, label).dictionary_encode()
    there = np.asarray(values.is_valid())
    codes, known, found = encoded.indices.to_numpy(), encoded.dictionary.to_pylist(), []
    rest = np.ones(len(owners), np.bool_)
    for number, name in enumerate(known):
        chosen = codes == number
        if declared[name] is None:
            if there[chosen].any():
                row = first_row + int(owners[np.argmax(chosen & there)])
                _check_name(declared, name, f"{label}: row {row}")
            continue
        rest &= ~chosen
        places = np.flatnonzero(chosen)
        own = values.take(pa.array(places))
        offsets = offsets_of(np.bincount(owners[places], minlength=len(maps)))
        if is_list(own.type):
            inner, own = elements(own)
            offsets = inner[offsets]
        lists = pa.LargeListArray.from_arrays(pa.array(offsets), own)
        found += _as_declared(declared, name, lists, label, first_row.__add__)
    if rest.all():
        return maps, found
    kept = np.flatnonzero(rest)
    offsets = offsets_of(np.bincount(owners[kept], minlength=len(maps))).astype(np.int32)
    left = pa.MapArray.from_arrays(pa.array(offsets), names.take(pa.array(kept)), values.take(pa.array(kept)))
    return left, found


def _as_declared(
    declared: Declared, name: str, given: pa.Array, label: str, row_of: Callable[[int], int]
) -> list[tuple[str, pa.Array]]:
    """The columns that a column of a declared attribute becomes; one of another stays."""
    own = declared[name]
    if own is None or pa.types.is_null(given.type):
        return [(name, given)]
    lists, values = elements(given) if is_list(given.type) else (None, given)
    if pa.types.is_null(values.type):
        return [(name, given)]

    def row_at(place: int) -> int:
        return row_of(place if lists is None else int(np.searchsorted(lists, place, side="right")) - 1)

    def listed(found: pa.Array, inner: I64Array | None = None) -> pa.Array:
        offsets = lists if inner is None else inner if lists is None else inner[lists]
        return found if offsets is None else pa.LargeListArray.from_arrays(pa.array(offsets), found)

    plain = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    place = _Place(label, row_at)
    if not is_text(plain):
        if own.kind == "decimal" and pa.types.is_floating(plain):
            return [(name, listed(as_decimals(values)))]
        if declared.strict and not _has_kind(own.kind, plain):
            said = f"it takes values of {own.attribute.type}, not of {plain}: cast them"
            raise InvalidTypeError(f"{label}: {said}")
        return [(name, given)]
    texts = plain_strings(values, "").cast(pa.large_string())
    if own.analyzer is not None:
        return [(each, listed(*found)) for each, found in _analysed(own.analyzer, name, texts)]
    if own.kind == "text":
        return [(name, given)]
    read = _read(texts, own.kind, place if declared.strict else None, name)
    return [(name, listed(found)) for found in read]


def _has_kind(kind: str, plain: pa.DataType) -> bool:
    """Whether values of a type of Arrow's, which are no texts, are of a kind."""
    if kind == "integer":
        return bool(pa.types.is_integer(plain))
    if kind in NUMERIC:
        return bool(pa.types.is_integer(plain) or pa.types.is_floating(plain) or pa.types.is_decimal(plain))
    if kind == "bool":
        return bool(pa.types.is_boolean(plain))
    if isinstance(plain, TypedTexts):
        return True
    return kind == "time" and is_typed(plain) and not pa.types.is_decimal(plain)


def _read(texts: pa.Array, kind: Any, strict: _Place | None, name: str) -> list[pa.Array]:
    """Texts as the values that they write; others stay texts, or are errors that name the place."""
    distinct = texts.dictionary_encode()
    found: list[bytes] = []
    for number, text in enumerate(distinct.dictionary.to_pylist()):
        try:
            found.append(MARK + key_of(value_in(kind, text)).encode())
        except InvalidValueError as error:
            if strict is not None:
                at = pc.index(distinct.indices, number).as_py()
                raise strict.error(InvalidValueError, at, f"attribute {quoted(name)}: {error}") from None
            found.append(text.encode())
    keys = pa.array(found, pa.large_binary())
    if kind == "bool":  # kernels take them as bools only
        are = [each[:2] == MARK + b"b" for each in found]
        bools = pa.array(
            [each == MARK + b"b1" if one else None for each, one in zip(found, are, strict=True)], pa.bool_()
        )
        rest = pa.array([None if one else text for text, one in zip(found, are, strict=True)], pa.large_binary())
        return [bools.take(distinct.indices), rest.view(pa.large_string()).take(distinct.indices)]
    return [pa.ExtensionArray.from_storage(TypedTexts(), keys.take(distinct.indices))]


def as_decimals(values: pa.Array) -> pa.Array:
    """Doubles as the decimals that are written as they are."""
    plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    distinct = plain.dictionary_encode()
    found = [MARK + key_of(exact_decimal(each)).encode() for each in distinct.dictionary.to_pylist()]
    return pa.ExtensionArray.from_storage(TypedTexts(), pa.array(found, pa.large_binary()).take(distinct.indices))


def _analysed(analyzer: Analyzer, name: str, texts: pa.Array) -> list[tuple[str, tuple[Any, ...]]]:
    """What texts become: one each, or lists of words, and the same in a row."""
    distinct = texts.dictionary_encode()
    forms = [analyzer.forms(text) for text in distinct.dictionary.to_pylist()]
    if not analyzer.has_words:
        found = pa.array([each for (each,) in forms], pa.large_string())
        return [(name, (found.take(distinct.indices),))]
    lists = pa.array(forms, pa.large_list(pa.large_string())).take(distinct.indices)
    rows = pa.array([phrase_text(each) if each else None for each in forms], pa.large_string())
    inner, words = elements(lists)
    return [(name, (words, inner)), (name + PHRASES, (rows.take(distinct.indices),))]
