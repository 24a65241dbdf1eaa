"""What records of Kafka say: those that came together in columns, and one by one where columns cannot have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import methodcaller
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa

from tagmatch.broker.config import KafkaOptions
from tagmatch.broker.gateway import PART_BYTES
from tagmatch.broker.hub import ID, OWN, PAYLOAD, UNTIL, messages_of
from tagmatch.broker.incoming import (
    ATTRIBUTES,
    EXPIRES_IN,
    ID_HEADER,
    LAT,
    LON,
    PLACES,
    TAG,
    GatewayMessage,
    MessageRow,
    Rows,
    check_property,
    id_and_end,
    row_in,
    row_of,
)
from tagmatch.broker.schemas import RegistryAway, Schemas
from tagmatch.broker.wire import write_json
from tagmatch.files.csv import value_in
from tagmatch.files.ipc import IpcReader
from tagmatch.files.json import read_json, tag_lines
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, TagMatchError
from tagmatch.model.input.places import checked_locations
from tagmatch.model.input.values import packed
from tagmatch.model.tables import NEVER
from tagmatch.model.where.values import check_name

#: Fewer messages are read one by one if columns cannot have some of them
_FEW = 256
_TAGS = pa.list_(pa.large_string())
#: Of Python's types that are a column each
_COLUMNS = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.large_string()}
#: Names that are no fields of the column `attributes`; and the most names there
_NO_FIELDS, _MOST_FIELDS = frozenset(("tags", "attributes", "location", "within", "id")), 256
#: What columns of JSON, or of values by a schema, are read of
_KNOWN = frozenset(("tags", "attributes", "location"))


class _Odd(Exception):  # noqa: N818 - a state, after which messages are read one by one
    """Columns cannot have these messages, or not as they would be read one by one."""


class Records(Sequence[GatewayMessage]):
    """Records of Kafka as messages; each is made when it is asked for."""

    def __init__(self, records: Sequence[Any], steady: int) -> None:
        self._records, self._steady = records, steady

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, place: int) -> GatewayMessage: ...
    @overload
    def __getitem__(self, place: slice) -> Records: ...
    def __getitem__(self, place: int | slice) -> GatewayMessage | Records:
        if isinstance(place, slice):
            return Records(self._records[place], self._steady)
        return message_of(self._records[place], self._steady)


def message_of(record: Any, steady: int) -> GatewayMessage:
    """A record as a message; InvalidValueError for headers that cannot be read."""
    try:
        headers = [(name, (value or b"").decode()) for name, value in record.headers() or ()]
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"its headers are no UTF-8: {error}") from None
    id_, until = id_and_end(headers, steady)
    return GatewayMessage(headers, record.value() or b"", id_, until, None, record.topic(), record)


class Nameless:
    """A record with a header whose name is no UTF-8. Its client fails to make headers, and crashes if asked again."""

    def __init__(self, record: Any) -> None:
        self._record = record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)

    def headers(self) -> None:
        """None that could be had."""


# The client gives a list and an error at once, which a plain call may not notice
_headers_of = methodcaller("headers")


def with_headers(record: Any) -> Any:
    """A record that can be asked for its headers, which it was not yet."""
    try:
        _headers_of(record)
    except (UnicodeDecodeError, SystemError):
        return Nameless(record)
    return record


class Read(NamedTuple):
    """The outcome of reading records."""

    rows: list[Rows]  # In columns
    messages: list[GatewayMessage]  # Others, which `Values.row_of` reads
    refused: list[tuple[GatewayMessage, object]]  # Each with the reason


class Values:
    """Reads records in the form of a gateway's messages."""

    def __init__(self, options: KafkaOptions, most_bytes: int, steady: Callable[[], int], *, plane: bool) -> None:
        self._options, self._most_bytes, self._steady, self._plane = options, most_bytes, steady, plane
        self._schemas = Schemas(options) if options.registry else None
        self._reads: Callable[[Sequence[bytes]], dict[str, pa.Array]] | None = {
            "properties": lambda _: {}, "json": self._of_schemas if options.registry else self._of_json,
        }.get(options.form)  # fmt: skip

    def read(self, records: Sequence[Any]) -> Read:
        """Read records, in columns as far as that can be."""
        found, steady = Read([], [], []), self._steady()
        for record in records:
            if isinstance(record, Nameless):
                found.refused.append((_letter(record), InvalidValueError("the name of a header is no UTF-8")))
        if found.refused:
            records = [record for record in records if not isinstance(record, Nameless)]
        records, values = self._small(records, found)
        if self._options.form == "arrow":
            for record, value in zip(records, values, strict=True):
                try:
                    found.rows.append(self._of_arrow(record, value, steady))
                except TagMatchError as error:
                    found.refused.append((_letter(record), error))
            return found
        for part in _parts(values):
            self._read(records[part], values[part], found, steady)
        return found

    def row_of(self, came: GatewayMessage) -> MessageRow:
        """What one message says."""
        if self._schemas is None:
            return row_of(came, self._options.form, plane=self._plane)
        return row_in(came, came, self._schemas.object_in(came.payload), plane=self._plane)

    def _small(self, records: Sequence[Any], found: Read) -> tuple[Sequence[Any], list[bytes]]:
        """The records that are not too large, and their values."""
        values, most = [record.value() or b"" for record in records], self._most_bytes
        if max(map(len, values), default=0) <= most:
            return records, values
        for record, value in zip(records, values, strict=True):
            if len(value) > most:
                why = f"it has {len(value):,} bytes, more than max_waiting_bytes allow"
                found.refused.append((_letter(record), InvalidValueError(why)))
        kept = [record for record, value in zip(records, values, strict=True) if len(value) <= most]
        return kept, [value for value in values if len(value) <= most]

    def waiting(self, records: Sequence[Any]) -> tuple[list[Any], str]:
        """The records that cannot be read before the registry is back, and why it is away."""
        if self._schemas is None:
            return [], ""
        away, why = set(), ""
        begins = [(record.value() or b"")[:5] for record in records]
        for begin in {*begins}:
            try:
                self._schemas.reader_of(begin)
            except RegistryAway as error:
                away.add(begin)
                why = str(error)
            except TagMatchError:  # of each of these messages, which are read one by one
                pass
        return [record for record, begin in zip(records, begins, strict=True) if begin in away], why

    def _read(self, records: Sequence[Any], values: Sequence[bytes], found: Read, steady: int) -> None:
        """Read records in columns; around odd ones in smaller parts, and single ones as messages."""
        if self._reads is not None:
            try:
                found.rows.append(self._in_columns(records, values, steady))
                return
            except (_Odd, TagMatchError, pa.ArrowException, OverflowError, ValueError, TypeError, RecursionError):
                middle = len(records) // 2
            if middle >= _FEW:
                self._read(records[:middle], values[:middle], found, steady)
                self._read(records[middle:], values[middle:], found, steady)
                return
        for record in records:
            try:
                found.messages.append(message_of(record, steady))
            except TagMatchError as error:
                found.refused.append((_letter(record), error))

    # -- in columns ----------------------------------------------------------------------------------------------------

    def _in_columns(self, records: Sequence[Any], values: Sequence[bytes], steady: int) -> Rows:
        """What records say; `_Odd`, or another error, if one of them has to be looked at alone."""
        assert self._reads is not None
        count, headers = len(records), _headers_in(records)
        ids: list[bytes | None] = [None] * count
        for row, value in zip(*headers.pop(ID_HEADER, ((), ())), strict=True):
            value.decode()  # an error unless it is UTF-8, as of other headers
            ids[row] = value
        until: list[int | None] | None = None
        if EXPIRES_IN in headers:
            until = [None] * count
            for row, value in zip(*headers.pop(EXPIRES_IN), strict=True):
                _, until[row] = id_and_end([(EXPIRES_IN, value.decode())], steady)
        columns = self._reads(values)
        if headers:
            said = self._of_headers(headers, count)
            if columns and said:  # what both say is put together one by one
                raise _Odd
            columns = columns or said
        columns = columns if "tags" in columns else {"tags": pa.array([[]] * count, _TAGS), **columns}
        return Rows(Records(records, steady), pa.table(columns), values, ids, until)

    def _of_headers(self, headers: dict[str, _Given], count: int) -> dict[str, pa.Array]:
        """What headers say that are no ids and no times."""
        found, attributes, place = dict[str, pa.Array](), dict[str, list[Any]](), dict[str, _Given]()
        for name, (rows, values) in headers.items():
            texts = pa.array(values, pa.large_binary()).cast(pa.large_string())  # an error unless they are UTF-8
            if name == TAG:
                lengths = np.bincount(rows, minlength=count)
                offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
                found["tags"] = pa.ListArray.from_arrays(pa.array(offsets), texts)
            elif name in (LON, LAT):
                place[name] = rows, [float(text) for text in texts.to_pylist()]
            elif name.startswith(ATTRIBUTES):
                own = name[len(ATTRIBUTES[0]) :]
                if own in attributes or len(set(rows)) < len(rows):
                    raise _Odd
                attributes[own] = [None] * count
                for row, text in zip(rows, texts.to_pylist(), strict=True):
                    attributes[own][row] = value_in(text)
            else:
                check_property(name)
        if attributes:
            found["attributes"] = _attribute_column(attributes, count)
        if place:
            found["location"] = self._places(place, count)
        return found

    def _places(self, given: dict[str, _Given], count: int) -> pa.Array:
        if given.keys() != {LON, LAT} or list(given[LON][0]) != list(given[LAT][0]):
            raise _Odd
        found: list[Any] = [[]] * count
        for row, *place in zip(given[LON][0], given[LON][1], given[LAT][1], strict=True):
            if found[row]:
                raise _Odd
            found[row] = checked_locations(place, plane=self._plane)
        return pa.array(found, PLACES)

    def _of_json(self, values: Sequence[bytes]) -> dict[str, pa.Array]:
        """What objects of JSON say."""
        tags = tag_lines(values, _TAGS)
        return {"tags": tags} if tags is not None else self._of_objects([read_json(each, "") for each in values])

    def _of_schemas(self, values: Sequence[bytes]) -> dict[str, pa.Array]:
        """What values by schemas say."""
        assert self._schemas is not None
        return self._of_objects([*map(self._schemas.object_in, values)])

    def _of_objects(self, objects: Sequence[Any]) -> dict[str, pa.Array]:
        """What objects with `tags`, `attributes` and `location` say."""
        if {*map(type, objects)} - {dict} or set().union(*objects) - _KNOWN:
            raise _Odd
        lists = [each.get("tags", ()) for each in objects]
        if {*map(type, lists)} - {list, tuple}:
            raise _Odd
        tags = pa.array(lists, _TAGS)
        if tags.flatten().null_count:
            raise _Odd
        found = {"tags": tags}
        given = [each.get("attributes", _NOTHING) for each in objects]
        if {*map(type, given)} - {dict}:
            raise _Odd
        if names := set().union(*given):
            if len(names) > _MOST_FIELDS or names & _NO_FIELDS:
                if "tags" in names:
                    raise _Odd
                found["attributes"] = pa.array([packed(each) for each in given], pa.binary())
            else:
                by_name = {name: [each.get(name) for each in given] for name in sorted(names)}
                found["attributes"] = _attribute_column(by_name, len(objects))
        places = [each.get("location") for each in objects]
        if any(each is not None for each in places):
            found["location"] = pa.array([checked_locations(each, plane=self._plane) for each in places], PLACES)
        return found

    # -- many messages in one ------------------------------------------------------------------------------------------

    def _of_arrow(self, record: Any, value: bytes, steady: int) -> Rows:
        """The messages of an Arrow IPC stream, each with the record's id and end unless it has others."""
        came = message_of(record, steady)
        table = messages_of(_arrow_table(value, self._most_bytes, self._options.max_waiting), None, steady)
        ids = [came.id if each is None else each for each in table[ID].to_pylist()]
        until = [came.until if each == NEVER else each for each in table[UNTIL].to_pylist()]
        payloads = table[PAYLOAD].to_pylist()
        said = table.drop_columns(OWN)
        if None in payloads:
            try:
                rows = said.to_pylist(maps_as_pydicts="strict")
                payloads = [_written(row) if each is None else each for row, each in zip(rows, payloads, strict=True)]
            except (pa.ArrowException, OverflowError, ValueError, TypeError, KeyError) as error:
                raise InvalidValueError(f"a row has no payload, and cannot be written as one: {error}") from None
        return Rows(Records([record], steady), said, payloads, ids, until)


_Given = tuple[Sequence[int], Sequence[Any]]
_NOTHING: dict[str, Any] = {}


def _letter(record: Any) -> GatewayMessage:
    """A record, though its headers can perhaps not be read."""
    return GatewayMessage((), record.value() or b"", topic=record.topic(), record=record)


def _parts(values: Sequence[bytes]) -> Iterator[slice]:
    """Parts of messages that are handed over together."""
    begin = nbytes = 0
    if sum(map(len, values)) <= PART_BYTES:
        if values:
            yield slice(0, len(values))
        return
    for place, value in enumerate(values):
        if nbytes + len(value) > PART_BYTES and place > begin:
            yield slice(begin, place)
            begin, nbytes = place, 0
        nbytes += len(value)
    yield slice(begin, len(values))


def _headers_in(records: Sequence[Any]) -> dict[str, _Given]:
    """The values of each header, with the number of the record that has it."""
    heads = [record.headers() for record in records]
    if not any(heads):
        return {}
    pairs = [*chain.from_iterable(head or () for head in heads)]
    rows = np.repeat(np.arange(len(heads)), [len(head or ()) for head in heads]).tolist()
    names = {name for name, _ in pairs}
    if len(names) > _MOST_FIELDS:
        raise _Odd
    if len(names) == 1:
        return {names.pop(): (rows, [value or b"" for _, value in pairs])}
    found: dict[str, tuple[list[int], list[bytes]]] = {name: ([], []) for name in names}
    for row, (name, value) in zip(rows, pairs, strict=True):
        own = found[name]
        own[0].append(row)
        own[1].append(value or b"")
    return dict(found)


def _attribute_column(given: dict[str, list[Any]], count: int) -> pa.Array:
    """Attributes by name, `None` where a message has none: in a struct, or packed if values are of several types."""
    columns = []
    for name, values in given.items():
        check_name(name)
        kinds = {*map(type, values)} - {type(None)}
        if len(kinds) > 1 or kinds - _COLUMNS.keys() or name in _NO_FIELDS:
            rows = ({name: values[row] for name, values in given.items()} for row in range(count))
            if "tags" in given:
                raise _Odd
            return pa.array([packed(row) for row in rows], pa.binary())
        columns.append(pa.array(values, _COLUMNS[kinds.pop()] if kinds else pa.bool_()))
    return pa.StructArray.from_arrays(columns, [*given])


def _arrow_table(value: bytes, most_bytes: int, most_rows: int) -> pa.Table:
    """The rows of an Arrow IPC stream that comes from anyone."""
    reader, batches = IpcReader(most_bytes=most_bytes, most_rows=most_rows), []
    if value[:6] == b"ARROW1":
        raise InvalidValueError("the value is a file of Arrow: write it as a stream of Arrow IPC")
    try:
        for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(value)):
            batch = reader.feed(message.metadata, message.body)
            if batch is not None:
                batches.append(batch)
            if sum(map(len, batches)) > most_rows:
                raise InvalidValueError(
                    f"the value has more than {most_rows:,} messages, as many as max_waiting allows"
                )
    except (pa.ArrowException, OSError) as error:
        raise InvalidValueError(f"the value is no stream of Arrow IPC: {str(error)[:200]}") from None
    if reader.schema is None:
        raise InvalidTypeError("the value is no stream of Arrow IPC: it has no schema")
    return pa.Table.from_batches(batches, reader.schema)


def _written(row: dict[str, Any]) -> bytes:
    """A row as a JSON object, without nulls."""
    return write_json({name: value for name, value in row.items() if value is not None})
